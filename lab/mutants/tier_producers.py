"""Mutants of rule B24 and schedule 86: a log knows who wrote what lies before it."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_SNAPSHOTS = "tests/log/test_snapshots.py"
_PRODUCERS = "tests/log/tier/test_producers.py"
_BEGINNINGS = "tests/replica/test_beginnings.py"
_MOVES = "tests/log/test_future.py::test_a_move_may_be_cut_short_anywhere"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "producers-of-deleted-records-are-forgotten",
        "schedule 86: the snapshot at the log start is believed after a power cut",
        "log.recovery:_Opening._recover",
        "max(self.last_life.recovery_point, self.last_life.log_start_offset)",
        "self.last_life.recovery_point",
        f"{_SNAPSHOTS}::test_86_retention_takes_the_records_of_a_producer_and_the_power_fails",
    ),
    one_change(
        "recovered-segments-have-no-snapshots",
        "schedule 86: recovery leaves a snapshot of each closed segment",
        "log.recovery:_Opening.load_producers",
        "self.snapshots.fill(self.segments, self.now_ms)",
        "[]",
        f"{_SNAPSHOTS}::test_86_recovery_leaves_a_snapshot_of_each_closed_segment",
    ),
    one_change(
        "the-log-start-outruns-its-snapshot",
        "schedule 86: segments below the log start stay as long as the snapshot there cannot be read",
        "log.recovery:_Opening._tidy_names",
        "while gone and not self.snapshots.is_readable(bases[len(gone)]):",
        "while False:",
        f"{_SNAPSHOTS}::test_86_a_log_start_that_was_durable_before_the_snapshot_there",
    ),
    one_change(
        "moved-logs-forget-deleted-records",
        "B24: a copy in another directory takes along who wrote what was deleted",
        "log.future:FutureLog._begin_as",
        "if not lacks_producers(current):",
        "if False:",
        _MOVES,
    ),
    one_change(
        "whole-cuts-forget-what-lies-before",
        "B24: a log that begins inside of a batch knows who wrote what lies before that",
        "log.partition_log:PartitionLog.append_as_follower",
        "truncation.begin_earlier(",
        "truncation.cut_whole(",
        f"{_SNAPSHOTS}::test_a_log_that_begins_inside_a_batch_keeps_what_it_was_told",
        _MOVES,
    ),
    one_change(
        "new-replicas-know-nobody",
        "B24: a replica that begins behind the tier learns there who wrote it",
        "replica.beginnings:Beginnings._lacks",
        "return lacks_producers(plog) and",
        "return False and",
        f"{_BEGINNINGS}::test_a_new_replica_knows_who_wrote_what_it_never_had",
        f"{_BEGINNINGS}::test_it_waits_for_the_store_out_of_sync_and_alone",
    ),
    one_change(
        "leaders-without-a-disk-know-nobody",
        "B24: a leader that begins behind the tier leads once it knows who wrote it",
        "replica.partition_set:PartitionSet._lead",
        "if self._shared.beginnings.awaits(",
        "if False and self._shared.beginnings.awaits(",
        f"{_BEGINNINGS}::test_a_leader_that_lost_every_disk_knows_who_wrote_what_is_in_the_store",
    ),
    one_change(
        "what-the-metadata-do-not-reach-was-deleted",
        "B24: what the metadata do not reach yet may be in the tier",
        "replica.beginnings:Beginnings._lacks",
        "not (leads and start > tier.end_offset)",
        "start <= tier.end_offset",
        f"{_BEGINNINGS}::test_metadata_that_are_behind_are_waited_for",
    ),
    one_change(
        "deletions-before-the-first-copy-are-untold",
        "B24: the metadata say of all that lies below a leader's log whether it was deleted",
        "replica.tiering:Tiering._raise_for_deletions",
        "plog.log_start_offset > tier.end_offset:",
        "plog.log_start_offset > tier.end_offset and tier.segments:",
        f"{_BEGINNINGS}::test_what_was_deleted_before_it_was_copied_is_not_waited_for",
    ),
    one_change(
        "what-a-log-is-told-is-not-durable",
        "B24: who wrote what lies before is durable before the first record",
        "log.snapshots:Snapshots.take_in",
        "self._disk.sync_dir(self._directory)",
        "pass",
        f"{_SNAPSHOTS}::test_what_a_log_is_told_is_durable_before_its_first_record",
    ),
    one_change(
        "a-stop-answers-who-waits",
        "B24: an empty log that was told nothing says nothing when it is closed",
        "log.partition_log:PartitionLog.seal",
        "if active.size or len(self.segments) > 1 or self.snapshots.has(self.log_end_offset):",
        "if self.log_end_offset:",
        f"{_BEGINNINGS}::test_a_stop_while_it_waits_is_no_answer",
        f"{_SNAPSHOTS}::test_what_is_told_of_another_beginning_is_not_taken",
    ),
    one_change(
        "empty-logs-know-nobody",
        "B24: an empty log that was told who wrote what lies before still knows it after a stop",
        "log.partition_log:PartitionLog.seal",
        " or self.snapshots.has(self.log_end_offset):",
        ":",
        f"{_SNAPSHOTS}::test_a_log_that_begins_behind_records_is_told_who_wrote_them",
    ),
    one_change(
        "told-of-what-was-cut",
        "B24: what is told of another beginning is not taken",
        "log.beginning:begin_with",
        "log.log_start_offset != offset",
        "False",
        f"{_SNAPSHOTS}::test_what_is_told_of_another_beginning_is_not_taken",
    ),
    one_change(
        "producers-of-what-follows",
        "B24: the snapshot of a segment that ends behind the log's beginning tells too much",
        "log.tier.producers:producers_before",
        "if segment.end_offset <= offset else None",
        "if True else None",
        f"{_PRODUCERS}::test_it_is_what_the_log_knows",
    ),
    one_change(
        "a-batch-is-known-before-it-comes",
        "B24: a batch that the log's beginning lies inside of comes with the log",
        "log.tier.producers:producers_before",
        "header.next_offset <= offset",
        "header.base_offset < offset",
        f"{_PRODUCERS}::test_it_is_what_the_log_knows",
    ),
)
