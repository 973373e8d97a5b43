"""Mutants of rules C7 to C9 and C17, groups: what a coordinator may know and tell."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, condition, dropped, instead, never, one_change, part, removed, value

_SCHEDULES = "tests/schedules/groups/test_durable_state.py"
_MOVES = "tests/cluster/groups/test_migration.py"
_AS_KAFKA = "tests/cluster/groups/test_groups_as_kafka.py"
_IN_TRANSACTIONS = "tests/cluster/groups/test_transactional_offsets.py"
_WIRE = "tests/cluster/broker/test_transactional_offsets_wire.py"
_MARKERS = "tests/schedules/groups/test_offsets_in_transactions.py"
_HALFWAY = f"{_MOVES}::test_a_failover_in_the_middle_loses_nothing"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "offsets-expire-by-a-clock-set-ahead",
        "B32: committed offsets expire by the time that is believed",
        part("now.earliest_ms", "now.wall_ms"),
        "tests/cluster/groups/test_groups_offsets.py::test_100_a_clock_set_ahead_drops_no_offset",
    ),
    one_change(
        "coordinator-keeps-its-shard-over-an-epoch",
        "C8: loading is keyed by leader epoch (schedule 37)",
        part("hosted.leadership != leadership", "leadership is None or hosted.leadership[0] != leadership[0]"),
        f"{_SCHEDULES}::test_37_the_coordinator_epoch_does_not_go_back[holds]",
    ),
    one_change(
        "named-coordinator-denies-it",
        "B34: who is named as a coordinator waits for the news that it is",
        part("asked_ms + NAMED_MS_MAX", "asked_ms"),
        "tests/cluster/broker/test_groups_wire.py::test_b34_who_is_named_before_it_knows_waits_for_the_news",
        "tests/cluster/broker/test_groups_wire.py::test_b34_and_so_does_one_that_is_elected",
    ),
    one_change(
        "without-a-copy-it-waits",
        "B34: who has no copy of the partition has no news to wait for",
        never(),
        "tests/cluster/broker/test_groups_wire.py::test_b34_without_a_copy_it_has_nothing_to_wait_for",
    ),
    one_change(
        "elected-anew-it-denies-offsets",
        "B34: who asks for offsets waits for the news of a second election too",
        value("False"),
        "tests/cluster/broker/test_groups_wire.py::test_b34_and_so_does_one_that_has_led_before",
    ),
    one_change(
        "static-rejoin-not-stored",
        "C8: a static member's return is durable before it is answered (schedule 43)",
        part(
            "self._context.out.write((group_record(group.group_id, group.value()),), stored, replay=False)",
            "stored(WriteOutcome(ErrorCode.NONE, True), Now(0.0, 0))",
        ),
        f"{_SCHEDULES}::test_43_a_failover_does_not_bring_the_old_member_back[holds]",
    ),
    one_change(
        "coordinator-applies-refused-writes",
        "C8: memory changes only by what stands in the log (schedule 44)",
        always(),
        f"{_SCHEDULES}::test_44_a_refused_commit_is_nowhere[holds]",
    ),
    one_change(
        "coordinator-reads-ahead",
        "C8: nothing is told that is not committed (schedule 44)",
        never(),
        f"{_SCHEDULES}::test_44_a_read_does_not_run_ahead[holds]",
    ),
    one_change(
        "epoch-told-before-it-is-committed",
        "C8: what a member of the consumer protocol was told stands in the log (KIP-848, schedule 42)",
        instead("self._context.out.write(records, lambda _outcome, _now: None)\nself._context.out.reply(to, answer)"),
        "tests/schedules/groups/test_consumer_protocol_failover.py::test_42_no_member_is_told_what_a_failover_takes_back[holds]",
    ),
    one_change(
        "partition-given-twice",
        "C9: nobody is given what another has not given back (KIP-848)",
        always(),
        "tests/cluster/groups/test_consumer_protocol_groups.py::test_revoke_acknowledge_assign",
    ),
    one_change(
        "silence-gives-back",
        "C9: a heartbeat that does not say what the member owns acknowledges nothing (KIP-848)",
        value("False"),
        "tests/cluster/groups/test_consumer_protocol_groups.py::test_a_heartbeat_without_partitions_acknowledges_nothing",
    ),
    one_change(
        "group-moves-without-what-is-owned",
        "C9: what a classic member may be reading is its own in the group of the other protocol (KIP-848, KIP-429)",
        value("()"),
        f"{_MOVES}::test_up_while_the_leader_assigns",
    ),
    one_change(
        "group-comes-down-without-what-is-owed",
        "C9: what a member has not given back is its own in the classic group (KIP-848)",
        part("(*pairs(current.assigned), *pairs(current.revoking))", "pairs(current.assigned)"),
        f"{_MOVES}::test_a_group_that_came_down_keeps_what_each_has",
    ),
    one_change(
        "group-comes-down-ahead-of-its-members",
        "C9: a classic group goes on at the generation that its members know (KIP-848)",
        part("group.target_epoch", "group.epoch"),
        f"{_MOVES}::test_up_and_down_while_everybody_reads",
    ),
    one_change(
        "group-that-came-down-not-rebalanced",
        "C9: a failover loses nothing of a move: what the last member had is shared out (KIP-848)",
        dropped("classic.came_down"),
        f"{_HALFWAY}[the group has come down]",
    ),
    one_change(
        "group-too-large-by-now-stays",
        "C9: a group that is larger than group.max.size when it is loaded is rebalanced, as in Kafka",
        dropped("too_many"),
        f"{_AS_KAFKA}::test_a_group_that_has_become_too_large_is_rebalanced_when_it_is_loaded",
    ),
    one_change(
        "late-join-ends-an-empty-group",
        "C9: who is no member changes nothing: only a new one makes a classic group of an empty one (KIP-848)",
        never(),
        f"{_AS_KAFKA}::test_a_late_join_does_not_end_an_empty_group_of_the_consumer_protocol",
    ),
    one_change(
        "group-of-classic-members-stays-up",
        "C9: a failover loses nothing of a move: a group of classic members alone comes down (KIP-848)",
        removed(),
        f"{_HALFWAY}[the member has gone]",
    ),
    one_change(
        "static-classic-member-waited-for",
        "C9: a static member changes its protocol without a rebalance (KIP-848, KIP-345)",
        dropped("draft.group.members[holder].classic is None"),
        f"{_MOVES}::test_a_static_member_changes_its_protocol_and_moves_nobody",
    ),
    one_change(
        "older-generation-commits-in-a-transaction",
        "C7: a producer of an older generation is fenced (KIP-447)",
        condition("... and command.transaction is None"),
        f"{_IN_TRANSACTIONS}::test_the_generation_fences",
    ),
    one_change(
        "unstable-offset-is-told",
        "C7: what an open transaction may replace is told to nobody who asks for stable offsets (KIP-447)",
        never(),
        f"{_IN_TRANSACTIONS}::test_an_offset_counts_with_the_commit_marker",
    ),
    one_change(
        "pending-offset-outlives-a-later-one",
        "C17: an offset behind a pending one counts, whatever the marker says later (KAFKA-14505)",
        removed(),
        f"{_IN_TRANSACTIONS}::test_kafka_14505_the_last_offset_in_the_log_counts",
        f"{_IN_TRANSACTIONS}::test_what_counts_is_what_the_log_says",
    ),
    one_change(
        "earlier-offset-committed-later-counts",
        "C17: of two transactions the one counts that wrote last, not the one that ended last",
        part("self._before(key, producer_id)", "[]"),
        f"{_IN_TRANSACTIONS}::test_two_transactions_with_one_partition[8]",
        f"{_IN_TRANSACTIONS}::test_what_counts_is_what_the_log_says",
    ),
    one_change(
        "loading-goes-by-the-marker",
        "C17: of what is loaded the last offset counts, too",
        value("True"),
        f"{_IN_TRANSACTIONS}::test_kafka_14505_the_last_offset_in_the_log_counts",
        f"{_IN_TRANSACTIONS}::test_what_counts_is_what_the_log_says",
    ),
    one_change(
        "group-of-an-open-transaction-is-deleted",
        "C17: a group with pending offsets is not deleted",
        never(),
        f"{_IN_TRANSACTIONS}::test_a_group_of_pending_offsets_is_there",
    ),
    one_change(
        "offset-of-an-open-transaction-expires",
        "C17: pending offsets, and those that they may replace, do not expire (redpanda#31483)",
        never(),
        f"{_IN_TRANSACTIONS}::test_redpanda_31483_offsets_of_an_open_transaction_do_not_expire",
    ),
    one_change(
        "pending-offset-counts-at-once",
        "C17: an offset of a transaction counts once that is committed",
        never(),
        f"{_MARKERS}::test_a_refused_marker_changes_nothing",
    ),
    one_change(
        "pending-offsets-count-where-they-are-loaded",
        "C17: so it is where a log is loaded",
        never(),
        f"{_MARKERS}::test_loading_replays_markers[True]",
    ),
    one_change(
        "loading-passes-over-markers",
        "C17: loading replays markers",
        never(),
        f"{_MARKERS}::test_loading_replays_markers[True]",
        f"{_MARKERS}::test_loading_replays_markers[False]",
    ),
    one_change(
        "marker-that-the-group-does-not-hear-of",
        "C17: a marker is answered when the group has taken it (KAFKA-17507, schedule 128)",
        removed(),
        f"{_MARKERS}::test_128_a_marker_is_answered_before_the_group_has_it[holds]",
    ),
    one_change(
        "marker-taken-while-loading",
        "C17: a coordinator that loads takes no marker (redpanda#6423, schedule 129)",
        value("self._hosted[partition]"),
        f"{_MARKERS}::test_129_a_marker_comes_while_the_coordinator_loads[holds]",
    ),
    one_change(
        "stable-is-not-asked-for",
        "C7: who asks for stable offsets is not told others, in every version of the request (redpanda#28554)",
        part("group.stable", "False"),
        f"{_WIRE}::test_txn_offset_commit[5]",
    ),
    one_change(
        "the-next-transaction-asks-anew-after-a-marker",
        "C17: a marker ends no transaction after its own (schedule 159)",
        part("own_epoch", "False"),
        f"{_MARKERS}::test_159_the_next_transactions_offset_does_not_wait_for_the_marker[holds]",
    ),
    one_change(
        "offsets-without-the-coordinators-word",
        "C17: a group takes offsets of a transaction that the producer's coordinator knows of (KAFKA-15449)",
        never(),
        f"{_WIRE}::test_a_transaction_that_the_group_is_not_in[3]",
    ),
)
