"""Offsets of open transactions (TxnOffsetCommit): they are in the log, and a marker decides whether they are valid."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.proto.kafka.group_records import OffsetKey, OffsetValue


class PendingOffsets:
    """Pending offsets by producer id (a producer has at most one open transaction in a log) and by partition, in the
    log's order.

    One rule decides the offset of a partition: of all commits that are in no transaction or in a committed one, the
    last one in the log is valid, wherever the markers are (KAFKA-14505). So a valid offset behind a pending one ends
    the pending one: no marker can bring it back. The rule needs the log positions of neither.

    Attributes:
        open: producer id -> offsets that the producer has committed in its open transaction. Only this class may change
            it.
    """

    __slots__ = ("_by_group", "open")

    def __init__(self) -> None:
        self.open: dict[int, dict[OffsetKey, OffsetValue | None]] = {}
        self._by_group: dict[str, dict[tuple[str, int], dict[int, None]]] = {}
        """Group -> (topic, partition) -> producers, in the order of their last offsets of the partition in the log."""

    def put(self, key: OffsetKey, value: OffsetValue | None, producer_id: int) -> None:
        """Add the newest offset of an open transaction; None: the transaction deletes the offset."""
        producers = self._by_group.setdefault(key.group, {}).setdefault((key.topic, key.partition), {})
        producers.pop(producer_id, None)
        producers[producer_id] = None
        self.open.setdefault(producer_id, {})[key] = value

    def take(self, producer_id: int, *, commit: bool) -> list[tuple[OffsetKey, OffsetValue | None]]:
        """End a producer's transaction. Returns its offsets, which are valid from now on if `commit`."""
        ended = list(self.open.get(producer_id, {}).items())
        for key, _ in ended:
            # rule C17/earlier-offset-committed-later-counts
            earlier = self._before(key, producer_id) if commit else []
            for one in (*earlier, producer_id):
                self._remove(key, one)
        return ended

    def _before(self, key: OffsetKey, producer_id: int) -> list[int]:
        """Return the producers whose pending offset of this partition was written before that of `producer_id`."""
        producers = list(self._by_group[key.group][key.topic, key.partition])
        return producers[: producers.index(producer_id)]

    def end(self, key: OffsetKey) -> None:
        """Drop the pending offsets of a partition: a valid offset, or the tombstone of one, is behind them in the
        log."""
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
        """Return the producers with a pending offset of this partition. Without any, the offset is stable."""
        return self._by_group.get(group_id, {}).get((topic, partition), {})

    def has_group(self, group_id: str) -> bool:
        return group_id in self._by_group

    def of_group(self, group_id: str) -> Iterator[tuple[str, int]]:
        """Yield (topic, partition) of every pending offset of the group."""
        yield from self._by_group.get(group_id, {})

    def all(self) -> Iterator[tuple[OffsetKey, OffsetValue | None]]:
        """Yield every offset of every open transaction."""
        for offsets in self.open.values():
            yield from offsets.items()
