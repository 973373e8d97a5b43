"""The stage of tests of several nodes: simulated machines, what runs on them, and a scenario that is played there.

Each subclass says what a machine runs: a quorum alone (`controller.quorum.quorum_trial`), all of a node but its data
(`controller.sim_cluster`), replicas under a controller made for tests (`replica.simulated`), or whole production nodes
(`ClusterStage`, and what is built on it). The stage stands among the tests because nobody else needs parts of nodes:
users test their own code on whole ones, with `strandline_sim`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Self, TypeVar

from strandline.chaos.cluster import SimCluster
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World, WorldConfig
from strandline.client.aio import Admin
from strandline.client.types import NewTopic

T = TypeVar("T")

READY_MS = 30_000.0
"""In so much virtual time a cluster is up, and whatever a scenario waits for has come."""


def name(machine: int | str) -> str:
    """The name of a machine, or of the one that a node runs on."""
    return machine if isinstance(machine, str) else f"n{machine}"


class Stage:
    """Machines in a world of their own. A machine is given by its name; node 1, as a number, is machine n1.

    Attributes:
        world: their time, network and disks.
        poll_ms: how often `until` looks.
    """

    poll_ms = 5.0

    def __init__(self, seed: int = 1, machines: Iterable[str] = (), *, config: WorldConfig | None = None) -> None:
        self.world = World(seed, config)
        for machine in machines:
            self.world.add_machine(machine)

    def play(self, scenario: Callable[[Self], Awaitable[T]]) -> T:
        """Set the stage, play the scenario to its end, and judge the run."""

        async def whole() -> T:
            await self.begin()
            return await scenario(self)

        result = self.world.run(whole())
        self.judge()
        return result

    async def begin(self) -> None:
        """What happens before the scenario; nothing, unless a subclass says so."""

    def judge(self) -> None:
        """What must hold after every scenario: no task has died without being looked at."""
        assert not self.world.loop.unhandled, self.world.loop.unhandled[0]

    async def until(
        self, holds: Callable[[], object], what: str = "the condition", *, within_ms: float = READY_MS
    ) -> float:
        """Wait for a condition; how long that took, in milliseconds of world time."""
        began_ms = self.world.now_ms
        while not holds():
            assert self.world.now_ms - began_ms < within_ms, f"{what} never came true"
            await self.world.sleep_ms(self.poll_ms)
        return self.world.now_ms - began_ms

    def is_alive(self, machine: int | str) -> bool:
        """A process runs there."""
        return self.world.process(name(machine)) is not None

    def kill(self, *machines: int | str) -> None:
        """kill -9 of the processes there."""
        for machine in machines:
            self.world.kill(name(machine))

    def power_cut(self, *machines: int | str) -> None:
        """The machines lose power, and with it what was not synced."""
        for machine in machines:
            self.world.power_cut(name(machine))

    async def inside(self, node: int, work: Callable[[], Awaitable[T]]) -> T:
        """Run something in a node's process; what it returns or raises."""
        process = self.world.process(f"n{node}")
        assert process is not None, f"n{node} does not run"

        async def run() -> T:
            return await work()

        return await process.context.copy().run(self.world.loop.create_task, run())

    async def process(self, machine: str, work: Callable[[Ports], Awaitable[T]]) -> T:
        """Run `work` on a machine as a process of its own, to its end; what it returns or raises."""
        ended: list[T | Exception] = []

        async def main(ports: Ports) -> None:
            try:
                ended.append(await work(ports))
            except Exception as error:
                ended.append(error)

        self.world.spawn(machine, main)
        await self.until(lambda: ended, f"the end of the process on {machine}", within_ms=120_000)
        self.world.kill(machine)
        if isinstance(ended[0], Exception):
            raise ended[0]
        return ended[0]


class OneMachine(Stage):
    """Machine n1 over several lives, some of which a power cut ends."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed, ["n1"])

    @property
    def disk(self) -> SimDisk:
        return self.world.machines["n1"].disk

    async def live(self, work: Callable[[Ports], Awaitable[object]], for_ms: float = 1_000.0) -> bool:
        """Start a process, in place of the one before, and let time pass; true if `work` has come to its end."""
        ended: list[bool] = []

        async def main(ports: Ports) -> None:
            await work(ports)
            ended.append(True)

        self.kill("n1")
        self.world.spawn("n1", main)
        await self.world.sleep_ms(for_ms)
        return bool(ended)

    def lose_power_at(self, operation: int) -> None:
        """At so many disk operations from now; 0: no longer."""
        self.disk.strike_after(operation, (lambda: self.power_cut("n1")) if operation else None)


class ClusterStage(Stage):
    """Three production nodes, or three controllers and three brokers; and a machine named `client`.

    `begin` starts the nodes and waits until each does its work.
    """

    def __init__(
        self,
        seed: int,
        settings: Mapping[str, str],
        *,
        split: bool = False,
        machines: Iterable[str] = (),
        directories: int = 1,
    ) -> None:
        super().__init__(seed)
        self.cluster = SimCluster(self.world, settings, split=split, directories=directories)
        for machine in ("client", *machines):
            self.world.add_machine(machine)

    async def begin(self) -> None:
        for name in self.cluster.names:
            self.cluster.start(name)
        await self.cluster.wait_ready(READY_MS)

    async def until(
        self, holds: Callable[[], object], what: str = "the condition", *, within_ms: float = READY_MS
    ) -> float:
        """The same; the failure shows the state of all nodes. Raises InvariantViolated (Progress)."""
        began_ms = self.world.now_ms
        await self.cluster.wait_for(what, within_ms, lambda: bool(holds()))
        return self.world.now_ms - began_ms

    async def admin(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """What an admin client does on the machine `client`."""

        async def run(ports: Ports) -> T:
            async with Admin(self.cluster.bootstrap, clock=ports.clock, rng=ports.rng) as admin:
                return await work(admin)

        return await self.process("client", run)

    async def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """A topic of three replicas, all of them in sync; a config's name has _ for its dots."""
        values = {key.replace("_", "."): value for key, value in configs.items()}
        await self.admin(lambda admin: admin.create_topics([NewTopic(topic, partitions, 3, values)]))
        await self.cluster.wait_in_sync(READY_MS)

    def leader(self, topic: str, partition: int = 0) -> str:
        """The machine that leads the partition, by the newest image that any node has."""
        image = self.cluster.newest_image()
        assert image is not None
        return f"n{image.topics[topic].partitions[partition].leader}"
