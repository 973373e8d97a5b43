"""What exists and what is served: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka_case import run, versions
from kafka_node import CLUSTER_ID, KafkaNode
from kafka_wire import KafkaClient, connect, frame
from test_kafka_produce import lonely_topic

from strandline.cluster.broker.brokers import SETTLE_MS_MAX
from strandline.cluster.broker.config import BrokerConfig
from strandline.cluster.broker.handlers import metadata as metadata_api
from strandline.cluster.broker.table import APIS
from strandline.controller.metadata.features import OWN_LEVELS
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.steps import FEW

# ApiVersions


def test_api_versions_tells_exactly_what_is_served(tmp_path: Path) -> None:
    """All versions list the same keys; each advertised version is one that the table serves whole."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        for version in versions("ApiVersions"):
            answer = await client.ask("api_versions", version, client_software_name="a", client_software_version="1")
            assert answer.error_code == 0
            told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
            assert told == {key: (served.first, served.last) for key, served in APIS.items()}
            assert list(told) == sorted(told)
            told_of = {
                one.name: (one.min_version, one.max_version) for one in getattr(answer, "supported_features", ())
            }
            # KAFKA-17011: clients before version 4 cannot read a range that begins at 0
            known = {name: levels for name, levels in OWN_LEVELS.items() if version > 3 or levels.first > 0}
            assert told_of == (known if version >= 3 else {})
        finalized = {one.name: (one.min_version_level, one.max_version_level) for one in answer.finalized_features}
        levels = {"metadata.version": 1, "group.version": 1, "eligible.leader.replicas.version": 1}
        assert finalized == {name: (level, level) for name, level in levels.items()}
        assert answer.finalized_features_epoch == node.controller.offset
        assert node.listener.stats.software == {("a", "1"): 3}

    run(tmp_path, main)


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        ({}, ErrorCode.NONE),
        ({"cluster_id": CLUSTER_ID, "node_id": 1}, ErrorCode.NONE),
        ({"cluster_id": CLUSTER_ID, "node_id": 2}, ErrorCode.REBOOTSTRAP_REQUIRED),
        ({"cluster_id": "another", "node_id": 1}, ErrorCode.REBOOTSTRAP_REQUIRED),
        ({"cluster_id": CLUSTER_ID}, ErrorCode.INVALID_REQUEST),
        ({"node_id": 1}, ErrorCode.INVALID_REQUEST),
    ],
    ids=["nobody", "this broker", "another broker", "another cluster", "no node", "no cluster"],
)
def test_whom_a_client_wants_to_reach_is_checked(tmp_path: Path, expected: dict[str, Any], error: ErrorCode) -> None:
    """Rule B42, KIP-1242: an address led to another broker, or to another cluster. One half alone is no question."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        answer = await client.ask("api_versions", 5, client_software_name="a", client_software_version="1", **expected)
        assert answer.error_code == error

    run(tmp_path, main)


@pytest.mark.parametrize("version", [6, 99, -1])
def test_api_versions_of_another_version_is_answered_in_version_0(tmp_path: Path, version: int) -> None:
    """KIP-511: UNSUPPORTED_VERSION and the list of keys, whatever the rest of that request is."""

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
    (row S15)."""

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
        # Java asks by id with an empty name beside it, for the topics of a pattern (KIP-848).
        answer = await client.ask("metadata", 13, topics=[{"topic_id": topic_id, "name": ""}])
        assert [(one.name, int(one.error_code)) for one in answer.topics] == [("t", 0)]
        await asyncio.sleep(0.01)
        assert "absent" not in node.controller.image.topics

    run(tmp_path, main)


def test_metadata_creates_topics_where_that_is_wanted(tmp_path: Path) -> None:
    """Row S15: auto.create.topics.enable on: the topic appears with the brokers' defaults, unless the client forbids
    it."""

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


def test_metadata_of_many_partitions_is_encoded_in_steps(tmp_path: Path) -> None:
    """Rule A48: and is the same."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t", 4 * FEW)
        image = node.controller.image
        how = (image, image.topics["t"], "PLAINTEXT", metadata_api.Shape.FLEXIBLE, ())
        assert len(list(metadata_api.encode_partitions(*how))) == 4
        answer = await client.ask("metadata", 12, topics=None)
        assert [one.partition_index for one in answer.topics[0].partitions] == list(range(4 * FEW))

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


LONG_MS = 15_000.0
"""As the longest wait for an election: an answer before it did not come because of it, however busy the machine is."""


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

        monkeypatch.setattr(metadata_api, "SETTLE_MS_MAX", LONG_MS)
        took_ms, *told = await ask("lonely")
        assert told == [0, 2]
        assert took_ms < LONG_MS
        monkeypatch.setattr(node.replicas, "lost_leaders", lambda within_ms: [NodeId(2)])
        assert (await ask("mine"))[1:] == (0, 1)
        monkeypatch.setattr(metadata_api, "SETTLE_MS_MAX", SETTLE_MS_MAX)
        took_ms, *told = await ask("lonely")
        assert told == [ErrorCode.LEADER_NOT_AVAILABLE, -1]
        assert took_ms >= SETTLE_MS_MAX
        monkeypatch.setattr(metadata_api, "SETTLE_MS_MAX", LONG_MS)
        loop.call_later(0.1, node.controller.fence, NodeId(2))
        took_ms, *told = await ask("lonely")
        assert told == [0, 1]
        assert 90 <= took_ms < LONG_MS

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
        monkeypatch.setattr("strandline.cluster.broker.brokers.FORGET_FENCED_MS", -1)
        assert await named() == [1]

    run(tmp_path, main)


def test_while_all_brokers_are_fenced_the_one_that_answers_is_the_controller(tmp_path: Path) -> None:
    """A client with an admin request finds somebody for it during a start: librdkafka (2.16) that is named nobody does
    not ask again before the request has timed out."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.controller.fence(NodeId(1))
        answer = await client.ask("metadata", 9, topics=None)
        assert [one.node_id for one in answer.brokers] == [1]
        assert answer.controller_id == 1
        assert (await client.ask("describe_cluster", 0)).controller_id == 1

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
            assert "name it as --bootstrap-server" in answer.error_message

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

    run(tmp_path, main, service=BrokerConfig())
