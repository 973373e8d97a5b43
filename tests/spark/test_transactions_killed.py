"""A streaming query that writes in transactions, with a real Spark, and kill -9 of all that takes part: fifty times.

The driver (alone or with its machine), an executor of a Spark cluster, a task's Python process; and, while a task's
transaction is open, the broker that leads a partition of it and the one that coordinates it. Readers of committed
records then see what a batch over the source sees: each row once, and none of an attempt that failed.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.client import Admin
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import QUICK
from tests.spark.faulty_runs import LOCAL, NEVER, FaultyRuns, expected
from tests.spark.standalone import HOST, Job, Standalone

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
if shutil.which("java") is None:
    pytest.skip("Java is not installed", allow_module_level=True)

from strandline.spark.writer import PREFIX

pytestmark = pytest.mark.timeout(3000)

RECORDS = 300
"""New ones of each run: three epochs. A run whose executor or task is killed goes on to its end."""

SEEDS = 5
KINDS = ("driver", "executor", "worker", "broker", "coordinator")
"""Each twice a seed, which makes fifty kills."""

POINTS = 14
"""Among so many points the one is drawn at which a process of Spark is killed: no run passes fewer."""

QUERY = ("source.maxOffsetsPerTrigger=100", "source.minPartitions=4", "sink.transactions=true")


@pytest.fixture
def own() -> Iterator[DevCluster]:
    with DevCluster(settings=QUICK) as running:
        yield running


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone"), hosts=(HOST, "localhost")) as running:
        yield running


def node_of_an_open_transaction(cluster: DevCluster, kind: str, chance: random.Random) -> int | None:
    """The coordinator of a task's open transaction, or the leader of one of its partitions; None: none is open."""
    with Admin(cluster.bootstrap) as admin:
        listed = [one.transactional_id for one in admin.list_transactions(states=["Ongoing"])]
        tasks = sorted(name for name in listed if name.startswith(PREFIX))
        if not tasks:
            return None
        found = admin.describe_transactions(tasks)[chance.choice(tasks)]
        if kind == "coordinator":
            return found.coordinator.node_id if found.state == "Ongoing" else None
        if not found.partitions:
            return None
        topic, number = chance.choice(found.partitions)
        [described] = admin.describe_topics([topic])
        return described.partitions[number].leader


def killed_node(cluster: DevCluster, kind: str, chance: random.Random, job: Job) -> int | None:
    """Kill the node of that kind, in a transaction that a task of the job has open or has left open; None: the job has
    ended, and has none."""
    while (node := node_of_an_open_transaction(cluster, kind, chance)) is None:
        if job.ended:
            return None
        time.sleep(0.02)
    cluster.kill(node)
    return node


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_row_is_seen_once_whatever_is_killed(
    own: DevCluster, standalone: Standalone, tmp_path: Path, seed: int
) -> None:
    """Six runs, in each of which a process of Spark is killed, and in four of them a node beside it. Every kill
    strikes: a run passes the point of its own, and a node is killed in an open transaction."""
    chance = random.Random(seed)
    runs = FaultyRuns(own, f"transactions-{seed}", tmp_path)
    runs.make(0)
    ways: list[str | None] = ["driver", "machine", "executor", "executor", "worker", "worker"]
    nodes: list[str | None] = ["broker", "broker", "coordinator", "coordinator", None, None]
    chance.shuffle(ways)
    chance.shuffle(nodes)
    kills: Counter[str] = Counter()
    story = []
    turns = list(zip(ways, nodes, strict=True))
    for turn, (way, kind) in enumerate(turns):
        runs.fill(range(turn * RECORDS, (turn + 1) * RECORDS))
        at = NEVER if way is None else chance.randrange(POINTS)
        # A worker's task is tried again, under the next number; without that its whole job fails.
        master = ["spark.master=local[2,4]"] if way == "worker" else [] if way == "executor" else [LOCAL]
        with runs.running(at, way or "machine", *master, *QUERY, on=standalone if way == "executor" else None) as job:
            node = None if kind is None else killed_node(own, kind, chance, job)
            job.process.wait(600)
        story.append(f"{way} at {at}, {kind} {node}")
        if way is not None:
            assert len(runs.points()) > int(at), (story, job.log.read_text()[-3000:])
            kills["driver" if way == "machine" else way] += 1
        if node is not None:
            kills[str(kind)] += 1
            own.start_node(node)
        elif kind is not None:  # a driver died before a task of it had begun a transaction: one run more
            turns.append((None, kind))
    assert kills == dict.fromkeys(KINDS, 2)
    said = runs.run(NEVER, "machine", LOCAL, *QUERY, ends=True)
    assert runs.committed() == expected(len(turns) * RECORDS), (story, said[-3000:])


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
