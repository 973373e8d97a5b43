"""Operators who move replicas while a simulated cluster is under faults: between the log directories of a node, and
from broker to broker."""

from __future__ import annotations

import random
from collections.abc import Callable

from strandline.chaos.cluster import Live, SimCluster
from strandline.chaos.sim.world import World
from strandline.controller.metadata.features import LEVEL_OF_MOVES
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId, TopicPartition
from strandline.proto.marks import mark
from strandline.replica.manager import ReplicaManager

MEAN_MS = 1_500.0
"""Milliseconds between two requests, on average."""


class Moves:
    """Asks a node to move a replica, now and then; some of the moves are taken back, or sent elsewhere, so."""

    def __init__(self, world: World, cluster: SimCluster, rng: random.Random, note: Callable[[str], None]) -> None:
        self._world = world
        self._cluster = cluster
        self._rng = rng
        self._note = note

    async def work(self) -> None:
        """Ask for moves for as long as the run lasts."""
        while True:
            await self._world.sleep_ms(self._rng.expovariate(1 / MEAN_MS))
            nodes = [live for live in self._cluster.nodes() if live.node.broker is not None]
            if nodes:
                live = self._rng.choice(nodes)
                # In the node's own process: what it meets there may kill it.
                self._world.loop.call_soon(self._ask, live, context=live.process.context)

    def _ask(self, live: Live) -> None:
        broker = live.node.broker
        if broker is None or not live.process.alive:
            return
        manager: ReplicaManager = broker.replicas
        replicas = sorted(TopicPartition(one.topic, one.partition) for one in manager.hosted() if one.directory)
        if not replicas:
            return
        tp = self._rng.choice(replicas)
        path = self._rng.choice([log_dir.path for log_dir in manager.log_dirs.dirs])
        try:
            manager.mover.ask(tp, path)
        except KafkaError:
            mark("move-refused")
        else:
            self._note(f"{tp} on n{manager.node_id} is to be moved to {path}")


REASSIGN_MEAN_MS = 400.0
"""Milliseconds between two requests to move a partition to other brokers, on average."""

CANCELLED = 0.2
"""Share of the requests that cancel a move, where one is under way."""


class Reassignments:
    """Asks for partitions on other brokers, in another order, with fewer replicas or more; takes moves back, or sends
    them elsewhere. At the end all have a replica on every broker again: so each move has to end."""

    def __init__(
        self,
        world: World,
        cluster: SimCluster,
        rng: random.Random,
        note: Callable[[str], None],
        fewest: int,
    ) -> None:
        """`fewest`: replicas that it leaves a partition."""
        self._world = world
        self._cluster = cluster
        self._rng = rng
        self._note = note
        self._fewest = fewest
        self._has_moved = False
        """True once the cluster was at a level at which partitions move."""

    async def work(self) -> None:
        """Ask for moves for as long as the run lasts."""
        while True:
            await self._world.sleep_ms(self._rng.expovariate(1 / REASSIGN_MEAN_MS))
            image = self._cluster.newest_image()
            partitions = [] if image is None else list(image.partitions())
            if image is not None and partitions and image.metadata_version >= LEVEL_OF_MOVES:
                self._has_moved = True
                topic, info = self._rng.choice(partitions)
                wanted = self._draw(image, info)
                self._note(f"{topic.name}-{info.partition} is to be on {wanted or 'what it was on'}")
                self._cluster.reassign({(topic.name, info.partition): wanted})

    def _draw(self, image: MetadataImage, info: PartitionRecord) -> tuple[NodeId, ...] | None:
        if info.is_moving and self._rng.random() < CANCELLED:
            return None
        brokers = sorted(image.brokers)
        return tuple(self._rng.sample(brokers, self._rng.randint(min(self._fewest, len(brokers)), len(brokers))))

    def spread(self) -> bool:
        """Ask for a replica of everything on every broker where one lacks, and nothing moves. True: none does.

        Where the level is lowered and raised again in the middle, what was moved before is spread once it is raised: a
        partition of two replicas does not do without the broker of one (seed 36120395). In a cluster that has never
        been at a level of moves, replicas lack that were never made, and none is asked for.
        """
        image = self._cluster.newest_image()
        if image is None:
            return False
        if image.metadata_version < LEVEL_OF_MOVES and not self._has_moved:
            return True
        lacking = {
            (topic.name, info.partition): (*info.replicas, *sorted({*image.brokers} - {*info.replicas}))
            for topic, info in image.partitions()
            if not info.is_moving and len(info.replicas) < len(image.brokers)
        }
        self._cluster.reassign(lacking)  # refused below the level of moves
        return not lacking and not any(info.is_moving for _, info in image.partitions())
