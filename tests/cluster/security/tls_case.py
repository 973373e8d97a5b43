"""What the tests of TLS share: a CA, and a door with an echo behind it."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from strandline.cluster.security.certificates import Certificates
from strandline.cluster.security.dev_certificates import DevCa
from strandline.cluster.security.tls_door import TlsDoor
from strandline.proto.system import SystemClock
from strandline.proto.tls import TlsSettings, client_context, server_context

MADE: dict[str, int] = {}
"""Directories that tests/conftest.py removes when the process that made them, given by its id, ends its tests: those of
pytest-xdist run no atexit, and one that was forked from another must leave the other's where they are."""


@cache
def _ca(name: str, process: int) -> DevCa:
    directory = mkdtemp(prefix=f"strandline-ca-{name}-")
    MADE[directory] = process
    return DevCa(Path(directory))


def ca() -> DevCa:
    """One CA for all tests of a process."""
    return _ca("known", os.getpid())


def other_ca() -> DevCa:
    """A CA that nobody here trusts."""
    return _ca("other", os.getpid())


def node_settings(path: Path | None = None) -> TlsSettings:
    """A node's end."""
    return TlsSettings(keystore_location=str(path or ca().node(1)), truststore_location=str(ca().file))


def trusting(**more: Any) -> ssl.SSLContext:
    """A client's end that knows the CA."""
    return client_context(TlsSettings(truststore_location=str(ca().file), **more))


class Served(asyncio.BufferedProtocol):
    """The listener's protocol behind the door: it keeps what came."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.paused = False
        self.lost = asyncio.get_running_loop().create_future()
        self._room = bytearray(1 << 16)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._room)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._room[:nbytes]

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class OpenDoor:
    """A server behind a door, and what it served."""

    def __init__(self, door: TlsDoor, certificates: Certificates[ssl.SSLContext]) -> None:
        self.door = door
        self.certificates = certificates
        self.served: list[Served] = []
        self.port = 0

    def made(self) -> Served:
        self.served.append(Served())
        return self.served[-1]

    async def connect(self, context: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context)


@asynccontextmanager
async def open_door(
    settings: TlsSettings | None = None, client_auth: str = "none", **limits: Any
) -> AsyncIterator[OpenDoor]:
    certificates = Certificates(
        "SSL", settings or node_settings(), lambda given: server_context(given, client_auth=client_auth)
    )
    door = OpenDoor(TlsDoor("SSL", lambda: certificates.context, SystemClock(), **limits), certificates)
    server = await asyncio.get_running_loop().create_server(door.door.wrap(door.made), "127.0.0.1", 0)
    door.port = server.sockets[0].getsockname()[1]
    try:
        yield door
    finally:
        server.close()
        door.door.close()


async def eventually(holds: Any, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.005)
