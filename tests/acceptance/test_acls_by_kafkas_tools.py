"""Row S92: Kafka's own `kafka-acls` gives rights and takes them, on a secure cluster whose clients are in the middle of
their work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from interop.driver import ClientError
from interop.tools import KafkaTools

from strandline.cluster.node.config_values import read_file
from strandline.cluster.node.dev import DevCluster
from strandline.cluster.node.settings import STANDARD_AUTHORIZER
from strandline.cluster.security.dev_certificates import DevCa
from tests.acceptance.foreign import kafka_tools
from tests.acceptance.helpers import eventually

DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED
MAPPED = {"ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    """Three nodes; the development client is the super user."""
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:dev", **MAPPED}
    with DevCluster(secure=True, settings=settings) as running:
        yield running


class Admin:
    """Kafka's tools with the development client's certificate."""

    def __init__(self, cluster: DevCluster, tools: KafkaTools) -> None:
        self._config = ["--command-config", str(cluster.client_properties)]
        self._tools = tools

    def run(self, tool: str, *arguments: str) -> str:
        return self._tools.run(tool, *self._config, *arguments)

    def acls(self, *arguments: str) -> str:
        return self.run("kafka-acls", *arguments)


@pytest.fixture(scope="module")
def admin(cluster: DevCluster) -> Iterator[Admin]:
    with closing(kafka_tools(cluster.bootstrap)) as tools:
        yield Admin(cluster, tools)


def librdkafka(cluster: DevCluster, name: str) -> dict[str, Any]:
    ca = DevCa(cluster.root / "certs")
    own = str(ca.client(name))
    files = {"ssl.ca.location": str(ca.file), "ssl.certificate.location": own, "ssl.key.location": own}
    return {"bootstrap.servers": cluster.bootstrap, "security.protocol": "ssl", **files}


def send(producer: Producer, value: bytes) -> int:
    """The error of its delivery, 0 without one."""
    codes: list[int] = []
    producer.produce("orders", value, on_delivery=lambda error, _: codes.append(0 if error is None else error.code()))
    assert producer.flush(30) == 0
    return codes[0]


def poll(consumer: Consumer) -> bytes | int:
    """The next value, or the code of the error."""
    while True:
        try:
            message = consumer.poll(30)
        except KafkaException as error:
            return int(error.args[0].code())
        if message is not None:
            failed = message.error()
            value = message.value()
            return failed.code() if failed is not None else value or b""


def test_rights_come_and_go_while_clients_run(cluster: DevCluster, admin: Admin) -> None:
    """READ alone: consuming works, producing is refused; WRITE comes live and goes; then READ goes in mid-stream."""
    admin.run("kafka-topics", "--create", "--topic", "orders", "--partitions", "1", "--replication-factor", "3")
    added = admin.acls(
        "--add", "--allow-principal", "User:alice", "--consumer", "--topic", "orders", "--group", "reports"
    )
    assert "Adding ACLs for resource" in added
    boss = Producer(librdkafka(cluster, "dev"))
    assert send(boss, b"first") == 0
    consumer = Consumer({**librdkafka(cluster, "alice"), "group.id": "reports", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    try:
        assert poll(consumer) == b"first"
        alice = Producer({**librdkafka(cluster, "alice"), "enable.idempotence": False})
        assert send(alice, b"no") == DENIED
        admin.acls("--add", "--allow-principal", "User:alice", "--operation", "Write", "--topic", "orders")
        eventually(lambda: send(alice, b"yes") == 0)
        assert poll(consumer) == b"yes"
        for operation in ("Read", "Write"):
            admin.acls(
                "--remove", "--force", "--allow-principal", "User:alice", "--operation", operation, "--topic", "orders"
            )
        eventually(lambda: send(alice, b"no") == DENIED)
        assert send(boss, b"secret") == 0
        assert poll(consumer) == DENIED
    finally:
        consumer.close()


def test_kafka_acls_lists_and_removes(admin: Admin) -> None:
    """Prefixes, hosts, denials, the cluster: as they were given, by its words; nothing is left."""
    who = ("--deny-principal", "User:bob", "--deny-host", "10.0.0.9", "--operation", "Read")
    admin.acls("--add", *who, "--topic", "ord", "--resource-pattern-type", "prefixed")
    admin.acls("--add", "--allow-principal", "User:ops", "--operation", "Alter", "--cluster")
    match = admin.acls("--list", "--topic", "orders", "--resource-pattern-type", "match")
    assert "patternType=PREFIXED" in match
    assert "(principal=User:bob, host=10.0.0.9, operation=READ, permissionType=DENY)" in match
    assert "resourceType=CLUSTER, name=kafka-cluster" in admin.acls("--list", "--cluster")
    admin.acls("--remove", "--force", "--topic", "*", "--resource-pattern-type", "any")
    admin.acls("--remove", "--force", "--topic", "ord", "--resource-pattern-type", "prefixed")
    admin.acls("--remove", "--force", "--cluster")
    assert "ord" not in admin.acls("--list", "--topic", "ord", "--resource-pattern-type", "prefixed")


def test_who_is_no_admin_changes_nothing(cluster: DevCluster, admin: Admin) -> None:
    """The tool of somebody else gets Kafka's error."""
    ca = DevCa(cluster.root / "certs")
    mallory = cluster.root / "mallory.properties"
    given = {**read_file(str(cluster.client_properties)), "ssl.keystore.location": str(ca.client("mallory"))}
    mallory.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    run = partial(admin._tools.run, "kafka-acls", "--command-config", str(mallory))
    with pytest.raises(ClientError, match="authoriz"):
        run("--add", "--allow-principal", "User:mallory", "--operation", "All", "--topic", "*")
    with pytest.raises(ClientError, match="authoriz"):
        run("--list")
    assert "mallory" not in admin.acls("--list")
