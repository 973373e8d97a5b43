"""Network namespaces as the wires between nodes: what a cut does, and that nothing of it is left."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from strandline.chaos.live.cli import run
from strandline.chaos.live.namespaces import Switch, why_none
from strandline.cluster.node.dev import DevError
from strandline.proto.ids import Endpoint

HERE = "/proc/thread-self/ns/net"
SOON_S, PATIENCE_S = 0.3, 20.0


@contextmanager
def two_nodes() -> Iterator[tuple[Switch, socket.socket, socket.socket]]:
    """A switch, and both ends of a connection from node 1 to node 2."""
    switch = Switch()
    try:
        for node in (1, 2):
            switch.add(node, Endpoint(switch.host(node), 7000))
        with switch.inside(2):
            listener = socket.create_server((switch.host(2), 7000))
        with listener:
            with switch.inside(1):
                one = socket.create_connection((switch.host(2), 7000), PATIENCE_S)
            two, _ = listener.accept()
        with one, two:
            yield switch, one, two
    finally:
        switch.close()


def hears(end: socket.socket, seconds: float) -> bytes:
    """What comes within so long; nothing: b""."""
    end.settimeout(seconds)
    try:
        return end.recv(100)
    except TimeoutError:
        return b""


WHY_NONE = why_none()
needs_namespaces = pytest.mark.skipif(WHY_NONE is not None, reason=str(WHY_NONE))


@needs_namespaces
def test_a_cut_of_one_way_lets_the_other_through_and_mending_delivers() -> None:
    """One-way: bytes from 1 are lost, those from 2 arrive; TCP sends the lost ones again once the cut is mended."""
    with two_nodes() as (switch, one, two):
        one.sendall(b"before")
        assert hears(two, PATIENCE_S) == b"before"
        switch.cut([(1, 2)])
        one.sendall(b"lost")
        two.sendall(b"the other way")
        assert hears(one, PATIENCE_S) == b"the other way"
        assert hears(two, SOON_S) == b""
        switch.mend()
        assert hears(two, PATIENCE_S) == b"lost"


@needs_namespaces
def test_the_end_of_a_process_is_not_heard_across_a_cut() -> None:
    """Neither FIN nor RST comes through; afterwards it does."""
    with two_nodes() as (switch, one, two):
        switch.cut([(1, 2), (2, 1)])
        one.close()
        assert hears(two, SOON_S) == b""
        switch.mend()
        two.settimeout(PATIENCE_S)
        assert two.recv(1) == b""


@needs_namespaces
def test_clients_reach_a_node_that_is_cut_off() -> None:
    """Cuts are between nodes; the run's own network reaches each. A node where nothing listens refuses."""
    with two_nodes() as (switch, _one, _two):
        switch.cut([(1, 2), (2, 1)])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((switch.host(2), 7001), PATIENCE_S)


@needs_namespaces
def test_nothing_is_left_and_nothing_was_seen_outside() -> None:
    """The machine's own network has no device more; the thread is back where it was; descriptors are closed."""
    gc.collect()  # what earlier tests left behind must not be closed meanwhile, and hide what is open
    before, descriptors = os.readlink(HERE), len(os.listdir("/proc/self/fd"))
    with two_nodes() as (switch, _one, _two):
        assert os.readlink(HERE) != before
        command = ["nsenter", f"--net=/proc/self/fd/{switch._before}", "ip", "-brief", "link"]
        outside = subprocess.check_output(command, text=True, pass_fds=[switch._before])
        assert "nodes" not in outside
        assert "node1" not in outside
    assert os.readlink(HERE) == before
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@needs_namespaces
def test_a_node_id_that_no_address_is_for_is_refused() -> None:
    """One network of 253 addresses."""
    switch = Switch()
    try:
        with pytest.raises(DevError, match="1 to 253"):
            switch.host(300)
    finally:
        switch.close()


def test_where_there_are_none_the_command_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not root hears of it before anything is started."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    told = CliRunner().invoke(run, ["--cut", "netns"])
    assert told.exit_code == 2
    assert "--cut netns: network namespaces need root" in told.stderr


def test_a_missing_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    told = CliRunner().invoke(run, ["--cut", "netns"])
    assert told.exit_code == 2
    assert "install iproute2" in told.stderr
