"""Java's and librdkafka's clients push their own metrics once somebody subscribes (KIP-714), by Kafka's own tools or by
ours, and are listed with what they say (rule A42, rule A43)."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import Producer as LibrdkafkaProducer
from interop.tools import KafkaTools

from strandline.cli.cluster import cluster as cluster_command
from strandline.cli.configs import config as config_command
from strandline.client import Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.foreign import kafka_tools
from tests.acceptance.helpers import eventually, make_topic
from tests.acceptance.readers import JavaReader

INTERVAL_MS = 500


@pytest.fixture(scope="module")
def tools(cluster: DevCluster) -> Iterator[KafkaTools]:
    with closing(kafka_tools(cluster.bootstrap)) as running:
        yield running


def ran(result: Result) -> str:
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def listed(cluster: DevCluster, *options: str) -> str:
    nodes = [cluster.http(number) for number in (1, 2, 3)]
    return ran(CliRunner().invoke(cluster_command, ["clients", *nodes, *options]))


def clients(cluster: DevCluster) -> dict[str, dict[str, object]]:
    found = json.loads(listed(cluster, "-o", "json"))
    return {client["client_id"]: client for client in found if not client["closed"]}


def test_librdkafka_pushes_once_somebody_subscribes(cluster: DevCluster) -> None:
    make_topic(cluster, "measured")
    assert "no client has pushed" in listed(cluster)
    alter = ["alter", "client-metrics", "rd", "--bootstrap", cluster.bootstrap, "--set", "metrics=*"]
    alter += ["--set", f"interval.ms={INTERVAL_MS}", "--set", "match=client_software_name=(confluent-kafka|librd).*"]
    ran(CliRunner().invoke(config_command, alter))
    where = {"bootstrap.servers": cluster.bootstrap}
    producer = LibrdkafkaProducer({**where, "client.id": "measured-producer"})
    consumer = LibrdkafkaConsumer({**where, "client.id": "measured-consumer", "group.id": "measured"})
    consumer.subscribe(["measured"])

    def both_have_pushed() -> bool:
        producer.produce("measured", b"x")
        producer.poll(0.01)
        consumer.poll(0.01)
        return {"measured-producer", "measured-consumer"} <= set(clients(cluster))

    eventually(both_have_pushed)

    def tells_its_latency() -> bool:
        producer.produce("measured", b"x")
        producer.poll(0.01)
        found = clients(cluster).get("measured-producer", {"metrics": {}})
        return any(str(name).endswith("request.latency.avg") for name in found["metrics"])  # type: ignore[attr-defined]

    eventually(tells_its_latency)
    assert f"{clients(cluster)['measured-producer']['client_software_name']}".startswith(("librdkafka", "confluent"))
    assert "measured-producer" in listed(cluster)
    pages = [urllib.request.urlopen(f"http://{cluster.http(n)}/metrics").read().decode() for n in (1, 2, 3)]
    assert any('strandline_client_metric{client_id="measured-producer"' in page for page in pages)
    consumer.close()
    eventually(lambda: "measured-consumer" not in clients(cluster))  # its last push says so, or it is silent for long


def test_java_pushes_what_kafkas_own_tool_subscribed_to(cluster: DevCluster, tools: KafkaTools) -> None:
    """`kafka-client-metrics` makes, lists, describes and deletes; Java's consumer tells its lag."""
    make_topic(cluster, "java-measured")
    where = ["--name", "java", "--metrics", "org.apache.kafka.consumer.", "--interval", str(INTERVAL_MS)]
    tools.run("kafka-client-metrics", "--alter", *where, "--match", "client_software_name=apache-kafka-java")
    assert "java" in tools.run("kafka-client-metrics", "--list").split()
    shown = tools.run("kafka-client-metrics", "--describe", "--name", "java")
    assert "metrics=org.apache.kafka.consumer." in shown
    assert f"interval.ms={INTERVAL_MS}" in shown
    assert "interval.ms" in tools.run("kafka-configs", "--describe", "--entity-type", "client-metrics")
    with Producer(cluster.bootstrap) as producer:
        for _ in range(100):
            producer.send("java-measured", b"x")
    reader = JavaReader(cluster.bootstrap, "java-measured", "java-measured", "consumer")
    try:
        eventually(lambda: "consumer-java-measured-1" in clients(cluster), 90)
        found = clients(cluster)["consumer-java-measured-1"]
        assert found["client_software_name"] == "apache-kafka-java"
        names = set(found["metrics"])  # type: ignore[call-overload]
        assert any(str(name).startswith("org.apache.kafka.consumer.") for name in names), names
    finally:
        reader.close()
    tools.run("kafka-client-metrics", "--delete", "--name", "java")
    eventually(lambda: "java" not in tools.run("kafka-client-metrics", "--list").split())
