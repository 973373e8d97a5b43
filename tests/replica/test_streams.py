"""Both ends of a replication stream against a peer of raw frames: who is let in, what counts, what is sent."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import BrokerEpoch, Endpoint, LeaderEpoch, NodeId, TopicPartition
from strandline.replica import frames
from strandline.replica.fetcher import STREAM_METHOD
from strandline.replica.states import BrokerState
from tests.replica.fake_controller import partition_state
from tests.replica.helpers import CLUSTER, TOPIC_ID, TP, Cluster, batch, running, until
from tests.replica.memory_rpc import MemoryStream
from tests.replica.test_frames import Heard


class RawFollower:
    """Speaks to a leader as node `node`; every reply is noted."""

    def __init__(self, stream: MemoryStream) -> None:
        self.stream = stream
        self.frames: list[bytes] = []

    @classmethod
    async def connect(cls, cluster: Cluster, node: int = 2, first: bytes = b"", **hello: Any) -> RawFollower:
        rpc = cluster.network.rpc(Endpoint("raw", node))
        stream = await rpc.open_stream(cluster[1].endpoint, STREAM_METHOD, timeout_ms=1000)
        fields: dict[str, Any] = {
            "version": frames.PROTOCOL_VERSION,
            "node_id": NodeId(node),
            "target_id": NodeId(1),
            "broker_epoch": BrokerEpoch(100),
            "cluster_id": CLUSTER,
        }
        await stream.write(frames.pack_hello(frames.Hello(**{**fields, **hello})) + first)
        return cls(stream)

    async def say(self, *entries: bytes) -> None:
        await self.stream.write(b"".join(entries))

    async def hear(self) -> list[tuple[Any, ...]]:
        """The entries of the next frame; none when the stream has ended. It is never silent for long."""
        try:
            async with asyncio.timeout(4):
                frame = await self.stream.read()
        except TimeoutError:
            raise AssertionError("the leader says nothing, and does not end the stream") from None
        if frame is None:
            return []
        self.frames.append(frame)
        heard = Heard()
        frames.read_replies(frame, heard)
        return [tuple(entry) for entry in heard.entries]

    async def hear_until(self, kind: str) -> tuple[Any, ...]:
        while True:
            for entry in await self.hear():
                if entry[0] == kind:
                    return entry


def fetch(
    offset: int = 0,
    *,
    subscription: int = 1,
    partition: int = 0,
    epoch: int = 0,
    last: int = -1,
    topic: UUID = TOPIC_ID,
) -> bytes:
    return frames.pack_fetch(frames.Fetch(subscription, topic, partition, LeaderEpoch(epoch), offset, last, offset, 0))


def lead_alone(cluster: Cluster, partition: int = 0) -> None:
    """Node 1 leads; nodes 2 and 3 are replicas, played by the test."""
    for node in (2, 3):
        cluster.controller.brokers[NodeId(node)] = BrokerState(
            NodeId(node), Endpoint("raw", node), BrokerEpoch(100), fenced=False
        )
    cluster.controller.create(partition_state(topic_id=TOPIC_ID, isr=(1,), min_insync_replicas=1, partition=partition))


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"target_id": NodeId(7)}, ErrorCode.BROKER_NOT_AVAILABLE),
        ({"version": 99}, ErrorCode.UNSUPPORTED_VERSION),
        ({"node_id": NodeId(1)}, ErrorCode.INVALID_REQUEST),
        ({"broker_epoch": BrokerEpoch(99)}, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_who_is_not_let_in(tmp_path: Path, hello: dict[str, Any], code: ErrorCode) -> None:
    """Design 6: cluster id, node id, broker epoch and version are checked when the stream opens."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            raw = await RawFollower.connect(cluster, first=fetch(), **hello)
            entries = await raw.hear()
            assert entries[0][:2] == ("on_reject", code)
            assert await raw.hear() == []
            partition = cluster[1].replicas.partition(TP)
            assert partition is not None
            assert not partition.subscriptions

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "junk", [b"\xff\xff\xff", b"\x03\x00", frames.pack_ack(1, 5, 5), frames.pack_watermark(1, 1, 1)]
)
def test_nonsense_ends_the_stream_and_nothing_else(tmp_path: Path, junk: bytes) -> None:
    """Torn, unknown, or an acknowledgement of what was never sent: no node falls for it."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            raw = await RawFollower.connect(cluster, first=fetch() + frames.pack_credit(1000))
            await raw.hear_until("on_accepted")
            await raw.say(junk)
            assert await raw.hear() == []
            again = await RawFollower.connect(cluster, first=fetch())
            await again.hear_until("on_accepted")
            assert cluster[1].fatal == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (fetch(epoch=-1), ErrorCode.FENCED_LEADER_EPOCH),
        (fetch(epoch=1), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (fetch(topic=UUID(int=99)), ErrorCode.UNKNOWN_TOPIC_ID),
        (fetch(partition=4), ErrorCode.UNKNOWN_TOPIC_ID),
        (fetch(50), ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_fetches_that_are_refused(tmp_path: Path, request_: bytes, code: ErrorCode) -> None:
    """Rule B: each with its error; none is recorded."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            raw = await RawFollower.connect(cluster, first=request_)
            assert (await raw.hear_until("on_error"))[1:3] == (1, code)
            assert cluster[1].replicas.hosted()[0].followers[0].fetch_offset == -1

    asyncio.run(scenario())


def test_a_stranger_cannot_follow(tmp_path: Path) -> None:
    """Only replicas of the partition: identity comes from the stream."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            raw = await RawFollower.connect(cluster, node=9, first=fetch())
            assert (await raw.hear_until("on_error"))[1:3] == (1, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    asyncio.run(scenario())


def test_a_diverging_fetch_is_not_recorded(tmp_path: Path) -> None:
    """D-6 (KAFKA-13141): its offset advances nothing; the answer is where to cut."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            cluster[1].append(TP, batch(b"a", count=3), 1)
            raw = await RawFollower.connect(cluster, first=fetch(9, last=0))
            assert await raw.hear_until("on_diverging") == ("on_diverging", 1, 0, 3)
            await raw.say(frames.pack_ack(1, 9, 9))
            await raw.say(fetch(3, subscription=2, last=0))
            await raw.hear_until("on_accepted")
            assert cluster[1].replicas.hosted()[0].followers[0].fetch_offset == 3

    asyncio.run(scenario())


def test_stale_acknowledgements_are_dropped(tmp_path: Path) -> None:
    """A subscription is bound to a leader epoch: what comes for an older one counts for nothing."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            raw = await RawFollower.connect(cluster, first=fetch() + frames.pack_credit(10_000))
            await raw.hear_until("on_accepted")
            cluster[1].append(TP, batch(b"a", count=3), 1)
            await raw.hear_until("on_data")
            cluster.controller.change(TP, leader_epoch=LeaderEpoch(1))
            assert (await raw.hear_until("on_error"))[1:3] == (1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            await raw.say(frames.pack_ack(1, 3, 3), fetch(0, subscription=2, epoch=1))
            await raw.hear_until("on_accepted")
            assert cluster[1].replicas.hosted()[0].followers[0].fetch_offset == 0

    asyncio.run(scenario())


def test_a_newer_stream_replaces_the_older(tmp_path: Path) -> None:
    """One stream a follower's broker, and never back to an older process."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            first = await RawFollower.connect(cluster, first=fetch())
            await first.hear_until("on_accepted")
            second = await RawFollower.connect(cluster, first=fetch(), broker_epoch=BrokerEpoch(200))
            await second.hear_until("on_accepted")
            assert await first.hear() == []
            third = await RawFollower.connect(cluster, first=fetch())
            assert (await third.hear())[0][:2] == ("on_reject", ErrorCode.STALE_BROKER_EPOCH)

    asyncio.run(scenario())


def test_the_stream_of_an_older_process_is_ended(tmp_path: Path) -> None:
    """D-8: when the metadata name a newer registration, the old process has nothing to say any more."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            raw = await RawFollower.connect(cluster, first=fetch())
            await raw.hear_until("on_accepted")
            broker = BrokerState(NodeId(2), Endpoint("raw", 2), BrokerEpoch(101))
            cluster.controller.brokers[NodeId(2)] = broker
            cluster.controller.publish([])
            assert await raw.hear() == []

    asyncio.run(scenario())


def test_one_copy_for_all_followers(tmp_path: Path) -> None:
    """Performance rule 1: the very same bytes go to both."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            raws = [
                await RawFollower.connect(cluster, node=node, first=fetch() + frames.pack_credit(10**6))
                for node in (2, 3)
            ]
            for raw in raws:
                await raw.hear_until("on_accepted")
            cluster[1].append(TP, batch(b"a" * 1000), 1)
            for raw in raws:
                await raw.hear_until("on_data")
            assert raws[0].frames[-1] is raws[1].frames[-1]

    asyncio.run(scenario())


def test_what_is_appended_in_one_turn_travels_in_one_frame(tmp_path: Path) -> None:
    """Performance rule 4: coalesced per turn of the loop."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            raw = await RawFollower.connect(cluster, first=fetch() + frames.pack_credit(10**6))
            await raw.hear_until("on_accepted")
            for _ in range(5):
                cluster[1].append(TP, batch(b"a"), 1)
            entries = await raw.hear()
            assert [entry[1].base_offset for entry in entries] == [0, 1, 2, 3, 4]

    asyncio.run(scenario())


def test_nothing_is_sent_without_credit(tmp_path: Path) -> None:
    """A pull stays a pull: data wait until the follower grants bytes, and then come from the log, in order."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            raw = await RawFollower.connect(cluster, first=fetch())
            await raw.hear_until("on_accepted")
            for _ in range(6):
                cluster[1].append(TP, batch(b"a" * 100), 1)
            got: list[int] = []
            while len(got) < 6:
                await raw.say(frames.pack_credit(170))
                data = (await raw.hear_until("on_data"))[1]
                assert data.base_offset == len(got), "one batch for the credit of one"
                got.append(data.base_offset)
                await raw.say(frames.pack_ack(1, len(got), len(got)))
            cluster[1].append(TP, batch(b"a" * 100), 1)
            await raw.say(frames.pack_credit(10_000))
            assert (await raw.hear_until("on_data"))[1].base_offset == 6

    asyncio.run(scenario())


def test_lagging_partitions_take_turns(tmp_path: Path) -> None:
    """Bounded chunks, one partition after the other, and those at the end of the log are not starved."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1, fetch_chunk_bytes=400) as cluster:
            cluster.network.unread_max = 2
            for number in range(3):
                lead_alone(cluster, number)
            for number in range(2):
                for _ in range(20):
                    cluster[1].append(TopicPartition("t", number), batch(b"a" * 100), 1)
            raw = await RawFollower.connect(
                cluster,
                first=b"".join(fetch(subscription=number, partition=number) for number in range(3))
                + frames.pack_credit(10**6),
            )
            channels: dict[int, int] = {}
            order: list[int] = []
            done = {0: 0, 1: 0, 2: 0}
            while done[0] < 20 or done[1] < 20 or done[2] < 5:
                for entry in await raw.hear():
                    if entry[0] == "on_accepted":
                        channels[entry[2]] = entry[1]
                    elif entry[0] == "on_data":
                        number = channels[entry[1].channel]
                        order.append(number)
                        done[number] = entry[1].base_offset + len(entry[1].batches) // 170
                if done[2] < 5 and any(done.values()):
                    cluster[1].append(TopicPartition("t", 2), batch(b"b"), 1)
            lagging = [number for number in order if number < 2]
            assert max(lagging.index(0), lagging.index(1)) == 1
            assert all(one != two for one, two in pairwise(lagging))
            assert order.index(2) < len(order) // 2

    asyncio.run(scenario())


def test_the_high_watermark_travels_alone_when_nothing_else_does(tmp_path: Path) -> None:
    """Lazily: once, a little later, for the followers that have not heard of it; then the stream is silent."""

    async def scenario() -> None:
        async with running(tmp_path, watermark_delay_ms=1) as cluster:
            cluster.create()
            await cluster[1].append(TP, batch(b"a"))
            await until(lambda: all(b.replicas.hosted()[0].high_watermark == 1 for b in cluster.brokers.values()))
            sent = [(mine.frames_sent, mine.peer.frames_sent) for _, _, mine in cluster.network.open]
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert sent == [(mine.frames_sent, mine.peer.frames_sent) for _, _, mine in cluster.network.open]

    asyncio.run(scenario())


# The follower's end


class RawLeader:
    """Plays node 1 for a real follower, which is node 2."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.streams: asyncio.Queue[MemoryStream] = asyncio.Queue()
        self.endpoint = Endpoint("raw", 1)

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
        return stream, await self.fetch_in(stream, frame, position)

    async def fetch_in(self, stream: MemoryStream, frame: bytes | None = None, position: int = 0) -> frames.Fetch:
        """The next fetch that it sends."""
        while True:
            if frame is None:
                frame = await stream.read()
                assert frame is not None
            heard = Heard()
            frames.read_requests(frame, heard, position)
            for entry in heard.entries:
                if entry[0] == "on_fetch":
                    found: frames.Fetch = entry[1]
                    return found
            frame, position = None, 0


def replicated(value: bytes, offset: int, *, channel: int = 5, epoch: int = 0, high_watermark: int = 0) -> bytes:
    from strandline.log.batch import build_batch
    from strandline.log.records import Record

    data = bytes(build_batch([Record(0, 1, None, value, ())], base_offset=offset, leader_epoch=epoch))
    header = frames.pack_data_header(
        channel, epoch, offset, high_watermark=high_watermark, log_start_offset=0, size=len(data)
    )
    return header + data


def test_only_answers_to_the_latest_fetch_count(tmp_path: Path) -> None:
    """D-7 and rule B: data and high watermarks of a channel that was not accepted, and verdicts on older fetches, are
    nothing to the follower."""

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
            disk, may_sync = cluster[2].disk, asyncio.Event()
            real = disk.sync

            async def slow(files: Any, directories: Any = ()) -> None:
                await may_sync.wait()
                await real(files, directories)

            monkeypatch.setattr(disk, "sync", slow)
            await stream.write(frames.pack_accepted(first.subscription, 5, 0, 0))
            for offset in range(3):
                await stream.write(replicated(b"a", offset))
            await until(lambda: cluster[2].log_dir.logs[TP].log_end_offset == 3)
            cluster[2].replicas._streams.synced(cluster[2].replicas.partition(TP))  # type: ignore[arg-type]
            said = await next_ack(stream)
            assert (said[-2], said[-1]) == (3, 0)
            may_sync.set()
            while said[-1] < 3:
                said = await next_ack(stream)
                assert said[-1] <= cluster[2].log_dir.logs[TP].durable_offset

    asyncio.run(scenario())


async def next_ack(stream: MemoryStream) -> tuple[Any, ...]:
    while True:
        frame = await stream.read()
        assert frame is not None
        heard = Heard()
        frames.read_requests(frame, heard)
        for entry in heard.entries:
            if entry[0] == "on_ack":
                return tuple(entry)


def test_a_verdict_on_a_position_that_has_moved(tmp_path: Path) -> None:
    """Rule B, truncation: an answer counts only while the fetch offset is still the log's end: here data came first."""

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
    """Rule B, four epochs: the leader breaks the protocol; nothing is appended, and the follower connects anew."""

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
