"""The server of the internal port: serves handlers of raw bytes, gRPC's health checks and server reflection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from strandline.cluster.node.internal import status
from strandline.cluster.node.internal.grpc_stream import GrpcStream
from strandline.cluster.node.internal.guard import Guard
from strandline.cluster.node.internal.health import Health
from strandline.cluster.node.internal.http2 import Http2Connection
from strandline.cluster.node.internal.options import HANDLER_GRACE_S, MESSAGE_BYTES_MAX
from strandline.cluster.node.internal.reflection import reflection_handlers
from strandline.cluster.security.tls_door import MakeProtocol, TlsDoor
from strandline.proto.ids import Endpoint
from strandline.proto.ports import RpcError, StreamHandler, UnaryHandler

log = structlog.get_logger("strandline.internal")

ENDING_S = 0.2
"""Seconds that a closing server waits for the handlers of the calls that it has ended."""


class Handlers:
    """Serves the calls and streams of peers, over any number of connections."""

    def __init__(
        self,
        unary: Mapping[str, UnaryHandler],
        streams: Mapping[str, StreamHandler],
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        guard: Guard | None = None,
    ) -> None:
        """`guard`: checks the rights of callers; None: every caller may do everything."""
        self._unary = unary
        self._streams = streams
        self._guard = guard
        if guard is not None:
            self._streams = {method: guard.stream_handler(method, streams[method]) for method in streams}
        self._message_bytes_max = message_bytes_max
        self._connections: dict[Http2Connection, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def connection(self) -> Http2Connection:
        """Make the protocol of a new connection."""
        guard = self._guard
        made = Http2Connection(self._accept, self._message_bytes_max, None if guard is None else guard.refuses)
        if guard is not None:
            made.on_refused = guard.note_refused
        self._connections[made] = None
        made.closed.add_done_callback(lambda _: self._connections.pop(made, None))
        return made

    async def close(self) -> None:
        """End every call and stream. Idempotent."""
        for connection in list(self._connections):
            connection.close()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=ENDING_S)
        for task in self._tasks:
            task.cancel()

    def _accept(self, stream: GrpcStream, method: str) -> None:
        handler = self._streams.get(method)
        if handler is not None:
            task = self.start_task(self._serve(method, handler, stream))
            stream.on_lost = lambda: _cancel_later(task)
            return
        answering = self._unary.get(method)
        if answering is None:
            stream.finish(status.UNIMPLEMENTED, f"nobody serves {method or 'what is no call of gRPC'} here")
        else:
            stream.on_lost = self.start_task(self.answer(method, answering, stream)).cancel

    def start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task until it ends or the server is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda _: self._tasks.pop(task, None))
        return task

    async def _serve(self, method: str, handler: StreamHandler, stream: GrpcStream) -> None:
        stream.respond()
        try:
            await handler(stream)
        except RpcError:
            pass  # the caller is gone, which is how streams usually end
        except Exception as error:
            log.warning("an internal stream failed", method=method, error=f"{type(error).__name__}: {error}")
            stream.finish(status.UNKNOWN, f"{type(error).__name__}: {error}")
        finally:
            stream.finish()

    async def answer(self, method: str, handler: UnaryHandler, stream: GrpcStream) -> None:
        """Serve one call."""
        try:
            request = await stream.read()
            if request is None:
                raise status.CallError(status.INTERNAL, "the call ended without a request")
            if self._guard is not None:
                self._guard.check(method, stream, request)
            reply = await handler(request)
            await stream.send_reply(reply)
        except status.CallError as error:
            stream.finish(error.code, str(error))
        except Exception as error:
            log_failed_call(method, error)
            stream.finish(status.UNKNOWN, f"{type(error).__name__}: {error}")
        finally:
            stream.finish()


def log_failed_call(method: str, error: Exception) -> None:
    """Log the exception of a handler; only at debug level if a connection used by the handler broke."""
    log_at = log.debug if isinstance(error, RpcError) else log.warning
    log_at("an internal call failed", method=method, error=f"{type(error).__name__}: {error}")


def _cancel_later(task: asyncio.Task[None]) -> None:
    """Cancel a stream's handler after `HANDLER_GRACE_S`, in case it does not notice that its peer is gone."""
    if not task.done():
        timer = asyncio.get_running_loop().call_later(HANDLER_GRACE_S, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())


class GrpcServer:
    """A bound internal listener, made by `start`."""

    def __init__(
        self, server: asyncio.Server, endpoint: Endpoint, handlers: Handlers, health: Health, door: TlsDoor | None
    ) -> None:
        self._door = door
        self._server = server
        self._endpoint = endpoint
        self._handlers = handlers
        self._health = health

    @property
    def endpoint(self) -> Endpoint:
        """Endpoint to which the server is bound, with the real port if 0 was requested."""
        return self._endpoint

    @classmethod
    async def start(
        cls,
        endpoint: Endpoint,
        unary: Mapping[str, UnaryHandler],
        streams: Mapping[str, StreamHandler],
        make_handlers: Callable[[Mapping[str, UnaryHandler], Mapping[str, StreamHandler]], Handlers] = Handlers,
        door: TlsDoor | None = None,
    ) -> GrpcServer:
        """Bind and listen, over TLS with a `door`. Raises OSError if the address cannot be bound."""
        health = Health()
        unary, streams = {**unary, **health.unary}, {**streams, **health.streams}
        streams |= reflection_handlers(sorted({method.split("/")[1] for method in (*unary, *streams)}))
        handlers = make_handlers(unary, streams)
        make: MakeProtocol = handlers.connection if door is None else door.wrap(handlers.connection)
        server = await asyncio.get_running_loop().create_server(make, endpoint.host, endpoint.port)
        return cls(server, Endpoint(endpoint.host, server.sockets[0].getsockname()[1]), handlers, health, door)

    def set_serving(self, serving: bool) -> None:
        """Set the status that the health service reports."""
        self._health.set_serving(serving)

    async def close(self) -> None:
        """Stop listening and end every call and stream. Idempotent."""
        self._server.close()
        if self._door is not None:
            self._door.close()
        await self._handlers.close()
