"""aiokafka as part of the load: an idempotent producer and a consumer with partitions of its own."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError as AiokafkaError

from strandline.chaos.checkers.history import Partition, Send, Status
from strandline.chaos.checkers.journal import Recorder
from strandline.chaos.live.clients.foreign import ForeignClient, login_of, now_ms
from strandline.chaos.live.clients.options import FLUSH_S, SWEEP_S, ClientOptions, InputEnd

REQUEST_MS = 10_000
"""aiokafka gives up a record after this too."""


def login_settings(options: ClientOptions) -> dict[str, Any]:
    """aiokafka's names of what a secure cluster wants; nothing for another."""
    login = login_of(options)
    if login is None:
        return {}
    return {
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=login.ca),
        "sasl_mechanism": login.mechanism,
        "sasl_plain_username": login.user,
        "sasl_plain_password": login.password,
    }


class AiokafkaClient(ForeignClient):
    """Producer and consumer are tasks of one loop."""

    def __init__(self, options: ClientOptions, recorder: Recorder) -> None:
        super().__init__(options, recorder)
        self._under_way: dict[asyncio.Task[None], None] = {}

    def _met(self, error: BaseException) -> None:
        self._failed(type(error).__name__)

    async def produce(self, over: InputEnd) -> None:
        """Send until standard input ends, with another producer whenever one has given up a record: its sequence
        numbers have a gap then, and it can send no more."""
        while not over():
            self._begin_life()
            producer = AIOKafkaProducer(
                bootstrap_servers=self.options.bootstrap.split(","),
                **login_settings(self.options),
                enable_idempotence=True,
                linger_ms=2,
                request_timeout_ms=REQUEST_MS,
                retry_backoff_ms=50,
                metadata_max_age_ms=10_000,
            )
            try:
                await producer.start()
            except AiokafkaError as error:
                self._met(error)
                await producer.stop()
                continue
            gave_up = asyncio.Event()
            while not over() and not gave_up.is_set():
                await self._send(producer, gave_up)
                await asyncio.sleep(self._gap_s())
            if self._under_way:
                await asyncio.wait(list(self._under_way), timeout=FLUSH_S)
            try:
                async with asyncio.timeout(REQUEST_MS / 1000):
                    await producer.stop()
            except (AiokafkaError, TimeoutError) as error:
                self._met(error)

    async def _send(self, producer: Any, gave_up: asyncio.Event) -> None:
        send, value = self._invoke()
        try:
            future = await producer.send(send.partition.topic, value, partition=send.partition.number)
        except AiokafkaError as error:
            # It waits for room and for metadata before it queues: but what was queued, only it knows.
            self._end(send, Status.INFO)
            self._met(error)
            gave_up.set()
            return
        task = asyncio.get_running_loop().create_task(self._settle(send, future, gave_up))
        self._under_way[task] = None
        task.add_done_callback(self._under_way.pop)

    async def _settle(self, send: Send, future: Any, gave_up: asyncio.Event) -> None:
        try:
            ack = await future
        except AiokafkaError as error:
            self._end(send, Status.INFO)
            self._met(error)
            gave_up.set()
        else:
            self._end(send, Status.OK, ack.offset if ack.offset >= 0 else None)

    async def consume(self) -> None:
        """Read from the beginning, for ever."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.options.bootstrap.split(","),
            **login_settings(self.options),
            enable_auto_commit=False,
            auto_offset_reset="none",
            request_timeout_ms=REQUEST_MS,
            retry_backoff_ms=50,
            metadata_max_age_ms=10_000,
        )
        await consumer.start()
        try:
            places = [TopicPartition(topic, number) for topic, number in self.options.partitions]
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            while True:
                await self._poll(consumer)
        finally:
            await consumer.stop()

    async def _poll(self, consumer: Any) -> None:
        invoked_ms = now_ms()
        try:
            by_partition = await consumer.getmany(timeout_ms=500)
        except AiokafkaError as error:
            self._met(error)
            await asyncio.sleep(0.1)
            return
        found = [
            (Partition(place.topic, place.partition), record.offset, record.value)
            for place, records in by_partition.items()
            for record in records
        ]
        self._saw(found, invoked_ms)


async def run(options: ClientOptions) -> int:
    """The process. Returns its exit code."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    over = InputEnd()
    with Recorder(options.journal) as recorder:
        client = AiokafkaClient(options, recorder)
        loop = asyncio.get_running_loop()
        consuming = loop.create_task(client.consume())
        producing = loop.create_task(client.produce(over))
        while not producing.done():
            await asyncio.wait([producing, consuming], timeout=SWEEP_S, return_when=asyncio.FIRST_COMPLETED)
            recorder.sweep()
            if consuming.done():
                consuming.result()
        producing.result()
        recorder.errors(client.errors)
        consuming.cancel()
        await asyncio.wait([consuming])
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run(ClientOptions.decode(sys.argv[1]))))
