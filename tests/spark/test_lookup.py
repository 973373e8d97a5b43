"""What the planner asks a real cluster, without Spark."""

from __future__ import annotations

import pytest

from strandline.client import Consumer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.ids import TopicPartition
from strandline.spark import lookup as lookup_module
from strandline.spark.lookup import ClusterOffsets
from strandline.spark.options import parse_options
from strandline.spark.planner import plan
from tests.acceptance.topics import create


def test_a_new_leader_that_waits_for_a_silent_follower_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not know for 30 s how far its log is committed. After 5 s a query failed over nothing, or went back."""

    class Virtual:
        now_ms = 0.0

        def monotonic_ms(self) -> float:
            return Virtual.now_ms

    class Pause:
        def wait(self, seconds: float) -> None:
            Virtual.now_ms += seconds * 1000

    monkeypatch.setattr(lookup_module, "SystemClock", Virtual)
    monkeypatch.setattr(lookup_module.threading, "Event", Pause)
    where = TopicPartition("t", 0)

    def ends(knows_after_ms: float) -> ClusterOffsets:
        lookup = ClusterOffsets("127.0.0.1:1", {})
        monkeypatch.setattr(lookup, "latest", lambda _: {where: 120 if Virtual.now_ms >= knows_after_ms else 90})
        return lookup

    assert ends(31_000).settled_end(where, 100) == 120
    Virtual.now_ms = 0.0
    assert ends(float("inf")).settled_end(where, 100) == 90
    assert 40_000 < Virtual.now_ms < 60_000


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
