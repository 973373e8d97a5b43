"""The role of a voter that stands for election."""

from __future__ import annotations

from strandline.controller.raft.election import VoteRound, again_ms, election_backoff_ms, election_timeout_ms
from strandline.controller.raft.messages import ReplicaKey, Response, SendRequest, VoteRequest
from strandline.controller.raft.node import QuorumNode
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.role import Move, Role
from strandline.controller.raft.transitions import Event, RoleKind
from strandline.proto.ensure import ensure


class Candidate(Role):
    """The role of a voter that has voted for itself in a new epoch, durably, and asks the others.

    Invariants:
    - its vote is its own: it grants no other in this epoch.
    """

    kind = RoleKind.CANDIDATE

    def __init__(self, node: QuorumNode, move: Move, now_ms: float) -> None:
        super().__init__(node, move, now_ms)
        self._round = VoteRound(node, move.epoch, now_ms, pre_vote=False)
        self._election_deadline_ms = now_ms + election_timeout_ms(node)
        self._backing_off = False

    @property
    def voted_for(self) -> ReplicaKey | None:
        return self.node.key

    def election(self) -> ElectionState:
        return ElectionState(self.epoch, voted_for=self.node.key)

    def entered(self, now_ms: float) -> Move | None:
        return self._judge(now_ms)

    def election_deadline_ms(self) -> float | None:
        return self._election_deadline_ms

    def deadline_ms(self) -> float:
        return min(self._election_deadline_ms, self._round.proven_at_ms, self._round.deadline_ms())

    def tick(self, now_ms: float) -> Move | None:
        if now_ms < min(self._election_deadline_ms, self._round.proven_at_ms):
            return None
        return Move(Event.ELECTION_TIMEOUT, self.epoch, voted_for=self.node.key)

    def pump(self, now_ms: float) -> None:
        self._round.pump(now_ms)

    def may_grant(self, request: VoteRequest, up_to_date: bool) -> bool:
        return request.pre_vote and up_to_date  # rule A3/candidate-votes-for-another

    def on_response(self, sent: SendRequest, response: Response, now_ms: float) -> Move | None:
        self._round.record(sent, response)
        return self._judge(now_ms)

    def on_failure(self, sent: SendRequest, broken: bool, now_ms: float) -> Move | None:
        self._round.record_failure(sent, now_ms)
        return self._judge(now_ms)

    def _judge(self, now_ms: float) -> Move | None:
        if self._round.won:
            granting = tuple(self._round.granted)
            # rule A3/a-minority-elects/3
            ensure(len(granting) >= self.node.voters.majority, "ElectedByAMajority", granting=granting)
            return Move(Event.ELECTED, self.epoch, granting=granting)
        if self._round.lost and not self._backing_off:
            self._backing_off = True
            self.node.rounds_lost += 1
            backoff_ms = election_backoff_ms(self.node)
            self._election_deadline_ms = min(self._election_deadline_ms, again_ms(self.node, now_ms, backoff_ms))
        return None

    def check(self) -> None:
        ensure(self.epoch > self.node.log.last_epoch, "NoRecordsOfAContestedEpoch", epoch=self.epoch)
        self._round.check()
