"""`process`, for threads and for coroutines: each record once for readers of committed records, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from strandline.client import Consumer, ConsumerRecord, Processed, Producer, Send, aio, process
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.topics import create

COUNT = 60


class Broken(Exception):
    """A transform that fails."""


class Work:
    """What the transforms have seen. It fails once, behind a part of a transaction."""

    def __init__(self, target: str, until: Any) -> None:
        self.target = target
        self.until = until
        self.seen = 0

    def once(self, record: ConsumerRecord) -> Send:
        self.seen += 1
        if self.seen == 25:
            raise Broken
        return Send(self.target, record.value, partition=record.partition)

    def blocking(self, record: ConsumerRecord) -> Iterator[Send]:
        yield self.once(record)

    async def generator(self, record: ConsumerRecord) -> AsyncIterator[Send]:
        await asyncio.sleep(0)
        yield self.once(record)

    async def coroutine(self, record: ConsumerRecord) -> Send:
        await asyncio.sleep(0)
        return self.once(record)


def committed(bootstrap: str, topic: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        ends = consumer.end_offsets([(topic, 0), (topic, 1)])
        while any(consumer.position(place) < end for place, end in ends.items()):
            found += [record.value for record in consumer.poll(0.2)]
    return found


@pytest.mark.parametrize("kind", ["blocking", "generator", "coroutine"])
def test_each_record_once(cluster: DevCluster, kind: str) -> None:
    """The program ends in the middle of a transaction, and is started again. An aborted input is no input."""
    source, target = f"process-{kind}", f"process-{kind}-out"
    for topic in (source, target):
        create(cluster.bootstrap, topic, 2, 3)
    with Producer(cluster.bootstrap, transactional_id=f"{source}-input") as producer:
        producer.begin_transaction()
        for number in range(20):
            producer.send(source, b"aborted-%d" % number, partition=number % 2)
        producer.flush()
        producer.abort_transaction()
        with producer.transaction():
            for number in range(COUNT):
                producer.send(source, b"%d" % number, partition=number % 2)
    work = Work(target, lambda: len(committed(cluster.bootstrap, target)) >= COUNT)

    def run() -> Processed:
        told: dict[str, Any] = {"group_id": source, "until": work.until, "consumer": {"max.poll.records": 10}}
        if kind == "blocking":
            return process(cluster.bootstrap, source, work.blocking, **told)
        transform = work.generator if kind == "generator" else work.coroutine
        return asyncio.run(aio.process(cluster.bootstrap, source, transform, **told))

    with pytest.raises(Broken):
        run()
    part = len(committed(cluster.bootstrap, target))
    assert part < COUNT
    again = run()
    assert (again.records, again.transactions > 0) == (COUNT - part, True)
    assert sorted(committed(cluster.bootstrap, target), key=lambda value: int(value or b"")) == [
        b"%d" % number for number in range(COUNT)
    ]
