"""Mutants of the rules of Spark's source and sink (schedule 66, rule C24)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, never, one_change, part, removed, value

_BATCH = "tests/spark/test_repeated_batch.py"
_REPEATS = "tests/spark/test_repeats.py"
_ATTEMPTS = "tests/spark/test_attempts.py"
_EPOCHS = "tests/spark/test_epochs_in_transactions.py"
_PLANS = "tests/spark/test_stream_planning.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "aborted-rows-are-read",
        "C24: Spark's source reads committed transactions alone, unless kafka.isolation.level says otherwise",
        value("given.dotted_settings"),
        "tests/spark/test_read_committed.py::test_what_is_read_is_committed",
        "tests/spark/test_read_committed.py::test_times_lead_to_committed_records_alone",
    ),
    one_change(
        "decided-epoch-is-written-again",
        "C24: no task writes rows of an epoch that is decided",
        always(),
        f"{_EPOCHS}::test_137_a_driver_that_dies_behind_its_decision_has_committed",
    ),
    one_change(
        "decided-epoch-gets-a-transaction",
        "C24: an attempt looks whether its epoch is decided before its first record, behind its producer id",
        removed(),
        f"{_EPOCHS}::test_139_an_attempt_that_was_asleep_opens_nothing",
    ),
    one_change(
        "decision-of-a-run-that-was-replaced",
        "C24: a decision counts that was made by the run that had begun last by then",
        dropped('entry["run"] == next(reversed(runs), None)'),
        f"{_EPOCHS}::test_138_a_driver_that_was_taken_for_dead_decides_nothing",
    ),
    one_change(
        "transactions-of-losers-stay-open",
        "C24: transactions of attempts that are not of the epoch are aborted once it is decided",
        removed(),
        f"{_EPOCHS}::test_of_two_attempts_at_once_one_counts",
    ),
    one_change(
        "torn-epoch-is-whole",
        "C24: where a decided transaction was aborted the next run writes what the epoch lacks",
        removed(),
        f"{_EPOCHS}::test_an_epoch_that_is_torn_is_mended[0]",
    ),
    one_change(
        "emptied-range-leaves-the-plan",
        "schedule 66: a range whose records are gone stays a task of the batch, an empty one",
        part(
            "[part.without(earliest.get(part.partition, part.end)) for part in planned]",
            "[part.without(earliest.get(part.partition, part.end)) for part in planned if part.end > "
            "earliest.get(part.partition, part.end)]",
        ),
        f"{_PLANS}::test_66_a_batch_is_cut_the_same_way_each_time",
    ),
    one_change(
        "ledger-names-task-numbers",
        "schedule 66: the ledger names ranges, not task numbers",
        always(),
        f"{_REPEATS}::test_a_range_is_known_by_what_was_planned_whatever_its_number",
        f"{_BATCH}::test_a_batch_that_is_planned_anew_finds_its_ranges_under_other_numbers",
    ),
    one_change(
        "options-cut-a-repeated-batch",
        "schedule 66: a batch that is repeated is cut as it was planned, whatever the options say by then",
        dropped("end.tasks"),
        f"{_PLANS}::test_66_a_batch_is_cut_the_same_way_each_time",
        f"{_BATCH}::test_a_batch_is_cut_as_it_was_planned_whatever_the_options_say_now",
    ),
    one_change(
        "number-of-tasks-is-not-held-against-the-plan",
        "schedule 66: the checkpoint keeps the number of tasks, and another one is an error",
        part("len(planned) != end.tasks.count", "False"),
        f"{_PLANS}::test_66_a_batch_of_another_number_of_tasks_than_it_was_planned_for_is_an_error",
    ),
    one_change(
        "half-of-a-range-taken-for-all-of-it",
        "schedule 66: ranges that are cut otherwise than in an earlier run are an error before anything is written",
        always(),
        f"{_REPEATS}::test_a_range_that_is_cut_otherwise_is_an_error",
        f"{_BATCH}::test_ranges_cut_otherwise_fail_before_they_write",
    ),
    one_change(
        "branches-of-a-union-share-their-ranges",
        "schedule 66: two branches of a union that read the same ranges are two",
        dropped("earlier.fed.shift != now.fed.shift"),
        f"{_REPEATS}::test_a_range_is_known_by_what_was_planned_whatever_its_number",
    ),
    one_change(
        "rows-of-other-tasks-are-not-held-against",
        "schedule 66: without ranges, a row that an earlier run wrote in another task is not written again",
        never(),
        f"{_REPEATS}::test_other_tasks_fail_or_change_nothing",
        f"{_BATCH}::test_another_number_of_tasks_fails_before_it_writes[4]",
    ),
    one_change(
        "missing-rows-are-no-sign",
        "schedule 66: without ranges, what an earlier run of a task wrote is among its rows, or nothing is written",
        never(),
        f"{_BATCH}::test_rows_that_are_others_each_time_fail_before_they_are_written",
    ),
    one_change(
        "rows-are-sent-before-the-last-is-seen",
        "schedule 66: a task that is run again sends nothing before all of its rows were held against the log",
        removed(),
        f"{_BATCH}::test_another_number_of_tasks_fails_before_it_writes[4]",
    ),
    one_change(
        "joined-range-not-in-the-ledger",
        "schedule 66: the ledger names a range before the first of its rows is sent",
        removed(),
        f"{_BATCH}::test_ranges_that_are_joined_are_known_once_they_have_come",
    ),
    one_change(
        "older-attempt-goes-on",
        "schedule 66: of two attempts at one task the older one stops, and the newer one waits for that",
        never(),
        f"{_ATTEMPTS}::test_an_attempt_that_says_nothing_is_waited_for_and_stops_when_it_wakes",
        f"{_ATTEMPTS}::test_an_attempt_stops_once_its_epoch_is_over[whole-0]",
    ),
    one_change(
        "pattern-matches-a-ledger",
        "schedule 66: no ledger of a sink is the input of a pattern, whatever its name ends in",
        dropped("topic.startswith(f'{LEDGER_TOPIC}-')"),
        f"{_PLANS}::test_a_ledger_is_no_input_of_a_pattern_and_told_of_where_it_is_named",
    ),
    one_change(
        "kept-reader-trusts-what-it-knows",
        "schedule 63: a reader that outlives a topic asks again before it says that another one has its name",
        removed(),
        "tests/spark/test_worker.py::test_a_topic_made_anew_between_two_tasks_is_read_as_it_was_planned",
    ),
    one_change(
        "streams-pass-over-a-cut",
        "B39: a stream whose log was cut before its checkpoint, and has grown again, says so",
        never(),
        f"{_PLANS}::test_a_log_that_was_cut_and_has_grown_again_is_a_loss",
    ),
    one_change(
        "ledger-knows-topics-by-name",
        "schedule 63: where an attempt's topic ended says nothing of another one that has its name since",
        value("noted"),
        f"{_ATTEMPTS}::test_63_a_topic_made_anew_under_an_attempt_gets_each_row_once",
    ),
)
