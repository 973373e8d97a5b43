"""One round of asking the voters, for a pre-vote or a vote; and how long to wait after a lost one."""

from __future__ import annotations

import math

from strandline.controller.raft.config import RETRY_BACKOFF_MAX_MS
from strandline.controller.raft.messages import Response, SendRequest, VoteRequest, VoteResponse
from strandline.controller.raft.node import QuorumNode
from strandline.proto.ensure import ensure
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.marks import mark

AGAIN_JITTER_MS = 20.0
"""Voters that were started together are proven at the same instant, and are not to stand at the same one."""


class VoteRound:
    """The votes of one round; the node's own is granted from the start, where it has one.

    A vote in doubt, of a voter that cut a tail of its log which it may have acknowledged, says less than others: that
    voter may have held what was committed, and not know it. So a majority of other votes wins, or the votes of all: one
    of those who held it still does (rule A15). For a moment after an unclean stop every vote is such a one (rule A22).

    Invariants:
    - a voter is in at most one of granted, rejected and failed;
    - won and lost exclude each other.
    """

    def __init__(self, node: QuorumNode, epoch: int, now_ms: float, *, pre_vote: bool) -> None:
        self._node = node
        self._epoch = epoch
        self._pre_vote = pre_vote
        self.granted: dict[NodeId, bool] = {}
        """The voters that granted, and whether beyond doubt."""
        if node.is_voter:  # rule A36/who-is-removed-votes-for-itself
            # rule A15/own-vote-in-doubt-counts-in-full
            self.granted[node.key.node_id] = not node.is_in_doubt(node.log.end, now_ms)
        self._rejected: dict[NodeId, None] = {}
        self._failed: dict[NodeId, int] = {}
        self.proven_at_ms = node.unproven_until_ms if now_ms < node.unproven_until_ms else math.inf
        """Time from which the own vote says more than it did when the round began: it is worth another one then."""
        self._in_flight: dict[NodeId, None] = {}
        self._retry_at: dict[NodeId, float] = {}

    @property
    def won(self) -> bool:
        """True if a majority granted beyond doubt; or all voters granted."""
        voters = self._node.voters
        if sum(self.granted.values()) >= voters.majority:  # rule A3/a-minority-elects
            return True
        return len(self.granted) == len(voters.keys) >= voters.majority  # rule A15/doubt-is-for-good

    @property
    def lost(self) -> bool:
        """True if the round cannot be won any more by those that have not refused and could be called."""
        voters = self._node.voters
        doubtful = len(self.granted) - sum(self.granted.values())
        absent = len(self._rejected) + len(self._failed)
        return len(voters.keys) - absent - doubtful < voters.majority and (
            absent > 0 or len(voters.keys) < voters.majority
        )

    def pump(self, now_ms: float) -> None:
        """Ask every voter that has not answered and is not being asked."""
        node = self._node
        for voter in node.voters.others(node.key.node_id):
            asked = voter.node_id
            if asked in self.granted or asked in self._rejected or asked in self._in_flight:
                continue
            if now_ms < self._retry_at.get(asked, -math.inf):
                continue
            self._in_flight[asked] = None
            self._retry_at.pop(asked, None)
            request = VoteRequest(
                node.cluster_id, node.key, self._epoch, voter, node.log.end, self._pre_vote, node.voters_offset
            )
            node.send(asked, request)

    def deadline_ms(self) -> float:
        """Time when a failed call is to be repeated."""
        return min(self._retry_at.values(), default=math.inf)

    def record(self, sent: SendRequest, response: Response) -> None:
        """Count an answer. An error is a refusal: it would be the same if asked again in this epoch."""
        self._in_flight.pop(sent.to, None)
        self._failed.pop(sent.to, None)
        self._retry_at.pop(sent.to, None)
        vote = response if isinstance(response, VoteResponse) and response.error is ErrorCode.NONE else None
        if vote is not None and vote.granted and vote.epoch == self._epoch:
            if vote.in_doubt:
                mark("vote-in-doubt")
            self.granted[sent.to] = not vote.in_doubt  # rule A15/vote-in-doubt-counts-in-full
        else:
            self._rejected[sent.to] = None
        self.check()

    def record_failure(self, sent: SendRequest, now_ms: float) -> None:
        """Note that the call failed; it is repeated after a doubling wait, but does not hold back the judgement
        `lost`."""
        self._in_flight.pop(sent.to, None)
        times = self._failed[sent.to] = self._failed.get(sent.to, 0) + 1
        wait_ms = min(self._node.config.retry_backoff_ms * 2**times, RETRY_BACKOFF_MAX_MS)
        self._retry_at[sent.to] = now_ms + wait_ms

    def check(self) -> None:
        """Hold the invariants. Raises FatalError."""
        apart = not self.granted.keys() & (self._rejected.keys() | self._failed.keys())
        # rule A3/a-minority-elects/2
        ensure(apart and not (self.won and self.lost), "OneAnswerAVoter", granted=list(self.granted))


def election_timeout_ms(node: QuorumNode) -> float:
    """Drawn from [1, 2) times the setting, so that voters seldom ask at the same instant."""
    return node.config.election_timeout_ms * (1.0 + node.rng.random())


def election_backoff_ms(node: QuorumNode) -> float:
    """Wait after a lost round: doubling with the rounds lost in a row, jittered over [0.5, 1) of itself."""
    ceiling: float = min(node.config.election_backoff_max_ms, 50 << min(node.rounds_lost, 10))
    return ceiling * (0.5 + 0.5 * node.rng.random())


def again_ms(node: QuorumNode, now_ms: float, backoff_ms: float) -> float:
    """Time to ask anew after a lost round: at the latest when the end of this node's own log is doubted no more."""
    if now_ms < node.unproven_until_ms:  # rule A22/voters-back-off-beyond-the-wait
        return min(now_ms + backoff_ms, node.unproven_until_ms + AGAIN_JITTER_MS * node.rng.random())
    return now_ms + backoff_ms


def succession_delay_ms(node: QuorumNode, leader_id: NodeId) -> float:
    """Milliseconds that each follower waits longer than the one before it in the ring of voters after the leader: they
    lost the same leader at the same instant, and two candidates at once would split the votes."""
    return 2.0 * node.config.suspicion_ms * node.voters.succession(leader_id, node.key.node_id)


def suspicion_delay_ms(node: QuorumNode, leader_id: NodeId) -> float:
    """Milliseconds that a follower goes on trying a leader whose connection broke, before it asks for an election: one
    to two suspicion times and its place in the succession. Rounds lost in a row double it up to the fetch timeout."""
    delay_ms = node.config.suspicion_ms * (1.0 + node.rng.random()) + succession_delay_ms(node, leader_id)
    return min(delay_ms * (1 << min(node.rounds_lost, 10)), float(node.config.fetch_timeout_ms))
