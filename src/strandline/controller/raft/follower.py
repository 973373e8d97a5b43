"""The role of a voter that has a leader."""

from __future__ import annotations

from strandline.controller.raft.election import again_ms, succession_delay_ms, suspicion_delay_ms
from strandline.controller.raft.fetching import FetchLoop, Outcome
from strandline.controller.raft.messages import EndQuorumEpochRequest, Response, SendRequest, VoteRequest
from strandline.controller.raft.node import QuorumNode
from strandline.controller.raft.role import Move, Role
from strandline.controller.raft.transitions import Event, RoleKind
from strandline.proto.ensure import ensure, present
from strandline.proto.ids import NodeId


class Follower(Role):
    """Fetches from the leader; each fetch acknowledges all before its offset.

    The fetch timer runs for the fetch timeout; for the shorter suspicion time after the connection broke, the leader
    denied leading, or said that it resigned.

    Invariants:
    - the leader is another voter, and stays the same for the whole epoch;
    - no fetch while own records are unflushed (rule A8).
    """

    kind = RoleKind.FOLLOWER

    def __init__(self, node: QuorumNode, move: Move, now_ms: float) -> None:
        super().__init__(node, move, now_ms)
        self._leader_id = present(move.leader_id, "FollowsAnother")
        self._patience_ms = node.config.fetch_timeout_ms + succession_delay_ms(node, self._leader_id)
        self._fetch_deadline_ms = now_ms + self._patience_ms
        self._has_fetched = False
        self._suspects = False
        self.fetching = FetchLoop(node, move.epoch, after_flush=True)

    @property
    def leader_id(self) -> NodeId | None:
        return self._leader_id

    def deadline_ms(self) -> float:
        return min(self._fetch_deadline_ms, self.fetching.deadline_ms())

    def tick(self, now_ms: float) -> Move | None:
        if now_ms < self._fetch_deadline_ms:
            return None
        return Move(Event.FETCH_TIMEOUT, self.epoch, leader_id=self._leader_id)

    def pump(self, now_ms: float) -> None:
        self.fetching.pump(self._leader_id, now_ms)

    def may_grant(self, request: VoteRequest, up_to_date: bool) -> bool:
        """Grant a pre-vote alone, and only while this node has no working leader itself (rule A4: a working leader
        is not deposed). One that has never fetched has none: were it to refuse, a Prospective and a Follower could
        keep each other from electing anyone."""
        # rule A3/follower-votes-in-its-leaders-epoch, rule A4/follower-grants-any-pre-vote
        # rule A4/follower-refuses-before-it-has-fetched
        return request.pre_vote and up_to_date and (self._suspects or not self._has_fetched)

    def _suspect(self, now_ms: float) -> None:
        """Suspect that the leader is gone: retry at once, and ask for an election soon unless that succeeds."""
        if not self._suspects:
            self._suspects = True
            delay_ms = suspicion_delay_ms(self.node, self._leader_id)
            self._fetch_deadline_ms = min(self._fetch_deadline_ms, again_ms(self.node, now_ms, delay_ms))

    def on_leader_resigned(self, request: EndQuorumEpochRequest, now_ms: float) -> None:
        self._suspects = True
        place = len(request.preferred_candidates)
        for index, candidate in enumerate(request.preferred_candidates):
            if candidate.admits(self.node.key):
                place = index
        jitter_ms = self.node.config.suspicion_ms * self.node.rng.random() if place else 0.0
        delay_ms = 2.0 * self.node.config.suspicion_ms * place + jitter_ms
        self._fetch_deadline_ms = min(self._fetch_deadline_ms, now_ms + delay_ms)

    def on_response(self, sent: SendRequest, response: Response, now_ms: float) -> Move | None:
        if not self.fetching.is_current(sent):  # rule A8/answer-given-up-is-taken
            return None
        outcome = self.fetching.on_response(sent, response, now_ms)
        if outcome is Outcome.PROGRESS:
            self._has_fetched = True
            self._suspects = False
            self._fetch_deadline_ms = now_ms + self._patience_ms
            self.node.rounds_lost = 0
        elif outcome is Outcome.REFUSED and response.leader_id is None:
            self._suspect(now_ms)
        return None

    def on_failure(self, sent: SendRequest, broken: bool, now_ms: float) -> Move | None:
        if self.fetching.is_current(sent):
            self.fetching.failed(now_ms)
            if broken:
                self._suspect(now_ms)
        return None

    def check(self) -> None:
        ensure(self._leader_id != self.node.key.node_id, "FollowsAnother", leader=self._leader_id)
