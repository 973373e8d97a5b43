"""A simulated cluster with producers and consumers: production nodes and clients in virtual time."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Consumer, Producer
from strandline.client.errors import ClientError
from strandline.proto.errors import KafkaError
from tests.stage import ClusterStage

QUICK = {"broker.session.timeout.ms": "3000", "replica.lag.time.max.ms": "2000"}


class Site(ClusterStage):
    """A cluster, a client, and a machine that a test cuts off together with a node.

    Attributes:
        acked: value -> offset of the records that `send` has an acknowledgement for.
        refused: values that `send` has an error for.
    """

    def __init__(
        self, seed: int, split: bool, *, settings: Mapping[str, str] | None = None, directories: int = 1
    ) -> None:
        super().__init__(seed, {**QUICK, **(settings or {})}, split=split, machines=["beside"], directories=directories)
        self.acked: dict[bytes, int] = {}
        self.refused: list[bytes] = []

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

        await self.process(machine, work)

    async def read(self, topic: str) -> list[bytes | None]:
        values: list[bytes | None] = []

        async def work(ports: Ports) -> None:
            async with Consumer(self.cluster.bootstrap, clock=ports.clock, rng=ports.rng) as consumer:
                consumer.assign([(topic, 0)])
                consumer.seek_to_beginning()
                [end] = (await consumer.end_offsets([(topic, 0)])).values()
                while await consumer.position((topic, 0)) < end:
                    values.extend(record.value for record in await consumer.poll(timeout_s=1))

        await self.process("client", work)
        return values
