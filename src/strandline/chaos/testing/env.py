"""Environment of the code under test in a simulated run."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any

from strandline.chaos.cluster import SimCluster
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.process import Process
from strandline.chaos.sim.world import World
from strandline.chaos.testing.faults import SimFaults
from strandline.chaos.testing.requested import as_texts
from strandline.client.aio import Admin
from strandline.client.types import NewTopic
from strandline.controller.metadata.records import PartitionRecord

POLL_MS = 20.0
WAIT_S = 60.0

Main = Callable[["Env"], Coroutine[Any, Any, Any]]


class UserProcess:
    """A process of the code under test that `Env.spawn` started, on a machine of its own.

    Attributes:
        name: of its machine, for `faults.partition` and the like.
    """

    def __init__(
        self, world: World, name: str, process: Process, faults: SimFaults, heard: list[BaseException]
    ) -> None:
        self.name = name
        self._world = world
        self._process = process
        self._faults = faults
        self._heard = heard

    @property
    def alive(self) -> bool:
        """True while it has neither ended nor been killed."""
        return self._process.alive and not self._main.done()

    def kill(self) -> None:
        """kill -9: none of its code runs any more, no `finally`, no `except`."""
        self._faults.note(f"kill {self.name}")
        contextvars.Context().run(self._world.kill, self.name)

    async def wait(self) -> Any:
        """Wait for what its coroutine returns, or raises; returns None once it was killed."""
        while self.alive:
            await self._world.sleep_ms(POLL_MS)
        if not self._main.done():
            return None
        error = self._main.exception()
        if error is not None:
            self._heard.append(error)
        return self._main.result()

    @property
    def _main(self) -> asyncio.Task[Any]:
        assert self._process.main is not None
        return self._process.main


class Clock:
    """The clocks of the world, which no skew of a machine touches."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def now_ms(self) -> float:
        """Virtual milliseconds since the run began."""
        return self._world.now_ms

    def jump_wall(self, machine: str, by_ms: float) -> None:
        """Step the wall clock of a machine ("app" is that of `main`)."""
        self._world.machines[machine].clock.jump_wall(by_ms)


class Env:
    """The simulated world as `main(env)` sees it.

    Attributes:
        seed: of this run.
        bootstrap: the cluster's addresses, for any client.
        clock: virtual time.
        rng: chance that the seed decides, for the test itself.
        faults: of the cluster, to be asked for.
    """

    def __init__(self, world: World, cluster: SimCluster, faults: SimFaults, rng: random.Random) -> None:
        self.seed = world.seed
        self.bootstrap = cluster.bootstrap
        self.clock = Clock(world)
        self.rng = rng
        self.faults = faults
        self.heard: list[BaseException] = []
        """Errors of processes that somebody waited for; any other fails the run."""
        self._world = world
        self._cluster = cluster

    def note(self, what: str) -> None:
        """Add a line to the timeline that a failure prints."""
        self.faults.note(what)

    def spawn(self, main: Callable[[], Awaitable[Any]], name: str | None = None) -> UserProcess:
        """Run `main()` as a process on a machine of its own, so that it can be killed or cut off.

        A name that was used before is the same machine: its process must have ended. What the coroutine shares with
        the test as Python objects outlives it, as a database would.
        """
        if not callable(main):
            raise TypeError(f"spawn takes an async function and calls it, spawn(worker); not {main!r}")
        name = name or f"process-{len(self._world.machines)}"
        if name in self._cluster.names:
            raise ValueError(f"{name!r} is a node's machine")
        if name not in self._world.machines:
            self._world.add_machine(name)
        elif self._world.process(name) is not None:
            self._world.kill(name)

        async def run(_ports: Ports) -> Any:
            return await main()

        self.note(f"start {name}")
        process = contextvars.Context().run(self._world.spawn, name, run)
        return UserProcess(self._world, name, process, self.faults, self.heard)

    async def create_topic(
        self, name: str, partitions: int = 1, replication: int | None = None, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, with a copy on every node unless told otherwise (at most three), and wait for its leaders."""
        factor = replication or min(3, len(self._cluster.names))
        async with Admin(self.bootstrap) as admin:
            await admin.create_topics([NewTopic(name, partitions, factor, as_texts(configs))])
        for partition in range(partitions):
            await self.wait_isr(name, partition)

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """The node that leads a partition, by the newest metadata that any living node has; None: there is none."""
        found = self._partition(topic, partition)
        if found is None or found.leader is None or found.leader < 0:
            return None
        return int(found.leader)

    async def wait_leader(self, topic: str, partition: int = 0, *, timeout_s: float = WAIT_S) -> int:
        """The leader, as soon as there is one that lives. Raises TimeoutError."""

        def led() -> bool:
            leader = self.leader(topic, partition)
            return leader is not None and self._world.process(f"n{leader}") is not None

        await self.wait_for(led, f"a living leader of {topic}-{partition}", timeout_s=timeout_s)
        leader = self.leader(topic, partition)
        assert leader is not None
        return leader

    async def wait_isr(
        self, topic: str, partition: int = 0, members: Collection[int] | None = None, *, timeout_s: float = WAIT_S
    ) -> None:
        """Return once the in-sync replicas are exactly these (None: every replica). Raises TimeoutError."""

        def same() -> bool:
            found = self._partition(topic, partition)
            return found is not None and set(found.isr) == set(found.replicas if members is None else members)

        await self.wait_for(same, f"the ISR of {topic}-{partition} to be {members or 'whole'}", timeout_s=timeout_s)

    async def wait_for(self, holds: Callable[[], bool], what: str = "", *, timeout_s: float = WAIT_S) -> None:
        """Let virtual time pass until `holds()`. Raises TimeoutError."""
        deadline_ms = self.clock.now_ms + timeout_s * 1000
        while not holds():
            if self.clock.now_ms > deadline_ms:
                raise TimeoutError(f"waited {timeout_s:g} s of virtual time for {what or holds}")
            await self._world.sleep_ms(POLL_MS)

    def _partition(self, topic: str, partition: int) -> PartitionRecord | None:
        image = self._cluster.newest_image()
        found = None if image is None else image.topics.get(topic)
        return None if found is None else found.partitions.get(partition)
