"""Each invariant of the quorum and of the copies flags what breaks it, and lets its legal sibling pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from strandline.chaos.checkers.copies import ConsistentRead, CopyChecks
from strandline.chaos.checkers.history import Partition, Poll
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.metadata_logs import (
    DIRECTORY,
    MajorityReachedHighWatermark,
    MetadataLogMatching,
    SnapshotAtLogStart,
    stored_end,
)
from strandline.chaos.checkers.partitions import Known
from strandline.chaos.checkers.quorum import (
    CommittedLog,
    LeaderNeverLoadSnapshot,
    MonotonicEpoch,
    MonotonicHighWatermark,
    NoLogDivergence,
    QuorumChecks,
    QuorumView,
    RemovedLeaderResigns,
    SingleLeader,
    VotedOnce,
    VoterSetsMeet,
)
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.controller.quorum.api import CommittedBatch
from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import OffsetAndEpoch, ReplicaKey, VotersChange
from strandline.log.batch import Record, build_batch
from strandline.proto.ids import Endpoint, NodeId

VIEW = QuorumView(
    node=1,
    replica=ReplicaKey(NodeId(1), UUID(int=1)),
    incarnation=1,
    epoch=3,
    leader=None,
    leading=False,
    voted_for=None,
    high_watermark=5,
    log_end=8,
    last_epoch=3,
    durable_end=8,
    voters=tuple(ReplicaKey(NodeId(node), None) for node in (1, 2, 3)),
)


def view(**changes: Any) -> QuorumView:
    node = changes.get("node", 1)
    return replace(VIEW, **{"replica": ReplicaKey(NodeId(node), UUID(int=node)), **changes})


def log(*epochs: tuple[int, int], end: int, start: OffsetAndEpoch | None = None) -> LogSummary:
    begin = start or OffsetAndEpoch(0, 0)
    return LogSummary(start=begin, end_offset=end, epochs=epochs, snapshot=start)


def flags(check: Callable[[QuorumView], None], *views: QuorumView) -> str:
    """The invariant that the last of these views breaks; none of those before does."""
    for one in views[:-1]:
        check(one)
    try:
        check(views[-1])
    except InvariantViolated as error:
        return error.name
    return ""


def test_monotonic_epoch() -> None:
    """Over restarts too; a node with a new disk is another."""
    assert flags(MonotonicEpoch().check, view(), view(epoch=2, incarnation=2)) == "MonotonicEpoch"
    assert flags(MonotonicEpoch().check, view(), view(epoch=3, incarnation=2)) == ""
    assert flags(MonotonicEpoch().check, view(), view(epoch=1, replica=ReplicaKey(NodeId(1), UUID(int=1001)))) == ""


def test_single_leader() -> None:
    """By what the leader says of itself, and by what others say of it."""
    leads = view(leading=True)
    assert flags(SingleLeader().check, leads, view(node=2, leading=True)) == "SingleLeader"
    assert flags(SingleLeader().check, leads, view(node=2, leader=3)) == "SingleLeader"
    assert flags(SingleLeader().check, leads, view(node=2, leader=1)) == ""
    assert flags(SingleLeader().check, leads, view(node=2, leading=True, epoch=4)) == ""


def test_voted_once() -> None:
    """In an epoch, over restarts too."""
    assert flags(VotedOnce().check, view(voted_for=1), view(voted_for=2, incarnation=2)) == "VotedOnce"
    assert flags(VotedOnce().check, view(voted_for=1), view(voted_for=2, epoch=4)) == ""
    assert flags(VotedOnce().check, view(voted_for=1), view(), view(voted_for=1)) == ""


def test_committed_voter_sets_are_one_sequence_whose_majorities_meet() -> None:
    """Rules A11, A36: one voter more or less; an uncommitted set may be any, and a lagging node has an older one."""

    def said(offset: int, *nodes: int, **changes: Any) -> QuorumView:
        voters = tuple(ReplicaKey(NodeId(node), UUID(int=node)) for node in nodes)
        majority = len(nodes) // 2 + 1
        facts = {"high_watermark": 20} | changes
        return view(voters=voters, majority=majority, voters_offset=offset, **facts)

    first, grown = said(-1, 1), said(4, 1, 2)
    assert flags(VoterSetsMeet().check, first, grown, said(6, 1, 2, 3), said(4, 1, 2, node=3), said(8, 2, 3)) == ""
    assert flags(VoterSetsMeet().check, first, said(4, 2)) == "VoterSetsMeet"
    assert flags(VoterSetsMeet().check, said(-1, 1, 2, 3), said(4, 1)) == "VoterSetsMeet"
    assert flags(VoterSetsMeet().check, first, grown, said(4, 1, 3, node=3)) == "VoterSetsMeet"
    assert flags(VoterSetsMeet().check, first, grown, said(7, 1, 3, high_watermark=7)) == ""
    assert flags(VoterSetsMeet().check, grown, said(6, 1, 2, 3, 4)) == "VoterSetsMeet"  # two came at once


def test_voter_sets_that_came_between_two_looks_are_seen() -> None:
    """A log says them all: two steps between two looks are two, and one that leaves a step out is seen."""

    def looked(*sets: tuple[int, ...]) -> QuorumView:
        keys = [tuple(ReplicaKey(NodeId(node), UUID(int=node)) for node in nodes) for nodes in sets]
        endpoints = [tuple(Endpoint(f"n{node}", 1) for node in nodes) for nodes in sets]
        said = [(3 * at, VotersChange(keys[at], 1, endpoints[at])) for at in range(len(sets))]
        summary = LogSummary(end_offset=20, epochs=((1, 0),), voters=tuple(said))
        majority = len(keys[-1]) // 2 + 1
        facts = {"voters": keys[-1], "majority": majority, "voters_offset": said[-1][0], "log": summary}
        return view(high_watermark=20, **facts)

    begun = looked((1,))
    assert flags(VoterSetsMeet().check, begun, looked((1,), (1, 2), (1, 2, 3), (2, 3), (3,))) == ""
    assert flags(VoterSetsMeet().check, begun, looked((1,), (1, 2), (1, 2, 3, 4), (2, 3, 4))) == "VoterSetsMeet"
    assert flags(VoterSetsMeet().check, begun, looked((1,), (2,), (1,))) == "VoterSetsMeet"


def test_a_removed_leader_resigns() -> None:
    """Once its removal is committed it commits what was in its log by then, at most; before that it leads on."""
    others = tuple(ReplicaKey(NodeId(node), UUID(int=node)) for node in (2, 3))
    removed = {"leading": True, "voters": others, "voters_offset": 4}
    at = [view(log_end=end, high_watermark=known, **removed) for end, known in ((5, 4), (7, 5), (9, 7), (9, 8))]
    assert flags(RemovedLeaderResigns().check, *at[:3]) == ""
    assert flags(RemovedLeaderResigns().check, *at) == "RemovedLeaderResigns"
    votes = {**removed, "voters": (ReplicaKey(NodeId(1), UUID(int=1)), *others)}
    assert flags(RemovedLeaderResigns().check, *at[:3], view(log_end=9, high_watermark=8, **votes)) == ""


def test_monotonic_high_watermark() -> None:
    """While a process lives; and never beyond the log."""
    check = MonotonicHighWatermark
    assert flags(check().check, view(), view(high_watermark=4)) == "MonotonicHighWatermark"
    assert flags(check().check, view(high_watermark=9)) == "MonotonicHighWatermark"
    assert flags(check().check, view(), view(high_watermark=0, incarnation=2)) == ""


def test_leader_never_load_snapshot() -> None:
    """A follower may, and may lead afterwards."""
    leads = view(leading=True)
    check = LeaderNeverLoadSnapshot
    assert flags(check().check, leads, view(leading=True, reloads=1)) == "LeaderNeverLoadSnapshot"
    assert flags(check().check, leads, view(reloads=1), view(leading=True, reloads=1, epoch=5)) == ""
    assert flags(check().check, view(), view(reloads=1), view(leading=True, reloads=1)) == ""


def test_no_log_divergence() -> None:
    """An epoch begins at one offset, after one epoch, in every log; a log that was cut does not tell where."""
    ours = view(log=log((1, 0), (3, 5), end=8))
    elsewhere = view(node=2, log=log((1, 0), (3, 6), end=8))
    other_before = view(node=2, log=log((1, 0), (2, 4), (3, 5), end=8))
    cut = view(node=2, log=log((3, 6), end=8, start=OffsetAndEpoch(6, 3)))
    behind = view(node=2, log=log((1, 0), end=3))
    own_tail = view(node=2, log=log((1, 0), (2, 5), end=6))
    assert flags(NoLogDivergence().check, ours, elsewhere) == "NoLogDivergence"
    assert flags(NoLogDivergence().check, ours, other_before) == "NoLogDivergence"
    assert flags(NoLogDivergence().check, ours, cut, behind, own_tail) == ""


def test_consistent_committed_data_and_a_leader_that_has_it() -> None:
    """By what nodes were handed, and by their high watermarks."""
    batch = CommittedBatch(0, 4, 1, 0, [b"a"])
    known = CommittedLog()
    known.committed(1, batch)
    known.committed(2, batch)
    with pytest.raises(InvariantViolated, match="ConsistentCommittedData"):
        known.committed(2, replace(batch, records=[b"b"]))
    lacks = view(node=2, leading=True, log_end=4)
    assert flags(known.check, lacks) == "LeaderHasAllCommittedValues"
    assert flags(known.check, view(node=2, leading=True, epoch=4)) == ""
    seen = CommittedLog()
    seen.note(view(log=log((1, 0), (3, 4), end=8)))
    assert (seen.end, seen.last_epoch) == (5, 3)
    assert flags(seen.check, lacks) == "LeaderHasAllCommittedValues"
    assert flags(seen.check, view(node=3, leading=True, log_end=9, last_epoch=2)) == "LeaderHasAllCommittedValues"
    assert flags(seen.check, view(node=2, leading=True, log_end=5, epoch=9)) == ""
    succeeded = view(node=1, leading=True, log_end=4, epoch=2, last_epoch=2)
    assert flags(seen.check, succeeded) == ""


@pytest.fixture
def disks() -> dict[int, SimDisk]:
    """Node 3 has offsets 0 to 6 of the metadata log, a snapshot that ends at 4, and no process. Node 2 has an empty
    segment of a partition, which begins at 8."""
    world = World(1)
    for number in (1, 2, 3):
        world.add_machine(f"n{number}")

    async def main(ports: Ports) -> None:
        ports.disk.mkdir(DIRECTORY)
        ports.disk.open(f"{DIRECTORY}/{4:020d}-{2:010d}.checkpoint", create=True)
        file = ports.disk.open(f"{DIRECTORY}/{0:020d}.log", create=True)
        position = 0
        for offset in range(7):
            data = bytes(build_batch([Record(0, 1, None, b"x", ())], base_offset=offset, leader_epoch=2))
            file.pwrite(data, position)
            position += len(data)

    found = {number: world.machines[f"n{number}"].disk for number in (1, 2, 3)}

    async def emptied(ports: Ports) -> None:
        ports.disk.mkdir("/data/t-0")
        ports.disk.open(f"/data/t-0/{8:020d}.log", create=True)

    async def story() -> None:
        world.spawn("n2", emptied)
        world.spawn("n3", main)
        await world.sleep_ms(1)

    world.loop.run_until_complete(story())  # not `World.run`, which takes the disks away
    return found


def test_what_lies_on_a_disk(disks: dict[int, SimDisk]) -> None:
    """The end of the log, whoever wrote it."""
    assert {node: stored_end(disk) for node, disk in disks.items()} == {1: 0, 2: 0, 3: 7}


def test_majority_reached_high_watermark(disks: dict[int, SimDisk]) -> None:
    """Of the living what is synced counts, of the dead what their disks hold, of destroyed disks what was last seen."""
    voters = VIEW.voters

    def keys(nodes: Iterable[int]) -> list[ReplicaKey]:
        return [ReplicaKey(NodeId(node), UUID(int=node)) for node in nodes]

    def check(durable: dict[int, int], high_watermark: int) -> None:
        checker = MajorityReachedHighWatermark(disks.__getitem__)
        for key in keys(durable):
            checker.note(key, durable[key.node_id], doubt=False)
        checker.check(voters, 2, keys(durable), high_watermark)

    check({1: 8, 2: 8, 3: 5}, 8)
    check({1: 8, 2: 5}, 7)
    with pytest.raises(InvariantViolated, match="MajorityReachedHighWatermark"):
        check({1: 8, 2: 5}, 8)
    with pytest.raises(InvariantViolated, match="MajorityReachedHighWatermark"):
        check({1: 8, 2: 7, 3: 7}, 8)
    again = MajorityReachedHighWatermark(disks.__getitem__)
    one, two, three = keys((1, 2, 3))
    for key, end in ((one, 9), (two, 5), (three, 8)):
        again.note(key, end, doubt=False)
    disks[3].destroyed = 1
    again.check(voters, 2, [one, two], 8)
    with pytest.raises(InvariantViolated, match="MajorityReachedHighWatermark"):
        again.check(voters, 2, [one, two], 9)
    again.reached = 0
    again.note(three, 5, doubt=True)  # it cut what it had acknowledged
    again.check(voters, 2, [one, two, three], 8)
    again.reached = 0
    again.note(three, 5, doubt=False)
    with pytest.raises(InvariantViolated, match="MajorityReachedHighWatermark"):
        again.check(voters, 2, [one, two, three], 8)


def test_snapshot_at_log_start(disks: dict[int, SimDisk]) -> None:
    """Of that offset and that epoch."""
    check = SnapshotAtLogStart(disks.__getitem__)
    check.check(3, 1, OffsetAndEpoch(0, 0), 0)
    check.check(3, 1, OffsetAndEpoch(4, 2), 3)
    for start, log_start in ((OffsetAndEpoch(5, 2), 5), (OffsetAndEpoch(4, 1), 4), (OffsetAndEpoch(4, 2), 5)):
        with pytest.raises(InvariantViolated, match="SnapshotAtLogStart"):
            SnapshotAtLogStart(disks.__getitem__).check(3, 1, start, log_start)


def test_metadata_log_matching(disks: dict[int, SimDisk]) -> None:
    """An (offset, epoch) is one batch; a committed offset is one, of one epoch. A tail of another epoch may differ."""
    matching = MetadataLogMatching()
    matching.check(3, 1, disks[3], (0, 5, 7))
    matching.check(3, 1, disks[3], (0, 7, 7))
    disk = disks[3]
    matching._written[6, 2] += 1
    with pytest.raises(InvariantViolated, match="MetadataLogMatching"):
        matching.check(3, 2, disk, (0, 5, 7))
    matching.check(3, 3, disk, (0, 5, 6))
    matching._written[6, 2] -= 1
    matching._committed[6] = (1, 0)
    matching.check(3, 4, disk, (0, 6, 7))
    with pytest.raises(InvariantViolated, match="MetadataLogMatching"):
        matching.check(3, 5, disk, (0, 7, 7))


def test_the_whole_of_the_quorums_checks(disks: dict[int, SimDisk]) -> None:
    """All look at all views; a high watermark that no leader had before wants its majority."""
    checks = QuorumChecks(disks.__getitem__)
    shape = log((1, 0), (3, 5), end=8)
    checks.observe([view(leading=True, log=shape), view(node=2, leader=1, log=shape)])
    with pytest.raises(InvariantViolated, match="MajorityReachedHighWatermark"):
        checks.observe([view(leading=True, log=shape, high_watermark=8), view(node=2, durable_end=7, log=shape)])


def test_a_change_of_the_voters_waits_for_the_one_before() -> None:
    """What a leader inherits may be two: it does not know yet what is committed of it."""
    shape = log((1, 0), (3, 5), end=9)
    shape._voters = [(6, VotersChange(())), (8, VotersChange(()))]
    seen: dict[str, Any] = {"leading": True, "log": shape, "log_end": 9, "epoch": 3}
    VoterSetsMeet._one_under_way(view(high_watermark=7, **seen), shape)
    VoterSetsMeet._one_under_way(view(high_watermark=5, **{**seen, "epoch": 4}), shape)
    with pytest.raises(InvariantViolated, match="two changes of the voters are under way"):
        VoterSetsMeet._one_under_way(view(high_watermark=5, **seen), shape)


def test_a_set_that_is_appended_as_the_high_watermark_rises_did_not_count(disks: dict[int, SimDisk]) -> None:
    """A leader alone commits at once; in the same instant it appends a set of two, of which one lags."""
    one, two = (ReplicaKey(NodeId(node), UUID(int=node)) for node in (1, 2))
    alone: dict[str, Any] = {"leading": True, "majority": 1, "voters": (one,), "voters_offset": 0}
    grown = alone | {"majority": 2, "voters": (one, two), "voters_offset": 8, "log_end": 9}
    lagging = view(node=2, leader=1, durable_end=5, voters=(one,), majority=1, voters_offset=0)
    checks = QuorumChecks(disks.__getitem__)
    checks.observe([view(**alone), lagging])
    checks.observe([view(high_watermark=8, **grown), lagging])
    with pytest.raises(InvariantViolated, match="MajorityReachedHighWatermark"):
        checks.observe([view(high_watermark=9, durable_end=9, **grown), lagging])


def test_leader_candidate_completeness() -> None:
    """Members of ISR and ELR that could be elected have all; one whose process is not the registered one cannot be."""
    known = Known("t-0", committed_end=10)
    CopyChecks().check_candidates(known, (1, 2, 3), {1: 10, 2: 12})
    CopyChecks().check_candidates(known, (1, 2), {1: 10, 3: 4})
    with pytest.raises(InvariantViolated, match="LeaderCandidateCompleteness"):
        CopyChecks().check_candidates(known, (1, 2, 3), {1: 10, 2: 9})


def at(directory: str, disks: dict[int, SimDisk]) -> dict[int, tuple[SimDisk, str]]:
    """The same directory on each disk."""
    return {node: (disk, directory) for node, disk in disks.items()}


def test_no_committed_record_lost_globally(disks: dict[int, SimDisk]) -> None:
    """On some disk, whether its node lives or not."""
    checks = CopyChecks()
    checks.check_somewhere(Known("t-0", committed_end=7), {1: 7, 2: 3}, {})
    checks.check_somewhere(Known("t-0", committed_end=7), {1: 6}, at(DIRECTORY, {3: disks[3]}))
    with pytest.raises(InvariantViolated, match="NoCommittedRecordLostGlobally"):
        checks.check_somewhere(Known("t-0", committed_end=8), {1: 6}, at(DIRECTORY, {2: disks[2], 3: disks[3]}))


def test_what_was_deleted_leaves_an_empty_segment_behind_it(disks: dict[int, SimDisk]) -> None:
    """All records were deleted: who has the name behind them has everything. As long as some are there it has not."""
    deleted = Known("t-0", committed_end=8, log_start=8)
    CopyChecks().check_somewhere(deleted, {1: 6}, at("/data/t-0", {2: disks[2], 3: disks[3]}))
    for known in (Known("t-0", committed_end=8, log_start=7), Known("t-0", committed_end=9, log_start=9)):
        with pytest.raises(InvariantViolated, match="NoCommittedRecordLostGlobally"):
            CopyChecks().check_somewhere(known, {1: 6}, at("/data/t-0", {2: disks[2], 3: disks[3]}))


def test_members_in_doubt_have_it_between_them(disks: dict[int, SimDisk]) -> None:
    """InDoubtCompleteness: what a node that is no member has does not help, nor does what rotted."""
    checks, known = CopyChecks(), Known("t-0", committed_end=7)
    checks.check_in_doubt(known, (1, 2), {1: 7, 2: 3}, {})
    checks.check_in_doubt(known, (1, 3), {1: 6}, at(DIRECTORY, {3: disks[3]}))
    checks.check_in_doubt(known, (), {1: 6}, {})
    with pytest.raises(InvariantViolated, match="InDoubtCompleteness"):
        checks.check_in_doubt(known, (1,), {1: 6, 2: 7}, at(DIRECTORY, {3: disks[3]}))


def test_consistent_read() -> None:
    """One offset, one record, for all readers and for ever."""
    where = Partition("t", 0)
    polls = [Poll("c1", [(where, 0, "a"), (where, 1, "b")])]
    reads = ConsistentRead()
    reads.check(polls)
    polls.append(Poll("c2", [(where, 0, "a"), (Partition("t", 1), 1, "x")]))
    reads.check(polls)
    polls.append(Poll("c2", [(where, 1, "other")]))
    with pytest.raises(InvariantViolated, match="ConsistentRead"):
        reads.check(polls)
