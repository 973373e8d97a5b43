"""A node of the floor under a lone record: what it does for a record, and nothing else.

There is no protocol: the bytes of a connection are the bytes of the file, and an answer is the offset up to which they
are safe, eight bytes. The leader writes what has come, sends it to both followers, and syncs its own copy meanwhile; a
follower writes, syncs and answers; the leader answers when all three have synced it, as a high watermark moves over
three replicas in sync. What comes while a node is busy is written and synced together after that.

Nothing is checked, numbered, indexed or elected: whoever keeps this promise over a protocol does that on top.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, cast

from bench.members import WAIT_S
from strandline.log.config import LogConfig
from strandline.log.real_disk import RealDisk
from strandline.log.segment import ALLOCATE_FIRST_BYTES
from strandline.log.watched_disk import WatchedDisk
from strandline.proto.system import SystemClock
from strandline.proto.tasks import spawn

READ_BYTES = 64 << 10
OFFSET = struct.Struct(">Q")


@dataclass(frozen=True)
class Way:
    """How a node is written.

    Attributes:
        loop: asyncio with `BufferedProtocol`, as Strandline's own connections; else blocking sockets.
        sync: in place; in a thread, by the disk of Strandline's own nodes, for which the loop may wait (asyncio alone);
            or not at all.
    """

    loop: bool
    sync: Literal["in place", "thread", "none"]


class Log:
    """A node's file, allocated ahead as a segment is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_CREAT | os.O_RDWR)
        self.end = 0
        self._allocated = 0
        self._step_max = LogConfig().preallocate_bytes

    def append(self, data: memoryview) -> None:
        """Write it behind the end. Raises OSError."""
        end = self.end + len(data)
        if end > self._allocated:
            step = min(self._step_max, max(ALLOCATE_FIRST_BYTES, end))
            os.posix_fallocate(self.fd, self._allocated, step)
            self._allocated += step
        if os.pwrite(self.fd, data, self.end) < len(data):
            raise OSError(f"{self.path}: not all was written")
        self.end = end


def run_node(pipe: Connection, way: Way, path: Path, followers: Sequence[int]) -> None:
    """A node in a process of its own: says its process id and its port, and serves one connection until that ends."""
    log = Log(path)
    sinks = [connected(port) for port in followers]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        pipe.send((os.getpid(), listener.getsockname()[1]))
        source = listener.accept()[0]
    source.setblocking(True)
    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if way.loop:
        asyncio.run(_serve_in_loop(log, source, sinks, way.sync))
    else:
        _serve(log, source, sinks, sync=way.sync != "none")


def connected(port: int) -> socket.socket:
    """A blocking connection that holds no bytes back."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def next_offset(connection: socket.socket) -> int:
    """The next answer. Raises ConnectionError: the node is gone."""
    data = connection.recv(OFFSET.size, socket.MSG_WAITALL)
    if len(data) < OFFSET.size:
        raise ConnectionError("a node is gone")
    offset: int = OFFSET.unpack(data)[0]
    return offset


# ---------------------------------------------------------------- with blocking sockets


def _serve(log: Log, source: socket.socket, sinks: Sequence[socket.socket], *, sync: bool) -> None:
    room = memoryview(bytearray(READ_BYTES))
    while size := source.recv_into(room):
        log.append(room[:size])
        for sink in sinks:
            sink.sendall(room[:size])
        if sync:
            os.fdatasync(log.fd)
        for sink in sinks:
            while next_offset(sink) < log.end:
                pass
        source.sendall(OFFSET.pack(log.end))


# ---------------------------------------------------------------- with asyncio


async def _serve_in_loop(log: Log, source: socket.socket, sinks: Sequence[socket.socket], sync: str) -> None:
    loop = asyncio.get_running_loop()
    node = _Node(log, sync)
    for sink in sinks:
        _, follower = await loop.create_connection(lambda: _Follower(node.moved), sock=sink)
        node.followers.append(follower)
    await loop.connect_accepted_socket(lambda: node, source)
    await node.gone


class _Node(asyncio.BufferedProtocol):
    """A node, and its connection to where records come from."""

    def __init__(self, log: Log, sync: str) -> None:
        self.followers: list[_Follower] = []
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._log = log
        self._sync = sync
        if sync == "thread":
            self._disk = WatchedDisk(RealDisk(), SystemClock(), self._end)
            self._file = self._disk.open(str(log.path))
        self._room = memoryview(bytearray(READ_BYTES))
        self._task: asyncio.Task[None] | None = None
        self._synced = 0
        self._told = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self._log.append(self._room[:nbytes])
        for follower in self.followers:
            follower.send(bytes(self._room[:nbytes]))
        if self._sync == "thread":
            if self._task is None:
                self._task = spawn(self._sync_in_thread(), self._end)
            return
        if self._sync == "in place":
            os.fdatasync(self._log.fd)
        self._synced = self._log.end
        self.moved()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    async def _sync_in_thread(self) -> None:
        while (end := self._log.end) > self._synced:
            await self._disk.sync([self._file])
            self._synced = end
            self.moved()
        self._task = None

    def moved(self) -> None:
        """This node or a follower has synced more: answer, if all have."""
        safe = min([self._synced, *(follower.synced for follower in self.followers)])
        if safe > self._told:
            self._told = safe
            self._transport.write(OFFSET.pack(safe))

    def _end(self, error: BaseException | None) -> None:
        if self.gone.done():
            return
        if error is None:
            self.gone.set_result(None)
        else:
            self.gone.set_exception(error)


class _Follower(asyncio.BufferedProtocol):
    """The leader's connection to one."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self.synced = 0
        self._moved = moved
        self._room = memoryview(bytearray(OFFSET.size))
        self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.send = cast("asyncio.Transport", transport).write

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled = (self._filled + nbytes) % OFFSET.size
        if not self._filled:
            (self.synced,) = OFFSET.unpack(self._room)
            self._moved()
