"""The order of the main job: start, send, kill, restart, read back, compare, count."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from strandline.chaos.demo.checks import (
    CheckFailed,
    check_acks,
    check_in_every_isr,
    check_read_back,
    check_replicas_identical,
)
from strandline.chaos.demo.dataset import Flights, load_flights
from strandline.chaos.demo.load import FlightLoad
from strandline.chaos.demo.spark_part import (
    check_spark,
    check_stream,
    copy_with_stream,
    count_with_spark,
    install_java,
)
from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock
from strandline.proto.system import SystemClock
from strandline.spark.pipelines.outcome import Outcome
from strandline.spark.pipelines.session import SparkMissing, ensure_spark, local_session

TOPIC = "flights"
COPY = "flights-by-spark"
PARTITIONS = 6
CATCH_UP_S = 60.0
"""Seconds that the killed node may take to be back in every ISR."""


class Progress(Protocol):
    """Shows how far the job is."""

    def step(self, title: str, total: int | None = None) -> Callable[[int], None]:
        """Show that a new step begins. Call the result with the count done so far."""


def run_job(progress: Progress, *, limit: int | None = None, spark: bool = True) -> Outcome:
    """Run the whole job on a cluster of its own, in a directory that is deleted at the end.

    Args:
        limit: the first rows of the data set only.
        spark: whether to judge the Spark part.
    """
    progress.step("reading the flights of 2013")
    flights = load_flights(limit)
    with tempfile.TemporaryDirectory(prefix="strandline-demo-") as root:
        progress.step("starting three nodes")
        clock = SystemClock()
        began_ms = clock.monotonic_ms()
        with DevCluster(data_dir=root, nodes=3) as cluster:
            job = _Job(cluster, flights, progress, clock)
            job.outcome.figures["three nodes ready"] = f"{(clock.monotonic_ms() - began_ms) / 1000:.2f} s"
            load, killed = job.load_and_kill()
            job.check(load, killed)
            if spark:
                job.count_with_spark()
            return job.outcome


@dataclass
class _Job:
    """One run: what its steps share."""

    cluster: DevCluster
    flights: Flights
    progress: Progress
    clock: Clock
    outcome: Outcome = field(default_factory=Outcome)

    def load_and_kill(self) -> tuple[FlightLoad, int]:
        """Send everything; half-way, kill the leader of the busiest partition; start it again at three quarters."""
        load = FlightLoad(self.flights, TOPIC, PARTITIONS, self.clock)
        count = len(self.flights.values)
        began_ms = self.clock.monotonic_ms()
        bootstrap = self.cluster.bootstrap
        with Admin(bootstrap) as admin, Producer(bootstrap, batch_size=131_072) as producer:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
            done = self.progress.step("sending, acks=all", count)
            load.send(producer, 0, count // 2, done)
            busiest = load.busiest_partition()
            [description] = admin.describe_topics([TOPIC])
            leader = description.partitions[busiest].leader
            if leader is None:
                raise CheckFailed(f"partition {busiest} has no leader in mid-load")
            title = f"node {leader}, leader of the busiest partition, is killed (SIGKILL); sending on"
            done = self.progress.step(title, count)
            killed_ms = self.clock.monotonic_ms()
            self.cluster.kill(leader)
            load.send(producer, count // 2, count * 3 // 4, done)
            self.cluster.start_node(leader)
            done = self.progress.step(f"node {leader} starts again; sending on", count)
            load.send(producer, count * 3 // 4, count, done)
            producer.flush()
            done(load.acked)
        seconds = (self.clock.monotonic_ms() - began_ms) / 1000
        megabytes = sum(map(len, self.flights.values)) / 1e6
        gap_ms = load.longest_silence_ms(busiest, killed_ms)
        self.outcome.figures |= {
            "records": f"{count:,}",
            "throughput": f"{megabytes / seconds:.1f} MB/s, {count / seconds:,.0f} records/s",
            "ack p50 / p99 under full load": f"{load.latency_ms(0.5):.1f} / {load.latency_ms(0.99):.1f} ms",
            f"gap at the kill (partition {busiest}, node {leader})": f"{gap_ms:.0f} ms",
        }
        return load, leader

    def check(self, load: FlightLoad, killed: int) -> None:
        """Check everything that must hold but Spark's part."""
        bootstrap, judge = self.cluster.bootstrap, self._judge
        judge("acknowledged", lambda: check_acks(load, self.flights))
        done = self.progress.step("reading everything back", len(self.flights.values))
        judge("read back", lambda: check_read_back(load, self.flights, bootstrap, TOPIC, done))
        self.progress.step(f"waiting for node {killed} to catch up")
        judge("in sync again", lambda: asyncio.run(_wait_in_every_isr(bootstrap, killed)))
        self.progress.step("comparing the replicas' files")
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        with Consumer(bootstrap) as consumer:
            ends = {where.partition: end for where, end in consumer.end_offsets(partitions).items()}
        directories = {node: Path(self.cluster.data_dir(node)) for node in self.cluster.node_ids}
        judge("replicas identical", lambda: check_replicas_identical(directories, TOPIC, ends))

    def count_with_spark(self) -> None:
        """Spark's count, and a stream's copy, against the CSV; without Spark or Java the check says what to install."""
        self.progress.step("counting with Spark")
        install_java()
        try:
            ensure_spark()
        except SparkMissing as reason:
            self.outcome.checks["Spark agrees"] = (None, str(reason))
            return
        outcome, clock = self.outcome, self.clock
        spark = local_session()
        try:
            result = count_with_spark(spark, self.cluster.bootstrap, TOPIC, clock)
            outcome.figures["Spark"] = f"{result.rows_per_second:,.0f} rows/s (local[2])"
            self._judge("Spark agrees", lambda: check_spark(result, self.flights))
            self.progress.step("copying with a Spark stream; a leader is killed (SIGKILL) under it")

            def stream() -> str:
                with Admin(self.cluster.bootstrap) as admin:
                    admin.create_topics([NewTopic(COPY, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
                rows = len(self.flights.values)
                copying = copy_with_stream(spark, self.cluster, (TOPIC, COPY), rows, clock)
                outcome.figures["Spark stream"] = f"{copying.rows_per_second:,.0f} rows/s from topic to topic"
                copied = count_with_spark(spark, self.cluster.responsive, COPY, clock)
                return check_stream(copying, copied, self.flights)

            self._judge("stream stays up", stream)
        finally:
            spark.stop()

    def _judge(self, name: str, check: Callable[[], str]) -> None:
        """Run a check and keep its sentence."""
        try:
            self.outcome.judge(name, True, check())
        except CheckFailed as failure:
            self.outcome.judge(name, False, str(failure))


async def _wait_in_every_isr(bootstrap: str, node_id: int) -> str:
    failure = CheckFailed("the cluster was not asked yet")
    try:
        async with asyncio.timeout(CATCH_UP_S):
            while True:
                try:
                    return check_in_every_isr(bootstrap, TOPIC, node_id)
                except CheckFailed as error:
                    failure = error
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise CheckFailed(f"{failure} after {CATCH_UP_S:.0f} s") from None
