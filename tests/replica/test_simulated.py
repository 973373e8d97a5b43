"""The production replica under faults: no acked record is lost, reads are consistent, logs become equal (rules B,
invariants: LeaderCompleteness, LogMatching, NoCommittedRecordLostGlobally, ConsistentRead; schedules 1 to 10, 14,
15)."""

from __future__ import annotations

import asyncio

import pytest

from strandline.chaos.sim.seeds import split
from strandline.log.batch import iter_batches
from strandline.log.records import decode_records
from strandline.proto.ids import TopicPartition
from strandline.replica.states import Role
from tests.replica.simulated import (
    History,
    SimBroker,
    SimCluster,
    consume,
    heal,
    produce,
    restart,
    trouble,
)

ROUNDS = 12


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


def run(seed: int) -> History:
    cluster = SimCluster(seed)
    history = cluster.world.run(scenario(cluster, seed))
    assert not cluster.world.loop.unhandled, cluster.world.loop.unhandled[0]
    assert not cluster.fatals, cluster.fatals
    return history


@pytest.mark.parametrize("seed", range(8))
def test_nothing_acked_is_lost(seed: int) -> None:
    """Kills, power cuts, partitions, zombie leaders, lost answers of the controller; then healing (rule E4: safety
    first, then liveness)."""
    history = run(seed)
    assert history.acked
    assert history.reads
