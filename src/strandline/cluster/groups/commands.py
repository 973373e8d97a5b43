"""Commands of a group shard and their answers. An error of a whole command is raised as KafkaError."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from strandline.cluster.groups.connections import NO_CONNECTION
from strandline.cluster.groups.machine import Transaction
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicId
from strandline.proto.kafka.group_records import OffsetValue


class JoinGroup(NamedTuple):
    """Command: a member joins, or joins again.

    Attributes:
        member_id: "" for a member that has no id yet.
        instance_id: group.instance.id of a static member (KIP-345), else None.
        rebalance_timeout_ms: maximum time in milliseconds that the other members wait for this member in a rebalance.
        protocols: (name, subscription) of the assignors that the client supports, in the client's order of preference.
        member_id_required: the client supports KIP-394: a new dynamic member is given an id and joins again with it.
        may_skip_assignment: the client supports KIP-814: a static leader that returns need not compute an assignment.
    """

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    member_id_required: bool = True
    may_skip_assignment: bool = True


class JoinedMember(NamedTuple):
    """Member as described to the group's leader."""

    member_id: str
    instance_id: str | None
    subscription: bytes


class JoinAnswer(NamedTuple):
    """Answer to `JoinGroup`: `member_id` is the member's own; only the leader gets `members`."""

    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncGroup(NamedTuple):
    """Command: a member asks for its assignment; the leader sends those of all members. `protocol_type` and
    `protocol_name` are None if the client does not send them."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


class SyncAnswer(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Heartbeat(NamedTuple):
    """Command: heartbeat of a member. Answered with an ErrorCode."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None


class Leaver(NamedTuple):
    """Member that leaves, named by its id, or by the instance id of a static member (`member_id` is "" if an operator
    removes it)."""

    member_id: str
    instance_id: str | None = None


class LeaveGroup(NamedTuple):
    """Command: members leave. Answered with one ErrorCode per leaver, in their order."""

    group_id: str
    members: tuple[Leaver, ...]


class OffsetToCommit(NamedTuple):
    """Offset in a commit. `topic_id`: id of the topic that had this name when the commit was accepted."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    topic_id: TopicId | None = None


class CommitOffsets(NamedTuple):
    """Command: commit offsets. Answered with one ErrorCode per offset, in their order, or with `Superseded`.

    Attributes:
        generation: generation or member epoch; -1 with an empty member id: the client is not a member of the group.
        retention_ms: retention in milliseconds that the client asks for; None: that of the cluster.
        unknown_group: error that tells this client that the group does not exist.
        knows_epochs: the client's version of the request has the errors of the consumer protocol (of OffsetCommit, and
            of TxnOffsetCommit).
        transaction: the offsets are valid once this transaction is committed (TxnOffsetCommit); None: once written.
        connection: number of the connection of a client that uses the first protocol of transactions.
    """

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]
    retention_ms: int | None = None
    unknown_group: ErrorCode = ErrorCode.ILLEGAL_GENERATION
    knows_epochs: bool = True
    transaction: Transaction | None = None
    connection: int = NO_CONNECTION


class FetchOffsets(NamedTuple):
    """Command: read committed offsets. Answered with (topic, [(partition, value or None)]); `topics` None asks for
    every offset of the group. The value is None if the offset belongs to an earlier topic of that name.

    `member_id` and `epoch` are those of a member of the consumer protocol; None and -1: the client is not a member.
    `stable`: an offset that an open transaction may replace is answered with `UNSTABLE` (KIP-447).
    """

    group_id: str
    topics: tuple[tuple[str, tuple[int, ...]], ...] | None
    member_id: str | None = None
    epoch: int = -1
    stable: bool = False


class Unstable(Enum):
    """Marks a partition that has a pending offset in an open transaction."""

    UNSTABLE = "unstable"


UNSTABLE = Unstable.UNSTABLE

FetchedOffsets = list[tuple[str, list[tuple[int, OffsetValue | Unstable | None]]]]


class DeleteOffsets(NamedTuple):
    """Command: delete committed offsets. Answered with one ErrorCode per partition, in their order."""

    group_id: str
    partitions: tuple[tuple[str, int], ...]


class DescribeGroup(NamedTuple):
    """Command: describe a classic group. Answered with a `GroupDescription`, or with GROUP_ID_NOT_FOUND."""

    group_id: str


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    subscription: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    """Description of a classic group. `protocol_name`, subscriptions and assignments are empty unless the group is
    stable."""

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]


class ListGroups(NamedTuple):
    """Command: list groups. Answered with `ListedGroup`s. An empty filter matches every group; case does not matter."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str


class DeleteGroup(NamedTuple):
    """Command: delete a group. Answered with None, or with GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP."""

    group_id: str


class ForgetTopics(NamedTuple):
    """Command: delete the offsets of these topics, which were deleted. Offsets of topics that were created since under
    the same names are kept. Answered with None."""

    topics: tuple[str, ...]
