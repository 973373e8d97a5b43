"""Batches that are larger than a frame between nodes, and larger than a follower's window: schedule 54."""

from __future__ import annotations

from dataclasses import replace

from strandline.log.config import LogConfig
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId, TopicPartition
from tests.replica.helpers import TP, batch
from tests.schedules.helpers import schedule
from tests.schedules.replication.bench import Bench

FRAME_BYTES_MAX = 4 << 20
LARGE = b"large " * (1 << 20)
OTHER = TopicPartition("t", 1)


def small_frames() -> Bench:
    """Frames of 4 MiB between nodes, windows of 1 MiB, and topics that take batches of 8 MiB."""
    bench = Bench(fetch_window_bytes=1 << 20, fetch_chunk_bytes=200_000)
    bench.world.network.config.frame_bytes_max = FRAME_BYTES_MAX
    bench._state = replace(bench._state, log_config=LogConfig(max_message_bytes=8 << 20))
    return bench


@schedule(54, rule="B16: a batch that was appended can be replicated", mutant="large-batches-in-one-frame")
def test_54_one_batch_above_the_frame_limit() -> None:
    """One frame that is too large ends the stream with everything on it, and ends it again when it is opened anew:
    neither that batch nor any of another partition of the leader is committed. In pieces it passes, and what is small
    does not wait for it."""
    bench = small_frames()

    async def scenario(bench: Bench) -> None:
        bench.controller.create(replace(bench._state, partition=OTHER.partition))
        await bench.world.sleep_ms(100)
        assert len(LARGE) > FRAME_BYTES_MAX
        large = bench.send(1, batch(LARGE))
        await bench.world.sleep_ms(1)
        manager = bench.manager(1)
        small = bench.world.loop.create_future()
        bench.broker(1).run(lambda _: manager.append(OTHER, batch(b"small"), -1, small.set_result))
        await bench.until(small.done, within_ms=5_000)
        assert small.result().error is ErrorCode.NONE
        await bench.until(large.done, within_ms=60_000)
        assert large.result().error is ErrorCode.NONE
        await bench.whole()
        connections = [bench.manager(node).counters.connections for node in (2, 3)]
        assert connections == [1, 1], "a stream broke over the batch"

    bench.play(scenario)


@schedule(54, rule="B16: a batch that was appended can be replicated", mutant="large-batches-in-one-frame-to-who-lags")
def test_54_a_follower_catches_up_over_a_batch_above_the_frame_limit() -> None:
    """As above, for a follower that was away: it reads the batch from the leader's log."""
    bench = small_frames()

    async def scenario(bench: Bench) -> None:
        await bench.leave_out(3)
        await bench.append(1, b"before")
        await bench.append(1, LARGE)
        await bench.append(1, b"after")
        bench.broker(3).start()
        await bench.until(lambda: len(bench.isr) == 3, within_ms=60_000)
        await bench.whole()
        bench.controller.elect(TP, NodeId(3))
        await bench.until(lambda: bench.leads(3))
        assert bench.values(3) == [b"before", LARGE, b"after"]

    bench.play(scenario)
