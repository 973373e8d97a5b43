"""Our client against a broker that lies: each call ends in time, with an error that says so, and costs what arrived."""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import psutil
import pytest

from strandline.client.errors import BrokerUnreachable
from strandline.client.network import SUPPORTED, Connection, connect
from strandline.proto.errors import KafkaError, ProtocolError, StrandlineError
from strandline.proto.ids import Endpoint
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import uvarint
from tests.hostile.messages import EVERY_ANSWER, answer, mutated
from tests.hostile.node import MIB
from tests.hostile.targets import read_answer

VERSIONS = struct.pack(">hi", 0, len(SUPPORTED)) + b"".join(
    struct.pack(">hhh", api, known.low, 0 if api is Api.API_VERSIONS else known.high)
    for api, known in SUPPORTED.items()
)
"""An honest answer to ApiVersions in version 0."""

Reply = Callable[..., Awaitable[None]]
"""(writer, correlation id, API key, version): answers as it likes."""


@asynccontextmanager
async def liar(reply: Reply) -> AsyncIterator[Endpoint]:
    """A broker that settles versions honestly and then answers every other request by `reply`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                key, version, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
                if key != Api.API_VERSIONS:
                    await reply(writer, correlation_id, key, version)
                elif version > 0:
                    writer.write(struct.pack(">iih", 6 + len(VERSIONS) - 2, correlation_id, 35) + VERSIONS[2:])
                else:
                    writer.write(struct.pack(">ii", 4 + len(VERSIONS), correlation_id) + VERSIONS)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Endpoint(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()


async def asked(endpoint: Endpoint, timeout_ms: float = 30_000) -> BaseException | None:
    """How a question for metadata ends."""
    connection: Connection = await connect(endpoint, "test", setup_timeout_ms=20_000, request_timeout_ms=20_000)
    values = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    try:
        await connection.call(Api.METADATA, values, timeout_ms)
    except (StrandlineError, KafkaError) as error:
        return error
    finally:
        connection.close()
    return None


def test_a_frame_announced_and_never_sent() -> None:
    """200 MB are announced: the client takes memory for what came, and gives up at the request's time."""

    async def reply(writer: asyncio.StreamWriter, correlation_id: int, *_: int) -> None:
        writer.write(struct.pack(">ii", 200 * MIB, correlation_id) + bytes(70_000))

    async def main() -> None:
        before = psutil.Process().memory_info().rss
        grown = 0

        async def watch() -> None:
            nonlocal grown
            while True:
                grown = max(grown, psutil.Process().memory_info().rss - before)
                await asyncio.sleep(0.02)

        async with liar(reply) as endpoint:
            watching = asyncio.ensure_future(watch())
            error = await asked(endpoint, 500)
            watching.cancel()
        assert "did not answer METADATA within 500 ms" in str(error)
        assert grown < 32 * MIB

    asyncio.run(main())


@pytest.mark.parametrize("size", [-1, 0, 3, 2**31 - 1, 300 * MIB])
def test_frames_of_no_possible_size(size: int) -> None:
    async def reply(writer: asyncio.StreamWriter, correlation_id: int, *_: int) -> None:
        writer.write(struct.pack(">ii", size, correlation_id))

    async def main() -> None:
        async with liar(reply) as endpoint:
            assert isinstance(await asked(endpoint), ProtocolError)

    asyncio.run(main())


def test_a_frame_that_never_ends() -> None:
    """A byte now and then is no answer."""

    async def reply(writer: asyncio.StreamWriter, correlation_id: int, *_: int) -> None:
        writer.write(struct.pack(">ii", MIB, correlation_id))
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def main() -> None:
        async with liar(reply) as endpoint:
            assert "did not answer METADATA within 300 ms" in str(await asked(endpoint, 300))

    asyncio.run(main())


def test_answers_that_nobody_asked_for() -> None:
    """A stream of frames without end: the first that belongs to no request ends the connection."""

    async def reply(writer: asyncio.StreamWriter, correlation_id: int, *_: int) -> None:
        while True:
            writer.write(struct.pack(">ii", 8, correlation_id + 1) + bytes(4))
            await writer.drain()

    async def main() -> None:
        async with liar(reply) as endpoint:
            assert isinstance(await asked(endpoint), ProtocolError)

    asyncio.run(main())


def test_mutated_answers() -> None:
    """Random bodies, arrays that lie, two hundred of them: an answer or a ProtocolError, never anything else."""
    rng = random.Random(21)

    async def reply(writer: asyncio.StreamWriter, correlation_id: int, *_: int) -> None:
        start = rng.choice((b"", b"\0", b"\0\0\0\0\0", b"\0\0\0\0\0\xff\xff\xff\xff\x07"))
        body = start + rng.randbytes(rng.randrange(80))
        writer.write(struct.pack(">ii", 4 + len(body), correlation_id) + body)

    async def main() -> None:
        async with liar(reply) as endpoint:
            for _ in range(200):
                error = await asked(endpoint)
                assert error is None or isinstance(error, ProtocolError), error

    asyncio.run(main())


def test_every_answer_of_every_version_mutated() -> None:
    """Each API that the client calls: an answer, or an error that names the broker; the connection goes on or is over,
    and nothing else happens. What the whole answers say is read."""
    rng = random.Random(8)
    ends: Counter[str] = Counter()

    async def reply(writer: asyncio.StreamWriter, correlation_id: int, key: int, version: int) -> None:
        sent = answer(key, version, rng)
        header = b"\0" if Api(key).flexible_answer_header(version) else b""
        if header and rng.random() < 0.1:
            header = rng.choice((b"\1\x63\3abc", b"\1\x63\x7fabc", b"\xff\xff\xff\xff\x07", b"\x80"))
        body = mutated(sent, rng)
        writer.write(struct.pack(">ii", 4 + len(header) + len(body), correlation_id) + header + body)

    async def main() -> None:
        async with liar(reply) as endpoint:
            connection = await connect(endpoint, "test", setup_timeout_ms=20_000, request_timeout_ms=20_000)
            for api, version in EVERY_ANSWER * 3:
                try:
                    body = await connection.send(api, version, [b""], 20_000)
                    connection.read(lambda body: read_answer(api, version, bytes(body)), body)  # noqa: B023
                except ProtocolError as error:
                    ends["refused" if str(endpoint) in str(error) else "refused by nobody"] += 1
                else:
                    ends["read"] += 1
            assert not connection.closed
            connection.close()

    asyncio.run(main())
    assert set(ends) == {"read", "refused"}
    assert min(ends.values()) > ends.total() // 5, ends


SMALL_GROUP = b"\1\1\1\1\0"
"""A group of ListGroups v5 without id, protocol, state and type."""
NO_TOPIC = bytes(2) + b"\1" + bytes(16) + b"\0\1" + bytes(4) + b"\0"
"""A topic of Metadata v12 without name and partitions."""
PARTITION = bytes(14) + b"\1\1\1\0"
"""A partition of Metadata without replicas."""
METADATA_START = bytes(4) + b"\1\1" + bytes(4)
"""No throttling, no broker, no cluster id, controller 0."""
FETCH_START = bytes(10)
"""Of Fetch v13: no throttling, no error, no session."""

BOMBS: dict[str, tuple[Api, int, Callable[[], bytes]]] = {
    "one array": (Api.LIST_GROUPS, 5, lambda: bytes(6) + uvarint(8_000_001) + SMALL_GROUP * 8_000_000 + b"\0"),
    "arrays in arrays": (
        Api.METADATA, 12,
        lambda: METADATA_START + uvarint(2_001)
        + (NO_TOPIC[:20] + uvarint(1_001) + PARTITION * 1_000 + bytes(4) + b"\0") * 2_000 + b"\0",
    ),
    "topics of Produce": (Api.PRODUCE, 9, lambda: uvarint(8_000_001) + b"\1\1\0" * 8_000_000 + bytes(5)),
    "topics of Fetch": (
        Api.FETCH, 12, lambda: FETCH_START + uvarint(8_000_001) + b"\1\1\0" * 8_000_000 + b"\0"
    ),
    "tagged fields": (Api.LIST_GROUPS, 5, lambda: bytes(6) + b"\1" + uvarint(8_000_000) + b"\x63\0" * 8_000_000),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_answers_of_endless_arrays(name: str) -> None:
    """Tens of megabytes really arrive and say nothing false, but would become gigabytes of objects: an error says so,
    and the client holds little more than what arrived."""
    api, version, make = BOMBS[name]
    bomb = make()
    process = psutil.Process()

    async def reply(writer: asyncio.StreamWriter, correlation_id: int, *_: int) -> None:
        header = b"\0"
        writer.write(struct.pack(">ii", 4 + len(header) + len(bomb), correlation_id) + header)
        writer.write(bomb)

    async def main() -> None:
        async with liar(reply) as endpoint:
            connection = await connect(endpoint, "test", setup_timeout_ms=20_000, request_timeout_ms=20_000)
            body = await connection.send(api, version, [b""], 60_000)
            before = process.memory_info().rss
            peak = before

            def read(body: memoryview) -> None:
                nonlocal peak
                try:
                    read_answer(api, version, bytes(body))
                finally:
                    peak = max(peak, process.memory_info().rss)

            with pytest.raises(ProtocolError, match=r"elements|tagged fields") as refused:
                connection.read(read, body)
            assert str(endpoint) in str(refused.value)
            assert api.title in str(refused.value)
            assert peak - before < 512 * MIB
            connection.close()

    asyncio.run(main())


def test_versions_that_lie() -> None:
    """A broker that speaks nothing, or refuses its own versions for ever, is given up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                _, _, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
                writer.write(struct.pack(">iih", 10, correlation_id, 35) + struct.pack(">i", 0))
                await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        endpoint = Endpoint(*server.sockets[0].getsockname()[:2])
        with pytest.raises((KafkaError, ProtocolError, BrokerUnreachable)):
            await connect(endpoint, "test", setup_timeout_ms=3000, request_timeout_ms=3000)
        server.close()

    asyncio.run(main())
