"""History of what clients did and saw, in the order in which it was recorded: the input of `anomalies`.

An operation ends *ok*, *fail* (it certainly did not take place) or *info* (nobody knows: a timeout, a broken
connection, NOT_ENOUGH_REPLICAS_AFTER_APPEND). Calling an info a fail invents aborted reads; the reverse hides them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Value = str | int
"""Value of a record. Unique over the whole history; ints take the least memory."""


class Status(enum.Enum):
    """Ends of an operation; INVOKED is one whose end was never seen, and counts as INFO."""

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

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Parse "topic-3". Raises ValueError."""
        topic, dash, number = text.rpartition("-")
        if not dash or not number.isdigit():
            raise ValueError(f"not a partition: {text!r}")
        return cls(topic, int(number))


@dataclass(slots=True)
class Send:
    """One record given to a producer. Values are unique over the whole history."""

    process: str
    """The producer instance; the order of its sends to a partition is the order of its records."""
    partition: Partition
    value: Value
    acks: int = -1
    group: int | None = None
    """Sends of one operation share a group."""
    invoked_ms: float = 0.0
    completed_ms: float = 0.0
    status: Status = Status.INVOKED
    offset: int | None = None
    may_repeat: bool = False
    """Retried without idempotence: by contract it may be there twice, and out of order."""
    source: Value | None = None
    """Value that was consumed to make this one, in an exactly-once pipeline."""

    @property
    def acked(self) -> bool:
        """True if the record was promised to survive: acknowledged under acks=all."""
        return self.status is Status.OK and self.acks == -1


@dataclass(slots=True)
class Poll:
    """Result of one poll of a consumer."""

    process: str
    """The consumer instance."""
    records: Sequence[tuple[Partition, int, Value]]
    generation: int = 0
    """Counts up at every assign, subscribe or seek: order is promised only within one."""
    status: Status = Status.OK
    invoked_ms: float = 0.0
    completed_ms: float = 0.0
    final: bool = False
    """Part of the last phase: fresh clients, from the beginning, past the highest offset known, nothing failing."""
    subscribed: bool = False
    """True: its partitions come from a group, so between polls any may have been taken and given back (skips are
    legal)."""
    uncommitted: bool = False
    """isolation.level=read_uncommitted: it may see what a transaction wrote and aborted."""
    rebalanced: tuple[Partition, ...] = ()
    """Partitions taken or given during this very poll."""


@dataclass(slots=True)
class Commit:
    """A consumer group's offset was committed."""

    process: str
    group: str
    partition: Partition
    offset: int
    """The next offset to read."""
    generation: int = 0
    """Generation of the group, as its member knew it."""
    status: Status = Status.INVOKED
    invoked_ms: float = 0.0
    completed_ms: float = 0.0


@dataclass(slots=True)
class OffsetRead:
    """A group's committed offset was asked for, and answered."""

    process: str
    group: str
    partition: Partition
    offset: int
    """-1: none."""
    generation: int = 0
    """Generation of the group when it was read."""
    invoked_ms: float = 0.0
    completed_ms: float = 0.0


@dataclass(slots=True)
class Transaction:
    """An operation of several sends, polls and commits that takes place whole or not at all.

    OK is a commit that was confirmed, FAIL an abort that was confirmed (or a transaction that never ended and is fenced
    for certain), INFO an end that nobody knows. The steps' own status tells what each call answered.
    """

    process: str
    """The producer instance."""
    steps: list[Send | Poll | Commit] = field(default_factory=list)
    status: Status = Status.INVOKED
    invoked_ms: float = 0.0
    completed_ms: float = 0.0


@dataclass
class History:
    """All operations, each kind oldest first. The steps of `transactions` stand in none of the other lists."""

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    offset_reads: list[OffsetRead] = field(default_factory=list)

    def send(self, send: Send) -> Send:
        """Record the invocation of a send; its end is written into the object."""
        self.sends.append(send)
        return send

    def poll(self, poll: Poll) -> Poll:
        """Record a poll."""
        self.polls.append(poll)
        return poll

    def transaction(self, transaction: Transaction) -> Transaction:
        """Record the begin of a transaction; steps and end are written into the object."""
        self.transactions.append(transaction)
        return transaction

    def commit(self, commit: Commit) -> Commit:
        """Record the invocation of an offset commit; its end is written into the object."""
        self.commits.append(commit)
        return commit

    def offset_read(self, read: OffsetRead) -> OffsetRead:
        """Record what a group's committed offset was."""
        self.offset_reads.append(read)
        return read
