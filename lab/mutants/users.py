"""Mutants of what users' calls may rely on: polls of all kinds, pauses, flushes, whatever cuts them short."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, instead, never, one_change, part, removed, value

_CUT = "tests/client/test_consumer_faults.py::test_a_call_that_is_cancelled_at_any_await_costs_no_record"
_COLUMNS = "tests/client/test_polled_columns.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "cancelled-poll-keeps-what-it-took",
        "schedule 108: between the taking of records and their handing out there is nothing to wait for",
        instead("await asyncio.sleep(0)\n..."),
        f"{_CUT}[poll]",
        f"{_CUT}[poll_columns]",
    ),
    one_change(
        "a-seek-finishes-what-is-held",
        "schedule 64: a place that was sought while records are held is done with the next call for records",
        part("self._handed", "self._done"),
        "tests/client/test_progress.py::test_a_place_that_was_sought_is_done_with_the_next_poll",
    ),
    one_change(
        "handed-out-counts-as-done",
        "schedule 64: what was not handled comes again: records are done with the next call, not with the one that "
        "hands them out",
        part("self._handed", "self._done"),
        "tests/client/test_progress.py::test_polls_seeks_and_what_is_committed_already",
    ),
    one_change(
        "paused-partition-skips-what-was-polled-ahead",
        "schedule 108: what was polled ahead comes after the pause",
        removed(),
        "tests/client/test_consumer_faults.py::test_what_was_polled_ahead_comes_after_a_pause",
    ),
    one_change(
        "columns-of-an-answer-without-batches",
        "schedule 108: of an answer all of whose batches became records nothing is asked for",
        never(),
        f"{_COLUMNS}::test_columns_follow_a_poll_that_took_everything",
    ),
    one_change(
        "columns-begin-behind-what-was-decoded",
        "schedule 108: what became records, and was not handed out, comes as columns",
        removed(),
        f"{_COLUMNS}::test_polls_of_both_kinds_mix",
    ),
    one_change(
        "flush-ends-at-once",
        "schedule 109: a flush ends when everything sent before has its answer",
        value("True"),
        "seed:cluster:1",
    ),
)
