"""What the planner asks a real cluster, without Spark."""

from __future__ import annotations

from strandline.client import Consumer
from strandline.cluster.dev import DevCluster
from strandline.spark.lookup import ClusterOffsets
from strandline.spark.options import parse_options
from strandline.spark.planner import plan
from tests.rows.topics import create


def test_an_internal_topic_is_there_by_its_name(cluster: DevCluster) -> None:
    """It was "no such topic": Spark's own source reads it where it is named, and matches it by no pattern."""
    create(cluster.bootstrap, "lookup-grouped", 1, 3)
    with Consumer(cluster.bootstrap, group_id="lookup-grouped") as consumer:
        consumer.assign([("lookup-grouped", 0)])
        consumer.commit({("lookup-grouped", 0): 0})
    given = {"kafka.bootstrap.servers": cluster.bootstrap}
    with ClusterOffsets(cluster.bootstrap, {}) as lookup:
        named = plan(parse_options(given | {"subscribe": "__consumer_offsets"}), lookup)
        assert sum(part.size for part in named) > 0
        matched = plan(parse_options(given | {"subscribePattern": "__consumer_offsets|lookup-grouped"}), lookup)
        assert [part for part in matched if part.partition.topic != "lookup-grouped"] == []
