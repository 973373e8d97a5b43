"""The ports through which the world comes in: time, chance and calls between nodes.

Production gives them the real clock, a generator seeded by the operating system, and gRPC; the simulator gives them
virtual time, one split of its root seed, and an in-memory network. Code above never asks which. The `Disk` port lives
in `strandline.log.disk`. Timers go through the running event loop (`loop.call_later`), which the simulator replaces.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from strandline.proto.ids import Endpoint

Rng = random.Random
"""An injected generator. Never use the module-level functions of `random`, `uuid.uuid4` or `os.urandom`."""


class Clock(Protocol):
    """A node's own clocks: they may be skewed against other nodes' and, the wall clock, jump."""

    def monotonic_ms(self) -> float:
        """Milliseconds from an arbitrary origin; never goes back. For every timeout and every age."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump. For record timestamps alone."""


class RpcError(Exception):
    """A call between nodes did not complete; whether the peer carried it out is unknown."""


class RpcUnavailable(RpcError):
    """The peer could not be reached, or the connection broke. `refused` is true when nobody listens there."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class RpcTimeout(RpcError):
    """The peer gave no answer in time."""


class RpcRejected(RpcError):
    """The peer's handler raised: the call was wrong, or the peer is not what we took it for. Not retriable as it is."""


class Stream(Protocol):
    """One side of a bidirectional stream of byte frames. One reader and one writer coroutine at most a side."""

    async def read(self) -> bytes | None:
        """The next frame, or None once the peer has ended its side.

        Raises:
            RpcUnavailable: the connection broke.
        """

    async def read_all(self, take: Callable[[bytes], None]) -> None:
        """Give `take` each frame from now on, in the turn of the loop in which it comes; returns once the peer has
        ended its side. `take` may close the stream.

        Raises:
            RpcUnavailable: the connection broke, or the stream was closed.
            Exception: whatever `take` raises: it is given nothing more.
        """

    async def write(self, frame: bytes) -> None:
        """Send one frame; returns when the transport will take another (back pressure).

        Raises:
            RpcUnavailable: the connection broke.
        """

    def close(self) -> None:
        """End the stream now, in both directions. Idempotent."""


UnaryHandler = Callable[[bytes], Awaitable[bytes]]
"""Serves one method: request bytes in, reply bytes out. An exception reaches the caller as RpcRejected."""

StreamHandler = Callable[[Stream], Awaitable[None]]
"""Serves one incoming stream; the stream ends when the handler returns."""


class RpcServer(Protocol):
    """A bound listener of a node."""

    @property
    def endpoint(self) -> Endpoint:
        """Endpoint to which it is bound (with the real port if port 0 was asked for)."""

    async def close(self) -> None:
        """Stop listening and end every call and stream."""


class Rpc(Protocol):
    """Calls between nodes: bytes in, bytes out, per method. Connections are kept and reopened inside.

    Methods are gRPC paths, for example ``/strandline.v1.Quorum/Fetch``.
    """

    async def call(self, endpoint: Endpoint, method: str, request: bytes, *, timeout_ms: float) -> bytes:
        """One request, one reply.

        Raises:
            RpcUnavailable: not reachable, or the connection broke.
            RpcTimeout: no answer within `timeout_ms`.
            RpcRejected: the handler raised.
        """

    async def open_stream(self, endpoint: Endpoint, method: str, *, timeout_ms: float) -> Stream:
        """Open a bidirectional stream; returns once the peer has accepted the connection.

        Raises:
            RpcUnavailable, RpcTimeout: as for `call`.
        """

    async def serve(
        self,
        endpoint: Endpoint,
        unary: Mapping[str, UnaryHandler],
        streams: Mapping[str, StreamHandler],
    ) -> RpcServer:
        """Listen on `endpoint` (port 0: any free one).

        Raises:
            OSError: the address cannot be bound.
        """

    async def close(self) -> None:
        """Close every outgoing connection."""
