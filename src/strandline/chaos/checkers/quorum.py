"""Invariants of the metadata quorum (rules A; Kafka's RaftEventSimulationTest), checked as events run.

Each is a class with one `check`; `QuorumChecks` feeds all of them from what it can see of the live nodes, so that
production code knows of none of this. Those that need the disks stand in `metadata_logs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.metadata_logs import MajorityReachedHighWatermark, SnapshotAtLogStart
from strandline.chaos.sim.disk import SimDisk
from strandline.controller.quorum.api import CommittedBatch
from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import ReplicaKey


@dataclass(frozen=True, slots=True)
class QuorumView:
    """State of one node's quorum at an instant."""

    node: int
    replica: ReplicaKey
    """Replica as which the node presents itself: with another disk, or having lost its log, it is another one."""
    incarnation: int
    epoch: int
    leader: int | None
    leading: bool
    voted_for: int | None
    high_watermark: int
    log_end: int
    last_epoch: int
    """Epoch of the last record of its log."""
    doubt: bool = False
    """True: the node cut a tail that it may have acknowledged, and has not caught up since."""
    voters: tuple[ReplicaKey, ...] = ()
    """Voter set of the node; vacant places are left out."""
    majority: int = 2
    """Number of voters of that set that decide."""
    voters_offset: int = -1
    """Offset of the record, or snapshot, that says this set; -1: it is the configured one."""
    durable_end: int = 0
    """Offset up to which its log is synced."""
    log: LogSummary | None = None
    """The shape of its log, alive: to be read at once."""
    log_start: int = 0
    """Start offset of the log on the disk."""
    reloads: int = 0
    """Number of fetched snapshots that replaced its log since its process began."""


class MonotonicEpoch:
    """A node's epoch never goes back, even over restarts and power cuts (rule A1: it is durable before another node
    hears of it)."""

    def __init__(self) -> None:
        self._epochs: dict[ReplicaKey, int] = {}

    def check(self, view: QuorumView) -> None:
        if view.voters and not any(voter.admits(view.replica) for voter in view.voters):
            return  # an observer promises nothing: where its state rots it begins anew
        before = self._epochs.get(view.replica, -1)
        if view.epoch < before:
            raise InvariantViolated("MonotonicEpoch", "an epoch went back", node=view.node, was=before, now=view.epoch)
        self._epochs[view.replica] = view.epoch


class SingleLeader:
    """An epoch has one leader, for every node and for ever."""

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
    """A node votes for one candidate in an epoch, over restarts and power cuts too (rules A1, A3)."""

    def __init__(self) -> None:
        self._votes: dict[tuple[ReplicaKey, int], int] = {}

    def check(self, view: QuorumView) -> None:
        if view.voted_for is None:
            return
        known = self._votes.setdefault((view.replica, view.epoch), view.voted_for)
        if known != view.voted_for:
            facts = {"node": view.node, "epoch": view.epoch, "votes": [known, view.voted_for]}
            raise InvariantViolated("VotedOnce", "a node voted twice in one epoch", **facts)


class MonotonicHighWatermark:
    """A node's high watermark never goes back while the node runs, and never exceeds its log end offset (rules A6,
    A8)."""

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


class LeaderNeverLoadSnapshot:
    """Check: while a node leads an epoch, no other node's snapshot replaces its log (rule A10)."""

    def __init__(self) -> None:
        self._leading: dict[tuple[int, int], tuple[int, int]] = {}

    def check(self, view: QuorumView) -> None:
        key = (view.node, view.incarnation)
        if not view.leading:
            self._leading.pop(key, None)
            return
        epoch, reloads = self._leading.setdefault(key, (view.epoch, view.reloads))
        if epoch == view.epoch and reloads != view.reloads:
            facts = {"node": view.node, "epoch": view.epoch}
            raise InvariantViolated("LeaderNeverLoadSnapshot", "a leader loaded a snapshot", **facts)
        self._leading[key] = (view.epoch, view.reloads)


class NoLogDivergence:
    """Logs that have an epoch in common agree where it begins and which came before: a leader that appends in an epoch
    follows on what its leader had, and a leader never begins its epoch twice (kafka-tlaplus
    `kraft_kip_853_properties`)."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        """epoch -> (its first offset, the epoch of the record before)."""
        self._looked: dict[tuple[int, int], tuple[int, int, int]] = {}

    def check(self, view: QuorumView) -> None:
        log = view.log
        if log is None:
            return
        shape = (log.start.offset, log.end_offset, log.last_epoch)
        if self._looked.get((view.node, view.incarnation)) == shape:
            return
        self._looked[view.node, view.incarnation] = shape
        before = log.start.epoch
        for epoch, offset in log.epochs:
            # An epoch that was cut at the log's start begins somewhere before it.
            if offset > log.start.offset or offset == 0:
                known = self._known.setdefault(epoch, (offset, before))
                if known != (offset, before):
                    facts = {"node": view.node, "epoch": epoch, "here": (offset, before), "elsewhere": known}
                    raise InvariantViolated("NoLogDivergence", "one epoch begins in two ways", **facts)
            before = epoch


class CommittedLog:
    """Everything that any node ever counted or handed out as committed: same offset, same epoch, same records.

    Invariants checked: ConsistentCommittedData, and LeaderHasAllCommittedValues when a node is seen leading.
    """

    def __init__(self) -> None:
        self.batches: dict[int, CommittedBatch] = {}
        self.end = 0
        self.last_epoch = 0
        self._checked_leaders: set[tuple[int, int]] = set()

    def committed(self, node: int, batch: CommittedBatch) -> None:
        """Note that `node` handed `batch` to its listeners."""
        known = self.batches.get(batch.base_offset)
        if known is None:
            self.batches[batch.base_offset] = batch
            if batch.last_offset >= self.end:
                self.end = batch.last_offset + 1
                self.last_epoch = batch.epoch
        elif (known.epoch, known.last_offset, known.records) != (batch.epoch, batch.last_offset, batch.records):
            facts = {"node": node, "offset": batch.base_offset, "epochs": [known.epoch, batch.epoch]}
            raise InvariantViolated("ConsistentCommittedData", "two nodes committed different data", **facts)

    def note(self, view: QuorumView) -> None:
        """Note that records below a node's high watermark are committed."""
        if view.log is not None and self.end < view.high_watermark <= view.log.end_offset:
            self.end = view.high_watermark
            self.last_epoch = view.log.epoch_before(view.high_watermark)

    def check(self, view: QuorumView) -> None:
        """Check that a leader holds all that was ever committed, from its first instant (raft's Leader
        Completeness)."""
        key = (view.node, view.epoch)
        if not view.leading or key in self._checked_leaders:
            return
        self._checked_leaders.add(key)
        if view.epoch < self.last_epoch:
            return  # it was succeeded and has not heard of it: what was committed since is not its to have
        if view.log_end < self.end or view.last_epoch < self.last_epoch:
            facts = {"node": view.node, "epoch": view.epoch, "log_end": view.log_end, "committed": self.end}
            raise InvariantViolated("LeaderHasAllCommittedValues", "a leader lacks committed records", **facts)


class VoterSetsMeet:
    """Committed voter sets are one sequence on all nodes, and any majority of one meets any majority of the next one
    (rules A11, A36): they differ in one voter.

    Sets are taken from the logs of living nodes, as far as these are committed: several may come between two looks.
    """

    def __init__(self) -> None:
        self._committed: list[tuple[int, tuple[ReplicaKey, ...], int]] = []

    @property
    def newest(self) -> tuple[int, tuple[ReplicaKey, ...]]:
        """Offset and voters of the set that was committed last; of none nothing is known before the first look."""
        if not self._committed:
            return -1, ()
        offset, voters, _ = self._committed[-1]
        return offset, voters

    def check(self, view: QuorumView) -> None:
        if not view.voters:
            return
        offset, _ = self.newest
        for at, said in () if view.log is None else view.log.voters_between(offset + 1, view.high_watermark):
            if self._committed:
                majority = len(said.voters) // 2 + 1 if said.kraft_version else self._committed[-1][2]
                self._note(view.node, at, said.voters, majority)
        if view.high_watermark > view.voters_offset:
            self._note(view.node, view.voters_offset, view.voters, view.majority)
        if view.leading and view.log is not None:
            self._one_under_way(view, view.log)

    @staticmethod
    def _one_under_way(view: QuorumView, log: LogSummary) -> None:
        """A leader begins a change when it knows the one before to be committed."""
        under_way = [at for at, _ in log.voters_between(view.high_watermark, view.log_end)]
        if len(under_way) > 1 and log.epoch_before(under_way[-1] + 1) == view.epoch:
            facts = {"node": view.node, "epoch": view.epoch, "offsets": under_way}
            raise InvariantViolated("VoterSetsMeet", "two changes of the voters are under way", **facts)

    def _note(self, node: int, at: int, voters: tuple[ReplicaKey, ...], majority: int) -> None:
        """Take in a committed set, and the offset of its record."""
        offset, newest = self.newest
        if not self._committed:
            self._committed.append((at, voters, majority))
        elif at > offset and voters != newest:
            self._follow(at, voters, majority)
        elif at >= 0:  # a machine with a new disk is configured with another directory of its own
            known = next((known for since, known, _ in reversed(self._committed) if since <= at), None)
            if known is not None and voters != known:
                facts = {"node": node, "offset": at, "here": voters, "elsewhere": known}
                raise InvariantViolated("VoterSetsMeet", "two voter sets were committed at one offset", **facts)

    def _follow(self, at: int, voters: tuple[ReplicaKey, ...], majority: int) -> None:
        _, before, majority_before = self._committed[-1]
        self._committed.append((at, voters, majority))
        if any(key.directory_id is None for key in before):
            return  # whose directories are recorded now
        facts = {"offset": at, "before": before, "after": voters}
        if majority_before + majority <= len({*before, *voters}):
            raise InvariantViolated("VoterSetsMeet", "two majorities need not meet", **facts)
        if len({*before} ^ {*voters}) > 1:
            raise InvariantViolated("VoterSetsMeet", "two voters changed at once", **facts)


class RemovedLeaderResigns:
    """A leader that knows its removal to be committed resigns: it commits nothing that it appended later (rule A36;
    KAFKA-17608)."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], tuple[int, int]] = {}
        """(node, incarnation) -> the epoch that it leads, and the end of its log when it was first seen so."""

    def check(self, view: QuorumView) -> None:
        key = (view.node, view.incarnation)
        knows = view.leading and view.high_watermark > view.voters_offset
        if not knows or any(voter.admits(view.replica) for voter in view.voters):
            self._ends.pop(key, None)
            return
        epoch, end = self._ends.setdefault(key, (view.epoch, view.log_end))
        if epoch == view.epoch and view.high_watermark > end:
            facts = {"node": view.node, "epoch": epoch, "end": end, "high_watermark": view.high_watermark}
            raise InvariantViolated("RemovedLeaderResigns", "a removed leader leads on", **facts)


class QuorumChecks:
    """All of the above over views of the nodes. `disk_of` is a node's disk, whether it lives or not."""

    def __init__(self, disk_of: Callable[[int], SimDisk]) -> None:
        self.log = CommittedLog()
        self.voters = VoterSetsMeet()
        self._checks = (
            MonotonicEpoch(),
            SingleLeader(),
            VotedOnce(),
            MonotonicHighWatermark(),
            LeaderNeverLoadSnapshot(),
            NoLogDivergence(),
            self.log,
            self.voters,
            RemovedLeaderResigns(),
        )
        self._snapshots = SnapshotAtLogStart(disk_of)
        self._majority = MajorityReachedHighWatermark(disk_of)
        self._led: dict[tuple[int, int], QuorumView] = {}
        """Each leader as it was at the last look."""

    def observe(self, views: Sequence[QuorumView]) -> None:
        """Check all live nodes at one instant. Raises InvariantViolated."""
        for view in views:
            self.log.note(view)
        for check in self._checks:
            for view in views:
                check.check(view)
        for view in views:
            if view.log is not None:
                self._snapshots.check(view.node, view.incarnation, view.log.start, view.log_start)
        for view in views:
            self._majority.note(view.replica, view.durable_end, doubt=view.doubt)
        living = [view.replica for view in views]
        for leader in views:
            if leader.leading and leader.high_watermark > self._majority.reached:
                counted = self._counted_by(leader, living)
                self._majority.check(counted.voters, counted.majority, living, leader.high_watermark)
        self._led = {(view.node, view.incarnation): view for view in views if view.leading}

    def _counted_by(self, leader: QuorumView, living: Sequence[ReplicaKey]) -> QuorumView:
        """The leader with the voters by which its high watermark rose: where it has appended another set since the last
        look, behind what it counted, those of before may have been enough."""
        end = leader.high_watermark
        if end > leader.voters_offset:
            return leader
        before = self._led.get((leader.node, leader.incarnation))
        sets = [] if before is None or before.epoch != leader.epoch else [(before.voters, before.majority)]
        if leader.log is not None:  # several may have come since
            earlier = [said for _, said in leader.log.voters_between(0, leader.voters_offset)][-1:]
            sets += [(said.voters, len(said.voters) // 2 + 1) for said in earlier if said.kraft_version]
        for voters, majority in sets:
            if self._majority.holds(voters, majority, living, end):
                return replace(leader, voters=voters, majority=majority)
        return leader
