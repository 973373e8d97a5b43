"""Mutants of transactions in a log: what is stable, markers, first batches, compaction (rules C6, C10 and C11)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, condition, dropped, never, one_change, part, removed, value

_LOG = "tests/log/test_transactions.py"
_COMPACTION = "tests/log/test_compaction_of_transactions.py"
_STARTS = f"{_LOG}::test_a_start_knows_what_was_aborted"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "open-transactions-are-read",
        "C6: not beyond the first offset of a transaction that is open",
        part("next(iter(self.open.values()), high_watermark)", "high_watermark"),
        f"{_LOG}::test_a_transaction_is_open_until_its_marker_is_committed",
    ),
    one_change(
        "a-marker-counts-before-it-is-committed",
        "C6: nor of one whose marker is not below the high watermark",
        condition("ended"),
        f"{_LOG}::test_a_transaction_is_open_until_its_marker_is_committed",
    ),
    one_change(
        "a-start-forgets-what-is-not-committed",
        "C6: a start knows of markers that may not be committed (schedule 114)",
        value("[]"),
        f"{_LOG}::test_114_a_start_knows_which_markers_are_not_committed",
    ),
    one_change(
        "a-start-forgets-what-is-open",
        "C6: a start and a cut know what is open",
        removed(),
        f"{_LOG}::test_a_cut_forgets_what_was_aborted_behind_it",
    ),
    one_change(
        "first-batches-are-not-verified",
        "C10: the first batch of a transaction needs a verification",
        never(),
        f"{_LOG}::test_the_first_batch_needs_a_verification_that_still_stands",
    ),
    one_change(
        "a-verification-of-an-earlier-asking-counts",
        "C10: a verification counts for the asking that it is of",
        dropped("verification is not self._verifications.get(header.producer_id)"),
        f"{_LOG}::test_the_first_batch_needs_a_verification_that_still_stands",
    ),
    one_change(
        "a-verification-outlives-a-marker",
        "C10: a marker ends what was verified before it",
        removed(),
        f"{_LOG}::test_the_first_batch_needs_a_verification_that_still_stands",
    ),
    one_change(
        "a-marker-ends-what-comes-after-it",
        "C10: a marker does not end what was asked for the transaction after it",
        dropped("self.begins_at_0 and self.producer_epoch == marker_epoch"),
        f"{_LOG}::test_the_marker_of_the_transaction_before_leaves_what_was_asked_for_the_next",
    ),
    one_change(
        "plain-batches-join-a-transaction",
        "C10: a batch without the attribute does not join a transaction",
        never(),
        f"{_LOG}::test_plain_batches_do_not_join_a_transaction",
    ),
    one_change(
        "the-next-transaction-goes-on-with-an-older-one",
        "C10: a newer epoch waits for the marker of an older one's transaction",
        always(),
        f"{_LOG}::test_a_newer_epoch_does_not_go_on_with_an_older_transaction",
    ),
    one_change(
        "later-batches-pass-the-first",
        "C10: no batch passes the first one of its transaction (schedule 115)",
        never(),
        f"{_LOG}::test_115_later_batches_wait_for_the_first",
    ),
    one_change(
        "unknown-producers-begin-anywhere",
        "C10: from version 2 on an unknown producer begins at 0",
        never(),
        f"{_LOG}::test_unknown_producers_begin_at_0_from_version_2_on",
    ),
    one_change(
        "older-coordinators-write-markers",
        "C10: no marker of an older coordinator",
        never(),
        f"{_LOG}::test_older_coordinators_write_no_markers",
    ),
    one_change(
        "coordinators-are-forgotten",
        "C10: a marker tells its coordinator's epoch",
        removed(),
        f"{_LOG}::test_older_coordinators_write_no_markers",
    ),
    one_change(
        "the-last-transactions-marker-ends-the-next",
        "C10: from version 2 on a marker of the epoch that writes is of an earlier transaction (KIP-1228)",
        value("False"),
        f"{_LOG}::test_a_marker_of_the_last_transaction_ends_not_the_next_one",
    ),
    one_change(
        "a-marker-that-comes-again-is-refused",
        "C10: a marker that comes again is taken (KAFKA-19999)",
        dropped("entry.transaction_start >= 0"),
        f"{_LOG}::test_a_marker_of_the_last_transaction_ends_not_the_next_one",
    ),
    one_change(
        "aborted-transactions-are-forgotten-by-a-start",
        "C10: a start builds the index of what was aborted anew",
        never(),
        f"{_STARTS}[killed]",
    ),
    one_change(
        "a-cut-keeps-what-was-aborted",
        "C10: a cut takes what was aborted behind it",
        removed(),
        f"{_LOG}::test_a_cut_forgets_what_was_aborted_behind_it",
    ),
    one_change(
        "compaction-passes-what-is-open",
        "C11: a pass ends at the last stable offset",
        value("Offset(partition.high_watermark)"),
        "tests/replica/test_compaction.py::test_what_is_open_is_not_compacted",
    ),
    one_change(
        "aborted-records-supersede",
        "C11: what was aborted supersedes nothing",
        never(),
        f"{_COMPACTION}::test_aborted_records_go_at_once_and_win_nothing",
    ),
    one_change(
        "aborted-records-stay",
        "C11: what was aborted goes at once",
        never(),
        f"{_COMPACTION}::test_aborted_records_go_at_once_and_win_nothing",
    ),
    one_change(
        "aborted-transactions-beyond-the-keys-are-not-known",
        "C11: a pass knows what was aborted up to the end of the last segment (KAFKA-13727, schedule 116)",
        part("waiting[-1].base_offset + self._span(waiting[-1])", "end"),
        f"{_COMPACTION}::test_116_aborted_transactions_behind_the_keys_are_known",
    ),
    one_change(
        "indexes-without-a-checksum-are-believed",
        "C11: nothing goes by the word of an index alone",
        never(),
        f"{_COMPACTION}::test_a_damaged_index_removes_nothing[unused]",
    ),
    one_change(
        "markers-go-before-their-data",
        "C11: a marker outlives the batches of its transaction",
        never(),
        f"{_COMPACTION}::test_markers_outlive_their_data",
    ),
    one_change(
        "markers-go-at-once",
        "C11: and stays for delete.retention.ms",
        never(),
        f"{_COMPACTION}::test_markers_outlive_their_data",
    ),
    one_change(
        "cleaned-segments-forget-what-was-aborted",
        "C11: a cleaned segment has the index of what was aborted",
        never(),
        f"{_COMPACTION}::test_what_was_aborted_is_known_after_a_pass",
    ),
    one_change(
        "the-last-marker-goes",
        "C11: the marker that tells a producer's epoch stays",
        never(),
        f"{_COMPACTION}::test_the_last_marker_tells_a_producers_epoch",
    ),
)
