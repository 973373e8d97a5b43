"""A node whose listeners speak SASL, with our clients and others': who gets in, what each is told, what is secret."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.errors
import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs
from tests.cluster.node.secure_node import at, knock, node_config, run, secure
from tests.cluster.security.tls_case import ca

from strandline.cli.main import main as strandline
from strandline.client import ConfigResource, NewTopic, ScramChange
from strandline.client.aio import Admin, Consumer, Producer
from strandline.client.config import AdminConfig, effective_settings
from strandline.client.errors import AuthenticationFailed, ClientTimeout
from strandline.client.session import Session
from strandline.cluster.node.node import Node
from strandline.proto.errors import ConfigError
from strandline.proto.kafka.apis import Api

PASSWORD = "Xk3-do-not-show-me"
"""Of everybody; the tests look for it in all that was written."""

LISTENERS = (
    "PLAINTEXT://127.0.0.1:0,CLEAR://127.0.0.1:0,SECRET://127.0.0.1:0,INTERNAL://127.0.0.1:{},HTTP://127.0.0.1:0"
)
PLAIN_USERS = "listener.name.secret.plain.sasl.jaas.config"

FORMATTED = (
    "SCRAM-SHA-256=[name=admin,password=${env:ADMIN_PASSWORD}]",
    'SCRAM-SHA-512=[name="admin",iterations=8192,password="${env:ADMIN_PASSWORD}"]',
)


@pytest.fixture(autouse=True)
def _passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_PASSWORD", PASSWORD)


def settings(**more: str) -> dict[str, str]:
    """Three client listeners: without SASL, with it, with it and TLS."""
    internal = node_config(Path("/nowhere")).internal.port
    return {
        "listeners": LISTENERS.format(internal),
        "controller_quorum_voters": f"1@127.0.0.1:{internal}",
        "listener_security_protocol_map": "CLEAR:SASL_PLAINTEXT,SECRET:SASL_SSL",
        "listener.name.secret.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        PLAIN_USERS: 'x.PlainLoginModule required user_bob="${env:ADMIN_PASSWORD}";',
        "connection_failed_authentication_delay_ms": "10",
        "min_insync_replicas": "1",
        **more,
    }


def login(user: str = "admin", password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": user,
        "sasl_password": password,
    }


def jaas(module: str, user: str, password: str = "${env:ADMIN_PASSWORD}") -> str:
    return f'org.apache.kafka.common.security.{module} required username="{user}" password="{password}";'


async def elsewhere(function: Any, *arguments: Any) -> Any:
    """What blocks runs beside the node's loop."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def test_our_clients_log_in_and_a_restart_keeps_the_users(tmp_path: Path) -> None:
    """By each mechanism, with TLS and without, in both of Kafka's spellings; the first user comes from the format."""
    clear = login()
    secret = secure(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_jaas_config=jaas("scram.ScramLoginModule", "carol"),
    )
    plain = {**secret, "sasl_mechanism": "PLAIN", "sasl_jaas_config": jaas("plain.PlainLoginModule", "bob")}

    async def body(node: Node) -> None:
        async with Admin(at(node, "CLEAR"), **clear) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])
            await admin.alter_scram_credentials({"carol": [ScramChange("SCRAM-SHA-512", PASSWORD)]})
            [broker] = (await admin.describe_cluster()).nodes
            assert f"{broker.host}:{broker.port}" == at(node, "CLEAR")
        async with Producer(at(node, "SECRET"), **secret) as producer:
            await producer.send_and_wait("t", b"one")
        async with Producer(at(node, "SECRET"), **plain) as producer:
            await producer.send_and_wait("t", b"two")
            assert node.broker is not None
            [listener] = [each for each in node.broker.listeners if each.name == "SECRET"]
            assert "User:bob" in {connection.peer.principal for connection in listener.connections}
        async with Consumer(at(node, "CLEAR"), auto_offset_reset="earliest", **clear) as consumer:
            consumer.assign([("t", 0)])
            read: list[bytes | None] = []
            while len(read) < 2:
                read += [record.value for record in await consumer.poll(1.0)]
            assert read == [b"one", b"two"]
        await elsewhere(_counted, at(node, "HTTP"))

    async def again(node: Node) -> None:
        await knock(at(node, "SECRET"), **secret)
        async with Admin(at(node, "CLEAR"), **clear) as admin:
            found = await admin.describe_scram_credentials()
            assert {name: len(each) for name, each in found.items()} == {"admin": 2, "carol": 1}
            await admin.alter_scram_credentials({"carol": [ScramChange("SCRAM-SHA-512", None)]})
        with pytest.raises(AuthenticationFailed):
            await knock(at(node, "SECRET"), **secret)

    run(tmp_path, body, add_scram=FORMATTED, **settings())
    run(tmp_path, again, **settings(metadata_log_max_record_bytes_between_snapshots="1"))
    assert list(tmp_path.rglob("*.checkpoint"))
    run(tmp_path, lambda node: knock(at(node, "CLEAR"), **clear), **settings())


def _counted(http: str) -> None:
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as page:
        text = page.read().decode()
    found = re.findall(r'_(successful|failed)_authentication_total\{listener="(\w+)"\} ([\d.]+)', text)
    counts = {(what, listener): float(count) for what, listener, count in found}
    assert counts["successful", "CLEAR"] >= 2
    assert counts["successful", "SECRET"] >= 2
    assert counts["failed", "CLEAR"] == counts["failed", "SECRET"] == 0


def test_who_does_not_get_in_is_told_why_at_once(tmp_path: Path) -> None:
    """A wrong password, an unknown user, a mechanism that is not there; SASL where there is none, and none where it is.
    No call retries it until its time is over, and nothing of it shows the password."""

    async def body(node: Node) -> None:
        clear, secret = at(node, "CLEAR"), at(node, "SECRET")
        said = []
        for user, words in (("admin", "refuses user 'admin'"), ("nobody", "refuses user 'nobody'")):
            with pytest.raises(AuthenticationFailed, match=words) as refused:
                await knock(clear, **login(user, PASSWORD + "!"))
            assert not refused.value.retriable
            said.append(str(refused.value).replace(user, "USER"))
        assert said[0] == said[1]
        with pytest.raises(
            AuthenticationFailed, match=r"does not serve sasl.mechanism=PLAIN, only SCRAM-SHA-256, SCRAM-"
        ):
            await knock(clear, **login(mechanism="PLAIN"))
        with pytest.raises(AuthenticationFailed, match="is a listener without SASL"):
            await knock(at(node, "PLAINTEXT"), **login())
        with pytest.raises(Exception, match=r"speaks TLS; this client connects in plaintext: .*SASL_SSL"):
            await knock(secret, **login())
        wrong = login(password="wrong-" + PASSWORD)
        async with Admin(clear, **wrong) as admin:
            with pytest.raises(AuthenticationFailed):
                await admin.list_topics()
        async with Producer(clear, **wrong) as producer:
            with pytest.raises(AuthenticationFailed):
                await producer.send_and_wait("t", b"x")
        async with Consumer(clear, group_id="g", **wrong) as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(AuthenticationFailed):
                await _polls(consumer)
        async with Admin(clear, default_api_timeout_ms=300) as admin:
            with pytest.raises(ClientTimeout, match="a listener with SASL does so to a client without"):
                await admin.list_topics()

    with capture_logs() as logs:
        run(tmp_path, body, add_scram=FORMATTED, **settings())
    assert PASSWORD not in repr(logs)
    assert any("before the authentication" in str(line.get("reason")) for line in logs)


def test_a_password_that_changes_while_clients_run(tmp_path: Path) -> None:
    """Open connections go on; once they are lost the client says that it does not get in, and it gets in again with
    nothing made anew when the password is the old one again."""

    async def body(node: Node) -> None:
        async with Admin(at(node, "PLAINTEXT")) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])
            async with Consumer(at(node, "CLEAR"), auto_offset_reset="earliest", **login()) as consumer:
                consumer.assign([("t", 0)])
                await consumer.poll(0.1)
                await admin.alter_scram_credentials({"admin": [ScramChange("SCRAM-SHA-256", "another")]})
                await consumer.poll(0.1)
                _cut(node)
                with pytest.raises(AuthenticationFailed):
                    await _polls(consumer)
                await admin.alter_scram_credentials({"admin": [ScramChange("SCRAM-SHA-256", PASSWORD)]})
                async with Producer(at(node, "PLAINTEXT")) as producer:
                    await producer.send_and_wait("t", b"x")
                while True:
                    try:
                        if await consumer.poll(0.2):
                            return
                    except AuthenticationFailed:
                        continue

    run(tmp_path, body, add_scram=FORMATTED, **settings())


def test_sessions_that_end_lose_no_record_and_no_order(tmp_path: Path) -> None:
    """Our clients go on with a new login, each 0.25 s."""

    async def body(node: Node) -> None:
        assert node.broker is not None
        [door] = [each.sasl for each in node.broker.listeners if each.name == "CLEAR"]
        assert door is not None
        async with Admin(at(node, "PLAINTEXT")) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])
        own = {**login(), "reconnect_backoff_ms": 1}
        async with (
            Producer(at(node, "CLEAR"), linger_ms=0, **own) as producer,
            Consumer(at(node, "CLEAR"), auto_offset_reset="earliest", **own) as consumer,
        ):
            consumer.assign([("t", 0)])
            read: list[bytes | None] = []
            sent = 0
            while door.counts.successful_authentication < 8 or len(read) < sent:
                if door.counts.successful_authentication < 8:
                    await producer.send("t", b"%d" % sent)
                    sent += 1
                read += [record.value for record in await consumer.poll(0.005)]
            assert read == [b"%d" % number for number in range(sent)]

    with capture_logs():
        run(tmp_path, body, add_scram=FORMATTED, **settings(connections_max_reauth_ms="250"))


def test_a_user_that_is_deleted_in_mid_stream_is_out_when_its_session_ends(tmp_path: Path) -> None:
    """What it had acknowledged stays; its producer and its consumer say that the login failed, and go on no more."""

    async def body(node: Node) -> None:
        async with Admin(at(node, "PLAINTEXT")) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])
            await admin.alter_scram_credentials({"carol": [ScramChange("SCRAM-SHA-256", PASSWORD)]})
            carol = login("carol")
            async with (
                Producer(at(node, "CLEAR"), linger_ms=0, **carol) as producer,
                Consumer(at(node, "CLEAR"), auto_offset_reset="earliest", **carol) as consumer,
            ):
                consumer.assign([("t", 0)])
                acks = [await producer.send_and_wait("t", b"one")]
                assert [record.value for record in await consumer.poll(5.0)] == [b"one"]
                await admin.alter_scram_credentials({"carol": [ScramChange("SCRAM-SHA-256", None)]})

                async def send() -> None:
                    while True:
                        acks.append(await producer.send_and_wait("t", b"more"))

                async def read() -> None:
                    while True:
                        await consumer.poll(0.05)

                async with asyncio.timeout(20.0):
                    for stream in (send(), read()):
                        with pytest.raises(AuthenticationFailed):
                            await stream
        async with Consumer(at(node, "PLAINTEXT"), auto_offset_reset="earliest") as reader:
            reader.assign([("t", 0)])
            kept = 0
            while kept < len(acks):
                kept += len(await reader.poll(5.0))

    with capture_logs():
        run(tmp_path, body, add_scram=FORMATTED, **settings(connections_max_reauth_ms="250"))


def test_a_session_is_renewed_behind_what_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next connection opens once the last answer on this one is there, so requests never overtake each other; one
    that nobody uses is closed."""

    async def body(node: Node) -> None:
        session = Session(at(node, "CLEAR"), AdminConfig(login()))
        network = session.network
        first = await network.to_any([])
        assert first.session_ms == 3_600_000
        [key] = network._open
        values = {
            "group_id": "g",
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        while (await first.call(Api.JOIN_GROUP, {**values, "group_id": "another"}, 20_000, 3)).error_code:
            await first.call(Api.FIND_COORDINATOR, {"key": "g", "key_type": 0}, 20_000, 3)
        slow = asyncio.ensure_future(first.call(Api.JOIN_GROUP, values, 20_000, 3))
        await asyncio.sleep(0)
        network._renew(key, first, None)
        assert first.in_flight == 1
        second = await network.to_any([])
        assert slow.done()
        assert (await slow).member_id
        assert second is not first
        assert first.closed
        network._renew(key, second, None)
        assert second.closed
        assert not network._renewals
        assert not network._opening
        monkeypatch.setattr("strandline.client.network.RENEWED_AFTER", (0.0, 0.0))
        third = await network.to_any([])
        assert third is not second
        async with asyncio.timeout(20):
            while not third.retired:
                await asyncio.sleep(0.001)
        await session.close()

    more = {"connections_max_reauth_ms": "3600000", "group_initial_rebalance_delay_ms": "200"}
    run(tmp_path, body, add_scram=FORMATTED, **settings(**more))


async def _polls(consumer: Consumer) -> None:
    for _ in range(100):
        await consumer.poll(0.2)


def _cut(node: Node) -> None:
    assert node.broker is not None
    for listener in node.broker.listeners:
        if listener.name == "CLEAR":
            for connection in listener.connections:
                connection.abort()


def test_the_password_is_in_nothing_that_was_written(tmp_path: Path) -> None:
    """Neither in the node's log, its audit, its directory, what it describes, nor in what our client says of itself."""
    said: list[str] = []

    async def body(node: Node) -> None:
        async with Admin(at(node, "CLEAR"), **login()) as admin:
            said.append(repr(await admin.describe_configs([ConfigResource("broker", "1")])))
            said.append(repr(await admin.describe_scram_credentials()))
            change = ScramChange("SCRAM-SHA-256", PASSWORD)
            said.append(repr(change))
            await admin.alter_scram_credentials({"dora": [change]})
            said.append(repr(admin.config) + repr(effective_settings(admin.config)) + repr(vars(admin.session.network)))
        for wrong in (login(mechanism="PLAIN"), login("nobody"), login(password=PASSWORD + "!")):
            with pytest.raises(AuthenticationFailed) as refused:
                await knock(at(node, "CLEAR"), **wrong)
            said.append(repr(refused.value) + str(vars(refused.value)))
        said.append(repr(node.publisher.image.maps))

    lines = tmp_path / "audit.log"
    with capture_logs() as logs:
        run(tmp_path / "data", body, add_scram=FORMATTED, **settings(audit_log_path=str(lines)))
    assert PLAIN_USERS in said[0]
    audited = [json.loads(line) for line in Path(f"{lines}.attempts").read_text().splitlines()]
    results = {line["result"] for line in audited if line["event"] == "login"}
    assert results == {"NONE", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM"}
    assert PASSWORD not in repr(said) + repr(logs)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"dora" in path.read_bytes() for path in files)
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]
    for key in ("sasl.password", "sasl.jaas.config"):
        given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", key: f"{PASSWORD} ${{env:x}}"}
        with pytest.raises(ConfigError) as mistaken:
            asyncio.run(knock("127.0.0.1:1", **{name.replace(".", "_"): text for name, text in given.items()}))
        assert PASSWORD not in str(mistaken.value)


def test_other_peoples_clients(tmp_path: Path) -> None:
    """librdkafka and kafka-python, by each mechanism, with TLS and without; and what they say of a wrong password."""
    pem = str(ca().file)

    def confluent(node: Node) -> None:
        own = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "admin", "sasl.password": PASSWORD}
        clear = {"bootstrap.servers": at(node, "CLEAR"), "security.protocol": "SASL_PLAINTEXT", **own}
        tls = {"bootstrap.servers": at(node, "SECRET"), "security.protocol": "SASL_SSL", "ssl.ca.location": pem}
        for settings in (
            clear,
            {**tls, **own, "sasl.mechanism": "SCRAM-SHA-512"},
            {**tls, **own, "sasl.mechanism": "PLAIN", "sasl.username": "bob"},
        ):
            topics = confluent_kafka.admin.AdminClient(settings).list_topics(timeout=20).topics
            assert "t" in topics
        admin = confluent_kafka.admin.AdminClient(clear)
        info = confluent_kafka.admin.ScramCredentialInfo(confluent_kafka.admin.ScramMechanism.SCRAM_SHA_256, 4096)
        upsertion = confluent_kafka.admin.UserScramCredentialUpsertion("erin", info, PASSWORD.encode())
        [altered] = admin.alter_user_scram_credentials([upsertion]).values()
        altered.result(20)
        [described] = admin.describe_user_scram_credentials(["erin"]).values()
        assert described.result(20).scram_credential_infos[0].iterations == 4096
        erin = {**clear, "sasl.username": "erin"}
        assert confluent_kafka.admin.AdminClient(erin).list_topics(timeout=20).topics
        errors: list[str] = []
        wrong = confluent_kafka.Consumer(
            {**clear, "sasl.password": "wrong", "group.id": "g", "error_cb": lambda error: errors.append(str(error))}
        )
        for _ in range(100):
            wrong.poll(0.1)
            if "invalid credentials" in str(errors):
                break
        else:
            raise AssertionError(errors)
        wrong.close()

    def python(node: Node) -> None:
        own = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "admin", "sasl_plain_password": PASSWORD}
        tls = {"bootstrap_servers": at(node, "SECRET"), "security_protocol": "SASL_SSL", "ssl_cafile": pem}
        for settings in (
            {"bootstrap_servers": at(node, "CLEAR"), "security_protocol": "SASL_PLAINTEXT", **own},
            {**tls, **own},
            {**tls, **own, "sasl_mechanism": "PLAIN", "sasl_plain_username": "bob"},
        ):
            producer = kafka.KafkaProducer(**settings)
            producer.send("t", b"x").get(20)
            producer.close()

    async def body(node: Node) -> None:
        async with Admin(at(node, "PLAINTEXT")) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])
        await elsewhere(confluent, node)
        await elsewhere(python, node)

    run(tmp_path, body, add_scram=FORMATTED, **settings())


def test_the_command_line_sets_lists_and_deletes_users(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")

    async def body(node: Node) -> None:
        where = [
            "-b",
            at(node, "CLEAR"),
            "-X",
            "security.protocol=SASL_PLAINTEXT",
            "-X",
            "sasl.mechanism=SCRAM-SHA-256",
        ]
        where += ["-X", "sasl.username=admin", "-X", "sasl.password=${env:ADMIN_PASSWORD}"]

        async def does(*words: str, code: int = 0) -> str:
            done: Result = await elsewhere(CliRunner().invoke, strandline, ["user", *words, *where])
            assert done.exit_code == code, done.output
            assert PASSWORD not in done.output
            return done.output

        await does("set", "frank", "--password-env", "ADMIN_PASSWORD")
        await does("set", "gail", "--password-file", str(file), "--mechanism", "SCRAM-SHA-512", "--iterations", "4096")
        listed = await does("list")
        assert re.search(r"frank +SCRAM-SHA-256 +8192\s+frank +SCRAM-SHA-512 +8192\s+gail +SCRAM-SHA-512 +4096", listed)
        assert '"user": "gail"' in await does("list", "-o", "json")
        await knock(at(node, "CLEAR"), **login("frank"))
        await does("delete", "frank")
        assert "does not exist" in await does("delete", "frank", code=1)
        assert "frank" not in await does("list")
        assert "no terminal to ask" in await does("set", "x", code=2)
        assert "NO_SUCH is not set" in await does("set", "x", "--password-env", "NO_SUCH", code=2)
        assert "from 4096 to 16384" in await does("set", "x", "--password-file", str(file), "--iterations", "1", code=2)
        where[-1] = "sasl.password=wrong"
        assert "refuses user 'admin' by SCRAM-SHA-256" in await does("list", code=1)

    run(tmp_path / "data", body, add_scram=FORMATTED, **settings())
