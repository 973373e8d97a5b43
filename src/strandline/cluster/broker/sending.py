"""When the answers of one connection have left it: the end of each request's times.

What the socket takes at once has left. Of the rest the transport says only how much it still holds, so it is looked
at: when it has room again, with the next answers, and after waits that grow. So a time is a quarter too long at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from strandline.cluster.broker.request import Exchange
from strandline.cluster.broker.stats import ListenerStats
from strandline.proto.ports import Clock

ANSWERS_MAX = 32
"""Answers of one connection that are timed while the transport holds them; what is sent behind them counts at once."""

LOOK_MS_MIN = 2.0
LOOK_PART = 4
"""A transfer is checked again after the time that it has taken so far, divided by this."""


class Listener(Protocol):
    """Listener of the connection."""

    @property
    def clock(self) -> Clock: ...
    @property
    def stats(self) -> ListenerStats: ...


class Connection(Protocol):
    """Connection whose answers these are (`strandline.cluster.broker.connection`)."""

    @property
    def listener(self) -> Listener: ...
    @property
    def unsent_bytes(self) -> int: ...


class _Held(NamedTuple):
    exchange: Exchange
    flushed_ms: float
    end: int
    """Bytes of all answers up to its last one."""


class Sending:
    """Answers that the transport has and may not have sent yet.

    Invariant: at most `ANSWERS_MAX` are held. Their bytes are the transport's alone.
    """

    __slots__ = ("_connection", "_given", "_held", "_timer")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._given = 0
        self._held: deque[_Held] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def handed_over(self, exchanges: Sequence[Exchange], flushed_ms: float) -> None:
        """The transport was given these answers, together, from `flushed_ms` on."""
        listener = self._connection.listener
        now_ms = listener.clock.monotonic_ms()
        unsent = self._connection.unsent_bytes
        if not unsent and not self._held:
            listener.stats.sent(exchanges, flushed_ms, now_ms)
            return
        for exchange in exchanges:
            self._given += exchange.size
            if len(self._held) < ANSWERS_MAX:
                self._held.append(_Held(exchange, flushed_ms, self._given))
            else:
                listener.stats.sent((exchange,), flushed_ms, now_ms)
        self.look()

    def look(self) -> None:
        """Count what has left by now, and come back for the rest."""
        if not self._held:
            return
        listener = self._connection.listener
        now_ms = listener.clock.monotonic_ms()
        left = self._given - self._connection.unsent_bytes
        while self._held and self._held[0].end <= left:  # rule A40/sent-when-it-was-handed-over
            held = self._held.popleft()
            listener.stats.sent((held.exchange,), held.flushed_ms, now_ms)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            wait_ms = max(LOOK_MS_MIN, (now_ms - self._held[0].flushed_ms) / LOOK_PART)
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.look)
        else:
            self._given = 0

    def close(self) -> None:
        """The connection has gone: what it held was not sent."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
