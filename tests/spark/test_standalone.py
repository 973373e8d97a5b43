"""Spark's standalone cluster: two workers read one partition side by side, and one of them dies in mid-stream.

The package is not taken from the checkout: `spark-submit` ships the wheel that the build makes, by --py-files or in a
virtual environment by --archives. The commands are those of docs/spark.md.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from strandline.client import Admin, Producer
from strandline.client.range_reader import RangeReader
from strandline.client.types import LATEST
from strandline.cluster.node.dev import DevCluster
from strandline.proto.ids import TopicPartition
from tests.acceptance.helpers import eventually
from tests.acceptance.topics import create
from tests.spark.standalone import Job, Standalone

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
if shutil.which("java") is None:
    pytest.skip("Java is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parent.parent.parent
JOB = ROOT / "docs/examples/spark/copy_topic.py"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(built), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = built.glob("strandline-*.whl")
    return made


@pytest.fixture(scope="module")
def py_files(wheel: Path) -> list[str]:
    """The wheel under a name that Spark puts on the path of its Python workers: it takes .zip and .egg alone."""
    return ["--py-files", shutil.copy(wheel, wheel.parent / "strandline.zip")]


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a virtual environment `env` of the wheel and PyArrow, from PyPI, and packed: `env.tar.gz`."""
    directory = tmp_path_factory.mktemp("environment")
    run(directory, sys.executable, "-m", "venv", "env")
    run(directory, "env/bin/pip", "install", "--quiet", str(wheel), "pyarrow", "venv-pack")
    run(directory, "env/bin/venv-pack", "-p", "env", "--compress-level", "1", "-o", "env.tar.gz")
    return directory


def run(directory: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


def make(cluster: DevCluster, source: str, target: str, count: int) -> None:
    """A topic of one partition that holds k0, k1, ..., and an empty one."""
    create(cluster.bootstrap, source, 1, 3)
    create(cluster.bootstrap, target, 3, 3)
    with Producer(cluster.bootstrap) as producer:
        for number in range(count):
            producer.send(source, b"%d" % number, key=b"k%d" % number, partition=0)


def keys(cluster: DevCluster, topic: str) -> Counter[bytes | None]:
    found: Counter[bytes | None] = Counter()
    with Admin(cluster.bootstrap) as admin, RangeReader(cluster.bootstrap) as reader:
        for number in range(3):
            [end] = admin.list_offsets({TopicPartition(topic, number): LATEST}).values()
            found.update(record.key for record in reader.read_records(topic, number, 0, end.offset))
    return found


def test_two_workers_read_one_partition_with_the_wheel_that_was_shipped(
    cluster: DevCluster, standalone: Standalone, py_files: list[str]
) -> None:
    make(cluster, "shipped-in", "shipped-out", 4000)
    job = standalone.submit(JOB, cluster.bootstrap, "shipped-in", "shipped-out", shipped=py_files)
    tasks = two_workers(job)
    assert all("strandline.zip/" in task.package for task in tasks), tasks
    assert {task.codec for task in tasks} == {"python"}, "Python loads no compiled module out of a zip"
    assert keys(cluster, "shipped-out") == Counter(b"k%d" % number for number in range(4000))


def test_two_workers_use_the_environment_that_was_shipped(
    cluster: DevCluster, standalone: Standalone, environment: Path
) -> None:
    """Each executor unpacks the archive into its own directory, and has the compiled codec from there."""
    make(cluster, "archive-in", "archive-out", 4000)
    shipped = ["--archives", "env.tar.gz#env", "--conf", "spark.pyspark.python=./env/bin/strandline-python"]
    job = standalone.submit(JOB, cluster.bootstrap, "archive-in", "archive-out", shipped=shipped, cwd=environment)
    tasks = two_workers(job)
    assert all(Path(task.package).is_relative_to(Path(task.at, "env/lib")) for task in tasks), tasks
    assert {task.codec for task in tasks} == {"compiled"}
    assert keys(cluster, "archive-out") == Counter(b"k%d" % number for number in range(4000))


class Task(NamedTuple):
    """What a task has said of itself."""

    at: str
    package: str
    codec: str
    rows: int


def two_workers(job: Job) -> list[Task]:
    """What the tasks of a job over 4,000 rows have said, once it has ended: both workers have read."""
    try:
        said = job.said()
    finally:
        job.kill()
    told = [line.split()[1:] for line in said.splitlines() if line.startswith("task: ")]
    tasks = [Task(at, package, codec, int(rows)) for at, package, codec, rows in told]
    assert [task.rows for task in tasks] == [1000] * 4, said[-6000:]
    assert len({task.at for task in tasks}) == 2, "one executor has read all"
    return tasks


def test_an_executor_killed_in_mid_stream_costs_no_row_and_doubles_none(
    cluster: DevCluster, standalone: Standalone, py_files: list[str], tmp_path: Path
) -> None:
    make(cluster, "executor-in", "executor-out", 3000)
    checkpoint = tmp_path / "checkpoint"
    more = ["--stream", str(checkpoint), "--most", "300"]
    job = standalone.submit(JOB, cluster.bootstrap, "executor-in", "executor-out", *more, shipped=py_files)
    try:
        eventually(lambda: job.ended or (checkpoint / "commits" / "1").exists(), 400)
        assert not job.ended, job.log.read_text()[-6000:]
        killed = standalone.executors()[0]
        killed.kill()
        killed.wait()
        assert not job.ended, "the query was at its end already"
        said = job.said()
    finally:
        job.kill()
    assert "copied 3000 rows" in said, said[-6000:]
    assert keys(cluster, "executor-out") == Counter(b"k%d" % number for number in range(3000))
