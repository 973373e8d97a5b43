"""Every operation asks the authorizer first, for each resource it touches, and does nothing where it says no."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka_node import KafkaNode, kafka_node
from kafka_wire import KafkaClient, connect
from test_kafka_fetch import fetched
from test_kafka_produce import batch, produced

from strandline.cluster.broker.request import Action, AllowAll, RequestContext
from strandline.proto.acls import Operation, ResourceKind
from strandline.proto.error_codes import ErrorCode

TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class AllowNothing(AllowAll):
    """Denies, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Operation, ResourceKind, str]] = []

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        self.asked += [(context.client_id, operation, *resource) for operation, resource in actions]
        return [False] * len(actions)

    def authorize_any(self, context: RequestContext, operation: Operation, kind: ResourceKind) -> bool:
        return False


async def one_produce(client: KafkaClient) -> int:
    return (await produced(client, 9, "t", {0: batch(b"x")})).error_code


async def one_fetch(client: KafkaClient) -> int:
    return (await fetched(client, 11, "t", {0: 0}, max_wait_ms=5000))[0].error_code


async def metadata_by_name(client: KafkaClient) -> int:
    return (await client.ask("metadata", 9, topics=[{"name": "t"}])).topics[0].error_code


async def list_offsets(client: KafkaClient) -> int:
    asked = {"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}
    return (await client.ask("list_offsets", 5, topics=[asked])).topics[0].partitions[0].error_code


async def leader_epoch(client: KafkaClient) -> int:
    asked = {"topic": "t", "partitions": [{"partition": 0, "leader_epoch": 0}]}
    return (await client.ask("offset_for_leader_epoch", 3, topics=[asked])).topics[0].partitions[0].error_code


async def create_topics(client: KafkaClient) -> int:
    asked = {"name": "new", "num_partitions": 1, "replication_factor": 1}
    return (await client.ask("create_topics", 5, topics=[asked])).topics[0].error_code


async def delete_topics(client: KafkaClient) -> int:
    return (await client.ask("delete_topics", 4, topic_names=("t",))).responses[0].error_code


async def create_partitions(client: KafkaClient) -> int:
    asked = {"name": "t", "count": 9, "assignments": None}
    return (await client.ask("create_partitions", 1, topics=[asked])).results[0].error_code


async def describe_configs(client: KafkaClient) -> int:
    asked = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
    return (await client.ask("describe_configs", 1, resources=[asked])).results[0].error_code


async def describe_broker(client: KafkaClient) -> int:
    asked = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
    return (await client.ask("describe_configs", 1, resources=[asked])).results[0].error_code


async def alter_topic(client: KafkaClient) -> int:
    asked = {"resource_type": 2, "resource_name": "t", "configs": ()}
    return (await client.ask("incremental_alter_configs", 0, resources=[asked])).responses[0].error_code


async def alter_broker(client: KafkaClient) -> int:
    asked = {"resource_type": 4, "resource_name": "", "configs": ()}
    return (await client.ask("incremental_alter_configs", 0, resources=[asked])).responses[0].error_code


async def producer_id(client: KafkaClient) -> int:
    return (await client.ask("init_producer_id", 1, transactional_id=None)).error_code


async def describe_quorum(client: KafkaClient) -> int:
    return (await client.ask("describe_quorum", 0, topics=())).error_code


async def topic_partitions(client: KafkaClient) -> int:
    answer = await client.ask("describe_topic_partitions", 0, topics=[{"name": "t"}], response_partition_limit=5)
    return answer.topics[0].error_code


async def describe_users(client: KafkaClient) -> int:
    answer = await client.ask("describe_user_scram_credentials", 0, users=None)
    assert not answer.results
    return answer.error_code


async def alter_users(client: KafkaClient) -> int:
    asked = {"name": "eve", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": bytes(32)}
    answer = await client.ask("alter_user_scram_credentials", 0, deletions=(), upsertions=[asked])
    return answer.results[0].error_code


CASES: list[tuple[Callable[[KafkaClient], Awaitable[int]], Operation, ErrorCode]] = [
    (one_produce, Operation.WRITE, TOPIC),
    (one_fetch, Operation.READ, TOPIC),
    (metadata_by_name, Operation.DESCRIBE, TOPIC),
    (list_offsets, Operation.DESCRIBE, TOPIC),
    (leader_epoch, Operation.DESCRIBE, TOPIC),
    (create_topics, Operation.CREATE, TOPIC),
    (delete_topics, Operation.DELETE, TOPIC),
    (create_partitions, Operation.ALTER, TOPIC),
    (describe_configs, Operation.DESCRIBE_CONFIGS, TOPIC),
    (describe_broker, Operation.DESCRIBE_CONFIGS, CLUSTER),
    (alter_topic, Operation.ALTER_CONFIGS, TOPIC),
    (alter_broker, Operation.ALTER_CONFIGS, CLUSTER),
    (producer_id, Operation.IDEMPOTENT_WRITE, CLUSTER),
    (describe_quorum, Operation.DESCRIBE, CLUSTER),
    (topic_partitions, Operation.DESCRIBE, TOPIC),
    (describe_users, Operation.DESCRIBE, CLUSTER),
    (alter_users, Operation.ALTER, CLUSTER),
]


def run(path: Path, main: Callable[[KafkaNode, KafkaClient, AllowNothing], Awaitable[Any]]) -> None:
    async def body() -> None:
        async with kafka_node(path) as node, connect(node.listener.endpoint) as client:
            node.create_topic("t")
            denier = AllowNothing()
            node.authorizer.chosen = denier
            await main(node, client, denier)

    asyncio.run(body())


@pytest.mark.parametrize(("ask", "operation", "error"), CASES, ids=[ask.__name__ for ask, _, _ in CASES])
def test_what_is_not_allowed_is_refused_and_not_done(
    tmp_path: Path, ask: Callable[[KafkaClient], Awaitable[int]], operation: Operation, error: ErrorCode
) -> None:
    """The error names the kind of resource, the authorizer was asked for the right operation, and nothing changed."""

    async def main(node: KafkaNode, client: KafkaClient, denier: AllowNothing) -> None:
        before = node.controller.offset
        assert await ask(client) == error
        assert ("test", operation) in [(who, what) for who, what, _, _ in denier.asked]
        assert node.controller.offset == before

    run(tmp_path, main)


def test_what_may_not_be_seen_is_not_listed(tmp_path: Path) -> None:
    """A list of everything leaves it out, and by id it does not exist."""

    async def main(node: KafkaNode, client: KafkaClient, denier: AllowNothing) -> None:
        topic_id = node.controller.image.topics["t"].topic_id
        assert (await client.ask("metadata", 9, topics=None)).topics == ()
        answer = await client.ask("metadata", 12, topics=[{"name": None, "topic_id": topic_id}])
        assert (answer.topics[0].name, answer.topics[0].error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)

    run(tmp_path, main)
