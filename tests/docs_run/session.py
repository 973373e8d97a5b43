"""A reader at a terminal: commands one after the other, programs, and what stays running in terminals of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

COMMAND_TIMEOUT_S = 900.0
READY_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0
POLL_S = 0.1

_KEEP = """trap 'status=$?; env -0 > "{state}/env"; pwd > "{state}/cwd"; exit $status' EXIT
set -e -o pipefail
{script}
"""
"""What a reader's shell keeps from one block to the next: variables (an activated environment) and the directory."""


class WentWrong(AssertionError):
    """A command failed, a program raised, something that should stay running ended. `printed` is what it printed."""

    def __init__(self, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.printed = printed


@dataclass
class _Terminal:
    """A terminal in which something stays running."""

    command: str
    log: Path
    process: subprocess.Popen[bytes]


class Session:
    """One reader with one page: everything is run in `directory`, and what still runs is ended by `close`."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self._environment = dict(environment)
        self._state = tempfile.TemporaryDirectory(prefix="docs-run-")
        self._terminals: list[_Terminal] = []
        self._started = 0
        self._programs = 0

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def shell(self, script: str) -> str:
        """Run commands; what they print. Raises WentWrong for the first that fails."""
        state = Path(self._state.name)
        printed = self._run(["bash", "-c", _KEEP.format(state=state, script=script)], script)
        pairs = (entry.partition("=") for entry in (state / "env").read_text().split("\0") if entry)
        self._environment = {name: value for name, _, value in pairs}
        self.directory = Path((state / "cwd").read_text().rstrip("\n"))
        return printed

    def again(self, script: str, suits: Callable[[str], bool]) -> str:
        """Run commands again and again until what they print suits; what they printed last, after two minutes."""
        deadline, pause = time.monotonic() + READY_TIMEOUT_S, threading.Event()
        while True:
            try:
                printed = self.shell(script)
            except WentWrong as wrong:
                printed = wrong.printed
            if suits(printed) or time.monotonic() > deadline:
                return printed
            pause.wait(POLL_S)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the shell would hand on now."""
        return dict(self._environment)

    def python(self, program: str) -> str:
        """Run a program of its own, saved in the directory, with the Python that the reader's shell finds; what it
        prints. Raises WentWrong."""
        self._programs += 1
        path = self.directory / f"program_{self._programs}.py"
        path.write_text(program)
        try:
            return self._run(["bash", "-c", f"exec python {path.name}"], program)
        finally:
            path.unlink()

    def start(self, command: str, until: str) -> None:
        """Run a command that goes on until the end, in a terminal of its own, and wait until it has printed `until`.

        Raises:
            WentWrong: it ended, or did not print that in time.
        """
        self._started += 1
        log = Path(self._state.name) / f"terminal_{self._started}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.directory,
                env={**self._environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        terminal = _Terminal(command, log, process)
        self._terminals.append(terminal)
        waited_s = 0.0
        while until not in log.read_text(errors="replace"):
            self._check(terminal)
            if waited_s > READY_TIMEOUT_S:
                raise WentWrong(f"{command} did not print {until!r} in time:\n{_end_of(log)}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
            waited_s += POLL_S

    def interrupt(self, command: str) -> None:
        """Press Ctrl-C where something with such a beginning runs, and wait for its end. Raises WentWrong."""
        terminal = next((one for one in reversed(self._terminals) if one.command.startswith(command)), None)
        if terminal is None:
            raise WentWrong(f"nothing runs as {command}")
        self._check(terminal)
        self._terminals.remove(terminal)
        _press(terminal)

    def check(self) -> None:
        """Raises WentWrong if something that should stay running has ended."""
        for terminal in self._terminals:
            self._check(terminal)

    def close(self) -> None:
        """Press Ctrl-C in every terminal, the last one first."""
        for terminal in reversed(self._terminals):
            _press(terminal)
        self._terminals.clear()
        self._state.cleanup()

    def _check(self, terminal: _Terminal) -> None:
        code = terminal.process.poll()
        if code is not None:
            raise WentWrong(f"{terminal.command} ended with {code}:\n{_end_of(terminal.log)}")

    def _run(self, command: list[str], shown: str) -> str:
        with subprocess.Popen(
            command,
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                printed = process.communicate(timeout=COMMAND_TIMEOUT_S)[0].decode(errors="replace")
            except BaseException:  # a timeout, or Ctrl-C here
                os.killpg(process.pid, signal.SIGKILL)
                raise
        if process.returncode:
            told = f"ended with {process.returncode}:\n{shown}\n---- it printed:\n{printed[-6000:]}"
            raise WentWrong(told, printed)
        sys.stdout.write(f"{shown}\n---- it printed:\n{printed}\n")  # pytest -rP shows it
        return printed


def _press(terminal: _Terminal) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(terminal.process.pid, signal.SIGINT)
    try:
        terminal.process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(terminal.process.pid, signal.SIGKILL)
        terminal.process.wait()
    with contextlib.suppress(ProcessLookupError):  # the JVM of a driver that was interrupted may stay behind
        os.killpg(terminal.process.pid, signal.SIGKILL)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]
