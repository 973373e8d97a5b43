"""The role of a node that led this epoch and does so no more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from strandline.controller.raft.config import RETRY_BACKOFF_MAX_MS
from strandline.controller.raft.messages import EndQuorumEpochRequest, ReplicaKey, Response, SendRequest, VoteRequest
from strandline.controller.raft.ready import ElectionState
from strandline.controller.raft.state import Role, RoleKind
from strandline.proto.ids import NodeId

if TYPE_CHECKING:
    from strandline.controller.raft.core import RaftCore


class Resigned(Role):
    """Tells the voters, so that they elect another at once, and never leads this epoch again (rule A2).

    Entered: from Leader; at a restart if the node was leader, because records of this epoch that it had not flushed may
    be lost, and their (offset, epoch) must not be used twice.
    Left: to Follower or Unattached on news of a higher epoch; when the election timer runs out, to Unattached in the
    next epoch, whose timer has run out too.

    Invariants:
    - the durable state still names this node as leader: it cannot vote for another in this epoch.
    """

    kind = RoleKind.RESIGNED

    def __init__(
        self, core: RaftCore, epoch: int, *, successors: tuple[ReplicaKey, ...], election_deadline_ms: float
    ) -> None:
        super().__init__(core, epoch)
        self._successors = successors
        self._election_deadline_ms = election_deadline_ms
        self._untold: dict[NodeId, float] = {voter.node_id: -math.inf for voter in core.voters.others(core.key.node_id)}
        self._in_flight: dict[NodeId, None] = {}
        self._failures: dict[NodeId, int] = {}

    def election(self) -> ElectionState:
        return ElectionState(self.epoch, leader_id=self.core.key.node_id)

    def deadline_ms(self) -> float:
        retries = (at for node, at in self._untold.items() if node not in self._in_flight)
        return min(self._election_deadline_ms, min(retries, default=math.inf))

    def tick(self, now_ms: float) -> None:
        if now_ms >= self._election_deadline_ms:
            epoch = self.core.next_epoch()
            if epoch is None:
                self._election_deadline_ms = math.inf
            else:
                self.core.become_unattached(epoch, now_ms, election_deadline_ms=now_ms)

    def pump(self, now_ms: float) -> None:
        core = self.core
        for node, retry_at_ms in self._untold.items():
            if node not in self._in_flight and now_ms >= retry_at_ms:
                self._in_flight[node] = None
                core.send(node, EndQuorumEpochRequest(core.cluster_id, core.key.node_id, self.epoch, self._successors))

    def may_grant(self, request: VoteRequest, up_to_date: bool) -> bool:
        return request.pre_vote and up_to_date

    def on_response(self, sent: SendRequest, response: Response, now_ms: float) -> None:
        self._in_flight.pop(sent.to, None)
        self._untold.pop(sent.to, None)

    def on_failure(self, sent: SendRequest, broken: bool, now_ms: float) -> None:
        self._in_flight.pop(sent.to, None)
        times = self._failures[sent.to] = self._failures.get(sent.to, 0) + 1
        wait_ms = min(self.core.config.retry_backoff_ms * 2**times, RETRY_BACKOFF_MAX_MS)
        self._untold[sent.to] = now_ms + wait_ms
