"""The role of a voter that knows no leader to fetch from."""

from __future__ import annotations

from strandline.controller.raft.election import election_timeout_ms
from strandline.controller.raft.messages import ReplicaKey, VoteRequest
from strandline.controller.raft.node import QuorumNode
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.role import Move, Role
from strandline.controller.raft.transitions import Event, RoleKind


class Unattached(Role):
    """Waits for a leader to make itself known, or for its election timer. Kafka's Voted is this with a vote.

    Invariants:
    - no leader is known; the vote, once given, is not taken back in this epoch.
    """

    kind = RoleKind.UNATTACHED

    def __init__(self, node: QuorumNode, move: Move, now_ms: float) -> None:
        super().__init__(node, move, now_ms)
        deadline_ms = move.election_deadline_ms
        self._election_deadline_ms = now_ms + election_timeout_ms(node) if deadline_ms is None else deadline_ms
        self._voted_for = move.voted_for

    @property
    def voted_for(self) -> ReplicaKey | None:
        return self._voted_for

    def election(self) -> ElectionState:
        return ElectionState(self.epoch, voted_for=self._voted_for)

    def election_deadline_ms(self) -> float | None:
        return self._election_deadline_ms

    def deadline_ms(self) -> float:
        return self._election_deadline_ms

    def tick(self, now_ms: float) -> Move | None:
        if now_ms < self._election_deadline_ms:
            return None
        return Move(Event.ELECTION_TIMEOUT, self.epoch, voted_for=self._voted_for)

    def may_grant(self, request: VoteRequest, up_to_date: bool) -> bool:
        if not up_to_date:
            return False
        if request.pre_vote:
            return True
        # rule A3/two-votes-an-epoch, rule A3/no-vote-again-for-the-same, rule A3/vote-for-an-id-not-a-directory
        return self._voted_for is None or self._voted_for == request.candidate
