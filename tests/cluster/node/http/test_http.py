"""The HTTP listener: pages, and what it does with those who do not speak HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus

import pytest
from structlog.testing import capture_logs

from strandline.cluster.broker.loop_time import STRANGERS_MS
from strandline.cluster.node.http import protocol
from strandline.cluster.node.http.protocol import HttpServer, Page
from strandline.proto.ids import Endpoint
from strandline.proto.system import SystemClock

ROUTES = {
    "/healthz": lambda: Page(b"fine\n"),
    "/large": lambda: Page(b"x" * 300_000),
    "/ill": lambda: Page(b"no\n", status=HTTPStatus.SERVICE_UNAVAILABLE),
}


def deep(body: bytes) -> Page:
    """A command that reads JSON, as /trace does, and has not thought of everything."""
    json.loads(body)
    return Page(b"done\n")


CLOSE = b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def serve(body: Callable[[Endpoint], Awaitable[None]], routes: protocol.Routes = ROUTES) -> None:
    async def main() -> None:
        server = HttpServer(Endpoint("127.0.0.1", 0), routes, SystemClock(), {"/deep": deep})
        await server.start()
        try:
            async with asyncio.timeout(10):
                await body(server.endpoint)
                while len(server.connections):  # whoever has gone, or was closed, is nobody's memory
                    await asyncio.sleep(0.005)
        finally:
            await server.close()

    asyncio.run(main())


async def exchange(endpoint: Endpoint, request: bytes) -> bytes:
    """Send bytes, and read to the end of the connection."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    writer.write(request)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [("/healthz", b"200", b"fine\n"), ("/healthz?x=1", b"200", b"fine\n"), ("/ill", b"503", b"no\n")],
)
def test_pages(path: str, status: bytes, body: bytes) -> None:
    """A page is its status and its bytes."""

    async def check(endpoint: Endpoint) -> None:
        answer = await exchange(endpoint, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert answer.split()[1] == status
        assert answer.endswith(b"\r\n\r\n" + body)

    serve(check)


def test_pages_are_made_in_turns() -> None:
    """Rule A45. Twenty ask at once for a page that takes long, each again and again: in a turn of the loop one page is
    made, and what else is ready runs between."""
    made = 0

    def page() -> Page:
        nonlocal made
        made += 1
        began_s = time.thread_time()
        while time.thread_time() - began_s < 2 * STRANGERS_MS / 1000:
            pass
        return Page(b"slow\n")

    async def check(endpoint: Endpoint) -> None:
        request = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
        answers = [asyncio.ensure_future(exchange(endpoint, request * 3 + CLOSE)) for _ in range(20)]
        most, before = 0, 0
        while made < 80:
            await asyncio.sleep(0)
            most, before = max(most, made - before), made
        for answer in await asyncio.gather(*answers):
            assert answer.count(b"slow") == 4
        assert most == 1

    serve(check, {"/slow": page})


def test_one_connection_serves_many_requests() -> None:
    """Keep-alive, and requests that arrive together or in pieces."""

    async def check(endpoint: Endpoint) -> None:
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(request + request + request[:10])
        for _ in range(2):
            assert (await reader.readuntil(b"fine\n")).startswith(b"HTTP/1.1 200")
        writer.write(request[10:])
        assert (await reader.readuntil(b"fine\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).count(b"x") >= 300_000
        writer.close()

    serve(check)


def test_head_has_no_body() -> None:
    """HEAD tells the length and sends nothing."""

    async def check(endpoint: Endpoint) -> None:
        answer = await exchange(endpoint, b"HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"Content-Length: 5" in answer
        assert answer.endswith(b"\r\n\r\n")

    serve(check)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
        (b"POST /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab", b"405"),
        (b"\x00\x00\x00\x10 this is Kafka's protocol\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000, b"431"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"z" * 100_000, b"413"),
    ],
)
def test_who_asks_wrongly_is_told_and_cut_off(request_bytes: bytes, status: bytes) -> None:
    """Bad input: each gets an answer of HTTP's own, the connection ends, and the next client is served."""

    async def check(endpoint: Endpoint) -> None:
        assert (await exchange(endpoint, request_bytes)).split()[1] == status
        answer = await exchange(endpoint, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.endswith(b"fine\n")

    serve(check)


HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
BODY = b"POST /deep HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize("begun", [HEAD, BODY, HEAD + b"\r\n" + HEAD])
def test_a_request_that_drips_is_ended(monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    """Its head, its body, or one behind a whole one: the time runs from the first byte, whatever follows."""
    monkeypatch.setattr(protocol, "REQUEST_S", 0.2)

    async def check(endpoint: Endpoint) -> None:
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        writer.write(begun)
        answered = asyncio.ensure_future(reader.readuntil(b" 408 "))
        while not answered.done():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        await answered
        with suppress(ConnectionResetError):  # what drips on meets a closed socket
            await reader.read()
        writer.close()

    serve(check)


def test_who_takes_no_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closing transport would wait for it for ever; and so would a connection that is closed by us."""
    monkeypatch.setattr(protocol, "IDLE_S", 0.2)

    async def check(endpoint: Endpoint) -> None:
        for last in (b"", b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.setblocking(False)
                await asyncio.get_running_loop().sock_connect(slow, (endpoint.host, endpoint.port))
                many = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 100
                await asyncio.get_running_loop().sock_sendall(slow, many + last)
                await gone(slow)

    async def gone(slow: socket.socket) -> None:
        """It is cut off, though it has taken nothing."""
        while True:
            try:
                if slow.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    return
                slow.send(b"x")
            except BlockingIOError:
                pass
            except OSError:
                return
            await asyncio.sleep(0.01)

    serve(check)


def test_connections_are_bounded_and_who_comes_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred that say nothing keep no probe out, and a scraper that asks keeps its connection."""
    monkeypatch.setattr(protocol, "CONNECTIONS_MAX", 5)
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

    async def check(endpoint: Endpoint) -> None:
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        silent = []
        for _ in range(30):
            silent.append(await asyncio.open_connection(endpoint.host, endpoint.port))
            writer.write(request)
            assert (await reader.readuntil(b"fine\n")).startswith(b"HTTP/1.1 200")
        for quiet, _ in silent[:-4]:
            with contextlib.suppress(ConnectionResetError):
                assert await quiet.read() == b""
        answer = await exchange(endpoint, request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert answer.endswith(b"fine\n")
        for _, one in [*silent, (reader, writer)]:
            one.close()

    with capture_logs() as logs:
        serve(check)
    assert [line["event"] for line in logs] == ["closed an HTTP connection: too many at once"]


def test_a_mistake_of_ours_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with its traceback, 500, and the connection goes on."""

    async def check(endpoint: Endpoint) -> None:
        body = b"[" * 60_000
        head = f"POST /deep HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = await exchange(endpoint, head.encode() + body + last)
        assert answer.startswith(b"HTTP/1.1 500")
        assert answer.endswith(b"fine\n")

    with capture_logs() as logs:
        serve(check)
    assert [line["event"] for line in logs] == ["internal error: a page could not be made"]
