"""A state machine moves by its table alone."""

from __future__ import annotations

from enum import Enum

import pytest

from strandline.proto.errors import FatalError
from strandline.proto.transitions import Transitions, next_state


class Door(Enum):
    OPEN = "Open"
    SHUT = "Shut"


class Hand(Enum):
    BUILT = "is built"
    PUSH = "is pushed"


DOOR: Transitions[Door, Hand] = {(None, Hand.BUILT): Door.OPEN, (Door.OPEN, Hand.PUSH): Door.SHUT}


def test_a_row_of_the_table_says_what_follows() -> None:
    assert next_state(DOOR, None, Hand.BUILT) is Door.OPEN
    assert next_state(DOOR, Door.OPEN, Hand.PUSH) is Door.SHUT


def test_what_is_not_in_the_table_stops_the_node() -> None:
    with pytest.raises(FatalError, match=r"LegalTransition does not hold: .* \[state=Shut, event=PUSH\]"):
        next_state(DOOR, Door.SHUT, Hand.PUSH)
    with pytest.raises(FatalError, match=r"\[state=None, event=PUSH\]"):
        next_state(DOOR, None, Hand.PUSH)
