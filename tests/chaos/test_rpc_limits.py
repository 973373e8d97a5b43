"""The largest frame between nodes: what is larger ends its call or stream, on real sockets and on simulated ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.cluster.node.internal.grpc_rpc import GrpcRpc
from strandline.cluster.node.internal.options import MESSAGE_BYTES_MAX
from strandline.proto.ids import Endpoint
from strandline.proto.ports import Rpc, RpcError, RpcRejected, RpcUnavailable, Stream

TOO_LARGE = MESSAGE_BYTES_MAX + 1


async def conversation(rpc: Rpc, endpoint: Endpoint) -> list[object]:
    """Serve and call at the limit and one byte above it, each way; what the server's streams met."""
    met: list[object] = []

    async def size(request: bytes) -> bytes:
        return b"%d" % len(request)

    async def make(request: bytes) -> bytes:
        return bytes(int(request))

    async def reads(stream: Stream) -> None:
        try:
            while (frame := await stream.read()) is not None:
                met.append(len(frame))
        except RpcUnavailable:
            met.append("gone")

    async def writes(stream: Stream) -> None:
        asked = await stream.read()
        assert asked is not None
        try:
            await stream.write(bytes(int(asked)))
        except RpcUnavailable:
            met.append("not sent")
        else:
            met.append("sent")
        met.append(await stream.read())

    server = await rpc.serve(
        endpoint, {"/l.L/Size": size, "/l.L/Make": make}, {"/l.L/Reads": reads, "/l.L/Writes": writes}
    )
    at = Endpoint(endpoint.host, server.endpoint.port)
    assert await rpc.call(at, "/l.L/Size", bytes(MESSAGE_BYTES_MAX), timeout_ms=60_000) == b"%d" % MESSAGE_BYTES_MAX
    assert len(await rpc.call(at, "/l.L/Make", b"%d" % MESSAGE_BYTES_MAX, timeout_ms=60_000)) == MESSAGE_BYTES_MAX
    with pytest.raises(RpcRejected, match="larger than max"):
        await rpc.call(at, "/l.L/Size", bytes(TOO_LARGE), timeout_ms=60_000)
    with pytest.raises(RpcRejected, match="larger than max"):
        await rpc.call(at, "/l.L/Make", b"%d" % TOO_LARGE, timeout_ms=60_000)

    stream = await rpc.open_stream(at, "/l.L/Reads", timeout_ms=5_000)
    await stream.write(bytes(MESSAGE_BYTES_MAX))
    while MESSAGE_BYTES_MAX not in met:
        await asyncio.sleep(0.01)
    with pytest.raises(RpcUnavailable):
        await stream.write(bytes(TOO_LARGE))
    with pytest.raises(RpcRejected, match="larger than max"):
        await stream.read()
    stream.close()

    for asked in (MESSAGE_BYTES_MAX, TOO_LARGE):
        stream = await rpc.open_stream(at, "/l.L/Writes", timeout_ms=5_000)
        await stream.write(b"%d" % asked)
        try:
            frame = await stream.read()
            assert frame is not None
            met.append(("read", len(frame)))
        except RpcError as error:
            met.append(("read", type(error).__name__, str(error).partition("Sent ")[2]))
        stream.close()
        await asyncio.sleep(0.5)
    await server.close()
    await rpc.close()
    return [entry for entry in met if entry is not None]


def simulated(talk: Callable[[Rpc, Endpoint], Awaitable[list[object]]]) -> list[object]:
    world = World(1)
    world.add_machine("node")
    met: list[object] = []

    async def process(ports: Ports) -> None:
        met.extend(await talk(ports.rpc, Endpoint("node", 7000)))

    async def scenario() -> None:
        started = world.spawn("node", process)
        assert started.main is not None
        await started.main

    world.run(scenario())
    return met


def test_what_is_too_large_ends_its_call_or_its_stream() -> None:
    """Schedule 54: one frame ends the whole stream, with all that travels on it."""
    real = asyncio.run(conversation(GrpcRpc(), Endpoint("127.0.0.1", 0)))
    expected = {MESSAGE_BYTES_MAX: 1, "gone": 1, "sent": 1, ("read", MESSAGE_BYTES_MAX): 1, "not sent": 1}
    rejected = ("read", "RpcRejected", f"message larger than max ({TOO_LARGE} vs. {MESSAGE_BYTES_MAX})")
    assert {entry: real.count(entry) for entry in real} == {**expected, rejected: 1}
    assert sorted(map(str, simulated(conversation))) == sorted(map(str, real))
