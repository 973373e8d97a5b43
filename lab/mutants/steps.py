"""Mutants of rule A39: what changes very many partitions is done in steps."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, never, one_change, part, removed

_STEPS = "tests/schedules/quorum/test_steps.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "a-broker-leaves-in-one-step",
        "A39: a step judges a bounded number of partitions",
        never(),
        f"{_STEPS}::test_157_a_broker_in_more_isrs_than_a_batch_holds_dies",
    ),
    one_change(
        "fenced-before-its-last-step",
        "A39: a broker is fenced once it is in no ISR, so that another controller begins anew",
        always(),
        f"{_STEPS}::test_157_a_broker_in_more_isrs_than_a_batch_holds_dies",
    ),
    one_change(
        "the-first-step-is-answered",
        "A39: a command is run until it is through, and answered then",
        never(),
        f"{_STEPS}::test_157_a_broker_in_more_isrs_than_a_batch_holds_dies",
    ),
    one_change(
        "leaderships-wait-for-the-rest",
        "A39: a broker's leaderships move first",
        part("led_first", "list(self.partitions_in_isr(node_id))"),
        f"{_STEPS}::test_157_its_leaderships_move_first",
    ),
    one_change(
        "who-leaves-comes-back-between-two-steps",
        "A39: a broker that is being taken out joins no ISR",
        removed(),
        f"{_STEPS}::test_157_a_leader_brings_back_who_shuts_down",
    ),
    one_change(
        "new-partitions-keep-who-leaves",
        "A39: partitions that came between two steps count",
        removed(),
        f"{_STEPS}::test_157_a_topic_is_created_between_two_steps",
    ),
    one_change(
        "what-was-left-is-left",
        "A39: a new controller elects where nobody leads and somebody may",
        removed(),
        f"{_STEPS}::test_157_the_controller_changes_while_leaders_are_elected",
    ),
    one_change(
        "snapshots-are-encoded-in-one-turn",
        "A39: a snapshot is encoded in steps",
        never(),
        f"{_STEPS}::test_157_a_snapshot_of_very_much_holds_nobody_up",
    ),
    one_change(
        "snapshots-are-tried-in-one-turn",
        "A39: a snapshot is tried in steps",
        never(),
        f"{_STEPS}::test_157_a_snapshot_of_very_much_holds_nobody_up",
    ),
)
