"""Production's Rpc port over simulated sockets: what callers and handlers see when calls succeed, fail and break."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import pytest

from strandline.chaos.sim.links import NetworkConfig
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World, WorldConfig
from strandline.cluster.node.internal.internal_tls import InternalTls, SpeaksTls
from strandline.cluster.node.internal.options import STREAM_WINDOW_BYTES
from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint
from strandline.proto.ports import RpcRejected, RpcTimeout, RpcUnavailable, Stream

SERVER = Endpoint("server", 19092)


def run(
    client: Callable[[World, Ports], Awaitable[None]], *, seed: int = 1, log: list[object] | None = None
) -> list[object]:
    """A server with a few methods and a client that does `client`; returns what the server's handlers logged."""
    world = World(seed)
    for name in ("server", "client"):
        world.add_machine(name)
    seen: list[object] = [] if log is None else log

    async def echo(request: bytes) -> bytes:
        return request[::-1]

    async def slow(request: bytes) -> bytes:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return request

    async def bad(request: bytes) -> bytes:
        raise ValueError("no such thing")

    async def shout(stream: Stream) -> None:
        try:
            while (frame := await stream.read()) is not None:
                await stream.write(frame.upper())
        except RpcUnavailable:
            seen.append("stream gone")
            raise

    async def flood(stream: Stream) -> None:
        for number in range(100):
            await stream.write(bytes(100_000))
            seen.append(number)
        await stream.read()

    async def server(ports: Ports) -> None:
        await ports.rpc.serve(SERVER, {"/Echo": echo, "/Slow": slow, "/Bad": bad}, {"/Shout": shout, "/Flood": flood})
        await asyncio.get_running_loop().create_future()

    async def scenario() -> None:
        world.spawn("server", server)
        await asyncio.sleep(0.01)
        process = world.spawn("client", lambda ports: client(world, ports))  # type: ignore[arg-type,return-value]
        assert process.main is not None
        await process.main

    world.run(scenario())
    assert world.loop.unhandled == []
    return seen


def test_unary_calls() -> None:
    """A handler's exception or an unknown method is RpcRejected; late is RpcTimeout and cancels the handler."""

    async def client(world: World, ports: Ports) -> None:
        assert await ports.rpc.call(SERVER, "/Echo", b"abc", timeout_ms=100) == b"cba"
        with pytest.raises(RpcRejected, match="no such thing"):
            await ports.rpc.call(SERVER, "/Bad", b"", timeout_ms=100)
        with pytest.raises(RpcRejected, match="nobody serves /Nope here"):
            await ports.rpc.call(SERVER, "/Nope", b"", timeout_ms=100)
        with pytest.raises(RpcTimeout):
            await ports.rpc.call(SERVER, "/Slow", b"", timeout_ms=100)
        await asyncio.sleep(0.1)

    assert run(client) == ["cancelled"]


def test_refused_is_told_from_unreachable() -> None:
    """`refused` only when the peer's machine says that nobody listens (a dead process), never for lost packets."""

    async def client(world: World, ports: Ports) -> None:
        world.partition("client", "server")
        with pytest.raises(RpcTimeout):
            await ports.rpc.call(SERVER, "/Echo", b"", timeout_ms=300)
        world.heal()
        assert await ports.rpc.call(SERVER, "/Echo", b"ab", timeout_ms=5000) == b"ba"
        world.kill("server")
        await asyncio.sleep(0.1)
        with pytest.raises(RpcUnavailable) as caught:
            await ports.rpc.call(SERVER, "/Echo", b"", timeout_ms=300)
        assert caught.value.refused

    run(client)


@pytest.mark.parametrize("seed", range(5))
def test_a_broken_connection_fails_what_is_out(seed: int) -> None:
    """Calls and streams that were out raise RpcUnavailable, not refused: whether they were carried out is unknown."""

    async def client(world: World, ports: Ports) -> None:
        stream = await ports.rpc.open_stream(SERVER, "/Shout", timeout_ms=100)
        await stream.write(b"x")
        assert await stream.read() == b"X"

        async def late() -> None:
            with pytest.raises(RpcUnavailable) as caught:
                await ports.rpc.call(SERVER, "/Slow", b"", timeout_ms=5000)
            assert not caught.value.refused

        call = asyncio.get_running_loop().create_task(late())
        await asyncio.sleep(0.05)
        world.kill("server")
        with pytest.raises(RpcUnavailable):
            await stream.read()
        with pytest.raises(RpcUnavailable):
            await stream.write(b"more")
        await call

    run(client, seed=seed)


def test_streams_both_ways_and_their_end() -> None:
    """Frames arrive whole and in order; the handler learns that its caller has closed the stream."""

    async def client(world: World, ports: Ports) -> None:
        stream = await ports.rpc.open_stream(SERVER, "/Shout", timeout_ms=100)
        for number in range(50):
            await stream.write(b"frame %d" % number)
        for number in range(50):
            assert await stream.read() == b"FRAME %d" % number
        stream.close()
        with pytest.raises(RpcUnavailable):
            await stream.read()
        await asyncio.sleep(0.1)
        with pytest.raises(RpcRejected):
            await ports.rpc.open_stream(SERVER, "/Nope", timeout_ms=100)

    assert run(client) == ["stream gone"]


def test_a_stream_has_back_pressure() -> None:
    """A writer waits once its peer has not read the window of the stream."""
    log: list[object] = []

    async def client(world: World, ports: Ports) -> None:
        stream = await ports.rpc.open_stream(SERVER, "/Flood", timeout_ms=100)
        await asyncio.sleep(5)
        assert len(log) == STREAM_WINDOW_BYTES // 100_005
        for _ in range(100):
            assert await stream.read() == bytes(100_000)
        assert len(log) == 100

    run(client, log=log)


def test_an_idle_connection_to_a_machine_without_power_is_found_out() -> None:
    """gRPC's keep-alive, as `cluster.node.internal.options` sets it: a ping after 5 s, a break 5 s later."""

    async def client(world: World, ports: Ports) -> None:
        stream = await ports.rpc.open_stream(SERVER, "/Shout", timeout_ms=100)
        world.power_cut("server")
        cut_ms = world.now_ms
        with pytest.raises(RpcUnavailable):
            await stream.read()
        assert 5_000 <= world.now_ms - cut_ms <= 15_001

    run(client)


def test_after_a_failed_attempt_callers_are_answered_from_memory() -> None:
    """gRPC's reconnect back-off: a node that came back is found within about 300 ms, not at once."""

    async def client(world: World, ports: Ports) -> None:
        nowhere = Endpoint("server", 7)
        with pytest.raises(RpcUnavailable):
            await ports.rpc.call(nowhere, "/Echo", b"", timeout_ms=300)
        at_ms = world.now_ms
        with pytest.raises(RpcUnavailable) as caught:
            await ports.rpc.call(nowhere, "/Echo", b"", timeout_ms=300)
        assert caught.value.refused
        assert world.now_ms == at_ms
        await asyncio.sleep(0.5)
        at_ms = world.now_ms
        with pytest.raises(RpcUnavailable):
            await ports.rpc.call(nowhere, "/Echo", b"", timeout_ms=300)
        assert world.now_ms > at_ms

    run(client)


def test_a_stream_that_its_caller_closes_is_reset() -> None:
    """What was written last may never be read; the handler learns of the end by its reads."""
    ends: set[tuple[int, bool]] = set()
    for seed in range(30):
        world = World(seed)
        for name in ("server", "client"):
            world.add_machine(name)
        seen: list[bytes] = []
        broke: list[bool] = []

        async def handler(
            stream: Stream, seed: int = seed, seen: list[bytes] = seen, broke: list[bool] = broke
        ) -> None:
            await asyncio.sleep(seed % 2 * 0.5)
            try:
                while (frame := await stream.read()) is not None:
                    seen.append(frame)
                broke.append(False)
            except RpcUnavailable:
                broke.append(True)

        async def server(ports: Ports, handler: Callable[[Stream], Awaitable[None]] = handler) -> None:
            await ports.rpc.serve(SERVER, {}, {"/Late": handler})
            await asyncio.get_running_loop().create_future()

        async def client(ports: Ports) -> None:
            await asyncio.sleep(0.01)
            stream = await ports.rpc.open_stream(SERVER, "/Late", timeout_ms=100)
            await stream.write(b"1")
            await stream.write(b"2")
            await asyncio.sleep(0.1)
            stream.close()

        async def scenario(world: World = world) -> None:
            world.spawn("server", server)
            world.spawn("client", client)
            await asyncio.sleep(2)

        world.run(scenario())
        ends.add((len(seen), broke[0]))
    assert ends == {(0, True), (2, True)}


def _calls_served(late: float, repeat: float) -> tuple[list[bytes], list[bytes]]:
    """Ten calls, one after the other, of a caller who waits 50 ms for each: (what was served, what was answered)."""
    network = NetworkConfig(late_probability=late, repeat_probability=repeat)
    world = World(5, WorldConfig(network=network))
    for name in ("server", "client"):
        world.add_machine(name)
    served: list[bytes] = []
    answered: list[bytes] = []

    async def note(request: bytes) -> bytes:
        served.append(request)
        return request

    async def server(ports: Ports) -> None:
        await ports.rpc.serve(SERVER, {"/Note": note}, {})
        await asyncio.get_running_loop().create_future()

    async def client(ports: Ports) -> None:
        for number in range(10):
            with suppress(RpcTimeout):
                answered.append(await ports.rpc.call(SERVER, "/Note", b"%d" % number, timeout_ms=50))

    async def scenario() -> None:
        world.spawn("server", server)
        await asyncio.sleep(0.01)
        world.spawn("client", client)
        await asyncio.sleep(10)

    world.run(scenario())
    return served, answered


def test_calls_may_be_late_and_overtake_each_other() -> None:
    """A call that the network kept back is carried out after the caller gave up, behind younger ones."""
    served, answered = _calls_served(late=0.5, repeat=0.0)
    assert sorted(served) == [b"%d" % number for number in range(10)]
    assert served != sorted(served)
    assert 0 < len(answered) < 10


def test_calls_may_arrive_twice_and_answer_once() -> None:
    """A repeated call is carried out again; its caller hears of the first time alone."""
    served, answered = _calls_served(late=0.0, repeat=0.5)
    assert answered == [b"%d" % number for number in range(10)]
    assert 10 < len(served) <= 20


def test_calls_on_a_plain_network_arrive_once_and_in_order() -> None:
    served, answered = _calls_served(late=0.0, repeat=0.0)
    assert served == answered == [b"%d" % number for number in range(10)]


def test_tls_is_refused_where_it_is_not_drawn() -> None:
    """Neither end goes on in plaintext as if nothing had been asked."""

    async def client(_: World, ports: Ports) -> None:
        assert isinstance(ports.rpc, SpeaksTls)
        with pytest.raises(ConfigError, match="PLAINTEXT in the simulator"):
            ports.rpc.secure(cast("InternalTls", None))
        with pytest.raises(ValueError, match="draws no TLS"):
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, "server", 19092, ssl=True)

    run(client)
