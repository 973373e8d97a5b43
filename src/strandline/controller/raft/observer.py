"""The role of a node that is no voter: a broker, or a voter whose disk was wiped (rules A11, A12)."""

from __future__ import annotations

from strandline.controller.raft.fetching import FetchLoop, Outcome
from strandline.controller.raft.messages import ReplicaKey, Response, SendRequest, VoteRequest
from strandline.controller.raft.node import QuorumNode
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.role import Move, Role
from strandline.controller.raft.transitions import RoleKind
from strandline.proto.ensure import ensure
from strandline.proto.ids import NodeId


class Observer(Role):
    """Fetches the log from the leader, which it finds by fetching from any voter; never asks for an election.

    It answers Votes addressed to its very key, because the asker may know a newer voter set than it does (rule A3).

    Invariants:
    - this replica may not stand for an election;
    - a vote and a known leader exclude each other.
    """

    kind = RoleKind.OBSERVER

    def __init__(self, node: QuorumNode, move: Move, now_ms: float) -> None:
        super().__init__(node, move, now_ms)
        self._leader_id = move.leader_id
        self._voted_for = move.voted_for
        self._target = move.leader_id if move.leader_id is not None else self._any_voter(None)
        self._served = False
        """The leader answered the last fetch."""
        # A controller that may be given its vote: from then on what it fetched before counts (rule A8).
        # rule A8/joiner-fetches-before-it-flushes
        self.fetching = FetchLoop(node, move.epoch, after_flush=node.standing.may_vote)

    @property
    def leader_id(self) -> NodeId | None:
        return self._leader_id

    @property
    def voted_for(self) -> ReplicaKey | None:
        return self._voted_for

    def election(self) -> ElectionState:
        return ElectionState(self.epoch, leader_id=self._leader_id, voted_for=self._voted_for)

    def deadline_ms(self) -> float:
        return self.fetching.deadline_ms()

    def pump(self, now_ms: float) -> None:
        self.fetching.pump(self._target, now_ms)

    def may_grant(self, request: VoteRequest, up_to_date: bool) -> bool:
        if not up_to_date:  # rule A3/non-voters-do-not-vote
            return False
        if request.pre_vote:  # like a follower, which the asker takes it for: not while its leader serves it (rule A4)
            return self._leader_id is None or not self._served  # rule A11/named-observer-waits-for-a-dead-leader
        return self._leader_id is None and self._voted_for in (None, request.candidate)

    def on_response(self, sent: SendRequest, response: Response, now_ms: float) -> Move | None:
        if not self.fetching.is_current(sent):
            return None
        outcome = self.fetching.on_response(sent, response, now_ms)
        self._served = outcome is Outcome.PROGRESS
        if outcome is Outcome.REFUSED:
            self._retarget(sent.to)
        return None

    def on_failure(self, sent: SendRequest, broken: bool, now_ms: float) -> Move | None:
        if self.fetching.is_current(sent):
            self._served = False
            self.fetching.failed(now_ms)
            self._retarget(sent.to)
        return None

    def _retarget(self, failed: NodeId) -> None:
        """Alternate between the known leader and the other voters: one of them will know."""
        if self._leader_id is not None and failed != self._leader_id:
            self._target = self._leader_id
        else:
            self._target = self._any_voter(failed)  # rule A12/observer-asks-one-voter-only

    def _any_voter(self, besides: NodeId | None) -> NodeId:
        """A controller at random, another than `besides` if there is one, never this very node (a wiped disk). Those
        behind the bootstrap addresses are asked as well: all that the log names may be gone by now."""
        own = self.node.key.node_id
        nodes = sorted({*self.node.voters.places, *self.node.standing.bootstrap})  # rule A37/bootstrap-is-asked-never
        choice = [node for node in nodes if node not in (besides, own)]
        if not choice:
            choice = [node for node in nodes if node != own] or [own]
        return self.node.rng.choice(choice)

    def check(self) -> None:
        ensure(not self.node.may_stand, "ObserverIsNoVoter", replica=self.node.key)
        ensure(self._leader_id is None or self._voted_for is None, "LeaderOrVote", epoch=self.epoch)
