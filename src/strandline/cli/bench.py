"""`strandline bench`: how fast is the cluster that I have, with this project's client.

For comparisons with other systems and for the figures of docs/benchmarks.md see `make bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import click

from strandline.cli.common import (
    CommandFailed,
    Target,
    check_reachable,
    output_option,
    plain_errors,
    print_json,
    print_table,
    target_options,
)
from strandline.client.config import AdminConfig, ConsumerConfig, ProducerConfig
from strandline.client.types import Ack, NewTopic
from strandline.proto.ports import Clock
from strandline.proto.system import SystemClock

SILENCE_S = 30.0
"""A read that brings nothing for this long has failed."""


@click.command()
@click.option("-n", "--records", type=click.IntRange(1), default=200_000, show_default=True, help="Records to send.")
@click.option("-s", "--size", type=click.IntRange(0), default=100, show_default=True, help="Bytes of each value.")
@click.option("-p", "--partitions", type=click.IntRange(1), default=6, show_default=True, help="Of the topic.")
@click.option("--topic", default="strandline-bench", show_default=True, help="Made for the run, and deleted after it.")
@click.option("--latency-records", type=click.IntRange(1), default=500, show_default=True, help="Sent one at a time.")
@output_option
@target_options
def bench(
    *, records: int, size: int, partitions: int, topic: str, latency_records: int, output: str, **where: Any
) -> None:
    """Measure the cluster with a topic of its own: send, read back, and the ack latency of single records.

    \b
    strandline bench
    strandline bench -n 1000000 -s 1000 -X acks=1 -X compression.type=zstd
    """
    from strandline.client.admin import Admin

    target = Target(**where)
    with plain_errors(target):
        check_reachable(target)
        common: dict[str, Any] = {key: value for key, value in target.settings.items() if _known(AdminConfig, key)}
        with Admin(target.bootstrap, **common) as admin:
            if topic in admin.list_topics():
                raise CommandFailed(f"there is a topic {topic!r} already; name another with --topic")
            admin.create_topics([NewTopic(topic, partitions)])
            try:
                run = _Run(target, topic, partitions, SystemClock())
                figures = run.produce(records, size) | run.consume(records, size) | run.latency(latency_records, size)
            finally:
                admin.delete_topics([topic])
    if output == "json":
        print_json({"records": records, "size": size, "partitions": partitions, **figures})
        return
    print_table(["figure", "value"], [(name.replace("_", " "), f"{value:,.2f}") for name, value in figures.items()])


@contextmanager
def _progress(total: int, title: str) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while something runs; call the result with each step."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda step: progress.update(task, advance=step)


def _known(kind: type[Any], key: str) -> bool:
    return key.replace(".", "_") in kind.attributes


class _Run:
    """One run on one topic."""

    def __init__(self, target: Target, topic: str, partitions: int, clock: Clock) -> None:
        self._target = target
        self._topic = topic
        self._partitions = partitions
        self._clock = clock

    def _settings(self, kind: type[Any], **defaults: object) -> dict[str, Any]:
        own = {key: value for key, value in self._target.settings.items() if _known(kind, key)}
        return Target(self._target.bootstrap, own).settings_for(kind, **defaults)

    def produce(self, records: int, size: int) -> dict[str, float]:
        """Send all as fast as they go."""
        from strandline.client.producer import Producer

        errors: list[BaseException] = []

        def done(future: Future[Ack]) -> None:
            if (error := future.exception()) is not None:
                errors.append(error)

        value = bytes(size)
        settings = self._settings(ProducerConfig, batch_size=262_144, linger_ms=20)
        with Producer(self._target.bootstrap, **settings) as producer:
            producer.partitions_for(self._topic)
            began_ms = self._clock.monotonic_ms()
            with _progress(records, "sending") as advance:
                for number in range(records):
                    producer.send(self._topic, value).add_done_callback(done)
                    if number % 1000 == 999:
                        advance(1000)
                producer.flush()
            seconds = (self._clock.monotonic_ms() - began_ms) / 1000
        if errors:
            raise CommandFailed(f"{len(errors)} records failed, the first: {errors[0]}")
        return {"produce_records_per_s": records / seconds, "produce_mb_per_s": records * size / 1e6 / seconds}

    def consume(self, records: int, size: int) -> dict[str, float]:
        """Read them all from the beginning."""
        from strandline.client.consumer import Consumer

        seen = 0
        settings = self._settings(ConsumerConfig, auto_offset_reset="earliest", max_poll_records=5000)
        with Consumer(self._target.bootstrap, **settings) as consumer:
            consumer.assign([(self._topic, number) for number in range(self._partitions)])
            began_ms = self._clock.monotonic_ms()
            with _progress(records, "reading") as advance:
                while seen < records:
                    batch = consumer.poll(timeout_s=SILENCE_S)
                    if not batch:
                        raise CommandFailed(f"read {seen:,} of {records:,} records, then none for {SILENCE_S:.0f} s")
                    seen += len(batch)
                    advance(len(batch))
            seconds = (self._clock.monotonic_ms() - began_ms) / 1000
        return {"consume_records_per_s": seen / seconds, "consume_mb_per_s": seen * size / 1e6 / seconds}

    def latency(self, records: int, size: int) -> dict[str, float]:
        """One record at a time: from send to ack."""
        from strandline.client.producer import Producer

        value = bytes(size)
        times: list[float] = []
        with Producer(self._target.bootstrap, **self._settings(ProducerConfig, linger_ms=0)) as producer:
            for number in range(records + 20):
                began_ms = self._clock.monotonic_ms()
                producer.send(self._topic, value, partition=number % self._partitions).result()
                times.append(self._clock.monotonic_ms() - began_ms)
        times = sorted(times[20:])  # the first ones open connections
        return {"ack_p50_ms": times[len(times) // 2], "ack_p99_ms": times[int(len(times) * 0.99)]}
