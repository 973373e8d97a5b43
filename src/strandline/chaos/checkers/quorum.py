"""Invariants of the metadata quorum (correctness A; Kafka's RaftEventSimulationTest), checked as events run.

Each is a class with one `check`; `QuorumChecks` feeds all of them from what it can see of the live nodes, so that
production code knows of none of this.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.controller.quorum.api import CommittedBatch


@dataclass(frozen=True, slots=True)
class QuorumView:
    """What one node's quorum looks like at an instant."""

    node: int
    incarnation: int
    epoch: int
    leader: int | None
    leading: bool
    voted_for: int | None
    high_watermark: int
    log_end: int
    last_epoch: int
    """Epoch of the last record of its log."""
    wipes: int = 0
    """How often its disk was replaced: each makes it another replica under the same id."""


class MonotonicEpoch:
    """A node's epoch never goes back, over restarts and power cuts too (A1: durable before anyone hears of it)."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[int, int], int] = {}

    def check(self, view: QuorumView) -> None:
        before = self._epochs.get((view.node, view.wipes), -1)
        if view.epoch < before:
            raise InvariantViolated("MonotonicEpoch", "an epoch went back", node=view.node, was=before, now=view.epoch)
        self._epochs[view.node, view.wipes] = view.epoch


class SingleLeader:
    """An epoch has one leader, whoever is asked, for ever."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}

    def check(self, view: QuorumView) -> None:
        leader = view.node if view.leading else view.leader
        if leader is None:
            return
        known = self._leaders.setdefault(view.epoch, leader)
        if known != leader:
            facts = {"epoch": view.epoch, "leaders": [known, leader], "node": view.node}
            raise InvariantViolated("SingleLeader", "two leaders in one epoch", **facts)


class VotedOnce:
    """A node votes for one candidate in an epoch, over restarts and power cuts too (A1, A3)."""

    def __init__(self) -> None:
        self._votes: dict[tuple[int, int, int], int] = {}

    def check(self, view: QuorumView) -> None:
        if view.voted_for is None:
            return
        known = self._votes.setdefault((view.node, view.wipes, view.epoch), view.voted_for)
        if known != view.voted_for:
            facts = {"node": view.node, "epoch": view.epoch, "votes": [known, view.voted_for]}
            raise InvariantViolated("VotedOnce", "a node voted twice in one epoch", **facts)


class MonotonicHighWatermark:
    """A node's high watermark never goes back while it runs, and never passes its log's end (A6, A8)."""

    def __init__(self) -> None:
        self._watermarks: dict[tuple[int, int], int] = {}

    def check(self, view: QuorumView) -> None:
        key = (view.node, view.incarnation)
        before = self._watermarks.get(key, -1)
        facts = {"node": view.node, "was": before, "now": view.high_watermark, "log_end": view.log_end}
        if view.high_watermark < before:
            raise InvariantViolated("MonotonicHighWatermark", "a high watermark went back", **facts)
        if view.high_watermark > view.log_end:
            raise InvariantViolated("MonotonicHighWatermark", "a high watermark passed the log's end", **facts)
        self._watermarks[key] = view.high_watermark


class CommittedLog:
    """Everything that any node ever handed out as committed: same offset, same epoch, same records, on every node.

    Invariants checked: ConsistentCommittedData, and LeaderHasAllCommittedValues when a node is seen leading.
    """

    def __init__(self) -> None:
        self.batches: dict[int, CommittedBatch] = {}
        self.end = 0
        self.last_epoch = 0
        self._checked_leaders: set[tuple[int, int]] = set()

    def committed(self, node: int, batch: CommittedBatch) -> None:
        """`node` handed `batch` to its listeners."""
        known = self.batches.get(batch.base_offset)
        if known is None:
            self.batches[batch.base_offset] = batch
            if batch.last_offset >= self.end:
                self.end = batch.last_offset + 1
                self.last_epoch = batch.epoch
        elif (known.epoch, known.last_offset, known.records) != (batch.epoch, batch.last_offset, batch.records):
            facts = {"node": node, "offset": batch.base_offset, "epochs": [known.epoch, batch.epoch]}
            raise InvariantViolated("ConsistentCommittedData", "two nodes committed different data", **facts)

    def check(self, view: QuorumView) -> None:
        """A leader holds all that was ever committed, from its first instant (raft's Leader Completeness)."""
        key = (view.node, view.epoch)
        if not view.leading or key in self._checked_leaders:
            return
        self._checked_leaders.add(key)
        if view.log_end < self.end or view.last_epoch < self.last_epoch:
            facts = {"node": view.node, "epoch": view.epoch, "log_end": view.log_end, "committed": self.end}
            raise InvariantViolated("LeaderHasAllCommittedValues", "a leader lacks committed records", **facts)


class QuorumChecks:
    """All of the above over views of the nodes."""

    def __init__(self) -> None:
        self.log = CommittedLog()
        self._checks = (MonotonicEpoch(), SingleLeader(), VotedOnce(), MonotonicHighWatermark(), self.log)

    def observe(self, view: QuorumView) -> None:
        """Raises InvariantViolated."""
        for check in self._checks:
            check.check(view)
