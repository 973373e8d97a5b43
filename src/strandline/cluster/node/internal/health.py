"""gRPC's health service (grpc.health.v1) for the server as a whole. The simulator's listener has no such service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from strandline.cluster.node.internal import status
from strandline.proto.ports import Stream, StreamHandler, UnaryHandler

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"


@runtime_checkable
class ReportsHealth(Protocol):
    """A listener with a health service."""

    def set_serving(self, serving: bool) -> None:
        """Set the status that the health service reports: SERVING or NOT_SERVING."""


class Health:
    """The health service: answers Check and Watch, only for the empty service name, which is the server itself."""

    def __init__(self) -> None:
        self._serving = True
        self._changed: asyncio.Future[None] | None = None

    @property
    def unary(self) -> Mapping[str, UnaryHandler]:
        """Handlers of calls, by path."""
        return {CHECK: self._check}

    @property
    def streams(self) -> Mapping[str, StreamHandler]:
        """Handlers of streams, by path."""
        return {WATCH: self._watch}

    def set_serving(self, serving: bool) -> None:
        """Set the reported status, and send it to all Watch streams if it has changed."""
        if serving != self._serving:
            self._serving = serving
            changed, self._changed = self._changed, None
            if changed is not None and not changed.done():
                changed.set_result(None)

    async def _check(self, request: bytes) -> bytes:
        if _service(request):
            raise status.CallError(status.NOT_FOUND, "the health of the server as a whole is known, under the name ''")
        return self._answer(known=True)

    async def _watch(self, stream: Stream) -> None:
        known = not _service(await stream.read() or b"")
        while True:
            await stream.write(self._answer(known=known))
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._changed])

    def _answer(self, *, known: bool) -> bytes:
        from grpc_health.v1.health_pb2 import HealthCheckResponse as Response

        answer = Response.SERVING if self._serving else Response.NOT_SERVING
        reply: bytes = Response(status=answer if known else Response.SERVICE_UNKNOWN).SerializeToString()
        return reply


def _service(request: bytes) -> str:
    from grpc_health.v1.health_pb2 import HealthCheckRequest

    return str(HealthCheckRequest.FromString(request).service)
