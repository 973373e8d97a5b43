"""The Rpc port over gRPC: raw byte frames (no serializer), without a thread between the socket and the event loop.

Calls to an endpoint share one connection. Each stream has a connection of its own, so that a slow reader or large
frames do not delay calls.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from dataclasses import dataclass

from strandline.cluster.node.internal.grpc_server import GrpcServer, Handlers
from strandline.cluster.node.internal.grpc_stream import GrpcStream
from strandline.cluster.node.internal.http2 import Http2Connection
from strandline.cluster.node.internal.internal_tls import InternalTls
from strandline.cluster.node.internal.options import CONNECT_TIMEOUT_S, MESSAGE_BYTES_MAX, RECONNECT_BACKOFF_MS
from strandline.proto.ids import Endpoint
from strandline.proto.ports import (
    Rng,
    RpcError,
    RpcRejected,
    RpcTimeout,
    RpcUnavailable,
    Stream,
    StreamHandler,
    UnaryHandler,
)
from strandline.proto.system import system_rng
from strandline.proto.tls import explain, is_tls_error

_REFUSED = f"[Errno {errno.ECONNREFUSED}]"
"""Text in asyncio's error for a refused connection; for a name with several addresses it joins the texts of all."""


@dataclass(slots=True)
class _Peer:
    """State of one endpoint.

    Attributes:
        calls: the connection for calls; None: there is none.
        connecting: done when the running attempt to open that connection has ended; None: there is no attempt.
        failure: error of the last attempt, raised for all callers until `not_before_s`; None: it succeeded.
        not_before_s: time of the event loop at which the next attempt may begin.
        backoff_s: wait after the last failed attempt, which grows with each failure.
    """

    calls: Http2Connection | None = None
    connecting: asyncio.Future[None] | None = None
    failure: RpcUnavailable | None = None
    not_before_s: float = 0.0
    backoff_s: float = 0.0


class GrpcRpc:
    """Calls between nodes. One instance per node; use it only in the event loop's thread."""

    def __init__(self, rng: Rng | None = None, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        """`rng`: adds jitter to the waits between attempts to reconnect."""
        self._rng = rng or system_rng()
        self._message_bytes_max = message_bytes_max
        self._peers: dict[Endpoint, _Peer] = {}
        self._connections: dict[Http2Connection, None] = {}
        self._closed = False
        self._tls: InternalTls | None = None

    def secure(self, tls: InternalTls) -> None:
        """Use TLS from now on, and talk only to nodes of the cluster."""
        self._tls = tls

    async def call(self, endpoint: Endpoint, method: str, request: bytes, *, timeout_ms: float) -> bytes:
        """Send a request and return the reply. Raises RpcUnavailable, RpcTimeout, RpcRejected (see the port)."""
        try:
            async with asyncio.timeout(max(timeout_ms, 0.0) / 1000.0):
                stream = (await self._for_calls(endpoint)).open(method, str(endpoint))
                try:
                    return await _exchange(stream, request)
                finally:
                    stream.close()
        except TimeoutError:
            raise RpcTimeout(f"{method} at {endpoint}: no answer within {timeout_ms:.0f} ms") from None

    async def open_stream(self, endpoint: Endpoint, method: str, *, timeout_ms: float) -> Stream:
        """Open a bidirectional stream; returns once the peer's handler has begun. Raises RpcUnavailable, RpcTimeout,
        RpcRejected (the peer does not serve this method)."""
        try:
            async with asyncio.timeout(max(timeout_ms, 0.0) / 1000.0):
                connection = await self._connect(endpoint)
                try:
                    stream = connection.open(method, str(endpoint))
                    connection.flush()
                    stream.on_lost = connection.close
                    await stream.wait_until_accepted()
                except BaseException:
                    connection.close()
                    raise
                return stream
        except TimeoutError:
            raise RpcTimeout(f"{method} at {endpoint}: no stream within {timeout_ms:.0f} ms") from None

    async def serve(
        self, endpoint: Endpoint, unary: Mapping[str, UnaryHandler], streams: Mapping[str, StreamHandler]
    ) -> GrpcServer:
        """Listen on `endpoint` (port 0: any free port), with gRPC's health and reflection services in addition.

        Raises OSError if the address cannot be bound.
        """
        return await GrpcServer.start(
            endpoint, unary, streams, self.handlers, None if self._tls is None else self._tls.door
        )

    def handlers(self, unary: Mapping[str, UnaryHandler], streams: Mapping[str, StreamHandler]) -> Handlers:
        """Return the object that serves calls and streams on all connections to a listener."""
        return Handlers(unary, streams, self._message_bytes_max, None if self._tls is None else self._tls.guard)

    async def close(self) -> None:
        """Close all outgoing connections; running calls end with RpcUnavailable. Idempotent."""
        self._closed = True
        for connection in list(self._connections):
            connection.close()

    async def _for_calls(self, endpoint: Endpoint) -> Http2Connection:
        """Return the connection for calls. The first caller opens it; others wait for that attempt."""
        peer = self._peers.setdefault(endpoint, _Peer())
        while True:
            connection = peer.calls
            if connection is not None and connection.broken is None and connection.leaving is None:
                return connection
            if peer.connecting is not None:
                await asyncio.wait([peer.connecting])
                continue
            peer.connecting = asyncio.get_running_loop().create_future()
            try:
                peer.calls = await self._connect(endpoint)
            finally:
                peer.connecting.set_result(None)
                peer.connecting = None

    async def _connect(self, endpoint: Endpoint) -> Http2Connection:
        if self._closed:
            raise RpcUnavailable("this node has closed its connections")
        peer = self._peers.setdefault(endpoint, _Peer())
        loop = asyncio.get_running_loop()
        if peer.failure is not None and loop.time() < peer.not_before_s:
            raise _again(peer.failure)
        tls = self._tls
        refuses = None if tls is None else tls.refuses
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: Http2Connection(message_bytes_max=self._message_bytes_max, refuses=refuses),
                    endpoint.host,
                    endpoint.port,
                    ssl=None if tls is None else tls.for_connecting,
                )
        except (OSError, ValueError, OverflowError) as error:  # OSError also on timeout; the others: invalid host, port
            words = _words(error) or f"no connection within {CONNECT_TIMEOUT_S:.0f} s"
            raise self._failed(peer, f"{endpoint}: {words}", refused=_REFUSED in words) from None
        if connection.broken is not None:  # this side refused the peer, which is no node of this cluster
            raise self._failed(peer, str(connection.broken), refused=False)
        peer.failure, peer.backoff_s = None, 0.0
        self._connections[connection] = None
        connection.closed.add_done_callback(lambda _: self._connections.pop(connection, None))
        if self._closed:
            connection.close()
        return connection

    def _failed(self, peer: _Peer, words: str, *, refused: bool) -> RpcUnavailable:
        """Store the failure of an attempt and the wait until the next one; returns the error to raise."""
        peer.failure = RpcUnavailable(words, refused=refused)
        first_s, longest_s = (wait_ms / 1000 for wait_ms in RECONNECT_BACKOFF_MS)
        peer.backoff_s = min(max(peer.backoff_s * 1.6, first_s), longest_s)
        peer.not_before_s = asyncio.get_running_loop().time() + peer.backoff_s * self._rng.uniform(0.8, 1.2)
        return _again(peer.failure)


def _words(error: Exception) -> str:
    return explain(error) if is_tls_error(error) else str(error)


def _again(failure: RpcUnavailable) -> RpcUnavailable:
    """Return a copy of the failure, to raise for another caller."""
    return RpcUnavailable(str(failure), refused=failure.refused)


async def _exchange(stream: GrpcStream, request: bytes) -> bytes:
    try:
        await stream.send_request(request)
    except RpcError:
        await stream.read()  # raises what ended the call
        raise
    reply = await stream.read()
    if reply is None or await stream.read() is not None:
        raise RpcRejected(f"{stream.name}: the answer is not one message")
    return reply
