"""Interface of the quorum for the rest of a node: values, errors, and the listener that replays the metadata log.

The consumers (the active controller, the image publisher of each broker) see committed batches in order, each exactly
once between two snapshot loads, and never an uncommitted one. Record bytes are opaque to the quorum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol
from uuid import UUID

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.messages import ReplicaKey
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_NODE, Endpoint, NodeId
from strandline.proto.messages.fields import Int32, Int64, OrEmpty
from strandline.proto.settings import INT32_MAX, Scope, milliseconds, size
from strandline.proto.steps import Steps

DAMAGE_ADVICE = (
    "This node will not serve metadata it cannot trust. If a majority of the other controllers is well, stop the node, "
    "move its __cluster_metadata-0 directory away and start it again: it fetches everything from them. A controller "
    "then has no vote, until `strandline quorum restore-vote` gives it back. On the only controller restore the "
    "directory from a copy"
)
"""Advice on damage in the metadata log or its snapshots. Its quorum-promise file must stay: it is the proof that a
controller has voted (rule A14)."""


class LeaderAndEpoch(NamedTuple):
    """Leader and epoch of the metadata quorum. `leader_id` is None while an election runs; the epoch never goes
    back."""

    leader_id: NodeId | None
    epoch: int


class NotLeader(KafkaError):
    """The node does not lead the quorum in the epoch that the caller named; nothing was appended."""

    def __init__(self, leader_and_epoch: LeaderAndEpoch, *, wanted_epoch: int) -> None:
        self.leader_and_epoch = leader_and_epoch
        self.wanted_epoch = wanted_epoch
        super().__init__(
            ErrorCode.NOT_CONTROLLER,
            "this node does not lead the metadata quorum",
            leader_id=leader_and_epoch.leader_id,
            epoch=leader_and_epoch.epoch,
            wanted_epoch=wanted_epoch,
        )


@dataclass(frozen=True, slots=True)
class Voter:
    """A member of the quorum, as written when the cluster was formatted.

    A `directory_id` of None matches any (Kafka's static quorums); with an id, a wiped and newly formatted disk is not
    this voter (rule A11, schedule 26). `endpoint` is the node's internal listener.
    """

    node_id: NodeId
    directory_id: UUID | None
    endpoint: Endpoint


class QuorumConfig(RaftConfig, scope=Scope.NODE):
    """Timing and sizes of the quorum: those of the core, of calls, and of the metadata log.

    Attributes:
        max_batch_bytes: the largest batch that `Quorum.append` accepts.
    """

    request_timeout_ms = milliseconds(
        "controller.quorum.request.timeout.ms", 1000, "Maximum time of one call between quorum nodes."
    )
    snapshot_max_new_record_bytes = size(
        "metadata.log.max.record.bytes.between.snapshots",
        20 * 1024**2,
        "Bytes of the metadata log that are committed after a snapshot before the next snapshot is taken.",
    )
    log_segment_bytes = size(
        "metadata.log.segment.bytes",
        64 * 1024**2,
        "Size of a segment of the metadata log at which a new one is begun.",
        low=1024,
        high=INT32_MAX,
    )
    max_batch_bytes = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """Records that a majority holds. All of them were appended by one `Quorum.append`: atomic."""

    base_offset: int
    last_offset: int
    epoch: int
    timestamp_ms: int
    records: list[bytes]


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One replica of the metadata log as the leader knows it; -1 where it does not (yet) know."""

    node_id: Annotated[NodeId, Int32(1)]
    directory_id: Annotated[UUID | None, OrEmpty(2)]
    log_end_offset: Annotated[int, Int64(3)]
    last_fetch_timestamp_ms: Annotated[int, Int64(4)]
    """Wall-clock time of its last fetch; the leader's own is now."""
    last_caught_up_timestamp_ms: Annotated[int, Int64(5)]
    """Wall-clock time when it last had all that the leader had."""


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The quorum as this node knows it; a node that does not lead knows no replica's progress but its own."""

    leader_id: NodeId | None
    epoch: int
    high_watermark: int
    voters: list[ReplicaDescription]
    observers: list[ReplicaDescription]


@dataclass(frozen=True, slots=True)
class DescribeQuorumRequest:
    """Asks a controller for the quorum as it knows it as the leader."""


@dataclass(frozen=True, slots=True)
class DescribeQuorumReply:
    """The quorum as the sender knows it, who leads it; or an error: NOT_CONTROLLER where it does not."""

    error: Annotated[ErrorCode, 1] = ErrorCode.NONE
    message: Annotated[str, 2] = ""
    leader_id: Annotated[NodeId, Int32(3)] = NO_NODE
    epoch: Annotated[int, Int32(4)] = 0
    high_watermark: Annotated[int, Int64(5)] = 0
    voters: Annotated[tuple[ReplicaDescription, ...], 6] = ()
    observers: Annotated[tuple[ReplicaDescription, ...], 7] = ()


class QuorumView(Protocol):
    """The metadata quorum as a node sees it (`controller.quorum.quorum.Quorum` is the real one)."""

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch: ...

    def endpoint_of(self, node_id: NodeId) -> Endpoint | None:
        """The internal endpoint of a voter; None for a node that is none."""

    @property
    def unreached(self) -> Mapping[NodeId, str]:
        """The voters to which the last call found no connection, and why."""

    def describe(self) -> QuorumDescription:
        """Description of the quorum: its leader, and how far each replica has come; only the leader knows the
        others."""


class QuorumLog(QuorumView, Protocol):
    """The metadata log, as its leader writes it."""

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will have."""

    @property
    def max_append_bytes(self) -> int:
        """The largest batch that `append` takes."""

    def append(self, epoch: int, records: Sequence[bytes]) -> int:
        """Append records as one atomic batch; answers the last offset. Raises NotLeader with nothing written."""

    async def remove_voter(self, node_id: NodeId, directory_id: UUID) -> tuple[NodeId, ...]:
        """Take a vote; who votes then, once that is committed. Raises KafkaError."""

    async def add_voter(
        self, node_id: NodeId, directory_id: UUID, endpoint: Endpoint | None = None, *, uncommitted: bool = False
    ) -> tuple[NodeId, ...]:
        """Give a vote; who votes then, once that is committed, or appended (`uncommitted`). Raises KafkaError."""

    async def update_voter(
        self, key: ReplicaKey, endpoint: Endpoint | None, levels: range, *, epoch: int = -1
    ) -> tuple[NodeId, ...]:
        """Record where a voter listens; who votes then, once that is committed. Raises KafkaError."""

    def resign(self) -> None:
        """Give up the leadership of the quorum."""


class QuorumListener(Protocol):
    """Replays the metadata log. Called on the event loop, synchronously and in order; must not block.

    An exception out of a listener is fatal to the node: its state could no longer be trusted.
    """

    def handle_commit(self, batch: CommittedBatch) -> None:
        """Take the next committed batch. Batches of the quorum's own control records are left out, so offsets may
        jump."""

    def handle_load_snapshot(self, end_offset: int, epoch: int, records: Iterable[bytes]) -> None:
        """Drop all state and load this; the next batch has a base offset >= `end_offset`."""

    def handle_leader_change(self, leader_and_epoch: LeaderAndEpoch) -> None:
        """Leadership moved. On the new leader itself this comes only once everything up to its epoch's start was handed
        over, so it may act at once; on all others at once."""

    def take_snapshot(self) -> tuple[int, int, Iterable[bytes]] | None:
        """The state as (end offset, epoch of the last applied batch, records), or None to decline (not this listener).

        The end offset must be a batch boundary at or below what was handed over.
        """


class Rehearsal(Protocol):
    """A copy of a listener's state, on which records are replayed before they are appended. Nobody else sees it."""

    def restart(self) -> None:
        """Begin anew on what the listener was handed."""

    def replay(self, batch: CommittedBatch) -> None:
        """Replay the next batch. Raises FatalError if the listener could not; then nothing has changed."""

    def load(self, end_offset: int, epoch: int, records: Iterable[bytes]) -> Steps[None]:
        """Try a snapshot. Raises FatalError if the listener could not load it."""
