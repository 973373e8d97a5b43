"""Topics and configs changed over a real socket: every version of the admin APIs."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka_case import run, versions
from kafka_node import KafkaNode
from kafka_wire import KafkaClient

from strandline.cluster.broker.each_item import ASKED_MAX
from strandline.controller.metadata.features import LEVEL_OF_MOVES, level_records
from strandline.controller.metadata.image import topic_resource
from strandline.controller.metadata.records import PartitionChangeRecord
from strandline.log.batch import Record, build_batch
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId

# Topics


@pytest.mark.parametrize("version", versions("CreateTopics"))
def test_create_topics(tmp_path: Path, version: int) -> None:
    """Each topic succeeds or fails alone; from version 5 on the answer tells what was made (rows S12, S14)."""

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
    """Row S16: a topic grows, and never shrinks."""

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
            assert retention.documentation.startswith("Age above which segments are deleted")
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


# Elections


@pytest.mark.parametrize("version", versions("ElectLeaders"))
def test_elect_leaders(tmp_path: Path, version: int) -> None:
    """One result a partition; an election type that does not exist is refused; a preview changes nothing."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t", 2)

        async def ask(kind: int, partitions: Any) -> Any:
            fields: dict[str, Any] = {"topic_partitions": partitions, "timeout": 1000}
            if version > 0:
                fields["election_type"] = kind
            return await client.ask("elect_leaders", version, **fields)

        answer = await ask(0, [{"topic": "t", "partitions": [0, 1]}, {"topic": "x", "partitions": [0]}])
        found = {
            topic.topic: [one.error_code for one in topic.partition_result] for topic in answer.replica_election_results
        }
        assert found == {
            "t": [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELECTION_NOT_NEEDED],
            "x": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        }
        assert (await ask(0, None)).replica_election_results == ()
        assert (await ask(0, [])).replica_election_results == ()
        if version > 0:
            assert (await ask(7, None)).error_code == ErrorCode.INVALID_REQUEST
            preview = await ask(-2, [{"topic": "t", "partitions": [0]}])
            assert "up, in the ISR" in preview.replica_election_results[0].partition_result[0].error_message

    run(tmp_path, main)


# Moves to other brokers


@pytest.mark.parametrize("version", versions("AlterPartitionReassignments"))
def test_moves_to_other_brokers(tmp_path: Path, version: int) -> None:
    """KIP-455 and KIP-860: begun, listed, cancelled; Kafka's errors; nothing below the level that has moves."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t", 2)
        node.create_topic("u")
        node.controller.start_broker(NodeId(2), Endpoint("127.0.0.1", 1))

        async def alter(*moves: tuple[str, int, Any], may_change: bool = True) -> Any:
            topics = [
                {"name": name, "partitions": [{"partition_index": number, "replicas": replicas}]}
                for name, number, replicas in moves
            ]
            words = {"allow_replication_factor_change": may_change} if version else {}
            return await client.ask("alter_partition_reassignments", version, topics=topics, timeout=1000, **words)

        async def moving(topics: Any = None) -> list[Any]:
            answer = await client.ask("list_partition_reassignments", 0, topics=topics, timeout=1000)
            return [
                (topic.name, one.partition_index, one.replicas, one.adding_replicas, one.removing_replicas)
                for topic in answer.topics
                for one in topic.partitions
            ]

        early = await alter(("t", 0, (2,)))
        assert early.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "strandline upgrade finalize" in early.error_message
        node.controller.commit(level_records(LEVEL_OF_MOVES, {}))
        answer = await alter(
            ("t", 0, (2,)), ("t", 1, None), ("u", 0, (1, 1)), ("u", 0, (9,)), ("x", 0, (1,)), ("t", 7, (1,))
        )
        assert [(topic.name, [one.error_code for one in topic.partitions]) for topic in answer.responses] == [
            ("t", [0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
            ("u", [ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_REQUEST]),
            ("x", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ]
        unknown = await alter(("u", 0, (9,)))
        assert unknown.responses[0].partitions[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await moving() == [("t", 0, (2, 1), (2,), (1,))]
        assert await moving([{"name": "t", "partition_indexes": (1,)}, {"name": "x", "partition_indexes": (0,)}]) == []
        assert len(await moving([{"name": "t", "partition_indexes": (0, 1)}])) == 1
        grown = await client.ask("create_partitions", 3, topics=[{"name": "t", "count": 3}], timeout=1000)
        assert grown.results[0].error_code == ErrorCode.REASSIGNMENT_IN_PROGRESS
        assert (await alter(("t", 0, None))).responses[0].partitions[0].error_code == 0
        assert await moving() == []
        if version:
            kept = await alter(("t", 0, (1, 2)), may_change=False)
            assert kept.responses[0].partitions[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
            assert not kept.allow_replication_factor_change

    run(tmp_path, main)


# What lies on the disk, and whose it is


@pytest.mark.parametrize("version", versions("DescribeLogDirs"))
def test_describe_log_dirs(tmp_path: Path, version: int) -> None:
    """This broker's directory with the size of each partition; only those asked for; its disk (KIP-827)."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t", 2)
        node.create_topic("u")
        await node.led("t")
        await node.led("u")
        size = len(await produce_one(client, "t"))
        answer = await client.ask("describe_log_dirs", version, topics=None)
        [directory] = answer.results
        assert directory.log_dir == str(tmp_path)
        found = {
            (topic.name, part.partition_index): (part.partition_size, part.offset_lag, part.is_future_key)
            for topic in directory.topics
            for part in topic.partitions
        }
        assert found == {("t", 0): (size, 0, False), ("t", 1): (0, 0, False), ("u", 0): (0, 0, False)}
        if version >= 4:
            assert 0 < directory.usable_bytes <= directory.total_bytes
        some = await client.ask("describe_log_dirs", version, topics=[{"topic": "t", "partitions": [1, 9]}])
        assert [part.partition_index for topic in some.results[0].topics for part in topic.partitions] == [1]

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("AlterReplicaLogDirs"))
def test_alter_replica_log_dirs(tmp_path: Path, version: int) -> None:
    """Each replica has its own error; asking for where it is changes nothing (KIP-113)."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t", 1)
        wanted = [
            {"path": str(tmp_path), "topics": [{"name": "t", "partitions": [0, 7]}]},
            {"path": "/nowhere", "topics": [{"name": "t", "partitions": [0]}]},
        ]
        answer = await client.ask("alter_replica_log_dirs", version, dirs=wanted)
        [topic] = answer.results
        assert [(one.partition_index, one.error_code) for one in topic.partitions] == [
            (0, ErrorCode.NONE),
            (7, ErrorCode.REPLICA_NOT_AVAILABLE),
            (0, ErrorCode.LOG_DIR_NOT_FOUND),
        ]

    run(tmp_path, main)


def test_describe_producers(tmp_path: Path) -> None:
    """Who has written, with the last sequence; errors of a partition are its own."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        await produce_one(client, "t", producer_id=7, producer_epoch=2, base_sequence=0)
        wanted = [{"name": "t", "partition_indexes": [0, 5]}, {"name": "x", "partition_indexes": [0]}]
        answer = await client.ask("describe_producers", 0, topics=wanted)
        [first, missing], [unknown] = (topic.partitions for topic in answer.topics)
        [producer] = first.active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 2, 0)
        assert producer.current_txn_start_offset == -1
        assert missing.error_code == unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(tmp_path, main)


def test_a_follower_describes_its_producers(tmp_path: Path) -> None:
    """As with Kafka: `kafka-transactions.sh find-hanging --broker-id` asks a broker for all of its replicas."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        await produce_one(client, "t", producer_id=7, producer_epoch=2, base_sequence=0)
        topic_id = node.controller.image.topics["t"].topic_id
        node.controller.start_broker(NodeId(2), Endpoint("elsewhere", 9092))
        isr = (NodeId(1), NodeId(2))
        node.controller.commit([PartitionChangeRecord(topic_id, 0, replicas=isr, isr=isr, leader=NodeId(2))])
        answer = await client.ask("describe_producers", 0, topics=[{"name": "t", "partition_indexes": [0]}])
        [[partition]] = (topic.partitions for topic in answer.topics)
        assert partition.error_code == ErrorCode.NONE
        assert [one.producer_id for one in partition.active_producers] == [7]

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("AlterConfigs"))
def test_alter_configs_sets_the_whole(tmp_path: Path, version: int) -> None:
    """What is not named goes back to its default; a wrong value changes nothing; validate_only neither."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t", retention_ms="1000")

        async def alter(configs: dict[str, str | None], validate_only: bool = False) -> ErrorCode:
            named = [{"name": name, "value": value} for name, value in configs.items()]
            resource = {"resource_type": 2, "resource_name": "t", "configs": named}
            answer = await client.ask("alter_configs", version, resources=[resource], validate_only=validate_only)
            return ErrorCode(answer.responses[0].error_code)

        def now() -> dict[str, str]:
            return dict(node.controller.image.config(topic_resource("t")))

        assert await alter({"segment.bytes": "1048576"}, validate_only=True) is ErrorCode.NONE
        assert now() == {"retention.ms": "1000"}
        assert await alter({"segment.bytes": "1048576"}) is ErrorCode.NONE
        assert now() == {"segment.bytes": "1048576"}
        assert await alter({"retention.ms": "soon"}) is ErrorCode.INVALID_CONFIG
        assert now() == {"segment.bytes": "1048576"}
        assert await alter({}) is ErrorCode.NONE
        assert now() == {}

    run(tmp_path, main)


@pytest.mark.parametrize("version", versions("DeleteRecords"))
def test_delete_records(tmp_path: Path, version: int) -> None:
    """Up to an offset, or (-1) up to the high watermark; never beyond it; compacted and unknown topics are refused."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        node.create_topic("compacted", cleanup_policy="compact")
        for _ in range(4):
            await produce_one(client, "t")

        async def delete(name: str, offset: int) -> tuple[ErrorCode, int]:
            topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": offset}]}]
            answer = await client.ask("delete_records", version, topics=topics, timeout=1000)
            [result] = answer.topics[0].partitions
            return ErrorCode(result.error_code), result.low_watermark

        async def earliest() -> int:
            wanted = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -2}]}]
            answer = await client.ask("list_offsets", 4, replica_id=-1, isolation_level=0, topics=wanted)
            return int(answer.topics[0].partitions[0].offset)

        assert await delete("t", 1) == (ErrorCode.NONE, 1)
        assert await earliest() == 1
        assert await delete("t", 0) == (ErrorCode.NONE, 1)
        assert await delete("t", 5) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await delete("t", -2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await earliest() == 1
        assert await delete("t", -1) == (ErrorCode.NONE, 4)
        assert await earliest() == 4
        assert await delete("compacted", 0) == (ErrorCode.POLICY_VIOLATION, -1)
        assert await delete("absent", 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)

    run(tmp_path, main)


async def produce_one(client: KafkaClient, topic: str, **producer: int) -> bytes:
    """Store one batch in partition 0; its bytes."""
    batch = bytes(build_batch([Record(0, 1_000, None, b"x", ())], **producer))
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    answer = await client.ask("produce", 9, acks=-1, timeout=5000, transactional_id=None, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    return batch


def test_the_controller_is_asked_for_some_after_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule A48: what one request names is no batch of the metadata log by itself. Each item has its outcome, in order;
    what keeps the controller from answering for some is the outcome of the rest."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        asked: list[int] = []
        ask = node.controller.ask

        async def counted(operation: Any, request: Any, timeout_ms: float) -> Any:
            asked.append(len(getattr(request, "topics", ()) or getattr(request, "partitions", ())))
            if len(asked) == 3:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
            return await ask(operation, request, timeout_ms)

        monkeypatch.setattr(node.controller, "ask", counted)
        names = [f"none{number}" for number in range(4 * ASKED_MAX)]
        wanted = [{"name": name, "topic_id": None} for name in names]
        deleted = (await client.ask("delete_topics", 6, topics=wanted, timeout=60_000)).responses
        assert asked == [ASKED_MAX] * 3
        assert [one.name for one in deleted] == names
        unknown, none = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REQUEST_TIMED_OUT
        assert [one.error_code for one in deleted] == [unknown] * (2 * ASKED_MAX) + [none] * (2 * ASKED_MAX)
        named = [{"topic": "t", "partitions": list(range(2 * ASKED_MAX + 1))}]
        fields = {"election_type": 0, "timeout": 60_000}
        elected = await client.ask("elect_leaders", 2, topic_partitions=named, **fields)
        assert asked[3:] == [ASKED_MAX, ASKED_MAX, 1]
        assert [one.error_code for one in elected.replica_election_results[0].partition_result] == [unknown] * (
            2 * ASKED_MAX + 1
        )
        node.create_topic("many", ASKED_MAX + 1)
        every = await client.ask("elect_leaders", 2, topic_partitions=None, **fields)
        assert asked[6:] == [ASKED_MAX, 1]
        assert every.replica_election_results == ()

    run(tmp_path, main)
