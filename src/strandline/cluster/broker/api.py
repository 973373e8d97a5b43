"""An API of the listener: its key, its versions, and the handler that reads and answers its requests.

There are two kinds of handlers. Those of `by_hand` get the bytes of the request and answer through its exchange:
Produce and Fetch, which must not copy, and two small ones. Those of `by_schema` get the decoded message and return one
to encode; the schema of the API decodes and encodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction, isgeneratorfunction
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from strandline.cluster.broker.refusal import refused
from strandline.cluster.broker.request import Charge, Connection, Exchange, RequestContext
from strandline.cluster.broker.slow_requests import some_of
from strandline.cluster.groups.connections import ConnectionSuperseded
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import INT32, NO_TAGS, Buffer
from strandline.proto.steps import Steps, at_once, whole

H = TypeVar("H")

INJECTED = "injected by a test"
"""Error message of injected faults, in responses that have a message field."""

TAGGED_TWICE = frozenset({Api.ALTER_USER_SCRAM_CREDENTIALS})
"""APIs whose requests librdkafka (up to 2.16) ends with the tagged fields written twice; Kafka ignores bytes there."""

MESSAGE_CHARS_MAX = 1000
"""Maximum characters of an error message, which may quote the client; older formats have room for 32,767 bytes."""


Change = tuple[str, ErrorCode]
"""(requested change, its result)."""

Changes = Callable[[Any, Any], Iterator[Change]]
"""(request, response) -> the changes that the request asked for. They name resources and never hold a secret."""


@dataclass(frozen=True, slots=True)
class ServedApi:
    """One API as the listener serves it.

    Attributes:
        first, last: the versions served, inclusive; each is implemented completely.
        handle: reads the body and answers; the body is a view of the receive buffer, valid until `handle` returns.
            Raises ProtocolError for a malformed body.
        refuse_all: answers with one error for all items of the request, and changes nothing (fault injection). Returns
            False, without answering, if the response to this request has no field for an error.
        large: requests may be as large as `socket.request.max.bytes`.
        large_answer: responses may be large; requests wait while the node holds too many bytes for clients.
        by_schema: the schema reads and writes its messages.
        changes: lists the changes of a request and its response for the audit; None: the API changes nothing that is
            audited.
    """

    api: Api
    first: int
    last: int
    handle: Callable[[Exchange, memoryview], None]
    refuse_all: Callable[[Exchange, memoryview, ErrorCode], bool]
    large: bool = False
    large_answer: bool = False
    by_schema: bool = False
    changes: Changes | None = None

    def serves(self, version: int) -> bool:
        return self.first <= version <= self.last


class Handlers:
    """A broker's handlers, one of each class."""

    def __init__(self, *handlers: object) -> None:
        self._handlers = {type(handler): handler for handler in handlers}

    def of(self, kind: type[H]) -> H:
        """Return the handler of this class. Raises KeyError if there is none."""
        return cast("H", self._handlers[kind])


@dataclass(frozen=True, slots=True)
class ApiRow:
    """A row of the table of APIs. The rights that an API needs are listed in `strandline.proto.kafka.access`, which
    clients use too.

    Attributes:
        first, last: the versions served, inclusive.
        bind: makes the served API from one broker's handlers.
        changes: see `ServedApi`.
        strict_since: first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599); None: the API creates and
            deletes no partitions.
    """

    api: Api
    first: int
    last: int
    bind: Callable[[Handlers], ServedApi]
    changes: Changes | None = None
    strict_since: int | None = None


class HandMade(Protocol):
    """A handler that reads and writes its messages by hand. See `ServedApi`."""

    def handle(self, exchange: Exchange, body: memoryview) -> None: ...
    def refuse_all(self, exchange: Exchange, body: memoryview, error: ErrorCode) -> bool: ...


def by_hand(
    api: Api, versions: tuple[int, int], kind: type[HandMade], *, large: bool = False, large_answer: bool = False
) -> ApiRow:
    """Return the row of an API whose handler, of class `kind`, gets the bytes of requests."""
    first, last = versions

    def bind(handlers: Handlers) -> ServedApi:
        handler = handlers.of(kind)
        return ServedApi(api, first, last, handler.handle, handler.refuse_all, large, large_answer)

    return ApiRow(api, first, last, bind)


class Call(NamedTuple):
    """A request read by the schema.

    Attributes:
        charge: returns the charge for changes of the metadata (`Exchange.charge`).
        connection: runs long work in steps (`Connection.stepped`).
    """

    api: Api
    context: RequestContext
    request: Any
    charge: Callable[[], Charge]
    connection: Connection


def part(**values: Any) -> dict[str, Any]:
    """Return the fields of a response, or of a part of one, for all versions. Fields that a version lacks are left out
    when it is encoded. An error message is cut to `MESSAGE_CHARS_MAX`.
    """
    if "error_message" in values:
        values["error_message"] = short(values["error_message"])
    return values


def short(message: str | None) -> str | None:
    """Return the message, cut to `MESSAGE_CHARS_MAX` characters, for which every version has room."""
    return message if message is None or len(message) <= MESSAGE_CHARS_MAX else message[:MESSAGE_CHARS_MAX] + "..."


Answer = Callable[[H, Call], Any]
"""Method that returns a response made of `part`s, or the list of its encoded pieces after throttle_time_ms. A generator
makes it in steps; a coroutine runs as a task of the connection, and does long work by `call.connection.stepped`.
Raises KafkaError: then the response is the refusal with that error."""

Refuse = Callable[[H, Call, ErrorCode, str], Any]
"""Method that returns a response with one error for all items of the request."""


def by_schema(
    api: Api,
    versions: tuple[int, int],
    kind: type[H],
    answer: Answer[H],
    *,
    refuse: Refuse[H] | None = None,
    changes: Changes | None = None,
    strict_since: int | None = None,
) -> ApiRow:
    """Return the row of an API whose messages the schema decodes and encodes. `answer` is a method of the handler class
    `kind`, and so is `refuse`, needed where `strandline.cluster.broker.refusal` cannot derive the refusal. For the
    other arguments see `ApiRow`."""
    first, last = versions

    def bind(handlers: Handlers) -> ServedApi:
        handler = handlers.of(kind)
        refuses = _refused if refuse is None else partial(refuse, handler)
        bound = _SchemaApi(api, first, last, partial(answer, handler), refuses)
        bound.is_async = iscoroutinefunction(answer)
        bound.is_stepped = isgeneratorfunction(answer)
        return ServedApi(api, first, last, bound.handle, bound.refuse_all, by_schema=True, changes=changes)

    return ApiRow(api, first, last, bind, changes, strict_since)


def _refused(call: Call, error: ErrorCode, message: str) -> Any:
    """Return the refusal derived from the schemas."""
    return refused(call.api, call.context.version, call.request, error, short(message) or "")


def read_request_in_steps(api: Api, version: int, body: Buffer) -> Steps[Any]:
    """Decode a request by the schema; accepts tagged fields written twice (`TAGGED_TWICE`). Raises ProtocolError."""
    message = schema.request(api, version)
    try:
        return (yield from message.decode_in_steps(body))
    except ProtocolError:
        if api not in TAGGED_TWICE or body[-len(NO_TAGS) :] != NO_TAGS:
            raise
        return (yield from message.decode_in_steps(body[: -len(NO_TAGS)]))


read_request = whole(read_request_in_steps)


class _SchemaApi:
    """One API of `by_schema`: decodes requests, calls the handler's method, encodes responses."""

    def __init__(
        self,
        api: Api,
        first: int,
        last: int,
        answer: Callable[[Call], Any],
        refuse: Callable[[Call, ErrorCode, str], Any],
    ) -> None:
        self._api = api
        self._first, self._last = first, last
        self._answer = answer
        self._refuse = refuse
        self.is_async = False
        self.is_stepped = False

    def handle(self, exchange: Exchange, body: memoryview) -> None:
        exchange.connection.in_steps(exchange, self._handle(exchange, body))

    def _handle(self, exchange: Exchange, body: memoryview) -> Steps[None]:
        call = yield from self._read(exchange, body)
        exchange.explained_by(partial(_explain, call.request))
        if not self._first <= exchange.context.version <= self._last:
            message = f"{self._api.title} is served in versions {self._first} to {self._last}"
            message = self._refuse(call, ErrorCode.UNSUPPORTED_VERSION, message)
        elif self.is_async:
            run = exchange.connection.run_alone if exchange.runs_alone else exchange.connection.run
            run(exchange, self._answer_later(exchange, call))
            return
        else:
            try:
                message = (yield from self._answer(call)) if self.is_stepped else self._answer(call)
            except KafkaError as error:
                message = self._refuse(call, error.code, error.message)
        yield from self._respond(exchange, message)

    async def _answer_later(self, exchange: Exchange, call: Call) -> None:
        try:
            message = await self._answer(call)
        except KafkaError as error:
            message = self._refuse(call, error.code, error.message)
        except ConnectionSuperseded as error:
            exchange.drop_connection(str(error))  # rule C20/superseded-connections-stay-open
            return
        await exchange.connection.stepped(self._respond(exchange, message))

    def refuse_all(self, exchange: Exchange, body: memoryview, error: ErrorCode) -> bool:
        message = self._refuse(at_once(self._read(exchange, body)), error, INJECTED)
        if not _tells(message, error, schema.response(self._api, exchange.context.version)):
            return False
        at_once(self._respond(exchange, message))
        return True

    def _read(self, exchange: Exchange, body: memoryview) -> Steps[Call]:
        request = yield from read_request_in_steps(self._api, exchange.context.version, body)
        return Call(self._api, exchange.context, request, exchange.charge, exchange.connection)

    def _respond(self, exchange: Exchange, message: Any) -> Steps[None]:
        throttle_ms = exchange.throttle_ms()  # rule A21/answers-say-nothing-of-quotas
        if isinstance(message, list):
            pieces = [INT32.pack(throttle_ms), *message]
        else:
            message["throttle_time"] = throttle_ms
            written = schema.response(self._api, exchange.context.version)
            pieces = [(yield from written.encode_in_steps(message))]
        yield from exchange.respond_in_steps(pieces)


def _explain(request: Any) -> dict[str, object]:
    """Return log fields of a slow request: the topics that it names."""
    topics = getattr(request, "topics", None) or ()
    names = (name for one in topics if (name := getattr(one, "name", None) or getattr(one, "topic", None)))
    return {"topics": some_of(names, len(topics))} if topics else {}


def _tells(message: Any, error: ErrorCode, written: schema.Message) -> bool:
    """True if the encoded message contains the error anywhere."""
    return _holds(written.decode(bytes(written.encode({"throttle_time": 0, **message}))), error)


def _holds(value: Any, error: ErrorCode) -> bool:
    if not isinstance(value, tuple):
        return False
    names = ("error_code", "partition_error_code")
    return any(getattr(value, name, None) is error for name in names) or any(_holds(item, error) for item in value)
