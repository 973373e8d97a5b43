"""Calls between nodes that are no operations of the controller, and the envelope that the controller answers in.

The envelope holds an error that concerns the call as a whole, or the reply (`strandline.controller.operations`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from strandline.controller import broker_api
from strandline.controller.quorum.api import DescribeQuorumReply, DescribeQuorumRequest
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.messages.fields import SInt64
from strandline.proto.messages.mapper import mapper_of
from strandline.proto.messages.method import Method, method
from strandline.proto.ports import UnaryHandler

Request = TypeVar("Request")
Reply = TypeVar("Reply")

_CONTROLLER = "/strandline.v1.Controller/"

SESSION = method(_CONTROLLER + "Session", broker_api.Heartbeat, broker_api.HeartbeatReply)
"""A bidirectional stream: the broker writes heartbeats, the controller replies in envelopes."""

PING = method("/strandline.v1.Node/Ping", broker_api.PingRequest, broker_api.PingReply)
"""Every node answers it, without an envelope."""

DESCRIBE_QUORUM = method("/strandline.v1.Service/DescribeQuorum", DescribeQuorumRequest, DescribeQuorumReply)
"""Every controller answers it, without an envelope."""


# The envelope


@dataclass(frozen=True, slots=True)
class ControllerReply:
    """The answer to any call of the controller.

    Attributes:
        error: of the call as a whole; NONE: it was carried out.
        message: the error's sentence.
        payload: with NONE the bytes of the method's reply.
        metadata_offset: the reply tells of nothing in the metadata log behind it. A controller from before there was
            this field gives 0.
    """

    error: Annotated[ErrorCode, 1]
    message: Annotated[str, 2] = ""
    payload: Annotated[bytes, 3] = b""
    metadata_offset: Annotated[int, SInt64(4)] = 0


_ENVELOPE = mapper_of(ControllerReply)


def answer(method: Method[Any, Reply], reply: Reply, metadata_offset: int = 0) -> bytes:
    """A success in its envelope."""
    return _ENVELOPE.encode(ControllerReply(ErrorCode.NONE, "", method.reply.encode(reply), metadata_offset))


def refusal(error: KafkaError) -> bytes:
    """A failure of the call as a whole in its envelope."""
    return _ENVELOPE.encode(ControllerReply(error.code, str(error.message)))


def read_answer(method: Method[Any, Reply], data: bytes) -> tuple[Reply, int]:
    """The reply in an envelope, and the metadata offset that it tells of at most.

    Raises:
        KafkaError: the controller answered with an error.
        ProtocolError: the bytes are no such answer.
    """
    envelope = _ENVELOPE.decode(data)
    if envelope.error is not ErrorCode.NONE:
        raise KafkaError(envelope.error, envelope.message)
    return method.reply.decode(envelope.payload), envelope.metadata_offset


def served(
    method: Method[Request, Reply], operation: Callable[[Request], Awaitable[Reply]], committed: Callable[[], int]
) -> tuple[str, UnaryHandler]:
    """The method's path, and the handler that answers it with what `operation` returns or raises as KafkaError.
    `committed()` is the last offset of the metadata log that is committed.
    """

    async def handle(data: bytes) -> bytes:
        request = method.request.decode(data)
        try:
            return answer(method, await operation(request), committed())
        except KafkaError as error:
            return refusal(error)

    return method.path, handle
