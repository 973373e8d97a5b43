"""Clients that send half a request and then a byte now and then: who waits for them, and for how long (rule A27)."""

from __future__ import annotations

import asyncio
import struct
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from kafka_node import kafka_node, until
from kafka_wire import KafkaClient, connect
from structlog.testing import capture_logs
from test_kafka_loop_time import PASSWORD, log_in
from test_kafka_produce import batch, produced

from strandline.cluster.broker import listener as listeners
from strandline.cluster.broker.config import MIB, BrokerConfig
from strandline.cluster.security.sasl import SaslSettings

ANNOUNCED = struct.pack(">ihhih", 50 * MIB, 0, 9, 1, 0) + b"\0"
SQUEEZED = BrokerConfig(memory_bytes=16 * MIB)
"""Eight for requests, four of one payer."""


def begin(client: KafkaClient, size: int) -> None:
    """A request of 50 MB, of which so much comes."""
    client.writer.write(ANNOUNCED + bytes(size))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "WAITING_SWEEP_MS", 20)
    monkeypatch.setattr(listeners, "SLOW_MS_MAX", 50)


def test_who_drips_keeps_others_of_its_own_waiting_alone(tmp_path: Path) -> None:
    """Five requests of one user hold all that it may, and the turn: another user's are written at once, and nobody has
    to be closed for that."""

    async def main() -> None:
        plain = dict.fromkeys(("alice", "mallory"), PASSWORD)
        async with (
            kafka_node(tmp_path, service=SQUEEZED, sasl=SaslSettings(["PLAIN"]), plain=plain) as node,
            AsyncExitStack() as stack,
        ):
            node.create_topic("t", max_message_bytes=str(4 * MIB))
            node.listener.waits_for_room = lambda: None  # type: ignore[method-assign]
            slow = [await stack.enter_async_context(connect(node.listener.endpoint)) for _ in range(5)]
            alice = await stack.enter_async_context(connect(node.listener.endpoint))
            for client in slow:
                await log_in(client, "mallory")
            await log_in(alice, "alice")
            for client in slow:
                begin(client, 6 * MIB)
            await until(lambda: node.broker.memory.turn is not None and node.broker.memory.receivers_wait)
            for _ in range(3):
                assert (await produced(alice, 9, "t", {0: batch(bytes(2 * MIB))})).error_code == 0
            assert len(node.listener.connections) == 6

    asyncio.run(main())


def test_the_slowest_is_closed_when_others_wait(tmp_path: Path) -> None:
    """All come from one address and say nothing of who they are: there is no other way to tell them apart."""

    async def main() -> None:
        async with (
            kafka_node(tmp_path, service=SQUEEZED) as node,
            AsyncExitStack() as stack,
        ):
            node.create_topic("t", max_message_bytes=str(4 * MIB))
            slow = [await stack.enter_async_context(connect(node.listener.endpoint)) for _ in range(5)]
            honest = await stack.enter_async_context(connect(node.listener.endpoint))
            for client in slow:
                begin(client, 6 * MIB)
            await until(lambda: node.broker.memory.turn is not None and node.broker.memory.receivers_wait)

            async def drip() -> None:
                while True:
                    for client in slow:
                        client.writer.write(b"\0")
                    await asyncio.sleep(0.01)

            dripping = asyncio.ensure_future(drip())
            assert (await produced(honest, 9, "t", {0: batch(bytes(2 * MIB))})).error_code == 0
            dripping.cancel()

    with capture_logs() as logs:
        asyncio.run(main())
    lines = [line for line in logs if line["event"] == "closed a slow connection to free memory"]
    assert lines
    assert all(line["bytes_per_s"] < line["least_bytes_per_s"] and line["held_bytes"] > 0 for line in lines)


def test_a_slow_request_lives_while_there_is_room(tmp_path: Path) -> None:
    """Nobody waits for what it holds."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node, connect(node.listener.endpoint) as slow:
            begin(slow, MIB)
            await until(lambda: node.broker.memory.used_bytes > MIB)
            for _ in range(5):
                slow.writer.write(b"\0")
                node.listener._sweep()
                await asyncio.sleep(0.06)
            assert len(node.listener.connections) == 1

    asyncio.run(main())
