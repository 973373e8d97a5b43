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


def bench() -> Bench:
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
    bench_ = bench()

    async def scenario() -> None:
        bench_.controller.create(replace(bench_._state, partition=OTHER.partition))
        await bench_.world.sleep_ms(100)
        assert len(LARGE) > FRAME_BYTES_MAX
        large = bench_.send(1, batch(LARGE))
        await bench_.world.sleep_ms(1)
        manager = bench_.manager(1)
        small = bench_.world.loop.create_future()
        bench_.broker(1).run(lambda _: manager.append(OTHER, batch(b"small"), -1, small.set_result))
        await bench_.until(small.done, 5_000)
        assert small.result().error is ErrorCode.NONE
        await bench_.until(large.done, 60_000)
        assert large.result().error is ErrorCode.NONE
        await bench_.whole()
        connections = [bench_.manager(node).counters.connections for node in (2, 3)]
        assert connections == [1, 1], "a stream broke over the batch"

    bench_.play(scenario)


@schedule(54, rule="B16: a batch that was appended can be replicated", mutant="large-batches-in-one-frame-to-who-lags")
def test_54_a_follower_catches_up_over_a_batch_above_the_frame_limit() -> None:
    """As above, for a follower that was away: it reads the batch from the leader's log."""
    bench_ = bench()

    async def scenario() -> None:
        await bench_.leave_out(3)
        await bench_.append(1, b"before")
        await bench_.append(1, LARGE)
        await bench_.append(1, b"after")
        bench_.broker(3).start()
        await bench_.until(lambda: len(bench_.isr) == 3, 60_000)
        await bench_.whole()
        bench_.controller.elect(TP, NodeId(3))
        await bench_.until(lambda: bench_.leads(3))
        assert bench_.values(3) == [b"before", LARGE, b"after"]

    bench_.play(scenario)
