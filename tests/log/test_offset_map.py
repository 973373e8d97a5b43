"""Compaction's map, compiled and in Python: the same keys kept, the same records kept, the same bytes refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.log.offset_map import SECRET_BYTES, OffsetMap, PythonOffsetMap
from strandline.log.records_python import append, encode_varint

try:
    from strandline.log._offsets import OffsetMap as CompiledOffsetMap
except ImportError:
    CompiledOffsetMap = None  # type: ignore[assignment, misc]

Make = Callable[[int, bytes], OffsetMap]
BOTH: list[Make] = [PythonOffsetMap] if CompiledOffsetMap is None else [PythonOffsetMap, CompiledOffsetMap]
needs_compiled = pytest.mark.skipif(CompiledOffsetMap is None, reason="this installation has no compiler")
both = pytest.mark.parametrize("make", BOTH, ids=lambda make: make.__module__.rpartition(".")[2])
SECRET = bytes(range(SECRET_BYTES))

keys = st.none() | st.sampled_from([b"", b"a", b"b", b"a key of eighteen!", b"k" * 200])
values = st.none() | st.binary(max_size=30)
headers = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=2)
batches = st.lists(st.tuples(st.integers(-(2**40), 2**40), keys, values, headers), min_size=1, max_size=8)


def encoded(items: list[Any]) -> bytes:
    out = bytearray()
    for number, (delta, key, value, fields) in enumerate(items):
        append(out, delta, number, key, value, fields)
    return bytes(out)


def play(make: Make, notes: list[tuple[Any, ...]], keeps: list[tuple[Any, ...]]) -> list[Any]:
    """All that a map says."""
    latest = make(100_000, SECRET)
    said: list[Any] = []
    for arguments in notes:
        try:
            said.append(latest.note(*arguments))
        except ValueError:
            said.append(ValueError)
        said.append(len(latest))
    for arguments in keeps:
        out = bytearray(b"before")
        try:
            said.append((latest.keep(out, *arguments), bytes(out)))
        except ValueError:
            said.append(ValueError)
    return said


@needs_compiled
@given(st.lists(batches, min_size=1, max_size=4), st.booleans(), st.data())
@settings(max_examples=300, deadline=None)
def test_both_note_and_keep_alike(written: list[list[Any]], tombstones_go: bool, data: st.DataObject) -> None:
    """Batch after batch, in one go or in two, whole or damaged."""
    notes, keeps = [], []
    for number, items in enumerate(written):
        bytes_of = bytearray(encoded(items))
        if data.draw(st.integers(0, 3)) == 0:
            bytes_of[data.draw(st.integers(0, len(bytes_of) - 1))] = data.draw(st.integers(0, 255))
        count = len(items) + data.draw(st.sampled_from([0, 0, 0, 1, -1]))
        arguments = (bytes(bytes_of), 0, count, 100 * number, data.draw(st.sampled_from([0, 10**12, 2**63 - 1])))
        notes.append(arguments)
        keeps.append((*arguments, tombstones_go))
    assert play(CompiledOffsetMap, notes, keeps) == play(PythonOffsetMap, notes, keeps)


@both
@given(batches, st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_stays_is_the_last_record_of_each_key(make: Make, items: list[Any], tombstones_go: bool) -> None:
    """Held against a dict; record by record, and byte by byte as it was."""
    latest = make(100_000, SECRET)
    data = encoded(items)
    position = 0
    for _ in items:
        position = latest.note(data, position, 1, 50, 5)
    assert position == len(data)
    last = {key: number for number, (_, key, _, _) in enumerate(items)}
    stays = [
        number
        for number, (_, key, value, _) in enumerate(items)
        if key is None or (last[key] == number and not (tombstones_go and value is None))
    ]
    over = [n for n, (_, key, value, _) in enumerate(items) if key is not None and value is None and last[key] == n]
    out, expected = bytearray(), bytearray()
    for number in stays:
        append(expected, items[number][0], number, *items[number][1:])
    said = latest.keep(out, data, 0, len(items), 50, 5, tombstones_go)
    newest = max((5 + items[number][0] for number in stays), default=-(2**63))
    nulls = sum(items[number][2] is None for number in stays)
    assert said == (len(data), len(stays), nulls, len(over) if tombstones_go else 0, newest)
    assert out == expected


@both
def test_a_map_grows_to_the_memory_that_it_says_and_no_further(make: Make) -> None:
    """Of long keys; also at the moment in which it grows."""
    tracemalloc.start()
    try:
        latest = make(4 << 20, SECRET)
        before = tracemalloc.get_traced_memory()[0]
        for number in range(latest.keys_max):
            assert latest.has_room(1)
            latest.put(b"a key of more than sixteen bytes, %d" % number, number)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before <= 4 << 20
    assert latest.keys_max > (4 << 20) / 200
    assert not latest.has_room(1)
    for number in range(0, latest.keys_max, 97):
        assert latest.latest(b"a key of more than sixteen bytes, %d" % number) == number
    assert latest.latest(b"absent") == -1
    latest.put(b"a key of more than sixteen bytes, 7", 1_000_000)
    with pytest.raises(MemoryError):
        latest.put(b"one more", 1)
    assert len(latest) == latest.keys_max


@both
def test_a_small_map(make: Make) -> None:
    """The smallest has room for one key."""
    latest = make(0, SECRET)
    assert (latest.keys_max, latest.has_room(1), latest.has_room(2)) == (1, True, False)
    latest.put(b"", 2**62)
    assert (latest.latest(b""), latest.latest(b"\0"), len(latest)) == (2**62, -1, 1)


@both
def test_keys_that_begin_alike_are_other_keys(make: Make) -> None:
    """Of each length around the words in which a key is hashed."""
    latest = make(100_000, SECRET)
    for size in range(64):
        latest.put(bytes(range(size)), size)
    assert [latest.latest(bytes(range(size))) for size in range(64)] == list(range(64))


@both
def test_a_record_whose_length_lies(make: Make) -> None:
    """Nothing outside the data is read."""
    latest = make(1_000, SECRET)
    for length in (0, -1, 3, 5_000, 2**40):
        with pytest.raises(ValueError, match=r"."):
            latest.note(encode_varint(length) + b"\0\0\0\1\1\0" + b"\0" * 8, 0, 1, 0, 0)
