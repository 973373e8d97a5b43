"""What an API of the listener is: its number, its versions, and what reads and answers it.

There are two kinds. Some get the bytes of the request and answer through its exchange: Produce and Fetch, which must
not copy, and two small ones. `message_api` makes the others: their messages are read and written by the schema.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from strandline.cluster.broker.exchange import Exchange
from strandline.cluster.broker.service.broker_service import BrokerService
from strandline.cluster.broker.service.context import RequestContext
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api

Refusal = Callable[[Exchange, memoryview, BrokerService, ErrorCode], bool]
"""Answers a request with one error for everything that it asks, and does nothing else; false, and no answer, where the
answer to this request has no place for an error."""


@dataclass(frozen=True, slots=True)
class ServedApi:
    """One API as the listener serves it.

    Attributes:
        api: which.
        first, last: the versions served, inclusive; each of them whole.
        handle: reads the body and answers; the body is a view of the receive buffer, valid until it returns.
            Raises ProtocolError for a body that is not what it says.
        refuse_all: answers with an error instead (fault injection).
        large: may be as large as `socket.request.max.bytes`.
        large_answer: brings many bytes, which wait while clients make the node hold too many.
        by_schema: its messages are read and written by the schema, not by hand.
    """

    api: Api
    first: int
    last: int
    handle: Callable[[Exchange, memoryview, BrokerService], None]
    refuse_all: Refusal
    large: bool = False
    large_answer: bool = False
    by_schema: bool = False

    def serves(self, version: int) -> bool:
        return self.first <= version <= self.last


INJECTED = "injected by a test"
"""The message beside an error of fault injection, where the answer has room for one."""


class Call(NamedTuple):
    """A request read by the schema."""

    context: RequestContext
    service: BrokerService
    request: Any


MESSAGE_CHARS_MAX = 1000
"""A sentence beside an error quotes what the client has sent; the older formats have room for 32,767 bytes."""


def part(**values: Any) -> Mapping[str, Any]:
    """An answer or a part of it, for every version: what a version does not have is left out when it is written.

    The sentence beside an error is cut to what every version has room for.
    """
    if "error_message" in values:
        values["error_message"] = short(values["error_message"])
    return values


def short(message: str | None) -> str | None:
    """The message, cut to what every version has room for."""
    return message if message is None or len(message) <= MESSAGE_CHARS_MAX else message[:MESSAGE_CHARS_MAX] + "..."


Answer = Callable[[Call], Any]
AsyncAnswer = Callable[[Call], Awaitable[Any]]
"""Makes a message of `part`s, or one encoded already, as a list of its pieces."""

Refuse = Callable[[Call, ErrorCode, str], Any]


def message_api(
    api: Api,
    *,
    first: int,
    last: int,
    refuse: Refuse,
    answer: Answer | None = None,
    answer_later: AsyncAnswer | None = None,
) -> ServedApi:
    """An API whose messages are read and written by the schema.

    Args:
        refuse: makes an answer that says one error for everything asked.
        answer: makes the answer at once; or
        answer_later: is a coroutine, run as a task of the connection.
    """

    def read(exchange: Exchange, body: memoryview, service: BrokerService) -> Call:
        return Call(exchange.context, service, schema.request(api, exchange.context.version).decode(body))

    def respond(exchange: Exchange, message: Any) -> None:
        encoded = isinstance(message, list)
        version = exchange.context.version
        exchange.respond(message if encoded else [schema.response(api, version).encode(message)])

    def refuse_all(exchange: Exchange, body: memoryview, service: BrokerService, error: ErrorCode) -> bool:
        message = refuse(read(exchange, body, service), error, INJECTED)
        if not _tells(message, error, schema.response(api, exchange.context.version)):
            return False
        respond(exchange, message)
        return True

    def handle(exchange: Exchange, body: memoryview, service: BrokerService) -> None:
        call = read(exchange, body, service)
        if not first <= exchange.context.version <= last:
            message = f"{api.title} is served in versions {first} to {last}"
            respond(exchange, refuse(call, ErrorCode.UNSUPPORTED_VERSION, message))
        elif answer is not None:
            respond(exchange, _now(call, answer, refuse))
        elif answer_later is not None:
            exchange.connection.run(exchange, later(exchange, call, answer_later))

    async def later(exchange: Exchange, call: Call, answer_later: AsyncAnswer) -> None:
        try:
            message = await answer_later(call)
        except KafkaError as error:
            message = refuse(call, error.code, error.message)
        respond(exchange, message)

    return ServedApi(api, first, last, handle, refuse_all, by_schema=True)


def _tells(message: Any, error: ErrorCode, written: schema.Message) -> bool:
    """Whether the error stands anywhere in the message, as it is written."""
    return _holds(written.decode(bytes(written.encode(message))), error)


def _holds(value: Any, error: ErrorCode) -> bool:
    if not isinstance(value, tuple):
        return False
    return getattr(value, "error_code", None) is error or any(_holds(item, error) for item in value)


def _now(call: Call, answer: Answer, refuse: Refuse) -> Any:
    try:
        return answer(call)
    except KafkaError as error:
        return refuse(call, error.code, error.message)
