"""Transactions of a producer: what it writes to any partitions, and the offsets of what it has read, count all or none.

`Transactions`: the state of one producer's transactions, and what its coordinator is asked. Runs on one event loop.

    UNINITIALIZED -> READY -> OPEN -> COMMITTING -> READY
                              OPEN -> ABORTING -> READY
                              OPEN, COMMITTING -> ABORTABLE -> ABORTING
    any -> FATAL

`TransactionalSequencer`: the numbers of its batches, under an epoch that all partitions' queues share.

`AsyncTransaction`, `BlockingTransaction`: a transaction that is a block of a program.

Two protocols, one for a whole transaction. Version 2 (KIP-890), where the cluster has finalized it: leaders add
partitions by themselves, and each end of a transaction gives the next epoch, so that late requests of an old one can do
nothing. Version 1: partitions are added before anything is sent there, and the epoch stays, until something happened of
which nobody knows whether it is still under way. Then the next one is asked for before another transaction begins: an
end that was sent twice could else end the next transaction (KAFKA-17754), a batch could be written into it.

What ends a transaction is a task of its own: a caller that gives up, or is interrupted, does not stop it, and the next
call waits for it. Kafka's errors are of three kinds (KIP-1050): what a retry mends is tried again, for as long as it
takes; what spoils the transaction makes it ABORTABLE; what ends the producer makes it FATAL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from strandline.client.config import ProducerConfig
from strandline.client.coordinator import TRANSACTION, Coordinator
from strandline.client.errors import (
    BrokerUnreachable,
    ClientError,
    ClientTimeout,
    ClosedError,
    OutcomeUnknown,
    ProducerFenced,
    TopicReplaced,
    TransactionAbortable,
    TransactionFatal,
)
from strandline.client.groups.coordinator import GroupCoordinator
from strandline.client.logs import log
from strandline.client.network import Connection
from strandline.client.prepared import V2_END_SINCE, PreparedTransaction
from strandline.client.producer_batch import SEQUENCE_MASK, ProducerBatch, SequenceNumbers
from strandline.client.producer_ids import NO_ID, ProducerId, init_producer_id
from strandline.client.sender import Accumulator, PartitionQueue, Sender, Sequencer
from strandline.client.session import Session
from strandline.client.tasks import Tasks
from strandline.client.types import GroupMetadata, OffsetAndMetadata
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api

T = TypeVar("T")
Offsets = Mapping[TopicPartition, OffsetAndMetadata]

FEATURE = "transaction.version"
V2_SINCE = {Api.PRODUCE: 12, Api.END_TXN: V2_END_SINCE, Api.TXN_OFFSET_COMMIT: 5}
"""The first versions of the second protocol."""
CONCURRENT_MS = 20.0
"""Wait before a request is sent again that came while the last transaction was still being completed."""

_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
_FATAL = _FENCED | {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}
_FATAL_AT_THE_LEADER = _FATAL - {ErrorCode.INVALID_PRODUCER_EPOCH}
"""A leader has heard of the next epoch: the coordinator says whether it has aborted the transaction, or fenced this."""


class TransactionState(Enum):
    """State of a producer's transactions; its value in words."""

    UNINITIALIZED = "no transaction was begun yet"
    READY = "no transaction is open"
    OPEN = "a transaction is open"
    COMMITTING = "a transaction is being committed"
    ABORTING = "a transaction is being aborted"
    ABORTABLE = "a transaction has failed, and is to be aborted"
    FATAL = "the producer has failed"


_UNINITIALIZED, _READY, _OPEN, _COMMITTING, _ABORTING, _ABORTABLE, _FAILED = TransactionState


class _End(NamedTuple):
    """Task that begins or ends a transaction. It continues if its caller is cancelled."""

    name: str
    task: asyncio.Task[None]


class Transactions:
    """Transactions of one producer.

    Invariants:
    - Records are taken while OPEN alone, and sent while OPEN or COMMITTING.
    - A commit is asked for once everything of the transaction was acknowledged, and nothing failed.
    - `_in_turn`: the coordinator gets one request of this producer at a time, the end after all that it is to end.
    """

    def __init__(
        self,
        config: ProducerConfig,
        session: Session,
        accumulator: Accumulator,
        sender: Sender,
        wake: Callable[[], None],
    ) -> None:
        assert config.transactional_id is not None
        self.state = _UNINITIALIZED
        self.id = NO_ID
        self.protocol = 1
        self.begun = False
        """Whether the coordinator may know of the open transaction: it is to hear of the end."""
        self.cause: StrandlineError | None = None
        """Error that made the transaction ABORTABLE or the producer FATAL, or None."""
        self._trouble: StrandlineError | None = None
        """Last error of the coordinator, or of the connection to it, that is being retried; None if there is none."""
        self._name = config.transactional_id
        self._config = config
        self._session = session
        self._accumulator = accumulator
        self._sender = sender
        self._wake = wake
        self._protocol_by: Connection | None = None
        """Connection to the coordinator that told of the protocol."""
        self._coordinator = Coordinator(session, self._name, TRANSACTION, config.request_timeout_ms)
        self._groups: dict[str, GroupCoordinator] = {}
        self._tasks = Tasks(self._broke)
        self._in_turn = asyncio.Lock()
        self._added: dict[TopicPartition, None] = {}
        self._to_add: dict[TopicPartition, None] = {}
        self._adding: asyncio.Task[None] | None = None
        self._offsets: dict[asyncio.Task[None], None] = {}
        self._end: _End | None = None
        self._bump_due = False
        """Whether the next transaction begins under the next epoch, which is to be asked for."""
        accumulator.bar(self._closed_to_records())
        sender.take_sequencer(self._sequencer)

    def _sequencer(self, *of_sender: Any) -> Sequencer:
        return TransactionalSequencer(*of_sender, transactions=self)

    # -- the caller's side ------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Fence whoever had this transactional.id before, abort what it left open, and get a producer id. Idempotent.

        Raises:
            KafkaError: the cluster refuses it.
            ClientTimeout: it takes longer than `max.block.ms`.
        """
        self._check("init_transactions")
        if self.state is _UNINITIALIZED:
            await self._ending("init_transactions", self._init)

    async def begin(self) -> None:
        """Begin a transaction. Raises as `init`, and ClientError: one is open."""
        await self.init()
        if self.state is _READY and (self._bump_due or self._protocol_by is None or self._protocol_by.closed):
            await self._ending("begin_transaction", self._prepare)
        if self.state is not _READY:  # also where another caller was faster
            raise ClientError(f"begin_transaction: {self.state.value}")
        self.state = _OPEN
        self.begun, self.cause = False, None
        self._added.clear()
        self._to_add.clear()
        self._accumulator.bar(None)

    async def commit(self) -> None:
        """Send all that is left, and commit it.

        Raises:
            TransactionAbortable: something of it failed; it is not committed.
            ProducerFenced, TransactionFatal: this producer can do nothing more.
            OutcomeUnknown: it takes longer than `max.block.ms`.
            ClientError: no transaction is open.
        """
        self._check("commit_transaction")
        if self.state is _ABORTABLE:
            raise self._abortable()
        if self.state is _OPEN:
            self._turn(_COMMITTING)
        elif self._ended_untold("commit_transaction"):
            return
        elif self.state is not _COMMITTING:
            raise ClientError(f"commit_transaction: {self.state.value}")
        await self._ending("commit_transaction", self._commit)

    async def abort(self) -> None:
        """Drop what was not sent yet, and abort the rest. Raises as `commit`."""
        self._check("abort_transaction")
        if self.state in (_OPEN, _ABORTABLE):
            self._turn(_ABORTING)
            self._sender.fail_unsent(TransactionAbortable("the transaction was aborted before the record was sent"))
        elif self.state is _COMMITTING:
            raise ClientError(
                "abort_transaction: the commit is under way, and may be decided: commit_transaction waits"
            )
        elif self._ended_untold("abort_transaction"):
            return
        elif self.state is not _ABORTING:
            raise ClientError(f"abort_transaction: {self.state.value}")
        await self._ending("abort_transaction", self._abort)

    async def prepare(self) -> PreparedTransaction:
        """Send all that is left, and let go of the transaction, which stays open: whoever gets it ends it. Nothing is
        sent meanwhile, and this producer can do nothing more. Raises as `commit`; then it is this producer's still."""
        self._check("prepare_transaction")
        if self.state is _ABORTABLE:
            raise self._abortable()
        if self.state is not _OPEN:
            raise ClientError(f"prepare_transaction: {self.state.value}")
        await self._within("prepare_transaction", self._tasks.spawn("a prepared transaction", self._flush()))
        self._check("prepare_transaction")
        if self.state is _ABORTABLE:
            raise self._abortable()
        self.state, self.cause = _FAILED, TransactionFatal("the transaction was let go of, and with it this producer")
        return PreparedTransaction(self._name, *self.id, self.protocol)

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit these offsets of a consumer with the transaction. Raises as `commit`."""
        self._check("send_offsets")
        if self.state is _ABORTABLE:
            raise self._abortable()
        if self.state is not _OPEN:
            raise ClientError(f"send_offsets: {self.state.value}")
        if not offsets:
            return
        task = self._tasks.spawn("offsets of a transaction", self._guarded(self._send_offsets(offsets, group)))
        self._offsets[task] = None
        await self._within("send_offsets", task)
        self._check("send_offsets")
        if self.state is _ABORTABLE:
            raise self._abortable()

    async def producer_id(self) -> int:
        """The producer id. Raises as `init`."""
        await self.init()
        return self.id.number

    async def leave(self) -> None:
        """Abort an open transaction, or wait for the end of one that is ending. Raises as `commit`."""
        if self.state in (_OPEN, _ABORTABLE, _ABORTING):
            if self.state is not _ABORTING:
                log.warning("transactional.id=%s was closed while %s: it is aborted", self._name, self.state.value)
            await self.abort()
        elif self.state is _COMMITTING:
            await self.commit()

    async def close(self) -> None:
        """Stop asking the coordinator: an open transaction is its to abort (`transaction.timeout.ms`)."""
        await self._tasks.close()

    def _check(self, call: str) -> None:
        """Check that the producer has not failed for good. Raises TransactionFatal."""
        if self.state is _FAILED:
            assert self.cause is not None
            raise self.cause.with_traceback(None)

    async def _ending(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin what ends a transaction, or wait for it where it is under way."""
        while self._end is not None and self._end.name != name and not self._end.task.done():
            await self._within(name, self._end.task)
        if self._end is None or self._end.task.done():
            self._end = _End(name, self._tasks.spawn(name, self._guarded(work())))
        await self._within(name, self._end.task)
        self._end = None
        self._check(name)
        if self.state is _ABORTABLE:
            raise self._abortable()
        if self.cause is not None and self.state is _UNINITIALIZED:
            raise self.cause.with_traceback(None)

    def _ended_untold(self, name: str) -> bool:
        """Whether this has ended well since its last caller gave up; it is told now."""
        if self.state is not _READY or self._end is None or self._end.name != name:
            return False
        self._end = None  # rule C19/a-commit-that-ended-meanwhile-is-none
        return True

    async def _within(self, name: str, task: asyncio.Task[None]) -> None:
        limit_ms = self._config.max_block_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await asyncio.wait([task])
            if task.cancelled():
                raise ClosedError("the producer was closed meanwhile")
        except TimeoutError:
            trouble = self._trouble or self._sender.current_trouble()
            if name == "init_transactions":
                raise ClientTimeout(f"{name}: no producer id within max.block.ms={limit_ms}", trouble) from None
            words = (
                f"{name} has no answer within max.block.ms={limit_ms}: it goes on, call it again to wait for its end"
            )
            raise OutcomeUnknown(words, trouble) from None

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`. An exception becomes the producer's state, which every later call checks."""
        try:
            await work
        except TransactionFatal as error:
            self._fail(error)
        except ClosedError:
            return
        except StrandlineError as error:
            if self.state in (_OPEN, _COMMITTING):
                self._spoil(error)
            else:
                self.cause = error

    # -- states -----------------------------------------------------------------------------------------------------

    def _turn(self, state: TransactionState) -> None:
        self.state = state
        self._accumulator.bar(self._closed_to_records())

    def _closed_to_records(self) -> StrandlineError:
        if self.state is _ABORTABLE:
            return self._abortable()
        return ClientError(
            f"nothing can be sent: {self.state.value}; begin_transaction, or `with producer.transaction()`"
        )

    def _abortable(self) -> TransactionAbortable:
        error = TransactionAbortable(f"the transaction cannot be committed, abort it: {self.cause}")
        error.__cause__ = self.cause
        return error

    def _spoil(self, cause: StrandlineError) -> None:
        """The transaction cannot be committed."""
        if self.state not in (_OPEN, _COMMITTING):
            return
        self.cause = cause
        self._turn(_ABORTABLE)
        asyncio.get_running_loop().call_soon(self._drop_unsent)

    def _drop_unsent(self) -> None:
        if self.state is _ABORTABLE:
            self._sender.fail_unsent(self._abortable())

    def _fail(self, cause: TransactionFatal) -> None:
        if self.state is not _FAILED:
            self.state, self.cause = _FAILED, cause
            log.error("transactional.id=%s: %s", self._name, cause)
            self._sender.fail_everything(cause)

    def _broke(self, error: ClientError) -> None:
        fatal = TransactionFatal(str(error))
        fatal.__cause__ = error
        self._fail(fatal)

    def _fatal(self, error: KafkaError) -> TransactionFatal:
        if error.code in _FENCED:
            fatal: TransactionFatal = ProducerFenced(
                f"a newer producer has begun under transactional.id={self._name}, or a transaction was open for longer "
                f"than transaction.timeout.ms={self._config.transaction_timeout_ms}: {error}"
            )
        else:
            fatal = TransactionFatal(f"the producer of transactional.id={self._name} can do nothing more: {error}")
        fatal.__cause__ = error
        return fatal

    def _judged(self, error: KafkaError) -> StrandlineError:
        """The exception for a coordinator's error that a retry does not help."""
        return self._fatal(error) if error.code in _FATAL else error

    # -- the sender's side ------------------------------------------------------------------------------------------

    def admits(self, partition: TopicPartition) -> bool:
        """Whether a batch for this partition may be sent now; in version 1 it is added first."""
        if self.state not in (_OPEN, _COMMITTING):
            return False
        if self.protocol == 2 or partition in self._added:
            self.begun = True
            return True
        self._to_add[partition] = None
        if self._adding is None:
            self._adding = self._tasks.spawn("partitions of a transaction", self._guarded(self._add()))
            self._adding.add_done_callback(self._was_added)
        return False

    def _was_added(self, _: asyncio.Task[None]) -> None:
        self._adding = None
        self._wake()

    def batch_failed(self, batch: ProducerBatch, error: Exception) -> None:
        """A batch of the transaction is lost, or nobody knows where it is."""
        if batch.numbers is not None:
            self._bump_due = self._bump_due or self.protocol == 1  # rule C19/sequences-go-on-behind-a-lost-batch
        if isinstance(error, KafkaError) and error.code in _FATAL_AT_THE_LEADER:
            self._fail(self._fatal(error))
        elif isinstance(error, StrandlineError):
            self._spoil(error)

    # -- the coordinator --------------------------------------------------------------------------------------------

    async def _init(self) -> None:
        self.cause = None

        async def ask() -> None:
            self.id = await init_producer_id(await self._coordinator.connection(), self._config)

        await self._until_answered(ask, lambda error: error)
        await self._until_answered(self._choose_protocol, lambda error: error)
        self.state = _READY
        self._accumulator.bar(self._closed_to_records())

    async def _prepare(self) -> None:
        """Choose the protocol of the next transaction, and get the next epoch for it where that is due."""

        async def ask() -> None:
            self.id = await init_producer_id(await self._coordinator.connection(), self._config, self.id)

        await self._until_answered(self._choose_protocol, self._fatal)
        if self._bump_due:
            await self._until_answered(ask, self._fatal)
        self._bump_due = False

    async def _choose_protocol(self) -> None:
        connection = await self._coordinator.connection()
        offered = connection.versions
        able = all(api in offered and offered[api].high >= version for api, version in V2_SINCE.items())
        protocol = 2 if able and connection.features.get(FEATURE, 0) >= 2 else 1
        self._bump_due = self._bump_due or (protocol > self.protocol and self.state is not _UNINITIALIZED)
        self.protocol, self._protocol_by = protocol, connection

    async def _commit(self) -> None:
        await self._flush()
        if self.state is not _COMMITTING:  # schedule 131/what-failed-is-committed
            return
        await self._end_at_coordinator(committed=True)

    async def _abort(self) -> None:
        await self._flush()
        await self._end_at_coordinator(committed=False)

    async def _flush(self) -> None:
        """Return once everything of the transaction has its answer, or has failed."""
        done = asyncio.Event()
        self._accumulator.start_flush(done.set)
        await done.wait()
        under_way = [*self._offsets, *([] if self._adding is None else [self._adding])]
        if under_way:
            await asyncio.wait(under_way)
        self._offsets.clear()

    async def _end_at_coordinator(self, *, committed: bool) -> None:
        values = {**self._who, "committed": committed}
        at_most = None if self.protocol == 2 else V2_SINCE[Api.END_TXN] - 1

        async def ask() -> None:
            try:
                answer = await self._ask(self._coordinator.call(Api.END_TXN, values, at_most=at_most))
            except KafkaError:
                raise
            except StrandlineError:
                # schedule 130/an-end-without-an-answer-ends-the-next
                self._bump_due = self._bump_due or self.protocol == 1
                raise
            self._coordinator.check(Api.END_TXN, answer.error_code)
            if self.protocol == 2 and answer.producer_id >= 0:
                self.id = ProducerId(answer.producer_id, answer.producer_epoch)  # rule C19/epoch-stays-behind-an-end

        def judged(error: KafkaError) -> StrandlineError:
            spoilt = error.code is ErrorCode.TRANSACTION_ABORTABLE and committed
            return self._judged(error) if spoilt else self._fatal(error)

        if self.begun:
            await self._until_answered(ask, judged)
        self.state, self.cause = _READY, None
        self._accumulator.bar(self._closed_to_records())

    async def _add(self) -> None:
        """Version 1: add the partitions that wait for it."""
        while self._to_add and self.state in (_OPEN, _COMMITTING):
            wanted = list(self._to_add)
            topics: dict[str, list[int]] = {}
            for item in wanted:
                topics.setdefault(item.topic, []).append(item.partition)
            values = {
                "v3_and_below_transactional_id": self._name,
                "v3_and_below_producer_id": self.id.number,
                "v3_and_below_producer_epoch": self.id.epoch,
                "v3_and_below_topics": [
                    {"name": topic, "partitions": tuple(numbers)} for topic, numbers in topics.items()
                ],
            }

            async def ask(values: Mapping[str, Any] = values) -> None:
                answer = await self._ask(self._coordinator.call(Api.ADD_PARTITIONS_TO_TXN, values))
                for topic in answer.results_by_topic_v3_and_below:
                    for entry in topic.results_by_partition:
                        if entry.partition_error_code is not ErrorCode.OPERATION_NOT_ATTEMPTED:
                            self._check_topic(Api.ADD_PARTITIONS_TO_TXN, entry.partition_error_code, topic.name)

            await self._until_answered(ask, self._judged, given_up=lambda: self.state is _ABORTING)
            self._added.update(dict.fromkeys(wanted))
            self.begun = True
            for item in wanted:
                self._to_add.pop(item, None)

    async def _send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        if self.protocol == 1:

            async def add() -> None:
                answer = await self._ask(
                    self._coordinator.call(Api.ADD_OFFSETS_TO_TXN, {**self._who, "group_id": group.group_id})
                )
                self._coordinator.check(Api.ADD_OFFSETS_TO_TXN, answer.error_code)
                self.begun = True

            await self._until_answered(add, self._judged, given_up=lambda: self.state is _ABORTING)
        values = {
            **self._who,
            "generation_id": group.generation,
            "member_id": group.member_id,
            "group_instance_id": group.instance_id,
        }
        coordinator = self._groups.get(group.group_id)
        if coordinator is None:
            coordinator = GroupCoordinator(self._session, group.group_id, self._config.request_timeout_ms)
            self._groups[group.group_id] = coordinator
        at_most = None if self.protocol == 2 else V2_SINCE[Api.TXN_OFFSET_COMMIT] - 1

        async def commit() -> None:
            self.begun = True
            try:
                await self._ask(coordinator.commit_in_transaction(values, offsets, at_most))
            except KafkaError as error:
                if error.retriable and error.code.refresh_metadata:  # of topics that this producer may know nothing of
                    self._session.metadata.want({item.topic for item in offsets})
                    await self._session.metadata.update(self._config.request_timeout_ms)
                    coordinator.check_ids(offsets)
                raise

        await self._until_answered(commit, self._judged, given_up=lambda: self.state is _ABORTING)

    @property
    def _who(self) -> dict[str, Any]:
        return {
            "transactional_id": self._name,
            "producer_id": self.id.number,
            "producer_epoch": self.id.epoch,
        }

    def _check_topic(self, api: Api, code: ErrorCode, topic: str) -> None:
        if code.refresh_metadata:
            self._session.metadata.request_update()
        self._coordinator.check(api, code, topic=topic)

    async def _ask(self, request: Awaitable[T]) -> T:
        async with self._in_turn:
            return await request

    async def _until_answered(
        self,
        attempt: Callable[[], Awaitable[None]],
        judged: Callable[[KafkaError], StrandlineError],
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Repeat `attempt` until it succeeds, or fails for good.

        Args:
            judged: what an error means that a retry does not mend; raised.
            given_up: nobody wants it any more: it ends with the next answer, whatever that says. Without an answer
                it may still be carried out, and is repeated.
        """
        failures = 0
        while True:
            unknown = False
            try:
                await attempt()
                self._trouble = None
                return
            except KafkaError as error:
                if not error.retriable:
                    verdict = judged(error)
                    if verdict is error:
                        raise
                    raise verdict from error
                self._trouble = error
                concurrent = error.code is ErrorCode.CONCURRENT_TRANSACTIONS
            except (ClosedError, TopicReplaced):
                raise
            except StrandlineError as error:
                self._trouble = error
                concurrent, unknown = False, not isinstance(error, BrokerUnreachable)
            if given_up() and not unknown:
                return
            failures += 1
            await asyncio.sleep((CONCURRENT_MS if concurrent else self._session.backoff_ms(failures)) / 1000)


class TransactionalSequencer(Sequencer):
    """Numbers of the batches of a transactional producer: under its epoch, which all partitions share.

    A queue begins at 0 under each epoch. Nothing is renumbered: what is refused at its turn spoils the transaction.
    """

    forgets_queues = False
    """False: under an epoch that lasts (version 1) a queue that comes again has to go on where it was."""

    def __init__(self, *of_sender: Any, transactions: Transactions) -> None:
        super().__init__(*of_sender)
        self._of = transactions

    @property
    def produce_version_max(self) -> int | None:  # type: ignore[override]
        """Newer ones would add the partition by themselves."""
        return None if self._of.protocol == 2 else V2_SINCE[Api.PRODUCE] - 1

    @property
    def gives_up(self) -> bool:  # type: ignore[override]
        """Whether what is not acknowledged at once is not wanted any more."""
        return self._of.state in (_ABORTING, _ABORTABLE, _FAILED)

    def may_send(self, queue: PartitionQueue) -> bool:
        """Whether the batch at the head may go out now."""
        if not self._of.admits(queue.partition):
            return False
        if (queue.producer_id, queue.producer_epoch) != self._of.id:
            queue.known = queue.known and queue.producer_id == self._of.id.number
            queue.producer_id, queue.producer_epoch = self._of.id
            queue.next_sequence = 0
            queue.numbered.clear()
        return super().may_send(queue)

    def number(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Give a batch that is about to be sent its sequence, unless it has one."""
        if batch.numbers is None:
            numbers = SequenceNumbers(queue.producer_id, queue.producer_epoch, queue.next_sequence, transactional=True)
            batch.numbers = numbers
            queue.next_sequence = (queue.next_sequence + batch.count) & SEQUENCE_MASK
            queue.numbered.append(batch)

    def failed(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception) -> None:
        """A batch has failed for good: so has its transaction."""
        super().failed(queue, batch, error)
        self._of.batch_failed(batch, error)

    def refused(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> bool:
        """True when a batch came before its turn (leadership has moved) and is to be sent again."""
        return code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and queue.numbered[:1] != [batch]

    async def assigned(self) -> int:
        """The producer id. Raises as `Transactions.init`."""
        return await self._of.producer_id()

    async def close(self) -> None:
        """Stop asking the coordinator."""
        await self._of.close()


class _Producer(Protocol):
    @property
    def transaction_state(self) -> TransactionState: ...


class _AsyncProducer(_Producer, Protocol):
    async def begin_transaction(self) -> None: ...

    async def commit_transaction(self) -> None: ...

    async def abort_transaction(self) -> None: ...


class _BlockingProducer(_Producer, Protocol):
    def begin_transaction(self) -> None: ...

    def commit_transaction(self) -> None: ...

    def abort_transaction(self) -> None: ...


A = TypeVar("A", bound=_AsyncProducer)
B = TypeVar("B", bound=_BlockingProducer)


def _is_open(producer: _Producer) -> bool:
    """Whether a block that fails leaves a transaction to be aborted."""
    return producer.transaction_state in (_OPEN, _ABORTABLE)


def _tell(producer: _Producer, error: BaseException) -> None:
    """Say in an error, which may come from anywhere, how it left the transaction: an interrupt decides nothing."""
    error.add_note(f"The transaction of this block: {producer.transaction_state.value}.")


class AsyncTransaction(Generic[A]):
    """A transaction for the time of a block; see `strandline.client.aio.Producer.transaction`."""

    def __init__(self, producer: A) -> None:
        self._producer = producer

    async def __aenter__(self) -> A:
        await self._producer.begin_transaction()
        return self._producer

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        producer = self._producer
        try:
            if error is None:
                await producer.commit_transaction()
            elif _is_open(producer):
                await producer.abort_transaction()
        except TransactionAbortable:
            await producer.abort_transaction()
            raise
        except BaseException as other:
            _tell(producer, other if error is None else error)
            if error is None or not isinstance(other, StrandlineError):
                raise


class BlockingTransaction(Generic[B]):
    """A transaction for the time of a block; see `strandline.client.Producer.transaction`."""

    def __init__(self, producer: B) -> None:
        self._producer = producer

    def __enter__(self) -> B:
        self._producer.begin_transaction()
        return self._producer

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        producer = self._producer
        try:
            if error is None:
                producer.commit_transaction()
            elif _is_open(producer):
                producer.abort_transaction()
        except TransactionAbortable:
            producer.abort_transaction()
            raise
        except BaseException as other:
            _tell(producer, other if error is None else error)
            if error is None or not isinstance(other, StrandlineError):
                raise
