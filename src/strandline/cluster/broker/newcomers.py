"""New connections that wait to be served: they are accepted and set up within the event loop's time for
unauthenticated clients (`loop_time`), fairly by address (rule A44).

A client that connects and leaves at once, or is refused, still costs the loop the setup and the end of a transport and
a protocol. So accepting waits for a turn of the loop, as requests do, and each accepted connection then waits for a
turn of its own. Until that turn a connection is only a socket, and nothing is read from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from strandline.cluster.broker.loop_time import Call, LoopTime
from strandline.cluster.broker.request import Peer
from strandline.cluster.security.principal import ANONYMOUS
from strandline.proto.ids import address_of

WAITING_MAX = 1000
"""Maximum accepted connections of one listener that wait for their turn, one file descriptor each. One more drops the
newest waiting connection of the address that has the most."""

ACCEPTING = "accepting"
"""Principal to which the time of accepting connections is charged. It gets as much time as all addresses together, so
that the kernel's accept queue, which is not fair among addresses, stays short."""

T = TypeVar("T")


def _stranger(listener: str, host: str, principal: str = ANONYMOUS) -> Peer:
    peer = Peer(listener, host, principal)
    peer.is_stranger = True
    return peer


class Newcomers:
    """Protocol factory of a listener that also decides when connections are accepted and set up.

    A server without support for turns calls it like any protocol factory.
    """

    def __init__(self, listener: str, make: Callable[[], asyncio.BaseProtocol], loop_time: LoopTime) -> None:
        self._listener = listener
        self._make = make
        self._loop_time = loop_time
        self._accepting = _stranger(listener, "", ACCEPTING)
        self._waiting: dict[str, dict[Call, Call]] = {}
        """Waiting connections by address, oldest first: callback that sets one up -> callback that drops it."""
        self._count = 0

    def __call__(self) -> asyncio.BaseProtocol:
        return self._make()

    def __len__(self) -> int:
        """Number of connections that wait."""
        return self._count

    def may_come(self, again: Call) -> bool:
        """Return whether connections may be accepted now. If not, `again` is called in the turn in which they may."""
        if self._loop_time.admits(self._accepting):  # rule A44/accepted-at-any-time
            return True
        self._loop_time.wait(self._accepting, again)
        return False

    def accepted(self, some: Callable[[], T]) -> T:
        """Run `some`, which accepts connections, and return its result. Its time is never taken off for clients that
        authenticate later, as it is of no single client."""
        return self._loop_time.measured(self._accepting, some)

    def arrived(self, address: str, enter: Call, drop: Call) -> None:
        """Set up an accepted connection by `enter`, now or in a later turn, or close it by `drop` if too many wait."""
        peer = _stranger(self._listener, address_of(address))
        if self._loop_time.admits(peer):  # rule A44/let-in-at-any-time
            self._loop_time.measured(peer, enter)
            return
        if self._count >= WAITING_MAX:  # rule A44/newcomers-without-number
            self._drop_one()

        def have_turn() -> None:
            self._left(peer.host, have_turn)
            self._loop_time.measured(peer, enter)

        self._waiting.setdefault(peer.host, {})[have_turn] = drop
        self._count += 1
        self._loop_time.wait(peer, have_turn)

    def close(self, again: Call) -> None:
        """Drop all waiting connections and withdraw `again` (see `may_come`): the listener closes. Idempotent."""
        self._loop_time.forget(again)
        while self._count:
            self._drop_one()

    def _drop_one(self) -> None:
        """Drop the newest waiting connection of the address that has most, so that addresses with few keep theirs."""
        host = max(self._waiting, key=lambda each: len(self._waiting[each]))
        have_turn, drop = next(reversed(self._waiting[host].items()))
        self._loop_time.forget(have_turn)
        self._left(host, have_turn)
        drop()

    def _left(self, host: str, have_turn: Call) -> None:
        of_address = self._waiting[host]
        del of_address[have_turn]
        self._count -= 1
        if not of_address:
            del self._waiting[host]
