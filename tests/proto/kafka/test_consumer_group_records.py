"""Kafka's schemas of groups of the consumer protocol: byte for byte, back again, and never a crash."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.proto.errors import ProtocolError
from strandline.proto.kafka import group_records
from strandline.proto.kafka.consumer_group_records import (
    CONSUMER_GROUP_TYPES,
    CURRENT,
    GROUP_EPOCH,
    MEMBER,
    TARGET,
    TARGET_EPOCH,
    TOPICS,
    ClassicMember,
    ConsumerGroupKey,
    Current,
    Epoch,
    Kind,
    MemberInfo,
    MemberState,
    OfGroup,
    OfMember,
    Target,
    Topics,
    TopicShape,
)
from strandline.proto.kafka.declared import RecordType

ID = UUID(int=0x0102030405060708090A0B0C0D0E0F10)
RAW_ID = bytes(range(1, 17))
G = OfGroup("g")
M = OfMember("g", "m")


def test_as_kafka_writes_them() -> None:
    """Laid out by hand from ConsumerGroup*Key.json and *Value.json."""
    key, value = GROUP_EPOCH.record(G, Epoch(7))
    assert (key, value) == (b"\x00\x03\x00\x01g", b"\x00\x00\x00\x00\x00\x07\x00")
    key, value = TOPICS.record(G, Topics({"t": TopicShape(ID, 6)}))
    assert key == b"\x00\x04\x00\x01g"
    assert value == b"\x00\x00\x02" + RAW_ID + b"\x02t\x00\x00\x00\x06\x01\x00\x00"
    member = MemberInfo("i", None, "c", "/h", ("t", "u"), "x.*", 9, "range")
    key, value = MEMBER.record(M, member)
    assert key == b"\x00\x05\x00\x01g\x00\x01m"
    assert value == b"\x00\x00\x02i\x00\x02c\x03/h\x03\x02t\x02u\x04x.*\x00\x00\x00\x09\x06range\x00"
    protocols = (("range", b"\x01\x02"), ("s", b""))
    key, value = MEMBER.record(M, member._replace(classic=ClassicMember(10_000, protocols)))
    classic = b"\x01\x00\x00\x27\x10\x03\x06range\x03\x01\x02\x00\x02s\x01\x00\x00"
    assert value is not None
    assert value.endswith(b"\x06range\x01\x00" + bytes([len(classic)]) + classic)
    key, value = TARGET_EPOCH.record(G, Epoch(7))
    assert (key, value) == (b"\x00\x06\x00\x01g", b"\x00\x00\x00\x00\x00\x07\x00")
    key, value = TARGET.record(M, Target({ID: (1, 2)}))
    assert key == b"\x00\x07\x00\x01g\x00\x01m"
    assert value == b"\x00\x00\x02" + RAW_ID + b"\x03\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00"
    key, value = CURRENT.record(M, Current(3, 2, MemberState.UNREVOKED, {ID: (1,)}, {}))
    assert key == b"\x00\x08\x00\x01g\x00\x01m"
    epochs = b"\x00\x00\x00\x03\x00\x00\x00\x02\x01"
    assert value == b"\x00\x00" + epochs + b"\x02" + RAW_ID + b"\x02\x00\x00\x00\x01\x00\x01\x00"


NAMES = st.text(max_size=5)
MAYBE = st.none() | NAMES
EPOCHS = st.integers(-2, 2**31 - 1)
ASSIGNMENTS = st.dictionaries(
    st.uuids(),
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4).map(lambda all: tuple(sorted(all))),
    max_size=3,
)
CLASSIC = st.builds(
    ClassicMember,
    st.integers(0, 2**31 - 1),
    st.lists(st.tuples(NAMES, st.binary(max_size=5)), min_size=1, max_size=3).map(tuple),
)
MEMBERS = st.builds(
    MemberInfo,
    *(MAYBE, MAYBE, NAMES, NAMES, st.lists(NAMES, max_size=3).map(tuple), MAYBE, EPOCHS, MAYBE, st.none() | CLASSIC),
)
CURRENTS = st.builds(Current, EPOCHS, EPOCHS, st.sampled_from(MemberState), ASSIGNMENTS, ASSIGNMENTS)


@given(MEMBERS, CURRENTS, st.dictionaries(NAMES, st.builds(TopicShape, st.uuids(), st.integers(0, 9)), max_size=3))
@settings(max_examples=150, deadline=None)
def test_written_and_read(member: MemberInfo, current: Current, topics: dict[str, TopicShape]) -> None:
    written: tuple[tuple[RecordType[Any, Any], Any, Any], ...] = (
        (MEMBER, M, member),
        (CURRENT, M, current),
        (TARGET, M, Target(current.assigned)),
        (TOPICS, G, Topics(topics)),
    )
    for kind, key, value in written:
        record = kind.record(key, value)
        assert record.value is not None
        assert kind.read(record.value) == value
        assert group_records.read_key(record.key) == ConsumerGroupKey(Kind(kind.key_versions[0]), *key)
        for end in range(0, len(record.value), 3):
            with pytest.raises(ProtocolError):
                kind.read(record.value[:end])
        with pytest.raises(ProtocolError, match="1 bytes after the end"):
            kind.read(record.value + b"?")


@given(st.binary(max_size=40))
@settings(max_examples=200, deadline=None)
def test_nonsense_is_a_protocol_error(raw: bytes) -> None:
    for kind in CONSUMER_GROUP_TYPES:
        try:
            kind.read(b"\x00\x00" + raw)
        except ProtocolError:
            pass


def test_what_newer_versions_of_kafka_write() -> None:
    """Racks of partitions, and tagged fields that are not known, are skipped; a state that is none is an error."""
    racks = b"\x02\x00\x00\x00\x00\x02\x03r1\x00"
    value = b"\x00\x00\x02" + RAW_ID + b"\x02t\x00\x00\x00\x06" + racks + b"\x00\x00"
    assert TOPICS.read(value).topics == {"t": TopicShape(ID, 6)}
    assert GROUP_EPOCH.read(b"\x00\x00\x00\x00\x00\x07\x01\x00\x08" + bytes(8)) == Epoch(7)
    with pytest.raises(ProtocolError, match="state 9"):
        CURRENT.read(b"\x00\x00" + bytes(8) + b"\x09\x01\x01\x00")
    nobody = MemberInfo(None, None, "", "", (), None, -1, None)
    value = MEMBER.record(M, nobody).value
    assert value is not None
    for tags in (b"\x01\x00\x01\x00", b"\x01\x07\x01\x00"):  # null; a field of the future
        assert MEMBER.read(value[:-1] + tags) == nobody
    with pytest.raises(ProtocolError, match="without an assignor"):
        MEMBER.read(value[:-1] + b"\x01\x00\x07\x01\x00\x00\x27\x10\x01\x00")
    with pytest.raises(ProtocolError, match="version 1"):
        GROUP_EPOCH.read(b"\x00\x01\x00\x00\x00\x07\x00")
