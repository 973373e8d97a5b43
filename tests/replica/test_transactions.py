"""Rules C12 and C13: markers on leaders and followers, and readers of committed transactions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from strandline.log.transactions import Marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId, TopicPartition
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import TO_HIGH_WATERMARK, Append
from strandline.replica.states import LATEST_TIMESTAMP, MAX_TIMESTAMP
from tests.replica.helpers import TP, batch, running, until
from tests.replica.simulated import decoded
from tests.replica.test_faults import Scene
from tests.replica.transactional import Transactional, committed, end, send_marker, shown, write


def test_a_reader_of_committed_transactions_sees_all_of_one_or_nothing() -> None:
    """Plain records behind an open transaction wait for it; an aborted one is named and left out. On the leader and, as
    far as they know, on its followers (KIP-392)."""

    async def scenario(scene: Scene) -> None:
        first, second = Transactional(7), Transactional(8)
        await scene.append(1, b"a")
        await write(scene, 1, first, b"b", b"c")
        await scene.append(1, b"d")
        await write(scene, 1, second, b"e")
        await end(scene, 1, second, commit=True)
        everywhere = (1, 2, 3)
        await scene.until(lambda: all(scene.status(node).high_watermark == 6 for node in everywhere))
        for node in everywhere:
            outcome = committed(scene, node)
            assert (shown(outcome), outcome.next_offset) == ([b"a"], 1)
            assert (outcome.high_watermark, outcome.last_stable_offset, list(outcome.aborted)) == (6, 1, [])
            assert committed(scene, node, 1).data == b""
        assert scene.read(1).last_stable_offset == 1, "whoever reads everything learns it too"
        assert scene.read(1).next_offset == 6
        assert scene.read(1).aborted == ()
        await end(scene, 1, first, commit=False)
        await scene.until(lambda: all(scene.status(node).high_watermark == 7 for node in everywhere))
        for node in everywhere:
            outcome = committed(scene, node)
            assert shown(outcome) == [b"a", b"d", b"e"]
            assert (outcome.last_stable_offset, outcome.next_offset) == (7, 7)
            assert [(one.producer_id, one.first_offset) for one in outcome.aborted] == [(7, 1)]
            assert shown(committed(scene, node, 2), 2) == [b"d", b"e"], "from the middle of what was aborted"
            assert list(committed(scene, node, 7).aborted) == []

    Scene().play(scenario)


def test_a_cold_read_names_what_was_aborted_too() -> None:
    async def scenario(scene: Scene) -> None:
        producer = Transactional(7)
        await write(scene, 1, producer, b"a")
        await end(scene, 1, producer, commit=False)
        await scene.append(1, b"b")
        await write(scene, 1, producer, b"c")
        manager = scene.manager(1)
        outcome = await scene.inside(1, lambda: manager.read_cold(TP, 0, 1 << 20, read_committed=True))
        assert shown(outcome) == [b"b"]
        assert (outcome.last_stable_offset, outcome.next_offset) == (3, 3)
        outcome = await scene.inside(1, lambda: manager.read_cold(TP, 0, 1 << 20))
        assert (len(decoded(outcome.data)), outcome.last_stable_offset, list(outcome.aborted)) == (4, 3, [])

    Scene().play(scenario)


def test_a_marker_counts_once_it_is_committed() -> None:
    """Rule C12: as a batch with acks=all: its order ends then, and the last stable offset rises then, not before."""

    async def scenario(scene: Scene) -> None:
        producer = Transactional(7)
        await write(scene, 1, producer, b"a")
        scene.world.partition("n1", "n2")
        scene.world.partition("n1", "n3")
        order = send_marker(scene, 1, producer, commit=True)
        await scene.until(lambda: scene.log(1).log_end_offset == 2)
        await scene.world.sleep_ms(500)
        assert not order.done()
        assert committed(scene, 1).last_stable_offset == 0
        scene.world.heal()
        outcome = await order
        assert (outcome.error, outcome.base_offset, outcome.synced_replicas[0]) == (ErrorCode.NONE, 1, 1)
        assert committed(scene, 1).last_stable_offset == 2
        assert shown(committed(scene, 1)) == [b"a"]

    Scene().play(scenario)


def test_whom_a_marker_is_refused(tmp_path: Path) -> None:
    """Rule C12: who does not lead, does not host it, has too few in sync, or heard of a newer coordinator or producer.
    Nothing is written then."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.create(min_insync_replicas=2)
            cluster.controller.elect(TP, NodeId(1))  # once more, so that there was a leadership before
            leader = cluster[1]
            producer = Transactional(7, epoch=3)
            producer.coordinator_epoch = 5

            async def order(replicas: ReplicaManager, marker: Marker, version: int = 1, epoch: int = -1) -> Append:
                answered: asyncio.Future[Append] = asyncio.get_running_loop().create_future()
                waiting = replicas.append_marker(TP, marker, version, answered.set_result, leader_epoch=epoch)
                assert (waiting is None) == answered.done()
                return await answered

            answered: asyncio.Future[Append] = asyncio.get_running_loop().create_future()
            producer.write(leader.replicas, answered.set_result, b"a")
            assert (await answered).error is ErrorCode.NONE
            marker = producer.marker(commit=True)
            assert (await order(cluster[2].replicas, marker)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            fenced = await order(leader.replicas, marker._replace(producer_epoch=2))
            assert (fenced.error, fenced.base_offset) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
            assert (await order(leader.replicas, marker, 2)).error is ErrorCode.INVALID_PRODUCER_EPOCH
            leads_in = cluster.controller.state(TP).leader_epoch
            for epoch, error in (
                (leads_in - 1, ErrorCode.FENCED_LEADER_EPOCH),
                (leads_in + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
            ):
                elsewhere = await order(leader.replicas, marker, epoch=epoch)
                assert (elsewhere.error, elsewhere.base_offset) == (error, -1), "rule C28"
            unknown: list[Append] = []
            assert leader.replicas.append_marker(TopicPartition("no", 0), marker, 1, unknown.append) is None
            assert unknown[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            for node in (2, 3):
                await cluster[node].stop()
                cluster.controller.fence(NodeId(node))
            refused = await order(leader.replicas, marker)
            assert (refused.error, refused.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
            assert leader.log_dir.logs[TP].log_end_offset == 1
            await cluster[2].start()
            await until(lambda: len(cluster.controller.state(TP).isr) == 2)
            leads_in = cluster.controller.state(TP).leader_epoch
            assert (await order(leader.replicas, marker, epoch=leads_in)).error is ErrorCode.NONE
            older = await order(leader.replicas, marker._replace(coordinator_epoch=4))
            assert older.error is ErrorCode.TRANSACTION_COORDINATOR_FENCED
            leader.replicas.directories.of(leader.path).room.ran_out()
            full = await order(leader.replicas, marker)
            assert (full.error, full.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
            assert leader.log_dir.logs[TP].log_end_offset == 2

    asyncio.run(scenario())


def test_offsets_by_time_end_at_the_last_stable_offset() -> None:
    """ListOffsets with isolation: latest, times, and the newest record (KIP-734)."""

    async def scenario(scene: Scene) -> None:
        producer = Transactional(7)
        await scene.append(1, b"a")
        await write(scene, 1, producer, b"b")
        manager, then = scene.manager(1), 1_700_000_000_000

        def ask(timestamp: int, *, read_committed: bool) -> int:
            found = manager.list_offset(TP, timestamp, read_committed=read_committed)
            assert found is not None
            assert found.error is ErrorCode.NONE
            return found.offset

        assert ask(LATEST_TIMESTAMP, read_committed=True) == 1
        assert ask(LATEST_TIMESTAMP, read_committed=False) == 2
        assert ask(then, read_committed=True) == 0
        await end(scene, 1, producer, commit=True)
        other = Transactional(8)
        await write(scene, 1, other, b"c")
        newest = scene.log(1).max_timestamp(3)
        assert newest is not None
        assert ask(newest.timestamp_ms, read_committed=True) == newest.offset
        assert ask(MAX_TIMESTAMP, read_committed=True) == newest.offset
        assert ask(LATEST_TIMESTAMP, read_committed=True) == 3
        found = await scene.inside(1, lambda: manager.list_offset_cold(TP, LATEST_TIMESTAMP, read_committed=True))
        assert found.offset == 3

    Scene().play(scenario)


def test_times_of_an_open_transaction_are_not_told(tmp_path: Path) -> None:
    """A record of an open transaction is the first of its time, and the newest: nobody hears of it."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            cluster.create()
            replicas = cluster[1].replicas
            assert (await cluster[1].append(TP, batch(b"a"))).error is ErrorCode.NONE
            producer = Transactional(7)
            partition = replicas.partition(TP)
            assert partition is not None
            assert partition.log is not None
            asked = partition.log.begin_verification(7, 0, 0, begins_at_0=False)
            later = 1_700_000_000_500
            answered: asyncio.Future[Append] = asyncio.get_running_loop().create_future()
            replicas.append(TP, producer.batch(b"b", time_ms=later), -1, answered.set_result, asked)
            assert (await answered).error is ErrorCode.NONE
            for timestamp, all_of_it, committed_alone in ((later, 1, -1), (MAX_TIMESTAMP, 1, 0)):
                found = replicas.list_offset(TP, timestamp)
                assert found is not None
                assert found.offset == all_of_it
                found = replicas.list_offset(TP, timestamp, read_committed=True)
                assert found is not None
                assert (found.error, found.offset) == (ErrorCode.NONE, committed_alone)

    asyncio.run(scenario())


def test_who_waits_for_committed_transactions_is_woken_by_their_end() -> None:
    """Rule C13: not by each record behind an open one; by a change of role, too."""

    async def scenario(scene: Scene) -> None:
        producer = Transactional(7)
        woken: list[str] = []
        await write(scene, 1, producer, b"a")
        manager, follower = scene.manager(1), scene.manager(2)
        await scene.until(lambda: scene.status(2).high_watermark == 1)
        manager.on_last_stable_offset(TP, lambda: woken.append("stable"))
        manager.on_high_watermark(TP, lambda: woken.append("high"))
        follower.on_last_stable_offset(TP, lambda: woken.append("follower"))
        await scene.append(1, b"b")
        await scene.append(1, b"c")
        await scene.until(lambda: scene.status(2).high_watermark == 3)
        assert woken == ["high"]
        await end(scene, 1, producer, commit=True)
        await scene.until(lambda: len(woken) == 3)
        assert woken == ["high", "stable", "follower"]
        await scene.append(1, b"d")
        assert len(woken) == 3, "once"
        manager.on_last_stable_offset(TP, lambda: woken.append("role"))
        withdraw = manager.on_last_stable_offset(TP, lambda: woken.append("nobody"))
        withdraw()
        scene.controller.elect(TP, NodeId(2))
        await scene.until(lambda: scene.leads(2))
        await scene.until(lambda: woken[3:] == ["role"])

    Scene().play(scenario)


@pytest.mark.parametrize("to", [TO_HIGH_WATERMARK, 2])
def test_records_of_an_open_transaction_are_deleted(to: int) -> None:
    """DeleteRecords (KIP-107) into the middle of one: readers go on from where the log begins, and none is stuck behind
    it. Its end shows what is left of it, or not."""

    async def scenario(scene: Scene) -> None:
        producer = Transactional(7)
        await scene.append(1, b"a")
        await write(scene, 1, producer, b"b")
        await write(scene, 1, producer, b"c")
        await write(scene, 1, producer, b"d")
        deleted: list[tuple[ErrorCode, str, int]] = []
        woken: list[int] = []
        for node in (1, 2):
            await scene.until(lambda node=node: scene.status(node).high_watermark == 4)  # type: ignore[misc]
            scene.manager(node).on_last_stable_offset(TP, partial(woken.append, node))
        assert scene.status(1).last_stable_offset == 1
        scene.broker(1).run(lambda manager: manager.delete_records(TP, to, lambda *it: deleted.append(it)) and None)
        await scene.until(lambda: bool(deleted))
        start = deleted[0][2]
        assert (deleted[0][0], start) == (ErrorCode.NONE, 4 if to == TO_HIGH_WATERMARK else 2)
        for node in (1, 2, 3):
            await scene.until(lambda node=node: scene.log(node).log_start_offset == start)  # type: ignore[misc]
            outcome = committed(scene, node, start)
            assert (outcome.error, outcome.last_stable_offset, outcome.data) == (ErrorCode.NONE, start, b"")
            assert committed(scene, node, 1).error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert sorted(woken) == [1, 2], "who waits at the old one has to ask again"
        await end(scene, 1, producer, commit=False)
        await scene.append(1, b"e")
        await scene.until(lambda: all(scene.status(node).high_watermark == 6 for node in (1, 2, 3)))
        for node in (1, 2, 3):
            outcome = committed(scene, node, start)
            assert (shown(outcome, start), outcome.last_stable_offset) == ([b"e"], 6)

    Scene().play(scenario)


def test_retention_takes_the_beginning_of_an_open_transaction() -> None:
    """As Kafka has it: by size and time, whoever wrote it. What is left is neither shown early nor stuck."""

    async def scenario(scene: Scene) -> None:
        state = scene.controller.state(TP)
        scene.controller.change(TP, log_config=replace(state.log_config, segment_bytes=300, retention_bytes=600))
        producer = Transactional(7)
        for number in range(20):
            await write(scene, 1, producer, b"%d" % number)
        await scene.until(lambda: scene.log(1).log_start_offset > 0)
        start = int(scene.log(1).log_start_offset)
        assert committed(scene, 1, start).last_stable_offset == start
        await end(scene, 1, producer, commit=True)
        assert committed(scene, 1, start).last_stable_offset == 21
        assert shown(committed(scene, 1, start)) == [b"%d" % number for number in range(start, 20)]

    Scene(retention_check_interval_ms=300).play(scenario)
