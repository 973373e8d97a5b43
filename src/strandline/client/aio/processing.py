"""Consume, transform, produce, as coroutines: what `strandline.client.process` promises, and how both of them do it.

The way of the work (`Work`) is written once. The blocking twin has clients that have done what they were asked for when
they are awaited (`strandline.client.processing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

from strandline.client.aio.consumer import Consumer
from strandline.client.aio.producer import Producer
from strandline.client.errors import ClientTimeout, CommitFailed, OutcomeUnknown, TransactionAbortable, TransactionFatal
from strandline.client.groups.session import Listener, Topics
from strandline.client.logs import log
from strandline.client.settings import CommonSettings
from strandline.client.transactions import TransactionState
from strandline.client.types import ConsumerRecord, Header
from strandline.proto.errors import ConfigError, StrandlineError
from strandline.proto.system import system_rng

POLL_S = 1.0
TRANSACTION_TIMEOUT_MS = 10_000
"""Default of `transaction.timeout.ms` here, as in Kafka Streams. A program that takes over the partitions of a killed
one waits at most this long."""
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

Made = Iterable[Send] | Send | None
Transform = Callable[[ConsumerRecord], AsyncIterable[Send] | Awaitable[Made]]
"""An asynchronous generator of what is to be sent, or a coroutine that returns it."""


async def process(
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
    """Read topics as a member of a group, and send what `transform` makes of each record, exactly once for readers of
    committed records; see `strandline.client.process` for the promise, the arguments and what is raised. A cancellation
    aborts the open transaction, and its records come again to whoever is next."""
    reading, writing = settings_of(consumer, producer)

    def make() -> Producer:
        name = transactional_id or new_id(group_id)
        return Producer(bootstrap, **{**settings, **writing}, transactional_id=name)

    async with Consumer(bootstrap, **{**settings, **reading}, group_id=group_id, enable_auto_commit=False) as reader:
        clients = Clients(
            make=make,
            subscribe=lambda: reader.subscribe(topics, on_assigned=on_assigned),
            poll=lambda: reader.poll(POLL_S),
            made_of=lambda record: _each(transform(record)),
            send_offsets=lambda sender: sender.send_offsets(reader),
            put_back=reader.put_back,
            pause=lambda: asyncio.sleep(PAUSE_S),
        )
        return await Work(clients, group_id, named=transactional_id is not None).run(until)


async def _each(made: AsyncIterable[Send] | Awaitable[Made]) -> AsyncIterator[Send]:
    if isinstance(made, AsyncIterable):
        async for one in made:
            yield one
    else:
        for one in several(await made):
            yield one


def several(made: Made) -> Iterable[Send]:
    """The records to send, from the result of a transform for one record."""
    if made is None:
        return ()
    return (made,) if isinstance(made, Send) else made


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


class Clients(NamedTuple):
    """A consumer and the producers of one `process`.

    Attributes:
        make: makes a producer.
        subscribe: begins to consume, once there is a producer id.
        poll: the next records, at most `POLL_S` later.
        made_of: what the program makes of a record.
        send_offsets: adds the records that were polled to the producer's transaction.
        put_back: has records come again.
        pause: waits for `PAUSE_S`.
    """

    make: Callable[[], Producer]
    subscribe: Callable[[], None]
    poll: Callable[[], Awaitable[list[ConsumerRecord]]]
    made_of: Callable[[ConsumerRecord], AsyncIterator[Send]]
    send_offsets: Callable[[Producer], Awaitable[None]]
    put_back: Callable[[list[ConsumerRecord]], None]
    pause: Callable[[], Awaitable[None]]


class Work:
    """Polls, each of which is one transaction; one that fails is aborted, and its records come again.

    A producer that has failed is replaced, unless it was `named` by the program: then another process may use its name.
    """

    def __init__(self, clients: Clients, group_id: str, *, named: bool) -> None:
        self._clients = clients
        self._group_id = group_id
        self._named = named

    async def run(self, until: Callable[[], bool]) -> Processed:
        """Go on until told otherwise; what was committed."""
        clients = self._clients
        records = transactions = 0
        sender = clients.make()
        try:
            await self._until_answered(sender)
            clients.subscribe()
            while not until():
                batch = await clients.poll()
                if not batch:
                    continue
                try:
                    done = await self._transact(sender, batch)
                except TransactionFatal as error:
                    if self._named:
                        raise
                    log.warning("group %s: its producer has failed, and another one goes on: %s", self._group_id, error)
                    await sender.close()
                    sender, done = clients.make(), False
                if done:
                    records, transactions = records + len(batch), transactions + 1
                else:
                    clients.put_back(batch)
                    await clients.pause()
        finally:
            await sender.close()
        return Processed(records, transactions)

    async def _until_answered(self, sender: Producer) -> None:
        while True:
            try:
                await sender.init_transactions()
                return
            except ClientTimeout as error:
                log.warning("the cluster gives no producer id yet: %s", error)
                await self._clients.pause()

    async def _transact(self, sender: Producer, batch: list[ConsumerRecord]) -> bool:
        """Whether the transaction of these records is committed; false: they are to come again."""
        try:
            await sender.begin_transaction()
            for record in batch:
                async for one in self._clients.made_of(record):
                    await sender.send(
                        one.topic, one.value, key=one.key, headers=one.headers, partition=one.partition,
                        timestamp_ms=one.timestamp_ms,
                    )  # fmt: skip
            await self._clients.send_offsets(sender)
        except (ClientTimeout, TransactionAbortable, CommitFailed) as error:
            return await _aborted(sender, batch, error)
        while True:
            try:
                await sender.commit_transaction()
                return True
            except OutcomeUnknown as error:
                log.info("it is not known yet whether a transaction of %d records is committed: %s", len(batch), error)
            except TransactionAbortable as error:
                return await _aborted(sender, batch, error)


async def _aborted(sender: Producer, batch: list[ConsumerRecord], error: StrandlineError) -> bool:
    """False, once nothing is left of the transaction."""
    log.info("a transaction of %d records failed, and is tried again: %s", len(batch), error)
    while sender.transaction_state in STILL_OPEN:
        try:
            await sender.abort_transaction()
        except OutcomeUnknown as slow:
            log.info("a transaction of %d records is not aborted yet: %s", len(batch), slow)
    return False
