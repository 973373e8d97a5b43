"""A coordinator on one broker, with real replicas and a real log, whose leaderships come and go by hand."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Unpack
from uuid import UUID

from strandline.cluster.groups.commands import CommitOffsets, FetchOffsets, OffsetToCommit, Unstable
from strandline.cluster.groups.config import GroupConfig
from strandline.cluster.groups.connections import ConnectionNumbers
from strandline.cluster.groups.context import GroupCounters
from strandline.cluster.groups.machine import Transaction
from strandline.cluster.groups.partitions import OFFSETS_TOPIC
from strandline.cluster.groups.runtime import CoordinatorRuntime
from strandline.cluster.groups.shard import GroupShard
from strandline.controller.metadata.delta import diff
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.controller.metadata.records import PartitionRecord, TopicRecord
from strandline.log.batch import BatchFields, Record, build_batch, patch_base_offset_and_epoch
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.log_dirs import LogDirs
from strandline.log.partition_log import PartitionLog
from strandline.log.real_disk import RealDisk
from strandline.log.transactions import Marker, build_marker
from strandline.proto.believed import BelievedClock
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import LeaderEpoch, NodeId, PartitionEpoch, TopicPartition
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.proto.kafka.group_records import OffsetKey, OffsetValue, offset_record
from strandline.proto.ports import Rpc
from strandline.proto.system import SystemClock
from strandline.replica.manager import ReplicaManager
from strandline.replica.states import PartitionState, ReplicaConfig

ME, OTHER = NodeId(1), NodeId(2)
TOPIC_ID = UUID(int=5)
READ_ID = UUID(int=99)
TP = TopicPartition(OFFSETS_TOPIC, 0)


class OneBroker:
    """Real replicas and a real log on one broker, whose leaderships come and go by hand."""

    def __init__(self, path: Path) -> None:
        disk, clock = RealDisk(), SystemClock()
        format_log_dir(disk, str(path), "cluster", ME, UUID(int=9))
        self.log_dir = LogDir.open(disk, str(path), clock)
        self.image = MetadataImage("cluster")
        self.replicas = ReplicaManager(
            node_id=ME,
            cluster_id="cluster",
            log_dirs=LogDirs([self.log_dir]),
            clock=clock,
            believed=BelievedClock(clock),
            rng=random.Random(2),
            rpc=NoRpc(),
            config=ReplicaConfig(),
            send_alter_partition=_no_isr_changes,
            on_fatal=_fatal,
        )
        self.runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            OFFSETS_TOPIC,
            replicas=self.replicas,
            clock=clock,
            make_shard=lambda _partition, _epoch: GroupShard(
                GroupConfig({}), random.Random(3), GroupCounters(), lambda: self.image, ConnectionNumbers()
            ),
            write_timeout_ms=5_000,
        )

    def elect(
        self, leader: NodeId, epoch: int, *, change: int = 0, min_isr: int = 1, isr: tuple[NodeId, ...] = (ME,)
    ) -> None:
        """The replicas hear of a leader; the coordinators do with `publish`. `isr`: where this broker leads."""
        isr = isr if leader == ME else (OTHER, ME)
        state = PartitionState(
            topic=OFFSETS_TOPIC,
            topic_id=TOPIC_ID,
            partition=0,
            replicas=(ME, OTHER),
            isr=isr,
            leader=leader,
            leader_epoch=LeaderEpoch(epoch),
            partition_epoch=PartitionEpoch(epoch + change),
            min_insync_replicas=min_isr,
        )
        self.replicas.apply([state], [], {})
        self._next = PartitionRecord(
            TOPIC_ID, 0, (ME, OTHER), isr, (), (), leader, LeaderEpoch(epoch), PartitionEpoch(epoch), False
        )

    def publish(self) -> None:
        """All that was decided since the last time reaches the coordinators as one change."""
        topic = TopicInfo(TopicRecord(OFFSETS_TOPIC, TOPIC_ID), {0: self._next})
        read = TopicInfo(TopicRecord("t", READ_ID), {0: self._next})  # what groups commit offsets of
        image = MetadataImage(
            "cluster",
            offset=self.image.offset + 1,
            topics={OFFSETS_TOPIC: topic, "t": read},
            topic_by_id={TOPIC_ID: topic, READ_ID: read},
        )
        delta = diff(self.image, image)
        self.image = image
        self.runtime.on_metadata(delta, image)

    async def offset(self) -> int:
        """What is committed, once the coordinator serves."""
        while True:
            try:
                found = await self.runtime.ask(0, FetchOffsets("g", (("t", (0,)),)))
            except KafkaError as error:
                if error.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    raise
                await asyncio.sleep(0.001)
            else:
                value = found[0][1][0][1]
                return -1 if value is None else int(value.offset)

    async def stable(self) -> int | Unstable | None:
        """What is told to who asks for a stable offset."""
        await self.offset()
        found = await self.runtime.ask(0, FetchOffsets("g", (("t", (0,)),), stable=True))
        value = found[0][1][0][1]
        return value.offset if isinstance(value, OffsetValue) else value

    async def commit(self, offset: int, transaction: Transaction | None = None) -> ErrorCode:
        await self.offset()
        command = CommitOffsets("g", -1, "", None, (OffsetToCommit("t", 0, offset, -1, ""),), transaction=transaction)
        (error,) = await self.runtime.ask(0, command)
        return ErrorCode(error)

    async def commit_in(self, producer_id: int, offset: int, *, epoch: int = 0) -> ErrorCode:
        """A TxnOffsetCommit, to which the producer's coordinator has nothing to say."""
        await self.offset()
        verification = self.runtime.begin_verification(0, producer_id, epoch)
        return await self.commit(offset, Transaction(producer_id, epoch, verification))

    async def mark(self, producer_id: int, *, commit: bool, epoch: int = 0) -> ErrorCode:
        """The end of a transaction, by protocol version 1."""
        return await self.runtime.write_marker(0, Marker(producer_id, epoch, commit, 0), 1)

    @property
    def plog(self) -> PartitionLog:
        partition = self.replicas.partition(TP)
        assert partition is not None
        assert partition.log is not None
        return partition.log

    def replicate(self, offset: int, *, leader_epoch: int) -> None:
        """What another coordinator wrote, as a follower gets it."""
        key, value = offset_record(OffsetKey("g", "t", 0), OffsetValue(offset, -1, "", 0))
        self.replicate_record(key, value, leader_epoch=leader_epoch)

    def replicate_record(
        self, key: bytes, value: bytes | None, *, leader_epoch: int, **fields: Unpack[BatchFields]
    ) -> None:
        batch = build_batch([Record(0, 0, key, value)], **fields)
        self._replicate(batch, leader_epoch)

    def replicate_in(self, producer_id: int, offset: int, *, leader_epoch: int) -> None:
        """The same of an offset in a transaction."""
        key, value = offset_record(OffsetKey("g", "t", 0), OffsetValue(offset, -1, "", 0))
        self.replicate_record(
            key, value, leader_epoch=leader_epoch, producer_id=producer_id, producer_epoch=0, transactional=True
        )

    def replicate_marker(self, producer_id: int, *, commit: bool, leader_epoch: int) -> None:
        self._replicate(build_marker(Marker(producer_id, 0, commit, 0), 0), leader_epoch)

    def _replicate(self, batch: bytearray, leader_epoch: int) -> None:
        patch_base_offset_and_epoch(batch, 0, self.plog.log_end_offset, leader_epoch)
        self.plog.append_as_follower(memoryview(batch))

    async def close(self) -> None:
        self.runtime.close()
        await self.replicas.close(clean=True)
        self.log_dir.close(None)


class NoRpc(Rpc):
    """Nobody is reachable."""


async def _no_isr_changes(items: list[AlterPartitionItem]) -> list[AlterPartitionOutcome]:
    await asyncio.sleep(3600)
    return []


def _fatal(error: Exception) -> None:
    raise AssertionError(error)
