"""Breadth first search over a model's states: every state once, the shortest counterexample first.

Of a visited state only its fingerprint is kept, with that of the state it was first reached from: 64 bits each. A
counterexample is the chain of those, walked again from the start. With several processes each owns the fingerprints
that its number divides, and hands states of the others over between two depths.
"""

from __future__ import annotations

import resource
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.explore.model import Model, State, Violation, fingerprint

PARTS_MAX = 400_000
"""Parts at most; beyond, a process forgets all that the states ahead are not made of (a part takes about 5 KB)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Ends of a search, besides a violation: after so many states, at that depth, after that time, or at so much
    memory."""

    states: int = 1_000_000
    depth: int = 1_000
    seconds: float = float("inf")
    memory_mb: float = float("inf")


@dataclass(frozen=True, slots=True)
class Level:
    """One depth of the search: the steps from its states, and how many states were met until then."""

    depth: int
    new: int
    states: int
    steps: int
    seconds: float


@dataclass(slots=True)
class Broken:
    """A violation: `chain` are the fingerprints from a start to the state whose step broke it."""

    violation: Violation
    chain: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """Result of a search. `complete`: there is no state within the bounds that was not met. `memory_mb`: the most
    that its processes held."""

    levels: list[Level]
    states: int
    steps: int
    seconds: float
    complete: bool
    stopped: str = ""
    broken: Broken | None = None
    memory_mb: float = 0.0

    @property
    def depth(self) -> int:
        """The depth at which a violation was met, or down to which every state was."""
        return len(self.levels) if self.broken is None else len(self.broken.chain)


class Shard:
    """The states of one process: those whose fingerprint is `index` modulo `shards`."""

    def __init__(self, model: Model, index: int = 0, shards: int = 1, spool: Path | None = None) -> None:
        self.model = model
        self._index = index
        self._shards = shards
        self._spool = spool
        self._seen: dict[int, int] = {}
        self._frontier: list[tuple[int, State]] = []
        self._next: list[tuple[int, State]] = []
        self._out: list[dict[int, tuple[int, State]]] = [{} for _ in range(shards)]
        self._given: list[set[int]] = [set() for _ in range(shards)]
        self.steps = 0
        self.broken: tuple[int, Violation] | None = None

    @property
    def states(self) -> int:
        """Number of states that were met."""
        return len(self._seen)

    @property
    def ahead(self) -> int:
        """Number of states that the next depth has."""
        return len(self._frontier)

    def begin(self) -> None:
        """Take in the starts."""
        for state in self.model.starts():
            self._meet(fingerprint(self.model.parts, state), 0, state)
        self._out = [{} for _ in range(self._shards)]
        self.turn()

    def expand(self) -> Iterator[None]:
        """Take every step from the states of this depth; pauses now and then. Ends early at a violation."""
        model, parts = self.model, self.model.parts
        for number, (parent, state) in enumerate(self._frontier):
            if not number % 256:
                yield
            for _, after, violation in model.steps(state):
                self.steps += 1
                if after is None:
                    assert violation is not None
                    self.broken = (parent, violation)
                    return
                self._meet(fingerprint(parts, after), parent, after)

    def _meet(self, met: int, parent: int, state: State) -> None:
        owner = met % self._shards
        if owner != self._index:
            self._out[owner].setdefault(met, (parent, state))
        elif met not in self._seen:
            self._seen[met] = parent
            self._next.append((met, state))

    def turn(self) -> None:
        """The next depth begins."""
        self._frontier, self._next = self._next, []
        if len(self.model.parts) > PARTS_MAX:
            self.model.forget({digest for _, state in self._frontier for digest in state[1:]})
            self._given = [set() for _ in range(self._shards)]

    def parent(self, met: int) -> int | None:
        """The state from which one was first met: 0 for a start, None if it is not one of this process."""
        return self._seen.get(met)

    # Between processes

    def hand_over(self, depth: int) -> None:
        """Write the states of others where they look for them."""
        assert self._spool is not None
        for owner, out in enumerate(self._out):
            if owner == self._index:
                continue
            numbers = array("Q")
            wanted: dict[int, None] = {}
            for met, (parent, state) in out.items():
                numbers.extend((len(state), met, parent, *state))
                wanted.update(dict.fromkeys(state[1:]))
            given = self._given[owner]
            parts = self.model.parts.pack([digest for digest in wanted if digest not in given])
            given.update(wanted)
            out.clear()
            self._file(depth, self._index, owner, "parts").write_bytes(parts)
            self._file(depth, self._index, owner, "states").write_bytes(numbers.tobytes())

    def take_over(self, depth: int) -> None:
        """Read what others have met of this process's states."""
        for source in range(self._shards):
            if source == self._index:
                continue
            parts, states = (self._file(depth, source, self._index, kind) for kind in ("parts", "states"))
            self.model.parts.adopt(parts.read_bytes())
            numbers = array("Q", states.read_bytes())
            parts.unlink()
            states.unlink()
            at = 0
            while at < len(numbers):
                size, met, parent = numbers[at : at + 3]
                at += 3 + size
                if met not in self._seen:
                    self._seen[met] = parent
                    self._next.append((met, tuple(numbers[at - size : at])))

    def _file(self, depth: int, source: int, owner: int, kind: str) -> Path:
        assert self._spool is not None
        return self._spool / f"{depth}-{source}-{owner}.{kind}"


def search(model: Model, limits: Limits, on_level: Any = None) -> Found:
    """Search in this process. `on_level(depth, ahead, states, steps)` is called now and then."""
    began = time.monotonic()
    shard = Shard(model)
    shard.begin()
    found = Found([], shard.states, 0, 0.0, complete=False)
    while shard.ahead:
        ahead = shard.ahead
        for _ in shard.expand():
            if on_level is not None:
                on_level(len(found.levels), ahead, shard.states, shard.steps)
            found.memory_mb = memory_mb()
            found.stopped = reached(limits, len(found.levels), shard.states, time.monotonic() - began, found.memory_mb)
            if found.stopped:
                break
        found.states, found.steps, found.seconds = shard.states, shard.steps, time.monotonic() - began
        if shard.broken is not None:
            met, violation = shard.broken
            found.broken = Broken(violation, chain(met, shard.parent))
            return found
        if found.stopped:
            return found
        found.levels.append(Level(len(found.levels), ahead, found.states, found.steps, found.seconds))
        shard.turn()
    found.complete = True
    return found


def memory_mb() -> float:
    """The most that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def reached(limits: Limits, depth: int, states: int, seconds: float, held_mb: float) -> str:
    """Name of the limit that is reached, or ""."""
    if states >= limits.states:
        return f"the limit of {limits.states:,} states"
    if seconds >= limits.seconds:
        return f"the limit of {limits.seconds:,.0f} s"
    if held_mb >= limits.memory_mb:
        return f"the limit of {limits.memory_mb:,.0f} MB"
    return f"the limit of depth {limits.depth}" if depth >= limits.depth else ""


def chain(met: int, parent: Any) -> list[int]:
    """The fingerprints from a start to a state."""
    found = [met]
    while (before := parent(found[-1])) != 0:
        assert before is not None
        found.append(before)
    return found[::-1]
