"""The source's tasks and planner over a leader's death and a leader's move, without Spark's JVM: no loss, no repeat."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from strandline.client import Admin, Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import QUICK, eventually, wait_isr
from tests.acceptance.topics import create

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from strandline.spark.ledger import TaskKey
from strandline.spark.sink import write_rows
from strandline.spark.sink_options import parse_sink_options
from tests.spark.test_stream_reader import reader, values

pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.timeout(180)

ALL = {1, 2, 3}


@pytest.fixture
def own() -> Iterator[DevCluster]:
    # Leadership moves when the test says so: else it goes back by itself at some moment after a restart.
    with DevCluster(settings=QUICK | {"auto.leader.rebalance.enable": "false"}) as running:
        yield running


def fill(cluster: DevCluster, numbers: range) -> None:
    """Batches of about ten records, so that a read takes many answers."""
    with Producer(cluster.responsive, batch_size=160) as producer:
        for number in numbers:
            producer.send("moving", b"%d" % number, partition=0)


def leader(cluster: DevCluster) -> int | None:
    with Admin(cluster.responsive) as admin:
        [described] = admin.describe_topics(["moving"])
    return described.partitions[0].leader


def test_a_leader_dies_and_another_moves_under_running_tasks(own: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.spark.reader.ROWS_PER_ARROW_BATCH", 20)
    create(own.bootstrap, "moving", 1, 3)
    fill(own, range(2000))
    preferred = leader(own)
    assert preferred is not None
    source = reader(own, subscribe="moving", **{"kafka.max.partition.fetch.bytes": 400})
    try:
        start = source.initialOffset()
        first = source.latestOffset(start, ReadAllAvailable())
        [task] = source.partitions(start, first)
        rows = pickle.loads(pickle.dumps(source)).read(task)
        seen = next(rows).column("value").to_pylist()
        own.kill(preferred)
        for batch in rows:
            seen += batch.column("value").to_pylist()
        assert [int(value) for value in seen] == list(range(2000))

        fill(own, range(2000, 4000))
        second = source.latestOffset(first, ReadAllAvailable())  # the driver's planner has known the dead one
        own.start_node(preferred)
        wait_isr(own, "moving", ALL)
        assert leader(own) != preferred
        [task] = source.partitions(first, second)
        rows = pickle.loads(pickle.dumps(source)).read(task)
        seen = next(rows).column("value").to_pylist()
        with Admin(own.bootstrap) as admin:
            admin.elect_leaders([("moving", 0)], unclean=False)
        eventually(lambda: leader(own) == preferred)
        for batch in rows:
            seen += batch.column("value").to_pylist()
        assert [int(value) for value in seen] == list(range(2000, 4000))
        assert source.latestOffset(second, ReadAllAvailable()) is second
    finally:
        source.stop()


def test_the_sinks_leader_dies_under_a_task_and_the_task_is_repeated(own: DevCluster) -> None:
    """The leader of the target dies while a task writes and the task fails; the next run writes what is missing."""
    create(own.bootstrap, "moving", 1, 3)
    target = leader(own)
    assert target is not None
    items = [{"key": b"%d" % number, "value": b"%d" % number} for number in range(2000)]
    options = parse_sink_options({"kafka.bootstrap.servers": own.bootstrap, "topic": "moving"})

    def batches(*, fail: bool) -> Iterator[object]:
        for at in range(0, 2000, 100):
            if fail and at == 700:
                own.kill(target)
            if fail and at == 1500:
                raise RuntimeError("the task is killed")
            yield pa.RecordBatch.from_pylist(items[at : at + 100])

    with pytest.raises(RuntimeError, match="killed"):
        write_rows(options, TaskKey("query", 4, 0), batches(fail=True))
    again = write_rows(options, TaskKey("query", 4, 0), batches(fail=False))
    assert again.found > 0
    assert again.found + again.sent == 2000
    back = reader(own, subscribe="moving")
    try:
        begin = back.initialOffset()
        assert values(back, begin, back.latestOffset(begin, ReadAllAvailable())) == list(range(2000))
    finally:
        back.stop()
