"""`strandline chaos run` whole: a short run that holds, one that must not, bad arguments, and the end by a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from strandline.chaos.live.cluster import LiveCluster
from strandline.chaos.live.faults import FAULTS
from strandline.chaos.live.runner import LiveRun, RunOptions, check_schedule

COMMAND = [sys.executable, "-m", "strandline.cluster.cli.main", "chaos", "run"]


@pytest.mark.timeout(170)
def test_a_short_run_holds_and_tells_what_each_fault_cost(tmp_path: Path) -> None:
    """Issue: real processes, foreign clients in the load, one checker; gaps by fault; nothing left when it held."""
    schedule = "kill-leader,pause,partition,kill-all"
    words = ["--minutes", "0.4", "--seed", "7", "--schedule", schedule, "--evidence", str(tmp_path), "-o", "json"]
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


@pytest.mark.timeout(120)
def test_a_broken_promise_is_found(tmp_path: Path) -> None:
    """A follower that rots under the run's eyes: the run does not hold, and says which partition."""
    with LiveCluster() as cluster:

        def rot() -> None:
            leader = cluster.leader("rotten")
            follower = next(node for node in cluster.broker_ids if node != leader)
            directory = Path(cluster.data_dir(follower), "rotten-0")
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                [segment] = directory.glob("*.log")
                place = segment.read_bytes().find(b"own-1")
                if place >= 0:
                    with segment.open("r+b") as file:
                        file.seek(place)
                        file.write(b"OWN")
                    return
                time.sleep(0.05)

        rotting = threading.Thread(target=rot)

        def tell(line: str) -> None:
            if "clients: own" in line and not rotting.is_alive():
                threading.Timer(3, rotting.start).start()

        options = RunOptions(["slow-disk"], 0.1, 1, ["own"], topics={"rotten": 1})
        outcome = LiveRun(cluster, options, tmp_path, tell).execute()
        rotting.join()
    assert not outcome.held
    [violation] = outcome.violations
    assert violation.startswith("IdenticalReplicas: rotten-0")
    assert json.loads((tmp_path / "run.json").read_text())["violations"] == outcome.violations
    assert (tmp_path / "own.jsonl").stat().st_size > 0


def test_the_end_by_a_signal_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C, or SIGTERM: clients, nodes, mounts and directories are gone."""
    words = ["--minutes", "5", "--schedule", "disk-full", "--evidence", str(tmp_path), "--clients", "own"]
    process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "disk-full:" in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 4
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


def test_an_unknown_fault_is_named_with_those_there_are() -> None:
    """A misspelled schedule starts nothing."""
    done = subprocess.run(
        [*COMMAND, "--schedule", "kill-leader,kil"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "no such fault: kil; there are kill-leader, " in " ".join(done.stderr.split()).replace("│ ", "")


def test_every_fault_is_listed_with_a_sentence() -> None:
    """--list."""
    done = subprocess.run([*COMMAND, "--list"], capture_output=True, text=True, timeout=60, check=True)
    for fault in FAULTS.values():
        assert fault.name in done.stdout
        assert fault.sentence in done.stdout


def test_what_cannot_be_done_here_is_left_out_and_said() -> None:
    """disk-full without disks of their own: the reason, and the rest of the schedule."""
    cluster = LiveCluster()
    try:
        possible, without = check_schedule(["kill", "disk-full"], cluster)
        assert possible == ["kill"]
        assert "disks of their own" in without["disk-full"] or "tmpfs" in without["disk-full"]
    finally:
        cluster.stop()
