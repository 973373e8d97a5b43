"""The role of a voter that asks whether it would win an election before it disturbs anyone by one (KIP-996)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.controller.raft.election import VoteRound, election_timeout_ms
from strandline.controller.raft.messages import ReplicaKey, Response, SendRequest, VoteRequest
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.state import Role, RoleKind
from strandline.proto.ensure import ensure
from strandline.proto.ids import NodeId

if TYPE_CHECKING:
    from strandline.controller.raft.core import RaftCore


class Prospective(Role):
    """Asks for pre-votes at its present epoch, which changes no one's state (rule A4).

    Entered: from Unattached (election timer), Follower (fetch timer or suspicion), Candidate (lost or timed out).
    Left: to Candidate with a majority; when lost, back to Follower of the leader it knew, else to Unattached; on news
    of a leader or of a higher epoch as always.

    Invariants:
    - leader and vote are those of the role before: this role forgets neither.
    """

    kind = RoleKind.PROSPECTIVE

    def __init__(
        self, core: RaftCore, epoch: int, *, leader_id: NodeId | None, voted_for: ReplicaKey | None, now_ms: float
    ) -> None:
        super().__init__(core, epoch)
        self._leader_id = leader_id
        self._voted_for = voted_for
        self._round = VoteRound(core, epoch, pre_vote=True)
        self._election_deadline_ms = now_ms + election_timeout_ms(core)

    @property
    def leader_id(self) -> NodeId | None:
        return self._leader_id

    @property
    def voted_for(self) -> ReplicaKey | None:
        return self._voted_for

    def election(self) -> ElectionState:
        return ElectionState(self.epoch, leader_id=self._leader_id, voted_for=self._voted_for)

    def entered(self, now_ms: float) -> None:
        self._judge(now_ms)

    def election_deadline_ms(self) -> float | None:
        return self._election_deadline_ms

    def deadline_ms(self) -> float:
        return min(self._election_deadline_ms, self._round.deadline_ms())

    def tick(self, now_ms: float) -> None:
        if now_ms >= self._election_deadline_ms:
            self.core.lost_pre_vote(self._leader_id, self._voted_for, now_ms)

    def pump(self, now_ms: float) -> None:
        self._round.pump(now_ms)

    def may_grant(self, request: VoteRequest, up_to_date: bool) -> bool:
        if not up_to_date:
            return False
        if request.pre_vote:
            return True
        if self._leader_id is not None:
            return False
        return self._voted_for is None or self._voted_for == request.candidate

    def on_response(self, sent: SendRequest, response: Response, now_ms: float) -> None:
        self._round.record(sent, response)
        if response.leader_id is not None and response.leader_id == sent.to and response.leader_id == self._leader_id:
            self.core.follow(self.epoch, response.leader_id, now_ms)
            return
        self._judge(now_ms)

    def on_failure(self, sent: SendRequest, broken: bool, now_ms: float) -> None:
        self._round.record_failure(sent, now_ms)
        self._judge(now_ms)

    def _judge(self, now_ms: float) -> None:
        if self._round.won:
            self.core.become_candidate(now_ms)
        elif self._round.lost:
            self.core.lost_pre_vote(self._leader_id, self._voted_for, now_ms)

    def check(self) -> None:
        ensure(self._leader_id is None or self._voted_for is None, "LeaderOrVote", epoch=self.epoch)
        self._round.check()
