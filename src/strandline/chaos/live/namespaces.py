"""A network for each node, made by the kernel: namespaces joined by a bridge, cuts as packets that arrive nowhere.

The run's own network is a namespace too, so that nothing of it is seen on the machine, and nothing has to be removed:
no namespace has a name, each lives as long as a process or a descriptor of the run, and devices end with them. What the
calling thread starts (clients, threads) is in the run's network, where a bridge has an address of its own.

        the run: 10.231.0.254 on the bridge "nodes"
        |- port node1 = eth0 of node 1: 10.231.0.1, 02:00:00:00:00:01
        `- port node2 = eth0 of node 2: 10.231.0.2, 02:00:00:00:00:02

A node knows the hardware address of every other from a permanent entry of its neighbour table; nobody asks for one. A
cut from a to b gives b an address there that nobody has: a's frames to b are lost on the bridge, b's to a arrive.
So a one-way cut needs no packet filter, and TCP meets what it meets in a real network: silence, and its own timeouts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator

from strandline.cluster.node.dev import DevError
from strandline.proto.ids import Endpoint

CLONE_NEWNET = 0x40000000
NETWORK = "10.231.0"
BRIDGE_HOST = 254
NOWHERE = "02:00:00:00:01:00"
"""Hardware address that no machine has."""

_OWN = "/proc/thread-self/ns/net"


class Switch:
    """The bridge and the nodes' namespaces; see `wires.NodeNetwork`.

    The thread that makes it is in the run's network from then on, until `close`. Not safe for threads.

    Raises:
        DevError: the kernel or a missing command does not let it; `why_none` says why beforehand.
    """

    def __init__(self) -> None:
        self._spaces: dict[int, int] = {}
        self._cut: dict[tuple[int, int], None] = {}
        self._closed = False
        self._before = os.open(_OWN, os.O_RDONLY)
        try:
            self._here = _new_space()
        except DevError:
            os.close(self._before)
            raise
        try:
            _ip(
                "link set lo up",
                "link add nodes type bridge",
                f"address add {NETWORK}.{BRIDGE_HOST}/24 dev nodes",
                "link set nodes up",
            )
        except DevError:
            self.close()
            raise

    def host(self, node_id: int) -> str:
        """The node's address."""
        if not 0 < node_id < BRIDGE_HOST:
            raise DevError(f"node {node_id}: with network namespaces node ids are 1 to {BRIDGE_HOST - 1}")
        return f"{NETWORK}.{node_id}"

    def add(self, node_id: int, target: Endpoint) -> Endpoint:
        """Make the node's namespace. Others reach it where it listens."""
        space = _new_space()
        self._spaces[node_id] = space
        _enter(self._here)
        port = f"node{node_id}"
        _ip(
            f"link add name {port} type veth peer name eth0 netns /proc/{os.getpid()}/fd/{space}",
            f"link set {port} master nodes up",
        )
        with self.inside(node_id):
            _ip(
                "link set lo up",
                f"link set eth0 address {_hardware(node_id)}",
                f"address add {self.host(node_id)}/24 dev eth0",
                "link set eth0 up",
            )
        for other in self._spaces:
            if other != node_id:
                self._point(other, node_id, _hardware(node_id))
                self._point(node_id, other, _hardware(other))
        return target

    @contextlib.contextmanager
    def inside(self, node_id: int) -> Iterator[None]:
        """Context in which the calling thread, and the processes that it starts, are in the node's network
        namespace."""
        _enter(self._spaces[node_id])
        try:
            yield
        finally:
            _enter(self._here)

    def owns(self, node_id: int, pid: int) -> None:
        """Do nothing: a node is known by where it is."""

    def plug_in(self, node_id: int) -> None:
        """Do nothing: its kernel accepts connections once it listens."""

    def unplug(self, node_id: int) -> None:
        """Do nothing: its kernel lives on, and refuses."""

    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Lose frames from the first to the second of each pair from now on."""
        for a, b in pairs:
            self._point(a, b, NOWHERE)
            self._cut[a, b] = None

    def mend(self) -> None:
        """Frames arrive again. TCP finds out when it next tries: up to as long again as the cut lasted."""
        if not self._closed:
            for a, b in self._cut:
                self._point(a, b, _hardware(b))
        self._cut.clear()

    def held(self, a: int, b: int) -> int:
        """Nobody counts."""
        raise DevError("frames lost in a cut made by the kernel are not counted")

    def close(self) -> None:
        """Take the thread back to where it was, and let the namespaces go. Idempotent."""
        if self._closed:
            return
        self._closed = True
        _enter(self._before)
        for space in (self._before, self._here, *self._spaces.values()):
            os.close(space)

    def _point(self, a: int, b: int, hardware: str) -> None:
        """Set what `a` thinks the hardware address of `b` is."""
        with self.inside(a):
            _ip(f"neighbour replace {self.host(b)} lladdr {hardware} dev eth0 nud permanent")


def why_none() -> str | None:
    """Reason why no network namespaces can be had here, and what to do; None: they can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root (in a container: --privileged); without them --cut proxy does"
    if shutil.which("ip") is None:
        return "network namespaces are set up by the command `ip`: install iproute2"
    try:
        trial = Switch()
    except DevError as error:
        return f"the kernel makes no network namespaces here: {error}; in a container try --privileged"
    try:
        trial.add(1, Endpoint(trial.host(1), 1))
        trial.add(2, Endpoint(trial.host(2), 1))
        trial.cut([(1, 2)])
    except DevError as error:
        return f"the kernel has no means to join or to cut network namespaces: {error} (it needs veth and bridge)"
    finally:
        trial.close()
    return None


def _hardware(node_id: int) -> str:
    return f"02:00:00:00:00:{node_id:02x}"


def _ip(*lines: str) -> None:
    """Commands of `ip`, in the namespace of the calling thread."""
    done = subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, check=False)
    if done.returncode:
        raise DevError(f"ip {lines[0]}: {' '.join(done.stderr.split())}")


def _new_space() -> int:
    """A new namespace, as a descriptor; the calling thread is in it."""
    _call("unshare", CLONE_NEWNET)
    return os.open(_OWN, os.O_RDONLY)


def _enter(space: int) -> None:
    """Take the calling thread into a namespace."""
    _call("setns", space, CLONE_NEWNET)


def _call(name: str, *arguments: int) -> None:
    """A call of the C library that Python 3.11 does not have."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise DevError(f"{name}: {os.strerror(number)}")
