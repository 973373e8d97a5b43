"""The clock that everything expires by, and the one that stamps (rule B32)."""

from __future__ import annotations

from strandline.proto.believed import AWAY_MS, BELIEVED_AFTER_MS, JUMP_MS, BelievedClock
from tests.log.helpers import JumpingClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS
T0 = 1_700_000_000_000


def test_72_a_clock_that_jumps_ahead_is_not_believed_for_a_day() -> None:
    """Schedule 72. Back and by little at once, for that deletes nothing too early."""
    clock = JumpingClock(0, T0)
    believed = BelievedClock(clock)
    assert believed.earliest_ms() == T0
    clock.jump(JUMP_MS)
    clock.now_ms = 500
    assert believed.earliest_ms() == T0 + JUMP_MS + 500, "a time server's step"
    clock.jump(-HOUR_MS)
    assert believed.earliest_ms() == clock.wall_ms(), "set back"
    start = clock.wall_ms() - clock.now_ms
    clock.jump(YEAR_MS)
    clock.now_ms = 1_000
    assert believed.earliest_ms() == start + 1_000, "set ahead: time goes on from where it was"
    assert believed.ahead_ms == YEAR_MS
    clock.now_ms = soon = 1_000 + BELIEVED_AFTER_MS - 1
    assert believed.earliest_ms() == start + soon
    clock.jump(6 * YEAR_MS)
    assert believed.earliest_ms() == start + soon, "set anew: the day begins anew"
    clock.now_ms = late = soon + BELIEVED_AFTER_MS
    assert believed.earliest_ms() == start + 7 * YEAR_MS + late
    assert believed.ahead_ms == 0
    clock.jump(-7 * YEAR_MS)
    assert believed.earliest_ms() == start + late, "put right again"


def test_72_a_start_far_ahead_of_the_last_life_goes_on_from_that() -> None:
    clock = JumpingClock(0, T0 + AWAY_MS + 1)
    assert BelievedClock(clock, T0).earliest_ms() == T0
    assert BelievedClock(clock, T0 + 1).earliest_ms() == clock.wall_ms()


def test_100_a_stamp_is_never_earlier_than_what_may_be_the_time() -> None:
    """Schedule 100: it would be taken early by the next node whose clock is right."""
    clock = JumpingClock(0, T0)
    believed = BelievedClock(clock)
    assert believed.latest_ms() == T0
    clock.jump(8 * DAY_MS)
    assert believed.latest_ms() == T0 + 8 * DAY_MS, "the clock may have been put right by that"
    assert believed.earliest_ms() == T0
    clock.jump(-8 * DAY_MS)
    clock.now_ms = 8_000
    assert believed.latest_ms() == believed.earliest_ms() == T0 + 8_000
    clock.jump(-8 * DAY_MS)
    assert believed.latest_ms() == T0 + 8_000, "set back by days: stamps go on from before"
    assert believed.earliest_ms() == T0 + 8_000 - 8 * DAY_MS
    clock.now_ms = 8_000 + BELIEVED_AFTER_MS - 1
    assert believed.latest_ms() == T0 + clock.now_ms
    clock.now_ms += 1
    assert believed.latest_ms() == clock.wall_ms(), "it has stood for a day"


def test_100_a_start_far_behind_the_last_life_stamps_on_from_that() -> None:
    """A machine whose battery is empty comes up in 1970."""
    clock = JumpingClock(0, T0 - 8 * DAY_MS)
    believed = BelievedClock(clock, T0)
    assert believed.latest_ms() == T0
    assert believed.earliest_ms() == T0 - 8 * DAY_MS
    clock.jump(8 * DAY_MS)
    clock.now_ms = 1_000
    assert believed.latest_ms() == T0 + 1_000, "put right"


def test_a_clock_set_back_by_less_than_a_day_stamps_at_once() -> None:
    """A zone of time that was taken for another."""
    clock = JumpingClock(0, T0)
    believed = BelievedClock(clock)
    believed.latest_ms()
    clock.jump(-14 * HOUR_MS)
    assert believed.latest_ms() == clock.wall_ms()


def test_112_a_new_disk_has_the_time_from_others() -> None:
    """Schedule 112: a node with a new disk finds a clock that is days ahead, and there is no life before to say so.
    The metadata do; the latest word counts, up to its own registration."""
    clock = JumpingClock(0, T0 + 8 * DAY_MS)
    believed = BelievedClock(clock, is_told=True)
    assert not believed.is_founded, "nothing of it is written down"
    believed.tell(T0 - 30 * DAY_MS)
    assert believed.is_founded
    assert believed.earliest_ms() == T0 - 30 * DAY_MS
    believed.tell(T0)
    believed.tell(T0 - DAY_MS)
    believed.told_all()
    clock.now_ms = 500
    assert believed.earliest_ms() == T0 + 500
    assert believed.ahead_ms == 8 * DAY_MS
    assert believed.latest_ms() == clock.wall_ms(), "a stamp is late rather than early"
    believed.tell(T0 + 8 * DAY_MS)
    assert believed.earliest_ms() == T0 + 500, "heard no more"
    clock.now_ms = BELIEVED_AFTER_MS + 500
    assert believed.earliest_ms() == clock.wall_ms()


def test_112_who_has_a_life_before_is_told_nothing() -> None:
    clock = JumpingClock(0, T0 + HOUR_MS)
    believed = BelievedClock(clock, T0, is_told=True)
    assert believed.is_founded
    believed.tell(T0 - 30 * DAY_MS)
    assert believed.earliest_ms() == T0 + HOUR_MS


def test_112_a_clock_that_is_right_is_believed_at_once() -> None:
    clock = JumpingClock(0, T0)
    believed = BelievedClock(clock, is_told=True)
    believed.told_all()
    assert not believed.is_founded, "nobody has said anything"
    believed.tell(T0 - HOUR_MS)
    assert believed.earliest_ms() == T0
