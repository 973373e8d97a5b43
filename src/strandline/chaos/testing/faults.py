"""Faults that a test does to a simulated cluster, and the timeline of them."""

from __future__ import annotations

import contextvars
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from strandline.chaos.cluster import SimCluster
from strandline.chaos.sim.process import Process
from strandline.chaos.sim.world import World
from strandline.chaos.testing.requested import RequestedFault, assert_met

if TYPE_CHECKING:
    from strandline.cluster.node.faults.injection import FailNext

KINDS = ("kill", "power_cut", "pause", "partition", "isolate", "slow_disk", "break_connections")
"""Kinds of fault that a storm draws from."""


def machine_name(place: int | str) -> str:
    """Nodes go by their numbers, the machines of the code under test by their names."""
    return f"n{place}" if isinstance(place, int) else place


@dataclass
class Storm:
    """Bounds of a storm's faults, in seconds of virtual time."""

    gap_min_s: float = 0.1
    gap_max_s: float = 1.0
    duration_min_s: float = 0.05
    duration_max_s: float = 2.0


class SimFaults:
    """Faults of a simulated cluster, at once and by name; each is written to the timeline.

    Nodes are numbers from 1. `partition`, `break_connections` and `isolate` take machines of the code under test too
    (their names: "app" is that of `main`).
    """

    def __init__(self, world: World, cluster: SimCluster, rng: random.Random) -> None:
        self.timeline: list[tuple[int, str]] = []
        """(virtual ms, what)"""
        self.asked: list[RequestedFault] = []
        self._world = world
        self._cluster = cluster
        self._rng = rng
        self._paused: list[Process] = []

    def note(self, what: str) -> None:
        """Add a line to the timeline."""
        self.timeline.append((round(self._world.now_ms), what))

    # --- processes ---

    def kill(self, node: int) -> None:
        """kill -9: what the node wrote stays written, its peers hear of it at once."""
        self._note_of(node, "kill")
        _outside(self._world.kill, machine_name(node))

    def stop(self, node: int) -> None:
        """Ask for a controlled shutdown; leaderships move first."""
        self._note_of(node, "stop")
        _outside(self._cluster.stop, machine_name(node))

    def power_cut(self, node: int | None = None) -> None:
        """Cut the power of the machine (None: every node's): what was not synced is lost, peers hear nothing."""
        self.note("power cut of " + ("every node" if node is None else f"node {node}"))
        for name in self._cluster.names if node is None else [machine_name(self._known(node))]:
            _outside(self._world.power_cut, name)

    def start(self, node: int | None = None) -> None:
        """Start a node that is down; None: every such node."""
        for name in self._cluster.names if node is None else [machine_name(self._known(node))]:
            if self._world.process(name) is None:
                self.note(f"start node {name[1:]}")
                _outside(self._cluster.start, name)

    def pause(self, node: int) -> None:
        """Pause the node, as by SIGSTOP: it is silent, its connections stay open."""
        self._note_of(node, "pause")
        process = self._world.process(machine_name(node))
        if process is not None:
            process.pause()
            self._paused.append(process)

    def resume(self, node: int) -> None:
        """Resume a paused node, as by SIGCONT."""
        self._known(node)
        self.note(f"resume node {node}")
        for process in [each for each in self._paused if each.machine.name == machine_name(node)]:
            self._paused.remove(process)
            process.resume()

    # --- network ---

    def partition(self, a: int | str, b: int | str, *, one_way: bool = False) -> None:
        """Let nothing come from `a` to `b` any more, nor back unless `one_way`."""
        self.note(f"partition {a} {'->' if one_way else '<->'} {b}")
        self._world.partition(self._machine(a), self._machine(b), one_way=one_way)

    def isolate(self, place: int | str) -> None:
        """Let nothing come from or to this machine any more, clients included."""
        self.note(f"isolate {place}")
        self._world.isolate(self._machine(place))

    def break_connections(self, a: int | str, b: int | str) -> None:
        """Reset every connection between two machines; new ones come up at once."""
        first, second = self._machine(a), self._machine(b)
        _outside(self._world.network.break_connections, first, second)
        _outside(self._world.network.break_connections, second, first)
        self.note(f"break the connections of {a} and {b}")

    def heal(self) -> None:
        """Undo partitions, pauses and slow disks, start every node that is down."""
        self.note("heal")
        _outside(self._world.heal)
        for name in self._cluster.names:
            self._world.machines[name].disk.config.slow_factor = 1.0
        paused, self._paused = self._paused, []
        for process in paused:
            process.resume()
        self.start()

    # --- disks and requests ---

    def slow_disk(self, node: int, factor: float) -> None:
        """Make everything that the disk does take `factor` times as long; 1 undoes it."""
        self._known(node)
        self.note(f"disk of node {node} {factor:g} times slower")
        self._world.machines[machine_name(node)].disk.config.slow_factor = factor

    def fail_next(
        self, api: str, error: str, times: int = 1, *, node: int | None = None, required: bool = True
    ) -> RequestedFault:
        """The next `times` requests of a Kafka API are answered with that error, by this node (None: by each).

        Args:
            required: the test fails if this never strikes.

        Raises:
            ValueError: there is no such API, error or node, or the node is down (what waited in it died with it).
        """
        name = None if node is None else machine_name(self._known(node))
        where = "each node" if node is None else f"node {node}"
        up = [live for live in self._cluster.nodes() if name in (None, f"n{live.number}")]
        if not up:
            raise ValueError(f"fail_next({api}, {error}) at {where}: it is down; start it first")
        made: list[FailNext] = []
        for live in up:
            if live.node.faults is not None:
                made.append(live.node.faults.fail_next(api, error, times))
        fault = RequestedFault(f"fail_next({api}, {error}, {times}) at {where}", required, lambda: _met(made))
        self.note(fault.what)
        self.asked.append(fault)
        return fault

    def assert_fault_met(self, fault: RequestedFault | None = None, times: int = 1) -> None:
        """Check that this fault (None: each required one so far) was met at least so often; raises FaultNeverStruck
        otherwise."""
        assert_met(self.asked, fault, times)

    # --- many ---

    async def storm(
        self, duration_s: float, kinds: Sequence[str] = KINDS, *, bounds: Storm | None = None, heal: bool = True
    ) -> None:
        """Strike at random, as the seed says, for so long; each fault is undone after a while, all of them at the end.

        Args:
            kinds: of `KINDS`, those to draw from.
            heal: whether `heal` is called at the end.
        """
        unknown = sorted(set(kinds) - set(KINDS))
        if unknown:
            raise ValueError(f"no such kind of fault: {', '.join(unknown)}; there are {', '.join(KINDS)}")
        bounds = bounds or Storm()
        rng = self._rng
        until_ms = self._world.now_ms + duration_s * 1000
        while True:
            gap_ms = rng.uniform(bounds.gap_min_s, bounds.gap_max_s) * 1000
            if self._world.now_ms + gap_ms >= until_ms:
                break
            await self._world.sleep_ms(gap_ms)
            lasts_s = rng.uniform(bounds.duration_min_s, bounds.duration_max_s)
            self._strike(rng.choice(list(kinds)), lasts_s)
        await self._world.sleep_ms(max(0.0, until_ms - self._world.now_ms))
        if heal:
            self.heal()

    def _strike(self, kind: str, lasts_s: float) -> None:
        names = self._cluster.names
        node = self._rng.randint(1, len(names))
        name = machine_name(node)
        other = self._rng.choice([each for each in self._world.machines if each != name])
        undo: Callable[[], None]
        if kind in ("kill", "power_cut"):
            getattr(self, kind)(node)
            undo = partial(self.start, node)
        elif kind == "pause":
            self.pause(node)
            undo = partial(self.resume, node)
        elif kind == "slow_disk":
            self.slow_disk(node, self._rng.choice((5.0, 30.0, 100.0)))
            undo = partial(self.slow_disk, node, 1.0)
        elif kind == "partition":
            self.partition(name, other)
            undo = partial(self._mend, name, [other])
        elif kind == "isolate":
            self.isolate(name)
            undo = partial(self._mend, name, list(self._world.machines))
        else:
            self.break_connections(name, other)
            return
        due_us = self._world.loop.now_us + round(lasts_s * 1e6)
        self._world.loop.call_at_us(due_us, undo, context=contextvars.Context())

    def _mend(self, name: str, others: Sequence[str]) -> None:
        self.note(f"mend the links of {name} and {', '.join(each for each in others if each != name)}")
        for other in others:
            if other != name:
                _outside(self._world.network.heal, name, other)
                _outside(self._world.network.heal, other, name)

    # --- inside ---

    def _note_of(self, node: int, what: str) -> None:
        """Note an act of a storm: what it has killed already can be told to die again, and the timeline says that
        nothing came of it."""
        down = self._world.process(machine_name(self._known(node))) is None
        self.note(f"{what} node {node}" + (", which is down already" if down else ""))

    def _known(self, node: int) -> int:
        if machine_name(node) not in self._cluster.names:
            raise ValueError(f"no node {node!r}: there are 1 to {len(self._cluster.names)}")
        return node

    def _machine(self, place: int | str) -> str:
        name = machine_name(place)
        if name not in self._world.machines:
            raise ValueError(f"no machine {place!r}: nodes are numbers, others are {', '.join(self._others())}")
        return name

    def _others(self) -> list[str]:
        return [name for name in self._world.machines if name not in self._cluster.names]


def _outside(action: Callable[..., Any], *arguments: Any) -> None:
    """Run an action outside of any process, so that it does not end or pause together with its caller."""
    contextvars.Context().run(action, *arguments)


def _met(faults: Sequence[FailNext]) -> int:
    return sum(fault.met for fault in faults)
