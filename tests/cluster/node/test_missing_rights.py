"""Whoever may not do something is told who lacks which right on what, by every call (rule A31)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from tests.cluster.node.secure_node import at
from tests.cluster.node.test_acls import allow, client_of, given, in_thread, run
from tests.cluster.security.tls_case import ca

from strandline.cli.topics import topic as topic_commands
from strandline.client import (
    AclBinding,
    AclFilter,
    ConfigChange,
    ConfigResource,
    NewTopic,
    OffsetAndMetadata,
    Operation,
    QuotaEntity,
    ResourceKind,
    ScramChange,
    TopicPartition,
)
from strandline.client.aio import Admin, Consumer, Producer
from strandline.client.config import AdminConfig
from strandline.client.rights import answered
from strandline.cluster.node.node import Node
from strandline.controller.metadata.features import NEWEST_LEVEL
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api

UUID_1 = UUID(int=1)
PLACE = TopicPartition("t", 0)
TOPIC, BROKER = ConfigResource("topic", "t"), ConfigResource("broker", "1")
MINE = "the user of this client's certificate"
"""A client does not know by which rules its certificate becomes a principal; a broker that has words does."""

CALLS: list[tuple[Callable[[Admin], Awaitable[Any]], str]] = [
    (lambda a: a.create_topics([NewTopic("new", 1, 1)]), "User:alice may not CREATE topic new"),
    (lambda a: a.delete_topics(["t"]), "User:alice may not DELETE topic t"),
    (lambda a: a.create_partitions({"t": 2}), "User:alice may not ALTER topic t"),
    (lambda a: a.elect_leaders(None, unclean=False), f"{MINE} may not ALTER the cluster"),
    (lambda a: a.elect_leaders([PLACE], unclean=False), f"{MINE} may not ALTER the cluster"),
    (lambda a: a.alter_partition_reassignments({PLACE: [1]}), "User:alice may not ALTER the cluster"),
    (lambda a: a.list_partition_reassignments(), "User:alice may not DESCRIBE the cluster"),
    (lambda a: a.describe_topics(["t"]), f"{MINE} may not DESCRIBE topic t"),
    (lambda a: a.list_offsets({PLACE: -1}), f"{MINE} may not DESCRIBE topic t"),
    (lambda a: a.epoch_ends({PLACE: 0}), f"{MINE} may not DESCRIBE topic t"),
    (lambda a: a.delete_records({PLACE: 0}), f"{MINE} may not DESCRIBE topic t"),
    (lambda a: a.describe_configs([TOPIC]), "User:alice may not DESCRIBE_CONFIGS topic t"),
    (lambda a: a.describe_configs([BROKER]), "User:alice may not DESCRIBE_CONFIGS the cluster"),
    (
        lambda a: a.alter_configs({TOPIC: [ConfigChange("retention.ms", "1")]}),
        "User:alice may not ALTER_CONFIGS topic t",
    ),
    (lambda a: a.alter_configs({BROKER: []}), "User:alice may not ALTER_CONFIGS the cluster"),
    (lambda a: a.describe_groups(["g"]), "User:alice may not DESCRIBE group g"),
    (lambda a: a.delete_groups(["g"]), "User:alice may not DESCRIBE group g"),
    (lambda a: a.list_group_offsets("g"), "User:alice may not DESCRIBE group g"),
    (lambda a: a.alter_group_offsets("g", {PLACE: 0}), "User:alice may not DESCRIBE group g"),
    (lambda a: a.delete_group_offsets("g", [PLACE]), "User:alice may not DESCRIBE group g"),
    (lambda a: a.describe_quorum(), "User:alice may not DESCRIBE the cluster"),
    (lambda a: a.update_features({"metadata.version": 2}), "User:alice may not ALTER the cluster"),
    (lambda a: a.unregister_broker(99), "User:alice may not ALTER the cluster"),
    (lambda a: a.add_voter(2, UUID_1), "User:alice may not ALTER the cluster"),
    (lambda a: a.remove_voter(2, UUID_1), "User:alice may not ALTER the cluster"),
    (lambda a: a.describe_log_dirs(), f"{MINE} may not DESCRIBE the cluster"),
    (lambda a: a.describe_producers([PLACE]), f"{MINE} may not DESCRIBE topic t"),
    (lambda a: a.describe_transactions(["x"]), "User:alice may not DESCRIBE transactional id x"),
    (lambda a: a.fence_producers(["x"]), "User:alice may not DESCRIBE transactional id x"),
    (
        lambda a: a.abort_transaction(PLACE, producer_id=1, producer_epoch=0),
        f"{MINE} may not DESCRIBE topic t",
    ),
    (lambda a: a.describe_client_quotas(), "User:alice may not DESCRIBE_CONFIGS the cluster"),
    (lambda a: a.alter_client_quotas({QuotaEntity("bob"): {}}), "User:alice may not ALTER_CONFIGS the cluster"),
    (lambda a: a.describe_acls(), "User:alice may not DESCRIBE the cluster"),
    (lambda a: a.create_acls([allow("User:alice", Operation.READ)]), "User:alice may not ALTER the cluster"),
    (lambda a: a.delete_acls([AclFilter()]), "User:alice may not ALTER the cluster"),
    (lambda a: a.describe_scram_credentials(), "User:alice may not DESCRIBE the cluster"),
    (lambda a: a.alter_scram_credentials({"bob": [DELETE]}), "User:alice may not ALTER the cluster"),
]
DELETE = ScramChange("SCRAM-SHA-256", None)
SILENT = {"close", "list_topics", "list_groups", "list_transactions", "describe_cluster", "describe_features"}
"""Lists have what may be seen; the addresses of brokers and the levels of features are for all."""
ELSEWHERE = {"alter_replica_log_dirs"}
"""Its errors stand in its results."""

BEHIND_DESCRIBE: list[tuple[Callable[[Admin], Awaitable[Any]], str]] = [
    (lambda a: a.delete_records({PLACE: 0}), f"{MINE} may not DELETE topic t"),
    (lambda a: a.describe_producers([PLACE]), "User:alice may not READ topic t"),
    (lambda a: a.abort_transaction(PLACE, producer_id=1, producer_epoch=0), f"{MINE} may not ALTER the cluster"),
    (lambda a: a.delete_groups(["g"]), f"{MINE} may not DELETE group g"),
    (lambda a: a.alter_group_offsets("g", {PLACE: 0}), f"{MINE} may not READ group g"),
    (lambda a: a.delete_group_offsets("g", [PLACE]), f"{MINE} may not DELETE group g"),
]
"""Of a user that may describe the topic and the group."""


async def refused(call: Awaitable[Any]) -> str:
    with pytest.raises(KafkaError) as told:
        await call
    assert told.value.code.name.endswith("_AUTHORIZATION_FAILED")
    return told.value.message


def test_every_call_of_the_admin_says_who_lacks_what(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        async with (
            Admin(at(node, "SSL"), **client_of("admin")) as admin,
            Admin(at(node, "SSL"), **client_of("alice")) as alice,
        ):
            await admin.update_features({"metadata.version": NEWEST_LEVEL, "transaction.version": 2})
            await admin.create_topics([NewTopic("t", 1, 1)])
            await admin.alter_group_offsets("g", {PLACE: 0})
            for call, words in CALLS:
                assert await refused(call(alice)) == words
            moved = await alice.alter_replica_log_dirs({("t", 0, 1): str(tmp_path)})
            assert [error is not None and error.message for error in moved.values()] == [
                f"{MINE} may not ALTER the cluster"
            ]
            await given(admin, allow("User:alice", Operation.DESCRIBE), of_group(Operation.DESCRIBE))
            for call, words in BEHIND_DESCRIBE:
                assert await refused(call(alice)) == words
        async with Admin(at(node, "PLAINTEXT")) as nobody:
            said = await refused(nobody.describe_topics(["t"]))
            assert said == "User:ANONYMOUS (this client shows no login and no certificate) may not DESCRIBE topic t"

    run(tmp_path, body)
    walked = {name for call, _ in CALLS for name in call.__code__.co_names}
    public = {name for name, _ in inspect.getmembers(Admin, inspect.iscoroutinefunction) if not name.startswith("_")}
    assert public - walked == SILENT | ELSEWHERE


def of_group(operation: Operation) -> AclBinding:
    return allow("User:alice", operation, "g", ResourceKind.GROUP)


def test_producers_and_consumers_say_it_too(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        bootstrap, mine = at(node, "SSL"), client_of("alice")
        async with Admin(bootstrap, **client_of("admin")) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])
            async with Producer(bootstrap, **mine) as producer:
                assert f"{MINE} may not DESCRIBE topic t" in await refused(producer.send_and_wait("t", b"v"))
            await given(admin, allow("User:alice", Operation.DESCRIBE))
            async with Producer(bootstrap, **mine) as producer:
                said = await refused(producer.send_and_wait("t", b"v"))
                assert f"{MINE} may not IDEMPOTENT_WRITE the cluster; an idempotent producer needs" in said
            async with Producer(bootstrap, enable_idempotence=False, **mine) as producer:
                assert await refused(producer.send_and_wait("t", b"v")) == "User:alice may not WRITE that topic"
            async with Consumer(bootstrap, auto_offset_reset="earliest", **mine) as consumer:
                consumer.assign([PLACE])
                assert await refused(consumer.poll(5.0)) == f"{MINE} may not READ topic t"
            for protocol in ("classic", "consumer"):
                settings: dict[str, Any] = {"group_id": "g", "group_protocol": protocol, **mine}
                async with Consumer(bootstrap, **settings) as consumer:
                    consumer.subscribe(["t"])
                    assert await refused(consumer.poll(5.0)) == "User:alice may not DESCRIBE group g"
            await given(admin, of_group(Operation.DESCRIBE))
            async with Consumer(bootstrap, group_id="g", group_protocol="classic", **mine) as consumer:
                consumer.subscribe(["t"])
                assert await refused(consumer.poll(5.0)) == f"{MINE} may not READ group g"
            async with Consumer(bootstrap, group_id="g", group_protocol="consumer", **mine) as consumer:
                consumer.subscribe(["t"])
                assert await refused(consumer.poll(5.0)) == "User:alice may not READ group g"
            await given(admin, of_group(Operation.READ))
            async with Consumer(bootstrap, group_id="g", **mine) as consumer:
                consumer.assign([PLACE])
                assert await refused(consumer.commit({PLACE: OffsetAndMetadata(0)})) == f"{MINE} may not READ topic t"

    run(tmp_path, body)


def test_commands_say_what_to_do_about_it(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        config = tmp_path / "alice.properties"
        names = {"security.protocol": "SSL", "ssl.truststore.location": ca().file}
        lines = {**names, "ssl.keystore.location": ca().client("alice")}
        config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        words = ["create", "new", "--bootstrap", at(node, "SSL"), "--command-config", str(config)]
        result = await in_thread(lambda: CliRunner().invoke(topic_commands, words))
        assert result.exit_code == 1
        assert "User:alice may not CREATE topic new" in result.output
        assert "strandline acl explain" in result.output

    run(tmp_path / "data", body)


@pytest.mark.parametrize("said", [None, "", "Topic authorization failed."])
def test_a_broker_of_kafka_says_no_more_than_the_code(said: str | None) -> None:
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "bob", "sasl_password": "x"}
    config = AdminConfig(login)
    error = answered(config, Api.FETCH, ErrorCode.TOPIC_AUTHORIZATION_FAILED, said, of="orders", broker=1)
    assert str(error) == "TOPIC_AUTHORIZATION_FAILED (29): User:bob may not READ topic orders [broker=1]"
    assert answered(config, Api.FETCH, ErrorCode.INVALID_REQUEST, said, of="orders").message == (said or "")
