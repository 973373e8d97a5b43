"""`strandline chaos run` with clients that work in transactions: librdkafka's writers and pipelines, and Apache Kafka's
copier. What readers of committed records see is whole transactions, once, in order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.fetched import Unavailable
from click.testing import CliRunner

from interop import install
from strandline.chaos.checkers.anomalies import judge
from strandline.chaos.checkers.journal import Recorder, read_history
from strandline.chaos.live.clients.java_transactions import CopyClient
from strandline.chaos.live.clients.options import CLASS_PATH, ClientOptions
from strandline.cli.main import main

COMMAND = [sys.executable, "-m", "strandline.cli.main", "chaos", "run"]
FAULTS = "kill-leader,pause,partition,isolate,kill-all,rolling-restart,slow-disk"


def run(clients: str, minutes: float, evidence: Path, environment: dict[str, str], faults: str = FAULTS) -> dict:
    """What a run tells that holds."""
    words = ["--clients", clients, "--minutes", str(minutes), "--schedule", faults, "--evidence", str(evidence)]
    done = subprocess.run(
        [*COMMAND, *words, "--seed", "3", "-o", "json"], capture_output=True, text=True, timeout=570, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-8000:]
    told: dict = json.loads(done.stdout)
    assert told["held"]
    return told


@pytest.mark.timeout(600)
def test_librdkafka_in_transactions_under_faults(tmp_path: Path) -> None:
    told = run("own,confluent-transactions", 1.5, tmp_path, {})
    figures = told["figures"]
    assert figures["committed"] > 100
    assert figures["aborted"] > 20
    assert figures["faults"] >= 5


@pytest.mark.timeout(600)
def test_kafkas_copier_under_faults(tmp_path: Path) -> None:
    try:
        jars = install.kafka_jars(*install.TOOLS, fetch=False)
    except Unavailable as reason:
        pytest.skip(f"{reason}; `make interop` fetches them")
    told = run("own,java-transactions", 1.5, tmp_path, {CLASS_PATH: jars})
    assert told["figures"]["faults"] >= 5
    assert told["figures"]["read_finally"] > 500


@pytest.mark.parametrize(
    ("copies", "found"),
    [
        (["a", "b", "c"], []),
        (["a", "c"], ["unseen"]),
        (["a", "b", "b", "c"], ["duplicate"]),
        (["a", "c", "b"], ["nonmonotonic-send"]),
    ],
)
def test_what_a_copy_must_be(tmp_path: Path, copies: list[str], found: list[str]) -> None:
    """Each record of the source once, in its order."""
    journal = tmp_path / "java.jsonl"
    options = ClientOptions("", {}, "java", str(journal), 0, 1.0)
    with Recorder(journal) as recorder:
        CopyClient(options, recorder)._note(list(enumerate("abc")), list(enumerate(copies)))
    assert sorted({anomaly.name for anomaly in judge(read_history(journal))}) == found


def test_what_is_said_where_the_copier_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLASS_PATH, raising=False)
    for words, said in (
        (["--clients", "own,java-transactions"], f"java-transactions needs java, and {CLASS_PATH}"),
        (["--clients", "own,java-transactions", "--secure"], "java-transactions takes no login"),
        (["--clients", "confluent-transactions"], "one of own, confluent, aiokafka has to be among them"),
    ):
        result = CliRunner().invoke(main, ["chaos", "run", *words])
        assert result.exit_code == 2
        assert said in " ".join(result.output.split())
