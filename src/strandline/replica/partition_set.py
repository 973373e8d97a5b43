"""The partitions of one broker, and how metadata change their roles."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from strandline.log.disk import DiskError
from strandline.log.log_dir import LogDir
from strandline.log.partition_log import PartitionLog
from strandline.proto.errors import KafkaError, NoSpaceLeft, StorageError
from strandline.proto.ids import NO_NODE, NodeId, TopicId, TopicIdPartition, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock
from strandline.proto.tasks import spawn
from strandline.replica.core.follower import FollowerCore
from strandline.replica.core.leader import LeaderCore
from strandline.replica.disk_room import DiskRoom
from strandline.replica.partition import Partition
from strandline.replica.states import BrokerState, PartitionState, ReplicaConfig, Role

log = structlog.get_logger("strandline.replica")


class RoleHost(Protocol):
    """Who is told when a partition's role changes."""

    @property
    def disk_room(self) -> DiskRoom: ...

    def led(self, partition: Partition) -> None:
        """It leads, in a new leader epoch."""

    def followed(self, partition: Partition) -> None:
        """It follows, in a new leader epoch."""

    def stopped(self, partition: Partition) -> None:
        """It follows nobody and leads nothing (any more)."""

    def progressed(self, partition: Partition, advanced: bool) -> None:
        """Its leader learned something; `advanced`: the high watermark rose."""

    def log_failed(self, partition: Partition, reason: str) -> None:
        """Its log can no longer be used."""

    def fatal(self, error: BaseException) -> None:
        """Something broke that must not."""


class PartitionSet:
    """Applies metadata, in order. Only a new leader epoch restarts anything (KAFKA-13790).

    Invariants:
    - a partition is in `partitions` and in `by_id`, or in neither;
    - no log is opened for a name while an older topic's log of that name is being deleted;
    - what is in `_without_log` is offline for lack of room alone.
    """

    def __init__(self, me: NodeId, log_dir: LogDir, clock: Clock, config: ReplicaConfig, host: RoleHost) -> None:
        self._me = me
        self._log_dir = log_dir
        self._clock = clock
        self.config = config
        self._host = host
        self._channel = 0
        self._deletions: dict[TopicPartition, asyncio.Task[None]] = {}
        self._awaiting_deletion: dict[TopicPartition, PartitionState] = {}
        self._without_log: dict[Partition, None] = {}
        self.partitions: dict[TopicPartition, Partition] = {}
        self.by_id: dict[tuple[TopicId, int], Partition] = {}
        self.brokers: dict[NodeId, BrokerState] = {}

    def apply(
        self,
        changes: Sequence[PartitionState],
        deleted: Sequence[TopicIdPartition],
        brokers: Mapping[NodeId, BrokerState],
    ) -> bool:
        """See `ReplicaManager.apply`. True if the brokers changed."""
        brokers_changed = self.brokers != brokers
        if brokers_changed:
            self.brokers = dict(brokers)
        for topic_id, number in deleted:
            partition = self.by_id.get((topic_id, number))
            if partition is not None:
                self._delete(partition)
            self._awaiting_deletion = {
                name: state
                for name, state in self._awaiting_deletion.items()
                if state.topic_id_partition != (topic_id, number)
            }
        for state in changes:
            self._apply(state)
        if brokers_changed:
            now_ms = self._clock.monotonic_ms()
            for partition in list(self.partitions.values()):
                if partition.leader is not None:
                    self._host.progressed(partition, partition.leader.brokers_changed(self.brokers, now_ms))
        return brokers_changed

    def abandon_deletions(self) -> None:
        """Leave on the disk what is not deleted yet: the next start deletes it."""
        for task in list(self._deletions.values()):
            task.cancel()

    async def finish_deletions(self) -> None:
        """Return when the deletions that are under way have ended."""
        while self._deletions:
            await asyncio.wait(list(self._deletions.values()))

    # One partition

    def _apply(self, state: PartitionState) -> None:
        name = state.topic_partition
        partition = self.partitions.get(name)
        if partition is not None and partition.state.topic_id != state.topic_id:
            self._delete(partition)
            partition = None
        if self._me not in state.replicas:
            self._awaiting_deletion.pop(name, None)
            if partition is not None:
                self._delete(partition)
            return
        if name in self._deletions:
            self._awaiting_deletion[name] = state
            return
        if partition is None:
            partition = self._host_partition(state)
            if partition is None:
                return
        elif (
            state.leader_epoch < partition.state.leader_epoch or state.partition_epoch < partition.state.partition_epoch
        ):
            return
        elif state.leader_epoch == partition.state.leader_epoch:
            self._update(partition, state)
            return
        partition.state = state
        self._take_role(partition)

    def _update(self, partition: Partition, state: PartitionState) -> None:
        """The leader epoch is the same: nothing restarts."""
        partition.state = state
        if partition.log is not None:
            partition.log.config = state.log_config
        if partition.leader is not None:
            for node in list(partition.subscriptions):
                if node not in state.replicas:
                    partition.drop_subscription(node)
            now_ms = self._clock.monotonic_ms()
            self._host.progressed(partition, partition.leader.metadata_changed(state, self.brokers, now_ms))
        elif partition.follower is not None:
            partition.follower.metadata_changed(state)

    def _take_role(self, partition: Partition) -> None:
        """A new leader epoch: lead, follow or wait, from anew."""
        state, plog = partition.state, partition.log
        if plog is None or partition.role is Role.OFFLINE:
            self._host.log_failed(partition, partition.reason)
            return
        plog.config = state.log_config
        if state.leader == self._me:
            self._lead(partition, plog)
        elif state.leader == NO_NODE:
            partition.idle()
            self._host.stopped(partition)
        else:
            partition.follow(FollowerCore(state, partition.high_watermark, plog.log_end_offset))
            self._host.followed(partition)

    def _lead(self, partition: Partition, plog: PartitionLog) -> None:
        """The epoch and its start are in the log before anybody can ask for them, and on disk with the next sync, which
        comes before any record of this epoch counts (KAFKA-7415, schedule 3). One sync serves all elections of a
        turn."""
        state = partition.state
        try:
            plog.assign_epoch_start(state.leader_epoch, plog.log_end_offset)
        except (KafkaError, StorageError) as error:
            self._host.log_failed(partition, str(error))
            return
        core = LeaderCore(
            self._me,
            state,
            self.brokers,
            log_end_offset=plog.log_end_offset,
            durable_offset=plog.durable_offset,
            high_watermark=partition.high_watermark,
            sync_before_ack=self.config.sync_before_ack,
            lag_time_max_ms=self.config.replica_lag_time_max_ms,
            now_ms=self._clock.monotonic_ms(),
            log_start_offset=plog.log_start_offset,
        )
        self._channel = self._channel % 0xFFFFFFFF + 1
        partition.lead(core, self._channel)
        self._host.led(partition)

    # Logs

    def _host_partition(self, state: PartitionState) -> Partition | None:
        """Begin to host it, on the log that is there or on a new one; None while an older topic's log is deleted."""
        name = state.topic_partition
        damage = self._log_dir.offline.get(name)
        plog = self._log_dir.logs.get(name)
        if damage is None and plog is not None and plog.topic_id != state.topic_id:
            self._awaiting_deletion[name] = state
            self._delete_log(name)
            return None
        partition = Partition(state, plog, 0)
        self.partitions[name] = partition
        self.by_id[state.topic_id, state.partition] = partition
        if damage is not None:
            self._host.log_failed(partition, str(damage))
            return partition
        if plog is None:
            try:
                plog = partition.log = self._log_dir.create(name, state.topic_id, state.log_config)
            except (KafkaError, StorageError) as error:
                self._host.log_failed(partition, str(error))
                if isinstance(error, NoSpaceLeft):
                    self._without_log[partition] = None
                    self._host.disk_room.ran_out()
                return partition
        known = self._log_dir.high_watermarks.get(name, 0)
        partition.start_at(min(max(known, plog.log_start_offset), plog.log_end_offset))
        return partition

    def make_missing_logs(self) -> None:
        """There is room again: host anew what got no log for lack of it."""
        for partition in list(self._without_log):
            mark("log-made-with-room")
            self._forget(partition)
            self._apply(partition.state)

    def _delete(self, partition: Partition) -> None:
        self._forget(partition)
        self._delete_log(partition.topic_partition)

    def _forget(self, partition: Partition) -> None:
        del self.partitions[partition.topic_partition]
        del self.by_id[partition.state.topic_id, partition.state.partition]
        self._without_log.pop(partition, None)
        partition.delete()
        self._host.stopped(partition)

    def _delete_log(self, name: TopicPartition) -> None:
        if name not in self._deletions:
            self._deletions[name] = spawn(self._delete_slowly(name), self._host.fatal)

    async def _delete_slowly(self, name: TopicPartition) -> None:
        try:
            await self._log_dir.delete(name)
        except (StorageError, DiskError, FileNotFoundError) as error:
            log.error("a deleted partition's log is still on disk", partition=str(name), error=str(error))
        finally:
            del self._deletions[name]
        state = self._awaiting_deletion.pop(name, None)
        if state is not None:
            self._apply(state)
