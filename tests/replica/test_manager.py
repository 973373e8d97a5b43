"""The manager on real logs and files: acks, reads, roles, deletion, restart."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from strandline.log.batch import decode_records, iter_batches
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_NODE, LeaderEpoch, NodeId, PartitionEpoch, TopicIdPartition, TopicPartition
from strandline.replica.partition import Append
from strandline.replica.states import Role
from tests.replica.fake_controller import partition_state
from tests.replica.helpers import TOPIC_ID, TP, Broker, Cluster, batch, running, until

pytestmark = pytest.mark.usefixtures("logs_made_at_once")


def test_acks(tmp_path: Path) -> None:
    """Rule B9, acks: 0 and 1 after the local append; all once the ISR has synced it. One copy of the truth on three."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            leader = cluster[1]
            for acks, base in ((0, 0), (1, 1)):
                answered = leader.append(TP, batch(b"a"), acks)
                assert answered.done()
                outcome = answered.result()
                assert (outcome.error, outcome.message, outcome.base_offset) == (ErrorCode.NONE, "", base)
            waiting = leader.append(TP, batch(b"b", count=3))
            assert not waiting.done()
            outcome = await waiting
            assert (outcome.error, outcome.base_offset, outcome.log_start_offset) == (ErrorCode.NONE, 2, 0)
            assert outcome.synced_replicas == (1, 2, 3)
            assert len({broker.log_bytes() for broker in cluster.brokers.values()}) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("policy", ["ack", "replicate"])
def test_many_appends_end_equal(tmp_path: Path, policy: str) -> None:
    """LogMatching: three partitions led by three brokers, hundreds of batches of all sizes, equal bytes in the end."""

    async def scenario() -> None:
        async with running(tmp_path, flush_policy=policy, fetch_window_bytes=64_000) as cluster:
            tps = [TopicPartition("t", number) for number in range(3)]
            for number in range(3):
                cluster.create(partition=number, replicas=tuple((number + i) % 3 + 1 for i in range(3)))
            futures = []
            for i in range(300):
                for number, tp in enumerate(tps):
                    leader = cluster.brokers[number + 1]
                    futures.append(leader.append(tp, batch(b"%d" % i * (i % 50 * 20 + 1), count=i % 7 + 1)))
                if i % 10 == 0:
                    await asyncio.sleep(0)
            outcomes = await asyncio.gather(*futures)
            assert {outcome.error for outcome in outcomes} == {ErrorCode.NONE}
            for tp in tps:
                await until(lambda tp=tp: len({broker.log_bytes(tp) for broker in cluster.brokers.values()}) == 1)  # type: ignore[misc]

    asyncio.run(scenario())


def test_a_lone_replica(tmp_path: Path) -> None:
    """RF 1: committed by its own sync; min.insync is bounded by the replication factor."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            cluster.create(min_insync_replicas=2)
            outcome = await cluster[1].append(TP, batch(b"a"))
            assert (outcome.error, outcome.synced_replicas) == (ErrorCode.NONE, (1,))

    asyncio.run(scenario())


def test_too_few_in_sync(tmp_path: Path) -> None:
    """Rule B9: acks=all: NOT_ENOUGH_REPLICAS, nothing written; acks=1 is written and not shown (strict HW,
    schedule 21)."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            leader = cluster[1]
            assert (await leader.append(TP, batch(b"a"))).error is ErrorCode.NONE
            for node in (2, 3):
                await cluster[node].stop()
                cluster.controller.fence(NodeId(node))
            outcome = leader.append(TP, batch(b"b")).result()
            assert outcome.error is ErrorCode.NOT_ENOUGH_REPLICAS
            assert outcome.base_offset == -1
            assert leader.log_dir.logs[TP].log_end_offset == 1
            assert leader.append(TP, batch(b"c"), 1).result().error is ErrorCode.NONE
            await until(lambda: leader.log_dir.logs[TP].durable_offset == 2)
            read = leader.replicas.read(TP, 1, 1000)
            assert read is not None
            assert (read.high_watermark, read.data) == (1, b"")
            await cluster[2].start()
            await until(lambda: leader.replicas.hosted()[0].high_watermark == 2)
            assert cluster.controller.state(TP).isr == (1, 2)

    asyncio.run(scenario())


def values(data: bytes) -> list[bytes | None]:
    return [record.value for _, view in iter_batches(memoryview(data)) for record in decode_records(view)]


def test_failover_cuts_what_was_not_committed(tmp_path: Path) -> None:
    """Schedules 1, 6, 7: the old leader's unacknowledged tail goes, by epoch; its high watermark and its readers never
    see it; the logs end byte-identical."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            old = cluster[1]
            assert (await old.append(TP, batch(b"kept"))).error is ErrorCode.NONE
            for node in (2, 3):
                cluster.network.block(cluster[node].endpoint, old.endpoint)
            lost = [old.append(TP, batch(b"lost-%d" % i)) for i in range(5)]
            cluster.controller.elect(TP, NodeId(2))
            assert {future.result().error for future in lost} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
            new = cluster[2]
            await until(lambda: new.replicas.hosted()[0].high_watermark >= 1)
            assert (await new.append(TP, batch(b"new"))).error is ErrorCode.NONE
            await until(lambda: old.replicas.hosted()[0].high_watermark == 2)
            assert len({broker.log_bytes() for broker in cluster.brokers.values()}) == 1
            assert values(old.log_bytes()) == [b"kept", b"new"]
            assert old.append(TP, batch(b"x"), 1).result().error is ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(scenario())


def test_elections_without_appends(tmp_path: Path) -> None:
    """Schedules 3, 5 on real logs: leaders that wrote nothing leave epochs that others never heard of; nobody
    sticks."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            assert (await cluster[1].append(TP, batch(b"a"))).error is ErrorCode.NONE
            for leader in (2, 3, 2, 1, 3, 1):
                cluster.controller.elect(TP, NodeId(leader))
            outcome = await cluster[1].append(TP, batch(b"b"))
            assert (outcome.error, outcome.base_offset) == (ErrorCode.NONE, 1)
            await until(lambda: len({broker.log_bytes() for broker in cluster.brokers.values()}) == 1)
            await until(
                lambda: all(broker.replicas.hosted()[0].high_watermark == 2 for broker in cluster.brokers.values())
            )

    asyncio.run(scenario())


def test_older_metadata_move_nothing(tmp_path: Path) -> None:
    """Rule B1, four epochs: what is of an older leader epoch or partition epoch than the own changes no role."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            cluster.controller.elect(TP, NodeId(2))
            state = cluster.controller.state(TP)
            older = [
                replace(state, leader=NodeId(1), leader_epoch=LeaderEpoch(0), partition_epoch=PartitionEpoch(9)),
                replace(state, isr=(NodeId(1),), partition_epoch=PartitionEpoch(0)),
            ]
            for node, role in ((1, Role.FOLLOWER), (2, Role.LEADER)):
                replicas = cluster[node].replicas
                replicas.apply(older, [], replicas.brokers)
                status = replicas.hosted()[0]
                assert (status.role, status.leader_epoch, status.isr) == (role, state.leader_epoch, state.isr)

    asyncio.run(scenario())


def test_the_old_and_the_new_epoch_of_a_caller(tmp_path: Path) -> None:
    """KIP-320: FENCED_LEADER_EPOCH for an older epoch, UNKNOWN_LEADER_EPOCH for a newer one."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            cluster.controller.elect(TP, NodeId(2))
            replicas = cluster[2].replicas
            codes = {}
            for epoch in (-1, 0, 1, 2):
                read = replicas.read(TP, 0, 100, current_leader_epoch=epoch)
                assert read is not None
                codes[epoch] = read.error
                if epoch >= 0:
                    assert replicas.epoch_end_offset(TP, current_leader_epoch=epoch, epoch=0).error is read.error
                assert replicas.list_offset(TP, -2, current_leader_epoch=epoch).error is read.error
            assert codes == {
                -1: ErrorCode.NONE,
                0: ErrorCode.FENCED_LEADER_EPOCH,
                1: ErrorCode.NONE,
                2: ErrorCode.UNKNOWN_LEADER_EPOCH,
            }
            assert cluster[1].replicas.list_offset(TP, -1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            nowhere = TopicPartition("nowhere", 0)
            assert replicas.list_offset(nowhere, -1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (await replicas.read_cold(nowhere, 0, 1)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(scenario())


def test_offsets_by_time_and_epoch(tmp_path: Path) -> None:
    """ListOffsets and OffsetForLeaderEpoch, bounded by the high watermark."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            leader = cluster[1]
            await leader.append(TP, batch(b"a", count=5))
            replicas = leader.replicas
            assert replicas.list_offset(TP, -1)[2:] == (5, -1, 0)
            assert replicas.list_offset(TP, -2)[2:] == (0, -1, 0)
            assert replicas.list_offset(TP, -3)[2:] == (4, 1_700_000_000_004, 0)
            assert replicas.list_offset(TP, 1_700_000_000_002)[2:] == (2, 1_700_000_000_002, 0)
            assert replicas.list_offset(TP, 1_800_000_000_000)[2:] == (-1, -1, -1)
            assert replicas.list_offset(TP, -9).error is ErrorCode.UNSUPPORTED_VERSION
            assert replicas.epoch_end_offset(TP, current_leader_epoch=0, epoch=0)[2:] == (0, 5)
            cold = await replicas.read_cold(TP, 0, 1000)
            read = replicas.read(TP, 0, 1000)
            assert read is None or read == cold
            assert cold.next_offset == 5
            beyond = replicas.read(TP, 6, 1000)
            assert beyond is not None
            assert beyond.error is ErrorCode.OFFSET_OUT_OF_RANGE

    asyncio.run(scenario())


def test_offsets_of_uncommitted_records(tmp_path: Path) -> None:
    """What is not committed has no offset for anybody who asks by time."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            leader = cluster[1]
            await leader.append(TP, batch(b"a", count=2))
            for node in (2, 3):
                cluster.network.block(cluster[node].endpoint, leader.endpoint)
            await leader.append(TP, batch(b"b", count=5), 1)
            assert leader.replicas.list_offset(TP, 1_700_000_000_003)[2:] == (-1, -1, -1)
            assert leader.replicas.list_offset(TP, -3)[2:] == (1, 1_700_000_000_001, 0)

    asyncio.run(scenario())


def test_the_latest_offset_of_a_new_leader(tmp_path: Path) -> None:
    """Rule B7, stale HW, schedule 41: OFFSET_NOT_AVAILABLE until the ISR has confirmed what it had; nothing of that is
    read."""

    async def scenario() -> None:
        async with running(tmp_path, watermark_delay_ms=60_000) as cluster:
            cluster.create()
            await cluster[1].append(TP, batch(b"a", count=2))
            for node in (1, 3):
                cluster.network.block(cluster[node].endpoint, cluster[2].endpoint)
            cluster.controller.elect(TP, NodeId(2))
            new = cluster[2].replicas
            assert new.hosted()[0].high_watermark == 0
            for timestamp in (-1, -3, 1_700_000_000_000):
                assert new.list_offset(TP, timestamp).error is ErrorCode.OFFSET_NOT_AVAILABLE
            assert new.list_offset(TP, -2).offset == 0
            read = new.read(TP, 0, 1000)
            assert read is not None
            assert read.data == b""
            cluster.network.blocked.clear()
            await until(lambda: new.list_offset(TP, -1).offset == 2)

    asyncio.run(scenario())


def test_a_duplicate_is_answered_when_its_original_is_committed(tmp_path: Path) -> None:
    """Rule C1: under acks=all; with the original's offsets, and nothing written. Over a failover too."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()

            def again(sequence: int) -> memoryview:
                return batch(b"v", producer_id=9, producer_epoch=0, base_sequence=sequence)

            first = await cluster[1].append(TP, again(0))
            assert first.error is ErrorCode.NONE
            for node in (2, 3):
                cluster.network.block(cluster[node].endpoint, cluster[1].endpoint)
            waiting = [cluster[1].append(TP, again(1)), cluster[1].append(TP, again(1))]
            old = cluster[1].append(TP, again(0))
            assert old.result().base_offset == 0
            assert not any(future.done() for future in waiting)
            cluster.network.blocked.clear()
            outcomes = await asyncio.gather(*waiting)
            assert [(outcome.error, outcome.base_offset) for outcome in outcomes] == [(ErrorCode.NONE, 1)] * 2
            assert cluster[1].log_dir.logs[TP].log_end_offset == 2
            cluster.controller.elect(TP, NodeId(3))
            again_there = await cluster[3].append(TP, again(1))
            assert (again_there.error, again_there.base_offset) == (ErrorCode.NONE, 1)
            gap = cluster[3].append(TP, again(7)).result()
            assert gap.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    asyncio.run(scenario())


def test_giving_up_an_append(tmp_path: Path) -> None:
    """The caller's timeout: told once, whatever happens later; the batch stays."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            for node in (2, 3):
                cluster.network.block(cluster[node].endpoint, cluster[1].endpoint)
            outcomes: list[Append] = []
            pending = cluster[1].replicas.append(TP, batch(b"a"), -1, outcomes.append)
            assert pending is not None
            pending.cancel(ErrorCode.REQUEST_TIMED_OUT)
            pending.cancel(ErrorCode.UNKNOWN_SERVER_ERROR)
            assert [(outcome.error, outcome.base_offset) for outcome in outcomes] == [(ErrorCode.REQUEST_TIMED_OUT, 0)]
            cluster.network.blocked.clear()
            await until(lambda: cluster[1].replicas.hosted()[0].high_watermark == 1)
            assert len(outcomes) == 1

    asyncio.run(scenario())


def test_waking_readers(tmp_path: Path) -> None:
    """Parked fetches: once, when the high watermark rises or the leadership is lost; not after withdrawing."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            leader, woken = cluster[1].replicas, []
            leader.on_high_watermark(TP, lambda: woken.append("rise"))
            leader.on_high_watermark(TP, lambda: woken.append("withdrawn"))()
            await cluster[1].append(TP, batch(b"a"))
            assert woken == ["rise"]
            await cluster[1].append(TP, batch(b"b"))
            assert woken == ["rise"]
            leader.on_high_watermark(TP, lambda: woken.append("lost"))
            cluster.controller.elect(TP, NodeId(2))
            assert woken == ["rise", "lost"]
            leader.on_high_watermark(TopicPartition("nowhere", 0), lambda: woken.append("nowhere"))
            await asyncio.sleep(0)
            assert woken == ["rise", "lost", "nowhere"]

    asyncio.run(scenario())


def test_deletion_and_a_new_topic_of_the_same_name(tmp_path: Path) -> None:
    """Topics are named by id: the old log goes, the new one begins empty, also for a broker that was away meanwhile."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            await cluster[1].append(TP, batch(b"old"))
            await cluster[3].stop()
            cluster.controller.fence(NodeId(3))
            cluster.controller.delete(TopicIdPartition(TOPIC_ID, 0))
            assert cluster[1].replicas.hosted() == []
            assert cluster[1].append(TP, batch(b"x")).result().error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            cluster.controller.create(partition_state(topic_id=UUID(int=8)))
            await cluster[3].start()

            def leads() -> bool:
                status = cluster[1].replicas.hosted()
                return bool(status) and status[0].role is Role.LEADER

            await until(leads)
            outcome = await cluster[1].append(TP, batch(b"new"))
            assert (outcome.error, outcome.base_offset) == (ErrorCode.NONE, 0)
            await until(lambda: len({log_or_none(broker) for broker in cluster.brokers.values()}) == 1)
            assert values(cluster[3].log_bytes()) == [b"new"]

    asyncio.run(scenario())


def log_or_none(broker: Broker) -> bytes | None:
    return broker.log_bytes() if TP in broker.log_dir.logs else None


def test_a_replica_that_is_assigned_elsewhere(tmp_path: Path) -> None:
    """Who is no longer among the replicas drops its copy; its subscription ends."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            await cluster[1].append(TP, batch(b"a"))
            cluster.controller.change(TP, replicas=(1, 2), isr=(1, 2))
            assert cluster[3].replicas.hosted() == []
            assert (await cluster[1].append(TP, batch(b"b"))).synced_replicas == (1, 2)
            partition = cluster[1].replicas.partition(TP)
            assert partition is not None
            assert list(partition.subscriptions) == [2]

    asyncio.run(scenario())


def test_what_is_known_after_a_restart(tmp_path: Path) -> None:
    """The high watermark is written down at a clean stop and taken up again."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            await cluster[1].append(TP, batch(b"a", count=4))
            await until(lambda: cluster[2].replicas.hosted()[0].high_watermark == 4)
            await cluster[2].stop(clean=True)
            cluster.controller.fence(NodeId(2))
            for node in (1, 3):
                await cluster[node].stop()
                cluster.controller.fence(NodeId(node))
            await cluster[2].start()
            status = cluster[2].replicas.hosted()[0]
            assert (status.high_watermark, status.log_end_offset) == (4, 4)

    asyncio.run(scenario())


def test_a_broker_that_stops_leads_nothing(tmp_path: Path) -> None:
    """Controlled shutdown: the metadata move the leadership, waiting appends are told, and the rest goes on."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            await cluster[1].append(TP, batch(b"a"))
            cluster.controller.begin_shutdown(NodeId(1))
            status = cluster[1].replicas.hosted()[0]
            assert (status.role, cluster.controller.state(TP).leader) == (Role.FOLLOWER, 2)
            assert (await cluster[2].append(TP, batch(b"b"))).error is ErrorCode.NONE
            assert cluster.controller.state(TP).isr == (2, 3)
            await until(lambda: cluster[1].log_dir.logs[TP].log_end_offset == 2)
            assert cluster.controller.state(TP).isr == (2, 3)

    asyncio.run(scenario())


def test_nobody_leads(tmp_path: Path) -> None:
    """Without a leader it is idle: nothing is served, nothing is followed."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            waiting = cluster[1].append(TP, batch(b"a"))
            cluster.controller.change(TP, leader=NO_NODE, leader_epoch=5)
            assert waiting.result().error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert {broker.replicas.hosted()[0].role for broker in cluster.brokers.values()} == {Role.IDLE}
            assert cluster[1].replicas.leader_of(TP) == NO_NODE
            assert cluster[1].replicas.leader_of(TopicPartition("nowhere", 0)) is None
            cluster.controller.change(TP, leader=NodeId(3), leader_epoch=6)
            assert (await cluster[3].append(TP, batch(b"b"))).error is ErrorCode.NONE

    asyncio.run(scenario())


def test_a_damaged_log_is_set_aside_and_the_others_are_served(tmp_path: Path) -> None:
    """Damage in the middle of once-durable data, and another replica leads (schedule 81): no node falls, the others are
    served, and the replica is made anew from the leader."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create()
            cluster.create(partition=1)
            for number in range(2):
                for _ in range(4):
                    await cluster[1].append(TopicPartition("t", number), batch(b"x" * 500))
            await damaged_restart(cluster)
            statuses = {status.partition: status for status in cluster[3].replicas.hosted()}
            assert [statuses[number].role for number in range(2)] == [Role.FOLLOWER] * 2
            assert cluster[3].fatal == []
            assert (await cluster[1].append(TP, batch(b"y"))).error is ErrorCode.NONE
            fetched = cluster[3].replicas.partition(TP)
            assert fetched is not None
            await until(lambda: fetched.log is not None and fetched.log.log_end_offset == 5)

    asyncio.run(scenario())


async def damaged_restart(cluster: Cluster) -> None:
    broker = cluster[3]
    await broker.stop(clean=False)
    cluster.controller.fence(broker.node)
    path = Path(broker.path, "t-0", f"{0:020d}.log")
    content = bytearray(path.read_bytes())
    content[700] ^= 0xFF
    path.write_bytes(content)
    Path(broker.path, ".kafka_cleanshutdown").unlink(missing_ok=True)
    for name in Path(broker.path).iterdir():
        if "recovery" in name.name:
            name.unlink()
    await broker.start(clean=False)
