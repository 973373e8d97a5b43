"""Mutants of rules B40, B41, B44, B45 and B46: moves of partitions between brokers (KIP-455, KIP-860)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, dropped, never, one_change, part, removed, value

_MOVES = "tests/controller/machine/test_moves.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "moves-below-their-level",
        "B40: nothing moves below the metadata.version that has moves",
        never(),
        f"{_MOVES}::test_below_its_level_nothing_moves",
    ),
    one_change(
        "moves-to-nobody",
        "B40: a target is a broker that is registered",
        value("[]"),
        f"{_MOVES}::test_what_cannot_be_a_target[nobody]",
    ),
    one_change(
        "factor-changes-although-forbidden",
        "B40: the replication factor is kept where that is asked for",
        never(),
        f"{_MOVES}::test_the_factor_is_kept_where_that_is_asked_for",
    ),
    one_change(
        "partitions-are-added-during-a-move",
        "B40: CreatePartitions of a topic that moves: REASSIGNMENT_IN_PROGRESS",
        never(),
        f"{_MOVES}::test_no_partitions_are_added_during_a_move",
    ),
    one_change(
        "the-last-in-sync-are-dropped",
        "B41: no move takes the last copies of what was acknowledged",
        never(),
        f"{_MOVES}::test_the_last_in_sync_are_not_dropped",
        f"{_MOVES}::test_who_is_eligible_is_not_dropped_either",
    ),
    one_change(
        "empty-replicas-lead",
        "B41: a replica that a move is adding is elected uncleanly at an operator's word alone",
        value("()"),
        f"{_MOVES}::test_an_unclean_topic_lets_the_last_go",
    ),
    one_change(
        "a-move-ends-before-its-target-is-in-sync",
        "B44: a move is over when its target is in the ISR",
        dropped("any(node not in self._isr for node in target)"),
        f"{_MOVES}::test_a_move_is_over_with_the_last_of_its_target",
        f"{_MOVES}::test_a_removal_waits_for_those_that_stay",
    ),
    one_change(
        "moves-end-for-elected-leaders-alone",
        "B44: a move is over, too, when an election leaves its target alone in the ISR",
        removed(),
        f"{_MOVES}::test_an_isr_that_an_election_leaves_alone_ends_the_move",
    ),
    one_change(
        "moves-raise-min-isr",
        "B45: a move under way changes no min.insync.replicas",
        part("len(partition.original_replicas)", "len(partition.replicas)"),
        f"{_MOVES}::test_one_replica_becomes_three_and_one_again",
        "tests/controller/metadata/test_config_table.py::test_a_move_under_way_changes_no_min_insync_replicas",
    ),
    one_change(
        "a-replica-goes-within-a-leader-epoch",
        "B46: a replica that goes ends the leader epoch",
        value("False"),
        f"{_MOVES}::test_a_replica_that_goes_ends_the_leader_epoch",
        f"{_MOVES}::test_one_replica_becomes_three_and_one_again",
    ),
    one_change(
        "reports-outlive-the-replica",
        "B46: what was reported of a replica that is gone is forgotten",
        never(),
        f"{_MOVES}::test_reports_do_not_outlive_the_replica",
    ),
)
