"""Mutants of rules C1 to C3: idempotent producers."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, condition, dropped, instead, never, one_change, part, removed, value

_LEADERS = "tests/schedules/replication/test_leaders.py"
_STATE = "tests/log/test_producer_state.py"
_LOG = "tests/log/test_partition_log.py"
_SNAPSHOTS = "tests/log/test_snapshots.py"
_TRUNCATION = "tests/log/test_truncation.py"

_REFUSALS = "tests/schedules/replication/test_refusals.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "out-of-order-behind-a-refusal",
        "C1: append: what is sent behind a refused batch is refused for the same reason (schedule 52)",
        never(),
        f"{_REFUSALS}::test_52_a_refusal_in_the_middle_of_a_pipeline[holds-full disk]",
        f"{_REFUSALS}::test_52_the_first_batches_of_a_producer[holds]",
        "tests/log/test_refusals.py::test_what_is_behind_a_refusal_is_refused_alike",
    ),
    one_change(
        "out-of-order-behind-what-is-too-large",
        "C1: append: what is sent behind a batch that was too large is to come again (schedule 52)",
        never(),
        f"{_REFUSALS}::test_52_too_large_a_batch_in_the_middle_of_a_pipeline[holds]",
    ),
    one_change(
        "refused-before-the-log-is-forgotten",
        "C1: append: a refusal counts, too, where the broker knew nothing of the partition yet (schedule 52)",
        never(),
        f"{_REFUSALS}::test_52_refused_by_a_broker_whose_metadata_lag[holds]",
    ),
    one_change(
        "refusals-last-for-ever",
        "C1: append: a refused batch that never comes again holds its producer up for 10 s (schedule 52)",
        never(),
        "tests/log/test_refusals.py::test_one_that_never_comes_again_is_waited_for_ten_seconds",
    ),
    one_change(
        "a-retry-of-what-is-stored-counts-as-refused",
        "C1: append: a batch that is stored is missed by nobody when a retry of it is refused (schedule 52)",
        never(),
        "tests/log/test_refusals.py::test_a_refused_retry_of_what_is_stored_holds_nothing_up",
    ),
    Mutant(
        "followers-forget-producers",
        "C2: producer state follows replicated appends too (schedule 39)",
        (condition("... and leader_epoch is not None"),),
        (f"{_LEADERS}::test_39_a_retry_after_the_leader_was_killed[holds]",),
    ),
    one_change(
        "older-producer-epoch-writes",
        "C1: append: a lower producer epoch is INVALID_PRODUCER_EPOCH",
        never(),
        f"{_STATE}::test_against_the_model",
    ),
    one_change(
        "one-batch-is-remembered",
        "C1: append: the last five batches",
        part("BATCHES_KEPT", "1"),
        f"{_STATE}::test_against_the_model",
    ),
    one_change(
        "every-batch-is-remembered",
        "C1: append: not more than five",
        never(),
        f"{_LOG}::test_duplicates_are_answered_with_the_original",
    ),
    one_change(
        "nothing-is-a-duplicate",
        "C1: append: an exact match is answered with the original offset",
        instead("continue"),
        f"{_STATE}::test_against_the_model",
    ),
    one_change(
        "same-first-sequence-is-a-duplicate",
        "C1: append: first and last sequence match",
        dropped("batch.last_sequence == last"),
        f"{_STATE}::test_against_the_model",
    ),
    one_change(
        "sequences-do-not-wrap",
        "C1: append: next = last + 1, from the maximum to 0",
        part("last_sequence + 1 & SEQUENCE_MAX", "last_sequence + 1"),
        f"{_STATE}::test_sequences_wrap",
    ),
    one_change(
        "gaps-are-accepted",
        "C1: append: else OUT_OF_ORDER_SEQUENCE_NUMBER",
        part("header.base_sequence != expected", "header.base_sequence < expected"),
        f"{_STATE}::test_against_the_model",
    ),
    one_change(
        "new-epoch-begins-anywhere",
        "C1: append: a new epoch starts at 0",
        part("0", "header.base_sequence"),
        f"{_STATE}::test_against_the_model",
    ),
    one_change(
        "older-epochs-batches-are-kept",
        "C1: append: the batches kept are of the current epoch",
        removed(),
        f"{_STATE}::test_a_new_epoch_knows_nothing_of_the_older_ones_batches",
    ),
    one_change(
        "unknown-producer-begins-at-0",
        "C1: append: an unknown producer id accepts any sequence",
        instead("_check_follows(header, -2, -1)\n..."),
        f"{_STATE}::test_an_unknown_producer_may_begin_anywhere",
    ),
    one_change(
        "half-a-duplicate-is-written",
        "C1: append: of several batches all are duplicates or none",
        instead(
            "if len(originals) != len(headers):\n"
            "    return None\n"
            "if False:\n"
            "    raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 'some of these batches are in the "
            "log, others are not')"
        ),
        f"{_LOG}::test_half_duplicate_appends_are_refused",
    ),
    one_change(
        "duplicate-answered-uncommitted",
        "C1: append: a duplicate under acks=all waits until its original is committed",
        part("core.high_watermark < result.next_offset", "... and (not result.duplicate)"),
        "tests/replica/test_manager.py::test_a_duplicate_is_answered_when_its_original_is_committed",
    ),
    one_change(
        "replicated-appends-are-checked",
        "C1: append: replicated appends skip the checks of sequences",
        instead("for header in headers:\n    if header.producer_id >= 0:\n        self.producers.check(header)\n..."),
        f"{_LOG}::test_a_follower_does_not_judge_sequences",
    ),
    one_change(
        "state-before-the-write",
        "C1: append: state changes only after a successful append (KAFKA-6683)",
        instead(
            "for header in headers:\n"
            "    if header.producer_id >= 0:\n"
            "        self.producers.update(header, offset, now_ms)\n"
            "..."
        ),
        f"{_LOG}::test_state_changes_only_after_the_write",
    ),
    one_change(
        "expiry-by-the-records-time",
        "C2: producers expire by this node's clock",
        value("header.max_timestamp"),
        f"{_STATE}::test_expiry_follows_this_node_and_not_the_records",
    ),
    one_change(
        "producers-expire-by-the-wall-clock",
        "B32: what one process alone knows ages by its monotonic clock",
        part("self._clock.monotonic_ms", "self._clock.wall_ms"),
        f"{_LOG}::test_100_a_wall_clock_set_ahead_forgets_no_producer",
    ),
    one_change(
        "open-transaction-expires",
        "C2: a producer with an open transaction does not expire",
        dropped("entry.transaction_start < 0"),
        f"{_STATE}::test_an_open_transaction_does_not_expire",
    ),
    one_change(
        "no-snapshot-at-the-roll",
        "C2: snapshots: at segment roll",
        removed(),
        f"{_SNAPSHOTS}::test_a_roll_leaves_a_snapshot",
    ),
    one_change(
        "snapshot-at-the-roll-not-forced",
        "C2: snapshots: forced to disk (KAFKA-9892)",
        part(
            "self.unsynced.add_and_close([self.snapshots.write(self.log_end_offset, self.producers)])",
            "self.snapshots.write(self.log_end_offset, self.producers).close()",
        ),
        f"{_SNAPSHOTS}::test_a_snapshot_survives_a_power_cut",
    ),
    one_change(
        "no-snapshot-at-a-clean-stop",
        "C2: snapshots: at clean shutdown",
        never(),
        f"{_SNAPSHOTS}::test_a_clean_stop_leaves_a_snapshot",
    ),
    one_change(
        "snapshot-at-a-clean-stop-not-forced",
        "C2: snapshots: forced to disk at clean shutdown",
        part(
            "self.unsynced.add_and_close([self.snapshots.write(self.log_end_offset, self.producers)])",
            "self.snapshots.write(self.log_end_offset, self.producers).close()",
        ),
        f"{_SNAPSHOTS}::test_a_snapshot_survives_a_power_cut",
    ),
    one_change(
        "snapshots-name-not-synced",
        "C2: snapshots: forced to disk, by name too",
        removed(),
        f"{_SNAPSHOTS}::test_a_snapshot_survives_a_power_cut",
    ),
    one_change(
        "damaged-snapshot-is-believed",
        "C2: snapshots: checksummed",
        never(),
        f"{_STATE}::test_every_truncation_and_flip_of_a_snapshot_is_found",
    ),
    one_change(
        "one-batch-in-a-snapshot",
        "C2: snapshots: all five batches",
        part("BATCHES_KEPT", "1"),
        f"{_STATE}::test_snapshot_round_trip_keeps_all_five",
    ),
    one_change(
        "no-replay-after-the-snapshot",
        "C2: recovery: the latest snapshot, then replay",
        removed(),
        f"{_SNAPSHOTS}::test_a_snapshot_of_more_than_there_is",
    ),
    one_change(
        "snapshot-beyond-the-point",
        "C2: recovery: the latest snapshot <= the point",
        part("self._offsets[:bisect_right(self._offsets, end_offset)]", "self._offsets"),
        f"{_SNAPSHOTS}::test_a_snapshot_of_more_than_there_is",
    ),
    one_change(
        "snapshots-of-lost-records",
        "C2: recovery: none above the recovery point is believed",
        removed(),
        f"{_SNAPSHOTS}::test_a_snapshot_above_the_recovery_point_is_not_believed",
    ),
    one_change(
        "producers-survive-a-cut",
        "C2: truncation rolls producer state back",
        removed(),
        f"{_SNAPSHOTS}::test_a_cut_takes_the_snapshots_beyond_it",
    ),
    one_change(
        "snapshots-survive-a-cut",
        "C2: truncation deletes snapshots of what is cut",
        value("False"),
        f"{_SNAPSHOTS}::test_a_cut_takes_the_snapshots_beyond_it",
    ),
    one_change(
        "offsets-move-before-producers",
        "C2: truncation rolls state back before offsets move (KAFKA-12153)",
        instead("self.move_end(new_end)\n..."),
        f"{_SNAPSHOTS}::test_state_is_rolled_back_before_offsets_move",
    ),
    one_change(
        "starting-anew-keeps-producers",
        "C2: a log that starts anew knows no producer",
        removed(),
        f"{_TRUNCATION}::test_starting_anew_elsewhere",
    ),
    one_change(
        "producer-ids-are-leased-twice",
        "C3: producer ids: blocks are never given out twice",
        part("PRODUCER_ID_BLOCK", "1"),
        "tests/controller/machine/test_elections_asked_for.py::test_producer_id_blocks_are_never_given_out_twice",
    ),
    one_change(
        "producer-id-is-given-twice",
        "C3: producer ids: an id is never given twice",
        part("producer_id + 1", "producer_id"),
        "tests/cluster/broker/test_kafka_offsets.py::test_init_producer_id",
    ),
)
