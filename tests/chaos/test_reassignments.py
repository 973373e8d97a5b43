"""Operators of a simulated cluster leave a replica of everything everywhere once all is healed."""

from __future__ import annotations

import random

from strandline.chaos.moves import Reassignments
from strandline.controller.metadata.features import LEVEL_OF_MOVES
from tests.chaos.site import Site


def test_what_was_moved_is_spread_once_the_level_is_raised_again() -> None:
    """Seed 36120395: the cluster was healed at a level without moves. Partitions kept two replicas, and could not
    acknowledge at min.insync.replicas 2 when one of the two machines was broken for good."""

    async def scenario(site: Site) -> None:
        cluster, world = site.cluster, site.world

        def replicas() -> list[int]:
            image = cluster.newest_image()
            assert image is not None
            return [0 if info.is_moving else len(info.replicas) for _, info in image.partitions()]

        await site.create("moved", 2)
        moves, idle = (Reassignments(world, cluster, random.Random(1), lambda _: None, fewest=2) for _ in range(2))
        moving = world.loop.create_task(moves.work())
        await site.until(lambda: 2 in replicas(), "a partition of two replicas")
        moving.cancel()
        await world.sleep_ms(1_000)  # what was asked for last has begun, or is refused
        await site.until(lambda: 0 not in replicas(), "the end of all moves")
        cluster.ask_for_level(LEVEL_OF_MOVES - 1)
        await site.until(lambda: cluster.level() == LEVEL_OF_MOVES - 1, "the level without moves")
        assert 2 in replicas()
        assert not moves.spread()
        assert idle.spread(), "nobody waits for a level that a cluster never had"
        cluster.ask_for_level(LEVEL_OF_MOVES)
        await site.until(moves.spread, "everything is everywhere")
        assert replicas() == [3, 3]

    Site(1, False).play(scenario)
