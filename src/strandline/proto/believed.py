"""Wall time as far as a node believes it: what ages are judged by, and what is written down as now (rule B32).

A wall clock jumps: a time server, a hand or a machine that wakes sets it, by days at times, and it is put right seconds
or hours later. What a node forgets by a wrong clock is gone for good. So each question has a time of its own, whose
error falls on the harmless side: `earliest_ms` for "is it old enough to go?", `latest_ms` for "when did it happen?".
What is in the memory of one process alone goes by the monotonic clock, which never jumps.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.proto.marks import mark
from strandline.proto.ports import Clock

JUMP_MS = 60_000
"""A wall clock that is set by less is believed: time servers do that."""

BELIEVED_AFTER_MS = 24 * 3_600_000
"""Milliseconds that a wall clock which was set ahead further must run before anything is deleted by it."""

AWAY_MS = 24 * 3_600_000
"""A start at which the wall clock is further ahead of the last life's counts as a clock that was set ahead: most
nodes are back within a day, and for one that was away for longer the day costs nothing but room."""


class Now(NamedTuple):
    """One moment, in milliseconds, as a `BelievedClock` has it.

    Attributes:
        monotonic_ms: for deadlines, and for how long this process has seen something.
        wall_ms: the latest time that may be right, to be written down.
        earliest_ms: the earliest time that may be right, to judge what was written down by.
    """

    monotonic_ms: float
    wall_ms: int
    earliest_ms: int


class BelievedClock:
    """One for each node, for everything in it that expires: a clock that jumps deletes nothing too early (schedule 72).

    Time set back is believed at once, for it only delays. Time set ahead by more than a minute is believed after a day:
    until then time goes on from where it was, and somebody can put the clock right. So is time that has gone on by more
    than a day since the last life.

    A node without a life before (a new disk) has the times of the metadata instead: what controllers of the cluster
    wrote down. Until it has heard of them it has to go by the clock that it finds, and writes down nothing of it.

    What is written down is the later one where two times may be right: of the wall clock's, the believed one, and, for
    a day after time was set back by more than a day (or was found so by a start), the one before. A stamp that is too
    late keeps a thing for longer; one that is too early has it taken by the next node whose clock is right (schedule
    100).
    """

    def __init__(self, clock: Clock, last_ms: int | None = None, *, is_told: bool = False) -> None:
        """`last_ms`: what `earliest_ms` returned last in the life before; None: not known, and, if `is_told`, to be
        learned by `tell`."""
        self._clock = clock
        self._last_ms = last_ms
        self._is_told = is_told and last_ms is None
        self._offset_ms: float | None = None
        """Believed wall time at monotonic time 0."""
        self._ahead: tuple[float, float] | None = None
        """The offset that the clock was set to and is not believed, and since when (monotonic)."""
        self._before: tuple[float, float] | None = None
        """The offset that was believed before time was set back by more than a day, and when that was (monotonic)."""

    def now(self) -> Now:
        """This moment."""
        return Now(self._clock.monotonic_ms(), self.latest_ms(), self.earliest_ms())

    def monotonic_ms(self) -> float:
        """The clock's own."""
        return self._clock.monotonic_ms()

    def earliest_ms(self) -> int:
        """The time to judge ages and ends by, in milliseconds; to be asked every few minutes at least."""
        monotonic_ms = self._clock.monotonic_ms()
        return int(monotonic_ms + self._look(self._clock.wall_ms(), monotonic_ms))

    def latest_ms(self) -> int:
        """The time to write down, in milliseconds: never earlier than `earliest_ms`."""
        wall_ms, monotonic_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        latest_ms = max(wall_ms, int(monotonic_ms + self._look(wall_ms, monotonic_ms)))
        if self._before is None:
            return latest_ms
        return max(latest_ms, int(monotonic_ms + self._before[0]))

    @property
    def is_founded(self) -> bool:
        """Whether anything but the wall clock itself confirms the time: a former life of the node, or other nodes."""
        return not self._is_told or self._last_ms is not None  # rule B32/an-unfounded-time-is-written-down

    def tell(self, others_ms: int) -> None:
        """It was so late for others of the cluster, at least. That counts like the end of a life before, where there
        was none; the latest of several counts (schedule 112)."""
        if self._is_told and others_ms > (self._last_ms or 0):  # rule B32/new-disks-believe-any-clock
            if self._clock.wall_ms() - others_ms > AWAY_MS:
                mark("wall-clock-against-the-metadata")
            self._last_ms = others_ms
            self._offset_ms = self._ahead = self._before = None
            self._look(self._clock.wall_ms(), self._clock.monotonic_ms())

    def told_all(self) -> None:
        """Others are heard no more: from here on time goes on by itself."""
        if self._last_ms is not None:
            self._is_told = False

    def _look(self, wall_ms: int, monotonic_ms: float) -> float:
        offset_ms = wall_ms - monotonic_ms
        if self._before is not None and monotonic_ms - self._before[1] >= BELIEVED_AFTER_MS:
            self._before = None
        # schedule 72/a-start-believes-any-clock
        if self._offset_ms is None and self._last_ms is not None and wall_ms - self._last_ms > AWAY_MS:
            self._offset_ms = self._last_ms - monotonic_ms
        # schedule 72/a-clock-set-ahead-is-believed
        if self._offset_ms is None or offset_ms - self._offset_ms <= JUMP_MS:
            before_ms = self._offset_ms
            if before_ms is None and self._last_ms is not None:
                before_ms = self._last_ms - monotonic_ms
            if before_ms is not None and before_ms - offset_ms > AWAY_MS:  # rule B32/stamps-of-a-clock-set-back
                mark("wall-clock-set-back-by-days")
                self._before = (before_ms, monotonic_ms)
            self._offset_ms, self._ahead = offset_ms, None
        elif self._ahead is None or abs(offset_ms - self._ahead[0]) > JUMP_MS:
            mark("wall-clock-jumped-ahead")
            self._ahead = (offset_ms, monotonic_ms)
        elif monotonic_ms - self._ahead[1] >= BELIEVED_AFTER_MS:
            self._offset_ms, self._ahead = offset_ms, None
        return self._offset_ms

    @property
    def ahead_ms(self) -> int:
        """Milliseconds by which the wall clock is ahead of the believed time; 0 if it is believed."""
        return 0 if self._ahead is None or self._offset_ms is None else int(self._ahead[0] - self._offset_ms)
