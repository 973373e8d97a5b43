"""Who is elected, and who stays: schedules 27 and 28, and the rules A3 to A5 that no other test breaks down without."""

from __future__ import annotations

import random

from raft_bench import CLUSTER, Bench, key
from raft_invariants import CheckedWorld
from raft_node import SimNode

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.core import RaftCore
from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import OffsetAndEpoch, ReplicaKey, VoteRequest, VoteResponse
from strandline.controller.raft.transitions import RoleKind
from strandline.controller.raft.voters import VoterSet
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from tests.schedules.helpers import schedule


def elected(
    voters: int = 3, *, seed: int = 1, world_type: type[CheckedWorld] = CheckedWorld
) -> tuple[CheckedWorld, SimNode, list[SimNode]]:
    """A quorum, its leader with a known high watermark, and the others."""
    world = world_type(range(1, voters + 1), seed=seed)
    for node in world.nodes.values():
        node.start()
    assert world.run(20_000, until=lambda: world.established() is not None)
    leader = world.established()
    assert leader is not None
    world.run(50)
    return world, leader, [node for node in world.nodes.values() if node is not leader]


@schedule(27, rule="A5: check-quorum", mutant="no-check-quorum")
def test_27_a_leader_cut_off_from_the_majority() -> None:
    """KAFKA-15489: it resigns within one and a half fetch timeouts, so that its clients look elsewhere."""
    world, leader, _ = elected()
    world.isolate(leader.id)
    assert leader.core is not None
    core = leader.core
    world.run(1.5 * world.config.fetch_timeout_ms + 1)
    assert core.leading is None, "it leads on, and nobody follows"
    assert world.run(20_000, until=lambda: world.established() is not None), "the others have a leader of their own"


@schedule(28, rule="A4: pre-vote", mutant="no-pre-vote")
def test_28_a_node_that_sends_and_does_not_receive() -> None:
    """A node whose receiving half is cut asks for elections for ever: nobody's epoch moves for it."""
    world, leader, (deaf, _) = elected()
    assert leader.core is not None
    epoch = leader.core.epoch
    for node in world.nodes:
        if node != deaf.id:
            world.cut(node, deaf.id, one_way=True)
    world.run(60_000)
    assert leader.core.epoch == epoch
    assert leader.core.leading is not None
    assert leader.append("still committed") is not None
    world.run(100)
    assert "still committed" in [value for _, _, value in leader.applied]


def test_a3_the_longer_of_two_logs_is_elected() -> None:
    """Rule A3: of two who are left, one has a committed record; whoever stands first, that one leads."""
    for seed in range(10):
        world, leader, (one, other) = elected(seed=seed)
        world.isolate(other.id)
        assert leader.append("committed") is not None
        assert world.run(1000, until=lambda: world.committed_to == 2)  # noqa: B023  the world of this round
        world.crash(leader.id)
        world.heal()
        assert world.run(20_000, until=lambda: world.established() is not None)  # noqa: B023
        assert world.established() is one


def test_a3_a_minority_elects_nobody() -> None:
    """Rule A3: two of five, cut off together, have no leader; the three have theirs, and one only."""
    world, leader, others = elected(5)
    assert leader.core is not None
    for node in (others[0], others[1]):
        for other in (leader, others[2], others[3]):
            world.cut(node.id, other.id)
    world.run(20_000)
    assert [node.id for node in world.leaders()] == [leader.id]


def test_a3_a_vote_is_for_one_directory() -> None:
    """Rule A3: an id under another directory id is another candidate (voters may be recorded without their
    directory)."""
    core = RaftCore(
        key=key(1),
        cluster_id=CLUSTER,
        voters=VoterSet(ReplicaKey(NodeId(node), None) for node in (1, 2, 3)),
        config=RaftConfig(),
        rng=random.Random(1),
        log=LogSummary(),
        saved=None,
        now_ms=0.0,
    )
    bench = Bench()
    bench.core = core
    granted = []
    for directory in (2, 99, 2):
        response = bench.ask(VoteRequest(CLUSTER, key(2, directory), 1, key(1), OffsetAndEpoch(0, 0), False))
        assert isinstance(response, VoteResponse)
        granted.append(response.granted)
    assert granted == [True, False, True]


def test_a4_a_leader_grants_no_pre_vote() -> None:
    """Rule A4: it has heard from a majority of late, or will resign by itself; a log longer than its own is no
    reason."""
    bench = Bench()
    bench.lead()
    end = bench.core.log.end
    request = bench.vote_request(epoch=end.epoch, last=(end.offset + 9, end.epoch), pre_vote=True)
    assert bench.ask(request) == VoteResponse(ErrorCode.NONE, end.epoch, NodeId(1), False)


def test_a5_a_single_voter_leads_on_in_its_epoch() -> None:
    """Rule A5: exempt, for nobody else could fetch; resigning would cost an epoch every few seconds."""
    bench = Bench(voters=1)
    bench.wait(1)
    epoch = bench.core.epoch
    bench.wait(100_000)
    assert (bench.role, bench.core.epoch) == (RoleKind.LEADER, epoch)
