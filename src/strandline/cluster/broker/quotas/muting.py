"""Connections that are muted: nothing is read of them until their wait is over (KIP-219)."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from strandline.cluster.broker.exchange import Connection


class _Mute(NamedTuple):
    until_ms: float
    timer: asyncio.TimerHandle


class Mutes:
    """Holds connections, each once, until the longest of its waits is over."""

    def __init__(self) -> None:
        self._muted: dict[Connection, _Mute] = {}

    def __len__(self) -> int:
        return len(self._muted)

    def mute(self, connection: Connection, throttle_ms: float, now_ms: float) -> None:
        """Take no request of it for so long; what is answered leaves."""
        known = self._muted.get(connection)
        until_ms = now_ms + throttle_ms
        if known is not None:
            if known.until_ms >= until_ms:
                return
            known.timer.cancel()
        else:
            connection.hold()
        timer = asyncio.get_running_loop().call_later(throttle_ms / 1000, self._end, connection)
        self._muted[connection] = _Mute(until_ms, timer)

    def forget(self, connection: Connection) -> None:
        """It has gone."""
        known = self._muted.pop(connection, None)
        if known is not None:
            known.timer.cancel()

    def end_all(self) -> None:
        """Let all of them go on: what they waited for has changed."""
        for connection, mute in list(self._muted.items()):
            mute.timer.cancel()
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        del self._muted[connection]
        connection.let_go()
