"""A node that has lost the time of its last life has it from the metadata, which are stamped by what is believed (rule
B32)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.ports import free_port

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.format import format_directory
from strandline.cluster.node.node import Node
from strandline.cluster.node.world import system_world
from strandline.log.retention import CLOCK_FILE
from strandline.proto.ports import Clock

DAY_MS = 24 * 3_600_000


class Ahead:
    """A clock that is eight days ahead."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + 8 * DAY_MS

    def monotonic_ms(self) -> float:
        return self._clock.monotonic_ms()


def test_112_a_clock_that_is_days_ahead_of_the_metadata_is_not_believed(tmp_path: Path) -> None:
    """Schedule 112: nothing on the disk says so, and nothing of that clock is written down: not into the metadata,
    which would tell the next node, nor for the next life."""

    async def life(*, ahead: bool) -> int:
        world = system_world()
        internal = free_port()
        listeners = f"PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:{internal}"
        voters = f"1@127.0.0.1:{internal}"
        settings = {"node.id": "1", "log.dirs": str(tmp_path), "listeners": listeners}
        often = {"log.retention.check.interval.ms": "20"}
        config = NodeConfig({**settings, **often, "controller.quorum.voters": voters})
        format_directory(world.disk, config, cluster_id="a-cluster", rng=world.rng, ignore_formatted=True)
        clock = Ahead(world.clock) if ahead else world.clock
        node = Node(config, disk=world.disk, clock=clock, rng=world.rng, rpc=world.rpc)
        await node.start()
        try:
            async with asyncio.timeout(20):
                await node.wait_ready()
                assert node.believed.is_founded
                assert abs(node.believed.earliest_ms() - world.clock.wall_ms()) < DAY_MS
                assert abs(node.publisher.image.timestamp_ms - world.clock.wall_ms()) < DAY_MS
                while not (tmp_path / CLOCK_FILE).exists():
                    await asyncio.sleep(0.01)
                return int((tmp_path / CLOCK_FILE).read_text()) - world.clock.wall_ms()
        finally:
            await node.stop()

    assert abs(asyncio.run(life(ahead=False))) < DAY_MS
    (tmp_path / CLOCK_FILE).unlink()
    assert abs(asyncio.run(life(ahead=True))) < DAY_MS
