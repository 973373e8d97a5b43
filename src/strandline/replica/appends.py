"""Appends of clients' batches to the partitions that this broker leads, and their answers (rules B9, C1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from strandline.log.batch import BatchHeader, parse_header
from strandline.log.partition_log import AppendResult, PartitionLog
from strandline.log.refusals import Refusal, Refusals
from strandline.log.syncer import Syncer
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, NoSpaceLeft, StorageError
from strandline.proto.ids import NodeId, TopicId, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock
from strandline.replica import reads
from strandline.replica.core.leader import LeaderCore
from strandline.replica.counters import ReplicaCounters
from strandline.replica.disk_room import DiskRoom
from strandline.replica.partition import AppendDone, Partition, PendingAppend
from strandline.replica.publisher import Publisher
from strandline.replica.states import ACKS_ALL, AppendOutcome, ReplicaConfig

MAY_PASS = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Refusals after which an idempotent producer sends the same batch, under the same sequence, again."""


class AppendHost(Protocol):
    """The broker that appends."""

    @property
    def node_id(self) -> NodeId: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def config(self) -> ReplicaConfig: ...
    @property
    def counters(self) -> ReplicaCounters: ...
    @property
    def disk_room(self) -> DiskRoom: ...

    def log_failed(self, partition: Partition, reason: str) -> None:
        """The partition's log can no longer be used."""

    def released(self, partition: Partition) -> None:
        """The high watermark rose."""


class Appends:
    """Writes batches, hands them to followers and syncer, and answers or lets the answer wait."""

    def __init__(
        self, host: AppendHost, partitions: Mapping[TopicPartition, Partition], *, publisher: Publisher, syncer: Syncer
    ) -> None:
        self._host = host
        self._partitions = partitions
        self._publisher = publisher
        self._syncer = syncer
        self._early: Refusals[tuple[str | TopicId, int, int]] = Refusals()
        """By topic, partition and producer id: what was refused while there was no log to keep it with, for this
        broker's metadata were behind the client's."""

    def append(self, tp: TopicPartition, batches: memoryview, acks: int, done: AppendDone) -> PendingAppend | None:
        """See `ReplicaManager.append`."""
        partition = self._partitions.get(tp)
        error, message = reads.refusal(partition)
        if partition is None or error is not ErrorCode.NONE:
            self.note_refusal(tp.topic, tp.partition, batches, error)
            done(AppendOutcome(error, message))
            return None
        core, plog = partition.leader, partition.log
        assert core is not None
        assert plog is not None
        if not -1 <= acks <= 1:
            done(AppendOutcome(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}: -1 (all), 0 and 1 are possible"))
            return None
        error = core.admit(acks)
        if error is not ErrorCode.NONE:
            self.note_refusal(tp.topic, tp.partition, batches, error)
            done(AppendOutcome(error, f"{len(core.isr)} of {core.min_isr} replicas are in sync; nothing was written"))
            return None
        clock = self._host.clock
        if self._early:
            self._recall(partition, plog, batches)
        try:
            result = plog.append_as_leader(batches, core.leader_epoch, clock.wall_ms())
        except KafkaError as failure:
            self.note_refusal(tp.topic, tp.partition, batches, failure.code)
            done(AppendOutcome(failure.code, failure.message or str(failure)))
            if isinstance(failure, NoSpaceLeft):
                self._host.disk_room.ran_out()
            return None
        except StorageError as failure:
            self._host.log_failed(partition, str(failure))
            done(AppendOutcome(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)))
            return None
        counters = self._host.counters
        counters.appends += 1
        if result.duplicate:
            mark("duplicate-batch")
            counters.duplicates += 1
        else:
            counters.messages_in_bytes += len(batches)
            advanced = core.appended(result.next_offset, clock.monotonic_ms())
            self._publisher.publish(partition, core, result)
            if self._host.config.sync_before_ack:
                self._syncer.mark(plog)
            elif advanced:
                self._host.released(partition)
        return self._answer(partition, core, result, acks, done)

    def note_refusal(self, topic: str | TopicId, index: int, batches: memoryview, code: ErrorCode) -> None:
        """A client's batches are refused before they are written. If the reason may pass, what the same producer has
        sent behind them is refused for the same reason (schedule 52). `topic` is as the client named it."""
        if code not in MAY_PASS:
            return
        header = _producers_header(batches)
        if header is None:
            return
        refusal = Refusal(header.producer_epoch, header.base_sequence, code, self._host.clock.monotonic_ms())
        partition = self._partitions.get(TopicPartition(topic, index)) if isinstance(topic, str) else None
        if partition is not None and partition.log is not None:
            partition.log.producers.refused(header.producer_id, refusal)
        else:
            self._early.add((topic, index, header.producer_id), refusal)

    def _recall(self, partition: Partition, plog: PartitionLog, batches: memoryview) -> None:
        """There is a log now: what was refused before there was one belongs to it."""
        self._early.expire(self._host.clock.monotonic_ms())
        header = _producers_header(batches)
        if header is None:
            return
        tp = partition.topic_partition
        for topic in (tp.topic, partition.state.topic_id):
            refusal = self._early.take((topic, tp.partition, header.producer_id))
            if refusal is not None:
                mark("refused-before-there-was-a-log")
                plog.producers.refused(header.producer_id, refusal)

    def _answer(
        self, partition: Partition, core: LeaderCore, result: AppendResult, acks: int, done: AppendDone
    ) -> PendingAppend | None:
        """Answer now, or when the high watermark has passed the batch (a duplicate's original has perhaps)."""
        base_offset, next_offset, append_time_ms, log_start, *_ = result
        if acks == ACKS_ALL and core.high_watermark < next_offset:
            pending = PendingAppend(next_offset, base_offset, append_time_ms, log_start, done)
            partition.wait(pending)
            return pending
        error = core.judge_committed() if acks == ACKS_ALL else ErrorCode.NONE
        # An ack that waits for nobody names the leader alone, which has the batch but may not have synced it yet.
        synced = core.synced_replicas(next_offset) or (self._host.node_id,)
        done(AppendOutcome(error, "", base_offset, append_time_ms, log_start, synced))
        return None


def _producers_header(batches: memoryview) -> BatchHeader | None:
    """The header of an idempotent producer's batch."""
    try:
        header = parse_header(batches)
    except KafkaError:
        return None
    return header if header.producer_id >= 0 and header.base_sequence >= 0 else None
