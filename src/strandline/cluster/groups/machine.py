"""Interface of a coordinator's shard: a pure machine, commands in, writes and replies out.

A shard never changes what is durable by itself. It asks for a `Write`; the runtime appends it to the shard's partition
and, once it stands in the log, calls `replay` with each record: at run time exactly as when the partition is loaded, so
that memory is always what the log says. Records of a transaction are replayed as pending, and its marker decides. A
write that is refused leaves nothing to undo. The answer waits until the high watermark has passed the write. What a
shard holds beside that (members that wait, deadlines) is soft: a failover loses it, and clients bring it again.
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
        error: NONE once it is committed, else the error for the client.
        written: it stands in the log (and, after an error, may be committed or lost all the same).
    """

    error: ErrorCode
    written: bool


COMMITTED = WriteOutcome(ErrorCode.NONE, True)

Then = Callable[[WriteOutcome, Now], None]


class Transaction(NamedTuple):
    """The open transaction of a producer, as a write belongs to it.

    Attributes:
        verification: the log's own, with which the transaction begins there; None where it is open there already.
    """

    producer_id: int
    producer_epoch: int
    verification: Verification | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Records that stand in the log together or not at all.

    Attributes:
        then: called exactly once with the outcome, unless the shard is dropped before.
        replay: false for records of what the shard's soft state says already.
        late: called (as `then`, with COMMITTED) when the write is committed after all, where `then` heard an error of
            it while it stood in the log. For a decision that has to be carried out once it is one, however late.
        transaction: what the records wait for, before they count; None: they count at once.
    """

    records: tuple[Record, ...]
    then: Then
    replay: bool = True
    late: Then | None = None
    transaction: Transaction | None = None


class Reply(NamedTuple):
    """An answer (or a KafkaError) to a request.

    Attributes:
        after_writes: it tells of durable state, so it must wait until all that was written before is committed: else
            a failover could take back what a client has read.
    """

    to: Any
    answer: Any
    after_writes: bool = False


@dataclass(slots=True)
class Effects:
    """Effects of a step of a shard: the writes in their order, then the replies, then the orders: what others are to
    do, outside of the shard's own partition."""

    writes: list[Write] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    orders: list[Any] = field(default_factory=list)


class Outbox:
    """Collects the effects of one step; every part of a shard has the same one."""

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
        """Give an order, which the runtime hands on."""
        self._effects.orders.append(order)

    def take(self) -> Effects:
        """Return the effects collected so far, and begin anew."""
        effects, self._effects = self._effects, Effects()
        return effects


class Shard(Protocol):
    """One partition's state. The runtime calls it on one event loop, never twice at once."""

    def replay(self, record: Record) -> None:
        """Apply a record from the log. Raises ProtocolError if it does not parse."""

    def replay_pending(self, record: Record, producer_id: int) -> None:
        """Take in a record of this producer's open transaction: it counts, in the place in the log that it has now,
        once the transaction is committed. Raises ProtocolError when it does not parse."""

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Take in the end of this producer's transaction."""

    def loaded(self, now: Now) -> Effects:
        """Begin to serve: every record of the log was replayed."""

    def handle(self, command: Any, to: Any, now: Now) -> Effects:
        """Handle one command. Its reply goes to `to`, in this step or a later one."""

    def ended(self, write: Write, outcome: WriteOutcome, now: Now) -> Effects:
        """Go on with what waited for a write, which has ended."""

    def tick(self, now: Now) -> Effects:
        """Take in that deadlines may have passed."""

    @property
    def next_deadline_ms(self) -> float | None:
        """Time before which `tick` has nothing to do, by the monotonic clock in milliseconds."""
