"""The interface that each role fills, and the moves that roles ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

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
from strandline.controller.raft.node import QuorumNode
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.transitions import Event, RoleKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId


@dataclass(frozen=True, slots=True)
class Move:
    """The next role: `transitions.TRANSITIONS` says which one `event` leads to, the rest is what that one begins with.

    A role returns it and does nothing more; `RaftCore` makes the next role.
    """

    event: Event
    epoch: int
    leader_id: NodeId | None = None
    """The known leader of `epoch`."""
    voted_for: ReplicaKey | None = None
    """The vote that this node has given in `epoch`, if the next role does not follow from it."""
    election_deadline_ms: float | None = None
    """Time when the election timer runs out; None: it starts anew, drawn at random."""
    granting: tuple[NodeId, ...] = ()
    """A new leader's electors, itself included."""
    successors: tuple[ReplicaKey, ...] = ()
    """The voters that a resigned leader proposes, the best first."""


class Role:
    """Interface of every role. A role lives for one epoch and one stay; a move makes a new one.

    A method that returns a Move has asked for the next role: this one is over.
    """

    kind: ClassVar[RoleKind]

    def __init__(self, node: QuorumNode, move: Move, now_ms: float) -> None:
        """Roles take from `move` what they need, and draw what it leaves open."""
        self.node = node
        self.epoch = move.epoch

    @property
    def leader_id(self) -> NodeId | None:
        """The leader of this epoch as this node names it to others, if known."""
        return None

    @property
    def voted_for(self) -> ReplicaKey | None:
        """The replica that this node voted for in this epoch."""
        return None

    def election(self) -> ElectionState:
        """State that must be durable for this role."""
        return ElectionState(self.epoch, leader_id=self.leader_id)

    def entered(self, now_ms: float) -> Move | None:
        """The node is in this role now."""
        return None

    def left(self, successor: Role) -> None:
        """End this role: the node is in the role `successor` now."""

    def deadline_ms(self) -> float:
        """Time when `tick` has something to do next; infinity for never."""
        return math.inf

    def tick(self, now_ms: float) -> Move | None:
        """Time passed."""
        return None

    def pump(self, now_ms: float) -> None:
        """Send what the present state allows; called before every drain of the outputs."""

    def may_grant(self, request: VoteRequest, up_to_date: bool) -> bool:
        """Judge a Vote of this very epoch; `up_to_date` compares its log with the own one (rule A3: one vote an
        epoch, for a log not below its own; rule A4: no pre-vote against a working leader)."""
        return False  # rule A4/leader-grants-pre-votes

    def election_deadline_ms(self) -> float | None:
        """The running election timer, which a mere rise of the epoch must not restart (rule A3)."""
        return None

    def resign(self, event: Event) -> Move | None:
        """Give up leading, for the reason `event`; nothing happens in a role that does not lead."""
        return None

    def on_leader_resigned(self, request: EndQuorumEpochRequest, now_ms: float) -> None:
        """Handle that the leader of this epoch has resigned."""

    def on_fetch(self, token: int, request: FetchRequest, now_ms: float) -> Move | None:
        """A fetch for this epoch; only a leader serves it."""
        # rule A7/follower-does-not-say-that-it-leads-not
        self.node.reply(token, FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, self.epoch, self.leader_id))
        return None

    def on_fetch_snapshot(self, token: int, request: FetchSnapshotRequest, now_ms: float) -> None:
        """Answer a snapshot fetch for this epoch; only a leader serves it."""
        self.node.reply(
            token,
            FetchSnapshotResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, self.epoch, self.leader_id, request.snapshot),
        )

    def on_response(self, sent: SendRequest, response: Response, now_ms: float) -> Move | None:
        """An answer, of this epoch, to what this very role sent."""
        return None

    def on_failure(self, sent: SendRequest, broken: bool, now_ms: float) -> Move | None:
        """Handle the failure of a request that this very role sent."""
        return None

    def check(self) -> None:
        """Hold the role's invariants. Raises FatalError."""
