"""The event loop of a node's process: as asyncio's, but for how it listens, and for when garbage is looked for.

- Without descriptors to spare asyncio tries to accept a hundred times, each time with a traceback, and again for each
  of these a second later: 211,000 tracebacks in a minute, and no time for anything else. Here accepting pauses, and a
  line in a while says so.
- A connection takes as long to be accepted as a request to be answered: where the listener says so it waits for its
  turn (`strandline.cluster.broker.newcomers`).
- A full collection of garbage looks at all that is alive, and holds the loop meanwhile. Python begins one whenever so
  much more is alive as one client's fetch of thousands of partitions makes. Here they have a share of the time.
- `0.0.0.0` and `::` take IPv4 and IPv6, as Kafka's do: Java binds a wildcard to both. asyncio binds one family.
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
"""Connections taken in one turn of the loop: a fifth of a millisecond. asyncio takes a hundred."""

PAUSE_S = 1.0
"""Seconds for which nothing is accepted while there are no descriptors. Clients wait in the kernel's queue
meanwhile."""

BACKLOG = 1000
"""Connections that wait in the kernel's queue. Beyond it the kernel lets a client try again after a second."""

COLLECTIONS_SHARE = 0.005
"""Share of the event loop's time that full garbage collections may take: half of what shows in a client's p99."""

COLLECTIONS_PAUSE_S = 1.0
"""Minimum seconds between two full garbage collections."""

_NEVER = 2**31 - 1

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

MakeProtocol = Callable[[], asyncio.BaseProtocol]


class NodeLoop(asyncio.SelectorEventLoop):
    """Event loop of `run_node`."""

    async def create_server(  # type: ignore[override]
        self, protocol_factory: MakeProtocol, host: str | None = None, port: int | None = None, **keywords: Any
    ) -> asyncio.AbstractServer:
        """Bind and accept. Raises OSError where the address cannot be bound."""
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
    """The sockets of one listener."""

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
        """Look at no socket: the kernel calls it ready for as long as a connection waits."""
        for each in self.sockets:
            self._loop.remove_reader(each.fileno())

    def _accept(self, listening: socket.socket) -> None:
        if self._newcomers is not None and not self._newcomers.may_come(self._accept_again):
            self._look_away()
        else:
            self._accept_some(listening)

    def _accept_again(self) -> None:
        """Newcomers have their turn again."""
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
        """Some connections, and where they come from."""
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
        """Stop accepting for a while: it would fail again."""
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
        """Give a connection its protocol, as asyncio's own server does, but for the task that waits for it."""
        loop: Any = self._loop
        try:
            loop._make_socket_transport(accepted, self._make(), extra={"peername": address})
        except Exception as error:
            accepted.close()
            self._notes.error("internal error: an accepted connection has no protocol", exc_info=error)

    def close(self) -> None:
        """Accept no more. Idempotent."""
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
        """Serve from the start."""

    async def serve_forever(self) -> None:
        await self._loop.create_future()

    async def wait_closed(self) -> None:
        """Returns at once: connections end by themselves."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop


def collect_seldom(loop: asyncio.AbstractEventLoop) -> None:
    """What was made so far lives as long as the process: the collector does not look at it again. From now on full
    collections have their share, and are when Python would make one, or later. Others cost little and stay."""
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
