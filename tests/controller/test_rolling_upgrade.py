"""A roll from one build to the next in the simulator: nothing new is written until it is finalized (rules A32 to A34).

A node of an older build is this one with the levels of that build.
"""

from __future__ import annotations

import pytest

from strandline.controller.features_api import FeatureUpdate, UpdateFeaturesRequest, UpdateKind
from strandline.controller.metadata.features import BEFORE_LEVELS, METADATA_FEATURE, NEWEST_LEVEL
from strandline.controller.operations import UPDATE_FEATURES
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.controller.sim_cluster import Node, SimCluster


class Rolled(SimCluster):
    """All nodes begin with the older build."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.supported = dict.fromkeys(range(1, self.voters + 1), BEFORE_LEVELS)

    async def to_level(self, level: int, kind: UpdateKind) -> None:
        asked = UpdateFeaturesRequest((FeatureUpdate(METADATA_FEATURE, level, kind),))

        async def ask(node: Node) -> None:
            await node.channel.ask(UPDATE_FEATURES, asked)

        await self.on(min(self.nodes), ask)

    async def replace(self, node: int, *, old: bool = False) -> None:
        """Another build starts in the place of the node's process."""
        if old:
            self.supported[node] = BEFORE_LEVELS
        else:
            self.supported.pop(node, None)
        self.kill(node)
        self.start(node)

    def levels(self) -> set[int]:
        return {node.publisher.image.metadata_version for node in self.nodes.values()}


@pytest.mark.parametrize("seed", range(4))
def test_a_roll_writes_nothing_new_until_it_is_finalized(seed: int) -> None:
    """Node by node, with topics made meanwhile, whichever build leads: the level is the old one, and is refused to rise
    while any node is old. Then up, down, and up again."""

    async def scenario(cluster: Rolled) -> None:
        for node in (1, 2, 3):
            with pytest.raises(KafkaError) as caught:
                await cluster.to_level(2, UpdateKind.UPGRADE)
            assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION
            await cluster.replace(node)
            await cluster.until(cluster.healthy)
            await cluster.create(f"t{node}", [[1, 2, 3]])
            assert cluster.levels() == {1}
        for level, kind in ((2, UpdateKind.UPGRADE), (1, UpdateKind.SAFE_DOWNGRADE), (2, UpdateKind.UPGRADE)):
            await cluster.to_level(level, kind)
            await cluster.until(lambda level=level: cluster.levels() == {level})  # type: ignore[misc]
            await cluster.create(f"at-level-{len(cluster.nodes[1].publisher.image.topics)}", [[1, 2, 3]])

    Rolled(seed).play(scenario)


@pytest.mark.parametrize("seed", range(2))
def test_a_roll_that_is_half_done_can_be_taken_back(seed: int) -> None:
    """The new builds wrote nothing that the old one does not know."""

    async def scenario(cluster: Rolled) -> None:
        for old in (False, True):
            for node in (1, 2):
                await cluster.replace(node, old=old)
                await cluster.until(cluster.healthy)
                await cluster.create(f"t{node}-{old}", [[1, 2, 3]])
        assert cluster.levels() == {1}

    Rolled(seed).play(scenario)


def test_an_old_build_that_comes_back_after_the_roll_halts_and_says_what_to_install() -> None:
    """Controller and broker in one: it meets the record before it could register."""

    async def scenario(cluster: Rolled) -> None:
        for node in (1, 2, 3):
            await cluster.replace(node)
            await cluster.until(cluster.healthy)
        await cluster.to_level(NEWEST_LEVEL, UpdateKind.UPGRADE)
        await cluster.until(lambda: cluster.levels() == {NEWEST_LEVEL})
        cluster.kill(3)
        cluster.supported[3] = BEFORE_LEVELS
        cluster.start(3)
        await cluster.until(lambda: 3 in cluster.nodes and cluster.nodes[3].fatal)
        assert any("Install Strandline 0.1.0 or newer" in str(error) for error in cluster.nodes[3].fatal)
        cluster.kill(3)

    Rolled(1).play(scenario)


def test_a_node_that_is_down_keeps_the_level_as_it_is() -> None:
    """Nobody knows what it would run when it is back."""

    async def scenario(cluster: Rolled) -> None:
        for node in (1, 2, 3):
            await cluster.replace(node)
            await cluster.until(cluster.healthy)
        cluster.kill(3)
        await cluster.until(lambda: cluster.active is not None)
        with pytest.raises(KafkaError, match="node 3"):
            await cluster.to_level(2, UpdateKind.UPGRADE)
        assert cluster.levels() == {1}

    Rolled(2).play(scenario)
