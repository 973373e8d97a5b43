"""The compiled record codec and its twin in Python: the same bytes accepted, refused, written and read."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strandline.log import batch as in_use
from strandline.log import records_python
from strandline.log.batch import Record
from strandline.log.columns import RecordColumns
from strandline.log.records_python import encode_varint

try:
    from strandline.log import _records as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

BOTH = [records_python] if compiled is None else [records_python, compiled]
needs_compiled = pytest.mark.skipif(compiled is None, reason="this installation has no compiled codec: no C compiler")

PLAIN: tuple[Any, ...] = ((None,) * 5, (0, 1, 2, 3, 4))

blobs = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=20), blobs), max_size=3)
records = st.lists(st.tuples(st.integers(-(2**40), 2**40), blobs, blobs, headers), min_size=1, max_size=8)


def encode(codec: Any, items: list[Any]) -> bytes:
    out = bytearray()
    for number, (delta, key, value, fields) in enumerate(items):
        before = len(out)
        assert codec.append(out, delta, number, key, value, fields) == len(out) - before
    return bytes(out)


def outcome(call: Any, *arguments: Any) -> Any:
    """What it gives, or that it refuses: the two need not use the same words."""
    try:
        return call(*arguments)
    except ValueError:
        return ValueError


def body(
    *, length: int | None = None, timestamp: bytes = b"\0", offset: bytes = b"\0", rest: bytes = b"\1\1\0"
) -> bytes:
    inside = b"\0" + timestamp + offset + rest
    return encode_varint(len(inside) if length is None else length) + inside


@needs_compiled
@given(records)
@settings(max_examples=150, deadline=None)
def test_both_write_and_read_alike(items: list[Any]) -> None:
    data = encode(records_python, items)
    assert encode(compiled, items) == data
    expected = [
        Record(100 + number, 5 + delta, key, value, tuple(fields))
        for number, (delta, key, value, fields) in enumerate(items)
    ]
    for codec in BOTH:
        found, end = codec.decode(data, len(items), 100, 5, None, Record, *PLAIN)
        assert (found, end) == (expected, len(data))
        assert all(type(record) is Record for record in found)
        assert codec.check(data, len(items)) == len(data)
        fixed, _ = codec.decode(data, len(items), 100, 5, 77, Record, *PLAIN)
        assert [record.timestamp_ms for record in fixed] == [77] * len(items)


NAMES = [
    b"\xff", b"caf\xe9", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf0\x90\x80", b"\xf4\x90\x80\x80", b"\xe2\x82",
    b"\xe2\x82A", b"", "h\u00e9 \u20ac \U0001f600".encode(),
]  # fmt: skip
"""Of headers, as some clients write them: Latin-1, surrogates, overlong forms, characters cut short."""
raw_names = st.sampled_from(NAMES) | st.binary(max_size=12)


def with_names(names: list[bytes]) -> bytes:
    """A record with headers of these names, whose values are null."""
    fields = b"".join(encode_varint(len(name)) + name + b"\1" for name in names)
    return body(rest=b"\1\1" + encode_varint(len(names)) + fields)


@pytest.mark.parametrize("codec", BOTH, ids=lambda codec: codec.__name__.rpartition(".")[2])
@given(names=st.lists(raw_names, max_size=4))
@example(names=NAMES)
@settings(max_examples=300, deadline=None)
def test_a_name_of_any_bytes_is_read(codec: Any, names: list[bytes]) -> None:
    """Apache Kafka takes any bytes as a header's name, and its readers see U+FFFD for what is no UTF-8. Our brokers
    refused such a record, and no consumer of ours came past one."""
    data = with_names(names)
    assert codec.check(data, 1) == len(data)
    (record,), _ = codec.decode(data, 1, 0, 0, None, Record, *PLAIN)
    told = [name.decode(errors="replace") for name in names]
    assert [name for name, _ in record.headers] == told
    columns = RecordColumns.empty()
    assert codec.columns(columns, data, 1, 0, 0, None, 0, 1, True) == (1, len(data))
    assert columns.names == "".join(told).encode()
    sizes = [len(name.encode()) for name in told]
    assert list(memoryview(columns.name_ends).cast("i")) == list(itertools.accumulate(sizes, initial=0))


def test_a_time_that_moves_leaves_the_names_as_they_were() -> None:
    """Compaction writes a batch anew, with a later base timestamp: the bytes of its records' names stay."""
    data = with_names(NAMES)
    moved = in_use.shift_timestamps(data, 1, 7)
    assert all(name in moved for name in NAMES)
    (record,), _ = records_python.decode(moved, 1, 0, 0, None, Record, *PLAIN)
    assert record.timestamp_ms == -7
    assert in_use.shift_timestamps(moved, 1, -7) == data
    with pytest.raises(OverflowError):
        in_use.shift_timestamps(data, 1, 2**64)


@needs_compiled
@given(records, st.data())
@settings(max_examples=400, deadline=None)
def test_both_refuse_alike(items: list[Any], data: st.DataObject) -> None:
    """Whatever bytes are changed or cut off: both refuse, or both read the same."""
    damaged = bytearray(encode(records_python, items))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(len(damaged) // 2, len(damaged))) :]
    count = max(0, len(items) + data.draw(st.integers(-1, 1)))
    arguments = (bytes(damaged), count, 7, 1_700_000_000_000, None, Record, *PLAIN)
    assert outcome(compiled.decode, *arguments) == outcome(records_python.decode, *arguments)
    assert outcome(compiled.check, bytes(damaged), count) == outcome(records_python.check, bytes(damaged), count)


def as_columns(codec: Any, calls: list[tuple[Any, ...]]) -> tuple[list[Any], RecordColumns]:
    """What each call gives or that it refuses, and the columns after all of them."""
    columns = RecordColumns.empty()
    return [outcome(codec.columns, columns, *call) for call in calls], columns


@needs_compiled
@given(st.lists(st.tuples(records, st.booleans()), max_size=3), st.data())
@settings(max_examples=200, deadline=None)
def test_both_make_the_same_columns(batches: list[tuple[list[Any], bool]], data: st.DataObject) -> None:
    """Several batches, one behind the other, some damaged: the same rows in the same bytes, or the same refusal."""
    with_headers = data.draw(st.booleans())
    calls: list[tuple[Any, ...]] = []
    for items, damage in batches:
        encoded = bytearray(encode(records_python, items))
        if damage:
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
        low, high = data.draw(st.integers(98, 103)), data.draw(st.integers(98, 110))
        fixed = data.draw(st.none() | st.integers(0, 2**40))
        calls.append((bytes(encoded), len(items), 100, 5, fixed, low, high, with_headers))
    assert as_columns(compiled, calls) == as_columns(records_python, calls)


@pytest.mark.parametrize("codec", BOTH, ids=lambda codec: codec.__name__.rpartition(".")[2])
@given(items=records)
@settings(max_examples=50, deadline=None)
def test_columns_hold_what_records_hold(codec: Any, items: list[Any]) -> None:
    columns = RecordColumns.empty()
    arguments = (encode(codec, items), len(items), 0, 5, None)
    assert codec.columns(columns, *arguments, 0, len(items), True) == (len(items), len(arguments[0]))
    found, _ = codec.decode(*arguments, Record, *PLAIN)
    assert columns.rows == len(found)
    assert columns.header_count == sum(len(record.headers) for record in found)
    assert list(memoryview(columns.offsets).cast("q")) == [record.offset for record in found]
    assert list(memoryview(columns.timestamps).cast("q")) == [record.timestamp_ms for record in found]
    assert cells(columns.value_valid, columns.value_ends, columns.values) == [record.value for record in found]
    assert cells(columns.key_valid, columns.key_ends, columns.keys) == [record.key for record in found]
    contents = cells(columns.header_valid, columns.header_ends, columns.headers)
    assert contents == [content for record in found for _, content in record.headers]


@needs_compiled
@pytest.mark.parametrize("column", range(15))
def test_columns_of_other_lengths_are_an_error(column: int) -> None:
    """Filling them would write outside."""
    arrays = list(RecordColumns.empty())
    arrays[column] = bytearray(7)
    with pytest.raises(TypeError):
        compiled.columns(tuple(arrays), body(), 1, 0, 0, None, 0, 1, True)


def cells(valid: bytearray, ends: bytearray, data: bytearray) -> list[bytes | None]:
    edges = list(memoryview(ends).cast("i"))
    return [
        bytes(data[low:high]) if valid[row // 8] >> row % 8 & 1 else None
        for row, (low, high) in enumerate(itertools.pairwise(edges))
    ]


@pytest.mark.parametrize("codec", BOTH, ids=lambda codec: codec.__name__.rpartition(".")[2])
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(body(length=0), id="a length of zero"),
        pytest.param(encode_varint(-1) + bytes(8), id="a negative length"),
        pytest.param(body(length=1 << 40), id="a lying length"),
        pytest.param(body(rest=b"\1\1\0\0"), id="bytes after the headers"),
        pytest.param(body(rest=b"\1\1"), id="no header count"),
        pytest.param(body(rest=b"\3\1\0"), id="a key of length -2"),
        pytest.param(body(rest=b"\1\3\0"), id="a value of length -2"),
        pytest.param(body(rest=b"\xfe\xff\xff\xff\x0f\1\0"), id="a key of 2 GB"),
        pytest.param(body(rest=b"\1\1\xfe\xff\xff\xff\x0f"), id="2 G headers"),
        pytest.param(body(rest=b"\1\1\2\1\1"), id="a header without a name"),
        pytest.param(body(offset=encode_varint(-1)), id="a negative offset delta"),
        pytest.param(body(offset=encode_varint(1 << 31)), id="an offset delta of 32 bits"),
        pytest.param(body(timestamp=b"\xff" * 9 + b"\2"), id="a varint of 65 bits"),
        pytest.param(body(timestamp=b"\x80" * 10 + b"\0"), id="a varint of eleven bytes"),
        pytest.param(body(timestamp=encode_varint(2**63 - 1)), id="a timestamp beyond 64 bits"),
    ],
)
def test_what_no_record_can_be_is_refused(codec: ModuleType, data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words differ
        codec.decode(data, 1, 0, 1, None, Record, *PLAIN)


@pytest.mark.parametrize("codec", BOTH, ids=lambda codec: codec.__name__.rpartition(".")[2])
def test_the_broker_wants_records_numbered_without_gaps(codec: ModuleType) -> None:
    """A compacted batch has gaps, and readers take it; a producer's has none (KAFKA's LogValidator)."""
    out = bytearray()
    codec.append(out, 0, 0, None, b"a", ())
    codec.append(out, 0, 2, None, b"b", ())
    assert [record.offset for record in codec.decode(bytes(out), 2, 0, 0, None, Record, *PLAIN)[0]] == [0, 2]
    with pytest.raises(ValueError):  # noqa: PT011
        codec.check(bytes(out), 2)


@pytest.mark.parametrize("codec", BOTH, ids=lambda codec: codec.__name__.rpartition(".")[2])
def test_fields_are_anything_with_bytes_and_the_kind_any_tuple(codec: ModuleType) -> None:
    out = bytearray()
    codec.append(out, 0, 0, memoryview(b"key"), bytearray(b"value"), [("h", memoryview(b"x"))])
    template, slots = ("t", None, None, None, None, None, "end"), (2, 1, 3, 4, 5)
    assert codec.decode(memoryview(out), 1, 9, 8, None, tuple, template, slots) == (
        [("t", 8, 9, b"key", b"value", (("h", b"x"),), "end")],
        len(out),
    )
    with pytest.raises((TypeError, BufferError)):
        codec.append(out, 0, 1, "text", None, ())


@needs_compiled
@pytest.mark.parametrize(
    "layout",
    [
        ((None,) * 5, (0, 1, 2, 3)),
        ((None,) * 5, (0, 1, 2, 3, 5)),
        ((None,) * 5, (0, 1, 2, 3, 3)),
        ((), (0, 1, 2, 3, 4)),
    ],
)
def test_a_layout_that_cannot_be_is_an_error(layout: Any) -> None:
    """It would write outside a tuple."""
    with pytest.raises((TypeError, ValueError)):
        compiled.decode(body(), 1, 0, 0, None, tuple, *layout)


@needs_compiled
def test_the_compiled_one_is_in_use() -> None:
    assert in_use.COMPILED
    assert in_use.decode is compiled.decode
