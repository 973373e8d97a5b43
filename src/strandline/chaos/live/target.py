"""Interface that the live runner needs of a cluster, whatever its nodes are: processes of this machine, or containers.

And what it needs of that which joins them: proxies (`proxy.Proxies`) or a bridge (`namespaces.Switch`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from strandline.client.settings import AdminSettings
from strandline.cluster.node.config_values import parse_properties
from strandline.proto.ids import Endpoint

ASK: AdminSettings = {"default_api_timeout_ms": 3000, "request_timeout_ms": 2000}
"""An admin's patience: callers ask again."""

DISK_FAULTS = ("disk-full", "full-leader")
"""The faults that need a disk for each node."""

STORE_FAULTS = ("restore-then-produce",)
"""The faults that need an object store (`remote.log.storage.url`)."""


class ChaosTarget(Protocol):
    """A cluster that faults can be done to. Nodes are named by their ids. Not safe for threads.

    Every method that does something returns once it is done; `OSError` and `StrandlineError` mean that it could not be.
    """

    @property
    def broker_ids(self) -> list[int]:
        """The nodes that hold partitions."""

    @property
    def controller_ids(self) -> list[int]:
        """The nodes that vote; the same ones where roles are combined."""

    @property
    def node_ids(self) -> list[int]:
        """Every node."""

    @property
    def bootstrap(self) -> str:
        """Bootstrap list of the brokers."""

    @property
    def client_properties(self) -> Path | None:
        """The file with the settings that a client needs, a password among them; None: it needs none."""

    @property
    def store_url(self) -> str | None:
        """URL of the cluster's object store, if this process can reach it; else None."""

    @property
    def responsive(self) -> str:
        """Bootstrap list of the brokers that run, are not paused, and are not cut off from any other."""

    def start(self) -> None:
        """Start everything; returns once every node does its work."""

    def stop(self) -> None:
        """Stop everything and clean up. Idempotent."""

    def running(self) -> list[int]:
        """The nodes whose processes live, paused ones too."""

    def kill(self, node_id: int) -> None:
        """Kill a node, as a crash does."""

    def pause(self, node_id: int) -> None:
        """Let the node stand still; its connections stay open."""

    def resume(self, node_id: int) -> None:
        """Undo `pause`."""

    def stop_node(self, node_id: int) -> None:
        """Stop the node by a controlled shutdown."""

    def start_node(self, node_id: int, *, wait: bool = True) -> None:
        """Start a node that is down, on the same data; `wait` until it does its work."""

    def partition(self, a: int, b: int, *, one_way: bool = False) -> None:
        """Let nothing come from `a` to `b` any more, nor back unless `one_way`."""

    def isolate(self, node_id: int) -> None:
        """Let nothing come from this node to any other, nor back."""

    def slow_disk(self, node_id: int, delay_ms: float) -> None:
        """Delay every sync of a node by `delay_ms`; 0 ends it."""

    def clock_ahead(self, node_id: int, ahead_ms: int) -> None:
        """Set the node's wall clock ahead by `ahead_ms`; 0 corrects it."""

    def fill_disk(self, node_id: int) -> None:
        """Take the room of the node's disk."""

    def free_disk(self, node_id: int) -> None:
        """Undo `fill_disk`."""

    def wipe(self, node_id: int) -> None:
        """Empty the directory of a node that is down and format it anew, as the same node."""

    def rot_newest(self, node_id: int, topic: str, partition: int, seed: int) -> str:
        """Flip a bit in the newest batch of a replica of a node that is down; says where."""

    def lose_newest(self, node_id: int, topic: str, partition: int, seed: int) -> str:
        """Take away the newest batches of a replica of a node that is down, without a trace; says which."""

    def lose_directory(self, node_id: int, topic: str, partition: int) -> None:
        """Remove the directory of a replica of a node that is down."""

    def swap_directories(self, node_id: int) -> None:
        """Put a new disk in front of the others of a node that is down, or turn the order of its disks around."""

    def heal(self) -> None:
        """Undo cuts, pauses, slow and full disks. Nodes that are down stay down."""

    def controller(self) -> int | None:
        """Id of the active controller; None if there is none, or no node reports it."""

    def leader(self, topic: str, partition: int = 0) -> int:
        """The partition's leader, as soon as it has one. Raises TimeoutError."""

    def unsupported(self) -> Mapping[str, str]:
        """Faults (by the names of `chaos run`) that cannot be done here, and why."""

    def digest(self, node_id: int, topic: str, partition: int, end_offset: int) -> tuple[str, int]:
        """SHA-256 and length of what this replica holds below `end_offset`, its high watermark."""

    def save_logs(self, directory: Path) -> None:
        """Copy what every node has logged there."""


def client_settings(properties: Path | None) -> dict[str, Any]:
    """Settings in a file of Kafka's client settings; none without one."""
    return {} if properties is None else dict(parse_properties(properties.read_text(), str(properties)))


class NodeNetwork(Protocol):
    """Ways from each node to each other. Clients are never cut off."""

    def host(self, node_id: int) -> str:
        """The address at which a node listens."""

    def add(self, node_id: int, target: Endpoint) -> Endpoint:
        """Add a node that listens at `target`. Returns the address by which others reach it."""

    def inside(self, node_id: int) -> AbstractContextManager[None]:
        """Start or bind what the context starts or binds where the node is."""

    def owns(self, node_id: int, pid: int) -> None:
        """Note that `pid` is a process of that node."""

    def plug_in(self, node_id: int) -> None:
        """Let the node be connected to: it is up."""

    def unplug(self, node_id: int) -> None:
        """Refuse connections to the node: it is down."""

    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Let nothing come from the first to the second of each pair from now on."""

    def mend(self) -> None:
        """Let everything through again."""

    def held(self, a: int, b: int) -> int:
        """Number of times so far that data from `a` to `b` met a cut. Raises DevError where nobody counts."""

    def close(self) -> None:
        """Take them away. Idempotent."""


def pause(seconds: float) -> None:
    """Wait `seconds` between two checks of other processes. Ctrl-C ends the wait."""
    threading.Event().wait(seconds)
