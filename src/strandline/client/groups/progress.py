"""What was handed out, what of it is done, what is committed: why nothing merely fetched is committed."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.client.types import ConsumerRecord, OffsetAndMetadata
from strandline.proto.ids import TopicPartition


class Progress:
    """Offsets per partition, each that of the next record.

    Invariants:
    - handed >= done: a record is done only after it was handed out.
    - `committed` is what the coordinator has acknowledged since the partition was taken up.
    """

    def __init__(self) -> None:
        self._handed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._done: dict[TopicPartition, OffsetAndMetadata] = {}
        self._committed: dict[TopicPartition, int] = {}

    def hand(self, records: Iterable[ConsumerRecord]) -> None:
        """These go to the caller now."""
        last = {(record.topic, record.partition): record for record in records}
        for (topic, partition), record in last.items():
            self._handed[TopicPartition(topic, partition)] = OffsetAndMetadata(
                record.offset + 1, "", record.leader_epoch
            )

    def finish(self) -> None:
        """The caller is done with everything that was handed out."""
        self._done.update(self._handed)
        self._handed.clear()

    def reach(self, partition: TopicPartition, offset: int) -> None:
        """Everything before `offset` is done, whether there were records or none."""
        known = self._done.get(partition)
        if known is None or known.offset < offset:
            self._done[partition] = OffsetAndMetadata(offset, "", -1 if known is None else known.leader_epoch)

    def move(self, partition: TopicPartition, offset: int | None) -> None:
        """The caller goes on from elsewhere (None: not known yet): what he held is not done."""
        self._handed.pop(partition, None)
        self._done.pop(partition, None)
        if offset is not None:
            self._done[partition] = OffsetAndMetadata(offset)

    def start(self, partition: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """A partition is taken up."""
        self.forget([partition])
        if committed is not None:
            self._committed[partition] = committed.offset

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions are given up; what of them is not committed comes again elsewhere."""
        for item in partitions:
            self._handed.pop(item, None)
            self._done.pop(item, None)
            self._committed.pop(item, None)

    def to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is done and not committed yet."""
        return {
            item: offset for item, offset in self._done.copy().items() if self._committed.get(item) != offset.offset
        }

    def was_committed(self, partition: TopicPartition, offset: int) -> None:
        """The coordinator has it."""
        self._committed[partition] = offset
