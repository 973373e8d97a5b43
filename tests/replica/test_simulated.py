"""The production replica under faults: no acked record is lost, reads are consistent, logs become equal (rules B,
invariants: LeaderCompleteness, LogMatching, NoCommittedRecordLostGlobally, ConsistentRead; schedules 1 to 10, 14,
15)."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from strandline.chaos.sim.seeds import split
from strandline.log.batch import decode_records, iter_batches
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_NODE, TopicPartition
from strandline.proto.marks import counts
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import Append, AppendDone
from strandline.replica.states import Role
from tests.replica.helpers import batch
from tests.replica.simulated import SimBroker, SimCluster

ROUNDS = 12


class History:
    """What clients saw.

    `acked`: value -> (partition, offset) of every append with acks=all that was answered NONE; `seen`: what was read at
    an offset below a high watermark: it must never be anything else (ConsistentRead).
    """

    def __init__(self) -> None:
        self.acked: dict[bytes, tuple[TopicPartition, int]] = {}
        self.refused: dict[bytes, ErrorCode] = {}
        self.seen: dict[tuple[TopicPartition, int], bytes] = {}
        self.reads = 0

    def read(self, tp: TopicPartition, data: bytes) -> None:
        self.reads += 1
        for _, view in iter_batches(memoryview(data)):
            for record in decode_records(view):
                value = record.value or b""
                before = self.seen.setdefault((tp, record.offset), value)
                assert before == value, f"{tp} offset {record.offset}: {before!r} was read, then {value!r}"
                assert value not in self.refused, f"{value!r} was refused as not written and is committed"


DEFINITE = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR}


async def produce(cluster: SimCluster, tp: TopicPartition, name: str, history: History, stop: asyncio.Event) -> None:
    """Append unique values to whoever leads; an append that is not answered in time is given up (indeterminate)."""
    rng, loop = cluster.rng, cluster.world.loop
    number = 0
    while not stop.is_set():
        await cluster.world.sleep_ms(rng.uniform(0.2, 20))
        leader = cluster.controller.state(tp).leader
        if leader == NO_NODE:
            continue
        number += 1
        value = f"{name}-{number}-".encode() + b"." * rng.choice([1, 1, 1, 500])
        answered: asyncio.Future[Append] = loop.create_future()

        def answer(outcome: Append, answered: asyncio.Future[Append] = answered) -> None:
            if not answered.done():
                answered.set_result(outcome)

        def append(manager: ReplicaManager, value: bytes = value, done: AppendDone = answer) -> None:
            manager.append(tp, batch(value), -1, done)

        cluster.brokers[leader].run(append)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                outcome = await answered
                if outcome.error is ErrorCode.NONE:
                    assert value not in history.acked
                    history.acked[value] = (tp, outcome.base_offset)
                    assert len(outcome.synced_replicas) >= 2, outcome
                elif outcome.error in DEFINITE:
                    history.refused[value] = outcome.error


async def consume(cluster: SimCluster, tps: list[TopicPartition], history: History, stop: asyncio.Event) -> None:
    """Read anything that any broker serves as leader: also those that no longer are."""
    rng = cluster.rng
    high_watermarks: dict[tuple[object, TopicPartition, int], int] = {}

    def read(manager: ReplicaManager) -> None:
        tp = rng.choice(tps)
        partition = manager.partition(tp)
        if partition is None or partition.leader is None:
            return
        epoch = partition.leader.leader_epoch
        start = rng.randint(int(partition.log.log_start_offset), partition.high_watermark) if partition.log else 0
        outcome = manager.read(tp, start, rng.choice([100, 100_000]))
        if outcome is not None:
            assert outcome.error is ErrorCode.NONE, outcome
            key = (manager, tp, epoch)
            assert outcome.high_watermark >= high_watermarks.get(key, -1), "a leader's high watermark fell"
            high_watermarks[key] = outcome.high_watermark
            history.read(tp, outcome.data)

    while not stop.is_set():
        await cluster.world.sleep_ms(5)
        for broker in cluster.brokers.values():
            broker.run(read)


async def trouble(cluster: SimCluster, rng: random.Random, rounds: int) -> None:
    """Kill, cut the power, part the network, cut off from the controller, pause: now and then two at once."""
    world = cluster.world
    for _ in range(rounds):
        await world.sleep_ms(rng.uniform(100, 1_500))
        node = rng.choice(list(cluster.brokers))
        broker = cluster.brokers[node]
        other = cluster.brokers[rng.choice(list(cluster.brokers))]
        what = rng.choice(["kill", "power", "part", "cut", "pause", "heal", "restart", "elect", "all"])
        if what == "kill":
            world.kill(broker.name)
        elif what == "power":
            world.power_cut(broker.name)
        elif what == "all":
            for each in cluster.brokers.values():
                world.power_cut(each.name)
        elif what == "part" and other is not broker:
            world.partition(broker.name, other.name, one_way=rng.random() < 0.5)
        elif what == "cut":
            broker.cut()
        elif what == "pause":
            world.pause(broker.name)
            await world.sleep_ms(rng.uniform(10, 1_000))
            world.resume(broker.name)
        elif what == "elect":
            for state in list(cluster.controller.partitions.values()):
                cluster.controller.elect(state.topic_partition, rng.choice(state.replicas))
        elif what == "heal":
            heal(cluster)
        if rng.random() < 0.6:
            restart(cluster)


def restart(cluster: SimCluster) -> None:
    for broker in cluster.brokers.values():
        if not broker.alive:
            broker.start()


def heal(cluster: SimCluster) -> None:
    cluster.world.heal()
    for broker in cluster.brokers.values():
        broker.reach()


def committed_bytes(broker: SimBroker, tp: TopicPartition) -> bytes:
    assert broker.log_dir is not None
    assert broker.manager is not None
    log = broker.log_dir.logs[tp]
    partition = broker.manager.partition(tp)
    assert partition is not None
    data, offset, end = [], int(log.log_start_offset), partition.high_watermark
    while offset < end:
        read = log.read(offset, 1 << 20, end)
        if read is not None:  # else its bytes are cold this time
            data.append(read.data)
            offset = read.next_offset
    return b"".join(data)


def whole(cluster: SimCluster, tps: list[TopicPartition]) -> bool:
    """Every replica is in sync, at the end, and knows that everything is committed."""
    for tp in tps:
        if len(cluster.controller.state(tp).isr) < len(cluster.brokers):
            return False
        ends = set()
        for broker in cluster.brokers.values():
            partition = broker.manager.partition(tp) if broker.manager is not None else None
            if partition is None or partition.log is None or partition.role not in (Role.LEADER, Role.FOLLOWER):
                return False
            ends.add((int(partition.log.log_end_offset), partition.high_watermark))
        if len(ends) != 1 or len(set(ends.pop())) != 1:
            return False
    return True


async def scenario(cluster: SimCluster, seed: int) -> History:
    history, stop = History(), asyncio.Event()
    for broker in cluster.brokers.values():
        broker.start()
    await cluster.world.sleep_ms(200)
    tps = cluster.create(2)
    sessions = asyncio.ensure_future(cluster.keep_sessions())
    clients = [asyncio.ensure_future(produce(cluster, tp, f"{tp}-{i}", history, stop)) for tp in tps for i in range(2)]
    clients.append(asyncio.ensure_future(consume(cluster, tps, history, stop)))
    await trouble(cluster, split(seed, "trouble"), ROUNDS)
    heal(cluster)
    restart(cluster)
    await cluster.world.sleep_ms(2_000)
    acked_before = len(history.acked)
    await cluster.world.sleep_ms(1_000)
    stop.set()
    await asyncio.gather(*clients)
    assert len(history.acked) > acked_before, "healed, and nothing is acked any more"
    for _ in range(200):
        await cluster.world.sleep_ms(100)
        if whole(cluster, tps):
            break
    else:
        raise AssertionError([broker.manager and broker.manager.hosted() for broker in cluster.brokers.values()])
    check(cluster, tps, history)
    sessions.cancel()
    return history


def check(cluster: SimCluster, tps: list[TopicPartition], history: History) -> None:
    """The end: equal logs, every acked record where it was acked."""
    found: dict[tuple[TopicPartition, int], bytes] = {}
    for tp in tps:
        logs = {broker.node: committed_bytes(broker, tp) for broker in cluster.brokers.values()}
        assert len(set(logs.values())) == 1, "the replicas' committed bytes differ"
        for _, view in iter_batches(memoryview(logs[next(iter(logs))])):
            for record in decode_records(view):
                found[tp, record.offset] = record.value or b""
    for value, place in history.acked.items():
        assert found.get(place) == value, f"acked {value!r} at {place}, which holds {found.get(place)!r}"
    for place, value in history.seen.items():
        assert found.get(place) == value, f"read {value!r} at {place}, which holds {found.get(place)!r}"


def run(seed: int, throttled_rate: int | None = None) -> History:
    cluster = SimCluster(seed, throttled_rate=throttled_rate)
    history = cluster.play(lambda cluster: scenario(cluster, seed))
    assert not cluster.fatals, cluster.fatals
    return history


@pytest.mark.parametrize("seed", range(8))
def test_nothing_acked_is_lost(seed: int) -> None:
    """Kills, power cuts, partitions, zombie leaders, lost answers of the controller; then healing (rule E4: safety
    first, then liveness)."""
    history = run(seed)
    assert history.acked
    assert history.reads


@pytest.mark.parametrize("seed", [1, 5, 12])
def test_nothing_acked_is_lost_while_replicas_are_throttled(seed: int) -> None:
    """The same under replication quotas (KIP-73): who is behind catches up slowly, and does."""
    before = counts()["replication-throttled-at-the-follower"]
    assert run(seed, throttled_rate=50_000).acked
    assert counts()["replication-throttled-at-the-follower"] > before
