"""Real processes that can be killed, stopped in their tracks, cut off from each other, starved of disk.

with LiveCluster() as cluster:
    cluster.partition(1, 2)
    cluster.heal()
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from strandline.chaos.demo.checks import committed_digest
from strandline.chaos.live.disk_damage import lose_newest_batches, rot_newest_batch
from strandline.chaos.live.namespaces import Switch
from strandline.chaos.live.proxy import Proxies
from strandline.chaos.live.target import ASK, DISK_FAULTS, STORE_FAULTS, NodeNetwork, client_settings, pause
from strandline.client import Admin
from strandline.client.types import PartitionDescription
from strandline.cluster.node.config_values import write_voters
from strandline.cluster.node.dev import DevCluster, DevError, NodeProcess
from strandline.cluster.node.dev_layout import HTTP_DISTANCE, INTERNAL_DISTANCE
from strandline.cluster.node.format import format_directory
from strandline.cluster.node.ports import is_free
from strandline.cluster.security.dev_certificates import CA_FILE
from strandline.controller.quorum.api import Voter
from strandline.log.real_disk import RealDisk
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.system import system_rng

T = TypeVar("T")

WAIT_S = 20.0
POLL_S = 0.05

FAULT_INJECTION = "strandline.fault.injection"
STORE_URL = "remote.log.storage.url"
PAGE_BYTES = 4096


class LiveCluster(DevCluster):
    """A DevCluster with wires between its nodes that can be cut; clients reach every node all the time.

    Args:
        cut: "proxy" puts proxies between the nodes; "netns" a network of its own around each (`namespaces.Switch`): the
            calling thread is in the run's network until `stop`.
        disk_bytes: give each node a disk of this size of its own, so that `fill_disk` can fill it (a tmpfs: root on
            Linux alone; see `unsupported`). None: the directories of the machine's disk.
        secure: every listener speaks TLS, nodes know each other by certificates, and clients log in by SCRAM.
        others: see DevCluster. Node ports are outside the range from which the kernel takes those of connections.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        nodes: int | None = None,
        controllers: int = 0,
        settings: Mapping[str, str] | None = None,
        node_settings: Mapping[int, Mapping[str, str]] | None = None,
        cut: str = "proxy",
        disk_bytes: int | None = None,
        secure: bool = False,
    ) -> None:
        self._wires: NodeNetwork = Switch() if cut == "netns" else Proxies()
        super().__init__(
            data_dir,
            nodes=nodes,
            controllers=controllers,
            port_base=_free_port_base(),
            secure=secure,
            sasl=secure,
            settings={FAULT_INJECTION: "true", **(settings or {})},
            node_settings=node_settings,
        )
        self._plugs: dict[int, Endpoint] = {}
        self._cut_off: dict[int, None] = {}
        self._slow: dict[int, None] = {}
        self._ahead: dict[int, None] = {}
        self._full: dict[int, None] = {}
        self._disk_bytes = disk_bytes if disk_bytes is not None and can_mount() else None
        self._mounted: list[Path] = []
        self._orders: dict[int, list[Path]] = {}
        """Log directories of each node that has several, in the order of log.dirs."""

    # Life

    def stop(self) -> None:
        """Heal, stop every node, unmount, delete a temporary directory. Idempotent."""
        self._wires.mend()
        for node_id in list(self._full):
            self.free_disk(node_id)
        keep, self._temporary = self._temporary, False
        try:
            super().stop()
        finally:
            self._wires.close()
            for path in self._mounted:
                subprocess.run(["umount", "--lazy", str(path)], check=False)
            self._mounted.clear()
            self._temporary = keep
            if keep:
                shutil.rmtree(self.root, ignore_errors=True)

    # Faults

    def kill(self, node_id: int) -> None:
        """Kill a node by SIGKILL, as a crash; returns when the process is gone. Who connects is refused."""
        super().kill(node_id)
        self._wires.unplug(node_id)

    def stop_node(self, node_id: int) -> None:
        """Stop a node by SIGTERM: a controlled shutdown; returns when the process is gone."""
        super().stop_node(node_id)
        self._wires.unplug(node_id)

    def partition(self, a: int, b: int, *, one_way: bool = False) -> None:
        """Let nothing come from `a` to `b` any more, nor back unless `one_way`. Clients are not cut."""
        self._wires.cut([(a, b)] if one_way else [(a, b), (b, a)])

    def isolate(self, node_id: int) -> None:
        """Let nothing come from this node to any other, nor back. Clients still reach it."""
        self._cut_off[node_id] = None
        others = [other for other in self.node_ids if other != node_id]
        self._wires.cut([*((node_id, other) for other in others), *((other, node_id) for other in others)])

    def held(self, a: int, b: int) -> int:
        """Number of times that something from `a` to `b` met a cut so far: a cut that nothing met has tested nothing.

        Raises:
            DevError: under "netns" nobody counts.
        """
        return self._wires.held(a, b)

    def slow_disk(self, node_id: int, delay_ms: float) -> None:
        """Delay every group sync and every cold read of a node by `delay_ms`; 0 ends it.

        Raises:
            OSError: the node does not answer on its HTTP listener.
        """
        self._ask(node_id, {"slow_disk_ms": delay_ms})
        if delay_ms:
            self._slow[node_id] = None
        else:
            self._slow.pop(node_id, None)

    def clock_ahead(self, node_id: int, ahead_ms: int) -> None:
        """Set the node's wall clock ahead by so much, for everything but the times of files; 0 puts it right.

        Raises:
            OSError: the node does not answer on its HTTP listener.
        """
        self._ask(node_id, {"clock_ahead_ms": ahead_ms})
        if ahead_ms:
            self._ahead[node_id] = None
        else:
            self._ahead.pop(node_id, None)

    def _ask(self, node_id: int, fault: Mapping[str, float]) -> None:
        """Ask for a fault by the node's fault hook. Raises OSError."""
        body = json.dumps(fault).encode()
        scheme, context = "http", None
        if self._layout.secure:
            scheme, context = "https", ssl.create_default_context(cafile=self._layout.certificates / CA_FILE)
        request = urllib.request.Request(f"{scheme}://{self.http(node_id)}/faults", body, method="POST")
        with urllib.request.urlopen(request, timeout=5, context=context):
            pass

    def fill_disk(self, node_id: int) -> None:
        """Shrink the node's disk to what is on it, so that it has no room any more.

        Raises:
            DevError: nodes have no disks of their own (`disk_bytes`).
        """
        path = self._disk(node_id)
        used = os.statvfs(path)
        blocks = used.f_blocks - used.f_bfree
        _mount("-o", f"remount,size={blocks * used.f_frsize}", str(path))
        self._full[node_id] = None

    def free_disk(self, node_id: int) -> None:
        """Give the node's disk its size again."""
        path = self._disk(node_id)
        _mount("-o", f"remount,size={self._disk_bytes}", str(path))
        self._full.pop(node_id, None)

    def wipe(self, node_id: int) -> None:
        """Empty the directory of a node that is down and format it anew: same node, same directory id as a voter.

        Only while all others are whole: a voter that has forgotten its vote may vote a second time.

        Raises:
            DevError: the node runs.
        """
        directory = self._directory_of_the_dead(node_id)
        for entry in sorted(directory.iterdir()):
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        self._layout.format()

    def rot_newest(self, node_id: int, topic: str, partition: int, seed: int) -> str:
        """Flip a bit in the newest batch of a replica of a node that is down; says where.

        Raises:
            DevError: the node runs.
            NothingToDamage: no batch is newer than what its checkpoints vouch for.
        """
        self._directory_of_the_dead(node_id)
        return rot_newest_batch(self._replica(node_id, topic, partition), seed)

    def lose_newest(self, node_id: int, topic: str, partition: int, seed: int) -> str:
        """Take away the newest batches of a replica of a node that is down, without a trace; says which.

        Raises:
            DevError: the node runs.
            NothingToDamage: no batch is newer than what its checkpoints vouch for.
        """
        return lose_newest_batches(self._directory_of_the_dead(node_id) / f"{topic}-{partition}", seed)

    def lose_directory(self, node_id: int, topic: str, partition: int) -> None:
        """Remove the directory of a replica of a node that is down.

        Raises:
            DevError: the node runs.
        """
        self._directory_of_the_dead(node_id)
        shutil.rmtree(self._replica(node_id, topic, partition))

    def swap_directories(self, node_id: int) -> None:
        """Turn the order of log.dirs around on a node that is down; the first time a new disk is put in front, and
        formatted as an operator does it.

        Raises:
            DevError: the node runs.
        """
        order = self._orders.get(node_id, [self._directory_of_the_dead(node_id)])
        is_new = len(order) == 1
        self._orders[node_id] = [self.root / f"node-{node_id}-front", *order] if is_new else order[::-1]
        config = self._write_settings(node_id)
        if is_new:
            format_directory(RealDisk(), config, cluster_id=self._layout.cluster_id, rng=system_rng())

    def heal(self) -> None:
        """Undo cuts, pauses, slow and full disks. Nodes that are down stay down: see `revive`."""
        self._wires.mend()
        self._cut_off.clear()
        for node_id in self.node_ids:
            self.resume(node_id)
        for node_id in list(self._full):
            self.free_disk(node_id)
        for node_id in list(self._slow):
            if node_id in self.pids():
                self.slow_disk(node_id, 0)
            self._slow.pop(node_id, None)
        for node_id in list(self._ahead):
            if node_id in self.pids():
                self.clock_ahead(node_id, 0)
            self._ahead.pop(node_id, None)

    def revive(self) -> None:
        """Start every node that is down, all at once; returns once they do their work."""
        down = [node_id for node_id in self.node_ids if node_id not in self.pids()]
        for node_id in down:
            self.start_node(node_id, wait=False)
        self.wait_ready(down)

    # What is where

    @property
    def responsive(self) -> str:
        """The brokers that run, are not paused and not isolated."""
        awake = [node for node in self.broker_ids if self._nodes[node].alive and not self._nodes[node].paused]
        inside = [node for node in awake if node not in self._cut_off]
        return ",".join(self.client(node) for node in inside or awake)

    def running(self) -> list[int]:
        """The nodes whose processes live."""
        return sorted(self.pids())

    def describe(self, topic: str, partition: int = 0) -> PartitionDescription:
        """One partition as a responsive broker sees it. Raises StrandlineError."""
        with Admin(self.responsive or self.bootstrap, **ASK, **client_settings(self.client_properties)) as admin:
            [description] = admin.describe_topics([topic])
        return description.partitions[partition]

    def leader(self, topic: str, partition: int = 0, *, timeout_s: float = WAIT_S) -> int:
        """The partition's leader, as soon as it has one. Raises TimeoutError."""
        return _eventually(
            lambda: self.describe(topic, partition).leader, f"{topic}-{partition} has no leader", timeout_s
        )

    def wait_isr(
        self, topic: str, partition: int = 0, members: Collection[int] | None = None, *, timeout_s: float = WAIT_S
    ) -> None:
        """Return once the in-sync replicas are exactly these (None: every replica). Raises TimeoutError."""

        def same() -> bool:
            now = self.describe(topic, partition)
            return set(now.isr) == set(now.replicas if members is None else members)

        _eventually(lambda: same() or None, f"the ISR of {topic}-{partition} is another", timeout_s)

    def controller(self) -> int | None:
        """Id of the active controller; None if there is none, or no node reports it."""
        try:
            with Admin(self.responsive or self.bootstrap, **ASK, **client_settings(self.client_properties)) as admin:
                leader = admin.describe_quorum().leader_id
        except (StrandlineError, OSError, TimeoutError):
            return None
        return leader if leader in self.controller_ids else None

    def unsupported(self) -> dict[str, str]:
        """Faults that cannot be done here, and why."""
        why: dict[str, str] = {}
        if self._disk_bytes is None:
            why |= dict.fromkeys(DISK_FAULTS, why_no_mount() or "the nodes were given no disks of their own")
        if self.store_url is None:
            why |= dict.fromkeys(STORE_FAULTS, f"the nodes have no object store ({STORE_URL})")
        return why

    @property
    def store_url(self) -> str | None:
        """URL of the nodes' object store; None: they have none."""
        return self._settings.get(STORE_URL)

    def digest(self, node_id: int, topic: str, partition: int, end_offset: int) -> tuple[str, int]:
        """SHA-256 and length of what this replica holds below `end_offset`. Raises CheckFailed."""
        return committed_digest(self._replica(node_id, topic, partition), end_offset)

    def save_logs(self, directory: Path) -> None:
        """Copy what every node has logged there."""
        for node_id in self.node_ids:
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(self.log_path(node_id), directory)

    # Inside

    def _make_directories(self) -> None:
        for node_id, place in self._layout.places.items():
            if node_id not in self._plugs:
                self._plugs[node_id] = self._wires.add(node_id, place.internal)
                if self._disk_bytes is not None:
                    self._mount_disk(self._layout.directory(node_id), self._disk_bytes)

    def _host(self, node_id: int) -> str:
        return self._wires.host(node_id)

    def _check_ports(self, node_ids: Sequence[int]) -> None:
        for node_id in node_ids:
            with self._wires.inside(node_id):
                super()._check_ports([node_id])

    def _mount_disk(self, path: Path, size: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        _mount("-t", "tmpfs", "-o", f"size={size},mode=700", "strandline-chaos", str(path))
        self._mounted.append(path)

    def _directory_of_the_dead(self, node_id: int) -> Path:
        if node_id in self.pids():
            raise DevError(f"node {node_id} runs: its directory is not changed under it")
        return Path(self.data_dir(node_id))

    def _replica(self, node_id: int, topic: str, partition: int) -> Path:
        """Directory of a replica; a path in the node's first directory if the replica does not exist."""
        places = [path / f"{topic}-{partition}" for path in self._orders.get(node_id, [Path(self.data_dir(node_id))])]
        return next((path for path in places if path.exists()), places[0])

    def _disk(self, node_id: int) -> Path:
        if self._disk_bytes is None:
            raise DevError(self.unsupported()["disk-full"])
        return Path(self.data_dir(node_id))

    def _settings_of(self, node_id: int) -> dict[str, str]:
        settings = super()._settings_of(node_id)
        places = self._layout.places
        voters = [
            Voter(NodeId(each), self._layout.directory_id(each), self._plugs[each])
            for each in self.controller_ids
            if each in places
        ]
        settings["controller.quorum.voters"] = write_voters(tuple(voters))
        if node_id in self._orders:
            settings["log.dirs"] = ",".join(map(str, self._orders[node_id]))
        given = settings.get("advertised.listeners")
        inside = f"INTERNAL://{self._plugs[node_id]}"
        settings["advertised.listeners"] = f"{given},{inside}" if given else inside
        return settings

    def _spawn(self, node: NodeProcess) -> None:
        with self._wires.inside(node.node_id):
            super()._spawn(node)
        assert node.process is not None
        self._wires.owns(node.node_id, node.process.pid)
        self._wires.plug_in(node.node_id)


def why_no_mount() -> str | None:
    """Reason why no node can be given a disk of its own here; None: it can."""
    if sys.platform != "linux":
        return "a small disk for each node is a tmpfs, which Linux alone has"
    if os.geteuid() != 0:
        return "a small disk for each node is a tmpfs, which root alone may mount"
    return None


def can_mount() -> bool:
    """Whether nodes can have disks of their own."""
    return why_no_mount() is None


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise DevError(f"mount {' '.join(arguments)}: {done.stderr.strip()}")


def _eventually(look: Callable[[], T | None], what: str, timeout_s: float) -> T:
    """The first value that `look` gives, which may fail meanwhile. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    last: BaseException | None = None
    while True:
        try:
            found = look()
            if found is not None:
                return found
        except (StrandlineError, OSError, TimeoutError) as error:
            last = error
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}, after {timeout_s:g} s" + (f": {last}" if last else "")) from last
        pause(POLL_S)


def _free_port_base() -> int:
    """A first client port such that all ports of a cluster are free, and lie below the range of outgoing
    connections."""
    bases = list(range(11_000, 22_000, 120))
    random.SystemRandom().shuffle(bases)
    numbers = [*range(6), *range(100, 106)]
    for base in bases:
        ports = [base + n + distance for n in numbers for distance in (0, INTERNAL_DISTANCE, HTTP_DISTANCE)]
        if all(is_free(Endpoint("127.0.0.1", port)) for port in ports):
            return base
    raise DevError("no run of free ports below 32768 was found")
