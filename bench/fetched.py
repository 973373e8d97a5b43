"""Getting what is no part of this project: peers to measure beside, other people's clients."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

STEP_TIMEOUT_S = 900


class Unavailable(Exception):
    """This peer or client cannot be had on this machine; the message is the plain reason."""


def cache(what_for: str = "bench") -> Path:
    """Where things are kept once they were fetched: a folder of the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / f"strandline-{what_for}"


def need(*programs: str, what_for: str) -> None:
    """Raises Unavailable, naming the first that is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            raise Unavailable(f"{what_for} needs {program}, which is not installed")


def run(
    command: Sequence[str],
    where: Path,
    what: str,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> None:
    """One step of getting something.

    Args:
        where: the folder to run it in.
        what: the step, as the reason names it.
        environment: beside that of this process.
        log: takes the whole output where it fails.

    Raises:
        Unavailable: it failed, or did not end in time; with the end of its output.
    """
    try:
        done = subprocess.run(
            command,
            cwd=where,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{what}: not within {STEP_TIMEOUT_S} s") from error
    if done.returncode:
        reason = f"{what} failed: {' '.join(done.stdout.split())[-160:]}"
        if log is not None:
            log.write_text(done.stdout)
            reason += f" ({log.name} in {log.parent})"
        raise Unavailable(reason)
