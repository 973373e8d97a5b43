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

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Annotated, NamedTuple

from strandline.proto.errors import ProtocolError
from strandline.proto.ids import ZERO_UUID, TopicId
from strandline.proto.kafka.declared import Bytes, Field, Int8, Int32, RecordType, Seen, String, Uuid


class Kind(IntEnum):
    """The version of a record's key, which names its kind."""

    GROUP = 3
    TOPICS = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


class ConsumerGroupKey(NamedTuple):
    """Key of a record; `member` is "" for records of the whole group."""

    kind: Kind
    group: str
    member: str = ""


class OfGroup(NamedTuple):
    """The key of a record of the whole group."""

    group: String


class OfMember(NamedTuple):
    """The key of a member's record."""

    group: String
    member: String


class Epoch(NamedTuple):
    """The epoch of the group, or of its target assignment."""

    epoch: Int32


# ---------------------------------------------------------------- topics


class TopicShape(NamedTuple):
    """The properties of a topic on which an assignment depends."""

    topic_id: TopicId
    partitions: int


class PartitionRacks(NamedTuple):
    """The racks of a partition's replicas. No assignor uses them, so none are written."""

    partition: Int32
    racks: tuple[String, ...]


class TopicMetadata(NamedTuple):
    """A subscribed topic."""

    topic_id: Uuid | None
    name: String
    partitions: Int32
    racks: tuple[PartitionRacks, ...] = ()


def _topics_read(topics: tuple[TopicMetadata, ...]) -> dict[str, TopicShape]:
    return {one.name: TopicShape(one.topic_id or ZERO_UUID, one.partitions) for one in topics}


def _topics_written(topics: Mapping[str, TopicShape]) -> list[TopicMetadata]:
    return [TopicMetadata(topics[name].topic_id, name, topics[name].partitions) for name in sorted(topics)]


class Topics(NamedTuple):
    """The subscribed topics that exist, by name."""

    topics: Annotated[dict[str, TopicShape], Seen(tuple[TopicMetadata, ...], _topics_read, _topics_written)]


# ---------------------------------------------------------------- members


class ClassicProtocol(NamedTuple):
    """An assignor that a classic member can use, and what the member subscribes to under it."""

    name: String
    subscription: Bytes


def _protocols_read(protocols: tuple[ClassicProtocol, ...]) -> tuple[ClassicProtocol, ...]:
    if not protocols:
        raise ProtocolError("A member of the classic protocol without an assignor")
    return protocols


def _protocols_written(protocols: Iterable[tuple[str, bytes]]) -> list[ClassicProtocol]:
    return [ClassicProtocol(*one) for one in protocols]


class ClassicMember(NamedTuple):
    """What a member of the classic protocol, in a group of this one, told in its JoinGroup.

    Attributes:
        protocols: (name, subscription), its favourite first; never empty.
    """

    session_timeout_ms: Int32
    protocols: Annotated[
        tuple[tuple[str, bytes], ...], Seen(tuple[ClassicProtocol, ...], _protocols_read, _protocols_written)
    ]


class MemberInfo(NamedTuple):
    """What a member told of itself.

    Attributes:
        topics: subscribed names, sorted; those that do not exist (yet) too.
        regex: the pattern of the names of further topics, or None.
        rebalance_timeout_ms: how long it may take to give partitions back.
        assignor: the server's assignor that it would like, or None.
        classic: None for a member of the consumer protocol.
    """

    instance_id: String | None
    rack: String | None
    client_id: String
    client_host: String
    topics: tuple[String, ...]
    regex: String | None
    rebalance_timeout_ms: Int32
    assignor: String | None
    classic: Annotated[ClassicMember | None, Field(tag=0)] = None


# ---------------------------------------------------------------- assignments


Assignment = Mapping[TopicId, tuple[int, ...]]
"""Partitions by topic id, sorted; no topic without a partition."""

NOTHING: Assignment = {}


class TopicPartitions(NamedTuple):
    """Partitions of one topic."""

    topic_id: Uuid | None
    partitions: tuple[Int32, ...]


def _assignment_read(topics: tuple[TopicPartitions, ...]) -> Assignment:
    return {one.topic_id or ZERO_UUID: one.partitions for one in topics}


def _assignment_written(assignment: Assignment) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id, assignment[topic_id]) for topic_id in sorted(assignment)]


Partitions = Annotated[Assignment, Seen(tuple[TopicPartitions, ...], _assignment_read, _assignment_written)]


class Target(NamedTuple):
    """Partitions that a member is to have."""

    partitions: Partitions


class MemberState(IntEnum):
    """STABLE: has what the target says. UNREVOKED: has to give partitions back first. UNRELEASED: has come to the
    target's epoch and waits for partitions that others have not given back."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


def _state_read(state: int) -> MemberState:
    try:
        return MemberState(state)
    except ValueError as error:
        raise ProtocolError(f"A member in state {state}, which is none") from error


class Current(NamedTuple):
    """What a member has.

    Attributes:
        epoch: the epoch it is expected to tell; 0 before its first answer, -2 for a static member that is away.
        previous_epoch: what it tells if the last answer was lost.
        assigned: what it may read. `revoking`: what it has to give back; both are its own until then.
    """

    epoch: Int32 = 0
    previous_epoch: Int32 = 0
    state: Annotated[MemberState, Seen(Int8, _state_read, int)] = MemberState.STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING


def sorted_assignment(pairs: Iterable[tuple[TopicId, int]]) -> Assignment:
    """From (topic id, partition) in any order."""
    found: dict[TopicId, list[int]] = {}
    for topic_id, partition in pairs:
        found.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(sorted(found[topic_id])) for topic_id in sorted(found)}


# ---------------------------------------------------------------- records


GROUP_EPOCH = RecordType("ConsumerGroupMetadataValue", OfGroup, (Kind.GROUP,), Epoch)
TOPICS = RecordType("ConsumerGroupPartitionMetadataValue", OfGroup, (Kind.TOPICS,), Topics)
MEMBER = RecordType("ConsumerGroupMemberMetadataValue", OfMember, (Kind.MEMBER,), MemberInfo)
TARGET_EPOCH = RecordType("ConsumerGroupTargetAssignmentMetadataValue", OfGroup, (Kind.TARGET_EPOCH,), Epoch)
TARGET = RecordType("ConsumerGroupTargetAssignmentMemberValue", OfMember, (Kind.TARGET,), Target)
CURRENT = RecordType("ConsumerGroupCurrentMemberAssignmentValue", OfMember, (Kind.CURRENT,), Current)

CONSUMER_GROUP_TYPES = (GROUP_EPOCH, TOPICS, MEMBER, TARGET_EPOCH, TARGET, CURRENT)
