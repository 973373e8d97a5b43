"""The thread that ends a process whose event loop hangs in a call of the disk (schedule 58)."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import threading

import pytest

from strandline.cluster.node import blocked_loop
from strandline.cluster.node.blocked_loop import BlockedLoop

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks often."""
    monkeypatch.setattr(blocked_loop, "LOOK_S", 0.001)


class FakeDisk:
    """What the thread sees of a disk, at so many looks."""

    def __init__(self, waits_for: str, *, new_call_each_time: bool = False) -> None:
        self.waits_for = waits_for
        self.looks = 0
        self.enough = threading.Event()
        self._new_call_each_time = new_call_each_time

    @property
    def calls(self) -> int:
        """Looked at once a look."""
        self.looks += 1
        if self.looks == 200:
            self.enough.set()
        return self.looks if self._new_call_each_time else 7


def ended(disk: FakeDisk, bound_ms: float) -> str:
    """What the end was called with; empty if it was not, in 200 looks."""
    told: list[str] = []

    def end(path: str) -> None:
        told.append(path)
        disk.enough.set()

    watch = BlockedLoop(disk, lambda: bound_ms, end)  # type: ignore[arg-type]
    watch.start()
    assert disk.enough.wait(PATIENCE_S)
    watch.stop()
    watch._thread.join()
    return "".join(told)


def test_one_call_that_does_not_return_is_the_end() -> None:
    """Told with the file, once, when the bound has passed."""
    disk = FakeDisk("some file")
    assert ended(disk, 50) == "some file"
    assert disk.looks >= 50


def test_many_calls_are_no_long_one() -> None:
    """A loop that is busy with the disk is not blocked by it, though each look finds it in a call on one file."""
    assert ended(FakeDisk("some file", new_call_each_time=True), 50) == ""


def test_a_loop_that_waits_for_nothing_is_left_alone() -> None:
    """It computes, or sleeps."""
    assert ended(FakeDisk(""), 50) == ""


def test_a_stop_may_take_as_long_as_it_takes() -> None:
    """Nothing is served any more."""
    assert ended(FakeDisk("some file"), math.inf) == ""


CHILD = """
import socket, sys
from strandline.cluster.node.blocked_loop import hang_up
connected = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
sys.stdin.readline()
hang_up()
print("still here", flush=True)
sys.stdin.readline()
"""


def test_peers_are_told_while_the_process_cannot_end() -> None:
    """A thread inside of the kernel keeps sockets open; shut down, they are no more, and nobody is accepted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(server.getsockname()[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            accepted, _ = server.accept()
            port = int(child.stdout.readline())
            socket.create_connection(("127.0.0.1", port)).close()
            print(file=child.stdin, flush=True)
            accepted.settimeout(PATIENCE_S)
            assert accepted.recv(1) == b""
            assert child.stdout.readline() == "still here\n"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            assert child.poll() is None
            accepted.close()
        finally:
            child.kill()
            child.communicate()
