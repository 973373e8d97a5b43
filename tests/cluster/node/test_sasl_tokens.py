"""A node that lets clients in by tokens: keys of a file and of an HTTPS address, our client and librdkafka."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from structlog.testing import capture_logs
from tests.cluster.node.secure_node import at, knock, run, secure
from tests.cluster.node.test_sasl import elsewhere, settings
from tests.cluster.security.test_tokens import key, published, signed
from tests.cluster.security.tls_case import ca

from strandline.client import NewTopic
from strandline.client.aio import Admin
from strandline.client.errors import AuthenticationFailed
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.node import Node
from strandline.proto.errors import ConfigError


def claims(**more: Any) -> dict[str, Any]:
    return {"iss": "https://issuer", "aud": "strandline", "sub": "alice", "exp": int(time.time()) + 3600, **more}


def tokens_of(url: str) -> dict[str, str]:
    return settings(
        **{
            "listener.name.secret.sasl.enabled.mechanisms": "OAUTHBEARER,PLAIN",
            "sasl.oauthbearer.jwks.endpoint.url": url,
            "sasl.oauthbearer.expected.issuer": "https://issuer",
            "sasl.oauthbearer.expected.audience": "strandline",
        }
    )


def bearer(file: Path) -> dict[str, Any]:
    own = {"sasl_oauthbearer_token_endpoint_url": f"file://{file}"}
    return secure(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", **own)


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_PASSWORD", "x")


def test_a_token_lets_its_bearer_in(tmp_path: Path) -> None:
    """For as long as it holds; a changed file of keys counts at the next login; nothing shows the token."""
    jwks, file = tmp_path / "jwks.json", tmp_path / "token"
    jwks.write_text(published(key()))
    file.write_text(signed(claims()) + "\n")

    async def body(node: Node) -> None:
        own = bearer(file)
        async with Admin(at(node, "SECRET"), **own) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])
            assert node.broker is not None
            [listener] = [each for each in node.broker.listeners if each.name == "SECRET"]
            assert {connection.peer.principal for connection in listener.connections} == {"User:alice"}
            [session] = {connection.session_ms for connection in admin.session.network._open.values()}
            assert 3_500_000 < session <= 3_630_000
        await elsewhere(librdkafka, at(node, "SECRET"), file.read_text().strip())
        for wrong, words in (
            (signed(claims(exp=1)), "refuses the token of"),
            (signed(claims(), by=key("two")), "refuses the token of"),
            ("", "is empty"),
        ):
            file.write_text(wrong)
            with pytest.raises(AuthenticationFailed, match=words) as refused:
                await knock(at(node, "SECRET"), **own)
            assert not wrong or wrong not in str(refused.value)
        jwks.write_text(published(key("two")))
        file.write_text(signed(claims(), by=key("two")))
        await knock(at(node, "SECRET"), **own)

    with capture_logs() as logs:
        run(tmp_path / "data", body, **tokens_of(f"file://{jwks}"))
    assert "the token has expired" in repr(logs) or "suppressed" in repr(logs)
    assert file.read_text() not in repr(logs)


def librdkafka(bootstrap: str, token: str) -> None:
    given = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(ca().file),
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token, time.time() + 3600),
    }
    consumer = confluent_kafka.Consumer({**given, "group.id": "g"})
    consumer.poll(0)
    assert "t" in consumer.list_topics(timeout=20).topics
    consumer.close()


def test_keys_are_fetched_from_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS that is checked; a token of a new key makes them be fetched again."""
    monkeypatch.setenv("SSL_CERT_FILE", str(ca().file))
    monkeypatch.setattr("strandline.cluster.security.token_keys.SOON_MS", 10.0)
    file = tmp_path / "token"
    file.write_text(signed(claims()))
    answers = ["HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"]
    answers += [
        f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}"
        for text in (published(key()), published(key("two")))
    ]
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers[min(len(asked), len(answers)) - 1].encode())
        writer.close()

    async def lets_in(node: Node) -> None:
        while True:
            try:
                return await knock(at(node, "SECRET"), **bearer(file))
            except AuthenticationFailed:
                await asyncio.sleep(0.01)

    async def body(node: Node) -> None:
        await lets_in(node)
        assert len(asked) >= 2
        assert b"GET /keys?v=1 HTTP/1.1" in asked[0]
        file.write_text(signed(claims(), by=key("two")))
        await lets_in(node)
        assert len(asked) >= 3

    async def main(path: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(ca().node(1))
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        try:
            await asyncio.get_running_loop().run_in_executor(
                None, lambda: run(path, body, **tokens_of(f"https://127.0.0.1:{port}/keys?v=1"))
            )
        finally:
            server.close()

    with capture_logs() as logs:
        asyncio.run(main(tmp_path / "data"))
    assert "status 500" in repr(logs)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sasl.oauthbearer.jwks.endpoint.url", "any token of anybody would do"),
        ("sasl.oauthbearer.expected.issuer", "any token of anybody would do"),
        ("sasl.oauthbearer.expected.audience", "any token of anybody would do"),
    ],
)
def test_what_a_token_must_say_must_be_said(name: str, words: str) -> None:
    given = {key.replace("_", "."): text for key, text in tokens_of("file:///x").items()}
    del given[name]
    with pytest.raises(ConfigError) as refused:
        NodeConfig({"node.id": "1", **given})
    assert refused.value.key == name
    assert words in refused.value.allowed


def test_no_token_without_tls() -> None:
    given = {key.replace("_", "."): text for key, text in tokens_of("file:///x").items()}
    with pytest.raises(ConfigError, match="no OAUTHBEARER on CLEAR, which speaks no TLS"):
        NodeConfig({"node.id": "1", **given, "listener.name.clear.sasl.enabled.mechanisms": "OAUTHBEARER"})
