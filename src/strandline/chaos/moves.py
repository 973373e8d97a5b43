"""The operator who moves replicas between the log directories of simulated nodes, whatever else happens to them."""

from __future__ import annotations

import random
from collections.abc import Callable

from strandline.chaos.cluster import Live, SimCluster
from strandline.chaos.sim.world import World
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
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
