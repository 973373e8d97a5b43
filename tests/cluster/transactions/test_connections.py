"""Connections of producers of the first protocol: the newest counts, and no other (rule C20)."""

from __future__ import annotations

from typing import Any

from transaction_case import ID, T0, Driver

from strandline.cluster.groups.connections import ConnectionNumbers, Superseded
from strandline.cluster.transactions.commands import AddPartitions, EndTransaction, Producer
from strandline.cluster.transactions.config import TransactionConfig
from strandline.cluster.transactions.shard import TransactionShard
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import LeaderEpoch
from strandline.proto.kafka.transaction_records import TransactionState, transaction_record

OLD, NEW, NEWER = 3, 5, 6


def add(driver: Driver, producer: Producer, connection: int, transactional_id: str = ID) -> Any:
    return driver.get(AddPartitions(transactional_id, *producer, frozenset((T0,)), connection))


def end(driver: Driver, producer: Producer, connection: int, *, commit: bool = True) -> Any:
    return driver.get(EndTransaction(ID, *producer, commit, 1, connection=connection))


def moved_to(driver: Driver, newest_connection: int) -> Driver:
    """Another coordinator, on a broker that has accepted so many connections."""
    other = driver.failover()
    numbers = ConnectionNumbers()
    numbers.newest = newest_connection
    shard = TransactionShard(TransactionConfig({}), 3, LeaderEpoch(9), lambda: 2, numbers)
    for record in driver.log:
        shard.replay(record)
    other.shard = shard
    other._take(shard.loaded(other.now))
    return other


def test_133_an_end_that_comes_late_ends_not_the_next_transaction() -> None:
    """KAFKA-17754. The client's first connection to the coordinator is slow. The client gives up, commits its
    transaction by a second one, and begins the next under the same epoch. Then the first end arrives."""
    driver = Driver()
    producer = driver.init()
    add(driver, producer, OLD)
    end(driver, producer, NEW)
    driver.write_markers()
    add(driver, producer, NEW)
    assert end(driver, producer, OLD) == Superseded()
    assert driver.described().state is TransactionState.ONGOING
    assert add(driver, producer, OLD) == Superseded(), "nor is a partition added"
    end(driver, producer, NEW, commit=False)
    assert driver.described().state is TransactionState.PREPARE_ABORT


def test_134_an_end_comes_late_where_the_coordinator_was_before() -> None:
    """An end waits in a connection to one broker while another becomes the coordinator. There the client commits, and
    begins the next transaction. Then the first broker becomes the coordinator again, and remembers no connection."""
    driver = Driver()
    producer = driver.init()
    add(driver, producer, NEW)
    other = moved_to(driver, newest_connection=40)
    assert end(other, producer, 40) == Superseded(), "the client asks again, by a connection of now"
    end(other, producer, 41)
    other.write_markers()
    add(other, producer, 41)
    back = moved_to(other, newest_connection=NEW)
    assert end(back, producer, NEW) == Superseded()
    assert back.described().state is TransactionState.ONGOING
    end(back, producer, NEWER)
    assert back.described().state is TransactionState.PREPARE_COMMIT


def test_an_epoch_of_this_leadership_is_asked_for_by_any_connection() -> None:
    """Of it nobody has asked anything before: a client that has found the coordinator by this very connection goes on
    with it."""
    driver = moved_to(Driver(), newest_connection=OLD)
    producer = driver.init()
    add(driver, producer, OLD)
    after = end(driver, producer, OLD)
    driver.write_markers()
    assert after == producer
    following = driver.end(producer, commit=False)  # by the second protocol
    driver.write_markers()
    add(driver, following, OLD)


def test_other_producers_and_requests_of_the_second_protocol_have_no_order() -> None:
    """The next producer of the same id may have connected long before; brokers and clients that have an epoch for each
    transaction name no connection."""
    driver = Driver()
    first = driver.init()
    add(driver, first, NEW)
    driver.init_code()
    driver.write_markers()
    second = driver.init()
    add(driver, second, OLD)
    driver.end(second)
    driver.write_markers()


def test_who_may_not_write_is_told_so_by_any_connection() -> None:
    """A producer that was fenced hears that it was, and moves no connection."""
    driver = Driver()
    old = driver.init()
    new = driver.init()
    add(driver, new, NEW)
    fenced = EndTransaction(ID, *old, True, 1, connection=NEWER)
    assert driver.code(fenced) is ErrorCode.PRODUCER_FENCED
    end(driver, new, NEW)


def test_what_is_forgotten_has_no_connection() -> None:
    """The memory of an id goes with the id."""
    driver = Driver()
    producer = driver.init()
    add(driver, producer, NEW)
    driver.shard.replay(transaction_record(ID, None))
    assert driver.shard._connections._used == {}
