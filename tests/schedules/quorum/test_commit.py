"""What is committed stays so: schedules 22, 25 and 26, and rule A6."""

from __future__ import annotations

from quorum_trial import Trial
from raft_bench import Bench, batch
from raft_invariants import CheckedWorld
from raft_node import SimNode
from raft_world import World

from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.ready import ElectionState, Ready
from strandline.proto.ids import NodeId
from tests.schedules.helpers import schedule
from tests.schedules.quorum.test_elections import elected


class OnlyWhatIsHandedOver(CheckedWorld):
    """Looks at nothing but committed records: the others of its invariants would break before the harm is done."""

    def after_ready(self, node: SimNode, ready: Ready) -> None:
        World.after_ready(self, node, ready)


def restart(world: CheckedWorld, *nodes: SimNode) -> None:
    for node in nodes:
        node.start()
    world.run(5)


@schedule(22, rule="A6: no entry of an older epoch commits by count", mutant="commit-by-count")
def test_22_figure_8() -> None:
    """Raft's figure 8 (logcabin#44, PySyncObj#169): X of an old epoch reaches a majority under a later leader, and is
    then overwritten by a leader whose log ends in an epoch between: X must not have been committed by its count."""
    world, first, (twin, third, fourth, fifth) = elected(5, world_type=OnlyWhatIsHandedOver)
    world.batches_max = 1
    x = world.committed_to
    for node in (third, fourth, fifth):
        world.cut(first.id, node.id)
    first.append("X")
    assert world.run(500, until=lambda: twin.durable.end_offset() == first.durable.end_offset() == x + 1)
    world.crash(first.id)
    world.isolate(twin.id)
    # The three that lack X elect one of them; it writes its first record, and dies before anybody has it.
    assert world.run(20_000, until=lambda: any(node is not first for node in world.leaders()))
    (between,) = (node for node in world.leaders() if node.core and node.core.epoch > x)
    rest = [node for node in (third, fourth, fifth) if node is not between]
    world.isolate(between.id)
    world.run(20)
    assert between.durable.end_offset() == x + 1
    world.crash(between.id)
    # One who has X leads again, in a later epoch; X reaches a third node, the new epoch's record does not.
    world.heal()
    follower, last = rest
    world.isolate(last.id)
    restart(world, first)

    def x_is_on_three() -> bool:
        leaders = [node for node in world.leaders() if node in (first, twin)]
        return bool(leaders) and leaders[-1].core.leading.voters[follower.id].end_offset == x + 1  # type: ignore[union-attr]

    assert world.run(20_000, until=x_is_on_three)
    for node in (follower, first, twin):
        world.crash(node.id, keep=1.0)
    assert follower.durable.end_offset() == x + 1
    # Who led in between has the newest last epoch of those who are left, and their votes.
    world.heal()
    restart(world, between, follower)
    assert world.run(20_000, until=lambda: world.established() is not None)
    assert world.established() is between
    world.run(2000)
    assert "X" not in [value for _, value in world.committed.values()]
    restart(world, first, twin)
    world.run(5000)
    for node in world.nodes.values():
        world.assert_all_applied(node)


@schedule(
    25,
    rule="A6: commit an entry of the own epoch first",
    mutant=("commit-by-count", "leadership-told-before-the-replay"),
)
def test_25_an_entry_of_the_own_epoch_first() -> None:
    """raft-dev t4xj6dJTP6E: a leader that changes the voters before it has committed anything in its epoch may meet
    another with a majority that is disjoint from its own. The voter set is fixed while a cluster runs, so what can be
    held is the rule that forbids it: a new leader counts nothing as committed, and nobody above it is told that it
    leads, before an entry of its own epoch is committed."""
    bench = Bench(saved=ElectionState(1), log=LogSummary(end_offset=5, epochs=((1, 0),)))
    bench.lead()
    assert bench.core.leading is not None
    bench.fetch(2, 5)
    bench.fetch(3, 5)
    assert bench.core.leading.epoch_high_watermark is None
    bench.fetch(2, 6)
    assert bench.core.leading.epoch_high_watermark == 6

    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        old = await trial.commit(b"a")
        others = [node for node in trial.nodes.values() if node is not old]
        trial.kill(old.number)
        quorums = {node.number: node.quorum for node in others}
        await trial.until(
            lambda: any(quorum and quorum.leader_and_epoch.leader_id == number for number, quorum in quorums.items())
        )
        (new,) = (node for node in others if node.quorum and node.quorum.leader_and_epoch.leader_id == node.number)
        trial.world.isolate(f"n{new.number}")
        await trial.world.sleep_ms(500)
        assert new.leader.leader_id != NodeId(new.number), "it was told to lead, and nothing of its epoch is committed"
        trial.world.heal()
        await trial.commit(b"b")

    trial.play(test)


@schedule(26, rule="A11: a wiped disk is another directory, and no voter", mutant="directory-id-is-ignored")
def test_26_a_voter_loses_its_disk() -> None:
    """KAFKA-12181: a committed record is on A and B; B comes back with an empty disk; with C it would elect a leader
    that lacks the record."""
    world, a, (b, c) = elected()
    world.isolate(c.id)
    a.append("committed")
    committed = world.committed_to + 1
    assert world.run(500, until=lambda: world.committed_to == committed)
    world.crash(b.id)
    world.crash(a.id)
    world.heal()
    b.wipe(99)
    restart(world, b)
    world.run(20_000)
    assert world.leaders() == [], "C and an empty disk are no majority"
    restart(world, a)
    assert world.run(20_000, until=lambda: world.established() is not None)
    world.run(2000)
    for node in (a, b, c):
        assert "committed" in [value for _, _, value in node.applied]


def test_a6_one_nodes_word_is_no_majority() -> None:
    """Rule A6: with both followers cut off nothing is committed, however long the leader's own log grows."""
    world, leader, others = elected()
    for node in others:
        world.isolate(node.id)
    committed = world.committed_to
    for value in "abc":
        leader.append(value)
    world.run(500)
    assert world.committed_to == committed


def test_a6_a_followers_high_watermark_does_not_go_back() -> None:
    """Rule A6: a new leader, and one that answers late, may know of a lower one."""
    bench = Bench()
    bench.follow(2)
    bench.fetched(batch(0, 1, 5), high_watermark=4)
    bench.flush()
    bench.fetched(high_watermark=2)
    assert bench.core.high_watermark == 4
