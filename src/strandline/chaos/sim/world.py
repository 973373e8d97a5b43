"""The world: machines, the processes on them, and what happens to them."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import gc
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from strandline.chaos.sim.clock import SimClock
from strandline.chaos.sim.disk import Caller, DiskConfig, SimDisk
from strandline.chaos.sim.disk_port import DiskPort
from strandline.chaos.sim.links import NetworkConfig
from strandline.chaos.sim.loop import SimLoop
from strandline.chaos.sim.network import Network
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.process import Machine, Process
from strandline.chaos.sim.rpc import SimRpc
from strandline.chaos.sim.seeds import split
from strandline.chaos.sim.transport import NetworkTransports

T = TypeVar("T")

BLOCKED_MS = 5_000
"""Milliseconds after which the watch thread ends a process whose event loop hangs in a disk call."""


@dataclass
class WorldConfig:
    """The healthy world of a run."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    disk: DiskConfig = field(default_factory=DiskConfig)
    clock_rate_error: float = 0.0
    """Each machine's monotonic clock runs at 1 +- this."""
    wall_error_ms: float = 0.0
    """Each machine's wall clock is off by up to this."""
    permute: bool = True


class World:
    """Everything that a seed determines.

    ::

        world = World(seed)
        world.add_machine("n1")
        world.run(scenario(world))      # the scenario spawns, kills, cuts the power, waits
        world.trace                     # equal for equal seeds, in whatever process
    """

    def __init__(self, seed: int, config: WorldConfig | None = None) -> None:
        self.seed = seed
        self.config = config or WorldConfig()
        self.loop = SimLoop(split(seed, "interleaving"), permute=self.config.permute)
        self.network = Network(self.loop, split(seed, "network"), self.config.network)
        self.loop.transports = NetworkTransports(self.network)
        self.processes: list[Process] = []

    @property
    def machines(self) -> dict[str, Machine]:
        return self.network.machines

    @property
    def trace(self) -> int:
        """A hash of everything that ran, was sent and was written, in order."""
        return self.loop.trace

    @property
    def now_ms(self) -> float:
        return self.loop.now_us / 1000

    # --- machines and processes ---

    def add_machine(self, name: str, disk: DiskConfig | None = None, mounted: Sequence[str] = ()) -> Machine:
        """A host called `name` (also its network address), with a disk more for each path in `mounted`."""
        rng = split(self.seed, "clock", name)
        error = self.config.clock_rate_error
        clock = SimClock(
            lambda: self.loop.now_us,
            rate=1.0 + rng.uniform(-error, error),
            origin_ms=float(rng.randint(0, 10_000_000)),
            wall_offset_ms=rng.uniform(-self.config.wall_error_ms, self.config.wall_error_ms),
        )
        own_disk = SimDisk(self.loop, split(self.seed, "disk", name), replace(disk or self.config.disk))
        machine = Machine(name, own_disk, clock)
        for path in mounted:
            rng = split(self.seed, "disk", name, path)
            machine.mounted[path] = SimDisk(self.loop, rng, replace(disk or self.config.disk))
        for one in machine.disks:
            one.on_blocked = self._blocked
        self.machines[name] = machine
        if clock.rate != 1.0:
            self.loop.effects["clocks-apart"] += 1
        return machine

    def spawn(self, name: str, main: Callable[[Ports], Coroutine[Any, Any, Any]]) -> Process:
        """Start a process on a machine (powering it on) that runs `main` with its ports.

        Raises:
            RuntimeError: the machine's process still lives.
        """
        machine = self.machines[name]
        if machine.process is not None and machine.process.alive:
            raise RuntimeError(f"{machine.process} still runs")
        machine.powered = True
        process = machine.process = Process(machine, self.loop)
        self.processes.append(process)
        ports = Ports(
            clock=machine.clock,
            disk=DiskPort(machine.disk, process),
            rpc=SimRpc(self.network, process),
            rng=split(self.seed, "process", name, process.incarnation),
            disks={path: DiskPort(disk, process) for path, disk in machine.mounted.items()},
        )
        process.main = process.context.copy().run(lambda: self.loop.create_task(main(ports)))
        process.main.add_done_callback(self._ended, context=process.context)
        return process

    def _blocked(self, process: Caller) -> None:
        """Stop the process: its loop waits for a hung disk."""
        process.block()
        due_us = self.loop.now_us + BLOCKED_MS * 1000
        self.loop.call_at_us(due_us, self._end_blocked, process, context=contextvars.Context())

    def _end_blocked(self, process: Caller) -> None:
        if process.alive:
            self.kill(process.machine_name)

    def _ended(self, main: asyncio.Task[Any]) -> None:
        """A process ran off its end; with an error, that is for the run's judge."""
        if not main.cancelled() and main.exception() is not None:
            self.loop.call_exception_handler({"message": "a process fell", "exception": main.exception()})

    def process(self, name: str) -> Process | None:
        """The living process of a machine."""
        process = self.machines[name].process
        return process if process is not None and process.alive else None

    # --- what happens to them ---

    def kill(self, name: str) -> None:
        """kill -9: nothing of the process runs again; what it wrote stays written; its peers are told by the kernel."""
        process = self.process(name)
        if process is not None:
            self.loop.effects["killed"] += 1
            process.die()
            self.network.process_died(process, silent=False)

    def power_cut(self, name: str) -> None:
        """Cut the machine's power: the process is gone, unsynced data is lost, peers hear nothing until it is back."""
        machine = self.machines[name]
        process = self.process(name)
        machine.powered = False
        if process is not None:
            self.loop.effects["power-lost"] += 1
            process.die()
            self.network.process_died(process, silent=True)
        for disk in machine.disks:
            disk.crash()

    def pause(self, name: str) -> None:
        """Pause the process, as by SIGSTOP: its callbacks wait; its kernel still acknowledges and accepts."""
        process = self.process(name)
        if process is not None:
            process.pause()

    def resume(self, name: str) -> None:
        process = self.process(name)
        if process is not None:
            process.resume()

    def partition(self, first: str, second: str, *, one_way: bool = False) -> None:
        """Block the link from `first` to `second`, and back unless `one_way`."""
        self.network.block(first, second)
        if not one_way:
            self.network.block(second, first)

    def isolate(self, name: str) -> None:
        """Block every link of a machine, both ways."""
        for other in self.machines:
            if other != name:
                self.partition(name, other)

    def heal(self) -> None:
        """Undo every partition, delay and loss."""
        self.network.heal_all()

    # --- running ---

    async def sleep_ms(self, duration_ms: float) -> None:
        """Let world time pass, for scenarios."""
        await asyncio.sleep(duration_ms / 1000)

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run `scenario` (owned by no process) to its end, with the garbage collector off.

        A collection would throw GeneratorExit into the coroutines of dead processes, and run their `finally` blocks.
        """
        collecting = gc.isenabled()
        gc.disable()
        try:
            return contextvars.Context().run(self.loop.run_until_complete, scenario)
        finally:
            self._bury()
            if collecting:
                gc.enable()

    def _bury(self) -> None:
        """End everything for good: no task of this world may ever be collected, not even when the interpreter exits."""
        for process in self.processes:
            process.die()
        pending = sorted(asyncio.all_tasks(self.loop), key=hash)
        for task in pending:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        grave = (pending, self.processes, self.loop)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(grave))
        for machine in self.machines.values():
            for disk in machine.disks:
                disk.names.root.entries.clear()
        self.loop.close()
