"""Mutants of rules C12 and C13: markers on leaders, and readers of committed transactions."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, never, one_change, part, removed, value

_READS = "tests/replica/test_transactions.py"
_FETCH = "tests/cluster/broker/test_kafka_transactions.py"
_TIER = "tests/replica/test_tier_transactions.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "a-marker-of-too-few",
        "C12: a marker: |ISR| < min at the append: NOT_ENOUGH_REPLICAS, nothing written",
        never(),
        f"{_READS}::test_whom_a_marker_is_refused",
    ),
    one_change(
        "a-marker-is-answered-at-its-append",
        "C12: a marker is answered once it is committed",
        part("True", "False"),
        f"{_READS}::test_a_marker_counts_once_it_is_committed",
    ),
    Mutant(
        "reads-of-open-transactions",
        "C13: read_committed: nothing at or above the last stable offset",
        (part("read_committed", "False"), part("read_committed", "False")),
        (
            f"{_READS}::test_a_reader_of_committed_transactions_sees_all_of_one_or_nothing",
            f"{_READS}::test_a_cold_read_names_what_was_aborted_too",
        ),
    ),
    one_change(
        "aborted-records-are-shown",
        "C13: read_committed: with the records, the aborted transactions among them",
        value("()"),
        f"{_READS}::test_a_reader_of_committed_transactions_sees_all_of_one_or_nothing",
    ),
    one_change(
        "times-of-open-transactions",
        "C13: ListOffsets with read_committed ends at the last stable offset",
        part("log.last_stable_offset(core.high_watermark)", "core.high_watermark"),
        f"{_READS}::test_times_of_an_open_transaction_are_not_told",
    ),
    one_change(
        "open-transactions-wake-their-readers",
        "C13: readers of committed transactions wait for the last stable offset",
        always(),
        f"{_READS}::test_who_waits_for_committed_transactions_is_woken_by_their_end",
    ),
    one_change(
        "open-transactions-wake-fetches",
        "C13: a parked fetch of committed transactions waits for the last stable offset",
        part("self._read_committed", "False"),
        f"{_FETCH}::test_a_long_poll_for_committed_transactions_ends_with_the_marker",
    ),
    one_change(
        "aborted-twice",
        "C13: an answer names an aborted transaction once, from however many reads it is",
        value("(*result.aborted, *aborted)"),
        f"{_FETCH}::test_a_parked_poll_that_gathers_names_each_aborted_transaction_once",
    ),
    one_change(
        "transactions-without-a-batch-are-named",
        "C22: an answer names no more aborted transactions than it has batches, or a hundred",
        always(),
        f"{_FETCH}::test_an_answer_names_no_more_aborted_transactions_than_it_has_batches",
    ),
    one_change(
        "who-waits-for-what-is-deleted-waits-on",
        "C13: a deletion that raises the last stable offset wakes who waits for it",
        removed(),
        f"{_READS}::test_records_of_an_open_transaction_are_deleted",
    ),
    one_change(
        "undecided-segments-are-copied",
        "C13: tiering stops at the last stable offset",
        part("partition.last_stable_offset", "partition.high_watermark"),
        f"{_TIER}::test_nothing_undecided_goes_to_the_store",
    ),
    one_change(
        "aborted-records-of-the-tier-are-shown",
        "C13: read_committed from the object store: the aborted transactions, too",
        part("read_committed and found.data", "False"),
        f"{_TIER}::test_aborted_records_in_the_store_are_named",
    ),
    one_change(
        "transactions-of-the-tier-stay-open",
        "C13: of a log that begins in the object store no transaction is open",
        removed(),
        f"{_TIER}::test_a_log_that_begins_in_the_store_has_no_transaction_of_it_open",
    ),
)
