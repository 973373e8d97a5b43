"""Kafka's key and value schemas of `__consumer_offsets`, so that Kafka's own tools can read it.

A key begins with its version, which names its kind: 0 and 1 a committed offset, 2 a classic group, 3 to 8 a group of
the consumer protocol (`consumer_group_records`). Values are read in versions 0 to 4. Groups are written in
version 3; offsets in version 4, which has the id of their topic (KAFKA-19141), and those with an expiry of their own in
version 1, which alone has that.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from strandline.proto.kafka.consumer_group_records import CONSUMER_GROUP_TYPES, ConsumerGroupKey, Kind
from strandline.proto.kafka.declared import Bytes, Field, Int32, Int64, RecordType, String, Uuid, by_key_version
from strandline.proto.kafka.fields import read_int16
from strandline.proto.kafka.keyed_record import Record

NEVER = -1
"""Value that stands for "no timestamp"."""


class OffsetKey(NamedTuple):
    """Key of a committed offset."""

    group: String
    topic: String
    partition: Int32


class GroupKey(NamedTuple):
    """Key of a group's record."""

    group: String


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

    offset: Int64
    leader_epoch: Annotated[Int32, Field("3+", default=-1)]
    metadata: String
    commit_ms: Int64
    expire_ms: Annotated[Int64, Field("1", default=NEVER)] = NEVER
    topic_id: Annotated[Uuid | None, Field("4+", tag=0)] = None


class MemberValue(NamedTuple):
    """A member in a stored generation."""

    member_id: String
    instance_id: Annotated[String | None, Field("3+")]
    client_id: String
    client_host: String
    rebalance_timeout_ms: Annotated[Int32, Field("1+", default=-1)]
    session_timeout_ms: Int32
    subscription: Bytes
    assignment: Bytes


class GroupValue(NamedTuple):
    """A generation of a classic group.

    Attributes:
        protocol, leader: None in an empty group.
        state_ms: wall time since when the group is in this state, -1 unknown.
    """

    protocol_type: String
    generation: Int32
    protocol: String | None
    leader: String | None
    state_ms: Annotated[Int64, Field("2+", default=NEVER)]
    members: tuple[MemberValue, ...]


Key = OffsetKey | GroupKey | ConsumerGroupKey | UnknownKey

EXPIRING_OFFSET_VERSION = 1

OFFSET = RecordType("OffsetCommitValue", OffsetKey, (0, 1), OffsetValue, versions="0-4", flexible="4+", written=4)
GROUP = RecordType("GroupMetadataValue", GroupKey, (2,), GroupValue, versions="0-4", flexible="4+", written=3)

_TYPES = by_key_version(OFFSET, GROUP, *CONSUMER_GROUP_TYPES)


def read_key(raw: bytes) -> Key:
    """Raises ProtocolError for a key that does not parse."""
    version, _ = read_int16(raw, 0)
    found = _TYPES.get(version)
    if found is None:
        return UnknownKey(version)
    key = found.read_key(raw)
    if found in CONSUMER_GROUP_TYPES:
        return ConsumerGroupKey(Kind(version), *key)
    known: Key = key
    return known


def offset_record(key: OffsetKey, value: OffsetValue | None) -> Record:
    """A committed offset, or (None) that there is none any more."""
    expires = value is not None and value.expire_ms != NEVER
    return OFFSET.record(key, value, EXPIRING_OFFSET_VERSION if expires else None)


def group_record(group: str, value: GroupValue | None) -> Record:
    """A generation of a group, or (None) that there is no such group any more."""
    return GROUP.record(GroupKey(group), value)


def read_group_value(raw: bytes) -> GroupValue:
    """A member without a rebalance timeout waits a session. Raises ProtocolError for a value that does not parse."""
    value = GROUP.read(raw)
    return value._replace(members=tuple(map(_with_rebalance_timeout, value.members)))


def _with_rebalance_timeout(member: MemberValue) -> MemberValue:
    if member.rebalance_timeout_ms >= 0:
        return member
    return member._replace(rebalance_timeout_ms=member.session_timeout_ms)
