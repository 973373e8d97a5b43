"""`Stream.read_all`: each frame is taken in the turn of the loop in which it comes, on real and simulated sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.cluster.node.internal.test_rpc_contract import CALL_MS, Body, Scene, play

from strandline.proto.ports import RpcRejected, RpcUnavailable, Stream

__all__ = ["play"]


async def count(stream: Stream) -> None:
    """50 frames, and the end."""
    for number in range(50):
        await stream.write(b"%d" % number * 1000)


async def count_and_stay(stream: Stream) -> None:
    """50 frames, and no end."""
    await count(stream)
    await stream.read()


COUNTED = [b"%d" % number * 1000 for number in range(50)]


async def open_counting(scene: Scene, handler: Callable[[Stream], object] = count_and_stay) -> Stream:
    server = await scene.serve({}, {"/t.T/Count": handler})  # type: ignore[dict-item]
    return await scene.rpc.open_stream(server, "/t.T/Count", timeout_ms=CALL_MS)


def test_all_frames_are_taken_in_order(play: Callable[[Body], None]) -> None:
    """Those that had come before, too, and the call returns at the end that the peer gives."""

    async def body(scene: Scene) -> None:
        stream = await open_counting(scene, count)
        taken = [await stream.read()]
        await stream.read_all(taken.append)
        assert taken == COUNTED
        await stream.read_all(taken.append)
        assert taken == COUNTED

    play(body)


def test_more_comes_than_the_window_holds(play: Callable[[Body], None]) -> None:
    """What was taken is granted again."""

    async def flood(stream: Stream) -> None:
        for _ in range(64):
            await stream.write(bytes(1_000_000))

    async def body(scene: Scene) -> None:
        stream = await open_counting(scene, flood)
        taken: list[int] = []
        await stream.read_all(lambda frame: taken.append(len(frame)))
        assert taken == [1_000_000] * 64

    play(body)


@pytest.mark.parametrize("at", [0, 1, 30])
def test_what_the_taker_raises_ends_it(play: Callable[[Body], None], at: int) -> None:
    """It is raised where it was called, and the taker is given nothing more."""

    async def body(scene: Scene) -> None:
        stream = await open_counting(scene)
        taken: list[bytes] = []

        def take(frame: bytes) -> None:
            taken.append(frame)
            if len(taken) > at:
                raise ValueError("enough")

        with pytest.raises(ValueError, match="enough"):
            await stream.read_all(take)
        await asyncio.sleep(0.05)
        assert taken == COUNTED[: at + 1]
        stream.close()

    play(body)


@pytest.mark.parametrize("at", [0, 30])
def test_the_taker_may_close_the_stream(play: Callable[[Body], None], at: int) -> None:
    """Whoever reads is told that it is gone."""

    async def body(scene: Scene) -> None:
        stream = await open_counting(scene)
        taken: list[bytes] = []

        def take(frame: bytes) -> None:
            taken.append(frame)
            if len(taken) > at:
                stream.close()

        with pytest.raises(RpcUnavailable):
            await stream.read_all(take)
        await asyncio.sleep(0.05)
        assert taken == COUNTED[: at + 1]

    play(body)


def test_a_reader_that_is_cancelled_takes_nothing_more(play: Callable[[Body], None]) -> None:
    """Not even what comes before it has noticed; another one goes on where it ended."""

    async def body(scene: Scene) -> None:
        gate = asyncio.Event()

        async def gated(stream: Stream) -> None:
            await stream.write(b"first")
            await gate.wait()
            await count(stream)

        stream = await open_counting(scene, gated)
        taken: list[bytes] = []
        reader = asyncio.ensure_future(stream.read_all(taken.append))
        while not taken:
            await asyncio.sleep(0.001)
        gate.set()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert taken == [b"first"]
        await stream.read_all(taken.append)
        assert taken == [b"first", *COUNTED]

    play(body)


def test_how_it_ends_otherwise(play: Callable[[Body], None]) -> None:
    """The peer's server ends; a handler fails."""

    async def fails(stream: Stream) -> None:
        await stream.read()
        raise ValueError("no more")

    async def body(scene: Scene) -> None:
        stream = await open_counting(scene, fails)
        await stream.write(b"go")
        with pytest.raises(RpcRejected, match="no more"):
            await stream.read_all(lambda _: None)
        await scene.stop_serving()
        stream = await open_counting(scene)
        reader = asyncio.ensure_future(stream.read_all(lambda _: None))
        await asyncio.sleep(0.05)
        await scene.stop_serving()
        with pytest.raises(RpcUnavailable):
            await reader

    play(body)
