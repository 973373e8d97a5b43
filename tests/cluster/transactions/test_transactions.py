"""A transaction from its first partition to its completion: partitions, markers, time-outs, expiry, failover (rules C4,
C14, C15)."""

from __future__ import annotations

import pytest
from transaction_case import ID, T0, T1, T2, Driver, compact

from strandline.cluster.transactions.commands import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    ListedTransaction,
    ListTransactions,
    MarkersWritten,
    Producer,
)
from strandline.log.transactions import Marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.kafka.keyed_record import Record
from strandline.proto.kafka.transaction_records import TransactionState

OK, CONCURRENT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS
WEEK_MS = 7 * 24 * 3_600_000


def test_partitions_are_added_once() -> None:
    """What is in the transaction already is answered without a write; all of a request stand in one record."""
    driver = Driver()
    producer = driver.init()
    assert driver.add(producer, T0, T1) is OK
    records = len(driver.log)
    assert driver.add(producer, T1) is OK
    assert driver.code(AddPartitions(ID, *producer, frozenset())) is OK
    assert len(driver.log) == records
    assert driver.add(producer, T1, T2) is OK
    assert len(driver.log) == records + 1
    assert driver.value().partitions == {T0, T1, T2}
    for wrong, code in (
        (producer._replace(epoch=1), ErrorCode.PRODUCER_FENCED),
        (producer._replace(epoch=-1), ErrorCode.PRODUCER_FENCED),
        (Producer(3, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ):
        assert driver.add(wrong) is code
        with pytest.raises(KafkaError):
            driver.verify(wrong, T0)
    assert driver.code(AddPartitions("who", *producer, frozenset((T0,)))) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_verified_is_what_is_in_the_open_transaction() -> None:
    driver = Driver()
    producer = driver.init()
    assert driver.verify(producer, T0) == {T0: ErrorCode.TRANSACTION_ABORTABLE}
    driver.add(producer, T0)
    assert driver.verify(producer, T0, T1) == {T0: OK, T1: ErrorCode.TRANSACTION_ABORTABLE}
    driver.end(producer, version=1)
    with pytest.raises(KafkaError, match="under way"):
        driver.verify(producer, T0)
    driver.write_markers()
    assert driver.verify(producer, T0) == {T0: ErrorCode.TRANSACTION_ABORTABLE}


def test_a_transaction_begins_only_when_the_one_before_has_all_its_markers() -> None:
    """KAFKA-18575: what is being completed and what begins are told apart."""
    driver = Driver()
    producer = driver.init()
    for commit in (True, False, True):
        assert driver.add(producer, T0, T1) is OK
        following = driver.end(producer, commit=commit)
        assert driver.add(following) is CONCURRENT
        driver.write_markers()
        assert driver.value().partitions == frozenset()
        producer = following
    driver.hold = True
    driver.ask(AddPartitions(ID, *producer, frozenset((T2,))))
    assert driver.value().partitions == {T2}


def test_older_clients_run_transaction_after_transaction() -> None:
    """By the request's version, on a cluster that knows KIP-890: the epoch stays, and the markers say so (KIP-1228)."""
    driver = Driver(version=2)
    producer = driver.init()
    for commit in (True, False, True):
        assert driver.add(producer, T0) is OK
        assert driver.end(producer, commit=commit, version=1) == producer
        [order] = driver.orders
        assert (order.marker, order.transaction_version) == (Marker(*producer, commit, 0), 1)
        driver.write_markers()
    assert driver.add(producer, T0) is OK
    assert driver.end(producer) == producer._replace(epoch=1)
    assert driver.orders[0].transaction_version == 2


def test_an_abort_of_nothing_needs_no_markers() -> None:
    """KIP-890: a client that does not know whether its request has added a partition aborts all the same."""
    driver = Driver()
    producer = driver.init()
    following = driver.end(producer, commit=False)
    assert (following.epoch, driver.orders) == (1, [])
    assert driver.state is TransactionState.COMPLETE_ABORT
    assert driver.end(producer, commit=False) == following
    assert driver.end(following, commit=False).epoch == 2


def test_33_a_late_end_does_not_end_the_next_transaction() -> None:
    """Schedule 33, KAFKA-17754: with the protocol of KIP-890 the epoch tells them apart."""
    driver = Driver()
    first = driver.init()
    driver.add(first, T0)
    second = driver.end(first)
    driver.write_markers()
    assert driver.add(second, T0) is OK
    for commit in (False, True):
        assert driver.end_code(first, commit=commit) is ErrorCode.PRODUCER_FENCED
        assert driver.end_code(first, commit=commit, version=1) is ErrorCode.PRODUCER_FENCED
    assert driver.state is TransactionState.ONGOING


def test_35_a_completion_that_is_told_twice_ends_nothing_else() -> None:
    """Schedule 35, KAFKA-10080: with older clients both transactions have the same producer, so the order tells."""
    driver = Driver()
    producer = driver.init()
    driver.add(producer, T0)
    driver.end(producer, version=1)
    [order] = driver.orders
    driver.write_markers()
    driver.tell(MarkersWritten(order))
    assert driver.state is TransactionState.COMPLETE_COMMIT
    driver.add(producer, T0)
    driver.tell(MarkersWritten(order))
    assert driver.state is TransactionState.ONGOING
    driver.end(producer, version=1)
    records = len(driver.log)
    driver.tell(MarkersWritten(order))
    assert driver.state is TransactionState.PREPARE_COMMIT
    assert len(driver.log) == records
    driver.write_markers()
    assert driver.state is TransactionState.COMPLETE_COMMIT


def test_35_nor_while_it_is_being_written() -> None:
    driver = Driver()
    producer = driver.init()
    driver.add(producer, T0)
    driver.end(producer)
    [order] = driver.orders
    driver.hold = True
    for _ in range(3):
        driver.tell(MarkersWritten(order))
    assert len(driver.held) == 1
    driver.hold = False
    driver.commit_held()
    assert driver.state is TransactionState.COMPLETE_COMMIT


def test_120_each_coordinator_orders_the_markers_again() -> None:
    """Schedule 120: the decision is in the log, and the coordinator dies before, while or after it orders the markers,
    and again with the next one."""
    for commit in (True, False):
        driver = Driver()
        producer = driver.init()
        driver.add(producer, T0, T1)
        driver.end(producer, commit=commit)
        orders = [driver.orders[0]]
        for epoch in (1, 2, 3):
            driver = driver.failover()
            [order] = driver.orders
            assert order.marker.coordinator_epoch == epoch
            assert order._replace(marker=order.marker._replace(coordinator_epoch=0)) == orders[0]
            # News of an order of the coordinator before is none of this one's.
            driver.tell(MarkersWritten(orders[-1]))
            assert driver.state.is_prepared
            assert driver.add(producer._replace(epoch=1)) is CONCURRENT
            orders.append(order)
        driver.write_markers()
        assert driver.state is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
        assert driver.failover().orders == []


def test_121_a_decision_without_partitions_is_completed_after_a_failover() -> None:
    """Schedule 121: nobody has to write anything, so nobody would come back."""
    driver = Driver()
    producer = driver.init()
    driver.hold = True
    asked = driver.ask(EndTransaction(ID, *producer, False, 2))
    other = driver.failover()
    assert asked not in driver.answers
    assert other.state is TransactionState.COMPLETE_ABORT
    assert other.end(producer, commit=False).epoch == 1


def test_122_a_completion_that_is_refused_is_written_when_it_can_be() -> None:
    """Schedule 122: all markers are written, and the coordinator's own partition takes nothing. Without a second try
    the id would be CONCURRENT_TRANSACTIONS until the next election."""
    driver = Driver()
    producer = driver.init()
    driver.add(producer, T0)
    driver.end(producer)
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    driver.write_markers()
    driver.pass_ms(60_000)
    assert driver.state is TransactionState.PREPARE_COMMIT
    assert driver.add(producer._replace(epoch=1)) is CONCURRENT
    driver.refuse = None
    driver.pass_ms(1_000)
    assert driver.state is TransactionState.COMPLETE_COMMIT
    assert driver.add(producer._replace(epoch=1)) is OK


def test_123_time_outs_go_by_time_that_is_believed() -> None:
    """Schedule 123: a wall clock that is set ahead aborts nothing and forgets no id."""
    driver = Driver()
    producer = driver.init(timeout_ms=60_000)
    driver.add(producer)
    driver.ahead_ms = 2 * WEEK_MS
    driver.pass_ms(50_000)
    assert driver.state is TransactionState.ONGOING
    other = driver.failover()
    other.ahead_ms = 2 * WEEK_MS
    other.pass_ms(5_000)
    assert other.state is TransactionState.ONGOING
    other.pass_ms(15_000)
    assert other.state is TransactionState.PREPARE_ABORT
    other.ahead_ms = 0
    other.write_markers()
    other.ahead_ms = 2 * WEEK_MS
    other.pass_ms(3 * 3_600_000)
    assert ID in other.shard.transactions


def test_a_time_out_counts_from_the_first_partition_over_failovers() -> None:
    driver = Driver()
    producer = driver.init(timeout_ms=60_000)
    driver.pass_ms(59_000)
    driver.add(producer)
    for _ in range(5):
        driver.pass_ms(9_000)
        driver = driver.failover()
        assert driver.state is TransactionState.ONGOING
    driver.pass_ms(26_000)
    assert driver.state is TransactionState.PREPARE_ABORT
    # The next one has its own time.
    driver.write_markers()
    following = driver.init(producer)
    driver.pass_ms(3_000)
    driver.add(following)
    driver.pass_ms(55_000)
    assert driver.state is TransactionState.ONGOING
    driver.pass_ms(16_000)
    assert driver.state is TransactionState.PREPARE_ABORT


def test_c15_ids_expire_when_nobody_uses_them() -> None:
    driver = Driver(expiration_ms=100_000, expiry_interval_ms=10_000)
    empty = driver.init(timeout_ms=900_000, transactional_id="empty")
    driver.init(timeout_ms=900_000, transactional_id="open")
    driver.init(timeout_ms=900_000, transactional_id="decided")
    for name, pid in (("open", 1002), ("decided", 1003)):
        assert driver.code(AddPartitions(name, pid, 0, frozenset((T0,)))) is OK

    driver.get(EndTransaction("decided", 1003, 0, True, 2))
    driver.pass_ms(99_000)
    assert set(driver.shard.transactions) == {"empty", "open", "decided"}
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    driver.pass_ms(20_000)
    assert set(driver.shard.transactions) == {"empty", "open", "decided"}
    driver.refuse = None
    driver.pass_ms(11_000)
    assert set(driver.shard.transactions) == {"open", "decided"}
    assert set(driver.failover().shard.transactions) == {"open", "decided"}
    # A producer that comes back is told to begin anew, and gets an id that nobody had.
    assert driver.code(AddPartitions("empty", *empty, frozenset((T0,)))) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.init(empty, transactional_id="empty").producer_id > 1003
    driver.write_markers()
    driver.pass_ms(111_000)
    assert "decided" not in driver.shard.transactions
    assert "open" in driver.shard.transactions


def test_c15_nothing_begins_while_an_id_is_being_forgotten() -> None:
    driver = Driver(expiration_ms=100_000, expiry_interval_ms=10_000)
    producer = driver.init()
    driver.hold = True
    driver.pass_ms(111_000)
    asked = driver.ask(AddPartitions(ID, *producer, frozenset((T0,))))
    again = driver.ask(InitProducer(ID, 60_000))
    driver.hold = False
    driver.commit_held()
    assert [driver.answers[one].code for one in (asked, again)] == [
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        CONCURRENT,
    ]
    assert driver.init() == Producer(1002, 0)


def test_listed_and_described() -> None:
    driver = Driver()
    producer = driver.init()
    driver.init(transactional_id="other")
    driver.add(producer)
    driver.pass_ms(5_000)
    ours, others = ListedTransaction(ID, 1001, "Ongoing"), ListedTransaction("other", 1002, "Empty")
    for filters, expected in (
        (ListTransactions(), (ours, others)),
        (ListTransactions(("Ongoing",)), (ours,)),
        (ListTransactions(("ongoing",)), ()),
        (ListTransactions((), (1002, 5)), (others,)),
        (ListTransactions(("Ongoing",), (1002,)), ()),
        (ListTransactions(duration_ms=4_999), (ours,)),
        (ListTransactions(duration_ms=5_000), ()),
    ):
        assert driver.get(filters) == expected
    assert driver.described() == driver.value()
    with pytest.raises(KafkaError) as caught:
        Driver().described()
    assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_records_that_are_not_known_are_passed_over_and_broken_ones_are_not() -> None:
    """KIP-915: a key of a later version is a newer build's; a value that does not parse fails the partition."""
    driver = Driver()
    driver.init()
    log = [Record(b"\x00\x05new", b"what"), *driver.log]
    other = Driver(log)
    assert (other.shard.unknown_records, other.value()) == (1, driver.value())
    with pytest.raises(ProtocolError):
        Driver([Record(driver.log[0].key, b"\x00\x01")])
    assert Driver(compact(log)).value() == driver.value()
