"""Records by declared schemas. A made-up one shows what another takes: its key, its value, and one `RecordType`."""

from __future__ import annotations

from typing import Annotated, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.proto.errors import ProtocolError
from strandline.proto.kafka.declared import (
    Bytes,
    Field,
    Int32,
    Int64,
    RecordType,
    String,
    Uuid,
    by_key_version,
    has_version,
)
from strandline.proto.kafka.fields import Unencodable


class LockKey(NamedTuple):
    """Which lock."""

    name: String


class Waiter(NamedTuple):
    """A client that waits for the lock."""

    client: String
    token: Bytes | None
    since_ms: Annotated[Int64, Field("1+", default=-1)]


class LockValue(NamedTuple):
    """A lock: of version 0 and 1, and flexible since 2."""

    owner: String | None
    epoch: Int32
    rack: Annotated[String | None, Field("0-1")]
    waiters: tuple[Waiter, ...] | None
    topic_id: Annotated[Uuid | None, Field("2+", tag=1)] = None
    first: Annotated[Waiter | None, Field("2+", tag=0)] = None


LOCK = RecordType("LockValue", LockKey, (40, 41), LockValue, versions="0-2", flexible="2+", written=2)

WAITER = Waiter("c", None, 7)
VALUE = LockValue("o", 3, "r", (WAITER,), UUID(int=1), Waiter("", b"t", 8))
KEY = b"\x00\x29\x00\x01l"


def test_each_version_has_its_own_fields() -> None:
    """Laid out by hand, as Kafka's generator would from the same schema in JSON."""
    first = b"\x00\x00" + b"\x00\x01o" + b"\x00\x00\x00\x03" + b"\x00\x01r" + b"\x00\x00\x00\x01"
    first += b"\x00\x01c" + b"\xff\xff\xff\xff"
    assert LOCK.record(LockKey("l"), VALUE, version=0) == (KEY, first)
    assert LOCK.read(first) == LockValue("o", 3, "r", (Waiter("c", None, -1),))
    second = b"\x00\x01" + first[2:] + (7).to_bytes(8, "big")
    assert LOCK.record(LockKey("l"), VALUE, version=1) == (KEY, second)
    assert LOCK.read(second) == LockValue("o", 3, "r", (WAITER,))
    waiting = (
        b"\x01" + b"\x01" + b"\x02t" + (8).to_bytes(8, "big") + b"\x00"
    )  # a marker before a struct that may be null
    tags = b"\x02" + b"\x00" + bytes([len(waiting)]) + waiting + b"\x01\x10" + bytes(15) + b"\x01"
    waiters = b"\x02" + b"\x02c" + b"\x00" + (7).to_bytes(8, "big") + b"\x00"
    third = b"\x00\x02" + b"\x02o" + b"\x00\x00\x00\x03" + waiters + tags
    assert LOCK.record(LockKey("l"), VALUE) == (KEY, third)
    assert LOCK.read(third) == VALUE._replace(rack=None)


def test_null_and_absent() -> None:
    nothing = LockValue(None, 0, None, None)
    raw = LOCK.record(LockKey("l"), nothing).value
    assert raw == b"\x00\x02" + b"\x00" + bytes(4) + b"\x00" + b"\x00"
    assert LOCK.read(raw) == nothing
    assert LOCK.read(raw[:-1] + b"\x02\x00\x01\x00\x09\x02??") == nothing, "a null struct; a field of the future"
    assert LOCK.record(LockKey("l"), None) == (KEY, None)
    with pytest.raises(Unencodable, match="null where the message must have a value"):
        LOCK.record(LockKey(None), None)  # type: ignore[arg-type]


def test_keys_name_the_type() -> None:
    types = by_key_version(LOCK)
    assert types == {40: LOCK, 41: LOCK}
    assert LOCK.read_key(KEY) == LOCK.read_key(b"\x00\x28" + KEY[2:]) == LockKey("l")


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", "ends within"),
        (b"\x00\x03", "LockValue of version 3; 0-2 can be read"),
        (b"\xff\xff", "LockValue of version -1"),
        (b"\x00\x02" + b"\x00" + bytes(4) + b"\xff\xff\xff\xff\x07", "elements, 0 bytes are left"),
        (b"\x00\x02" + b"\x00" + bytes(4) + b"\x00\x00?", "1 bytes after the end"),
        (
            b"\x00\x02" + b"\x00" + bytes(4) + b"\x00\x01\x01\x11" + bytes(17),
            "after the end of the tagged field topic_id",
        ),
    ],
)
def test_hostile_bytes(raw: bytes, error: str) -> None:
    with pytest.raises(ProtocolError, match=error):
        LOCK.read(raw)


@given(st.integers(0, 2), st.binary(max_size=40))
@settings(max_examples=150, deadline=None)
def test_nonsense_is_a_protocol_error(version: int, raw: bytes) -> None:
    for read, head in ((LOCK.read, version), (LOCK.read_key, 41)):
        try:
            read(head.to_bytes(2, "big") + raw)
        except ProtocolError:
            pass


WAITERS = st.builds(Waiter, st.text(max_size=5), st.none() | st.binary(max_size=5), st.integers(-1, 2**63 - 1))
LOCKS = st.builds(
    LockValue,
    st.none() | st.text(max_size=5),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(max_size=5),
    st.none() | st.lists(WAITERS, max_size=3).map(tuple),
    st.none() | st.uuids().filter(lambda one: one.int),
    st.none() | WAITERS,
)


@given(LOCKS, st.integers(0, 2))
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_read(value: LockValue, version: int) -> None:
    """In every version; what a version has no place for has its default."""
    raw = LOCK.record(LockKey("l"), value, version).value
    assert raw is not None
    if version == 0 and value.waiters:
        value = value._replace(waiters=tuple(one._replace(since_ms=-1) for one in value.waiters))
    value = value._replace(rack=None) if version == 2 else value._replace(topic_id=None, first=None)
    assert LOCK.read(raw) == value
    for end in range(len(raw)):
        with pytest.raises(ProtocolError):
            LOCK.read(raw[:end])


def test_versions_as_kafka_writes_them() -> None:
    assert [version for version in range(6) if has_version("3+", version)] == [3, 4, 5]
    assert [version for version in range(6) if has_version("1-2", version)] == [1, 2]
    assert [version for version in range(6) if has_version("1", version)] == [1]
