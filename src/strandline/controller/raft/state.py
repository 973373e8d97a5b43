"""The roles of a quorum node: their one table of legal transitions, and the interface that each role file fills.

The diagram in the documentation is drawn from `TRANSITIONS`; `RaftCore` refuses every other move.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from strandline.controller.raft.messages import (
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    ReplicaKey,
    Response,
    SendRequest,
    VoteRequest,
)
from strandline.controller.raft.ready import ElectionState
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId

if TYPE_CHECKING:
    from strandline.controller.raft.core import RaftCore


class RoleKind(Enum):
    """What a quorum node can be."""

    UNATTACHED = "Unattached"
    """A voter that knows no leader it could fetch from; it may have voted."""
    PROSPECTIVE = "Prospective"
    """A voter that asks whether an election would be won (KIP-996)."""
    CANDIDATE = "Candidate"
    """A voter that bumped the epoch, voted for itself, and asks for votes."""
    FOLLOWER = "Follower"
    """A voter that fetches from the leader."""
    LEADER = "Leader"
    """Appends and answers fetches."""
    RESIGNED = "Resigned"
    """Led this epoch and will not again."""
    OBSERVER = "Observer"
    """Not a voter: fetches, and counts for nothing (rule A12)."""


class Transition(NamedTuple):
    """A legal move and what triggers it. `durable` moves write the quorum state before anything else (rule A1)."""

    source: RoleKind
    target: RoleKind
    trigger: str
    durable: bool = True


_U, _P, _C, _F = RoleKind.UNATTACHED, RoleKind.PROSPECTIVE, RoleKind.CANDIDATE, RoleKind.FOLLOWER
_L, _R, _O = RoleKind.LEADER, RoleKind.RESIGNED, RoleKind.OBSERVER

TRANSITIONS: tuple[Transition, ...] = (
    Transition(_U, _U, "a higher epoch without a known leader; or a vote granted"),
    Transition(_U, _P, "the election timeout passed"),
    Transition(_U, _F, "a leader of an equal or higher epoch became known"),
    Transition(_P, _U, "a higher epoch without a known leader; a vote granted; or the pre-vote lost, no leader known"),
    Transition(_P, _C, "a majority would vote for this node"),
    Transition(_P, _F, "a leader became known; or the pre-vote lost and the known leader is tried again"),
    Transition(_C, _U, "a higher epoch without a known leader"),
    Transition(_C, _P, "the election timed out, or was lost and its backoff passed"),
    Transition(_C, _L, "a majority voted for this node"),
    Transition(_C, _F, "a leader of an equal or higher epoch became known"),
    Transition(_F, _U, "a higher epoch without a known leader"),
    Transition(_F, _P, "no successful fetch within the fetch timeout, or within the suspicion time after a break"),
    Transition(_F, _F, "a leader of a higher epoch became known"),
    Transition(_L, _U, "a higher epoch without a known leader"),
    Transition(_L, _F, "a leader of a higher epoch became known"),
    Transition(
        _L, _R, "asked to resign, no majority fetched in time (rule A5), or its own write failed", durable=False
    ),
    Transition(_R, _U, "a higher epoch without a known leader; or the election timeout passed: epoch + 1"),
    Transition(_R, _F, "a leader of a higher epoch became known"),
    Transition(_F, _O, "the voter set names another directory of this node, or none"),
    Transition(_O, _O, "a higher epoch, a leader became known, or a vote granted"),
    Transition(_O, _F, "the voter set names this directory, and a leader is known"),
    Transition(_O, _U, "the voter set names this directory, and no leader is known"),
)

LEGAL: dict[tuple[RoleKind, RoleKind], Transition] = {(move.source, move.target): move for move in TRANSITIONS}


class Role:
    """What every role answers. A role lives for one epoch and one stay; a transition makes a new one.

    A method may make the core move to another role: callers look at `core.role` again afterwards.
    """

    kind: ClassVar[RoleKind]

    def __init__(self, core: RaftCore, epoch: int) -> None:
        self.core = core
        self.epoch = epoch

    @property
    def leader_id(self) -> NodeId | None:
        """The leader of this epoch as told to others, if known."""
        return None

    @property
    def voted_for(self) -> ReplicaKey | None:
        """Whom this node voted for in this epoch."""
        return None

    def election(self) -> ElectionState:
        """What must be durable for this role."""
        return ElectionState(self.epoch, leader_id=self.leader_id)

    def entered(self, now_ms: float) -> None:
        """The transition to this role was made."""

    def left(self, now_ms: float) -> None:
        """`core.role` is already the next one."""

    def deadline_ms(self) -> float:
        """When `tick` has something to do next; infinity for never."""
        return math.inf

    def tick(self, now_ms: float) -> None:
        """Time passed."""

    def pump(self, now_ms: float) -> None:
        """Send what the present state allows; called before every drain of the outputs. Must not change the role."""

    def may_grant(self, request: VoteRequest, up_to_date: bool) -> bool:
        """Judge a Vote of this very epoch; `up_to_date` compares its log with ours (rules A3, A4)."""
        raise AssertionError(f"{self.kind} does not say how it votes")

    def election_deadline_ms(self) -> float | None:
        """The running election timer, which a mere bump of the epoch must not restart (rule A3)."""
        return None

    def on_leader_resigned(self, request: EndQuorumEpochRequest, now_ms: float) -> None:
        """The leader of this epoch has resigned."""

    def on_fetch(self, token: int, request: FetchRequest, now_ms: float) -> None:
        """A fetch for this epoch; only a leader serves it."""
        self.core.reply(token, FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, self.epoch, self.leader_id))

    def on_fetch_snapshot(self, token: int, request: FetchSnapshotRequest, now_ms: float) -> None:
        """A snapshot fetch for this epoch; only a leader serves it."""
        self.core.reply(
            token,
            FetchSnapshotResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, self.epoch, self.leader_id, request.snapshot),
        )

    def on_response(self, sent: SendRequest, response: Response, now_ms: float) -> None:
        """An answer, of this epoch, to what this very role sent."""

    def on_failure(self, sent: SendRequest, broken: bool, now_ms: float) -> None:
        """What this very role sent got no usable answer."""

    def check(self) -> None:
        """Hold the role's invariants. Raises FatalError."""
