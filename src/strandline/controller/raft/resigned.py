"""The role of a node that led this epoch and does so no more."""

from __future__ import annotations

import math

from strandline.controller.raft.config import RETRY_BACKOFF_MAX_MS
from strandline.controller.raft.election import election_timeout_ms
from strandline.controller.raft.messages import EndQuorumEpochRequest, Response, SendRequest, VoteRequest
from strandline.controller.raft.node import QuorumNode
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.role import Move, Role
from strandline.controller.raft.transitions import Event, RoleKind
from strandline.proto.ids import NodeId


class Resigned(Role):
    """Says to the voters that it resigned, so that they elect another at once; never leads this epoch again (rule A2).

    A node that led comes back in this role after a restart, because records of this epoch that it had not flushed may
    be lost, and their (offset, epoch) must not be used twice. When its election timer runs out it goes to the next
    epoch, with a timer that has run out too.

    Invariants:
    - the durable state still names this node as leader: it cannot vote for another in this epoch.
    """

    kind = RoleKind.RESIGNED

    def __init__(self, node: QuorumNode, move: Move, now_ms: float) -> None:
        super().__init__(node, move, now_ms)
        self._successors = move.successors
        deadline_ms = move.election_deadline_ms
        if deadline_ms is None:
            deadline_ms = now_ms + election_timeout_ms(node) if move.successors else now_ms
        self._election_deadline_ms = deadline_ms
        self._notify_at_ms: dict[NodeId, float] = {
            voter.node_id: -math.inf for voter in node.voters.others(node.key.node_id)
        }
        """Time to call each voter that has not acknowledged the resignation."""
        self._in_flight: dict[NodeId, None] = {}
        self._failures: dict[NodeId, int] = {}

    def election(self) -> ElectionState:
        return ElectionState(self.epoch, leader_id=self.node.key.node_id)

    def deadline_ms(self) -> float:
        retries = (due_ms for voter_id, due_ms in self._notify_at_ms.items() if voter_id not in self._in_flight)
        return min(self._election_deadline_ms, min(retries, default=math.inf))

    def tick(self, now_ms: float) -> Move | None:
        if now_ms < self._election_deadline_ms:
            return None
        if not self.node.may_stand:  # rule A36/a-removed-leader-stands-again
            return Move(Event.VOTE_REMOVED, self.epoch, voted_for=self.node.key)
        epoch = self.node.next_epoch(self.epoch, now_ms)
        if epoch is None:
            self._election_deadline_ms = math.inf
            return None
        return Move(Event.ELECTION_TIMEOUT, epoch, election_deadline_ms=now_ms)

    def pump(self, now_ms: float) -> None:
        node = self.node
        for voter_id, due_ms in self._notify_at_ms.items():
            if voter_id not in self._in_flight and now_ms >= due_ms:
                self._in_flight[voter_id] = None
                request = EndQuorumEpochRequest(node.cluster_id, node.key.node_id, self.epoch, self._successors)
                node.send(voter_id, request)

    def may_grant(self, request: VoteRequest, up_to_date: bool) -> bool:
        return request.pre_vote and up_to_date  # rule A3/resigned-votes-in-the-epoch-it-led

    def on_response(self, sent: SendRequest, response: Response, now_ms: float) -> Move | None:
        self._in_flight.pop(sent.to, None)
        self._notify_at_ms.pop(sent.to, None)
        return None

    def on_failure(self, sent: SendRequest, broken: bool, now_ms: float) -> Move | None:
        self._in_flight.pop(sent.to, None)
        times = self._failures[sent.to] = self._failures.get(sent.to, 0) + 1
        wait_ms = min(self.node.config.retry_backoff_ms * 2**times, RETRY_BACKOFF_MAX_MS)
        self._notify_at_ms[sent.to] = now_ms + wait_ms
        return None
