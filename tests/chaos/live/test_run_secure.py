"""`strandline chaos run --secure` whole: the same load, faults and checks over TLS and logins that begin anew."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

COMMAND = [sys.executable, "-m", "strandline.cli.main", "chaos", "run", "--secure"]


def arguments_of(process: psutil.Process) -> str:
    """What anybody on the machine sees; nothing of a process that has just ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


@pytest.mark.timeout(170)
def test_a_run_over_tls_and_logins_holds(tmp_path: Path) -> None:
    """A fault through the HTTP listener, one that formats a node anew, and sessions of three seconds (KIP-368). No node
    has a listener in plaintext, and no process was told the password by its arguments."""
    schedule = "kill-leader,slow-disk,wiped-dir"
    words = ["--minutes", "0.5", "--seed", "5", "--schedule", schedule, "--evidence", str(tmp_path), "-o", "json"]
    process = subprocess.Popen(
        [*COMMAND, *words, "-X", "connections.max.reauth.ms=3000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "kill-leader:" in line:
                break
        [cluster] = tmp_path.glob("*/cluster")
        for node in (1, 2, 3):
            settings = (cluster / f"node-{node}.properties").read_text()
            assert "PLAINTEXT" not in settings
            assert "listener.security.protocol.map=SASL_SSL:SASL_SSL,INTERNAL:SSL,HTTP:SSL" in settings
        [file] = cluster.glob("*/password")
        password = file.read_text().strip()
        arguments = [arguments_of(child) for child in psutil.Process(process.pid).children(recursive=True)]
        assert any("chaos.live.clients.own" in each for each in arguments)
        assert not any(password in each for each in arguments)
        said, errors = process.communicate(timeout=160)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors + said
    found = json.loads(said)
    assert found["violations"] == []
    rows = {row["fault"]: row for row in found["faults"]}
    assert sum(row["times"] for name, row in rows.items() if name != "(none)") >= 2
    assert found["figures"]["acked_all"] > 300
    assert found["figures"]["read_finally"] >= 2 * found["figures"]["acked_all"]
    assert list(tmp_path.iterdir()) == []
