"""The role of a voter that knows no leader to fetch from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.controller.raft.messages import ReplicaKey, VoteRequest
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.state import Role, RoleKind

if TYPE_CHECKING:
    from strandline.controller.raft.core import RaftCore


class Unattached(Role):
    """Waits for a leader to make itself known, or for its election timer. Kafka's Voted is this with a vote.

    Entered: at the start; on a higher epoch; by granting a vote; after a lost pre-vote without a known leader.
    Left: to Follower when a leader becomes known; to Prospective when the election timer runs out.

    Invariants:
    - no leader is known; the vote, once given, is not taken back in this epoch.
    """

    kind = RoleKind.UNATTACHED

    def __init__(
        self,
        core: RaftCore,
        epoch: int,
        *,
        election_deadline_ms: float,
        voted_for: ReplicaKey | None = None,
    ) -> None:
        super().__init__(core, epoch)
        self._election_deadline_ms = election_deadline_ms
        self._voted_for = voted_for

    @property
    def voted_for(self) -> ReplicaKey | None:
        return self._voted_for

    def election(self) -> ElectionState:
        return ElectionState(self.epoch, voted_for=self._voted_for)

    def election_deadline_ms(self) -> float | None:
        return self._election_deadline_ms

    def deadline_ms(self) -> float:
        return self._election_deadline_ms

    def tick(self, now_ms: float) -> None:
        if now_ms >= self._election_deadline_ms:
            self.core.become_prospective(now_ms)

    def may_grant(self, request: VoteRequest, up_to_date: bool) -> bool:
        if not up_to_date:
            return False
        if request.pre_vote:
            return True
        return self._voted_for is None or self._voted_for == request.candidate
