"""Schedule 57: when a disk counts as full, and when it has room again. Pure: time and sizes are given."""

from __future__ import annotations

import pytest

from strandline.log.free_space import (
    CALM_MS,
    ENOUGH_FACTOR,
    HOLD_MS,
    HOLD_MS_MAX,
    RESERVE_BYTES,
    RESERVE_SHARE,
    FreeSpace,
)

LARGE = 1 << 40
SMALL = 8 << 20


def test_a_write_that_finds_no_room_makes_it_full_at_once() -> None:
    """Whatever is said to be left: a quota is not told. Told once."""
    space = FreeSpace()
    assert space.ran_out(0)
    assert space.full
    assert not space.ran_out(1)


def test_it_is_full_before_a_write_fails() -> None:
    """What is left is for checkpoints and the metadata log."""
    space = FreeSpace()
    assert not space.looked(RESERVE_BYTES, LARGE, 0)
    assert space.looked(RESERVE_BYTES - 1, LARGE, 1)
    assert space.full


def test_a_small_disk_is_not_full_all_the_time() -> None:
    space = FreeSpace()
    assert not space.looked(SMALL // 60, SMALL, 0)
    assert space.looked(SMALL // 70, SMALL, 1)


def test_without_a_reserve_a_write_says_it() -> None:
    """log.dir.reserve.bytes=0: the last byte is written, too."""
    space = FreeSpace(reserve_bytes=0)
    assert not space.looked(1, LARGE, 0)
    assert space.looked(0, LARGE, 1)


@pytest.mark.parametrize("total", [0, LARGE])
def test_nothing_left_is_full(total: int) -> None:
    assert FreeSpace().looked(0, total, 0)


@pytest.mark.parametrize(
    ("total", "enough"), [(LARGE, ENOUGH_FACTOR * RESERVE_BYTES), (SMALL, int(ENOUGH_FACTOR * SMALL * RESERVE_SHARE))]
)
def test_room_comes_above_another_bound_and_has_to_last(total: int, enough: int) -> None:
    """Between the two bounds a full disk stays full, and one with room has room."""
    space = FreeSpace()
    space.ran_out(0)
    for now_ms in (0, 10 * HOLD_MS, 100 * HOLD_MS):
        assert not space.looked(enough - 1, total, now_ms)
    began = 200 * HOLD_MS
    assert not space.looked(enough, total, began)
    assert not space.looked(enough, total, began + HOLD_MS - 1)
    assert space.looked(enough, total, began + HOLD_MS)
    assert not space.full
    assert not space.looked(enough - 1, total, began + HOLD_MS + 1)


def test_a_look_without_room_or_a_write_that_fails_begins_anew() -> None:
    for trouble in (lambda space: space.looked(0, LARGE, HOLD_MS - 1), lambda space: space.ran_out(HOLD_MS - 1)):
        space = FreeSpace()
        space.ran_out(0)
        assert not space.looked(LARGE, LARGE, 0)
        assert not trouble(space)
        assert not space.looked(LARGE, LARGE, HOLD_MS)
        assert not space.looked(LARGE, LARGE, 2 * HOLD_MS - 1)
        assert space.looked(LARGE, LARGE, 2 * HOLD_MS)


def back_after(space: FreeSpace, now_ms: float) -> float:
    """For how long it must have room."""
    space.ran_out(now_ms)
    began = now_ms
    while not space.looked(LARGE, LARGE, now_ms):
        now_ms += 100
    return now_ms - began


def test_a_disk_that_fills_again_and_again_does_not_flap() -> None:
    """Each time it has to have room for twice as long, up to a bound; after a calm minute it begins anew."""
    space = FreeSpace()
    now_ms, held = 0.0, []
    for _ in range(8):
        held.append(back_after(space, now_ms))
        now_ms += held[-1] + 1_000
    assert held == [min(HOLD_MS * 2**number, HOLD_MS_MAX) for number in range(8)]
    assert back_after(space, now_ms + CALM_MS) == HOLD_MS
