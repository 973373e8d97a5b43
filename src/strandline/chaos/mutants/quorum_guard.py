"""Mutants of the quorum, rules A14 to A17: a voter without its log, a tail in doubt, replay before the append, bounds."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant, Patch, one_change

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

TABLE = REPLAY
