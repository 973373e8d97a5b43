"""State machines as tables, (state, event) -> state: what is not in the table does not happen.

States and events are enums. A state's value is its name, and a docstring below it says what it means; an event's value
is its meaning. docs/states.md is generated from the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from strandline.proto.ensure import present

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)

Transitions = Mapping[tuple[S | None, E], S]
"""The state that follows from a state and an event; the state None is the one before the first."""


def next_state(table: Transitions[S, E], state: S | None, event: E) -> S:
    """The state that follows.

    Raises:
        FatalError: the table has no such row (LegalTransition).
    """
    return present(table.get((state, event)), "LegalTransition", state=state and state.value, event=event.name)
