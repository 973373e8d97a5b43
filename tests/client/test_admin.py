"""The admin client against real brokers (rows S03, S11, S14, S16, S81)."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from strandline.client import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    Admin,
    ConfigChange,
    ConfigResource,
    NewTopic,
    Producer,
    aio,
)
from strandline.client.errors import ClientTimeout, ManyErrors, UnknownTopic
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError, ProtocolError
from strandline.proto.ids import TopicPartition
from tests.client.conftest import MakeTopic, eventually


def test_settings_of_a_topic_that_a_broker_has_not_heard_of_yet(bootstrap: str) -> None:
    """It is asked again for a moment: whoever has just made a topic may ask another broker."""
    name = "made-while-it-is-asked-for"
    with Admin(bootstrap) as admin, Admin(bootstrap) as other, ThreadPoolExecutor(1) as later:
        settings = later.submit(admin.describe_configs, [ConfigResource("topic", name)])
        with pytest.raises(TimeoutError):
            settings.result(0.1)
        other.create_topics([NewTopic(name, 1)])
        [entries] = settings.result(30).values()
        assert "retention.ms" in {entry.name for entry in entries}
        admin.delete_topics([name])


def test_describe(bootstrap: str, make_topic: MakeTopic) -> None:
    """Leaders spread, replicas in sync, ids given; the cluster and its quorum."""
    name = make_topic(6, retention_ms="3600000")
    with Admin(bootstrap) as admin:
        eventually(lambda: name in admin.list_topics())
        [topic] = admin.describe_topics([name])
        assert (topic.name, topic.is_internal, topic.topic_id is None) == (name, False, False)
        assert [part.partition for part in topic.partitions] == list(range(6))
        assert sorted(part.leader for part in topic.partitions if part.leader) == [1, 1, 2, 2, 3, 3]
        assert all(sorted(part.replicas) == [1, 2, 3] for part in topic.partitions)
        assert all(part.eligible_leader_replicas == () for part in topic.partitions)
        described = admin.describe_cluster()
        assert [node.node_id for node in described.nodes] == [1, 2, 3]
        assert described.cluster_id
        quorum = admin.describe_quorum()
        assert sorted(voter.node_id for voter in quorum.voters) == [1, 2, 3]
        assert quorum.leader_id in (1, 2, 3)
        assert quorum.high_watermark > 0


def test_one_error_is_raised_many_are_gathered(bootstrap: str, make_topic: MakeTopic) -> None:
    """A single name: its KafkaError. Several: what worked and what did not."""
    there, new = make_topic(), f"new-{os.getpid()}"
    with Admin(bootstrap) as admin:
        with pytest.raises(KafkaError) as single:
            admin.create_topics([NewTopic(there, 1, 3)])
        assert single.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        with pytest.raises(ManyErrors) as many:
            admin.create_topics([NewTopic(there, 1, 3), NewTopic(new, 2, 3), NewTopic("too-many", 1, 9)])
        assert list(many.value.results) == [new]
        codes = {name: error.code for name, error in many.value.errors.items() if isinstance(error, KafkaError)}
        assert codes == {there: ErrorCode.TOPIC_ALREADY_EXISTS, "too-many": ErrorCode.INVALID_REPLICATION_FACTOR}
        assert admin.delete_topics([new], dry_run=True) == [new]
        assert admin.delete_topics([new]) == [new]
        for call in (admin.describe_topics, admin.delete_topics):
            with pytest.raises(UnknownTopic, match=f"strandline topic create {new}-never"):
                call([f"{new}-never"])


def test_dry_runs_change_nothing(bootstrap: str, make_topic: MakeTopic) -> None:
    """validate_only: everything is checked, nothing is done."""
    name, never = make_topic(2), f"never-{os.getpid()}"
    resource = ConfigResource("topic", name)
    with Admin(bootstrap) as admin:
        made = admin.create_topics([NewTopic(never, 4, 3, {"retention.ms": "5"})], validate_only=True)[never]
        assert (made.partitions, made.replication_factor, made.configs["retention.ms"]) == (4, 3, "5")
        assert never not in admin.list_topics()
        admin.create_partitions({name: 5}, validate_only=True)
        admin.alter_configs({resource: [ConfigChange("retention.ms", "5")]}, validate_only=True)
        with pytest.raises(KafkaError, match="INVALID_CONFIG"):
            admin.alter_configs({resource: [ConfigChange("retention.ms", "x")]}, validate_only=True)
        assert len(admin.describe_topics([name])[0].partitions) == 2
        assert settings(admin, resource)["retention.ms"] == ("604800000", "DEFAULT_CONFIG")


def settings(admin: Admin, resource: ConfigResource) -> dict[str, tuple[str | None, str]]:
    return {entry.name: (entry.value, entry.source) for entry in admin.describe_configs([resource])[resource]}


def test_partitions_and_settings_are_altered(bootstrap: str, make_topic: MakeTopic) -> None:
    """Rows S16, S90: partitions grow, settings change one by one; each value says where it comes from."""
    name = make_topic(2)
    resource = ConfigResource("topic", name)
    with Admin(bootstrap) as admin:
        admin.create_partitions({name: 5})
        eventually(lambda: len(admin.describe_topics([name])[0].partitions) == 5)
        with pytest.raises(KafkaError, match="INVALID_PARTITIONS"):
            admin.create_partitions({name: 5})
        admin.alter_configs({resource: [ConfigChange("retention.ms", "7200000")]})
        admin.alter_configs({resource: [ConfigChange("segment.bytes", "2000000")]})
        eventually(lambda: settings(admin, resource)["segment.bytes"] == ("2000000", "DYNAMIC_TOPIC_CONFIG"))
        assert settings(admin, resource)["retention.ms"] == ("7200000", "DYNAMIC_TOPIC_CONFIG")
        admin.alter_configs({resource: [ConfigChange("retention.ms", operation="delete")]})
        eventually(lambda: settings(admin, resource)["retention.ms"][1] == "DEFAULT_CONFIG")
        broker = ConfigResource("broker", "2")
        assert settings(admin, broker)["node.id"][0] == "2"


def test_offsets_are_listed(bootstrap: str, make_topic: MakeTopic) -> None:
    """By either end, by time, the newest timestamp (KIP-734), and what of it lies where (KIP-405, KIP-1005)."""
    name = make_topic(2)
    with Producer(bootstrap) as producer:
        for number, timestamp_ms in enumerate((3_000, 9_000, 6_000)):
            producer.send(name, b"%d" % number, partition=0, timestamp_ms=timestamp_ms).result(30)
    first, empty = TopicPartition(name, 0), TopicPartition(name, 1)
    with Admin(bootstrap) as admin:
        asked = {EARLIEST: 0, LATEST: 3, MAX_TIMESTAMP: 1, EARLIEST_LOCAL: 0, LATEST_TIERED: -1, 3_500: 1, 9_001: -1}
        for question, offset in asked.items():
            assert admin.list_offsets({first: question})[first].offset == offset
        assert admin.list_offsets({first: MAX_TIMESTAMP})[first].timestamp_ms == 9_000
        told = admin.list_offsets({first: LATEST, empty: LATEST})
        assert {where: listed.offset for where, listed in told.items()} == {first: 3, empty: 0}
        ended = admin.epoch_ends({where: listed.leader_epoch for where, listed in told.items()})
        assert {where: end.end_offset for where, end in ended.items()} == {first: 3, empty: 0}
        with pytest.raises(KafkaError, match="has partitions 0 to 1"):
            admin.list_offsets({(name, 7): LATEST})


def test_the_async_twin_and_mistakes(bootstrap: str) -> None:
    async def main() -> None:
        async with aio.Admin(bootstrap) as admin:
            assert (await admin.describe_cluster()).nodes
            with pytest.raises(ConfigError, match="one of topic, broker, broker-logger, client-metrics, group"):
                await admin.describe_configs([ConfigResource("topics", "x")])
            with pytest.raises(ConfigError, match="one of set, delete, append, subtract"):
                await admin.alter_configs({ConfigResource("topic", "x"): [ConfigChange("a", "b", "put")]})
            with pytest.raises(ConfigError, match="without partitions and replication_factor"):
                await admin.create_topics([NewTopic("x", 1, replica_assignment={0: [1]})])
            with pytest.raises(KafkaError, match="there is no broker 99; the brokers are 1, 2, 3"):
                await admin.describe_configs([ConfigResource("broker", "99")])
            number: Any = 2
            with pytest.raises(ProtocolError, match="cannot be encoded"):  # at once: another attempt does not help
                await admin.create_topics([NewTopic("x", configs={"min.insync.replicas": number})])

    asyncio.run(main())


def test_nobody_there_is_told_with_the_address() -> None:
    with (
        Admin("127.0.0.1:1", default_api_timeout_ms=400) as admin,
        pytest.raises(ClientTimeout, match=r"cannot connect to 127\.0\.0\.1:1: .*Connection refused"),
    ):
        admin.list_topics()
