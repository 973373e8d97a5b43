"""Runs of `tests.spark.faulty_job`, one after the other over one checkpoint, and what they have left in the target."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.client import LATEST, Admin, Consumer, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.spark.ledger import Attempt, Ledger
from strandline.spark.sink_options import LEDGER_TOPIC
from tests.acceptance.helpers import eventually
from tests.acceptance.topics import create, drain
from tests.spark.standalone import Job, Standalone

ROOT = Path(__file__).parent.parent.parent

LOCAL = "spark.master=local[2]"
NEVER = "never"
PARTITIONS = 3


def content(number: int) -> bytes:
    """A record's value: few different ones, so that equal rows stand in every partition and every task."""
    return b"value-%d" % (number % 11)


@dataclass
class FaultyRuns:
    """One query, and the topics that it reads and writes."""

    cluster: DevCluster
    name: str
    directory: Path
    runs: int = 0

    @property
    def target(self) -> str:
        """The topic that is written."""
        return f"{self.name}-out"

    @property
    def checkpoint(self) -> Path:
        """Where the query keeps its progress."""
        return self.directory / "checkpoint"

    def make(self, records: int, padding: int = 0) -> None:
        """The topics, and so many records without keys in the source, each longer than its content by so many bytes."""
        for topic in (self.name, self.target):
            create(self.cluster.bootstrap, topic, PARTITIONS, 3)
        self.fill(range(records), padding)

    def fill(self, numbers: range, padding: int = 0) -> None:
        """Records of these numbers in the source."""
        with Producer(self.cluster.bootstrap) as producer:
            for number in numbers:
                producer.send(self.name, content(number) + bytes(padding), partition=number % PARTITIONS)

    def run(self, at: int | str, way: str, *more: str, ends: bool | None = None) -> str:
        """One run, with a fault at the n-th point that it passes, or the first of a name (NEVER: none). What it said.

        Args:
            ends: whether it must come to its end; None where the fault decides it.
        """
        with self.running(at, way, *more) as job:
            code = job.process.wait(600)
            said = job.log.read_text(errors="replace")
        assert ends is None or (code == 0) is ends, said[-6000:]
        return said

    @contextmanager
    def running(self, at: int | str, way: str, *more: str, on: Standalone | None = None) -> Iterator[Job]:
        """A run under way; killed, if it has not ended by then."""
        self.runs += 1
        count = self.directory / f"points-{self.runs}"
        told = [self.cluster.bootstrap, self.name, self.target, str(self.checkpoint), str(count), str(at), way, *more]
        log = self.directory / f"run-{self.runs}.log"
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        if on is not None:
            environment |= on.environment
            told += [f"spark.master={on.url}", f"spark.executorEnv.PYTHONPATH={ROOT}", "spark.executor.memory=512m"]
        command = [sys.executable, "-m", "tests.spark.faulty_job", *told]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
            )
        job = Job(process, log)
        try:
            yield job
        finally:
            job.kill()

    def points(self) -> list[str]:
        """The points that the last run has passed."""
        path = self.directory / f"points-{self.runs}"
        return path.read_text().splitlines() if path.exists() else []

    def attempts(self, epoch: int) -> list[Attempt]:
        """What the ledger knows of an epoch of the query."""
        query = (self.checkpoint / "metadata").read_text().split('"id":"')[1].split('"')[0]
        with Admin(self.cluster.bootstrap) as admin:
            ledger = Ledger(LEDGER_TOPIC, self.cluster.bootstrap, {}, admin)
            try:
                return ledger.attempts(query, epoch) if LEDGER_TOPIC in admin.list_topics() else []
            finally:
                ledger.close()

    def written(self) -> Counter[Any]:
        """The contents in the target, counted."""
        return Counter(record.value.rstrip(b"\0") for record in drain(self.cluster.bootstrap, self.target, PARTITIONS))

    def committed(self) -> Counter[Any]:
        """The contents that readers of committed records see, once nothing in the target is open any more."""
        places = [(self.target, number) for number in range(PARTITIONS)]
        found: Counter[Any] = Counter()
        with (
            Admin(self.cluster.responsive) as admin,
            Consumer(
                self.cluster.responsive, isolation_level="read_committed", auto_offset_reset="earliest"
            ) as consumer,
        ):
            ends = {place: listed.offset for place, listed in admin.list_offsets(dict.fromkeys(places, LATEST)).items()}
            consumer.assign(places)

            def all_read() -> bool:
                found.update(record.value.rstrip(b"\0") for record in consumer.poll(0.5) if record.value is not None)
                return all(consumer.position(place) >= end for place, end in ends.items())

            eventually(all_read, 120, pause_s=0)
        return found


def expected(records: int) -> Counter[bytes]:
    """Each record's value once."""
    return Counter(content(number) for number in range(records))
