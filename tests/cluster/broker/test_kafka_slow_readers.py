"""Clients that take no answers use up what is there for answers: who still has to wait, and who has not."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kafka_node import kafka_node
from kafka_wire import connect
from test_kafka_fetch import append, committed, fetch
from test_kafka_hostile import healthy
from test_kafka_produce import batch

from strandline.cluster.broker.config import MIB, BrokerConfig, ListenerConfig
from strandline.cluster.broker.memory import Account


def test_who_asks_for_little_is_served_beside_them(tmp_path: Path) -> None:
    """Others hold all that fetches may bring: a small question is answered at once, a fetch waits; when they hold all
    there is, both wait; when they are gone, both are answered."""

    async def main() -> None:
        service = BrokerConfig(memory_bytes=16 * MIB)
        async with kafka_node(tmp_path, service=service) as node:
            node.create_topic("t")
            append(node, "t", 0, batch(bytes(900_000)))
            await committed(node, "t", 0, 1)
            memory = node.broker.memory
            memory.charge(Account.SEND, 7 * MIB + 1)
            async with connect(node.listener.endpoint) as reader, connect(node.listener.endpoint) as late:
                asked = asyncio.ensure_future(reader.receive(fetch(reader, 11, "t", {0: 0})))
                for _ in range(5):
                    await healthy(node)
                assert not asked.done()
                memory.charge(Account.SEND, 1 * MIB)
                waiting = asyncio.ensure_future(late.ask("metadata", 9, topics=()))
                for _ in range(50):
                    await asyncio.sleep(0)
                assert not waiting.done()
                memory.release(Account.SEND, 8 * MIB + 1)
                async with asyncio.timeout(20):
                    (result,) = (await asked).responses[0].partitions
                    assert (await waiting).controller_id == 1
                assert len(result.records) > 900_000
            assert memory.used_bytes == 0

    asyncio.run(main())


def test_nothing_is_done_for_who_is_gone(tmp_path: Path) -> None:
    """A write has told that the peer is gone: what it asked besides is not read from disk any more."""

    async def main() -> None:
        async with kafka_node(tmp_path, listener=ListenerConfig(requests_in_flight_max=10_000)) as node:
            node.create_topic("t")
            append(node, "t", 0, batch(bytes(900_000)))
            await committed(node, "t", 0, 1)
            async with connect(node.listener.endpoint) as client:
                for _ in range(500):
                    fetch(client, 11, "t", {0: 0})
                await client.writer.drain()
                client.writer.transport.abort()
            async with asyncio.timeout(20):
                while node.listener.connections:
                    await asyncio.sleep(0.01)
            assert node.listener.stats.apis["Fetch", 11].answers < 100

    asyncio.run(main())
