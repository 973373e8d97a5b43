"""A streaming query under drawn faults: a real Spark, real brokers, a seed that says what comes when.

Killed: the machine, the driver alone, an executor, a task's Python process; speculation on or off; retention that
overtakes the query, which is to fail on it or not; partitions that come. Between runs and in the middle of one. Held:
each record that was acknowledged is in the sink once; one that is not was deleted, and some run has told of it.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.client import Admin, Producer
from strandline.client.types import LATEST
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually
from tests.acceptance.topics import create, drain
from tests.spark.faulty_runs import LOCAL, NEVER, PARTITIONS, FaultyRuns
from tests.spark.standalone import HOST, Standalone
from tests.spark.test_executors_lost import SPECULATION

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
if shutil.which("java") is None:
    pytest.skip("Java is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(1800)

TOLD = re.compile("goes on with what is left|Set failOnDataLoss=false")
WAYS = ("machine", "driver", "executor", "worker")
TASKS = ("source.maxOffsetsPerTrigger=150", "source.minPartitions=4")
"""Several epochs a run. The number of tasks is the source's to keep."""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone"), hosts=(HOST, "localhost")) as running:
        yield running


class Drawn:
    """One query over several runs, and what the source and the sink have been through."""

    def __init__(self, cluster: DevCluster, standalone: Standalone, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.runs = FaultyRuns(cluster, f"drawn-{seed}", directory)
        self.story: list[str] = []
        self.told: list[str] = []
        self.trimmed: dict[int, int] = {}
        self.sent: dict[bytes, tuple[int, int]] = {}
        self._cluster, self._standalone = cluster, standalone
        self._partitions = PARTITIONS
        for topic in (self.runs.name, self.runs.target):
            create(cluster.bootstrap, topic, PARTITIONS, 3)

    def fill(self, records: int = 120) -> None:
        """Records, each known by its place when it is acknowledged."""
        with Producer(self._cluster.bootstrap) as producer:
            numbers = range(len(self.sent), len(self.sent) + records)
            begun = [
                producer.send(self.runs.name, b"%d" % number, partition=number % self._partitions) for number in numbers
            ]
            for number, future in zip(numbers, begun, strict=True):
                self.sent[b"%d" % number] = (number % self._partitions, future.result(30).offset)

    def change(self) -> None:
        """The source is not what it was: more records, fewer, more partitions."""
        kind = self.chance.choice(["records", "retention", "partitions"])
        self.story.append(kind)
        with Admin(self._cluster.bootstrap) as admin:
            if kind == "retention":
                where = self.chance.randrange(self._partitions)
                [end] = [found.offset for found in admin.list_offsets({(self.runs.name, where): LATEST}).values()]
                upto = self.chance.randrange(end + 1)
                admin.delete_records({(self.runs.name, where): upto})
                self.trimmed[where] = max(upto, self.trimmed.get(where, 0))
            if kind == "partitions":
                admin.create_partitions({self.runs.name: self._partitions + 1})
                self._partitions += 1
        self.fill()

    def run(self) -> None:
        """A run with a drawn fault, and a change in its middle or before it."""
        way = self.chance.choice(WAYS)
        lenient = self.chance.random() < 0.7
        speculates = way == "executor" or self.chance.random() < 0.2
        at = self.chance.randrange(40)
        self.story.append(f"{way} at {at}, lenient {lenient}, speculates {speculates}")
        more = [*TASKS, f"source.failOnDataLoss={str(not lenient).lower()}"]
        if speculates:
            more += SPECULATION
        else:
            more.append("spark.master=local[2,4]" if way == "worker" else LOCAL)
        in_its_middle = self.chance.random() < 0.5
        if not in_its_middle:
            self.change()
        with self.runs.running(at, way, *more, on=self._standalone if speculates else None) as job:
            if in_its_middle:
                eventually(lambda: job.ended or self.runs.points(), 300)
                self.change()
            job.process.wait(600)
        self.told += TOLD.findall(job.log.read_text(errors="replace"))

    def judge(self) -> None:
        """After a run that nothing disturbs."""
        said = self.runs.run(NEVER, "machine", LOCAL, *TASKS, "source.failOnDataLoss=false", ends=True)
        self.told += TOLD.findall(said)
        rows = Counter(record.value for record in drain(self._cluster.bootstrap, self.runs.target, PARTITIONS))
        assert max(rows.values()) == 1, (self.story, [value for value, times in rows.items() if times > 1][:5])
        assert rows.keys() <= self.sent.keys(), self.story
        missing = {value: self.sent[value] for value in self.sent.keys() - rows.keys()}
        skipped = {value: place for value, place in missing.items() if place[1] >= self.trimmed.get(place[0], 0)}
        assert not skipped, (self.story, sorted(skipped.items())[:5])
        assert not missing or self.told, (self.story, "records were skipped without a word", len(missing))


@pytest.mark.parametrize(("seed", "times"), [(1, 4), (2, 4), (3, 4), (4, 4), (5, 2)])
def test_each_record_is_in_the_sink_once_or_was_told_as_lost(
    cluster: DevCluster, standalone: Standalone, tmp_path: Path, seed: int, times: int
) -> None:
    drawn = Drawn(cluster, standalone, tmp_path, seed)
    drawn.fill(300)
    for _ in range(times):
        drawn.run()
    drawn.judge()
