"""Retention over three replicas: the leader deletes by age and size, followers begin where it begins, whatever the
clocks do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from strandline.log.config import LogConfig
from strandline.proto.believed import BELIEVED_AFTER_MS
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from tests.replica.helpers import TP
from tests.replica.simulated import PATH
from tests.replica.test_faults import Scene

NODES = (1, 2, 3)
MINUTE_MS = 60_000


def scene() -> Scene:
    """Retention looks every half second."""
    return Scene(retention_check_interval_ms=500, high_watermark_checkpoint_interval_ms=1_000)


async def keep(scene: Scene, **settings: int) -> None:
    """Alter the topic's settings, and wait until every broker has heard of it."""
    config = LogConfig(
        segment_bytes=400, file_delete_delay_ms=0, retention_ms=-1, message_timestamp_type="LogAppendTime"
    )
    scene.controller.change(TP, log_config=replace(config, **settings))  # type: ignore[arg-type]
    await scene.world.sleep_ms(100)


def segments(scene: Scene, node: int) -> list[str]:
    """The `.log` files on a node's disk, in order."""
    disk = scene.world.machines[f"n{node}"].disk
    paths = [PurePosixPath(path) for path, _ in disk.names.files()]
    return sorted(path.name for path in paths if path.parent == PurePosixPath(f"{PATH}/{TP}") and path.suffix == ".log")


def test_age_deletes_on_every_replica() -> None:
    """Row S74: all replicas begin where the leader begins, files go from all disks, and a quiet topic keeps nothing."""

    async def scenario(scene: Scene) -> None:
        await keep(scene)
        for _ in range(10):
            await scene.append(1, b"." * 100)
        assert all(len(segments(scene, node)) > 2 for node in NODES)
        await keep(scene, retention_ms=MINUTE_MS)
        await scene.world.sleep_ms(MINUTE_MS / 2)
        assert [scene.status(node).log_start_offset for node in NODES] == [0, 0, 0]
        await scene.until(lambda: all(len(segments(scene, node)) == 1 for node in NODES), within_ms=2 * MINUTE_MS)
        for node in NODES:
            status = scene.status(node)
            assert (status.log_start_offset, status.log_end_offset, status.size_bytes) == (10, 10, 0)
        assert scene.manager(1).counters.expired_records == 10
        assert scene.manager(2).counters.expired_records == 0, "the leader alone decides"
        assert (await scene.append(1)).base_offset == 10

    scene().play(scenario)


def test_size_deletes_what_is_too_much() -> None:
    """retention.bytes of one partition; a follower that was away takes it over when it is back."""

    async def scenario(scene: Scene) -> None:
        await keep(scene, retention_bytes=500)
        scene.world.kill("n3")
        for _ in range(20):
            assert (await scene.append(1, b"." * 100)).error is ErrorCode.NONE
        await scene.until(lambda: scene.status(1).size_bytes < 1_000)
        assert scene.status(1).size_bytes >= 500
        await scene.until(lambda: scene.status(2).log_start_offset == scene.status(1).log_start_offset > 0)
        scene.broker(3).start()
        await scene.until(lambda: len(scene.isr) == 3)
        await scene.until(lambda: scene.status(3).log_start_offset == scene.status(1).log_start_offset)

    scene().play(scenario)


def test_what_is_not_committed_stays() -> None:
    """Rule of schedule 16: while nothing can be committed nothing above the high watermark goes, whatever its age."""

    async def scenario(scene: Scene) -> None:
        await keep(scene, retention_ms=MINUTE_MS)
        await scene.append(1, b"." * 300)
        for node in (2, 3):
            scene.world.partition("n1", f"n{node}")
        for _ in range(3):
            await scene.append(1, b"." * 300, acks=1)
        await scene.world.sleep_ms(3 * MINUTE_MS)
        assert scene.status(1).high_watermark <= 1
        assert (scene.status(1).log_start_offset, scene.status(1).log_end_offset) == (1, 4)

    scene().play(scenario)


def test_72_a_wall_clock_that_is_set_ahead_deletes_nothing_too_early() -> None:
    """Schedule 72: a leader's clock is set ahead by a year. Nothing goes before a day has passed, and by then it may
    have been put right; with time set back nothing goes too early either."""

    async def scenario(scene: Scene) -> None:
        clock = scene.world.machines["n1"].clock
        await keep(scene, retention_ms=120 * MINUTE_MS)
        await scene.append(1, b"." * 300)
        await scene.world.sleep_ms(1_000)
        clock.jump_wall(365 * 24 * 60 * MINUTE_MS)
        await scene.world.sleep_ms(100 * MINUTE_MS)
        assert scene.status(1).log_start_offset == 0, "deleted too early"
        await scene.world.sleep_ms(30 * MINUTE_MS)
        assert scene.status(1).log_start_offset == 1, "it goes by the time before, not by none"
        clock.jump_wall(-366 * 24 * 60 * MINUTE_MS)
        assert (await scene.append(1, b"." * 300)).error is ErrorCode.NONE
        await scene.world.sleep_ms(60 * MINUTE_MS)
        assert scene.status(1).log_start_offset == 1
        await scene.world.sleep_ms(BELIEVED_AFTER_MS / 12)
        assert scene.status(1).log_start_offset == 2

    scene().play(scenario)


def test_100_records_that_a_clock_of_the_past_stamped_are_not_taken_early() -> None:
    """Schedule 100: a leader's clock is set back by eight days for seconds, or its machine comes up with such a clock.
    What it takes meanwhile is stamped on from the time before: the next leader, whose clock is right, keeps it."""
    day_ms = 24 * 60 * MINUTE_MS

    async def scenario(scene: Scene) -> None:
        clock = scene.world.machines["n1"].clock
        await keep(scene, retention_ms=7 * day_ms)
        await scene.world.sleep_ms(2_000)
        clock.jump_wall(-8 * day_ms)
        assert (await scene.append(1, b"." * 300)).error is ErrorCode.NONE
        scene.world.kill("n1")
        scene.broker(1).start()
        await scene.until(lambda: len(scene.isr) == 3 and scene.hosted(1) is not None)
        scene.controller.elect(TP, NodeId(1))
        await scene.until(lambda: scene.leads(1))
        assert (await scene.append(1, b"." * 300)).error is ErrorCode.NONE
        clock.jump_wall(8 * day_ms)
        await scene.append(1, b"." * 300)
        await scene.until(lambda: scene.status(2).log_end_offset == 3)
        scene.controller.elect(TP, NodeId(2))
        await scene.until(lambda: scene.leads(2))
        await scene.append(2, b"." * 300)
        await scene.world.sleep_ms(MINUTE_MS)
        assert scene.status(2).log_start_offset == 0, "deleted too early"

    scene().play(scenario)


def test_72_a_broker_that_starts_with_a_clock_of_the_future_deletes_nothing_too_early() -> None:
    """Schedule 72: the wall clock is a year ahead when the process starts, and again when it starts anew. What the last
    life went by holds for a day; a broker that was away for hours believes its clock at once."""
    day_ms = 24 * 60 * MINUTE_MS

    async def scenario(scene: Scene) -> None:
        clock = scene.world.machines["n1"].clock
        await keep(scene, retention_ms=2 * day_ms)
        await scene.append(1, b"." * 300)
        await scene.world.sleep_ms(2_000)

        async def start_anew(away_ms: float) -> None:
            scene.world.kill("n1")
            clock.jump_wall(away_ms)
            scene.broker(1).start()
            await scene.until(lambda: len(scene.isr) == 3 and scene.hosted(1) is not None)
            scene.controller.elect(TP, NodeId(1))
            await scene.until(lambda: scene.leads(1))

        for away_ms in (365 * day_ms, day_ms):
            await start_anew(away_ms)
            await scene.world.sleep_ms(MINUTE_MS)
            assert scene.status(1).log_start_offset == 0, "deleted too early"
        clock.jump_wall(-366 * day_ms)
        await scene.world.sleep_ms(MINUTE_MS)
        for _ in range(3):
            await start_anew(day_ms * 0.9)
            await scene.world.sleep_ms(2_000)
        assert scene.status(1).log_start_offset == 1

    scene().play(scenario)
