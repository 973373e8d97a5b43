"""The role of a voter that asks whether it would win an election before it disturbs anyone by one (KIP-996)."""

from __future__ import annotations

from strandline.controller.raft.election import (
    AGAIN_JITTER_MS,
    VoteRound,
    again_ms,
    election_backoff_ms,
    election_timeout_ms,
)
from strandline.controller.raft.messages import ReplicaKey, Response, SendRequest, VoteRequest
from strandline.controller.raft.node import QuorumNode
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.role import Move, Role
from strandline.controller.raft.transitions import Event, RoleKind
from strandline.proto.ensure import ensure
from strandline.proto.ids import NodeId


class Prospective(Role):
    """Asks for pre-votes at its present epoch, which changes no one's state (rule A4).

    Invariants:
    - leader and vote are those of the role before: this role forgets neither.
    """

    kind = RoleKind.PROSPECTIVE

    def __init__(self, node: QuorumNode, move: Move, now_ms: float) -> None:
        super().__init__(node, move, now_ms)
        self._leader_id = move.leader_id
        self._voted_for = move.voted_for
        self._round = VoteRound(node, move.epoch, now_ms, pre_vote=True)
        self._election_deadline_ms = now_ms + election_timeout_ms(node)

    @property
    def leader_id(self) -> NodeId | None:
        return self._leader_id

    @property
    def voted_for(self) -> ReplicaKey | None:
        return self._voted_for

    def election(self) -> ElectionState:
        return ElectionState(self.epoch, leader_id=self._leader_id, voted_for=self._voted_for)

    def entered(self, now_ms: float) -> Move | None:
        return self._judge(now_ms)  # rule A4/no-pre-vote

    def election_deadline_ms(self) -> float | None:
        return self._election_deadline_ms

    def deadline_ms(self) -> float:
        return min(self._election_deadline_ms, self._round.proven_at_ms, self._round.deadline_ms())

    def tick(self, now_ms: float) -> Move | None:
        # rule A22/round-outlives-its-doubt
        return self._lost(now_ms) if now_ms >= min(self._election_deadline_ms, self._round.proven_at_ms) else None

    def pump(self, now_ms: float) -> None:
        self._round.pump(now_ms)

    def may_grant(self, request: VoteRequest, up_to_date: bool) -> bool:
        if not up_to_date:
            return False
        if request.pre_vote:
            return True
        if self._leader_id is not None:  # rule A3/prospective-forgets-the-leader
            return False
        return self._voted_for is None or self._voted_for == request.candidate  # rule A3/prospective-forgets-its-vote

    def on_response(self, sent: SendRequest, response: Response, now_ms: float) -> Move | None:
        self._round.record(sent, response)
        if response.leader_id is not None and response.leader_id == sent.to and response.leader_id == self._leader_id:
            return Move(Event.LEADER_TRIED_AGAIN, self.epoch, leader_id=response.leader_id)
        return self._judge(now_ms)

    def on_failure(self, sent: SendRequest, broken: bool, now_ms: float) -> Move | None:
        self._round.record_failure(sent, now_ms)
        return self._judge(now_ms)

    def _judge(self, now_ms: float) -> Move | None:
        if self._round.won:
            epoch = self.node.next_epoch(self.epoch, now_ms)
            return self._lost(now_ms) if epoch is None else Move(Event.PRE_VOTE_WON, epoch)
        return self._lost(now_ms) if self._round.lost else None

    def _lost(self, now_ms: float) -> Move:
        """An election would not be won now: try the known leader again, or wait."""
        self.node.rounds_lost += 1
        if self._leader_id is not None:
            return Move(Event.LEADER_TRIED_AGAIN, self.epoch, leader_id=self._leader_id)
        deadline_ms = again_ms(self.node, now_ms, self._backoff_ms(now_ms))
        return Move(Event.PRE_VOTE_LOST, self.epoch, voted_for=self._voted_for, election_deadline_ms=deadline_ms)

    def _backoff_ms(self, now_ms: float) -> float:
        """Milliseconds to wait before the next round. Zero plus jitter, if a round ended because the node's own vote
        counts for more now."""
        if now_ms >= self._round.proven_at_ms:
            return AGAIN_JITTER_MS * self.node.rng.random()
        return election_backoff_ms(self.node)

    def check(self) -> None:
        ensure(self._leader_id is None or self._voted_for is None, "LeaderOrVote", epoch=self.epoch)
        self._round.check()
