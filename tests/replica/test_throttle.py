"""Replication quotas (KIP-73): what is behind catches up at the rate, and nobody else waits for that (rule A21)."""

from __future__ import annotations

from uuid import UUID

import pytest

from strandline.log.config import LogConfig
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId, TopicPartition
from strandline.proto.marks import counts
from strandline.replica.manager import ReplicaManager
from strandline.replica.states import ReplicaConfig
from strandline.replica.throttle import UNLIMITED, ReplicationQuota
from tests.replica.fake_controller import partition_state
from tests.replica.helpers import batch
from tests.replica.simulated import SimCluster

WINDOW_BYTES, CHUNK_BYTES = 16_000, 4_000
SIDES = ("leader", "follower")


def test_a_second_of_the_rate_goes_at_once_and_the_rest_is_paid_for() -> None:
    quota = ReplicationQuota()
    quota.take(1 << 40, 0.0)
    assert quota.wait_ms(0.0) == 0.0, "without a limit nothing is owed"
    quota.set_limit(1_000, 0.0)
    quota.take(1_000, 0.0)
    assert quota.wait_ms(0.0) == 0.0
    quota.take(500, 0.0)
    assert quota.wait_ms(0.0) == pytest.approx(500)
    assert quota.wait_ms(600.0) == 0.0
    quota.take(1_100, 60_000.0)
    assert quota.wait_ms(60_000.0) == pytest.approx(100), "a pause of a minute is worth a second"


def test_another_limit_counts_at_once_for_what_is_owed() -> None:
    quota = ReplicationQuota()
    quota.set_limit(10, 0.0)
    quota.take(1_010, 0.0)
    assert quota.wait_ms(0.0) == pytest.approx(100_000)
    quota.set_limit(1_000, 50_000.0)
    assert quota.wait_ms(50_000.0) == pytest.approx(500), "500 bytes were paid for at the old limit"
    quota.set_limit(UNLIMITED, 50_000.0)
    assert quota.wait_ms(50_000.0) < 1e-6


def test_the_rate_is_over_kafkas_windows() -> None:
    quota = ReplicationQuota()
    for second in range(30):
        quota.take(700, second * 1_000.0)
    assert quota.byte_rate(29_500.0) == pytest.approx(700, rel=0.1)
    assert quota.byte_rate(60_000.0) == 0.0


class Catching(SimCluster):
    """Node 1 leads, node 2 is in the ISR; node 3 comes when both have the records. The partitions in `throttled` are
    listed as such on one side, `free` is not."""

    def __init__(self, side: str, *, throttled: int = 1, nodes: int = 3, seed: int = 1) -> None:
        config = ReplicaConfig(
            replica_lag_time_max_ms=3_000, fetch_window_bytes=WINDOW_BYTES, fetch_chunk_bytes=CHUNK_BYTES
        )
        super().__init__(seed, nodes=nodes, config=config)
        self.clean_stops = True
        self.side = side
        self.throttled = [TopicPartition("t", number) for number in range(throttled)]
        self.free = TopicPartition("t", throttled)

    def limit(self, rate: int, *nodes: int) -> None:
        """Of the leader, or of the followers, or of these nodes."""
        for node in nodes or ((1,) if self.side == "leader" else (2, 3)):
            manager = self.manager(node)
            throttle = manager.leader_throttle if self.side == "leader" else manager.follower_throttle
            throttle.set_limit(rate)

    async def stand_up(self) -> None:
        for node in (1, 2):
            self.broker(node).start()
        await self.until(lambda: len(self.controller.brokers) == 2, "two brokers")
        await self.world.sleep_ms(100)
        for tp in (*self.throttled, self.free):
            self.create_one(tp, listed=tp != self.free)
        await self.world.sleep_ms(100)

    def create_one(self, tp: TopicPartition, *, listed: bool) -> None:
        self.controller.create(
            partition_state(
                topic_id=UUID(int=9),
                replicas=tuple(self.brokers),
                isr=(NodeId(1), NodeId(2)),
                partition=tp.partition,
                log_config=LogConfig(segment_bytes=1 << 20),
                **{f"{self.side}_throttled": listed},
            )
        )

    async def fill(self, tp: TopicPartition, count: int, size: int = 1_000) -> None:
        """Records that node 1 and node 2 have."""
        for _ in range(count):
            assert (await self.put(tp, b"." * size)) is ErrorCode.NONE

    async def put(self, tp: TopicPartition, value: bytes) -> ErrorCode:
        """A client's append with acks=all; it must be answered within a second."""
        answered = self.world.loop.create_future()

        def append(manager: ReplicaManager) -> None:
            manager.append(tp, batch(value), -1, answered.set_result)

        self.broker(1).run(append)
        await self.until(answered.done, f"an append to {tp}", within_ms=1_000)
        error: ErrorCode = answered.result().error
        return error

    async def newcomer(self, rate: int) -> None:
        """Node 3 begins to follow, under the rate."""
        self.broker(3).cut()
        self.broker(3).start()
        await self.until(lambda: self.broker(3).manager is not None, "a process on node 3")
        self.limit(rate)
        self.broker(3).reach()

    def has(self, tp: TopicPartition) -> int:
        """Bytes that node 3 has of it."""
        log_dir = self.broker(3).log_dir
        log = log_dir.logs.get(tp) if log_dir is not None else None
        return 0 if log is None else log.size_bytes

    def lacks(self, tp: TopicPartition) -> int:
        log_dir = self.broker(1).log_dir
        assert log_dir is not None
        return log_dir.logs[tp].size_bytes - self.has(tp)

    def in_sync(self, tp: TopicPartition) -> bool:
        return len(self.controller.state(tp).isr) == 3


@pytest.mark.parametrize("side", SIDES)
def test_a_replica_out_of_the_isr_catches_up_at_the_rate_and_nobody_waits_for_it(side: str) -> None:
    """KIP-73: the throttled partition comes at the rate; the other partition of the same stream at once; the ISR is not
    throttled, whatever is owed; what counts is a raised rate, at once. What was sent was kept: nothing went twice."""

    async def scenario(cluster: Catching) -> None:
        (throttled,), free, rate = cluster.throttled, cluster.free, 10_000
        await cluster.stand_up()
        await cluster.fill(throttled, 200)
        await cluster.fill(free, 200)
        sent_before = cluster.manager(1).replicated_out_bytes
        await cluster.newcomer(rate)
        await cluster.until(lambda: cluster.in_sync(free), "the free partition", within_ms=2_000)
        slack = rate + WINDOW_BYTES + CHUNK_BYTES
        before, began_ms = cluster.has(throttled), cluster.world.now_ms
        assert before <= slack + 2 * rate
        await cluster.world.sleep_ms(8_000)
        seconds = (cluster.world.now_ms - began_ms) / 1_000
        assert rate * seconds * 0.9 - slack <= cluster.has(throttled) - before <= rate * seconds * 1.1 + slack
        assert await cluster.put(throttled, b"the ISR has it") is ErrorCode.NONE
        assert not cluster.in_sync(throttled)
        assert counts()[f"replication-throttled-at-the-{side}"] > 0
        cluster.limit(10_000_000)
        await cluster.until(lambda: cluster.in_sync(throttled), "the throttled partition", within_ms=1_000)
        lacked = cluster.has(throttled) + cluster.has(free)
        sent = cluster.manager(1).replicated_out_bytes - sent_before
        assert lacked <= sent <= lacked + 2_000

    Catching(side).play(scenario)


@pytest.mark.parametrize("by", ["list", "rate"])
@pytest.mark.parametrize("side", SIDES)
def test_what_is_owed_for_long_holds_up_neither_the_isr_nor_an_operator(side: str, by: str) -> None:
    """A list that no longer names the replica counts at once, and so does another rate."""

    async def scenario(cluster: Catching) -> None:
        (tp,) = cluster.throttled
        await cluster.stand_up()
        await cluster.fill(tp, 100)
        await cluster.newcomer(1)
        await cluster.world.sleep_ms(5_000)
        assert cluster.lacks(tp) > 0
        assert await cluster.put(tp, b"the ISR has it") is ErrorCode.NONE
        if by == "list":
            cluster.controller.change(tp, **{f"{side}_throttled": False})
        else:
            cluster.limit(10_000_000)
        await cluster.until(lambda: cluster.in_sync(tp), "the replica", within_ms=1_000)

    Catching(side).play(scenario)


@pytest.mark.parametrize("side", SIDES)
def test_of_many_throttled_partitions_none_is_left_behind(side: str) -> None:
    """They share the rate, in turn, though a window holds a few of them only."""

    async def scenario(cluster: Catching) -> None:
        await cluster.stand_up()
        for tp in cluster.throttled:
            await cluster.fill(tp, 40)
        await cluster.newcomer(20_000)
        await cluster.world.sleep_ms(12_000)
        got = [cluster.has(tp) for tp in cluster.throttled]
        assert max(got) < 43_000, "nobody is done"
        assert min(got) > 0.25 * max(got)
        await cluster.until(lambda: all(map(cluster.in_sync, cluster.throttled)), "all of them", within_ms=60_000)

    Catching(side, throttled=10).play(scenario)


@pytest.mark.parametrize("side", SIDES)
def test_any_rate_makes_progress(side: str) -> None:
    """One byte a second: one batch after the other."""

    async def scenario(cluster: Catching) -> None:
        (tp,) = cluster.throttled
        await cluster.stand_up()
        await cluster.fill(tp, 6, size=1)
        await cluster.newcomer(1)
        await cluster.until(lambda: cluster.in_sync(tp), "the replica", within_ms=900_000)

    Catching(side).play(scenario)


@pytest.mark.parametrize("side", SIDES)
def test_a_batch_in_pieces_comes_whole_and_holds_up_no_other(side: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Schedule 54: one batch at a time goes in pieces, so one that is throttled goes to its end. What is on its way
    behind one that is not taken does not fit, and is not tried."""

    async def scenario(cluster: Catching) -> None:
        (throttled,), free = cluster.throttled, cluster.free
        await cluster.stand_up()
        for _ in range(8):
            await cluster.fill(throttled, 1, size=30_000)
            await cluster.fill(throttled, 6, size=1_000)
            await cluster.fill(throttled, 1, size=5_000)
            await cluster.fill(throttled, 3, size=100)
        await cluster.fill(free, 8, size=30_000)
        await cluster.newcomer(10_000)
        await cluster.until(lambda: cluster.in_sync(free), "the free partition", within_ms=2_000)
        assert 0 < cluster.has(throttled) < 100_000
        await cluster.until(lambda: cluster.in_sync(throttled), "the throttled partition", within_ms=60_000)

    Catching(side).play(scenario)
    assert "cannot be appended" not in capsys.readouterr().out


def test_who_is_about_to_join_is_not_throttled() -> None:
    """Rule B4: the high watermark waits for who has caught up, also while it cannot be proposed: here node 4 is, and
    the controller does not answer."""

    async def scenario(cluster: Catching) -> None:
        (tp,) = cluster.throttled
        await cluster.stand_up()
        cluster.broker(1).late = []
        cluster.broker(4).start()
        await cluster.until(lambda: cluster.broker(1).late, "a proposal")
        cluster.broker(3).start()
        partition = cluster.manager(1).partition(tp)
        assert partition is not None
        await cluster.until(lambda: 3 in partition.subscriptions, "a fetch of node 3")
        cluster.limit(1)
        cluster.manager(1).leader_throttle.take(1_000_000)
        for value in (b"a", b"b"):
            assert await cluster.put(tp, value) is ErrorCode.NONE
        assert cluster.lacks(tp) == 0

    Catching("leader", nodes=4).play(scenario)
