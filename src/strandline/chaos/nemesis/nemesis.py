"""Draws faults and injects them, remembers how each is undone, and heals everything in the end."""

from __future__ import annotations

import contextvars
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.chaos.nemesis.options import SUPERVISOR_MS, FaultOptions
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.object_store import SimStore
from strandline.chaos.sim.process import ProcessState
from strandline.chaos.sim.world import World

_SLOW_MARGIN = 1.5
"""Factor for what a sync takes beside its drawn duration: 20 us a file, and a look at its age now and then."""
_SUPERVISED_MS = 6_000.0
"""Longer than a failed node takes to stop."""


@dataclass
class Nemesis:
    """Injects faults into the machines called `names`; `start` brings one's process up again.

    What destroys data for good (rotten bits, a lost directory, a wiped disk) strikes one machine of a run, the
    `victim`, at any instant. So a majority of the voters survives, and, where min.insync.replicas is 2, an honest copy
    of every acknowledged record among the replicas in sync.
    """

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
    """A machine whose death hurts now: the active controller, or the leader of a partition."""
    controller: Callable[[], str | None] = lambda: None
    """The active controller's machine."""
    on_fault: Callable[[], None] = lambda: None
    """Callback after each fault: checkers look at the world then."""
    may_destroy: Callable[[], bool] = lambda: True
    """Whether the victim's metadata log may be destroyed now: the vote it holds is one that can be missed."""
    damaged: dict[str, None] = field(default_factory=dict)
    """Machines whose disk may hold wrong data since a failed sync. No process starts there before a reboot."""
    dead: dict[str, None] = field(default_factory=dict)
    """Machines on which nothing starts, until everything is healed, or the fault that broke them mends them."""
    excused: dict[str, int] = field(default_factory=dict)
    """Machines whose disk was told to fail, and how many faults are under way there: a node may stop itself."""
    without_vote: dict[str, None] = field(default_factory=dict)
    """Machines whose directory is to be formatted without a vote before its node starts: who starts it does that."""
    forced: dict[str, None] = field(default_factory=dict)
    """Machines whose vote the operator forces before its node starts: who starts it does that."""
    store: SimStore | None = None
    """The object store, where the nodes have one."""
    older: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """Machine and path -> what a file beside the logs held a while ago."""
    victim: str = ""
    calm_until_ms: float = 0.0
    """Time in milliseconds before which no fault is injected."""
    injected: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    """Kind -> how many of them did something: one that finds nothing to strike, or may not, does nothing."""
    _undo: dict[int, Callable[[], None]] = field(default_factory=dict)
    _next_undo: int = 0
    _healed: bool = False
    _drawn: int = 0
    """Faults, in all phases."""

    def __post_init__(self) -> None:
        self.victim = self.victim or self.pick()
        self._schedule = self.rng

    def look(self) -> None:
        """Look before something is destroyed: what a disk has, and others may have heard of, counts."""
        if self.world.loop.observe is not None:
            self.world.loop.observe()

    def note(self, what: str) -> None:
        """Add a line to the events of the run."""
        self.events.append((round(self.world.now_ms), what))

    async def run(self, duration_ms: float, faults: Mapping[str, Callable[[Nemesis], None]]) -> None:
        """Inject those of `faults` that the options name, for `duration_ms` milliseconds. Faults that are still in
        effect then last until `heal`."""
        until_ms = self.world.now_ms + duration_ms
        schedule = self._schedule
        while True:
            gap_ms = schedule.randint(self.options.gap_min_ms, self.options.gap_max_ms)
            if self.world.now_ms + gap_ms >= until_ms:
                await self.world.sleep_ms(max(0.0, until_ms - self.world.now_ms))
                return
            await self.world.sleep_ms(gap_ms)
            number, self._drawn = self._drawn, self._drawn + 1
            kind = schedule.choice(self.options.kinds)
            # Each fault draws from a generator of its own: leaving one out changes none of the others.
            self.rng = random.Random(schedule.getrandbits(64))
            if self.world.now_ms < self.calm_until_ms:
                continue
            if number < self.options.first and number not in self.options.without:
                self.injected += 1
                before = len(self.events)
                faults[kind](self)
                self.struck[kind] += len(self.events) > before
                self.on_fault()

    def heal(self) -> None:
        """Undo everything: all machines up and reachable, disks fast and whole."""
        self._healed = True
        self.dead.clear()
        undo, self._undo = self._undo, {}
        for action in undo.values():
            action()
        for name in self.names:
            for disk in self.world.machines[name].disks:
                disk.strike_after(0, None)
            self.restart(name)
        self.world.heal()
        self.note("healed")
        for name in self.names:
            self._supervise(name, _SUPERVISED_MS)

    def go_on(self) -> None:
        """Begin another phase of faults after `heal`."""
        self._healed = False

    def _supervise(self, name: str, left_ms: float) -> None:
        """Start what ends of itself: a node that was about to stop over its disk when that was healed."""
        self.restart(name)
        if left_ms > 0:
            self.call_after(SUPERVISOR_MS, lambda: self._supervise(name, left_ms - SUPERVISOR_MS))

    # --- what faults are made of ---

    def later(self, undo: Callable[[], None]) -> int:
        """Undo after a drawn duration, or at `heal`, whichever comes first. Returns the duration, in ms."""
        duration_ms = self.duration_ms()
        number = self.at_heal(undo)
        self.call_after(duration_ms, lambda: self._undo_now(number))
        return duration_ms

    def at_heal(self, undo: Callable[[], None]) -> int:
        """Undo when everything is healed. Returns its number."""
        number = self._next_undo
        self._next_undo += 1
        self._undo[number] = undo
        return number

    @property
    def is_calm(self) -> bool:
        """True if no fault is in effect that is still to be undone."""
        return not self._undo and not self.damaged and not self.dead

    def _undo_now(self, number: int) -> None:
        action = self._undo.pop(number, None)
        if action is not None:
            action()

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Do something more to the world later, unless it is healed by that time."""
        self.call_after(delay_ms, lambda: None if self._healed else action())

    def call_after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Do something later, healed or not."""
        # In a context of its own: a strike comes in the name of the process that it kills.
        due_us = self.world.loop.now_us + int(delay_ms * 1000)
        self.world.loop.call_at_us(due_us, action, context=contextvars.Context())

    def duration_ms(self) -> int:
        """Milliseconds that a fault lasts, drawn."""
        return self.rng.randint(self.options.duration_min_ms, self.options.duration_max_ms)

    def disk(self, name: str) -> SimDisk:
        """A machine's first disk, which has its metadata log."""
        return self.world.machines[name].disk

    def any_disk(self, name: str) -> SimDisk:
        """One of a machine's disks, drawn; where there is one alone nothing is drawn."""
        disks = self.world.machines[name].disks
        return disks[0] if len(disks) == 1 else self.rng.choice(disks)

    def pick(self) -> str:
        """Machine of a node, drawn."""
        return self.rng.choice(list(self.names))

    def pair(self) -> tuple[str, str]:
        """Two machines, clients' among them, drawn."""
        first, second = self.rng.sample(list(self.world.machines), 2)
        return first, second

    def restart(self, name: str) -> None:
        """Start the node's process again, unless it stays dead, or its disk lies: over the page cache of a failed
        sync nothing may start before the machine reboots."""
        if self.world.process(name) is None and name not in self.damaged and name not in self.dead:
            self.note(f"start {name}")
            self.start(name)

    def start_again(self, name: str) -> None:
        """Restart the node, as its operator does."""
        self.world.kill(name)
        self.restart(name)

    def force_vote(self, name: str) -> None:
        """Stop the node, force its vote and start it again, as its operator does."""
        self.world.kill(name)
        self.forced[name] = None
        self.restart(name)

    def down(self, name: str, how: str, strike: Callable[[str], Any]) -> None:
        """Take `name` down by `strike`, and up again later."""
        if self.world.process(name) is None:
            return
        strike(name)
        self.note(f"{how} {name} for {self.later(lambda: self.restart(name))} ms")

    def excuse(self, name: str) -> None:
        """Excuse the node: it has a reason to stop itself, until `blame`."""
        self.excused[name] = self.excused.get(name, 0) + 1

    def blame_after_slow_syncs(self, name: str, factor: float) -> None:
        """Undo one `excuse` over a disk that was slower by `factor`, and start its node, when the syncs have ended that
        had begun on it: each takes its time."""
        longest_ms = factor * self.disk(name).config.sync_max_us / 1000
        self.blame_after(name, _SLOW_MARGIN * longest_ms)

    def blame_after(self, name: str, delay_ms: float) -> None:
        """Undo one `excuse` later, and start the nodes that have stopped by then. A process that is paused has yet to
        do what it has decided."""

        def due() -> None:
            process = self.world.process(name)
            if process is not None and process.state is ProcessState.PAUSED:
                self.call_after(delay_ms, due)
                return
            self.blame(name)
            self._supervise(name, _SUPERVISED_MS)

        self.call_after(delay_ms, due)

    def blame(self, name: str) -> None:
        """Undo one `excuse`."""
        self.excused[name] -= 1
        if not self.excused[name]:
            del self.excused[name]
