"""The partitions of one broker, and how metadata change their roles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog

from strandline.log.disk import DiskError
from strandline.log.loading import aside_stem
from strandline.log.log_dirs import LogDirs
from strandline.log.partition_log import PartitionLog
from strandline.proto.errors import CorruptLogError, KafkaError, NoSpaceLeft, StorageError
from strandline.proto.ids import NO_NODE, NodeId, TopicId, TopicIdPartition, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.tasks import spawn
from strandline.replica.core import FollowerCore, LeaderCore
from strandline.replica.partition import Partition
from strandline.replica.shared import Shared
from strandline.replica.states import BrokerState, PartitionState, Role
from strandline.replica.streams import Streams

log = structlog.get_logger("strandline.replica")

MAKING_MS = 20.0
"""Time for making new logs in one turn of the loop. Votes and heartbeats wait meanwhile; an election timeout is 1,000
ms or more. A log takes three names: a disk that takes 0.4 ms for each makes 17 logs in that time, one that takes 0.02
ms some hundred."""

RESTING_MS = 10.0
"""Milliseconds left to other work of the event loop between two steps of creating logs: a response takes several
turns."""


class PartitionSet:
    """Applies metadata, in order. Only a new leader epoch restarts anything (KAFKA-13790).

    Existing logs are opened and led or followed at once. New logs are made in the order of the metadata, as many in a
    turn of the loop as there is time for. A partition whose log is not made yet is not hosted: requests for it are
    refused with a retriable error (`NOT_HOSTED`), and newer metadata replace those that it waits with.

    Invariants:
    - a partition is in both of `partitions` and `by_id`, or in neither;
    - a name is in at most one of `partitions`, `_unmade` and `_deletions`;
    - no log is opened for a name while an older topic's log of that name is being deleted;
    - more logs are made only once a sync of the last ones has begun. So group syncs, for which acks wait, stay small,
      and few files with open descriptors wait for one;
    - a partition in `_without_log` is offline only because there was no room for its log;
    - a damaged log that was set aside stays on the disk until its replica is in the ISR again.
    """

    def __init__(
        self, shared: Shared, log_dirs: LogDirs, streams: Streams, by_id: dict[tuple[TopicId, int], Partition]
    ) -> None:
        """`by_id`: filled here, and read by the streams."""
        self._shared = shared
        self._log_dirs = log_dirs
        self._streams = streams
        self.on_hosted: Callable[[TopicPartition], None] | None = None
        """See `ReplicaManager.on_hosted`."""
        self._channel = 0
        self._unmade: dict[TopicPartition, PartitionState] = {}
        self._maker: asyncio.Task[None] | None = None
        self._making_until_ms: float | None = None
        self._last_made: list[PartitionLog] = []
        self._stopped = False
        self._deletions: dict[TopicPartition, asyncio.Task[None]] = {}
        self._awaiting_deletion: dict[TopicPartition, PartitionState] = {}
        self._without_log: dict[Partition, None] = {}
        self._asides = dict.fromkeys(log_dirs.asides())
        self.partitions: dict[TopicPartition, Partition] = {}
        self.by_id = by_id
        self.brokers: dict[NodeId, BrokerState] = {}
        self.packs_anew = False
        """True if a topic here has, or had, a codec of its own (`compression.type`)."""

    def apply(
        self,
        changes: Sequence[PartitionState],
        deleted: Sequence[TopicIdPartition],
        brokers: Mapping[NodeId, BrokerState],
    ) -> bool:
        """Apply metadata as `ReplicaManager.apply` does. Return True if the brokers changed."""
        brokers_changed = self.brokers != brokers
        if brokers_changed:
            self.brokers = dict(brokers)
        for topic_id, number in deleted:
            partition = self.by_id.get((topic_id, number))
            if partition is not None:
                self._delete(partition)
        gone = set(deleted)
        for state in [*self._awaiting_deletion.values(), *self._unmade.values()] if gone else ():
            if state.topic_id_partition in gone:
                self._host_no_more(state.topic_partition)
        self._choose_directories(changes)
        for state in changes:
            self.packs_anew = self.packs_anew or state.log_config.stored_codec is not None
            self._apply(state)
        self._make_logs()
        if brokers_changed:
            now_ms = self._shared.clock.monotonic_ms()
            for partition in list(self.partitions.values()):
                partition.brokers_changed(self.brokers, now_ms)
        return brokers_changed

    def _choose_directories(self, changes: Sequence[PartitionState]) -> None:
        """Choose the directories of the logs that will be made, and record them in one write."""
        names = {state.topic_partition: state.topic_id for state in changes if self._shared.node_id in state.replicas}
        new = [tp for tp in names if tp not in self.partitions and tp not in self._deletions]
        new = [tp for tp in new if tp not in self._unmade or self._unmade[tp].topic_id != names[tp]]
        try:
            self._log_dirs.choose(
                (tp, names[tp])
                for tp in new
                if self._log_dirs.log_of(tp) is None and self._log_dirs.damage_of(tp) is None
            )
        except (KafkaError, StorageError) as error:  # each that is made meets the same, and is offline by it
            log.warning("no directory can be chosen for new replicas", error=str(error))

    def is_assigned(self, wanted: TopicIdPartition) -> bool:
        """True if the metadata assign the partition to this broker, even if its log cannot be made yet."""
        waiting = (*self._unmade.values(), *self._awaiting_deletion.values())
        return wanted in self.by_id or any(state.topic_id_partition == wanted for state in waiting)

    def waits_for_log(self, name: TopicPartition) -> bool:
        """True if the metadata assign the partition to this broker, and its log is not made yet."""
        return name in self._unmade or name in self._awaiting_deletion

    def stop_making(self) -> list[asyncio.Task[None]]:
        """Stop making logs; return the tasks that end now. The next start makes the missing logs."""
        self._stopped = True
        if self._maker is None:
            return []
        self._maker.cancel()
        return [self._maker]

    def abandon_deletions(self) -> None:
        """Cancel deletions under way: the next start deletes what is left on the disk."""
        for task in list(self._deletions.values()):
            task.cancel()

    async def finish_deletions(self) -> None:
        """Wait until all deletions under way have ended."""
        while self._deletions:
            await asyncio.wait(list(self._deletions.values()))

    # One partition

    def _apply(self, state: PartitionState) -> None:
        name = state.topic_partition
        partition = self.partitions.get(name)
        if partition is not None and partition.state.topic_id != state.topic_id:
            self._delete(partition)
            partition = None
        if self._shared.node_id not in state.replicas:
            self._host_no_more(name)
            if partition is not None:
                self._delete(partition)
            return
        if name in self._deletions:
            self._awaiting_deletion[name] = state
            return
        if partition is None:
            if self._log_dirs.log_of(name) is None and self._log_dirs.damage_of(name) is None:
                self._unmade[name] = state  # `_make_logs` has to follow
                return
            partition = self._host_partition(state)
            if partition is None:
                return
        # rule B1/older-metadata-move-roles
        elif (
            state.leader_epoch < partition.state.leader_epoch or state.partition_epoch < partition.state.partition_epoch
        ):
            return
        elif state.leader_epoch == partition.state.leader_epoch:  # rule B1/partition-epoch-restarts
            partition.metadata_changed(state, self.brokers)
            self._remove_aside(state)
            return
        partition.state = state
        self._take_role(partition)

    def _take_role(self, partition: Partition) -> None:
        """Take the role of a new leader epoch: lead, follow or idle, with new state."""
        state, plog = partition.state, partition.log
        self._remove_aside(state)
        if plog is None or partition.role is Role.OFFLINE:
            if self._may_begin_anew(state):
                self._begin_anew(partition)
            else:
                partition.fail(partition.reason)
            return
        plog.config = state.log_config
        if state.leader == self._shared.node_id:
            self._lead(partition, plog)
        elif state.leader == NO_NODE:
            partition.idle()
            self._shared.on_change()
        else:
            sync_before_ack = self._shared.config.sync_before_ack
            high_watermark = partition.high_watermark
            # rule B8/truncate-to-high-watermark
            partition.follow(FollowerCore(state, high_watermark, plog.log_end_offset, sync_before_ack=sync_before_ack))
            self._shared.directories.of(plog.home).syncer.mark(plog)
            self._streams.follow(partition)

    def _lead(self, partition: Partition, plog: PartitionLog) -> None:
        """Become leader. The epoch and its start are in the log before a request can ask for them, and on disk with the
        next sync, which comes before any record of this epoch counts (KAFKA-7415, schedule 3). One sync serves all
        elections of a turn."""
        state = partition.state
        try:
            self._begin_at_the_tier(partition, plog)
            # rule B24/leaders-without-a-disk-know-nobody
            if self._shared.beginnings.awaits(partition, partial(self._lead_after_all, partition, state), leads=True):
                partition.idle()
                return
            plog.assign_epoch_start(state.leader_epoch, plog.log_end_offset)  # rule B8/no-epoch-at-election
        except (KafkaError, StorageError) as error:
            partition.fail(str(error))
            return
        core = LeaderCore(
            self._shared.node_id,
            state,
            self.brokers,
            log_end_offset=plog.log_end_offset,
            durable_offset=plog.durable_offset,
            high_watermark=min(max(partition.high_watermark, plog.log_start_offset), plog.log_end_offset),
            sync_before_ack=self._shared.config.sync_before_ack,
            lag_time_max_ms=self._shared.config.replica_lag_time_max_ms,
            now_ms=self._shared.clock.monotonic_ms(),
            log_start_offset=plog.log_start_offset,
        )
        self._channel = self._channel % 0xFFFFFFFF + 1  # rule B5/progress-outlives-the-leader-epoch
        partition.lead(core, self._channel)
        self._shared.directories.of(plog.home).syncer.mark(plog)

    def _lead_after_all(self, partition: Partition, state: PartitionState) -> None:
        """Take the leadership that had to wait for the log's producers, unless the leader epoch has changed."""
        if partition.role is Role.IDLE and partition.state.leader_epoch == state.leader_epoch:
            self._take_role(partition)

    def _begin_at_the_tier(self, partition: Partition, plog: PartitionLog) -> None:
        """Drop the log of an uncleanly elected leader if it ends below the object store's end, or diverges from it, and
        start anew there. So no record that was copied is lost (rule B22).

        Raises KafkaError, StorageError.
        """
        tier = partition.state.tier
        end = tier.end_offset
        if not tier.segments or plog.log_start_offset >= end:  # rule B22/unclean-leaders-begin-below-the-tier
            return
        # rule B22/unclean-leaders-keep-what-parted-from-the-tier
        if plog.log_end_offset >= end and plog.epoch_at(end - 1) == tier.segments[-1].last_epoch:
            return
        mark("unclean-leader-begins-at-the-tier")
        log.warning(
            "the log of a new leader lacks records that are in the object store, and begins anew behind them",
            partition=str(partition.topic_partition),
            log_end_offset=plog.log_end_offset,
            tiered_end_offset=end,
        )
        plog.truncate_fully_and_start_at(end)

    # Logs

    def _host_partition(self, state: PartitionState) -> Partition | None:
        """Host a partition on its existing log or a new one; return None while an older topic's log is being
        deleted."""
        name = state.topic_partition
        damage = self._log_dirs.damage_of(name)
        plog = self._log_dirs.log_of(name)
        if damage is None and plog is not None and plog.topic_id != state.topic_id:
            self._awaiting_deletion[name] = state
            self._delete_log(name)
            return None
        partition = Partition(self._shared, state, plog)
        self.partitions[name] = partition
        self.by_id[state.topic_id, state.partition] = partition
        if damage is not None:
            partition.fail(str(damage))
            return partition
        if plog is None:
            try:
                plog = partition.log = self._log_dirs.create(name, state.topic_id, state.log_config)
            except (KafkaError, StorageError) as error:
                partition.fail(str(error))
                if isinstance(error, NoSpaceLeft):
                    self._without_log[partition] = None
                return partition
        known = self._log_dirs.high_watermark_of(name)
        partition.start_at(min(max(known, plog.log_start_offset), plog.log_end_offset))
        return partition

    def _make_logs(self, *, late: bool = False) -> None:
        """Make missing logs, as many as this turn has time for, and start a task for the rest. `late`: the partitions
        were absent when their metadata were applied, so `on_hosted` is called."""
        if self._unmade and self._maker is None and not self._stopped:  # rule B26/logs-are-made-after-the-end
            self._make_some(late=late)
            if self._unmade:
                mark("logs-made-in-turns")
                self._maker = spawn(self._make_others(), self._shared.on_fatal)

    async def _make_others(self) -> None:
        clock, began_ms = self._shared.clock, self._shared.clock.monotonic_ms()
        log.info("new logs are made some at a time", waiting=len(self._unmade))
        try:
            while self._unmade:
                await asyncio.sleep(RESTING_MS / 1000)
                if not any(plog.sync_pending for plog in self._last_made):  # rule B26/logs-are-made-faster-than-synced
                    self._last_made.clear()
                    self._make_some(late=True)
        finally:
            self._maker = None
        log.info("the new logs are made", seconds=round((clock.monotonic_ms() - began_ms) / 1000, 1))

    def _make_some(self, *, late: bool) -> None:
        clock = self._shared.clock
        now_ms = clock.monotonic_ms()
        if self._making_until_ms is None:  # the first of this turn
            self._making_until_ms = now_ms + MAKING_MS  # rule B26/all-logs-are-made-in-one-turn
            asyncio.get_running_loop().call_soon(self._turn_ended)
        elif now_ms >= self._making_until_ms:  # rule B26/each-delta-has-a-turns-time
            return
        for name in list(self._unmade):
            self._make(name)
            if late and self.on_hosted is not None:
                self.on_hosted(name)  # rule B26/late-partitions-have-no-coordinator
            if clock.monotonic_ms() >= self._making_until_ms:
                return

    def _make(self, name: TopicPartition) -> None:
        partition = self._host_partition(self._unmade.pop(name))
        if partition is not None:
            self._take_role(partition)
            if partition.log is not None:
                self._last_made.append(partition.log)

    def _turn_ended(self) -> None:
        self._making_until_ms = None
        if self._maker is None:
            self._last_made.clear()

    def _host_no_more(self, name: TopicPartition) -> None:
        """Forget a replica that waits for its log, because it is no longer assigned to this broker."""
        self._awaiting_deletion.pop(name, None)
        if self._unmade.pop(name, None) is not None:  # rule B26/what-is-deleted-is-made-all-the-same
            self._log_dirs.forget(name)

    def make_missing_logs(self) -> None:
        """Host again the partitions that got no log for lack of room: there is room now."""
        for partition in list(self._without_log):
            mark("log-made-with-room")
            self._forget(partition)
            self._apply(partition.state)
        self._make_logs(late=True)

    def _may_begin_anew(self, state: PartitionState) -> bool:
        """True if a damaged log may be dropped and fetched anew: it was damaged when it was opened, another replica
        leads, and the disk has room. This process reported the damage when it registered, so the replica is in no ISR
        and not eligible, and joins once it has fetched everything again (schedule 81). `state` is newer than that."""
        damaged = isinstance(self._log_dirs.damage_of(state.topic_partition), CorruptLogError)
        me = self._shared.node_id
        # schedule 81/refused-logs-are-set-aside-by-anybody
        led = state.leader not in (NO_NODE, me) and me not in state.isr
        return damaged and led and not self._shared.directories.full  # schedule 81/refused-logs-stay

    def _begin_anew(self, partition: Partition) -> None:
        name = partition.topic_partition
        try:
            directory = self._log_dirs.set_rotten_aside(name)
        except DiskError as error:
            partition.fail(f"{partition.reason}; it cannot be set aside: {error}")
            return
        mark("rotten-log-set-aside")
        log.warning(
            "a damaged log is set aside and fetched again from the leader; it is removed once the replica is in sync",
            partition=str(name),
            directory=directory,
            leader=partition.state.leader,
        )
        self._asides[aside_stem(name)] = None
        self._forget(partition)
        self._apply(partition.state)

    def _remove_aside(self, state: PartitionState) -> None:
        name = state.topic_partition
        if aside_stem(name) in self._asides and self._shared.node_id in state.isr:
            del self._asides[aside_stem(name)]
            spawn(self._remove_aside_slowly(name), self._shared.on_fatal)

    async def _remove_aside_slowly(self, name: TopicPartition) -> None:
        try:
            await self._log_dirs.remove_asides(name)
        except (DiskError, FileNotFoundError) as error:
            log.warning("a damaged log that was set aside is still on disk", partition=str(name), error=str(error))

    def _delete(self, partition: Partition) -> None:
        self._forget(partition)
        self._delete_log(partition.topic_partition)

    def _forget(self, partition: Partition) -> None:
        del self.partitions[partition.topic_partition]
        del self.by_id[partition.state.topic_id, partition.state.partition]
        self._without_log.pop(partition, None)
        partition.delete()
        self._shared.on_change()

    def _delete_log(self, name: TopicPartition) -> None:
        if name not in self._deletions:
            self._deletions[name] = spawn(self._delete_slowly(name), self._shared.on_fatal)

    async def _delete_slowly(self, name: TopicPartition) -> None:
        try:
            await self._log_dirs.delete(name)
        except (StorageError, DiskError, FileNotFoundError) as error:
            log.error("a deleted partition's log is still on disk", partition=str(name), error=str(error))
        finally:
            del self._deletions[name]
        state = self._awaiting_deletion.pop(name, None)
        if state is not None:
            self._apply(state)
            self._make_logs(late=True)
