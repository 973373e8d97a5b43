"""Mutants of what is relied on after a disk has failed, hung, or been used by two (schedules 32, 47, 51, 58, 59)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, removed, value

_REWRITING = "tests/log/test_rewriting.py"
_FAILED_SYNCS = "tests/log/test_failed_syncs.py::test_lives_with_failed_syncs"
_SCHEDULE_47 = "tests/schedules/replication/test_failed_syncs.py::test_47_a_failed_sync_is_retried_by_a_restart"
_TASKS = "tests/proto/test_tasks.py"
_SYNCER = "tests/log/test_syncer_failures.py"
_SCHEDULE_58 = "tests/schedules/quorum/test_hung_syncs.py"
_COMPILED = "tests/log/test_compiled_sync.py"
_WATCH = "tests/log/test_watched_disk.py"
_SCHEDULE_51 = "tests/schedules/quorum/test_directory_lock.py"
_QUORUM_47 = "tests/schedules/quorum/test_failed_syncs.py"

RESTARTS: tuple[Mutant, ...] = (
    one_change(
        "content-not-written-again",
        "A9: after a restart in the same boot batches count once they are written again",
        value("None"),
        f"{_SCHEDULE_47}",
        f"{_FAILED_SYNCS}",
    ),
    one_change(
        "every-boot-is-fresh",
        "A9: what is read in the boot of an earlier process may be in the page cache alone",
        value("True"),
        f"{_SCHEDULE_47}",
    ),
    one_change(
        "boot-noted-when-all-is-well",
        "A9: a start that failed has used the directory in this boot, too",
        never(),
        f"{_REWRITING}::test_a_start_of_a_new_boot_that_failed_is_remembered",
    ),
    one_change(
        "read-again-not-written-again",
        "A9: the bytes that held their checksums are written, not what another read finds",
        part("b''.join(self._parts)", "self._file.pread(self._bytes, self._position)"),
        f"{_REWRITING}::test_what_was_verified_is_written_and_not_what_is_read_later",
    ),
    one_change(
        "size-not-set-again",
        "A9: a file's size counts once it is set again",
        removed(),
        f"{_REWRITING}::test_a_cut_that_a_failed_sync_forgot",
    ),
    one_change(
        "zeros-behind-a-closed-segment-are-damage",
        "A9: a start that is cut short while it sets a size again has damaged nothing",
        always(),
        f"{_REWRITING}::test_zeros_behind_a_closed_segment",
    ),
    one_change(
        "names-not-made-again",
        "A9: names count once they are made again",
        never(),
        f"{_REWRITING}::test_names_that_a_failed_sync_forgot",
        f"{_FAILED_SYNCS}",
    ),
    one_change(
        "names-stay-away",
        "A9: a name that is away when the process dies comes back",
        never(),
        f"{_REWRITING}::test_it_may_end_anywhere",
    ),
    one_change(
        "the-lock-is-renamed",
        "A9: the lock's own name stays where it is",
        always(),
        f"{_REWRITING}::test_the_lock_keeps_its_name",
    ),
    one_change(
        "topic-id-not-written-again",
        "A9: a partition's topic id counts once it is written again",
        removed(),
        f"{_REWRITING}::test_a_topic_id_that_a_failed_sync_forgot",
    ),
    one_change(
        "clean-mark-is-only-deleted",
        "B13: a clean mark whose name comes back vouches for nothing",
        removed(),
        f"{_REWRITING}::test_a_clean_mark_that_comes_back_is_not_believed",
    ),
    one_change(
        "metadata-not-written-again",
        "A9: the metadata log, too, counts once it is written again",
        value(
            "open_log(disk, directory, TOPIC_PARTITION, clock=clock, config=log_config, "
            "last_life=last_life, before_cut=before_cut)"
        ),
        f"{_QUORUM_47}::test_47_a_failed_sync_of_metadata_is_retried_by_a_restart",
    ),
    one_change(
        "full-where-a-sync-failed",
        "schedule 32: a sync that found no room has dropped what it was to write: no full disk that is waited for",
        part("sync_error(error.errno or errno.EIO, file.path)", "disk_error(error, 'sync', file.path)"),
        "tests/log/test_real_disk_failures.py::test_a_sync_without_room_is_no_full_disk",
    ),
)

LOCKS: tuple[Mutant, ...] = (
    one_change(
        "a-directory-for-everybody",
        "A3: one process in a data directory",
        part("take_directory(disk, path)", "type('NoLock', (), {'release': lambda self: None})()"),
        f"{_SCHEDULE_51}::test_51_two_processes_on_one_directory",
    ),
    one_change(
        "a-directory-formatted-by-everybody",
        "A3: nobody formats a directory that a process has",
        value("type('NoLock', (), {'release': lambda self: None})()"),
        f"{_SCHEDULE_51}::test_51_a_directory_is_formatted_under_a_node",
    ),
)

TASKS: tuple[Mutant, ...] = (
    one_change(
        "task-ends-unseen",
        "A9: the unforeseen end of a task that nobody awaits is told",
        never(),
        f"{_TASKS}::test_an_exception_is_told_once",
        f"{_TASKS}::test_what_should_not_end_is_told_when_it_does",
    ),
    one_change(
        "task-cancelled-by-nobody",
        "A9: a cancellation that nobody asked for is an unforeseen end",
        part("task.cancelling()", "True"),
        f"{_TASKS}::test_a_cancellation_that_nobody_asked_for_is_told",
    ),
    one_change(
        "sync-cancelled-by-nobody",
        "A9: what was to be synced by a sync that was cancelled is fenced, and that is fatal",
        instead("return"),
        f"{_SYNCER}::test_a_syncer_that_is_cancelled_by_nobody_is_fatal",
    ),
    one_change(
        "syncer-ends-in-silence",
        "A9: what nobody foresaw in the syncer is fatal",
        removed(),
        f"{_SYNCER}::test_what_nobody_foresaw_is_fatal",
    ),
    one_change(
        "syncer-ends-and-fences-nothing",
        "A9: what was to be synced when the syncer ended is fenced",
        removed(),
        f"{_SYNCER}::test_what_nobody_foresaw_is_fatal",
    ),
    one_change(
        "syncer-takes-marks-after-its-end",
        "A9: what is marked after the syncer has ended is fenced",
        never(),
        f"{_SYNCER}::test_what_nobody_foresaw_is_fatal",
    ),
    one_change(
        "checkpoint-not-renamed-and-forgotten",
        "A9: what fails for a log at the end of a sync fences it",
        removed(),
        f"{_SYNCER}::test_what_fails_for_one_log_fences_that_one",
    ),
    one_change(
        "one-log-s-failure-is-the-group-s",
        "A9: what fails for one log at the beginning of a sync fences that one alone",
        instead("failed.update(dict.fromkeys(self._group, error))"),
        f"{_SYNCER}::test_what_fails_for_one_log_fences_that_one",
    ),
)

COMPILED: tuple[Mutant, ...] = (
    one_change(
        "files-of-a-second-attempt-are-given-up",
        "schedule 91: the files of a sync keep their descriptors until its end, also of a second attempt",
        value("0"),
        "tests/log/test_real_disk.py::test_files_that_were_closed_are_synced_when_a_descriptor_is_free",
    ),
    one_change(
        "failed-compiled-sync-poisons-nothing",
        "schedule 32: a file of which a sync has failed is not synced again, whichever thread it was",
        removed(),
        "tests/log/test_disk_contract_failures.py::test_after_a_failed_sync_the_file_refuses",
    ),
    one_change(
        "two-threads-sync-one-file",
        "schedule 32: of two syncs of one file at a time one succeeds over what the other was told of",
        value("None"),
        f"{_COMPILED}::test_two_threads_never_sync_one_file[False]",
    ),
    one_change(
        "blocking-sync-beside-the-thread",
        "schedule 32: a blocking sync of a file waits for the compiled thread that has it",
        removed(),
        f"{_COMPILED}::test_two_threads_never_sync_one_file[True]",
        f"{_COMPILED}::test_a_failure_counts_before_the_loop_hears_of_it",
    ),
    one_change(
        "blocking-sync-beside-the-python-thread",
        "schedule 32: a blocking sync of a file waits for the thread in Python that has it",
        removed(),
        "tests/log/test_real_disk_failures.py::test_a_blocking_sync_waits_for_the_thread_that_has_the_file",
    ),
)

HANGS: tuple[Mutant, ...] = (
    one_change(
        "a-wait-in-place-has-no-end",
        "B18: the event loop waits in place for a moment, and no longer than its limit",
        part("LIMIT_MS if self._saved_ms >= LIMIT_MS else 0.0", "60000.0 if self._saved_ms >= LIMIT_MS else 0.0"),
        f"{_SCHEDULE_58}::test_58_a_sync_hangs_while_the_event_loop_waits_for_it",
        "tests/log/test_sync_wait.py::test_no_more_than_its_share_is_waited_away",
    ),
    one_change(
        "slow-syncs-are-waited-for",
        "B18: a disk that turned slow is not waited for",
        always(),
        f"{_SCHEDULE_58}::test_58_a_disk_turns_slow_while_it_is_waited_for",
        "tests/log/test_sync_wait.py::test_a_disk_that_turns_slow_costs_one_wait",
    ),
    one_change(
        "waits-take-all-of-the-time",
        "B18: the event loop waits in place for a share of its time",
        part("self._saved_ms >= LIMIT_MS", "True"),
        "tests/log/test_sync_wait.py::test_a_busy_loop_waits_for_a_share_of_its_time",
    ),
    one_change(
        "waits-behind-another-sync",
        "B18: while a sync is under way no other one is waited for in place",
        dropped("not self._under_way"),
        f"{_WATCH}::test_a_disk_that_hangs_while_it_is_waited_for",
    ),
    one_change(
        "hung-sync-is-waited-for",
        "B18: the age of the sync in flight is a health signal",
        never(),
        f"{_SCHEDULE_58}::test_58_a_sync_hangs_under_a_broker",
    ),
    one_change(
        "quorum-leads-on-a-hung-disk",
        "A5: a leader whose disk hangs resigns",
        removed(),
        f"{_SCHEDULE_58}::test_58_a_sync_hangs_under_the_active_controller",
    ),
    one_change(
        "a-stop-waits-for-the-hung-sync",
        "B18: a node whose disk hangs ends",
        removed(),
        f"{_SCHEDULE_58}::test_58_a_combined_node_whose_disk_hangs_ends",
    ),
    Mutant(
        "looks-are-a-clock",
        "B18: a sync is as old as the looks at it: a process that was stopped has no old sync",
        (
            part(
                "self._judge(self._looks, self._looks * self._interval_ms)",
                "self._judge(round(self._disk.age_ms / self._interval_ms), self._disk.age_ms)",
            ),
            part("looks == LOOKS", "looks >= LOOKS"),
        ),
        (f"{_WATCH}::test_a_process_that_was_stopped_has_no_old_sync",),
    ),
    one_change(
        "blocking-syncs-wait-behind-a-hung-one",
        "B18: while a sync hangs the event loop begins none that would hang too",
        never(),
        f"{_WATCH}::test_a_sync_that_hangs_is_told_at_its_bound_and_given_up_later",
    ),
    one_change(
        "poisoned-disk-is-nobody-s-business",
        "schedule 32: a disk that cannot keep its names ends the node",
        never(),
        f"{_WATCH}::test_a_poisoned_disk_is_told_once",
    ),
)

TABLE = (*RESTARTS, *LOCKS, *TASKS, *COMPILED, *HANGS)
