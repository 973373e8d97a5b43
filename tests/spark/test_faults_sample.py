"""A sample of test_driver_killed, for every run of the tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from strandline.cluster.node.dev import DevCluster
from tests.spark.faulty_runs import LOCAL, FaultyRuns, expected
from tests.spark.test_streaming import patiently

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
if shutil.which("java") is None:
    pytest.skip("Java is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(600)


def test_a_driver_killed_with_rows_behind_no_commit(spark: Any, cluster: DevCluster, tmp_path: Path) -> None:
    """Half of the batch's tasks have written when the machine is lost; a new driver goes on from the checkpoint."""
    runs = FaultyRuns(cluster, "sample-driver", tmp_path)
    runs.make(300)
    runs.run("rows acknowledged", "machine", LOCAL, ends=False)
    assert 0 < runs.written().total() <= 300
    reader = spark.readStream.format("strandline").option("kafka.bootstrap.servers", cluster.bootstrap)
    frame = patiently(reader.option("subscribe", runs.name).option("startingOffsets", "earliest").load)
    writer = frame.select("key", "value").writeStream.format("strandline").option("topic", runs.target)
    writer = writer.option("kafka.bootstrap.servers", cluster.bootstrap).option("checkpointLocation", runs.checkpoint)
    patiently(lambda: writer.trigger(availableNow=True).start().awaitTermination())
    assert runs.written() == expected(300)
