"""Consume, transform, produce: what was read counts as done exactly when what was made of it is committed.

from strandline.client import Send, process

def invoice(order):
    yield Send("invoices", make(order.value), key=order.key)

process("127.0.0.1:9092", "orders", invoice, group_id="billing")
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Unpack

from strandline.client.consumer import Consumer
from strandline.client.errors import ClientTimeout, CommitFailed, OutcomeUnknown, TransactionAbortable, TransactionFatal
from strandline.client.groups.session import Listener, Topics
from strandline.client.logs import log
from strandline.client.producer import Producer
from strandline.client.settings import CommonSettings
from strandline.client.transactions import TransactionState
from strandline.client.types import ConsumerRecord, Header
from strandline.proto.errors import ConfigError, StrandlineError
from strandline.proto.system import system_rng

POLL_S = 1.0
TRANSACTION_TIMEOUT_MS = 10_000
"""Default of `transaction.timeout.ms` here, as in Kafka Streams: for so long a program that was killed keeps the one
waiting that takes its partitions over."""
PAUSE_S = 0.1
"""Pause before the same records are tried again."""


class Send(NamedTuple):
    """A record to be sent; see `Producer.send`."""

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    headers: Sequence[Header] | Mapping[str, bytes | None] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Processed(NamedTuple):
    """Number of records, and of transactions, that were committed."""

    records: int
    transactions: int


STILL_OPEN = (TransactionState.OPEN, TransactionState.ABORTABLE, TransactionState.ABORTING)

Transform = Callable[[ConsumerRecord], Iterable[Send] | Send | None]


def process(
    bootstrap: str | Sequence[str],
    topics: Topics,
    transform: Transform,
    *,
    group_id: str,
    transactional_id: str | None = None,
    on_assigned: Listener | None = None,
    until: Callable[[], bool] = lambda: False,
    consumer: Mapping[str, Any] | None = None,
    producer: Mapping[str, Any] | None = None,
    **settings: Unpack[CommonSettings],
) -> Processed:
    """Read topics as a member of a group, and send what `transform` makes of each record: of each record once, for
    readers of committed records, whatever is killed meanwhile. Processes share the work under one `group_id`.

    The records of a poll are one transaction. One that fails is aborted, and its records come again: `transform` may be
    called twice for a record, and what it does elsewhere is done twice.

    Args:
        transform: gives what is to be sent, or nothing. What it raises ends this, with the transaction aborted.
        transactional_id: a name of this process alone; without one, a new one for each start.
        on_assigned: told of partitions before any record of them is transformed: what `transform` remembers of
            them is old by now.
        until: asked between polls; true: end.
        consumer, producer: settings of one of them. `isolation.level` is read_committed and `auto.offset.reset`
            earliest where they are not among them; `transaction.timeout.ms` is 10000.
        settings: of both.

    Raises:
        ProducerFenced: another process uses this `transactional_id`.
        TransactionFatal, KafkaError, UnknownTopic: what a retry does not mend.
        Exception: what `transform` has raised.
    """
    reading, writing = settings_of(consumer, producer)
    make = partial(_producer, bootstrap, transactional_id, group_id, {**settings, **writing})
    records = transactions = 0
    sender = make()
    with Consumer(bootstrap, **{**settings, **reading}, group_id=group_id, enable_auto_commit=False) as reader:
        try:
            _until_answered(reader, sender.init_transactions)
            reader.subscribe(topics, on_assigned=on_assigned)
            while not until():
                batch = reader.poll(POLL_S)
                if not batch:
                    continue
                try:
                    done = _transact(reader, sender, batch, transform)
                except TransactionFatal as error:
                    if transactional_id is not None:
                        raise
                    log.warning("group %s: its producer has failed, and another one goes on: %s", group_id, error)
                    sender.close()
                    sender, done = make(), False
                if done:
                    records, transactions = records + len(batch), transactions + 1
                else:
                    reader.call(partial(reader.inner.put_back, batch))
                    _pause(reader)
        finally:
            sender.close()
    return Processed(records, transactions)


def _producer(
    bootstrap: str | Sequence[str], transactional_id: str | None, group_id: str, settings: Mapping[str, Any]
) -> Producer:
    return Producer(bootstrap, **settings, transactional_id=transactional_id or new_id(group_id))


def settings_of(
    consumer: Mapping[str, Any] | None, producer: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the consumer and of the producer, with their defaults here. Raises ConfigError."""
    reading: dict[str, Any] = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    reading |= {key.replace(".", "_"): value for key, value in (consumer or {}).items()}
    if "enable_auto_commit" in reading:
        raise ConfigError("enable.auto.commit", reading["enable_auto_commit"], "not with process(): it commits itself")
    writing: dict[str, Any] = {"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}
    return reading, writing | {key.replace(".", "_"): value for key, value in (producer or {}).items()}


def new_id(group_id: str) -> str:
    """A transactional id that no other process has."""
    return f"{group_id}-{system_rng().getrandbits(64):016x}"


def _transact(reader: Consumer, sender: Producer, batch: list[ConsumerRecord], transform: Transform) -> bool:
    """Whether the transaction of these records is committed; false: they are to come again."""
    try:
        sender.begin_transaction()
        for record in batch:
            made = transform(record)
            for one in () if made is None else (made,) if isinstance(made, Send) else made:
                sender.send(
                    one.topic, one.value, key=one.key, headers=one.headers, partition=one.partition,
                    timestamp_ms=one.timestamp_ms,
                )  # fmt: skip
        sender.send_offsets(reader)
    except (ClientTimeout, TransactionAbortable, CommitFailed) as error:
        return _aborted(sender, batch, error)
    while True:
        try:
            sender.commit_transaction()
            return True
        except OutcomeUnknown as error:
            log.info("it is not known yet whether a transaction of %d records is committed: %s", len(batch), error)
        except TransactionAbortable as error:
            return _aborted(sender, batch, error)


def _aborted(sender: Producer, batch: list[ConsumerRecord], error: StrandlineError) -> bool:
    """False, once nothing is left of the transaction."""
    log.info("a transaction of %d records failed, and is tried again: %s", len(batch), error)
    while sender.transaction_state in STILL_OPEN:
        try:
            sender.abort_transaction()
        except OutcomeUnknown as slow:
            log.info("a transaction of %d records is not aborted yet: %s", len(batch), slow)
    return False


def _until_answered(reader: Consumer, call: Callable[[], None]) -> None:
    while True:
        try:
            call()
            return
        except ClientTimeout as error:
            log.warning("the cluster gives no producer id yet: %s", error)
            _pause(reader)


def _pause(reader: Consumer) -> None:
    reader.wait(lambda: asyncio.sleep(PAUSE_S))
