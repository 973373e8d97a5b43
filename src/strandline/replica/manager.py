"""The replicas of one broker: what it leads, what it follows, and what they are asked for.

One loop, no task, timer or lock a partition: streams by pair of brokers, one sync in flight, one sweep, dirty sets
drained once a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from strandline.log.disk import Disk
from strandline.log.log_dir import LogDir
from strandline.log.partition_log import PartitionLog
from strandline.log.strays import Strays
from strandline.log.syncer import Syncer
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError
from strandline.proto.ids import NO_BROKER_EPOCH, BrokerEpoch, NodeId, TopicId, TopicIdPartition, TopicPartition
from strandline.proto.isr import AlterPartitionOutcome
from strandline.proto.marks import mark
from strandline.proto.ports import Clock, Rng, Rpc, StreamHandler
from strandline.replica import reads
from strandline.replica.appends import Appends
from strandline.replica.core.isr import PendingIsr
from strandline.replica.core.leader import LeaderCore
from strandline.replica.counters import ReplicaCounters
from strandline.replica.deletions import Deletions
from strandline.replica.disk_room import DiskRoom
from strandline.replica.disk_stalls import DiskStalls
from strandline.replica.fetcher import STREAM_METHOD
from strandline.replica.isr_changes import IsrChanges, SendAlterPartition
from strandline.replica.partition import AppendDone, Partition, PendingAppend
from strandline.replica.partition_set import PartitionSet
from strandline.replica.publisher import Publisher
from strandline.replica.states import (
    BrokerState,
    EpochEnd,
    ListedOffset,
    PartitionState,
    ReadOutcome,
    ReplicaConfig,
    ReplicaStatus,
    Role,
)
from strandline.replica.streams import Streams
from strandline.replica.trims import PendingTrim, TrimDone
from strandline.replica.upkeep import Upkeep

log = structlog.get_logger("strandline.replica")


class ReplicaManager:
    """Hosts this broker's partitions.

    Metadata come in by `apply`, in order; clients' requests by `append`, `read`, `list_offset` and `epoch_end_offset`;
    other brokers by the stream handler. ISR changes go out by `send_alter_partition`.

    `on_change` is called when the controller is to hear at once of something: a replica cannot be served any more, or
    nobody leads it, or the disk is full, or has room again. `on_fatal` is told when this node must stop: the whole disk
    refuses to sync, or an invariant broke. `log_dir` stays the caller's: close it after `close`.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        cluster_id: str,
        log_dir: LogDir,
        disk: Disk,
        clock: Clock,
        rng: Rng,
        rpc: Rpc,
        config: ReplicaConfig,
        send_alter_partition: SendAlterPartition,
        on_fatal: Callable[[Exception], None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.log_dir = log_dir
        self.config = config
        self.clock = clock
        self.rng = rng
        self.rpc = rpc
        self.broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
        self.counters = ReplicaCounters()
        self._on_fatal = on_fatal
        self._on_change = on_change
        log_dir.on_fatal = self.fatal
        self._set = PartitionSet(node_id, log_dir, clock, config, self)
        self._partitions = self._set.partitions
        self._streams = Streams(self)
        self._syncer = Syncer(disk, self._synced, self._sync_failed, self.fatal)
        self._isr_changes = IsrChanges(send_alter_partition, self._isr_answered, self.fatal)
        self._publisher = Publisher(config.watermark_delay_ms)
        self.strays = Strays(log_dir, disk, clock, config.stray_delete_delay_ms)
        self._deletions = Deletions(
            self, self._partitions, log_dir, disk, publisher=self._publisher, streams=self._streams
        )
        self._appends = Appends(self, self._partitions, publisher=self._publisher, syncer=self._syncer)
        self._upkeep = Upkeep(self, self._set, log_dir, streams=self._streams, syncer=self._syncer, strays=self.strays)
        self._sync_before_ack = config.sync_before_ack
        self.disk_stalls = DiskStalls(self, on_change)
        self.disk_room = DiskRoom(self, on_change, self._set.make_missing_logs)

    # Life

    def start(self) -> None:
        """Begin to follow and to sweep."""
        self.disk_room.look()
        self._streams.start()
        self._upkeep.start()

    async def close(self, clean: bool) -> None:
        """Stop serving: end the streams, answer who waits, finish syncs and deletions; write the high watermarks down
        if `clean`. The log directory is left to its owner."""
        self._upkeep.stop()
        self._publisher.stop()
        ending = [*self._streams.stop()]
        ending += [task for task in (self._isr_changes.stop(), self._deletions.stop()) if task is not None]
        if ending:
            await asyncio.wait(ending)
        for partition in self._partitions.values():
            if partition.role is Role.LEADER or partition.role is Role.FOLLOWER:
                partition.idle()
        if not clean:  # the disk may be why, and wait for ever
            self._syncer.abandon()
            self._set.abandon_deletions()
        await self._set.finish_deletions()
        await self._syncer.drain()
        if clean:
            self._upkeep.checkpoint()

    def set_flush_policy(self, policy: str) -> None:
        """What `ReplicaConfig.flush_policy` shall be: known only once the metadata are. Before the first `apply`."""
        if self._partitions:
            raise AssertionError("partitions are hosted already under the other policy")
        self.config = replace(self.config, flush_policy=policy)
        self._sync_before_ack = self.config.sync_before_ack
        self._set.config = self.config

    def set_broker_epoch(self, epoch: BrokerEpoch) -> None:
        """This process is registered (anew): streams introduce it by that epoch from now on."""
        if epoch != self.broker_epoch:
            self.broker_epoch = epoch
            self._streams.reconnect()

    def stream_handlers(self) -> dict[str, StreamHandler]:
        """What the node's internal listener has to serve."""
        return {STREAM_METHOD: self._streams.serve}

    # Metadata

    def apply(
        self,
        changes: Sequence[PartitionState],
        deleted: Sequence[TopicIdPartition],
        brokers: Mapping[NodeId, BrokerState],
    ) -> None:
        """Committed metadata changed, in the order of their offsets.

        Args:
            changes: every partition that changed and has, or had, a replica here. The first call names all of them.
            deleted: partitions of deleted topics.
            brokers: all registered brokers, as they are now.
        """
        if self._set.apply(changes, deleted, brokers):
            self._streams.brokers_changed(self._set.brokers)
        self._streams.drop_idle()

    @property
    def brokers(self) -> Mapping[NodeId, BrokerState]:
        """All registered brokers."""
        return self._set.brokers

    # Producing

    def append(self, tp: TopicPartition, batches: memoryview, acks: int, done: AppendDone) -> PendingAppend | None:
        """Append a client's batches as leader. `done` is called exactly once: before this returns for errors and for
        acks 0 and 1 (then None is returned), or when the high watermark has passed them.

        `batches` must be writable: offsets and epoch are set in place. Nothing looks at it after this returns.
        Errors are those of `AppendOutcome`, of `reads.refusal` and of `PartitionLog.append_as_leader`.
        """
        return self._appends.append(tp, batches, acks, done)

    def note_refusal(self, topic: str | TopicId, index: int, batches: memoryview, code: ErrorCode) -> None:
        """A client's batches were refused before they came to `append`: see `Appends.note_refusal`."""
        self._appends.note_refusal(topic, index, batches, code)

    # Reading

    def read(
        self,
        tp: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        current_leader_epoch: int = -1,
        committed_only: bool = True,
        any_replica: bool = False,
        min_one_batch: bool = True,
    ) -> ReadOutcome | None:
        """Batches from the one that holds `offset` on; None: not in memory, ask `read_cold`. On the leader, or with
        `any_replica` on a follower too, up to the high watermark that it knows (KIP-392).

        At most `max_bytes`, but one batch at least if `min_one_batch`. With `committed_only` nothing at or beyond the
        high watermark, else up to the log end. Errors: OFFSET_OUT_OF_RANGE outside of the log, those of
        `reads.refusal`, KAFKA_STORAGE_ERROR.
        """
        return reads.read(
            self._partitions.get(tp),
            offset,
            max_bytes,
            current_leader_epoch=current_leader_epoch,
            committed_only=committed_only,
            any_replica=any_replica,
            min_one_batch=min_one_batch,
        )

    async def read_cold(
        self,
        tp: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        current_leader_epoch: int = -1,
        committed_only: bool = True,
        any_replica: bool = False,
        min_one_batch: bool = True,
    ) -> ReadOutcome:
        """`read`, off the event loop where the bytes are cold."""
        return await reads.read_cold(
            self._partitions.get(tp),
            offset,
            max_bytes,
            current_leader_epoch=current_leader_epoch,
            committed_only=committed_only,
            any_replica=any_replica,
            min_one_batch=min_one_batch,
        )

    def delete_records(self, tp: TopicPartition, offset: int, done: TrimDone) -> PendingTrim | None:
        """Delete what lies below `offset` (TO_HIGH_WATERMARK: everything committed), as leader. `done` is called once:
        at once with an error, or when every replica in sync has durably done it.

        Errors are those of `reads.refusal`, OFFSET_OUT_OF_RANGE beyond the high watermark, KAFKA_STORAGE_ERROR.
        """
        return self._deletions.delete(tp, offset, done)

    def on_high_watermark(self, tp: TopicPartition, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once, when the partition's high watermark rises or its role changes. Returns how to withdraw.

        For a partition that is not hosted here `wake` is called in the next turn of the loop.
        """
        partition = self._partitions.get(tp)
        if partition is None:
            return asyncio.get_running_loop().call_soon(wake).cancel
        return partition.watch(wake)

    def list_offset(self, tp: TopicPartition, timestamp: int, *, current_leader_epoch: int = -1) -> ListedOffset:
        """The first committed offset whose record is not older than `timestamp` (ms), or Kafka's special ones: -1 the
        high watermark, -2 the log start, -3 the record with the largest timestamp.

        OFFSET_NOT_AVAILABLE while a new leader does not know the end of what is committed (rule B7, stale HW).
        """
        return reads.list_offset(self._partitions.get(tp), timestamp, current_leader_epoch)

    def epoch_end_offset(self, tp: TopicPartition, *, current_leader_epoch: int, epoch: int) -> EpochEnd:
        """The largest leader epoch not above `epoch`, and where it ends (KIP-320)."""
        return reads.epoch_end_offset(self._partitions.get(tp), current_leader_epoch, epoch)

    # Status

    def partition(self, tp: TopicPartition) -> Partition | None:
        """The hosted partition."""
        return self._partitions.get(tp)

    def leader_of(self, tp: TopicPartition) -> NodeId | None:
        """Who leads a hosted partition (NO_NODE: nobody); None if it is not hosted here."""
        partition = self._partitions.get(tp)
        return None if partition is None else partition.state.leader

    def hosted(self) -> list[ReplicaStatus]:
        """Every hosted partition."""
        now_ms = self.clock.monotonic_ms()
        return [partition.status(now_ms) for partition in self._partitions.values()]

    def lost_leaders(self, within_ms: float) -> list[NodeId]:
        """Leaders followed here whose stream broke in the last `within_ms` and could not be opened again: they may be
        dead, and the metadata do not say so yet."""
        return self._streams.lost_leaders(self.clock.monotonic_ms() - within_ms)

    def under_replicated(self) -> int:
        """Led partitions whose ISR lacks a replica."""
        return sum(1 for core in self._leaders() if len(core.isr) < len(core.replicas))

    def under_min_isr(self) -> int:
        """Led partitions that cannot commit."""
        return sum(1 for core in self._leaders() if core.under_min_isr)

    @property
    def replicated_out_bytes(self) -> int:
        """Batches sent to followers since the start."""
        return self._streams.bytes_out

    def _leaders(self) -> Iterable[LeaderCore]:
        return [partition.leader for partition in self._partitions.values() if partition.leader is not None]

    # What happens to partitions (RoleHost, LeaderHost, FollowerHost)

    def partition_by_id(self, topic_id: TopicId, partition: int) -> Partition | None:
        """The hosted partition by its topic's id."""
        return self._set.by_id.get((topic_id, partition))

    def led(self, partition: Partition) -> None:
        """It leads, in a new leader epoch: persist that, and make its tail durable."""
        self._streams.unfollow(partition)
        self._mark(partition)
        self.progressed(partition, advanced=True)

    def followed(self, partition: Partition) -> None:
        """It follows, in a new leader epoch."""
        self._mark(partition)
        self._streams.follow(partition)

    def stopped(self, partition: Partition) -> None:
        """It follows nobody and leads nothing."""
        self._streams.unfollow(partition)
        self._on_change()

    def _mark(self, partition: Partition) -> None:
        if partition.log is not None:
            self._syncer.mark(partition.log)

    def progressed(self, partition: Partition, advanced: bool) -> None:
        """Its leader learned something: answer who waited, propose what is due."""
        if advanced:
            self.released(partition)
        core = partition.leader
        if core is None:
            return
        if core.isr is not partition.isr:
            self._isr_changed(partition, core)
        partition.release_trims()
        if core.pending is not None and not core.pending.sent:
            self._isr_changes.add(partition)

    def _isr_changed(self, partition: Partition, core: LeaderCore) -> None:
        """Committed, whether the answer or the metadata told first."""
        before, partition.isr = len(partition.isr), core.isr
        if len(core.isr) > before:
            mark("isr-expanded")
            self.counters.isr_expands += 1
        elif len(core.isr) < before:
            mark("isr-shrunk")
            self.counters.isr_shrinks += 1

    def released(self, partition: Partition) -> None:
        """The high watermark rose: answer who waited, and let the followers know."""
        partition.release()
        self._publisher.rose(partition)

    def replicated(self, partition: Partition, size: int) -> None:
        """A follower's log grew (or was cut)."""
        self.counters.replicated_in_bytes += size
        if self._sync_before_ack or not size:
            self._mark(partition)

    def log_start_raised(self, partition: Partition) -> None:
        """A follower deleted records from the front of its log."""
        self._deletions.raised(partition)

    def truncated_below_high_watermark(self, partition: Partition, offset: int) -> None:
        """Committed records were given up, as an unclean election (or flush.policy = replicate) allows."""
        mark("truncated-below-high-watermark")
        self.counters.truncations_below_high_watermark += 1
        log.error(
            "records that were committed are given up after an unclean election",
            partition=str(partition.topic_partition),
            high_watermark=partition.high_watermark,
            truncated_to=offset,
        )

    def log_failed(self, partition: Partition, reason: str) -> None:
        """Take the partition offline. The controller hears of it and moves the leadership, if this node has it."""
        if partition.role is not Role.OFFLINE:
            mark("log-offline")
            self.counters.offline_logs += 1
            log.error("a partition is offline", partition=str(partition.topic_partition), reason=reason)
        partition.fail(reason)
        self.stopped(partition)

    def connected(self, leader: NodeId) -> None:
        """A leader has accepted this broker's stream."""
        self.counters.connections += 1

    def fatal(self, error: BaseException) -> None:
        """Something broke that must not: the node has to stop."""
        self._on_fatal(error if isinstance(error, Exception) else FatalError(f"replication ended: {error!r}"))

    # Syncs

    def _synced(self, logs: list[PartitionLog]) -> None:
        """A group of logs is durable up to where each stood when the sync began."""
        now_ms = self.clock.monotonic_ms()
        for plog in logs:
            partition = self._partitions.get(plog.topic_partition)
            if partition is None or partition.log is not plog:
                continue
            if partition.leader is not None:
                if partition.leader.synced(plog.durable_offset, now_ms):
                    self.released(partition)
            elif partition.follower is not None:
                self._streams.synced(partition)

    def _sync_failed(self, logs: list[PartitionLog], error: OSError) -> None:
        for plog in logs:
            partition = self._partitions.get(plog.topic_partition)
            if partition is not None and partition.log is plog:
                self.log_failed(partition, f"a sync failed: {error}")
        try:
            self.log_dir.disk.sync_dir(self.log_dir.path)
        except OSError as whole:
            self._on_fatal(FatalError(f"the disk refuses to sync {self.log_dir.path}: {whole}"))

    # ISR changes

    def _isr_answered(
        self, partition: Partition, core: LeaderCore, pending: PendingIsr, outcome: AlterPartitionOutcome
    ) -> None:
        advanced = core.answered(pending, outcome, self.clock.monotonic_ms())
        if outcome.error is not ErrorCode.NONE:
            self.counters.failed_isr_updates += 1
        if core.pending is not pending:
            self.progressed(partition, advanced)
        elif advanced:
            self.released(partition)
