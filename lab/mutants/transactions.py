"""Mutants of rules C4, C14, C15 and C30 (and one of rule A20): the coordinator of transactions."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, condition, dropped, never, one_change, part, removed, value

_ENDS = "tests/cluster/transactions/test_ends.py"
_PRODUCERS = "tests/cluster/transactions/test_producers.py"
_DECISIONS = "tests/schedules/groups/test_decisions.py"
_WIRE = "tests/cluster/broker/test_transactions_wire.py"
_OFFSETS = "tests/cluster/groups/test_transactional_offsets.py"
_DEPOSED = "tests/schedules/clients/test_deposed_coordinators.py"
_CONNECTIONS = "tests/cluster/transactions/test_connections.py"
_TRANSACTIONS = "tests/cluster/transactions/test_transactions.py"
_ADDITIONS = "tests/cluster/transactions/test_additions.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "two-changes-at-once",
        "C4: an id has one change under way at a time",
        never(),
        f"{_PRODUCERS}::test_one_change_at_a_time",
    ),
    one_change(
        "change-in-doubt-is-forgotten",
        "C4: a change that may be committed yet keeps the others away",
        always(),
        f"{_PRODUCERS}::test_a_change_in_doubt_keeps_the_others_away",
    ),
    one_change(
        "any-epoch-goes-on",
        "C4: who names neither the epoch that is nor the one before is fenced",
        never(),
        f"{_PRODUCERS}::test_kip_360_a_producer_that_goes_on_names_what_it_has",
    ),
    one_change(
        "who-was-fenced-goes-on",
        "C4: the epoch by which a newer producer fences is given to nobody",
        value("value.producer_epoch"),
        f"{_PRODUCERS}::test_the_epoch_that_fences_is_given_to_nobody",
    ),
    one_change(
        "who-was-fenced-repeats-a-request",
        "C4: behind a newer producer no request of an older one is repeated",
        value("value.producer_epoch"),
        f"{_PRODUCERS}::test_kip_360_a_producer_that_goes_on_names_what_it_has",
    ),
    one_change(
        "epochs-run-over",
        "C4: behind the last epoch comes a fresh producer id",
        never(),
        f"{_PRODUCERS}::test_epochs_run_out",
        f"{_PRODUCERS}::test_epochs_run_out_while_a_transaction_times_out",
    ),
    one_change(
        "a-producer-is-given-the-epoch-of-markers",
        "C4: the epoch beyond the last one is of markers alone",
        always(),
        f"{_PRODUCERS}::test_epochs_run_out_while_a_transaction_times_out",
    ),
    one_change(
        "older-epoch-adds-partitions",
        "C4: an older epoch adds nothing to a transaction",
        never(),
        f"{_TRANSACTIONS}::test_partitions_are_added_once",
    ),
    one_change(
        "older-epoch-ends-a-transaction",
        "C4: an older epoch ends no transaction",
        never(),
        f"{_ENDS}::test_c4_other_producers_end_nothing[Ongoing-1]",
    ),
    one_change(
        "partition-is-added-to-what-is-decided",
        "C4: no partition is added to a transaction that is decided",
        never(),
        f"{_TRANSACTIONS}::test_a_transaction_begins_only_when_the_one_before_has_all_its_markers",
    ),
    one_change(
        "an-end-keeps-the-epoch",
        "C4: each end raises the epoch (KIP-890, schedule 33)",
        part("value.producer_epoch + 1", "value.producer_epoch"),
        f"{_TRANSACTIONS}::test_33_a_late_end_does_not_end_the_next_transaction",
    ),
    one_change(
        "an-abort-does-not-fence",
        "C4: an abort in the coordinator's name fences the producer",
        part("value.producer_epoch + 1", "value.producer_epoch"),
        f"{_PRODUCERS}::test_who_comes_later_fences_who_was_before",
    ),
    one_change(
        "a-failover-forgets-the-last-epoch",
        "C4: the epoch before is in the log (KAFKA-20310)",
        part("value", "value and value._replace(last_epoch=NO_EPOCH)"),
        f"{_ENDS}::test_kafka_20310_a_retry_after_a_failover_is_answered[behind its completion]",
    ),
    one_change(
        "partitions-are-added-one-by-one",
        "C4: partitions are added to a transaction all or none",
        never(),
        f"{_WIRE}::test_partitions_are_added_all_or_none",
    ),
    one_change(
        "markers-in-topics-of-the-cluster",
        "C4: no client has a topic of the cluster itself in its transaction",
        never(),
        f"{_WIRE}::test_partitions_are_added_all_or_none",
    ),
    one_change(
        "transactions-are-listed-to-all",
        "A20: who may not describe a transactional id does not see it listed",
        value("wanted"),
        "tests/cluster/broker/test_acl_walk.py::test_a_principal_with_nothing_learns_and_changes_nothing",
    ),
    one_change(
        "markers-are-not-ordered-again",
        "C14: each coordinator orders the markers of what is decided (schedule 120)",
        never(),
        f"{_TRANSACTIONS}::test_120_each_coordinator_orders_the_markers_again",
        f"{_TRANSACTIONS}::test_121_a_decision_without_partitions_is_completed_after_a_failover",
    ),
    one_change(
        "late-decision-is-forgotten",
        "C14: a decision that is committed after its client was told an error is carried out",
        always(),
        f"{_DECISIONS}::test_a_decision_that_is_committed_late_is_carried_out",
    ),
    one_change(
        "completion-of-another-transaction",
        "C14: news of one order completes no other transaction (schedule 35)",
        condition("order.transactional_id in self._orders"),
        f"{_TRANSACTIONS}::test_35_a_completion_that_is_told_twice_ends_nothing_else",
        f"{_TRANSACTIONS}::test_120_each_coordinator_orders_the_markers_again",
    ),
    one_change(
        "refused-completion-is-forgotten",
        "C14: a completion that is refused is written when it can be (schedule 122)",
        removed(),
        f"{_TRANSACTIONS}::test_122_a_completion_that_is_refused_is_written_when_it_can_be",
    ),
    one_change(
        "time-out-by-a-clock-set-ahead",
        "C15: a transaction times out by the time that is believed (schedule 123)",
        part("now.earliest_ms", "now.wall_ms"),
        f"{_TRANSACTIONS}::test_123_time_outs_go_by_time_that_is_believed",
    ),
    one_change(
        "id-expires-by-a-clock-set-ahead",
        "C15: a transactional id expires by the time that is believed (schedule 123)",
        part("now.earliest_ms", "now.wall_ms"),
        f"{_TRANSACTIONS}::test_123_time_outs_go_by_time_that_is_believed",
    ),
    one_change(
        "id-expires-with-an-open-transaction",
        "C15: an id expires only where no transaction is open or being ended",
        dropped("value.state.is_over"),
        f"{_TRANSACTIONS}::test_c15_ids_expire_when_nobody_uses_them",
    ),
    one_change(
        "an-addition-does-not-wait",
        "C30: an addition waits for the change before it, and is written with others that do",
        always(),
        f"{_ADDITIONS}::test_leaders_that_add_while_one_is_written_are_written_together",
    ),
    one_change(
        "what-waits-is-forgotten",
        "C30: what waits for a change is judged when it has ended",
        removed(),
        f"{_ADDITIONS}::test_the_next_transaction_begins_once_the_one_before_is_complete",
    ),
    one_change(
        "an-addition-waits-for-ever",
        "C30: an addition waits for half a second",
        removed(),
        f"{_ADDITIONS}::test_what_has_waited_for_too_long_is_told",
    ),
    one_change(
        "any-number-of-additions-waits",
        "C30: so many additions of an id wait",
        never(),
        f"{_ADDITIONS}::test_so_many_wait",
    ),
    one_change(
        "older-connections-count",
        "C20: a request of the first protocol counts if it came by its producer's newest connection (KAFKA-17754)",
        never(),
        f"{_CONNECTIONS}::test_133_an_end_that_comes_late_ends_not_the_next_transaction",
    ),
    one_change(
        "connections-of-before-the-leadership-count",
        "C20: a connection that was accepted before the leadership does not count",
        part("self._since + 1", "NO_CONNECTION"),
        f"{_CONNECTIONS}::test_134_an_end_comes_late_where_the_coordinator_was_before",
    ),
    one_change(
        "superseded-connections-stay-open",
        "C20: a request that does not count closes its connection",
        removed(),
        f"{_WIRE}::test_a_request_by_an_older_connection_closes_it",
    ),
    one_change(
        "offsets-by-older-connections-count",
        "C33: offsets of the first protocol count if they came by their producer's newest connection (schedule 184)",
        value("True"),
        f"{_OFFSETS}::test_184_offsets_that_come_late_are_not_of_the_next_transaction",
    ),
    one_change(
        "stable-offsets-without-proof",
        "C34: stable offsets are told once a write behind the question is committed (schedule 186)",
        never(),
        f"{_DEPOSED}::test_186_a_deposed_coordinator_tells_no_offsets[holds-0]",
    ),
    one_change(
        "offsets-of-what-was-aborted-count",
        "C33: behind an abort the first offsets by a connection of before it are to be said again (schedule 185)",
        never(),
        f"{_OFFSETS}::test_185_offsets_of_what_was_aborted_come_late",
    ),
    one_change(
        "forgotten-producers-ask-by-any-connection",
        "C33: of a producer that was forgotten only connections count that were accepted since",
        removed(),
        f"{_OFFSETS}::test_of_producers_that_are_forgotten_only_new_connections_count",
    ),
)
