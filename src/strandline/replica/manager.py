"""The replicas of one broker: the partitions that it leads and follows, and the requests to them.

Everything runs in one event loop; no partition has a task, timer or lock of its own. There is one stream for each pair
of brokers, one sync in flight, one periodic sweep, and sets of changed partitions that are handled once a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from strandline.log.log_dirs import LogDirs
from strandline.log.partition_log import ANY_SIZE, LogRead, PartitionLog
from strandline.log.request_trace import RequestTrace
from strandline.log.transactions import AbortedTransaction, Marker, Verification
from strandline.proto.believed import BelievedClock
from strandline.proto.ensure import ensure
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError, KafkaError
from strandline.proto.ids import BrokerEpoch, NodeId, Offset, TopicId, TopicIdPartition, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock, Rng, Rpc, StreamHandler
from strandline.proto.tier import TieredSegment
from strandline.proto.timers import Delayed, Pauses
from strandline.replica.beginnings import Beginnings
from strandline.replica.compaction import Compactor
from strandline.replica.core import FollowerCore, LeaderCore
from strandline.replica.directories import Directories
from strandline.replica.disk_health import DiskStalls
from strandline.replica.fetcher import STREAM_METHOD
from strandline.replica.isr_changes import IsrChanges, SendAlterPartition
from strandline.replica.moving import Mover
from strandline.replica.partition import Append, AppendDone, DeletionDone, Partition, PendingDeletion
from strandline.replica.partition_set import PartitionSet
from strandline.replica.refusals import EarlyRefusals
from strandline.replica.retention import Retention
from strandline.replica.rot import RotWatch
from strandline.replica.scrub import Scrub
from strandline.replica.shared import Shared
from strandline.replica.states import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    PENDING_UPLOAD_TIMESTAMP,
    BrokerState,
    EpochEnd,
    ListedOffset,
    PartitionState,
    ReadOutcome,
    ReplicaConfig,
    ReplicaCounters,
    ReplicaStatus,
    Role,
)
from strandline.replica.streams import Streams
from strandline.replica.throttle import Throttle
from strandline.replica.tiering import Tiering, TierParts, TierReads
from strandline.replica.upkeep import Upkeep

_NONE = ListedOffset(ErrorCode.NONE)
"""Result for a lookup that found no record."""

_NOT_AVAILABLE = "a new leader does not know yet how far its records are committed"

NOT_HOSTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not host the partition")


class ReplicaManager:
    """Hosts this broker's partitions.

    Metadata come in through `apply`, in order; clients' requests through `append`, `read`, `list_offset` and
    `epoch_end_offset`; other brokers' through the stream handler. ISR changes go out through `send_alter_partition`.

    It is a map of partitions, with what they share: the streams, the syncer and the sweep. `Partition` decides and does
    what concerns one partition; reads are answered here, within limits that are taken once (schedule 17).

    `on_change` is called when the controller must hear of something at once: a replica can no longer be served or has
    no leader, or the disk is full or has room again. `on_fatal` is called when this node must stop: the first disk
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
            pauses=Pauses(clock),
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
        """Stop serving: end the streams, answer waiting requests, finish syncs and deletions; write the high watermarks
        to disk if `clean`. The log directories stay open."""
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
        """Broker epoch of this process's registration; NO_BROKER_EPOCH before it."""
        return self._shared.broker_epoch

    @property
    def trace(self) -> RequestTrace | None:
        """Trace of the stages of requests; None unless one was set."""
        return self.directories.trace

    @trace.setter
    def trace(self, trace: RequestTrace | None) -> None:
        self.directories.set_trace(trace)

    @property
    def config(self) -> ReplicaConfig:
        """Settings of replication that hold now."""
        return self._shared.config

    def set_flush_policy(self, policy: str) -> None:
        """Set `ReplicaConfig.flush_policy`, which the metadata decide. Call this before the first `apply`."""
        ensure(not self._partitions, "OneFlushPolicy", policy=policy)
        self._shared.config = self._shared.config.replaced(flush_policy=policy)

    def reconfigure(self, config: ReplicaConfig) -> None:
        """Apply changed settings of compaction, scrub and reserve, also to work that waits or is under way. A
        compaction pass under way keeps its memory. Cheap if nothing changed."""
        if vars(config) == vars(self._shared.config):
            return
        self._shared.config = config
        self.directories.set_reserve(config.disk_reserve_bytes)
        self.compactor.reconfigured()
        self._scrub.reconfigured()
        self._shared.pauses.wake()

    def set_broker_epoch(self, epoch: BrokerEpoch) -> None:
        """Set this process's broker epoch after it registered (again); streams are opened again under a new epoch."""
        if epoch != self._shared.broker_epoch:
            self._shared.broker_epoch = epoch
            self._streams.reconnect()

    def stream_handlers(self) -> dict[str, StreamHandler]:
        """Return the stream handlers that the node's internal listener has to serve, by method."""
        return {STREAM_METHOD: self._streams.serve}

    # Metadata

    def apply(
        self,
        changes: Sequence[PartitionState],
        deleted: Sequence[TopicIdPartition],
        brokers: Mapping[NodeId, BrokerState],
    ) -> None:
        """Apply changed committed metadata; calls come in the order of their offsets.

        The log of a new partition may be made after this returns (`PartitionSet`, `on_hosted`); until then `partition`
        returns None for it.

        Args:
            changes: every changed partition that has, or had, a replica here. The first call names all of them.
            deleted: partitions of deleted topics.
            brokers: all brokers that are registered now.
        """
        if self._set.apply(changes, deleted, brokers):
            self._streams.brokers_changed(self._set.brokers)
        self._streams.drop_idle()
        self.leader_throttle.wake()  # topics may list other throttled replicas now
        self.follower_throttle.wake()

    def on_hosted(self, hosted: Callable[[TopicPartition], None]) -> None:
        """Call `hosted` with each partition whose log is made only after `apply` has returned, because many logs had to
        be made or an older one deleted."""
        self._set.on_hosted = hosted

    def set_throttled_rates(self, leader: int, follower: int) -> None:
        """Set the bytes a second that this broker may send to throttled replicas, and fetch for its own (KIP-73)."""
        self.leader_throttle.set_limit(leader)
        self.follower_throttle.set_limit(follower)

    @property
    def brokers(self) -> Mapping[NodeId, BrokerState]:
        """All registered brokers, by the latest `apply`."""
        return self._set.brokers

    # Producing

    @property
    def packs_anew(self) -> bool:
        """True if a topic here has, or had, a codec of its own (`compression.type`), so that batches may be
        recompressed."""
        return self._set.packs_anew

    def append(
        self,
        tp: TopicPartition,
        batches: memoryview,
        acks: int,
        done: AppendDone,
        verification: Verification | None = None,
    ) -> Append | None:
        """Append a client's batches as leader. `done` is called exactly once: before this returns for errors and for
        acks 0 and 1 (then None is returned), or when the high watermark has passed the batches.

        `batches` must be writable: offsets and leader epoch are set in place. It is not used after this returns.
        `verification`: that of the transaction's first batch here (`PartitionLog.begin_verification`).
        Errors are those of `Append`, of `Partition.refusal` and of `PartitionLog.append_as_leader`.
        """
        partition = self._partitions.get(tp)
        if partition is not None:
            try:
                waiting = partition.append(batches, acks, done, verification)
                if waiting is not None and self.directories.trace is not None:
                    self.directories.trace.appended(tp, waiting.required_offset)
                return waiting
            except FatalError as error:
                self.fatal(error)
                raise
        self.note_refusal(tp.topic, tp.partition, batches, NOT_HOSTED[0])
        Append(done).end(*NOT_HOSTED)
        return None

    def append_marker(
        self, tp: TopicPartition, marker: Marker, transaction_version: int, done: AppendDone, *, leader_epoch: int = -1
    ) -> Append | None:
        """Write the marker that ends a producer's transaction, as leader and as with acks=all. `done` is called exactly
        once: before this returns for errors (then None is returned), or when the high watermark has passed the marker.

        `transaction_version`: version of the transaction's protocol. `leader_epoch`: leadership that the marker was
        sent to; -1: any. Errors are those of `Append`, of `Partition.refusal`
        and of `PartitionLog.append_marker`.
        """
        partition = self._partitions.get(tp)
        if partition is None:
            Append(done).end(*NOT_HOSTED)
            return None
        try:
            return partition.append_marker(marker, transaction_version, done, leader_epoch=leader_epoch)
        except FatalError as error:
            self.fatal(error)
            raise

    def note_refusal(self, topic: str | TopicId, index: int, batches: memoryview, code: ErrorCode) -> None:
        """Note that a client's batches are refused before they are written (see `Partition.note_refusal`). `topic`:
        name or id, whichever the client sent."""
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
        read_committed: bool = False,
        any_replica: bool = False,
        min_one_batch: bool = True,
    ) -> ReadOutcome | None:
        """Return batches from the one that holds `offset` on; None if they are not in memory (call `read_cold`). With
        `any_replica` a follower answers, too, up to the high watermark that it knows (KIP-392).

        At most `max_bytes`, but at least one batch if `min_one_batch`. With `committed_only` up to the high watermark,
        else up to the log end. With `read_committed` up to the last stable offset, with the aborted transactions of the
        data. Errors: OFFSET_OUT_OF_RANGE outside of the log, those of `Partition.refusal`, KAFKA_STORAGE_ERROR.
        """
        partition = self._partitions.get(tp)
        if partition is None:
            return ReadOutcome(*NOT_HOSTED)
        error, message = partition.refusal(current_leader_epoch, any_replica=any_replica)
        core, log = partition.leader or partition.follower, partition.log
        if error is not ErrorCode.NONE or core is None or log is None:  # without core or log it is refused
            return ReadOutcome(error, message)
        high_watermark = core.high_watermark
        stable = log.last_stable_offset(high_watermark)
        # rule C13/reads-of-open-transactions
        limit = stable if read_committed else _limit(core, log, committed_only)
        try:
            if offset >= limit:
                if not log.log_start_offset <= offset <= log.log_end_offset:
                    raise log.out_of_range(offset)
                return _outcome(partition, high_watermark, stable, b"", offset)
            found = log.read(offset, max_bytes, limit, one_batch_bytes=ANY_SIZE if min_one_batch else 0)
            if found is None:
                return None
            # rule C13/aborted-records-are-shown
            aborted = log.aborted_transactions(offset, found.next_offset) if read_committed else ()
            if aborted is None:
                return None
        except KafkaError as failure:
            if _tiered_at(partition, offset) is not None:
                return None
            return _failed(partition, failure, offset, high_watermark)
        return _outcome(partition, high_watermark, stable, found.data, found.next_offset, aborted=aborted)

    async def read_cold(
        self,
        tp: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        current_leader_epoch: int = -1,
        committed_only: bool = True,
        read_committed: bool = False,
        any_replica: bool = False,
        min_one_batch: bool = True,
    ) -> ReadOutcome:
        """Read as `read` does, from the object store or, off the event loop, from disk."""
        partition = self._partitions.get(tp)
        if partition is None:
            return ReadOutcome(*NOT_HOSTED)
        while True:
            error, message = partition.refusal(current_leader_epoch, any_replica=any_replica)
            core, log = partition.leader or partition.follower, partition.log
            if error is not ErrorCode.NONE or core is None or log is None:  # without core or log it is refused
                return ReadOutcome(error, message)
            high_watermark = core.high_watermark
            stable = log.last_stable_offset(high_watermark)
            # rule C13/reads-of-open-transactions/2
            limit = stable if read_committed else _limit(core, log, committed_only)
            segment = _tiered_at(partition, offset)
            aborted: Sequence[AbortedTransaction] = ()
            try:
                if segment is not None:
                    found, aborted = await self.tier_reads.read(
                        partition.state, segment, offset, max_bytes, limit, read_committed=read_committed
                    )
                    if len(found.data) > max_bytes and not min_one_batch:
                        found = LogRead(b"", Offset(offset), Offset(offset))
                elif read_committed:
                    found, aborted = await log.read_committed_cold(
                        offset, max_bytes, limit, one_batch_bytes=ANY_SIZE if min_one_batch else 0
                    )
                else:
                    found = await log.read_cold(
                        offset, max_bytes, limit, one_batch_bytes=ANY_SIZE if min_one_batch else 0
                    )
            except KafkaError as failure:
                if partition.log is not log and (partition.leader or partition.follower) is core:
                    mark("read-again-after-a-move")
                    continue
                if segment is not None:
                    return _failed_in_tier(partition, failure, offset, high_watermark)
                return _failed(partition, failure, offset, high_watermark)
            if (partition.leader or partition.follower) is not core:  # rule B14/a-deposed-leader-answers
                return ReadOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader changed while the disk was read")
            return _outcome(partition, high_watermark, stable, found.data, found.next_offset, aborted=aborted)

    def delete_records(self, tp: TopicPartition, offset: int, done: DeletionDone) -> PendingDeletion | None:
        """Delete the records below `offset` (TO_HIGH_WATERMARK: all committed ones), as leader. `done` is called once:
        at once with an error, or when every in-sync replica has durably deleted them.

        Errors are those of `Partition.refusal`, OFFSET_OUT_OF_RANGE beyond the high watermark, KAFKA_STORAGE_ERROR.
        """
        partition = self._partitions.get(tp)
        if partition is not None:
            return partition.delete_records(offset, done)
        done(*NOT_HOSTED, -1)
        return None

    def on_high_watermark(self, tp: TopicPartition, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once, when the high watermark rises or the role changes. Returns a function that withdraws it.

        For a partition that is not hosted here `wake` is called in the next turn of the loop.
        """
        partition = self._partitions.get(tp)
        if partition is None:
            return asyncio.get_running_loop().call_soon(wake).cancel
        return partition.watchers.add(wake)

    def on_last_stable_offset(self, tp: TopicPartition, wake: Callable[[], None]) -> Callable[[], None]:
        """Like `on_high_watermark`, for read_committed readers: `wake` is called when the last stable offset rises, not
        for each record of an open transaction."""
        partition = self._partitions.get(tp)
        if partition is None:
            return asyncio.get_running_loop().call_soon(wake).cancel
        return partition.watch_stable(wake)

    def list_offset(
        self, tp: TopicPartition, timestamp: int, *, current_leader_epoch: int = -1, read_committed: bool = False
    ) -> ListedOffset | None:
        """Return the first committed offset whose timestamp is not below `timestamp` (ms). Special values: -1 the high
        watermark, -2 the log start, -3 the record with the largest timestamp, -4 the first offset on the leader's disk
        (KIP-405), -5 the last record in the object store (KIP-1005), -6 the first that is not copied there yet
        (KIP-1023). None: the object store must be read (call `list_offset_cold`). With `read_committed` the last stable
        offset replaces the high watermark.

        OFFSET_NOT_AVAILABLE while a new leader does not know the end of what is committed (rule B7, stale HW).
        """
        partition = self._partitions.get(tp)
        if partition is None:
            return ListedOffset(*NOT_HOSTED)
        error, message = partition.refusal(current_leader_epoch)
        if error is not ErrorCode.NONE:
            return ListedOffset(error, message)
        core, log = partition.leading()
        tier, start = partition.state.tier, partition.log_start_offset
        if timestamp == EARLIEST_TIMESTAMP:
            return ListedOffset(ErrorCode.NONE, "", start, -1, _epoch_at(partition, start))
        if timestamp == EARLIEST_LOCAL_TIMESTAMP:
            return ListedOffset(ErrorCode.NONE, "", log.log_start_offset, -1, log.epoch_at(log.log_start_offset))
        if timestamp == LATEST_TIERED_TIMESTAMP:
            last = tier.end_offset - 1
            return ListedOffset(ErrorCode.NONE, "", last, -1, tier.segments[-1].last_epoch) if tier.segments else _NONE
        if timestamp == PENDING_UPLOAD_TIMESTAMP:
            if not partition.state.log_config.remote_storage:
                return _NONE
            first = max(tier.end_offset, start)
            return ListedOffset(ErrorCode.NONE, "", first, -1, log.epoch_at(first))
        if timestamp == LATEST_TIMESTAMP:
            if not core.knows_committed_end:
                return ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE, _NOT_AVAILABLE)
            return ListedOffset(ErrorCode.NONE, "", _end(core, log, read_committed), -1, core.leader_epoch)
        if timestamp < 0 and timestamp != MAX_TIMESTAMP:
            return ListedOffset(ErrorCode.UNSUPPORTED_VERSION, f"{timestamp} is no timestamp that this broker knows")
        if start < log.log_start_offset and any(one.max_timestamp_ms >= timestamp for one in tier.segments):
            return None
        return _by_time(partition, core, log, timestamp, read_committed)

    async def list_offset_cold(
        self, tp: TopicPartition, timestamp: int, *, current_leader_epoch: int = -1, read_committed: bool = False
    ) -> ListedOffset:
        """Do what `list_offset` does, and read the object store if needed."""
        partition = self._partitions.get(tp)
        if partition is None:
            return ListedOffset(*NOT_HOSTED)
        listed = self.list_offset(
            tp, timestamp, current_leader_epoch=current_leader_epoch, read_committed=read_committed
        )
        if listed is not None:
            return listed
        core, log = partition.leading()
        try:
            if timestamp == MAX_TIMESTAMP:
                tiered = await self.tier_reads.max_timestamp(partition.state)
            else:
                tiered = await self.tier_reads.offset_for_timestamp(partition.state, timestamp, log.log_start_offset)
        except KafkaError as failure:
            return ListedOffset(failure.code, str(failure))
        if partition.leader is not core:
            return ListedOffset(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader changed while the object store was read")
        if tiered is None or timestamp == MAX_TIMESTAMP:
            local = _by_time(partition, core, log, timestamp, read_committed)
            if tiered is None or local.error is not ErrorCode.NONE or local.timestamp_ms > tiered.timestamp_ms:
                return local
        return ListedOffset(ErrorCode.NONE, "", tiered.offset, tiered.timestamp_ms, tiered.leader_epoch)

    def epoch_end_offset(self, tp: TopicPartition, *, current_leader_epoch: int, epoch: int) -> EpochEnd:
        """Return the largest leader epoch not above `epoch`, and its end offset. If all remaining records are of larger
        epochs: `epoch` itself, with the partition's start as its end (KIP-320, rule B33)."""
        partition = self._partitions.get(tp)
        if partition is None:
            return EpochEnd(*NOT_HOSTED)
        error, message = partition.refusal(current_leader_epoch)
        if error is not ErrorCode.NONE:
            return EpochEnd(error, message)
        _, log = partition.leading()
        known, end_offset = log.end_offset_for_epoch(epoch)
        tiered = partition.state.tier.epoch_end(epoch) if known < 0 else None  # rule B22/epochs-of-the-tier-are-unknown
        if tiered is not None:  # of records that are in the object store alone
            return EpochEnd(ErrorCode.NONE, "", tiered.epoch, tiered.start_offset)
        # rule B33/epochs-of-nothing-have-no-end
        if known < 0 <= epoch:
            # Nothing of it, nor of one before it, is left here. The next larger one begins where the partition does.
            mark("epoch-older-than-all")
            return EpochEnd(ErrorCode.NONE, "", epoch, partition.log_start_offset)
        return EpochEnd(ErrorCode.NONE, "", known, end_offset)

    # Status

    def partition(self, tp: TopicPartition) -> Partition | None:
        """Return the partition if it is hosted here, else None."""
        return self._partitions.get(tp)

    def waits_for_log(self, tp: TopicPartition) -> bool:
        """True if the partition will be hosted once its log is made (rule B26: logs are made in turns of the loop)."""
        return self._set.waits_for_log(tp)

    def leader_of(self, tp: TopicPartition) -> NodeId | None:
        """Return the leader of a hosted partition (NO_NODE if it has none); None if it is not hosted here."""
        partition = self._partitions.get(tp)
        return None if partition is None else partition.state.leader

    def hosted(self) -> list[ReplicaStatus]:
        """Return the status of every hosted partition."""
        now_ms = self._shared.clock.monotonic_ms()
        return [partition.status(now_ms) for partition in self._partitions.values()]

    def with_open_transactions(self) -> list[Partition]:
        """Return the led partitions that have an open transaction."""
        return [
            partition
            for partition in self._partitions.values()
            if partition.leader is not None and partition.log is not None and partition.log.producers.open
        ]

    def lost_leaders(self, within_ms: float) -> list[NodeId]:
        """Return leaders followed here whose stream broke in the last `within_ms` and could not be opened again. They
        may be dead before the metadata say so."""
        return self._streams.lost_leaders(self._shared.clock.monotonic_ms() - within_ms)

    def under_replicated(self) -> int:
        """Return the number of led partitions whose ISR lacks a replica."""
        return sum(1 for core in self._leaders() if core.under_replicated)

    def reassigning(self) -> int:
        """Return the number of led partitions with a reassignment under way (KIP-455)."""
        return sum(1 for core in self._leaders() if core.is_moving)

    def under_min_isr(self) -> int:
        """Return the number of led partitions whose ISR is below min.insync.replicas, so that they cannot commit."""
        return sum(1 for core in self._leaders() if core.under_min_isr)

    @property
    def replicated_out_bytes(self) -> int:
        """Bytes of batches sent to followers since the start."""
        return self._streams.bytes_out

    def _leaders(self) -> Iterable[LeaderCore]:
        return [partition.leader for partition in self._partitions.values() if partition.leader is not None]

    # Failures of a disk, and internal errors

    def fatal(self, error: BaseException) -> None:
        """Stop the node, because of an internal error."""
        self._on_fatal(error if isinstance(error, Exception) else FatalError(f"replication ended: {error!r}"))

    def _raise_tier_start(self, partition: Partition, offset: int) -> None:
        if self.tiering is not None:
            self.tiering.raise_start(partition, offset)

    def _has_room(self) -> None:
        self._set.make_missing_logs()

    def _synced(self, logs: list[PartitionLog]) -> None:
        """Tell the partitions of a group of logs that more is durable: up to each log's end when the sync began."""
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
        """Give up a log directory that cannot be relied on: its replicas go offline, those in other directories go on.
        If it is the first directory, which has the metadata log, the node has to stop."""
        directory = self.directories.at(path)
        if path == self.log_dirs.first.path:  # schedule 56/a-failed-disk-stops-the-node
            self._on_fatal(FatalError(why))
        elif directory is not None and not directory.log_dir.failed:
            self.directories.fail(directory, why)
            for partition in list(self._partitions.values()):
                if partition.log is not None and partition.log.home == path and partition.role is not Role.OFFLINE:
                    partition.fail(f"its directory {path} is offline: {why}")
            self._on_change()


# Reading a partition


def _limit(core: LeaderCore | FollowerCore, log: PartitionLog, committed_only: bool) -> int:
    return core.high_watermark if committed_only else log.log_end_offset  # rule B14/reads-beyond-the-high-watermark


def _tiered_at(partition: Partition, offset: int) -> TieredSegment | None:
    """Return the object store's segment that holds `offset`; None if `offset` is read from the log on disk."""
    log = partition.log
    return partition.state.tier.find(offset) if log is not None and offset < log.log_start_offset else None


def _outcome(
    partition: Partition,
    high_watermark: int,
    stable: int,
    data: bytes,
    next_offset: int,
    *,
    aborted: Sequence[AbortedTransaction] = (),
) -> ReadOutcome:
    start = partition.log_start_offset
    return ReadOutcome(ErrorCode.NONE, "", high_watermark, start, stable, data, next_offset, aborted)


def _failed(partition: Partition, failure: KafkaError, offset: int, high_watermark: int) -> ReadOutcome:
    partition.cannot_read(failure)
    code, start = failure.code, partition.log_start_offset
    # rule B22/followers-send-readers-of-the-tier-away
    if code is ErrorCode.OFFSET_OUT_OF_RANGE and _may_be_tiered(partition, offset):
        code = ErrorCode.OFFSET_NOT_AVAILABLE
    return ReadOutcome(code, str(failure), high_watermark, start)


def _may_be_tiered(partition: Partition, offset: int) -> bool:
    """True on a follower that has deleted `offset` from its disk, if metadata that name its copy may still come."""
    log, state = partition.log, partition.state
    if partition.follower is None or log is None or not state.log_config.remote_storage:
        return False
    return state.tier.start_offset <= offset < log.log_start_offset


def _failed_in_tier(partition: Partition, failure: KafkaError, offset: int, high_watermark: int) -> ReadOutcome:
    """Return the error of a read in the object store: OFFSET_OUT_OF_RANGE if retention has deleted `offset`
    meanwhile."""
    code, start = failure.code, partition.log_start_offset
    if _tiered_at(partition, offset) is None and offset < start:
        code = ErrorCode.OFFSET_OUT_OF_RANGE
    return ReadOutcome(code, str(failure), high_watermark, start)


def _end(core: LeaderCore, log: PartitionLog, read_committed: bool) -> int:
    """Return the offset up to which a reader may read, by its isolation level."""
    # rule C13/times-of-open-transactions
    return log.last_stable_offset(core.high_watermark) if read_committed else core.high_watermark


def _by_time(
    partition: Partition, core: LeaderCore, log: PartitionLog, timestamp: int, read_committed: bool
) -> ListedOffset:
    """Look a timestamp up in the log on disk."""
    end = _end(core, log, read_committed)
    try:
        if timestamp == MAX_TIMESTAMP:
            # rule B14/newest-time-of-uncommitted-records
            found = log.max_timestamp(end) if core.knows_committed_end else None
        else:
            found = log.offset_for_timestamp(timestamp, end)  # rule B14/times-of-uncommitted-records
    except KafkaError as failure:
        partition.cannot_read(failure)
        return ListedOffset(failure.code, str(failure))
    if found is not None:
        return ListedOffset(ErrorCode.NONE, "", found.offset, found.timestamp_ms, found.leader_epoch)
    if not core.knows_committed_end:
        return ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE, _NOT_AVAILABLE)
    return _NONE


def _epoch_at(partition: Partition, offset: int) -> int:
    """Return the leader epoch of the record at `offset`; -1 if it is not known."""
    segment = _tiered_at(partition, offset)
    if segment is not None:
        return max((one.epoch for one in segment.epochs if one.start_offset <= offset), default=-1)
    return -1 if partition.log is None else partition.log.epoch_at(offset)
