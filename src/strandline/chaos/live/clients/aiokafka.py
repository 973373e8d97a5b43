"""aiokafka as part of the load: an idempotent producer and a consumer with partitions of its own."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError as AiokafkaError

from strandline.chaos.checkers.history import Partition, Poll, Send, Status
from strandline.chaos.live.clients.options import ClientOptions, InputEnd
from strandline.chaos.live.journal import Journal

SWEEP_S = 0.2
FLUSH_S = 90.0
REQUEST_MS = 10_000
"""aiokafka gives up a record after this too."""


def _now_ms() -> float:
    return time.monotonic() * 1000


class _Client:
    """One producer and one consumer."""

    def __init__(self, options: ClientOptions, journal: Journal) -> None:
        self.errors: dict[str, int] = {}
        self._options = options
        self._journal = journal
        self._rng = random.Random(options.seed)
        self._values = 0
        self._lives = 0
        self._under_way: dict[asyncio.Task[None], None] = {}

    def _failed(self, error: BaseException) -> None:
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1

    async def produce(self, over: InputEnd) -> None:
        """Send until standard input ends, with another producer whenever one has given up a record: its sequence
        numbers have a gap then, and it can send no more."""
        while not over():
            self._lives += 1
            producer = AIOKafkaProducer(
                bootstrap_servers=self._options.bootstrap.split(","),
                enable_idempotence=True,
                linger_ms=2,
                request_timeout_ms=REQUEST_MS,
                retry_backoff_ms=50,
                metadata_max_age_ms=10_000,
            )
            try:
                await producer.start()
            except AiokafkaError as error:
                self._failed(error)
                await producer.stop()
                continue
            gave_up = asyncio.Event()
            while not over() and not gave_up.is_set():
                await self._send(producer, gave_up)
                await asyncio.sleep(self._rng.uniform(0, 2 * self._options.gap_ms) / 1000)
            if self._under_way:
                await asyncio.wait(list(self._under_way), timeout=FLUSH_S)
            try:
                async with asyncio.timeout(REQUEST_MS / 1000):
                    await producer.stop()
            except (AiokafkaError, TimeoutError) as error:
                self._failed(error)

    async def _send(self, producer: Any, gave_up: asyncio.Event) -> None:
        where = self._rng.choice(self._options.partitions)
        self._values += 1
        value = f"{self._options.name}-{self._values}"
        process = f"{self._options.name}-{self._lives}"
        send = self._journal.send(Send(process, where, value, invoked_ms=_now_ms()))
        try:
            future = await producer.send(where.topic, value.encode(), partition=where.number)
        except AiokafkaError as error:
            # It waits for room and for metadata before it queues: but what was queued, only it knows.
            send.status, send.completed_ms = Status.INFO, _now_ms()
            self._failed(error)
            gave_up.set()
            return
        task = asyncio.get_running_loop().create_task(self._settle(send, future, gave_up))
        self._under_way[task] = None
        task.add_done_callback(self._under_way.pop)

    async def _settle(self, send: Send, future: Any, gave_up: asyncio.Event) -> None:
        try:
            told = await future
        except AiokafkaError as error:
            send.status = Status.INFO
            self._failed(error)
            gave_up.set()
        else:
            send.status = Status.OK
            send.offset = told.offset if told.offset >= 0 else None
        send.completed_ms = _now_ms()

    async def consume(self) -> None:
        """Read from the beginning, for ever."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._options.bootstrap.split(","),
            enable_auto_commit=False,
            auto_offset_reset="none",
            request_timeout_ms=REQUEST_MS,
            retry_backoff_ms=50,
            metadata_max_age_ms=10_000,
        )
        await consumer.start()
        try:
            places = [TopicPartition(topic, number) for topic, number in self._options.partitions]
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            while True:
                await self._poll(consumer)
        finally:
            await consumer.stop()

    async def _poll(self, consumer: Any) -> None:
        invoked_ms = _now_ms()
        try:
            by_partition = await consumer.getmany(timeout_ms=500)
        except AiokafkaError as error:
            self._failed(error)
            await asyncio.sleep(0.1)
            return
        found = [
            (Partition(place.topic, place.partition), record.offset, record.value.decode())
            for place, records in by_partition.items()
            for record in records
        ]
        if found:
            name = f"{self._options.name}-reader"
            self._journal.poll(Poll(name, found, invoked_ms=invoked_ms, completed_ms=_now_ms()))


async def run(options: ClientOptions) -> int:
    """The process. Returns its exit code."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    over = InputEnd()
    with options.open_journal() as journal:
        client = _Client(options, journal)
        loop = asyncio.get_running_loop()
        consuming = loop.create_task(client.consume())
        producing = loop.create_task(client.produce(over))
        while not producing.done():
            await asyncio.wait([producing, consuming], timeout=SWEEP_S, return_when=asyncio.FIRST_COMPLETED)
            journal.sweep()
            if consuming.done():
                consuming.result()
        producing.result()
        journal.errors(client.errors)
        consuming.cancel()
        await asyncio.wait([consuming])
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run(ClientOptions.decode(sys.argv[1]))))
