"""One lake, by Spark's query and by `strandline lake export` in turns: each record once, in the same columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.client import Admin, Producer
from strandline.client.types import NewTopic
from strandline.cluster.node.dev import DevCluster
from strandline.lake.commits import LakeDamaged
from strandline.lake.upkeep import compact, verify
from strandline.spark.pipelines.lake import Lake, keep_topic
from tests.lake.stage import KEPT, files, in_duckdb, lake, send

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
pytestmark = pytest.mark.timeout(300)

EACH = 'SELECT partition, "offset", CAST(CAST(value AS VARCHAR) AS BIGINT), headers, epoch_ms(timestamp) FROM rows'


def test_spark_and_the_export_take_turns(spark: Any, cluster: DevCluster, tmp_path: Path) -> None:
    topic, place = "lake-in-turns", tmp_path / "lake"

    def query() -> int:
        return keep_topic(spark, cluster.bootstrap, topic, place, settings={}, per_batch=1_000).rows

    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topics([NewTopic(topic, 2, 3, KEPT)])
        for turn in range(4):
            send(producer, topic, range(turn * 1000, turn * 1000 + 999))
            producer.send(topic, b"%d" % (turn * 1000 + 999), headers=[("h", b"1")]).result()
            if turn % 2:
                lake(cluster.bootstrap, "export", topic, "--to", str(place))
            else:
                assert query() == (turn + 1) * 1000
        assert query() == 4000, "nothing is left to do"
        found = in_duckdb(files(place), EACH)
        assert sorted(number for _, _, number, _, _ in found) == list(range(4000))
        assert len({(partition, offset) for partition, offset, *_ in found}) == 4000
        assert [row[3] for row in found if row[3]] == [[{"name": "h", "value": b"1"}]] * 4
        assert verify(Lake(place)).wrong == []
        compact(Lake(place))
        rows = Lake(place).read(spark)
        assert set(rows.columns) == {"topic", "partition", "offset", "timestamp", "key", "headers", "value", "date"}
        assert rows.count() == rows.select("partition", "offset").distinct().count() == 4000
        admin.delete_topics([topic])
        admin.create_topics([NewTopic(topic, 2, 3, KEPT)])
        with pytest.raises(LakeDamaged, match="was deleted and made anew"):
            query()
        admin.delete_topics([topic])
