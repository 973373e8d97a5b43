"""ConsumerGroupHeartbeat and ConsumerGroupDescribe in each version, and offsets of such members by OffsetCommit and
OffsetFetch 9 and 10 (KIP-848)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka_case import run
from kafka_node import KafkaNode
from kafka_wire import KafkaClient
from test_groups_wire import found

from strandline.cluster.broker.request import Action, AllowAll, RequestContext
from strandline.proto.acls import Operation, ResourceKind
from strandline.proto.error_codes import ErrorCode


def joining(version: int = 1, **values: Any) -> dict[str, Any]:
    """A whole first heartbeat."""
    given = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": ("t",),
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": (),
        **values,
    }
    if version == 0:
        del given["subscribed_topic_regex"]
    return given


async def beat(client: KafkaClient, version: int = 1, **values: Any) -> Any:
    return await client.ask("consumer_group_heartbeat", version, **joining(version, **values))


def assigned(answer: Any) -> list[tuple[UUID, tuple[int, ...]]]:
    return [(one.topic_id, one.partitions) for one in answer.assignment.topic_partitions]


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_and_its_description(tmp_path: Path, version: int) -> None:
    """Version 0 gives an id to who has none; from version 1 on members make their own."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        topic_id = node.create_topic("t", 2)
        await found(client)
        answer = await beat(client, version, member_id="" if version == 0 else "m", rack_id="r")
        assert (answer.error_code, answer.member_epoch) == (0, 1)
        assert assigned(answer) == [(topic_id, (0, 1))]
        member_id = answer.member_id
        assert member_id == "m" or (version == 0 and len(member_id) == 36)
        unchanged = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
        answer = await beat(client, version, member_id=member_id, member_epoch=1, **unchanged)
        assert (answer.error_code, answer.assignment) == (0, None)
        described = await client.ask(
            "consumer_group_describe", version, group_ids=("g", "none", ""), include_authorized_operations=True
        )
        group, missing, unnamed = described.groups
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 1, 1)
        assert (group.assignor_name, group.authorized_operations > 0) == ("uniform", True)
        (member,) = group.members
        assert (member.member_id, member.rack_id, member.subscribed_topic_names) == (member_id, "r", ("t",))
        for told in (member.assignment, member.target_assignment):
            assert [(one.topic_name, one.topic_id, one.partitions) for one in told.topic_partitions] == [
                ("t", topic_id, (0, 1))
            ]
        assert version == 0 or member.member_type == 1
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert unnamed.error_code == ErrorCode.INVALID_GROUP_ID
        left = await beat(client, version, member_id=member_id, member_epoch=-1, **unchanged)
        assert (left.error_code, left.member_epoch) == (0, -1)

    run(tmp_path, main)


def test_offsets_of_a_member(tmp_path: Path) -> None:
    """By name in version 9, by topic id in version 10; with the member's epoch, else STALE_MEMBER_EPOCH."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        topic_id = node.create_topic("t", 2)
        await found(client)
        await beat(client)
        for version, named in ((9, {"name": "t"}), (10, {"topic_id": topic_id})):
            partition = {"partition_index": 0, "committed_offset": version, "committed_leader_epoch": -1}
            commit = {
                "group_id": "g",
                "generation_id_or_member_epoch": 1,
                "member_id": "m",
                "group_instance_id": None,
                "topics": [{**named, "partitions": [{**partition, "committed_metadata": None}]}],
            }
            answer = await client.ask("offset_commit", version, **commit)
            assert answer.topics[0].partitions[0].error_code == 0
            answer = await client.ask("offset_commit", version, **{**commit, "generation_id_or_member_epoch": 2})
            assert answer.topics[0].partitions[0].error_code == ErrorCode.STALE_MEMBER_EPOCH
            asked = [{**named, "partition_indexes": (0,)}]
            for epoch, error in ((1, 0), (0, ErrorCode.STALE_MEMBER_EPOCH)):
                group = {"group_id": "g", "member_id": "m", "member_epoch": epoch, "topics": asked}
                answer = await client.ask("offset_fetch", version, groups=[group], require_stable=True)
                assert answer.groups[0].error_code == error
                if not error:
                    assert answer.groups[0].topics[0].partitions[0].committed_offset == version
        old = {**commit, "topics": [{"name": "t", "partitions": [{**partition, "committed_metadata": None}]}]}
        answer = await client.ask("offset_commit", 8, **old)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.UNSUPPORTED_VERSION

    run(tmp_path, main)


def test_refused(tmp_path: Path) -> None:
    """With the reason in words, and no member."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        await found(client)
        for values, error in (
            ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"group_id": " "}, ErrorCode.INVALID_REQUEST),
            ({"subscribed_topic_names": ("t" * 300_000,)}, ErrorCode.INVALID_REQUEST),
            ({"server_assignor": "none"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
            ({"subscribed_topic_regex": "(a"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
            ({"member_epoch": 3}, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            answer = await beat(client, **values)
            assert (answer.error_code, bool(answer.error_message)) == (error, True), values
        listed = await client.ask("list_groups", 5, states_filter=(), types_filter=())
        assert not listed.groups

    run(tmp_path, main)


class Denies(AllowAll):
    """Everything of one kind of resource."""

    def __init__(self, kind: ResourceKind) -> None:
        self.kind = kind
        self.denied: list[Operation] = []

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        self.denied += [operation for operation, resource in actions if resource.kind is self.kind]
        return [resource.kind is not self.kind for _, resource in actions]


@pytest.mark.parametrize(
    ("kind", "error", "operations"),
    [
        (ResourceKind.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED, [Operation.READ, Operation.DESCRIBE]),
        (ResourceKind.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED, [Operation.DESCRIBE, Operation.DESCRIBE]),
    ],
)
def test_denied(tmp_path: Path, kind: ResourceKind, error: ErrorCode, operations: list[Operation]) -> None:
    """By the operations that Kafka asks for."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        await found(client)
        await beat(client)
        node.authorizer.chosen = authorizer = Denies(kind)
        assert (await beat(client, member_id="n")).error_code == error
        asked = {"group_ids": ("g",), "include_authorized_operations": False}
        assert (await client.ask("consumer_group_describe", 1, **asked)).groups[0].error_code == error
        assert authorizer.denied == operations

    run(tmp_path, main)
