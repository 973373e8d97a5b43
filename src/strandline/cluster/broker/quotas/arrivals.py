"""The quota connection_creation_rate (KIP-612): connections above the rate of their address wait to be served.

Kafka closes such a connection after its wait, and the client connects again. Here it is served after the wait. Until
then nothing is read from it, and no TLS handshake is made.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol, cast

from strandline.cluster.broker.quotas.limits import AddressLimits, Share
from strandline.cluster.broker.quotas.rate_quota import TokenQuota
from strandline.controller.metadata.quotas import QuotasImage
from strandline.proto.ids import address_of, peer_of
from strandline.proto.ports import Clock
from strandline.proto.rates import WindowShape

WAITING_OF_ADDRESS_MAX = 100
"""Maximum waiting connections of one address; one more is closed. It bounds the wait: at one connection per second to
100 s, about three times as long as clients wait for a request (30 s)."""

WAITING_MAX = 1000
"""Maximum waiting connections of all addresses; one more is closed. Each costs a file descriptor and about 1 kB."""

TOO_MANY = "its address opens more connections than it may, and as many as may wait do (connection_creation_rate)"


class Listener(Protocol):
    """Listener that accepted a connection, as used here."""

    def turned_away(self, where: str, reason: str) -> None:
        """Count and log a connection that was closed before it was served. `where`: the client's address."""


class Arrivals:
    """Accepted connections that wait because their address is above its rate.

    Invariants: at most `WAITING_OF_ADDRESS_MAX` of one address, and `WAITING_MAX` in total; a connection of an address
    within its rate does not wait.

    Attributes:
        quota: tokens of connection_creation_rate by address.
    """

    def __init__(self, shape: WindowShape, clock: Clock) -> None:
        self.clock = clock
        self.quota = TokenQuota(shape)
        self._limits = AddressLimits({})
        self._waiting: dict[Arrival, None] = {}
        self._of_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def set(self, quotas: QuotasImage) -> None:
        """Use these quotas from now on. Connections that wait for a quota that was removed are served; others go on
        waiting as before."""
        self._limits = AddressLimits(quotas)
        for arrival in list(self._waiting):
            if self._limits.share(arrival.address) is None:
                arrival.enter()

    def protocol(self, listener: Listener, make: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection: the listener's own (`make`) if no address has a quota."""
        return Arrival(self, listener, make) if self._limits else make()

    def close(self, listener: Listener) -> None:
        """Close the connections that wait for a listener, which closes."""
        for arrival in list(self._waiting):
            if arrival.listener is listener:
                arrival.abort()

    # Called by connections

    def share(self, address: str) -> Share | None:
        """Return the quota share of an address; None: it has no quota."""
        return self._limits.share(address)

    def delay_ms(self, share: Share, arrival: Arrival) -> float | None:
        """Count a connection; return the milliseconds that it must wait, or None if too many wait and it must be
        closed, which is not counted."""
        now_ms = self.clock.monotonic_ms()
        self.quota.take(share, 1, now_ms)
        delay_ms = self.quota.wait_ms(share, now_ms)
        if delay_ms <= 0:  # rule A21/connections-above-the-rate-are-let-in
            return 0.0
        # rule A21/connections-wait-without-number
        if len(self._waiting) >= WAITING_MAX or self._of_address[arrival.address] >= WAITING_OF_ADDRESS_MAX:
            self.quota.take(share, -1, now_ms)
            return None
        self.quota.note_wait(share, delay_ms, now_ms)
        self._waiting[arrival] = None
        self._of_address[arrival.address] += 1
        return delay_ms

    def left(self, arrival: Arrival) -> None:
        """Stop counting a connection as waiting. Idempotent."""
        if arrival not in self._waiting:
            return
        del self._waiting[arrival]
        self._of_address[arrival.address] -= 1
        if not self._of_address[arrival.address]:
            del self._of_address[arrival.address]


class Arrival(asyncio.Protocol):
    """Protocol of an accepted connection until the listener's own protocol takes over."""

    def __init__(self, arrivals: Arrivals, listener: Listener, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self.listener = listener
        self.address = ""
        self._arrivals = arrivals
        self._make = make
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the connection, let it wait, or close it, by the quota of its address."""
        self._transport = cast("asyncio.Transport", transport)
        peername = transport.get_extra_info("peername")
        self.address = address_of(str(peername[0])) if peername else ""
        share = self._arrivals.share(self.address)
        delay_ms = 0.0 if share is None else self._arrivals.delay_ms(share, self)
        if delay_ms is None:
            self.listener.turned_away(peer_of(peername), TOO_MANY)
            self._transport.abort()
        elif delay_ms == 0:
            self.enter()
        else:
            self._transport.pause_reading()  # rule A21/waiting-connections-are-read
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.enter)

    def enter(self) -> None:
        """Hand the connection over to the listener's protocol."""
        self._end_wait()
        transport, self._transport = self._transport, None
        if transport is not None and not transport.is_closing():
            protocol = self._make()
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            transport.resume_reading()

    def abort(self) -> None:
        """Close the connection."""
        self._end_wait()
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection was closed while it waited."""
        self._end_wait()
        self._transport = None

    def _end_wait(self) -> None:
        self._arrivals.left(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
