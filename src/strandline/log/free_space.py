"""Judgement whether a disk has free space: full at once, but with space again only after that has lasted (schedule 57).

A broker whose disk is full gives up its leaderships and leaves the ISRs, and returns once there is space. Each way
costs an election. So the two bounds lie apart, and a disk that fills up again soon must have space for longer the next
time.
"""

from __future__ import annotations

RESERVE_BYTES, RESERVE_SHARE = 64 << 20, 1 / 64
"""Bytes, and share of the disk, below both of which it counts as full although no write has failed yet. The rest is
kept for the metadata log and the checkpoints, by which this node hears of elections and reports its state, and for
deletions. The first is the default of log.dir.reserve.bytes, the second bounds it on a small disk."""

ENOUGH_FACTOR = 2
"""Multiple of the reserve above which the disk has space again."""

HOLD_MS = 1_000.0
"""Milliseconds that space has to last before it counts."""
HOLD_MS_MAX = 16_000.0
"""Maximum milliseconds of a hold, after the disk was full repeatedly."""
CALM_MS = 60_000.0
"""Milliseconds with free space after which the next hold is `HOLD_MS` again."""


def reserve_of(reserve_bytes: int, total_bytes: int) -> int:
    """Return the bytes that log.dir.reserve.bytes reserves on a disk of `total_bytes`: on a small disk its share."""
    return int(min(reserve_bytes, total_bytes * RESERVE_SHARE))


class FreeSpace:
    """Free space of one disk, as it is judged. Time and sizes are arguments.

    Invariants:
    - a write that found no space makes the disk full, whatever the file system reports as free, as that ignores quotas;
    - a full disk has space again only after a time in which every look found enough, and no write failed for space.
    """

    def __init__(self, reserve_bytes: int = RESERVE_BYTES) -> None:
        """`reserve_bytes`: log.dir.reserve.bytes; at 0 only a failed write shows that the disk is full."""
        self.reserve_bytes = reserve_bytes
        """May be changed; takes effect at the next look."""
        self.full = False
        """True while writes are expected to fail."""
        self._hold_ms = HOLD_MS
        self._enough_since_ms: float | None = None
        self._back_ms = float("-inf")

    def ran_out(self, now_ms: float) -> bool:
        """Take note of a write that found no space; True if the disk was not full before."""
        self._enough_since_ms = None
        if self.full:
            return False
        self.full = True
        soon = now_ms - self._back_ms < CALM_MS
        # schedule 57/full-again-and-again-flaps
        self._hold_ms = min(self._hold_ms * 2, HOLD_MS_MAX) if soon else HOLD_MS
        return True

    def looked(self, free_bytes: int, total_bytes: int, now_ms: float) -> bool:
        """Take note of the free bytes; True if the disk became full, or has space again."""
        reserve_bytes = reserve_of(self.reserve_bytes, total_bytes)
        if not self.full:
            nothing = free_bytes < reserve_bytes or not free_bytes
            return nothing and self.ran_out(now_ms)  # schedule 57/full-disk-is-found-by-writes-alone
        if free_bytes < ENOUGH_FACTOR * reserve_bytes or not free_bytes:  # schedule 57/any-room-counts
            self._enough_since_ms = None
            return False
        if self._enough_since_ms is None:
            self._enough_since_ms = now_ms
        if now_ms - self._enough_since_ms < self._hold_ms:  # schedule 57/room-for-a-moment-counts
            return False
        self.full = False
        self._back_ms = now_ms
        return True
