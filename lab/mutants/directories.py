"""Mutants of several log directories on a node (docs/correctness.md, "One of several directories")."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_DIRS = "log.log_dirs:LogDirs"
_LOG = "tests/log/test_log_dirs.py"
_FUTURE = "tests/log/test_future.py"
_MOVING = "tests/replica/test_moving.py"
_NODES = "tests/chaos/test_log_dirs.py"
_VERDICT = "tests/controller/machine/test_log_verdict.py"
_FULL = "tests/controller/machine/test_full_disks.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "what-is-away-is-made-anew",
        "B12: no log is made for a replica whose directory is offline",
        f"{_DIRS}._note_missing",
        "if known is not None and known.path in self.unusable:",
        "if False:",
        f"{_LOG}::test_what_lies_in_an_absent_directory_is_not_made_anew",
    ),
    one_change(
        "a-new-disk-is-the-old-one",
        "B12: a replica whose directory was replaced has lost its log, and says so",
        f"{_DIRS}._note_missing",
        "self._lost[tp] = replace(NOTHING_LEFT, topic_id=place.topic_id)",
        "pass",
        f"{_LOG}::test_what_lay_in_a_lost_directory_is_lacking",
    ),
    one_change(
        "places-are-noted-afterwards",
        "B12: a log is made only where the first directory says durably that it will be",
        f"{_DIRS}.choose",
        "self._whereabouts.write()",
        "pass",
        f"{_LOG}::test_no_log_is_made_where_its_place_cannot_be_noted",
    ),
    one_change(
        "an-older-copy-of-one-directory-counts",
        "B12: a directory that has not seen the last process that used it is an older copy",
        f"{_DIRS}._hold_against_whereabouts",
        "known.incarnation not in log_dir.lives.ids",
        "False",
        f"{_LOG}::test_an_older_copy_of_one_directory_is_lacking",
    ),
    one_change(
        "any-of-two-logs-counts",
        "B12: of two logs of a replica the one counts that was noted",
        f"{_DIRS}._settle",
        "home if home in holders else holders[0]",
        "holders[0]",
        f"{_LOG}::test_of_two_logs_the_noted_one_counts",
    ),
    one_change(
        "a-leftover-stands-in-for-what-is-away",
        "B12: an older log does not count in place of one whose directory is offline",
        f"{_DIRS}._settle",
        "if tp in self._away:",
        "if False:",
        f"{_LOG}::test_a_log_in_place_of_one_that_is_away_does_not_count",
    ),
    one_change(
        "moved-by-hand-is-believed",
        "B12: a log in a directory that was not noted may be older than what was there",
        f"{_DIRS}._settle",
        "keep.findings.distrust(tp)",
        "pass",
        f"{_LOG}::test_a_log_that_was_moved_by_hand_is_lacking",
    ),
    one_change(
        "one-clean-directory-vouches-for-all",
        "B12: a stop was clean only if it was in every directory that has logs",
        f"{_DIRS}.clean_shutdown_broker_epoch",
        "rest = [log_dir for log_dir in self.dirs[1:] if log_dir.logs or log_dir.offline]",
        "rest: list[LogDir] = []",
        f"{_LOG}::test_what_lies_in_an_absent_directory_is_not_made_anew",
    ),
    one_change(
        "a-failed-disk-stops-the-node",
        "schedule 56: a disk that fails takes the replicas on it alone",
        "replica.manager:ReplicaManager.directory_failed",
        "if path == self.log_dirs.first.path:",
        "if True:",
        f"{_NODES}::test_a_disk_that_fails_takes_its_partitions_alone",
    ),
    one_change(
        "a-full-directory-is-not-told",
        "schedule 57: a broker says which replicas lie in a full directory",
        "controller.broker_session:BrokerSession._heartbeat",
        "without_room=None if without_room == without_room_before else without_room,",
        "without_room=None,",
        f"{_NODES}::test_a_full_disk_refuses_its_own_partitions_alone",
    ),
    one_change(
        "a-full-directory-leads",
        "schedule 57: where another has room, no replica in a full directory leads",
        "controller.machine.state:MachineState.is_fit",
        "not cramped and ",
        "",
        f"{_FULL}::test_one_full_directory_moves_its_own_partitions",
    ),
    one_change(
        "a-full-directory-joins",
        "schedule 57: a replica in a full directory does not join the ISR",
        "controller.machine.isr:_alter_one",
        "if cramped and member.node_id not in partition.isr:",
        "if False:",
        f"{_FULL}::test_one_full_directory_moves_its_own_partitions",
    ),
    one_change(
        "away-is-lost",
        "B12: what was synced in a directory that is offline is still on its disk",
        "controller.machine.log_verdict:RegisteredLogs.verdict",
        "return LogVerdict.KEPT if acks_are_synced else LogVerdict.IN_DOUBT",
        "return LogVerdict.LOST",
        f"{_VERDICT}::test_a_member_whose_directory_is_away",
    ),
    one_change(
        "away-is-kept-unsynced",
        "B12: where acks are not synced, a replica whose directory is offline is in doubt",
        "controller.machine.log_verdict:RegisteredLogs.verdict",
        "return LogVerdict.KEPT if acks_are_synced else LogVerdict.IN_DOUBT",
        "return LogVerdict.KEPT",
        f"{_VERDICT}::test_a_member_whose_directory_is_away_where_acks_are_not_synced",
    ),
    one_change(
        "full-directories-get-replicas",
        "schedule 57: a full directory gets no new replica",
        f"{_DIRS}._candidates",
        "return [log_dir for log_dir in usable if not log_dir.full] or usable",
        "return usable",
        f"{_LOG}::test_full_and_failed_directories_get_none",
    ),
    one_change(
        "a-copy-of-a-cut-log-goes-on",
        "B12: a copy is a prefix of the log that it is made of, or is begun anew",
        "log.future:FutureLog.stands",
        "self.cuts == current.cuts and",
        "",
        f"{_MOVING}::test_a_cut_begins_the_copy_anew",
    ),
    one_change(
        "a-copy-counts-before-it-is-noted",
        "B12: before the first directory says durably that a replica was moved, its old log counts",
        f"{_DIRS}.moved",
        "self._whereabouts.write()",
        "pass",
        f"{_FUTURE}::test_a_move_may_be_cut_short_anywhere",
    ),
    one_change(
        "a-moved-log-forgets-its-start",
        "B12: the log start of a replica that is moved is durable in its new directory before it counts there",
        "log.log_dir:LogDir.adopt",
        "self._promises.raise_start(log)",
        "pass",
        f"{_FUTURE}::test_a_move_may_be_cut_short_anywhere",
    ),
    one_change(
        "a-copy-is-not-synced",
        "B12: a replica that is moved is durable in its new directory before it counts there",
        "log.future:FutureLog.finish",
        "self.log.close()",
        "self.log.seal()",
        f"{_FUTURE}::test_a_move_may_be_cut_short_anywhere",
    ),
    one_change(
        "a-copy-stays-for-ever",
        "B12: a copy that was not whole is deleted by the next start",
        "log.loading:Loading.run",
        "name.endswith(FUTURE)",
        "False",
        f"{_FUTURE}::test_a_move_may_be_cut_short_anywhere",
    ),
)
