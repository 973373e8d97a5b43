"""The replicas of one broker: what it leads, what it follows, and what they are asked for.

One loop, no task, timer or lock a partition: streams by pair of brokers, one sync in flight, one sweep, dirty sets
drained once a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from strandline.log.log_dirs import LogDirs
from strandline.log.partition_log import PartitionLog
from strandline.log.request_trace import RequestTrace
from strandline.proto.believed import BelievedClock
from strandline.proto.ensure import ensure
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError
from strandline.proto.ids import BrokerEpoch, NodeId, TopicId, TopicIdPartition, TopicPartition
from strandline.proto.ports import Clock, Rng, Rpc, StreamHandler
from strandline.replica import reads
from strandline.replica.beginnings import Beginnings
from strandline.replica.compaction import Compactor
from strandline.replica.core.leader import LeaderCore
from strandline.replica.directories import Directories
from strandline.replica.disk_health import DiskStalls
from strandline.replica.fetcher import STREAM_METHOD
from strandline.replica.isr_changes import IsrChanges, SendAlterPartition
from strandline.replica.moving import Mover
from strandline.replica.naps import Naps
from strandline.replica.partition import Partition
from strandline.replica.partition_set import PartitionSet
from strandline.replica.refusals import EarlyRefusals
from strandline.replica.retention import Retention
from strandline.replica.rot import RotWatch
from strandline.replica.scrub import Scrub
from strandline.replica.shared import Delayed, Shared
from strandline.replica.states import (
    BrokerState,
    EpochEnd,
    ListedOffset,
    PartitionState,
    ReadOutcome,
    ReplicaConfig,
    ReplicaCounters,
    Role,
)
from strandline.replica.status import ReplicaStatus, status_of
from strandline.replica.streams import Streams
from strandline.replica.throttle import Throttle
from strandline.replica.tier_reads import TierReads
from strandline.replica.tiering import Tiering, TierParts
from strandline.replica.upkeep import Upkeep
from strandline.replica.waiting import Append, AppendDone, DeletionDone, PendingDeletion

NOT_HOSTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not host the partition")


class ReplicaManager:
    """Hosts this broker's partitions.

    Metadata come in by `apply`, in order; clients' requests by `append`, `read`, `list_offset` and `epoch_end_offset`;
    other brokers by the stream handler. ISR changes go out by `send_alter_partition`.

    It is a map of partitions, with what they share: the streams, the syncer and the sweep. What happens to a partition
    is decided and done in `Partition`.

    `on_change` is called when the controller is to hear at once of something: a replica cannot be served any more, or
    nobody leads it, or the disk is full, or has room again. `on_fatal` is told when this node must stop: the first disk
    refuses to sync, or an invariant broke. `log_dirs` stays the caller's: close it after `close`.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        cluster_id: str,
        log_dirs: LogDirs,
        clock: Clock,
        believed: BelievedClock,
        rng: Rng,
        rpc: Rpc,
        config: ReplicaConfig,
        send_alter_partition: SendAlterPartition,
        on_fatal: Callable[[Exception], None],
        on_change: Callable[[], None] = lambda: None,
        tier: TierParts | None = None,
    ) -> None:
        self.node_id = node_id
        self.log_dirs = log_dirs
        self.believed = believed
        self._on_fatal = on_fatal
        self.counters = ReplicaCounters()
        self._on_change = on_change
        self.directories = Directories(
            log_dirs,
            clock,
            believed,
            config,
            on_synced=self._synced,
            on_sync_failed=self._sync_failed,
            on_change=on_change,
            on_room=self._has_room,
            on_fatal=self.fatal,
        )
        self.leader_throttle, self.follower_throttle = Throttle(clock), Throttle(clock)
        self._shared = Shared(
            node_id=node_id,
            cluster_id=cluster_id,
            clock=clock,
            believed=believed,
            config=config,
            naps=Naps(clock),
            counters=self.counters,
            early_refusals=EarlyRefusals(),
            directories=self.directories,
            isr_changes=IsrChanges(send_alter_partition, self.fatal),
            watermarks=Delayed(config.watermark_delay_ms),
            leader_throttle=self.leader_throttle,
            follower_throttle=self.follower_throttle,
            beginnings=Beginnings(None if tier is None else tier.reader, clock, self.fatal),
            rot=RotWatch(self.counters, on_change, self.fatal),
            on_change=on_change,
            on_fatal=self.fatal,
        )
        by_id: dict[tuple[TopicId, int], Partition] = {}
        self._streams = Streams(self._shared, rpc, rng, by_id)
        self._set = PartitionSet(self._shared, log_dirs, self._streams, by_id)
        self._partitions = self._set.partitions
        first = log_dirs.first
        self.tiering = None if tier is None else Tiering(self._shared, self._partitions, tier, rng)
        self.tier_reads = TierReads(tier)
        self.beginnings = self._shared.beginnings
        retention = Retention(self._shared, self._partitions, first, believed, self._raise_tier_start)
        self._upkeep = Upkeep(self._shared, self._set, streams=self._streams, retention=retention, tiering=self.tiering)
        self._scrub = Scrub(self._shared, self._partitions)
        # schedule 72/compaction-has-a-clock-of-its-own
        self.compactor = Compactor(self._shared, self._partitions, believed)
        self.mover = Mover(self._shared, self._partitions, log_dirs, self._streams)
        self.disk_stalls = DiskStalls(first, lambda: self._shared.config.sync_before_ack, on_change, self.fatal)

    # Life

    def start(self) -> None:
        """Begin to follow and to sweep."""
        self.directories.look_for_room()
        self._streams.start()
        self._upkeep.start()
        self._scrub.start()
        self.compactor.start()

    async def close(self, clean: bool) -> None:
        """Stop serving: end the streams, answer who waits, finish syncs and deletions; write the high watermarks down
        if `clean`. The log directory is left to its owner."""
        self._upkeep.stop()
        shared = self._shared
        shared.watermarks.stop()
        shared.rot.stop()
        self._scrub.stop()
        ending: list[asyncio.Task[Any]] = [*self._streams.stop(), *self.compactor.stop(), *self.tier_reads.stop()]
        ending += [*self.mover.stop(), *shared.beginnings.stop(), *self._set.stop_making()]
        if self.tiering is not None:
            ending += self.tiering.stop()
        self.leader_throttle.stop()
        self.follower_throttle.stop()
        ending += self.directories.stop(clean)
        ending += [task for task in (shared.isr_changes.stop(),) if task is not None]
        if ending:
            await asyncio.wait(ending)
        for partition in self._partitions.values():
            if partition.role is Role.LEADER or partition.role is Role.FOLLOWER:
                partition.idle()
        if not clean:
            self.directories.abandon_syncs()  # rule B18/a-stop-waits-for-the-hung-sync
            self._set.abandon_deletions()
        await self._set.finish_deletions()
        await self.directories.drain()
        if clean:
            self._upkeep.checkpoint()

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """Names this process's registration; NO_BROKER_EPOCH before that."""
        return self._shared.broker_epoch

    @property
    def trace(self) -> RequestTrace | None:
        """Notes the stages of requests, while somebody asked for it."""
        return self.directories.trace

    @trace.setter
    def trace(self, trace: RequestTrace | None) -> None:
        self.directories.set_trace(trace)

    @property
    def config(self) -> ReplicaConfig:
        """Its settings."""
        return self._shared.config

    def set_flush_policy(self, policy: str) -> None:
        """What `ReplicaConfig.flush_policy` shall be: known only once the metadata are. Before the first `apply`."""
        ensure(not self._partitions, "OneFlushPolicy", policy=policy)
        self._shared.config = self._shared.config.replaced(flush_policy=policy)

    def reconfigure(self, config: ReplicaConfig) -> None:
        """Other settings of compaction, scrub or reserve count from now on, also for what waits or is under way. A pass
        of compaction keeps the memory that it has. Cheap where nothing changed."""
        if vars(config) == vars(self._shared.config):
            return
        self._shared.config = config
        self.directories.set_reserve(config.disk_reserve_bytes)
        self.compactor.reconfigured()
        self._scrub.reconfigured()
        self._shared.naps.wake()

    def set_broker_epoch(self, epoch: BrokerEpoch) -> None:
        """This process is registered (anew): streams introduce it by that epoch from now on."""
        if epoch != self._shared.broker_epoch:
            self._shared.broker_epoch = epoch
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

        Logs that are made for them may come later (`PartitionSet`, `on_hosted`); until then `partition` has nothing.

        Args:
            changes: every partition that changed and has, or had, a replica here. The first call names all of them.
            deleted: partitions of deleted topics.
            brokers: all registered brokers, as they are now.
        """
        if self._set.apply(changes, deleted, brokers):
            self._streams.brokers_changed(self._set.brokers)
        self._streams.drop_idle()
        self.leader_throttle.wake()  # topics may list others now
        self.follower_throttle.wake()

    def on_hosted(self, hosted: Callable[[TopicPartition], None]) -> None:
        """Call `hosted` with each partition that is hosted only after `apply` has returned: there were many logs to
        make, or an older one to delete."""
        self._set.on_hosted = hosted

    def set_throttled_rates(self, leader: int, follower: int) -> None:
        """What this broker may send to throttled replicas, and fetch for its own, in bytes a second (KIP-73)."""
        self.leader_throttle.set_limit(leader)
        self.follower_throttle.set_limit(follower)

    @property
    def brokers(self) -> Mapping[NodeId, BrokerState]:
        """All registered brokers, by the latest `apply`."""
        return self._set.brokers

    # Producing

    @property
    def packs_anew(self) -> bool:
        """A topic here has, or had, a codec of its own (`compression.type`)."""
        return self._set.packs_anew

    def append(self, tp: TopicPartition, batches: memoryview, acks: int, done: AppendDone) -> Append | None:
        """Append a client's batches as leader. `done` is called exactly once: before this returns for errors and for
        acks 0 and 1 (then None is returned), or when the high watermark has passed them.

        `batches` must be writable: offsets and epoch are set in place. Nothing looks at it after this returns.
        Errors are those of `Append`, of `Partition.refusal` and of `PartitionLog.append_as_leader`.
        """
        partition = self._partitions.get(tp)
        if partition is not None:
            try:
                waiting = partition.append(batches, acks, done)
                if waiting is not None and self.directories.trace is not None:
                    self.directories.trace.appended(tp, waiting.required_offset)
                return waiting
            except FatalError as error:
                self.fatal(error)
                raise
        self.note_refusal(tp.topic, tp.partition, batches, NOT_HOSTED[0])
        Append(done).end(*NOT_HOSTED)
        return None

    def note_refusal(self, topic: str | TopicId, index: int, batches: memoryview, code: ErrorCode) -> None:
        """A client's batches are refused before they are written: see `Partition.note_refusal`. `topic` is as the
        client named it."""
        partition = self._partitions.get(TopicPartition(topic, index)) if isinstance(topic, str) else None
        if partition is not None:
            partition.note_refusal(batches, code)
        else:
            self._shared.early_refusals.note(topic, index, batches, code, self._shared.clock.monotonic_ms())

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
        """Batches from the one that holds `offset` on; None: not in memory, or in the object store; ask `read_cold`.
        On the leader, or with `any_replica` on a follower too, up to the high watermark that it knows (KIP-392).

        At most `max_bytes`, but one batch at least if `min_one_batch`. With `committed_only` nothing at or beyond the
        high watermark, else up to the log end. Errors: OFFSET_OUT_OF_RANGE outside of the log, those of
        `Partition.refusal`, KAFKA_STORAGE_ERROR.
        """
        partition = self._partitions.get(tp)
        if partition is None:
            return ReadOutcome(*NOT_HOSTED)
        return reads.read(
            partition,
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
        partition = self._partitions.get(tp)
        if partition is None:
            return ReadOutcome(*NOT_HOSTED)
        return await reads.read_cold(
            partition,
            offset,
            max_bytes,
            current_leader_epoch=current_leader_epoch,
            committed_only=committed_only,
            any_replica=any_replica,
            min_one_batch=min_one_batch,
            tier_reads=self.tier_reads,
        )

    def delete_records(self, tp: TopicPartition, offset: int, done: DeletionDone) -> PendingDeletion | None:
        """Delete what lies below `offset` (TO_HIGH_WATERMARK: everything committed), as leader. `done` is called once:
        at once with an error, or when every replica in sync has durably done it.

        Errors are those of `Partition.refusal`, OFFSET_OUT_OF_RANGE beyond the high watermark, KAFKA_STORAGE_ERROR.
        """
        partition = self._partitions.get(tp)
        if partition is not None:
            return partition.delete_records(offset, done)
        done(*NOT_HOSTED, -1)
        return None

    def on_high_watermark(self, tp: TopicPartition, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once, when the partition's high watermark rises or its role changes. Returns how to withdraw.

        For a partition that is not hosted here `wake` is called in the next turn of the loop.
        """
        partition = self._partitions.get(tp)
        if partition is None:
            return asyncio.get_running_loop().call_soon(wake).cancel
        return partition.watchers.add(wake)

    def list_offset(self, tp: TopicPartition, timestamp: int, *, current_leader_epoch: int = -1) -> ListedOffset | None:
        """The first committed offset whose record is not older than `timestamp` (ms), or Kafka's special ones: -1 the
        high watermark, -2 the log start, -3 the record with the largest timestamp, -4 the start of what is on the disk
        (KIP-405), -5 the last record in the object store (KIP-1005), -6 the first that is to be copied there
        (KIP-1023). None: the object store has to be asked (`list_offset_cold`).

        OFFSET_NOT_AVAILABLE while a new leader does not know the end of what is committed (rule B7, stale HW).
        """
        partition = self._partitions.get(tp)
        if partition is None:
            return ListedOffset(*NOT_HOSTED)
        return reads.list_offset(partition, timestamp, current_leader_epoch)

    async def list_offset_cold(
        self, tp: TopicPartition, timestamp: int, *, current_leader_epoch: int = -1
    ) -> ListedOffset:
        """`list_offset`, with what lies in the object store."""
        partition = self._partitions.get(tp)
        if partition is None:
            return ListedOffset(*NOT_HOSTED)
        return await reads.list_offset_cold(partition, timestamp, current_leader_epoch, self.tier_reads)

    def epoch_end_offset(self, tp: TopicPartition, *, current_leader_epoch: int, epoch: int) -> EpochEnd:
        """The largest leader epoch not above `epoch`, and where it ends. If all that is left is of larger ones, `epoch`
        itself, and where the partition begins (KIP-320, rule B33)."""
        partition = self._partitions.get(tp)
        if partition is None:
            return EpochEnd(*NOT_HOSTED)
        return reads.epoch_end_offset(partition, current_leader_epoch, epoch)

    # Status

    def partition(self, tp: TopicPartition) -> Partition | None:
        """The hosted partition."""
        return self._partitions.get(tp)

    def waits_for_log(self, tp: TopicPartition) -> bool:
        """It will be hosted once its log is made (rule B26)."""
        return self._set.waits_for_log(tp)

    def leader_of(self, tp: TopicPartition) -> NodeId | None:
        """Who leads a hosted partition (NO_NODE: nobody); None if it is not hosted here."""
        partition = self._partitions.get(tp)
        return None if partition is None else partition.state.leader

    def hosted(self) -> list[ReplicaStatus]:
        """Every hosted partition."""
        now_ms = self._shared.clock.monotonic_ms()
        return [status_of(partition, now_ms) for partition in self._partitions.values()]

    def lost_leaders(self, within_ms: float) -> list[NodeId]:
        """Leaders followed here whose stream broke in the last `within_ms` and could not be opened again: they may be
        dead, and the metadata do not say so yet."""
        return self._streams.lost_leaders(self._shared.clock.monotonic_ms() - within_ms)

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

    # The disk, and what must not happen

    def fatal(self, error: BaseException) -> None:
        """Something broke that must not: the node has to stop."""
        self._on_fatal(error if isinstance(error, Exception) else FatalError(f"replication ended: {error!r}"))

    def _raise_tier_start(self, partition: Partition, offset: int) -> None:
        if self.tiering is not None:
            self.tiering.raise_start(partition, offset)

    def _has_room(self) -> None:
        self._set.make_missing_logs()

    def _synced(self, logs: list[PartitionLog]) -> None:
        """A group of logs is durable up to where each stood when the sync began."""
        for plog in logs:
            partition = self._partitions.get(plog.topic_partition)
            if partition is not None and partition.log is plog:
                partition.synced()

    def _sync_failed(self, logs: list[PartitionLog], error: OSError) -> None:
        for plog in logs:
            partition = self._partitions.get(plog.topic_partition)
            if partition is not None and partition.log is plog:
                partition.fail(f"a sync failed: {error}")
        for path in dict.fromkeys(plog.home for plog in logs):
            directory = self.directories.at(path)
            if directory is None or directory.log_dir.failed:
                continue
            try:
                directory.log_dir.disk.sync_dir(path)  # schedule 56/poisoned-disk-goes-on
            except OSError as whole:
                self.directory_failed(path, f"the disk refuses to sync {path}: {whole}")

    def directory_failed(self, path: str, why: str) -> None:
        """Nothing in a log directory can be relied on any more: the replicas in it are offline, the others go on. The
        node has to stop where it is the first one, which has the metadata log."""
        directory = self.directories.at(path)
        if path == self.log_dirs.first.path:  # schedule 56/a-failed-disk-stops-the-node
            self._on_fatal(FatalError(why))
        elif directory is not None and not directory.log_dir.failed:
            self.directories.fail(directory, why)
            for partition in list(self._partitions.values()):
                if partition.log is not None and partition.log.home == path and partition.role is not Role.OFFLINE:
                    partition.fail(f"its directory {path} is offline: {why}")
            self._on_change()
