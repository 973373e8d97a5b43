"""The search itself, on a model whose states can be counted by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from lab.explore.model import NODES, RENAMINGS, State, Step, View, Violation, fingerprint
from lab.explore.parts import Parts
from lab.explore.search import Limits, search
from lab.explore.trace import NoSuchStep, retrace, walk
from lab.explore.values import Codec, Node
from lab.explore.workers import explore


class Counters:
    """Three counters from 0 to `top`; whoever is first at `bad` while another is there too breaks a rule."""

    name = subject = "counters"
    bounds = None

    def __init__(self, top: int, bad: int = -1) -> None:
        self.top = top
        self.bad = bad
        self.parts = Parts(Codec({}), RENAMINGS)
        self.forgotten = 0

    def starts(self) -> Sequence[State]:
        return [(0, *(self.parts.put((node, 0)) for node in NODES), self.parts.put("shared"))]

    def steps(self, state: State) -> Iterator[Step]:
        for node in NODES:
            _, value = self.parts.get(state[node])
            if value == self.top:
                continue
            after = list(state)
            after[node] = self.parts.put((Node(node), value + 1))
            values = [self.parts.get(after[one])[1] for one in NODES]
            if values.count(self.bad) > 1:
                yield Step(("count", node), None, Violation("OneOnly", f"{values}"))
            else:
                yield Step(("count", node), tuple(after))

    def tell(self, state: State, event: tuple[Any, ...]) -> str:
        return f"{event[0]} {int(event[1])}"

    def view(self, state: State) -> View:
        return View({}, None, {})

    def forget(self, but: set[int]) -> None:
        self.forgotten += 1
        self.parts.forget(but)


def test_every_state_is_met_once() -> None:
    """Up to the names: multisets of three values from 0 to 4."""
    found = search(Counters(4), Limits())
    assert found.complete
    assert found.states == 5 * 6 * 7 // 6
    assert found.depth == 13
    assert sum(level.new for level in found.levels) == found.states


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_processes_meet_the_same_states(jobs: int) -> None:
    found = explore(Counters(6), Limits(), jobs=jobs)
    assert (found.states, found.complete, found.depth) == (84, True, 19)


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_shortest_path_to_a_violation(jobs: int) -> None:
    model = Counters(5, bad=3)
    found = explore(model, Limits(), jobs=jobs)
    assert found.broken is not None
    trace = retrace(model, found.broken)
    assert len(trace.taken) == found.depth == 6
    assert trace.violation is not None
    assert trace.violation.invariant == "OneOnly"
    again = walk(model, trace.names)
    assert again.violation == trace.violation


def test_limits() -> None:
    by_states = search(Counters(30), Limits(states=50))
    assert not by_states.complete
    assert "50 states" in by_states.stopped
    by_depth = search(Counters(30), Limits(depth=4))
    assert "depth 4" in by_depth.stopped
    assert len(by_depth.levels) == 4
    assert "s" in search(Counters(30), Limits(seconds=0.0)).stopped


def test_names_of_steps_that_cannot_be_taken() -> None:
    with pytest.raises(NoSuchStep, match=r"step 2: 'count 9' cannot happen there. What can: count 1, count 2, count 3"):
        walk(Counters(2), ["count 1", "count 9"])
    with pytest.raises(NoSuchStep, match="broke an invariant"):
        walk(Counters(2, bad=1), ["count 1", "count 2", "count 3"])


def test_parts_that_no_state_ahead_has_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by the states ahead; nothing is met twice or missed by that."""
    monkeypatch.setattr("lab.explore.search.PARTS_MAX", 5)
    model = Counters(4)
    assert search(model, Limits()).states == 35
    assert model.forgotten > 3


def test_fingerprints_ignore_names_and_nothing_else() -> None:
    model = Counters(9)
    put = model.parts.put
    shared = put("shared")

    def state(*values: int) -> State:
        return (0, *(put((node, value)) for node, value in zip(NODES, values, strict=True)), shared)

    assert fingerprint(model.parts, state(1, 2, 3)) == fingerprint(model.parts, state(3, 1, 2))
    assert fingerprint(model.parts, state(1, 1, 3)) == fingerprint(model.parts, state(1, 3, 1))
    assert fingerprint(model.parts, state(1, 2, 3)) != fingerprint(model.parts, state(1, 2, 4))
    assert fingerprint(model.parts, state(1, 2, 2)) != fingerprint(model.parts, state(1, 1, 2))
    message = put((Node(1), "to", Node(2)))
    other = put((Node(2), "to", Node(1)))
    assert fingerprint(model.parts, (*state(5, 6, 7), message)) != fingerprint(model.parts, (*state(5, 6, 7), other))
    assert fingerprint(model.parts, (*state(5, 6, 7), message)) == fingerprint(model.parts, (*state(6, 5, 7), other))
