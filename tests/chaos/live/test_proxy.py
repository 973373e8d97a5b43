"""The cables between nodes: a cut holds bytes and tells nobody; what is unplugged refuses."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from strandline.chaos.live.proxy import Proxies
from strandline.proto.ids import Endpoint

ME, OTHER = 1, 2
"""The nodes: this process, and the listener's."""


@pytest.fixture
def cables() -> Iterator[Proxies]:
    made = Proxies()
    yield made
    made.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(20)
        yield made


def connect(endpoint: Endpoint) -> socket.socket:
    made = socket.create_connection((endpoint.host, endpoint.port), timeout=20)
    made.settimeout(20)
    return made


@contextlib.contextmanager
def pair(cables: Proxies, listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection of this process through the cables: its two ends."""
    cables.owns(ME, os.getpid())
    plug = cables.add(OTHER, Endpoint("127.0.0.1", listener.getsockname()[1]))
    cables.plug_in(OTHER)
    near = connect(plug)
    far, _ = listener.accept()
    far.settimeout(20)
    with near, far:
        yield near, far


def silent(end: socket.socket) -> bool:
    end.settimeout(0.2)
    try:
        end.recv(100)
    except TimeoutError:
        return True
    finally:
        end.settimeout(20)
    return False


def test_a_cut_holds_what_is_under_way_and_mending_delivers_it(cables: Proxies, listener: socket.socket) -> None:
    """Packets lost on the way are sent again by TCP: late, whole, in order; nobody was told."""
    with pair(cables, listener) as (near, far):
        near.sendall(b"before ")
        assert far.recv(100) == b"before "
        cables.cut([(ME, OTHER), (OTHER, ME)])
        near.sendall(b"during ")
        near.sendall(b"the cut")
        far.sendall(b"answer")
        assert silent(far)
        assert silent(near)
        cables.mend()
        received = b""
        while len(received) < len(b"during the cut"):
            received += far.recv(100)
        assert received == b"during the cut"
        assert near.recv(100) == b"answer"


def test_a_cut_of_one_direction_lets_the_other_through(cables: Proxies, listener: socket.socket) -> None:
    """One-way partitions: requests get lost, or answers do."""
    with pair(cables, listener) as (near, far):
        cables.cut([(ME, OTHER)])
        near.sendall(b"lost")
        far.sendall(b"arrives")
        assert near.recv(100) == b"arrives"
        assert silent(far)


def test_the_end_of_a_process_is_not_heard_across_a_cut(cables: Proxies, listener: socket.socket) -> None:
    """A crash beyond a cut sends no reset that arrives: the connection just stays silent."""
    with pair(cables, listener) as (near, far):
        cables.cut([(OTHER, ME)])
        far.close()
        assert silent(near)
        cables.mend()
        assert near.recv(100) == b""


def test_a_connection_across_a_cut_stays_unanswered_until_it_is_mended(
    cables: Proxies, listener: socket.socket
) -> None:
    """SYN is lost like anything else, in whichever direction the cut is."""
    cables.owns(ME, os.getpid())
    plug = cables.add(OTHER, Endpoint("127.0.0.1", listener.getsockname()[1]))
    cables.plug_in(OTHER)
    cables.cut([(OTHER, ME)])
    with connect(plug) as near:
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listener.accept()
        listener.settimeout(20)
        near.sendall(b"hello")
        cables.mend()
        far, _ = listener.accept()
        with far:
            assert far.recv(100) == b"hello"


def test_whose_connection_it_is_decides(cables: Proxies, listener: socket.socket) -> None:
    """A cut between a pair concerns nobody else: a process that is no node gets through."""
    cables.owns(ME, os.getpid())
    plug = cables.add(OTHER, Endpoint("127.0.0.1", listener.getsockname()[1]))
    cables.plug_in(OTHER)
    cables.cut([(ME, OTHER), (OTHER, ME)])
    program = f"import socket; socket.create_connection(('127.0.0.1', {plug.port})).sendall(b'stranger')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    far, _ = listener.accept()
    with far:
        far.settimeout(20)
        assert far.recv(100) == b"stranger"


def test_who_is_down_refuses_and_keeps_the_port(cables: Proxies, listener: socket.socket) -> None:
    """A node that was killed refuses connections; its port is nobody else's meanwhile."""
    plug = cables.add(OTHER, Endpoint("127.0.0.1", listener.getsockname()[1]))
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            connect(plug)
        with socket.socket() as thief, pytest.raises(OSError, match="in use"):
            thief.bind((plug.host, plug.port))
        cables.plug_in(OTHER)
        connect(plug).close()
        cables.unplug(OTHER)
