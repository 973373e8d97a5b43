"""Schedules 80 and 88, on real disks: a follower heals what has rotted in its log, as far as its leader has it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.log.batch import Record, build_batch, iter_batches
from strandline.log.partition_log import PartitionLog
from strandline.log.syncer import Syncer
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import LeaderEpoch
from strandline.proto.marks import counts
from strandline.replica import frames
from strandline.replica.manager import ReplicaManager
from strandline.replica.states import ReadOutcome, Role
from tests.replica.helpers import TP, Broker, Cluster, batch, running, until
from tests.replica.memory_rpc import MemoryStream
from tests.replica.test_follower_streams import RawLeader

VALUES = [b"%d-" % number + b"x" * 300 for number in range(8)]


async def filled(cluster: Cluster, count: int = len(VALUES)) -> None:
    cluster.create()
    for value in VALUES[:count]:
        assert (await cluster[1].append(TP, batch(value))).error is ErrorCode.NONE


def flip(broker: Broker, number: int, back: int = 20) -> None:
    """A byte of one of its batches is another."""
    [segment] = broker.log_dir.logs[TP].segments
    path = Path(segment.file.path)
    content = bytearray(path.read_bytes())
    sizes = [len(view) for _, view in iter_batches(bytes(content[: segment.size]))]
    content[sum(sizes[: number + 1]) - back] ^= 0x10
    path.write_bytes(content)


def read(replicas: ReplicaManager, offset: int) -> ReadOutcome:
    found = replicas.read(TP, offset, 1, any_replica=True)
    assert found is not None
    return found


def rotten(broker: Broker) -> bool:
    [status] = broker.replicas.hosted()
    return status.rotten


def test_a_follower_is_healed_and_follows_on(tmp_path: Path) -> None:
    """Two holes, one after the other, and records that come meanwhile; nobody reads any of the rot."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            await filled(cluster)
            follower = cluster[3]
            whole = cluster[1].log_bytes()
            await until(lambda: follower.log_bytes() == whole)
            flip(follower, 2)
            flip(follower, 5)
            assert read(follower.replicas, 2).error is ErrorCode.CORRUPT_MESSAGE
            assert rotten(follower)
            assert read(follower.replicas, 3).error is ErrorCode.NONE
            await cluster[1].append(TP, batch(b"meanwhile"))
            await until(lambda: follower.log_bytes() == cluster[1].log_bytes(), "healed, and at the end of the log")
            await until(lambda: not rotten(follower), "durable, and read again")
            assert follower.replicas.counters.mended_holes == 2
            assert read(follower.replicas, 2).error is ErrorCode.NONE

    asyncio.run(scenario())


def test_what_the_leader_has_lost_too_stays_lost(tmp_path: Path) -> None:
    """Both say so, nobody gets it, and everything else goes on: what follows is replicated, acknowledged and read."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            await filled(cluster)
            leader, follower = cluster[1], cluster[3]
            await until(lambda: follower.log_bytes() == leader.log_bytes())
            flip(leader, 4)
            flip(follower, 4)
            before = counts().get("rot-stays", 0)
            assert read(follower.replicas, 4).error is ErrorCode.CORRUPT_MESSAGE
            await until(lambda: counts().get("rot-stays", 0) > before, "the leader cannot read it either")
            await until(lambda: rotten(leader), "so it has found its own")
            assert (await leader.append(TP, batch(b"more"))).error is ErrorCode.NONE
            await until(lambda: follower.log_dir.logs[TP].log_end_offset == len(VALUES) + 1)
            for broker in (leader, follower):
                for offset in range(len(VALUES) + 1):
                    code = ErrorCode.CORRUPT_MESSAGE if offset == 4 else ErrorCode.NONE
                    assert read(broker.replicas, offset).error is code
            assert rotten(follower)

    asyncio.run(scenario())


def test_a_large_batch_is_healed_in_pieces(tmp_path: Path) -> None:
    """Schedule 54: a batch of more than a chunk goes in pieces, into a hole too."""

    async def scenario() -> None:
        async with running(tmp_path, fetch_chunk_bytes=1_000) as cluster:
            await filled(cluster, 1)
            assert (await cluster[1].append(TP, batch(b"y" * 30_000))).error is ErrorCode.NONE
            assert (await cluster[1].append(TP, batch(b"z"))).error is ErrorCode.NONE
            follower = cluster[3]
            await until(lambda: follower.log_bytes() == cluster[1].log_bytes())
            flip(follower, 1, 9_000)
            assert read(follower.replicas, 1).error is ErrorCode.CORRUPT_MESSAGE
            await until(lambda: follower.log_bytes() == cluster[1].log_bytes(), "healed")
            await until(lambda: not rotten(follower))

    asyncio.run(scenario())


LENGTH = 11
"""The byte of a batch that has the lowest bits of its length: once it rots nobody knows where the next begins."""


def written(offset: int, epoch: int) -> bytes:
    """One record, of a producer that has written nothing else."""
    record = Record(0, 1, None, b"value", ())
    return bytes(
        build_batch(
            [record], base_offset=offset, leader_epoch=epoch, producer_id=offset, producer_epoch=0, base_sequence=0
        )
    )


class Parting(RawLeader):
    """Its follower has nine records of leader epochs 0, 2 and 4, and knows those of epoch 0 to be committed. This
    leader, of epoch 5, has epoch 3 from some offset on."""

    stream: MemoryStream

    async def begin(self) -> None:
        """Replicate what the follower has."""
        await self.start()
        self.stream, fetch = await self.accept()
        for epoch, offsets in ((0, range(3)), (2, range(3, 8)), (4, range(8, 9))):
            if epoch:
                self.cluster.controller.change(TP, leader_epoch=LeaderEpoch(epoch))
                fetch = await self.fetch_in(self.stream)
            await self.stream.write(frames.pack_accepted(fetch.subscription, epoch, 0, 0))
            for offset in offsets:
                await self.send(epoch, epoch, offset, epoch, high_watermark=3)
            await until(lambda end=offsets.stop: self.log.log_end_offset == end)  # type: ignore[misc]

    @property
    def log(self) -> PartitionLog:
        """The follower's."""
        return self.cluster[2].log_dir.logs[TP]

    async def send(self, channel: int, leader_epoch: int, offset: int, epoch: int, high_watermark: int = 0) -> None:
        """A record of `epoch`, by the leader of `leader_epoch`."""
        data = written(offset, epoch)
        header = frames.pack_data_header(
            channel, leader_epoch, offset, high_watermark=high_watermark, log_start_offset=0, size=len(data)
        )
        await self.stream.write(header + data)

    async def acked(self, subscription: int) -> tuple[int, int]:
        """Fetch offset and durable offset of the next acknowledgement for it."""
        while True:
            told, *offsets = await self.next_of("on_ack", self.stream)
            if told == subscription:
                fetched, durable = offsets
                return fetched, durable

    def rot(self, number: int, byte: int) -> None:
        """A byte of one of its follower's batches is another."""
        flip(self.cluster[2], number, len(written(0, 0)) - byte)

    def elect(self) -> None:
        """Epoch 5 begins."""
        self.cluster.controller.change(TP, leader_epoch=LeaderEpoch(5))

    async def diverge(self) -> frames.Fetch:
        """Say to each fetch from the end that the logs part no later than at 8; the first fetch of something else."""
        while True:
            fetch = await self.fetch_in(self.stream)
            if fetch.current_leader_epoch == 5 and fetch.fetch_offset != 9:
                return fetch
            await self.stream.write(frames.pack_diverging(fetch.subscription, 3, 20))


def test_a_hole_is_healed_up_to_where_the_logs_part(tmp_path: Path) -> None:
    """Schedule 88: of what the follower cannot read the leader has three records. They are written, the rest is cut,
    and the high watermark of the leader says nothing of the log behind the hole."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster, asyncio.timeout(30):
            leader = Parting(cluster)
            await leader.begin()
            leader.rot(5, LENGTH)
            leader.elect()
            hole = await leader.diverge()
            assert (hole.fetch_offset, hole.last_fetched_epoch) == (5, 2)
            assert leader.log.log_end_offset == 9
            await leader.stream.write(frames.pack_accepted(hole.subscription, 6, 20, 0))
            await leader.stream.write(frames.pack_watermark(6, 21, 0))
            for offset in (5, 6, 7):
                await leader.send(6, 5, offset, 2, high_watermark=20)
            after = await leader.diverge()
            assert (after.fetch_offset, after.last_fetched_epoch) == (8, 2)
            assert cluster[2].replicas.hosted()[0].high_watermark == 5
            assert cluster[2].log_bytes().endswith(b"".join(written(offset, 2) for offset in (5, 6, 7)))
            assert sorted(entry.producer_id for entry in leader.log.producers.entries()) == list(range(8))
            await until(lambda: not rotten(cluster[2]))
            assert cluster[2].fatal == []

    asyncio.run(scenario())


def test_the_leader_hears_how_far_a_hole_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule B50: it sends no more than the disk takes. Of what lies behind the hole it is told nothing, for it has not
    sent that, even where the log now begins there. No sync need come in between."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster, asyncio.timeout(30):
            leader = Parting(cluster)
            await leader.begin()
            await until(lambda: leader.log.durable_offset == 9 and not leader.log.sync_pending)
            monkeypatch.setattr(Syncer, "mark", lambda *_, **__: None)
            leader.rot(5, LENGTH)
            await leader.stream.write(frames.pack_watermark(4, 9, 0))
            await until(lambda: read(cluster[2].replicas, 5).error is ErrorCode.CORRUPT_MESSAGE)
            hole = await leader.fetch_in(leader.stream)
            assert hole.fetch_offset == 5
            await leader.stream.write(frames.pack_accepted(hole.subscription, 6, 9, 0))
            await leader.send(6, 4, 5, 2, high_watermark=9)
            assert await leader.acked(hole.subscription) == (6, 6)
            await leader.stream.write(frames.pack_watermark(6, 9, 8))
            await until(lambda: leader.log.log_start_offset == 8)
            await leader.send(6, 4, 6, 2, high_watermark=9)
            assert await leader.acked(hole.subscription) == (7, 7)

    asyncio.run(scenario())


def test_a_cut_behind_a_hole_forgets_no_producer(tmp_path: Path) -> None:
    """Schedule 88: after a cut the producers are read from the log. What has rotted there is healed first: else its
    producer would be unknown, and its retry be written twice."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster, asyncio.timeout(30):
            leader = Parting(cluster)
            await leader.begin()
            leader.rot(1, LENGTH + 60)
            assert read(cluster[2].replicas, 1).error is ErrorCode.CORRUPT_MESSAGE
            await until(lambda: any(leader.log.rot.holes()))
            leader.elect()
            hole = await leader.diverge()
            assert (hole.fetch_offset, leader.log.log_end_offset) == (1, 9)
            await leader.stream.write(frames.pack_accepted(hole.subscription, 6, 20, 0))
            await leader.send(6, 5, 1, 0)
            after = await leader.diverge()
            assert (after.fetch_offset, after.last_fetched_epoch) == (8, 2)
            assert sorted(entry.producer_id for entry in leader.log.producers.entries()) == list(range(8))

    asyncio.run(scenario())


def test_the_logs_part_before_the_hole(tmp_path: Path) -> None:
    """Schedules 2 and 88: to find where they do takes two answers, and the first one names an offset in the hole."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster, asyncio.timeout(30):
            leader = Parting(cluster)
            await leader.begin()
            leader.rot(5, LENGTH)
            leader.elect()
            hole = await leader.diverge()
            await leader.stream.write(frames.pack_diverging(hole.subscription, 0, 3))
            after = await leader.diverge()
            assert (after.fetch_offset, after.last_fetched_epoch, leader.log.log_end_offset) == (3, 0, 3)
            await until(lambda: not rotten(cluster[2]))

    asyncio.run(scenario())


def test_nothing_is_cut_while_the_hole_cannot_be_healed(tmp_path: Path) -> None:
    """Schedule 88: the leader has lost the same records. The replica stays as it is, says that it has rotted, and asks
    again, but not at once."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster, asyncio.timeout(30):
            leader = Parting(cluster)
            await leader.begin()
            leader.rot(5, LENGTH)
            leader.elect()
            before = counts().get("rot-stays", 0)
            hole = await leader.diverge()
            await leader.stream.write(frames.pack_error(hole.subscription, ErrorCode.CORRUPT_MESSAGE))
            for _ in range(3):
                fetch = await leader.fetch_in(leader.stream)
                assert fetch.fetch_offset == leader.log.log_end_offset == 9
                await leader.stream.write(frames.pack_diverging(fetch.subscription, 3, 20))
            assert counts()["rot-stays"] == before + 1
            assert rotten(cluster[2])
            assert cluster[2].replicas.hosted()[0].role is Role.FOLLOWER

    asyncio.run(scenario())


def test_what_stays_lost_before_a_cut_does_not_hold_it_up(tmp_path: Path) -> None:
    """Schedule 88: the leader cannot heal what lies before the cut. The cut takes none of that along, and is made."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster, asyncio.timeout(30):
            leader = Parting(cluster)
            await leader.begin()
            leader.rot(1, LENGTH + 60)
            assert read(cluster[2].replicas, 1).error is ErrorCode.CORRUPT_MESSAGE
            await until(lambda: any(leader.log.rot.holes()))
            leader.elect()
            hole = await leader.diverge()
            assert hole.fetch_offset == 1
            await leader.stream.write(frames.pack_error(hole.subscription, ErrorCode.CORRUPT_MESSAGE))
            assert (await leader.diverge()).fetch_offset == leader.log.log_end_offset == 8
            assert rotten(cluster[2])

    asyncio.run(scenario())
