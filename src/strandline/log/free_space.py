"""Whether a disk has free space: full at once, and with space again only once that has lasted (schedule 57).

A broker whose disk is full gives away its leaderships and leaves the ISRs, and takes part again with space. Each way
costs an election. So the two bounds lie apart, and a disk that fills up again soon has to have space for longer.
"""

from __future__ import annotations

RESERVE_BYTES, RESERVE_SHARE = 64 << 20, 1 / 64
"""With less than both left the disk is full although no write has failed yet: what is left is for the metadata log and
the checkpoints, by which this node hears of elections and tells what it has, and for deletions. The first is the
default of log.dir.reserve.bytes, the second bounds it on a small disk."""

ENOUGH_FACTOR = 2
"""Multiple of the bound above which the disk has space again."""

HOLD_MS = 1_000.0
"""Milliseconds that space has to last before it counts."""
HOLD_MS_MAX = 16_000.0
"""Maximum milliseconds of a hold, after the disk was full repeatedly."""
CALM_MS = 60_000.0
"""Milliseconds with free space after which the next hold is `HOLD_MS` again."""


def reserve_of(reserve_bytes: int, total_bytes: int) -> int:
    """Bytes that log.dir.reserve.bytes holds back on a disk of `total_bytes`: on a small one its share."""
    return int(min(reserve_bytes, total_bytes * RESERVE_SHARE))


class FreeSpace:
    """The free space of one disk, as it is judged. Time and sizes are arguments.

    Invariants:
    - a write that found no space makes the disk full, whatever the file system says is left: a quota is not told there;
    - while it is full it has space again only after a time in which every look found enough, and no write found none.
    """

    def __init__(self, reserve_bytes: int = RESERVE_BYTES) -> None:
        """`reserve_bytes`: log.dir.reserve.bytes; with 0 only a write that fails shows that the disk is full."""
        self.reserve_bytes = reserve_bytes
        """May change; counts from the next look on."""
        self.full = False
        """True while writes are expected to fail."""
        self._hold_ms = HOLD_MS
        self._enough_since_ms: float | None = None
        self._back_ms = float("-inf")

    def ran_out(self, now_ms: float) -> bool:
        """A write found no space; true if that is new."""
        self._enough_since_ms = None
        if self.full:
            return False
        self.full = True
        soon = now_ms - self._back_ms < CALM_MS
        # schedule 57/full-again-and-again-flaps
        self._hold_ms = min(self._hold_ms * 2, HOLD_MS_MAX) if soon else HOLD_MS
        return True

    def looked(self, free_bytes: int, total_bytes: int, now_ms: float) -> bool:
        """Take note of what is left, in bytes; true if the disk is full now and was not, or has space and had none."""
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
