"""The Rpc port over gRPC: raw byte frames (no serializer), one channel an endpoint, streams as reader and writer.

Protobuf messages, threads and unary long polls were tried as well: raw frames on a bidirectional stream of grpc.aio
cost the least between two nodes. TCP_NODELAY is gRPC's default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc.aio

from strandline.cluster.node.internal.errors import rpc_error, task_is_cancelled
from strandline.cluster.node.internal.grpc_server import GrpcServer
from strandline.cluster.node.internal.options import CHANNEL_OPTIONS
from strandline.proto.ids import Endpoint
from strandline.proto.ports import RpcTimeout, RpcUnavailable, StreamHandler, UnaryHandler


class _Peer:
    """The connection to one endpoint and the callables made on it."""

    __slots__ = ("channel", "streams", "unary")

    def __init__(self, endpoint: Endpoint) -> None:
        self.channel = grpc.aio.insecure_channel(str(endpoint), options=CHANNEL_OPTIONS)
        self.unary: dict[str, Any] = {}
        self.streams: dict[str, Any] = {}


class GrpcRpc:
    """Calls between nodes in production. One instance a node; used on the event loop's thread alone."""

    def __init__(self) -> None:
        self._peers: dict[Endpoint, _Peer] = {}
        self._closed = False

    async def call(self, endpoint: Endpoint, method: str, request: bytes, *, timeout_ms: float) -> bytes:
        """One request, one reply. Raises RpcUnavailable, RpcTimeout, RpcRejected (see the port)."""
        peer = self._peer(endpoint)
        stub = peer.unary.get(method)
        if stub is None:
            stub = peer.unary[method] = peer.channel.unary_unary(method)
        try:
            reply: bytes = await stub(request, timeout=max(timeout_ms, 0.0) / 1000.0)
        except grpc.aio.AioRpcError as error:
            raise rpc_error(error, endpoint, method) from None
        except (asyncio.CancelledError, grpc.aio.UsageError) as error:
            if isinstance(error, asyncio.CancelledError) and task_is_cancelled():
                raise
            raise RpcUnavailable(f"{method} at {endpoint}: this node is closing its connections") from None
        return reply

    async def open_stream(self, endpoint: Endpoint, method: str, *, timeout_ms: float) -> GrpcStream:
        """Open a bidirectional stream; returns once the peer's handler has begun. Raises RpcUnavailable, RpcTimeout,
        RpcRejected (the peer does not serve this method; where its refusal comes in two pieces, the first read raises
        it)."""
        peer = self._peer(endpoint)
        stub = peer.streams.get(method)
        if stub is None:
            stub = peer.streams[method] = peer.channel.stream_stream(method)
        call = stub()
        stream = GrpcStream(call, endpoint, method)
        try:
            async with asyncio.timeout(max(timeout_ms, 0.0) / 1000.0):
                await stream.wait_until_accepted()
        except TimeoutError:
            stream.close()
            raise RpcTimeout(
                f"{method} at {endpoint}: the stream was not accepted within {timeout_ms:.0f} ms"
            ) from None
        except BaseException:
            stream.close()
            raise
        return stream

    async def serve(
        self, endpoint: Endpoint, unary: Mapping[str, UnaryHandler], streams: Mapping[str, StreamHandler]
    ) -> GrpcServer:
        """Listen on `endpoint` (port 0: any free one), with gRPC's health and reflection services beside the handlers.

        Raises OSError when the address cannot be bound.
        """
        return await GrpcServer.start(endpoint, unary, streams)

    async def close(self) -> None:
        """Close every outgoing connection; calls still running end with RpcUnavailable. Idempotent."""
        self._closed = True
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            await peer.channel.close(None)

    def _peer(self, endpoint: Endpoint) -> _Peer:
        peer = self._peers.get(endpoint)
        if peer is None:
            if self._closed:
                raise RpcUnavailable("this node has closed its connections")
            peer = self._peers[endpoint] = _Peer(endpoint)
        return peer


class GrpcStream:
    """The opening side of a stream. One reader and one writer coroutine at most."""

    __slots__ = ("_call", "_closed", "_endpoint", "_method")

    def __init__(self, call: Any, endpoint: Endpoint, method: str) -> None:
        self._call = call
        self._endpoint = endpoint
        self._method = method
        self._closed = False

    async def wait_until_accepted(self) -> None:
        """Return once the peer has sent its initial metadata, which it does as its handler begins."""
        try:
            await self._call.initial_metadata()
            await self._call.wait_for_connection()  # raises what ended the call, if it has ended
        except grpc.aio.AioRpcError as error:
            raise rpc_error(error, self._endpoint, self._method) from None
        except asyncio.CancelledError:
            if task_is_cancelled():
                raise
            raise self._unavailable() from None

    async def read(self) -> bytes | None:
        """The next frame, or None once the peer has ended its side. Raises RpcUnavailable."""
        if self._closed:
            raise self._unavailable()
        try:
            frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise rpc_error(error, self._endpoint, self._method) from None
        except asyncio.CancelledError:
            if task_is_cancelled():
                raise
            raise self._unavailable() from None
        return None if frame is grpc.aio.EOF else frame

    async def write(self, frame: bytes) -> None:
        """Send one frame; returns when the transport takes another. Raises RpcUnavailable."""
        if self._closed:
            raise self._unavailable()
        try:
            await self._call.write(frame)
        except grpc.aio.AioRpcError as error:
            raise rpc_error(error, self._endpoint, self._method) from None
        except asyncio.InvalidStateError:
            raise RpcUnavailable(f"{self._method} at {self._endpoint}: the peer has ended the stream") from None
        except asyncio.CancelledError:
            if task_is_cancelled():
                raise
            raise self._unavailable() from None

    def close(self) -> None:
        """End the stream now, in both directions. Idempotent."""
        if not self._closed:
            self._closed = True
            self._call.cancel()

    def _unavailable(self) -> RpcUnavailable:
        return RpcUnavailable(f"{self._method} at {self._endpoint}: the stream is closed")
