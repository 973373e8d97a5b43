"""Mutants of the quorum, rules A10 and A13: snapshots, what is handed over, and what is answered."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, Patch, one_change

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
            Patch(
                "controller.quorum.snapshotting:Snapshotting._write", "if offset > self._core.high_watermark or ", "if "
            ),
            Patch(
                "controller.raft.core:RaftCore.snapshot_taken",
                "ensure(snapshot.offset <= self.high_watermark,",
                "ensure(True,",
            ),
        ),
        (f"{_FOLLOWER}::test_a10_only_committed_data_goes_into_a_snapshot",),
    ),
    one_change(
        "snapshot-fetch-starts-over",
        "A10: a snapshot fetch resumes where it broke",
        "controller.raft.fetching:FetchLoop.failed",
        "self._in_flight = None",
        "self._in_flight = None\n        self._position = 0",
        f"{_FOLLOWER}::test_a10_a_snapshot_fetch_resumes_where_it_broke",
    ),
    one_change(
        "snapshot-installed-before-it-is-whole",
        "A10: a snapshot is installed when every byte of it is there",
        "controller.raft.fetching:FetchLoop._on_snapshot_bytes",
        "if end == response.size:",
        "if True:",
        f"{_FOLLOWER}::test_a10_a_snapshot_is_fetched_in_pieces_and_installed_whole",
    ),
    one_change(
        "snapshot-not-found-is-asked-for-again",
        "A10: SNAPSHOT_NOT_FOUND goes back to Fetch",
        "controller.raft.fetching:FetchLoop._on_snapshot_bytes",
        "if response.error is ErrorCode.SNAPSHOT_NOT_FOUND:\n            self._snapshot = None",
        "if response.error is ErrorCode.SNAPSHOT_NOT_FOUND:",
        f"{_FOLLOWER}::test_a10_a_snapshot_that_is_gone_sends_the_follower_back_to_fetch",
    ),
    one_change(
        "snapshot-fetch-does-not-count-for-check-quorum",
        "A10: a snapshot fetch counts for check-quorum",
        "controller.raft.leader:Leader.on_fetch_snapshot",
        "self._count_fetch(progress, now_ms)",
        "pass",
        f"{_FOLLOWER}::test_a10_a_snapshot_fetch_counts_for_check_quorum_not_for_the_high_watermark",
    ),
    one_change(
        "snapshot-fetch-counts-for-the-high-watermark",
        "A10: a snapshot fetch does not count for the high watermark",
        "controller.raft.leader:Leader.on_fetch_snapshot",
        "self._count_fetch(progress, now_ms)",
        "self._count_fetch(progress, now_ms)\n"
        "        progress.fetched(self.node.log.end_offset, self.node.log.end_offset, now_ms)\n"
        "        self.update_high_watermark()",
        f"{_FOLLOWER}::test_a10_a_snapshot_fetch_counts_for_check_quorum_not_for_the_high_watermark",
    ),
    one_change(
        "fetched-snapshot-not-synced",
        "A10: a fetched snapshot is synced before it exists",
        "controller.quorum.snapshots:SnapshotStore.install",
        "self._disk.sync_now([file])",
        "pass",
        f"{_SCHEDULES}/test_snapshots.py::test_a10_a_fetched_snapshot_survives_the_loss_of_power",
    ),
    one_change(
        "own-snapshot-not-synced",
        "A10: an own snapshot is synced before it exists",
        "controller.quorum.snapshots:SnapshotStore.write",
        "await self._disk.sync([file])",
        "pass",
        f"{_SCHEDULES}/test_snapshots.py::test_a10_an_own_snapshot_survives_the_loss_of_power",
    ),
    one_change(
        "snapshot-name-not-synced",
        "A10: the snapshot's name is synced before the log goes",
        "controller.quorum.snapshots:SnapshotStore._freeze",
        "self._disk.sync_dir(self._directory)",
        "pass",
        f"{_SCHEDULES}/test_snapshots.py::test_a10_an_own_snapshot_survives_the_loss_of_power",
        f"{_SCHEDULES}/test_snapshots.py::test_a10_a_fetched_snapshot_survives_the_loss_of_power",
    ),
    one_change(
        "log-kept-when-a-snapshot-is-installed",
        "A10: an installed snapshot replaces the whole log",
        "controller.quorum.snapshotting:Snapshotting.install",
        "self._log.reset_to(snapshot)",
        "pass",
        f"{_SCHEDULES}/test_snapshots.py::test_a10_a_node_far_behind_loads_the_snapshot_and_goes_on",
    ),
    Mutant(
        "listeners-not-reloaded",
        "A10: listeners load an installed snapshot",
        (
            Patch(
                "controller.quorum.snapshotting:Snapshotting.install",
                "self._dispatcher.reload(snapshot.offset, snapshot.epoch, content.records)",
                "pass",
            ),
            Patch(
                "controller.quorum.dispatch:Dispatcher._catch_up",
                "if not replay.loaded or replay.next_offset < self._log.start_offset:",
                "if not replay.loaded:",
            ),
        ),
        (f"{_SCHEDULES}/test_snapshots.py::test_a10_a_node_far_behind_loads_the_snapshot_and_goes_on",),
    ),
    one_change(
        "restart-between-freeze-and-truncation",
        "A10: a snapshot ahead of the log replaces it at the start",
        "controller.quorum.metadata_log:MetadataLog.summary",
        "if latest is not None and (latest.offset > log.log_end_offset or latest.epoch > log.latest_epoch):",
        "if False:",
        f"{_CLUSTER}::test_a_snapshot_ahead_of_the_log_replaces_it",
    ),
    one_change(
        "log-deleted-past-the-snapshot",
        "A10: the log is never deleted past the latest snapshot",
        "controller.quorum.snapshotting:Snapshotting._write",
        "self._log.delete_before(self._core.log.start.offset)",
        "self._log.delete_before(self._core.high_watermark)",
        f"{_SCHEDULES}/test_snapshots.py::test_a10_the_log_reaches_back_to_a_snapshot",
    ),
    one_change(
        "snapshot-with-a-flipped-bit-is-loaded",
        "A10: a damaged snapshot is refused",
        "controller.quorum.snapshots:_load",
        "verify_crc(view)",
        "pass",
        f"{_FILES}::test_a_flipped_bit_in_a_snapshot_is_noticed",
        f"{_SCHEDULES}/test_snapshots.py::test_31_a_bit_flips_in_a_minoritys_snapshot",
    ),
    one_change(
        "snapshot-without-a-footer-is-loaded",
        "A10: an incomplete snapshot is refused",
        "controller.quorum.snapshots:_load",
        "if controls[-1:] != [ControlType.SNAPSHOT_FOOTER]:",
        "if False:",
        f"{_FILES}::test_an_incomplete_snapshot_is_refused",
    ),
    one_change(
        "leader-loads-a-snapshot",
        "A10: a leader never loads a snapshot",
        "controller.controller:Controller.handle_load_snapshot",
        "if self.active:",
        "if False:",
        f"{_SCHEDULES}/test_controller.py::test_a10_a_leader_never_loads_a_snapshot",
    ),
    one_change(
        "metadata-that-cannot-be-is-loaded",
        "A10: nothing is deleted on the word of damaged metadata",
        "controller.metadata.delta:MetadataDelta.check_whole",
        "if not self._own_topics[topic_id]:",
        "if False:",
        "tests/controller/metadata/test_image.py::test_damaged_snapshots_are_refused",
        f"{_SCHEDULES}/test_snapshots.py::test_31_nothing_is_deleted_on_damaged_metadata",
    ),
)

ANSWERS: tuple[Mutant, ...] = (
    one_change(
        "answer-before-commit",
        "A13: the controller answers only after the commit",
        "controller.command_queue:CommandQueue._run",
        "answer.offset = state.image.offset",
        "answer.offset = -1",
        f"{_SIMULATOR}::test_cut_off_controller_answers_nothing_and_nothing_half_made_remains",
    ),
    one_change(
        "refusal-before-commit",
        "A13: a refusal waits for what it rests on, too",
        "controller.command_queue:CommandQueue._run",
        "answer.error = error\n        except Exception",
        "answer.error = error\n            answer.resolve()\n        except Exception",
        f"{_SCHEDULES}/test_controller.py::test_a13_a_refusal_waits_for_what_it_rests_on",
    ),
    one_change(
        "deferred-answers-are-forgotten",
        "A13: on losing the leadership what is unanswered fails",
        "controller.command_queue:CommandQueue.end",
        "for answer in deferred:",
        "for answer in ():",
        f"{_SCHEDULES}/test_controller.py::test_a13_a_lost_leadership_fails_what_is_unanswered",
    ),
    Mutant(
        "working-image-outlives-the-leadership",
        "A13: a new leadership begins on the committed state",
        (
            Patch(
                "controller.command_queue:CommandQueue.end",
                "self._state = None",
                "self._kept = self._state or getattr(self, '_kept', None)\n        self._state = None",
            ),
            Patch(
                "controller.command_queue:CommandQueue.begin",
                "self._state = state",
                "self._state = getattr(self, '_kept', None) or state",
            ),
        ),
        (f"{_SCHEDULES}/test_controller.py::test_a13_a_new_leadership_begins_on_what_is_committed",),
    ),
    one_change(
        "leadership-told-before-the-replay",
        "A13: a controller is told to lead once it has everything",
        "controller.quorum.dispatch:Dispatcher._notify_leader",
        "if self._leader.leader_id == self._node_id and replay.next_offset <= self._epoch_start:",
        "if False:",
        f"{_CLUSTER}::test_a_new_leader_is_told_so_when_it_has_everything",
    ),
    one_change(
        "uncommitted-records-are-handed-over",
        "A13: only committed records reach the state",
        "controller.quorum.driver:Driver._carry_out",
        "if ready.high_watermark is not None:",
        "self._dispatcher.advance(self._log.end_offset)\n        if ready.high_watermark is not None:",
        f"{_SCHEDULES}/test_controller.py::test_a13_only_committed_records_reach_the_state",
    ),
    one_change(
        "snapshot-named-behind-its-state",
        "A13: a snapshot says up to where its state goes",
        "controller.metadata.publisher:ImagePublisher.take_snapshot",
        "return image.offset + 1, ",
        "return image.offset, ",
        f"{_SCHEDULES}/test_snapshots.py::test_29_the_applied_offset_and_the_state_are_one",
    ),
    one_change(
        "snapshot-named-ahead-of-its-state",
        "A13: a snapshot says no more than its state holds",
        "controller.metadata.publisher:ImagePublisher.take_snapshot",
        "return image.offset + 1, ",
        "return image.offset + 2, ",
        f"{_SCHEDULES}/test_snapshots.py::test_29_the_applied_offset_and_the_state_are_one",
    ),
)

TABLE = (*SNAPSHOTS, *ANSWERS)
