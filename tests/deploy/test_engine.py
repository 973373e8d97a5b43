"""Finding, starting and taking away an engine, where there is none: programs in PATH that behave as engines can."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from lab.compose import engine as compose_engine
from lab.compose.engine import Engine, EngineError, NoEngine

NO_SERVER = 'case "$1" in --version) echo "Docker version 20.10.24, build x";; *) exit 1;; esac'
SERVER = """
case "$1" in
--version) echo "Docker version 20.10.24, build x";;
version) echo 20.10.24;;
compose) echo 2.20;;
fail) echo "no such container" >&2; exit 7;;
hang) exec sleep 30;;
esac
"""
SERVER_ONCE_STARTED = 'if [ "$1" = version ] && [ ! -e "$0.up" ]; then exit 1; fi' + SERVER
STUBBORN_DAEMON = 'trap "" TERM; touch "$(dirname "$0")/docker.up"; while :; do sleep 0.1; done'


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in PATH, beside what a shell script needs; temporary directories are made below it too."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "setpriv", "sleep", "touch", "mkdir", "dirname", "rm"):
        (folder / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return folder


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def left_behind(programs: Path) -> list[str]:
    return [path.name for path in programs.parent.iterdir() if path.name.startswith("strandline-engine-")]


def test_a_running_engine_is_used_and_left_alone(programs: Path) -> None:
    program(programs, "docker", SERVER)
    with Engine() as engine:
        assert not engine.own
        assert "was running" in engine.version()
        assert "DOCKER_HOST" not in engine.environment()
    assert left_behind(programs) == []


def test_without_root_the_reason_is_told(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoEngine, match="no container engine runs here, and only root can start one"), Engine():
        pass
    assert left_behind(programs) == []


def test_packages_that_cannot_be_installed_are_named(programs: Path) -> None:
    with pytest.raises(NoEngine, match=r"not installed here: docker\.io docker-compose debootstrap"), Engine():
        pass


def test_a_daemon_that_ends_is_quoted(programs: Path) -> None:
    """And nothing stays behind: no process, no directory."""
    program(programs, "docker", NO_SERVER)
    program(programs, "dockerd", "echo 'failed to mount overlay' >&2; exit 1")
    for name in ("docker-compose", "debootstrap"):
        program(programs, name, "exit 0")
    with pytest.raises(NoEngine, match=r"dockerd was started and ended: failed to mount overlay"), Engine():
        pass
    assert left_behind(programs) == []


def test_a_daemon_that_does_not_end_is_killed(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own id, and with the processes it started."""
    monkeypatch.setattr(compose_engine, "STOP_TIMEOUT_S", 0.3)
    program(programs, "docker", SERVER_ONCE_STARTED)
    program(programs, "dockerd", STUBBORN_DAEMON)
    for name in ("docker-compose", "debootstrap"):
        program(programs, name, "exit 0")
    with Engine() as engine:
        assert engine.own
        assert engine.environment()["DOCKER_HOST"] == f"unix://{engine.directory}/docker.sock"
        daemon = engine.daemon_pid()
        assert daemon is not None
    assert not Path(f"/proc/{daemon}").exists()
    assert left_behind(programs) == []


def test_what_a_daemon_makes_elsewhere_goes_with_it(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it was there before, or others use it."""
    places = [programs.parent / name for name in ("key.json", "sockets", "shared", "older")]
    monkeypatch.setattr(compose_engine, "ELSEWHERE", tuple(map(str, places)))
    key, sockets, shared, older = places
    older.mkdir()
    program(programs, "docker", SERVER_ONCE_STARTED)
    made = f'touch {key}; mkdir {sockets} {shared}; touch {shared}/of-others "$(dirname "$0")/docker.up"'
    program(programs, "dockerd", f"{made}; exec sleep 60")
    for name in ("docker-compose", "debootstrap"):
        program(programs, name, "exit 0")
    with Engine():
        assert key.exists()
        assert sockets.exists()
    assert [path.exists() for path in places] == [False, False, True, True]


def test_commands_are_bounded_and_their_errors_quoted(programs: Path) -> None:
    program(programs, "docker", SERVER)
    with Engine() as engine:
        with pytest.raises(EngineError, match="ended with 7: no such container"):
            engine.docker("fail")
        with pytest.raises(EngineError, match=r"hang: no end after 0\.2 s"):
            engine.docker("hang", timeout_s=0.2)
