"""The cables between the nodes of a live cluster: a TCP proxy before each node's internal listener.

A cut is what packets lost on the way are to TCP: nothing arrives and nobody is told. Bytes under way are held, not
dropped, for TCP would send them again: after `mend` they arrive late, as they do in a network. A connection opened
across a cut stays unanswered. Who connects is found by the source port: the process of which node owns it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import threading
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from strandline.proto.ids import Endpoint

T = TypeVar("T")

HOST = "127.0.0.1"
CALL_TIMEOUT_S = 10.0
CHUNK_BYTES = 1 << 16


PROC_NET = (Path("/proc/net/tcp6"), Path("/proc/net/tcp"))
_CONNECTION = re.compile(
    # sl local rem st tx:rx tr:tm retrnsmt uid timeout inode
    r"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0[1-8] \S+ \S+ +\S+ +\d+ +\d+ +(\d+)",
    re.M,
)


@dataclass(eq=False)
class _Caller:
    """Node that opened a connection: known by its port at first."""

    port: int
    looked_up: bool = False
    node_id: int | None = None


class Proxies:
    """All proxies of one cluster, on a thread of their own.

    A node that is down refuses connections: `unplug` and `plug_in` say so. Connections from processes that are no node
    are never cut.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cables", daemon=True)
        self._thread.start()
        self._holders: dict[int, socket.socket] = {}
        self._targets: dict[int, Endpoint] = {}
        self._servers: dict[int, asyncio.Server] = {}
        self._pids: dict[int, int] = {}
        self._cut: dict[tuple[int, int], None] = {}
        self._mended = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._callers: dict[_Caller, None] = {}
        self._closed = False
        self._held: dict[tuple[int | None, int | None], int] = {}

    def host(self, node_id: int) -> str:
        """Every node listens on this machine's loopback."""
        return HOST

    def inside(self, node_id: int) -> contextlib.AbstractContextManager[None]:
        """Nodes are where everything is."""
        return contextlib.nullcontext()

    def add(self, node_id: int, target: Endpoint) -> Endpoint:
        """Add a node that listens at `target`. Returns the address by which others reach it; it is disconnected at
        first."""
        holder = _bound(0)  # never listens: it keeps the port ours, and refuses, while nobody else does
        self._holders[node_id] = holder
        self._targets[node_id] = target
        return Endpoint(HOST, holder.getsockname()[1])

    def owns(self, node_id: int, pid: int) -> None:
        """Note that `pid` is a process of that node."""
        self._pids[node_id] = pid

    def plug_in(self, node_id: int) -> None:
        """Let the node be connected to: it is up."""
        self._wait(self._plug_in(node_id))

    def unplug(self, node_id: int) -> None:
        """Refuse connections to the node: it is down. Those that there are end with its process."""
        self._wait(self._unplug(node_id))

    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Let nothing come from the first to the second of each pair from now on."""
        self._wait(self._set_cut({**self._cut, **dict.fromkeys(pairs)}))

    def mend(self) -> None:
        """Let everything through again, what was held first."""
        if self._closed:
            return
        self._wait(self._set_cut({}))

    def held(self, a: int, b: int) -> int:
        """Number of times that something on its way from `a` to `b` met a cut so far."""
        return self._held.get((a, b), 0)

    @property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """The (from, to) that are cut."""
        return tuple(self._cut)

    def close(self) -> None:
        """End every connection and the thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # On the thread

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    async def _plug_in(self, node_id: int) -> None:
        if node_id in self._servers:
            return

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(node_id, reader, writer)

        listening = _bound(self._holders[node_id].getsockname()[1])
        self._servers[node_id] = await asyncio.start_server(accept, sock=listening)

    async def _unplug(self, node_id: int) -> None:
        server = self._servers.pop(node_id, None)
        if server is not None:
            server.close()

    async def _set_cut(self, pairs: dict[tuple[int, int], None]) -> None:
        if pairs:
            self._look_up(caller for caller in self._callers if not caller.looked_up)
        self._cut = pairs
        self._mended.set()
        self._mended = asyncio.Event()

    async def _close(self) -> None:
        for node_id in list(self._servers):
            await self._unplug(node_id)
        for holder in self._holders.values():
            holder.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, node_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._connect(node_id, reader, writer)
        finally:
            del self._tasks[task]
            writer.transport.abort()

    async def _connect(self, node_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = _Caller(writer.get_extra_info("peername")[1])
        self._callers[caller] = None
        try:
            await self._join(caller, node_id, reader, writer)
        finally:
            del self._callers[caller]

    async def _join(
        self, caller: _Caller, node_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self._through(caller, node_id)
        await self._through(node_id, caller)  # the answer to SYN goes the other way
        target = self._targets[node_id]
        far_reader, far_writer = await asyncio.open_connection(target.host, target.port)
        ways = [
            asyncio.ensure_future(self._carry(reader, far_writer, caller, node_id)),
            asyncio.ensure_future(self._carry(far_reader, writer, node_id, caller)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            far_writer.transport.abort()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sender: int | _Caller,
        receiver: int | _Caller,
    ) -> None:
        """Carry one direction of one connection, until its end has been carried across too."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._through(sender, receiver)
                writer.write(data)
                await writer.drain()
        await self._through(sender, receiver)

    async def _through(self, sender: int | _Caller, receiver: int | _Caller) -> None:
        """Return once nothing is cut between these two in this direction."""
        if not self._cut:
            return
        way = self._known(sender), self._known(receiver)
        if way in self._cut:
            self._held[way] = self._held.get(way, 0) + 1
        while way in self._cut:
            await self._mended.wait()

    def _known(self, end: int | _Caller) -> int | None:
        """The node at an end of a connection; None: no node's."""
        if isinstance(end, int):
            return end
        if not end.looked_up:
            self._look_up([end])
        return end.node_id

    def _look_up(self, callers: Iterable[_Caller]) -> None:
        """Find the owners of these connections. Called only while some link is cut."""
        owners = _owners(list(self._pids.items()))  # a copy: another thread adds to it
        for caller in callers:
            caller.looked_up = True
            caller.node_id = owners.get(caller.port)


def _owners(pids: list[tuple[int, int]]) -> dict[int, int]:
    """Source port of a TCP connection -> id of the node whose process owns it."""
    if not PROC_NET[0].exists():
        return _owners_anywhere(pids)
    # Linux: the kernel's table is dear to read, and psutil would read it twice a process.
    node_at: dict[str, int] = {}
    for node_id, pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # it was closed meanwhile
                    node_at[os.readlink(fd)] = node_id
    owners: dict[int, int] = {}
    for table in PROC_NET:
        for port, inode in _CONNECTION.findall(table.read_text()):
            node = node_at.get(f"socket:[{inode}]")
            if node is not None:
                owners[int(port, 16)] = node
    return owners


def _owners_anywhere(pids: list[tuple[int, int]]) -> dict[int, int]:
    owners: dict[int, int] = {}
    for node_id, pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            for connection in psutil.Process(pid).net_connections("tcp"):
                if connection.raddr:
                    owners[connection.laddr.port] = node_id
    return owners


def _bound(port: int) -> socket.socket:
    """A socket on this port, beside others that are bound to it."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named: asyncio sets TCP_NODELAY
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((HOST, port))
    return bound
