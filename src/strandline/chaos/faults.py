"""What befalls a simulated cluster: faults drawn from the seed, each undone after a while, all of them at the end.

Swarm testing: a seed first draws which *kinds* of fault it uses and how often, then the faults themselves. A run in
which everything happens at once hides bugs that need one kind alone.
"""

from __future__ import annotations

import contextvars
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.chaos.sim.world import World

KINDS = (
    "stop",
    "kill",
    "kill_in_callback",
    "power_cut",
    "power_cut_in_callback",
    "power_cut_all",
    "pause",
    "partition",
    "partition_one_way",
    "isolate",
    "delay",
    "loss",
    "break_connections",
    "slow_disk",
    "wall_jump",
)

NODE_KINDS = (*KINDS, "kill_leader", "full_disk", "fail_sync")
"""Those that only a whole node can be asked to survive."""


@dataclass
class FaultOptions:
    """Which faults, how often, how long. Times in virtual milliseconds."""

    kinds: tuple[str, ...] = KINDS
    gap_min_ms: int = 100
    gap_max_ms: int = 1500
    duration_min_ms: int = 50
    duration_max_ms: int = 4000

    @classmethod
    def draw(cls, rng: random.Random, kinds_there_are: Sequence[str] = KINDS) -> FaultOptions:
        """A few or many of the kinds, at a pace between gentle and furious."""
        number = rng.choice((2, 3, 5, len(kinds_there_are) // 2, len(kinds_there_are)))
        kinds = tuple(rng.sample(list(kinds_there_are), number))
        gap = rng.choice((200, 700, 2000))
        duration = rng.choice((300, 1000, 3000))
        return cls(kinds, gap // 5, gap, duration // 10, duration)


@dataclass
class Nemesis:
    """Injects faults into the machines called `names`; `start` brings one's process up again."""

    world: World
    rng: random.Random
    names: Sequence[str]
    start: Callable[[str], None]
    options: FaultOptions
    events: list[tuple[int, str]] = field(default_factory=list)
    """(virtual ms, what): printed when a run fails."""
    stop: Callable[[str], None] | None = None
    """Asks one's process for a polite stop, where it knows how to."""
    leader: Callable[[], str | None] = lambda: None
    """The machine whose death hurts most now: the active controller, or the leader of a partition."""
    on_fault: Callable[[], None] = lambda: None
    """Called after each fault: checkers look at the world then."""
    damaged: dict[str, None] = field(default_factory=dict)
    """Machines whose disk was told to fail: a node there may stop itself, and is rebooted."""
    _undo: dict[int, Callable[[], None]] = field(default_factory=dict)
    _next_undo: int = 0

    def note(self, what: str) -> None:
        """Add a line to the events of the run."""
        self.events.append((round(self.world.now_ms), what))

    async def run(self, duration_ms: float) -> None:
        """Inject for so long; what is still in effect then stays until `heal`."""
        until_ms = self.world.now_ms + duration_ms
        while True:
            gap_ms = self.rng.randint(self.options.gap_min_ms, self.options.gap_max_ms)
            if self.world.now_ms + gap_ms >= until_ms:
                await self.world.sleep_ms(max(0.0, until_ms - self.world.now_ms))
                return
            await self.world.sleep_ms(gap_ms)
            kind = self.rng.choice(self.options.kinds)
            getattr(self, f"_{kind}")()
            self.on_fault()

    def heal(self) -> None:
        """Undo everything: all machines up and reachable, disks fast."""
        undo, self._undo = self._undo, {}
        for action in undo.values():
            action()
        for name in self.names:
            self.world.machines[name].disk.strike_after(0, None)
            self._restart(name)
        self.world.heal()
        self.note("healed")

    # --- undoing ---

    def _later(self, undo: Callable[[], None]) -> int:
        """Undo after a drawn duration, or at `heal`, whichever comes first."""
        duration_ms = self.rng.randint(self.options.duration_min_ms, self.options.duration_max_ms)
        number = self._next_undo
        self._next_undo += 1
        self._undo[number] = undo
        due_us = self.world.loop.now_us + duration_ms * 1000
        # In a context of its own: a strike comes in the name of the process that it kills.
        self.world.loop.call_at_us(due_us, self._undo_now, number, context=contextvars.Context())
        return duration_ms

    def _undo_now(self, number: int) -> None:
        action = self._undo.pop(number, None)
        if action is not None:
            action()

    def _restart(self, name: str) -> None:
        """Unless its disk lies: over the page cache of a failed sync nothing may start before the machine reboots."""
        if self.world.process(name) is None and name not in self.damaged:
            self.note(f"start {name}")
            self.start(name)

    def _pick(self) -> str:
        return self.rng.choice(list(self.names))

    def _pair(self) -> tuple[str, str]:
        first, second = self.rng.sample(list(self.world.machines), 2)
        return first, second

    def down(self, name: str, how: str, strike: Callable[[str], Any]) -> None:
        """Take `name` down by `strike`, and up again later."""
        if self.world.process(name) is None:
            return
        strike(name)
        self.note(f"{how} {name} for {self._later(lambda: self._restart(name))} ms")

    # --- the faults ---

    def _stop(self) -> None:
        name = self._pick()
        if self.stop is not None and self.world.process(name) is not None:
            self.stop(name)
            self.note(f"stop {name}; start it again {self._later(lambda: self._replace(name))} ms later")

    def _replace(self, name: str) -> None:
        """A stop that has not ended by now is cut short, as a supervisor does."""
        self.world.kill(name)
        self._restart(name)

    def _kill(self) -> None:
        self.down(self._pick(), "kill", self.world.kill)

    def _kill_leader(self) -> None:
        name = self.leader()
        if name is not None:
            self.down(name, "kill the leader", self.world.kill)

    def _full_disk(self) -> None:
        """Space for a little more, then none, until somebody makes room."""
        name = self._pick()
        disk = self.world.machines[name].disk
        before = disk.config.capacity_bytes
        left = self.rng.choice((0, 10_000, 200_000))
        disk.config.capacity_bytes = disk.used_bytes + left

        def undo() -> None:
            disk.config.capacity_bytes = max(before, disk.config.capacity_bytes)

        self.note(f"disk of {name} has {left} bytes left for {self._later(undo)} ms")

    def _fail_sync(self) -> None:
        """One sync fails. Nothing on that machine can be trusted until it reboots (D-32)."""
        name = self._pick()
        if self.world.process(name) is None or name in self.damaged:
            return
        self.world.machines[name].disk.faults.syncs = 1
        self.damaged[name] = None
        self.note(f"the next sync of {name} fails; reboot it {self._later(lambda: self._reboot(name))} ms later")

    def _reboot(self, name: str) -> None:
        self.world.machines[name].disk.faults.syncs = 0
        self.damaged.pop(name, None)
        self.note(f"reboot {name}")
        self.world.power_cut(name)
        self._restart(name)

    def _power_cut(self) -> None:
        self.down(self._pick(), "power cut", self.world.power_cut)

    def _power_cut_all(self) -> None:
        for name in self.names:
            self.down(name, "power cut of all:", self.world.power_cut)

    def _strike(self, how: str, strike: Callable[[str], Any]) -> None:
        name = self._pick()
        operations = self.rng.randint(1, 60)
        disk = self.world.machines[name].disk

        def now() -> None:
            self.down(name, f"{how} in mid-callback", strike)

        disk.strike_after(operations, now)
        self.note(f"{how} {name} at its {operations}th disk operation from now")

    def _kill_in_callback(self) -> None:
        self._strike("kill", self.world.kill)

    def _power_cut_in_callback(self) -> None:
        self._strike("power cut", self.world.power_cut)

    def _pause(self) -> None:
        name = self._pick()
        process = self.world.process(name)
        if process is not None:
            process.pause()
            self.note(f"pause {name} for {self._later(process.resume)} ms")

    def _partition(self) -> None:
        first, second = self._pair()
        self.world.partition(first, second)
        self.note(f"partition {first} <-> {second} for {self._later(lambda: self._mend(first, second))} ms")

    def _partition_one_way(self) -> None:
        first, second = self._pair()
        self.world.partition(first, second, one_way=True)
        self.note(f"partition {first} -> {second} for {self._later(lambda: self._mend(first, second))} ms")

    def _mend(self, first: str, second: str) -> None:
        self.world.network.heal(first, second)
        self.world.network.heal(second, first)

    def _isolate(self) -> None:
        name = self._pick()
        self.world.isolate(name)

        def mend() -> None:
            for other in self.world.machines:
                if other != name:
                    self._mend(name, other)

        self.note(f"isolate {name} for {self._later(mend)} ms")

    def _delay(self) -> None:
        first, second = self._pair()
        link = self.world.network.link(first, second)
        link.extra_latency_us = self.rng.choice((2_000, 20_000, 200_000, 800_000))

        def undo() -> None:
            link.extra_latency_us = 0

        self.note(f"delay {first} -> {second} by {link.extra_latency_us} us for {self._later(undo)} ms")

    def _loss(self) -> None:
        first, second = self._pair()
        link = self.world.network.link(first, second)
        link.loss_probability = self.rng.choice((0.02, 0.2, 0.5))

        def undo() -> None:
            link.loss_probability = 0.0

        self.note(f"lose {link.loss_probability} of {first} -> {second} for {self._later(undo)} ms")

    def _break_connections(self) -> None:
        first, second = self._pair()
        broken = self.world.network.break_connections(first, second)
        broken += self.world.network.break_connections(second, first)
        self.note(f"break {broken // 2} connections of {first} and {second}")

    def _slow_disk(self) -> None:
        name = self._pick()
        config = self.world.machines[name].disk.config
        config.slow_factor = self.rng.choice((5.0, 30.0, 100.0))

        def undo() -> None:
            config.slow_factor = 1.0

        self.note(f"disk of {name} {config.slow_factor:.0f} times slower for {self._later(undo)} ms")

    def _wall_jump(self) -> None:
        name = self._pick()
        by_ms = self.rng.choice((-3_600_000, -500, 500, 3_600_000))
        self.world.machines[name].clock.jump_wall(by_ms)
        self.note(f"wall clock of {name} jumps by {by_ms} ms")
