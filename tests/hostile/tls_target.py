"""The hand-over from a socket to TLS as a parser: whatever a stranger sends there, in whatever pieces."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from strandline.cluster.security.dev_certificates import DevCa
from strandline.cluster.security.tls_transport import RECORD_BYTES, TlsConnection


class _Socket(asyncio.Transport):
    """Of a listener's connection: it takes everything at once, and says whether it was closed."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.closed = False
        self.sent = 0

    def write(self, data: Any) -> None:
        self.sent += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def _force_close(self, _error: BaseException | None) -> None:  # asyncio's TLS ends its transport so
        self.closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _Listener(asyncio.Protocol):
    """Nobody may come so far."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raise AssertionError("a stranger came in")


class _Door:
    """Counts."""

    def __init__(self) -> None:
        self.began_count = self.failed_count = 0

    def began(self, connection: TlsConnection) -> None:
        self.began_count += 1

    def entered(self, connection: TlsConnection) -> None:
        raise AssertionError("a stranger came in")

    def failed(self, connection: TlsConnection, reason: BaseException | str | None) -> None:
        self.failed_count += 1


@cache
def _server() -> tuple[asyncio.AbstractEventLoop, ssl.SSLContext]:
    """Asks for a client's certificate, which no input has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        ca = DevCa(Path(directory))
        context.load_cert_chain(ca.node(1))
        context.load_verify_locations(ca.file)
    context.verify_mode = ssl.CERT_REQUIRED
    return asyncio.new_event_loop(), context


def client_hello() -> bytes:
    """The first flight of a client."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return sent.read()


def hand_over(data: bytes) -> None:
    """The first byte says in pieces of which size the rest comes. Whoever is refused is told and reported once."""
    loop, context = _server()
    loop.run_until_complete(_hand_over(context, (data[0] if data else 0) + 1, data[1:]))


async def _hand_over(context: ssl.SSLContext, piece: int, data: bytes) -> None:
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(what.get("exception")))
    socket, door = _Socket(), _Door()
    connection = TlsConnection(door, _Listener(), context, 10.0)
    connection.connection_made(socket)
    for start in range(0, len(data), piece):
        if socket.closed:
            break
        part = data[start : start + piece]
        connection.get_buffer(len(part))[: len(part)] = part
        connection.buffer_updated(len(part))
        await asyncio.sleep(0)
    assert socket.sent <= RECORD_BYTES
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert (door.began_count, door.failed_count) == (1, 1)
    assert not [error for error in errors if not isinstance(error, ssl.SSLError | ConnectionError)]
