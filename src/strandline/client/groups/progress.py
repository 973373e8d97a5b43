"""What was handed out, what of it is done, what is committed: why nothing merely fetched is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.client.types import ConsumerRecord, OffsetAndMetadata
from strandline.proto.ids import TopicPartition


class Progress:
    """Offsets per partition, each that of the next record.

    Invariants:
    - handed >= done: a record is done only after it was handed out.
    - `committed` is what the coordinator has acknowledged since the partition was taken up, or it has said nothing of
      something that was sent since (`doubted`).
    - `_one` is the record that an iteration has handed out last, `_before` the one before it, which is done: written by
      the iterating thread alone, record by record, and so nothing but two names.
    - A tenure lasts from when a partition is taken up until it is given up. Each has a number of its own: between two
      there may have been another reader, with commits of its own.
    """

    def __init__(self) -> None:
        self._handed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._done: dict[TopicPartition, OffsetAndMetadata] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._own: dict[TopicPartition, None] = {}
        """Of `_committed`: what was not found, but committed here."""
        self._doubted: dict[TopicPartition, None] = {}
        self._tenures: dict[TopicPartition, int] = {}
        self._last_tenure = 0
        self._before: ConsumerRecord | None = None
        self._one: ConsumerRecord | None = None

    def step(self, record: ConsumerRecord) -> None:
        """An iteration hands this out: the one before is done."""
        one = self._one
        if one is not None and one[:3] == record[:3]:
            return  # the caller was interrupted just when it was to get it
        if one is None:
            self.finish()
        else:
            before = self._before
            if before is not None and (before.partition != one.partition or before.topic != one.topic):
                self._done[TopicPartition(before.topic, before.partition)] = _behind(before)
            self._before = one
        self._one = record

    def keep(self, record: ConsumerRecord) -> None:
        """The iteration has this still: if it was stepped to, an interrupt kept it from the caller."""
        one = self._one
        if one is not None and one[:3] == record[:3]:
            self._one = None  # rule B37/a-stepped-to-record-counts-as-handed-out

    @property
    def handed_last(self) -> ConsumerRecord | None:
        """What an iteration handed out last, and nothing was done with it since."""
        return self._one

    def _settle(self) -> None:
        """Write down where the iteration stands."""
        before, one = self._before, self._one
        if before is not None:
            self._done[TopicPartition(before.topic, before.partition)] = _behind(before)
        if one is not None:
            self._handed[TopicPartition(one.topic, one.partition)] = _behind(one)
        self._before = self._one = None

    def hand(self, records: Iterable[ConsumerRecord]) -> None:
        """These go to the caller now."""
        last = {(record.topic, record.partition): record for record in records}
        self.hand_behind({TopicPartition(*where): _behind(record) for where, record in last.items()})

    def hand_behind(self, behind: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Everything before these offsets goes to the caller now."""
        self._settle()
        self._handed.update(behind)  # schedule 64/handed-out-counts-as-done

    def finish(self) -> None:
        """The caller is done with everything that was handed out."""
        self._settle()
        self._done.update(self._handed)
        self._handed.clear()

    def declare(self, partition: TopicPartition, offset: OffsetAndMetadata) -> None:
        """The caller commits this by name: it counts as what is done, until more is."""
        self._settle()
        if partition in self._tenures:
            self._done[partition] = offset

    def reach(self, partition: TopicPartition, offset: int) -> None:
        """Everything before `offset` is done, whether there were records or none."""
        known = self._done.get(partition)
        if known is None or known.offset < offset:
            self._done[partition] = OffsetAndMetadata(offset, "", -1 if known is None else known.leader_epoch)

    def move(self, partition: TopicPartition, offset: int | None) -> None:
        """The caller goes on from elsewhere (None: not known yet), and what he holds is not done. Where he goes is what
        is to be committed: at once, or, beyond something that he holds, when he asks for more."""
        self._settle()
        held, done = self._handed.pop(partition, None), self._done.pop(partition, None)
        if offset is None:
            return
        done_to = self._committed.get(partition, -1) if done is None else done.offset
        # schedule 64/a-seek-commits-what-is-in-hand
        moved = self._handed if held is not None and offset > done_to else self._done
        moved[partition] = OffsetAndMetadata(offset)

    def take_up(self, partition: TopicPartition) -> None:
        """A tenure begins, unless one lasts."""
        if partition not in self._tenures:
            self._last_tenure += 1
            self._tenures[partition] = self._last_tenure

    def start(self, partition: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """What the group has committed of a partition is known: nothing of it was handed out yet."""
        self._clear([partition])
        self.take_up(partition)
        if committed is not None:
            self._committed[partition] = committed.offset

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions are given up; what of them is not committed comes again elsewhere."""
        gone = list(partitions)
        self._clear(gone)
        for item in gone:
            self._tenures.pop(item, None)

    def _clear(self, partitions: Iterable[TopicPartition]) -> None:
        self._settle()
        for item in partitions:
            self._handed.pop(item, None)
            self._done.pop(item, None)
            self._committed.pop(item, None)
            self._own.pop(item, None)
            self._doubted.pop(item, None)

    def tenures(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Of these partitions, those that are held: their tenures."""
        return {item: self._tenures[item] for item in partitions if item in self._tenures}

    def to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is done and not committed yet."""
        before = self._before
        done = self._done.copy()
        if before is not None:
            done[TopicPartition(before.topic, before.partition)] = _behind(before)
        return {
            item: offset
            for item, offset in done.items()
            if item in self._doubted or self._committed.get(item) != offset.offset
        }

    def doubt(self, partitions: Iterable[TopicPartition]) -> None:
        """Something is on its way to the coordinator, who may take it and never say so: what it had is not known."""
        self._doubted.update(dict.fromkeys(partitions))

    def was_committed(self, partition: TopicPartition, offset: int) -> None:
        """The coordinator has it."""
        self._committed[partition] = offset
        self._own[partition] = None
        self._doubted.pop(partition, None)

    def known_committed(self, *, found_too: bool) -> dict[TopicPartition, int]:
        """What the coordinator has of the partitions that are held: committed here, or (`found_too`) found there."""
        return {
            item: offset
            for item, offset in self._committed.items()
            if item in self._tenures and (found_too or item in self._own)
        }


def _behind(record: ConsumerRecord) -> OffsetAndMetadata:
    return OffsetAndMetadata(record.offset + 1, "", record.leader_epoch)
