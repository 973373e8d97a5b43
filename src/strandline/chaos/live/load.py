"""The client processes of a run: started, watched, ended; their journals read into one history."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from strandline.chaos.checkers.history import History, Send
from strandline.chaos.checkers.journal import Follower
from strandline.chaos.live.clients.options import CLASS_PATH, COPIED_TOPICS, TRANSACTIONAL_TOPICS, ClientOptions

KINDS = {
    "own": None,
    "confluent": "confluent_kafka",
    "aiokafka": "aiokafka",
    "confluent-transactions": "confluent_kafka",
    "java-transactions": None,
}
"""Kinds of clients, and the package each needs."""

TOPICS_OF: dict[str, dict[str, int]] = {
    "confluent-transactions": TRANSACTIONAL_TOPICS,
    "java-transactions": COPIED_TOPICS,
}
"""Topics of their own that kinds write in transactions, and their partitions. Nobody else writes there: readers of
committed records wait at what is open."""

FINAL_KINDS = ("own", "confluent", *TOPICS_OF)
FINISH_S = 150.0


class ClientFailed(Exception):
    """A client process ended with an error. The message contains the end of its output."""


def why_not(kind: str, *, secure: bool) -> str | None:
    """Reason why a kind of client cannot take part in the load here; None if it can."""
    package = KINDS[kind]
    if package is not None and importlib.util.find_spec(package) is None:
        return "is not installed"
    if kind != "java-transactions":
        return None
    if secure:
        return "takes no login: it is left to clusters without --secure"
    if not os.environ.get(CLASS_PATH) or shutil.which("java") is None:
        return f"needs java, and {CLASS_PATH}: a class path with Apache Kafka's kafka-tools and what they need"
    return None


class Load:
    """Every client of a run.

    Args:
        directory: where journals and error outputs are.
        properties: the file with the settings of clients; None: they need none.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: dict[str, int],
        directory: Path,
        seed: int,
        gap_ms: float,
        *,
        properties: Path | None = None,
    ) -> None:
        self.history = History()
        self.followers: list[Follower] = []
        self._bootstrap = bootstrap
        self._topics = topics
        self._directory = directory
        self._seed = seed
        self._gap_ms = gap_ms
        self._properties = "" if properties is None else str(properties)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, kinds: list[str], *, final: bool = False) -> None:
        """Start one process of each kind. `final`: to read everything once."""
        for kind in kinds:
            name = f"final-{kind}" if final else kind
            journal = self._directory / f"{name}.jsonl"
            self._seed += 1
            options = ClientOptions(
                self._bootstrap,
                self._topics,
                name,
                str(journal),
                self._seed,
                self._gap_ms,
                final=final,
                properties=self._properties,
            )
            with (self._directory / f"{name}.err").open("wb") as errors:
                self._running[name] = subprocess.Popen(
                    [sys.executable, "-m", f"strandline.chaos.live.clients.{kind.replace('-', '_')}", options.encode()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,
                )
            self.followers.append(Follower(journal, self.history))

    def read(self) -> list[Send]:
        """Take in what the clients have written; the sends that have ended since. Raises ClientFailed."""
        ended = [send for follower in self.followers for send in follower.read()]
        for name, process in self._running.items():
            if process.poll():
                raise ClientFailed(f"client {name} ended with exit code {process.returncode}: {self._last_words(name)}")
        return ended

    def finish(self, meanwhile: Callable[[], None]) -> None:
        """Let every client finish its work. Returns once all have ended. Raises ClientFailed."""
        for process in self._running.values():
            if process.stdin is not None:
                process.stdin.close()
        deadline = time.monotonic() + FINISH_S
        while any(process.poll() is None for process in self._running.values()):
            if time.monotonic() > deadline:
                slow = [name for name, process in self._running.items() if process.poll() is None]
                raise ClientFailed(f"clients {', '.join(slow)} did not finish within {FINISH_S:g} s")
            meanwhile()
        meanwhile()
        self._running.clear()

    def kill(self) -> None:
        """End every process that still runs. Idempotent."""
        for process in self._running.values():
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._running.clear()

    def errors(self) -> dict[str, dict[str, int]]:
        """Errors that the clients saw, by client, counted."""
        return {follower.name: follower.errors for follower in self.followers if follower.errors}

    @property
    def journal_bytes(self) -> int:
        """The journals' size."""
        return sum(follower.size_bytes for follower in self.followers)

    def _last_words(self, name: str) -> str:
        return (self._directory / f"{name}.err").read_text(errors="replace")[-2000:].strip()
