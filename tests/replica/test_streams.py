"""The leader's end of a replication stream against a follower of raw frames: who is let in, what is sent."""

from __future__ import annotations

import asyncio
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import BrokerEpoch, Endpoint, LeaderEpoch, NodeId, TopicPartition
from strandline.replica import frames, leader_stream
from strandline.replica.fetcher import STREAM_METHOD
from strandline.replica.states import BrokerState
from tests.replica.fake_controller import partition_state
from tests.replica.helpers import CLUSTER, TOPIC_ID, TP, Cluster, batch, running, until
from tests.replica.memory_rpc import MemoryStream
from tests.replica.test_frames import Heard

pytestmark = pytest.mark.usefixtures("logs_made_at_once")


class RawFollower:
    """Speaks to a leader as node `node`; every reply is noted."""

    def __init__(self, stream: MemoryStream) -> None:
        self.stream = stream
        self.frames: list[bytes] = []
        self._behind: list[tuple[Any, ...]] = []
        """Entries of the last frame behind the one that was heard for."""

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
        """The entries of the next frame, or the rest of the last one; a ping has none."""
        behind, self._behind = self._behind, []
        if behind:
            return behind
        frame = await self._next()
        assert frame is not None, "the stream has ended"
        self.frames.append(frame)
        heard = Heard()
        frames.read_replies(frame, heard)
        return [tuple(entry) for entry in heard.entries]

    async def has_ended(self) -> bool:
        """Whether the leader ends the stream rather than say something; it is never silent for long."""
        return await self._next() is None

    async def _next(self) -> bytes | None:
        try:
            async with asyncio.timeout(20):
                return await self.stream.read()
        except TimeoutError:
            raise AssertionError("the leader says nothing, and does not end the stream") from None

    async def hear_until(self, kind: str) -> tuple[Any, ...]:
        while True:
            entries = await self.hear()
            for number, entry in enumerate(entries):
                if entry[0] == kind:
                    self._behind = entries[number + 1 :]
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
            assert await raw.has_ended()
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
            assert await raw.has_ended()
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
    """Rule B1: each with its error; none is recorded."""

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
    """Schedule 6 (KAFKA-13141): its offset advances nothing; the answer is where to cut."""

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
            assert await first.has_ended()
            third = await RawFollower.connect(cluster, first=fetch())
            assert (await third.hear())[0][:2] == ("on_reject", ErrorCode.STALE_BROKER_EPOCH)

    asyncio.run(scenario())


def test_the_stream_of_an_older_process_is_ended(tmp_path: Path) -> None:
    """Schedule 8: when the metadata name a newer registration, the old process has nothing to say any more."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1) as cluster:
            lead_alone(cluster)
            raw = await RawFollower.connect(cluster, first=fetch())
            await raw.hear_until("on_accepted")
            broker = BrokerState(NodeId(2), Endpoint("raw", 2), BrokerEpoch(101))
            cluster.controller.brokers[NodeId(2)] = broker
            cluster.controller.publish([])
            assert await raw.has_ended()

    asyncio.run(scenario())


def test_one_copy_for_all_followers(tmp_path: Path) -> None:
    """Rule P1: the very same bytes go to both."""

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
    """Rule P4: coalesced per turn of the loop."""

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


@pytest.mark.parametrize(("run_bytes", "chunks"), [(1, 1), (1_000, 3)])
def test_lagging_partitions_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_bytes: int, chunks: int
) -> None:
    """Bounded chunks, a run of them for one partition after the other, and those at the end of the log are not
    starved."""
    monkeypatch.setattr(leader_stream, "RUN_BYTES", run_bytes)

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
            assert max(lagging.index(0), lagging.index(1)) == chunks
            turns = [len(list(run)) for _, run in groupby(lagging)]
            assert turns[:6] == [chunks] * 6
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
