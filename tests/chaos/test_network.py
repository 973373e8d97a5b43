"""Connections: bytes in order in whatever pieces, back pressure, partitions, and how peers learn of a death."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from strandline.chaos.sim.links import NetworkConfig
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World, WorldConfig

Main = Callable[[Ports], Awaitable[None]]


def two_machines(seed: int, **network: int | float) -> World:
    world = World(seed, WorldConfig(network=NetworkConfig(**network)))  # type: ignore[arg-type]
    for name in ("server", "client"):
        world.add_machine(name)
    return world


class Collector(asyncio.Protocol):
    """Keeps what arrives and how it ended."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.pieces = 0
        self.end: list[object] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces += 1

    def eof_received(self) -> bool | None:
        self.end.append("eof")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.end.append(exc)


class SlowBuffer(asyncio.BufferedProtocol):
    """Takes bytes through a small buffer, as the listener does through a large one."""

    def __init__(self) -> None:
        self.received = bytearray()
        self._buffer = bytearray(1000)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("seed", range(10))
def test_bytes_arrive_in_order_in_other_pieces(seed: int) -> None:
    """Fragments and joins change the pieces, never the stream; both kinds of protocol see the same."""
    world = two_machines(seed, fragment_probability=0.5, coalesce_probability=0.5, loss_probability=0.05)
    plain, buffered = Collector(), SlowBuffer()
    sent = bytes(range(256)) * 400

    async def server(ports: Ports) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: plain, "0.0.0.0", 1)
        await loop.create_server(lambda: buffered, "0.0.0.0", 2)
        await forever()

    async def client(ports: Ports) -> None:
        for port in (1, 2):
            transport, _ = await asyncio.get_running_loop().create_connection(Collector, "server", port)
            for start in range(0, len(sent), 777):
                transport.write(sent[start : start + 777])

    async def scenario() -> None:
        world.spawn("server", server)
        await asyncio.sleep(0.001)
        world.spawn("client", client)
        await asyncio.sleep(60)

    world.run(scenario())
    assert plain.received == buffered.received == sent
    assert 1 < plain.pieces != -(-len(sent) // 777)


def test_a_reader_who_stops_stalls_the_writer() -> None:
    """Back pressure: with the window full, writes stay in the buffer, `pause_writing` is called; then all arrives."""
    world = two_machines(1, window_bytes=10_000)
    events: list[str] = []
    collector = Collector()

    class Writer(asyncio.Protocol):
        def pause_writing(self) -> None:
            events.append("pause")

        def resume_writing(self) -> None:
            events.append("resume")

    async def server(ports: Ports) -> None:
        await asyncio.get_running_loop().create_server(lambda: collector, "", 1)
        await forever()

    async def client(ports: Ports) -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(Writer, "server", 1)
        transport.set_write_buffer_limits(high=20_000, low=5_000)
        await asyncio.sleep(0.1)
        assert collector.transport is not None
        collector.transport.pause_reading()
        for _ in range(60):
            transport.write(bytes(1000))
        await asyncio.sleep(1)
        assert len(collector.received) <= 1000
        assert transport.get_write_buffer_size() >= 40_000
        assert events == ["pause"]
        collector.transport.resume_reading()
        await asyncio.sleep(1)
        events.append("done")

    async def scenario() -> None:
        world.spawn("server", server)
        await asyncio.sleep(0.001)
        world.spawn("client", client)
        await asyncio.sleep(5)

    world.run(scenario())
    assert events == ["pause", "resume", "done"]
    assert len(collector.received) == 60_000


def connect_outcome(prepare: Callable[[World], None], *, listening: bool = True) -> tuple[object, float]:
    world = two_machines(4)
    outcome: list[object] = []

    async def server(ports: Ports) -> None:
        if listening:
            await asyncio.get_running_loop().create_server(Collector, "", 1)
        await forever()

    async def client(ports: Ports) -> None:
        started = world.now_ms
        try:
            await asyncio.get_running_loop().create_connection(Collector, "server", 1)
        except OSError as error:
            outcome.append(type(error))
        else:
            outcome.append("connected")
        outcome.append(world.now_ms - started)

    async def scenario() -> None:
        world.spawn("server", server)
        await asyncio.sleep(0.01)
        prepare(world)
        world.spawn("client", client)
        await asyncio.sleep(30)

    world.run(scenario())
    return outcome[0], float(str(outcome[1]))


def test_a_connect_is_refused_or_vanishes() -> None:
    """Refused where a living machine has no listener; silence where packets do not get through or power is out."""
    assert connect_outcome(lambda world: None)[0] == "connected"
    assert connect_outcome(lambda world: None, listening=False)[0] is ConnectionRefusedError
    kind, took_ms = connect_outcome(lambda world: world.kill("server"))
    assert (kind, took_ms < 10) == (ConnectionRefusedError, True)
    for prepare in (
        lambda world: world.power_cut("server"),
        lambda world: world.partition("client", "server"),
        lambda world: world.partition("client", "server", one_way=True),
        lambda world: world.partition("server", "client", one_way=True),
    ):
        kind, took_ms = connect_outcome(prepare)
        assert kind is TimeoutError
        assert took_ms >= 9_999


def stream_ends(act: Callable[[World], None], seed: int, *, write_after_ms: float | None = None) -> list[object]:
    """How the client's protocol sees its connection end after `act`."""
    world = two_machines(seed)
    mine = Collector()

    async def server(ports: Ports) -> None:
        await asyncio.get_running_loop().create_server(Collector, "", 1)
        await forever()

    async def client(ports: Ports) -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: mine, "server", 1)
        if write_after_ms is not None:
            await asyncio.sleep(write_after_ms / 1000)
            transport.write(b"hello?")
        await forever()

    async def scenario() -> None:
        world.spawn("server", server)
        await asyncio.sleep(0.01)
        world.spawn("client", client)
        await asyncio.sleep(0.1)
        act(world)
        await asyncio.sleep(60)

    world.run(scenario())
    return mine.end


def test_peers_of_a_killed_process_are_told_by_its_kernel() -> None:
    """A reset or an end of stream, at once, whichever the seed says; both occur."""
    ends = [stream_ends(lambda world: world.kill("server"), seed) for seed in range(20)]
    kinds = {type(end[-1]) for end in ends}
    assert kinds == {ConnectionResetError, type(None)}


def test_peers_of_a_machine_without_power_hear_nothing_until_they_send() -> None:
    """An idle connection stays open for ever; one that sends times out."""
    assert stream_ends(lambda world: world.power_cut("server"), 1) == []
    ends = stream_ends(lambda world: world.power_cut("server"), 1, write_after_ms=1000)
    assert [type(end) for end in ends] == [TimeoutError]


@pytest.mark.parametrize("seed", range(5))
def test_a_partition_holds_and_a_heal_delivers_in_order(seed: int) -> None:
    """One way: what is sent into it arrives after the heal, in order; the other direction is untouched meanwhile."""
    world = two_machines(seed)
    at_server, at_client = Collector(), Collector()

    async def server(ports: Ports) -> None:
        await asyncio.get_running_loop().create_server(lambda: at_server, "", 1)
        await asyncio.sleep(1)
        assert at_server.transport is not None
        at_server.transport.write(b"other way")
        await forever()

    async def client(ports: Ports) -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: at_client, "server", 1)
        await asyncio.sleep(0.5)
        for number in range(100):
            transport.write(b"%d," % number)
            await asyncio.sleep(0.01)
        await forever()

    async def scenario() -> None:
        world.spawn("server", server)
        await asyncio.sleep(0.01)
        world.spawn("client", client)
        await asyncio.sleep(0.3)
        world.partition("client", "server", one_way=True)
        await asyncio.sleep(2)
        assert at_server.received == b""
        assert at_client.received == b"other way"
        world.heal()
        await asyncio.sleep(3)

    world.run(scenario())
    assert at_server.received == b"".join(b"%d," % number for number in range(100))
    assert at_client.end == []


def test_one_connection_stalls_and_the_next_one_does_not() -> None:
    """A request that its client gave up with the connection arrives when the client's next connection has long brought
    others, and is carried out: the end of the connection is behind it."""
    world = two_machines(3)
    arrived: list[bytes] = []
    ends: list[object] = []

    class Server(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            arrived.append(bytes(data))

        def connection_lost(self, exc: Exception | None) -> None:
            ends.append(exc)

    async def server(ports: Ports) -> None:
        await asyncio.get_running_loop().create_server(Server, "0.0.0.0", 1)
        await forever()

    async def client(ports: Ports) -> None:
        loop = asyncio.get_running_loop()
        first, _ = await loop.create_connection(asyncio.Protocol, "server", 1)
        await asyncio.sleep(0.1)
        (mine,) = [one for one in world.network.sockets if one.local[0] == "client"]
        world.network.stall(mine, 2_000_000)
        first.write(b"late")
        await asyncio.sleep(0.5)
        first.abort()
        second, _ = await loop.create_connection(asyncio.Protocol, "server", 1)
        second.write(b"quick")
        await asyncio.sleep(0.5)
        assert arrived == [b"quick"]
        await asyncio.sleep(2)
        assert arrived == [b"quick", b"late"]
        await forever()

    async def story() -> None:
        world.spawn("server", server)
        await world.sleep_ms(10)
        world.spawn("client", client)
        await world.sleep_ms(4_000)

    world.run(story())
    assert arrived == [b"quick", b"late"]


def test_a_long_partition_breaks_the_connection_of_who_sent() -> None:
    """The sender gives up after `give_up_us`; its peer finds out when it sends itself."""
    ends = stream_ends(lambda world: world.partition("client", "server", one_way=True), 2, write_after_ms=1000)
    assert [type(end) for end in ends] == [TimeoutError]


def test_port_zero_and_taken_ports() -> None:
    """Port 0 binds any free one; a taken port is an OSError."""
    world = two_machines(1)
    ports_seen: list[int] = []

    async def server(ports: Ports) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            bound = await loop.create_server(Collector, "127.0.0.1", 0)
            ports_seen.append(bound.sockets[0].getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            await loop.create_server(Collector, "127.0.0.1", ports_seen[0])

    async def scenario() -> None:
        process = world.spawn("server", server)
        assert process.main is not None
        await process.main

    world.run(scenario())
    assert len(set(ports_seen)) == 3
    assert all(ports_seen)
