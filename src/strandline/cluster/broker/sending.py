"""Measures when the responses of one connection have been sent, which ends the times of their requests.

Bytes that the socket accepts at once count as sent. For the rest the transport only tells how many bytes it still
holds, so this is checked when it resumes writing, with the next responses, and after growing waits. A measured time is
at most a quarter too long.
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
"""Maximum responses of one connection that are timed while the transport holds them; further ones count as sent at
once."""

LOOK_MS_MIN = 2.0
LOOK_PART = 4
"""Divisor of the time that a response has taken so far: the wait until the next check, at least `LOOK_MS_MIN`."""


class Listener(Protocol):
    """Listener of the connection, as used here."""

    @property
    def clock(self) -> Clock: ...
    @property
    def stats(self) -> ListenerStats: ...


class Connection(Protocol):
    """Connection, as used here (`strandline.cluster.broker.connection`)."""

    @property
    def listener(self) -> Listener: ...
    @property
    def unsent_bytes(self) -> int: ...


class _Held(NamedTuple):
    exchange: Exchange
    flushed_ms: float
    end: int
    """Position of the response's end: bytes given to the transport up to and including it."""


class Sending:
    """Responses that the transport may not have sent yet.

    Invariant: at most `ANSWERS_MAX` are held, without their bytes, which only the transport has.
    """

    __slots__ = ("_connection", "_given", "_held", "_timer")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._given = 0
        self._held: deque[_Held] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def handed_over(self, exchanges: Sequence[Exchange], flushed_ms: float) -> None:
        """Note that these responses were written to the transport, beginning at `flushed_ms` (monotonic)."""
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
        """Count the responses sent by now, and schedule a check for the rest."""
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
        """Drop the held responses, which were not sent: the connection is closed."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
