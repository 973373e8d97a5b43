"""Summary of the log that the core decides by: its bounds, where each epoch starts, and the latest snapshot."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

from strandline.controller.raft.messages import Batch, OffsetAndEpoch, VotersChange
from strandline.proto.divergence import cut_offset, is_diverging
from strandline.proto.ensure import ensure

EMPTY = OffsetAndEpoch(0, 0)
"""End of an empty log. Epochs of records start at 1."""


class LogSummary:
    """A mirror of the log's shape, which the core changes itself as it orders appends and truncations.

    Invariants:
    - start_offset <= end_offset, durable_offset <= end_offset;
    - epochs and their start offsets both strictly increase, and lie in [start.offset, end_offset);
    - `start` is EMPTY or the end of a snapshot (Kafka's SnapshotAtLogStart), and the latest snapshot is not below it;
    - the offsets of the voter sets ascend, and lie before the log's end.
    """

    __slots__ = ("_epochs", "_starts", "_voters", "durable_offset", "end_offset", "snapshot", "start")

    def __init__(
        self,
        *,
        start: OffsetAndEpoch = EMPTY,
        end_offset: int = 0,
        epochs: tuple[tuple[int, int], ...] = (),
        snapshot: OffsetAndEpoch | None = None,
        voters: tuple[tuple[int, VotersChange], ...] = (),
    ) -> None:
        """`epochs` are (epoch, start offset) pairs, `voters` (offset, voters from there on); what a snapshot says of
        them stands at the offset before its end. All that a node finds at its start counts as durable."""
        self.start = start
        self.end_offset = end_offset
        self.durable_offset = end_offset
        self.snapshot = snapshot
        self._epochs = [epoch for epoch, _ in epochs]
        self._starts = [offset for _, offset in epochs]
        self._voters = list(voters)
        self.check()

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record; of the snapshot at the log's start if there is no record; 0 for an empty log."""
        return self._epochs[-1] if self._epochs else self.start.epoch

    @property
    def end(self) -> OffsetAndEpoch:
        """End offset and last epoch, by which logs are compared."""
        return OffsetAndEpoch(self.end_offset, self.last_epoch)

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset) of every epoch that has records here, oldest first."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    @property
    def voters(self) -> tuple[int, VotersChange | None]:
        """(offset, voters) of the latest voter set in the log, committed or not; (-1, None) while there is none."""
        return self._voters[-1] if self._voters else (-1, None)

    def voters_at(self, end_offset: int) -> VotersChange | None:
        """The voters that a log which ends at `end_offset` says; None if it says nothing of them."""
        return next((said for offset, said in reversed(self._voters) if offset < end_offset), None)

    def voters_from(self, end_offset: int) -> list[VotersChange]:
        """The voter sets that this log says at or behind an offset."""
        return [said for _, said in self.voters_between(end_offset, self.end_offset)]

    def voters_between(self, start_offset: int, end_offset: int) -> list[tuple[int, VotersChange]]:
        """(offset, voters) of the voter sets that this log says from `start_offset` on, and before `end_offset`."""
        first = bisect_left(self._voters, start_offset, key=lambda one: one[0])
        return [(offset, said) for offset, said in self._voters[first:] if offset < end_offset]

    def append(self, batch: Batch) -> None:
        """Extend the log by one batch, which must fit."""
        contiguous = batch.base_offset == self.end_offset < batch.next_offset
        ensure(contiguous, "NoGap", end=self.end_offset, base=batch.base_offset, next=batch.next_offset)
        ensure(batch.epoch >= self.last_epoch, "EpochsAscend", last=self.last_epoch, batch=batch.epoch)
        if batch.epoch > self.last_epoch or not self._epochs:
            self._epochs.append(batch.epoch)
            self._starts.append(batch.base_offset)
        if batch.voters is not None:
            self._voters.append((batch.base_offset, batch.voters))
        self.end_offset = batch.next_offset  # rule A9/count-before-sync

    def truncate_to(self, offset: int) -> None:
        """Drop all records at or after `offset`."""
        ensure(self.start.offset <= offset <= self.end_offset, "CutWithinTheLog", offset=offset, end=self.end_offset)
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()
        while self._voters and self._voters[-1][0] >= offset:
            self._voters.pop()  # rule A11/truncated-voters-stay
        self.end_offset = offset
        self.durable_offset = min(self.durable_offset, offset)

    def reset_to(self, snapshot: OffsetAndEpoch, voters: VotersChange | None = None) -> None:
        """Replace everything by a snapshot, and by the voters that it says (rule A10)."""
        self.start = self.snapshot = snapshot
        self.end_offset = self.durable_offset = snapshot.offset
        self._epochs.clear()
        self._starts.clear()
        self._voters = [] if voters is None else [(snapshot.offset - 1, voters)]

    def flushed(self, offset: int) -> None:
        """Note that a sync ended that had begun when the log ended at `offset`."""
        # rule A9/a-flush-covers-what-came-later
        self.durable_offset = max(self.durable_offset, min(offset, self.end_offset))

    def snapshot_taken(self, snapshot: OffsetAndEpoch) -> None:
        """Note that a local snapshot of committed records is durable."""
        oldest = 0 if self.snapshot is None else self.snapshot.offset
        ensure(oldest <= snapshot.offset <= self.end_offset, "SnapshotsAscend", latest=self.snapshot, new=snapshot)
        self.snapshot = snapshot

    def advance_start(self, start: OffsetAndEpoch) -> None:
        """Note that the log below a snapshot's end was deleted; never past the latest snapshot (KAFKA-14238)."""
        latest = self.start.offset if self.snapshot is None else self.snapshot.offset
        ensure(self.start.offset <= start.offset <= latest, "SnapshotAtLogStart", start=start, snapshot=self.snapshot)
        self.start = start
        if self.end_offset == start.offset:
            self._epochs.clear()
            self._starts.clear()
            return
        keep = max(0, bisect_right(self._starts, start.offset) - 1)
        del self._epochs[:keep], self._starts[:keep]
        if self._starts:
            self._starts[0] = max(self._starts[0], start.offset)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch <= the requested one that the log has, and where it ends.

        Below all of the log's epochs that is the epoch of the snapshot at its start (or 0), which ends at the start.
        """
        index = bisect_right(self._epochs, epoch)
        if index == 0:
            return self.start
        end = self._starts[index] if index < len(self._starts) else self.end_offset
        return OffsetAndEpoch(end, self._epochs[index - 1])

    def epoch_before(self, offset: int) -> int:
        """Epoch of the record just before `offset`."""
        index = bisect_right(self._starts, offset - 1)
        return self._epochs[index - 1] if index else self.start.epoch

    def needs_snapshot(self, fetch_offset: int, last_fetched_epoch: int) -> bool:
        """Whether a fetcher at this point cannot be served, nor judged, from the log (KIP-630)."""
        if self.start == EMPTY or self.snapshot is None:
            return False
        return (
            fetch_offset < self.start.offset
            or (fetch_offset == self.start.offset and last_fetched_epoch != self.start.epoch)
            or last_fetched_epoch < self.start.epoch
        )

    def diverges(self, fetch_offset: int, last_fetched_epoch: int) -> OffsetAndEpoch | None:
        """None if a log that ends at (fetch_offset, last_fetched_epoch) is a prefix of this one. Otherwise the point to
        truncate to: this log's largest epoch not above the fetcher's, and its end offset (rule A7)."""
        ours = self.end_offset_for_epoch(last_fetched_epoch)
        return ours if is_diverging(ours.epoch, ours.offset, last_fetched_epoch, fetch_offset) else None

    def truncation_point(self, diverging: OffsetAndEpoch) -> int:
        """Offset at which a follower must cut its log after a diverging answer (rule A8: the smaller of both
        logs' ends of that epoch)."""
        ours = self.end_offset_for_epoch(diverging.epoch)
        return cut_offset(ours.epoch, ours.offset, diverging.epoch, diverging.offset)

    def check(self) -> None:
        """Hold the invariants. Raises FatalError."""
        start, end = self.start.offset, self.end_offset
        ensure(start <= end and self.durable_offset <= end, "LogBounds", start=start, end=end, log=self.durable_offset)
        pairs = list(zip(self._epochs, self._starts, strict=True))
        ensure(all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs)), "EpochsAscend", epochs=pairs)
        within = not pairs or (pairs[0][1] >= start and pairs[-1][1] < end)
        ensure(within, "EpochsWithinTheLog", epochs=pairs, start=start, end=end)
        changes = [offset for offset, _ in self._voters]
        ensure(all(a < b for a, b in pairwise([*changes, end])), "VotersWithinTheLog", voters=changes, end=end)
        covered = self.start == EMPTY or (self.snapshot is not None and self.snapshot.offset >= start)
        ensure(covered, "SnapshotAtLogStart", start=self.start, snapshot=self.snapshot)
