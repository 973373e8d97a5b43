"""The HTTP listener: pages, and what it does with those who do not speak HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import pytest

from strandline.cluster.node.http.protocol import HttpServer, Page
from strandline.proto.ids import Endpoint

ROUTES = {
    "/healthz": lambda: Page(b"fine\n"),
    "/large": lambda: Page(b"x" * 300_000),
    "/ill": lambda: Page(b"no\n", status=HTTPStatus.SERVICE_UNAVAILABLE),
}


def serve(body: Callable[[Endpoint], Awaitable[None]]) -> None:
    async def main() -> None:
        server = HttpServer(Endpoint("127.0.0.1", 0), ROUTES)
        await server.start()
        try:
            async with asyncio.timeout(10):
                await body(server.endpoint)
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
