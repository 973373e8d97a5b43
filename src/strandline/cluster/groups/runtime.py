"""Runtime of coordinators: hosts the shards of those partitions of an internal topic that this broker leads.

    leadership gained   load: replay the log to its end, wait until all of it is committed, then serve
    a command           the shard's `handle`; its writes are appended with acks=all and replayed into memory at once;
                        the reply is sent when the high watermark has passed the writes
    a marker            appended as a write, and takes effect in the shard at once
    a write is refused  nothing is in the log, so nothing was replayed: there is nothing to undo
    leadership lost     drop the shard; waiting requests get NOT_COORDINATOR, and clients find the new coordinator

Each load belongs to a (topic id, leader epoch): a load that a later election has overtaken does not serve
(schedule 37). There is one timer for the deadlines of all shards, one timer wheel for write timeouts, and one task that
loads the partitions one after the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

import structlog

from strandline.cluster.groups.loading import log_bounds, replay_log
from strandline.cluster.groups.machine import (
    COMMITTED,
    Effects,
    Reply,
    Shard,
    Write,
    WriteOutcome,
)
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord
from strandline.log.batch import RecordBatchBuilder
from strandline.log.partition_log import PartitionLog
from strandline.log.transactions import Marker, Verification
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import LeaderEpoch, TopicId, TopicPartition
from strandline.proto.ports import Clock
from strandline.proto.tasks import spawn
from strandline.proto.timers import Deadlines, Ticket
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import Append, AppendDone
from strandline.replica.states import ACKS_ALL

log = structlog.get_logger("strandline.coordinator")

NO_SEQUENCE = -1
"""Base sequence of a coordinator's batch in a producer's transaction: none."""

WRITE_GRANULARITY_MS = 100.0
TICK_MS_MIN = 1.0

S = TypeVar("S", bound=Shard)


def not_coordinator() -> KafkaError:
    """Return a new NOT_COORDINATOR error. It is made anew each time because a raised exception keeps its traceback."""
    return KafkaError(ErrorCode.NOT_COORDINATOR, "this broker is not the coordinator")


class Phase(Enum):
    """State of a hosted shard. LOADING: it replays the log, or waits until the replayed records are committed. FAILED:
    the log does not parse; the operator has to look. DROPPED: its leadership has ended."""

    LOADING = "loading"
    SERVING = "serving"
    FAILED = "failed"
    DROPPED = "dropped"


class _Pending:
    """Write that is in the log and not committed yet, and the replies that wait behind it.

    Once `answered`, after a timeout, no request waits for it; it may still be committed.
    """

    __slots__ = ("_expired", "answered", "append", "behind", "hosted", "ticket", "write")

    def __init__(self, hosted: Hosted[Any], write: Write, expired: Callable[[_Pending], None]) -> None:
        self.hosted = hosted
        self.write = write
        self.append: Append | None = None
        self.ticket: Ticket | None = None
        self.behind: list[Reply] = []
        self.answered = False
        self._expired = expired

    def expire(self) -> None:
        self._expired(self)


@dataclass(slots=True, eq=False)
class Hosted(Generic[S]):
    """Shard and the leadership that it belongs to.

    Attributes:
        waiting: requests that are not answered yet.
        pending: writes that are not committed yet, in the order of the log.
        end_offset: end offset of the log when it was loaded.
    """

    partition: int
    leadership: tuple[TopicId, LeaderEpoch]
    shard: S
    phase: Phase = Phase.LOADING
    end_offset: int = -1
    waiting: dict[asyncio.Future[Any], None] = field(default_factory=dict)
    pending: dict[_Pending, None] = field(default_factory=dict)


class CoordinatorRuntime(Generic[S]):
    """Hosts the shards of one internal topic. Subscribe `on_metadata` after the subscriber that applies metadata to the
    replicas, and `on_hosted` to the replicas.

    Invariants:
    - at most one shard per partition is not DROPPED, and it belongs to the leadership that the replicas have;
    - a shard that is not SERVING handles no command;
    - every future that `ask` waits for ends: with its reply, or with the end of the shard.
    """

    def __init__(
        self,
        topic: str,
        *,
        replicas: ReplicaManager,
        clock: Clock,
        make_shard: Callable[[int, LeaderEpoch], S],
        write_timeout_ms: int,
        on_order: Callable[[Any], None] | None = None,
        on_drop: Callable[[int, LeaderEpoch], None] | None = None,
    ) -> None:
        """Create a runtime without shards. `make_shard` gets the partition and the leader epoch. `on_order` gets the
        orders of shards; `on_drop` gets the partition and leader epoch of a dropped shard, whose orders are void."""
        self.topic = topic
        self._replicas = replicas
        self._clock = clock
        self._make_shard = make_shard
        self._write_timeout_ms = write_timeout_ms
        self._on_order = on_order
        self._on_drop = on_drop
        self._topic_id: TopicId | None = None
        self._hosted: dict[int, Hosted[S]] = {}
        self._given_up: dict[int, None] = {}
        """Partitions that this broker has led since its start and no longer leads."""
        self._to_load: deque[Hosted[S]] = deque()
        self._loader: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0.0
        self._write_deadlines = Deadlines(clock, WRITE_GRANULARITY_MS)
        self._ended: deque[tuple[_Pending, Append]] = deque()
        self._draining = False
        self._closed = False
        self.partition_load_ms_max = 0.0
        """Longest time in milliseconds from the start of a partition's load to its first command."""

    # Life

    def close(self) -> None:
        """Stop serving; waiting requests get NOT_COORDINATOR."""
        self._closed = True
        for partition in list(self._hosted):
            self._drop(partition)
        if self._loader is not None:
            self._loader.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._write_deadlines.close()

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Start or drop shards according to the partitions that are led here now; the replicas have applied the same
        metadata already."""
        topic = image.topics.get(self.topic)
        self._topic_id = None if topic is None else topic.topic_id
        if topic is None:
            for partition in list(self._hosted):
                self._drop(partition)
        elif topic.topic_id in delta.partitions:
            for partition in sorted({*self._hosted, *delta.partitions[topic.topic_id]}):
                self._look(partition)

    def on_hosted(self, tp: TopicPartition) -> None:
        """Handle that a replica of this partition is hosted now (`ReplicaManager.on_hosted`)."""
        if tp.topic == self.topic:
            self._look(tp.partition)

    def _look(self, partition: int) -> None:
        if self._closed:
            return
        replica = self._replicas.partition(TopicPartition(self.topic, partition))
        leadership = None
        if self._topic_id is not None and replica is not None and replica.leader is not None:
            leadership = (self._topic_id, replica.state.leader_epoch)
        hosted = self._hosted.get(partition)
        if hosted is not None and hosted.leadership != leadership:  # rule C8/coordinator-keeps-its-shard-over-an-epoch
            self._drop(partition)
            hosted = None
        if hosted is None and leadership is not None:
            hosted = self._hosted[partition] = Hosted(partition, leadership, self._make_shard(partition, leadership[1]))
            self._given_up.pop(partition, None)
            self._to_load.append(hosted)
            if self._loader is None:
                self._loader = spawn(self._load_all(), self._replicas.fatal)

    def _drop(self, partition: int) -> None:
        """Drop a shard because its leadership has ended or the shard is broken. Its state is in the log, and another
        shard loads it from there."""
        hosted = self._hosted.pop(partition)
        self._given_up[partition] = None
        hosted.phase = Phase.DROPPED
        if self._on_drop is not None:
            self._on_drop(partition, hosted.leadership[1])
        waiting, hosted.waiting = hosted.waiting, {}
        for future in waiting:
            if not future.done():
                future.set_exception(not_coordinator())
        for pending in hosted.pending:
            if pending.ticket is not None:
                pending.ticket.cancel()
        hosted.pending.clear()

    # Loading

    async def _load_all(self) -> None:
        while self._to_load:
            hosted = self._to_load.popleft()
            if hosted.phase is Phase.LOADING:
                await self._load(hosted)
        self._loader = None

    async def _load(self, hosted: Hosted[S]) -> None:
        began_ms = self._clock.monotonic_ms()
        tp = TopicPartition(self.topic, hosted.partition)
        try:
            hosted.end_offset = await replay_log(self._replicas, tp, hosted.leadership[1], hosted.shard)
        except StrandlineError as error:
            if isinstance(error, KafkaError) and error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                return  # the metadata say so soon, if they have not yet
            hosted.phase = Phase.FAILED
            log.error("a coordinator cannot load its partition", partition=str(tp), error=str(error))
            return
        except Exception:
            # A record that breaks this program would break the next broker as well: only this partition fails.
            hosted.phase = Phase.FAILED
            log.exception("internal error: a coordinator cannot load its partition", partition=str(tp))
            return
        self._serve_when_committed(hosted, began_ms)

    def _serve_when_committed(self, hosted: Hosted[S], began_ms: float) -> None:
        """Serve once the loaded records are committed. A new leader does not know yet which of its records are
        committed; until then no answer may show them (schedule 41)."""

        def serve() -> None:
            if hosted.phase is not Phase.LOADING:
                return
            hosted.phase = Phase.SERVING
            now = self._now()
            self.partition_load_ms_max = max(self.partition_load_ms_max, now.monotonic_ms - began_ms)
            self._step(hosted, lambda: hosted.shard.loaded(now))

        self._when_committed(hosted, hosted.end_offset, serve)

    def _when_committed(self, hosted: Hosted[S], offset: int, then: Callable[[], None]) -> None:
        """Call `then` once the high watermark has reached `offset` (at once if it has); never if the leadership ends
        before."""
        if hosted.phase is Phase.DROPPED:
            return
        tp = TopicPartition(self.topic, hosted.partition)
        try:
            log_bounds(self._replicas, tp, hosted.leadership[1])
        except KafkaError:
            return
        replica = self._replicas.partition(tp)
        assert replica is not None
        if replica.high_watermark < offset:
            loop = asyncio.get_running_loop()

            def risen() -> None:
                loop.call_soon(self._when_committed, hosted, offset, then)

            self._replicas.on_high_watermark(tp, risen)
            return
        then()

    # Commands

    async def ask(self, partition: int, command: Any) -> Any:
        """Send a command to a shard and return its answer.

        Raises:
            KafkaError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE (its log does not
                parse), UNKNOWN_SERVER_ERROR, or what the shard answers.
        """
        hosted = self.serving(partition)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        hosted.waiting[future] = None
        try:
            self._step(hosted, lambda: hosted.shard.handle(command, future, self._now()))
            return await future
        finally:
            hosted.waiting.pop(future, None)

    def knows(self, partition: int) -> bool:
        """Return whether the partition is hosted here, or will be, so that it is pointless to wait for metadata. If it
        is not led here, the client may have learned of an election that this broker has not learned of yet."""
        waits = self._replicas.waits_for_log(TopicPartition(self.topic, partition))
        return self._closed or partition in self._hosted or waits

    def has_copy(self, partition: PartitionRecord) -> bool:
        """Return whether this broker is a replica according to this record. A broker is a follower before it can be
        elected."""
        return self._replicas.node_id in partition.replicas

    def gave_up(self, partition: int) -> bool:
        """Return whether this broker has led the partition since its start and, as far as it knows, leads it no longer:
        most likely the request comes late, else its client has learned of a second election."""
        return partition in self._given_up

    def serving(self, partition: int) -> Hosted[S]:
        """Return the partition's shard if it serves. Raises KafkaError as `ask` does."""
        hosted = self._hosted.get(partition)
        if hosted is None:
            if self._replicas.waits_for_log(TopicPartition(self.topic, partition)):
                # Not NOT_COORDINATOR: librdkafka asks for committed offsets no more once it has had that.
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the coordinator's log is being made")
            raise not_coordinator()
        if hosted.phase is Phase.LOADING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the coordinator reads its log")
        if hosted.phase is Phase.FAILED:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator's log does not parse")
        return hosted

    def hosted(self) -> Iterator[Hosted[S]]:
        """Yield every hosted shard, in the order of partitions."""
        for partition in sorted(self._hosted):
            yield self._hosted[partition]

    def tell(self, partition: int, command: Any) -> None:
        """Send a command to a shard, if it is active, without waiting for the answer."""
        hosted = self._hosted.get(partition)
        if hosted is not None:
            self._step(hosted, lambda: hosted.shard.handle(command, None, self._now()))

    def tell_all(self, command: Any) -> None:
        """Send a command to every active shard, without waiting for the answers."""
        for hosted in list(self.hosted()):
            if hosted.phase is Phase.SERVING:
                self._step(hosted, lambda hosted=hosted: hosted.shard.handle(command, None, self._now()))  # type: ignore[misc]

    def _now(self) -> Now:
        return self._replicas.believed.now()

    # Transactions of producers

    def begin_verification(
        self, partition: int, producer_id: int, producer_epoch: int, *, own_epoch: bool = False
    ) -> Verification | None:
        """Return a verification that the producer's coordinator must confirm before the first records of the producer's
        transaction are written to this partition; None if the transaction is open there already. `own_epoch`: the epoch
        belongs to this transaction alone (KIP-890).

        Raises KafkaError as `ask`, and INVALID_PRODUCER_EPOCH."""
        self.serving(partition)
        log = self._log(partition)
        if log is None:
            raise not_coordinator()
        # rule C17/the-next-transaction-asks-anew-after-a-marker
        return log.begin_verification(producer_id, producer_epoch, NO_SEQUENCE, begins_at_0=own_epoch)

    def end_verification(self, partition: int, verification: Verification) -> None:
        """Drop a verification that the producer's coordinator has refused for good."""
        log = self._log(partition)
        if log is not None:
            log.end_verification(verification)

    def _log(self, partition: int) -> PartitionLog | None:
        replica = self._replicas.partition(TopicPartition(self.topic, partition))
        return None if replica is None else replica.log

    async def write_marker(
        self, partition: int, marker: Marker, transaction_version: int, *, leader_epoch: int = -1
    ) -> ErrorCode:
        """Write the marker that ends a producer's transaction. It takes effect in the shard at once, as records do, and
        is answered when it is committed (KAFKA-17507).

        A shard that is being loaded refuses markers: the load has passed the marker's place, and the transaction would
        stay open for ever (redpanda#6423). `leader_epoch` and errors are those of `ReplicaManager.append_marker`;
        errors that `ask` raises are returned as well.
        """
        try:
            hosted = self.serving(partition)  # rule C17/marker-taken-while-loading
            answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
            hosted.waiting[answer] = None
            write = Write((), lambda outcome, _now: self._reply(hosted, answer, outcome.error))
            try:
                tp = TopicPartition(self.topic, partition)

                def append(done: AppendDone) -> Append | None:
                    return self._replicas.append_marker(
                        tp, marker, transaction_version, done, leader_epoch=leader_epoch
                    )

                self._step(hosted, lambda: self._append_marker(hosted, write, marker, append))
                return await answer
            finally:
                hosted.waiting.pop(answer, None)
        except KafkaError as error:
            return error.code

    def _append_marker(
        self, hosted: Hosted[S], write: Write, marker: Marker, append: Callable[[AppendDone], Append | None]
    ) -> Effects:
        def replay() -> None:
            # rule C17/marker-that-the-group-does-not-hear-of
            hosted.shard.replay_marker(marker.producer_id, marker.commit)

        self._append(hosted, write, append, replay)
        return Effects()

    # Steps of shards

    def _step(self, hosted: Hosted[S], step: Callable[[], Effects]) -> None:
        """Run one step of a shard and carry out its effects. A shard that raises an exception is loaded anew; this is
        an internal error, which the event loop's exception handler gets, as for a task that dies."""
        if hosted.phase is not Phase.SERVING:
            return
        try:
            self._carry_out(hosted, step())
        except Exception as error:
            message = "a shard of a coordinator broke and is loaded anew"
            log.error(message, topic=self.topic, shard=hosted.partition, error=repr(error))
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
            self._drop(hosted.partition)
            self._look(hosted.partition)
            return
        self._arm(hosted)

    def _carry_out(self, hosted: Hosted[S], effects: Effects) -> None:
        for write in effects.writes:
            self._write(hosted, write)
        for reply in effects.replies:
            if reply.after_writes and hosted.pending:  # rule C8/coordinator-reads-ahead
                self._reply_behind(hosted, next(reversed(hosted.pending)), reply)
            else:
                self._reply(hosted, reply.to, reply.answer)
        if self._on_order is not None:
            for order in effects.orders:
                self._on_order(order)

    def _reply_behind(self, hosted: Hosted[S], last: _Pending, reply: Reply) -> None:
        """Reply after the last write is committed: the answer may show data that is lost if the write is; it is refused
        if the write takes too long."""
        if last.answered:
            self._reply(hosted, reply.to, not_coordinator())
        else:
            last.behind.append(reply)

    def _write(self, hosted: Hosted[S], write: Write) -> None:
        builder = RecordBatchBuilder()
        wall_ms = self._now().wall_ms
        for record in write.records:
            builder.append(wall_ms, record.key, record.value)
        tp, transaction = TopicPartition(self.topic, hosted.partition), write.transaction
        shard, verification = hosted.shard, None
        if transaction is None:
            batch = memoryview(builder.build())
        else:
            producer_id, epoch, verification = transaction
            # The sequence is the producer's own, and numbers what it writes to other partitions itself.
            batch = memoryview(builder.build(producer_id=producer_id, producer_epoch=epoch, transactional=True))

        def append(done: AppendDone) -> Append | None:
            return self._replicas.append(tp, batch, ACKS_ALL, done, verification)

        def replay() -> None:
            for record in write.records if write.replay else ():
                if transaction is not None:  # rule C17/pending-offset-counts-at-once
                    shard.replay_pending(record, transaction.producer_id)
                else:
                    shard.replay(record)

        self._append(hosted, write, append, replay)

    def _append(
        self,
        hosted: Hosted[S],
        write: Write,
        append: Callable[[AppendDone], Append | None],
        replay: Callable[[], None],
    ) -> None:
        """Append with `append`; if the records are in the log then, apply them to memory with `replay`."""
        pending = _Pending(hosted, write, self._write_expired)
        at_once: list[Append] = []
        synchronous = True

        def done(outcome: Append) -> None:
            if synchronous:
                at_once.append(outcome)
            else:
                self._write_ended(pending, outcome)

        pending.append = append(done)
        synchronous = False
        in_log = not at_once or at_once[0].base_offset >= 0
        if in_log:  # rule C8/coordinator-applies-refused-writes
            replay()
        if at_once:
            outcome = WriteOutcome(at_once[0].error, in_log)
            self._look_anew_after(hosted, outcome.error)
            self._carry_out(hosted, hosted.shard.ended(write, outcome, self._now()))
            self._tell_late(hosted, write, pending.append, outcome)
        else:
            hosted.pending[pending] = None
            pending.ticket = self._write_deadlines.add(self._write_timeout_ms, pending.expire)

    def _look_anew_after(self, hosted: Hosted[S], error: ErrorCode) -> None:
        """Check the leadership again after an error of the disk: such a failure ends a leadership before the controller
        does."""
        if error in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            asyncio.get_running_loop().call_soon(self._look, hosted.partition)

    def _write_ended(self, pending: _Pending, outcome: Append) -> None:
        """End a write in the next turn of the event loop, because the call comes from within the replicas."""
        self._ended.append((pending, outcome))
        if not self._draining:
            self._draining = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        self._draining = False
        while self._ended:
            pending, outcome = self._ended.popleft()
            result = COMMITTED if outcome.error is ErrorCode.NONE else WriteOutcome(outcome.error, True)
            pending.hosted.pending.pop(pending, None)
            self._tell(pending, result)

    def _write_expired(self, pending: _Pending) -> None:
        """Answer a write that took too long with an error that the client retries; the write may still be committed."""
        self._tell(pending, WriteOutcome(ErrorCode.REQUEST_TIMED_OUT, True))

    def _tell(self, pending: _Pending, outcome: WriteOutcome) -> None:
        hosted = pending.hosted
        if pending.answered or hosted.phase is not Phase.SERVING:
            return
        pending.answered = True
        if pending.ticket is not None:
            pending.ticket.cancel()
        self._look_anew_after(hosted, outcome.error)
        behind, pending.behind = pending.behind, []
        for reply in behind:
            self._reply(hosted, reply.to, reply.answer if outcome.error is ErrorCode.NONE else not_coordinator())
        self._step(hosted, lambda: hosted.shard.ended(pending.write, outcome, self._now()))
        self._tell_late(hosted, pending.write, pending.append, outcome)

    def _tell_late(self, hosted: Hosted[S], write: Write, append: Append | None, outcome: WriteOutcome) -> None:
        """Call the write's `late` if a write that was answered with an error is committed after all."""
        late = write.late
        # rule C14/late-decision-is-forgotten
        if outcome.error is ErrorCode.NONE or not outcome.written or late is None or append is None:
            return

        def committed() -> None:
            self._step(hosted, lambda: hosted.shard.ended(Write((), late), COMMITTED, self._now()))

        self._when_committed(hosted, append.required_offset, committed)

    def _reply(self, hosted: Hosted[S], to: Any, answer: Any) -> None:
        future: asyncio.Future[Any] = to
        hosted.waiting.pop(future, None)
        if not future.done():  # else its connection is gone
            if isinstance(answer, KafkaError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    # Deadlines

    def _arm(self, hosted: Hosted[S]) -> None:
        deadline_ms = hosted.shard.next_deadline_ms
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_ms = max(deadline_ms - self._clock.monotonic_ms(), TICK_MS_MIN)
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        serving = [hosted for hosted in self.hosted() if hosted.phase is Phase.SERVING]
        for hosted in serving:
            now = self._now()
            deadline_ms = hosted.shard.next_deadline_ms
            if deadline_ms is not None and deadline_ms <= now.monotonic_ms:
                self._step(hosted, lambda hosted=hosted, now=now: hosted.shard.tick(now))  # type: ignore[misc]
        for hosted in serving:
            if hosted.phase is Phase.SERVING:
                self._arm(hosted)
