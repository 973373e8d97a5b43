"""What an API of the listener is: its number, its versions, and what reads and answers it.

There are two kinds. `Api` gets the bytes of the request and answers through its exchange: Produce and Fetch, which must
not copy, and two small ones. `MessageApi` lets the codec read the request and write the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, is_dataclass
from types import ModuleType
from typing import Any, NamedTuple

from strandline.cluster.kafka import codec
from strandline.cluster.kafka.exchange import Exchange
from strandline.cluster.service.broker_service import BrokerService
from strandline.cluster.service.context import RequestContext
from strandline.proto import kio_schemas
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

Refusal = Callable[[Exchange, memoryview, BrokerService, ErrorCode], bool]
"""Answers a request with one error for everything that it asks, and does nothing else; false, and no answer, where the
answer to this request has no place for an error."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API as the listener serves it.

    Attributes:
        key, name: Kafka's.
        first, last: the versions served, inclusive; each of them whole.
        flexible_since: the first version with compact lengths and tagged fields (KIP-482).
        handle: reads the body and answers; the body is a view of the receive buffer, valid until it returns.
            Raises ProtocolError for a body that is not what it says.
        refuse_all: answers with an error instead (fault injection).
        large: may be as large as `socket.request.max.bytes`.
        large_answer: brings many bytes, which wait while clients make the node hold too many.
        schema: kio's name of its messages, "" where they are read and written by hand.
        flexible_response_header: false for ApiVersions alone, whose client may not know yet what we speak (KIP-511).
    """

    key: int
    name: str
    first: int
    last: int
    flexible_since: int
    handle: Callable[[Exchange, memoryview, BrokerService], None]
    refuse_all: Refusal
    large: bool = False
    large_answer: bool = False
    flexible_response_header: bool = True
    schema: str = ""

    def serves(self, version: int) -> bool:
        return self.first <= version <= self.last


INJECTED = "injected by a test"
"""The message beside an error of fault injection, where the answer has room for one."""


class Call(NamedTuple):
    """A request read by the codec.

    Attributes:
        request: the message, an instance of kio's class of this version.
        answers: kio's module of this version's response.
    """

    context: RequestContext
    service: BrokerService
    request: Any
    answers: ModuleType

    def make(self, kind: str, **values: Any) -> Any:
        """The response or a part of it; what this version does not have is left out."""
        return codec.make(getattr(self.answers, kind), **values)


Answer = Callable[[Call], Any]
AsyncAnswer = Callable[[Call], Awaitable[Any]]
"""Makes a message, or one encoded already, as a list of its pieces."""

Refuse = Callable[[Call, ErrorCode, str], Any]


def message_api(
    *,
    key: int,
    name: str,
    schema: str,
    first: int,
    last: int,
    flexible_since: int,
    refuse: Refuse,
    answer: Answer | None = None,
    answer_later: AsyncAnswer | None = None,
) -> Api:
    """An API whose messages the codec reads and writes.

    Args:
        schema: kio's name of it.
        refuse: makes an answer that says one error for everything asked.
        answer: makes the answer at once; or
        answer_later: is a coroutine, run as a task of the connection.
    """

    def read(exchange: Exchange, body: memoryview, service: BrokerService) -> Call:
        version = exchange.context.version
        kind = getattr(kio_schemas.schema(schema, version, "request"), f"{name}Request")
        answers = kio_schemas.schema(schema, version, "response")
        return Call(exchange.context, service, codec.decode(kind, body), answers)

    def refuse_all(exchange: Exchange, body: memoryview, service: BrokerService, error: ErrorCode) -> bool:
        message = refuse(read(exchange, body, service), error, INJECTED)
        if not _tells(message, error):
            return False
        exchange.respond([codec.encode(message)])
        return True

    def handle(exchange: Exchange, body: memoryview, service: BrokerService) -> None:
        version = exchange.context.version
        call = read(exchange, body, service)
        if not first <= version <= last:
            message = f"{name} is served in versions {first} to {last}"
            exchange.respond([codec.encode(refuse(call, ErrorCode.UNSUPPORTED_VERSION, message))])
        elif answer is not None:
            exchange.respond([codec.encode(_now(call, answer, refuse))])
        elif answer_later is not None:
            exchange.connection.run(exchange, _later(exchange, call, answer_later, refuse))

    return Api(key, name, first, last, flexible_since, handle, refuse_all, schema=schema)


def _tells(message: Any, error: ErrorCode) -> bool:
    """Whether the error stands anywhere in the message."""
    if isinstance(message, tuple):
        return any(_tells(part, error) for part in message)
    if not is_dataclass(message):
        return False
    return getattr(message, "error_code", None) == error or any(
        _tells(getattr(message, field.name), error) for field in fields(message)
    )


def _now(call: Call, answer: Answer, refuse: Refuse) -> Any:
    try:
        return answer(call)
    except KafkaError as error:
        return refuse(call, error.code, error.message)


async def _later(exchange: Exchange, call: Call, answer: AsyncAnswer, refuse: Refuse) -> None:
    try:
        message = await answer(call)
    except KafkaError as error:
        message = refuse(call, error.code, error.message)
    exchange.respond(message if isinstance(message, list) else [codec.encode(message)])
