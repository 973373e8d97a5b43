"""Broken and hostile clients: each is met with Kafka's error or a closed connection and one log line, and none of them
makes the node fall or another client wait."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_node import KafkaNode, kafka_node, until
from kafka_wire import KafkaClient, connect, frame
from structlog.testing import capture_logs
from test_kafka_fetch import append, committed, fetch
from test_kafka_produce import batch, lonely_topic, produce

from strandline.cluster.broker.config import MIB, BrokerConfig, ListenerConfig
from strandline.cluster.broker.handlers import produce as produce_api
from strandline.cluster.broker.handlers.metadata import MetadataHandler
from strandline.cluster.broker.receive import START_BYTES
from strandline.cluster.broker.table import APIS
from strandline.proto.notes import KINDS_MAX


async def healthy(node: KafkaNode) -> None:
    """Another client is served, now."""
    async with asyncio.timeout(5), connect(node.listener.endpoint) as client:
        assert (await client.ask("metadata", 9, topics=())).controller_id == 1


@contextmanager
def one_line(words: str) -> Iterator[None]:
    """Exactly one connection is closed, with a sentence that has `words`."""
    with capture_logs() as logs:
        yield
    lines = [line for line in logs if line["event"] == "closed a client's connection"]
    assert len(lines) == 1, logs
    assert words in lines[0]["reason"], lines[0]
    assert lines[0]["client"].startswith("127.0.0.1:")


BROKEN = [
    (struct.pack(">i", -1), "a frame of -1 bytes"),
    (struct.pack(">i", 0), "a frame of 0 bytes"),
    (struct.pack(">i", 7), "a frame of 7 bytes"),
    (struct.pack(">i", 2**31 - 1), "socket.request.max.bytes"),
    (struct.pack(">i", 100 * MIB + 1), "socket.request.max.bytes"),
    (struct.pack(">ihhi", 50 * MIB, 3, 9, 1), "Metadata, which takes"),
    (struct.pack(">ihhi", 50 * MIB, 19, 5, 1), "CreateTopics, which takes"),
    (struct.pack(">ihhi", 50 * MIB, 777, 5, 1), "API 777, which takes"),
    (frame(999, 0, 1, b"", flexible=False), "API 999 (version 0) is not served"),
    (frame(38, 0, 1, b"", flexible=False), "API 38 (version 0) is not served"),
    (frame(-1, 5, 1, b"", flexible=False), "API -1"),
    (frame(0, 2, 1, b"", flexible=False), "version 2 of Produce is not served, only 3 to 13"),
    (frame(0, 14, 1, b"", flexible=True), "version 14 of Produce is not served, only 3 to 13"),
    (frame(3, 99, 1, b"", flexible=True), "version 99 of Metadata is not served"),
    (frame(2, -3, 1, b"", flexible=True), "version -3 of ListOffsets is not served"),
    (struct.pack(">ihhi", 8, 3, 9, 1), "ends within a field"),
    (struct.pack(">ihhih", 10, 3, 9, 1, 500), "claims 500 bytes"),
    (struct.pack(">ihhihB", 11, 3, 9, 1, -1, 0xFF), "varint"),
    (frame(3, 9, 1, b"\xff\xff\xff\xff\x07", flexible=True), "2147483646 elements"),
    (frame(3, 4, 1, struct.pack(">i", 2**31 - 1), flexible=False), "2147483647 elements"),
    (frame(19, 5, 1, b"\xff\xff\xff\xff\x07", flexible=True), "2147483646 elements"),
    (frame(0, 9, 1, b"\0\0\1\0\0\0\0\xff\xff\xff\xff\x07", flexible=True), "elements"),
    (frame(0, 9, 1, b"\0\0\1\0\0\0\0\x02\x02t\x02\0\0\0\0\xff\xff\xff\xff\x07", flexible=True), "bytes"),
    (
        frame(0, 7, 1, b"\xff\xff\0\1\0\0\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\x7f\xff\xff\xff", flexible=False),
        "A field claims",
    ),
    (frame(0, 9, 1, b"\0\0\1\0\0\0\0\x01\0JUNK", flexible=True), "v9 cannot be read: 4 bytes after the end"),
    (frame(1, 12, 1, b"\xff" * 40, flexible=True), ""),
    (frame(1, 4, 1, b"\0" * 10, flexible=False), "ends within a field"),
    (
        frame(10, 1, 1, b"\0\1g\0JUNK", flexible=False),
        "FindCoordinatorRequest v1 cannot be read: 4 bytes after the end",
    ),
    (
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "an HTTP request ('GET /metrics HTTP/1.1') on the Kafka port",
    ),
    (b"POST / HTTP/1.1\r\n\r\n", "an HTTP request"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "an HTTP request"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "a TLS handshake on a plaintext Kafka port"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", "an SSH client"),
]


@pytest.mark.parametrize(("raw", "words"), BROKEN, ids=[words or repr(raw[:20]) for raw, words in BROKEN])
def test_a_broken_client_is_closed_with_a_sentence(tmp_path: Path, raw: bytes, words: str) -> None:
    """Lying lengths, unknown APIs and versions, other protocols."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            with one_line(words):
                async with connect(node.listener.endpoint) as client:
                    client.writer.write(raw)
                    assert await client.closed()
                await asyncio.sleep(0.01)
            await healthy(node)
            await until(lambda: node.listener.stats.refused == 1)

    asyncio.run(main())


def test_broken_clients_without_end_are_few_lines(tmp_path: Path) -> None:
    """Rule A23: a line for each bad frame was 15 GB a day."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            for number in range(60):
                async with connect(node.listener.endpoint) as client:
                    client.writer.write(frame(1_000 + number % 30, 0, 1, b"", flexible=False))
                    assert await client.closed()
            await until(lambda: node.listener.stats.refused == 60)

    with capture_logs() as logs:
        asyncio.run(main())
    assert sum(line["event"] == "closed a client's connection" for line in logs) == KINDS_MAX


def test_what_came_before_a_broken_frame_is_answered(tmp_path: Path) -> None:
    """Answers that are ready leave before the connection is closed."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node, connect(node.listener.endpoint) as client:
            sent = client.send("metadata", 9, topics=())
            client.writer.write(struct.pack(">i", -5))
            assert (await client.receive(sent)).controller_id == 1
            assert await client.closed()

    asyncio.run(main())


def test_random_bytes_never_reach_further_than_their_connection(tmp_path: Path) -> None:
    """Frames of any API and version with random bodies: an answer or a closed connection, no mistake of ours."""
    bodies = st.lists(st.sampled_from([0, 0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x74]), max_size=40).map(bytes)
    cases: list[tuple[int, int, bytes]] = []

    @settings(max_examples=300, database=None, deadline=None)
    @given(st.sampled_from(sorted(APIS)), st.integers(-1, 19), bodies)
    def collect(key: int, version: int, body: bytes) -> None:
        cases.append((key, version, body))

    collect()

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            with capture_logs() as logs:
                for key, version, body in cases:
                    async with connect(node.listener.endpoint) as client:
                        flexible = key in APIS and version >= APIS[key].api.flexible_since
                        client.writer.write(frame(key, version, 1, body, flexible=flexible))
                        client.writer.write_eof()
                        async with asyncio.timeout(5):
                            await client.reader.read()
            mistakes = [line for line in logs if line["log_level"] in ("error", "critical")]
            assert not mistakes, mistakes
            await healthy(node)

    asyncio.run(main())


def test_random_streams(tmp_path: Path) -> None:
    """Bytes without any frame at all."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:

            @settings(max_examples=60, database=None, deadline=None)
            @given(st.binary(max_size=200))
            def collect(raw: bytes) -> None:
                streams.append(raw)

            streams: list[bytes] = []
            collect()
            for raw in streams:
                async with connect(node.listener.endpoint) as client:
                    client.writer.write(raw)
                    client.writer.write_eof()
                    async with asyncio.timeout(5):
                        await client.reader.read()
            await healthy(node)

    asyncio.run(main())


def test_a_frame_in_single_bytes(tmp_path: Path) -> None:
    """However a frame is cut, it is one frame."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node, connect(node.listener.endpoint) as client:
            node.create_topic("t")
            raw = frame(3, 4, 77, struct.pack(">ih1sB", 1, 1, b"t", 0), flexible=False)
            for byte in raw:
                client.writer.write(bytes([byte]))
                await client.writer.drain()
                await asyncio.sleep(0)
            answer = await client.receive_frame()
            assert struct.unpack_from(">i", answer)[0] == 77

    asyncio.run(main())


def test_many_frames_in_one_write(tmp_path: Path) -> None:
    """A thousand pipelined requests are answered, in order."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node, connect(node.listener.endpoint) as client:
            sent = [client.send("metadata", 4, topics=()) for _ in range(1000)]
            for one in sent:
                await client.receive(one)

    asyncio.run(main())


def test_a_large_frame(tmp_path: Path) -> None:
    """A batch beyond the first buffer's size is received whole; its memory is given back once the client is idle."""

    async def main() -> None:
        config = ListenerConfig(stalled_ms_max=100)
        async with kafka_node(tmp_path, listener=config) as node, connect(node.listener.endpoint) as client:
            node.create_topic("t", max_message_bytes=str(16 * MIB))
            raw = batch(bytes(9 * MIB))
            for number in range(2):
                answer = await client.receive(produce(client, 9, "t", {0: raw}))
                assert answer.responses[0].partition_responses[0].base_offset == number
            assert node.broker.memory.used_bytes > 9 * MIB
            async with asyncio.timeout(5):
                while node.broker.memory.used_bytes:
                    await asyncio.sleep(0.02)
            assert (await client.ask("metadata", 9, topics=())).controller_id == 1

    asyncio.run(main())


def test_announced_and_never_sent(tmp_path: Path) -> None:
    """A hundred clients announce 100 MB each and send a little: they cost their first buffers."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            clients = [await asyncio.open_connection(*node.listener.endpoint) for _ in range(100)]
            for _, writer in clients:
                writer.write(struct.pack(">ihhi", 100 * MIB, 0, 9, 1) + bytes(1000))
            await asyncio.sleep(0.1)
            assert node.broker.memory.used_bytes == 0
            await healthy(node)
            for _, writer in clients:
                writer.close()

    asyncio.run(main())


def test_a_client_that_takes_no_answers(tmp_path: Path) -> None:
    """It asks for far more than it reads: the node stops reading it, holds a bounded amount, and serves others."""

    async def main() -> None:
        config = ListenerConfig(write_buffer_bytes=256 << 10, queued_bytes_max=256 << 10)
        async with kafka_node(tmp_path, listener=config) as node:
            node.create_topic("t")
            append(node, "t", 0, *[batch(bytes(500_000))] * 4)
            await committed(node, "t", 0, 4)
            async with connect(node.listener.endpoint) as client, connect(node.listener.endpoint) as other:
                client.writer.transport.pause_reading()
                for _ in range(200):
                    fetch(client, 11, "t", {0: {"fetch_offset": 0, "partition_max_bytes": 4 * MIB}})
                await asyncio.sleep(0.2)
                assert node.broker.memory.used_bytes < 16 * MIB
                assert (await other.ask("metadata", 9, topics=())).controller_id == 1
                assert not client.reader.at_eof()

    asyncio.run(main())


def test_a_slow_reader_gets_everything(tmp_path: Path) -> None:
    """Back pressure goes away when the client reads: every answer comes, in order."""

    async def main() -> None:
        config = ListenerConfig(write_buffer_bytes=64 << 10, queued_bytes_max=64 << 10, requests_in_flight_max=4)
        async with kafka_node(tmp_path, listener=config) as node:
            node.create_topic("t")
            append(node, "t", 0, *[batch(bytes(300_000))] * 3)
            await committed(node, "t", 0, 3)
            async with connect(node.listener.endpoint) as client:
                sent = [fetch(client, 11, "t", {0: number % 3}) for number in range(60)]
                for one in sent:
                    (result,) = (await client.receive(one)).responses[0].partitions
                    assert result.error_code == 0
                    assert result.records

    asyncio.run(main())


def test_requests_in_flight_are_bounded(tmp_path: Path) -> None:
    """While its requests wait, a client's further requests stay in the socket."""

    async def main() -> None:
        config = ListenerConfig(requests_in_flight_max=8)
        async with kafka_node(tmp_path, listener=config) as node:
            node.create_topic("t")
            async with connect(node.listener.endpoint) as client:
                sent = [fetch(client, 11, "t", {0: 0}, max_wait_ms=150) for _ in range(3)]
                sent += [client.send("metadata", 4, topics=()) for _ in range(50)]
                for one in sent:
                    await client.receive(one)
            assert node.listener.stats.apis["Metadata", 4].ms_max < 10_000

    asyncio.run(main())


def test_over_the_memory_budget_reading_stops_and_goes_on(tmp_path: Path) -> None:
    """Large requests of several clients beyond the budget: they are read one after the other, and all are served."""

    async def main() -> None:
        service = BrokerConfig(memory_bytes=3 * MIB)
        listener = ListenerConfig(stalled_ms_max=200)
        async with kafka_node(tmp_path, service=service, listener=listener) as node:
            node.create_topic("t", max_message_bytes=str(16 * MIB))
            raw = batch(bytes(2 * MIB))

            async def write() -> int:
                async with connect(node.listener.endpoint) as client:
                    answer = await client.receive(produce(client, 9, "t", {0: raw}))
                    return int(answer.responses[0].partition_responses[0].error_code)

            assert await asyncio.gather(write(), write(), write(), write()) == [0, 0, 0, 0]

    asyncio.run(main())


def test_who_uses_up_the_budget_and_stalls_is_closed(tmp_path: Path) -> None:
    """Half a frame that fills the budget and never ends: the holder goes, the others go on."""

    async def main() -> None:
        service = BrokerConfig(memory_bytes=1 * MIB)
        listener = ListenerConfig(stalled_ms_max=150)
        async with kafka_node(tmp_path, service=service, listener=listener) as node:
            with capture_logs() as logs:
                async with connect(node.listener.endpoint) as client:
                    client.writer.write(struct.pack(">ihhi", 50 * MIB, 0, 9, 1) + bytes(3 * MIB))
                    async with asyncio.timeout(5):
                        while node.broker.memory.turn is None:
                            await asyncio.sleep(0.01)
                    await healthy(node)
                    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                        await client.reader.readexactly(1)
                await asyncio.sleep(0.01)
            events = [line["event"] for line in logs]
            assert "closed a stalled connection to free memory" in events
            assert node.broker.memory.used_bytes == 0

    asyncio.run(main())


def test_a_request_that_drips_in_beyond_the_budget_loses_its_turn(tmp_path: Path) -> None:
    """Always a little progress, never an end: others who wait for memory are served within the limit of a stall."""

    async def main() -> None:
        service = BrokerConfig(memory_bytes=1 * MIB)
        listener = ListenerConfig(stalled_ms_max=200)
        async with kafka_node(tmp_path, service=service, listener=listener) as node:
            node.create_topic("t", max_message_bytes=str(16 * MIB))
            async with connect(node.listener.endpoint) as dripping, connect(node.listener.endpoint) as client:
                dripping.writer.write(struct.pack(">ihhi", 50 * MIB, 0, 9, 1) + bytes(3 * MIB))
                async with asyncio.timeout(5):
                    while node.broker.memory.turn is None:
                        await asyncio.sleep(0.01)
                drip = asyncio.ensure_future(drip_into(dripping))
                answer = await client.receive(produce(client, 9, "t", {0: batch(bytes(2 * MIB))}))
                assert answer.responses[0].partition_responses[0].error_code == 0
                drip.cancel()

    asyncio.run(main())


async def drip_into(client: KafkaClient) -> None:
    while True:
        client.writer.write(b"x")
        await asyncio.sleep(0.01)


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    """connections.max.idle.ms; a connection with traffic stays."""

    async def main() -> None:
        config = ListenerConfig(idle_ms_max=1000)
        async with kafka_node(tmp_path, listener=config) as node:
            async with connect(node.listener.endpoint) as busy, connect(node.listener.endpoint) as idle:
                await idle.ask("metadata", 4, topics=())
                closed = asyncio.ensure_future(idle.closed())
                while not closed.done():
                    await busy.ask("metadata", 4, topics=())
                    await asyncio.sleep(0.02)
                assert closed.result()
                await busy.ask("metadata", 4, topics=())
            assert node.listener.stats.idle_closed == 1

    asyncio.run(main())


def test_idle_connections_are_cheap(tmp_path: Path) -> None:
    """Between small requests a connection holds no buffer; after a large one it gives it back once it is quiet."""

    async def main() -> None:
        config = ListenerConfig(stalled_ms_max=100)
        async with kafka_node(tmp_path, listener=config) as node, connect(node.listener.endpoint) as client:
            node.create_topic("t")
            await client.ask("metadata", 4, topics=())
            (connection,) = node.listener.connections
            assert connection.buffer_bytes == 0
            await client.receive(produce(client, 9, "t", {0: batch(bytes(100_000))}))
            assert connection.buffer_bytes > START_BYTES
            async with asyncio.timeout(5):
                while connection.buffer_bytes:
                    await asyncio.sleep(0.02)
            await client.ask("metadata", 4, topics=())

    asyncio.run(main())


def test_a_mistake_of_ours_closes_one_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception out of a handler is logged with its trace, and the node goes on."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:

            def fail(*arguments: Any, **options: Any) -> None:
                raise ZeroDivisionError("on purpose")

            monkeypatch.setattr(node.broker.handlers.of(MetadataHandler), "_describe_topics", fail)
            with capture_logs() as logs:
                async with connect(node.listener.endpoint) as client:
                    client.send("metadata", 9, topics=None)
                    assert await client.closed()
                await asyncio.sleep(0.01)
            assert [line["log_level"] for line in logs] == ["error", "warning"]
            monkeypatch.undo()
            await healthy(node)

    asyncio.run(main())


def test_a_mistake_of_ours_in_an_answer_stays_with_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replicas call back into an answer that fails: they, and others who wait for the same commit, go on."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            write_response = produce_api.write_response

            def fail_once(*arguments: Any, **named: Any) -> bytes:
                monkeypatch.setattr(produce_api, "write_response", write_response)
                raise ZeroDivisionError("on purpose")

            monkeypatch.setattr(produce_api, "write_response", fail_once)
            with capture_logs() as logs:
                async with connect(node.listener.endpoint) as unlucky, connect(node.listener.endpoint) as other:
                    produce(unlucky, 9, "t", {0: batch(b"x")})
                    assert await unlucky.closed()
                    answer = await other.receive(produce(other, 9, "t", {0: batch(b"y")}))
                    assert answer.responses[0].partition_responses[0].base_offset == 1
            assert [line["log_level"] for line in logs] == ["error", "warning"]

    asyncio.run(main())


def test_closing_the_listener_lets_answers_leave(tmp_path: Path) -> None:
    """Whoever waits for nothing is answered and closed; nobody is accepted any more."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            endpoint = node.listener.endpoint
            lonely_topic(node)
            async with connect(endpoint) as client, connect(endpoint) as parked:
                produce(parked, 9, "lonely", {0: batch(b"x")}, timeout_ms=20_000)
                sent = client.send("metadata", 9, topics=())
                assert (await client.receive(sent)).controller_id == 1
                await node.listener.close()
                assert await client.closed()
                assert await parked.closed()
            with pytest.raises(ConnectionError):
                await asyncio.open_connection(*endpoint)
            assert isinstance(client, KafkaClient)

    asyncio.run(main())
