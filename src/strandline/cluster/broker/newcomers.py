"""Connections that clients have opened and that nobody serves yet: they are accepted and let in within the time of
strangers, fairly by address (rule A44).

Whoever connects and goes again, or connects to be refused, takes as much of the loop as its transport, its protocol and
their end do. So accepting waits for its turn as requests do, and what was accepted for its own. Before that a
connection is a socket, and nothing of it is read.
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
"""Connections of one listener that wait for their turn, a descriptor each. With one more the last one goes of the
address that has most."""

ACCEPTING = "accepting"
"""Principal that takes the time in which connections are accepted: as much as all addresses together, so that the
kernel's queue, which knows no fairness, is short."""

T = TypeVar("T")


def _stranger(listener: str, host: str, principal: str = ANONYMOUS) -> Peer:
    peer = Peer(listener, host, principal)
    peer.is_stranger = True
    return peer


class Newcomers:
    """Makes the protocols of a listener's connections, and says when it may.

    A server that knows nothing of turns calls it as any factory of protocols.
    """

    def __init__(self, listener: str, make: Callable[[], asyncio.BaseProtocol], loop_time: LoopTime) -> None:
        self._listener = listener
        self._make = make
        self._loop_time = loop_time
        self._accepting = _stranger(listener, "", ACCEPTING)
        self._waiting: dict[str, dict[Call, Call]] = {}
        """Of each address what lets a connection in, and what drops it; the oldest first."""
        self._count = 0

    def __call__(self) -> asyncio.BaseProtocol:
        return self._make()

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    def may_come(self, again: Call) -> bool:
        """True if some may be accepted now. Else accept nothing until `again` is called: it is their
        turn then."""
        if self._loop_time.admits(self._accepting):  # rule A44/accepted-at-any-time
            return True
        self._loop_time.wait(self._accepting, again)
        return False

    def accepted(self, some: Callable[[], T]) -> T:
        """Accept some. What that takes is given back to nobody: of whom it will come to something is not known yet."""
        return self._loop_time.measured(self._accepting, some)

    def arrived(self, address: str, enter: Call, drop: Call) -> None:
        """A connection was accepted: let it in, now or in a later turn. `drop` closes it instead."""
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
        """The listener closes: drop all that wait, and do not accept `again`. Idempotent."""
        self._loop_time.forget(again)
        while self._count:
            self._drop_one()

    def _drop_one(self) -> None:
        """Make room: the last one goes of the address that has most, and so that of one that has few does not."""
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
