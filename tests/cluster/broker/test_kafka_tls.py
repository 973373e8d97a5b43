"""The broker's bounds hold over TLS: memory, back pressure, closing."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from kafka_node import KafkaNode, kafka_node, until
from kafka_wire import connect
from quota_case import set_quota
from test_kafka_fetch import append, committed, fetch
from test_kafka_produce import batch

from strandline.cluster.broker.config import MIB, BrokerConfig, ListenerConfig
from strandline.cluster.security.dev_certificates import DevCa
from strandline.cluster.security.principal import PrincipalRules
from strandline.cluster.security.tls_door import ListenerTls, TlsDoor
from strandline.proto.quotas import QuotaEntity
from strandline.proto.system import SystemClock
from strandline.proto.tls import TlsSettings, client_context, server_context

ANSWER = 900_000


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> DevCa:
    return DevCa(tmp_path_factory.mktemp("ca"))


def listener(ca: DevCa) -> ListenerTls:
    context = server_context(TlsSettings(keystore_location=str(ca.node(1))))
    return ListenerTls(TlsDoor("PLAINTEXT", lambda: context, SystemClock()), PrincipalRules("rules", "DEFAULT"))


def trusting(ca: DevCa) -> ssl.SSLContext:
    return client_context(TlsSettings(truststore_location=str(ca.file)))


async def prepared(node: KafkaNode) -> None:
    node.create_topic("t")
    append(node, "t", 0, batch(bytes(ANSWER)))
    await committed(node, "t", 0, 1)


@pytest.mark.parametrize("encrypted", [False, True])
def test_answers_that_nobody_takes_count_and_stop_the_requests(tmp_path: Path, ca: DevCa, encrypted: bool) -> None:
    """The same with TLS and without: a client asks for 60 answers and takes none; a few megabytes are held and are
    counted. When it takes them all of them come, in order."""

    async def main() -> None:
        limits = ListenerConfig(write_buffer_bytes=MIB)
        tls = listener(ca) if encrypted else None
        async with kafka_node(tmp_path, listener=limits, tls=tls) as node:
            await prepared(node)
            async with connect(node.listener.endpoint, trusting(ca) if encrypted else None) as client:
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                asked = [fetch(client, 11, "t", {0: 0}) for _ in range(60)]
                await client.writer.drain()
                memory = node.broker.memory
                await until(lambda: node.listener.connections)
                (connection,) = node.listener.connections
                await until(lambda: memory.used_bytes >= MIB and connection.unsent_bytes > MIB)
                for _ in range(20):
                    await asyncio.sleep(0.01)
                assert connection.unsent_bytes > MIB // 4  # with less it would have written on
                assert memory.used_bytes >= connection.unsent_bytes
                assert memory.used_bytes < 8 * MIB
                assert node.listener.stats.apis["Fetch", 11].answers < 30
                client.writer.transport.resume_reading()  # type: ignore[attr-defined]
                async with asyncio.timeout(60):
                    for question in asked:
                        (result,) = (await client.receive(question)).responses[0].partitions
                        assert len(result.records) > ANSWER

    asyncio.run(main())


def test_a_closing_listener_lets_the_last_answers_leave(tmp_path: Path, ca: DevCa) -> None:
    async def main() -> None:
        async with kafka_node(tmp_path, service=BrokerConfig(), tls=listener(ca)) as node:
            await prepared(node)
            async with connect(node.listener.endpoint, trusting(ca)) as client:
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                asked = [fetch(client, 11, "t", {0: 0}) for _ in range(20)]
                async with asyncio.timeout(20):
                    while not any(connection.unsent_bytes for connection in node.listener.connections):
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                answered = node.listener.stats.apis["Fetch", 11].answers
                assert 0 < answered < 20
                client.writer.transport.resume_reading()  # type: ignore[attr-defined]
                await node.listener.close()
                async with asyncio.timeout(20):
                    for question in asked[:answered]:
                        (result,) = (await client.receive(question)).responses[0].partitions
                        assert len(result.records) > ANSWER

    asyncio.run(main())


def test_a_connection_above_the_rate_of_its_address_waits_before_its_handshake(tmp_path: Path, ca: DevCa) -> None:
    """Rule A21: a handshake is what costs (KIP-612). It is made when the connection is let in."""

    async def main() -> None:
        tls = listener(ca)
        service = BrokerConfig(quota_windows=1, quota_window_s=1)
        async with kafka_node(tmp_path, tls=tls, service=service) as node:
            set_quota(node, QuotaEntity(ip=""), connection_creation_rate=1)
            async with connect(node.listener.endpoint, trusting(ca)) as first:
                assert (await first.ask("api_versions", 0)).api_keys
                second = asyncio.ensure_future(shaken(node))
                quotas = node.broker.quotas
                assert quotas is not None
                await until(lambda: len(quotas.arrivals) == 1)
                await asyncio.sleep(0.05)
                assert tls.door.handshakes == 0
                await second

    async def shaken(node: KafkaNode) -> None:
        async with connect(node.listener.endpoint, trusting(ca)) as client:
            assert (await client.ask("api_versions", 0)).api_keys

    asyncio.run(main())


def test_answers_behind_the_end_of_a_connection_are_no_mistake_of_ours(tmp_path: Path, ca: DevCa) -> None:
    """A mutated request ends the connection while others are being answered: each answer closes it again. asyncio's
    transport of TLS forgets its connection when it is closed twice, and whatever is asked of it then fails."""
    unforeseen: list[dict[str, object]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unforeseen.append(context))
        gates = [asyncio.Event() for _ in range(4)]
        asked = iter(gates)

        async def gate() -> None:
            await next(asked).wait()

        async with kafka_node(tmp_path, tls=listener(ca)) as node:
            node.controller.gate = gate
            async with connect(node.listener.endpoint, trusting(ca)) as client:
                for number in range(len(gates)):
                    topic = {"name": f"t{number}", "num_partitions": 1, "replication_factor": 1}
                    client.send("create_topics", 7, topics=[topic], timeout=10_000)
                client.writer.write(b"\x7f\xff\xff\xff")
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                await until(lambda: node.listener.connections)
                [connection] = node.listener.connections
                await until(lambda: connection._reason)
                for one in gates:
                    one.set()
                    for _ in range(5):
                        await asyncio.sleep(0)
                assert connection.unsent_bytes >= 0
                client.writer.transport.resume_reading()  # type: ignore[attr-defined]
                await until(lambda: not node.listener.connections)

    asyncio.run(main())
    assert not unforeseen
