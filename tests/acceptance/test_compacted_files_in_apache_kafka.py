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
    """The directory of a compacted partition, put under Apache Kafka's brokers as it is: it recovers it, and its
    consumers get the same last values. Its dump tool finds every batch valid and the indexes sane, and reads the
    snapshots of producers."""
    topic = "moved"
    make_topic(compacting, topic, **COMPACTED, index_interval_bytes="256")
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
                if path.name != "partition.metadata":  # the topic's id is Kafka's own
                    shutil.copyfile(path, target / path.name)
        with closing(kafka_tools(kafka.bootstrap)) as tools:

            def dumped(suffix: str, *options: str) -> str:
                files = sorted(source.glob(f"*{suffix}"))
                assert len(files) > 1, "a segment that is closed, and the active one"
                return tools.run("kafka-dump-log", *options, "--files", ",".join(map(str, files)))

            batches = dumped(".log", "--deep-iteration")
            assert "isvalid: true" in batches
            assert "isvalid: false" not in batches
            for suffix in (".index", ".timeindex"):
                checked = dumped(suffix, "--index-sanity-check")
                assert "passed sanity check" in checked
                sane = checked.count("passed sanity check") + checked.count("is empty")
                assert sane == len(list(source.glob(f"*{suffix}")))
            assert "producerId: " in dumped(".snapshot")
        kafka.start()
        wait_ready(kafka.bootstrap)
        eventually(lambda: read(kafka.bootstrap, topic)[0] == table)
    finally:
        kafka.stop()
        compacting.start_node(stopped)
