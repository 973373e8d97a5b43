"""EndTxn, cell by cell (rule C4): each state, each request, by both protocols, is brought about and asked."""

from __future__ import annotations

import pytest
from transaction_case import ID, T0, T1, Driver

from strandline.cluster.transactions.commands import EndTransaction, Producer
from strandline.cluster.transactions.shard import EPOCH_MAX
from strandline.log.transactions import Marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.transaction_records import TransactionState, transaction_record

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
GO, PF, ITS = "go", ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE
CONCURRENT, DONE = ErrorCode.CONCURRENT_TRANSACTIONS, "done"

KIP_890 = {
    # state:         abort retry, abort fresh, commit retry, commit fresh
    EMPTY:           (PF,         GO,          PF,           ITS),
    ONGOING:         (PF,         GO,          PF,           GO),
    PREPARE_ABORT:   (CONCURRENT, CONCURRENT,  ITS,          CONCURRENT),
    PREPARE_COMMIT:  (ITS,        CONCURRENT,  CONCURRENT,   CONCURRENT),
    COMPLETE_ABORT:  (DONE,       GO,          PF,           ITS),
    COMPLETE_COMMIT: (ITS,        GO,          DONE,         ITS),
}  # fmt: skip
"""As the field's notes have it, but for a fresh request while markers are being written: Kafka's table says
PRODUCER_FENCED, and its check for a pending transition, which comes before, CONCURRENT_TRANSACTIONS."""

FIRST = {
    # state:         abort,       commit
    EMPTY:           (ITS,        ITS),
    ONGOING:         (GO,         GO),
    PREPARE_ABORT:   (CONCURRENT, ITS),
    PREPARE_COMMIT:  (ITS,        CONCURRENT),
    COMPLETE_ABORT:  (DONE,       ITS),
    COMPLETE_COMMIT: (ITS,        DONE),
}  # fmt: skip

CASES = [(state, number) for state in KIP_890 for number in range(4)]


def brought_to(state: TransactionState, version: int = 2) -> tuple[Driver, Producer, Producer | None]:
    """A coordinator in this state, by requests alone; the producer that may write, and the one before that ended a
    transaction or began again."""
    driver = Driver()
    first = driver.init()
    if state is EMPTY:
        second = driver.init(first)
        return driver, second, first
    if state is ONGOING:
        assert driver.add(first) is ErrorCode.NONE
        following = driver.end(first, version=version)
        driver.write_markers()
        assert driver.add(following) is ErrorCode.NONE
        return driver, following, first
    assert driver.add(first) is ErrorCode.NONE
    following = driver.end(first, commit=state in (PREPARE_COMMIT, COMPLETE_COMMIT), version=version)
    if state.is_over:
        driver.write_markers()
    return driver, following, first


@pytest.mark.parametrize(("state", "number"), CASES, ids=[f"{one.title}-{number}" for one, number in CASES])
def test_c4_by_epoch(state: TransactionState, number: int) -> None:
    """KIP-890: each cell. KAFKA-20785: a commit that comes after an abort by the coordinator is fenced, not fatal."""
    commit, fresh = number >= 2, number % 2 == 1
    driver, current, before = brought_to(state)
    assert driver.state is state
    producer = current if fresh else before
    assert producer is not None
    expected = KIP_890[state][number]
    records = len(driver.log)
    if expected == GO:
        following = driver.end(producer, commit=commit)
        assert following == Producer(producer.producer_id, producer.epoch + 1)
        assert driver.value().producer_epoch == following.epoch
        driver.write_markers()
        assert driver.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
        return
    if expected == DONE:
        assert driver.end(producer, commit=commit) == current
    else:
        assert driver.end_code(producer, commit=commit) is expected
    assert len(driver.log) == records
    assert driver.state is state


@pytest.mark.parametrize("commit", [False, True], ids=["abort", "commit"])
@pytest.mark.parametrize("state", list(FIRST), ids=lambda state: state.title)
def test_c4_by_state(state: TransactionState, commit: bool) -> None:
    """The protocol of clients before Kafka 4, on a cluster that knows KIP-890."""
    driver, current, _ = brought_to(state, version=1)
    assert driver.state is state
    expected = FIRST[state][commit]
    records = len(driver.log)
    if expected == GO:
        assert driver.end(current, commit=commit, version=1) == current
        driver.write_markers()
        assert driver.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
        assert driver.value().producer_epoch == current.epoch
        return
    if expected == DONE:
        assert driver.end(current, commit=commit, version=1) == current
    else:
        assert driver.end_code(current, commit=commit, version=1) is expected
    assert len(driver.log) == records
    assert driver.state is state


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("state", list(FIRST), ids=lambda state: state.title)
def test_c4_other_producers_end_nothing(state: TransactionState, version: int) -> None:
    """An older epoch is fenced, a later one too; another id is none of ours."""
    driver, current, _ = brought_to(state, version)
    before = list(driver.log)
    for commit in (False, True):
        for epoch in (current.epoch - 2, current.epoch + 1, -1, EPOCH_MAX):
            wrong = Producer(current.producer_id, epoch)
            assert driver.end_code(wrong, commit=commit, version=version) is PF
        other = Producer(current.producer_id + 1, current.epoch)
        assert driver.end_code(other, commit=commit, version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert driver.code(EndTransaction("who", *current, commit, version)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.log == before


def test_kafka_18660_the_producer_behind_the_last_epoch() -> None:
    """The epochs are used up: the answer names the id that follows, with epoch 0; the markers have the id before and
    the epoch that nobody is given."""
    driver = at_epoch(EPOCH_MAX)
    last = Producer(7, EPOCH_MAX)
    assert driver.add(last) is ErrorCode.NONE
    following = driver.end(last)
    assert following.epoch == 0
    assert following.producer_id != 7
    [order] = driver.orders
    assert order.marker == Marker(7, EPOCH_MAX + 1, True, 0)
    assert order.transaction_version == 2
    # While the markers are being written its next requests are early, not those of a stranger.
    assert driver.add(following) is CONCURRENT
    assert driver.end_code(following, commit=False) is CONCURRENT
    assert driver.end_code(last) is CONCURRENT
    driver.write_markers()
    assert driver.end(last) == following
    assert driver.end_code(last, commit=False) is ITS
    assert driver.init(last) == following
    assert driver.add(following) is ErrorCode.NONE
    assert driver.end_code(last) is PF
    assert driver.value().previous_id == 7


@pytest.mark.parametrize("when", ["while its markers are written", "behind its completion"])
def test_kafka_20310_a_retry_after_a_failover_is_answered(when: str) -> None:
    """The previous id and the last epoch are in the log; in Kafka they are in memory alone, and the retry is fenced
    (KAFKA-20310, KAFKA-20357)."""
    for epoch in (5, EPOCH_MAX):
        driver = at_epoch(epoch)
        producer = Producer(7, epoch)
        assert driver.add(producer) is ErrorCode.NONE
        following = driver.end(producer)
        if when.startswith("behind"):
            driver.write_markers()
        other = driver.failover()
        other.write_markers()
        assert other.end(producer) == following
        assert other.init(producer) == following
        assert other.add(following) is ErrorCode.NONE


def at_epoch(epoch: int, version: int = 2, **values: int) -> Driver:
    """A coordinator whose producer 7 has come to this epoch."""
    made = Driver()
    made.init()
    value = made.value()._replace(producer_id=7, producer_epoch=epoch, **values)
    return Driver([transaction_record(ID, value)], version=version)


def test_an_end_is_answered_when_it_is_decided_and_not_before() -> None:
    """krabka: the coordinator answered at its local append, and ordered markers of what was then lost."""
    driver = Driver()
    producer = driver.init()
    assert driver.add(producer, T0, T1) is ErrorCode.NONE
    driver.hold = True
    asked = driver.ask(EndTransaction(ID, *producer, True, 2))
    assert asked not in driver.answers
    assert driver.orders == []
    driver.hold = False
    driver.commit_held()
    assert driver.answers[asked] == Producer(producer.producer_id, producer.epoch + 1)
    [order] = driver.orders
    assert (order.marker.commit, order.partitions, order.marker.coordinator_epoch) == (True, {T0, T1}, 0)
    assert driver.state is PREPARE_COMMIT


def test_a_decision_that_is_late_is_carried_out() -> None:
    """The client was told an error, since too few replicas were in sync; when they are again it is committed, and
    nothing else may happen to the transaction before that is known."""
    driver = Driver()
    producer = driver.init()
    assert driver.add(producer) is ErrorCode.NONE
    driver.hold = True
    asked = driver.ask(EndTransaction(ID, *producer, True, 2))
    driver.lose_held()
    answer = driver.answers[asked]
    assert isinstance(answer, KafkaError)
    assert answer.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.pass_ms(120_000)
    assert driver.orders == []
    assert driver.code(EndTransaction(ID, *producer, False, 2)) is not ErrorCode.NONE
    driver.hold = False
    driver.commit_held()
    [order] = driver.orders
    assert order.marker.commit
    driver.write_markers()
    assert driver.state is COMPLETE_COMMIT
    assert driver.end(producer).epoch == producer.epoch + 1
