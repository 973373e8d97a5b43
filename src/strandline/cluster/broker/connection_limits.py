"""Limits on client connections, per broker and per address (`max.connections`, `max.connections.per.ip`)."""

from __future__ import annotations

from collections import Counter

from strandline.cluster.broker.config import BrokerConfig
from strandline.proto.ids import address_of

OVERALL = "the broker has as many connections as it may (max.connections)"
OF_ADDRESS = "its address has as many connections as it may (max.connections.per.ip)"


class ConnectionLimits:
    """Counts the connections of all listeners, in total and by address. Addresses without connections have no entry."""

    def __init__(self, config: BrokerConfig) -> None:
        self._overall_max = config.connections_max
        self._of_address_max = config.connections_per_ip_max
        self._overrides = {address_of(host): most for host, most in config.connections_per_ip.items()}
        self._open = 0
        self._by_address: Counter[str] = Counter()

    def admit(self, host: str) -> str:
        """Count a connection and return "", or return the reason why it is over a limit; then it is not counted.

        `host`: the client's address; "": the transport has none, and only the broker's limit applies."""
        address = address_of(host)
        if self._open >= self._overall_max:
            return OVERALL
        # rule A21/connections-of-an-address-without-number
        if host and self._by_address[address] >= self._overrides.get(address, self._of_address_max):
            self._forget_empty(address)
            return OF_ADDRESS
        self._open += 1
        self._by_address[address] += 1
        return ""

    def left(self, host: str) -> None:
        """Uncount an admitted connection, which is closed."""
        address = address_of(host)
        self._open -= 1
        self._by_address[address] -= 1
        self._forget_empty(address)

    def _forget_empty(self, address: str) -> None:
        if self._by_address[address] <= 0:
            del self._by_address[address]
