"""Shard of one partition of `__transaction_state`: a state machine without I/O that gets commands and returns records
and orders.

A transactional id has one `TransactionValue`, and each change of it is one record. The record of a Prepare* state is
the decision: once it is committed, the client has its answer and the markers are ordered, by this coordinator and by
each later one, until every partition has its marker; then the Complete* state is written. While a change is not known
to be committed, other changes of its id are refused with CONCURRENT_TRANSACTIONS. Additions of partitions wait for it
for a limited time, and are written together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from strandline.cluster.groups.connections import ConnectionNumbers, NewestConnections, Superseded
from strandline.cluster.groups.context import client_error
from strandline.cluster.groups.machine import Effects, Outbox, Then, Write, WriteOutcome
from strandline.cluster.groups.timers import Timers
from strandline.cluster.transactions.commands import (
    EPOCH_VERSION,
    FIRST_VERSION,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    FindOutcomes,
    InitProducer,
    ListedTransaction,
    ListTransactions,
    MarkerOrder,
    MarkersWritten,
    NeedsProducerId,
    Outcome,
    Producer,
    VerifyPartitions,
)
from strandline.cluster.transactions.config import TransactionConfig
from strandline.cluster.transactions.endings import BY_EPOCH, BY_STATE, Ending
from strandline.controller.metadata.features import TRANSACTION_TOPIC
from strandline.log.transactions import Marker
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import LeaderEpoch, TopicPartition
from strandline.proto.kafka.fields import read_int16
from strandline.proto.kafka.keyed_record import Record
from strandline.proto.kafka.transaction_records import (
    NEVER,
    NO_EPOCH,
    NO_ID,
    TRANSACTION,
    TransactionState,
    TransactionValue,
    transaction_record,
)

EPOCH_MAX = 32_766
"""Last epoch that a producer is given. The next higher one is used for a marker only."""

RETRY_MS = 500.0
"""Pause in milliseconds before a refused completion is written again: too few replicas are in sync, or the disk is
full."""

EXPIRED_AT_ONCE = 500
"""Maximum tombstones in one write."""

ADDITION_WAIT_MS = 500.0
"""Maximum milliseconds that an addition waits for the previous change. Writing a record and the markers takes
milliseconds; without a leader it takes seconds, and the client should get the reason."""

ADDITIONS_MAX = 100
"""Maximum waiting additions of one transactional id; one of each broker is usual."""

_ADDITIONS = "additions"
_TIMED_OUT = "timed out"
_EXPIRED = "expired"


class _Addition(NamedTuple):
    """Request to add partitions to a transaction.

    Attributes:
        until_ms: monotonic time until which the addition may wait.
    """

    command: AddPartitions
    to: Any
    until_ms: float


class TransactionShard:
    """A `Shard` of transactional ids.

    Args:
        version: the cluster's level of transaction.version; it decides how the coordinator itself ends a transaction.
            connection_numbers: numbers of the connections of this broker's clients.

    Invariants:
    - a transactional id with a change under way is in `_pending`, and no other change of it begins;
    - an id in a Prepare* state has an order in `_orders` once that state is committed, and loses it with its
      completion;
    - an epoch that fences is never given to a client while the marker with it is being written;
    - an addition in `_waiting` is judged as if it had arrived when the previous change ended.
    """

    def __init__(
        self,
        config: TransactionConfig,
        partition: int,
        coordinator_epoch: LeaderEpoch,
        version: Callable[[], int],
        connection_numbers: ConnectionNumbers,
    ) -> None:
        self._config = config
        self._partition = partition
        self._coordinator_epoch = coordinator_epoch
        self._version = version
        self._out = Outbox()
        self._timers = Timers()
        self._values: dict[str, TransactionValue] = {}
        self._pending: set[str] = set()
        self._waiting: dict[str, list[_Addition]] = {}
        self._connections = NewestConnections(connection_numbers)
        self._orders: dict[str, MarkerOrder] = {}
        self._orders_given = 0
        self._deadlines: dict[str, tuple[int, float]] = {}
        """For each open transaction: its start (wall clock, ms) and its time-out (monotonic, ms)."""
        self.unknown_records = 0
        """Number of records of kinds that this version does not know; they are kept in the log and ignored
        (KIP-915)."""

    # Shard

    def replay(self, record: Record) -> None:
        """Apply a record of the log. Raises ProtocolError for a record that does not parse."""
        if read_int16(record.key, 0)[0] not in TRANSACTION.key_versions:
            self.unknown_records += 1
            return
        transactional_id = TRANSACTION.read_key(record.key).transactional_id
        if record.value is None:
            self._values.pop(transactional_id, None)
            self._connections.forget(transactional_id)
        else:
            self._values[transactional_id] = TRANSACTION.read(record.value)

    def replay_pending(self, record: Record, producer_id: int) -> None:
        """Refuse a record of a transaction: no producer writes to this topic. Raises ProtocolError."""
        raise ProtocolError(f"a record of {TRANSACTION_TOPIC} in a transaction of producer {producer_id}")

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Do nothing: this topic has no records of transactions."""

    def loaded(self, now: Now) -> Effects:
        """Continue with transactions that were decided: an earlier coordinator may not have completed them."""
        for transactional_id, value in list(self._values.items()):
            if value.state.is_prepared:  # rule C14/markers-are-not-ordered-again
                self._order_markers(transactional_id, now)
        self._look_for_timed_out_later(now)
        self._look_for_expired_later(now)
        return self._out.take()

    def handle(self, command: Any, to: Any, now: Now) -> Effects:
        """Handle one command of `commands`."""
        try:
            match command:
                case InitProducer():
                    self._init(command, to, now)
                case AddPartitions():
                    self._add(command, to, now)
                case VerifyPartitions():
                    self._verify(command, to)
                case EndTransaction():
                    self._end(command, to, now)
                case MarkersWritten():
                    self._markers_written(command.order, now)
                case ListTransactions():
                    self._out.reply(to, self._list(command, now), after_writes=True)
                case FindOutcomes():
                    self._out.reply(to, self._outcomes(command), after_writes=True)
                case DescribeTransaction():
                    self._out.reply(to, self._describe(command.transactional_id), after_writes=True)
                case _:
                    raise TypeError(f"transactions have no command {type(command).__name__}")
        except KafkaError as error:
            self._out.reply(to, error, after_writes=True)
        return self._out.take()

    def ended(self, write: Write, outcome: WriteOutcome, now: Now) -> Effects:
        write.then(outcome, now)
        return self._out.take()

    def tick(self, now: Now) -> Effects:
        self._timers.run(now)
        return self._out.take()

    @property
    def next_deadline_ms(self) -> float | None:
        return self._timers.next_ms

    # Changes

    def _change(
        self,
        transactional_id: str,
        value: TransactionValue,
        *,
        to: Sequence[Any] = (),
        answer: Any = None,
        go_on: Callable[[Now], None] | None = None,
        refused: Callable[[Now], None] | None = None,
    ) -> None:
        """Write a new value. When it is committed, however late, answer all of `to` and call `go_on`. An error answers
        `to`; the id stays pending unless nothing of the change is in the log (then `refused` is called)."""
        self._pending.add(transactional_id)

        def committed(_outcome: WriteOutcome, now: Now) -> None:
            self._pending.discard(transactional_id)
            if go_on is not None:
                go_on(now)
            self._take_up(transactional_id, now)  # rule C30/what-waits-is-forgotten

        def ended(outcome: WriteOutcome, now: Now) -> None:
            if outcome.error is ErrorCode.NONE:
                self._reply_all(to, answer)
                committed(outcome, now)
                return
            error = KafkaError(client_error(outcome.error), "the change of the transaction is not stored")
            self._reply_all(to, error)
            if not outcome.written:  # rule C4/change-in-doubt-is-forgotten
                self._pending.discard(transactional_id)
                if refused is not None:
                    refused(now)
                self._take_up(transactional_id, now)

        self._write((transaction_record(transactional_id, value),), ended, committed)

    def _reply_all(self, to: Sequence[Any], answer: Any) -> None:
        for one in to:
            self._out.reply(one, answer)

    def _write(self, records: tuple[Record, ...], then: Then, late: Then) -> None:
        self._out.write(records, then, late=late)

    def _value(self, transactional_id: str) -> TransactionValue:
        """Return the value of an id without a change under way. Raises KafkaError INVALID_PRODUCER_ID_MAPPING,
        CONCURRENT_TRANSACTIONS."""
        value = self._values.get(transactional_id)
        if value is None:
            raise _unknown_producer(transactional_id)
        if transactional_id in self._pending:  # rule C4/two-changes-at-once
            raise _concurrent(transactional_id)
        return value

    # InitProducerId

    def _init(self, command: InitProducer, to: Any, now: Now) -> None:
        """Answer InitProducerId. A producer that sends its current id and epoch (KIP-360) gets the next epoch; one that
        sends the previous epoch repeats its request, unless another producer has begun since; any other is fenced."""
        transactional_id = command.transactional_id
        if transactional_id not in self._values:
            if transactional_id in self._pending:
                raise _concurrent(transactional_id)
            self._begin_anew(command, None, NO_EPOCH, to, now)
            return
        value = self._value(transactional_id)
        given = command.producer_id != NO_ID
        repeats = given and _is_repeated(command, value)
        current = (command.producer_id, command.producer_epoch) == (value.producer_id, value.producer_epoch)
        if given and not current and not repeats:  # rule C4/any-epoch-goes-on
            raise _fenced(transactional_id)
        if value.state.is_prepared:
            raise _concurrent(transactional_id)
        if value.state is TransactionState.ONGOING:
            if repeats:  # it has the answer: a transaction of it is open
                raise _fenced(transactional_id)
            last_epoch = value.producer_epoch if given else NO_EPOCH  # rule C4/who-was-fenced-goes-on
            self._abort(transactional_id, value, now, last_epoch, to=to, answer=_concurrent(transactional_id))
            return
        last_epoch = value.producer_epoch if given else NO_EPOCH  # rule C4/who-was-fenced-repeats-a-request
        if repeats:
            last_epoch = value.last_epoch
        if repeats and value.producer_epoch <= EPOCH_MAX:
            epoch = value.producer_epoch
        elif value.producer_epoch >= EPOCH_MAX:  # rule C4/epochs-run-over
            self._begin_anew(command, value, last_epoch, to, now)
            return
        else:
            epoch = value.producer_epoch + 1
        begun = value._replace(
            producer_epoch=epoch,
            timeout_ms=command.timeout_ms,
            state=TransactionState.EMPTY,
            updated_ms=now.wall_ms,
            started_ms=NEVER,
            client_version=0,
            last_epoch=last_epoch,
        )
        self._begin(transactional_id, begun, to)

    def _begin_anew(
        self, command: InitProducer, before: TransactionValue | None, last_epoch: int, to: Any, now: Now
    ) -> None:
        """Begin with a new producer id: the transactional id is new, or the epochs of its last producer id are used
        up."""
        if command.spare_id == NO_ID:
            self._out.reply(to, NeedsProducerId())
            return
        value = TransactionValue(
            producer_id=command.spare_id,
            previous_id=NO_ID if before is None else before.producer_id,
            next_id=NO_ID,
            producer_epoch=0,
            timeout_ms=command.timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            updated_ms=now.wall_ms,
            started_ms=NEVER,
            last_epoch=last_epoch,
        )
        self._begin(command.transactional_id, value, to)

    def _begin(self, transactional_id: str, begun: TransactionValue, to: Any) -> None:
        producer = Producer(begun.producer_id, begun.producer_epoch)

        def go_on(_now: Now) -> None:
            self._connections.begins(transactional_id, *producer)

        self._change(transactional_id, begun, to=(to,), answer=producer, go_on=go_on)

    # Partitions

    def _held(self, command: AddPartitions | VerifyPartitions) -> TransactionValue:
        """Return the value of the id if the command's producer is the one that may write, else raise KafkaError."""
        transactional_id = command.transactional_id
        value = self._value(transactional_id)
        named = Producer(command.producer_id, command.producer_epoch)
        if value.state.is_prepared and named == Producer(value.next_id, 0):
            raise _concurrent(transactional_id)
        if named.producer_id != value.producer_id:
            raise _unknown_producer(transactional_id)
        if named.epoch != value.producer_epoch:  # rule C4/older-epoch-adds-partitions
            raise _fenced(transactional_id)
        if value.state.is_prepared:  # rule C4/partition-is-added-to-what-is-decided
            raise _concurrent(transactional_id)
        return value

    def _counts(self, command: AddPartitions | EndTransaction) -> bool:
        """Return whether the producer uses its newest connection; True if it may not write, as it is refused for that
        anyway."""
        value = self._values.get(command.transactional_id)
        named = command.producer_id, command.producer_epoch
        if value is None or named != (value.producer_id, value.producer_epoch):
            return True
        return self._connections.takes(command.transactional_id, *named, command.connection)

    def _add(self, command: AddPartitions, to: Any, now: Now) -> None:
        addition = _Addition(command, to, now.monotonic_ms + ADDITION_WAIT_MS)
        self._add_together(command.transactional_id, [addition], now)

    def _add_together(self, transactional_id: str, additions: Iterable[_Addition], now: Now) -> None:
        """Check each addition, and write those that are new to the transaction as one record."""
        taken = []
        partitions: frozenset[TopicPartition] = frozenset()
        for addition in additions:
            if not self._counts(addition.command):
                self._out.reply(addition.to, Superseded())
                continue
            try:
                value = self._held(addition.command)
            except KafkaError as error:
                early = error.code is ErrorCode.CONCURRENT_TRANSACTIONS
                if not (early and self._wait(transactional_id, addition)):  # rule C30/an-addition-does-not-wait
                    self._out.reply(addition.to, error, after_writes=True)
                continue
            there = value.partitions if value.state is TransactionState.ONGOING else frozenset()
            if addition.command.partitions <= there:
                self._out.reply(addition.to, None, after_writes=True)
                continue
            taken.append(addition.to)
            partitions |= addition.command.partitions
        if not taken:
            return
        value = self._values[transactional_id]
        ongoing = value.state is TransactionState.ONGOING
        added = value._replace(
            state=TransactionState.ONGOING,
            partitions=(value.partitions | partitions) if ongoing else partitions,
            updated_ms=now.wall_ms,
            started_ms=value.started_ms if ongoing else now.wall_ms,
        )
        self._change(transactional_id, added, to=taken)

    def _wait(self, transactional_id: str, addition: _Addition) -> bool:
        """Let an addition wait until the current change has ended. Returns False if too many wait."""
        waiting = self._waiting.setdefault(transactional_id, [])
        if len(waiting) >= ADDITIONS_MAX:  # rule C30/any-number-of-additions-waits
            return False
        waiting.append(addition)
        self._give_up_later(transactional_id)
        return True

    def _take_up(self, transactional_id: str, now: Now) -> None:
        """Check waiting additions again after a change has ended. They go on waiting if another change has begun."""
        waiting = self._waiting.pop(transactional_id, None)
        if waiting is not None:
            self._timers.cancel((_ADDITIONS, transactional_id))
            self._add_together(transactional_id, waiting, now)

    def _give_up_later(self, transactional_id: str) -> None:
        def give_up(now: Now) -> None:
            waiting = self._waiting.pop(transactional_id)
            left = [addition for addition in waiting if addition.until_ms > now.monotonic_ms]
            for addition in waiting[: len(waiting) - len(left)]:
                self._out.reply(addition.to, _concurrent(transactional_id))
            if left:
                self._waiting[transactional_id] = left
                self._give_up_later(transactional_id)

        until_ms = self._waiting[transactional_id][0].until_ms
        self._timers.set((_ADDITIONS, transactional_id), until_ms, give_up)  # rule C30/an-addition-waits-for-ever

    def _verify(self, command: VerifyPartitions, to: Any) -> None:
        """Answer which partitions are in the transaction, even while others are being added (KAFKA-14904); the answer
        waits for the write before it."""
        value = self._values.get(command.transactional_id)
        named = TransactionState.ONGOING, command.producer_id, command.producer_epoch
        # rule C5/a-change-holds-up-verifications
        if value is None or (value.state, value.producer_id, value.producer_epoch) != named:
            value = self._held(command)
        there = value.partitions if value.state is TransactionState.ONGOING else frozenset()
        errors = {
            partition: ErrorCode.NONE if partition in there else ErrorCode.TRANSACTION_ABORTABLE
            for partition in command.partitions
        }
        self._out.reply(to, errors, after_writes=True)

    # Ends

    def _end(self, command: EndTransaction, to: Any, now: Now) -> None:
        if not self._counts(command):
            self._out.reply(to, Superseded())
            return
        transactional_id = command.transactional_id
        value = self._value(transactional_id)
        by_epoch = command.version >= EPOCH_VERSION
        ending = _by_epoch(command, value) if by_epoch else _by_state(command, value)
        if ending is Ending.DONE:
            self._done_before(command, value, to, now)
            return
        if ending is not Ending.GO:
            raise _refusal(ending, command, value)
        exhausted = by_epoch and value.producer_epoch >= EPOCH_MAX
        if exhausted and command.spare_id == NO_ID:
            self._out.reply(to, NeedsProducerId())
            return
        open_one = value.state is TransactionState.ONGOING
        decided = value._replace(
            state=TransactionState.PREPARE_COMMIT if command.commit else TransactionState.PREPARE_ABORT,
            partitions=value.partitions if open_one else frozenset(),
            updated_ms=now.wall_ms,
            started_ms=value.started_ms if open_one else now.wall_ms,
            client_version=FIRST_VERSION,
        )
        following = Producer(value.producer_id, value.producer_epoch)
        if by_epoch:
            decided = decided._replace(
                producer_epoch=value.producer_epoch + 1,  # rule C4/an-end-keeps-the-epoch
                last_epoch=value.producer_epoch,
                next_id=command.spare_id if exhausted else NO_ID,
                client_version=EPOCH_VERSION,
            )
            following = Producer(command.spare_id, 0) if exhausted else following._replace(epoch=following.epoch + 1)
        self._decide(transactional_id, decided, to=to, answer=following, begins=following if by_epoch else None)

    def _done_before(self, command: EndTransaction, value: TransactionValue, to: Any, now: Now) -> None:
        """Answer with the current producer. If its epoch is beyond those that producers are given, because it timed out
        with the last one, it gets a new producer id."""
        if value.producer_epoch <= EPOCH_MAX:  # rule C4/a-producer-is-given-the-epoch-of-markers
            self._out.reply(to, Producer(value.producer_id, value.producer_epoch), after_writes=True)
        elif command.spare_id == NO_ID:
            self._out.reply(to, NeedsProducerId())
        else:
            renewed = value._replace(
                producer_id=command.spare_id,
                previous_id=value.producer_id,
                producer_epoch=0,
                updated_ms=now.wall_ms,
            )
            self._change(command.transactional_id, renewed, to=(to,), answer=Producer(command.spare_id, 0))

    def _abort(
        self, transactional_id: str, value: TransactionValue, now: Now, last_epoch: int, *, to: Any, answer: Any
    ) -> None:
        """Abort an open transaction in the coordinator's own name: the epoch rises by one under both protocols, so that
        its producer is fenced."""
        version = EPOCH_VERSION if self._version() >= EPOCH_VERSION else FIRST_VERSION
        decided = value._replace(
            producer_epoch=value.producer_epoch + 1,  # rule C4/an-abort-does-not-fence
            last_epoch=last_epoch,
            state=TransactionState.PREPARE_ABORT,
            updated_ms=now.wall_ms,
            client_version=version,
        )
        self._decide(transactional_id, decided, to=to, answer=answer)

    def _decide(
        self,
        transactional_id: str,
        decided: TransactionValue,
        *,
        to: Any,
        answer: Any,
        begins: Producer | None = None,
    ) -> None:
        def go_on(now: Now) -> None:
            if begins is not None:
                self._connections.begins(transactional_id, *begins)
            self._order_markers(transactional_id, now)

        self._change(transactional_id, decided, to=(to,), answer=answer, go_on=go_on)

    def _order_markers(self, transactional_id: str, now: Now) -> None:
        value = self._values[transactional_id]
        if not value.partitions:
            self._complete(transactional_id, now)
            return
        self._orders_given += 1
        commit = value.state is TransactionState.PREPARE_COMMIT
        order = MarkerOrder(
            transactional_id=transactional_id,
            state_partition=self._partition,
            number=self._orders_given,
            marker=Marker(value.producer_id, value.producer_epoch, commit, self._coordinator_epoch),
            partitions=value.partitions,
            transaction_version=max(value.client_version, FIRST_VERSION),
        )
        self._orders[transactional_id] = order
        self._out.order(order)

    def _markers_written(self, order: MarkerOrder, now: Now) -> None:
        """Complete the transaction of an order, unless the order is not its current one: a report may come twice, or
        late."""
        if self._orders.get(order.transactional_id) == order:  # rule C14/completion-of-another-transaction
            del self._orders[order.transactional_id]
            self._complete(order.transactional_id, now)

    def _complete(self, transactional_id: str, now: Now) -> None:
        value = self._values[transactional_id]
        commit = value.state is TransactionState.PREPARE_COMMIT
        completed = value._replace(
            state=TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(),
            updated_ms=now.wall_ms,
        )
        if value.next_id != NO_ID:
            completed = completed._replace(
                producer_id=value.next_id, producer_epoch=0, previous_id=value.producer_id, next_id=NO_ID
            )

        def refused(then: Now) -> None:
            self._timers.set(  # rule C14/refused-completion-is-forgotten
                ("complete", transactional_id),
                then.monotonic_ms + RETRY_MS,
                lambda later: self._complete(transactional_id, later),
            )
            self._pending.add(transactional_id)

        self._change(transactional_id, completed, refused=refused)

    # Time

    def _look_for_timed_out_later(self, now: Now) -> None:
        def look(then: Now) -> None:
            self._abort_timed_out(then)
            self._look_for_timed_out_later(then)

        self._timers.set(_TIMED_OUT, now.monotonic_ms + self._config.abort_interval_ms, look)

    def _abort_timed_out(self, now: Now) -> None:
        """Abort transactions that have lasted too long. The producer may go on (KIP-588): it sends the epoch that it
        had, and gets the one that fenced its late requests."""
        deadlines: dict[str, tuple[int, float]] = {}
        for transactional_id, value in list(self._values.items()):
            if value.state is not TransactionState.ONGOING:
                continue
            known = self._deadlines.get(transactional_id)
            if known is None or known[0] != value.started_ms:
                # rule C15/time-out-by-a-clock-set-ahead
                left_ms = min(max(value.started_ms + value.timeout_ms - now.earliest_ms, 0), value.timeout_ms)
                known = (value.started_ms, now.monotonic_ms + left_ms)
            deadlines[transactional_id] = known
            if known[1] <= now.monotonic_ms and transactional_id not in self._pending:
                self._abort(transactional_id, value, now, value.producer_epoch, to=None, answer=None)
        self._deadlines = deadlines

    def _look_for_expired_later(self, now: Now) -> None:
        def look(then: Now) -> None:
            self._forget_expired(then)
            self._look_for_expired_later(then)

        self._timers.set(_EXPIRED, now.monotonic_ms + self._config.expiry_interval_ms, look)

    def _forget_expired(self, now: Now) -> None:
        before_ms = now.earliest_ms - self._config.expiration_ms  # rule C15/id-expires-by-a-clock-set-ahead
        expired = [
            transactional_id
            for transactional_id, value in self._values.items()
            if value.state.is_over and value.updated_ms <= before_ms and transactional_id not in self._pending
        ]  # rule C15/id-expires-with-an-open-transaction
        for first in range(0, len(expired), EXPIRED_AT_ONCE):
            self._forget(expired[first : first + EXPIRED_AT_ONCE])

    def _forget(self, transactional_ids: Iterable[str]) -> None:
        ids = frozenset(transactional_ids)
        self._pending |= ids

        def committed(_outcome: WriteOutcome, now: Now) -> None:
            self._pending.difference_update(ids)
            for transactional_id in sorted(ids & self._waiting.keys()):
                self._take_up(transactional_id, now)

        def ended(outcome: WriteOutcome, now: Now) -> None:
            if outcome.error is ErrorCode.NONE or not outcome.written:
                committed(outcome, now)

        self._write(tuple(transaction_record(one, None) for one in sorted(ids)), ended, committed)

    # Looking

    @property
    def transactions(self) -> dict[str, TransactionValue]:
        """Values of all transactional ids, for metrics and tests."""
        return self._values

    def _outcomes(self, command: FindOutcomes) -> tuple[Outcome, ...]:
        wanted = {producer_id for producer_id, _ in command.producers}
        known: dict[int, TransactionValue] = {}
        for value in self._values.values():
            for producer_id in {value.producer_id, value.previous_id} & wanted:
                known[producer_id] = value
        return tuple(
            _outcome(known[producer_id], command.partition, epoch) if producer_id in known else Outcome.UNKNOWN
            for producer_id, epoch in command.producers
        )

    def _describe(self, transactional_id: str) -> TransactionValue:
        value = self._values.get(transactional_id)
        if value is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id!r}")
        return value

    def _list(self, command: ListTransactions, now: Now) -> tuple[ListedTransaction, ...]:
        def is_wanted(value: TransactionValue) -> bool:
            lasted_ms = now.wall_ms - value.started_ms
            return (
                (not command.states or value.state.title in command.states)
                and (not command.producer_ids or value.producer_id in command.producer_ids)
                and (command.duration_ms < 0 or (value.started_ms != NEVER and lasted_ms > command.duration_ms))
            )

        return tuple(
            ListedTransaction(transactional_id, value.producer_id, value.state.title)
            for transactional_id, value in self._values.items()
            if is_wanted(value)
        )


def _outcome(value: TransactionValue, partition: TopicPartition, epoch: int) -> Outcome:
    """Return the outcome of the transaction that the producer of `value` had under `epoch`, as far as it is certain.

    Under protocol 2 an epoch belongs to one transaction. Under protocol 1 it belongs to many, and a commit of the last
    one does not tell about earlier ones, unless its markers are still being written.
    """
    state = value.state
    if state is TransactionState.ONGOING:
        is_open = value.producer_epoch == epoch and partition in value.partitions
        return Outcome.OPEN if is_open else Outcome.UNKNOWN
    if value.client_version >= EPOCH_VERSION:
        is_this = value.last_epoch == epoch
    else:
        is_this = state.is_prepared and value.producer_epoch == epoch and partition in value.partitions
    if not is_this or state is TransactionState.EMPTY:  # rule C29/a-later-decision-counts
        return Outcome.UNKNOWN
    commit = state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    return Outcome.COMMITTED if commit else Outcome.ABORTED


def _is_repeated(command: InitProducer, value: TransactionValue) -> bool:
    """Return whether the producer sends the previous epoch: of its id, or of the previous id whose epochs are used
    up."""
    if command.producer_epoch != value.last_epoch or value.last_epoch == NO_EPOCH:
        return False
    if value.producer_epoch > 0 or value.previous_id == NO_ID:
        return command.producer_id == value.producer_id
    return command.producer_id == value.previous_id


def _by_epoch(command: EndTransaction, value: TransactionValue) -> Ending:
    """Return the answer to a request to end a transaction by the table of KIP-890. Raises KafkaError for a producer id
    or epoch that the table does not cover."""
    named = Producer(command.producer_id, command.producer_epoch)
    if value.state.is_prepared and named == Producer(value.next_id, 0):
        retry = False
    elif value.producer_epoch == 0 and named == Producer(value.previous_id, value.last_epoch):
        retry = True  # the id has changed with the end of the transaction
    elif named.producer_id != value.producer_id:
        raise _unknown_producer(command.transactional_id)
    elif named.epoch == value.producer_epoch:
        retry = False
    elif named.epoch == value.last_epoch == value.producer_epoch - 1:
        retry = True
    else:
        raise _fenced(command.transactional_id)
    return BY_EPOCH[value.state].of(commit=command.commit, retry=retry)


def _by_state(command: EndTransaction, value: TransactionValue) -> Ending:
    """Return the answer to a request to end a transaction by the table of the first protocol. Raises KafkaError for
    another producer id or epoch."""
    if command.producer_id != value.producer_id:
        raise _unknown_producer(command.transactional_id)
    if command.producer_epoch != value.producer_epoch:  # rule C4/older-epoch-ends-a-transaction
        raise _fenced(command.transactional_id)
    row = BY_STATE[value.state]
    return row.commit if command.commit else row.abort


def _refusal(ending: Ending, command: EndTransaction, value: TransactionValue) -> KafkaError:
    if ending is Ending.CONCURRENT:
        return _concurrent(command.transactional_id)
    if ending is Ending.FENCED:
        return _fenced(command.transactional_id)
    asked = "commit" if command.commit else "abort"
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE,
        f"transactional id {command.transactional_id!r} is in {value.state.title}: there is nothing to {asked}",
    )


def _unknown_producer(transactional_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"transactional id {transactional_id!r} has another producer id, or has expired: initialize it again",
    )


def _fenced(transactional_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED, f"a newer producer has taken over transactional id {transactional_id!r}"
    )


def _concurrent(transactional_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"a change of transactional id {transactional_id!r} is under way: ask again",
    )
