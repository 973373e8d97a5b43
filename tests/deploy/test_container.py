"""The image's entry point as a process, on a real directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.cluster.node.container.settings import load, prepare, refuse_unknown
from strandline.proto.errors import ConfigError
from tests.ports import free_ports

ENTRY_POINT = (sys.executable, "-m", "strandline.cluster.node.container")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A cluster of one node, on an empty volume."""
    client, internal, http = free_ports(3)
    return {
        "PATH": os.environ["PATH"],
        "STRANDLINE_NODE_ID": "1",
        "STRANDLINE_CLUSTER_ID": "containers",
        "STRANDLINE_LOG_DIRS": str(tmp_path / "volume" / "data"),
        "STRANDLINE_LISTENERS": f"PLAINTEXT://127.0.0.1:{client},INTERNAL://127.0.0.1:{internal},HTTP://0.0.0.0:{http}",
        "STRANDLINE_CONTROLLER_QUORUM_VOTERS": f"1@127.0.0.1:{internal}",
    }


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ENTRY_POINT, *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def run_imported(environment: dict[str, str], *words: str) -> set[str]:
    """The modules of ours that the entry point imports: all that a health check costs."""
    command = [sys.executable, "-X", "importtime", *ENTRY_POINT[1:], *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    return {name for name in names if name.startswith("strandline")}


@contextmanager
def running(environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A node that said it is ready; killed at the end if it still runs."""
    with log.open("w") as output:
        node = subprocess.Popen(
            [*ENTRY_POINT, "node"], env=environment, stdout=subprocess.PIPE, stderr=output, text=True
        )
    try:
        assert node.stdout is not None
        said = node.stdout.readline()
        assert said, log.read_text()
        assert json.loads(said)["event"] == "ready"
        yield node
    finally:
        node.kill()
        node.wait()
        assert node.stdout is not None
        node.stdout.close()


def test_an_empty_volume_is_formatted_once_and_the_node_serves(environment: dict[str, str], tmp_path: Path) -> None:
    """Format, run, stop by SIGTERM with exit code 0, run again on the same identity."""
    volume = tmp_path / "volume"
    volume.mkdir()
    log = tmp_path / "log"
    with running(environment, log) as node:
        assert "formatted" in log.read_text()
        identity = (volume / "data" / "meta.properties").read_bytes()
        healthy = run(environment, "health")
        assert (healthy.returncode, json.loads(healthy.stdout)["ok"]) == (0, True)
        least = run_imported(environment, "health")
        assert "strandline.cluster.node.config_values" in least
        assert "strandline.cluster.node.config" not in least
        node.send_signal(signal.SIGTERM)
        assert node.wait(20) == 0
        assert "clean=True" in log.read_text()
    down = run(environment, "health")
    assert down.returncode == 1
    assert "does not answer" in down.stdout
    del environment["STRANDLINE_CLUSTER_ID"]  # a formatted volume knows it
    environment["STRANDLINE_FORMAT"] = "never"
    with running(environment, log):
        assert "formatted" not in log.read_text()
        assert (volume / "data" / "meta.properties").read_bytes() == identity


def test_a_lost_volume_is_formatted_without_a_vote(environment: dict[str, str], tmp_path: Path) -> None:
    """Its controller begins as an observer (schedule 26); a start on the formatted volume changes nothing."""
    (tmp_path / "volume").mkdir()
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(free_ports(3), 1))
    environment |= {"STRANDLINE_FORMAT": "without-vote", "STRANDLINE_CONTROLLER_QUORUM_VOTERS": voters}
    config = load([], environment)
    [voter] = [voter for voter in config.quorum_voters if voter.node_id == 1]
    prepare(config, environment)
    files = {path.name: path.read_bytes() for path in (tmp_path / "volume/data").iterdir() if path.is_file()}
    assert b"directory.id" in files["meta.properties"]
    assert str(voter.directory_id).encode() not in files["meta.properties"]
    prepare(config, environment)
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "volume/data").iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"STRANDLINE_CLUSTER_ID": "another"}, "formatted for node 1 of cluster containers"),
        (
            {"STRANDLINE_NODE_ID": "2", "STRANDLINE_PROCESS_ROLES": "broker"},
            "formatted for node 1 of cluster containers",
        ),
    ],
)
def test_somebody_elses_volume_is_refused(
    environment: dict[str, str], tmp_path: Path, changed: dict[str, str], sentence: str
) -> None:
    (tmp_path / "volume").mkdir()
    formatted = subprocess.run(
        [sys.executable, "-m", "strandline.cli.main", "format", "--cluster-id", "containers"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert formatted.returncode == 0, formatted.stderr
    refused = run(environment | changed)
    assert refused.returncode == 2
    assert sentence in refused.stderr


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"STRANDLINE_FORMAT": "never"}, "Is the right volume mounted there?"),
        ({"STRANDLINE_FORMAT": "always"}, "missing, without-vote or never"),
        ({"STRANDLINE_CLUSTER_ID": ""}, "the same id for all nodes"),
        ({"STRANDLINE_CLUSTER_ID": "-dash"}, "1 to 64 letters"),
        ({"STRANDLINE_BROKR_RACK": "a"}, "did you mean STRANDLINE_BROKER_RACK"),
        ({"STRANDLINE_ZOOKEEPER": "a"}, "no setting has this name"),
        ({"STRANDLINE_NODE_ID": "one"}, "a whole number"),
    ],
)
def test_a_wrong_variable_ends_the_container_with_a_sentence(
    environment: dict[str, str], tmp_path: Path, changed: dict[str, str], sentence: str
) -> None:
    """And nothing is written."""
    (tmp_path / "volume").mkdir()
    refused = run(environment | changed)
    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert refused.stderr.count("\n") == 1, "one sentence, no traceback"
    assert list((tmp_path / "volume").iterdir()) == []


def test_a_volume_that_is_not_writable_is_named(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "volume").write_text("a file where the volume should be")
    refused = run(environment)
    assert refused.returncode == 1
    assert "volume" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_other_words_are_the_program(environment: dict[str, str]) -> None:
    told = run(environment, "topic", "--help")
    assert told.returncode == 0
    assert "create" in told.stdout


def test_what_kubernetes_adds_is_nobodys_mistake() -> None:
    """A pod beside a service named strandline, or strandline-0, gets its addresses as variables."""
    links = (
        "STRANDLINE_PORT STRANDLINE_SERVICE_HOST STRANDLINE_SERVICE_PORT STRANDLINE_SERVICE_PORT_CLIENTS "
        "STRANDLINE_PORT_9092_TCP STRANDLINE_PORT_9092_TCP_ADDR "
        "STRANDLINE_0_SERVICE_HOST STRANDLINE_0_PORT_9092_TCP_PROTO"
    )
    refuse_unknown(dict.fromkeys(links.split(), "x"))
    with pytest.raises(ConfigError, match="STRANDLINE_PROT"):
        refuse_unknown({"STRANDLINE_PROT": "x"})


def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    """As for `strandline node`."""
    file = tmp_path / "node.properties"
    file.write_text("node.id=1\nbroker.rack=file\nnum.partitions=3\nlog.segment.bytes=1000000\n")
    config = load(
        ["--config", str(file), "-X", "broker.rack=option"],
        {"STRANDLINE_BROKER_RACK": "environment", "STRANDLINE_NUM_PARTITIONS": "5", "PATH": "/bin"},
    )
    assert config.broker_rack == "option"
    assert config.dynamic == {"num.partitions": "5", "log.segment.bytes": "1000000"}
