"""The diagrams of docs/states.md: each is drawn from the table that the code moves by."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum

from strandline.cluster.groups.classic import group
from strandline.controller.raft import transitions
from strandline.proto.ensure import INVARIANTS
from strandline.proto.transitions import E, S, Transitions
from strandline.replica import states
from strandline.replica.states import Role


def quorum_states() -> str:
    """The roles of a quorum node."""
    return _machine(transitions.TRANSITIONS, transitions.RoleKind)


def replica_states() -> str:
    """The roles of a broker for a partition."""
    return _machine(states.TRANSITIONS, Role)


def group_states() -> str:
    """The states of a classic group."""
    return _machine(group.TRANSITIONS, group.GroupState)


def invariants_table() -> str:
    """Every invariant that stops a node."""
    rows = (f"| `{name}` | {sentence} |" for name, sentence in sorted(INVARIANTS.items()))
    return "\n".join(("| invariant | what always holds |", "|---|---|", *rows)) + "\n"


def _machine(table: Transitions[S, E] | Mapping[tuple[S, E], S], states: type[S]) -> str:
    """The diagram in Mermaid, and what its states and events mean, in Markdown."""
    arrows: dict[tuple[str, str], list[str]] = {}
    events: dict[Enum, None] = {}
    for (source, event), target in table.items():
        arrows.setdefault((_name(source), _name(target)), []).append(_words(event))
        events[event] = None
    lines = [f"    {source} --> {target}: {'<br/>'.join(said)}" for (source, target), said in arrows.items()]
    return "\n".join(
        (
            "```mermaid",
            "stateDiagram-v2",
            *lines,
            "```",
            "",
            "| state | meaning |",
            "|---|---|",
            *(f"| {_name(state)} | {meaning} |" for state, meaning in _meanings(states)),
            "",
            "| event | meaning |",
            "|---|---|",
            *(f"| {_words(event)} | {event.value} |" for event in events),
            "",
        )
    )


def _words(event: Enum) -> str:
    return event.name.lower().replace("_", " ")


def _name(state: Enum | None) -> str:
    """`[*]` is where a machine starts."""
    return "[*]" if state is None else str(state.value)


def _meanings(states: type[S]) -> Iterator[tuple[S, str]]:
    """Each state with the docstring below it.

    Raises:
        ValueError: a state has none.
    """
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(states))).body
    assert isinstance(body, ast.ClassDef)
    for line, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            state = states[line.targets[0].id]
            if not (
                isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            ):
                raise ValueError(f"{state} has no sentence below it")
            yield state, " ".join(following.value.value.split())
