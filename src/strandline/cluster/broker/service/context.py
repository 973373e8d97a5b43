"""Who asks, through what, and until when: the first argument of every operation of the service."""

from __future__ import annotations

from typing import NamedTuple

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's name for a client that did not authenticate."""

UNKNOWN_SOFTWARE = "unknown"


class Peer:
    """What is known of one client connection; the listener fills in what the client tells of itself.

    Attributes:
        principal: who it is, as Kafka spells it (``User:...``).
        listener: name of the listener it came through; answers name brokers by their endpoints on that listener.
        host: its address, or "" where the transport has none.
        software_name, software_version: from ApiVersions 3 and later, else "unknown".
    """

    __slots__ = ("host", "listener", "principal", "software_name", "software_version")

    def __init__(self, listener: str, host: str, principal: str = ANONYMOUS) -> None:
        self.listener = listener
        self.host = host
        self.principal = principal
        self.software_name = UNKNOWN_SOFTWARE
        self.software_version = UNKNOWN_SOFTWARE


class RequestContext(NamedTuple):
    """One request.

    Attributes:
        peer: the connection it came by.
        client_id: the request's client.id, or "".
        api: Kafka's name of the API.
        version: the API version; decides which errors the client understands.
        correlation_id: the client's number of the request.
        received_ms: the node's monotonic clock when the frame was complete.
    """

    peer: Peer
    client_id: str
    api: str
    version: int
    correlation_id: int
    received_ms: float
