"""InitProducerId with a transactional id: who gets which producer, and who is fenced (rule C4, KIP-360, KIP-588)."""

from __future__ import annotations

import pytest
from test_ends import at_epoch
from transaction_case import ID, T0, T1, Driver, values_of

from strandline.cluster.transactions.commands import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    NeedsProducerId,
    Producer,
    VerifyPartitions,
)
from strandline.cluster.transactions.shard import EPOCH_MAX
from strandline.log.transactions import Marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.transaction_records import TransactionState

FENCED, CONCURRENT = ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS
OK = ErrorCode.NONE


def test_a_new_id_gets_a_fresh_producer_and_each_that_follows_the_next_epoch() -> None:
    driver = Driver()
    assert driver.shard.handle(InitProducer(ID, 1000), 0, driver.now).replies[0].answer == NeedsProducerId()
    first = driver.init()
    assert first == Producer(1001, 0)
    assert driver.init() == Producer(1001, 1)
    assert driver.init(transactional_id="other") == Producer(1002, 0)
    assert driver.init(timeout_ms=5_000) == Producer(1001, 2)
    assert driver.value().timeout_ms == 5_000


def test_who_comes_later_fences_who_was_before() -> None:
    """The older one is fenced whatever it asks for, and its open transaction is aborted first."""
    driver = Driver()
    old = driver.init()
    assert driver.add(old) is OK
    assert driver.init_code() is CONCURRENT
    assert driver.state is TransactionState.PREPARE_ABORT
    assert driver.init_code() is CONCURRENT
    [order] = driver.orders
    assert order.marker == Marker(old.producer_id, old.epoch + 1, False, 0)
    for commit in (False, True):
        for version in (1, 2):
            assert driver.end_code(old, commit=commit, version=version) is FENCED
    assert driver.add(old) is FENCED
    driver.write_markers()
    new = driver.init()
    # The epoch that fenced is nobody's: the markers have it.
    assert new == Producer(old.producer_id, old.epoch + 2)
    fencing = Producer(old.producer_id, old.epoch + 1)
    for producer in (old, fencing):
        assert driver.add(producer) is FENCED
        assert driver.init_code(producer) is FENCED
        assert driver.end_code(producer) is FENCED
        with pytest.raises(KafkaError):
            driver.verify(producer, T0)


def test_the_epoch_that_fences_is_given_to_nobody() -> None:
    """A zombie that ends its transaction while the newer producer waits gets no epoch by which it could go on."""
    driver = Driver()
    old = driver.init()
    assert driver.add(old) is OK
    assert driver.init_code() is CONCURRENT
    driver.write_markers()
    assert driver.end_code(old, commit=False) is FENCED
    assert driver.init_code(old) is FENCED
    assert driver.init().epoch == old.epoch + 2


def test_kip_360_a_producer_that_goes_on_names_what_it_has() -> None:
    driver = Driver()
    first = driver.init()
    second = driver.init(first)
    assert second == first._replace(epoch=1)
    # The answer was lost: the same request again has the same answer, and the epoch does not rise.
    assert driver.init(first) == second
    assert driver.init(first) == second
    third = driver.init(second)
    assert third.epoch == 2
    assert driver.init_code(first) is FENCED
    # Somebody else begins: nobody before repeats anything.
    fourth = driver.init()
    assert fourth.epoch == 3
    assert driver.init_code(second) is FENCED
    assert driver.init_code(third) is FENCED
    assert driver.init(fourth).epoch == 4
    assert driver.init_code(Producer(first.producer_id, 9)) is FENCED
    assert driver.init_code(Producer(77, 4)) is FENCED


def test_kip_360_its_open_transaction_is_aborted_and_an_older_ones_request_aborts_nothing() -> None:
    """Kafka checks the epoch only where no transaction is open: a zombie could abort that of its successor."""
    driver = Driver()
    first = driver.init()
    second = driver.init(first)
    assert driver.add(second) is OK
    assert driver.init_code(first) is FENCED
    assert driver.state is TransactionState.ONGOING
    assert driver.init_code(second) is CONCURRENT
    assert driver.init_code(second) is CONCURRENT
    driver.write_markers()
    assert driver.state is TransactionState.COMPLETE_ABORT
    # Kafka fences it here: the epoch rose by its own request.
    assert driver.init(second).epoch == second.epoch + 1


def test_an_id_that_has_expired_begins_anew_whatever_the_producer_names() -> None:
    driver = Driver()
    assert driver.init(Producer(5, 3)) == Producer(1001, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_kip_588_who_timed_out_goes_on(version: int) -> None:
    """The coordinator aborts by its own hand; its producer is told the new epoch when it names the one that it had."""
    driver = Driver(version=version)
    producer = driver.init(timeout_ms=30_000)
    assert driver.add(producer, T0, T1) is OK
    driver.pass_ms(29_000)
    assert driver.state is TransactionState.ONGOING
    driver.pass_ms(12_000)
    assert driver.state is TransactionState.PREPARE_ABORT
    [order] = driver.orders
    assert (order.marker, order.partitions) == (Marker(producer.producer_id, 1, False, 0), {T0, T1})
    assert order.transaction_version == version
    assert driver.add(producer) is FENCED
    assert driver.init_code(producer) is CONCURRENT
    driver.write_markers()
    assert driver.end_code(producer, version=1) is FENCED
    # KAFKA-20785: a commit that raced with it.
    assert driver.end_code(producer, version=2) is FENCED
    other = driver.failover()
    assert other.init(producer) == producer._replace(epoch=1)
    assert other.add(producer._replace(epoch=1)) is OK


@pytest.mark.parametrize("version", [1, 2])
def test_kafka_19367_an_abort_in_the_coordinators_name_raises_the_epoch_once(version: int) -> None:
    """Kafka raised it for the fence and again for the end: at the last epoch it became negative."""
    for epoch in (4, EPOCH_MAX):
        driver = at_epoch(epoch, version)
        assert driver.add(Producer(7, epoch)) is OK
        assert driver.init_code() is CONCURRENT
        assert driver.value().producer_epoch == epoch + 1
        [order] = driver.orders
        assert order.marker == Marker(7, epoch + 1, False, 0)
        driver.write_markers()
        following = driver.init()
        assert following == (Producer(7, epoch + 2) if epoch < EPOCH_MAX else Producer(1001, 0))


def test_epochs_run_out() -> None:
    """The next producer has a fresh id; of the one before nothing may go on but a request that is repeated."""
    driver = at_epoch(EPOCH_MAX)
    last = Producer(7, EPOCH_MAX)
    following = driver.init(last)
    assert following == Producer(1001, 0)
    assert driver.init(last) == following
    assert driver.failover().init(last) == following
    assert driver.add(last) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.init() == Producer(1001, 1)
    assert driver.init_code(last) is FENCED


def test_epochs_run_out_while_a_transaction_times_out() -> None:
    """The epoch of the markers is beyond what a producer is given, so who timed out goes on under a fresh id."""
    driver = at_epoch(EPOCH_MAX)
    last = Producer(7, EPOCH_MAX)
    assert driver.add(last) is OK
    driver.pass_ms(80_000)
    driver.write_markers()
    assert driver.value().producer_epoch == EPOCH_MAX + 1
    other = driver.failover()
    following = driver.init(last)
    assert following == Producer(1001, 0)
    assert driver.init(last) == following
    # A client of KIP-890 aborts first, which was done. (Kafka gives it the markers' epoch, and runs over at the next.)
    assert other.end(last, commit=False) == following
    assert other.end(last, commit=False) == following
    assert other.failover().end(last, commit=False) == following
    assert other.add(following) is OK
    assert other.end(following).epoch == 1


def test_one_change_at_a_time() -> None:
    """While one is under way every other of the same id is told CONCURRENT_TRANSACTIONS, on which clients ask again; an
    addition waits (rule C30), and is judged behind it. Other ids do not wait."""
    driver = Driver()
    producer = driver.init()
    driver.init(transactional_id="other")
    driver.hold = True
    first = driver.ask(InitProducer(ID, 60_000))
    records = len(driver.log)
    others = [
        driver.ask(command)
        for command in (
            InitProducer(ID, 60_000),
            InitProducer(ID, 60_000, *producer),
            EndTransaction(ID, *producer, False, 2),
            EndTransaction(ID, *producer, False, 1),
            AddPartitions(ID, *producer, frozenset((T0,))),
            VerifyPartitions(ID, *producer, frozenset((T0,))),
        )
    ]
    assert len(driver.log) == records
    other = driver.ask(InitProducer("other", 60_000))
    assert len(driver.log) == records + 1
    driver.hold = False
    driver.commit_held()
    answers = [driver.answers[one].code for one in others]
    assert answers == [CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT, FENCED, CONCURRENT]
    assert all(isinstance(driver.answers[one], Producer) for one in (first, other))


def test_a_change_in_doubt_keeps_the_others_away() -> None:
    """Its client was told an error; nothing else begins before it is known whether it is committed."""
    driver = Driver()
    producer = driver.init()
    driver.hold = True
    driver.ask(AddPartitions(ID, *producer, frozenset((T0,))))
    driver.lose_held()
    driver.held, held = [], driver.held
    assert driver.add(producer, T0) is CONCURRENT
    assert driver.end_code(producer) is CONCURRENT
    driver.held, driver.hold = held, False
    driver.commit_held()
    assert driver.add(producer, T0) is OK
    assert driver.end(producer).epoch == producer.epoch + 1


def test_36_a_write_that_is_refused_uses_up_no_epoch() -> None:
    """Schedule 36, KAFKA-9666: the write that fences fails again and again; each try was a new epoch."""
    driver = Driver()
    producer = driver.init()
    assert driver.add(producer) is OK
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    for _ in range(5):
        assert driver.init_code() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert driver.end_code(producer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        driver.pass_ms(70_000)
    assert driver.value().producer_epoch == producer.epoch
    assert driver.state is TransactionState.ONGOING
    driver.refuse = None
    assert driver.init_code() is CONCURRENT
    driver.write_markers()
    assert driver.init().epoch == producer.epoch + 2


def test_36_nor_does_one_whose_outcome_is_not_known() -> None:
    """Schedule 36: it stands in the log, and its client asks again."""
    driver = Driver()
    producer = driver.init()
    assert driver.add(producer) is OK
    driver.hold = True
    driver.ask(InitProducer(ID, 60_000))
    for _ in range(5):
        driver.lose_held()
        driver.ask(InitProducer(ID, 60_000))
        driver.pass_ms(70_000)
    assert driver.value().producer_epoch == producer.epoch + 1
    driver.hold = False
    driver.commit_held()
    driver.write_markers()
    assert driver.init().epoch == producer.epoch + 2


def test_what_is_told_is_committed() -> None:
    """An error tells of durable state as well: it waits for what was written before it."""
    driver = Driver()
    producer = driver.init()
    driver.hold = True
    driver.ask(InitProducer("other", 60_000))
    asked = driver.ask(InitProducer(ID, 60_000, producer.producer_id, 17))
    assert asked not in driver.answers
    driver.hold = False
    driver.commit_held()
    assert isinstance(driver.answers[asked], KafkaError)


def test_every_change_is_one_record_of_the_id() -> None:
    driver = Driver()
    producer = driver.init()
    driver.add(producer, T0)
    driver.add(producer, T0)
    driver.add(producer, T1)
    driver.end(producer)
    driver.write_markers()
    told = [(name, value and (value.state.title, value.producer_epoch)) for name, value in values_of(driver.log)]
    assert told == [
        (ID, ("Empty", 0)),
        (ID, ("Ongoing", 0)),
        (ID, ("Ongoing", 0)),
        (ID, ("PrepareCommit", 1)),
        (ID, ("CompleteCommit", 1)),
    ]
