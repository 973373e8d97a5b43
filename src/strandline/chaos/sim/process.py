"""Machines and the processes on them. A process is one incarnation: after its death the next one is another object."""

from __future__ import annotations

import asyncio
import contextvars
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from strandline.chaos.sim.clock import SimClock
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.handles import OWNER, ProcessKilled, SimHandle
from strandline.chaos.sim.loop import SimLoop


class ProcessState(enum.Enum):
    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


@dataclass
class Machine:
    """A host: its disks and its clocks outlive its processes.

    Attributes:
        disk: what everything lies on, but for what lies on `mounted`.
        mounted: other disks, by the path that each is mounted on.
    """

    name: str
    disk: SimDisk
    clock: SimClock
    mounted: dict[str, SimDisk] = field(default_factory=dict)
    powered: bool = True
    process: Process | None = None
    incarnations: int = 0
    next_port: int = 32768

    @property
    def disks(self) -> list[SimDisk]:
        """All disks of the machine."""
        return [self.disk, *self.mounted.values()]

    def disk_of(self, path: str) -> SimDisk:
        """The disk of a path."""
        found = (disk for at, disk in self.mounted.items() if path == at or path.startswith(at + "/"))
        return next(found, self.disk)


class Process:
    """One incarnation of a program on a machine.

    - While it runs, every callback in whose context `OWNER` is this object runs in its name.
    - Paused, its callbacks queue up and run in order when it resumes.
    - Dead, they are kept, and never run: nothing is cancelled, no `finally` executes, no coroutine is collected.
    """

    def __init__(self, machine: Machine, loop: SimLoop) -> None:
        machine.incarnations += 1
        self.machine = machine
        self.incarnation = machine.incarnations
        self.state = ProcessState.RUNNING
        self.wakeups = 0
        self.longest_turn_us = 0
        """Microseconds that the longest callback spent."""
        machine.clock.busy_until_us = 0
        self.context = contextvars.Context()
        self.context.run(OWNER.set, self)
        self.main: asyncio.Task[Any] | None = None
        self.threads: Any = None
        """Threads beside its loop, where its program has any (`strandline.chaos.sim.threads.Threads`)."""
        self.on_death: list[Callable[[], None]] = []
        self._loop = loop
        self.blocked = False
        """True: its thread waits for a disk that hangs, in the middle of a callback."""
        self._pauses = 0
        self._deferred: list[SimHandle] = []
        self._graves: list[object] = []

    def __str__(self) -> str:
        return f"{self.machine.name}#{self.incarnation}"

    @property
    def clock(self) -> SimClock:
        """The machine's."""
        return self.machine.clock

    @property
    def machine_name(self) -> str:
        """Name of its machine."""
        return self.machine.name

    @property
    def alive(self) -> bool:
        return self.state is not ProcessState.DEAD

    def require_alive(self) -> None:
        """Raise if the process is dead; every port calls this before it does anything.

        Raises:
            ProcessKilled: this incarnation is dead, or will never run again; only code that was on the stack then can
                get here.
        """
        if self.state is ProcessState.DEAD or self.blocked:
            raise ProcessKilled(str(self))

    def holds(self, handle: SimHandle) -> bool:
        """Whether the loop must not run `handle` now; it is kept here instead."""
        if self.state is ProcessState.RUNNING:
            return False
        (self._deferred if self.state is ProcessState.PAUSED else self._graves).append(handle)
        return True

    def pause(self) -> None:
        """Stop running callbacks until as many calls of `resume`."""
        if self.alive:
            self._pauses += 1
            self.state = ProcessState.PAUSED

    def resume(self) -> None:
        """Undo one `pause`; the deferred callbacks run in their order."""
        if self.state is not ProcessState.PAUSED:
            return
        self._pauses -= 1
        if not self._pauses:
            self.state = ProcessState.RUNNING
            deferred, self._deferred = self._deferred, []
            self._loop.requeue(deferred)

    def block(self) -> None:
        """Let the current callback never return. To its peers the process is as silent as a paused one, until it
        dies."""
        self.blocked = True
        self.pause()

    def stall(self, duration_us: int) -> None:
        """Let everything after the current callback wait, for a blocking call took that long."""
        if duration_us > 0 and self.alive:
            self.pause()
            self._loop.call_at_us(self._loop.now_us + duration_us, self.resume, context=contextvars.Context())

    def spend(self, duration_us: int) -> None:
        """Let the current callback take `duration_us`: its clock advances at once, its later effects happen after that
        time, and the next callbacks wait."""
        if duration_us <= 0 or not self.alive:
            return
        clock, now_us = self.clock, self._loop.now_us
        if clock.busy_until_us <= now_us:
            clock.busy_until_us = now_us
            self.pause()
            self._loop.call_at_us(now_us + duration_us, self._spent, context=contextvars.Context())
        clock.busy_until_us += duration_us
        self.longest_turn_us = max(self.longest_turn_us, clock.busy_until_us - now_us)

    def _spent(self) -> None:
        if self.alive and self.clock.busy_until_us > self._loop.now_us:
            self._loop.call_at_us(self.clock.busy_until_us, self._spent, context=contextvars.Context())
        else:
            self.resume()

    def die(self) -> None:
        """Stop for good. The world closes its connections; see `World.kill`."""
        if self.state is ProcessState.DEAD:
            return
        self.state = ProcessState.DEAD
        self._graves.extend(self._deferred)
        callbacks, self.on_death = self.on_death, []
        for callback in callbacks:
            callback()


def current_process() -> Process | None:
    """The incarnation in whose name the current callback runs; None: the world itself."""
    return cast("Process | None", OWNER.get())
