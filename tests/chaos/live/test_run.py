"""`strandline chaos run` whole: a short run that holds, one that must not, bad arguments, and the end by a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from strandline.chaos.live.cluster import LiveCluster
from strandline.chaos.live.faults import FAULTS
from strandline.chaos.live.runner import check_schedule
from strandline.cli.main import main
from strandline.client import Admin
from tests.chaos.live.crashes import logged, run_each

COMMAND = [sys.executable, "-m", "strandline.cli.main", "chaos", "run"]


@pytest.mark.timeout(170)
def test_a_short_run_holds_and_tells_what_each_fault_cost(tmp_path: Path) -> None:
    """Real processes, foreign clients in the load, one checker; gaps by fault; nothing left when it held."""
    schedule = "kill-leader,pause,partition,kill-all"
    words = ["--minutes", "0.25", "--seed", "7", "--schedule", schedule, "--evidence", str(tmp_path), "-o", "json"]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=160, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["held"]
    assert told["violations"] == []
    rows = {row["fault"]: row for row in told["faults"]}
    assert {"(none)", *schedule.split(",")} <= set(rows)
    assert sum(row["times"] for name, row in rows.items() if name != "(none)") >= 2
    assert all(row["gap_max_ms"] >= row["gap_median_ms"] > 0 for row in rows.values() if row["times"])
    figures = told["figures"]
    assert figures["acked_all"] > 500
    # Two fresh readers, and each of them saw at least everything that was acknowledged.
    assert figures["read_finally"] >= 2 * figures["acked_all"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(170)
def test_a_broken_promise_is_found_and_its_evidence_kept(tmp_path: Path) -> None:
    """A follower that rots under the run's eyes: exit code 1, the partition is named, and journals, logs and the story
    are where the last line says; `strandline check` takes the history."""
    words = ["--minutes", "0.1", "--seed", "1", "--schedule", "slow-disk", "--clients", "own", "-o", "json"]
    process = subprocess.Popen(
        [*COMMAND, *words, "--evidence", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        rotting = False
        for line in process.stderr:
            if "slow-disk:" in line and not rotting:
                _rot_a_follower(next(tmp_path.iterdir()) / "cluster", "chaos-b")
                rotting = True
        assert rotting
        assert process.stdout is not None
        told = json.loads(process.stdout.read())
        assert process.wait(30) == 1
    finally:
        process.kill()
        process.wait()
    assert not told["held"]
    [violation] = told["violations"]
    assert violation.startswith("IdenticalReplicas: chaos-b-0")
    evidence = Path(told["directory"])
    assert evidence.parent == tmp_path
    assert json.loads((evidence / "run.json").read_text())["violations"] == told["violations"]
    assert (evidence / "own.jsonl").stat().st_size > 0
    assert len(list((evidence / "logs").glob("node-*.log"))) == 3
    check = [sys.executable, "-m", "strandline.cli.main", "check", str(evidence / "history.jsonl")]
    assert (
        subprocess.run(check, capture_output=True, timeout=60, check=False).returncode == 0
    )  # clients saw nothing of it


def _rot_a_follower(nodes: Path, topic: str) -> None:
    """Change bytes of a record that a client has sent, in the log of a replica that does not lead."""
    text = [(nodes / f"node-{node}.properties").read_text() for node in (1, 2, 3)]
    bootstrap = ",".join(one.partition("PLAINTEXT://")[2].partition(",")[0] for one in text)
    with Admin(bootstrap) as admin:
        [description] = admin.describe_topics([topic])
    follower = next(node for node in (1, 2, 3) if node != description.partitions[0].leader)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        [segment] = (nodes / f"node-{follower}" / f"{topic}-0").glob("*.log")
        place = segment.read_bytes().find(b"own-1")
        if place >= 0:
            with segment.open("r+b") as file:
                file.seek(place)
                file.write(b"OWN")
            return
        time.sleep(0.05)
    raise AssertionError(f"no record of the load in {topic}-0 of node {follower}")


@pytest.mark.parametrize("fault", ["disk-full", "one-stays-dead"])
def test_the_end_by_a_signal_leaves_nothing(tmp_path: Path, fault: str) -> None:
    """Ctrl-C, or SIGTERM, also while every node is down: clients, nodes, mounts and directories are gone."""
    words = ["--minutes", "5", "--schedule", fault, "--evidence", str(tmp_path), "--clients", "own"]
    process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if f"{fault}:" in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= (4 if fault == "disk-full" else 1)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--schedule", "kill-leader,kil"], "no such fault: kil; there are kill-leader, "),
        (["--schedule", " ,"], "no fault is named; there are kill-leader, "),
        (["--clients", "own,ours"], "no such client: ours; there are own, confluent, aiokafka"),
    ],
)
def test_an_unknown_word_is_named_with_those_there_are(words: list[str], says: str) -> None:
    """A misspelled schedule starts nothing."""
    done = CliRunner().invoke(main, ["chaos", "run", *words])
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split()).replace("│ ", "")


def test_every_fault_is_listed_with_a_sentence() -> None:
    """--list, for people and for programs."""
    done = CliRunner().invoke(main, ["chaos", "run", "--list", "-o", "json"])
    assert json.loads(done.stdout) == [{"fault": one.name, "what_it_does": one.sentence} for one in FAULTS.values()]
    done = CliRunner().invoke(main, ["chaos", "run", "--list"])
    assert done.exit_code == 0
    for fault in FAULTS.values():
        assert fault.name in done.stdout
        assert fault.sentence in done.stdout


def test_what_cannot_be_done_here_is_left_out_and_said() -> None:
    """Full disks without disks of their own: the reason, and the rest of the schedule."""
    cluster = LiveCluster()
    try:
        possible, without = check_schedule(["kill", "disk-full", "full-leader"], cluster)
        assert possible == ["kill"]
        assert list(without) == ["disk-full", "full-leader"]
        assert all("disks of their own" in why or "tmpfs" in why for why in without.values())
    finally:
        cluster.stop()


@pytest.mark.timeout(170)
def test_a_rotten_batch_on_the_last_leader_costs_nothing(tmp_path: Path) -> None:
    """Schedule 45 once; test_run_crashes.py has the others, for longer."""
    run_each(["crash-all-one-rots"], tmp_path, seed=3, minutes=0.01)
    assert "the end of a partition's log is cut" in logged(tmp_path)
