"""A directory at a higher level, and back: the build from before that level starts on it again (rule A35)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from test_node import CLUSTER, free_port_config

from strandline.cluster.node.bootstrap import write_bootstrap
from strandline.cluster.node.format import format_directory
from strandline.cluster.node.node import Node
from strandline.cluster.node.world import system_world
from strandline.controller.features_api import FeatureUpdate, UpdateFeaturesRequest, UpdateKind
from strandline.controller.metadata.features import BEFORE_LEVELS, METADATA_FEATURE, OWN_LEVELS, Supported
from strandline.controller.metadata.records import MetadataVersionRecord
from strandline.controller.operations import UPDATE_FEATURES
from strandline.proto.errors import FatalError


def run(path: Path, supported: Supported, body: Callable[[Node], Awaitable[None]]) -> None:
    """Start a node of a build that knows these levels, run, stop."""

    async def main() -> None:
        world = system_world()
        config = free_port_config(path)
        made = format_directory(world.disk, config, cluster_id=CLUSTER, rng=world.rng, ignore_formatted=True)
        if not made.already:
            write_bootstrap(world.disk, str(path), [MetadataVersionRecord(1)])
        node = Node(config, disk=world.disk, clock=world.clock, rng=world.rng, rpc=world.rpc, supported=supported)
        await node.start()
        try:
            async with asyncio.timeout(30):
                await body(node)
        finally:
            await node.stop()

    asyncio.run(main())


async def ready_at(node: Node, level: int) -> None:
    await node.wait_ready()
    assert node.publisher.image.metadata_version == level


async def to_level(node: Node, level: int, kind: UpdateKind) -> None:
    assert node.broker is not None
    asked = UpdateFeaturesRequest((FeatureUpdate(METADATA_FEATURE, level, kind),))
    await node.broker.channel.ask(UPDATE_FEATURES, asked)


async def snapshot_behind(path: Path, offset: int) -> None:
    while not any(int(one.name[:20]) > offset for one in (path / "__cluster_metadata-0").glob("*.checkpoint")):
        await asyncio.sleep(0.01)


def test_the_build_from_before_starts_where_the_level_was_lowered_again(tmp_path: Path) -> None:
    """Rule A35: a snapshot is taken behind the change, and an older build begins there. While the level is the higher
    one it halts, says what to install, and leaves the directory to the newer build."""
    path = tmp_path / "data"

    async def raise_it(node: Node) -> None:
        await ready_at(node, 1)
        await to_level(node, 2, UpdateKind.UPGRADE)

    async def refused(node: Node) -> None:
        await node.failed

    async def lower_it(node: Node) -> None:
        await ready_at(node, 2)
        await to_level(node, 1, UpdateKind.SAFE_DOWNGRADE)
        lowered = node.publisher.image.offset
        async with asyncio.timeout(10):
            await snapshot_behind(path, lowered)

    run(path, BEFORE_LEVELS, lambda node: ready_at(node, 1))
    run(path, OWN_LEVELS, raise_it)
    with pytest.raises(FatalError, match=r"Install Strandline 0\.1\.0 or newer"):
        run(path, BEFORE_LEVELS, refused)
    run(path, OWN_LEVELS, lower_it)
    run(path, BEFORE_LEVELS, lambda node: ready_at(node, 1))
