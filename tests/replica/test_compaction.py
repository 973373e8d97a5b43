"""Compaction over three replicas, each by itself: leaders die, followers return, and each key keeps its last value."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

from structlog.testing import capture_logs

from strandline.log.batch import Record, build_batch
from strandline.log.checkpoints import CLEANER_OFFSETS
from strandline.log.config import LogConfig
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.marks import counts, reset
from strandline.replica.partition import Append
from tests.log.compacting import assert_no_hole, headers, table
from tests.log.helpers import all_records
from tests.log.transacting import TransactionalProducer
from tests.replica.fake_controller import partition_state
from tests.replica.helpers import TP
from tests.replica.simulated import PATH
from tests.replica.test_faults import Scene
from tests.schedules.helpers import schedule

NODES = (1, 2, 3)
CONFIG = LogConfig(
    segment_bytes=600, compacted=True, retention_ms=-1, file_delete_delay_ms=0, min_cleanable_dirty_ratio=0.1
)


def scene() -> Scene:
    """Compaction looks every half second."""
    return Scene(cleaner_backoff_ms=500, high_watermark_checkpoint_interval_ms=1_000)


async def keep(scene: Scene, config: LogConfig = CONFIG) -> None:
    """Alter the topic's settings, and wait until every broker has heard of it."""
    scene.controller.change(TP, log_config=config)
    await scene.world.sleep_ms(100)


async def put(scene: Scene, leader: int, key: str, value: str | None) -> ErrorCode:
    """Write one record; return when it is committed."""
    answered: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    batch = build_batch([Record(0, 1_000, key.encode(), None if value is None else value.encode())])

    def done(outcome: Append) -> None:
        answered.set_result(outcome.error)

    scene.broker(leader).run(lambda manager: manager.append(TP, memoryview(batch), -1, done))
    return await answered


async def fill(scene: Scene, leader: int, count: int, label: str = "v") -> None:
    """Write many values of a few keys."""
    for i in range(count):
        assert await put(scene, leader, f"k{i % 4}", f"{label}{i}") is ErrorCode.NONE


def is_compacted(scene: Scene, node: int) -> bool:
    """All of the node's log but the active segment."""
    log = scene.log(node)
    return log.cleaned_to == log.bases[-1] > 0 and log.swap is None


def test_each_replica_compacts_by_itself() -> None:
    """To the same records; the figures say what was done, and the checkpoint how far it came."""

    async def scenario(scene: Scene) -> None:
        await keep(scene)
        await fill(scene, 1, 60)
        before = table(scene.log(1))
        await scene.until(lambda: all(is_compacted(scene, node) for node in NODES), within_ms=10_000)
        for node in NODES:
            log = scene.log(node)
            assert table(log) == before
            assert_no_hole(log)
            assert sum(header.count for header in headers(log)) < 30
            assert (log.log_start_offset, log.log_end_offset) == (0, 60)
            figures = scene.manager(node).compactor.figures
            assert figures.passes >= 1
            assert figures.removed >= 30
            assert 0 < figures.written_bytes < figures.read_bytes
        await scene.world.sleep_ms(500)
        cleaned = {node: scene.log(node).cleaned_to for node in NODES}
        for node in NODES:
            scene.world.power_cut(f"n{node}")
        for node in NODES:
            scene.broker(node).start()
        await scene.until(lambda: any(scene.leads(node) for node in NODES) and len(scene.isr) == 3)
        for node in NODES:
            assert scene.world.machines[f"n{node}"].disk.names.find(f"{PATH}/{CLEANER_OFFSETS}") is not None
            assert scene.log(node).cleaned_to == cleaned[node]
            assert table(scene.log(node)) == before

    scene().play(scenario)


@schedule(
    93,
    rule="B28: what was compacted of a topic counts for no other of its name",
    mutant="any-topic-of-the-name-was-compacted",
)
def test_93_a_deleted_key_stays_deleted_in_a_topic_made_again() -> None:
    """Its topic has the name of one that was compacted further and deleted. The nodes start again before it is
    compacted itself, and the time of the tombstone passes: the value before it is gone with it."""

    async def scenario(scene: Scene) -> None:
        await keep(scene)
        await fill(scene, 1, 60)
        await scene.until(lambda: all(is_compacted(scene, node) for node in NODES), within_ms=10_000)
        await scene.world.sleep_ms(500)
        scene.controller.delete(scene.controller.state(TP).topic_id_partition)
        await scene.until(lambda: all(scene.hosted(node) is None for node in NODES), within_ms=10_000)
        await scene.world.sleep_ms(100)
        scene.controller.create(partition_state(topic_id=UUID(int=10), log_config=replace(CONFIG, compacted=False)))
        await scene.until(lambda: scene.leads(1) and len(scene.isr) == 3)
        await put(scene, 1, "deleted", "comes back")
        await fill(scene, 1, 20)
        await put(scene, 1, "deleted", None)
        await fill(scene, 1, 48)
        for node in NODES:
            scene.world.power_cut(f"n{node}")
        for node in NODES:
            scene.broker(node).start()
        await scene.until(lambda: any(scene.leads(node) for node in NODES) and len(scene.isr) == 3)
        await keep(scene, replace(CONFIG, delete_retention_ms=1_000))
        for _ in range(2):
            await scene.until(lambda: all(is_compacted(scene, node) for node in NODES), within_ms=10_000)
            await scene.world.sleep_ms(2_000)
            [leader] = [node for node in NODES if scene.leads(node)]
            await fill(scene, leader, 20)
        await scene.until(lambda: all(is_compacted(scene, node) for node in NODES), within_ms=10_000)
        for node in NODES:
            assert "deleted" not in table(scene.log(node))

    scene().play(scenario)


def test_74_a_follower_that_was_away_takes_the_rest_of_a_gap() -> None:
    """Schedule 74: it ends where the leader's log is one gap by now. It catches up, joins, and leads with all of it."""

    async def scenario(scene: Scene) -> None:
        reset()
        await keep(scene)
        await fill(scene, 1, 7, "a")
        scene.world.kill("n3")
        await fill(scene, 1, 60, "b")
        await scene.until(lambda: is_compacted(scene, 1), within_ms=10_000)
        [gap] = [header for header in headers(scene.log(1)) if header.base_offset < 7 <= header.last_offset]
        assert gap.is_gap
        scene.broker(3).start()
        await scene.until(lambda: len(scene.isr) == 3)
        assert counts()["gap-from-its-middle"]
        assert table(scene.log(3)) == table(scene.log(1))
        assert_no_hole(scene.log(3))
        before = table(scene.log(1))
        scene.world.kill("n1")
        scene.controller.fence(NodeId(1))
        scene.world.kill("n2")
        scene.controller.fence(NodeId(2))
        await scene.until(lambda: scene.leads(3))
        assert table(scene.log(3)) == before

    scene().play(scenario)


def test_what_is_open_is_not_compacted() -> None:
    """Whether the records of a transaction count is not known before its marker: rule C11."""

    async def scenario(scene: Scene) -> None:
        await keep(scene)
        await fill(scene, 1, 10)
        writer = TransactionalProducer(scene.log(1), 1)
        start = writer.send(2).base_offset
        await fill(scene, 1, 60)
        await scene.until(lambda: all(scene.log(node).cleaned_to > 0 for node in NODES), within_ms=10_000)
        await scene.world.sleep_ms(5_000)
        assert all(scene.log(node).cleaned_to <= start for node in NODES)
        writer.end(commit=True)
        await fill(scene, 1, 10)
        await scene.until(lambda: all(scene.log(node).cleaned_to > start + 40 for node in NODES), within_ms=10_000)

    scene().play(scenario)


def test_what_is_not_committed_supersedes_nothing() -> None:
    """Rule of schedule 38: nothing above the high watermark is compacted, or takes what lies below."""

    async def scenario(scene: Scene) -> None:
        await keep(scene, replace(CONFIG, segment_bytes=200))
        await fill(scene, 1, 8, "committed")
        for node in (2, 3):
            scene.world.partition("n1", f"n{node}")
        for i in range(20):
            batch = build_batch([Record(0, 1_000, b"k%d" % (i % 4), b"not committed")])
            scene.broker(1).run(
                lambda manager, batch=batch: manager.append(TP, memoryview(batch), 1, lambda _: None)  # type: ignore[misc]
            )
        await scene.world.sleep_ms(3_000)
        log = scene.log(1)
        assert log.log_end_offset == 28
        assert log.cleaned_to <= scene.status(1).high_watermark <= 9
        assert set(table(log).values()) == {"not committed"}
        committed = [header for header in headers(log) if header.base_offset < 8 and header.count]
        assert len(committed) >= 4, "the committed values are still there"

    scene().play(scenario)


def rot(scene: Scene, node: int) -> None:
    """A bit of the first batch of its log."""
    file = scene.world.machines[f"n{node}"].disk.names.find(f"{PATH}/{TP}/{0:020d}.log")
    file.write(bytes([file.read(1, 70)[0] ^ 1]), 70)  # type: ignore[union-attr]


def test_a_rotten_log_is_left_alone() -> None:
    """Where nobody has the records any more, it is tried once; it says so in log and figures."""

    async def scenario(scene: Scene) -> None:
        await keep(scene, replace(CONFIG, compacted=False))
        await fill(scene, 1, 60)
        for node in NODES:
            rot(scene, node)
        with capture_logs() as lines:
            await keep(scene)
            for node in NODES:
                compactor = scene.manager(node).compactor
                await scene.until(lambda: scene.log(node) in compactor.uncleanable, within_ms=10_000)  # noqa: B023
            await scene.world.sleep_ms(2_000)
        told = [line for line in lines if line["event"].startswith("a log is compacted no more")]
        assert len(told) == 3
        assert all("byte 0" in line["error"] or "position=0" in line["error"] for line in told)
        for node in NODES:
            assert scene.log(node).cleaned_to == 0
            assert len(scene.log(node).segments) > 3
            assert scene.manager(node).compactor.figures.passes == 0

    scene().play(scenario)


def test_a_log_that_rotted_is_healed_and_then_compacted() -> None:
    """Compaction is a reader, too: what it meets is scrubbed, written over with the leader's batches, and tried again.
    (The leader's disk has no room, so that its log still has the records.)
    """

    async def scenario(scene: Scene) -> None:
        await keep(scene, replace(CONFIG, compacted=False))
        await fill(scene, 1, 60)
        log = scene.log(2)
        before = table(scene.log(1))
        disk = scene.world.machines["n1"].disk
        disk.config = replace(disk.config, capacity_bytes=disk.used_bytes + 500)
        rot(scene, 2)
        with capture_logs() as lines:
            await keep(scene)
            await scene.until(lambda: is_compacted(scene, 2), within_ms=20_000)
            await scene.world.sleep_ms(1_000)
        assert len([line for line in lines if line["event"].startswith("a log is compacted no more")]) == 1
        assert not scene.manager(2).compactor.uncleanable
        assert table(log) == before
        assert not log.rot

    scene().play(scenario)


def test_72_a_start_with_a_clock_of_the_future_takes_no_tombstone_too_early() -> None:
    """Schedule 72: what the last life of the broker went by holds for compaction as for retention."""
    day_ms = 24 * 3_600_000

    async def scenario(scene: Scene) -> None:
        config = replace(CONFIG, delete_retention_ms=day_ms)
        await keep(scene, config)
        assert await put(scene, 1, "gone", "v") is ErrorCode.NONE
        assert await put(scene, 1, "gone", None) is ErrorCode.NONE
        await fill(scene, 1, 30)
        await scene.until(lambda: is_compacted(scene, 2), within_ms=10_000)
        await scene.world.sleep_ms(2 * 60_000)
        scene.world.kill("n2")
        scene.world.machines["n2"].clock.jump_wall(365 * day_ms)
        scene.broker(2).start()
        await scene.until(lambda: len(scene.isr) == 3 and scene.hosted(2) is not None)
        await keep(scene, config)
        await fill(scene, 1, 30, "later")
        await scene.until(lambda: is_compacted(scene, 2), within_ms=10_000)
        await scene.world.sleep_ms(2_000)
        assert "gone" in {record.key and record.key.decode() for record in all_records(scene.log(2))}

    scene().play(scenario)


def test_a_full_disk_waits() -> None:
    """A log is not compacted into a disk without room: that is said once, and made up for."""

    async def scenario(scene: Scene) -> None:
        await keep(scene, replace(CONFIG, compacted=False))
        await fill(scene, 1, 60)
        disk = scene.world.machines["n3"].disk
        capacity = disk.config.capacity_bytes
        with capture_logs() as lines:
            disk.config = replace(disk.config, capacity_bytes=disk.used_bytes + 500)
            await keep(scene)
            await scene.until(lambda: is_compacted(scene, 1), within_ms=10_000)
            await scene.world.sleep_ms(3_000)
            assert scene.log(3).cleaned_to == 0
            disk.config = replace(disk.config, capacity_bytes=capacity)
            await scene.until(lambda: is_compacted(scene, 3), within_ms=20_000)
        assert len([line for line in lines if "the disk has no room" in line["event"]]) == 1

    scene().play(scenario)


def test_a_batch_too_large_for_the_memory_waits_for_more() -> None:
    """log.cleaner.dedupe.buffer.size, raised while the broker runs: the log is tried again, and not before."""

    async def scenario(scene: Scene) -> None:
        await keep(scene, replace(CONFIG, segment_bytes=3_000))
        manager = scene.manager(1)
        batch = build_batch([Record(0, 1_000, b"k%d" % i, b"v") for i in range(100)])
        scene.broker(1).run(lambda manager: manager.append(TP, memoryview(batch), -1, lambda _: None))
        await fill(scene, 1, 60)
        await scene.until(lambda: scene.log(1) in manager.compactor.uncleanable, within_ms=10_000)
        assert "log.cleaner.dedupe.buffer.size" in manager.compactor.uncleanable[scene.log(1)].reason
        await scene.world.sleep_ms(2_000)
        assert manager.compactor.figures.passes == 0
        manager.reconfigure(manager.config.replaced(cleaner_dedupe_buffer_bytes=1 << 20))
        await scene.until(lambda: is_compacted(scene, 1), within_ms=10_000)
        assert not manager.compactor.uncleanable

    Scene(cleaner_backoff_ms=500, cleaner_dedupe_buffer_bytes=2_000).play(scenario)


def test_the_rate_is_kept() -> None:
    """log.cleaner.io.max.bytes.per.second: reads and writes together."""

    async def scenario(scene: Scene) -> None:
        await keep(scene, replace(CONFIG, compacted=False))
        await fill(scene, 1, 100)
        await keep(scene)
        begun = scene.world.now_ms
        await scene.until(lambda: is_compacted(scene, 1), within_ms=60_000)
        figures = scene.manager(1).compactor.figures
        took_s = (scene.world.now_ms - begun) / 1_000
        assert took_s > (figures.read_bytes + figures.written_bytes) / 1_000 - 2
        assert took_s > 5

    Scene(cleaner_backoff_ms=500, cleaner_io_max_bytes_per_second=1_000.0).play(scenario)
