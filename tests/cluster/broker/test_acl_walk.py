"""The walk of all APIs: what a principal with nothing can learn and change (nothing), and what each API asks (rule
A20)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from acl_requests import REQUESTS, Things, Values
from kafka_node import KafkaNode, kafka_node
from kafka_wire import KafkaClient, connect
from test_groups_wire import commit, found
from test_kafka_produce import batch, produced
from test_transactions_wire import add, begun

from strandline.cluster.broker.request import Action, RequestContext
from strandline.cluster.broker.standard_authorizer import StandardAuthorizer
from strandline.cluster.broker.table import APIS
from strandline.controller.metadata.records import AccessControlEntryRecord
from strandline.proto.acls import AclBinding, Operation, PatternType, Permission, ResourceKind
from strandline.proto.kafka.access import ACCESS, OPEN
from strandline.proto.kafka.apis import Api
from strandline.proto.system import SystemClock

ABSENT = Things("absent-topic", UUID(int=0xAB5E47, version=4), "absent-group")
BY_ID_TELLS = {(Api.PRODUCE, 13), *((Api.FETCH, version) for version in range(13, 19))}
"""Kafka answers TOPIC_AUTHORIZATION_FAILED to a known id here, so that a client whose right was taken hears of it at
once. Whoever asks has the id already, and nobody can guess one."""

Question = tuple[Api, Operation, ResourceKind]
BY_TITLE = {api.title: api for api in Api}


class Recording(StandardAuthorizer):
    """Remembers what it was asked."""

    def __init__(self, node: KafkaNode) -> None:
        super().__init__(lambda: node.controller.image.acls, SystemClock())
        self.asked: set[Question] = set()

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        self.asked |= {(BY_TITLE[context.api], operation, resource.kind) for operation, resource in actions}
        return super().authorize(context, actions, noted=noted)

    def authorize_any(self, context: RequestContext, operation: Operation, kind: ResourceKind) -> bool:
        self.asked.add((BY_TITLE[context.api], operation, kind))
        return super().authorize_any(context, operation, kind)


async def a_node_with_things(node: KafkaNode, client: KafkaClient) -> Things:
    """A topic with a record, and a group with an offset."""
    topic_id = node.create_topic("hidden-topic")
    assert (await produced(client, 9, "hidden-topic", {0: batch(b"hidden-value")})).error_code == 0
    await found(client, "hidden-group")
    await client.ask("offset_commit", 9, **commit("hidden-topic", (0, 4711), group="hidden-group"))
    member = {"member_id": "m", "member_epoch": 0, "rebalance_timeout": 60_000, "topic_partitions": ()}
    joined = {**member, "group_id": "hidden-members", "subscribed_topic_names": ("hidden-topic",)}
    assert (await client.ask("consumer_group_heartbeat", 1, **joined)).assignment.topic_partitions
    assert await add(client, await begun(client, "hidden-tx"), ("hidden-topic", 0), name="hidden-tx") == [0]
    node.authorizer.chosen = Recording(node)
    return Things("hidden-topic", topic_id, "hidden-group", "hidden-tx")


async def answers(node: KafkaNode, api: Api, version: int, values: Values, about: Things) -> str:
    """Each on a connection of its own: an API may refuse by closing it."""
    async with connect(node.listener.endpoint) as client:
        try:
            return repr(await client.ask(api.name.lower(), version, **values(about)))
        except asyncio.IncompleteReadError:
            return "closed"


def without_names(answer: str, things: Things) -> str:
    for number, name in enumerate((things.topic, str(things.topic_id), things.group, things.transactional_id)):
        answer = answer.replace(name, f"<{number}>")
    return answer


def each_version() -> list[tuple[Api, int, Values]]:
    """Of each request."""
    return [
        (ask.api, version, ask.values)
        for ask in REQUESTS
        for version in range(max(ask.since, APIS[ask.api].first), APIS[ask.api].last + 1)
    ]


def test_a_principal_with_nothing_learns_and_changes_nothing(tmp_path: Path) -> None:
    """In every version of every API: what exists is answered as what does not, no answer names what it was not asked
    about, nothing is written, and each answer that has a place for it says that something is denied."""

    async def main() -> None:
        options: dict[str, Any] = {"static": {"auto.create.topics.enable": "true"}, "transactions": 2}
        async with kafka_node(tmp_path, **options) as node, connect(node.listener.endpoint) as client:
            things = await a_node_with_things(node, client)
            before = (node.controller.offset, log_ends(node))
            for api, version, values in each_version():
                seen = without_names(await answers(node, api, version, values, things), things)
                where = f"{api.title} v{version}: {seen}"
                assert seen != "closed", where
                if (api, version) not in BY_ID_TELLS:
                    assert seen == without_names(await answers(node, api, version, values, ABSENT), ABSENT), where
                assert not any(secret in seen for secret in ("hidden", "4711", str(things.topic_id))), where
                assert (node.controller.offset, log_ends(node)) == before, where
            assert set(node.controller.image.topics) == {"hidden-topic", "__consumer_offsets", "__transaction_state"}

    asyncio.run(main())


def log_ends(node: KafkaNode) -> dict[tuple[str, int], tuple[int, int]]:
    """By partition: where its log begins and ends."""
    return {(one.topic, one.partition): (one.log_start_offset, one.log_end_offset) for one in node.replicas.hosted()}


def test_the_table_says_what_every_api_asks(tmp_path: Path) -> None:
    """No question that does not stand there, and none there that no handler asks: as a principal with nothing, and as
    one that may describe and do enough to be asked the rest."""

    async def main() -> None:
        options: dict[str, Any] = {"static": {"auto.create.topics.enable": "true"}, "transactions": 2}
        async with kafka_node(tmp_path, **options) as node, connect(node.listener.endpoint) as client:
            things = await a_node_with_things(node, client)
            authorizer = node.authorizer.chosen
            assert isinstance(authorizer, Recording)
            await ask_all(node, things)
            node.controller.commit([AccessControlEntryRecord(one) for one in ENOUGH])
            await ask_all(node, things)
            rows = {(api, asks.operation, asks.kind) for api, questions in ACCESS.items() for asks in questions}
            assert authorizer.asked - rows == set(), "asked, and not in the table"
            assert rows - authorizer.asked == set(), "in the table, and never asked"

    asyncio.run(main())


async def ask_all(node: KafkaNode, things: Things) -> None:
    """The newest version of each request, about what exists and what does not; of Metadata the last that tells of the
    cluster's operations too, and of AddPartitionsToTxn the last that is of clients."""
    older = {Api.METADATA: 10, Api.ADD_PARTITIONS_TO_TXN: 3}
    for api, values, _ in REQUESTS:
        for version in {APIS[api].last, older.get(api, APIS[api].last)}:
            for about in (things, things._replace(group="hidden-members"), ABSENT):
                await answers(node, api, version, values, about)


def may(kind: ResourceKind, *operations: Operation, name: str = "*") -> list[AclBinding]:
    """Entries that allow everybody this."""
    return [
        AclBinding(kind, name, PatternType.LITERAL, "User:*", "*", operation, Permission.ALLOW)
        for operation in operations
    ]


ENOUGH = [
    *may(ResourceKind.TOPIC, Operation.DESCRIBE, name="hidden-topic"),
    *may(ResourceKind.TOPIC, Operation.DESCRIBE, name="absent-topic"),
    *may(ResourceKind.TOPIC, Operation.CREATE, name="made"),
    *may(ResourceKind.GROUP, Operation.DESCRIBE, Operation.READ, Operation.DELETE),
    *may(ResourceKind.TRANSACTIONAL_ID, Operation.DESCRIBE, Operation.WRITE),
    *may(ResourceKind.CLUSTER, Operation.DESCRIBE, name="kafka-cluster"),
]


def test_an_api_that_stands_in_no_table_is_not_served() -> None:
    """A new one must say what it asks, or that it asks nothing and why."""
    assert {int(api) for api in (*ACCESS, *OPEN)} == set(APIS)
    assert not set(ACCESS) & set(OPEN)
    assert {ask.api for ask in REQUESTS} == {*ACCESS, *OPEN}
