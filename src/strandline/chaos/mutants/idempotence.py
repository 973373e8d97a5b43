"""Mutants of correctness rule C: idempotent producers."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant, Patch, one_change

_LEADERS = "tests/schedules/replication/test_leaders.py"
_STATE = "tests/log/test_producer_state.py"
_LOG = "tests/log/test_partition_log.py"
_SNAPSHOTS = "tests/log/test_snapshots.py"
_TRUNCATION = "tests/log/test_truncation.py"
_POWER_CUT = "tests/log/test_power_cut.py"

TABLE: tuple[Mutant, ...] = (
    Mutant(
        "followers-forget-producers",
        "C: producer state follows replicated appends too (D-39)",
        (
            Patch(
                "log.partition_log:PartitionLog._write",
                "if header[9] >= 0:",
                "if header[9] >= 0 and leader_epoch is not None:",
            ),
        ),
        (f"{_LEADERS}::test_39_a_retry_after_the_leader_was_killed[holds]",),
    ),
    one_change(
        "older-producer-epoch-writes",
        "C: append: a lower producer epoch is INVALID_PRODUCER_EPOCH",
        "log.producer_state:_check_epoch",
        "if header.producer_epoch < current_epoch:",
        "if False:",
        f"{_STATE}::test_against_the_model",
    ),
    one_change(
        "one-batch-is-remembered",
        "C: append: the last five batches",
        "log.producer_state:ProducerStates.update",
        "if len(batches) == BATCHES_KEPT:",
        "if len(batches) == 1:",
        f"{_STATE}::test_against_the_model",
    ),
    one_change(
        "every-batch-is-remembered",
        "C: append: not more than five",
        "log.producer_state:ProducerStates.update",
        "if len(batches) == BATCHES_KEPT:",
        "if False:",
        f"{_LOG}::test_duplicates_are_answered_with_the_original",
    ),
    one_change(
        "nothing-is-a-duplicate",
        "C: append: an exact match is answered with the original offset",
        "log.producer_state:ProducerStates.check",
        "return batch",
        "continue",
        f"{_STATE}::test_against_the_model",
    ),
    one_change(
        "same-first-sequence-is-a-duplicate",
        "C: append: first and last sequence match",
        "log.producer_state:ProducerStates.check",
        " and batch.last_sequence == last",
        "",
        f"{_STATE}::test_against_the_model",
    ),
    one_change(
        "sequences-do-not-wrap",
        "C: append: next = last + 1, from the maximum to 0",
        "log.producer_state:_check_follows",
        "(last_sequence + 1) & SEQUENCE_MAX",
        "last_sequence + 1",
        f"{_STATE}::test_sequences_wrap",
    ),
    one_change(
        "gaps-are-accepted",
        "C: append: else OUT_OF_ORDER_SEQUENCE_NUMBER",
        "log.producer_state:_check_follows",
        "if header.base_sequence != expected:",
        "if header.base_sequence < expected:",
        f"{_STATE}::test_against_the_model",
    ),
    one_change(
        "new-epoch-begins-anywhere",
        "C: append: a new epoch starts at 0",
        "log.producer_state:_check_follows",
        "expected = 0 if header.producer_epoch != current_epoch else",
        "expected = header.base_sequence if header.producer_epoch != current_epoch else",
        f"{_STATE}::test_against_the_model",
    ),
    one_change(
        "older-epochs-batches-are-kept",
        "C: append: the batches kept are of the current epoch",
        "log.producer_state:ProducerStates.update",
        "entry.batches.clear()",
        "pass",
        f"{_STATE}::test_a_new_epoch_knows_nothing_of_the_older_ones_batches",
    ),
    one_change(
        "unknown-producer-begins-at-0",
        "C: append: an unknown producer id accepts any sequence",
        "log.producer_state:ProducerStates.check",
        "if entry is None:",
        "if entry is None:\n            _check_follows(header, -2, -1)",
        f"{_STATE}::test_an_unknown_producer_may_begin_anywhere",
    ),
    one_change(
        "half-a-duplicate-is-written",
        "C: append: of several batches all are duplicates or none",
        "log.partition_log:PartitionLog._find_duplicate",
        "if len(originals) != len(headers):",
        "if len(originals) != len(headers):\n            return None\n        if False:",
        f"{_LOG}::test_half_duplicate_appends_are_refused",
    ),
    one_change(
        "duplicate-answered-uncommitted",
        "C: append: a duplicate under acks=all waits until its original is committed",
        "replica.manager:ReplicaManager._answer",
        "if acks == ACKS_ALL and core.high_watermark < next_offset:",
        "if acks == ACKS_ALL and core.high_watermark < next_offset and not result.duplicate:",
        "tests/replica/test_manager.py::test_a_duplicate_is_answered_when_its_original_is_committed",
    ),
    one_change(
        "replicated-appends-are-checked",
        "C: append: replicated appends skip the checks of sequences",
        "log.partition_log:PartitionLog.append_as_follower",
        "now_ms = self._clock.wall_ms()",
        "for header in headers:\n"
        "            if header.producer_id >= 0:\n"
        "                self.producers.check(header)\n"
        "        now_ms = self._clock.wall_ms()",
        f"{_LOG}::test_a_follower_does_not_judge_sequences",
    ),
    one_change(
        "state-before-the-write",
        "C: append: state changes only after a successful append (KAFKA-6683)",
        "log.partition_log:PartitionLog.append_as_leader",
        "self._write(batches, headers, leader_epoch, now_ms)",
        "for header in headers:\n"
        "            if header.producer_id >= 0:\n"
        "                self.producers.update(header, offset, now_ms)\n"
        "        self._write(batches, headers, leader_epoch, now_ms)",
        f"{_LOG}::test_state_changes_only_after_the_write",
    ),
    one_change(
        "expiry-by-the-records-time",
        "C: producers expire by this node's clock",
        "log.producer_state:ProducerStates.update",
        "entry.last_seen_ms = now_ms",
        "entry.last_seen_ms = header.max_timestamp",
        f"{_STATE}::test_expiry_follows_this_node_and_not_the_records",
    ),
    one_change(
        "open-transaction-expires",
        "C: a producer with an open transaction does not expire",
        "log.producer_state:ProducerStates.expire",
        " and entry.transaction_start < 0",
        "",
        f"{_STATE}::test_an_open_transaction_does_not_expire",
    ),
    one_change(
        "no-snapshot-at-the-roll",
        "C: snapshots: at segment roll",
        "log.partition_log:PartitionLog._roll",
        "if len(self.producers):",
        "if False:",
        f"{_SNAPSHOTS}::test_a_roll_leaves_a_snapshot",
    ),
    one_change(
        "snapshot-at-the-roll-not-forced",
        "C: snapshots: forced to disk (KAFKA-9892)",
        "log.partition_log:PartitionLog._roll",
        "self.dirt.add_and_close([self.snapshots.write(self.log_end_offset, self.producers)])",
        "self.snapshots.write(self.log_end_offset, self.producers).close()",
        f"{_SNAPSHOTS}::test_a_snapshot_survives_a_power_cut",
    ),
    one_change(
        "no-snapshot-at-a-clean-stop",
        "C: snapshots: at clean shutdown",
        "log.partition_log:PartitionLog.seal",
        "if len(self.producers):",
        "if False:",
        f"{_SNAPSHOTS}::test_a_clean_stop_leaves_a_snapshot",
    ),
    one_change(
        "damaged-snapshot-is-believed",
        "C: snapshots: checksummed",
        "log.producer_state:decode_snapshot",
        "if crc != crc32c(memoryview(data)[_SNAPSHOT_CRC_END:]):",
        "if False:",
        f"{_STATE}::test_every_truncation_and_flip_of_a_snapshot_is_found",
    ),
    one_change(
        "one-batch-in-a-snapshot",
        "C: snapshots: all five batches",
        "log.producer_state:ProducerStates.load_snapshot",
        "del entry.batches[:-BATCHES_KEPT]",
        "del entry.batches[:-1]",
        f"{_STATE}::test_snapshot_round_trip_keeps_all_five",
    ),
    one_change(
        "no-replay-after-the-snapshot",
        "C: recovery: the latest snapshot, then replay",
        "log.snapshots:Snapshots.load",
        "replay(states, segments, start, end_offset, now_ms)",
        "pass",
        f"{_SNAPSHOTS}::test_a_snapshot_of_more_than_there_is",
    ),
    one_change(
        "snapshot-beyond-the-point",
        "C: recovery: the latest snapshot <= the point",
        "log.snapshots:Snapshots.load",
        "self._offsets[: bisect_right(self._offsets, end_offset)]",
        "self._offsets",
        f"{_SNAPSHOTS}::test_a_snapshot_of_more_than_there_is",
    ),
    one_change(
        "snapshots-of-lost-records",
        "C: recovery: none above the recovery point is believed",
        "log.recovery:_Opening._recover",
        "self.snapshots.delete_above(self.last_life.recovery_point)",
        "pass",
        f"{_SNAPSHOTS}::test_a_snapshot_above_the_recovery_point_is_not_believed",
    ),
    one_change(
        "producers-survive-a-cut",
        "C: truncation rolls producer state back",
        "log.truncation:cut_end",
        "log.producers = log.snapshots.load(log.segments, new_end, now_ms)",
        "pass",
        f"{_SNAPSHOTS}::test_a_cut_takes_the_snapshots_beyond_it",
    ),
    one_change(
        "snapshots-survive-a-cut",
        "C: truncation deletes snapshots of what is cut",
        "log.truncation:cut_end",
        "names_changed = log.snapshots.delete_above(new_end)",
        "names_changed = False",
        f"{_SNAPSHOTS}::test_a_cut_takes_the_snapshots_beyond_it",
    ),
    one_change(
        "offsets-move-before-producers",
        "C: truncation rolls state back before offsets move (KAFKA-12153)",
        "log.truncation:cut_end",
        "names_changed = log.snapshots.delete_above(new_end)",
        "log.move_end(new_end)\n    names_changed = log.snapshots.delete_above(new_end)",
        f"{_SNAPSHOTS}::test_state_is_rolled_back_before_offsets_move",
    ),
    one_change(
        "starting-anew-keeps-producers",
        "C: a log that starts anew knows no producer",
        "log.truncation:cut_whole",
        "log.producers.clear()",
        "pass",
        f"{_TRUNCATION}::test_starting_anew_elsewhere",
    ),
    one_change(
        "producer-ids-are-leased-twice",
        "C: producer ids: blocks are never given out twice",
        "controller.machine.producer_ids:allocate_producer_ids",
        "ProducerId(first + PRODUCER_ID_BLOCK)",
        "ProducerId(first + 1)",
        "tests/controller/machine/test_elections_asked_for.py::test_producer_id_blocks_are_never_given_out_twice",
    ),
    one_change(
        "producer-id-is-given-twice",
        "C: producer ids: an id is never given twice",
        "cluster.service.producer_ids:ProducerIds.init_producer_id",
        "ProducerId(producer_id + 1)",
        "ProducerId(producer_id)",
        "tests/cluster/kafka/test_kafka_offsets.py::test_init_producer_id",
    ),
)
