"""Two attempts at one task on a cluster of Spark: an executor that is killed, and speculation, where both are alive."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.cluster.node.dev import DevCluster
from strandline.spark.ledger import Attempt
from tests.acceptance.helpers import eventually
from tests.spark.faulty_runs import NEVER, FaultyRuns, expected
from tests.spark.standalone import HOST, Standalone

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
if shutil.which("java") is None:
    pytest.skip("Java is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(900)

RECORDS = 300

SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.interval=200ms",
    "spark.speculation.minTaskRuntime=200ms",
    "spark.speculation.multiplier=1.1",
    "spark.speculation.quantile=0.3",
    "spark.sql.execution.arrow.maxRecordsPerBatch=20",
)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone"), hosts=(HOST, "localhost")) as running:
        yield running


@pytest.mark.parametrize("point", ["behind the ledger", "rows under way", "rows acknowledged"])
def test_an_executor_is_killed_beside_a_task(
    cluster: DevCluster, standalone: Standalone, tmp_path: Path, point: str
) -> None:
    """kill -9 of the executor's JVM: the task is tried again, on the other one or on a new one."""
    runs = FaultyRuns(cluster, f"executor-{point.replace(' ', '-')}", tmp_path)
    runs.make(RECORDS)
    with runs.running(point, "executor", on=standalone) as job:
        job.said(timeout_s=600)
    assert runs.points().count("before the ledger") > 4, "three tasks, one of them again, and the commit"
    assert runs.written() == expected(RECORDS)


def test_two_attempts_at_one_task_run_at_once(cluster: DevCluster, standalone: Standalone, tmp_path: Path) -> None:
    """spark.speculation: the first one is slow, and goes on in the middle of its rows when the second has begun."""
    runs = FaultyRuns(cluster, "speculation", tmp_path)
    runs.make(RECORDS, padding=10_000)  # Spark hands rows on by the buffer, not one by one
    with runs.running(NEVER, "machine", f"slow={tmp_path}", *SPECULATION, on=standalone) as job:
        eventually(lambda: job.ended or ((tmp_path / "waits").exists() and len(of_task_0(runs)) == 1), 300)
        assert not job.ended, job.log.read_text()[-6000:]
        eventually(lambda: job.ended or len(of_task_0(runs)) == 2, 300)
        assert not job.ended, job.log.read_text()[-6000:]
        (tmp_path / "go").touch()
        job.said(timeout_s=600)
    assert len(of_task_0(runs)) == 2
    assert runs.written() == expected(RECORDS)


def of_task_0(runs: FaultyRuns) -> list[Attempt]:
    if not (runs.checkpoint / "metadata").exists():
        return []
    return [attempt for attempt in runs.attempts(0) if attempt.task == 0]


def test_a_task_that_is_tried_again(cluster: DevCluster, tmp_path: Path) -> None:
    """spark.task.maxFailures: the Python process dies with its rows under way, and the next attempt finds them."""
    runs = FaultyRuns(cluster, "sample-retry", tmp_path)
    runs.make(300)
    runs.run("rows under way", "worker", "spark.master=local[2,4]", ends=True)
    assert len(runs.attempts(0)) == 4, "three tasks, one of them twice"
    assert runs.written() == expected(300)
