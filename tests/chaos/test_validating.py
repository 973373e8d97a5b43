"""The consumer that plays librdkafka: what it makes of a leader that does not know where an epoch ended."""

from __future__ import annotations

import pytest

from strandline.chaos.other_clients import ValidatingConsumer
from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Consumer
from strandline.proto.ids import TopicPartition
from tests.client.broker import BOOTSTRAP, ScriptedCluster, play
from tests.client.test_consumer_faults import fill, read

WHERE = TopicPartition("t", 0)


@pytest.mark.parametrize("kind", [Consumer, ValidatingConsumer])
def test_an_end_that_is_not_known(kind: type[Consumer]) -> None:
    """The scripted leader answers with -1 for an epoch before all it knows, as ours did. Our own client stays where it
    is; the other one goes to the end, past what was written since."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        reader = kind(BOOTSTRAP, clock=ports.clock, rng=ports.rng, auto_offset_reset="latest", metadata_max_age_ms=300)
        async with reader:
            reader.assign([WHERE])
            assert await reader.position(WHERE) == 0
            await reader.poll(0.5)
            cluster.move(WHERE, cluster.partitions[WHERE].leader % 3 + 1)
            await fill(ports, 10, batch_size=1)
            if kind is Consumer:
                assert len(await read(reader, 10)) == 10
            else:
                assert await reader.poll(5.0) == []
                assert await reader.position(WHERE) == 10

    play(scenario, {"t": 1})


def test_an_end_that_is_known_is_believed() -> None:
    """By both alike: a log that was cut is read again from where it parts."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports, 20, batch_size=1)
        reader = ValidatingConsumer(
            BOOTSTRAP, clock=ports.clock, rng=ports.rng, auto_offset_reset="earliest", metadata_max_age_ms=300
        )
        async with reader:
            reader.assign([WHERE])
            await read(reader, 20)
            cluster.partitions[WHERE].log.truncate_to(12)
            cluster.move(WHERE, cluster.partitions[WHERE].leader % 3 + 1)
            await fill(ports, 15, batch_size=1)
            assert [record.offset for record in await read(reader, 15)] == list(range(12, 27))

    play(scenario, {"t": 1})
