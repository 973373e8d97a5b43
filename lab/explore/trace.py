"""A path through a model's states, found by a search or given by the names of its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lab.explore.model import Model, State, Step, Violation, fingerprint
from lab.explore.search import Broken


class NoSuchStep(ValueError):
    """A step of that name cannot happen here."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One step of a path. After the step that broke something there is no state."""

    name: str
    state: State | None
    violation: Violation | None = None


@dataclass(slots=True)
class Trace:
    """A path from a start; it ends with the step that broke something, or where its names end."""

    start: State
    taken: list[Taken]

    @property
    def violation(self) -> Violation | None:
        """Violation by its last step."""
        return self.taken[-1].violation if self.taken else None

    @property
    def names(self) -> list[str]:
        """The names of its steps."""
        return [one.name for one in self.taken]


def named(model: Model, state: State) -> Iterator[tuple[str, Step]]:
    """The steps from a state by name; of several that would be called alike the second ends with `#2`."""
    met: dict[str, int] = {}
    for step in model.steps(state):
        name = model.tell(state, step.event)
        number = met[name] = met.get(name, 0) + 1
        yield (name if number == 1 else f"{name} #{number}"), step


def retrace(model: Model, broken: Broken) -> Trace:
    """The path that a search has found."""
    first, *later = broken.chain
    start = next(state for state in model.starts() if fingerprint(model.parts, state) == first)
    trace = Trace(start, [])
    state = start
    for wanted in later:
        name, state = _onward(model, state, wanted)
        trace.taken.append(Taken(name, state))
    for name, step in named(model, state):
        if step.violation == broken.violation:
            trace.taken.append(Taken(name, None, step.violation))
            return trace
    raise AssertionError("the search has met a violation that its own path does not lead to")


def _onward(model: Model, state: State, wanted: int) -> tuple[str, State]:
    for name, step in named(model, state):
        if step.state is not None and fingerprint(model.parts, step.state) == wanted:
            return name, step.state
    raise AssertionError("the search has met a state that its own path does not lead to")


def walk(model: Model, names: Iterable[str]) -> Trace:
    """The path of these steps.

    Raises:
        NoSuchStep: one of them cannot happen where it would have to; the message names those that can.
    """
    state: State | None = model.starts()[0]
    assert state is not None
    trace = Trace(state, [])
    for number, wanted in enumerate(names, 1):
        if state is None:
            raise NoSuchStep(f"step {number} ({wanted}): the step before it broke an invariant")
        possible = dict(named(model, state))
        if wanted not in possible:
            raise NoSuchStep(f"step {number}: {wanted!r} cannot happen there. What can: {', '.join(possible)}")
        step = possible[wanted]
        trace.taken.append(Taken(wanted, step.state, step.violation))
        state = step.state
    return trace


def prelude(model: Model, state: State, names: Iterable[str], spent: int, budget: int) -> State:
    """The state after steps that come before a search. Of its budget only what was `spent` (a field of four bits) is
    kept, and `budget` is added to that.

    Raises:
        NoSuchStep: one of them cannot happen where it would have to, or breaks an invariant.
    """
    for number, wanted in enumerate(names, 1):
        possible = dict(named(model, state))
        if wanted not in possible:
            raise NoSuchStep(f"step {number}: {wanted!r} cannot happen there. What can: {', '.join(possible)}")
        after = possible[wanted].state
        if after is None:
            raise NoSuchStep(f"step {number}: {wanted!r} breaks an invariant")
        state = after
    return ((state[0] & 0xF * spent) + budget, *state[1:])


def states_of(trace: Trace) -> Iterator[tuple[int, State]]:
    """The states of a path by the number of the step before them."""
    yield 0, trace.start
    for number, one in enumerate(trace.taken, 1):
        if one.state is not None:
            yield number, one.state
