"""A simulated cluster with clients, for stories that are told step by step: production nodes and clients in virtual
time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from strandline.chaos.cluster import SimCluster
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.client.aio import Admin, Consumer, Producer
from strandline.client.errors import ClientError
from strandline.client.types import NewTopic
from strandline.proto.errors import KafkaError

READY_MS = 30_000.0
QUICK = {"broker.session.timeout.ms": "3000", "replica.lag.time.max.ms": "2000"}


class Site:
    """Three nodes, or three controllers and three brokers; a machine for clients, and one that a test cuts off with a
    node."""

    def __init__(self, seed: int, split: bool, *, settings: Mapping[str, str] | None = None) -> None:
        self.world = World(seed)
        self.cluster = SimCluster(self.world, {**QUICK, **(settings or {})}, split=split)
        self.world.add_machine("client")
        self.world.add_machine("beside")
        self.acked: dict[bytes, int] = {}
        self.refused: list[bytes] = []

    def run(self, story: Callable[[Site], Awaitable[None]]) -> None:
        async def whole() -> None:
            for name in self.cluster.names:
                self.cluster.start(name)
            await self.cluster.wait_ready(READY_MS)
            await story(self)

        self.world.run(whole())

    async def client(self, work: Callable[[Ports], Awaitable[None]], machine: str = "client") -> None:
        """Run `work` as a process of its own; its error is ours."""
        ended: list[BaseException | None] = []

        async def main(ports: Ports) -> None:
            try:
                await work(ports)
            except Exception as error:
                ended.append(error)
            else:
                ended.append(None)

        self.world.spawn(machine, main)
        await self.cluster.wait_for("the client is done", 120_000, lambda: bool(ended))
        self.world.kill(machine)
        if ended[0] is not None:
            raise ended[0]

    async def create(self, topic: str, **configs: str) -> None:
        values = {key.replace("_", "."): value for key, value in configs.items()}

        async def work(ports: Ports) -> None:
            async with Admin(self.cluster.bootstrap, clock=ports.clock, rng=ports.rng) as admin:
                await admin.create_topics([NewTopic(topic, 1, 3, values)])

        await self.client(work)
        await self.cluster.wait_in_sync(READY_MS)

    async def send(self, bootstrap: str, topic: str, first: int, last: int, machine: str = "client") -> None:
        """Values first..last-1; those acknowledged go to `acked`, those that failed to `refused`."""

        async def work(ports: Ports) -> None:
            settings = {"delivery_timeout_ms": 10_000, "request_timeout_ms": 1500, "linger_ms": 0}
            async with Producer(bootstrap, clock=ports.clock, rng=ports.rng, **settings) as producer:
                for number in range(first, last):
                    value = b"%d" % number
                    try:
                        ack = await producer.send_and_wait(topic, value, partition=0)
                        self.acked[value] = ack.offset
                    except (KafkaError, ClientError, TimeoutError):
                        self.refused.append(value)

        await self.client(work, machine)

    async def read(self, topic: str) -> list[bytes | None]:
        values: list[bytes | None] = []

        async def work(ports: Ports) -> None:
            async with Consumer(self.cluster.bootstrap, clock=ports.clock, rng=ports.rng) as consumer:
                consumer.assign([(topic, 0)])
                consumer.seek_to_beginning()
                [end] = (await consumer.end_offsets([(topic, 0)])).values()
                while await consumer.position((topic, 0)) < end:
                    values.extend(record.value for record in await consumer.poll(timeout_s=1))

        await self.client(work)
        return values

    def leader(self, topic: str) -> str:
        image = self.cluster.newest_image()
        assert image is not None
        return f"n{image.topics[topic].partitions[0].leader}"
