"""The role of a voter that stands for election."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.controller.raft.election import VoteRound, election_backoff_ms, election_timeout_ms
from strandline.controller.raft.messages import ReplicaKey, Response, SendRequest, VoteRequest
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.state import Role, RoleKind
from strandline.proto.ensure import ensure

if TYPE_CHECKING:
    from strandline.controller.raft.core import RaftCore


class Candidate(Role):
    """Has voted for itself in a new epoch, durably, and asks the others.

    Entered: from Prospective with a majority of pre-votes; at a restart, in the same epoch, if that had voted for
    itself (rule A2).
    Left: to Leader with a majority; to Prospective when the election timed out, or was lost and a backoff passed; on
    news of a leader or of a higher epoch as always.

    Invariants:
    - its vote is its own: it grants no other in this epoch.
    """

    kind = RoleKind.CANDIDATE

    def __init__(self, core: RaftCore, epoch: int, *, now_ms: float) -> None:
        super().__init__(core, epoch)
        self._round = VoteRound(core, epoch, pre_vote=False)
        self._election_deadline_ms = now_ms + election_timeout_ms(core)
        self._backing_off = False

    @property
    def voted_for(self) -> ReplicaKey | None:
        return self.core.key

    def election(self) -> ElectionState:
        return ElectionState(self.epoch, voted_for=self.core.key)

    def entered(self, now_ms: float) -> None:
        self._judge(now_ms)

    def election_deadline_ms(self) -> float | None:
        return self._election_deadline_ms

    def deadline_ms(self) -> float:
        return min(self._election_deadline_ms, self._round.deadline_ms())

    def tick(self, now_ms: float) -> None:
        if now_ms >= self._election_deadline_ms:
            self.core.become_prospective(now_ms)

    def pump(self, now_ms: float) -> None:
        self._round.pump(now_ms)

    def may_grant(self, request: VoteRequest, up_to_date: bool) -> bool:
        return request.pre_vote and up_to_date

    def on_response(self, sent: SendRequest, response: Response, now_ms: float) -> None:
        self._round.record(sent, response)
        self._judge(now_ms)

    def on_failure(self, sent: SendRequest, broken: bool, now_ms: float) -> None:
        self._round.record_failure(sent, now_ms)
        self._judge(now_ms)

    def _judge(self, now_ms: float) -> None:
        if self._round.won:
            self.core.become_leader(tuple(self._round.granted), now_ms)
        elif self._round.lost and not self._backing_off:
            self._backing_off = True
            self.core.rounds_lost += 1
            self._election_deadline_ms = min(self._election_deadline_ms, now_ms + election_backoff_ms(self.core))

    def check(self) -> None:
        ensure(self.epoch > self.core.log.last_epoch, "NoRecordsOfAContestedEpoch", epoch=self.epoch)
        self._round.check()
