"""A broker's settings as other people's tools read them: names, nulls, types, sources, effective values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka_case import run
from kafka_node import KafkaNode
from kafka_wire import KafkaClient

from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.settings import ConfigType

BROKER, TOPIC = 4, 2
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 1, 2, 3, 4, 5
SECRET = "swordfish"


async def described(client: KafkaClient, kind: int, name: str) -> dict[str, Any]:
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]
    answer = await client.ask(
        "describe_configs", 4, resources=resources, include_synonyms=True, include_documentation=True
    )
    assert not answer.results[0].error_code
    return {one.name: one for one in answer.results[0].configs}


LOOKED_UP = {
    "advertised.listeners": (None, DEFAULT, ConfigType.LIST, True),
    "auto.create.topics.enable": ("false", DEFAULT, ConfigType.BOOLEAN, False),
    "broker.id": ("1", STATIC, ConfigType.INT, True),
    "broker.rack": (None, DEFAULT, ConfigType.STRING, True),
    "compression.type": ("producer", DEFAULT, ConfigType.STRING, False),
    "controller.listener.names": ("INTERNAL", DEFAULT, ConfigType.STRING, True),
    "default.replication.factor": ("1", DEFAULT, ConfigType.INT, False),
    "delete.topic.enable": ("true", DEFAULT, ConfigType.BOOLEAN, True),
    "follower.replication.throttled.rate": ("9223372036854775807", DEFAULT, ConfigType.LONG, False),
    "inter.broker.listener.name": ("INTERNAL", DEFAULT, ConfigType.STRING, True),
    "leader.replication.throttled.rate": ("9223372036854775807", DEFAULT, ConfigType.LONG, False),
    "log.cleaner.enable": ("true", DEFAULT, ConfigType.BOOLEAN, True),
    "log.cleanup.policy": ("delete", DEFAULT, ConfigType.LIST, False),
    "log.dir": ("/first", STATIC, ConfigType.STRING, True),
    "log.dirs": ("/first,/second", STATIC, ConfigType.LIST, True),
    "log.retention.bytes": ("-1", DEFAULT, ConfigType.LONG, False),
    "log.retention.hours": ("168", DEFAULT, ConfigType.INT, True),
    "log.retention.minutes": ("10080", DEFAULT, ConfigType.INT, True),
    "log.retention.ms": ("604800000", DEFAULT, ConfigType.LONG, False),
    "log.roll.hours": ("168", DEFAULT, ConfigType.INT, True),
    "log.roll.jitter.hours": ("0", DEFAULT, ConfigType.INT, True),
    "log.segment.bytes": ("1073741824", DEFAULT, ConfigType.INT, False),
    "message.max.bytes": ("1048588", DEFAULT, ConfigType.INT, False),
    "min.insync.replicas": ("2", DEFAULT, ConfigType.INT, False),
    "node.id": ("1", STATIC, ConfigType.INT, True),
    "num.partitions": ("1", DEFAULT, ConfigType.INT, False),
    "offsets.retention.minutes": ("10080", DEFAULT, ConfigType.INT, True),
    "offsets.topic.replication.factor": ("3", DEFAULT, ConfigType.SHORT, True),
    "process.roles": ("broker,controller", DEFAULT, ConfigType.LIST, True),
    "replica.selector.class": (None, DEFAULT, ConfigType.STRING, True),
    "sasl.enabled.mechanisms": ("SCRAM-SHA-256,SCRAM-SHA-512", DEFAULT, ConfigType.LIST, True),
    "ssl.keystore.location": (None, DEFAULT, ConfigType.STRING, True),
    "super.users": ("", DEFAULT, ConfigType.STRING, True),
    "unclean.leader.election.enable": ("false", DEFAULT, ConfigType.BOOLEAN, False),
}
"""Names that Kafka UI, AKHQ, ksqlDB, esque, Cruise Control and Debezium look up: value, source, type, read-only."""


def test_tools_find_what_they_look_up(tmp_path: Path) -> None:
    """Values that hold, null where nothing is set, Kafka's types and sources."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        found = await described(client, BROKER, "1")
        told = {name: found.get(name) for name in LOOKED_UP}
        assert {
            name: one and (one.value, one.config_source, one.config_type, one.read_only) for name, one in told.items()
        } == LOOKED_UP
        for name, one in found.items():
            assert one.documentation, name
            assert one.synonyms[0].value == one.value, name
            assert one.synonyms[0].source == one.config_source, name
            assert one.config_type in set(ConfigType), name

    run(tmp_path, main, settings={"log.dirs": "/first,/second"})


def test_a_secret_is_null_and_says_so_and_what_is_unset_is_null_and_no_secret(tmp_path: Path) -> None:
    async def main(node: KafkaNode, client: KafkaClient) -> None:
        found = await described(client, BROKER, "1")
        secret, unset = found["ssl.key.password"], found["ssl.keystore.location"]
        assert (secret.value, secret.is_sensitive, secret.config_source) == (None, True, STATIC)
        assert [(one.value, one.source) for one in secret.synonyms] == [(None, STATIC), (None, DEFAULT)]
        assert (unset.value, unset.is_sensitive) == (None, False)
        own = found["listener.name.plaintext.ssl.key.password"]
        assert (own.value, own.is_sensitive, own.config_type) == (None, True, ConfigType.PASSWORD)
        assert SECRET not in repr(found)

    own = "listener.name.plaintext.ssl.key.password"
    run(tmp_path, main, settings={"ssl.key.password": SECRET, own: SECRET})


def test_the_file_and_the_default_are_synonyms_of_one_another(tmp_path: Path) -> None:
    async def main(node: KafkaNode, client: KafkaClient) -> None:
        found = await described(client, BROKER, "1")
        limit = found["fetch.max.bytes"]
        assert [(one.name, one.value, one.source) for one in limit.synonyms] == [
            ("fetch.max.bytes", "2000", STATIC),
            ("fetch.max.bytes", "57671680", DEFAULT),
        ]

    run(tmp_path, main, settings={"fetch.max.bytes": "2000"})


@pytest.mark.parametrize(
    ("retention_ms", "hours", "minutes"),
    [("-1", "-1", "-1"), ("1", "1", "1"), ("7200000", "2", "120"), ("9223372036854775807", "2147483647", "2147483647")],
)
def test_hours_and_minutes_follow_milliseconds(tmp_path: Path, retention_ms: str, hours: str, minutes: str) -> None:
    """Rounded up: no tool may believe that records go sooner than they do."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t", retention_ms=retention_ms)
        found = await described(client, BROKER, "1")
        assert [found[f"log.retention.{unit}"].value for unit in ("hours", "minutes")] == [hours, minutes]
        assert found["log.retention.hours"].config_source == STATIC

    run(tmp_path, main, static={"log.retention.ms": retention_ms})


def test_the_default_replication_factor_is_a_number_of_copies(tmp_path: Path) -> None:
    """ksqlDB and Debezium create topics by it. It follows the brokers, up to three, until somebody sets it."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        async def factor() -> Any:
            return (await described(client, BROKER, "1"))["default.replication.factor"]

        for number, expected in ((2, "2"), (3, "3"), (4, "3")):
            node.controller.start_broker(NodeId(number), Endpoint("127.0.0.1", 1))
            assert (await factor()).value == expected
        set_to = {"config_operation": 0, "name": "default.replication.factor", "value": "4"}
        resources = [{"resource_type": BROKER, "resource_name": "", "configs": [set_to]}]
        await client.ask("incremental_alter_configs", 1, resources=resources, validate_only=False)
        one = await factor()
        assert (one.value, one.config_source) == ("4", DYNAMIC_DEFAULT)
        assert [(each.value, each.source) for each in one.synonyms] == [("4", DYNAMIC_DEFAULT), ("3", DEFAULT)]

    run(tmp_path, main)


def test_sources_of_a_topics_setting_are_kafkas(tmp_path: Path) -> None:
    """Topic, this broker, all brokers, file, default: each under the name that it was set by."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        async def alter(kind: int, name: str, key: str, value: str) -> None:
            change = {"config_operation": 0, "name": key, "value": value}
            resources = [{"resource_type": kind, "resource_name": name, "configs": [change]}]
            answer = await client.ask("incremental_alter_configs", 1, resources=resources, validate_only=False)
            assert not answer.responses[0].error_code

        node.create_topic("t")
        expected = [("log.retention.ms", "1", STATIC), ("log.retention.ms", "604800000", DEFAULT)]
        for kind, resource, key, value, source in (
            (BROKER, "", "log.retention.ms", "2", DYNAMIC_DEFAULT),
            (BROKER, "1", "log.retention.ms", "3", DYNAMIC_BROKER),
            (TOPIC, "t", "retention.ms", "4", DYNAMIC_TOPIC),
        ):
            await alter(kind, resource, key, value)
            expected.insert(0, (key, value, source))
            one = (await described(client, TOPIC, "t"))["retention.ms"]
            assert [(each.name, each.value, each.source) for each in one.synonyms] == expected
            assert (one.value, one.config_source, one.read_only) == (value, source, False)

    run(tmp_path, main, static={"log.retention.ms": "1"})
