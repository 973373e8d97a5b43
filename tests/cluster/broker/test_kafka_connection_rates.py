"""connection_creation_rate: an address's connections above it wait before they are let in (rule A21, KIP-612)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kafka_node import KafkaNode, kafka_node, until
from kafka_wire import KafkaClient
from quota_case import set_quota
from structlog.testing import capture_logs

from strandline.cluster.broker.config import BrokerConfig
from strandline.cluster.broker.quotas import arrivals
from strandline.cluster.broker.quotas.arrivals import TOO_MANY
from strandline.proto.quotas import QuotaEntity

HERE, EVERYWHERE, OTHER = QuotaEntity(ip="127.0.0.1"), QuotaEntity(ip=""), "127.0.0.2"


def run(path: Path, main: Callable[[KafkaNode], Awaitable[None]], windows_ms: int = 1000) -> None:
    """A node on which an address may open what its rate gives in `windows_ms` at once."""

    async def body() -> None:
        service = BrokerConfig(quota_windows=1, quota_window_s=windows_ms / 1000)
        async with kafka_node(path, service=service) as node:
            await main(node)

    asyncio.run(body())


@asynccontextmanager
async def connected(node: KafkaNode, source: str = "127.0.0.1") -> AsyncIterator[KafkaClient]:
    endpoint = node.listener.endpoint
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, local_addr=(source, 0))
    try:
        yield KafkaClient(reader, writer)
    finally:
        writer.close()


async def served(client: KafkaClient) -> bool:
    return bool((await client.ask("api_versions", 0)).api_keys)


def waiting(node: KafkaNode) -> int:
    quotas = node.broker.quotas
    return 0 if quotas is None else len(quotas.arrivals)


def test_connections_above_the_rate_wait_for_their_slots_and_are_served(tmp_path: Path) -> None:
    """One at once, and one each 50 ms; those of another address, in the midst of them, do not wait."""

    async def main(node: KafkaNode) -> None:
        set_quota(node, HERE, connection_creation_rate=20)
        began = time.monotonic()
        entered: list[float] = []

        async def come() -> None:
            async with connected(node) as client:
                assert await served(client)
                entered.append(time.monotonic() - began)

        coming = [asyncio.ensure_future(come()) for _ in range(9)]
        await until(lambda: waiting(node) > 0)
        async with connected(node, OTHER) as other:
            assert await served(other)
            assert waiting(node) > 0
        await asyncio.gather(*coming)
        assert waiting(node) == 0
        assert all(when >= 0.05 * place - 0.005 for place, when in enumerate(entered))
        quotas = node.broker.quotas
        assert quotas is not None
        assert quotas.arrivals.quota.throttles >= 6

    run(tmp_path, main, windows_ms=50)


def test_a_default_gives_each_address_its_own_rate(tmp_path: Path) -> None:
    async def main(node: KafkaNode) -> None:
        set_quota(node, EVERYWHERE, connection_creation_rate=1)
        async with connected(node) as one, connected(node, OTHER) as two, connected(node):
            assert await served(one)
            assert await served(two)
            await until(lambda: waiting(node) == 1)

    run(tmp_path, main)


def test_of_a_connection_that_waits_nothing_is_read(tmp_path: Path) -> None:
    """And it is not one of the listener's yet, with its buffers and its place among max.connections."""

    async def main(node: KafkaNode) -> None:
        set_quota(node, HERE, connection_creation_rate=1)
        async with connected(node) as first, connected(node) as second:
            assert await served(first)
            asked = second.send("api_versions", 0)
            await until(lambda: waiting(node) == 1)
            await asyncio.sleep(0.05)
            assert node.listener.stats.connections == 1
            set_quota(node, QuotaEntity("alice"), producer_byte_rate=1)
            assert waiting(node) == 1, "another's quota changes nothing"
            set_quota(node, HERE, connection_creation_rate=None)
            assert (await second.receive(asked)).api_keys, "no quota, no wait; and what it sent was not lost"
            assert node.listener.stats.connections == 2

    run(tmp_path, main, windows_ms=1000)


def test_those_that_wait_are_bounded_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is closed at once, takes nothing of the rate, and the log has one line."""
    monkeypatch.setattr(arrivals, "WAITING_OF_ADDRESS_MAX", 3)
    monkeypatch.setattr(arrivals, "WAITING_MAX", 4)

    async def main(node: KafkaNode) -> None:
        set_quota(node, EVERYWHERE, connection_creation_rate=1)
        endpoint = node.listener.endpoint
        opened = []

        async def come(source: str = "127.0.0.1") -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, local_addr=(source, 0))
            opened.append(writer)
            return reader

        async def is_closed(reader: asyncio.StreamReader) -> bool:
            try:
                async with asyncio.timeout(5):
                    return await reader.read(1) == b""
            except ConnectionError:
                return True

        with capture_logs() as lines:
            for _ in range(4):
                await come()
            await until(lambda: waiting(node) == 3)
            for _ in range(5):
                assert await is_closed(await come())
            await come(OTHER)
            await come(OTHER)
            await until(lambda: waiting(node) == 4)
            assert await is_closed(await come(OTHER)), "as many as may wait of all addresses"
        said = [line for line in lines if line["event"] == "closed a new connection"]
        assert [line["reason"] for line in said] == [TOO_MANY]
        assert node.listener.stats.refused == 6
        quotas = node.broker.quotas
        assert quotas is not None
        share = quotas.arrivals.share("127.0.0.1")
        assert share is not None
        assert quotas.arrivals.quota.wait_ms(share, quotas.clock.monotonic_ms()) <= 3000
        set_quota(node, EVERYWHERE, connection_creation_rate=None)
        await until(lambda: node.listener.stats.connections == 6)
        for writer in opened:
            writer.close()

    run(tmp_path, main)


def test_a_listener_that_closes_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def main(node: KafkaNode) -> None:
        set_quota(node, HERE, connection_creation_rate=1)
        async with connected(node), connected(node) as second:
            await until(lambda: waiting(node) == 1)
            await node.listener.close()
            assert await second.closed()
            assert waiting(node) == 0

    run(tmp_path, main)


def test_a_client_that_leaves_while_it_waits_is_not_let_in_for_long(tmp_path: Path) -> None:
    async def main(node: KafkaNode) -> None:
        set_quota(node, HERE, connection_creation_rate=10)
        async with connected(node) as first:
            assert await served(first)
            async with connected(node):
                await until(lambda: waiting(node) == 1)
            await until(lambda: waiting(node) == 0)
            await until(lambda: node.listener.stats.connections == 1)

    run(tmp_path, main, windows_ms=100)
