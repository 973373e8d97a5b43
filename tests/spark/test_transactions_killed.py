"""A streaming query that writes in transactions, with a real Spark, and kill -9 of all that takes part, by seed.

The driver's machine, the driver alone, its executor, a task's Python process; beside them nodes of the cluster, each of
which leads partitions and coordinates transactions. Readers of committed records then see what a batch over the source
sees: each row once, and none of an attempt that failed.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import QUICK, eventually
from tests.spark.faulty_runs import LOCAL, NEVER, FaultyRuns, expected

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
if shutil.which("java") is None:
    pytest.skip("Java is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(3000)

RECORDS = 900
KILLS = 10
"""Of each seed; five seeds make fifty."""

WAYS = ("machine", "driver", "executor", "worker")
QUERY = ("source.maxOffsetsPerTrigger=100", "source.minPartitions=4", "sink.transactions=true")


@pytest.fixture
def own() -> Iterator[DevCluster]:
    with DevCluster(settings=QUICK) as running:
        yield running


@pytest.mark.parametrize("seed", range(5))
def test_each_row_is_seen_once_whatever_is_killed(own: DevCluster, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    runs = FaultyRuns(own, f"transactions-{seed}", tmp_path)
    runs.make(RECORDS)
    story = []
    for _ in range(KILLS):
        at, way, node = chance.randrange(60), chance.choice(WAYS), chance.choice([1, 2, 3, None])
        story.append(f"{way} at {at}, node {node}")
        # A worker's task is tried again, under the next number; without that its whole job fails.
        master = "spark.master=local[2,4]" if way == "worker" else LOCAL
        with runs.running(at, way, master, *QUERY) as job:
            if node is not None:
                eventually(lambda job=job: job.ended or runs.points(), 300)
                own.kill(node)
            job.process.wait(600)
        if node is not None:
            own.start_node(node)
    said = runs.run(NEVER, "machine", LOCAL, *QUERY, ends=True)
    assert runs.committed() == expected(RECORDS), (story, said[-3000:])


def test_rows_of_a_run_that_failed_are_not_seen(own: DevCluster, tmp_path: Path) -> None:
    """All of an epoch lies in the log, and its driver dies before it has decided: readers see nothing of it, until the
    next run has written it anew, though other tasks have its rows by then. Without transactions that is an error."""
    runs = FaultyRuns(own, "transactions-anew", tmp_path)
    runs.make(RECORDS)
    more = ("sink.transactions=true", "repartition=3")
    runs.run("commit", "machine", LOCAL, *more, ends=False)
    assert runs.written().total() == RECORDS
    runs.run(NEVER, "machine", LOCAL, "sink.transactions=true", "repartition=2", ends=True)
    assert runs.committed() == expected(RECORDS)
