"""What befalls replicas over (virtual) time: lag, silence, full and failing disks, retention, unclean elections."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from structlog.testing import capture_logs

from strandline.chaos.sim.disk import DiskConfig
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import LeaderEpoch, NodeId, TopicPartition
from strandline.replica.states import ReadOutcome, ReplicaConfig, Role
from tests.replica.helpers import TP
from tests.replica.simulated import SimCluster

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
T = TypeVar("T")


class Scene(SimCluster):
    """Three brokers with one partition, led by node 1."""

    def __init__(self, **config: Any) -> None:
        super().__init__(1, config=ReplicaConfig(replica_lag_time_max_ms=3_000, **config))

    async def begin(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        await self.world.sleep_ms(200)
        self.create(1)
        await self.until(lambda: self.leads(1) and len(self.status(1).followers) == 2)
        await self.until(lambda: all(f.fetch_offset >= 0 for f in self.status(1).followers))


def test_a_follower_that_is_cut_off_leaves_and_comes_back() -> None:
    """Rules B5, B6, leaving and joining; schedule 14: the waiting append is answered when the shrink is committed."""

    async def scenario(scene: Scene) -> None:
        await scene.append(1)
        scene.world.partition("n1", "n3")
        started = scene.world.now_ms
        outcome = await scene.append(1)
        waited = scene.world.now_ms - started
        assert (outcome.error, outcome.synced_replicas) == (ErrorCode.NONE, (1, 2))
        assert 3_000 <= waited <= 5_000
        assert scene.isr == (ONE, TWO)
        assert scene.manager(1).under_replicated() == 1
        assert scene.manager(1).under_min_isr() == 0
        scene.world.heal()
        await scene.until(lambda: len(scene.isr) == 3)
        assert (await scene.append(1)).synced_replicas == (1, 2, 3)
        counters = scene.manager(1).counters
        await scene.until(lambda: counters.isr_expands > 0)
        assert scene.manager(1).replicated_out_bytes >= 2 * scene.manager(2).counters.replicated_in_bytes > 0
        assert (counters.isr_shrinks, counters.isr_expands) == (1, 1)

    Scene().play(scenario)


def test_a_follower_that_dies_is_not_waited_for_once_it_is_fenced() -> None:
    """The metadata shrink the ISR: the waiting append is answered at once."""

    async def scenario(scene: Scene) -> None:
        scene.world.power_cut("n3")
        waiting = asyncio.ensure_future(scene.append(1))
        await scene.world.sleep_ms(300)
        assert not waiting.done()
        scene.controller.fence(THREE)
        await scene.world.sleep_ms(100)
        assert waiting.result().synced_replicas == (1, 2)

    Scene().play(scenario)


def test_a_silent_stream_is_given_up() -> None:
    """A machine without power says nothing: both ends find out by themselves, and the follower comes back."""

    async def scenario(scene: Scene) -> None:
        connections = scene.manager(2).counters.connections
        scene.world.network.block("n1", "n2")
        await scene.until(lambda: 2 not in {f.node_id for f in connected(scene)}, within_ms=5_000)
        scene.world.heal()
        await scene.until(lambda: scene.manager(2).counters.connections > connections, within_ms=5_000)
        assert (await scene.append(1)).synced_replicas == (1, 2, 3)

    Scene(stream_timeout_ms=2_000).play(scenario)


def connected(scene: Scene) -> list[Any]:
    partition = scene.manager(1).partition(TP)
    assert partition is not None
    return [subscription.follower for subscription in partition.subscriptions.values()]


def test_idle_partitions_cost_no_bytes() -> None:
    """Design 6: an idle stream says one byte now and then, however many partitions it carries."""

    async def scenario(scene: Scene) -> int:
        await scene.append(1)
        await scene.world.sleep_ms(500)
        before = scene.world.network.delivered_bytes
        await scene.world.sleep_ms(10_000)
        return scene.world.network.delivered_bytes - before

    assert Scene(stream_timeout_ms=10_000).play(scenario) < 1_000


def test_the_leaders_disk_fails() -> None:
    """Schedules 18, 32, 56: the log is fenced, nothing more is written, the append is not acked; the controller
    is to hear of it at once, and moves the leadership. The node goes on."""

    async def scenario(scene: Scene) -> None:
        await scene.append(1)
        scene.world.machines["n1"].disk.faults.syncs = 1
        outcome = await scene.append(1)
        assert outcome.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await scene.append(1)).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert scene.status(1).role is Role.OFFLINE
        assert not scene.fatals
        assert scene.broker(1).changes > 0
        scene.controller.unserved(ONE, TP)
        await scene.until(lambda: scene.status(2).role is Role.LEADER)
        assert (await scene.append(2)).error is ErrorCode.NONE

    Scene().play(scenario)


def test_a_followers_disk_fails() -> None:
    """Its copy is offline and leaves the ISR; the node goes on, and so does the partition."""

    async def scenario(scene: Scene) -> None:
        scene.world.machines["n3"].disk.faults.writes = 1
        outcome = await scene.append(1)
        assert (outcome.error, outcome.synced_replicas) == (ErrorCode.NONE, (1, 2))
        assert scene.status(3).role is Role.OFFLINE
        assert scene.isr == (ONE, TWO)
        assert not scene.fatals
        assert scene.manager(3).counters.offline_logs == 1

    Scene().play(scenario)


def test_full_disks() -> None:
    """The caller is told and nothing was written; a follower waits until there is room again; nobody falls."""

    async def scenario(scene: Scene) -> None:
        await scene.append(1)
        machines = scene.world.machines
        roomy = DiskConfig().capacity_bytes
        machines["n1"].disk.config.capacity_bytes = 0
        for _ in range(100):
            outcome = await scene.append(1, b"x" * 3_000, acks=1)
            if outcome.error is not ErrorCode.NONE:
                break
        assert (outcome.error, outcome.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        machines["n1"].disk.config.capacity_bytes = roomy
        await scene.until(lambda: not scene.manager(1).directories.full, within_ms=10_000)
        machines["n3"].disk.config.capacity_bytes = 0
        waiting = asyncio.ensure_future(scene.append(1, b"y" * 3_000))
        with capture_logs() as said:
            await scene.world.sleep_ms(1_000)
        assert not waiting.done()
        refusals = [line for line in said if line["event"] == "replicated data cannot be appended"]
        assert 1 <= len(refusals) <= 10, "the pauses grow: it neither fetches nor logs the same without end"
        machines["n3"].disk.config.capacity_bytes = roomy
        assert (await waiting).synced_replicas == (1, 2, 3)
        assert not scene.fatals

    Scene().play(scenario)


def test_retention_overtakes_a_follower() -> None:
    """OFFSET_OUT_OF_RANGE: what it lacks is gone; it starts anew at the leader's log start. Schedule 16: its own log
    start follows the leader's, at most to its high watermark."""

    async def scenario(scene: Scene) -> None:
        for _ in range(3):
            await scene.append(1)
        scene.world.kill("n3")
        scene.controller.fence(THREE)
        for _ in range(5):
            await scene.append(1)
        log = scene.manager(1).partition(TP).log  # type: ignore[union-attr]
        assert log is not None
        log.delete_records_before(6)
        scene.broker(3).start()
        await scene.until(lambda: len(scene.isr) == 3)
        assert (scene.status(3).log_start_offset, scene.status(3).log_end_offset) == (6, 8)
        await scene.append(1)
        await scene.until(lambda: scene.status(2).log_start_offset == 6)

    Scene().play(scenario)


def test_a_cut_below_the_high_watermark_is_refused() -> None:
    """Rule B8, KAFKA-12460: a leader that lacks what was committed, and no unclean election to explain it: this copy is
    kept as it is, offline, and says why."""

    async def scenario(scene: Scene) -> None:
        await lose_committed(scene, unclean=False)
        await scene.until(lambda: scene.status(1).role is Role.OFFLINE)
        assert "lacks records below the high watermark 4" in scene.status(1).reason
        assert "unclean.leader.election.enable" in scene.status(1).reason

    Scene().play(scenario)


def test_after_an_unclean_election_it_is_cut_and_told() -> None:
    """Allowed, loud, and counted."""

    async def scenario(scene: Scene) -> None:
        await lose_committed(scene, unclean=True)
        await scene.until(lambda: scene.status(1).log_end_offset == 1)
        assert scene.manager(1).counters.truncations_below_high_watermark == 1
        assert scene.status(1).high_watermark <= 1
        assert scene.status(1).role is Role.FOLLOWER

    Scene().play(scenario)


async def lose_committed(scene: Scene, *, unclean: bool) -> None:
    """Node 3 sleeps while 1 and 2 commit four records; then it leads, having one."""
    await scene.append(1)
    await scene.until(lambda: scene.status(3).log_end_offset == 1)
    scene.world.kill("n3")
    scene.controller.fence(THREE)
    for _ in range(3):
        await scene.append(1)
    await scene.until(lambda: scene.status(1).high_watermark == 4)
    scene.broker(3).cut_off = True
    scene.broker(3).start()
    scene.broker(3).reach()
    scene.world.partition("n1", "n3")
    await scene.world.sleep_ms(300)
    controller = scene.controller
    if unclean:
        controller.elect_uncleanly(TP, THREE)
    else:
        epoch = LeaderEpoch(controller.state(TP).leader_epoch + 1)
        controller.change(TP, leader=THREE, isr=(THREE,), leader_epoch=epoch)
    scene.world.heal()


def test_leadership_is_lost_while_the_disk_is_read() -> None:
    """Schedule 17: the read's bounds are those of a leadership that is over: it has no answer."""

    async def scenario(scene: Scene) -> None:
        await scene.append(1)
        scene.world.machines["n1"].disk.config.cold_probability = 1.0
        scene.world.machines["n1"].disk.config.read_min_us = scene.world.machines["n1"].disk.config.read_max_us = 50_000
        reads: list[asyncio.Future[ReadOutcome]] = []
        scene.broker(1).run(lambda manager: reads.append(asyncio.ensure_future(manager.read_cold(TP, 0, 1_000))))
        await scene.world.sleep_ms(1)
        scene.controller.elect(TP, TWO)
        await scene.until(lambda: scene.status(1).role is Role.FOLLOWER)
        assert not reads[0].done()
        assert (await reads[0]).error is ErrorCode.NOT_LEADER_OR_FOLLOWER

    Scene().play(scenario)


def test_a_new_leader_is_followed_at_once() -> None:
    """Failover costs a metadata change and a fetch, no timeout: the streams are there."""

    async def scenario(scene: Scene) -> float:
        await scene.append(1)
        scene.controller.elect(TP, TWO)
        started = scene.world.now_ms
        await scene.until(lambda: scene.status(2).role is Role.LEADER)
        assert (await scene.append(2)).error is ErrorCode.NONE
        return scene.world.now_ms - started

    assert Scene().play(scenario) < 150


def test_hosting_many_partitions_is_cheap_when_nothing_happens() -> None:
    """Design 8: no timer or task a partition: three hundred idle partitions wake nobody more than one does."""

    async def scenario(scene: Scene) -> tuple[int, int]:
        await scene.world.sleep_ms(2_000)
        wakeups = []
        for partitions in (1, 300):
            if partitions > 1:
                many(scene, partitions)
                await scene.world.sleep_ms(5_000)
            before = scene.world.loop.events
            await scene.world.sleep_ms(10_000)
            wakeups.append(scene.world.loop.events - before)
        return wakeups[0], wakeups[1]

    one, many_of_them = Scene().play(scenario)
    assert many_of_them < one * 1.5 + 200


def many(scene: Scene, partitions: int) -> None:
    from dataclasses import replace

    template = scene.controller.state(TP)
    for number in range(1, partitions):
        scene.controller.create(replace(template, partition=number))
    assert TopicPartition("t", 5) in {s.topic_partition for s in scene.controller.partitions.values()}
