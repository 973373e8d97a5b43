"""Mutants of the quorum, rules A14 to A17: a voter without its log, a tail in doubt, replay first, bounds."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant, Patch, one_change

_ROLES = "tests/controller/raft/test_raft_roles.py"
_FILES = "tests/controller/quorum/test_quorum_files.py"
_ONE_MESSAGE = "tests/schedules/quorum/test_one_message.py"

REPLAY: tuple[Mutant, ...] = (
    one_change(
        "appended-before-it-is-replayed",
        "A16: a command's records are replayed before they are appended",
        "controller.command_queue:CommandQueue._replayed",
        "except (FatalError, ValueError, TypeError) as error:",
        "except FatalError as error:\n            return _Replayed(encoded, 0, MetadataDelta(state.image))",
        f"{_ONE_MESSAGE}::test_61_a_record_that_cannot_be_replayed[holds]",
    ),
    Mutant(
        "topic-id-is-taken-twice",
        "A16: no two topics have one id",
        (
            Patch("controller.machine.topics:_create_topic", "if owner is not None:", "if False:"),
            Patch("controller.metadata.delta:MetadataDelta._topic", "if record.topic_id in by_id:", "if False:"),
        ),
        (f"{_ONE_MESSAGE}::test_61_a_record_that_cannot_be_replayed[holds]",),
    ),
    one_change(
        "batch-of-any-size",
        "A16: what no batch may hold is refused to its caller",
        "controller.command_queue:CommandQueue._replayed",
        "if size + _RECORD_OVERHEAD_BYTES * len(encoded) > self._quorum.max_append_bytes:",
        "if False:",
        f"{_ONE_MESSAGE}::test_61_more_than_a_batch_may_hold_is_refused",
    ),
    one_change(
        "refused-decision-is-tried-again-at-once",
        "A16: a refused decision of the controller's own rests a while",
        "controller.controller:Controller._before_turn",
        "self._hold_off_until_ms = now_ms + HOLD_OFF_MS",
        "pass",
        f"{_ONE_MESSAGE}::test_61_a_decision_of_the_controllers_own_that_is_refused_does_not_spin",
    ),
)

BOUNDS: tuple[Mutant, ...] = (
    Mutant(
        "any-epoch-is-adopted",
        "A17: no request lifts an epoch beyond what elections can have reached",
        (
            Patch(
                "controller.raft.requests:_unreachable",
                "if epoch <= min(core.proven_epoch + EPOCH_LEAD_MAX, EPOCH_MAX):",
                "if True:",
            ),
            Patch("controller.raft.core:RaftCore.learn", "if epoch > EPOCH_MAX:", "if False:"),
        ),
        (f"{_ONE_MESSAGE}::test_62_an_epoch_near_the_last[holds]",),
    ),
    one_change(
        "epoch-bound-climbs-with-the-claims",
        "A17: the bound stands on what was proven, not on what was claimed",
        "controller.raft.requests:_unreachable",
        "core.proven_epoch + EPOCH_LEAD_MAX",
        "core.epoch + EPOCH_LEAD_MAX",
        f"{_ONE_MESSAGE}::test_62_epochs_that_only_climb_are_bounded_by_what_was_proven",
    ),
    one_change(
        "answers-prove-nothing",
        "A17: an epoch that a voter told when asked is proven",
        "controller.raft.core:RaftCore._on_response",
        "self.proven_epoch = self.epoch",
        "pass",
        f"{_ROLES}::test_a17_who_is_far_behind_learns_by_asking",
    ),
    one_change(
        "another-leader-of-the-epoch-kills",
        "A17: another leader in an equal epoch is refused, and kills nobody",
        "controller.raft.core:RaftCore.learn",
        'mark("second-leader-refused")',
        'raise FatalError("two leaders in one epoch")',
        f"{_ONE_MESSAGE}::test_62_another_leader_in_an_equal_epoch[holds]",
    ),
    one_change(
        "state-that-cannot-be-read-back-is-written",
        "A17: nothing is made durable that cannot be read back",
        "controller.quorum.state_file:StateFile.write",
        "if not _reads_back(data, state):",
        "if False:",
        f"{_FILES}::test_a17_a_state_that_could_not_be_read_back_is_not_written",
    ),
    one_change(
        "observers-without-number",
        "A17: a leader remembers a bounded number of observers",
        "controller.raft.leader:Leader._progress",
        "len(self.observers) >= OBSERVERS_MAX",
        "False",
        f"{_ROLES}::test_a17_a_leader_remembers_so_many_observers",
    ),
    one_change(
        "snapshot-bytes-without-limit",
        "A17: an answer holds no more bytes of a snapshot than the setting says",
        "controller.raft.leader:Leader.on_fetch_snapshot",
        "min(request.max_bytes, self.core.config.snapshot_chunk_bytes)",
        "request.max_bytes",
        f"{_ROLES}::test_a17_an_answer_has_so_many_bytes_of_a_snapshot",
    ),
)

TABLE = (*REPLAY, *BOUNDS)
