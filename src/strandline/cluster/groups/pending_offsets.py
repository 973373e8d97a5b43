"""Offsets of open transactions (TxnOffsetCommit): they stand in the log, and a marker says whether they count."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.proto.kafka.group_records import OffsetKey, OffsetValue


class PendingOffsets:
    """Offsets by producer id, for one has at most one transaction open in a log; and by partition, in the log's order.

    One rule decides what a partition's offset is: of all commits that are in no transaction, or in one that was
    committed, the last one in the log counts, wherever the markers stand (KAFKA-14505). So an offset that was written
    behind a pending one, and counts, ends that one: no marker can bring it back. It needs no position of either.

    Attributes:
        open: what the producers with open transactions have committed in them. Nobody else may change it.
    """

    __slots__ = ("_by_group", "open")

    def __init__(self) -> None:
        self.open: dict[int, dict[OffsetKey, OffsetValue | None]] = {}
        self._by_group: dict[str, dict[tuple[str, int], dict[int, None]]] = {}
        """Group -> (topic, partition) -> producers, in the order of their last offsets of it in the log."""

    def put(self, key: OffsetKey, value: OffsetValue | None, producer_id: int) -> None:
        """Add the last written offset of an open transaction; None: it was deleted."""
        producers = self._by_group.setdefault(key.group, {}).setdefault((key.topic, key.partition), {})
        producers.pop(producer_id, None)
        producers[producer_id] = None
        self.open.setdefault(producer_id, {})[key] = value

    def take(self, producer_id: int, *, commit: bool) -> list[tuple[OffsetKey, OffsetValue | None]]:
        """End a producer's transaction. Returns its offsets, which are valid now if it was committed."""
        ended = list(self.open.get(producer_id, {}).items())
        for key, _ in ended:
            # rule C17/earlier-offset-committed-later-counts
            earlier = self._before(key, producer_id) if commit else []
            for one in (*earlier, producer_id):
                self._remove(key, one)
        return ended

    def _before(self, key: OffsetKey, producer_id: int) -> list[int]:
        """Producers whose pending offset of this partition was written before this one's."""
        producers = list(self._by_group[key.group][key.topic, key.partition])
        return producers[: producers.index(producer_id)]

    def end(self, key: OffsetKey) -> None:
        """Drop what is pending of a partition: an offset behind it counts, or the tombstone of one."""
        for producer_id in list(self.producers(key.group, key.topic, key.partition)):
            self._remove(key, producer_id)

    def _remove(self, key: OffsetKey, producer_id: int) -> None:
        offsets = self.open[producer_id]
        del offsets[key]
        if not offsets:
            del self.open[producer_id]
        partitions = self._by_group[key.group]
        producers = partitions[key.topic, key.partition]
        del producers[producer_id]
        if not producers:
            del partitions[key.topic, key.partition]
        if not partitions:
            del self._by_group[key.group]

    # Looking

    def producers(self, group_id: str, topic: str, partition: int) -> dict[int, None]:
        """The producers in whose open transactions an offset of this partition is; none: it is stable."""
        return self._by_group.get(group_id, {}).get((topic, partition), {})

    def has_group(self, group_id: str) -> bool:
        return group_id in self._by_group

    def of_group(self, group_id: str) -> Iterator[tuple[str, int]]:
        """(topic, partition) of every offset of the group that is pending."""
        yield from self._by_group.get(group_id, {})

    def all(self) -> Iterator[tuple[OffsetKey, OffsetValue | None]]:
        """Every offset of every open transaction."""
        for offsets in self.open.values():
            yield from offsets.items()
