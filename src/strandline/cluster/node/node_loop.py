"""The event loop of a node's process: asyncio's, with other rules for listening and for garbage collection.

- If no file descriptors are left, asyncio tries to accept a hundred times, each time with a traceback, and again for
  each of these a second later: 211,000 tracebacks in a minute, and no time for anything else. Here accepting pauses,
  and log lines at a bounded rate say so.
- Accepting a connection takes as long as answering a request. If the listener wants it, accepting waits for its turn
  (`strandline.cluster.broker.newcomers`).
- A full garbage collection visits all live objects and blocks the loop meanwhile. Python starts one whenever as many
  new objects are alive as one client's fetch of thousands of partitions creates. Here full collections have a bounded
  share of the time.
- `0.0.0.0` and `::` listen on IPv4 and IPv6, as in Kafka: Java binds a wildcard to both. asyncio binds one family.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from strandline.cluster.broker.newcomers import Newcomers
from strandline.cluster.node.ports import bind_each, bind_everywhere
from strandline.proto.ids import WILDCARDS, Endpoint
from strandline.proto.notes import Notes
from strandline.proto.system import SystemClock

log = structlog.get_logger("strandline.node")

ACCEPTED_MAX = 10
"""Maximum connections accepted in one turn of the loop: a fifth of a millisecond. asyncio accepts a hundred."""

PAUSE_S = 1.0
"""Seconds for which nothing is accepted after accepting failed for lack of descriptors. Clients wait in the kernel's
queue meanwhile."""

BACKLOG = 1000
"""Maximum connections in the kernel's accept queue. Beyond it the kernel makes a client try again after a second."""

COLLECTIONS_SHARE = 0.005
"""Maximum share of the event loop's time for full garbage collections: half of the share that shows in a p99."""

COLLECTIONS_PAUSE_S = 1.0
"""Minimum seconds between two full garbage collections."""

_NEVER = 2**31 - 1

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

MakeProtocol = Callable[[], asyncio.BaseProtocol]


class NodeLoop(asyncio.SelectorEventLoop):
    """Event loop of a node's process (`run_node`)."""

    async def create_server(  # type: ignore[override]
        self, protocol_factory: MakeProtocol, host: str | None = None, port: int | None = None, **keywords: Any
    ) -> asyncio.AbstractServer:
        """Bind and begin to accept. Raises OSError if the address cannot be bound."""
        if keywords or host is None or port is None:
            return await super().create_server(protocol_factory, host, port, **keywords)
        if host in WILDCARDS:
            sockets = [bind_everywhere(port)]
        else:
            infos = await self.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            sockets = bind_each(list(dict.fromkeys((info[0], info[4]) for info in infos)))
        for bound in sockets:
            bound.listen(BACKLOG)
        return ListeningServer(self, protocol_factory, sockets)


class ListeningServer(asyncio.AbstractServer):
    """Server with the sockets of one listener."""

    def __init__(self, loop: NodeLoop, make: MakeProtocol, sockets: Sequence[socket.socket]) -> None:
        self.sockets = tuple(sockets)
        self._loop = loop
        self._make = make
        self._newcomers = make if isinstance(make, Newcomers) else None
        self._notes = Notes(SystemClock(), log)
        self._retry: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        self._retry = None
        for listening in self.sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _look_away(self) -> None:
        """Stop watching the sockets, which the kernel reports as readable for as long as a connection waits."""
        for each in self.sockets:
            self._loop.remove_reader(each.fileno())

    def _accept(self, listening: socket.socket) -> None:
        if self._newcomers is not None and not self._newcomers.may_come(self._accept_again):
            self._look_away()
        else:
            self._accept_some(listening)

    def _accept_again(self) -> None:
        """Watch the sockets again and accept: it is the turn of new connections (see `Newcomers.may_come`)."""
        if self._retry is None:
            self._listen()
            for listening in self.sockets:
                self._accept_some(listening)

    def _accept_some(self, listening: socket.socket) -> None:
        newcomers = self._newcomers
        if newcomers is None:
            for accepted, address in self._accepted(listening):
                self._enter(accepted, address)
        else:
            for accepted, address in newcomers.accepted(partial(self._accepted, listening)):
                newcomers.arrived(address[0], partial(self._enter, accepted, address), accepted.close)

    def _accepted(self, listening: socket.socket) -> list[tuple[socket.socket, Any]]:
        """Accept up to `ACCEPTED_MAX` connections; returns them with the clients' addresses."""
        some: list[tuple[socket.socket, Any]] = []
        try:
            while len(some) < ACCEPTED_MAX:
                accepted, address = listening.accept()
                accepted.setblocking(False)
                some.append((accepted, address))
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass
        except OSError as error:
            self._pause(listening, error)
        return some

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Log a failed accept, and accept nothing for `PAUSE_S`, as it would fail again."""
        advice = "raise the limit of descriptors (ulimit -n), or bound clients by max.connections"
        self._notes.warn(
            "no connections are accepted for a moment: the system has no more to give",
            kind=errno.errorcode.get(error.errno or 0, ""),
            listener=str(Endpoint(*listening.getsockname()[:2])),
            error=str(error),
            advice=advice if error.errno in OUT_OF_RESOURCES else "it is tried again",
        )
        self._look_away()
        if self._retry is None:
            self._retry = self._loop.call_later(PAUSE_S, self._listen)  # rule A23/accepted-without-descriptors

    def _enter(self, accepted: socket.socket, address: Any) -> None:
        """Give a connection its transport and protocol, as asyncio's own server does, but without a task for it."""
        loop: Any = self._loop
        try:
            loop._make_socket_transport(accepted, self._make(), extra={"peername": address})
        except Exception as error:
            accepted.close()
            self._notes.error("internal error: an accepted connection has no protocol", exc_info=error)

    def close(self) -> None:
        """Stop accepting. Idempotent."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._newcomers is not None:
            self._newcomers.close(self._accept_again)
        self._look_away()
        for listening in self.sockets:
            listening.close()
        self.sockets = ()

    def is_serving(self) -> bool:
        return bool(self.sockets)

    async def start_serving(self) -> None:
        """Do nothing: the server accepts from its creation on."""

    async def serve_forever(self) -> None:
        await self._loop.create_future()

    async def wait_closed(self) -> None:
        """Return at once; open connections are not waited for."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop


def collect_seldom(loop: asyncio.AbstractEventLoop) -> None:
    """Set up the garbage collector for a running node. Objects created so far live as long as the process, and are not
    visited again. Full collections get `COLLECTIONS_SHARE` of the loop's time, and run when Python would run one, or
    later. Partial collections are cheap, and run as usual."""
    gc.collect()
    gc.freeze()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)  # rule A26/full-collections-at-any-time
    loop.call_later(COLLECTIONS_PAUSE_S, _collect_if_due, loop, old)


def _collect_if_due(loop: asyncio.AbstractEventLoop, old: int) -> None:
    took_s = 0.0
    if gc.get_count()[2] > old:
        began_s = loop.time()
        gc.collect()
        took_s = loop.time() - began_s
    # rule A26/full-collections-have-no-share
    loop.call_later(max(COLLECTIONS_PAUSE_S, took_s / COLLECTIONS_SHARE), _collect_if_due, loop, old)
