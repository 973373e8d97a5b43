"""Consume, transform, produce, as coroutines: the twin of `strandline.client.processing`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from strandline.client.aio.consumer import Consumer
from strandline.client.aio.producer import Producer
from strandline.client.errors import ClientTimeout, CommitFailed, OutcomeUnknown, TransactionAbortable, TransactionFatal
from strandline.client.groups.session import Listener, Topics
from strandline.client.logs import log
from strandline.client.processing import PAUSE_S, POLL_S, STILL_OPEN, Processed, Send, new_id, settings_of
from strandline.client.settings import CommonSettings
from strandline.client.types import ConsumerRecord
from strandline.proto.errors import StrandlineError

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

    records = transactions = 0
    sender = make()
    try:
        async with Consumer(
            bootstrap, **{**settings, **reading}, group_id=group_id, enable_auto_commit=False
        ) as reader:
            await _until_answered(sender)
            reader.subscribe(topics, on_assigned=on_assigned)
            while not until():
                batch = await reader.poll(POLL_S)
                if not batch:
                    continue
                try:
                    done = await _transact(reader, sender, batch, transform)
                except TransactionFatal as error:
                    if transactional_id is not None:
                        raise
                    log.warning("group %s: its producer has failed, and another one goes on: %s", group_id, error)
                    await sender.close()
                    sender, done = make(), False
                if done:
                    records, transactions = records + len(batch), transactions + 1
                else:
                    reader.put_back(batch)
                    await asyncio.sleep(PAUSE_S)
    finally:
        await sender.close()
    return Processed(records, transactions)


async def _transact(reader: Consumer, sender: Producer, batch: list[ConsumerRecord], transform: Transform) -> bool:
    """Whether the transaction of these records is committed; false: they are to come again."""
    try:
        await sender.begin_transaction()
        for record in batch:
            made = transform(record)
            if isinstance(made, AsyncIterable):
                async for one in made:
                    await _send(sender, one)
                continue
            told = await made
            for one in () if told is None else (told,) if isinstance(told, Send) else told:
                await _send(sender, one)
        await sender.send_offsets(reader)
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


async def _send(sender: Producer, one: Send) -> None:
    await sender.send(
        one.topic, one.value, key=one.key, headers=one.headers, partition=one.partition, timestamp_ms=one.timestamp_ms
    )


async def _aborted(sender: Producer, batch: list[ConsumerRecord], error: StrandlineError) -> bool:
    """False, once nothing is left of the transaction."""
    log.info("a transaction of %d records failed, and is tried again: %s", len(batch), error)
    while sender.transaction_state in STILL_OPEN:
        try:
            await sender.abort_transaction()
        except OutcomeUnknown as slow:
            log.info("a transaction of %d records is not aborted yet: %s", len(batch), slow)
    return False


async def _until_answered(sender: Producer) -> None:
    while True:
        try:
            await sender.init_transactions()
            return
        except ClientTimeout as error:
            log.warning("the cluster gives no producer id yet: %s", error)
            await asyncio.sleep(PAUSE_S)
