"""A rule is taken out, and the search must meet what it forbids."""

from __future__ import annotations

from lab.explore.bounds import PartitionBounds, QuorumBounds, preset_of
from lab.explore.cli import steps_of
from lab.explore.model import Model
from lab.explore.models import make_model
from lab.explore.search import Limits, search
from lab.explore.trace import named, retrace, walk
from lab.mutants import without

Bounds = QuorumBounds | PartitionBounds | str
"""Or the name of a preset of the partition."""


def model_of(bounds: Bounds, after: str = "") -> Model:
    """A model within bounds, behind the steps `after`."""
    if isinstance(bounds, str):
        preset = preset_of("partition", bounds)
        return make_model("partition", preset.bounds, steps_of(preset.after))
    return make_model("quorum" if isinstance(bounds, QuorumBounds) else "partition", bounds, steps_of(after))


def finds(mutant: str, bounds: Bounds, invariant: str, after: str = "") -> None:
    """The search meets a state that breaks `invariant`, and its path can be walked again. On the code as it is the same
    path breaks nothing: it cannot be walked to its end, or everything holds."""
    with without(mutant):
        found = search(model_of(bounds, after), Limits(states=60_000))
        assert found.broken is not None, f"{found.states} states, and nothing was broken"
        model = model_of(bounds, after)
        path = retrace(model, found.broken)
        assert path.violation == found.broken.violation
        assert found.broken.violation.invariant == invariant
        assert walk(model_of(bounds, after), path.names).violation == path.violation
    whole = model_of(bounds, after)
    state = whole.starts()[0]
    for step in path.names:
        possible = dict(named(whole, state))
        after = possible[step].state if step in possible else None
        assert step not in possible or possible[step].violation is None
        if after is None:
            break
        state = after
