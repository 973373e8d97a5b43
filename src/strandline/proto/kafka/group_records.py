"""Kafka's key and value schemas of `__consumer_offsets`, so that Kafka's own tools can read it.

A key begins with its version, which names its kind: 0 and 1 a committed offset, 2 a classic group, 3 to 8 a group of
the consumer protocol (`consumer_group_records`). Values are read in versions 0 to 4. Groups are written in
version 3; offsets in version 4, which has the id of their topic (KAFKA-19141), and those with an expiry of their own in
version 1, which alone has that.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from strandline.proto.errors import ProtocolError
from strandline.proto.ids import ZERO_UUID, TopicId
from strandline.proto.kafka.consumer_group_records import ConsumerGroupKey, Kind
from strandline.proto.kafka.consumer_group_records import read_key as read_consumer_group_key
from strandline.proto.kafka.fields import (
    INT16,
    INT32,
    INT64,
    bytes_head,
    check_end,
    nullable_string,
    read_bytes,
    read_count,
    read_fixed,
    read_int16,
    read_name,
    read_string,
    read_tags,
    read_uuid,
    skip_tags,
    string,
    tag_section,
    tagged_field,
)
from strandline.proto.kafka.keyed_record import Record

OFFSET_KEY_VERSIONS = (0, 1)
GROUP_KEY_VERSION = 2
CONSUMER_GROUP_KEY_VERSIONS = tuple(Kind)
VALUE_VERSION = 3
OFFSET_VALUE_VERSION = 4
EXPIRING_VALUE_VERSION = 1
VALUE_VERSION_MAX = 4
FLEXIBLE_SINCE = 4
TOPIC_ID_TAG = 0

MEMBER_BYTES_MIN = 15
"""A member without names, subscription and assignment, in the shortest of the formats."""

NEVER = -1
"""No timestamp."""


class OffsetKey(NamedTuple):
    """Which committed offset."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Which group."""

    group: str


class UnknownKey(NamedTuple):
    """A kind of record that this version does not know."""

    version: int


class OffsetValue(NamedTuple):
    """A committed offset.

    Attributes:
        offset: the next record to read.
        leader_epoch: of the record before it; -1 unknown.
        metadata: the client's own text.
        commit_ms: wall time of the commit.
        expire_ms: wall time from which it may be forgotten, -1 for the cluster's rule (OffsetCommit 2 to 4 set it).
        topic_id: the topic that it counts records of; None where the record does not say (versions 0 to 3): it counts
            for whatever topic has the name.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = NEVER
    topic_id: TopicId | None = None


class MemberValue(NamedTuple):
    """A member in a stored generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """A generation of a classic group.

    Attributes:
        protocol, leader: None in an empty group.
        state_ms: wall time since when the group is in this state, -1 unknown.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[MemberValue, ...]


Key = OffsetKey | GroupKey | ConsumerGroupKey | UnknownKey

# ---------------------------------------------------------------- writing


def _blob(value: bytes) -> bytes:
    return bytes_head(len(value), False) + value


def offset_key(key: OffsetKey) -> bytes:
    """Kafka's OffsetCommitKey, version 1."""
    return INT16.pack(1) + string(key.group, False) + string(key.topic, False) + INT32.pack(key.partition)


def group_key(group: str) -> bytes:
    """Kafka's GroupMetadataKey, version 2."""
    return INT16.pack(GROUP_KEY_VERSION) + string(group, False)


def offset_record(key: OffsetKey, value: OffsetValue | None) -> Record:
    """A committed offset, or (None) that there is none any more."""
    return Record(offset_key(key), None if value is None else offset_value(value))


def offset_value(value: OffsetValue) -> bytes:
    """Kafka's OffsetCommitValue."""
    if value.expire_ms != NEVER:
        head = INT16.pack(EXPIRING_VALUE_VERSION) + INT64.pack(value.offset)
        return head + string(value.metadata, False) + struct.pack(">qq", value.commit_ms, value.expire_ms)
    head = INT16.pack(OFFSET_VALUE_VERSION) + struct.pack(">qi", value.offset, value.leader_epoch)
    tags = tag_section([] if value.topic_id is None else [tagged_field(TOPIC_ID_TAG, value.topic_id.bytes)])
    return head + string(value.metadata, True) + INT64.pack(value.commit_ms) + tags


def group_record(group: str, value: GroupValue | None) -> Record:
    """A generation of a group, or (None) that there is no such group any more."""
    return Record(group_key(group), None if value is None else group_value(value))


def group_value(value: GroupValue) -> bytes:
    """Kafka's GroupMetadataValue, version 3."""
    parts = [
        INT16.pack(VALUE_VERSION),
        string(value.protocol_type, False),
        INT32.pack(value.generation),
        nullable_string(value.protocol, False),
        nullable_string(value.leader, False),
        INT64.pack(value.state_ms),
        INT32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            string(member.member_id, False),
            nullable_string(member.instance_id, False),
            string(member.client_id, False),
            string(member.client_host, False),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _blob(member.subscription),
            _blob(member.assignment),
        )
    return b"".join(parts)


# ---------------------------------------------------------------- reading


def read_key(raw: bytes) -> Key:
    """Raises ProtocolError for a key that does not parse."""
    view = memoryview(raw)
    version, position = read_int16(view, 0)
    if version in OFFSET_KEY_VERSIONS:
        group, position = read_name(view, position, False)
        topic, position = read_name(view, position, False)
        (partition,), position = read_fixed(view, position, INT32)
        return OffsetKey(group, topic, partition)
    if version == GROUP_KEY_VERSION:
        return GroupKey(read_name(view, position, False)[0])
    if version in CONSUMER_GROUP_KEY_VERSIONS:
        return read_consumer_group_key(version, view, position)
    return UnknownKey(version)


def read_offset_value(raw: bytes) -> OffsetValue:
    """Raises ProtocolError for a value that does not parse."""
    view = memoryview(raw)
    version, position = _value_version(view)
    (offset,), position = read_fixed(view, position, INT64)
    leader_epoch, expire_ms = -1, NEVER
    if version >= 3:
        (leader_epoch,), position = read_fixed(view, position, INT32)
    metadata, position = read_name(view, position, version >= FLEXIBLE_SINCE)
    (commit_ms,), position = read_fixed(view, position, INT64)
    if version == EXPIRING_VALUE_VERSION:
        (expire_ms,), position = read_fixed(view, position, INT64)
    topic_id = _read_topic_id(view, position) if version >= FLEXIBLE_SINCE else None
    return OffsetValue(offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id)


def _read_topic_id(view: memoryview, position: int) -> TopicId | None:
    """Of the tagged fields at the end of an offset; others are skipped."""
    fields, _ = read_tags(view, position)
    if TOPIC_ID_TAG not in fields:
        return None
    topic_id, end = read_uuid(fields[TOPIC_ID_TAG], 0)
    check_end(fields[TOPIC_ID_TAG], end, "a topic id")
    return None if topic_id == ZERO_UUID else topic_id


def read_group_value(raw: bytes) -> GroupValue:
    """Raises ProtocolError for a value that does not parse."""
    view = memoryview(raw)
    version, position = _value_version(view)
    flexible = version >= FLEXIBLE_SINCE
    protocol_type, position = read_name(view, position, flexible)
    (generation,), position = read_fixed(view, position, INT32)
    protocol, position = read_string(view, position, flexible)
    leader, position = read_string(view, position, flexible)
    state_ms = NEVER
    if version >= 2:
        (state_ms,), position = read_fixed(view, position, INT64)
    count, position = read_count(view, position, MEMBER_BYTES_MIN, flexible)
    if count < 0:
        raise ProtocolError("Null where the group must have members")
    members = []
    for _ in range(count):
        member, position = _read_member(view, position, version)
        members.append(member)
    return GroupValue(protocol_type, generation, protocol, leader, state_ms, tuple(members))


def _read_member(view: memoryview, position: int, version: int) -> tuple[MemberValue, int]:
    flexible = version >= FLEXIBLE_SINCE
    member_id, position = read_name(view, position, flexible)
    instance_id: str | None = None
    if version >= 3:
        instance_id, position = read_string(view, position, flexible)
    client_id, position = read_name(view, position, flexible)
    client_host, position = read_name(view, position, flexible)
    rebalance_timeout_ms = -1
    if version >= 1:
        (rebalance_timeout_ms,), position = read_fixed(view, position, INT32)
    (session_timeout_ms,), position = read_fixed(view, position, INT32)
    subscription, position = read_bytes(view, position, flexible)
    assignment, position = read_bytes(view, position, flexible)
    if flexible:
        position = skip_tags(view, position)
    member = MemberValue(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=bytes(subscription or b""),
        assignment=bytes(assignment or b""),
    )
    return member, position


def _value_version(view: memoryview) -> tuple[int, int]:
    version, position = read_int16(view, 0)
    if not 0 <= version <= VALUE_VERSION_MAX:
        raise ProtocolError(f"A value of version {version}; 0 to {VALUE_VERSION_MAX} can be read")
    return version, position
