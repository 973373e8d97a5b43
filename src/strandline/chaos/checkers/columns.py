"""A history as columns of numbers: what the checks run over, so that five million records fit and take seconds.

Processes, partitions and values get numbers in order of appearance; a row costs tens of bytes. Rows come from a
`History` in memory or, one operation at a time, from a journal on disk.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from strandline.chaos.checkers.history import (
    Commit,
    History,
    OffsetRead,
    Partition,
    Poll,
    Send,
    Status,
    Transaction,
    Value,
)

NONE = -1
INVOKED, OK, FAIL, INFO = range(4)
_CODES = {Status.INVOKED: INVOKED, Status.OK: OK, Status.FAIL: FAIL, Status.INFO: INFO}

ACKED, MAY_REPEAT, ANSWERED = 1, 2, 4
"""Flags of a send: promised to survive (ok under acks=all, and its transaction committed); retried without idempotence;
its own call was answered with success, whatever became of the transaction."""

FINAL, SUBSCRIBED, UNCOMMITTED = 1, 2, 4
"""Flags of a poll, as `history.Poll` has them."""


@dataclass
class Sends:
    """One row a send, in order of invocation."""

    process: array[int] = field(default_factory=lambda: array("i"))
    partition: array[int] = field(default_factory=lambda: array("i"))
    value: array[int] = field(default_factory=lambda: array("i"))
    offset: array[int] = field(default_factory=lambda: array("q"))
    status: bytearray = field(default_factory=bytearray)
    """Effective: a send of an aborted transaction failed, of one that nobody knows the end of is info."""
    flags: bytearray = field(default_factory=bytearray)
    acks: array[int] = field(default_factory=lambda: array("b"))
    group: array[int] = field(default_factory=lambda: array("q"))
    transaction: array[int] = field(default_factory=lambda: array("i"))
    completed_ms: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.status)


@dataclass
class Polls:
    """One row a poll; its records are rows `start[i]` to `start[i + 1]` of the three record columns."""

    process: array[int] = field(default_factory=lambda: array("i"))
    generation: array[int] = field(default_factory=lambda: array("q"))
    status: bytearray = field(default_factory=bytearray)
    flags: bytearray = field(default_factory=bytearray)
    transaction: array[int] = field(default_factory=lambda: array("i"))
    invoked_ms: array[float] = field(default_factory=lambda: array("d"))
    start: array[int] = field(default_factory=lambda: array("q", [0]))
    rebalanced: dict[int, frozenset[int]] = field(default_factory=dict)
    """poll -> partitions."""
    partition: array[int] = field(default_factory=lambda: array("i"))
    offset: array[int] = field(default_factory=lambda: array("q"))
    value: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.status)


class Columns:
    """All rows, and the names behind the numbers."""

    def __init__(self) -> None:
        self.processes: dict[str, int] = {}
        self.partitions: list[Partition] = []
        self.values: list[Value] = []
        self.sends = Sends()
        self.polls = Polls()
        self.commits: list[Commit] = []
        """Commits with their effective status, those of transactions too."""
        self.offset_reads: list[OffsetRead] = []
        self.transactions = bytearray()
        """Status of each transaction."""
        self.transactional_commits: dict[int, list[Commit]] = {}
        self.sources: dict[int, int] = {}
        """Value made in a pipeline -> the value it was made of."""
        self._partition_ids: dict[Partition, int] = {}
        self._value_ids: dict[Value, int] = {}

    @classmethod
    def of(cls, history: History) -> Columns:
        """The columns of a history."""
        columns = cls()
        for send in history.sends:
            columns.add_send(send)
        for poll in history.polls:
            columns.add_poll(poll)
        for transaction in history.transactions:
            columns.add_transaction(transaction)
        columns.commits.extend(history.commits)
        columns.offset_reads.extend(history.offset_reads)
        return columns

    def add(self, operation: Send | Poll | Transaction | Commit | OffsetRead) -> None:
        """Rows for any operation."""
        if isinstance(operation, Send):
            self.add_send(operation)
        elif isinstance(operation, Poll):
            self.add_poll(operation)
        elif isinstance(operation, Transaction):
            self.add_transaction(operation)
        elif isinstance(operation, Commit):
            self.commits.append(operation)
        else:
            self.offset_reads.append(operation)

    def process_name(self, number: int) -> str:
        """The process behind a number."""
        return next(name for name, known in self.processes.items() if known == number)

    def partition_id(self, partition: Partition) -> int:
        """The number of a partition."""
        number = self._partition_ids.get(partition)
        if number is None:
            number = self._partition_ids[partition] = len(self.partitions)
            self.partitions.append(partition)
        return number

    def value_id(self, value: Value) -> int:
        """The number of a value."""
        number = self._value_ids.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def forget_names(self) -> None:
        """Forget the map from values to numbers, the largest part: no more rows come."""
        self._value_ids = {}

    def add_send(self, send: Send, transaction: int = NONE) -> int:
        """A row for a send; its number."""
        rows = self.sends
        own = _CODES[send.status]
        status = own if transaction == NONE else _within(own, self.transactions[transaction])
        flags = MAY_REPEAT if send.may_repeat else 0
        if own == OK and send.acks == -1:
            flags |= ANSWERED | (ACKED if status == OK else 0)
        value = self.value_id(send.value)
        rows.process.append(self.processes.setdefault(send.process, len(self.processes)))
        rows.partition.append(self.partition_id(send.partition))
        rows.value.append(value)
        rows.offset.append(NONE if send.offset is None else send.offset)
        rows.status.append(status)
        rows.flags.append(flags)
        rows.group.append(NONE if send.group is None else send.group)
        rows.transaction.append(transaction)
        rows.completed_ms.append(send.completed_ms)
        if send.source is not None:
            self.sources[value] = self.value_id(send.source)
        rows.acks.append(send.acks)
        return len(rows) - 1

    def end_send(self, row: int, status: Status, offset: int | None, at_ms: float) -> None:
        """End a send that was added when it was invoked."""
        rows = self.sends
        rows.status[row] = _CODES[status]
        rows.offset[row] = NONE if offset is None else offset
        rows.completed_ms[row] = at_ms
        if status is Status.OK and rows.acks[row] == -1:
            rows.flags[row] |= ANSWERED | ACKED

    def add_poll(self, poll: Poll, transaction: int = NONE) -> None:
        """Add a row for a poll."""
        rows = self.polls
        if poll.rebalanced:
            rows.rebalanced[len(rows)] = frozenset(self.partition_id(one) for one in poll.rebalanced)
        rows.process.append(self.processes.setdefault(poll.process, len(self.processes)))
        rows.generation.append(poll.generation)
        rows.status.append(_CODES[poll.status])
        rows.flags.append(
            (FINAL if poll.final else 0)
            | (SUBSCRIBED if poll.subscribed else 0)
            | (UNCOMMITTED if poll.uncommitted else 0)
        )
        rows.transaction.append(transaction)
        rows.invoked_ms.append(poll.invoked_ms)
        for partition, offset, value in poll.records:
            rows.partition.append(self.partition_id(partition))
            rows.offset.append(offset)
            rows.value.append(self.value_id(value))
        rows.start.append(len(rows.offset))

    def add_transaction(self, transaction: Transaction) -> None:
        """Rows for a transaction and its steps."""
        number = len(self.transactions)
        status = _CODES[transaction.status]
        self.transactions.append(status)
        for step in transaction.steps:
            if isinstance(step, Send):
                self.add_send(step, number)
            elif isinstance(step, Poll):
                self.add_poll(step, number)
            else:
                self.transactional_commits.setdefault(number, []).append(step)
                self.commits.append(_commit_within(step, transaction))


def _within(own: int, transaction: int) -> int:
    """The effective status of a step of a transaction."""
    if transaction == OK:
        return own
    if FAIL in (transaction, own):
        return FAIL
    return INFO


def _commit_within(step: Commit, transaction: Transaction) -> Commit:
    """Commit whose offset takes effect when the transaction commits."""
    status = step.status if transaction.status is Status.OK else transaction.status
    return Commit(
        step.process,
        step.group,
        step.partition,
        step.offset,
        step.generation,
        status,
        step.invoked_ms,
        transaction.completed_ms,
    )
