"""A compacted topic's files under Apache Kafka's own brokers."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from bench.clusters import KafkaCluster, wait_ready
from bench.fetched import Unavailable

from strandline.client import Admin, NewTopic
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.foreign import kafka_tools
from tests.acceptance.helpers import eventually, make_topic
from tests.acceptance.test_compacted_topics import COMPACTED, KEYS, compacting, read, send, wait_compacted

__all__ = ["compacting"]


def test_apache_kafka_reads_our_files(compacting: DevCluster) -> None:
    """The directory of a compacted partition, put under Apache Kafka's brokers: it recovers it, and its consumers get
    the same last values; its dump tool finds every batch valid."""
    topic = "moved"
    make_topic(compacting, topic, **COMPACTED)
    table = send(compacting.bootstrap, topic, 60)
    wait_compacted(compacting, topic, 15 * KEYS)
    stopped = compacting.node_ids[0]
    compacting.stop_node(stopped)
    source = Path(compacting.data_dir(stopped), f"{topic}-0")
    try:
        kafka = KafkaCluster()
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        kafka.start()
        wait_ready(kafka.bootstrap)
        with Admin(kafka.bootstrap) as admin:
            admin.create_topics([NewTopic(topic, 1, 3, {"cleanup.policy": "compact"})])
        for node in (1, 2, 3):
            eventually((kafka._root / f"d{node}" / f"{topic}-0" / "partition.metadata").exists)
        for node in (1, 2, 3):
            kafka.kill(node)
        for node in (1, 2, 3):
            target = kafka._root / f"d{node}" / f"{topic}-0"
            for path in source.iterdir():
                if path.suffix == ".log":
                    shutil.copyfile(path, target / path.name)
        with closing(kafka_tools(kafka.bootstrap)) as tools:
            files = ",".join(str(path) for path in sorted(target.glob("*.log")))
            dumped = tools.run("kafka-dump-log", "--deep-iteration", "--files", files)
        assert "isvalid: true" in dumped
        assert "isvalid: false" not in dumped
        kafka.start()
        wait_ready(kafka.bootstrap)
        eventually(lambda: read(kafka.bootstrap, topic)[0] == table)
    finally:
        kafka.stop()
        compacting.start_node(stopped)
