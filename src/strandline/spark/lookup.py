"""The planner's questions, asked of a live cluster through the admin client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Self

from strandline.client import Admin
from strandline.client.config import CommonConfig
from strandline.client.types import EARLIEST, LATEST
from strandline.proto.ids import TopicPartition


class ClusterOffsets:
    """An `OffsetLookup` on Kafka's wire; close it, or use it in a `with`."""

    def __init__(self, bootstrap: str, settings: Mapping[str, str]) -> None:
        """`settings` are a consumer's; those that only a consumer has are left aside."""
        shared = {field.name for field in fields(CommonConfig)}
        self._admin = Admin(bootstrap, **{k: v for k, v in settings.items() if k.replace(".", "_") in shared})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()

    def partition_counts(self) -> Mapping[str, int]:
        """Every topic with its number of partitions."""
        names = self._admin.list_topics()
        return {topic.name: len(topic.partitions) for topic in self._admin.describe_topics(names)} if names else {}

    def earliest(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Log start offsets."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """High watermarks."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def for_timestamps(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """The first offset at or after the time; None where no record is as late."""
        found = self._offsets(timestamps_ms)
        return {partition: None if offset < 0 else offset for partition, offset in found.items()}

    def _offsets(self, questions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        if not questions:
            return {}
        wanted: dict[TopicPartition | tuple[str, int], int] = dict(questions.items())
        answers = self._admin.list_offsets(wanted)
        return {partition: listed.offset for partition, listed in answers.items()}
