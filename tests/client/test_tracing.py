"""Traces from producer to consumer: `strandline.client.tracing`, with OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from strandline.client import Consumer, ConsumerRecord, Producer, Send, aio, process
from strandline.client.errors import ClosedError
from strandline.cluster.node.dev import DevCluster
from strandline.tools.handling import handle
from tests.acceptance.helpers import make_topic

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed: pip install '.[dev]'")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from strandline.client.tracing import AsyncTracedProducer, TracedProducer, span_of_all, traced

_EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def _provider() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    _EXPORTER.clear()
    yield _EXPORTER
    _EXPORTER.clear()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def read(cluster: DevCluster, topic: str, count: int) -> list[ConsumerRecord]:
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found: list[ConsumerRecord] = []
        while len(found) < count:
            found += consumer.poll(5)
        return found


def test_from_send_through_process_to_handle_is_one_trace(cluster: DevCluster, spans: InMemorySpanExporter) -> None:
    """The span of the handler is below that of the second send's record, that one below the first send; headers of the
    program's own stay, and a traceparent of before is replaced."""
    for topic in ("traced-orders", "traced-bills"):
        make_topic(cluster, topic)
    with TracedProducer(Producer(cluster.bootstrap)) as producer:
        old = ("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")
        ack = producer.send("traced-orders", b"soup", headers=[("mine", b"x"), old]).result(30)
    done: list[int] = []

    def bill(order: ConsumerRecord) -> Iterator[Send]:
        done.append(order.offset)
        yield Send("traced-bills", b"4.50", headers=order.headers)

    process(cluster.bootstrap, "traced-orders", traced(bill), group_id="traced-bill", until=lambda: bool(done))
    handled: list[ConsumerRecord] = []
    settings = {"group_id": "traced-pay", "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with Consumer(cluster.bootstrap, **settings) as consumer:
        consumer.subscribe("traced-bills")

        def pay(record: ConsumerRecord) -> None:
            handled.append(record)
            consumer.stop()

        handle(consumer, traced(pay))
    [sent], [billed], [paid] = (
        named(spans, f"{n}") for n in ("send traced-orders", "process traced-orders", "process traced-bills")
    )
    assert len({span.context.trace_id for span in (sent, billed, paid)}) == 1
    assert billed.parent is not None
    assert paid.parent is not None
    assert (billed.parent.span_id, paid.parent.span_id) == (sent.context.span_id, billed.context.span_id)
    assert (sent.kind, billed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert sent.attributes is not None
    assert sent.attributes["messaging.destination.name"] == "traced-orders"
    assert sent.attributes["messaging.kafka.offset"] == ack.offset
    [record] = handled
    assert [value for name, value in record.headers if name == "mine"] == [b"x"]
    assert len([name for name, _ in record.headers if name == "traceparent"]) == 1


def test_a_poll_is_linked_to_all_that_sent_it(cluster: DevCluster, spans: InMemorySpanExporter) -> None:
    make_topic(cluster, "traced-many")
    with TracedProducer(Producer(cluster.bootstrap)) as producer:
        for number in range(3):
            producer.send("traced-many", b"%d" % number)
    with span_of_all(read(cluster, "traced-many", 3)):
        pass
    [span] = named(spans, "process traced-many")
    sent = named(spans, "send traced-many")
    assert {link.context.span_id for link in span.links} == {one.context.span_id for one in sent}
    assert len(sent) == 3


def test_what_fails_is_noted(cluster: DevCluster, spans: InMemorySpanExporter) -> None:
    """A send that raises, and a handler that does."""
    make_topic(cluster, "traced-failures")
    producer = TracedProducer(Producer(cluster.bootstrap))
    producer.send("traced-failures", b"x").result(30)
    producer.close()
    with pytest.raises(ClosedError):
        producer.send("traced-failures", b"y")

    def fail(record: ConsumerRecord) -> None:
        raise ValueError("no such dish")

    with pytest.raises(ValueError, match="no such dish"):
        traced(fail)(read(cluster, "traced-failures", 1)[0])
    statuses = {span.name: span.status.status_code for span in spans.get_finished_spans()}
    assert statuses == {"send traced-failures": StatusCode.ERROR, "process traced-failures": StatusCode.ERROR}


def test_coroutines_too(cluster: DevCluster, spans: InMemorySpanExporter) -> None:
    make_topic(cluster, "traced-coroutines")

    async def main() -> None:
        async with AsyncTracedProducer(aio.Producer(cluster.bootstrap)) as producer:
            await producer.send_and_wait("traced-coroutines", b"x", key=b"k")

        @traced
        async def look(record: ConsumerRecord) -> Send:
            return Send("elsewhere", record.value)

        [record] = read(cluster, "traced-coroutines", 1)
        made = await look(record)
        assert [name for name, _ in made.headers] == ["traceparent"]

    asyncio.run(main())
    [sent], [looked] = named(spans, "send traced-coroutines"), named(spans, "process traced-coroutines")
    assert looked.parent is not None
    assert looked.parent.span_id == sent.context.span_id


def test_clients_do_not_import_it() -> None:
    code = (
        "import sys; from strandline.client import *; print(sorted(n for n in sys.modules if n.startswith('opentel')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
