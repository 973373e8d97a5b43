"""Rows whose check names Apache Kafka's own command-line tools; `make interop` fetches them."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer
from interop.tools import KafkaTools

from strandline.client import Admin, OffsetAndMetadata
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.foreign import kafka_tools
from tests.acceptance.helpers import eventually, make_topic
from tests.acceptance.readers import Reader


@pytest.fixture(scope="module")
def tools(cluster: DevCluster) -> Iterator[KafkaTools]:
    """One Java process for all."""
    with closing(kafka_tools(cluster.bootstrap)) as running:
        yield running


def send(cluster: DevCluster, topic: str, count: int, *, partitions: int = 1, timestamp: int = 0) -> None:
    """So many records, spread evenly."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "topic.metadata.refresh.interval.ms": 500})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions, timestamp=timestamp)
    assert producer.flush(20) == 0


def test_partitions_added_by_kafka_topics(cluster: DevCluster, tools: KafkaTools) -> None:
    """Rows S16, S54: `kafka-topics --alter --partitions 6` on a topic in use: a running group picks the new ones up."""
    make_topic(cluster, "tool-grown", 3)
    send(cluster, "tool-grown", 30, partitions=3)
    reader = Reader(cluster.bootstrap, "tool-growers", "tool-grown")
    try:
        eventually(lambda: len(reader.read) == 30)
        tools.run("kafka-topics", "--alter", "--topic", "tool-grown", "--partitions", "6")
        eventually(lambda: len(reader.assigned) == 6)
        send(cluster, "tool-grown", 30, partitions=6)
        eventually(lambda: len(reader.read) == 60)
        places = {(partition, offset) for _, partition, offset, _ in reader.read}
        assert places == {(p, o) for p in range(3) for o in range(15)} | {(p, o) for p in range(3, 6) for o in range(5)}
    finally:
        reader.close()
    described = tools.run("kafka-topics", "--describe", "--topic", "tool-grown")
    assert "PartitionCount: 6" in described
    assert len(re.findall(r"Isr: \d,\d,\d", described)) == 6


def test_auto_create_as_kafkas_tools_see_it(tools: KafkaTools) -> None:
    """Rows S15, S90: off, the console producer fails; `kafka-configs` turns it on at once, and a topic has the
    defaults."""
    at_once = ("--sync", "--timeout", "1")
    patience = ("--command-property", "max.block.ms=1000")
    said = tools.both("kafka-console-producer", "--topic", "tool-typo", *at_once, *patience, stdin=b"x\n")
    assert "not present in metadata" in said or "UNKNOWN_TOPIC_OR_PARTITION" in said
    assert "tool-typo" not in tools.run("kafka-topics", "--list").split()
    brokers = ("--entity-type", "brokers", "--entity-default")
    tools.run("kafka-configs", "--alter", *brokers, "--add-config", "auto.create.topics.enable=true")
    try:
        tools.run("kafka-console-producer", "--topic", "tool-made", *at_once, stdin=b"x\n")
        assert re.search(
            r"PartitionCount: 1\s+ReplicationFactor: 3", tools.run("kafka-topics", "--describe", "--topic", "tool-made")
        )
    finally:
        tools.run("kafka-configs", "--alter", *brokers, "--delete-config", "auto.create.topics.enable")


def test_levels_of_loggers_by_kafka_configs(cluster: DevCluster, tools: KafkaTools) -> None:
    """`--entity-type broker-loggers`: shown, set, deleted; the broker's log has more meanwhile, and no other's."""
    mine = ("--entity-type", "broker-loggers", "--entity-name", "2")
    assert re.search(r"strandline\.replica=INFO", tools.run("kafka-configs", "--describe", *mine))
    tools.run("kafka-configs", "--alter", *mine, "--add-config", "strandline.replica=DEBUG")
    try:
        assert re.search(r"strandline\.replica=DEBUG", tools.run("kafka-configs", "--describe", *mine))
        make_topic(cluster, "tool-loggers", 3)
        eventually(lambda: "event='following'" in Path(cluster.log_path(2)).read_text())
        assert "event='following'" not in Path(cluster.log_path(1)).read_text()
        said = tools.both("kafka-configs", "--alter", *mine, "--add-config", "strandline.replica=LOUD")
        assert "no level 'LOUD'" in said
        said = tools.both("kafka-configs", "--alter", *mine, "--add-config", "strandline.replicas=DEBUG")
        assert "Invalid broker logger" in said
    finally:
        tools.run("kafka-configs", "--alter", *mine, "--delete-config", "strandline.replica")
    assert re.search(r"strandline\.replica=INFO", tools.run("kafka-configs", "--describe", *mine))


def test_lag_state_and_resets_by_kafka_consumer_groups(cluster: DevCluster, tools: KafkaTools) -> None:
    """Rows S60, S68, S96: who coordinates, the lag; offsets go to a time, the start, by a step; --dry-run only
    tells."""
    make_topic(cluster, "tool-lag", 1)
    hour_ago = int(time.time() * 1000) - 3_600_000
    send(cluster, "tool-lag", 10, timestamp=hour_ago)
    send(cluster, "tool-lag", 10, timestamp=hour_ago + 1_800_000)
    reader = Reader(cluster.bootstrap, "tool-laggards", "tool-lag")
    eventually(lambda: len(reader.read) == 20)
    state = tools.run("kafka-consumer-groups", "--describe", "--group", "tool-laggards", "--state")
    assert re.search(r"tool-laggards\s+127\.0\.0\.1:\d+\s+\(\d\)\s+range\s+Stable\s+1", state), state
    reader.close()
    send(cluster, "tool-lag", 7)
    told = tools.run("kafka-consumer-groups", "--describe", "--group", "tool-laggards")
    assert re.search(r"tool-lag\s+0\s+(-\s+)?20\s+27\s+7\s", told), told

    def reset(*how: str) -> str:
        which = ("--group", "tool-laggards", "--topic", "tool-lag")
        said = tools.run("kafka-consumer-groups", "--reset-offsets", *which, *how)
        return said.split()[-1]

    between = datetime.fromtimestamp(hour_ago / 1000 + 60, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")
    assert reset("--to-datetime", between, "--dry-run") == "10"
    assert reset("--shift-by", "-3", "--execute") == "17"
    assert reset("--to-earliest", "--execute") == "0"
    assert reset("--shift-by", "5", "--dry-run") == "5"


def test_63_committed_offsets_in_the_eyes_of_kafkas_tools(cluster: DevCluster, tools: KafkaTools) -> None:
    """The console consumer's formatter of offsets reads what a coordinator has stored: offset, metadata and, as Kafka
    4.1 and later have it, the id of the topic."""
    make_topic(cluster, "tool-stored", 1)
    where = ("tool-stored", 0)
    with Admin(cluster.bootstrap) as admin:
        [described] = admin.describe_topics(["tool-stored"])
        admin.alter_group_offsets("tool-keepers", {where: OffsetAndMetadata(7, "noted")})
    assert described.topic_id is not None
    kafkas = base64.urlsafe_b64encode(described.topic_id.bytes).decode().rstrip("=")
    topic, beginning = ("--topic", "__consumer_offsets"), ("--from-beginning", "--timeout-ms", "5000")
    shown = tools.both(
        "kafka-console-consumer",
        *topic,
        *beginning,
        "--formatter",
        "org.apache.kafka.tools.consumer.OffsetsMessageFormatter",
    )
    begins = [place.start() for place in re.finditer(r'\{"key":', shown)]
    found = [json.JSONDecoder().raw_decode(shown, at)[0] for at in begins]
    [line] = [one for one in found if one["key"]["data"]["group"] == "tool-keepers"]
    assert line["key"]["data"] == {"group": "tool-keepers", "topic": "tool-stored", "partition": 0}
    value = line["value"]["data"]
    assert (line["value"]["version"], value["offset"], value["metadata"], value["topicId"]) == (4, 7, "noted", kafkas)


def test_replicas_verified_by_kafkas_own_tool(cluster: DevCluster, tools: KafkaTools) -> None:
    """`kafka-replica-verification` reads every replica on its own broker (replica id -2), and finds them equal."""
    make_topic(cluster, "tool-verified", 1)
    send(cluster, "tool-verified", 50)
    told = tools.op_verify_replicas("tool-verified", 50)
    assert told["complete"], told["said"]
    assert "match" not in told["said"], told["said"]
