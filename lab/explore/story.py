"""A path told as the simulator tells a failed seed: numbered steps, and beside each what every node then is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lab.explore.model import NODES, Model, State
from lab.explore.trace import Trace, states_of
from strandline.chaos.explain.recorder import Committed, Replica
from strandline.chaos.explain.story import HELD, Step, Story


def story_of(model: Model, trace: Trace, replay: list[str]) -> Story:
    """The story of a path. Its time are the numbers of the steps."""
    violation = trace.violation
    error = HELD if violation is None else violation.invariant
    message = "" if violation is None else violation.message
    end = len(trace.taken)
    story = Story(-1, error, message, end, model.subject, options=asdict(model.bounds), unit="step", replay=replay)
    story.nodes = [f"n{int(node)}" for node in NODES]
    for number, state in states_of(trace):
        _look(story, model, state, number)
    story.steps = [_step(number, one.name) for number, one in enumerate(trace.taken, 1)]
    if violation is None:
        story.steps.append(Step(end, "end", "everything held"))
    else:
        story.steps.append(Step(end, "violation", f"{violation.invariant}: {message}"))
    return story


def _step(number: int, name: str) -> Step:
    kind = "fault" if name.startswith(("crash", "held", "break", "given up", "fence")) else "role"
    return Step(float(number), kind, f"{number}. {name}")


def _look(story: Story, model: Model, state: State, number: int) -> None:
    view = model.view(state)
    for node, point in view.replicas.items():
        points = story.replicas.setdefault(node, [])
        seen = Replica(float(number), *point)
        if not points or points[-1][1:] != seen[1:]:
            points.append(seen)
    if view.committed is not None:
        committed = Committed(float(number), *view.committed)
        if not story.committed or story.committed[-1][1:] != committed[1:]:
            story.committed.append(committed)


def golden(model: Model, trace: Trace, after: str) -> str:
    """A path as a golden scenario: each step behind `> `, and below it what it changed."""
    violation = trace.violation
    head = "Everything held." if violation is None else f"{violation.invariant}: {violation.message}"
    bounds = " ".join(f"{name}={value}" for name, value in asdict(model.bounds).items())
    shown: dict[str, str] = {}
    lines = [f"# {head}", "", f"> {model.name} {bounds}"]
    if after:
        lines += ["", f"> after {after}"]
    lines += [f"    {line}" for line in changes(model, trace.start, shown)]
    for one in trace.taken:
        lines += ["", f"> {one.name}"]
        if one.state is not None:
            lines += [f"    {line}" for line in changes(model, one.state, shown)]
        elif one.violation is not None:
            lines.append(f"    {one.violation.invariant}: {one.violation.message}")
    return "\n".join(lines) + "\n"


def changes(model: Model, state: State, shown: dict[str, str]) -> list[str]:
    """Differences from what was `shown` last, a line each."""
    lines = []
    for what, text in model.view(state).words.items():
        if shown.get(what) != text:
            shown[what] = text
            lines.append(f"{what}: {text}")
    return lines


def facts(trace: Trace) -> dict[str, Any]:
    """A path as plain data."""
    violation = trace.violation
    return {
        "steps": trace.names,
        "invariant": None if violation is None else violation.invariant,
        "message": None if violation is None else violation.message,
    }
