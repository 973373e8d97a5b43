"""A client under test: a program that takes commands, or a command-line tool behind the same calls."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

CALL_TIMEOUT_S = 40.0
START_TIMEOUT_S = 60.0


class NotSupported(Exception):
    """The client has no such thing; the message says what it lacks."""


class ClientError(Exception):
    """The client told an error; `code` is Kafka's, or below 0 where the client shows none."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (code {code})")
        self.code = code


class DriverGone(Exception):
    """The driver did not answer in time, or ended; its last words are in the message."""


class Driver(Protocol):
    """One running client. `call` raises NotSupported, ClientError or DriverGone."""

    def call(self, op: str, /, **arguments: Any) -> dict[str, Any]: ...

    def begin(self, op: str, /, **arguments: Any) -> None:
        """Send a command without waiting: two members of a group must poll at the same time."""
        ...

    def finish(self) -> dict[str, Any]:
        """The answer to `begin`."""
        ...

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        ...

    def stop(self) -> None: ...


class ProcessDriver:
    """A driver program of interop/drivers: one command and one answer a line, both JSON."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self._buffer = b""
        self._timeout_s = START_TIMEOUT_S

    def call(self, op: str, /, **arguments: Any) -> dict[str, Any]:
        self.begin(op, **arguments)
        return self.finish()

    def begin(self, op: str, /, **arguments: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise DriverGone(self._last_words()) from error

    def finish(self) -> dict[str, Any]:
        while True:
            line = self._line()
            with contextlib.suppress(ValueError):  # a client that prints to its standard output
                told = json.loads(line)
                if isinstance(told, dict):
                    self._timeout_s = CALL_TIMEOUT_S
                    return outcome(told)

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.kill()
                    raise DriverGone(f"no answer within {self._timeout_s:.0f} s; {self._last_words()}")
                chunk = os.read(self._process.stdout.fileno(), 1 << 20)
                if not chunk:
                    raise DriverGone(f"ended; {self._last_words()}")
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 400))
        return self._errors.read().decode(errors="replace").strip() or "it said nothing"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


class ToolDriver:
    """Command-line tools: an op is a method of the subclass, run when it is called."""

    def call(self, op: str, /, **arguments: Any) -> dict[str, Any]:
        method = getattr(self, f"op_{op}", None)
        if method is None:
            raise NotSupported("the tool has no such command")
        return method(**arguments) or {}

    def begin(self, op: str, /, **arguments: Any) -> None:
        raise NotSupported("one command at a time")

    def finish(self) -> dict[str, Any]:
        raise NotSupported("one command at a time")

    def kill(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Nothing runs between two calls."""


def outcome(told: dict[str, Any]) -> dict[str, Any]:
    """The result in a driver's answer, or its error raised."""
    if "ok" in told:
        result: dict[str, Any] = told["ok"]
        return result
    if "unsupported" in told:
        raise NotSupported(told["unsupported"])
    raise ClientError(told["error"], told["text"])
