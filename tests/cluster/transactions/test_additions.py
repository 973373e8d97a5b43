"""Additions to a transaction wait for the change before them, and are written together (rule C30)."""

from __future__ import annotations

from typing import Any

import pytest
from transaction_case import ID, LOST, T0, T1, T2, Driver

from strandline.cluster.groups.connections import NO_CONNECTION, Superseded
from strandline.cluster.transactions.commands import AddPartitions, InitProducer, Producer
from strandline.cluster.transactions.shard import ADDITION_WAIT_MS, ADDITIONS_MAX, RETRY_MS
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.transaction_records import TransactionState

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


def asked(driver: Driver, producer: Producer, *partitions: TopicPartition, connection: int = NO_CONNECTION) -> int:
    """An addition; the number of its answer."""
    return driver.ask(AddPartitions(ID, *producer, frozenset(partitions), connection))


def codes(driver: Driver, numbers: list[int]) -> list[Any]:
    """What was answered; "waits" where nothing was."""
    answers = [driver.answers.get(number, "waits") for number in numbers]
    return [answer.code if isinstance(answer, KafkaError) else answer for answer in answers]


def test_leaders_that_add_while_one_is_written_are_written_together() -> None:
    """Three leaders take the first batches of a transaction at once: two records, and nobody asks again."""
    driver = Driver()
    producer = driver.init()
    records = len(driver.log)
    driver.hold = True
    numbers = [asked(driver, producer, one) for one in (T0, T1, T2)]
    assert codes(driver, numbers) == ["waits"] * 3
    assert len(driver.log) == records + 1
    driver.commit_held()
    assert codes(driver, numbers) == [None, "waits", "waits"]
    assert len(driver.log) == records + 2, "one record for both"
    assert driver.value().partitions == {T0, T1, T2}
    driver.commit_held()
    assert codes(driver, numbers) == [None, None, None]


def test_what_waited_and_is_there_already_is_answered_behind_its_record() -> None:
    driver = Driver()
    producer = driver.init()
    driver.hold = True
    numbers = [asked(driver, producer, *several) for several in ((T0,), (T0,), (T1,), (T1, T0))]
    driver.commit_held()
    assert codes(driver, numbers) == [None, "waits", "waits", "waits"]
    driver.commit_held()
    assert codes(driver, numbers) == [None] * 4


@pytest.mark.parametrize("version", [1, 2])
def test_the_next_transaction_begins_once_the_one_before_is_complete(version: int) -> None:
    """While its markers are being written, and while that is being noted."""
    driver = Driver()
    producer = driver.init()
    driver.add(producer, T0)
    following = driver.end(producer, version=version)
    early = asked(driver, following, T1)
    driver.hold = True
    driver.write_markers()
    later = asked(driver, following, T2)
    assert codes(driver, [early, later]) == ["waits", "waits"]
    driver.hold = False
    driver.commit_held()
    assert codes(driver, [early, later]) == [None, None]
    assert (driver.state, driver.value().partitions) == (TransactionState.ONGOING, {T1, T2})


def test_what_has_waited_for_too_long_is_told() -> None:
    """Each by its own time; what is complete later begins with nothing that was given up."""
    driver = Driver()
    producer = driver.init()
    driver.add(producer, T0)
    following = driver.end(producer)
    numbers = [asked(driver, following, T0)]
    driver.pass_ms(ADDITION_WAIT_MS / 2)
    numbers.append(asked(driver, following, T1))
    driver.pass_ms(ADDITION_WAIT_MS / 2)
    assert codes(driver, numbers) == [CONCURRENT, "waits"]
    driver.pass_ms(ADDITION_WAIT_MS / 2)
    assert codes(driver, numbers) == [CONCURRENT, CONCURRENT]
    driver.write_markers()
    assert driver.state is TransactionState.COMPLETE_COMMIT
    assert driver.add(following, T0) is ErrorCode.NONE


def test_so_many_wait() -> None:
    driver = Driver()
    producer = driver.init()
    driver.hold = True
    first = asked(driver, producer, T0)
    numbers = [asked(driver, producer, T1) for _ in range(ADDITIONS_MAX + 1)]
    assert codes(driver, numbers[:-1]) == ["waits"] * ADDITIONS_MAX
    driver.hold = False
    driver.commit_held()
    assert codes(driver, [first, *numbers]) == [None] * (1 + ADDITIONS_MAX) + [CONCURRENT]


def test_who_is_fenced_meanwhile_adds_nothing() -> None:
    """A newer producer begins while the older one's addition waits for just that."""
    driver = Driver()
    producer = driver.init()
    driver.hold = True
    newer = driver.ask(InitProducer(ID, 60_000))
    waits = asked(driver, producer, T0)
    driver.hold = False
    driver.commit_held()
    assert driver.answers[newer] == producer._replace(epoch=producer.epoch + 1)
    assert codes(driver, [waits]) == [ErrorCode.PRODUCER_FENCED]
    assert driver.state is TransactionState.EMPTY


def test_an_older_connection_adds_nothing_though_it_waits() -> None:
    """Rule C20: while it waited its producer has asked by a newer one."""
    driver = Driver()
    producer = driver.init()
    driver.hold = True
    first = asked(driver, producer, T0, connection=5)
    older = asked(driver, producer, T1, connection=5)
    newer = asked(driver, producer, T2, connection=6)
    driver.hold = False
    driver.commit_held()
    assert driver.answers[first] is None
    assert driver.answers[older] == Superseded()
    assert driver.answers[newer] is None
    assert driver.value().partitions == {T0, T2}


def test_what_waits_for_a_completion_that_is_refused_at_first() -> None:
    """A completion, which is tried again by itself; what comes meanwhile waits for it."""
    driver = Driver()
    producer = driver.init()
    driver.add(producer, T0)
    driver.end(producer)
    following = producer._replace(epoch=1)
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    driver.write_markers()
    driver.pass_ms(100)
    waits = asked(driver, following, T1)
    driver.refuse = None
    driver.pass_ms(RETRY_MS)
    assert codes(driver, [waits]) == [None]
    assert driver.state is TransactionState.ONGOING


def test_behind_a_write_in_doubt_nothing_is_taken_up() -> None:
    """It may be committed yet: what waits is taken up when it is, and told when its time is over."""
    driver = Driver()
    producer = driver.init()
    driver.hold = True
    asked(driver, producer, T0)
    numbers = [asked(driver, producer, T1)]
    driver.lose_held(LOST)
    assert codes(driver, numbers) == ["waits"]
    driver.pass_ms(ADDITION_WAIT_MS)
    numbers.append(asked(driver, producer, T2))
    driver.hold = False
    driver.commit_held()
    assert codes(driver, numbers) == [CONCURRENT, None]
    assert driver.value().partitions == {T0, T2}


def test_what_waits_while_an_id_is_forgotten_hears_of_it() -> None:
    """It came before the tombstone stood in the log, when the id was known still."""
    driver = Driver(expiration_ms=100_000, expiry_interval_ms=10_000)
    producer = driver.init()
    driver.pass_ms(99_000)
    driver.now_ms += 2_000
    tombstone = driver.shard.tick(driver.now)
    assert len(tombstone.writes) == 1
    waits = asked(driver, producer, T0)
    assert codes(driver, [waits]) == ["waits"]
    driver._take(tombstone)
    assert codes(driver, [waits]) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
