"""The APIs of ACLs on the wire, and what an authorizer does to clients that are connected already (rule A20)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kafka_case import run, versions
from kafka_node import KafkaNode
from kafka_wire import KafkaClient, connect
from structlog.testing import capture_logs
from test_groups_wire import found
from test_kafka_fetch import append, fetch
from test_kafka_produce import batch, produced

from strandline.cluster.broker import standard_authorizer
from strandline.cluster.broker.standard_authorizer import StandardAuthorizer
from strandline.controller.metadata.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from strandline.proto.acls import AclBinding, Operation, PatternType, Permission, ResourceKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.system import SystemClock

ME = "User:ANONYMOUS"
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def authorize(node: KafkaNode, **options: Any) -> StandardAuthorizer:
    """Turn the authorizer on."""
    chosen = StandardAuthorizer(lambda: node.controller.image.acls, SystemClock(), **options)
    node.authorizer.chosen = chosen
    return chosen


def acl(operation: Operation, name: str = "t", kind: ResourceKind = ResourceKind.TOPIC) -> AclBinding:
    return AclBinding(kind, name, PatternType.LITERAL, ME, "*", operation, Permission.ALLOW)


def grant(node: KafkaNode, *bindings: AclBinding) -> None:
    node.controller.commit([AccessControlEntryRecord(one) for one in bindings])


def revoke(node: KafkaNode, *bindings: AclBinding) -> None:
    node.controller.commit([RemoveAccessControlEntryRecord(one) for one in bindings])


def creation(name: str, operation: int, **more: Any) -> dict[str, Any]:
    entry = {"resource_type": 2, "resource_name": name, "resource_pattern_type": 3, "principal": "User:a", "host": "*"}
    return {**entry, "operation": operation, "permission_type": 3, **more}


def wanted(**more: Any) -> dict[str, Any]:
    """A filter of everything, but for these fields."""
    return {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1, **more}


def test_create_describe_delete_in_every_version(tmp_path: Path) -> None:
    """One outcome each; what cannot be is refused with Kafka's error and a sentence, and does not reach the log."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        authorize(node, super_users=[ME])
        for version in versions("CreateAcls"):
            asked = [creation("t", 3), creation("", 3), creation("t", 1), creation("p-", 4, resource_pattern_type=4)]
            results = (await client.ask("create_acls", version, creations=asked)).results
            assert [one.error_code for one in results] == [0, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, 0]
            assert results[1].error_message == "Resource name should not be empty"
            answer = await client.ask("describe_acls", version, **wanted(resource_type_filter=2))
            seen = {
                (one.resource_name, one.pattern_type): [
                    (entry.principal, entry.host, entry.operation, entry.permission_type) for entry in one.acls
                ]
                for one in answer.resources
            }
            assert seen == {("t", 3): [("User:a", "*", 3, 3)], ("p-", 4): [("User:a", "*", 4, 3)]}
            match = await client.ask(
                "describe_acls", version, **wanted(resource_name_filter="p-1", pattern_type_filter=2)
            )
            assert [one.resource_name for one in match.resources] == ["p-"]
            filters = [wanted(resource_name_filter="t"), wanted(resource_type_filter=0), wanted()]
            removed = (await client.ask("delete_acls", version, filters=filters)).filter_results
            assert [one.error_code for one in removed] == [0, ErrorCode.INVALID_REQUEST, 0]
            assert [[found.resource_name for found in one.matching_acls] for one in removed] == [["t"], [], ["t", "p-"]]
            assert not node.controller.image.acls

    run(tmp_path, main)


def test_without_an_authorizer_there_are_no_acls(tmp_path: Path) -> None:
    """SECURITY_DISABLED: an entry that nobody asks for would only look like protection."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        assert (await client.ask("describe_acls", 3, **wanted())).error_code == ErrorCode.SECURITY_DISABLED
        created = await client.ask("create_acls", 3, creations=[creation("t", 3)])
        assert created.results[0].error_code == ErrorCode.SECURITY_DISABLED
        assert "authorizer.class.name" in created.results[0].error_message
        deleted = await client.ask("delete_acls", 3, filters=[wanted()])
        assert deleted.filter_results[0].error_code == ErrorCode.SECURITY_DISABLED
        assert not node.controller.image.acls

    run(tmp_path, main)


def test_rights_given_and_taken_count_at_once(tmp_path: Path) -> None:
    """On connections that are open, and though an answer was remembered."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        authorize(node)
        write = acl(Operation.WRITE)
        for _ in range(2):
            assert (await produced(client, 9, "t", {0: batch(b"no")})).error_code == DENIED
            grant(node, write)
            assert (await produced(client, 9, "t", {0: batch(b"yes")})).error_code == 0
            revoke(node, write)
        assert (await produced(client, 9, "t", {0: batch(b"no")})).error_code == DENIED

    run(tmp_path, main)


@pytest.mark.parametrize("version", [11, 16])
def test_a_fetch_that_waits_gets_nothing_once_the_right_is_taken(tmp_path: Path, version: int) -> None:
    """Parked for a minute; the right goes, a record comes: the answer is the error, without a byte of the record. A
    session's next fetch is asked about anew."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        topic_id = node.create_topic("t")
        authorize(node)
        grant(node, acl(Operation.READ))
        topic = topic_id if version >= 13 else "t"
        waiting = fetch(client, version, topic, {0: 0}, max_wait_ms=60_000)
        while not parked(node):
            await asyncio.sleep(0.005)
        revoke(node, acl(Operation.READ))
        append(node, "t", 0, batch(b"secret"))
        (answer,) = (await client.receive(waiting)).responses[0].partitions
        assert (answer.error_code, answer.records or b"") == (DENIED, b"")
        again = await client.receive(fetch(client, version, topic, {0: 0}, max_wait_ms=60_000))
        assert again.responses[0].partitions[0].error_code == DENIED

    run(tmp_path, main)


def parked(node: KafkaNode) -> bool:
    return any(connection.peer and not connection.idle for connection in node.listener.connections)


def test_a_session_is_asked_about_at_each_fetch(tmp_path: Path) -> None:
    """KIP-227: the client names its partitions once; the authorizer is asked about them every time."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        authorize(node)
        grant(node, acl(Operation.READ))
        append(node, "t", 0, batch(b"one"))
        first = await client.receive(fetch(client, 11, "t", {0: 0}, session_epoch=0))
        assert first.responses[0].partitions[0].error_code == 0
        revoke(node, acl(Operation.READ))
        asked = {"session_id": first.session_id, "session_epoch": 1, "max_wait_ms": 0}
        second = await client.receive(fetch(client, 11, "t", {}, **asked))
        assert second.responses[0].partitions[0].error_code == DENIED
        grant(node, acl(Operation.READ))
        third = await client.receive(fetch(client, 11, "t", {}, **{**asked, "session_epoch": 2}))
        assert third.responses[0].partitions[0].error_code == 0

    run(tmp_path, main)


def test_a_broker_that_has_not_caught_up_allows_nothing(tmp_path: Path) -> None:
    """Whatever allow.everyone.if.no.acl.found says: the entries that deny may be those that it lacks. A super user may
    go on; and a denial from before is not remembered."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        behind = True
        authorize(node, allow_unnamed=True, caught_up=lambda: not behind)
        assert (await produced(client, 9, "t", {0: batch(b"x")})).error_code == DENIED
        assert (await client.ask("init_producer_id", 1, transactional_id=None)).error_code != 0
        behind = False
        assert (await produced(client, 9, "t", {0: batch(b"x")})).error_code == 0
        behind = True
        authorize(node, super_users=[ME], caught_up=lambda: not behind)
        assert (await produced(client, 9, "t", {0: batch(b"x")})).error_code == 0

    run(tmp_path, main)


def test_writing_anywhere_is_enough_for_a_producer_id(tmp_path: Path) -> None:
    """KIP-679: else every producer of an older client would need IDEMPOTENT_WRITE too."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        authorize(node)
        assert (await client.ask("init_producer_id", 1)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        grant(node, acl(Operation.WRITE, "any"))
        assert (await client.ask("init_producer_id", 1, transactional_id=None)).error_code == 0
        revoke(node, acl(Operation.WRITE, "any"))
        grant(node, acl(Operation.IDEMPOTENT_WRITE, "kafka-cluster", ResourceKind.CLUSTER))
        assert (await client.ask("init_producer_id", 1, transactional_id=None)).error_code == 0

    run(tmp_path, main)


def test_a_pattern_shows_no_topic_that_may_not_be_described(tmp_path: Path) -> None:
    """KIP-848: the coordinator holds it against all topics, the member is told of its own."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        open_id, _ = node.create_topic("x-open"), node.create_topic("x-hidden")
        await found(client)
        authorize(node)
        grant(node, acl(Operation.READ, "g", ResourceKind.GROUP), acl(Operation.DESCRIBE, "x-open"))
        member = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout": 60_000}
        joining = {**member, "subscribed_topic_regex": "x-.*", "topic_partitions": ()}
        answer = await client.ask("consumer_group_heartbeat", 1, **joining)
        assert [one.topic_id for one in answer.assignment.topic_partitions] == [open_id]

    run(tmp_path, main)


def test_topics_made_by_asking_need_the_right_to_create(tmp_path: Path) -> None:
    """Of the topic, or of topics anywhere; who may only describe learns that there is none by Kafka's error."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        authorize(node)
        grant(node, *(acl(Operation.DESCRIBE, name) for name in ("a", "b", "c")), acl(Operation.CREATE, "b"))

        async def asked(name: str) -> int:
            answer = await client.ask("metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=True)
            return answer.topics[0].error_code

        assert await asked("a") == DENIED
        assert await asked("b") == ErrorCode.LEADER_NOT_AVAILABLE
        grant(node, acl(Operation.CREATE, "kafka-cluster", ResourceKind.CLUSTER))
        assert await asked("c") == ErrorCode.LEADER_NOT_AVAILABLE
        assert "a" not in node.controller.image.topics

    run(tmp_path, main, static={"auto.create.topics.enable": "true"})


def test_what_was_created_is_told_only_to_who_may_see_configs(tmp_path: Path) -> None:
    """KIP-525."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        authorize(node)
        grant(node, acl(Operation.CREATE, "a"), acl(Operation.CREATE, "b"), acl(Operation.DESCRIBE_CONFIGS, "b"))
        topics = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in "ab"]
        made = (await client.ask("create_topics", 7, topics=topics, timeout=1000)).topics
        assert [(one.error_code, one.topic_config_error_code, one.num_partitions) for one in made] == [
            (0, DENIED, -1),
            (0, 0, 2),
        ]
        assert made[0].configs is None
        assert made[1].configs

    run(tmp_path, main)


def test_topics_are_deleted_by_id_only_with_the_right(tmp_path: Path) -> None:
    """Who may describe is told the name beside the error; who may not, as much as of an id that nobody has."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        topic_id = node.create_topic("t")
        authorize(node)

        async def deleted() -> tuple[str | None, int]:
            asked = [{"name": None, "topic_id": topic_id}]
            [one] = (await client.ask("delete_topics", 6, topics=asked, timeout=1000)).responses
            return one.name, one.error_code

        assert await deleted() == (None, ErrorCode.UNKNOWN_TOPIC_ID)
        grant(node, acl(Operation.DESCRIBE))
        assert (await deleted())[1] == DENIED
        grant(node, acl(Operation.DELETE))
        assert await deleted() == ("t", 0)

    run(tmp_path, main)


def test_denials_are_logged_once_and_counted_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who, from where, what, on what and why; not what is only left out of a list; and a stranger fills no disk."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        monkeypatch.setattr(standard_authorizer, "LOGGED_MAX", 3)
        node.create_topic("t")
        authorizer = authorize(node)
        with capture_logs() as lines:
            for _ in range(5):
                await produced(client, 9, "t", {0: batch(b"x")})
            await client.ask("metadata", 9, topics=None)
            for name in ("a", "b", "c", "d"):
                await client.ask("metadata", 9, topics=[{"name": name}])
        denied = [line for line in lines if line["event"] == "denied"]
        assert [line["resource"] for line in denied] == ["t", "a", "b"]
        assert denied[0] == {
            "event": "denied",
            "log_level": "info",
            "principal": ME,
            "host": "127.0.0.1",
            "client_id": "test",
            "listener": "PLAINTEXT",
            "api": "Produce",
            "operation": "WRITE",
            "resource_type": "TOPIC",
            "resource": "t",
            "because": "no ACL names the resource",
            "suppressed": 0,
        }
        assert denied[1]["suppressed"] == 4
        assert authorizer.denied == 9

    run(tmp_path, main)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Thousands of names, and long ones: asked again each time, never kept without bound."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        monkeypatch.setattr(standard_authorizer, "REMEMBERED_MAX", 5)
        authorizer = authorize(node)
        names = [*(f"t{number}" for number in range(12)), "n" * 20_000]
        await client.ask("metadata", 9, topics=[{"name": name} for name in names])
        assert 0 < len(authorizer._remembered) <= 5
        assert all(len(question[3].name) < 1000 for question in authorizer._remembered)

    run(tmp_path, main)


def test_another_principal_has_rights_of_its_own(tmp_path: Path) -> None:
    """Two connections of one listener; what was remembered for one does not count for the other."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        authorize(node)
        grant(node, acl(Operation.WRITE))
        assert (await produced(client, 9, "t", {0: batch(b"x")})).error_code == 0
        async with connect(node.listener.endpoint) as other:
            await other.ask("api_versions", 0)
            node.listener.connections[-1].peer.principal = "User:bob"
            assert (await produced(other, 9, "t", {0: batch(b"x")})).error_code == DENIED
        assert (await produced(client, 9, "t", {0: batch(b"x")})).error_code == 0

    run(tmp_path, main)


def test_restoring_a_topic_takes_the_cluster_too(tmp_path: Path) -> None:
    """The broker reads the whole topic's sidecars for it, and no topic of the name is there yet: CREATE is not enough
    (rule B25)."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        authorize(node)
        grant(node, acl(Operation.CREATE), acl(Operation.CREATE, "u"))
        configs = [{"name": "remote.storage.restore.topic.id", "value": "00000000-0000-4000-8000-000000000001"}]
        asked: list[dict[str, Any]] = [
            {"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("t", "u")
        ]
        asked[0]["configs"] = configs

        async def errors() -> list[int]:
            answer = await client.ask("create_topics", 7, topics=asked, timeout=1000, validate_only=True)
            return [int(one.error_code) for one in answer.topics]

        assert await errors() == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 0]
        grant(node, acl(Operation.ALTER, "kafka-cluster", ResourceKind.CLUSTER))
        assert await errors() == [ErrorCode.INVALID_CONFIG, 0], "this broker has no object store"

    run(tmp_path, main)


def test_an_address_is_stored_in_one_way_and_found_in_any(tmp_path: Path) -> None:
    """Rule A25: what is created is written as clients are seen; an entry of an earlier build, in another way, denies as
    well, and is shown and deleted by any text of its address."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        authorize(node, super_users=[ME])
        long, short = "0:0:0:0:0:0:0:1", "::1"
        await client.ask(
            "create_acls", 3, creations=[creation("t", 3, host=long), creation("t", 3, host="::ffff:a01:1")]
        )
        assert [one.host for one in node.controller.image.acls] == [short, "10.1.0.1"]
        old = AclBinding(ResourceKind.TOPIC, "u", PatternType.LITERAL, "User:a", long, Operation.READ, Permission.DENY)
        grant(node, old)
        answer = await client.ask("describe_acls", 3, **wanted(host_filter=short))
        assert {one.resource_name for one in answer.resources} == {"t", "u"}
        exact = {"resource_type_filter": 2, "pattern_type_filter": 3, "operation": 3, "permission_type": 2}
        exact |= {"resource_name_filter": "u", "principal_filter": "User:a", "host_filter": short}
        [result] = (await client.ask("delete_acls", 3, filters=[exact])).filter_results
        assert [one.resource_name for one in result.matching_acls] == ["u"]
        assert old not in node.controller.image.acls

    run(tmp_path, main)
