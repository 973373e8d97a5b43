"""What the checkers of a cluster take for the truth."""

from __future__ import annotations

from strandline.chaos.cluster import SimCluster
from strandline.chaos.sim.world import World


def test_what_a_dead_node_had_committed_stays_committed() -> None:
    """The active controller commits, and dies before anyone else has heard that it is committed: the newest metadata
    are still its, as is the ISR that it may have answered to a leader (simulator seed 235, MaximalIsr)."""
    world = World(5)
    cluster = SimCluster(world, {})
    newest: list[int] = []
    """The offset that the controller alone had applied when it died."""

    def strike() -> None:
        applied = {f"n{live.number}": live.node.publisher.image.offset for live in cluster.nodes()}
        controller = cluster.controller()
        if not newest and controller is not None and len(applied) == 3:
            others = [offset for name, offset in applied.items() if name != controller]
            if applied[controller] > max(others):
                newest.append(applied[controller])
                world.kill(controller)

    async def story() -> None:
        for name in cluster.names:
            cluster.start(name)
        await cluster.wait_for("the controller is ahead, and dies", 10_000, lambda: bool(newest))
        image = cluster.newest_image()
        assert image is not None
        assert image.offset >= newest[0]
        killed = next(name for name in cluster.names if world.process(name) is None)
        cluster.start(killed)
        image = cluster.newest_image()
        assert image is not None
        assert image.offset >= newest[0]

    world.loop.observe, world.loop.observe_every = strike, 1
    world.run(story())
