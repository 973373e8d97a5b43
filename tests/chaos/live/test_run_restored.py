"""`strandline chaos run --schedule restore-then-produce`: what is acknowledged after a restore is there (rule B27)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "strandline.cli.main", "chaos", "run", "--clients", "own", "-o", "json"]


@pytest.mark.timeout(170)
def test_new_producers_write_to_what_a_lost_cluster_wrote(tmp_path: Path) -> None:
    """Schedule 92, with a cluster that is lost, a store, and new producers, as a user sees them."""
    words = ["--minutes", "0.1", "--schedule", "restore-then-produce", "--evidence", str(tmp_path)]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=160, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["violations"] == []
    assert any("restored from the store" in what for _, what in told["struck"]), done.stderr
    assert list(tmp_path.iterdir()) == []
