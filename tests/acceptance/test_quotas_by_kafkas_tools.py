"""Kafka's own `kafka-configs` sets quotas of users and clients, shows them and takes them away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from interop.tools import KafkaTools

from strandline.client import Admin, QuotaEntity
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.foreign import kafka_tools


@pytest.fixture(scope="module")
def tools(cluster: DevCluster) -> Iterator[KafkaTools]:
    with closing(kafka_tools(cluster.bootstrap)) as running:
        yield running


def test_kafka_configs_sets_shows_and_removes_quotas(cluster: DevCluster, tools: KafkaTools) -> None:
    alice = ["--entity-type", "users", "--entity-name", "alice"]
    every_client = ["--entity-type", "clients", "--entity-default"]
    rates = "producer_byte_rate=1048576,request_percentage=12.5"
    tools.run("kafka-configs", "--alter", "--add-config", rates, *alice)
    tools.run("kafka-configs", "--alter", "--add-config", "consumer_byte_rate=2048", *every_client)
    with Admin(cluster.bootstrap) as admin:
        assert admin.describe_client_quotas() == {
            QuotaEntity("alice"): {"producer_byte_rate": 1048576.0, "request_percentage": 12.5},
            QuotaEntity(None, ""): {"consumer_byte_rate": 2048.0},
        }
        shown = tools.run("kafka-configs", "--describe", "--entity-type", "users")
        assert "Quota configs for user-principal 'alice' are " in shown
        assert "producer_byte_rate=1048576.0" in shown
        clients = tools.run("kafka-configs", "--describe", "--entity-type", "clients")
        assert "consumer_byte_rate=2048.0" in clients
        tools.run("kafka-configs", "--alter", "--delete-config", "producer_byte_rate,request_percentage", *alice)
        tools.run("kafka-configs", "--alter", "--delete-config", "consumer_byte_rate", *every_client)
        assert admin.describe_client_quotas() == {}
