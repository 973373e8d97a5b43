"""How a node listens: on both families of addresses, and without descriptors to spare."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from strandline.cluster.node import node_loop
from strandline.cluster.node.node_loop import ListeningServer, NodeLoop
from strandline.cluster.node.ports import is_free
from strandline.proto.ids import Endpoint

HAS_IPV6 = socket.has_dualstack_ipv6()


class Greets(asyncio.Protocol):
    """Says hello, and ends the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        runner.run(work)


async def listen(host: str) -> ListeningServer:
    server: Any = await asyncio.get_running_loop().create_server(Greets, host, 0)
    assert isinstance(server, ListeningServer)
    return server


async def hello(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    said = await reader.read()
    writer.close()
    return said


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_every_address_is_one_of_both_families(host: str) -> None:
    """As Kafka has it: Java binds a wildcard to both. Whoever listens there keeps others from it."""

    async def scenario() -> None:
        server = await listen(host)
        port = server.sockets[0].getsockname()[1]
        assert await hello("127.0.0.1", port) == b"hello"
        assert await hello("::1", port) == b"hello"
        assert not is_free(Endpoint("0.0.0.0", port))
        assert not is_free(Endpoint("::", port))
        server.close()
        assert is_free(Endpoint(host or "::", port))

    run(scenario())


def test_an_address_alone_is_that_address() -> None:
    async def scenario() -> None:
        server = await listen("127.0.0.1")
        [bound] = server.sockets
        assert bound.getsockname()[0] == "127.0.0.1"
        port = bound.getsockname()[1]
        assert await hello("127.0.0.1", port) == b"hello"
        with pytest.raises(OSError, match=f"127.0.0.1:{port} cannot be bound: Address already in use"):
            await asyncio.get_running_loop().create_server(Greets, "127.0.0.1", port)
        server.close()

    run(scenario())


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_small_frames_are_not_held_back(host: str) -> None:
    """Nagle's algorithm holds a small frame that follows another until the peer acknowledges the first: 40 ms."""
    accepted: list[int] = []

    class Notes(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            option = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            accepted.append(option)
            transport.close()

    async def scenario() -> None:
        server: Any = await asyncio.get_running_loop().create_server(Notes, host, 0)
        await hello("127.0.0.1", server.sockets[0].getsockname()[1])
        server.close()

    run(scenario())
    assert accepted == [1]


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Nobody in this process gets one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 50, hard))
    try:
        while True:
            try:
                held.append(os.dup(0))
            except OSError:
                break
        yield
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_accepting_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule A23. asyncio wrote 211,000 tracebacks in a minute. Who waits is served once there are descriptors again."""
    monkeypatch.setattr(node_loop, "PAUSE_S", 0.05)
    tries = 0

    async def scenario() -> None:
        nonlocal tries
        server = await listen("127.0.0.1")
        pause = server._pause

        def counted(listening: socket.socket, error: OSError) -> None:
            nonlocal tries
            tries += 1
            pause(listening, error)

        monkeypatch.setattr(server, "_pause", counted)
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setblocking(False)
            with no_descriptors():
                await loop.sock_connect(client, ("127.0.0.1", port))
                began_s = loop.time()
                while tries < 4:
                    await asyncio.sleep(0.01)
                assert loop.time() - began_s > 0.1, "it was tried again at once"
            assert await loop.sock_recv(client, 100) == b"hello"
        server.close()

    with capture_logs() as logs:
        run(scenario())
    [line] = [line for line in logs if "no connections are accepted" in line["event"]]
    assert "Too many open files" in line["error"]
    assert "ulimit -n" in line["advice"]


class SlowCollector:
    """Stands in for `gc.collect`: each call takes `took_s` of the loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, took_s: float) -> None:
        self.began_s: list[float] = []
        self.late_s = 0.0
        self._took_s = took_s
        self._time = loop.time
        loop.time = self.time  # type: ignore[method-assign]

    def time(self) -> float:
        return self._time() + self.late_s

    def collect(self) -> None:
        self.began_s.append(self.time())
        self.late_s += self._took_s


def test_full_collections_have_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch of thousands of partitions makes as much as Python begins one for: none comes before its time, one comes
    in the end, and the next only when the share has room for it: after 200 times what the first has taken, which may be
    much in a process that runs many tests."""
    before = gc.get_threshold()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(node_loop, "COLLECTIONS_PAUSE_S", 0.05)
        node_loop.collect_seldom(loop)
        full = gc.get_stats()[2]["collections"]
        kept = [[number] for number in range(200_000)]  # a dozen times the growth that Python would begin one for
        assert gc.get_stats()[2]["collections"] == full
        async with asyncio.timeout(120):
            while gc.get_stats()[2]["collections"] == full:
                await asyncio.sleep(0.01)
        collector = SlowCollector(loop, took_s=0.002)
        monkeypatch.setattr(gc, "collect", collector.collect)
        kept += [[number] for number in range(200_000)]  # no collection takes this back: one is due again and again
        async with asyncio.timeout(120):
            while len(collector.began_s) < 3:
                await asyncio.sleep(0.01)
        for one, next_one in pairwise(collector.began_s):
            assert next_one - one >= 0.002 / node_loop.COLLECTIONS_SHARE

    try:
        run(scenario())
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
