"""When the event loop waits in place for a sync: the policy alone, with durations as arguments."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from strandline.log.watched_disk import FAST_IN_A_ROW, LIMIT_MS, SAVED_MAX_MS, SHARE, SyncWait
from strandline.proto import marks

APART_MS = 10.0


def play(wait: SyncWait, durations: Iterator[float] | list[float], *, now_ms: float = 1_000.0) -> list[float]:
    """One sync after the other, `APART_MS` apart; how long each was waited for at most."""
    limits = []
    for duration_ms in durations:
        limit_ms = wait.limit_ms(now_ms)
        limits.append(limit_ms)
        wait.took(duration_ms, limit_ms)
        now_ms += max(APART_MS, duration_ms)
    return limits


def test_a_disk_that_is_fast_is_waited_for() -> None:
    """Once it has been fast for long enough, and not before."""
    limits = play(SyncWait(), [0.1] * (FAST_IN_A_ROW + 10))
    assert limits == [0.0] * FAST_IN_A_ROW + [LIMIT_MS] * 10


def test_a_disk_that_turns_slow_costs_one_wait() -> None:
    """Hysteresis: the first that takes longer is the last that is waited for, until a row is fast again."""
    marks.reset()
    wait = SyncWait()
    play(wait, [0.1] * FAST_IN_A_ROW)
    assert play(wait, [200.0] * 50, now_ms=10_000) == [LIMIT_MS] + [0.0] * 49
    assert marks.counts()["sync-not-waited-for"] == 1
    assert play(wait, [0.1] * (FAST_IN_A_ROW + 1), now_ms=100_000) == [0.0] * FAST_IN_A_ROW + [LIMIT_MS]


def test_a_disk_in_two_minds_is_not_waited_for() -> None:
    """Every tenth sync is slow: it never gets as far, and so costs nothing."""
    assert not any(play(SyncWait(), ([0.1] * 9 + [5.0]) * 50))


def test_a_busy_loop_waits_for_a_share_of_its_time() -> None:
    """One sync right after the other: three in four are seen to while other work goes on."""
    wait, now_ms, waited_ms = SyncWait(), 0.0, 0.0
    for _ in range(1_000):
        limit_ms = wait.limit_ms(now_ms)
        waited_ms += 0.4 if limit_ms else 0.0
        wait.took(0.4, limit_ms)
        now_ms += 0.4
    assert 0.9 * SHARE < waited_ms / now_ms <= SHARE + 0.01


@given(st.lists(st.tuples(st.one_of(st.floats(0, LIMIT_MS), st.floats(0, 3)), st.floats(0, 20)), max_size=300))
def test_no_more_than_its_share_is_waited_away(syncs: list[tuple[float, float]]) -> None:
    """Whatever the disk does: never more than the limit at a time, and of any stretch a share and what was saved."""
    wait, now_ms = SyncWait(), 0.0
    syncs = [(0.0, 1.0)] * FAST_IN_A_ROW + syncs
    waits: list[tuple[float, float]] = []
    for duration_ms, pause_ms in syncs:
        limit_ms = wait.limit_ms(now_ms)
        assert 0 <= limit_ms <= LIMIT_MS
        wait.took(duration_ms, limit_ms)
        waits.append((now_ms, min(duration_ms, limit_ms)))
        now_ms += duration_ms + pause_ms
    for i, (began_ms, _) in enumerate(waits[::10]):
        total_ms = sum(waited for _, waited in waits[10 * i :])
        assert total_ms <= SHARE * (now_ms - began_ms) + SAVED_MAX_MS + 1e-6
