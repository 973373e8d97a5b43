"""Mutants of rule B24, schedules 86 and 89: a log knows who wrote what lies before it."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, condition, dropped, instead, never, one_change, part, removed, value

_SNAPSHOTS = "tests/log/test_snapshots.py"
_PRODUCERS = "tests/log/tier/test_producers.py"
_BEGINNINGS = "tests/replica/test_beginnings.py"
_MOVES = "tests/log/test_future.py::test_a_move_may_be_cut_short_anywhere"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "producers-of-deleted-records-are-forgotten",
        "schedule 86: the snapshot at the log start is believed after a power cut",
        part("max(self.last_life.recovery_point, log_start_offset)", "self.last_life.recovery_point"),
        f"{_SNAPSHOTS}::test_86_retention_takes_the_records_of_a_producer_and_the_power_fails",
    ),
    one_change(
        "an-older-log-start-forgets-producers",
        "schedule 86: the snapshot where the first segment begins is believed, whatever the checkpoints say",
        part("self.segments[0].base_offset", "0"),
        f"{_SNAPSHOTS}::test_86_an_older_log_start_and_the_producers_of_deleted_records",
    ),
    one_change(
        "recovered-segments-have-no-snapshots",
        "schedule 86: recovery leaves a snapshot of each closed segment",
        value("[]"),
        f"{_SNAPSHOTS}::test_86_recovery_leaves_a_snapshot_of_each_closed_segment",
    ),
    one_change(
        "the-log-start-outruns-its-snapshot",
        "schedule 86: segments below the log start stay as long as the snapshot there cannot be read",
        never(),
        f"{_SNAPSHOTS}::test_86_a_log_start_that_was_durable_before_the_snapshot_there",
    ),
    one_change(
        "snapshots-go-before-the-log-start-is-durable",
        "schedule 89: a snapshot stays as long as its segment",
        instead("...\nself.snapshots.delete_below(self.bases[0])"),
        f"{_SNAPSHOTS}::test_89_the_log_start_was_raised_and_a_start_does_not_know_it",
        f"{_SNAPSHOTS}::test_a_snapshot_leaves_the_disk_with_its_segment",
    ),
    one_change(
        "snapshots-of-removed-segments-are-strays",
        "schedule 89: a snapshot of a segment that is out of the log is no stray one",
        part("[segment.base_offset for segment in self.removed] + self.bases", "self.bases"),
        f"{_SNAPSHOTS}::test_a_snapshot_leaves_the_disk_with_its_segment",
    ),
    one_change(
        "starts-rely-on-a-snapshot-in-the-page-cache",
        "schedule 89: the snapshot at the log start is durable before a start takes the segments below",
        never(),
        f"{_SNAPSHOTS}::test_89_a_start_takes_nothing_that_the_page_cache_alone_tells_of",
    ),
    one_change(
        "moved-logs-forget-deleted-records",
        "B24: a copy in another directory takes along who wrote what was deleted",
        never(),
        _MOVES,
    ),
    one_change(
        "whole-cuts-forget-what-lies-before",
        "B24: a log that begins inside of a batch knows who wrote what lies before that",
        part("self._begin_earlier", "self._cut_whole"),
        f"{_SNAPSHOTS}::test_a_log_that_begins_inside_a_batch_keeps_what_it_was_told",
        _MOVES,
    ),
    one_change(
        "new-replicas-know-nobody",
        "B24: a replica that begins behind the tier learns there who wrote it",
        part("plog.lacks_producers()", "False"),
        f"{_BEGINNINGS}::test_a_new_replica_knows_who_wrote_what_it_never_had",
        f"{_BEGINNINGS}::test_it_waits_for_the_store_out_of_sync_and_alone",
    ),
    one_change(
        "leaders-without-a-disk-know-nobody",
        "B24: a leader that begins behind the tier leads once it knows who wrote it",
        condition("False and ..."),
        f"{_BEGINNINGS}::test_a_leader_that_lost_every_disk_knows_who_wrote_what_is_in_the_store",
    ),
    one_change(
        "what-the-metadata-do-not-reach-was-deleted",
        "B24: what the metadata do not reach yet may be in the tier",
        part("not (leads and start > tier.end_offset)", "start <= tier.end_offset"),
        f"{_BEGINNINGS}::test_metadata_that_are_behind_are_waited_for",
    ),
    one_change(
        "deletions-before-the-first-copy-are-untold",
        "B24: the metadata say of all that lies below a leader's log whether it was deleted",
        part("plog.log_start_offset > tier.end_offset", "... and tier.segments"),
        f"{_BEGINNINGS}::test_what_was_deleted_before_it_was_copied_is_not_waited_for",
    ),
    one_change(
        "what-a-log-is-told-is-not-durable",
        "B24: who wrote what lies before is durable before the first record",
        removed(),
        f"{_SNAPSHOTS}::test_what_a_log_is_told_is_durable_before_its_first_record",
    ),
    one_change(
        "a-stop-answers-who-waits",
        "B24: an empty log that was told nothing says nothing when it is closed",
        part("active.size or len(self.segments) > 1 or self.snapshots.has(self.log_end_offset)", "self.log_end_offset"),
        f"{_BEGINNINGS}::test_a_stop_while_it_waits_is_no_answer",
        f"{_SNAPSHOTS}::test_what_is_told_of_another_beginning_is_not_taken",
    ),
    one_change(
        "empty-logs-know-nobody",
        "B24: an empty log that was told who wrote what lies before still knows it after a stop",
        dropped("self.snapshots.has(self.log_end_offset)"),
        f"{_SNAPSHOTS}::test_a_log_that_begins_behind_records_is_told_who_wrote_them",
    ),
    one_change(
        "told-of-what-was-cut",
        "B24: what is told of another beginning is not taken",
        part("self.log_start_offset != offset", "False"),
        f"{_SNAPSHOTS}::test_what_is_told_of_another_beginning_is_not_taken",
    ),
    one_change(
        "producers-of-what-follows",
        "B24: the snapshot of a segment that ends behind the log's beginning tells too much",
        part("segment.end_offset <= offset", "True"),
        f"{_PRODUCERS}::test_it_is_what_the_log_knows",
    ),
    one_change(
        "a-batch-is-known-before-it-comes",
        "B24: a batch that the log's beginning lies inside of comes with the log",
        part("header.next_offset <= offset", "header.base_offset < offset"),
        f"{_PRODUCERS}::test_it_is_what_the_log_knows",
    ),
)
