"""The outputs of the core, in the order in which they must be carried out."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.controller.raft.messages import Batch, OffsetAndEpoch, Outbound, ReplicaKey
from strandline.proto.ids import NodeId


@dataclass(frozen=True, slots=True)
class ElectionState:
    """State that a node must never forget (Kafka's quorum-state file). At most one of leader and vote is set."""

    epoch: int
    leader_id: NodeId | None = None
    voted_for: ReplicaKey | None = None
    doubt: OffsetAndEpoch | None = None
    """Offset up to which the log may have reached before recovery cut its tail; None once it has caught up (rule A15).
    """


@dataclass(frozen=True, slots=True)
class Append:
    """Write this batch at the end of the log."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Drop every record at or after `offset`; never below the high watermark."""

    offset: int


@dataclass(frozen=True, slots=True)
class StoreSnapshotChunk:
    """Write `data` at `position` of the snapshot that is being fetched; position 0 starts it anew."""

    snapshot: OffsetAndEpoch
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """All chunks are there: check them, make the snapshot durable, replace the whole log by it, reload the state.

    Answer by `RaftCore.snapshot_installed` or, if it is damaged, `RaftCore.snapshot_refused`.
    """

    snapshot: OffsetAndEpoch


LogAction = Append | TruncateTo | StoreSnapshotChunk | InstallSnapshot


@dataclass(frozen=True, slots=True)
class Ready:
    """One drain of the core's outputs. Carry them out in the order of the fields.

    Nothing in `send` may leave before `persist` is durable (rule A1), nor before `log` is written. Nothing in it has to
    wait for `flush`: what must wait for a flush, the core sends only after `RaftCore.flushed` (rules A8, A9).
    """

    persist: ElectionState | None
    """Make this durable first: temp file, sync, rename, sync of the directory."""
    log: tuple[LogAction, ...]
    """Log actions to carry out second, in order."""
    flush: bool
    """True: start a sync of the log third, and report its end by `RaftCore.flushed`. A later sync may cover earlier
    requests."""
    send: tuple[Outbound, ...]
    """Messages to send last, in order."""
    high_watermark: int | None
    """Last, hand everything below this to the state machine; None if it did not move."""
    notices: tuple[str, ...] = ()
    """Sentences for the log, whenever it suits."""

    @property
    def empty(self) -> bool:
        """True if there is nothing to do."""
        orders = self.persist or self.log or self.flush or self.send or self.notices
        return not orders and self.high_watermark is None
