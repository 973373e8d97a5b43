"""`strandline cluster bundle`: what a report wants is in one archive, and none of the secrets that were seeded."""

from __future__ import annotations

import json
import tarfile
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner, Result
from tests.cli.test_metadata import KEY, SECRET, Recorded

from strandline.cli.main import main
from strandline.proto.secrets import Scrubber

KEYSTORE, JAAS, STORE = "keystore-pass-4711", 'jaas"pass\\4712', "store/key+4713="
CLIENT, ENVIRONMENT, LOGGED = "client-pass-4714", "env-token-4715", "logged-pass-4716"
SEEDED = (KEYSTORE, JAAS, STORE, CLIENT, ENVIRONMENT, LOGGED)

SETTINGS = f"""
node.id=1
process.roles=broker,controller
log.dirs=DIRECTORY
listeners=PLAINTEXT://127.0.0.1:9092,INTERNAL://127.0.0.1:9093
controller.quorum.voters=1@127.0.0.1:9093
ssl.key.password={KEYSTORE}
sasl.jaas.config=org.apache.kafka.ScramLoginModule required username="alice" password="jaas\\"pass\\\\4712";
remote.log.storage.options=region=eu-1,secret_access_key={STORE}
"""

LOG = f"""
2026-11-28 20:00:00 [info] node started settings={{'ssl.key.password': '{LOGGED}'}} node=1
2026-11-28 20:00:01 [info] event=login user=bob password={LOGGED} host=10.0.0.7
2026-11-28 20:00:02 [warning] {{"url": "https://alice:{LOGGED}@10.0.0.7/x", "token": "{LOGGED}"}}
2026-11-28 20:00:03 [debug] Authorization: Basic {b64encode(f"alice:{LOGGED}".encode()).decode()}
2026-11-28 20:00:04 [debug] AWS_SECRET_ACCESS_KEY={LOGGED} azure ?sv=2022&sig={LOGGED}&se=1
2026-11-28 20:00:05 [error] refused {KEYSTORE} and {quote(STORE, safe="")} and {JAAS} of {ENVIRONMENT}
2026-11-28 20:00:06 [debug] PlainLoginModule required user_alice="x" password='{LOGGED}';
-----BEGIN RSA PRIVATE KEY-----
{LOGGED}
-----END RSA PRIVATE KEY-----
2026-11-28 20:00:07 [info] a broker is gone, and fenced broker=2
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The settings of a node that is down, and its directory, with a user in its metadata."""
    from strandline.controller.metadata.scram import ScramSecretRecord, UserScramCredentialRecord

    recorded = Recorded(tmp_path / "data")
    credential = UserScramCredentialRecord("carol", 1, b"salt-of-carol", 4096, KEY, KEY)
    recorded.write([ScramSecretRecord(SECRET[:32]), credential])
    settings = tmp_path / "node.properties"
    settings.write_text(SETTINGS.replace("DIRECTORY", str(tmp_path / "data")))
    (tmp_path / "node.log").write_text(LOG)
    return tmp_path


def run(*words: object, **environment: str) -> Result:
    return CliRunner().invoke(main, ["cluster", "bundle", *map(str, words)], env=environment)


def content(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as opened:
        return {
            entry.name.partition("/")[2]: found.read().decode()
            for entry in opened
            if (found := opened.extractfile(entry)) is not None
        }


def forms(secret: str) -> set[str]:
    raw = secret.encode()
    return {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], raw.hex(), b64encode(raw).decode().rstrip("=")}


def test_no_seeded_secret_is_anywhere_in_the_archive(node: Path) -> None:
    """In settings, JAAS, the options of the store, the client's settings, the environment, URLs, headers and logs."""
    out = node / "report.tar.gz"
    told = run(
        "--config", node / "node.properties", "--log", node / "node.log", "--out", out, "-b", "127.0.0.1:1",
        "-X", f"sasl.password={CLIENT}", "--http", "127.0.0.1:1", "--output", "json", MY_TOKEN=ENVIRONMENT,
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    files = content(out)
    everything = told.output + "".join(f"{name}\n{text}" for name, text in files.items())
    for secret in (*SEEDED, KEY.decode(), SECRET[:32].decode(), "salt-of-carol"):
        assert not [form for form in forms(secret) if form in everything], secret
    assert b64encode(f"alice:{LOGGED}".encode()).decode() not in everything
    assert "a broker is gone, and fenced broker=2" in files["logs/1-node.log"], "and what is no secret stays"
    assert "node.id=1" in files["local/node-1/settings.properties"]
    assert "ssl.key.password=[hidden]" in files["local/node-1/settings.properties"]
    assert "carol" in files["local/node-1/metadata.json"]
    assert out.stat().st_mode & 0o077 == 0


def test_what_could_not_be_got_is_named_and_the_rest_is_there(node: Path) -> None:
    """Nobody answers: the index says so, for people, and the command for programs."""
    out = node / "report.tar.gz"
    told = run(
        "--config", node / "node.properties", "--http", "127.0.0.1:1", "-b", "127.0.0.1:1", "--out", out, "-o", "json"
    )
    document = json.loads(told.output)
    assert set(document["missing"]) == {
        *(f"cluster/{name}.json" for name in ("metadata", "disks", "groups", "transactions")),
        *(f"nodes/127.0.0.1-1/{name}.txt" for name in ("healthz", "readyz", "metrics", "stacks")),
    }
    files = content(out)
    assert set(files) == {*document["parts"], "README.md"}
    assert all(f"| {name} |" in files["README.md"] for name in document["parts"])
    assert all(f"- {name}: " in files["README.md"] for name in document["missing"])
    history = json.loads(files["local/node-1/metadata-history.json"])
    assert [one["what"] for one in history if one["kind"] == "PartitionRecord"]
    assert json.loads(files["local/node-1/metadata-check.json"]) == []
    assert "00000000000000000000.log" in files["local/node-1/files.txt"]
    assert json.loads(files["versions.json"])["strandline"]
    again = run("--config", node / "node.properties", "-b", "127.0.0.1:1", "--out", out)
    assert again.exit_code == 1, "an archive that is there stays"
    assert "exists" in again.output


def test_dry_run_lists_and_makes_nothing(node: Path) -> None:
    before = sorted(node.rglob("*"))
    told = run("--config", node / "node.properties", "--http", "127.0.0.1:1", "--log", node / "node.log", "--dry-run")
    assert told.exit_code == 0, told.output
    assert "local/node-1/metadata-history.json" in told.output
    assert sorted(node.rglob("*")) == before


def test_only_the_end_of_a_log_is_taken(node: Path) -> None:
    out = node / "report.tar.gz"
    run("--log", node / "node.log", "--log-bytes", 140, "--out", out, "-b", "127.0.0.1:1")
    assert content(out)["logs/1-node.log"].splitlines() == ["[hidden]", *LOG.splitlines()[-1:]], "it begins in a key"


def test_a_node_that_does_not_start_is_bundled_all_the_same(node: Path) -> None:
    """Its settings are refused, which is why somebody reports it."""
    settings = node / "node.properties"
    settings.write_text(settings.read_text() + f"listeners=NOWHERE\nsasl.secret={CLIENT}\n")
    out = node / "report.tar.gz"
    told = run("--config", settings, "--out", out, "-b", "127.0.0.1:1")
    assert told.exit_code == 0, told.output
    files = content(out)
    assert files["local/node-1/settings.properties"].startswith("# The node does not start: ")
    assert "carol" in files["local/node-1/metadata.json"]
    assert CLIENT not in "".join(files.values())


@pytest.mark.parametrize(
    "text",
    [
        "topics 3 partitions 5",
        'kafka_server_tokens{topic="passwords"} 3',
        "broker 2 fenced for it is gone: elected from the ISR",
        "retention.ms=604800000",
        "http://10.0.0.1:8092/metrics",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert Scrubber(["abc"]).scrubbed(text) == text


def hides() -> list[tuple[str, Callable[[str], str]]]:
    return [
        ("a setting", lambda secret: f"sasl.password={secret} x=1"),
        ("JSON", lambda secret: json.dumps({"ssl_key_password": secret})),
        ("a repr", lambda secret: repr({"client_secret": secret})),
        ("a query", lambda secret: f"https://store/x?a=1&sas_token={secret}&b=2"),
        ("userinfo", lambda secret: f"s3://{quote(secret, safe='')}@bucket"),
    ]


@pytest.mark.parametrize(("kind", "written"), hides(), ids=[kind for kind, _ in hides()])
def test_secrets_that_nobody_knows_are_hidden_where_secrets_stand(kind: str, written: Callable[[str], str]) -> None:
    assert "Hunter-2/2" not in Scrubber().scrubbed(written("Hunter-2/2"))


def test_of_a_running_cluster(cluster: Any, tmp_path: Path) -> None:
    """Metrics and stacks of each node, the metadata, the disks, the groups."""
    out = tmp_path / "report.tar.gz"
    listeners = [word for node in cluster.broker_ids for word in ("--http", cluster.http(node))]
    told = run("-b", cluster.bootstrap, *listeners, "--out", out, "--output", "json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)["missing"] == {}
    files = content(out)
    assert len(json.loads(files["cluster/metadata.json"])["brokers"]) == 3
    assert len(json.loads(files["cluster/disks.json"])) == 3
    for node in cluster.broker_ids:
        room = "nodes/" + cluster.http(node).replace(":", "-")
        assert "kafka_" in files[f"{room}/metrics.txt"]
        assert json.loads(files[f"{room}/healthz.txt"])["node_id"] == node
        stacks = files[f"{room}/stacks.txt"]
        assert "thread MainThread" in stacks
        assert "strandline/cluster/node/run_node.py" in stacks
        assert "task" in stacks
