"""Row S93: clients choose TLS at their start. Other people's clients on a secure cluster, and what keeps them out."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from strandline.client import Admin, NewTopic
from strandline.cluster.node.config_values import read_file
from strandline.cluster.node.dev import DevCluster
from strandline.cluster.security.dev_certificates import CA_FILE, DevCa
from strandline.cluster.security.node_identity import NodeIdentity, node_uri
from strandline.proto.ids import NodeId
from tests.acceptance.foreign import kafka_tools, kcat, needs_kcat


class Secure(DevCluster):
    """One node with TLS on every listener, and certificates that it does not take."""

    def __init__(self) -> None:
        super().__init__(nodes=1, secure=True)

    @cached_property
    def ca(self) -> DevCa:
        return DevCa(self.root / "certs")

    @cached_property
    def stranger(self) -> DevCa:
        return DevCa(self.root / "stranger")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Secure]:
    with Secure() as running:
        settings = {key.replace(".", "_"): text for key, text in read_file(str(running.client_properties)).items()}
        with Admin(running.bootstrap, **settings) as admin:
            admin.create_topics([NewTopic("orders", 1, 1)])
        yield running


def librdkafka(ca: Path, certificate: Path | None) -> dict[str, str]:
    """The settings of librdkafka."""
    own = (
        {}
        if certificate is None
        else {"ssl.certificate.location": str(certificate), "ssl.key.location": str(certificate)}
    )
    return {"security.protocol": "ssl", "ssl.ca.location": str(ca), **own}


def properties(settings: dict[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]


def test_confluent_kafka_sends_and_reads(cluster: Secure) -> None:
    from confluent_kafka import Consumer, Producer

    settings = {"bootstrap.servers": cluster.bootstrap, **librdkafka(cluster.ca.file, cluster.ca.client("confluent"))}
    values = [bytes([number]) * 100_000 for number in range(30)]
    delivered: list[Any] = []
    producer = Producer(settings)
    for value in values:
        producer.produce("orders", value, partition=0, on_delivery=lambda error, message: delivered.append(error))
    assert producer.flush(60) == 0
    assert delivered == [None] * 30
    consumer = Consumer({**settings, "group.id": "confluent", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    read: list[bytes | None] = []
    while len(read) < 30:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        read.append(message.value())
    assert read == values
    consumer.close()


def test_kafka_python_sends_and_reads(cluster: Secure) -> None:
    """It uses Python's ssl, as we do."""
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    own = str(cluster.ca.client("kafka-python"))
    settings = {
        "bootstrap_servers": cluster.bootstrap,
        "security_protocol": "SSL",
        "ssl_cafile": str(cluster.ca.file),
        "ssl_certfile": own,
        "ssl_keyfile": own,
    }
    producer = KafkaProducer(**settings)
    sent = producer.send("orders", b"from kafka-python", partition=0).get(timeout=60)
    producer.close()
    consumer = KafkaConsumer(**settings, consumer_timeout_ms=30_000)
    consumer.assign([TopicPartition("orders", 0)])
    consumer.seek(TopicPartition("orders", 0), sent.offset)
    assert next(consumer).value == b"from kafka-python"
    consumer.close()


@needs_kcat
def test_the_same_command_with_and_without_tls(cluster: Secure) -> None:
    """Row S93: with security.protocol=ssl it lists the topics; in plaintext it fails, and its message says SSL."""
    settings = librdkafka(cluster.ca.file, cluster.ca.client("kcat"))
    assert 'topic "orders"' in kcat("-b", cluster.bootstrap, "-L", *properties(settings))
    said = kcat("-b", cluster.bootstrap, "-L", "-m", "5", fails=True)
    assert "SSL" in said, said


def test_kafkas_own_tools_read_the_same_file(cluster: Secure) -> None:
    """The file that `strandline dev --secure` names, as it is: --command-config of Kafka's tools (Java's own TLS)."""
    tools = kafka_tools(cluster.bootstrap)
    config = ["--command-config", str(cluster.client_properties)]
    try:
        assert "orders" in tools.run("kafka-topics", *config, "--list")
        described = tools.run(
            "kafka-configs", *config, "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1"
        )
        assert "ssl.key.password=null sensitive=true" in described
        assert "listener.name.http.ssl.client.auth=none" in described
    finally:
        tools.stop()


@needs_kcat
def test_who_does_not_belong_stays_out(cluster: Secure) -> None:
    """Without a certificate, with a stranger's, with an expired one; and nobody is asked to trust a strange node."""
    ca, stranger = cluster.ca, cluster.stranger
    for settings in (
        librdkafka(ca.file, None),
        librdkafka(ca.file, stranger.client("mallory")),
        librdkafka(ca.file, ca.client("late", days=-1)),
        librdkafka(stranger.directory / CA_FILE, ca.client("careful")),
    ):
        said = kcat("-b", cluster.bootstrap, "-L", "-m", "5", *properties(settings), fails=True)
        assert "orders" not in said
        assert "SSL" in said or "ssl" in said, said
    log = Path(cluster.log_path(1)).read_text()
    for reason in ("the client shows no certificate", "does not count", "does not know the CA"):
        assert reason in log, reason


@needs_kcat
def test_a_certificate_of_another_host_is_not_trusted(cluster: Secure) -> None:
    """It comes and goes while the node runs: the file is changed, twice."""
    settings = librdkafka(cluster.ca.file, cluster.ca.client("kcat"))
    own = node_uri(NodeIdentity(NodeId(1), ""))
    cluster.ca.issue("node-1", "node-1", hosts=("broker.example.com",), uris=(own,))
    deadline = time.monotonic() + 60
    said = ""
    while "verif" not in said and "mismatch" not in said:
        assert time.monotonic() < deadline, said
        command = ["kcat", "-b", cluster.bootstrap, "-L", "-m", "3", *properties(settings)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        said = done.stderr if done.returncode else ""
    unchecked = {**settings, "ssl.endpoint.identification.algorithm": "none"}
    assert 'topic "orders"' in kcat("-b", cluster.bootstrap, "-L", *properties(unchecked))
    cluster.ca.node(1)
    while subprocess.run(command, capture_output=True, timeout=60, check=False).returncode:
        assert time.monotonic() < deadline
