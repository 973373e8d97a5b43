"""What was acknowledged is on disks: schedules 18, 20, 23, 24, 30 and 32, and rule A9."""

from __future__ import annotations

from quorum_trial import Trial
from raft_bench import Bench

from strandline.controller.quorum.api import LeaderAndEpoch
from strandline.controller.raft.messages import Batch
from strandline.controller.raft.ready import Append
from tests.schedules.helpers import schedule
from tests.schedules.quorum.test_commit import OnlyWhatIsHandedOver
from tests.schedules.quorum.test_elections import elected


@schedule(23, rule="A8, A9: flush before the ack", mutant=("fetch-before-flush", "count-before-sync"))
def test_23_no_flush_crash_the_high_watermark_goes_back() -> None:
    """KAFKA-10533: a record is committed, all nodes lose power at once: the high watermark must not have gone back."""
    world, leader, others = elected(world_type=OnlyWhatIsHandedOver)
    world.flush_range_ms = (20.0, 20.0)
    leader.append("acked")
    assert world.run(1000, until=lambda: world.committed_to == 2)
    nodes = [leader, *others]
    for node in nodes:
        world.crash(node.id, keep=0.0)
    for node in nodes:
        node.start()
    world.run(20_000)
    for node in nodes:
        world.assert_all_applied(node)


@schedule(30, rule="A8: fsync before ack", mutant="fetch-before-flush")
def test_30_unsynced_writes_of_one_node_lost() -> None:
    """nats-server#7567: one node of three loses what it had not synced, and makes the next majority with the one that
    never had it: split brain."""
    world, leader, (forgetful, absent) = elected(world_type=OnlyWhatIsHandedOver)
    world.isolate(absent.id)
    forgetful.hold_flush = True
    leader.append("acked")
    world.run(500)
    acked = world.committed_to == 2
    world.crash(forgetful.id, keep=0.0)
    world.crash(leader.id)
    world.heal()
    forgetful.start()
    assert world.run(20_000, until=lambda: world.established() is not None)
    successor = world.established()
    assert successor is not None
    successor.append("after")
    world.run(500)
    leader.start()
    world.run(5000)
    assert not acked or "acked" in [value for _, value in world.committed.values()]
    for node in world.nodes.values():
        world.assert_all_applied(node)


@schedule(24, rule="A9: a leader whose own write failed steps down", mutant="leader-stays-after-a-failed-write")
def test_24_a_leader_whose_own_write_fails() -> None:
    """canonical/raft#320: X may be on others although the own write of it failed; Y must not follow at the same
    (offset, epoch)."""
    bench = Bench()
    bench.lead()
    end = bench.core.log.end_offset
    bench.core.append(Batch(end, end + 1, bench.core.epoch, b"X"), bench.now)
    bench.drain()
    bench.core.append_failed(end, bench.now)
    bench.drain()
    if bench.core.leading is not None:
        bench.core.append(Batch(end, end + 1, bench.core.epoch, b"Y"), bench.now)
    bench.wait(5000)
    ordered: dict[tuple[int, int], object] = {}
    for ready in bench.outputs:
        for action in ready.log:
            if isinstance(action, Append):
                at = (action.batch.base_offset, action.batch.epoch)
                assert ordered.setdefault(at, action.batch.data) == action.batch.data, at


@schedule(32, rule="A9: a failed sync is never retried", mutant="failed-sync-is-retried")
def test_32_a_failed_sync_retried_with_success() -> None:
    """The second fsync says yes over bytes that the kernel has dropped: what it acks is gone with the power."""
    trial = Trial(voters=1)

    async def test(trial: Trial) -> None:
        trial.start()
        node = await trial.commit(b"a")
        trial.world.machines["n1"].disk.faults.syncs = 1
        trial.append(node, b"unsure")
        await trial.world.sleep_ms(1000)
        acked = list(node.values)
        trial.world.power_cut("n1")
        await trial.world.sleep_ms(20)
        trial.start()
        await trial.until(lambda: trial.nodes[1].values)
        await trial.world.sleep_ms(1000)
        assert trial.nodes[1].values[: len(acked)] == acked

    trial.play(test)


def test_a9_what_a_restart_finds_is_synced_before_it_counts() -> None:
    """Rule A9: a follower was killed between write and sync; the next process finds the record, and its first fetch
    acknowledges it. Then the power fails there, and the leader dies."""
    for seed in range(8):
        trial = Trial(seed=seed)

        async def test(trial: Trial) -> None:
            trial.start()
            leader = await trial.commit(b"a")
            follower, third = (node.number for node in trial.nodes.values() if node is not leader)
            await trial.until(lambda: trial.nodes[follower].values == [b"a"])
            trial.world.isolate(f"n{third}")
            disk = trial.world.machines[f"n{follower}"].disk
            disk.config.slow_factor = 1000.0
            trial.append(leader, b"b")
            await trial.world.sleep_ms(15)
            trial.kill(follower)
            assert leader.values == [b"a"]
            disk.config.slow_factor = 1.0
            trial.start(follower)
            await trial.until(lambda: leader.values == [b"a", b"b"])
            trial.power_cut(follower)
            trial.kill(leader.number)
            leader.leader = LeaderAndEpoch(None, 0)
            trial.world.heal()
            trial.start(follower)
            node = await trial.commit(b"c")
            assert node.values == [b"a", b"b", b"c"]

        trial.play(test)
