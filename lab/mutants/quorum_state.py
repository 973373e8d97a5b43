"""Mutants of the quorum, rules A10 and A13: snapshots, what is handed over, and what is answered."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, condition, dropped, instead, never, one_change, part, removed, value

_RAFT = "tests/controller/raft"
_FOLLOWER = f"{_RAFT}/test_raft_follower.py"
_QUORUM = "tests/controller/quorum"
_CLUSTER = f"{_QUORUM}/test_quorum_cluster.py"
_FILES = f"{_QUORUM}/test_quorum_files.py"
_SIMULATOR = "tests/controller/test_controller_in_the_simulator.py"
_SCHEDULES = "tests/schedules/quorum"

SNAPSHOTS: tuple[Mutant, ...] = (
    Mutant(
        "snapshot-of-uncommitted-records",
        "A10: a snapshot holds committed data alone",
        (
            dropped("offset > self._core.high_watermark"),
            part("snapshot.offset <= self.high_watermark", "True"),
        ),
        (f"{_FOLLOWER}::test_a10_only_committed_data_goes_into_a_snapshot",),
    ),
    one_change(
        "snapshot-ahead-of-a-listener",
        "A10: a snapshot is taken when every listener has what it holds",
        never(),
        f"{_CLUSTER}::test_113_a_snapshot_waits_for_the_slowest_listener",
    ),
    one_change(
        "leadership-waits-for-the-disk",
        "A10: a controller that was deposed knows it before a snapshot comes",
        condition("... or self._cold is not None"),
        f"{_CLUSTER}::test_who_leads_is_told_while_the_disk_is_slow",
    ),
    one_change(
        "snapshot-fetch-starts-over",
        "A10: a snapshot fetch resumes where it broke",
        instead("self._position = 0\n..."),
        f"{_FOLLOWER}::test_a10_a_snapshot_fetch_resumes_where_it_broke",
    ),
    one_change(
        "snapshot-installed-before-it-is-whole",
        "A10: a snapshot is installed when every byte of it is there",
        always(),
        f"{_FOLLOWER}::test_a10_a_snapshot_is_fetched_in_pieces_and_installed_whole",
    ),
    one_change(
        "snapshot-not-found-is-asked-for-again",
        "A10: SNAPSHOT_NOT_FOUND goes back to Fetch",
        removed(),
        f"{_FOLLOWER}::test_a10_a_snapshot_that_is_gone_sends_the_follower_back_to_fetch",
    ),
    one_change(
        "snapshot-fetch-does-not-count-for-check-quorum",
        "A10: a snapshot fetch counts for check-quorum",
        removed(),
        f"{_FOLLOWER}::test_a10_a_snapshot_fetch_counts_for_check_quorum_not_for_the_high_watermark",
    ),
    one_change(
        "snapshot-fetch-counts-for-the-high-watermark",
        "A10: a snapshot fetch does not count for the high watermark",
        instead(
            "progress.fetched(self.node.log.end_offset, self.node.log.end_offset, now_ms)\n"
            "self.update_high_watermark()\n"
            "..."
        ),
        f"{_FOLLOWER}::test_a10_a_snapshot_fetch_counts_for_check_quorum_not_for_the_high_watermark",
    ),
    one_change(
        "fetched-snapshot-not-synced",
        "A10: a fetched snapshot is synced before it exists",
        removed(),
        f"{_SCHEDULES}/test_snapshots.py::test_a10_a_fetched_snapshot_survives_the_loss_of_power",
    ),
    one_change(
        "own-snapshot-not-synced",
        "A10: an own snapshot is synced before it exists",
        removed(),
        f"{_SCHEDULES}/test_snapshots.py::test_a10_an_own_snapshot_survives_the_loss_of_power",
    ),
    one_change(
        "snapshot-name-not-synced",
        "A10: the snapshot's name is synced before the log goes",
        removed(),
        f"{_SCHEDULES}/test_snapshots.py::test_a10_an_own_snapshot_survives_the_loss_of_power",
        f"{_SCHEDULES}/test_snapshots.py::test_a10_a_fetched_snapshot_survives_the_loss_of_power",
    ),
    one_change(
        "log-kept-when-a-snapshot-is-installed",
        "A10: an installed snapshot replaces the whole log",
        removed(),
        f"{_SCHEDULES}/test_snapshots.py::test_a10_a_node_far_behind_loads_the_snapshot_and_goes_on",
    ),
    Mutant(
        "listeners-not-reloaded",
        "A10: listeners load an installed snapshot",
        (
            removed(),
            dropped("replay.next_offset < self._log.start_offset"),
        ),
        (f"{_SCHEDULES}/test_snapshots.py::test_a10_a_node_far_behind_loads_the_snapshot_and_goes_on",),
    ),
    one_change(
        "restart-between-freeze-and-truncation",
        "A10: a snapshot ahead of the log replaces it at the start",
        never(),
        f"{_CLUSTER}::test_a_snapshot_ahead_of_the_log_replaces_it",
    ),
    one_change(
        "log-deleted-past-the-snapshot",
        "A10: the log is never deleted past the latest snapshot",
        part("self._core.log.start.offset", "self._core.high_watermark"),
        f"{_SCHEDULES}/test_snapshots.py::test_a10_the_log_reaches_back_to_a_snapshot",
    ),
    one_change(
        "snapshot-with-a-flipped-bit-is-loaded",
        "A10: a damaged snapshot is refused",
        removed(),
        f"{_FILES}::test_a_flipped_bit_in_a_snapshot_is_noticed",
        f"{_SCHEDULES}/test_snapshots.py::test_31_a_bit_flips_in_a_minoritys_snapshot",
    ),
    one_change(
        "snapshot-without-a-footer-is-loaded",
        "A10: an incomplete snapshot is refused",
        never(),
        f"{_FILES}::test_an_incomplete_snapshot_is_refused",
    ),
    one_change(
        "leader-loads-a-snapshot",
        "A10: a leader never loads a snapshot",
        never(),
        f"{_SCHEDULES}/test_controller.py::test_a10_a_leader_never_loads_a_snapshot",
    ),
    one_change(
        "metadata-that-cannot-be-is-loaded",
        "A10: nothing is deleted on the word of damaged metadata",
        never(),
        "tests/controller/metadata/test_image.py::test_damaged_snapshots_are_refused",
        f"{_SCHEDULES}/test_snapshots.py::test_31_nothing_is_deleted_on_damaged_metadata",
    ),
)

ANSWERS: tuple[Mutant, ...] = (
    one_change(
        "answer-before-commit",
        "A13: the controller answers only after the commit",
        value("-1"),
        f"{_SIMULATOR}::test_cut_off_controller_answers_nothing_and_nothing_half_made_remains",
    ),
    one_change(
        "refusal-before-commit",
        "A13: a refusal waits for what it rests on, too",
        instead("...\nanswer.resolve()"),
        f"{_SCHEDULES}/test_controller.py::test_a13_a_refusal_waits_for_what_it_rests_on",
    ),
    one_change(
        "deferred-answers-are-forgotten",
        "A13: on losing the leadership what is unanswered fails",
        value("()"),
        f"{_SCHEDULES}/test_controller.py::test_a13_a_lost_leadership_fails_what_is_unanswered",
    ),
    Mutant(
        "working-image-outlives-the-leadership",
        "A13: a new leadership begins on the committed state",
        (
            instead("self._kept = self._state or getattr(self, '_kept', None)\n..."),
            value("getattr(self, '_kept', None) or ..."),
        ),
        (f"{_SCHEDULES}/test_controller.py::test_a13_a_new_leadership_begins_on_what_is_committed",),
    ),
    one_change(
        "leadership-told-before-the-replay",
        "A13: a controller is told to lead once it has everything",
        never(),
        f"{_CLUSTER}::test_a_new_leader_is_told_so_when_it_has_everything",
    ),
    one_change(
        "uncommitted-records-are-handed-over",
        "A13: only committed records reach the state",
        instead("self._dispatcher.advance(self._log.end_offset)\n..."),
        f"{_SCHEDULES}/test_controller.py::test_a13_only_committed_records_reach_the_state",
    ),
    one_change(
        "snapshot-named-behind-its-state",
        "A13: a snapshot says up to where its state goes",
        part("image.offset + 1", "image.offset"),
        f"{_SCHEDULES}/test_snapshots.py::test_29_the_applied_offset_and_the_state_are_one",
    ),
    one_change(
        "snapshot-named-ahead-of-its-state",
        "A13: a snapshot says no more than its state holds",
        part("1", "2"),
        f"{_SCHEDULES}/test_snapshots.py::test_29_the_applied_offset_and_the_state_are_one",
    ),
)

TABLE = (*SNAPSHOTS, *ANSWERS)
