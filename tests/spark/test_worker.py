"""What one of Spark's Python processes keeps from task to task: the reader, as long as it is right, and its imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from strandline.client import Admin
from strandline.client.errors import ClosedError
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import wait_gone

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark import TaskContext

from strandline.spark import worker
from strandline.spark.planner import DataLossError
from strandline.spark.worker import task_reader
from tests.spark.test_known_defects import batch, filled, offsets, task


@pytest.fixture
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that runs Spark's tasks; what it keeps goes at the end."""
    monkeypatch.setattr(TaskContext, "get", object)
    monkeypatch.setattr(worker, "_settled", [])
    yield
    worker._close()
    gc.unfreeze()


@pytest.mark.usefixtures("in_a_task")
def test_the_next_task_has_the_reader_of_the_last_one(cluster: DevCluster) -> None:
    filled(cluster, "kept-reader", 10)
    with task_reader(cluster.bootstrap, {}) as first:
        assert len(list(first.read_records("kept-reader", 0, 0, 10))) == 10
    with task_reader(cluster.bootstrap, {}) as second:
        assert second is first
        assert len(list(second.read_records("kept-reader", 0, 5, 10))) == 5
    with task_reader(cluster.bootstrap, {"check.crcs": "false"}) as other:
        assert other is not first
    with pytest.raises(ClosedError):
        list(first.read_records("kept-reader", 0, 0, 10))


@pytest.mark.usefixtures("in_a_task")
def test_a_reader_that_has_failed_is_not_kept(cluster: DevCluster) -> None:
    with pytest.raises(ZeroDivisionError), task_reader(cluster.bootstrap, {}) as first:
        raise ZeroDivisionError
    with pytest.raises(ClosedError):
        list(first.read_records("kept-reader", 0, 0, 10))
    with task_reader(cluster.bootstrap, {}) as second:
        assert second is not first


def test_outside_of_tasks_no_reader_is_kept(cluster: DevCluster) -> None:
    with task_reader(cluster.bootstrap, {}):
        pass
    assert worker._idle == []


@pytest.mark.usefixtures("in_a_task")
def test_a_topic_made_anew_between_two_tasks_is_read_as_it_was_planned(cluster: DevCluster) -> None:
    """The kept reader knows the old topic still: it asks again before it says that the new one is not there."""
    topic = "kept-anew"
    filled(cluster, topic, 10)
    before = batch(cluster, topic)
    old = before.partitions()
    assert offsets(before, old) == list(range(10))
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topics([topic])
    wait_gone(cluster.bootstrap, topic)
    filled(cluster, topic, 7)
    anew = batch(cluster, topic)
    assert offsets(anew, anew.partitions()) == list(range(7))
    with pytest.raises(DataLossError):
        offsets(before, old)
    # Whoever expects no particular topic is not held to what an earlier task expected.
    whichever = [task(part.range.partition, 0, 7) for part in old]  # type: ignore[attr-defined]
    assert offsets(anew, whichever) == list(range(7))


@pytest.mark.usefixtures("in_a_task")
def test_the_collector_leaves_imports_alone_after_the_first_task(cluster: DevCluster) -> None:
    filled(cluster, "kept-imports", 1)
    gc.unfreeze()
    before = batch(cluster, "kept-imports")
    assert offsets(before, before.partitions()) == [0]
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    assert offsets(before, before.partitions()) == [0]
    assert gc.get_freeze_count() <= frozen, "once for each process"
