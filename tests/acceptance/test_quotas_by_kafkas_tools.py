"""Kafka's own `kafka-configs` sets quotas of users, clients and ips, shows them and takes them away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from interop.tools import KafkaTools

from strandline.client import Admin, QuotaEntity
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.foreign import kafka_tools
from tests.acceptance.helpers import eventually


@pytest.fixture(scope="module")
def tools(cluster: DevCluster) -> Iterator[KafkaTools]:
    with closing(kafka_tools(cluster.bootstrap)) as running:
        yield running


def test_kafka_configs_sets_shows_and_removes_quotas(cluster: DevCluster, tools: KafkaTools) -> None:
    alice = ["--entity-type", "users", "--entity-name", "alice"]
    every_client = ["--entity-type", "clients", "--entity-default"]
    one_ip, every_ip = (
        ["--entity-type", "ips", "--entity-name", "10.0.0.1"],
        ["--entity-type", "ips", "--entity-default"],
    )
    rates = "producer_byte_rate=1048576,request_percentage=12.5,controller_mutation_rate=2.5"
    tools.run("kafka-configs", "--alter", "--add-config", rates, *alice)
    tools.run("kafka-configs", "--alter", "--add-config", "consumer_byte_rate=2048", *every_client)
    for whom, rate in ((one_ip, 20), (every_ip, 1000)):
        tools.run("kafka-configs", "--alter", "--add-config", f"connection_creation_rate={rate}", *whom)
    with Admin(cluster.bootstrap) as admin:
        wanted = {
            QuotaEntity("alice"): {
                "producer_byte_rate": 1048576.0,
                "request_percentage": 12.5,
                "controller_mutation_rate": 2.5,
            },
            QuotaEntity(None, ""): {"consumer_byte_rate": 2048.0},
            QuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 20.0},
            QuotaEntity(ip=""): {"connection_creation_rate": 1000.0},
        }
        eventually(lambda: admin.describe_client_quotas() == wanted)
        shown = tools.run("kafka-configs", "--describe", "--entity-type", "users")
        assert "Quota configs for user-principal 'alice' are " in shown
        assert "producer_byte_rate=1048576.0" in shown
        clients = tools.run("kafka-configs", "--describe", "--entity-type", "clients")
        assert "consumer_byte_rate=2048.0" in clients
        ips = tools.run("kafka-configs", "--describe", "--entity-type", "ips")
        assert "connection_creation_rate=20.0" in ips
        assert "connection_creation_rate=1000.0" in ips
        assert "connection_creation_rate=20.0" in tools.run("kafka-configs", "--describe", *one_ip)
        for whom in (one_ip, every_ip):
            tools.run("kafka-configs", "--alter", "--delete-config", "connection_creation_rate", *whom)
        keys = "producer_byte_rate,request_percentage,controller_mutation_rate"
        tools.run("kafka-configs", "--alter", "--delete-config", keys, *alice)
        tools.run("kafka-configs", "--alter", "--delete-config", "consumer_byte_rate", *every_client)
        eventually(lambda: admin.describe_client_quotas() == {})
