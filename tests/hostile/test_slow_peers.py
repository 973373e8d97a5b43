"""Peers that take no answers, send a byte now and then, say nothing at all, or vanish: they cost little.

Bounds of the load: 2,000 connections, 400 MB on the loopback in the largest test.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil
import pytest

from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually, make_topic, send_all
from tests.acceptance.raw import receive_frame
from tests.hostile.conftest import BUDGET_MIB
from tests.hostile.node import METADATA, MIB, attack, endpoint, frame, rss_bytes

IDLE = 2000
IDLE_BYTES_MAX = 16 * 1024
"""What an idle connection may cost the node, its kernel's memory not counted."""

FETCH_HEAD = struct.pack(">iiiibii", -1, 0, 1, 50 * MIB, 0, 0, -1)


@contextmanager
def connections(cluster: DevCluster, count: int, receive_bytes: int = 0) -> Iterator[list[socket.socket]]:
    """So many connections to the node's clients' port; at the end the node has noticed that they are gone."""
    before = descriptors(cluster)
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            if receive_bytes:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            one.settimeout(30)
            one.connect(endpoint(cluster))
            opened.append(one)
        yield opened
    eventually(lambda: descriptors(cluster) <= before + 5, 30)


def descriptors(cluster: DevCluster) -> int:
    """Open files and sockets of the node."""
    return int(psutil.Process(cluster.pids()[1]).num_fds())


@pytest.fixture(scope="module")
def big(victim: DevCluster) -> str:
    """A topic whose partition holds 8 MB."""
    make_topic(victim, "big")
    send_all(victim, "big", [bytes(900_000)] * 9)
    return "big"


def test_readers_that_never_read(victim: DevCluster, big: str) -> None:
    """Forty clients ask for 8 MB two hundred times each and take nothing: 64 GB were asked for.

    Resident memory has been seen at four times the budget: sockets' copies of answers and what the allocator keeps."""
    topic = struct.pack(">h", len(big)) + big.encode()
    partition = struct.pack(">iiqqi", 0, -1, 0, -1, 16 * MIB)
    one = frame(
        1, 11, FETCH_HEAD + struct.pack(">i", 1) + topic + struct.pack(">i", 1) + partition + bytes(6), flexible=False
    )
    with attack(victim, grows_mib=5 * BUDGET_MIB), connections(victim, 40, 4096) as readers:
        for reader in readers:
            reader.sendall(one * 200)
        time.sleep(1)


def test_writers_of_a_byte_now_and_then(victim: DevCluster) -> None:
    """A hundred requests that drip in: each costs its first buffer, and is answered when it is whole."""
    with attack(victim, grows_mib=16), connections(victim, 100) as writers:
        for position in range(len(METADATA)):
            for writer in writers:
                writer.send(METADATA[position : position + 1])
            time.sleep(0.02)
        for writer in writers:
            receive_frame(writer)


def test_thousands_of_idle_connections(victim: DevCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has asked once and then says nothing. The figure stands in docs/benchmarks.md."""
    with attack(victim, grows_mib=IDLE * IDLE_BYTES_MAX / MIB):
        before = rss_bytes(victim)
        with connections(victim, IDLE) as idle:
            for one in idle:
                one.sendall(METADATA)
                receive_frame(one)
            each = (rss_bytes(victim) - before) / IDLE
        with capsys.disabled():
            print(f"\n{IDLE} idle connections: {each:,.0f} bytes each")
        assert each < IDLE_BYTES_MAX


def test_frames_announced_and_never_sent(victim: DevCluster) -> None:
    """Three hundred clients announce 100 MB each, send thirty bytes, and stay."""
    start = struct.pack(">ihhi", 100 * MIB, 0, 9, 1) + bytes(20)
    with attack(victim, grows_mib=24), connections(victim, 300) as liars:
        for liar in liars:
            liar.sendall(start)
        time.sleep(0.5)


def test_frames_of_100_mb_at_once(victim: DevCluster) -> None:
    """Four clients send 100 MB each at the same time: one after the other gets beyond the budget, the rest wait in the
    kernel; each is told in the end that this is no request."""
    raw = frame(0, 9, bytes(100 * MIB - 100), flexible=True)
    ends: list[bytes] = []

    def send(connection: socket.socket) -> None:
        with suppress(ConnectionError):
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            ends.append(connection.recv(1))

    # The budget's half, and one request that is moved into a larger buffer.
    with attack(victim, grows_mib=BUDGET_MIB / 2 + 200 + 32), connections(victim, 4) as senders:
        threads = [threading.Thread(target=send, args=(sender,)) for sender in senders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert all(not end for end in ends)


def test_connections_that_break_in_the_middle(victim: DevCluster) -> None:
    """Reset within a frame, within an answer, and with requests parked: nothing of them is left."""
    parked = frame(
        1,
        11,
        struct.pack(">iiiibii", -1, 600_000, 1, MIB, 0, 0, -1)
        + struct.pack(">i", 1)
        + b"\0\1t"
        + struct.pack(">i", 1)
        + struct.pack(">iiqqi", 0, -1, 0, -1, 100)
        + bytes(6),
        flexible=False,
    )
    with attack(victim, grows_mib=32), connections(victim, 300) as broken:
        for number, one in enumerate(broken):
            one.sendall((METADATA[:9], METADATA * 50, parked * 3)[number % 3])
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
