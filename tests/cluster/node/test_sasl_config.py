"""Settings of SASL that cannot be, of nodes and of clients: refused with the key, what is allowed, and no secret."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs
from tests.cluster.node.secure_node import knock, run
from tests.cluster.node.test_sasl import LISTENERS, PASSWORD, PLAIN_USERS, jaas, settings

from strandline.cli.main import main as strandline
from strandline.client.config import AdminConfig
from strandline.client.errors import AuthenticationFailed
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.node import Node
from strandline.proto.errors import ConfigError, KafkaError


@pytest.fixture(autouse=True)
def _passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_PASSWORD", PASSWORD)


@pytest.mark.parametrize(
    ("more", "key", "words"),
    [
        ({"listener.security.protocol.map": "INTERNAL:SASL_SSL"}, "listener.security.protocol.map", "only clients'"),
        ({"listener.security.protocol.map": "HTTP:SASL_PLAINTEXT"}, "listener.security.protocol.map", "HTTP:SSL"),
        ({"listener.security.protocol.map": "CLEAR:SASL"}, "listener.security.protocol.map", "SASL_PLAINTEXT"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms", "SCRAM-SHA-256, SCRAM-SHA-512, PLAIN"),
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms", "each once"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "sasl.enabled.mechanisms", "sasl.plain.without.tls=true"),
        (
            {"listener.name.clear.sasl.enabled.mechanisms": "PLAIN", "sasl.plain.without.tls": "true"},
            "listener.name.clear.plain.sasl.jaas.config",
            "PlainLoginModule required user_alice",
        ),
        (
            {"listener.name.clear.plain.sasl.jaas.config": "x"},
            "listener.name.clear.plain.sasl.jaas.config",
            "no effect",
        ),
        (
            {"listener.name.http.sasl.enabled.mechanisms": "PLAIN"},
            "listener.name.http.sasl.enabled.mechanisms",
            "HTTP speaks",
        ),
        (
            {"listener.name.no.sasl.enabled.mechanisms": "PLAIN"},
            "listener.name.no.sasl.enabled.mechanisms",
            "`listeners`",
        ),
        ({"sasl.jaas.config": "x"}, "sasl.jaas.config", "certificates"),
        (
            {"listener.name.clear.scram-sha-256.sasl.jaas.config": "x"},
            "listener.name.clear.scram-sha-256.sasl.jaas.config",
            "credentials of SCRAM are in the metadata",
        ),
        ({"sasl.kerberos.kinit.cmd": "x"}, "sasl.kerberos.kinit.cmd", "SCRAM-SHA-512, PLAIN"),
        ({"sasl.server.max.receive.size": "1"}, "sasl.server.max.receive.size", "from 512"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, str], key: str, words: str) -> None:
    given = {"node.id": "1", "listeners": LISTENERS.format(1)}
    protocols = {"listener.security.protocol.map": "CLEAR:SASL_PLAINTEXT,SECRET:SASL_SSL"}
    with pytest.raises(ConfigError) as refused:
        NodeConfig({**given, **protocols, **more})
    assert refused.value.key == key
    assert words in refused.value.allowed


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('ScramLoginModule required user_a="b";', "and not ScramLoginModule"),
        ('PlainLoginModule required username="a" password="s3cret";', "username has no effect: nodes use no SASL"),
        ('PlainLoginModule required user_a="";', "a password of a, which is empty"),
        ("PlainLoginModule required;", "at least one user"),
        ("${env:NO_SUCH_VARIABLE}", "which is not set"),
    ],
)
def test_users_of_plain_that_are_none_stop_the_start(tmp_path: Path, line: str, words: str) -> None:
    async def body(_: Node) -> None:
        raise AssertionError("it started")

    with pytest.raises(ConfigError) as refused:
        run(tmp_path, body, **settings(**{PLAIN_USERS: line}))
    assert refused.value.key == PLAIN_USERS
    assert words in refused.value.allowed
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "SCRAM-SHA-1=[name=a,password=s3cret]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[password=s3cret]",
        "SCRAM-SHA-256=[name=a,password=s3cret,salt=x]",
        "SCRAM-SHA-256=[name=a,password=s3cret,iterations=1]",
        "SCRAM-SHA-256=[name=a,password=s3cret,iterations=many]",
        "SCRAM-SHA-256=[name=a,password=${env:NO_SUCH_VARIABLE}]",
        "SCRAM-SHA-256=[name=a,password=]",
    ],
)
def test_users_that_cannot_be_formatted(tmp_path: Path, text: str) -> None:
    async def body(_: Node) -> None:
        raise AssertionError("it started")

    with pytest.raises(ConfigError) as refused:
        run(tmp_path, body, add_scram=(text,), **settings())
    assert refused.value.key == "--add-scram"
    assert "s3cret" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_settings_without_a_listener_are_told(tmp_path: Path) -> None:
    async def body(_: Node) -> None:
        return

    with capture_logs() as logs:
        run(tmp_path / "none", body, connections_max_reauth_ms="1000", sasl_oauthbearer_clock_skew_seconds="1")
        run(tmp_path / "some", body, **settings(sasl_oauthbearer_clock_skew_seconds="1"))
    lines = [line["settings"] for line in logs if line["event"] == "settings of this node have no effect"]
    assert lines == [
        "connections.max.reauth.ms, sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.clock.skew.seconds",
    ]


def test_a_directory_that_is_there_keeps_its_users(tmp_path: Path) -> None:
    given = ["-X", "node.id=1", "-X", f"log.dirs={tmp_path / 'd'}", "--initial-controllers", "1@127.0.0.1:1"]
    command = [
        "format",
        "--cluster-id",
        "c",
        *given,
        "--add-scram",
        "SCRAM-SHA-256=[name=a,password=${env:ADMIN_PASSWORD}]",
    ]
    assert CliRunner().invoke(strandline, command).exit_code == 0
    again = CliRunner().invoke(strandline, [*command, "--ignore-formatted"])
    assert "Its users are as they were" in again.output
    (tmp_path / "d" / "bootstrap-records").write_text("15010a\n")
    node = [
        sys.executable,
        "-m",
        "strandline.cli.main",
        "node",
        *given[:4],
        "-X",
        "listeners=INTERNAL://127.0.0.1:0",
        "-X",
        "process.roles=controller",
    ]
    started = subprocess.run(node, check=False, capture_output=True, text=True, timeout=60)
    assert started.returncode != 0
    assert "bootstrap-records" in started.stderr


def test_a_login_that_lacks_something_is_refused_before_it_connects() -> None:
    sasl = {"security.protocol": "SASL_SSL"}
    for given, key in (
        ({}, "sasl.mechanism"),
        ({"sasl.mechanism": "PLAIN"}, "sasl.username"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "a"}, "sasl.password"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.jaas.config": "x"}, "sasl.username"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas("scram.ScramLoginModule", "a")}, "sasl.jaas.config"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": "PlainLoginModule required;"}, "sasl.jaas.config"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
    ):
        with pytest.raises(ConfigError) as refused:
            asyncio.run(knock("127.0.0.1:1", **{**sasl, **given}))
        assert refused.value.key == key
    assert AdminConfig({"sasl.password": PASSWORD}).sasl_password == PASSWORD
    assert KafkaError in AuthenticationFailed.__mro__
