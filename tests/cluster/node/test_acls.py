"""Access control lists end to end: principals by certificates, our clients and foreign ones, the command line, live
changes, a restart and a snapshot (rule A20, row S92)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaException
from confluent_kafka import admin as confluent
from kafka import admin as python
from structlog.testing import capture_logs
from tests.cluster.node import secure_node
from tests.cluster.node.secure_node import at, node_config, secure
from tests.cluster.security.tls_case import ca

from strandline.cli.acls import acl
from strandline.client import AclBinding, AclFilter, NewTopic, Operation, PatternType, Permission, ResourceKind
from strandline.client.aio import Admin, Consumer, Producer
from strandline.cluster.broker.request import AllowAll
from strandline.cluster.broker.standard_authorizer import StandardAuthorizer
from strandline.cluster.node.authorization import open_doors
from strandline.cluster.node.metrics import Metrics
from strandline.cluster.node.node import Node
from strandline.cluster.node.settings import STANDARD_AUTHORIZER
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError

T = TypeVar("T")
SETTINGS = {
    "authorizer_class_name": STANDARD_AUTHORIZER,
    "super_users": "User:admin",
    "ssl_client_auth": "requested",
    "ssl_principal_mapping_rules": "RULE:^CN=(.*)$/$1/L",
    "min_insync_replicas": "1",
    "offsets_topic_replication_factor": "1",
}
TOPIC, ALLOW = ResourceKind.TOPIC, Permission.ALLOW


def allow(principal: str, operation: Operation, name: str = "t", kind: ResourceKind = TOPIC) -> AclBinding:
    return AclBinding(kind, name, PatternType.LITERAL, principal, "*", operation, ALLOW)


def client_of(name: str) -> dict[str, Any]:
    """Settings of a client that is this principal."""
    return secure(ssl_keystore_location=str(ca().client(name)))


async def in_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)


def run(path: Path, body: Callable[[Node], Awaitable[None]], **more: str) -> None:
    """A node with an authorizer."""
    secure_node.run(path, body, **{**SETTINGS, **more})


async def given(admin: Admin, *bindings: AclBinding) -> None:
    """Added, and obeyed: the broker here is the controller too, and has caught up when it answers."""
    await admin.create_acls(bindings)


def test_a_reader_reads_and_does_not_write(tmp_path: Path) -> None:
    """Row S92: with READ alone consuming works and producing is refused. Rights come live; and when READ goes, a
    consumer in the middle of its stream hears of it at its next poll, by the error that names the topic."""

    async def body(node: Node) -> None:
        bootstrap = at(node, "SSL")
        async with Admin(bootstrap, **client_of("admin")) as admin, Producer(bootstrap, **client_of("admin")) as writer:
            await admin.create_topics([NewTopic("t", 1, 1)])
            await writer.send_and_wait("t", b"first")
            async with Consumer(bootstrap, auto_offset_reset="earliest", **client_of("alice")) as consumer:
                consumer.assign([("t", 0)])
                with pytest.raises(KafkaError) as refused:
                    await consumer.poll(5.0)
                assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            read = allow("User:alice", Operation.READ)
            await given(admin, read)
            async with Consumer(bootstrap, auto_offset_reset="earliest", **client_of("alice")) as consumer:
                consumer.assign([("t", 0)])
                assert [one.value for one in await consumer.poll(5.0)] == [b"first"]
                async with Producer(bootstrap, **client_of("alice")) as producer:
                    with pytest.raises(KafkaError, match="needs the right to WRITE a topic") as refused:
                        await producer.send_and_wait("t", b"not mine")
                    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                async with Producer(bootstrap, enable_idempotence=False, **client_of("alice")) as producer:
                    with pytest.raises(KafkaError) as refused:
                        await producer.send_and_wait("t", b"not mine")
                    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
                [found] = (await admin.delete_acls([AclFilter(principal="User:alice")])).values()
                assert found == [read]
                await writer.send_and_wait("t", b"secret")
                with pytest.raises(KafkaError) as refused:
                    await polled_in_vain(consumer)
                assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        async with Admin(at(node, "PLAINTEXT")) as nobody:
            assert await nobody.list_topics() == []
            with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
                await nobody.create_acls([allow("User:*", Operation.ALL)])
        page = Metrics(node).render().decode()
        assert "kafka_server_authorizer_metrics_acls_total_count 0.0" in page
        counted = "kafka_server_authorizer_metrics_authorization_denied_total "
        [denied] = [line for line in page.splitlines() if line.startswith(counted)]
        assert float(denied.split()[1]) >= 3

    run(tmp_path, body)


async def polled_in_vain(consumer: Consumer) -> None:
    """Until it raises."""
    while True:
        assert await consumer.poll(5.0) == []


def test_entries_outlive_a_restart_and_a_snapshot(tmp_path: Path) -> None:
    """Replayed from the log, and from a snapshot of the metadata; both before a client is served."""
    kept = [allow("User:alice", Operation.READ), allow("User:bob", Operation.WRITE, "p-")]

    async def first(node: Node) -> None:
        async with Admin(at(node, "SSL"), **client_of("admin")) as admin:
            await given(admin, *kept, allow("User:carol", Operation.READ))
            await admin.delete_acls([AclFilter(principal="User:carol")])

    async def again(node: Node) -> None:
        async with Admin(at(node, "SSL"), **client_of("admin")) as admin:
            assert await admin.describe_acls() == sorted(kept)

    run(tmp_path, first, metadata_log_max_record_bytes_between_snapshots="1")
    run(tmp_path, again, metadata_log_max_record_bytes_between_snapshots="1")
    assert list(tmp_path.glob("**/*.checkpoint")), "no snapshot was taken: the test shows nothing"


def test_admin_clients_of_others(tmp_path: Path) -> None:
    """confluent-kafka (librdkafka) and kafka-python add, find and delete; each sees what the other made."""

    async def body(node: Node) -> None:
        bootstrap, me, trusted = at(node, "SSL"), str(ca().client("admin")), str(ca().file)
        files = {"ssl.ca.location": trusted, "ssl.certificate.location": me, "ssl.key.location": me}
        await in_thread(partial(with_confluent, {"bootstrap.servers": bootstrap, "security.protocol": "SSL", **files}))
        tls = {"security_protocol": "SSL", "ssl_cafile": trusted, "ssl_certfile": me, "ssl_keyfile": me}
        await in_thread(partial(with_kafka_python, {"bootstrap_servers": bootstrap, **tls}))
        assert node.publisher.image.acls == {}

    run(tmp_path, body)


def with_confluent(config: dict[str, str]) -> None:
    """Leaves one entry behind."""
    client = confluent.AdminClient(config)
    kind, pattern = confluent.ResourceType, confluent.ResourcePatternType
    entry = ("User:alice", "*", confluent.AclOperation.READ, confluent.AclPermissionType.ALLOW)
    mine = [
        confluent.AclBinding(kind.TOPIC, "orders", pattern.LITERAL, *entry),
        confluent.AclBinding(kind.GROUP, "g-", pattern.PREFIXED, *entry),
    ]
    for future in client.create_acls(mine).values():
        future.result(20)
    anything = (None, None, confluent.AclOperation.ANY, confluent.AclPermissionType.ANY)
    match = confluent.AclBindingFilter(kind.GROUP, "g-1", pattern.MATCH, *anything)
    assert client.describe_acls(match).result(20) == mine[1:]
    [removed] = client.delete_acls([match]).values()
    assert removed.result(20) == mine[1:]
    bad = confluent.AclBinding(kind.BROKER, "not-the-cluster", pattern.LITERAL, *entry)
    [refused] = client.create_acls([bad]).values()
    with pytest.raises(KafkaException, match="kafka-cluster"):
        refused.result(20)


def with_kafka_python(config: dict[str, str]) -> None:
    """Finds what the other left, adds one, and deletes all."""
    client = python.KafkaAdminClient(**config)
    try:
        everything = python.ACLFilter(
            None,
            None,
            python.ACLOperation.ANY,
            python.ACLPermissionType.ANY,
            python.ResourcePatternFilter(python.ResourceType.ANY, None, python.ACLResourcePatternType.ANY),
        )
        found, error = client.describe_acls(everything)
        assert (error.errno, [one.resource_pattern.resource_name for one in found]) == (0, ["orders"])
        own = python.ACL(
            "User:bob",
            "10.0.0.1",
            python.ACLOperation.WRITE,
            python.ACLPermissionType.DENY,
            python.ResourcePattern(python.ResourceType.TOPIC, "orders"),
        )
        assert client.create_acls([own])["succeeded"] == [own]
        [(_, removed, error)] = client.delete_acls([everything])
        assert (error.errno, len(removed)) == (0, 2)
    finally:
        client.close()


def test_the_command_line(tmp_path: Path) -> None:
    """Add, list, explain, remove; a dry run says what would change, and changes nothing."""

    async def body(node: Node) -> None:
        config = tmp_path / "admin.properties"
        names = {"security.protocol": "SSL", "ssl.truststore.location": ca().file}
        lines = {**names, "ssl.keystore.location": ca().client("admin")}
        config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        where = ["--bootstrap", at(node, "SSL"), "--command-config", str(config)]

        async def said(*words: str, code: int = 0) -> str:
            result = await in_thread(lambda: CliRunner().invoke(acl, [*words, *where]))
            assert result.exit_code == code, result.output
            return result.output

        consumer = ["--allow-principal", "alice", "--consumer", "--topic", "orders", "--group", "g"]
        would = await said("add", *consumer, "--dry-run")
        assert would.splitlines() == [
            "would be added: User:alice may READ topic orders",
            "would be added: User:alice may DESCRIBE topic orders",
            "would be added: User:alice may READ group g",
        ]
        assert await said("list") == "there are no ACLs\n"
        assert "added: User:alice may READ group g" in await said("add", *consumer)
        assert "is there already: User:alice may READ group g" in await said("add", *consumer)
        deny = ["--deny-principal", "User:bob", "--operation", "Read", "--resource-pattern-type", "prefixed"]
        await said("add", *deny, "--topic", "ord")
        assert await said("explain", "alice", "read", "topic", "orders") == (
            "User:alice may READ topic orders: ALLOW: User:alice may READ topic orders\n"
        )
        assert await said("explain", "bob", "read", "topic", "orders", "--host", "10.0.0.1") == (
            "User:bob may not READ topic orders from 10.0.0.1: DENY: User:bob may not READ topics ord*\n"
        )
        assert "super user" in await said("explain", "admin", "alter", "cluster")
        assert "no ACL names the resource" in await said("explain", "alice", "read", "topic", "x")
        document = json.loads(await said("explain", "alice", "write", "topic", "orders", "-o", "json"))
        assert (document["allowed"], document["operation"]) == (False, "WRITE")
        listed = json.loads(await said("list", "--topic", "orders", "--resource-pattern-type", "match", "-o", "json"))
        assert sorted((one["principal"], one["pattern_type"]) for one in listed) == [
            ("User:alice", "LITERAL"),
            ("User:alice", "LITERAL"),
            ("User:bob", "PREFIXED"),
        ]
        assert "topics ord*" in await said("list", "--principal", "bob")
        assert (await said("remove", "--topic", "orders", "--dry-run")).count("would be removed") == 2
        assert (await said("remove", "--topic", "orders", "--yes")).count("removed: User:alice") == 2
        assert "nothing to remove" in await said("remove", "--topic", "orders", "--yes")
        assert "name a resource" in await said("remove", "--yes", code=2)
        assert "who? give --allow-principal" in await said("add", "--topic", "t", code=2)
        mistyped = ["--allow-principal", "a", "--operation", "reed", "--topic", "t"]
        assert "no operation 'reed'" in await said("add", *mistyped, code=2)
        assert {str(one) for one in node.publisher.image.acls} == {
            "User:alice may READ group g",
            "User:bob may not READ topics ord*",
        }

    run(tmp_path / "data", body)


def test_a_login_is_a_principal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SASL and ACLs together: the user of the password is who is asked about; the super user is made at the format."""
    monkeypatch.setenv("SECRET", "hunter2-and-more")
    users = [f"SCRAM-SHA-256=[name={name},password=${{env:SECRET}}]" for name in ("admin", "alice")]

    async def body(node: Node) -> None:
        def client(name: str) -> Admin:
            who: dict[str, Any] = {"sasl_username": name, "sasl_password": "hunter2-and-more"}
            how = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"}
            return Admin(at(node, "PLAINTEXT"), **how, **who)

        async with client("admin") as admin, client("alice") as alice:
            await admin.create_topics([NewTopic("t", 1, 1)])
            assert await alice.list_topics() == []
            await given(admin, allow("User:alice", Operation.DESCRIBE))
            assert await alice.list_topics() == ["t"]
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
                await alice.delete_topics(["t"])

    protocols = {"listener_security_protocol_map": "PLAINTEXT:SASL_PLAINTEXT"}
    secure_node.run(tmp_path, body, add_scram=users, **{**SETTINGS, **protocols})


def test_without_an_authorizer_everybody_may_and_explain_says_so(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        assert node.broker is not None
        assert isinstance(node.broker.authorizer, AllowAll)
        words = ["explain", "alice", "read", "topic", "t", "--bootstrap", at(node, "PLAINTEXT")]
        result = await in_thread(lambda: CliRunner().invoke(acl, words))
        assert "authorizer.class.name is not set: everybody may do everything" in result.output
        result = await in_thread(lambda: CliRunner().invoke(acl, ["list", "--bootstrap", at(node, "PLAINTEXT")]))
        assert (result.exit_code, "SECURITY_DISABLED" in result.output) == (1, True)

    with capture_logs() as logs:
        run(tmp_path, body, authorizer_class_name="")
    told = [line for line in logs if line["event"] == "a setting of this node has no effect"]
    assert [line["setting"] for line in told] == ["super.users = User:admin"]


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """With the reason: another class, a super user without a type."""
    for name, value, says in (
        ("authorizer_class_name", "kafka.security.authorizer.AclAuthorizer", "ZooKeeper"),
        ("authorizer_class_name", "com.example.Mine", "no Java plug-ins"),
        ("super_users", "admin", "User:alice"),
        ("allow_everyone_if_no_acl_found", "maybe", "true"),
    ):
        with pytest.raises(ConfigError, match=says):
            node_config(tmp_path, **{name: value})
    users = node_config(tmp_path, super_users="User:CN=a,O=b; User:c").super_users
    assert users == ("User:CN=a,O=b", "User:c")


def test_doors_that_stay_open_are_named(tmp_path: Path) -> None:
    """INTERNAL in plaintext, clients that cannot be told apart, HTTP for everybody; none with all of TLS on."""
    plain = {**SETTINGS, "listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:7,HTTP://10.0.0.1:80"}
    said = [door.setting for door in open_doors(node_config(tmp_path, **plain))]
    assert [any(word in one for one in said) for word in ("INTERNAL", "tells clients apart", "HTTP")] == [True] * 3
    tls = {**SETTINGS, "listener_security_protocol_map": "INTERNAL:SSL,SSL:SSL,HTTP:SSL,PLAINTEXT:PLAINTEXT"}
    assert list(open_doors(node_config(tmp_path, **tls))) == []
    audited = {"audit_log_path": "/a", "audit_topic_enable": "true"}
    controller = {"process_roles": "controller", "listeners": "INTERNAL://127.0.0.1:7"}
    doors = list(open_doors(node_config(tmp_path, **controller, **audited)))
    assert [door.setting for door in doors] == ["audit.log.path = /a", "audit.topic.enable = true"]
    assert not any(door.has_effect for door in doors)


def test_an_authorizer_is_made_of_the_settings(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        assert node.broker is not None
        assert isinstance(node.broker.authorizer, StandardAuthorizer)
        async with Admin(at(node, "PLAINTEXT")) as anybody:
            await anybody.create_topics([NewTopic("t", 1, 1)])
            assert await anybody.list_topics() == ["t"]

    run(tmp_path, body, allow_everyone_if_no_acl_found="true")
