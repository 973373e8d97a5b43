"""What clients did and saw, in the order in which it was recorded: the input of `anomalies`.

An operation ends *ok*, *fail* (it certainly did not take place) or *info* (nobody knows: a timeout, a broken
connection, NOT_ENOUGH_REPLICAS_AFTER_APPEND). Calling an info a fail invents aborted reads; the reverse hides them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple


class Status(enum.Enum):
    """How an operation ended; INVOKED is one whose end was never seen, and counts as INFO."""

    INVOKED = "invoked"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


@dataclass(slots=True)
class Send:
    """One record given to a producer. Values are unique over the whole history."""

    process: str
    """The producer instance; the order of its sends to a partition is the order of its records."""
    partition: Partition
    value: str
    acks: int = -1
    group: int | None = None
    """Sends of one operation share a group."""
    invoked_ms: float = 0.0
    completed_ms: float = 0.0
    status: Status = Status.INVOKED
    offset: int | None = None

    @property
    def acked(self) -> bool:
        """Promised to survive: acknowledged under acks=all."""
        return self.status is Status.OK and self.acks == -1


@dataclass(slots=True)
class Poll:
    """What one poll of a consumer returned."""

    process: str
    """The consumer instance."""
    records: list[tuple[Partition, int, str]]
    generation: int = 0
    """Counts up at every assign, subscribe or seek: order is promised only within one."""
    status: Status = Status.OK
    invoked_ms: float = 0.0
    completed_ms: float = 0.0
    final: bool = False
    """Part of the last phase: fresh clients, from the beginning, past the highest offset known, nothing failing."""


@dataclass
class History:
    """All operations, oldest first."""

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)

    def send(self, send: Send) -> Send:
        """Record the invocation of a send; its end is written into the object."""
        self.sends.append(send)
        return send

    def poll(self, poll: Poll) -> Poll:
        """Record a poll."""
        self.polls.append(poll)
        return poll
