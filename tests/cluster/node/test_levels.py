"""A directory at a higher level, and back: the build from before that level starts on it again (rule A35)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from test_node import CLUSTER, free_port_config

from strandline.cluster.node.bootstrap import first_level_records
from strandline.cluster.node.format import format_directory
from strandline.cluster.node.node import Node
from strandline.cluster.node.world import system_world
from strandline.controller.features_api import FeatureUpdate, UpdateFeaturesRequest, UpdateKind
from strandline.controller.metadata.features import BEFORE_LEVELS, METADATA_FEATURE, NEWEST_LEVEL, OWN_LEVELS, Supported
from strandline.controller.operations import UPDATE_FEATURES
from strandline.proto.errors import ConfigError, FatalError


def run(
    path: Path,
    supported: Supported,
    body: Callable[[Node], Awaitable[None]],
    features: Sequence[str] = ("metadata.version=1",),
) -> None:
    """Start a node of a build that knows these levels, run, stop."""

    async def main() -> None:
        world = system_world()
        config = free_port_config(path)
        format_directory(
            world.disk, config, cluster_id=CLUSTER, rng=world.rng, ignore_formatted=True, features=features
        )
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


@pytest.mark.parametrize(
    ("features", "level", "recorded"),
    [
        (
            (),
            NEWEST_LEVEL,
            {"group.version": 1, "eligible.leader.replicas.version": 1, "transaction.version": 2},
        ),
        (
            ("metadata.version=2", "transaction.version=0"),
            2,
            {"group.version": 1, "eligible.leader.replicas.version": 1},
        ),
        (
            ("transaction.version=2",),
            NEWEST_LEVEL,
            {"group.version": 1, "eligible.leader.replicas.version": 1, "transaction.version": 2},
        ),
        (("metadata.version=1", "group.version=1"), 1, {}),
    ],
)
def test_a_new_cluster_begins_at_the_newest_level_or_at_the_one_it_is_formatted_with(
    tmp_path: Path, features: Sequence[str], level: int, recorded: dict[str, int]
) -> None:
    async def body(node: Node) -> None:
        await ready_at(node, level)
        assert node.publisher.image.levels == {METADATA_FEATURE: level, **recorded}

    run(tmp_path / "data", OWN_LEVELS, body, features)


@pytest.mark.parametrize(
    ("release", "features", "words"),
    [
        ("9.9.9", (), "up to"),
        ("4.0-IV3", (), "a release of Strandline"),
        ("", ("share.version=1",), "NAME=LEVEL"),
        ("", ("metadata.version",), "the level 1 to 3"),
        ("", ("transaction.version=3",), "the level 0 to 2"),
        ("", ("kraft.version=2",), "the level 0 to 1"),
    ],
)
def test_levels_that_there_are_not_are_refused(release: str, features: Sequence[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        first_level_records(release, features)


def test_a_release_stands_for_the_levels_that_it_begins_with() -> None:
    assert first_level_records("0.1.0", ()) == first_level_records("", (f"metadata.version={NEWEST_LEVEL}",))
    assert first_level_records("", ()) == []
