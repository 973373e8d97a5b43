"""Every other API and version over a real socket, asked and answered in kio's messages."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka_node import ME, KafkaNode, kafka_node
from kafka_wire import KafkaClient, connect, frame
from test_kafka_fetch import append, committed
from test_kafka_produce import batch, lonely_topic

from strandline.cluster.kafka.apis.metadata import SETTLE_MS_MAX
from strandline.cluster.kafka.table import APIS
from strandline.cluster.service.base import ServiceConfig
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import Endpoint, NodeId

NAMED = {api.name: api for api in APIS.values()}


def versions(name: str) -> range:
    return range(NAMED[name].first, NAMED[name].last + 1)


def run(path: Path, main: Callable[[KafkaNode, KafkaClient], Awaitable[None]], **options: Any) -> None:
    """A node, one client, the test."""

    async def body() -> None:
        async with kafka_node(path, **options) as node, connect(node.listener.endpoint) as client:
            await main(node, client)

    asyncio.run(body())


# ApiVersions


def test_api_versions_tells_exactly_what_is_served(tmp_path: Path) -> None:
    """All versions list the same keys; each advertised version is one that the table serves whole."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        for version in versions("ApiVersions"):
            answer = await client.ask("api_versions", version, client_software_name="a", client_software_version="1")
            assert answer.error_code == 0
            told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
            assert told == {api.key: (api.first, api.last) for api in APIS.values()}
            assert list(told) == sorted(told)
        assert [(one.name, one.max_version) for one in answer.supported_features] == [("metadata.version", 1)]
        assert [(one.name, one.max_version_level) for one in answer.finalized_features] == [("metadata.version", 1)]
        assert answer.finalized_features_epoch == node.controller.offset
        assert node.listener.stats.software == {("a", "1"): 2}

    run(tmp_path, main)


@pytest.mark.parametrize("version", [5, 99, -1])
def test_api_versions_of_another_version_is_answered_in_version_0(tmp_path: Path, version: int) -> None:
    """KIP-511: UNSUPPORTED_VERSION and the list of keys, whatever the rest of that request is (franz-go asks 5)."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        client.writer.write(frame(18, version, 31, b"\xff\xfe of another age", flexible=True))
        raw = await client.receive_frame()
        correlation_id, error, count = struct.unpack_from(">ihi", raw)
        assert (correlation_id, error, count) == (31, ErrorCode.UNSUPPORTED_VERSION, len(APIS))
        assert len(raw) == 10 + 6 * count
        answer = await client.ask("api_versions", 4, client_software_name="a", client_software_version="1")
        assert answer.error_code == 0

    run(tmp_path, main)


def test_api_versions_refuses_a_strange_software_name(tmp_path: Path) -> None:
    """KIP-511: the name goes into metrics, so it must be plain; the keys are told all the same."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        answer = await client.ask("api_versions", 3, client_software_name="{evil}", client_software_version="1")
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert len(answer.api_keys) == len(APIS)
        assert not node.listener.stats.software

    run(tmp_path, main)


# Metadata, DescribeCluster, DescribeTopicPartitions


@pytest.mark.parametrize("version", versions("Metadata"))
def test_metadata_of_everything(tmp_path: Path, version: int) -> None:
    """Topics, partitions, leaders, replicas, the brokers of the client's listener."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        topic_id = node.create_topic("t", 2)
        lonely_topic(node, leader_first=False)
        answer = await client.ask("metadata", version, topics=None if version else ())
        endpoint = node.listener.endpoint
        assert [(one.node_id, one.host, one.port) for one in answer.brokers] == [
            (1, endpoint.host, endpoint.port),
            (2, "elsewhere", 9092),
        ]
        topics = {one.name: one for one in answer.topics}
        assert set(topics) == {"t", "lonely"}
        assert [(one.partition_index, one.leader_id, one.replica_nodes) for one in topics["t"].partitions] == [
            (0, 1, (1,)),
            (1, 1, (1,)),
        ]
        assert topics["lonely"].partitions[0].replica_nodes == (2, 1)
        assert topics["lonely"].partitions[0].leader_id == 2
        if version >= 1:
            assert answer.controller_id == 1
            assert [one.rack for one in answer.brokers] == ["a", "b"]
        if version >= 2:
            assert answer.cluster_id == node.controller.image.cluster_id
        if version >= 5:
            assert topics["lonely"].partitions[0].offline_replicas == ()
        if version >= 7:
            assert topics["t"].partitions[0].leader_epoch == 0
        if version >= 10:
            assert topics["t"].topic_id == topic_id

    run(tmp_path, main)


def test_metadata_of_no_topics_and_of_unknown_ones(tmp_path: Path) -> None:
    """From version 1 on an empty list means none. Each unknown topic has its error; with auto-create off none appears
    (S15)."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        topic_id = node.create_topic("t")
        assert (await client.ask("metadata", 1, topics=())).topics == ()
        wanted = [{"name": "absent"}, {"name": "no/name"}, {"name": "t"}]
        answer = await client.ask("metadata", 4, topics=wanted, allow_auto_topic_creation=True)
        assert [(one.name, int(one.error_code)) for one in answer.topics] == [("absent", 3), ("no/name", 17), ("t", 0)]
        by_id = [{"topic_id": topic_id, "name": None}, {"topic_id": UUID(int=9), "name": None}]
        answer = await client.ask("metadata", 12, topics=by_id)
        assert [(one.name, one.topic_id, int(one.error_code)) for one in answer.topics] == [
            ("t", topic_id, 0),
            (None, UUID(int=9), ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        await asyncio.sleep(0.01)
        assert "absent" not in node.controller.image.topics

    run(tmp_path, main)


def test_metadata_creates_topics_where_that_is_wanted(tmp_path: Path) -> None:
    """S15: auto.create.topics.enable on: the topic appears with the brokers' defaults, unless the client forbids it."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        async def ask(name: str, allow: bool) -> int:
            answer = await client.ask("metadata", 5, topics=[{"name": name}], allow_auto_topic_creation=allow)
            return int(answer.topics[0].error_code)

        assert await ask("new", False) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await ask("new", True) == ErrorCode.LEADER_NOT_AVAILABLE
        await asyncio.sleep(0.01)
        assert await ask("new", True) == 0
        assert len(node.controller.image.topics["new"].partitions) == 3

    run(tmp_path, main, static={"auto.create.topics.enable": "true", "num.partitions": "3"})


def test_metadata_follows_every_change(tmp_path: Path) -> None:
    """The encoded chunks hold only as long as topic and brokers are the same."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")

        async def partitions() -> tuple[Any, ...]:
            answer = await client.ask("metadata", 9, topics=[{"name": "t"}])
            return answer.topics[0].partitions

        assert len(await partitions()) == 1
        assert len(await partitions()) == 1
        await client.ask("create_partitions", 2, topics=[{"name": "t", "count": 2, "assignments": None}], timeout=1000)
        assert len(await partitions()) == 2
        lonely_topic(node)
        await client.ask("delete_topics", 4, topic_names=("t",), timeout=1000)
        answer = await client.ask("metadata", 9, topics=[{"name": "t"}])
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(tmp_path, main)


def test_metadata_tells_the_allowed_operations_when_asked(tmp_path: Path) -> None:
    """KIP-430: a bit field, or the lowest number where it was not asked for."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        asked = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
        for version in (8, 9, 10):
            answer = await client.ask("metadata", version, topics=None, **asked)
            assert answer.topics[0].topic_authorized_operations == sum(1 << one for one in (3, 4, 5, 6, 7, 8, 10, 11))
            assert answer.cluster_authorized_operations == sum(1 << one for one in (5, 7, 8, 9, 10, 11, 12))
        quiet = await client.ask("metadata", 11, topics=None)
        assert quiet.topics[0].topic_authorized_operations == -(2**31)

    run(tmp_path, main)


def test_metadata_waits_while_a_leader_is_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has lost its leader is told the new one as soon as that is known, and never the dead one; when no
    election comes, LEADER_NOT_AVAILABLE. Topics that this broker leads are answered at once."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("mine")
        lonely_topic(node, leader_first=False)
        loop = asyncio.get_running_loop()

        async def ask(name: str) -> tuple[float, int, int]:
            started = loop.time()
            answer = await client.ask("metadata", 9, topics=[{"name": name}])
            partition = answer.topics[0].partitions[0]
            return (loop.time() - started) * 1000, int(partition.error_code), partition.leader_id

        took_ms, *told = await ask("lonely")
        assert told == [0, 2]
        assert took_ms < SETTLE_MS_MAX
        monkeypatch.setattr(node.replicas, "lost_leaders", lambda within_ms: [NodeId(2)])
        assert (await ask("mine"))[1:] == (0, 1)
        took_ms, *told = await ask("lonely")
        assert told == [ErrorCode.LEADER_NOT_AVAILABLE, -1]
        assert took_ms >= SETTLE_MS_MAX
        loop.call_later(0.1, node.controller.fence, NodeId(2))
        took_ms, *told = await ask("lonely")
        assert told == [0, 1]
        assert 90 <= took_ms < SETTLE_MS_MAX

    run(tmp_path, main)


def test_a_broker_is_named_for_a_while_after_its_fencing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that clients do not throw away what they hold for it before they have learned the new leaders."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        lonely_topic(node)

        async def named() -> list[int]:
            return [one.node_id for one in (await client.ask("metadata", 9, topics=None)).brokers]

        assert await named() == [1, 2]
        node.controller.fence(NodeId(2))
        assert await named() == [1, 2]
        described = await client.ask("describe_cluster", 2)
        assert [one.broker_id for one in described.brokers] == [1]
        monkeypatch.setattr("strandline.cluster.service.metadata.FORGET_FENCED_MS", -1)
        assert await named() == [1]

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("DescribeCluster"))
def test_describe_cluster(tmp_path: Path, version: int) -> None:
    """Brokers, controller and cluster id; the controllers are not reachable by this protocol."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        answer = await client.ask(
            "describe_cluster", version, include_cluster_authorized_operations=False, endpoint_type=1
        )
        assert (answer.error_code, answer.controller_id) == (0, 1)
        assert [one.broker_id for one in answer.brokers] == [1]
        if version >= 1:
            answer = await client.ask(
                "describe_cluster", version, include_cluster_authorized_operations=False, endpoint_type=2
            )
            assert answer.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE

    run(tmp_path, main)


def test_describe_topic_partitions_in_pages(tmp_path: Path) -> None:
    """KIP-966: topics by name, a limit of partitions a page, and where the next page begins."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("b", 3)
        node.create_topic("a", 2)
        node.create_topic("c", 1)
        seen: list[tuple[str, int]] = []
        cursor = None
        for _ in range(10):
            answer = await client.ask(
                "describe_topic_partitions", 0, topics=(), response_partition_limit=2, cursor=cursor
            )
            seen += [(topic.name, one.partition_index) for topic in answer.topics for one in topic.partitions]
            if answer.next_cursor is None:
                break
            cursor = {
                "topic_name": answer.next_cursor.topic_name,
                "partition_index": answer.next_cursor.partition_index,
            }
        assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
        answer = await client.ask(
            "describe_topic_partitions", 0, topics=[{"name": "absent"}], response_partition_limit=10
        )
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wrong = {"topic_name": "zzz", "partition_index": 0}
        answer = await client.ask(
            "describe_topic_partitions", 0, topics=[{"name": "a"}], response_partition_limit=10, cursor=wrong
        )
        assert answer.topics[0].error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, main)


# Topics


@pytest.mark.parametrize("version", versions("CreateTopics"))
def test_create_topics(tmp_path: Path, version: int) -> None:
    """Each topic succeeds or fails alone; from version 5 on the answer tells what was made (S12, S14)."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        def topic(name: str, partitions: int = 2, factor: int = 1, **fields: Any) -> dict[str, Any]:
            return {"name": name, "num_partitions": partitions, "replication_factor": factor, **fields}

        answer = await client.ask(
            "create_topics",
            version,
            topics=[
                topic("new", configs=[{"name": "retention.ms", "value": "5000"}]),
                topic("new2", factor=4),
                topic("no/name"),
                topic("twice"),
                topic("twice"),
                topic("odd", configs=[{"name": "no.such.config", "value": "1"}]),
                topic("placed", -1, -1, assignments=[{"partition_index": 0, "broker_ids": (1,)}]),
            ],
            timeout=1000,
        )
        assert [(one.name, int(one.error_code)) for one in answer.topics] == [
            ("new", 0),
            ("new2", ErrorCode.INVALID_REPLICATION_FACTOR),
            ("no/name", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("twice", ErrorCode.INVALID_REQUEST),
            ("twice", ErrorCode.INVALID_REQUEST),
            ("odd", ErrorCode.INVALID_CONFIG),
            ("placed", 0),
        ]
        assert all(one.error_message for one in answer.topics if one.error_code)
        assert set(node.controller.image.topics) == {"new", "placed"}
        if version >= 5:
            made = answer.topics[0]
            assert (made.num_partitions, made.replication_factor) == (2, 1)
            assert {one.name: one.value for one in made.configs}["retention.ms"] == "5000"
        if version >= 7:
            assert answer.topics[0].topic_id == node.controller.image.topics["new"].topic_id
        dry = await client.ask("create_topics", version, topics=[topic("dry")], timeout=1000, validate_only=True)
        assert dry.topics[0].error_code == 0
        again = await client.ask("create_topics", version, topics=[topic("new")], timeout=1000)
        assert again.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert set(node.controller.image.topics) == {"new", "placed"}

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("DeleteTopics"))
def test_delete_topics(tmp_path: Path, version: int) -> None:
    """By name, from version 6 on by id as well."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        first, second = node.create_topic("a"), node.create_topic("b")
        if version < 6:
            answer = await client.ask("delete_topics", version, topic_names=("a", "absent"), timeout=1000)
            assert [(one.name, int(one.error_code)) for one in answer.responses] == [("a", 0), ("absent", 3)]
            assert set(node.controller.image.topics) == {"b"}
            return
        wanted = [
            {"name": "a", "topic_id": None},
            {"name": None, "topic_id": second},
            {"name": None, "topic_id": UUID(int=5)},
            {"name": "a", "topic_id": first},
        ]
        answer = await client.ask("delete_topics", version, topics=wanted, timeout=1000)
        assert [int(one.error_code) for one in answer.responses] == [42, 0, 100, 42]
        assert (answer.responses[1].name, answer.responses[1].topic_id) == ("b", second)
        answer = await client.ask("delete_topics", version, topics=wanted[:1], timeout=1000)
        assert (answer.responses[0].error_code, answer.responses[0].topic_id) == (0, first)
        assert not node.controller.image.topics

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("CreatePartitions"))
def test_create_partitions(tmp_path: Path, version: int) -> None:
    """S16: a topic grows, and never shrinks."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t", 2)
        node.create_topic("u", 2)

        async def ask(*topics: dict[str, Any], dry_run: bool = False) -> list[int]:
            answer = await client.ask("create_partitions", version, topics=topics, timeout=1000, validate_only=dry_run)
            return [int(one.error_code) for one in answer.results]

        grow = {"name": "t", "count": 4, "assignments": None}
        assert await ask(grow, dry_run=True) == [0]
        assert len(node.controller.image.topics["t"].partitions) == 2
        placed = {"name": "u", "count": 3, "assignments": [{"broker_ids": (1,)}]}
        assert await ask(grow, placed, {"name": "absent", "count": 4, "assignments": None}) == [0, 0, 3]
        assert len(node.controller.image.topics["t"].partitions) == 4
        assert len(node.controller.image.topics["u"].partitions) == 3
        assert await ask({"name": "t", "count": 1, "assignments": None}) == [ErrorCode.INVALID_PARTITIONS]

    run(tmp_path, main)


# Configs


@pytest.mark.parametrize("version", versions("DescribeConfigs"))
def test_describe_configs(tmp_path: Path, version: int) -> None:
    """Value, source, synonyms, and from version 3 on type and sentence; topic, this broker, the cluster's defaults."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t", retention_ms="7000")

        def resource(kind: int, name: str, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
            return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}

        answer = await client.ask(
            "describe_configs",
            version,
            resources=[
                resource(2, "t", ("retention.ms", "max.message.bytes")),
                resource(2, "absent"),
                resource(4, "1"),
                resource(4, "2"),
                resource(4, ""),
                resource(8, "x"),
            ],
            include_synonyms=True,
            include_documentation=True,
        )
        assert [int(one.error_code) for one in answer.results] == [0, 3, 0, 42, 0, 42]
        configs = {one.name: one for one in answer.results[0].configs}
        assert set(configs) == {"retention.ms", "max.message.bytes"}
        retention = configs["retention.ms"]
        assert (retention.value, retention.config_source, retention.read_only) == ("7000", 1, False)
        assert [(one.name, one.source) for one in retention.synonyms] == [
            ("retention.ms", 1),
            ("log.retention.ms", 5),
        ]
        if version >= 3:
            assert retention.config_type == 5
            assert "milliseconds" in retention.documentation
        broker = {one.name: one for one in answer.results[2].configs}
        assert (broker["min.insync.replicas"].value, broker["num.partitions"].value) == ("2", "1")
        assert answer.results[4].configs == ()

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("IncrementalAlterConfigs"))
def test_incremental_alter_configs(tmp_path: Path, version: int) -> None:
    """All changes of a resource or none of them; a dry run changes nothing."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")

        async def alter(kind: int, name: str, *changes: tuple[str, int, str | None], dry_run: bool = False) -> int:
            configs = [{"name": key, "config_operation": how, "value": value} for key, how, value in changes]
            answer = await client.ask(
                "incremental_alter_configs",
                version,
                resources=[{"resource_type": kind, "resource_name": name, "configs": configs}],
                validate_only=dry_run,
            )
            (one,) = answer.responses
            assert (one.resource_type, one.resource_name) == (kind, name)
            assert bool(one.error_message) == bool(one.error_code)
            return int(one.error_code)

        def configs() -> dict[str, str]:
            return dict(node.controller.image.config((2, "t")))

        assert await alter(2, "t", ("retention.ms", 0, "1000"), dry_run=True) == 0
        assert configs() == {}
        assert await alter(2, "t", ("retention.ms", 0, "1000"), ("segment.ms", 0, "2000")) == 0
        assert configs() == {"retention.ms": "1000", "segment.ms": "2000"}
        assert await alter(2, "t", ("retention.ms", 1, None), ("segment.ms", 0, "soon")) == ErrorCode.INVALID_CONFIG
        assert configs() == {"retention.ms": "1000", "segment.ms": "2000"}
        assert await alter(2, "t", ("retention.ms", 1, None)) == 0
        assert configs() == {"segment.ms": "2000"}
        assert await alter(2, "t", ("retention.ms", 9, "1")) == ErrorCode.INVALID_REQUEST
        assert await alter(32, "group", ("x", 0, "1")) == ErrorCode.INVALID_REQUEST
        assert await alter(2, "absent", ("retention.ms", 0, "1")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(tmp_path, main)


# Offsets


@pytest.mark.parametrize("version", versions("ListOffsets"))
def test_list_offsets(tmp_path: Path, version: int) -> None:
    """Earliest, latest, by time, of the largest time; special timestamps that the version does not know are refused."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t", 2)
        append(node, "t", 0, batch(b"a", b"b", b"c"))  # timestamps 1_000_000 and on
        await committed(node, "t", 0, 3)

        async def ask(timestamp: int, partition: int = 0, topic: str = "t", epoch: int = -1) -> tuple[int, ...]:
            asked = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": epoch}
            answer = await client.ask(
                "list_offsets", version, replica_id=-1, topics=[{"name": topic, "partitions": [asked]}]
            )
            one = answer.topics[0].partitions[0]
            return int(one.error_code), one.timestamp, one.offset

        assert await ask(-1) == (0, -1, 3)
        assert await ask(-2) == (0, -1, 0)
        assert await ask(1_000_001) == (0, 1_000_001, 1)
        assert await ask(5_000_000) == (0, -1, -1)
        assert await ask(-1, partition=1) == (0, -1, 0)
        unsupported = (int(ErrorCode.UNSUPPORTED_VERSION), -1, -1)
        assert await ask(-3) == ((0, 1_000_002, 2) if version >= 7 else unsupported)
        assert await ask(-4) == ((0, -1, 0) if version >= 8 else unsupported)
        assert await ask(-5) == ((0, -1, -1) if version >= 9 else unsupported)
        assert await ask(-6) == ((0, -1, -1) if version >= 11 else unsupported)
        assert await ask(-77) == unsupported
        assert (await ask(-1, topic="absent"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await ask(-1, partition=9))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if version >= 4:
            assert (await ask(-1, epoch=0))[0] == 0
            assert (await ask(-1, epoch=9))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        twice = [{"partition_index": 0, "timestamp": -1}, {"partition_index": 0, "timestamp": -2}]
        answer = await client.ask("list_offsets", version, replica_id=-1, topics=[{"name": "t", "partitions": twice}])
        assert [int(one.error_code) for one in answer.topics[0].partitions] == [42, 42]

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("OffsetForLeaderEpoch"))
def test_offset_for_leader_epoch(tmp_path: Path, version: int) -> None:
    """KIP-320: where an epoch ended, and the errors of leadership."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        append(node, "t", 0, batch(b"a", b"b"))

        async def ask(epoch: int, current: int = -1, topic: str = "t") -> tuple[int, int, int]:
            asked = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
            answer = await client.ask(
                "offset_for_leader_epoch", version, replica_id=-1, topics=[{"topic": topic, "partitions": [asked]}]
            )
            one = answer.topics[0].partitions[0]
            return int(one.error_code), one.leader_epoch, one.end_offset

        assert await ask(0) == (0, 0, 2)
        assert await ask(0, current=5) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
        assert await ask(0, topic="absent") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)

    run(tmp_path, main)


# Producer ids, coordinators, quorum


@pytest.mark.parametrize("version", versions("InitProducerId"))
def test_init_producer_id(tmp_path: Path, version: int) -> None:
    """Ids are never given twice; a transactional id gets the error on which every client gives up."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        sent = [
            client.send("init_producer_id", version, transactional_id=None, transaction_timeout=0) for _ in range(20)
        ]
        ids = []
        for one in sent:
            answer = await client.receive(one)
            assert (answer.error_code, answer.producer_epoch) == (0, 0)
            ids.append(answer.producer_id)
        assert len(set(ids)) == 20
        assert node.controller.blocks == 1
        answer = await client.ask("init_producer_id", version, transactional_id="tx", transaction_timeout=1000)
        assert (answer.error_code, answer.producer_id) == (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)

    run(tmp_path, main)


def test_a_version_that_is_not_served_is_refused_in_its_own_format(tmp_path: Path) -> None:
    """InitProducerId 6 exists, and is not advertised: UNSUPPORTED_VERSION."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        answer = await client.ask("init_producer_id", 6, transactional_id=None, transaction_timeout=0)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (await client.ask("init_producer_id", 5, transactional_id=None)).error_code == 0

    run(tmp_path, main)


def test_producer_ids_wait_for_the_controller_together(tmp_path: Path) -> None:
    """One request for a block, however many producers wait; other requests of the connection wait behind them."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        gate = asyncio.Event()

        async def wait() -> None:
            await gate.wait()

        node.controller.gate = wait
        sent = [client.send("init_producer_id", 4, transactional_id=None) for _ in range(5)]
        after = client.send("metadata", 9, topics=None)
        async with connect(node.listener.endpoint) as other:
            assert (await other.ask("metadata", 9, topics=None)).controller_id == ME
            gate.set()
            assert len({(await client.receive(one)).producer_id for one in sent}) == 5
            assert (await client.receive(after)).controller_id == ME
        assert node.controller.blocks == 1

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("FindCoordinator"))
def test_find_coordinator_says_that_there_is_none(tmp_path: Path, version: int) -> None:
    """Groups and transactions are not served yet; from version 1 on the answer says so in words."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        async def ask(kind: int) -> Any:
            answer = await client.ask("find_coordinator", version, key="g", key_type=kind, coordinator_keys=("g", "h"))
            if version < 4:
                return answer
            assert [one.key for one in answer.coordinators] == ["g", "h"]
            return answer.coordinators[0]

        group = await ask(0)
        assert (group.error_code, group.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        if version >= 1:
            assert "groups are not served" in group.error_message
            transaction = await ask(1)
            assert transaction.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert "not served" in transaction.error_message
            assert (await ask(9)).error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("DescribeQuorum"))
def test_describe_quorum(tmp_path: Path, version: int) -> None:
    """Leader, voters, and from version 2 on their directories and endpoints; other topics have no quorum."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        asked = [
            {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]},
            {"topic_name": "t", "partitions": [{"partition_index": 0}]},
        ]
        answer = await client.ask("describe_quorum", version, topics=asked)
        metadata, other = (topic.partitions[0] for topic in answer.topics)
        assert (answer.error_code, metadata.error_code) == (0, 0)
        assert (metadata.leader_id, metadata.leader_epoch, metadata.high_watermark) == (1, 1, 7)
        assert [(one.replica_id, one.log_end_offset) for one in metadata.current_voters] == [(1, 8)]
        assert metadata.observers == ()
        assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if version >= 2:
            assert metadata.current_voters[0].replica_directory_id == UUID(int=5)
            assert [(one.node_id, one.listeners[0].port) for one in answer.nodes] == [(1, 19091)]

    run(tmp_path, main)


def test_brokers_without_the_listener_are_not_shown(tmp_path: Path) -> None:
    """A client is told endpoints that it can reach, those of the listener it came by."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.controller.start_broker(NodeId(2), Endpoint("elsewhere", 1))
        broker = node.controller.image.brokers[NodeId(2)]
        assert "PLAINTEXT" in broker.listeners
        node.listener.name = "ANOTHER"
        async with connect(node.listener.endpoint) as other:
            assert (await other.ask("metadata", 9, topics=None)).brokers == ()
            assert (await other.ask("metadata", 9, topics=None)).controller_id == -1

    run(tmp_path, main, service=ServiceConfig())
