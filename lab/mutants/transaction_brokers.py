"""Mutants of rules C5 and C16: what brokers say to each other about transactions."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, never, one_change, removed

_ORDERS = "tests/cluster/transactions/test_marker_orders.py"
_MARKERS = "tests/cluster/transactions/test_markers.py"

TABLE: tuple[Mutant, ...] = (
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
)
