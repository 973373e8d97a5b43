"""One call between nodes: its path, what it takes and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from strandline.proto.ids import Endpoint
from strandline.proto.messages.mapper import Mapper, mapper_of
from strandline.proto.ports import Rpc, UnaryHandler

Request = TypeVar("Request")
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Reply]):
    """A method of a gRPC service.

    Attributes:
        path: as gRPC has it: "/service/name".
        request: from and to the bytes that are sent.
        reply: from and to the bytes of the answer. For a bidirectional stream the two are what either side writes.
    """

    path: str
    request: Mapper[Request]
    reply: Mapper[Reply]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


def method(path: str, request: type[Request], reply: type[Reply]) -> Method[Request, Reply]:
    """The method with these types."""
    return Method(path, mapper_of(request), mapper_of(reply))


async def call(
    rpc: Rpc, endpoint: Endpoint, method: Method[Request, Reply], request: Request, *, timeout_ms: float
) -> Reply:
    """Ask a node.

    Raises:
        RpcUnavailable, RpcTimeout, RpcRejected: as `Rpc.call`.
        ProtocolError: what it answered is no such reply.
    """
    data = await rpc.call(endpoint, method.path, method.request.encode(request), timeout_ms=timeout_ms)
    return method.reply.decode(data)


def handler(method: Method[Request, Reply], operation: Callable[[Request], Awaitable[Reply]]) -> UnaryHandler:
    """Answers the method with what `operation` returns; a request that is none raises ProtocolError."""

    async def handle(data: bytes) -> bytes:
        return method.reply.encode(await operation(method.request.decode(data)))

    return handle
