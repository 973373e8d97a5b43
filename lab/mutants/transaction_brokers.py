"""Mutants of rules C5, C16, C28, C29 and C31: what brokers say to each other about transactions."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, never, one_change, part, removed, value

_ORDERS = "tests/cluster/transactions/test_marker_orders.py"
_MARKERS = "tests/cluster/transactions/test_markers.py"
_WIRE = "tests/cluster/broker/test_kafka_transactional_produce.py"
_LOST = "tests/schedules/transactions/test_lost_markers.py"
_ASKED = "tests/cluster/transactions/test_lost_markers.py"
_TOLD = "tests/cluster/broker/test_first_appends.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "appends-without-the-coordinators-word",
        "C5: a first batch is taken only if the coordinator knows of the transaction (KAFKA-14402)",
        never(),
        f"{_WIRE}::test_transactions_of_protocol_1",
        f"{_WIRE}::test_a_late_batch_begins_no_transaction[KAFKA-14561]",
    ),
    one_change(
        "transactions-without-an-id",
        "C5: a batch of a transaction comes with the id that its client was authorized for",
        never(),
        f"{_WIRE}::test_what_a_client_may_not_write",
    ),
    one_change(
        "clients-write-without-a-sequence",
        "C5: the batches of clients have sequences, those of coordinators alone have none",
        never(),
        f"{_WIRE}::test_what_a_client_may_not_write",
    ),
    one_change(
        "two-producers-in-one-request",
        "C5: a request has the batches of one producer",
        never(),
        f"{_WIRE}::test_what_a_client_may_not_write",
    ),
    one_change(
        "later-batches-pass-the-first-one",
        "C5: while the coordinator is asked, nothing of the connection passes the first batch (schedule 126)",
        part("exchange.connection.run_alone", "exchange.connection.run"),
        f"{_WIRE}::test_126_batches_behind_the_first_one",
    ),
    one_change(
        "concurrent-transactions-at-once",
        "C5: while the transaction before completes the coordinator is asked again (KAFKA-18654)",
        always(),
        f"{_WIRE}::test_a_coordinator_that_takes_long",
    ),
    one_change(
        "a-change-holds-up-verifications",
        "C5: partitions of a transaction are verified while another one is added (KAFKA-14904)",
        always(),
        f"{_WIRE}::test_a_change_under_way_holds_up_no_verification",
    ),
    one_change(
        "concurrent-transactions-to-clients-that-do-not-know-it",
        "C5: CONCURRENT_TRANSACTIONS is told from version 12 of Produce on (KAFKA-18662)",
        value("code"),
        f"{_TOLD}::test_what_a_producer_is_told[CONCURRENT_TRANSACTIONS]",
        f"{_WIRE}::test_a_coordinator_that_takes_long",
    ),
    one_change(
        "coordinators-errors-as-they-are",
        "C5: what the coordinator cannot answer is told as NOT_ENOUGH_REPLICAS",
        value("code"),
        f"{_TOLD}::test_what_a_producer_is_told[NOT_COORDINATOR]",
        f"{_WIRE}::test_a_coordinator_that_is_away",
    ),
    one_change(
        "a-marker-is-sent-once",
        "C16: a marker is sent until its partition has it",
        removed(),
        f"{_ORDERS}::test_a_marker_is_sent_for_ever[NOT_ENOUGH_REPLICAS]",
        f"{_MARKERS}::test_a_broker_that_is_away_is_tried_until_it_is_back",
    ),
    one_change(
        "one-partition-ends-the-order",
        "C16: a transaction is complete once each of its partitions has its marker",
        never(),
        f"{_ORDERS}::test_each_partition_gets_its_marker_from_its_leader",
        f"{_MARKERS}::test_a_transaction_ends_once_every_partition_has_its_marker",
    ),
    one_change(
        "a-deleted-partition-holds-its-transaction",
        "C16: a partition that is deleted needs no marker",
        never(),
        f"{_ORDERS}::test_a_deleted_partition_holds_nothing_up",
    ),
    one_change(
        "a-fenced-coordinator-goes-on-sending",
        "C16: a coordinator that is fenced sends no more, and completes nothing",
        never(),
        f"{_ORDERS}::test_a_fenced_coordinator_stops[INVALID_PRODUCER_EPOCH]",
        f"{_MARKERS}::test_a_fenced_coordinator_completes_nothing[TRANSACTION_COORDINATOR_FENCED]",
    ),
    one_change(
        "a-dropped-shard-goes-on-sending",
        "C16: what a leadership has ordered is not sent after its end",
        removed(),
        f"{_ORDERS}::test_a_shard_that_is_dropped_sends_no_more",
    ),
    one_change(
        "calls-to-a-deposed-leader-are-waited-for",
        "C16: a marker goes to the leader of the moment, whatever the one before it does",
        never(),
        f"{_MARKERS}::test_a_leader_that_is_deposed_is_waited_for_no_more",
    ),
    one_change(
        "a-copy-is-written-beside-the-first",
        "C16: a marker that waits for its replicas is not written again",
        never(),
        f"{_MARKERS}::test_a_marker_that_waits_is_not_written_twice",
    ),
    one_change(
        "a-late-copy-is-written",
        "C16: a marker that is committed is not written again (schedule 124)",
        never(),
        f"{_MARKERS}::test_a_late_copy_is_answered_and_not_written",
    ),
    one_change(
        "later-orders-are-not-known",
        "C21: a copy of an order is late behind a later one of its producer (schedule 135)",
        part("NO_ORDER < copy.order <= last.order", "copy.order == last.order != NO_ORDER"),
        f"{_MARKERS}::test_135_a_late_copy_comes_behind_many_markers_of_others",
    ),
    one_change(
        "as-many-markers-as-producers-are-remembered",
        "C21: a producer's own markers push none out",
        always(),
        f"{_MARKERS}::test_135_a_late_copy_comes_behind_many_markers_of_others",
    ),
    one_change(
        "unclean-leaders-ask-nobody",
        "C29: a leader elected uncleanly asks what became of open transactions (schedule 181)",
        always(),
        f"{_LOST}::test_181_an_unclean_election_loses_a_marker[holds]",
    ),
    one_change(
        "what-is-unknown-is-committed",
        "C29: what is not known to be committed is aborted (schedule 182)",
        value("outcome is not Outcome.ABORTED"),
        f"{_LOST}::test_182_the_decision_is_forgotten[holds]",
    ),
    one_change(
        "unsettled-producers-write",
        "C29: nothing is taken of a producer until it is known what became of its transaction (schedule 183)",
        never(),
        f"{_LOST}::test_183_the_next_transaction_joins_the_lost_one[holds]",
    ),
    one_change(
        "a-coordinator-that-is-silent-knows-nothing",
        "C29: a transaction is unknown once every coordinator has said so",
        always(),
        f"{_ASKED}::test_a_coordinator_that_is_away_is_waited_for",
    ),
    one_change(
        "a-later-decision-counts",
        "C29: a decision counts for the transaction that it was made of",
        never(),
        f"{_ASKED}::test_what_a_coordinator_says",
    ),
    one_change(
        "nobody-asks-what-is-open-for-too-long",
        "C31: a leader asks what became of a transaction that is open for too long (schedule 175)",
        removed(),
        f"{_LOST}::test_175_who_was_elected_uncleanly_dies_before_it_has_asked[holds]",
    ),
    one_change(
        "open-transactions-are-asked-about-at-once",
        "C31: a transaction is asked about once it is open for longer than any may be",
        always(),
        f"{_ASKED}::test_when_a_leader_asks",
    ),
    one_change(
        "markers-of-an-older-leadership-count",
        "C28: a leader refuses a marker that was sent to an earlier leadership (schedule 180)",
        part("leader_epoch", "-1"),
        "tests/replica/test_transactions.py::test_whom_a_marker_is_refused",
    ),
    one_change(
        "markers-name-no-leadership",
        "C28: a coordinator says to which leadership it sends a marker (schedule 180)",
        part("one.leader_epoch", "ANY_EPOCH"),
        f"{_MARKERS}::test_markers_follow_the_leader",
    ),
)
