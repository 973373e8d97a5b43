"""The serving side of the internal port: handlers of raw bytes, gRPC's health checks and server reflection."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio
import structlog

from strandline.cluster.node.internal.errors import task_is_cancelled
from strandline.cluster.node.internal.options import SERVER_OPTIONS
from strandline.proto.ids import Endpoint
from strandline.proto.ports import RpcError, RpcUnavailable, StreamHandler, UnaryHandler

log = structlog.get_logger("strandline.internal")

ENDING_S = 0.2
"""How long a closing server waits for gRPC to clean up after the calls it cut off."""

HANDLER_GRACE_S = 5.0
"""How long a stream's handler may go on after its peer is gone: it notices at its next read or write."""


class GrpcServer:
    """A bound internal listener. `start` makes one."""

    def __init__(self, server: Any, endpoint: Endpoint, health: Any) -> None:
        self._server = server
        self._endpoint = endpoint
        self._health = health

    @property
    def endpoint(self) -> Endpoint:
        """Where it is bound (the real port where 0 was asked for)."""
        return self._endpoint

    @classmethod
    async def start(
        cls, endpoint: Endpoint, unary: Mapping[str, UnaryHandler], streams: Mapping[str, StreamHandler]
    ) -> GrpcServer:
        """Bind and listen. Raises OSError when the address cannot be bound."""
        from grpc_health.v1 import health, health_pb2_grpc
        from grpc_reflection.v1alpha import reflection

        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((_Handlers(unary, streams),))
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        names = sorted({method.split("/")[1] for method in (*unary, *streams)})
        reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        try:
            port = server.add_insecure_port(str(endpoint))
        except RuntimeError as error:
            raise _bind_error(endpoint, error) from None
        await server.start()
        return cls(server, Endpoint(endpoint.host, port), servicer)

    async def set_serving(self, serving: bool) -> None:
        """What the health service answers for the server as a whole."""
        from grpc_health.v1 import health_pb2

        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        await self._health.set("", status)

    async def close(self) -> None:
        """Stop listening and end every call and stream. Idempotent."""
        await self._server.stop(None)
        # gRPC's own tasks end a little later; cancelled with the loop, each would print a traceback.
        ending = [task for task in asyncio.all_tasks() if _coroutine_name(task) == "_schedule_rpc_coro"]
        if ending:
            await asyncio.wait(ending, timeout=ENDING_S)


def _coroutine_name(task: asyncio.Task[Any]) -> str:
    return str(getattr(task.get_coro(), "__name__", ""))


def _bind_error(endpoint: Endpoint, cause: Exception) -> OSError:
    """gRPC says only that it failed; a socket of our own tells why."""
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((endpoint.host, endpoint.port))
            probe.listen(1)
        except OSError as error:
            return error
    return OSError(errno.EADDRINUSE, f"cannot listen on {endpoint}: {cause}")


class _Handlers:
    """gRPC's GenericRpcHandler: finds the handler of a method; gRPC answers UNIMPLEMENTED where there is none."""

    def __init__(self, unary: Mapping[str, UnaryHandler], streams: Mapping[str, StreamHandler]) -> None:
        self._methods = {method: _unary(method, handler) for method, handler in unary.items()}
        self._methods |= {method: _stream(method, handler) for method, handler in streams.items()}

    def service(self, handler_call_details: Any) -> Any:
        """gRPC's hook."""
        return self._methods.get(handler_call_details.method)


def _unary(method: str, handler: UnaryHandler) -> Any:
    async def serve(request: bytes, context: Any) -> bytes:
        try:
            return await handler(request)
        except Exception as error:
            tell = log.debug if isinstance(error, RpcError) else log.warning
            tell("an internal call failed", method=method, error=f"{type(error).__name__}: {error}")
            await context.abort(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
        raise AssertionError("abort raises")

    return grpc.unary_unary_rpc_method_handler(serve)


def _stream(method: str, handler: StreamHandler) -> Any:
    async def serve(_requests: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        stream = _ServedStream(method, context)
        task = asyncio.ensure_future(handler(stream))
        try:
            await asyncio.wait((task, stream.closed), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The peer is gone, or the server stops: the handler learns it from its reads, as it would on any transport.
            stream.close()
        if not task.done():
            await asyncio.wait((task,), timeout=HANDLER_GRACE_S)
            task.cancel()
            return
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RpcError):
            log.warning("an internal stream failed", method=method, error=f"{type(error).__name__}: {error}")
            if not stream.broken:
                await context.abort(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")

    return grpc.stream_stream_rpc_method_handler(serve)


class _ServedStream:
    """The accepting side of a stream."""

    __slots__ = ("_context", "_method", "broken", "closed")

    def __init__(self, method: str, context: Any) -> None:
        self._method = method
        self._context = context
        self.broken = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def read(self) -> bytes | None:
        """The next frame, or None once the peer has ended its side (gRPC does not tell that from a broken connection).

        Raises RpcUnavailable.
        """
        if self.closed.done():
            raise self._unavailable()
        try:
            frame = await self._context.read()
        except asyncio.CancelledError:
            if task_is_cancelled():
                raise
            raise self._broke() from None
        except (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError):
            raise self._broke() from None
        return None if frame is grpc.aio.EOF else frame

    async def write(self, frame: bytes) -> None:
        """Send one frame; returns when the transport takes another. Raises RpcUnavailable."""
        if self.closed.done():
            raise self._unavailable()
        try:
            await self._context.write(frame)
        except asyncio.CancelledError:
            if task_is_cancelled():
                raise
            raise self._broke() from None
        except (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError):
            raise self._broke() from None

    def close(self) -> None:
        """End the stream now, in both directions. Idempotent."""
        if not self.closed.done():
            self.closed.set_result(None)

    def _broke(self) -> RpcUnavailable:
        self.broken = True
        return self._unavailable()

    def _unavailable(self) -> RpcUnavailable:
        return RpcUnavailable(f"{self._method}: the stream is closed")
