"""Traces from producer to consumer, by OpenTelemetry: what sent a record, and what was done with it, are one trace.

with TracedProducer(Producer(bootstrap)) as producer:
    producer.send("orders", value)                  # a span, and a header `traceparent` (W3C) beside the others

handle(consumer, traced(book))                      # a span for each record, below the one that sent it
process(bootstrap, "orders", traced(invoice), ...)  # and what it sends goes on with the trace

Nothing of this is imported by the clients, and nothing of it costs anything until it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from strandline.client.aio.processing import Send
from strandline.client.aio.producer import Producer as AsyncProducer
from strandline.client.producer import Producer
from strandline.client.types import ConsumerRecord, Header
from strandline.proto.errors import MissingExtra

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ImportError as error:
    raise MissingExtra.of("strandline.client.tracing", "opentelemetry", error) from error

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_tracer = trace.get_tracer("strandline")  # of whichever provider is set later, too

Headers = Sequence[Header] | Mapping[str, bytes | None]


class _Traced:
    """Common part of both tracing producers: every method except `send` is that of the wrapped producer."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


class TracedProducer(_Traced):
    """A producer whose `send` makes a span, which ends with the record's acknowledgement or failure."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer)

    def send(self, topic: str, value: Any = None, *, headers: Headers = (), **other: Any) -> Any:
        """As `Producer.send`."""
        span, traced_headers = _begun(topic, headers)
        with _ended_by_errors(span):
            future = self._producer.send(topic, value, headers=traced_headers, **other)
        future.add_done_callback(lambda done: _end(span, done))
        return future

    def __enter__(self) -> Self:
        self._producer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        self._producer.__exit__(kind, error, place)


class AsyncTracedProducer(_Traced):
    """Tracing wrapper of an asynchronous producer (`strandline.client.aio`)."""

    def __init__(self, producer: AsyncProducer) -> None:
        super().__init__(producer)

    async def send(self, topic: str, value: Any = None, *, headers: Headers = (), **other: Any) -> Any:
        """As `aio.Producer.send`."""
        span, traced_headers = _begun(topic, headers)
        with _ended_by_errors(span):
            future = await self._producer.send(topic, value, headers=traced_headers, **other)
        future.add_done_callback(lambda done: _end(span, done))
        return future

    async def send_and_wait(self, topic: str, value: Any = None, **other: Any) -> Any:
        """As `aio.Producer.send_and_wait`."""
        return await (await self.send(topic, value, **other))

    async def __aenter__(self) -> Self:
        await self._producer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        await self._producer.__aexit__(kind, error, place)


def traced(function: Callable[[ConsumerRecord], Any]) -> Callable[[ConsumerRecord], Any]:
    """The function of a record, for `handle` or `process`, with a span around each call. A `Send` that it gives, or
    several, carries the span on. A coroutine function stays one."""
    if iscoroutinefunction(function):

        @wraps(function)
        async def coroutine(record: ConsumerRecord) -> Any:
            with span_of(record):
                return _carrying(await function(record))

        return coroutine

    @wraps(function)
    def call(record: ConsumerRecord) -> Any:
        with span_of(record):
            return _carrying(function(record))

    return call


@contextmanager
def span_of(record: ConsumerRecord) -> Iterator[Span]:
    """Context with a span for the processing of a record, a child of the span that sent it. Exceptions are recorded in
    it."""
    with _tracer.start_as_current_span(
        f"process {record.topic}",
        context_of(record),
        kind=SpanKind.CONSUMER,
        attributes={
            **_about(record.topic, "process"),
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
        },
    ) as span:
        yield span


@contextmanager
def span_of_all(records: Sequence[ConsumerRecord]) -> Iterator[Span]:
    """A span around what is done with all records of a poll, linked to each that sent one of them."""
    contexts = (trace.get_current_span(context_of(record)).get_span_context() for record in records)
    senders = {(context.trace_id, context.span_id): context for context in contexts if context.is_valid}
    links = [Link(context) for context in senders.values()]
    topics = ",".join(sorted({record.topic for record in records}))
    about = {**_about(topics, "process"), "messaging.batch.message_count": len(records)}
    with _tracer.start_as_current_span(
        f"process {topics}", kind=SpanKind.CONSUMER, attributes=about, links=links
    ) as span:
        yield span


def context_of(record: ConsumerRecord) -> Context:
    """Tracing context from a record's headers; an empty one if they have none."""
    return propagate.extract({name: value.decode("ascii", "replace") for name, value in record.headers if value})


def carrying(headers: Headers = ()) -> list[Header]:
    """The headers, and those of the current span, which take the place of older ones."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    given = headers.items() if isinstance(headers, Mapping) else headers
    kept = [(name, value) for name, value in given if name not in carrier]
    return [*kept, *((name, value.encode()) for name, value in carrier.items())]


def _carrying(made: Any) -> Any:
    """The records that a transform made, with the current span in their headers. All of them are made here, within the
    span."""
    if isinstance(made, Send):
        return made._replace(headers=carrying(made.headers))
    if isinstance(made, Iterable) and not isinstance(made, str | bytes):
        return [_carrying(one) for one in made]
    return made


def _begun(topic: str, headers: Headers) -> tuple[Span, list[Header]]:
    span = _tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=_about(topic, "send"))
    with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
        return span, carrying(headers)


def _about(topic: str, operation: str) -> dict[str, Any]:
    return {"messaging.system": "kafka", "messaging.destination.name": topic, "messaging.operation.type": operation}


@contextmanager
def _ended_by_errors(span: Span) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        _fail(span, error)
        raise


def _end(span: Span, done: Any) -> None:
    """The record is acknowledged, or has failed."""
    error = None if done.cancelled() else done.exception()
    if error is not None:
        _fail(span, error)
        return
    if not done.cancelled():
        ack = done.result()
        span.set_attribute("messaging.destination.partition.id", str(ack.partition))
        span.set_attribute("messaging.kafka.offset", ack.offset)
    span.end()


def _fail(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()
