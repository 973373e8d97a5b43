"""Common parts of other people's clients: what they send, and how it is written down."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from strandline.chaos.checkers.history import Partition, Poll, Send, Status
from strandline.chaos.checkers.journal import Recorder
from strandline.chaos.live.clients.options import ClientOptions
from strandline.proto.jaas import parse_jaas


def now_ms() -> float:
    """The machine's monotonic clock, which all processes of a run share."""
    return time.monotonic() * 1000


class Login(NamedTuple):
    """Login of a client to a secure cluster: over TLS, by a user's password."""

    ca: str
    mechanism: str
    user: str
    password: str


def login_of(options: ClientOptions) -> Login | None:
    """Login from settings of Kafka's own clients, for clients that have other names for it; None without a login."""
    settings = options.settings
    if not settings:
        return None
    _, jaas = parse_jaas(settings["sasl.jaas.config"])
    return Login(settings["ssl.truststore.location"], settings["sasl.mechanism"], jaas["username"], jaas["password"])


class Load(Protocol):
    """The work of one process of a run."""

    def run(self) -> None:
        """Send and read until the run tells this process to end."""

    def run_final(self) -> int:
        """Read everything from the beginning. Returns the exit code."""


def run_process(make: Callable[[ClientOptions, Recorder], Load]) -> int:
    """Run the process of a client, whose options are its one argument. Returns its exit code."""
    options = ClientOptions.decode(sys.argv[1])
    with Recorder(options.journal) as recorder:
        client = make(options, recorder)
        if options.final:
            return client.run_final()
        client.run()
    return 0


class ForeignClient:
    """One producer, replaced by another whenever it can send no more, and one consumer; what they do is recorded.

    Attributes:
        options: what this process is told.
        errors: what went wrong in the client's eyes, counted.
    """

    def __init__(self, options: ClientOptions, recorder: Recorder) -> None:
        self.options = options
        self.errors: dict[str, int] = {}
        self._recorder = recorder
        self._rng = random.Random(options.seed)
        self._values = 0
        self._lives = 0

    def _begin_life(self) -> None:
        """Begin another producer: an order of records is promised for each by itself."""
        self._lives += 1

    def _failed(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1

    def _gap_s(self) -> float:
        """Seconds to wait before the next send."""
        return self._rng.uniform(0, 2 * self.options.gap_ms) / 1000

    def _invoke(self) -> tuple[Send, bytes]:
        """A record to any partition, recorded as being sent now, and its value."""
        where = self._rng.choice(self.options.partitions)
        self._values += 1
        value = f"{self.options.name}-{self._values}"
        process = f"{self.options.name}-{self._lives}"
        return self._recorder.send(Send(process, where, value, invoked_ms=now_ms())), value.encode()

    def _end(self, send: Send, status: Status, offset: int | None = None) -> None:
        """Note how a send has ended."""
        send.status, send.offset, send.completed_ms = status, offset, now_ms()

    def _saw(self, records: list[tuple[Partition, int, bytes]], invoked_ms: float, *, final: bool = False) -> None:
        """Note that a poll begun then has returned these (partition, offset, value)."""
        if records:
            found = [(where, offset, value.decode()) for where, offset, value in records]
            name = f"{self.options.name}-reader"
            self._recorder.poll(Poll(name, found, invoked_ms=invoked_ms, completed_ms=now_ms(), final=final))
