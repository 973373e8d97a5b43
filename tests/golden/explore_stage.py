"""The stage of the explorer's scenarios: the paths that it finds, step by step on the production cores.

The first command names the model and its bounds (`partition delays=1 crashes=0`), `after` what comes before; every
other is a step. `python -m lab.explore ... --scenario FILE` writes such a file.
"""

from __future__ import annotations

from lab.explore.bounds import changed, preset_of
from lab.explore.cli import steps_of
from lab.explore.model import Model, State, Violation
from lab.explore.models import make_model
from lab.explore.story import changes
from lab.explore.trace import named, walk


class ExploreStage:
    """Walks a path, and shows what each step changed."""

    def __init__(self) -> None:
        self._model: Model | None = None
        self._state: State | None = None
        self._broken: Violation | None = None
        self._shown: dict[str, str] = {}

    def command(self, line: str) -> list[str]:
        """One command; what it changed."""
        if self._model is None:
            name, *words = line.split()
            bounds = {key: int(value) for key, _, value in (word.partition("=") for word in words)}
            self._model = make_model(name, changed(preset_of(name, "usual").bounds, bounds))
            self._state = self._model.starts()[0]
            return changes(self._model, self._state, self._shown)
        word, _, rest = line.partition(" ")
        if word == "expect":
            return self._expect(rest)
        if word == "after":
            self._state = walk(self._model, steps_of(rest)).taken[-1].state
            assert self._state is not None, "a step before the scenario breaks an invariant"
            return changes(self._model, self._state, self._shown)
        return self._take(line)

    def _take(self, line: str) -> list[str]:
        assert self._model is not None
        assert self._state is not None, "the step before broke an invariant"
        possible = dict(named(self._model, self._state))
        if line not in possible:
            return ["cannot happen here"]
        step = possible[line]
        if step.state is None:
            self._broken, self._state = step.violation, None
            assert self._broken is not None
            return [f"{self._broken.invariant}: {self._broken.message}"]
        self._state = step.state
        return changes(self._model, self._state, self._shown)

    def _expect(self, what: str) -> list[str]:
        """`expect holds`: no step has broken anything. `expect n1: leader`: a line of the state begins so."""
        if what == "holds":
            assert self._broken is None, self._broken
            return []
        name, _, beginning = what.partition(": ")
        assert self._shown[name].startswith(beginning), self._shown[name]
        return []
