"""Kafka's schemas of groups of the consumer protocol in `__consumer_offsets` (keys 3 to 8), each value in version 0.

    3  ConsumerGroupMetadata          the group's epoch; its tombstone ends the group
    4  ConsumerGroupPartitionMetadata the subscribed topics that exist, with their ids and partition counts
    5  ConsumerGroupMemberMetadata    a member: who it is and what it reads
    6  ...TargetAssignmentMetadata    the group epoch that the target assignment is made for
    7  ...TargetAssignmentMember      what a member shall have
    8  ...CurrentMemberAssignment     what a member has, at which epoch

A group is all of them together, so none is of use without the others; they are written in one batch where one change
touches several.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeVar

from strandline.proto.errors import ProtocolError
from strandline.proto.ids import TopicId
from strandline.proto.kafka.fields import (
    INT8,
    INT16,
    INT32,
    NO_TAGS,
    array_head,
    bytes_head,
    check_end,
    int32_array,
    nullable_string,
    read_bool,
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

Assignment = Mapping[TopicId, tuple[int, ...]]
"""Partitions by topic id, sorted; no topic without a partition."""

NOTHING: Assignment = {}


class Kind(IntEnum):
    """The version of a record's key, which names its kind."""

    GROUP = 3
    TOPICS = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


OF_MEMBERS = (Kind.MEMBER, Kind.TARGET, Kind.CURRENT)


class ConsumerGroupKey(NamedTuple):
    """Which record; `member` is "" in those of the whole group."""

    kind: Kind
    group: str
    member: str = ""


class TopicShape(NamedTuple):
    """What of a topic matters to an assignment."""

    topic_id: TopicId
    partitions: int


class ClassicMember(NamedTuple):
    """What a member of the classic protocol, in a group of this one, told in its JoinGroup.

    Attributes:
        protocols: (name, subscription), its favourite first; never empty.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberInfo(NamedTuple):
    """What a member told of itself.

    Attributes:
        topics: subscribed names, sorted; those that do not exist (yet) too.
        regex: the pattern of the names of further topics, or None.
        rebalance_timeout_ms: how long it may take to give partitions back.
        assignor: the server's assignor that it would like, or None.
        classic: None for a member of the consumer protocol.
    """

    instance_id: str | None
    rack: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicMember | None = None


class MemberState(IntEnum):
    """STABLE: has what the target says. UNREVOKED: has to give partitions back first. UNRELEASED: has come to the
    target's epoch and waits for partitions that others have not given back."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


class Current(NamedTuple):
    """What a member has.

    Attributes:
        epoch: the epoch it is expected to tell; 0 before its first answer, -2 for a static member that is away.
        previous_epoch: what it tells if the last answer was lost.
        assigned: what it may read. `revoking`: what it has to give back; both are its own until then.
    """

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING


# ---------------------------------------------------------------- writing


def key_bytes(key: ConsumerGroupKey) -> bytes:
    """Kafka's keys are not flexible."""
    raw = INT16.pack(key.kind) + string(key.group, False)
    return raw + string(key.member, False) if key.kind in OF_MEMBERS else raw


_HEAD = INT16.pack(0)

_CLASSIC_TAG = 0
_PRESENT = b"\x01"
"""Before a structure in a tagged field that may be null."""


def tombstone(key: ConsumerGroupKey) -> Record:
    """There is no such thing any more."""
    return Record(key_bytes(key), None)


def epoch_record(kind: Kind, group: str, epoch: int) -> Record:
    """The epoch of the group (GROUP) or of its target assignment (TARGET_EPOCH)."""
    return Record(key_bytes(ConsumerGroupKey(kind, group)), _HEAD + INT32.pack(epoch) + NO_TAGS)


def topics_record(group: str, topics: Mapping[str, TopicShape]) -> Record:
    """The racks of partitions, which the schema has room for, are not used by any assignor and left empty."""
    parts = [_HEAD, array_head(len(topics), True)]
    for name in sorted(topics):
        shape = topics[name]
        parts += (shape.topic_id.bytes, string(name, True), INT32.pack(shape.partitions), array_head(0, True), NO_TAGS)
    return Record(key_bytes(ConsumerGroupKey(Kind.TOPICS, group)), b"".join((*parts, NO_TAGS)))


def member_record(group: str, member_id: str, member: MemberInfo) -> Record:
    parts = (
        _HEAD,
        nullable_string(member.instance_id, True),
        nullable_string(member.rack, True),
        string(member.client_id, True),
        string(member.client_host, True),
        array_head(len(member.topics), True),
        *(string(topic, True) for topic in member.topics),
        nullable_string(member.regex, True),
        INT32.pack(member.rebalance_timeout_ms),
        nullable_string(member.assignor, True),
        tag_section([] if member.classic is None else [tagged_field(_CLASSIC_TAG, _classic(member.classic))]),
    )
    return Record(key_bytes(ConsumerGroupKey(Kind.MEMBER, group, member_id)), b"".join(parts))


def _classic(member: ClassicMember) -> bytes:
    parts = [_PRESENT, INT32.pack(member.session_timeout_ms), array_head(len(member.protocols), True)]
    for name, subscription in member.protocols:
        parts += (string(name, True), bytes_head(len(subscription), True), subscription, NO_TAGS)
    return b"".join((*parts, NO_TAGS))


def _assignment(assignment: Assignment) -> bytes:
    parts = [array_head(len(assignment), True)]
    for topic_id in sorted(assignment):
        parts += (topic_id.bytes, int32_array(assignment[topic_id], True), NO_TAGS)
    return b"".join(parts)


def target_record(group: str, member_id: str, target: Assignment) -> Record:
    return Record(key_bytes(ConsumerGroupKey(Kind.TARGET, group, member_id)), _HEAD + _assignment(target) + NO_TAGS)


def current_record(group: str, member_id: str, current: Current) -> Record:
    head = struct.pack(">iib", current.epoch, current.previous_epoch, current.state)
    value = _HEAD + head + _assignment(current.assigned) + _assignment(current.revoking) + NO_TAGS
    return Record(key_bytes(ConsumerGroupKey(Kind.CURRENT, group, member_id)), value)


# ---------------------------------------------------------------- reading


def read_key(version: int, view: memoryview, position: int) -> ConsumerGroupKey:
    """The rest of a key whose version is one of `Kind`. Raises ProtocolError."""
    kind = Kind(version)
    group, position = read_name(view, position, False)
    member = read_name(view, position, False)[0] if kind in OF_MEMBERS else ""
    return ConsumerGroupKey(kind, group, member)


def read_epoch(raw: bytes) -> int:
    """Raises ProtocolError for a value that does not parse, as all of these do."""
    view, position = _value(raw)
    (epoch,), position = read_fixed(view, position, INT32)
    _end(view, position)
    return epoch


def read_topics(raw: bytes) -> dict[str, TopicShape]:
    view, position = _value(raw)
    count, position = read_count(view, position, 22, True)
    topics = {}
    for _ in range(count):
        topic_id, position = read_uuid(view, position)
        name, position = read_name(view, position, True)
        (partitions,), position = read_fixed(view, position, INT32)
        _, position = _array(view, position, 3, _read_racks)
        position = skip_tags(view, position)
        topics[name] = TopicShape(topic_id, partitions)
    _end(view, position)
    return topics


def _read_racks(view: memoryview, position: int) -> tuple[None, int]:
    _, position = read_fixed(view, position, INT32)
    _, position = _array(view, position, 1, lambda view, position: read_name(view, position, True))
    return None, skip_tags(view, position)


def read_member(raw: bytes) -> MemberInfo:
    view, position = _value(raw)
    instance_id, position = read_string(view, position, True)
    rack, position = read_string(view, position, True)
    client_id, position = read_name(view, position, True)
    client_host, position = read_name(view, position, True)
    topics, position = _array(view, position, 1, lambda view, position: read_name(view, position, True))
    regex, position = read_string(view, position, True)
    (rebalance_timeout_ms,), position = read_fixed(view, position, INT32)
    assignor, position = read_string(view, position, True)
    known = MemberInfo(instance_id, rack, client_id, client_host, tuple(topics), regex, rebalance_timeout_ms, assignor)
    return known._replace(classic=_read_member_tags(view, position))


def _read_member_tags(view: memoryview, position: int) -> ClassicMember | None:
    fields, end = read_tags(view, position)
    check_end(view, end, "a record")
    return _read_classic(memoryview(fields[_CLASSIC_TAG])) if _CLASSIC_TAG in fields else None


def _read_classic(view: memoryview) -> ClassicMember | None:
    present, position = read_bool(view, 0)
    if not present:
        return None
    (session_timeout_ms,), position = read_fixed(view, position, INT32)
    protocols, position = _array(view, position, 3, _read_protocol)
    _end(view, position)
    if not protocols:
        raise ProtocolError("A member of the classic protocol without an assignor")
    return ClassicMember(session_timeout_ms, tuple(protocols))


def _read_protocol(view: memoryview, position: int) -> tuple[tuple[str, bytes], int]:
    name, position = read_name(view, position, True)
    subscription, position = read_bytes(view, position, True)
    return (name, bytes(subscription or b"")), skip_tags(view, position)


def read_target(raw: bytes) -> Assignment:
    view, position = _value(raw)
    assignment, position = _read_assignment(view, position)
    _end(view, position)
    return assignment


def read_current(raw: bytes) -> Current:
    view, position = _value(raw)
    (epoch,), position = read_fixed(view, position, INT32)
    (previous,), position = read_fixed(view, position, INT32)
    (state,), position = read_fixed(view, position, INT8)
    assigned, position = _read_assignment(view, position)
    revoking, position = _read_assignment(view, position)
    _end(view, position)
    try:
        return Current(epoch, previous, MemberState(state), assigned, revoking)
    except ValueError as error:
        raise ProtocolError(f"A member in state {state}, which is none") from error


def _read_assignment(view: memoryview, position: int) -> tuple[dict[TopicId, tuple[int, ...]], int]:
    count, position = read_count(view, position, 18, True)
    assignment = {}
    for _ in range(count):
        topic_id, position = read_uuid(view, position)
        size, position = read_count(view, position, 4, True)
        if size < 0:
            raise ProtocolError("Null where the record must have partitions")
        assignment[topic_id] = struct.unpack_from(f">{size}i", view, position)
        position = skip_tags(view, position + 4 * size)
    return assignment, position


T = TypeVar("T")


def _array(
    view: memoryview, position: int, bytes_min: int, read: Callable[[memoryview, int], tuple[T, int]]
) -> tuple[list[T], int]:
    count, position = read_count(view, position, bytes_min, True)
    found = []
    for _ in range(count):
        one, position = read(view, position)
        found.append(one)
    return found, position


def _value(raw: bytes) -> tuple[memoryview, int]:
    view = memoryview(raw)
    version, position = read_int16(view, 0)
    if version != 0:
        raise ProtocolError(f"A value of version {version}; 0 can be read")
    return view, position


def _end(view: memoryview, position: int) -> None:
    check_end(view, skip_tags(view, position), "a record")


def sorted_assignment(pairs: Iterable[tuple[TopicId, int]]) -> Assignment:
    """From (topic id, partition) in any order."""
    found: dict[TopicId, list[int]] = {}
    for topic_id, partition in pairs:
        found.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(sorted(found[topic_id])) for topic_id in sorted(found)}
