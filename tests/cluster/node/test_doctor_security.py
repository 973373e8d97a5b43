"""`strandline doctor --security` names each open door of a file, and its advice closes it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cluster.security.tls_case import ca

from strandline.cli.main import main
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.doctor import NO_EFFECT, OPEN
from strandline.cluster.node.doctor_security import judge_security
from strandline.cluster.node.settings import STANDARD_AUTHORIZER

LOCAL = {"node.id": "1", "log.dirs": "/nowhere", "controller.quorum.voters": "1@a:1"}


def closed(**more: str) -> dict[str, str]:
    """A node that others reach, and let in by name alone; settings with _ for each dot."""
    given = {
        "listeners": "CLIENTS://10.0.0.1:9093,INTERNAL://10.0.0.1:19092,HTTP://127.0.0.1:8092",
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,INTERNAL:SSL",
        "connections.max.reauth.ms": "3600000",
        "max.connections.per.ip": "200",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin",
        "ssl.keystore.location": str(ca().node(1)),
        "ssl.truststore.location": str(ca().file),
    }
    return LOCAL | given | {key.replace("_", "."): value for key, value in more.items()}


def doors(given: dict[str, str], path: str | None = None) -> list[str]:
    found = list(judge_security(NodeConfig(given, path=path), time.time()))
    assert all(finding.kind in (OPEN, NO_EFFECT) and finding.loses and finding.remedy for finding in found)
    return [finding.setting for finding in found]


def test_the_defaults_and_a_node_that_asks_everybody_are_closed() -> None:
    assert doors(LOCAL) == []
    assert doors(closed()) == []


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (
            {"listener_security_protocol_map": "CLIENTS:PLAINTEXT,INTERNAL:SSL"},
            ["(PLAINTEXT), without TLS", "(PLAINTEXT), without authentication", "tells clients apart"],
        ),
        ({"listener_security_protocol_map": "CLIENTS:SASL_PLAINTEXT,INTERNAL:SSL"}, ["without TLS"]),
        (
            {"listener_security_protocol_map": "CLIENTS:SSL,INTERNAL:SSL"},
            ["(SSL), without authentication", "tells clients apart"],
        ),
        ({"listener_security_protocol_map": "CLIENTS:SSL,INTERNAL:SSL", "ssl_client_auth": "required"}, []),
        ({"listener_security_protocol_map": "CLIENTS:SASL_SSL"}, ["INTERNAL://10.0.0.1:19092 in plaintext"]),
        (
            {"listener.name.internal.ssl.endpoint.identification.algorithm": ""},
            ["ssl.endpoint.identification.algorithm is empty"],
        ),
        (
            {"listeners": "CLIENTS://10.0.0.1:9093,INTERNAL://10.0.0.1:19092,HTTP://10.0.0.1:8092"},
            ["HTTP://10.0.0.1:8092"],
        ),
        ({"strandline_fault_injection": "true"}, ["strandline.fault.injection = true"]),
        ({"authorizer_class_name": "", "super_users": ""}, ["authorizer.class.name is not set"]),
        ({"authorizer_class_name": ""}, ["authorizer.class.name is not set", "super.users = User:admin"]),
        ({"allow_everyone_if_no_acl_found": "true"}, ["allow.everyone.if.no.acl.found = true"]),
        ({"super_users": "User:admin;User:ANONYMOUS"}, ["super.users has User:ANONYMOUS"]),
        ({"connections_max_reauth_ms": "0"}, ["connections.max.reauth.ms = 0"]),
        ({"max_connections_per_ip": str(2**31 - 1)}, ["max.connections and max.connections.per.ip have no bound"]),
    ],
)
def test_each_door_is_named(more: dict[str, str], named: list[str]) -> None:
    found = doors(closed(**more))
    assert len(found) == len(named), found
    for setting, words in zip(found, named, strict=True):
        assert words in setting


def test_passwords_that_can_be_read_on_the_way() -> None:
    clear = {
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,INTERNAL:SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.plain.without.tls": "true",
        "listener.name.clients.plain.sasl.jaas.config": 'a.PlainLoginModule required user_alice="${env:ALICE}";',
    }
    [finding] = judge_security(NodeConfig(closed() | clear), time.time())
    assert finding.loses == "whoever is on the way reads passwords or tokens, every record, and can change it"


def test_the_advice_closes_the_door() -> None:
    """Each `name=value` and each `NAME:PROTOCOL` of an advice can be typed as it stands, and the finding is gone."""
    given = closed(
        listeners="CLIENTS://10.0.0.1:9093,INTERNAL://10.0.0.1:19092,HTTP://10.0.0.1:8092",
        listener_security_protocol_map="CLIENTS:PLAINTEXT",
        authorizer_class_name="",
        connections_max_reauth_ms="0",
        max_connections_per_ip=str(2**31 - 1),
    )
    before = doors(given)
    assert len(before) == 7
    for _ in range(2):  # a listener that speaks SASL has sessions, whose door is seen then
        for finding in judge_security(NodeConfig(given), time.time()):
            for pair in re.findall(r"\b([A-Z]+:[A-Z_]+)\b in listener|(HTTP:SSL)", finding.remedy):
                given["listener.security.protocol.map"] += "," + "".join(pair)
            for name, value in re.findall(r"([a-z]+(?:\.[a-z]+)+)=([\w.]+)", finding.remedy):
                given.setdefault(name, "")
                given[name] = value
        protocols = (pair.split(":") for pair in given["listener.security.protocol.map"].split(",") if pair)
        # The last advice of a listener counts: a name stands in the map once.
        given["listener.security.protocol.map"] = ",".join(":".join(pair) for pair in dict(protocols).items())
    assert doors(given) == []


def test_what_others_of_the_machine_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, key, data = tmp_path / "node.properties", tmp_path / "node.pem", tmp_path / "data"
    file.write_text("")
    key.write_bytes(ca().node(1).read_bytes())
    data.mkdir()
    given = closed(ssl_keystore_location=str(key), log_dirs=str(data), ssl_key_password="abc")
    for path in (file, key, data):
        path.chmod(0o755 if path == data else 0o644)
    advice = [finding.remedy for finding in judge_security(NodeConfig(given, path=str(file)), time.time())]
    assert advice == [f"chmod o= {path}" for path in (file, key, data)]
    for path in (file, key, data):
        path.chmod(path.stat().st_mode & 0o770)
    assert doors(given, str(file)) == []
    file.chmod(0o644)
    monkeypatch.setenv("KEY_PASSWORD", "abc")
    assert doors(given | {"ssl.key.password": "${env:KEY_PASSWORD}"}, str(file)) == []


def test_certificates_that_end_and_the_command(tmp_path: Path) -> None:
    given = closed(ssl_keystore_location=str(ca().issue("old", "old", hosts=("a",), days=-1)))
    [setting] = doors(given)
    assert setting == "ssl.keystore.location: the certificate of old ended 1 days ago"

    unfit = closed(listener_security_protocol_map="CLIENTS:SASL_SSL", ssl_keystore_location=str(ca().client("bob")))
    assert doors(unfit)[1:] == [
        "ssl.keystore.location: no server may show this certificate (unsuitable certificate purpose)"
    ]

    file = tmp_path / "node.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    told = CliRunner().invoke(main, ["doctor", "--security", str(file), "-o", "json"])
    assert told.exit_code == 1
    assert [(one["kind"], one["setting"]) for one in json.loads(told.output)] == [("open", setting)]
    file.write_text("".join(f"{name}={value}\n" for name, value in closed().items()))
    told = CliRunner().invoke(main, ["doctor", "--security", str(file)])
    assert (told.exit_code, told.output) == (0, "No open door found.\n")
    told = CliRunner().invoke(main, ["doctor", "--security"])
    assert "--security judges configuration files" in told.output
