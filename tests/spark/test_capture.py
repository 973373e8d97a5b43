"""Row S108, the streaming half: a query of Spark keeps a copy of a database equal, killed, repeated:
docs/uses/capture.md."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from strandline.client import Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import make_topic
from tests.acceptance.shop import TOPIC, Shop, ask, content, load
from tests.spark.test_streaming import killed_in_mid_stream, patiently

pytestmark = pytest.mark.timeout(600)  # as in test_streaming

APPLIED = "select change from follower_place"

_DRIVER = """
import runpy
import sys
from tests.acceptance.shop import CAPTURE
from tests.spark.conftest import SETTINGS
from tests.spark.test_streaming import patiently
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]")
for key, value in SETTINGS.items():
    builder = builder.config(key, value)
builder.getOrCreate()
sys.path.append(str(CAPTURE))
patiently(lambda: runpy.run_path(str(CAPTURE / "spark_follower.py"), run_name="__main__"))
"""


def keep_shop(path: Path, seed: int, changes: int) -> None:
    """Transactions until there are so many changes more."""
    with closing(Shop(path, seed)) as shop:
        goal = ask(path, "select coalesce(max(number), 0) from capture_change") + changes
        while ask(path, "select coalesce(max(number), 0) from capture_change") < goal:
            shop.transact()


def send(bootstrap: str, path: Path) -> int:
    """Everything that is new, some of it twice, as a capture that was killed leaves it. The last number."""
    with closing(load("capture").Source(str(path))) as source, Producer(bootstrap) as producer:
        until = source.last()
        for number, key, value in source.unsent(until, 150):
            headers = [("change", b"%d" % number), ("until", b"%d" % until)]
            producer.send(TOPIC, value, key=key, partition=0, headers=headers)
        producer.flush(60)
        load("capture").send_new(source, producer, TOPIC)
        assert ask(path, "select sent from capture_place") == until
        return int(until)


def test_a_query_keeps_the_copy_equal(spark: Any, cluster: DevCluster, tmp_path: Path) -> None:
    """kill -9 of Spark in mid-stream; a new query goes on from the checkpoint; a batch whose commit was lost is
    repeated and changes nothing; a second copy begins with a snapshot from the middle and a checkpoint of its own."""
    shop_db, copy_db, late_db = (tmp_path / name for name in ("shop.db", "copy.db", "late.db"))
    with closing(Shop(shop_db, 1)) as shop:
        shop.create()
    make_topic(cluster, TOPIC)
    make_snapshot = load("snapshot").snapshot
    assert make_snapshot(cluster.bootstrap, str(shop_db), TOPIC, str(copy_db)) == (0, 0)
    keep_shop(shop_db, 2, 1500)
    last = send(cluster.bootstrap, shop_db)
    checkpoint = tmp_path / "checkpoint"
    driver = [_DRIVER, cluster.bootstrap, TOPIC, str(copy_db), str(checkpoint), "100"]
    killed_in_mid_stream(driver, checkpoint, tmp_path / "driver.log")
    assert 0 < ask(copy_db, APPLIED) < last

    offset, change = make_snapshot(cluster.bootstrap, str(shop_db), TOPIC, str(late_db))
    assert (change, offset) == (last, last + 150), "150 were sent twice"
    keep_shop(shop_db, 3, 300)
    last = send(cluster.bootstrap, shop_db)

    def follow(copy: Path, place: Path) -> int:
        """Run the query over what is there; how many records it has read."""
        writer = load("spark_follower").follow(spark, cluster.bootstrap, TOPIC, str(copy), str(place), most=1_000)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        assert ask(copy, APPLIED) == last
        assert content(copy) == content(shop_db)
        return sum(progress.numInputRows for progress in query.recentProgress)

    patiently(lambda: follow(copy_db, checkpoint))
    newest = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for name in (f"{newest}", f".{newest}.crc"):
        (checkpoint / "commits" / name).unlink()
    assert patiently(lambda: follow(copy_db, checkpoint)) > 0, "the batch was repeated"
    assert 0 < patiently(lambda: follow(late_db, tmp_path / "late")) <= last - change + 150, "none before the snapshot"
