"""Clients that ask an OAuth server for their tokens, at a node that checks them: async, sync and the command line,
over the end of a token, with a server that fails, and nothing of it in what was written."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs
from tests.client.token_issuer import CLIENT, SECRET, Asked, Issuer, Said, granted, issuer
from tests.cluster.node.secure_node import at, knock, run, secure
from tests.cluster.node.test_sasl import elsewhere
from tests.cluster.node.test_sasl_tokens import claims, tokens_of
from tests.cluster.security.test_tokens import key, published, signed

from strandline.cli.main import main as strandline
from strandline.client import NewTopic, Producer
from strandline.client.aio import Admin, Consumer
from strandline.client.errors import AuthenticationFailed, TokenUnavailable
from strandline.cluster.node.node import Node


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_PASSWORD", "x")
    monkeypatch.setenv("TOKEN_SECRET", SECRET)


def by_credentials(server: Issuer) -> dict[str, Any]:
    """The settings as a Kafka client has them."""
    login = f'x.OAuthBearerLoginModule required clientId="{CLIENT}" clientSecret="${{env:TOKEN_SECRET}}";'
    return secure(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=login,
        sasl_oauthbearer_token_endpoint_url=server.url,
        sasl_login_retry_backoff_ms=1,
        sasl_login_retry_backoff_max_ms=1,
    )


def lasting(seconds: float) -> Any:
    """A token for who asks, by a name and a secret that are right."""

    def answer(asked: Asked) -> Said:
        assert asked.client == f"{CLIENT}:{SECRET}"
        return granted(signed(claims(sub=CLIENT, exp=time.time() + seconds)))

    return answer


def test_clients_log_in_by_tokens_of_a_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Async, sync and the command line; records go on while tokens end; nothing shows secret or token."""
    caplog.set_level(logging.DEBUG)
    (tmp_path / "jwks.json").write_text(published(key()))
    shown: list[str] = []

    async def body(node: Node) -> None:
        own = by_credentials(server)
        where = at(node, "SECRET")
        async with Admin(where, **own) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])
            assert node.broker is not None
            [listener] = [each for each in node.broker.listeners if each.name == "SECRET"]
            assert {connection.peer.principal for connection in listener.connections} == {f"User:{CLIENT}"}
        assert len(server.asked) == 1
        shown.append(await elsewhere(listed, where, own))

        server.answer = lasting(0.4)
        before = len(server.asked)
        await elsewhere(produced, where, own)
        assert len(server.asked) - before >= 2  # the first one ended long before the last record
        async with Consumer(where, auto_offset_reset="earliest", **own) as consumer:
            consumer.assign([("t", 0)])
            read: list[bytes | None] = []
            while len(read) < 8:
                read += [record.value for record in await consumer.poll(1.0)]
        assert read == [b"%d" % number for number in range(8)]

        server.answer = lambda _: Said(401, b'{"error": "invalid_client"}')
        with pytest.raises(
            AuthenticationFailed, match=r"gives client 'spark-job' no token: status 401, invalid_client"
        ):
            await knock(where, **own)
        server.answer = lambda _: Said(503)
        with pytest.raises(TokenUnavailable, match=f"no token from {server.url}: status 503"):
            await knock(where, **own)

    def produced(where: str, own: dict[str, Any]) -> None:
        with Producer(where, **own) as producer:
            for number in range(8):
                producer.send("t", b"%d" % number).result(20)
                time.sleep(0.1)

    with issuer() as server, capture_logs() as logs:
        server.answer = lasting(3600)
        run(tmp_path / "data", body, **{**tokens_of(f"file://{tmp_path / 'jwks.json'}"), **EXACT})
        shown += [repr(logs), caplog.text]
    assert "t" in shown[0].split()
    everything = "".join(shown) + "".join(each.read_bytes().decode("latin-1") for each in files(tmp_path / "data"))
    assert SECRET not in everything
    assert "eyJ" not in everything  # how every JWT begins


EXACT = {"sasl.oauthbearer.clock.skew.seconds": "0"}


def files(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.is_file()]


def listed(where: str, own: dict[str, Any]) -> str:
    pairs = [argument for name, value in own.items() for argument in ("-X", f"{name.replace('_', '.')}={value}")]
    done = CliRunner().invoke(strandline, ["topic", "list", "-b", where, *pairs], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output
