"""Sparse indexes: look-ups against a linear scan, damaged files."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.log.segment import IndexDamaged, OffsetIndex, TimeIndex

ENTRIES = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=60)


def offset_index(steps: list[tuple[int, int]]) -> tuple[OffsetIndex, list[tuple[int, int]]]:
    """An index with rising entries, and those entries."""
    index = OffsetIndex()
    entries: list[tuple[int, int]] = []
    offset = position = 0
    for offset_step, position_step in steps:
        offset += offset_step
        position += position_step
        index.append(offset, position)
        entries.append((offset, position))
    return index, entries


@given(ENTRIES, st.integers(0, 3000), st.integers(0, 300_000))
def test_look_ups_equal_a_linear_scan(steps: list[tuple[int, int]], offset: int, position: int) -> None:
    """The largest entry that is not beyond what was asked for."""
    index, entries = offset_index(steps)
    assert index.entry_before(offset) == max(((p, o) for o, p in entries if o <= offset), default=(0, -1))
    expected = max((p for o, p in entries if p <= position and o < offset), default=0)
    assert index.position_at_most(position, offset) == expected


@given(ENTRIES, st.integers(0, 300_000))
def test_file_round_trip_and_truncation(steps: list[tuple[int, int]], cut: int) -> None:
    """An index read back is the same; a truncated one has no entry at or beyond the cut, and its file neither."""
    index, entries = offset_index(steps)
    start, data = index.tail_bytes()
    assert start == 0
    assert len(data) == 8 * len(entries)
    loaded = OffsetIndex.parse(data, 1 << 30)
    assert loaded.tail_bytes() == (len(data), b"")
    loaded.truncate(cut)
    assert list(zip(loaded.offsets, loaded.positions, strict=True)) == [(o, p) for o, p in entries if p < cut]
    assert loaded.written == len(loaded)


def test_big_endian() -> None:
    """Kafka's byte order."""
    index = OffsetIndex()
    index.append(0x01020304, 0x05060708)
    assert index.tail_bytes() == (0, bytes.fromhex("0102030405060708"))
    times = TimeIndex()
    times.append(0x1122334455667788, 9)
    assert times.tail_bytes() == (0, bytes.fromhex("112233445566778800000009"))


@pytest.mark.parametrize(
    "data",
    [b"\0" * 7, b"\0" * 16, bytes.fromhex("00000002000000010000000100000002"), bytes.fromhex("0000000100001000")],
)
def test_damaged_offset_index(data: bytes) -> None:
    """Half an entry, zeros of a lost page, falling offsets, a position beyond the segment."""
    with pytest.raises(IndexDamaged):
        OffsetIndex.parse(data, 4096)


@pytest.mark.parametrize("data", [b"\0" * 11, b"\0" * 24])
def test_damaged_time_index(data: bytes) -> None:
    """Half an entry, zeros of a lost page."""
    with pytest.raises(IndexDamaged):
        TimeIndex.parse(data)


@given(st.lists(st.integers(0, 100), max_size=60), st.integers(-1, 101), st.integers(0, 60))
@settings(max_examples=80)
def test_time_index(timestamps: list[int], wanted: int, cut: int) -> None:
    """Only a new largest timestamp is noted; no record before the answer is as young as what was asked for."""
    index = TimeIndex()
    largest, at = -1, 0
    for offset, timestamp in enumerate(timestamps):
        if timestamp > largest:
            largest, at = timestamp, offset
        index.append(largest, at)
    assert index.last() == ((largest, at) if timestamps else None)
    start = index.offset_before(wanted)
    assert all(timestamp < wanted for timestamp in timestamps[:start])
    loaded = TimeIndex.parse(index.tail_bytes()[1])
    assert loaded.timestamps == index.timestamps
    loaded.truncate(cut)
    assert all(offset < cut for offset in loaded.offsets)
    assert all(a < b for a, b in pairwise(loaded.timestamps))
