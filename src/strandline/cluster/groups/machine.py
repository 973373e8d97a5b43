"""Interface of a coordinator's shard: a state machine without I/O that gets commands and returns writes and replies.

A shard does not change durable state by itself. It asks for a `Write`; the runtime appends it to the shard's partition
and, once it is in the log, calls `replay` with each record, in the same way as when the partition is loaded, so that
memory always equals the log. Records of a transaction are replayed as pending, and its marker decides. A refused write
leaves nothing to undo. The answer waits until the high watermark has passed the write. All other state of a shard
(waiting members, deadlines) is soft: it is lost by a failover, and clients send it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from strandline.log.transactions import Verification
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.keyed_record import Record


class WriteOutcome(NamedTuple):
    """Result of a write.

    Attributes:
        error: NONE if the write is committed, else the error for the client.
        written: the write is in the log (after an error it may still be committed, or lost).
    """

    error: ErrorCode
    written: bool


COMMITTED = WriteOutcome(ErrorCode.NONE, True)

Then = Callable[[WriteOutcome, Now], None]


class Transaction(NamedTuple):
    """Open transaction of a producer that a write belongs to.

    Attributes:
        verification: the log's verification, with which the transaction begins in this log; None: it is open there
            already.
    """

    producer_id: int
    producer_epoch: int
    verification: Verification | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Records that are appended together or not at all.

    Attributes:
        then: called exactly once with the outcome, unless the shard is dropped before.
        replay: False for records whose effect is in the shard's soft state already.
        late: called (as `then`, with COMMITTED) if the write is committed after `then` was called with an error while
            the write was in the log. For a decision that must be carried out once it is committed, however late.
        transaction: transaction on whose end the records depend; None: the records are valid at once.
    """

    records: tuple[Record, ...]
    then: Then
    replay: bool = True
    late: Then | None = None
    transaction: Transaction | None = None


class Reply(NamedTuple):
    """An answer (or a KafkaError) to a request.

    Attributes:
        after_writes: the answer shows durable state, so it waits until all earlier writes are committed: otherwise a
            failover could take back what a client has read.
    """

    to: Any
    answer: Any
    after_writes: bool = False


@dataclass(slots=True)
class Effects:
    """Effects of one step of a shard: writes in their order, then replies, then orders (work for others, outside of the
    shard's own partition)."""

    writes: list[Write] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    orders: list[Any] = field(default_factory=list)


class Outbox:
    """Collects the effects of one step; all parts of a shard share it."""

    __slots__ = ("_effects",)

    def __init__(self) -> None:
        self._effects = Effects()

    def write(
        self,
        records: tuple[Record, ...],
        then: Then,
        *,
        replay: bool = True,
        late: Then | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        """Order records to be appended; `then` is called with the outcome (see `Write`)."""
        self._effects.writes.append(Write(records, then, replay, late, transaction))

    def reply(self, to: Any, answer: Any, *, after_writes: bool = False) -> None:
        """Answer a request. If `to` is None, there is no request to answer."""
        if to is not None:
            self._effects.replies.append(Reply(to, answer, after_writes))

    def order(self, order: Any) -> None:
        """Add an order, which the runtime passes on."""
        self._effects.orders.append(order)

    def take(self) -> Effects:
        """Return the effects collected so far and start with none."""
        effects, self._effects = self._effects, Effects()
        return effects


class Shard(Protocol):
    """State of one partition. The runtime calls it on one event loop, never twice at once."""

    def replay(self, record: Record) -> None:
        """Apply a record from the log. Raises ProtocolError if it does not parse."""

    def replay_pending(self, record: Record, producer_id: int) -> None:
        """Apply a record of this producer's open transaction: it is valid, at its place in the log, once the
        transaction is committed. Raises ProtocolError if it does not parse."""

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Apply the end of this producer's transaction."""

    def loaded(self, now: Now) -> Effects:
        """Start to serve, after every record of the log was replayed."""

    def handle(self, command: Any, to: Any, now: Now) -> Effects:
        """Handle one command. The reply goes to `to`, in this step or a later one."""

    def ended(self, write: Write, outcome: WriteOutcome, now: Now) -> Effects:
        """Continue the work that waited for a write; the write has ended with `outcome`."""

    def tick(self, now: Now) -> Effects:
        """Handle deadlines that have passed."""

    @property
    def next_deadline_ms(self) -> float | None:
        """Earliest time at which `tick` has work, by the monotonic clock in milliseconds; None: no deadline."""
