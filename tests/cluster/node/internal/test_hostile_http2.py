"""Hostile peers of the internal port: whatever they send, their connection ends with a clear error, others go on, and
memory stays bounded."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest
from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
)
from structlog.testing import capture_logs
from tests.cluster.node.internal.hostile_peer import (
    REQUEST,
    RESPONSE,
    continuation,
    data,
    ending,
    frames_from,
    headers,
    hello,
    message,
    raw,
    reset,
    window_update,
)

from strandline.cluster.node.internal import http2
from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
from strandline.cluster.node.internal.options import (
    CONNECTION_WINDOW_BYTES,
    CONTROL_FRAME_BYTES_MAX,
    DATA_FRAME_BYTES_MAX,
    STREAM_WINDOW_BYTES,
    UNPAID_FRAMES_MAX,
)
from strandline.proto.ids import Endpoint
from strandline.proto.ports import RpcError, RpcRejected, RpcUnavailable, Stream

ANY = Endpoint("127.0.0.1", 0)
CALL_MS = 20_000.0
FLOOD = UNPAID_FRAMES_MAX * 3
OPEN = hello() + headers(1)
FULL_FRAME = bytes(DATA_FRAME_BYTES_MAX)
TOO_MUCH_OF_ONE = data(1, message(b"", claims=STREAM_WINDOW_BYTES * 2) + FULL_FRAME[5:]) + data(1, FULL_FRAME) * 2
BOMB = Encoder().encode([("a", "x" * 4000)]) + b"\xbe" * 12_000
"""One field of 4,000 bytes, and 12,000 times "the same again": 48 MB of headers in 16 KiB."""


def too_much_of_all() -> bytes:
    """No stream beyond its window, all of them together beyond the connection's."""
    streams = range(1, 2 * (CONNECTION_WINDOW_BYTES // DATA_FRAME_BYTES_MAX) + 3, 2)
    part = message(b"", claims=STREAM_WINDOW_BYTES) + FULL_FRAME[5:]
    return hello() + b"".join(headers(stream) + data(stream, part) for stream in streams)


HOSTILE_CLIENTS: dict[str, tuple[bytes, str, str]] = {
    "no HTTP/2": (b"GET / HTTP/1.1\r\n\r\n" + bytes(100), "PROTOCOL_ERROR", "preamble"),
    "a frame that claims 16 MiB": (OPEN + raw(0, 0, 1, b"x", 0xFFFFFF), "FRAME_SIZE_ERROR", "claims 16777215 bytes"),
    "headers that claim a megabyte": (hello() + raw(1, 4, 1, b"x", 1 << 20), "FRAME_SIZE_ERROR", "claims 1048576"),
    "an unknown frame of a megabyte": (OPEN + raw(77, 0, 0, b"x", 1 << 20), "FRAME_SIZE_ERROR", "kind 77"),
    "a short GOAWAY": (OPEN + raw(7, 0, 0, bytes(4)), "", ""),
    "a PING of five bytes": (OPEN + raw(6, 0, 0, bytes(5)), "", ""),
    "the connection's window overflows": (OPEN + window_update(0, 2**31 - 1) * 2, "FLOW_CONTROL_ERROR", ""),
    "a window grows by nothing": (OPEN + raw(8, 0, 0, bytes(4)), "", ""),
    "DATA beyond the stream's window": (OPEN + TOO_MUCH_OF_ONE, "FLOW_CONTROL_ERROR", "the window of its stream"),
    "DATA beyond the connection's window": (too_much_of_all(), "FLOW_CONTROL_ERROR", "the connection's window"),
    "DATA on a stream that was never opened": (OPEN + data(7, b"x"), "PROTOCOL_ERROR", "never opened"),
    "DATA on a stream of ours": (OPEN + data(2, b"x"), "PROTOCOL_ERROR", "never opened"),
    "DATA on no stream": (OPEN + raw(0, 0, 0, b"x"), "PROTOCOL_ERROR", "never opened"),
    "DATA after the end": (OPEN + data(1, b"", "END_STREAM") + data(1, b"x"), "STREAM_CLOSED", "none may come"),
    "padding longer than its frame": (OPEN + raw(0, 8, 1, b"\x05abc"), "PROTOCOL_ERROR", "padding"),
    "a padded frame of nothing": (OPEN + raw(0, 8, 1, b""), "PROTOCOL_ERROR", "padding"),
    "CONTINUATION flood": (
        hello() + raw(1, 0, 1, b"") + continuation(1, b"", last=False) * FLOOD,
        "PROTOCOL_ERROR",
        "continuation",
    ),
    "DATA within headers": (hello() + raw(1, 0, 1, b"") + data(1, b"x"), "PROTOCOL_ERROR", "header block"),
    "CONTINUATION alone": (OPEN + continuation(1, b"", last=True), "", ""),
    "an HPACK bomb": (hello() + raw(1, 4, 1, BOMB), "", ""),
    "headers that are no HPACK": (hello() + raw(1, 4, 1, b"\xff" * 50), "", ""),
    "headers in capitals": (hello() + headers(1, [*REQUEST, ("Bad", "x")]), "PROTOCOL_ERROR", ""),
    "the stream's number goes back": (hello() + headers(5) + headers(3), "PROTOCOL_ERROR", ""),
    "a stream of the server's": (hello() + headers(2), "PROTOCOL_ERROR", ""),
    "too many streams": (hello() + b"".join(headers(n) for n in range(1, 2 * 1100, 2)), "", ""),
    "PING flood": (OPEN + PingFrame(0, bytes(8)).serialize() * FLOOD, "ENHANCE_YOUR_CALM", "no data"),
    "SETTINGS flood": (OPEN + SettingsFrame(0, {4: 70_000}).serialize() * FLOOD, "ENHANCE_YOUR_CALM", "no data"),
    "PRIORITY flood": (OPEN + PriorityFrame(3).serialize() * FLOOD, "ENHANCE_YOUR_CALM", "no data"),
    "a flood of grants": (OPEN + window_update(1, 1) * FLOOD, "ENHANCE_YOUR_CALM", "no data"),
    "a flood of empty DATA": (OPEN + data(1, b"") * FLOOD, "ENHANCE_YOUR_CALM", "no data"),
    "a flood of unknown frames": (OPEN + raw(77, 0, 0, b"") * FLOOD, "ENHANCE_YOUR_CALM", "no data"),
    "a flood of padding": (OPEN + data(1, b"", "PADDED", padding=1) * FLOOD, "ENHANCE_YOUR_CALM", "no data"),
    "reset flood": (
        hello() + b"".join(headers(n) + reset(n) for n in range(1, 2 * FLOOD, 2)),
        "ENHANCE_YOUR_CALM",
        "no data",
    ),
    "a table of headers of a gigabyte": (
        hello() + SettingsFrame(0, {1: 2**30}).serialize() + headers(1) + raw(6, 0, 0, bytes(5)),
        "",
        "",
    ),
}


async def echo(request: bytes) -> bytes:
    return request


async def sleeps(stream: Stream) -> None:
    """A handler that does not read."""
    await asyncio.sleep(1000)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(100):
            await body()

    asyncio.run(main())


async def attack(server: Endpoint, sent: bytes) -> tuple[str, str]:
    """Send it; how the connection ended."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(sent)
    met = await frames_from(reader)
    writer.close()
    return ending(met)


@pytest.mark.parametrize("name", HOSTILE_CLIENTS)
def test_a_hostile_client_loses_its_connection(name: str) -> None:
    """Each with the code that RFC 9113 has for it where it has one, in words that name the fault, with one line of
    log; and a client on another connection is served as before, during and after."""
    sent, code, words = HOSTILE_CLIENTS[name]

    async def body() -> None:
        server = await GrpcRpc().serve(ANY, {"/x.X/Call": echo}, {"/x.X/Echo": sleeps})
        rpc = GrpcRpc()
        assert await rpc.call(server.endpoint, "/x.X/Call", b"a", timeout_ms=CALL_MS) == b"a"
        with capture_logs() as logs:
            met, text = await attack(server.endpoint, sent)
            assert await rpc.call(server.endpoint, "/x.X/Call", b"b", timeout_ms=CALL_MS) == b"b"
        assert met == code if code else met != "NO_ERROR"
        logged = [line["reason"] for line in logs if line["event"].startswith("an internal connection is ended")]
        assert len(logged) == 1
        assert words in logged[0] or words in logged[0].lower()
        if text:
            assert text == logged[0]
        await rpc.close()
        await server.close()

    run(body)


@pytest.mark.parametrize(
    ("bad", "code", "words"),
    [
        (message(b"", claims=2**32 - 1), b"8", b"Received message larger than max (4294967295 vs. 67108864)"),
        (message(b"x", compressed=1), b"12", b"Received a compressed message, which was not offered"),
    ],
)
def test_a_message_that_is_not_taken_ends_its_call(bad: bytes, code: bytes, words: bytes) -> None:
    """Its sender gets a status and words; what it still sends is dropped; its other calls go on."""

    async def body() -> None:
        lost = asyncio.Event()

        async def reads(stream: Stream) -> None:
            with pytest.raises(RpcUnavailable):
                await stream.read()
            lost.set()

        server = await GrpcRpc().serve(ANY, {"/x.X/Call": echo}, {"/x.X/Echo": reads})
        reader, writer = await asyncio.open_connection(server.endpoint.host, server.endpoint.port)
        call = [(name, "/x.X/Call" if name == ":path" else value) for name, value in REQUEST]
        other = headers(3, call) + data(3, message(b"other"), "END_STREAM")
        writer.write(OPEN + data(1, bad) + data(1, bytes(100_000)) * 10 + other)
        await lost.wait()
        await asyncio.sleep(0.1)
        writer.write_eof()
        fields: dict[int, dict[bytes, bytes]] = {}
        decoder = Decoder()
        answered = b""
        for frame in await frames_from(reader):
            if isinstance(frame, HeadersFrame):
                fields.setdefault(frame.stream_id, {}).update(decoder.decode(frame.data, raw=True))
            if isinstance(frame, DataFrame):
                answered += frame.data
        assert (fields[1][b"grpc-status"], fields[1][b"grpc-message"]) == (code, words)
        assert fields[3][b"grpc-status"] == b"0"
        assert answered == message(b"other")
        writer.close()
        await server.close()

    run(body)


def test_what_a_hostile_client_sends_is_not_kept() -> None:
    """A message of 64 MiB that comes a byte a frame, headers that never end, and the windows filled: memory stays
    near the connection's window, however much comes."""

    async def body() -> None:
        server = await GrpcRpc().serve(ANY, {}, {"/x.X/Echo": sleeps})
        tracemalloc.start()
        try:
            for sent in (
                OPEN + data(1, message(b"", claims=64 << 20)) + data(1, b"x") * 60_000,
                OPEN + data(1, message(b"x") * (STREAM_WINDOW_BYTES // 6 - 1)),
                hello() + raw(1, 0, 1, b"") + continuation(1, bytes(CONTROL_FRAME_BYTES_MAX), last=False) * 60,
            ):
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                _, writer = await asyncio.open_connection(server.endpoint.host, server.endpoint.port)
                writer.write(sent)
                await writer.drain()
                writer.write(PingFrame(0, bytes(8)).serialize())
                await asyncio.sleep(0.5)
                assert tracemalloc.get_traced_memory()[1] - before - 2 * len(sent) < 2 * CONNECTION_WINDOW_BYTES
                writer.transport.abort()
                await asyncio.sleep(0.05)
        finally:
            tracemalloc.stop()
            await server.close()

    run(body)


def test_a_peer_that_takes_no_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is silent, or never finishes a frame, or does not read what it is sent, ends by the keep-alive."""
    monkeypatch.setattr(http2, "KEEPALIVE_S", 0.2)

    async def floods(stream: Stream) -> None:
        while True:
            await stream.write(bytes(100_000))

    async def body() -> None:
        server = await GrpcRpc().serve(ANY, {}, {"/x.X/Echo": floods})
        for sent in (b"", hello()[:10], hello() + b"\0", OPEN + window_update(0, 2**30) + window_update(1, 2**30)):
            _, writer = await asyncio.open_connection(server.endpoint.host, server.endpoint.port, limit=1)
            writer.write(sent)
            writer.transport.pause_reading()
            began = asyncio.get_running_loop().time()
            while server._handlers._connections:
                await asyncio.sleep(0.02)
                assert asyncio.get_running_loop().time() - began < 30
            writer.transport.abort()
        await server.close()

    run(body)


def test_an_overflow_of_a_streams_window_ends_that_stream() -> None:
    """RFC 9113, 6.9.1: a stream error, while other streams of the connection go on."""

    async def body() -> None:
        server = await GrpcRpc().serve(ANY, {}, {"/x.X/Echo": sleeps})
        reader, writer = await asyncio.open_connection(server.endpoint.host, server.endpoint.port)
        writer.write(OPEN + headers(3) + window_update(1, 2**31 - 1) + raw(7, 0, 0, bytes(8)))
        await asyncio.sleep(0.2)
        writer.write_eof()
        met = await frames_from(reader)
        assert [frame.stream_id for frame in met if isinstance(frame, RstStreamFrame)] == [1]
        assert ending(met)[0] in {"", "NO_ERROR"}
        await server.close()

    run(body)


@pytest.mark.parametrize("seed", range(6))
def test_honest_frames_in_any_pieces(seed: int) -> None:
    """Messages cut into frames at random, padded at random, which arrive in pieces at random: all come whole."""
    rng = random.Random(seed)
    messages = [rng.randbytes(rng.choice((0, 1, 4, 5, 100, 3_000, 70_000))) for _ in range(60)]
    stream_of = b"".join(message(content) for content in messages)
    sent = OPEN
    while stream_of:
        cut = rng.choice((1, 2, 4, 5, 6, 1000, 16_384, 100_000))
        padded = rng.random() < 0.3
        sent += data(1, stream_of[:cut], *(["PADDED"] * padded), padding=padded * rng.randrange(200))
        stream_of = stream_of[cut:]
    sent += data(1, b"", "END_STREAM")

    async def body() -> None:
        met: list[bytes | None] = []

        async def reads(stream: Stream) -> None:
            while (frame := await stream.read()) is not None:
                met.append(frame)
            met.append(None)

        server = await GrpcRpc().serve(ANY, {}, {"/x.X/Echo": reads})
        _, writer = await asyncio.open_connection(server.endpoint.host, server.endpoint.port)
        at = 0
        while at < len(sent):
            size = rng.choice((1, 3, 8, 9, 10, 500, 20_000, 200_000))
            writer.write(sent[at : at + size])
            at += size
            await asyncio.sleep(0 if rng.random() < 0.9 else 0.001)
        while not met or met[-1] is not None:
            await asyncio.sleep(0.01)
        assert met == [*messages, None]
        writer.close()
        await server.close()

    run(body)


@pytest.mark.parametrize("seed", range(40))
def test_dirty_bytes(seed: int) -> None:
    """A conversation with bytes changed, dropped and repeated: whatever comes of it, no handler and no task fails by
    anything but an RpcError, and the server goes on."""
    rng = random.Random(seed)
    good = [OPEN, data(1, message(b"abc")), headers(3), data(3, message(bytes(3000))), window_update(1, 50)]
    good += [data(1, message(b"d") * 3), PingFrame(0, bytes(8)).serialize(), data(1, b"", "END_STREAM"), reset(3)]
    good += [headers(5, flags=("END_STREAM",)), SettingsFrame(0, {4: 3, 5: 20_000}).serialize()]

    def dirty(sent: bytes) -> bytes:
        changed = bytearray(sent)
        for _ in range(rng.choice((0, 1, 1, 3))):
            at = rng.randrange(len(changed)) if changed else 0
            match rng.randrange(3):
                case 0:
                    changed[at : at + 1] = rng.randbytes(1)
                case 1:
                    del changed[at : at + rng.randrange(20)]
                case _:
                    changed[at:at] = rng.randbytes(rng.randrange(20))
        return bytes(changed)

    async def body() -> None:
        failed: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(str(context)))

        async def echo_stream(stream: Stream) -> None:
            try:
                while (frame := await stream.read()) is not None:
                    await stream.write(frame)
            except RpcError:
                raise
            except Exception as error:
                failed.append(repr(error))

        server = await GrpcRpc().serve(ANY, {"/x.X/Call": echo}, {"/x.X/Echo": echo_stream})
        for _ in range(10):
            reader, writer = await asyncio.open_connection(server.endpoint.host, server.endpoint.port)
            first, *others = good
            for sent in [first, *(dirty(frame) for frame in others)] if rng.random() < 0.8 else map(dirty, good):
                writer.write(sent)
            writer.write_eof()
            await frames_from(reader)
            writer.close()
        rpc = GrpcRpc()
        assert await rpc.call(server.endpoint, "/x.X/Call", b"x", timeout_ms=CALL_MS) == b"x"
        await rpc.close()
        await server.close()
        assert not failed

    run(body)


HOSTILE_SERVERS: dict[str, tuple[bytes, type[RpcError], str]] = {
    "no HTTP/2": (b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100), RpcUnavailable, "breaks the protocol"),
    "DATA before headers": (data(1, message(b"x")), RpcUnavailable, "where none may come"),
    "a message of 4 GiB": (
        headers(1, RESPONSE) + data(1, message(b"", claims=2**32 - 1)),
        RpcRejected,
        r"Received message larger than max \(4294967295 vs",
    ),
    "no status": (headers(1, RESPONSE) + data(1, b"", "END_STREAM"), RpcUnavailable, "without a status"),
    "an end within a message": (
        headers(1, RESPONSE) + data(1, message(b"x", claims=9)) + headers(1, [("grpc-status", "0")], ("END_STREAM",)),
        RpcUnavailable,
        "within a message",
    ),
    "HTTP 503": (headers(1, [(":status", "503")], ("END_STREAM",)), RpcUnavailable, "HTTP status 503"),
    "HTTP 404": (headers(1, [(":status", "404")], ("END_STREAM",)), RpcRejected, "HTTP status 404"),
    "a status of nonsense": (
        headers(1, [*RESPONSE, ("grpc-status", "-7"), ("grpc-message", "%zz%C3")], ("END_STREAM",)),
        RpcRejected,
        "%zz",
    ),
    "reset": (reset(1), RpcUnavailable, r"the peer has reset the stream \(CANCEL\)"),
    "GOAWAY before the stream": (raw(7, 0, 0, bytes(8)), RpcUnavailable, "going away"),
    "GOAWAY by an error": (raw(7, 0, 0, bytes(7) + b"\x0bcalm down"), RpcUnavailable, "ENHANCE_YOUR_CALM: calm down"),
    "a push": (PushPromiseFrame(1, 2, flags=["END_HEADERS"]).serialize(), RpcUnavailable, "breaks the protocol"),
    "a stream of its own": (headers(2, RESPONSE), RpcUnavailable, "breaks the protocol"),
    "PING flood": (PingFrame(0, bytes(8)).serialize() * FLOOD, RpcUnavailable, "carry no data"),
    "an end of the connection": (b"", RpcUnavailable, "closed"),
}


@pytest.mark.parametrize("name", HOSTILE_SERVERS)
def test_a_hostile_server_is_an_error_of_the_port(name: str) -> None:
    """With words that name the fault; the next connection of the same client is as good as any."""
    sent, kind, words = HOSTILE_SERVERS[name]

    async def body() -> None:
        async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"SM\r\n\r\n")
            await asyncio.sleep(0.05)
            writer.write((b"" if sent.startswith(b"HTTP/1.1") else SettingsFrame(0).serialize()) + sent)
            await asyncio.sleep(0.3)
            writer.close()

        bad = await asyncio.start_server(hostile, "127.0.0.1", 0)
        where = Endpoint("127.0.0.1", bad.sockets[0].getsockname()[1])
        rpc = GrpcRpc()
        with pytest.raises(kind, match=words):
            await rpc.call(where, "/x.X/Call", b"x", timeout_ms=CALL_MS)
        with pytest.raises(kind):
            await (await rpc.open_stream(where, "/x.X/Echo", timeout_ms=CALL_MS)).read()
        server = await GrpcRpc().serve(ANY, {"/x.X/Call": echo}, {})
        assert await rpc.call(server.endpoint, "/x.X/Call", b"x", timeout_ms=CALL_MS) == b"x"
        await rpc.close()
        await server.close()
        bad.close()

    run(body)
