"""`strandline chaos run --cut netns` whole: a run that holds, and one that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from strandline.chaos.live.namespaces import why_none

COMMAND = [sys.executable, "-m", "strandline.cli.main", "chaos", "run", "--cut", "netns"]
WHY_NONE = why_none()
pytestmark = pytest.mark.skipif(WHY_NONE is not None, reason=str(WHY_NONE))


def network_of(pid: int) -> str:
    """The network namespace that a process is in; empty when it is gone."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return ""


@pytest.mark.timeout(170)
def test_a_run_over_namespaces_holds(tmp_path: Path) -> None:
    """Issue: network namespaces where root allows; the same load, faults and checks as over proxies."""
    schedule = "partition,isolate,kill-leader"
    words = ["--minutes", "0.5", "--seed", "3", "--schedule", schedule, "--evidence", str(tmp_path), "-o", "json"]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=160, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["violations"] == []
    rows = {row["fault"]: row for row in told["faults"]}
    assert sum(row["times"] for name, row in rows.items() if name in ("partition", "isolate")) >= 2
    # An isolated node is noticed when its session ends: a cut that cut nothing would cost nobody anything.
    assert max(rows[name].get("gap_max_ms", 0) for name in ("partition", "isolate")) > 1000
    assert told["figures"]["acked_all"] > 300
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(120)
def test_a_run_that_is_killed_leaves_no_namespace(tmp_path: Path) -> None:
    """SIGKILL in the middle of a cut: each node is in a network of its own, and all of them end with its processes."""
    words = ["--minutes", "5", "--schedule", "isolate", "--evidence", str(tmp_path), "--clients", "own"]
    process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    children: list[psutil.Process] = []
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "isolate:" in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        nodes = [child for child in children if "strandline.cluster.node.run_node" in child.cmdline()]
        assert len(nodes) == 3
        networks = {network_of(node.pid) for node in nodes}
        assert len(networks) == 3
        networks.add(network_of(process.pid))
        assert len(networks) == 4
        assert network_of(os.getpid()) not in networks
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(nodes, timeout=30)
        assert alive == []
    finally:
        process.kill()
        process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGKILL)
        psutil.wait_procs(children, timeout=10)
    assert not networks & {network_of(pid) for pid in psutil.pids()}
