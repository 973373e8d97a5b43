"""The follower's end of a replication stream against a leader of raw frames: which answers count."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from strandline.log.batch import Record, build_batch
from strandline.log.config import LogConfig
from strandline.log.disk import DiskError, File
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import BrokerEpoch, Endpoint, LeaderEpoch, NodeId
from strandline.replica import frames
from strandline.replica.fetcher import STREAM_METHOD
from strandline.replica.states import BrokerState, Role
from tests.replica.fake_controller import partition_state
from tests.replica.helpers import CLUSTER, TOPIC_ID, TP, Cluster, batch, running, syncs_held, until
from tests.replica.memory_rpc import MemoryStream
from tests.replica.test_frames import Heard


class RawLeader:
    """Plays node 1 for a real follower, which is node 2."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.streams: asyncio.Queue[MemoryStream] = asyncio.Queue()
        self.endpoint = Endpoint("raw", 1)
        self._heard: dict[MemoryStream, deque[tuple[Any, ...]]] = {}

    async def start(self) -> None:
        await self.cluster.network.rpc(self.endpoint).serve(self.endpoint, {}, {STREAM_METHOD: self._serve})  # type: ignore[dict-item]
        controller = self.cluster.controller
        controller.brokers[NodeId(1)] = BrokerState(NodeId(1), self.endpoint, BrokerEpoch(50))
        controller.create(partition_state(topic_id=TOPIC_ID))

    async def _serve(self, stream: MemoryStream) -> None:
        self.streams.put_nowait(stream)
        while not stream._ended:
            await asyncio.sleep(0.001)

    async def accept(self) -> tuple[MemoryStream, frames.Fetch]:
        """The follower's stream, and the fetch it begins with."""
        stream = await self.streams.get()
        frame = await stream.read()
        assert frame is not None
        hello, position = frames.read_hello(frame)
        assert hello == (frames.PROTOCOL_VERSION, 2, 1, self.cluster[2].replicas.broker_epoch, CLUSTER)
        self._hear(stream, frame, position)
        return stream, await self.fetch_in(stream)

    async def fetch_in(self, stream: MemoryStream) -> frames.Fetch:
        """The next fetch that it sends."""
        found: frames.Fetch = (await self.next_of("on_fetch", stream))[0]
        return found

    async def next_of(self, kind: str, stream: MemoryStream) -> tuple[Any, ...]:
        """What it says next of that kind. What comes behind it in the same frame is for the next call: how much goes
        into one frame is a matter of how busy the machine is."""
        heard = self._heard.setdefault(stream, deque())
        while True:
            while heard:
                name, *values = heard.popleft()
                if name == kind:
                    return tuple(values)
            frame = await stream.read()
            assert frame is not None, "the stream has ended"
            self._hear(stream, frame)

    def _hear(self, stream: MemoryStream, frame: bytes, position: int = 0) -> None:
        heard = Heard()
        frames.read_requests(frame, heard, position)
        self._heard.setdefault(stream, deque()).extend(heard.entries)


def replicated(value: bytes, offset: int, *, channel: int = 5, epoch: int = 0, high_watermark: int = 0) -> bytes:
    data = bytes(build_batch([Record(0, 1, None, value, ())], base_offset=offset, leader_epoch=epoch))
    header = frames.pack_data_header(
        channel, epoch, offset, high_watermark=high_watermark, log_start_offset=0, size=len(data)
    )
    return header + data


def test_only_answers_to_the_latest_fetch_count(tmp_path: Path) -> None:
    """Rule B8, schedule 7: data and high watermarks of a channel that was not accepted, and verdicts on older fetches,
    are nothing to the follower."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster:
            leader = RawLeader(cluster)
            await leader.start()
            stream, first = await leader.accept()
            await stream.write(replicated(b"too early", 0, high_watermark=1))
            await stream.write(frames.pack_diverging(first.subscription + 7, 0, 0))
            await stream.write(frames.pack_accepted(first.subscription, 5, 0, 0) + replicated(b"a", 0))
            await until(lambda: cluster[2].log_dir.logs[TP].log_end_offset == 1)
            await stream.write(frames.pack_watermark(6, 1, 0))
            await stream.write(replicated(b"b", 1, high_watermark=1))
            await until(lambda: cluster[2].replicas.hosted()[0].high_watermark == 1)
            assert cluster[2].log_dir.logs[TP].log_end_offset == 2
            assert b"too early" not in cluster[2].log_bytes()

    asyncio.run(scenario())


@pytest.mark.parametrize("flaw", ["gap", "crc"])
def test_data_that_do_not_fit_are_fetched_again(tmp_path: Path, flaw: str) -> None:
    """Damage on the way, or a hole: nothing is appended; the follower says again where it stands."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster:
            leader = RawLeader(cluster)
            await leader.start()
            stream, first = await leader.accept()
            await stream.write(frames.pack_accepted(first.subscription, 5, 0, 0))
            bad = bytearray(replicated(b"a", 3 if flaw == "gap" else 0))
            if flaw == "crc":
                bad[-1] ^= 1
            await stream.write(bytes(bad))
            again = await leader.fetch_in(stream)
            assert (again.fetch_offset, again.subscription) == (0, first.subscription + 1)
            await stream.write(replicated(b"old channel", 0))
            await stream.write(frames.pack_accepted(again.subscription, 5, 0, 0) + replicated(b"a", 0))
            await until(lambda: cluster[2].log_dir.logs[TP].log_end_offset == 1)
            assert b"old channel" not in cluster[2].log_bytes()

    asyncio.run(scenario())


def test_a_leader_that_is_somebody_else(tmp_path: Path) -> None:
    """Another node answers at that address: nothing is taken from it, and the follower tries again."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster:
            leader = RawLeader(cluster)
            await leader.start()
            stream, first = await leader.accept()
            await stream.write(
                frames.pack_welcome(NodeId(3), BrokerEpoch(1))
                + frames.pack_accepted(first.subscription, 5, 0, 0)
                + replicated(b"a", 0)
            )
            _, second = await leader.accept()
            assert second.fetch_offset == 0
            assert cluster[2].fatal == []

    asyncio.run(scenario())


def test_metadata_within_a_leader_epoch_restart_nothing(tmp_path: Path) -> None:
    """KAFKA-13790: only a new leader epoch makes a follower fetch anew."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster:
            leader = RawLeader(cluster)
            await leader.start()
            stream, first = await leader.accept()
            await stream.write(frames.pack_accepted(first.subscription, 5, 0, 0))
            for isr in ((1,), (1, 2), (1, 2, 3)):
                cluster.controller.change(TP, isr=isr)
            await stream.write(replicated(b"a", 0))
            await until(lambda: cluster[2].log_dir.logs[TP].log_end_offset == 1)
            cluster.controller.change(TP, leader_epoch=LeaderEpoch(1))
            again = await leader.fetch_in(stream)
            assert (again.current_leader_epoch, again.fetch_offset, again.last_fetched_epoch) == (1, 1, 0)
            assert again.subscription == first.subscription + 1

    asyncio.run(scenario())


def test_a_follower_acknowledges_what_it_has_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flush.policy = ack: what is appended and not yet on the disk is not acknowledged as durable."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster:
            leader = RawLeader(cluster)
            await leader.start()
            stream, first = await leader.accept()
            with syncs_held(cluster[2].disk, monkeypatch):
                await stream.write(frames.pack_accepted(first.subscription, 5, 0, 0))
                for offset in range(3):
                    await stream.write(replicated(b"a", offset))
                await until(lambda: cluster[2].log_dir.logs[TP].log_end_offset == 3)
                cluster[2].replicas.partition(TP).synced()  # type: ignore[union-attr]
                said = await leader.next_of("on_ack", stream)
                assert said[1:] == (3, 0)
            while said[-1] < 3:
                said = await leader.next_of("on_ack", stream)
                assert said[-1] <= cluster[2].log_dir.logs[TP].durable_offset

    asyncio.run(scenario())


def test_a_leader_may_send_more_once_a_slow_disk_has_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule B51: what the page cache takes is no measure. While too much is not synced the leader gets no credit."""
    monkeypatch.setattr("strandline.log.syncer.UNSYNCED_BYTES_MAX", 150)

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster:
            leader = RawLeader(cluster)
            await leader.start()
            stream, first = await leader.accept()
            heard = leader._heard[stream]
            with syncs_held(cluster[2].disk, monkeypatch):
                await stream.write(frames.pack_accepted(first.subscription, 5, 0, 0))
                for offset in range(3):
                    await stream.write(replicated(b"a" * 50, offset))
                await until(lambda: cluster[2].log_dir.logs[TP].log_end_offset == 3)
                cluster[2].replicas.partition(TP).synced()  # type: ignore[union-attr]
                said = await leader.next_of("on_ack", stream)
                assert said[1:] == (3, 0)
                assert not heard, "credit would be in the same frame"
            assert (await leader.next_of("on_credit", stream))[0] > 300

    asyncio.run(scenario())


def test_a_verdict_on_a_position_that_has_moved(tmp_path: Path) -> None:
    """Rule B8, truncation: an answer counts only while the fetch offset is still the log's end: here data came
    first."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster:
            leader = RawLeader(cluster)
            await leader.start()
            stream, first = await leader.accept()
            await stream.write(frames.pack_accepted(first.subscription, 5, 0, 0))
            await stream.write(replicated(b"a", 0) + replicated(b"b", 1))
            await stream.write(frames.pack_diverging(first.subscription, 0, 1) + replicated(b"c", 2))
            await until(lambda: cluster[2].log_dir.logs[TP].log_end_offset == 3)

    asyncio.run(scenario())


def test_data_of_another_leader_epoch(tmp_path: Path) -> None:
    """Rule B1, four epochs: the leader breaks the protocol; nothing is appended, and the follower connects anew."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster:
            leader = RawLeader(cluster)
            await leader.start()
            stream, first = await leader.accept()
            await stream.write(frames.pack_accepted(first.subscription, 5, 0, 0) + replicated(b"a", 0, epoch=7))
            _, second = await leader.accept()
            assert (second.fetch_offset, second.current_leader_epoch) == (0, 0)
            assert cluster[2].log_dir.logs[TP].log_end_offset == 0

    asyncio.run(scenario())


def test_a_disk_that_fails_where_the_log_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedule 18: a follower's disk fails as the log start follows the leader's: that copy is offline, the node goes
    on."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster:
            cluster.create(min_insync_replicas=1, log_config=LogConfig(segment_bytes=300))
            for sequence in range(12):
                sent = batch(b"x" * 50, producer_id=9, producer_epoch=0, base_sequence=sequence)
                assert (await cluster[1].append(TP, sent)).error is ErrorCode.NONE
            await until(lambda: cluster[2].replicas.hosted()[0].high_watermark == 12)

            def fails(path: str, *, create: bool = False) -> File:
                raise DiskError(5, "Input/output error", path)

            with monkeypatch.context() as patch:
                patch.setattr(cluster[2].disk, "open", fails)
                cluster[1].replicas.delete_records(TP, 12, lambda *_: None)
                await until(lambda: cluster[2].replicas.hosted()[0].role is Role.OFFLINE)
            assert (cluster[1].fatal, cluster[2].fatal) == ([], [])

    asyncio.run(scenario())
