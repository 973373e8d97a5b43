"""Consume, transform, produce: what was read counts as done exactly when what was made of it is committed.

from strandline.client import Send, process

def invoice(order):
    yield Send("invoices", make(order.value), key=order.key)

process("127.0.0.1:9092", "orders", invoice, group_id="billing")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack, cast

from strandline.client import aio
from strandline.client.aio.processing import (
    PAUSE_S,
    POLL_S,
    Clients,
    Made,
    Processed,
    Send,
    Work,
    new_id,
    settings_of,
    several,
)
from strandline.client.consumer import Consumer
from strandline.client.groups.session import Listener, Topics
from strandline.client.producer import Producer
from strandline.client.settings import CommonSettings
from strandline.client.types import ConsumerRecord

__all__ = ["Processed", "Send", "Transform", "process"]

T = TypeVar("T")
Transform = Callable[[ConsumerRecord], Made]


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

    def make() -> aio.Producer:
        name = transactional_id or new_id(group_id)
        return cast("aio.Producer", _Awaited(Producer(bootstrap, **{**settings, **writing}, transactional_id=name)))

    async def made_of(record: ConsumerRecord) -> AsyncIterator[Send]:
        for one in several(transform(record)):
            yield one

    with Consumer(bootstrap, **{**settings, **reading}, group_id=group_id, enable_auto_commit=False) as reader:
        clients = Clients(
            make=make,
            subscribe=lambda: reader.subscribe(topics, on_assigned=on_assigned),
            poll=lambda: _done(partial(reader.poll, POLL_S)),
            made_of=made_of,
            send_offsets=lambda sender: sender.send_offsets(cast("aio.Consumer", reader)),
            put_back=lambda batch: reader.call(partial(reader.inner.put_back, batch)),
            pause=lambda: _done(partial(reader.wait, lambda: asyncio.sleep(PAUSE_S))),
        )
        return at_once(Work(clients, group_id, named=transactional_id is not None).run(until))


class _Awaited:
    """A blocking client in the place of its twin: each call has waited for its end when its coroutine is awaited."""

    def __init__(self, client: object) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._client, name)
        return (lambda *args, **kwargs: _done(partial(member, *args, **kwargs))) if callable(member) else member


async def _done(call: Callable[[], T]) -> T:
    return call()


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose every await has its answer already: no event loop is needed, and every call of the program
    is made on this thread."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        work.close()
    raise AssertionError("a blocking client waits for the event loop of its caller")
