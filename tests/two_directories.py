"""A real node of two log directories."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_ports

COMMAND = [sys.executable, "-m", "strandline.cli.main"]


@contextmanager
def node_of_two_directories(root: Path) -> Iterator[str]:
    """Its directories are `root`/a and `root`/b; yields its bootstrap address."""
    client, internal = free_ports(2)
    settings = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://127.0.0.1:{client},INTERNAL://127.0.0.1:{internal}",
        "log.dirs": f"{root}/a,{root}/b",
    }
    words = [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
    formatting = [*COMMAND, "format", "--initial-controllers", f"1@127.0.0.1:{internal}", *words]
    subprocess.run(formatting, check=True, capture_output=True)
    process = subprocess.Popen([*COMMAND, "node", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["PLAINTEXT"]
    finally:
        process.terminate()
        process.communicate(timeout=20)


def directory_of(root: Path, replica: str) -> str:
    """ "a" or "b": where the replica lies."""
    [name] = [name for name in ("a", "b") if (root / name / replica).exists()]
    return name
