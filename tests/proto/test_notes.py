"""What strangers cause is logged within bounds (rule A23)."""

from __future__ import annotations

from typing import Any

from strandline.proto.notes import EVENTS_MAX, KINDS_MAX, LINES_MAX, LOG_MS, TRACES_MAX, Flood, Notes
from tests.log.helpers import ManualClock


class Lines:
    """A logger that keeps what it is given."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def _say(self, event: str, **figures: Any) -> None:
        self.said.append({"event": event, **figures})

    info = warning = error = _say


def test_a_kind_is_logged_once_in_a_while_with_the_number_left_out() -> None:
    clock, lines = ManualClock(0), Lines()
    notes = Notes(clock, lines)
    for _ in range(5):
        notes.warn("closed", "garbage", client="c")
    notes.warn("closed", "idle", client="d")
    assert [line["suppressed"] for line in lines.said] == [0, 0], "another kind has its own line"
    clock.now_ms += int(LOG_MS)
    notes.warn("closed", "garbage", client="c")
    assert lines.said[-1] == {"event": "closed", "client": "c", "suppressed": 4}


def test_kinds_that_somebody_makes_up_have_a_bound_together() -> None:
    """A reason may hold what the client has sent. Neither lines nor memory grow with that, and all are counted."""
    clock, lines = ManualClock(0), Lines()
    notes = Notes(clock, lines)
    for round_ in range(3):
        for number in range(1_000):
            notes.warn("closed", f"made up {round_} {number}")
        clock.now_ms += int(LOG_MS)
    assert len(lines.said) == 3 * KINDS_MAX
    notes.warn("closed", "the last")
    assert sum(1 + line["suppressed"] for line in lines.said) == 3_001
    assert len(notes._events["closed"].said_ms) <= KINDS_MAX


def test_a_process_logs_no_event_without_end() -> None:
    """Whatever the cause: an internal error with its traceback that each request meets again."""
    clock = ManualClock(0)
    flood = Flood(clock)
    assert [flood.admit("failed", trace=False) for _ in range(LINES_MAX + 7)].count(None) == 7
    assert flood.admit("another", trace=False) == 0
    clock.now_ms += int(LOG_MS)
    assert flood.admit("failed", trace=False) == 7
    assert [flood.admit("broken", trace=True) for _ in range(LINES_MAX)].count(None) == LINES_MAX - TRACES_MAX
    assert flood.admit("broken", trace=False) == LINES_MAX - TRACES_MAX, "the line tells of the tracebacks left out"
    for number in range(2 * EVENTS_MAX):
        flood.admit(f"made up {number}", trace=False)
    assert len(flood._windows) == EVENTS_MAX
