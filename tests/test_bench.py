"""Peers of the benchmarks: left out with the reason where they cannot be had, and ended with all they started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from bench.__main__ import PEERS, main
from bench.clusters import end
from bench.driven import driver
from bench.fetched import Unavailable
from bench.nats import nats_server
from bench.rabbitmq import unpacked
from click.testing import CliRunner


@pytest.mark.parametrize(("get", "lacks"), [(driver, "go"), (nats_server, "go"), (unpacked, "apt-get")])
def test_a_peer_that_cannot_be_had_is_left_out_with_the_reason(
    get: Callable[[], object], lacks: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is fetched and nothing fails: the message names the program that is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match=f"{lacks}.*is not installed"):
        get()
    assert not list(tmp_path.iterdir())


def test_a_peer_nobody_knows() -> None:
    """Before anything is started."""
    refused = CliRunner().invoke(main, ["--peers", "kafka,pulsar"])
    assert refused.exit_code == 2
    assert "pulsar is none of kafka, nats, rabbitmq" in refused.output


def test_no_column_stands_twice() -> None:
    assert len({column for columns in PEERS.values() for column in columns}) == sum(map(len, PEERS.values()))


def test_a_peer_ends_with_all_that_it_started() -> None:
    """Erlang starts helpers in process groups of their own."""
    code = (
        "import subprocess, sys\n"
        "below = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE, start_new_session=True)\n"
        "print(below.pid, flush=True)\n"
        "below.wait()\n"
    )
    script = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert script.stdout is not None
    below = int(script.stdout.readline())
    end([script])
    script.stdout.close()
    assert script.returncode == -9
    assert not psutil.pid_exists(below) or psutil.Process(below).status() == psutil.STATUS_ZOMBIE
