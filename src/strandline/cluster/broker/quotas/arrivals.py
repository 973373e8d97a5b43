"""connection_creation_rate: a connection above the rate of its address waits before it is anybody's (KIP-612).

Kafka closes it when its wait is over, and the client comes again. Here it is let in then: it has waited already. No
byte of it is read before, and with TLS no handshake is made for it.
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
"""Connections of one address that wait; one more is closed. So none waits longer than a hundred slots of its rate take:
at one a second as long as clients have patience for a request (30 s), three times."""

WAITING_MAX = 1000
"""The same of all addresses that are above their rate. Each costs a descriptor and about a kilobyte."""

TOO_MANY = "its address opens more connections than it may, and as many as may wait do (connection_creation_rate)"


class Listener(Protocol):
    """The listener that connections come to."""

    def turned_away(self, where: str, reason: str) -> None:
        """A connection was closed before it was the listener's."""


class Arrivals:
    """The connections that have been accepted and wait.

    Invariants: at most `WAITING_OF_ADDRESS_MAX` of one address, and `WAITING_MAX` altogether; a connection of an
    address within its rate waits for nothing.

    Attributes:
        quota: what addresses have taken of their rates.
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
        """Go by these from now on. What waits for a quota that is gone is let in; other waits stay as they are."""
        self._limits = AddressLimits(quotas)
        for arrival in list(self._waiting):
            if self._limits.share(arrival.address) is None:
                arrival.enter()

    def protocol(self, listener: Listener, make: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Protocol of a new connection: the listener's own if no address has a quota."""
        return Arrival(self, listener, make) if self._limits else make()

    def close(self, listener: Listener) -> None:
        """The listener closes: close what waits for it."""
        for arrival in list(self._waiting):
            if arrival.listener is listener:
                arrival.abort()

    # What connections call

    def share(self, address: str) -> Share | None:
        """What bounds its address."""
        return self._limits.share(address)

    def delay_ms(self, share: Share, arrival: Arrival) -> float | None:
        """How long it must wait, 0: not at all; None: it may not even wait."""
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
        """Note that a connection does not wait any more."""
        if arrival not in self._waiting:
            return
        del self._waiting[arrival]
        self._of_address[arrival.address] -= 1
        if not self._of_address[arrival.address]:
            del self._of_address[arrival.address]


class Arrival(asyncio.Protocol):
    """A connection that was accepted, until it is the listener's."""

    def __init__(self, arrivals: Arrivals, listener: Listener, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self.listener = listener
        self.address = ""
        self._arrivals = arrivals
        self._make = make
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let it in, let it wait, or close it."""
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
        """From now on it is the listener's."""
        self._end_wait()
        transport, self._transport = self._transport, None
        if transport is not None and not transport.is_closing():
            protocol = self._make()
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            transport.resume_reading()

    def abort(self) -> None:
        """Close it."""
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
