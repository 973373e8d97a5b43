"""An installation without its compiled parts says so: a node in its first line, a client once, `strandline doctor`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.ports import free_ports

from strandline.cli.main import main
from strandline.log import compiled

WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({compiled.PARTS!r})); "
"""The parts cannot be imported in this process, as where nobody could build them."""

COMMAND = WITHOUT + "from strandline.cli.main import main; main()"

CLIENTS = """
import logging
logging.basicConfig(format="%(message)s")
from strandline.client import Admin, Consumer, Producer
for _ in range(2):
    Producer("127.0.0.1:1").close()
    Consumer("127.0.0.1:1").close()
    Admin("127.0.0.1:1").close()
"""


def test_what_is_missing_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One of another Python or C library is there, and no good."""
    broken = tmp_path / "strandline_of_another_python.py"
    broken.write_text("raise ImportError('undefined symbol: PyNothing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    told = compiled.missing(("strandline.log.batch", "strandline.log._nothing", broken.stem))
    assert told == {
        "strandline.log._nothing": "there was no compiler at the installation",
        broken.stem: "undefined symbol: PyNothing",
    }


def test_a_node_says_so_first(tmp_path: Path) -> None:
    """And its metrics tell `strandline doctor`, which may run in a whole installation."""
    listeners = ",".join(
        f"{name}://127.0.0.1:{port}"
        for name, port in zip(("PLAINTEXT", "INTERNAL", "HTTP"), free_ports(3), strict=True)
    )
    settings = tmp_path / "node.properties"
    internal = listeners.split("INTERNAL://")[1].split(",")[0]
    settings.write_text(
        f"node.id=1\nlisteners={listeners}\ncontroller.quorum.voters=1@{internal}\nlog.dirs={tmp_path / 'data'}\n"
    )
    formatted = CliRunner().invoke(main, ["format", "--config", str(settings)])
    assert formatted.exit_code == 0, formatted.output
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, "node", "--config", str(settings)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stderr is not None
        assert node.stdout is not None
        first, second = node.stderr.readline(), node.stderr.readline()
        ready = json.loads(node.stdout.readline())
        asked = ["doctor", "-b", ready["PLAINTEXT"], "--http", ready["HTTP"], "-o", "json"]
        found = json.loads(CliRunner().invoke(main, asked).stdout)
        node.terminate()
        node.stderr.read()
    assert "this installation is slow" in first
    assert all(part in first for part in (*compiled.PARTS, "gcc python3-dev"))
    assert "node started" in second
    assert node.returncode == 0
    assert [one["where"] for one in found if one["kind"] == "slow"] == ["broker 1"]


def test_a_client_says_so_once() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT + CLIENTS], capture_output=True, text=True, check=True)
    assert done.stderr.count("this installation is slow") == 1
    whole = subprocess.run([sys.executable, "-c", CLIENTS], capture_output=True, text=True, check=True)
    assert "this installation is slow" not in whole.stderr


def test_doctor_says_so(tmp_path: Path) -> None:
    """Of the installation that judges a file; what opens a door is another question."""
    settings = tmp_path / "node.properties"
    settings.write_text("node.id=1\nlog.dirs=/var/lib/strandline\n")
    words = [sys.executable, "-c", COMMAND, "doctor", str(settings)]
    done = subprocess.run([*words, "-o", "json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    [found] = [one for one in json.loads(done.stdout) if one["kind"] == "slow"]
    assert found["where"] == "this installation"
    assert all(part in found["setting"] for part in compiled.PARTS)
    assert "a third of the rate" in found["loses"]
    security = subprocess.run([*words, "--security"], capture_output=True, text=True, check=False)
    assert "compiled" not in security.stdout
