"""Schedule 57: when a disk counts as full, and when it has room again. Pure: time and sizes are given."""

from __future__ import annotations

import pytest

from strandline.log.room import (
    CALM_MS,
    HOLD_MS,
    HOLD_MS_MAX,
    RESERVE_BYTES,
    RESERVE_SHARE,
    ROOM_FACTOR,
    Room,
)

LARGE = 1 << 40
SMALL = 8 << 20


def test_a_write_that_finds_no_room_makes_it_full_at_once() -> None:
    """Whatever is said to be left: a quota is not told. Told once."""
    room = Room()
    assert room.ran_out(0)
    assert room.full
    assert not room.ran_out(1)


def test_it_is_full_before_a_write_fails() -> None:
    """What is left is for checkpoints and the metadata log."""
    room = Room()
    assert not room.looked(RESERVE_BYTES, LARGE, 0)
    assert room.looked(RESERVE_BYTES - 1, LARGE, 1)
    assert room.full


def test_a_small_disk_is_not_full_all_the_time() -> None:
    room = Room()
    assert not room.looked(SMALL // 60, SMALL, 0)
    assert room.looked(SMALL // 70, SMALL, 1)


def test_without_a_reserve_a_write_says_it() -> None:
    """log.dir.reserve.bytes=0: the last byte is written, too."""
    room = Room(reserve_bytes=0)
    assert not room.looked(1, LARGE, 0)
    assert room.looked(0, LARGE, 1)


@pytest.mark.parametrize("total", [0, LARGE])
def test_nothing_left_is_full(total: int) -> None:
    assert Room().looked(0, total, 0)


@pytest.mark.parametrize(
    ("total", "enough"), [(LARGE, ROOM_FACTOR * RESERVE_BYTES), (SMALL, int(ROOM_FACTOR * SMALL * RESERVE_SHARE))]
)
def test_room_comes_above_another_bound_and_has_to_last(total: int, enough: int) -> None:
    """Between the two bounds a full disk stays full, and one with room has room."""
    room = Room()
    room.ran_out(0)
    for now_ms in (0, 10 * HOLD_MS, 100 * HOLD_MS):
        assert not room.looked(enough - 1, total, now_ms)
    began = 200 * HOLD_MS
    assert not room.looked(enough, total, began)
    assert not room.looked(enough, total, began + HOLD_MS - 1)
    assert room.looked(enough, total, began + HOLD_MS)
    assert not room.full
    assert not room.looked(enough - 1, total, began + HOLD_MS + 1)


def test_a_look_without_room_or_a_write_that_fails_begins_anew() -> None:
    for trouble in (lambda room: room.looked(0, LARGE, HOLD_MS - 1), lambda room: room.ran_out(HOLD_MS - 1)):
        room = Room()
        room.ran_out(0)
        assert not room.looked(LARGE, LARGE, 0)
        assert not trouble(room)
        assert not room.looked(LARGE, LARGE, HOLD_MS)
        assert not room.looked(LARGE, LARGE, 2 * HOLD_MS - 1)
        assert room.looked(LARGE, LARGE, 2 * HOLD_MS)


def back_after(room: Room, now_ms: float) -> float:
    """For how long it must have room."""
    room.ran_out(now_ms)
    began = now_ms
    while not room.looked(LARGE, LARGE, now_ms):
        now_ms += 100
    return now_ms - began


def test_a_disk_that_fills_again_and_again_does_not_flap() -> None:
    """Each time it has to have room for twice as long, up to a bound; after a calm minute it begins anew."""
    room = Room()
    now_ms, held = 0.0, []
    for _ in range(8):
        held.append(back_after(room, now_ms))
        now_ms += held[-1] + 1_000
    assert held == [min(HOLD_MS * 2**number, HOLD_MS_MAX) for number in range(8)]
    assert back_after(room, now_ms + CALM_MS) == HOLD_MS
