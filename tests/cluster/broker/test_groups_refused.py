"""Who may do what with a group, and input that cannot be right: Kafka's errors, and nothing else happens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka_case import run
from kafka_node import KafkaNode
from kafka_wire import KafkaClient
from test_groups_wire import PROTOCOLS, commit, found, join, stable
from test_kafka_produce import batch, produced

from strandline.cluster.broker.request import Action, AllowAll, RequestContext
from strandline.proto.acls import Operation, ResourceKind
from strandline.proto.error_codes import ErrorCode

JOIN = {
    "group_id": "g",
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "member_id": "",
    "group_instance_id": None,
    "protocol_type": "consumer",
    "protocols": PROTOCOLS,
    "reason": None,
}
MEMBER = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
TOPICS = [{"name": "t", "partitions": [{"partition_index": 0}]}]

ASKED: list[tuple[str, int, dict[str, Any], Operation]] = [
    ("join_group", 9, JOIN, Operation.READ),
    ("sync_group", 5, {**MEMBER, "protocol_type": "c", "protocol_name": "r", "assignments": []}, Operation.READ),
    ("heartbeat", 4, MEMBER, Operation.READ),
    ("leave_group", 5, {"group_id": "g", "members": []}, Operation.READ),
    ("offset_commit", 9, commit("t", (0, 5)), Operation.READ),
    ("offset_fetch", 8, {"groups": [{"group_id": "g", "topics": None}], "require_stable": True}, Operation.DESCRIBE),
    ("offset_delete", 0, {"group_id": "g", "topics": TOPICS}, Operation.DELETE),
    ("describe_groups", 6, {"groups": ("g",), "include_authorized_operations": False}, Operation.DESCRIBE),
    ("delete_groups", 2, {"groups_names": ("g",)}, Operation.DELETE),
    ("find_coordinator", 6, {"key_type": 0, "coordinator_keys": ("g",)}, Operation.DESCRIBE),
]


class NoGroups(AllowAll):
    """Groups are denied, all else is allowed."""

    def __init__(self) -> None:
        self.denied: list[Operation] = []

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        self.denied += [operation for operation, resource in actions if resource.kind is ResourceKind.GROUP]
        return [resource.kind is not ResourceKind.GROUP for _, resource in actions]


def errors_in(message: Any) -> set[int]:
    """Every error number of an answer, wherever it stands."""
    if isinstance(message, tuple):
        return set().union(*(errors_in(one) for one in message))
    if not hasattr(message, "__dataclass_fields__"):
        return set()
    own = {int(message.error_code)} if hasattr(message, "error_code") else set()
    return own.union(*(errors_in(getattr(message, name)) for name in message.__dataclass_fields__)) - {0}


@pytest.mark.parametrize(("api", "version", "values", "operation"), ASKED)
def test_the_group_is_denied(tmp_path: Path, api: str, version: int, values: Any, operation: Operation) -> None:
    """GROUP_AUTHORIZATION_FAILED, by the operation that Kafka asks for."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        await found(client)
        node.authorizer.chosen = authorizer = NoGroups()
        assert errors_in(await client.ask(api, version, **values)) == {ErrorCode.GROUP_AUTHORIZATION_FAILED}
        assert authorizer.denied == [operation]

    run(tmp_path, main)


def test_denied_topics_cost_their_own_offsets(tmp_path: Path) -> None:
    """A commit for a topic that the principal may not read; the list of groups has none that may not be seen."""

    class Nothing(NoGroups):
        def authorize(
            self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True
        ) -> Sequence[bool]:
            return [resource.name == "g" for _, resource in actions]

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        await found(client)
        for group in ("g", "hidden"):
            await client.ask("offset_commit", 9, **commit("t", (0, 5), group=group))
        node.authorizer.chosen = Nothing()
        answer = await client.ask("offset_commit", 9, **commit("t", (0, 5)))
        assert errors_in(answer) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        asked = [{"name": "t", "partition_indexes": (0,)}]
        answer = await client.ask("offset_fetch", 8, groups=[{"group_id": "g", "topics": asked}], require_stable=True)
        assert errors_in(answer) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        listed = await client.ask("list_groups", 5, states_filter=(), types_filter=())
        assert [one.group_id for one in listed.groups] == ["g"]

    run(tmp_path, main)


def test_subscriptions_that_no_record_could_hold(tmp_path: Path) -> None:
    """INVALID_REQUEST before anything of it is kept."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        await found(client)
        large = [{"name": f"p{number}", "metadata": bytes(300_000)} for number in range(4)]
        assert (await join(client, protocols=large)).error_code == ErrorCode.INVALID_REQUEST
        assert (await client.ask("list_groups", 0)).groups == ()

    run(tmp_path, main)


def test_nobody_produces_to_the_topic_of_groups(tmp_path: Path) -> None:
    """What stands there is the state of all groups."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        await found(client)
        answer = await produced(client, 9, "__consumer_offsets", {0: batch(b"x")})
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    run(tmp_path, main)


def test_nonsense_in_every_field(tmp_path: Path) -> None:
    """Seeded: any text, number and bytes in every request of groups; each is answered, and a group in use goes on."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        member = await stable(client, "honest")
        rng = random.Random(5)
        apis = [
            (api, version, values) for api, version, values, _ in ASKED if api not in ("join_group", "find_coordinator")
        ]
        for _ in range(300):
            api, version, values = rng.choice(apis)
            await client.ask(api, version, **nonsense(values, rng))
        for _ in range(60):
            values = nonsense(JOIN, rng)
            # A join that is right waits for others; one that is wrong in any way may not.
            await client.ask("join_group", 9, **{**values, "session_timeout": rng.choice((0, -1, 2**31 - 1))})
        beat = {"group_id": "honest", "generation_id": 1, "member_id": member.member_id, "group_instance_id": None}
        assert (await client.ask("heartbeat", 4, **beat)).error_code == 0

    run(tmp_path, main)


def nonsense(value: Any, rng: random.Random) -> Any:
    """The same shape with other contents."""
    if isinstance(value, dict):
        return {key: nonsense(one, rng) if rng.random() < 0.7 else one for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(nonsense(one, rng) for one in list(value) * rng.choice((0, 1, 1, 3)))
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return rng.choice((-(2**31), -1, 0, 1, 2**31 - 1))
    if isinstance(value, str):
        return rng.choice(("", "g", "t", "x" * 3000, "\u0000\ud7ff", "__consumer_offsets"))
    return rng.randbytes(rng.randrange(40)) if isinstance(value, bytes) else value
