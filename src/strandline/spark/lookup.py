"""The planner's questions, asked of a live cluster through the admin client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from strandline.client import Admin
from strandline.client.config import CommonConfig
from strandline.client.errors import OffsetOutOfRange, UnknownTopic
from strandline.client.types import EARLIEST, LATEST, EpochEnd, ListedOffset
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.system import SystemClock
from strandline.spark.options import ISOLATION, READ_COMMITTED
from strandline.spark.planner import LogEnd, TopicShape

T = TypeVar("T")

_SAMPLE_BYTES = 64 * 1024

_SETTLE_MS = 45_000
"""Milliseconds for which a log may seem to end before an offset that was once committed. A new leader learns its high
watermark from the ISR, and waits replica.lag.time.max.ms (30 s) for a silent member; tasks wait as long."""

_ASK_AGAIN_S = 0.25


class ClusterOffsets:
    """An `OffsetLookup` on Kafka's wire; close it, or use it in a `with`.

    A partition whose topic was gone when its leader was asked is in no answer, even if another has its name by then.
    """

    def __init__(self, bootstrap: str, settings: Mapping[str, Any]) -> None:
        """`settings` are a consumer's; those that only a consumer has are left aside."""
        shared = CommonConfig.attributes
        self._admin = Admin(bootstrap, **{k: v for k, v in settings.items() if k.replace(".", "_") in shared})
        self._bootstrap = bootstrap
        self._settings = dict(settings)
        self._read_committed = settings.get(ISOLATION) == READ_COMMITTED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._admin.close()

    def topics(self) -> Mapping[str, TopicShape]:
        """Every topic with its number of partitions and its id."""
        return {
            topic.name: TopicShape(
                len(topic.partitions), None if topic.topic_id is None else str(topic.topic_id), topic.is_internal
            )
            for topic in self._admin.describe_topics(None, include_internal=True)
        }

    def earliest(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Log start offsets."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """High watermarks; with isolation.level=read_committed the last stable offsets."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        """As `latest`, each with the leader epoch that told it."""
        found = self._listed(dict.fromkeys(partitions, LATEST))
        return {partition: LogEnd(listed.offset, listed.leader_epoch) for partition, listed in found.items()}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        """End offset of these leader epochs in each partition's log (KIP-320)."""
        return self._of_those_there(epochs, self._admin.epoch_ends)

    def for_timestamps(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """The first offset at or after the time; None where no record is as late."""
        found = self._offsets(timestamps_ms)
        return {partition: None if offset < 0 else offset for partition, offset in found.items()}

    def settled_end(self, partition: TopicPartition, at_least: int) -> int | None:
        """The end of a partition's log once it has reached `at_least`, or after 45 s in which it did not; None where it
        is gone."""
        clock, pause = SystemClock(), threading.Event()
        give_up_ms = clock.monotonic_ms() + _SETTLE_MS
        while True:
            end = self.latest([partition]).get(partition)
            if end is None or end >= at_least or clock.monotonic_ms() >= give_up_ms:
                return end
            pause.wait(_ASK_AGAIN_S)

    def bytes_per_offset(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, float]:
        """Average bytes of an offset in each range, estimated from its first batches; 0 if those are deleted, which the
        reader of the range reports."""
        from strandline.client.range_reader import RangeReader

        sample = {**self._settings, "max.partition.fetch.bytes": str(_SAMPLE_BYTES)}
        sizes: dict[TopicPartition, float] = {}
        with RangeReader(self._bootstrap, **sample) as reader:
            for partition, (start, end) in ranges.items():
                read, position = 0, start
                try:
                    for batch in reader.read_batches(*partition, start, end):
                        read += len(batch.data)
                        position = batch.next_offset
                        if read >= _SAMPLE_BYTES // 2:
                            break
                except (OffsetOutOfRange, UnknownTopic):
                    pass
                sizes[partition] = read / max(position - start, 1)
        return sizes

    def _offsets(self, questions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        return {partition: listed.offset for partition, listed in self._listed(questions).items()}

    def _listed(self, questions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, ListedOffset]:
        def ask(left: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, ListedOffset]:
            return self._admin.list_offsets(dict(left.items()), read_committed=self._read_committed)

        return self._of_those_there(questions, ask)

    def _of_those_there(
        self,
        questions: Mapping[TopicPartition, int],
        ask: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, T]],
    ) -> Mapping[TopicPartition, T]:
        left = questions
        while left:
            try:
                return ask(left)
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                shapes = self.topics()
                gone = error.topic if isinstance(error, UnknownTopic) else None
                there = {
                    partition: question
                    for partition, question in left.items()
                    if partition.topic in shapes.keys() - {gone}
                    and partition.partition < shapes[partition.topic].partitions
                }
                if len(there) == len(left):
                    raise  # all are there: the answer contradicts itself
                left = there
        return {}
