"""Transactions on a simulated cluster: three production nodes, one of which has the coordinator, one the data, and one
the controller."""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.chaos.cluster import Live
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.client.types import NewTopic
from strandline.cluster.groups.partitions import partition_of
from strandline.cluster.transactions.commands import Producer
from strandline.cluster.transactions.markers import CALL_MS
from strandline.cluster.transactions.transaction_coordinator import TransactionCoordinator
from strandline.controller.metadata.features import NEWEST_LEVEL, TRANSACTION_TOPIC
from strandline.log.batch import Record, build_batch
from strandline.log.partition_log import PartitionLog
from strandline.log.segment import pread_blocking
from strandline.log.transactions import Marker, read_marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from tests.schedules.groups.site import Wire
from tests.stage import READY_MS, ClusterStage

SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "2000",
    "transaction.state.log.num.partitions": "6",
}
TOPIC = "t"
LEVELS = {"metadata.version": NEWEST_LEVEL, "transaction.version": 2}


class HeldCalls:
    """Calls from one machine to another that are carried out so much later, although their caller has given them up.

    Attributes:
        held: how many were taken.
        earliest_ms, latest_ms: world time at which the last of them is carried out: so long after its caller has given
            it up.
    """

    def __init__(self, world: World, source: str, target: str, for_ms: int) -> None:
        self._world = world
        self._route = source, target
        self._for_ms = for_ms
        self.earliest_ms = self.latest_ms = 0.0
        self._lateness = world.network.lateness
        self.held = 0
        world.network.lateness = self._late  # type: ignore[method-assign]

    def _late(self, source: str, target: str) -> int:
        if (source, target) != self._route:
            return self._lateness(source, target)
        self.held += 1
        self.earliest_ms = self._world.now_ms + self._for_ms
        self.latest_ms = self.earliest_ms + CALL_MS
        return self._for_ms * 1_000

    def stop(self) -> None:
        """Hold no more; those that are held stay on their way."""
        self._world.network.lateness = self._lateness  # type: ignore[method-assign]


class TransactionSite(ClusterStage):
    """Attributes:
    transactional_id, partition: of which nodes of their own have the coordinator and the data, and a third one leads
        the quorum.
    producer: as the coordinator says last.
    """

    def __init__(self, seed: int, copies: int = 3, **settings: str) -> None:
        """`copies`: of the topic; of two, the other one is where the quorum is led."""
        self._copies = copies
        super().__init__(seed, {**SETTINGS, **{key.replace("_", "."): value for key, value in settings.items()}})
        self.transactional_id = ""
        self.partition = TopicPartition(TOPIC, -1)
        self.producer = Producer(-1, -1)
        self._sequence = 0

    async def begin(self) -> None:
        await super().begin()
        await self.admin(lambda admin: admin.update_features(LEVELS))
        await self.until(
            lambda: all(live.node.publisher.image.transaction_version == 2 for live in self.cluster.nodes())
        )
        configs = {"min.insync.replicas": str(self._copies - 1)}
        await self.admin(lambda admin: admin.create_topics([NewTopic(TOPIC, 3, self._copies, configs)]))
        await self.inside(1, self.coordinator("n1").ensure_topic)
        await self.cluster.wait_in_sync(READY_MS)
        controller = self.cluster.controller()
        self.partition = next(
            TopicPartition(TOPIC, number)
            for number in range(3)
            if self.leader(TOPIC, number) != controller
            and (self._copies == 3 or self.number(controller) in self.replicas(number))
        )
        names = (f"id-{number}" for number in range(1000))
        apart = {self.data, controller}
        self.transactional_id = next(name for name in names if self._coordinator_of(name) not in apart)
        self.producer = await self.inside(
            self.number(self.coordinates),
            lambda: self.coordinator(self.coordinates).init_producer_id(self.transactional_id, 60_000),
        )

    def number(self, machine: str) -> int:
        return int(machine[1:])

    def replicas(self, number: int) -> tuple[int, ...]:
        image = self.cluster.newest_image()
        assert image is not None
        return image.topics[TOPIC].partitions[number].replicas

    def in_sync(self) -> tuple[int, ...]:
        """The numbers of the machines that are in sync in the partition."""
        image = self.cluster.newest_image()
        assert image is not None
        return image.topics[TOPIC].partitions[self.partition.partition].isr

    @property
    def data(self) -> str:
        """The machine that leads the partition."""
        return self.leader(*self.partition)

    def _coordinator_of(self, transactional_id: str) -> str:
        image = self.cluster.newest_image()
        assert image is not None
        partitions = image.topics[TRANSACTION_TOPIC].partitions
        return self.leader(TRANSACTION_TOPIC, partition_of(transactional_id, len(partitions)))

    @property
    def coordinates(self) -> str:
        """The machine of the coordinator."""
        return self._coordinator_of(self.transactional_id)

    def live(self, machine: str) -> Live:
        return next(live for live in self.cluster.nodes() if live.number == self.number(machine))

    def coordinator(self, machine: str) -> TransactionCoordinator:
        broker = self.live(machine).node.broker
        assert broker is not None
        return broker.coordinators.transactions

    def log(self, machine: str) -> PartitionLog:
        """The partition there."""
        broker = self.live(machine).node.broker
        assert broker is not None
        partition = broker.replicas.partition(self.partition)
        assert partition is not None
        assert partition.log is not None
        return partition.log

    def markers(self, machine: str) -> list[Marker]:
        """Markers in the partition's log, in their order."""
        found = []
        for segment in self.log(machine).segments:
            for position, header in segment.headers(0, pread_blocking):
                marker = read_marker(pread_blocking(segment.file, header.size, position))
                found += [marker] if marker is not None else []
        return found

    async def add(self) -> None:
        """The partition becomes part of the transaction, as a client of protocol 1 has it, which asks again while the
        transaction before is being completed."""
        machine = self.coordinates

        async def ask() -> None:
            while True:
                try:
                    await self.coordinator(machine).add_partitions(
                        self.transactional_id, *self.producer, frozenset({self.partition})
                    )
                except KafkaError as error:
                    if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                        raise
                    await asyncio.sleep(0.02)
                else:
                    return

        await self.inside(self.number(machine), ask)

    async def produce(self, version: int = 12) -> int:
        """A record of the transaction, from the machine `client`; the error."""
        raw = build_batch(
            [Record(0, 1_000_000, b"key", b"value", ())],
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            base_sequence=self._sequence,
            transactional=True,
        )

        async def ask(_ports: Ports) -> int:
            wire = await Wire.to(self.data)
            try:
                partition = {"index": self.partition.partition, "records": bytes(raw)}
                answer: Any = await wire.ask(
                    f"produce_{version}",
                    transactional_id=self.transactional_id,
                    acks=-1,
                    timeout=2_000,
                    topic_data=[{"name": TOPIC, "partition_data": [partition]}],
                )
                return int(answer.responses[0].partition_responses[0].error_code)
            finally:
                wire.close()

        code = await self.process("client", ask)
        self._sequence += code == 0
        return code

    async def end(self, *, commit: bool, version: int) -> None:
        """Decide, and keep the producer that the answer says."""
        machine = self.coordinates
        self.producer = await self.inside(
            self.number(machine),
            lambda: self.coordinator(machine).end(
                self.transactional_id, *self.producer, commit=commit, version=version
            ),
        )
        if version == 2:
            self._sequence = 0

    def hold_calls(self, source: str, target: str, for_ms: int) -> HeldCalls:
        """Let each call from one machine to another be late by so much, from now on."""
        return HeldCalls(self.world, source, target, for_ms)

    def hold_answers(self, path: str, for_ms: int) -> None:
        """Let each answer to calls of a method be late by so much, from now on."""
        lateness = self.world.network.answer_lateness
        self.world.network.answer_lateness = (  # type: ignore[method-assign]
            lambda called: for_ms * 1_000 if called == path else lateness(called)
        )

    @property
    def pending(self) -> int:
        """Transactions whose markers are on their way, on any node."""
        return sum(
            live.node.broker.coordinators.markers.pending
            for live in self.cluster.nodes()
            if live.node.broker is not None
        )
