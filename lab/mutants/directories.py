"""Mutants of several log directories on a node (docs/correctness.md, "One of several directories")."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, removed

_LOG = "tests/log/test_log_dirs.py"
_FUTURE = "tests/log/test_future.py"
_MOVING = "tests/replica/test_moving.py"
_NODES = "tests/chaos/test_log_dirs.py"
_VERDICT = "tests/controller/machine/test_log_verdict.py"
_FULL = "tests/controller/machine/test_full_disks.py"

_FORMATTED = "tests/cluster/node/test_main_directory.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "the-first-of-log-dirs-is-the-main-one",
        "B29: a node starts from the directory with its metadata, wherever it stands (schedule 95)",
        instead("return config"),
        f"{_NODES}::test_95_the_order_of_log_dirs_changes_node_by_node",
    ),
    one_change(
        "a-node-starts-without-its-metadata",
        "B29: a node whose main directory is missing does not start",
        part("formatted", "False"),
        f"{_FORMATTED}::test_the_main_one_is_missing",
    ),
    one_change(
        "a-new-disk-in-front-becomes-the-main-one",
        "B29: format makes no second main directory",
        dropped("_main_of(config, disks)"),
        f"{_FORMATTED}::test_a_new_disk_is_put_in_front",
    ),
    one_change(
        "a-replaced-main-directory-is-a-further-one",
        "B29: where the main directory is lost, the new disk becomes it",
        part("next(unformatted, config.data_dir)", "config.data_dir"),
        f"{_FORMATTED}::test_the_main_one_is_lost_and_replaced",
    ),
    one_change(
        "of-two-with-metadata-the-first-counts",
        "B29: where two directories have metadata, nobody but the operator can tell",
        always(),
        f"{_FORMATTED}::test_two_have_metadata",
    ),
    one_change(
        "a-promise-is-no-metadata",
        "B29: a directory that took part in the quorum counts before one that was formatted only",
        dropped("used"),
        f"{_FORMATTED}::test_a_new_disk_that_an_earlier_build_formatted_in_front",
    ),
    one_change(
        "disks-are-known-by-their-mount-points",
        "B29: a directory that is missing may be behind any path that does not answer",
        dropped("self._unexplained"),
        f"{_LOG}::test_disks_that_changed_their_mount_points_are_not_lost",
    ),
    one_change(
        "a-cluster-without-topics-deletes",
        "B29: what a cluster that knows no topic sets aside is never deleted by itself",
        part("not knows_topics", "False"),
        "tests/log/test_strays.py::test_what_a_cluster_without_topics_sets_aside_is_never_removed",
    ),
    one_change(
        "a-cluster-without-topics-deletes-earlier-strays",
        "B29: earlier strays are not deleted either while no topic is known",
        dropped("self._knows_topics"),
        "tests/log/test_strays.py::test_what_a_cluster_without_topics_sets_aside_is_never_removed",
    ),
    one_change(
        "what-is-away-is-made-anew",
        "B12: no log is made for a replica whose directory is offline",
        never(),
        f"{_LOG}::test_what_lies_in_an_absent_directory_is_not_made_anew",
    ),
    one_change(
        "a-new-disk-is-the-old-one",
        "B12: a replica whose directory was replaced has lost its log, and says so",
        removed(),
        f"{_LOG}::test_what_lay_in_a_lost_directory_is_lacking",
    ),
    one_change(
        "places-are-noted-afterwards",
        "B12: a log is made only where the first directory says durably that it will be",
        removed(),
        f"{_LOG}::test_no_log_is_made_where_its_place_cannot_be_noted",
    ),
    one_change(
        "an-older-copy-of-one-directory-counts",
        "B12: a directory that has not seen the last process that used it is an older copy",
        part("known.incarnation not in log_dir.incarnations.ids", "False"),
        f"{_LOG}::test_an_older_copy_of_one_directory_is_lacking",
    ),
    one_change(
        "any-of-two-logs-counts",
        "B12: of two logs of a replica the one counts that was noted",
        part("home if home in holders else holders[0]", "holders[0]"),
        f"{_LOG}::test_of_two_logs_the_noted_one_counts",
    ),
    one_change(
        "a-leftover-stands-in-for-what-is-away",
        "B12: an older log does not count in place of one whose directory is offline",
        never(),
        f"{_LOG}::test_a_log_in_place_of_one_that_is_away_does_not_count",
    ),
    one_change(
        "moved-by-hand-is-believed",
        "B12: a log in a directory that was not noted may be older than what was there",
        removed(),
        f"{_LOG}::test_a_log_that_was_moved_by_hand_is_lacking",
    ),
    one_change(
        "one-clean-directory-vouches-for-all",
        "B12: a stop was clean only if it was in every directory that has logs",
        instead("rest: list[LogDir] = []"),
        f"{_LOG}::test_what_lies_in_an_absent_directory_is_not_made_anew",
    ),
    one_change(
        "a-failed-disk-stops-the-node",
        "schedule 56: a disk that fails takes the replicas on it alone",
        always(),
        f"{_NODES}::test_a_disk_that_fails_takes_its_partitions_alone",
    ),
    one_change(
        "a-full-directory-is-not-told",
        "schedule 57: a broker says which replicas lie in a full directory",
        part("None if without_room == without_room_before else without_room", "None"),
        f"{_NODES}::test_a_full_disk_refuses_its_own_partitions_alone",
    ),
    one_change(
        "a-full-directory-leads",
        "schedule 57: where another has room, no replica in a full directory leads",
        dropped("not cramped"),
        f"{_FULL}::test_one_full_directory_moves_its_own_partitions",
    ),
    one_change(
        "a-full-directory-joins",
        "schedule 57: a replica in a full directory does not join the ISR",
        never(),
        f"{_FULL}::test_one_full_directory_moves_its_own_partitions",
    ),
    one_change(
        "away-is-lost",
        "B12: what was synced in a directory that is offline is still on its disk",
        part("LogVerdict.KEPT if acks_are_synced else LogVerdict.IN_DOUBT", "LogVerdict.LOST"),
        f"{_VERDICT}::test_a_member_whose_directory_is_away",
    ),
    one_change(
        "away-is-kept-unsynced",
        "B12: where acks are not synced, a replica whose directory is offline is in doubt",
        part("LogVerdict.KEPT if acks_are_synced else LogVerdict.IN_DOUBT", "LogVerdict.KEPT"),
        f"{_VERDICT}::test_a_member_whose_directory_is_away_where_acks_are_not_synced",
    ),
    one_change(
        "full-directories-get-replicas",
        "schedule 57: a full directory gets no new replica",
        dropped("[log_dir for log_dir in usable if not log_dir.full]"),
        f"{_LOG}::test_full_and_failed_directories_get_none",
    ),
    one_change(
        "a-copy-of-a-cut-log-goes-on",
        "B12: a copy is a prefix of the log that it is made of, or is begun anew",
        dropped("self.cuts == current.cuts"),
        f"{_MOVING}::test_a_cut_begins_the_copy_anew",
    ),
    one_change(
        "a-copy-counts-before-it-is-noted",
        "B12: before the first directory says durably that a replica was moved, its old log counts",
        removed(),
        f"{_FUTURE}::test_a_move_may_be_cut_short_anywhere",
    ),
    one_change(
        "a-moved-log-forgets-its-start",
        "B12: the log start of a replica that is moved is durable in its new directory before it counts there",
        removed(),
        f"{_FUTURE}::test_a_move_may_be_cut_short_anywhere",
    ),
    one_change(
        "a-copy-is-not-synced",
        "B12: a replica that is moved is durable in its new directory before it counts there",
        part("self.log.close", "self.log.seal"),
        f"{_FUTURE}::test_a_move_may_be_cut_short_anywhere",
    ),
    one_change(
        "a-copy-stays-for-ever",
        "B12: a copy that was not whole is deleted by the next start",
        part("name.endswith(FUTURE)", "False"),
        f"{_FUTURE}::test_a_move_may_be_cut_short_anywhere",
    ),
)
