"""The records of `__consumer_offsets`, the deadlines, and the choice of partitions: Kafka's own."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.proto.errors import ProtocolError
from strandline.proto.kafka import group_records as records
from strandline.proto.kafka.consumer_protocol import subscribed_topics
from strandline.proto.kafka.group_records import (
    OFFSET,
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    UnknownKey,
)

TEXT = st.text(max_size=8)
INT32 = st.integers(-1, 2**31 - 1)
INT64 = st.integers(-1, 2**63 - 1)
MEMBERS = st.builds(
    MemberValue,
    member_id=TEXT,
    instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout_ms=st.integers(0, 2**31 - 1),
    session_timeout_ms=st.integers(0, 2**31 - 1),
    subscription=st.binary(max_size=8),
    assignment=st.binary(max_size=8),
)
GROUPS = st.builds(
    GroupValue,
    protocol_type=TEXT,
    generation=INT32,
    protocol=st.none() | TEXT,
    leader=st.none() | TEXT,
    state_ms=INT64,
    members=st.lists(MEMBERS, max_size=3).map(tuple),
)


@given(GROUPS, TEXT)
@settings(max_examples=60, deadline=None)
def test_a_group_reads_back(value: GroupValue, group: str) -> None:
    record = records.group_record(group, value)
    assert record.value is not None
    assert records.read_key(record.key) == GroupKey(group)
    assert records.read_group_value(record.value) == value


@given(
    st.builds(OffsetKey, TEXT, TEXT, INT32),
    st.builds(
        OffsetValue, INT64, INT32, TEXT, INT64, st.just(-1) | INT64, st.none() | st.uuids().filter(lambda one: one.int)
    ),
)
@settings(max_examples=60, deadline=None)
def test_an_offset_reads_back(key: OffsetKey, value: OffsetValue) -> None:
    """Leader epoch and topic id have no place beside an expiry of the client's own (version 1)."""
    if value.expire_ms != -1:
        value = value._replace(leader_epoch=-1, topic_id=None)
    record = records.offset_record(key, value)
    assert record.value is not None
    assert records.read_key(record.key) == key
    assert OFFSET.read(record.value) == value
    assert records.offset_record(key, None).value is None


def test_the_bytes_are_kafkas() -> None:
    """Written down from Kafka's schemas OffsetCommitKey 1, OffsetCommitValue 4 (KAFKA-19141: the topic id is tagged
    field 0), GroupMetadataKey 2 and GroupMetadataValue 3."""
    record = records.offset_record(OffsetKey("g", "t", 7), OffsetValue(5, 2, "m", 9))
    assert record.key == b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x07"
    head = b"\x00\x04" + (5).to_bytes(8, "big") + (2).to_bytes(4, "big") + b"\x02m" + bytes(7) + b"\t"
    assert record.value == head + b"\x00"
    named = UUID(int=1)
    record = records.offset_record(OffsetKey("g", "t", 7), OffsetValue(5, 2, "m", 9, topic_id=named))
    assert record.value == head + b"\x01\x00\x10" + bytes(15) + b"\x01"
    member = MemberValue("m", None, "c", "/h", 20, 10, b"s", b"a")
    record = records.group_record("g", GroupValue("consumer", 3, "range", "m", 9, (member,)))
    assert record.key == b"\x00\x02\x00\x01g"
    assert record.value == (
        b"\x00\x03\x00\x08consumer\x00\x00\x00\x03\x00\x05range\x00\x01m"
        + (9).to_bytes(8, "big")
        + b"\x00\x00\x00\x01\x00\x01m\xff\xff\x00\x01c\x00\x02/h"
        + b"\x00\x00\x00\x14\x00\x00\x00\x0a\x00\x00\x00\x01s\x00\x00\x00\x01a"
    )


def test_other_versions_are_read() -> None:
    """Version 0 to 4, the last one flexible; unknown kinds of keys are told apart."""
    assert records.read_key(b"\x00\x00\x00\x01g\x00\x01t\x00\x00\x00\x07") == OffsetKey("g", "t", 7)
    assert records.read_key(b"\x00\x10abc") == UnknownKey(16)
    old = b"\x00\x00" + (5).to_bytes(8, "big") + b"\x00\x01m" + (9).to_bytes(8, "big")
    assert OFFSET.read(old) == OffsetValue(5, -1, "m", 9)
    new = b"\x00\x04" + (5).to_bytes(8, "big") + (2).to_bytes(4, "big") + b"\x02m" + (9).to_bytes(8, "big") + b"\x00"
    assert OFFSET.read(new) == OffsetValue(5, 2, "m", 9)
    later = new[:-1] + b"\x02\x00\x10" + bytes(15) + b"\x01" + b"\x07\x02??"
    assert OFFSET.read(later) == OffsetValue(5, 2, "m", 9, topic_id=UUID(int=1))
    third = b"\x00\x03" + (5).to_bytes(8, "big") + (2).to_bytes(4, "big") + b"\x00\x01m" + (9).to_bytes(8, "big")
    assert OFFSET.read(third) == OffsetValue(5, 2, "m", 9)
    with pytest.raises(ProtocolError, match="tagged field topic_id"):
        OFFSET.read(new[:-1] + b"\x01\x00\x11" + bytes(17))
    member = b"\x02m\x00\x02c\x02h" + (20).to_bytes(4, "big") + (10).to_bytes(4, "big") + b"\x02s\x02a\x01\x05\x01x"
    group = b"\x00\x04\x02p\x00\x00\x00\x03\x02r\x02m" + (9).to_bytes(8, "big") + b"\x02" + member + b"\x00"
    assert records.read_group_value(group) == GroupValue(
        "p", 3, "r", "m", 9, (MemberValue("m", None, "c", "h", 20, 10, b"s", b"a"),)
    )
    first = b"\x00\x00\x00\x01p\x00\x00\x00\x03\x00\x01r\x00\x01m\x00\x00\x00\x01"
    first += b"\x00\x01m\x00\x01c\x00\x01h" + (10).to_bytes(4, "big") + b"\x00\x00\x00\x01s\x00\x00\x00\x01a"
    (read,) = records.read_group_value(first).members
    assert (read.rebalance_timeout_ms, read.session_timeout_ms) == (10, 10), "a member without its own waits a session"


@given(st.binary(max_size=40))
@settings(max_examples=150, deadline=None)
def test_nonsense_is_a_protocol_error(raw: bytes) -> None:
    for read in (records.read_key, OFFSET.read, records.read_group_value):
        try:
            read(raw)
        except ProtocolError:
            pass
    subscribed_topics(raw)


def test_truncated_records_are_refused() -> None:
    member = MemberValue("m", "i", "c", "/h", 20, 10, b"s", b"a")
    value = records.group_record("g", GroupValue("consumer", 3, "range", "m", 9, (member,))).value
    assert value is not None
    for end in range(len(value)):
        with pytest.raises(ProtocolError):
            records.read_group_value(value[:end])
