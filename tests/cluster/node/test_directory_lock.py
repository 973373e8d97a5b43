"""Two real processes on one data directory (schedule 51): other ports, the same files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.ports import free_port

from strandline.cluster.node.config_values import write_voters
from strandline.controller.quorum.api import Voter
from strandline.proto.ids import Endpoint, NodeId

NODE = [sys.executable, "-m", "strandline.cluster.node.run_node"]
STRANDLINE = [sys.executable, "-m", "strandline.cli.main"]


def configured(tmp_path: Path, name: str, voter: Endpoint, internal: int) -> Path:
    """A file of settings for node 1, with an internal port of its own."""
    file = tmp_path / f"{name}.properties"
    voters = write_voters((Voter(NodeId(1), None, voter),))
    file.write_text(
        f"node.id=1\nlog.dirs={tmp_path}/data\ncontroller.quorum.voters={voters}\n"
        f"listeners=PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:{internal}\n"
    )
    return file


def started(config: Path) -> subprocess.Popen[str]:
    """A node that does its work."""
    process = subprocess.Popen([*NODE, str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1])
    assert json.loads(line)["event"] == "ready"
    return process


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    """It is told the directory, the process, its command and what to do, and has changed nothing. SIGKILL of the first
    lets the lock go; nothing has to be cleared away."""
    internal = free_port()
    voter = Endpoint("127.0.0.1", internal)
    config = configured(tmp_path, "one", voter, internal)
    other = configured(tmp_path, "other", voter, free_port())
    subprocess.run([*STRANDLINE, "format", "--config", str(config)], check=True, capture_output=True)
    first = started(config)
    try:
        second = subprocess.run([*NODE, str(other)], capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 1
        assert second.stdout == ""
        said = second.stderr.strip().splitlines()[-1]
        assert f"log.dirs = '{tmp_path}/data'" in said
        assert f"process {first.pid} (" in said
        assert f"run_node {config}" in said
        assert "Stop that process, or give this one a directory of its own" in said
        first.send_signal(signal.SIGKILL)
        first.communicate()
        third = started(config)
        third.send_signal(signal.SIGTERM)
        third.communicate(timeout=60)
        assert third.returncode == 0
        fourth = started(config)
        fourth.kill()
        fourth.communicate()
    finally:
        first.kill()
        first.communicate()
