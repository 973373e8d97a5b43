"""Two commands in one --directory: the second is refused at once; one that was killed is not in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.spark.pipelines.claim import LOCK_FILE, DirectoryInUse, claimed
from tests.acceptance.helpers import eventually


def run(pipeline: str, directory: Path) -> subprocess.Popen[str]:
    command = ["strandline.cli.main", "spark", "run", pipeline, "--directory", str(directory)]
    return subprocess.Popen(
        [sys.executable, "-m", *command, "--bootstrap", "127.0.0.1:1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def holder(directory: Path) -> str:
    path = directory / LOCK_FILE
    return path.read_text().strip() if path.exists() else ""


@contextmanager
def held(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A command of a pipeline that has the directory and stands still, so that it neither ends nor gives it back."""
    first = run("flights-delays", directory)
    try:
        eventually(lambda: holder(directory) == str(first.pid), 60)
        os.kill(first.pid, signal.SIGSTOP)
        yield first
    finally:
        first.kill()
        first.communicate()


@pytest.mark.parametrize("pipeline", ["flights-delays", "flights-lake"])
def test_a_second_command_in_the_directory_is_refused_and_names_the_first(tmp_path: Path, pipeline: str) -> None:
    """The same pipeline, and another one: both feed the same topics."""
    directory = tmp_path / "pipeline"
    with held(directory) as first:
        there = sorted(directory.rglob("*"))
        second = run(pipeline, directory)
        out, error = second.communicate(timeout=120)
        assert second.returncode == 1
        assert f"process {first.pid} " in " ".join(error.split()), error
        assert "--directory" in error
        assert not out
        assert "starting" not in error, "it has begun to work"
        assert sorted(directory.rglob("*")) == there
        assert holder(directory) == str(first.pid)


def test_a_killed_command_frees_the_directory(tmp_path: Path) -> None:
    with held(tmp_path) as first:
        first.kill()
        first.communicate()
        assert holder(tmp_path) == str(first.pid), "kill -9 leaves the file"
        with claimed(tmp_path):
            assert holder(tmp_path) == str(os.getpid())
            with pytest.raises(DirectoryInUse, match=f"process {os.getpid()} ") as caught, claimed(tmp_path):
                pass
            assert caught.value.pid == os.getpid()
    with claimed(tmp_path):
        pass
    assert holder(tmp_path) == ""
