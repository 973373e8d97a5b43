"""A node whose listeners speak TLS, and our own client: what goes through, what is refused, and in which words."""

from __future__ import annotations

import asyncio
import re
import ssl
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs
from tests.cluster.node.secure_node import at, knock, run, secure
from tests.cluster.security.tls_case import ca
from tests.ports import free_port

from strandline.cli.trace import trace
from strandline.client import ConfigResource, NewTopic
from strandline.client.aio import Admin, Consumer, Producer
from strandline.client.config import AdminConfig, effective_settings
from strandline.client.errors import BrokerUnreachable
from strandline.client.session import Session
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_values import environment_name
from strandline.cluster.node.container import health
from strandline.cluster.node.node import Node
from strandline.proto.errors import ConfigError, ProtocolError


def test_records_go_through_tls(tmp_path: Path) -> None:
    """Large ones too, in both directions; and each client is told the addresses of the listener that it came by."""

    async def body(node: Node) -> None:
        values = [bytes([number]) * 700_000 for number in range(8)]
        async with Admin(at(node, "SSL"), **secure()) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])
            [broker] = (await admin.describe_cluster()).nodes
            assert f"{broker.host}:{broker.port}" == at(node, "SSL")
        async with Admin(at(node, "PLAINTEXT")) as admin:
            [broker] = (await admin.describe_cluster()).nodes
            assert f"{broker.host}:{broker.port}" == at(node, "PLAINTEXT")
        async with Producer(at(node, "SSL"), **secure()) as producer:
            for value in values:
                await producer.send_and_wait("t", value)
        async with Consumer(at(node, "SSL"), auto_offset_reset="earliest", **secure()) as consumer:
            consumer.assign([("t", 0)])
            read: list[bytes | None] = []
            while len(read) < len(values):
                read += [record.value for record in await consumer.poll(1.0)]
            assert read == values

    run(tmp_path, body, min_insync_replicas="1")


def test_a_client_certificate_is_the_principal(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        alice = str(ca().client("Alice"))
        async with Admin(at(node, "SSL"), **secure(ssl_keystore_location=alice)) as admin:
            await admin.describe_cluster()
            assert node.broker is not None
            [listener] = [each for each in node.broker.listeners if each.name == "SSL"]
            assert {connection.peer.principal for connection in listener.connections} == {"User:alice"}
            assert listener.connections[0].identity()["principal"] == "User:alice"
        with pytest.raises(BrokerUnreachable, match="asks for a certificate of the client"):
            await knock(at(node, "SSL"), **secure())
        bob = str(ca().client("bob"))
        with pytest.raises(BrokerUnreachable):
            await knock(at(node, "SSL"), **secure(ssl_keystore_location=bob))

    with capture_logs() as logs:
        run(tmp_path, body, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=(A.*)$/$1/L")
    [closed] = [line for line in logs if line["event"] == "closed a client's connection"]
    assert "no rule of ssl.principal.mapping.rules" in closed["reason"]


def test_what_keeps_a_client_out_is_said_at_both_ends(tmp_path: Path) -> None:
    """Plain on TLS, TLS on plain, a CA that is not trusted, a name that the certificate does not have."""

    async def body(node: Node) -> None:
        with pytest.raises((BrokerUnreachable, ProtocolError), match="speaks TLS; this client connects in plaintext"):
            await knock(at(node, "SSL"))
        for _ in range(3):
            with pytest.raises(BrokerUnreachable, match="is that the port of a listener with TLS"):
                await knock(at(node, "PLAINTEXT"), **secure())
        with pytest.raises(
            BrokerUnreachable, match=r"the certificate of the other end does not count: .*ssl.truststore.location names"
        ):
            await knock(at(node, "SSL"), security_protocol="SSL")
        port = at(node, "SSL").rpartition(":")[2]
        with pytest.raises(BrokerUnreachable, match=r"does not count: .*mismatch"):
            await knock(f"127.0.0.2:{port}", **secure())
        await knock(f"127.0.0.2:{port}", **secure(ssl_endpoint_identification_algorithm=""))

    with capture_logs() as logs:
        listeners = "PLAINTEXT://127.0.0.1:0,SSL://0.0.0.0:0,INTERNAL://127.0.0.1:{},HTTP://127.0.0.1:0"
        internal = free_port()
        run(
            tmp_path,
            body,
            listeners=listeners.format(internal),
            controller_quorum_voters=f"1@127.0.0.1:{internal}",
            advertised_listeners="SSL://127.0.0.1:0",
        )
    lines = {line["event"]: line for line in logs}
    assert [line["event"] for line in logs].count("closed a client's connection") == 1
    assert lines["a client does not speak TLS on a TLS port"]["listener"] == "SSL"
    assert "a TLS handshake on a plaintext Kafka port" in lines["closed a client's connection"]["reason"]


def test_an_expired_certificate_keeps_clients_out(tmp_path: Path) -> None:
    late = str(ca().issue("late", "late", hosts=("127.0.0.1",), days=-1))

    async def body(node: Node) -> None:
        with pytest.raises(BrokerUnreachable, match="certificate has expired"):
            await knock(at(node, "SSL"), **secure())

    run(tmp_path, body, listener_name_ssl_ssl_keystore_location=late)


def test_certificates_are_changed_while_the_node_runs(tmp_path: Path) -> None:
    file = tmp_path / "node.pem"
    file.write_bytes(ca().issue("late", "late", hosts=("127.0.0.1",), days=-1).read_bytes())

    async def body(node: Node) -> None:
        with pytest.raises(BrokerUnreachable, match="expired"):
            await knock(at(node, "SSL"), **secure())
        file.write_bytes(ca().node(1).read_bytes())
        while True:
            try:
                await knock(at(node, "SSL"), **secure())
                return
            except BrokerUnreachable:
                await asyncio.sleep(0.1)

    run(tmp_path / "data", body, ssl_keystore_location=str(file))


def test_http_over_tls(tmp_path: Path) -> None:
    """Pages, the health check of the container's image, `strandline trace`."""

    async def get(address: str, context: ssl.SSLContext | None, page: str = "healthz") -> bytes:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(f"GET /{page} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    async def body(node: Node) -> None:
        trusting = ssl.create_default_context(cafile=str(ca().file))
        assert b'"ok": true' in await get(at(node, "HTTP"), trusting)
        assert b"this port speaks TLS" in await get(at(node, "HTTP"), None)
        ends = rb'strandline_certificate_not_after_timestamp_seconds\{listener="HTTP",subject="node-1"\} 1\.\d+e\+09'
        assert re.search(ends, await get(at(node, "HTTP"), trusting, "metrics"))

        given = {"listeners": f"INTERNAL://127.0.0.1:1,HTTP://{at(node, 'HTTP')}", "process.roles": "controller"}
        own = {"ssl.keystore.location": str(ca().node(1)), "listener.security.protocol.map": "HTTP:SSL"}
        asked = {environment_name(key): value for key, value in {"node.id": "1", **given, **own}.items()}
        done, said = await asyncio.get_running_loop().run_in_executor(None, health.ask, (), asked)
        assert done, said
        command = [at(node, "HTTP"), "--seconds", "0.1", "--cacert", str(ca().file)]
        for scheme, words in (("https://", "no requests with acks=all"), ("http://", "400")):
            invoke = partial(CliRunner().invoke, trace, [scheme + command[0], *command[1:]])
            shown = await asyncio.get_running_loop().run_in_executor(None, invoke)
            assert words in shown.output

    run(tmp_path, body, listener_security_protocol_map="HTTP:SSL")


@pytest.mark.parametrize(
    ("more", "key", "words"),
    [
        ({"ssl_keystore_location": ""}, "ssl.keystore.location", "a listener of SSL needs one"),
        ({"ssl_keystore_location": "/nowhere"}, "ssl.keystore.location", "No such file"),
        ({"ssl_client_auth": "required", "ssl_truststore_location": ""}, "ssl.truststore.location", "the CAs"),
        ({"ssl_keystore_type": "JKS"}, "ssl.keystore.type", "keytool -importkeystore"),
        ({"ssl_truststore_type": "PKCS12"}, "ssl.truststore.type", "openssl pkcs12"),
        ({"ssl_enabled_protocols": "TLSv1.1"}, "ssl.enabled.protocols", "TLSv1.2, TLSv1.3 or both"),
        ({"ssl_cipher_suites": "ROT13"}, "ssl.cipher.suites", "openssl ciphers"),
        ({"ssl_client_auth": "maybe"}, "ssl.client.auth", "none, requested, required"),
        ({"ssl_principal_mapping_rules": "alice"}, "ssl.principal.mapping.rules", "DEFAULT"),
        (
            {"listener_security_protocol_map": "SSL:TLS"},
            "listener.security.protocol.map",
            "PLAINTEXT, SSL, SASL_PLAINTEXT",
        ),
        ({"listener_security_protocol_map": "OTHER:SSL"}, "listener.security.protocol.map", "a name of `listeners`"),
        ({"listener_name_other_ssl_client_auth": "none"}, "listener.name.other.ssl.client.auth", "plaintext, ssl"),
        ({"listener_name_ssl_ssl_client_auth": "maybe"}, "listener.name.ssl.ssl.client.auth", "requested"),
        ({"ssl_keystore_password": "x"}, "ssl.keystore.password", "ssl.key.password"),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(tmp_path: Path, more: dict[str, str], key: str, words: str) -> None:
    async def body(_: Node) -> None:
        raise AssertionError("it started")

    with pytest.raises(ConfigError) as refused:
        run(tmp_path, body, **more)
    assert refused.value.key == key
    assert words in refused.value.allowed


SECRET = "do-not-show-me"


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    """Not by DescribeConfigs, a log line or an error, of the node or of the client; a mistyped one neither."""
    locked = str(ca().issue("locked", "locked", hosts=("127.0.0.1",), password=SECRET))

    async def body(node: Node) -> None:
        own = str(ca().client("alice", password=SECRET))
        settings = secure(ssl_keystore_location=own, ssl_key_password=SECRET)
        async with Admin(at(node, "SSL"), **settings) as admin:
            shown = repr(await admin.describe_configs([ConfigResource("broker", "1")]))
            assert "ssl.key.password" in shown
            assert SECRET not in repr(effective_settings(AdminConfig(settings)))
            assert SECRET not in shown + repr(admin.config) + repr(AdminConfig(settings))
        with pytest.raises(ConfigError) as refused:
            Session("127.0.0.1:1", AdminConfig({**settings, "ssl_key_password": SECRET + "!"}))
        assert SECRET not in repr(refused.value) + str(vars(refused.value))

    with capture_logs() as logs:
        run(tmp_path, body, ssl_keystore_location=locked, ssl_key_password=SECRET)
    assert SECRET not in repr(logs)
    for wrong in ("ssl.key.pasword", "ssl.key.passwrod", "listener.name.ssl.ssl.keystore.passwd"):
        with pytest.raises(ConfigError) as mistyped:
            NodeConfig({"node.id": "1", wrong: SECRET})
        assert mistyped.value.key == wrong
        assert SECRET not in str(mistyped.value)
