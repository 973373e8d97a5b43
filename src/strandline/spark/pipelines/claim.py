"""A pipeline's directory belongs to one command at a time.

Checkpoints, the lake's commits and the feed, which goes on by what the topic holds, stand on having one writer: two
runs over one directory would send records twice and write over each other's progress.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline.proto.errors import StrandlineError

LOCK_FILE = "run.lock"
"""Holds the id of the process that has the directory. It stays when that ends: the lock counts, not the file."""


class DirectoryInUse(StrandlineError):
    """Another process runs a pipeline here; `pid` is its id, or None in the moment before it has written it down."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        self.directory = directory
        self.pid = pid
        who = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"{directory} is in use: {who} runs a pipeline in it. Wait until it has ended, or give another --directory."
        )

    def __reduce__(self) -> tuple[type[DirectoryInUse], tuple[Path, int | None]]:
        return (type(self), (self.directory, self.pid))


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Have a directory for this process alone; it is created if it is missing.

    The lock is flock's: the kernel drops it with the process, however that ends, and no child that runs another program
    inherits it.

    Raises:
        DirectoryInUse: another process has it; at once, nothing waits.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip()
            raise DirectoryInUse(directory, int(pid) if pid.isdecimal() else None) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
