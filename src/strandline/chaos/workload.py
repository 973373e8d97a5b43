"""Clients of a cluster: producers, consumers and an admin of `strandline.client.aio`, writing a history.

They run as one process, on a simulated machine or a real one, and know nothing of the cluster but its addresses.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from strandline.chaos.bumping import BUMPING_SETTINGS, BumpingProducer
from strandline.chaos.checkers.history import History, Partition, Poll, Send, Status
from strandline.client.aio import Admin, Consumer, Producer
from strandline.client.errors import ClientError
from strandline.client.types import Ack, NewTopic
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ports import Clock, Rng

READS: dict[str, Any] = {"auto_offset_reset": "earliest", "check_crcs": False}
"""Settings of consumers: from the beginning, and as most clients read: brokers check what they serve, so nothing
that rotted is polled."""


class Ports(Protocol):
    """Ports that the clients need of the world; sockets come from the event loop."""

    @property
    def clock(self) -> Clock:
        """Clocks of the clients."""

    @property
    def rng(self) -> Rng:
        """Random generator of the clients."""


_SLOW_GAP_MS = 60.0

_NOTHING_WRITTEN = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUIRED_ACKS,
    }
)
"""Answers to a *single* attempt after which the record is certainly nowhere. After a retry nothing is certain."""


@dataclass
class ProducerKind:
    """A kind of producer."""

    name: str
    settings: dict[str, Any]
    acks: int = -1
    single_attempt: bool = False
    kind: type[Producer] = Producer


LANES = (
    ProducerKind("idempotent", {}),
    ProducerKind("idempotent", {}),
    ProducerKind("once", {"enable_idempotence": False, "retries": 0}, single_attempt=True),
    ProducerKind("leader", {"acks": "1", "retries": 0}, acks=1, single_attempt=True),
    ProducerKind("blind", {"acks": "0"}, acks=0),
    ProducerKind("bumping", BUMPING_SETTINGS, kind=BumpingProducer),
)


@dataclass
class WorkloadOptions:
    """Options of the clients. Times in milliseconds."""

    topics: dict[str, int]
    """name -> partitions."""
    topic_configs: dict[str, str]
    lanes: tuple[int, ...]
    """Indexes into LANES, one producer each."""
    send_gap_ms: float
    burst_max: int
    value_bytes_max: int
    consumers: int
    producer: dict[str, Any]
    consumer: dict[str, Any]
    many: int = 2_000
    """Values after which producers send one by one: the schedules are what counts, not the volume."""
    rewinds_max: int = 2
    """Number of times that one consumer starts over."""
    rewinds_share: float = 0.003
    """Share of its polls after which it does, until then."""

    @classmethod
    def draw(cls, rng: random.Random) -> WorkloadOptions:
        lanes = [0, *(rng.randrange(len(LANES)) for _ in range(rng.randint(1, 2)))]
        return cls(
            topics={"alpha": rng.randint(1, 2), **({"beta": 1} if rng.random() < 0.3 else {})},
            topic_configs={
                "segment.bytes": str(rng.choice((20_000, 100_000, 1 << 30))),
                "min.insync.replicas": rng.choice(("2", "2", "1")),
            },
            lanes=tuple(lanes),
            send_gap_ms=rng.choice((20.0, 60.0, 200.0)),
            burst_max=rng.choice((1, 5, 20)),
            value_bytes_max=rng.choice((30, 300, 3_000)),
            consumers=rng.randint(1, 2),
            producer={
                "batch_size": rng.choice((200, 2_000, 16_384)),
                "linger_ms": rng.choice((0, 5, 50)),
                "delivery_timeout_ms": rng.choice((15_000, 60_000)),
                "request_timeout_ms": rng.choice((1_000, 5_000)),
                "max_block_ms": 10_000,
                "compression_type": rng.choice(("none", "none", "zstd", "lz4")),
            },
            many=rng.choice((500, 2_000)),
            consumer={"fetch_max_wait_ms": rng.choice((50, 500)), "request_timeout_ms": rng.choice((2_000, 10_000))},
        )


@dataclass
class Workload:
    """The clients of one run, over all incarnations of their process."""

    bootstrap: str
    options: WorkloadOptions
    history: History
    now_ms: Callable[[], float]
    prefix: str = ""
    """Beginning of this process's values, where several processes write into one history."""
    login: dict[str, Any] = field(default_factory=dict)
    """Settings of all clients: as whom they log in."""
    topics_exist: bool = False
    sending: bool = True
    acked: Counter[Partition] = field(default_factory=Counter)
    """Sends acknowledged under acks=all so far, by partition."""
    errors: dict[str, int] = field(default_factory=dict)
    """Errors that clients saw, counted: for the figures of a run."""
    idle: int = 0
    """Producers that have flushed and ended."""
    era: int = 0
    """Counts up when the cluster was lost and another one has its place: consumers begin anew."""
    _values: int = 0
    _groups: int = 0

    async def main(self, ports: Ports) -> None:
        """Run the clients' process."""
        if not self.topics_exist:
            await self._create_topics(ports)
        name = str(ports.rng.getrandbits(32))
        async with asyncio.TaskGroup() as group:
            for number, lane in enumerate(self.options.lanes):
                group.create_task(self._produce(ports, LANES[lane], f"{name}-{LANES[lane].name}-{number}"))
            for number in range(self.options.consumers):
                group.create_task(self._consume(ports, f"{name}-consumer-{number}"))

    def _failed(self, error: BaseException) -> None:
        what = error.code.name if isinstance(error, KafkaError) else type(error).__name__
        self.errors[what] = self.errors.get(what, 0) + 1

    @property
    def partitions(self) -> list[Partition]:
        """All that the clients write to."""
        return [Partition(topic, number) for topic, count in self.options.topics.items() for number in range(count)]

    # --- topics ---

    async def _create_topics(self, ports: Ports) -> None:
        async with Admin(self.bootstrap, clock=ports.clock, rng=ports.rng, **self.login) as admin:
            for topic, partitions in self.options.topics.items():
                while True:
                    try:
                        new = NewTopic(topic, partitions, 3, self.options.topic_configs)
                        await admin.create_topics([new])
                    except KafkaError as error:
                        if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                            break
                        self._failed(error)
                    except ClientError as error:
                        self._failed(error)
                    else:
                        break
                    await asyncio.sleep(0.1)
        self.topics_exist = True

    # --- producing ---

    async def _produce(self, ports: Ports, lane: ProducerKind, name: str) -> None:
        settings = self.options.producer | lane.settings | self.login
        producer = lane.kind(self.bootstrap, clock=ports.clock, rng=ports.rng, **settings)
        partitions = self.partitions
        while self.sending:
            options = self.options
            many = self._values >= options.many
            gap_ms = max(_SLOW_GAP_MS, options.send_gap_ms) if many else options.send_gap_ms
            await asyncio.sleep(ports.rng.uniform(0, 2 * gap_ms) / 1000)
            self._groups += 1
            for _ in range(1 if many else ports.rng.randint(1, options.burst_max)):
                await self._send(producer, lane, name, ports.rng.choice(partitions), ports.rng)
        try:
            await producer.close(60.0)
        except StrandlineError as error:
            self._failed(error)
        self.idle += 1

    async def _send(
        self, producer: Producer, lane: ProducerKind, name: str, where: Partition, rng: random.Random
    ) -> None:
        self._values += 1
        value = f"{self.prefix}{self._values}".ljust(rng.randint(1, self.options.value_bytes_max), ".")
        send = self.history.send(Send(name, where, value, acks=lane.acks, group=self._groups, invoked_ms=self.now_ms()))
        try:
            future = await producer.send(where.topic, value.encode(), partition=where.number)
        except StrandlineError as error:
            # Raised before the record was queued: it can be nowhere.
            send.status = Status.FAIL
            send.completed_ms = self.now_ms()
            self._failed(error)
            return
        future.add_done_callback(partial(self._settled, send, lane))

    def _settled(self, send: Send, lane: ProducerKind, future: asyncio.Future[Ack]) -> None:
        send.completed_ms = self.now_ms()
        error = future.exception()
        if error is None:
            send.status = Status.OK
            offset = future.result().offset
            send.offset = offset if offset >= 0 else None
            if lane.acks == -1:
                self.acked[send.partition] += 1
            return
        self._failed(error)
        certain = lane.single_attempt and isinstance(error, KafkaError) and error.code in _NOTHING_WRITTEN
        send.status = Status.FAIL if certain else Status.INFO

    # --- consuming ---

    async def _consume(self, ports: Ports, name: str) -> None:
        """Reads everything from the beginning; sometimes seeks back, and goes on."""
        while True:
            await self._consume_an_era(ports, f"{name}-{self.era}" if self.era else name)

    async def _consume_an_era(self, ports: Ports, name: str) -> None:
        settings = self.options.consumer | READS | self.login
        consumer = Consumer(self.bootstrap, clock=ports.clock, rng=ports.rng, **settings)
        consumer.assign([(where.topic, where.number) for where in self.partitions])
        generation, era = 0, self.era
        while era == self.era:
            if generation < self.options.rewinds_max and ports.rng.random() < self.options.rewinds_share:
                consumer.seek_to_beginning()
                generation += 1
            await self._poll(consumer, name, generation)

    async def _poll(self, consumer: Consumer, name: str, generation: int, *, final: bool = False) -> int:
        invoked_ms, era = self.now_ms(), self.era
        try:
            records = await consumer.poll(0.5)
        except StrandlineError as error:
            self._failed(error)
            await asyncio.sleep(0.05)
            return 0
        places = [
            (Partition(record.topic, record.partition), record.offset, (record.value or b"").decode())
            for record in records
        ]
        if places and era == self.era:
            self.history.poll(
                Poll(name, places, generation, invoked_ms=invoked_ms, completed_ms=self.now_ms(), final=final)
            )
        return len(places)

    async def read_everything(self, ports: Ports) -> None:
        """Read everything in the last phase: a fresh client from the beginning past the highest offsets there are."""
        settings = self.options.consumer | READS | self.login
        consumer = Consumer(self.bootstrap, clock=ports.clock, rng=ports.rng, **settings)
        partitions = [(where.topic, where.number) for where in self.partitions]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while True:
            behind = False
            for where, end in ends.items():
                behind = behind or await consumer.position(where) < end
            if not behind:
                return
            await self._poll(consumer, "final", 0, final=True)
