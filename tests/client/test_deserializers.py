"""Row S103: a deserializer that fails says which record it was, and nothing is skipped for it."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import Any

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Consumer, Producer
from strandline.client.config import ConsumerConfig
from strandline.client.errors import DeserializationFailed
from strandline.client.types import ConsumerRecord
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.tools.handling import handle_async
from tests.client.broker import BOOTSTRAP, ScriptedCluster, play

WHERE = TopicPartition("t", 0)
POISON = 4


async def fill(ports: Ports) -> None:
    """Ten numbers in JSON, one of them broken."""
    async with Producer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, linger_ms=0) as producer:
        for number in range(10):
            value = b"{" if number == POISON else json.dumps({"number": number}).encode()
            await producer.send("t", value, key=b"k%d" % number, partition=0)


def consumer(ports: Ports, **settings: Any) -> Consumer:
    given = {"auto_offset_reset": "earliest", "value_deserializer": json.loads, **settings}
    reader = Consumer(BOOTSTRAP, clock=ports.clock, rng=ports.rng, **given)
    reader.assign([WHERE])
    return reader


def numbers(records: list[ConsumerRecord]) -> list[int]:
    return [record.value["number"] for record in records]


def test_poll_returns_what_goes_then_raises_and_stays() -> None:
    """What lies before the record is returned first; the position stays at it; a seek goes on behind it."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports)
        async with consumer(ports) as reader:
            assert numbers(await reader.poll(5.0)) == [0, 1, 2, 3]
            for _ in range(2):
                with pytest.raises(DeserializationFailed, match="the value of t-0 at offset 4 cannot") as failed:
                    await reader.poll(5.0)
                error = failed.value
                assert (error.topic, error.partition, error.offset, error.field) == ("t", 0, POISON, "value")
                assert isinstance(error.__cause__, json.JSONDecodeError)
                assert await reader.position(WHERE) == POISON
            reader.seek(WHERE, POISON + 1)
            assert numbers(await reader.poll(5.0)) == [5, 6, 7, 8, 9]

    play(scenario, {"t": 1})


def test_iteration_stops_at_it_and_goes_on_behind_it() -> None:
    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports)
        async with consumer(ports, key_deserializer=bytes.decode) as reader:
            seen: list[ConsumerRecord] = []

            async def read() -> None:
                async for record in reader:
                    seen.append(record)

            with pytest.raises(DeserializationFailed):
                await read()
            assert numbers(seen) == [0, 1, 2, 3]
            assert [record.key for record in seen] == ["k0", "k1", "k2", "k3"]
            reader.seek(WHERE, POISON + 1)
            assert (await anext(reader)).value == {"number": 5}

    play(scenario, {"t": 1})


def test_run_counts_it_as_the_handlers_failure() -> None:
    """It is tried again, as whatever fails; without dead letters its error ends the run at that record."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        await fill(ports)
        handled: list[ConsumerRecord] = []
        async with consumer(ports) as reader:
            with pytest.raises(DeserializationFailed):
                await handle_async(reader, handled.append, attempts=2, backoff_ms=10, dead_letters=False)
            assert await reader.position(WHERE) == POISON
        assert numbers(handled) == [0, 1, 2, 3]

    play(scenario, {"t": 1})


def test_nothing_is_made_of_nothing() -> None:
    """A record without a value (a tombstone) stays without: no deserializer is asked."""

    async def scenario(cluster: ScriptedCluster, ports: Ports) -> None:
        async with Producer(BOOTSTRAP, clock=ports.clock, rng=ports.rng) as producer:
            await asyncio.gather(
                *[await producer.send("t", None, partition=0), await producer.send("t", b"", partition=0)]
            )
        async with consumer(ports, value_deserializer=len) as reader:
            assert [record.value for record in await reader.poll(5.0)] == [None, 0]

    play(scenario, {"t": 1})


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"value\.deserializer"):
        ConsumerConfig({"value.deserializer": "org.example.Json"})


def test_the_error_travels() -> None:
    """Between processes, as every error of the client."""
    error = pickle.loads(pickle.dumps(DeserializationFailed("t", 0, 4, "value", "ValueError: no")))
    assert (error.offset, str(error)) == (4, "the value of t-0 at offset 4 cannot be deserialized: ValueError: no")
