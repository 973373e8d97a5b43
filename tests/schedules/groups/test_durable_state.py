"""What a coordinator knows is what its log says: schedules 37, 43 and 44, this one without transactions."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from uuid import UUID

from strandline.chaos.sim.process import Ports
from strandline.cluster.coordinator.groups.commands import CommitOffsets, FetchOffsets, OffsetToCommit
from strandline.cluster.coordinator.groups.config import GroupConfig
from strandline.cluster.coordinator.groups.counters import GroupCounters
from strandline.cluster.coordinator.groups.records import OffsetKey, OffsetValue, offset_record
from strandline.cluster.coordinator.groups.shard import GroupShard
from strandline.cluster.coordinator.partitions import OFFSETS_TOPIC
from strandline.cluster.coordinator.runtime import CoordinatorRuntime
from strandline.controller.metadata.delta import diff
from strandline.controller.metadata.image import MetadataImage, PartitionInfo, TopicInfo
from strandline.log.batch import build_batch
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.real_disk import RealDisk
from strandline.log.records import Record
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import LeaderEpoch, NodeId, PartitionEpoch, TopicPartition
from strandline.proto.ports import Rpc
from strandline.proto.system import SystemClock
from strandline.replica.manager import ReplicaManager
from strandline.replica.states import AlterPartitionItem, AlterPartitionOutcome, PartitionState, ReplicaConfig
from tests.schedules.groups.site import GaveUp, Member, Site, Wire, fetch_offsets, find
from tests.schedules.helpers import schedule

ME, OTHER = NodeId(1), NodeId(2)
TOPIC_ID = UUID(int=5)
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
            log_dir=self.log_dir,
            disk=disk,
            clock=clock,
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
            make_shard=lambda: GroupShard(GroupConfig(), random.Random(3), GroupCounters()),
            write_timeout_ms=5_000,
        )

    def elect(self, leader: NodeId, epoch: int, *, change: int = 0, min_isr: int = 1) -> None:
        """The replicas hear of a leader; the coordinators do with `publish`."""
        isr = (ME,) if leader == ME else (OTHER, ME)
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
        self._next = PartitionInfo(
            0, (ME, OTHER), isr, (), (), leader, LeaderEpoch(epoch), PartitionEpoch(epoch), False
        )

    def publish(self) -> None:
        """All that was decided since the last time reaches the coordinators as one change."""
        topic = TopicInfo(OFFSETS_TOPIC, TOPIC_ID, {0: self._next})
        image = MetadataImage(
            "cluster", 1, self.image.offset + 1, topics={OFFSETS_TOPIC: topic}, topic_by_id={TOPIC_ID: topic}
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

    async def commit(self, offset: int) -> ErrorCode:
        await self.offset()
        command = CommitOffsets("g", -1, "", None, (OffsetToCommit("t", 0, offset, -1, ""),))
        (error,) = await self.runtime.ask(0, command)
        return ErrorCode(error)

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


@schedule(37, rule="C: loading is keyed by leader epoch", mutant="coordinator-keeps-its-shard-over-an-epoch")
async def test_37_the_coordinator_epoch_does_not_go_back(tmp_path: Path) -> None:
    """KAFKA-9144's kind: a coordinator that has missed an epoch takes what it knew for what holds. Its leadership is
    lost, another commits, and it is elected again; it hears of both elections as one change."""
    broker = OneBroker(tmp_path)
    broker.elect(ME, 0)
    broker.publish()
    assert await broker.commit(5) is ErrorCode.NONE
    broker.elect(OTHER, 1)
    key, value = offset_record(OffsetKey("g", "t", 0), OffsetValue(9, -1, "", 0))
    plog = broker.replicas._partitions[TP].log
    assert plog is not None
    batch = build_batch([Record(0, 0, key, value)], base_offset=plog.log_end_offset, leader_epoch=1)
    plog.append_as_follower(memoryview(batch))
    broker.elect(ME, 2)
    broker.publish()
    assert await broker.offset() == 9, "what another coordinator committed in between"
    await broker.close()


@schedule(43, rule="C: a static member's return is durable before it is answered", mutant="static-rejoin-not-stored")
def test_43_a_failover_does_not_bring_the_old_member_back() -> None:
    """KAFKA-10284: a static member restarts and is given a new id; the coordinator dies; the next one knows the old id,
    fences the living process and lets the dead one's commits in."""

    async def story(site: Site) -> None:
        for name in ("old", "new"):
            site.world.add_machine(name)
        old, new = Member(site, "old"), Member(site, "new")
        for member in (old, new):
            member.instance_id = "a"
            await site.process(member.machine, lambda _ports, member=member: join_once(site, member))
        assert old.member_id != new.member_id
        victim = site.led("g")
        site.world.kill(victim)
        await site.cluster.wait_for("another coordinates", 20_000, lambda: site.led("g") != victim)
        assert await site.process("old", lambda _ports: beat_once(site, old)) == ErrorCode.FENCED_INSTANCE_ID
        assert await site.process("new", lambda _ports: beat_once(site, new)) == ErrorCode.NONE

    Site(43).run(story, t=6)


async def join_once(site: Site, member: Member) -> None:
    while True:
        wire = await Wire.to(await find(site.cluster.names, member.group))
        try:
            if await member.join(wire) is not None:
                return
        except GaveUp:
            await asyncio.sleep(0.1)


async def beat_once(site: Site, member: Member) -> int:
    while True:
        wire = await Wire.to(await find(site.cluster.names, member.group))
        error = await member.beat(wire)
        if error not in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            return error
        await asyncio.sleep(0.1)


@schedule(44, rule="C: memory is what the log says", mutant="coordinator-applies-refused-writes")
async def test_44_a_refused_commit_is_nowhere(tmp_path: Path) -> None:
    """redpanda#31483's kind, without transactions: the state that answers differs from the one that a replay of the log
    gives. A commit is refused, for too few replicas are in sync; then the coordinator loads its log anew."""
    broker = OneBroker(tmp_path)
    broker.elect(ME, 0)
    broker.publish()
    assert await broker.commit(5) is ErrorCode.NONE
    broker.elect(ME, 0, change=1, min_isr=2)
    assert await broker.commit(7) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.elect(ME, 0, change=2)
    live = await broker.offset()
    broker.elect(ME, 5)
    broker.publish()
    assert live == await broker.offset() == 5
    await broker.close()


@schedule(44, rule="C: nothing is told that is not committed", mutant="coordinator-reads-ahead")
def test_44_a_read_does_not_run_ahead() -> None:
    """The same in time: a coordinator is cut off from the other replicas with a client at its side, which commits and
    reads. What is written and not committed may not be shown: the next coordinator does not have it."""

    async def story(site: Site) -> None:
        member = Member(site, "beside")
        site.world.add_machine("beside")
        coordinator = site.led("g")
        others = [name for name in site.cluster.names if name != coordinator]
        shown: list[int] = []

        async def beside(_ports: Ports) -> None:
            wire = await Wire.to(coordinator)
            assert await member.commit(wire, {0: 5}) == 0
            for name in others:
                site.world.partition(coordinator, name)
            committing = asyncio.ensure_future(member.commit(await Wire.to(coordinator), {0: 6}))
            for _ in range(12):
                await asyncio.sleep(0.5)
                reader = await Wire.to(coordinator)
                try:
                    shown.append((await fetch_offsets(reader, "g", "t", 1))[0])
                except GaveUp:
                    pass
                finally:
                    reader.close()
            committing.cancel()

        await site.process("beside", beside)
        await site.cluster.wait_for("another coordinates", 20_000, lambda: site.led("g") != coordinator)
        (committed,) = await site.offsets("g", "t", 1)
        assert all(offset <= committed for offset in shown), f"{shown} was shown, {committed} is committed"

    Site(44).run(story, t=1)
