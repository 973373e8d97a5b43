"""Commands of a group shard, and their answers. Errors that concern a whole command come as KafkaError."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from strandline.cluster.groups.connections import NO_CONNECTION
from strandline.cluster.groups.machine import Transaction
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicId
from strandline.proto.kafka.group_records import OffsetValue


class JoinGroup(NamedTuple):
    """A member joins, or joins again.

    Attributes:
        member_id: "" for a member that has none yet.
        instance_id: of a static member (KIP-345), else None.
        rebalance_timeout_ms: how long the others wait for this member in a rebalance.
        protocols: (name, subscription) of the assignors that the client has, its favourite first.
        member_id_required: the client knows KIP-394: a new dynamic member is given an id and joins again with it.
        may_skip_assignment: the client knows KIP-814: a static leader that returns need not assign.
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
    """A member as the group's leader sees it."""

    member_id: str
    instance_id: str | None
    subscription: bytes


class JoinAnswer(NamedTuple):
    """`members` for the leader alone; `member_id` is the member's own."""

    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncGroup(NamedTuple):
    """A member asks for its assignment; the leader brings everybody's. Protocol type and name are None where the client
    does not tell them."""

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
    """A member lives. Answered with an ErrorCode."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None


class Leaver(NamedTuple):
    """A member that leaves: by its id, or by the instance id of a static member (`member_id` "", by an operator)."""

    member_id: str
    instance_id: str | None = None


class LeaveGroup(NamedTuple):
    """Answered with one ErrorCode a leaver, in order."""

    group_id: str
    members: tuple[Leaver, ...]


class OffsetToCommit(NamedTuple):
    """`topic_id`: of the topic that had this name, or was named by this id, when the commit was accepted."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    topic_id: TopicId | None = None


class CommitOffsets(NamedTuple):
    """Answered with one ErrorCode an offset, in order, or `Superseded`.

    Attributes:
        generation: or member epoch; -1 with an empty member id: from outside of the group's own members.
        retention_ms: the client's own, None for the cluster's.
        unknown_group: the error by which this client understands that there is no such group.
        knows_epochs: the client's version of the request has the errors of the consumer protocol (of OffsetCommit, and
            of TxnOffsetCommit).
        transaction: they count once it is committed (TxnOffsetCommit); None: once they are written.
        connection: by which a client of the first protocol of transactions asks.
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
    """Answered with (topic, [(partition, value or None)]); `topics` None asks for every offset of the group. Offsets of
    an earlier topic of that name are none.

    `member_id` and `epoch` are those of a member of the consumer protocol; None and -1 ask from outside. `stable`: an
    offset that an open transaction may replace is `UNSTABLE` (KIP-447).
    """

    group_id: str
    topics: tuple[tuple[str, tuple[int, ...]], ...] | None
    member_id: str | None = None
    epoch: int = -1
    stable: bool = False


class Unstable(Enum):
    """Says that an open transaction has an offset of the partition."""

    UNSTABLE = "unstable"


UNSTABLE = Unstable.UNSTABLE

FetchedOffsets = list[tuple[str, list[tuple[int, OffsetValue | Unstable | None]]]]


class DeleteOffsets(NamedTuple):
    """Answered with one ErrorCode a partition, in order."""

    group_id: str
    partitions: tuple[tuple[str, int], ...]


class DescribeGroup(NamedTuple):
    """Answered with a `GroupDescription`; GROUP_ID_NOT_FOUND."""

    group_id: str


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    subscription: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    """`protocol_name`, subscriptions and assignments are empty unless the group is stable."""

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]


class ListGroups(NamedTuple):
    """Answered with `ListedGroup`s. Empty filters let everything through; words count in any case of letters."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str


class DeleteGroup(NamedTuple):
    """Answered with None; GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""

    group_id: str


class ForgetTopics(NamedTuple):
    """Command: these topics were deleted, so nobody needs their offsets any more. Those of topics that were made
    anew since stay. Answered with None."""

    topics: tuple[str, ...]
