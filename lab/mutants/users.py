"""Mutants of what users' calls may rely on: polls of all kinds, pauses, flushes, whatever cuts them short."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, Patch, one_change

_FAULTS = "tests/client/test_producer_faults.py"
_FINISH = "client.sender:Sender._finish"
_TOLD = "base_offset, told.log_append_time_ms, replicas"
_CUT = "tests/client/test_consumer_faults.py::test_a_call_that_is_cancelled_at_any_await_costs_no_record"
_SEND = "tests/chaos/test_threads.py::test_108_an_interrupted_send_leaves_nothing_behind"
_COLUMNS = "tests/client/test_polled_columns.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "cancelled-poll-keeps-what-it-took",
        "schedule 108: between the taking of records and their handing out there is nothing to wait for",
        "client.aio.reader:Reader._gather",
        "records = take()",
        "records = take(); await asyncio.sleep(0)",
        f"{_CUT}[poll]",
        f"{_CUT}[poll_columns]",
    ),
    one_change(
        "handed-out-counts-as-done",
        "schedule 64: what was not handled comes again: records are done with the next call, not with the one that "
        "hands them out",
        "client.groups.progress:Progress.hand_behind",
        "self._handed.update(behind)",
        "self._done.update(behind)",
        "seed:cluster:12",
    ),
    one_change(
        "paused-partition-skips-what-was-polled-ahead",
        "schedule 108: what was polled ahead comes after the pause",
        "client.aio.reader:Reader.pause",
        "state.seek(held)",
        "pass",
        "seed:cluster:1",
    ),
    one_change(
        "columns-of-an-answer-without-batches",
        "schedule 108: of an answer all of whose batches became records nothing is asked for",
        "client.positions:PartitionState.take_columns",
        "if self._drop_if_empty(chunk):",
        "if False:",
        f"{_COLUMNS}::test_columns_follow_a_poll_that_took_everything",
    ),
    one_change(
        "columns-begin-behind-what-was-decoded",
        "schedule 108: what became records, and was not handed out, comes as columns",
        "client.aio.consumer:Consumer.poll_columns",
        "self._refetch_decoded()",
        "pass",
        f"{_COLUMNS}::test_polls_of_both_kinds_mix",
    ),
    one_change(
        "flush-ends-at-once",
        "schedule 109: a flush ends when everything sent before has its answer",
        "client.accumulator:Accumulator.start_flush",
        "done_now = not self._incomplete",
        "done_now = True",
        "seed:cluster:1",
    ),
    one_change(
        "interrupted-send-keeps-memory",
        "schedule 108: a send that was interrupted before its batch was queued gives the memory back",
        "client.accumulator:Accumulator.append",
        "self.memory.give_back(batch.reserved_bytes)",
        "pass",
        _SEND,
    ),
    one_change(
        "interrupted-wake-is-lost",
        "schedule 108: a send that was interrupted while it woke the sender has woken it",
        "client.aio.producer:ProducerCore._wake_from_append",
        "self._wake_pending = False",
        "raise",
        _SEND,
    ),
    Mutant(
        "flush-ends-before-the-futures",
        "schedule 109: who hears that a flush has ended finds the futures done",
        (
            Patch(_FINISH, "self._accumulator.answered(batch)", f"batch.finish({_TOLD} or ())"),
            Patch(_FINISH, f"batch.finish({_TOLD})", "self._accumulator.answered(batch)"),
        ),
        (f"{_FAULTS}::test_a_flush_ends_behind_the_answers_of_its_records[settings0]",),
    ),
)
