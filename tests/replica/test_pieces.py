"""Batches that cross a replication stream in pieces, because they are larger than a chunk (schedule 54)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from strandline.log.batch import Record, build_batch
from strandline.log.config import BATCH_BYTES_MAX
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.replica import frames
from tests.replica.helpers import TP, batch, running, until
from tests.replica.test_follower_streams import RawLeader, replicated
from tests.replica.test_frames import Heard
from tests.replica.test_streams import RawFollower, fetch, lead_alone

pytestmark = pytest.mark.usefixtures("logs_made_at_once")


def piece(batch_: bytes, position: int, end: int, *, channel: int = 5, size: int | None = None) -> bytes:
    part = batch_[position:end]
    header = frames.pack_piece_header(
        channel,
        0,
        0,
        high_watermark=0,
        log_start_offset=0,
        batch_size=len(batch_) if size is None else size,
        position=position,
        size=len(part),
    )
    return header + part


def test_one_batch_at_a_time_goes_in_pieces(tmp_path: Path) -> None:
    """A follower holds one batch that is not whole, whatever it follows; what is small goes between the pieces."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1, fetch_chunk_bytes=1_000) as cluster:
            cluster.network.unread_max = 2
            for number in range(3):
                lead_alone(cluster, number)
            for number in (0, 1):
                cluster[1].append(TopicPartition("t", number), batch(b"a" * 10_000), 1)
            subscriptions = b"".join(fetch(subscription=number, partition=number) for number in range(3))
            raw = await RawFollower.connect(cluster, first=subscriptions + frames.pack_credit(10**6))
            channels: dict[int, int] = {}
            order: list[tuple[int, int]] = []
            while sum(number != 2 for number, _ in order) < 2 * 11:
                for name, *values in await raw.hear():
                    if name == "on_accepted":
                        channels[values[1]] = values[0]
                    elif name == "on_piece":
                        order.append((channels[values[0].channel], values[0].position))
                    elif name == "on_data":
                        order.append((channels[values[0].channel], -1))
                if 0 < len(order) <= 5:
                    cluster[1].append(TopicPartition("t", 2), batch(b"b"), 1)
            large = [(number, position) for number, position in order if number != 2]
            first, second = large[0][0], 1 - large[0][0]
            assert large == [(number, at) for number in (first, second) for at in range(0, 10_069, 1_000)]
            assert order.index((2, -1)) < order.index((second, 0)), "what is small waited for what is large"

    asyncio.run(scenario())


def test_a_batch_larger_than_the_window_passes(tmp_path: Path) -> None:
    """Credit comes back with each piece, not with the batch; what is sent ahead of it stays within the window."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=1, fetch_chunk_bytes=1_000) as cluster:
            lead_alone(cluster)
            raw = await RawFollower.connect(cluster, first=fetch() + frames.pack_credit(2_000))
            await raw.hear_until("on_accepted")
            cluster[1].append(TP, batch(b"a" * 50_000), 1)
            got, size = bytearray(), 1
            while len(got) < size:
                told = (await raw.hear_until("on_piece"))[1]
                got += told.part
                size = told.batch_size
                await raw.say(frames.pack_credit(len(told.part)))
            assert bytes(got) == cluster[1].log_bytes()
            await raw.say(frames.pack_ack(1, 1, 1))
            await until(lambda: cluster[1].replicas.hosted()[0].high_watermark == 1)

    asyncio.run(scenario())


LARGE = bytes(build_batch([Record(0, 1, None, b"large" * 1_000, ())], base_offset=0, leader_epoch=0))


@pytest.mark.parametrize(
    "said",
    [
        [piece(LARGE, 0, 2_000), piece(LARGE, 3_000, 4_000)],
        [piece(LARGE, 0, 2_000), piece(LARGE, 1_000, 4_000)],
        [piece(LARGE, 1_000, 2_000)],
        [piece(LARGE, 0, 0)],
        [piece(LARGE, 0, 2_000, size=1_999)],
        [piece(LARGE, 0, 2_000, size=BATCH_BYTES_MAX + 1)],
        [piece(LARGE, 0, 2_000), piece(LARGE, 0, 2_000, channel=6)],
    ],
    ids=["gap", "overlap", "no beginning", "nothing in it", "beyond the batch", "beyond every bound", "two at once"],
)
def test_pieces_that_make_no_sense_end_the_stream(tmp_path: Path, said: list[bytes]) -> None:
    """Nothing of them is kept: the follower opens another stream, says again where it stands, and goes on."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2, stream_timeout_ms=600_000) as cluster:
            leader = RawLeader(cluster)
            await leader.start()
            other = cluster.controller.state(TP)
            stream, first = await leader.accept()
            entries = [frames.pack_accepted(first.subscription, 5, 0, 0)]
            if len(said) == 2 and said[1] == piece(LARGE, 0, 2_000, channel=6):
                cluster.controller.create(type(other)(**{**fields_of(other), "partition": 1}))
                second = await leader.fetch_in(stream)
                entries.append(frames.pack_accepted(second.subscription, 6, 0, 0))
            await stream.write(b"".join(entries + said))
            async with asyncio.timeout(20):
                again, fetched = await leader.accept()
            assert fetched.fetch_offset == 0
            await again.write(frames.pack_accepted(fetched.subscription, 5, 0, 0) + replicated(b"a", 0))
            await until(lambda: cluster[2].log_dir.logs[TP].log_end_offset == 1)
            assert cluster[2].fatal == []

    asyncio.run(scenario())


def fields_of(state: Any) -> dict[str, Any]:
    return {name: getattr(state, name) for name in type(state).__slots__}


def test_a_new_subscription_begins_the_batch_anew(tmp_path: Path) -> None:
    """The leader ends a subscription in the middle of a batch: the next one's pieces begin at its first byte."""

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster:
            leader = RawLeader(cluster)
            await leader.start()
            stream, first = await leader.accept()
            await stream.write(
                frames.pack_accepted(first.subscription, 5, 0, 0)
                + piece(LARGE, 0, 2_000)
                + frames.pack_error(first.subscription, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                + piece(LARGE, 2_000, 4_000)
            )
            again = await leader.fetch_in(stream)
            assert again.fetch_offset == 0
            await stream.write(frames.pack_accepted(again.subscription, 5, 0, 0))
            for position in range(0, len(LARGE), 2_000):
                await stream.write(piece(LARGE, position, position + 2_000))
            await until(lambda: cluster[2].log_dir.logs[TP].log_end_offset == 1)
            assert cluster[2].log_bytes() == LARGE

    asyncio.run(scenario())


def test_what_a_follower_asks_for_comes_in_frames_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many partitions it follows: the transport ends a stream over one frame that is too large."""
    monkeypatch.setattr(frames, "FRAME_BYTES_MAX", 500)

    async def scenario() -> None:
        async with running(tmp_path, nodes=2) as cluster:
            leader = RawLeader(cluster)
            await leader.start()
            state = cluster.controller.state(TP)
            for number in range(1, 50):
                cluster.controller.create(type(state)(**{**fields_of(state), "partition": number}))
            stream = await leader.streams.get()
            asked: list[int] = []
            frame = await stream.read()
            assert frame is not None
            position = frames.read_hello(frame)[1]
            while len(set(asked)) < 50:
                assert len(frame) < 600
                heard = Heard()
                frames.read_requests(frame, heard, position)
                asked += [entry[1].partition for entry in heard.entries if entry[0] == "on_fetch"]
                frame, position = await stream.read(), 0
                assert frame is not None
            assert sorted(set(asked)) == list(range(50))

    asyncio.run(scenario())
