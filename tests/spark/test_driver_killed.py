"""kill -9 of a driver between its data and its ledger, at seeded points, and a new one from the checkpoint: B of Spark.

Real processes: a driver with its JVM and its Python workers, three nodes. Many rows are equal, so that a row that is
taken for another one is missed.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from strandline.client import Admin
from strandline.cluster.node.dev import DevCluster
from tests.spark.faulty_runs import LOCAL, NEVER, PARTITIONS, FaultyRuns, content, expected

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
if shutil.which("java") is None:
    pytest.skip("Java is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(1500)

RECORDS = 900
LIMIT = "source.maxOffsetsPerTrigger=300"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_row_once_however_often_the_driver_is_killed(cluster: DevCluster, tmp_path: Path, seed: int) -> None:
    """Four kills, of the machine or of the driver alone: its workers live on for a moment, and may write."""
    chance = random.Random(seed)
    runs = FaultyRuns(cluster, f"killed-{seed}", tmp_path)
    runs.make(RECORDS)
    for _ in range(4):
        runs.run(chance.randrange(45), chance.choice(["machine", "driver"]), LOCAL, LIMIT, "source.minPartitions=4")
    runs.run(NEVER, "machine", LOCAL, LIMIT, "source.minPartitions=4", ends=True)
    assert runs.written() == expected(RECORDS)
    told = [attempt.fed for epoch in range(3) for attempt in runs.attempts(epoch)]
    assert told
    assert all(fed is not None and fed.shift == 0 and len(fed.ranges) == 1 for fed in told), told


def test_66_a_range_is_emptied_between_two_runs(cluster: DevCluster, tmp_path: Path) -> None:
    """The schedule in a real Spark: one task has written, the others have not; then its records are deleted."""
    runs = FaultyRuns(cluster, "killed-66", tmp_path)
    runs.make(RECORDS)
    lenient = "source.failOnDataLoss=false"
    runs.run("rows acknowledged", "machine", "spark.master=local[1]", lenient, ends=False)
    assert runs.written().total() == RECORDS // PARTITIONS
    with Admin(cluster.bootstrap) as admin:
        admin.delete_records({(runs.name, 0): RECORDS // PARTITIONS})
    runs.run(NEVER, "machine", LOCAL, lenient, ends=True)
    assert runs.written() == expected(RECORDS)


def test_another_number_of_tasks_behind_a_shuffle_fails_and_writes_nothing(cluster: DevCluster, tmp_path: Path) -> None:
    """No source tells what feeds a task there. The way out that the error names loses nothing and doubles nothing."""
    runs = FaultyRuns(cluster, "killed-shuffle", tmp_path)
    runs.make(RECORDS)
    runs.run("rows acknowledged", "machine", LOCAL, "repartition=3", ends=False)
    before = runs.written()
    assert before.total()
    said = runs.run(NEVER, "machine", LOCAL, "repartition=2", ends=False)
    assert "RowsChanged" in said, said[-6000:]
    assert "failOnRepeats=false" in said
    assert runs.written() == before
    runs.run(NEVER, "machine", LOCAL, "repartition=3", ends=True)
    assert runs.written() == expected(RECORDS)


def test_a_row_lost_to_the_source_and_a_row_behind_it_are_two(cluster: DevCluster, tmp_path: Path) -> None:
    """Part of a range is gone: what is left of it is found, and the loss is the source's to tell."""
    runs = FaultyRuns(cluster, "killed-part", tmp_path)
    runs.make(RECORDS)
    lenient = "source.failOnDataLoss=false"
    runs.run("rows acknowledged", "machine", "spark.master=local[1]", lenient, ends=False)
    with Admin(cluster.bootstrap) as admin:
        admin.delete_records({(runs.name, 0): 100, (runs.name, 1): 100})
    said = runs.run(NEVER, "machine", LOCAL, lenient, ends=True)
    assert "goes on with what is left" in said
    gone = Counter(content(number) for number in range(1, 300, 3))  # of partition 1, which nobody had written
    assert runs.written() == expected(RECORDS) - gone
