"""Messages between quorum nodes, and the envelopes in which they enter and leave the core.

The requests are Kafka's Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch and FetchSnapshot, reduced to the one metadata
partition. Every response carries the responder's epoch and the leader it knows, so that any answer can teach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple
from uuid import UUID

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.messages.fields import Int32, Int64, OrEmpty

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ReplicaKey(NamedTuple):
    """A replica: its node id and the id of the directory that holds its log (KIP-853).

    A directory id of None in a *recorded* key (a voter set) matches any; in a *presented* key it means "not reported".
    """

    node_id: Annotated[NodeId, Int32(1, minimum=0)]
    directory_id: Annotated[UUID | None, OrEmpty(2)]

    def admits(self, presented: ReplicaKey) -> bool:
        """Whether `presented` is the replica recorded here: a wiped disk has another directory id (rule A11,
        schedule 26)."""
        if self.node_id != presented.node_id:
            return False
        # rule A11/directory-id-is-ignored
        return self.directory_id is None or self.directory_id == presented.directory_id

    def counts(self, presented: ReplicaKey, *, voteless: bool) -> bool:
        """Whether `presented` counts as the replica recorded here: as `admits`, and one that has lost its log only
        where its directory is recorded (rule A14: a voter without its log votes no more)."""
        # rule A14/voteless-counts-where-no-directory-is-recorded
        return self.admits(presented) and not (voteless and self.directory_id is None)


class OffsetAndEpoch(NamedTuple):
    """End of a log, an epoch or a snapshot: `offset` is exclusive, `epoch` is that of the record before it."""

    offset: Annotated[int, Int64(1, minimum=0)]
    epoch: Annotated[int, Int32(2, minimum=0)]

    def at_least(self, other: OffsetAndEpoch) -> bool:
        """True if this log is at least as good as the other, by Raft's comparison: by epoch first, then by length."""
        return (self.epoch, self.offset) >= (other.epoch, other.offset)  # rule A3/vote-by-length-of-log

    def __str__(self) -> str:
        return f"{self.offset}@{self.epoch}"


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """The control record that opens every epoch (Kafka's LeaderChangeMessage). Rule A6."""

    leader_id: NodeId
    voters: tuple[ReplicaKey, ...]
    granting_voters: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class VotersChange:
    """The control record that names the voters from its offset on (Kafka's VotersRecord). Rule A11.

    Attributes:
        kraft_version: 1: these are all the voters there are, and each stands with its endpoint (a KRaftVersionRecord
            comes before it). 0: which nodes may vote, and where they are, is configured.
        endpoints: the internal listener of each voter, in the same order; none at kraft.version 0.
    """

    voters: tuple[ReplicaKey, ...]
    kraft_version: int = 0
    endpoints: tuple[Endpoint, ...] = ()

    @property
    def records(self) -> int:
        """Number of records in the log for this change."""
        return 1 if self.kraft_version == 0 else 2


@dataclass(frozen=True, slots=True)
class Batch:
    """Records appended together. `data` is opaque to the core, save that it makes LeaderChange and VotersChange."""

    base_offset: int
    next_offset: int
    """One past the last record's offset."""
    epoch: int
    data: Buffer | LeaderChange | VotersChange
    voters: VotersChange | None = None
    """The voters from `base_offset` on; None in a batch that names none."""


# --- requests and responses ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A candidate asks for a vote; a prospective node asks whether it would get one (`pre_vote`, KIP-996)."""

    cluster_id: Annotated[str, 1]
    candidate: Annotated[ReplicaKey, 2]
    candidate_epoch: Annotated[int, Int32(3, minimum=0)]
    """The epoch to be led; for a pre-vote the asker's current epoch, not bumped."""
    voter: Annotated[ReplicaKey, 4]
    """The replica that the candidate believes it asks: a wiped voter must refuse."""
    last: Annotated[OffsetAndEpoch, 5]
    """End of the candidate's log."""
    pre_vote: Annotated[bool, 6]
    voters_offset: Annotated[int, Int64(7)] = 0
    """Offset of the voter set in the candidate's log; 0 for the configured one. A voter whose own set is older does not
    know yet which directory of the candidate votes."""


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """Answer to a Vote; `granted` means something only with error NONE and the asked epoch."""

    error: Annotated[ErrorCode, 1]
    epoch: Annotated[int, Int32(2, minimum=0)]
    leader_id: Annotated[NodeId | None, Int32(3, minimum=0)]
    granted: Annotated[bool, 4]
    in_doubt: Annotated[bool, 5] = False
    """The voter cut a tail that it may have acknowledged, and the candidate may lack it: the vote counts only together
    with all others (rule A15)."""
    leader_at: Annotated[Endpoint | None, 6] = None
    """Endpoint of the leader, sent from kraft.version 1 on, because the sender of the request may know only an older
    voter set."""


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochRequest:
    """A new leader makes itself known to a voter, which will then fetch from it."""

    cluster_id: Annotated[str, 1]
    leader_id: Annotated[NodeId, Int32(2, minimum=0)]
    epoch: Annotated[int, Int32(3, minimum=0)]
    voter: Annotated[ReplicaKey, 4]
    leader_at: Annotated[Endpoint | None, 5] = None
    """Endpoint of the leader, as in `VoteResponse`."""


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochResponse:
    """Answer to BeginQuorumEpoch; NONE acknowledges the leader."""

    error: Annotated[ErrorCode, 1]
    epoch: Annotated[int, Int32(2, minimum=0)]
    leader_id: Annotated[NodeId | None, Int32(3, minimum=0)]
    leader_at: Annotated[Endpoint | None, 4] = None
    """Endpoint of the leader, as in `VoteResponse`."""


@dataclass(frozen=True, slots=True)
class EndQuorumEpochRequest:
    """A leader has resigned: the first of `preferred_candidates` may ask for an election at once, later ones wait."""

    cluster_id: Annotated[str, 1]
    leader_id: Annotated[NodeId, Int32(2, minimum=0)]
    epoch: Annotated[int, Int32(3, minimum=0)]
    preferred_candidates: Annotated[tuple[ReplicaKey, ...], 4]


@dataclass(frozen=True, slots=True)
class EndQuorumEpochResponse:
    """Answer to EndQuorumEpoch."""

    error: Annotated[ErrorCode, 1]
    epoch: Annotated[int, Int32(2, minimum=0)]
    leader_id: Annotated[NodeId | None, Int32(3, minimum=0)]
    leader_at: Annotated[Endpoint | None, 4] = None
    """Endpoint of the leader, as in `VoteResponse`."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Asks for records from `fetch_offset`; from a voter it also says: all before it I hold, durably (rules A7, A8)."""

    cluster_id: Annotated[str, 1]
    replica: Annotated[ReplicaKey, 2]
    epoch: Annotated[int, Int32(3, minimum=0)]
    """The leader epoch the fetcher believes in."""
    fetch_offset: Annotated[int, Int64(4, minimum=0)]
    last_fetched_epoch: Annotated[int, Int32(5, minimum=0)]
    """Epoch of the record before `fetch_offset`; 0 for an empty log."""
    high_watermark: Annotated[int, Int64(6)]
    """High watermark that the fetcher knows; the leader answers at once when it knows more."""
    max_wait_ms: Annotated[int, Int32(7)]
    """Milliseconds that the leader may park the fetch while it has nothing new."""
    max_bytes: Annotated[int, Int32(8, minimum=0)]
    voteless: Annotated[bool, 9] = False
    """The fetcher has lost its log: it counts as a voter only where a voter set names its very directory (rule A14)."""
    life: Annotated[int, Int64(10, minimum=0)] = 0
    """Rises with each start of the fetcher: a fetch of an earlier life, which may have held more, counts no more."""
    listens_at: Annotated[Endpoint | None, 11] = None
    """Endpoint of a controller's internal listener. A voter's is stored in the log from kraft.version 1 on."""
    wants_vote: Annotated[bool, 12] = False
    """A controller that asks to be made a voter once it has caught up (KIP-1186)."""


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """Answer to a Fetch: exactly one of records (maybe none), `diverging` and `snapshot`, or an error."""

    error: Annotated[ErrorCode, 1]
    epoch: Annotated[int, Int32(2, minimum=0)]
    leader_id: Annotated[NodeId | None, Int32(3, minimum=0)]
    high_watermark: Annotated[int, Int64(4)] = -1
    """The leader's, -1 while it is unknown in this epoch (rule A6)."""
    log_start_offset: Annotated[int, Int64(5)] = -1
    diverging: Annotated[OffsetAndEpoch | None, 6] = None
    """The leader's largest epoch not above the fetcher's, and its end: truncate and ask again."""
    snapshot: Annotated[OffsetAndEpoch | None, 7] = None
    """Snapshot to load first, because the requested offset is no longer in the log (KIP-630)."""
    batches: Annotated[tuple[Batch, ...], 8] = ()
    leader_at: Annotated[Endpoint | None, 9] = None
    """Endpoint of the leader, as in `VoteResponse`."""


@dataclass(frozen=True, slots=True)
class FetchSnapshotRequest:
    """Asks for bytes of a snapshot from `position`; resumable (rule A10)."""

    cluster_id: Annotated[str, 1]
    replica: Annotated[ReplicaKey, 2]
    epoch: Annotated[int, Int32(3, minimum=0)]
    snapshot: Annotated[OffsetAndEpoch, 4]
    position: Annotated[int, Int64(5, minimum=0)]
    max_bytes: Annotated[int, Int32(6, minimum=0)]
    voteless: Annotated[bool, 7] = False


@dataclass(frozen=True, slots=True)
class FetchSnapshotResponse:
    """Answer to FetchSnapshot. `size` is that of the entire snapshot, in bytes."""

    error: Annotated[ErrorCode, 1]
    epoch: Annotated[int, Int32(2, minimum=0)]
    leader_id: Annotated[NodeId | None, Int32(3, minimum=0)]
    snapshot: Annotated[OffsetAndEpoch, 4]
    size: Annotated[int, Int64(5, minimum=0)] = 0
    position: Annotated[int, Int64(6, minimum=0)] = 0
    data: Annotated[bytes, 7] = b""
    leader_at: Annotated[Endpoint | None, 8] = None
    """Endpoint of the leader, as in `VoteResponse`."""


Request = VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest | FetchRequest | FetchSnapshotRequest
Response = VoteResponse | BeginQuorumEpochResponse | EndQuorumEpochResponse | FetchResponse | FetchSnapshotResponse


# --- into the core ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A peer's request; the core answers it once by a `Reply` with the same `token`, perhaps much later."""

    token: int
    request: Request


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """The answer to the `SendRequest` of this id."""

    request_id: int
    response: Response


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The `SendRequest` of this id got no answer. `broken`: refused, or the connection broke (not merely slow)."""

    request_id: int
    broken: bool


Inbound = RequestReceived | ResponseReceived | RequestFailed


# --- out of the core -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Call a peer. Every one must come back as exactly one ResponseReceived or RequestFailed."""

    request_id: int
    to: NodeId
    request: Request


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Fill the reply with whole batches of the log from `offset`, one at least, up to `max_bytes`."""

    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """Fill the reply with bytes of the snapshot, or answer SNAPSHOT_NOT_FOUND or POSITION_OUT_OF_RANGE."""

    snapshot: OffsetAndEpoch
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request of `token`, after filling in what `read` names."""

    token: int
    response: Response
    read: ReadRange | ReadSnapshot | None = None


Outbound = SendRequest | Reply
