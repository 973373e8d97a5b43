"""Where the nodes of a development cluster live: ids, ports, directories; kept in a file of the cluster's directory."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from strandline.cluster.config import NodeConfig
from strandline.cluster.format import format_directory, random_cluster_id, random_id
from strandline.controller.quorum.api import Voter
from strandline.log.real_disk import RealDisk
from strandline.proto.errors import ConfigError
from strandline.proto.ids import Endpoint, NodeId

HOST = "127.0.0.1"
CLIENT_PORT, INTERNAL_PORT, HTTP_PORT = 9091, 19091, 8091
"""With fixed ports, node n has CLIENT_PORT + n and so on."""

STATE_FILE = "cluster.json"


@dataclass(frozen=True)
class Place:
    """One node's place. A controller alone has a port for clients too, and does not use it."""

    node_id: int
    roles: str
    directory_id: str
    client_port: int
    internal_port: int
    http_port: int

    @property
    def client(self) -> Endpoint | None:
        """Where clients reach it; None for a controller alone."""
        return Endpoint(HOST, self.client_port) if "broker" in self.roles else None

    @property
    def internal(self) -> Endpoint:
        """Where other nodes reach it."""
        return Endpoint(HOST, self.internal_port)

    @property
    def http(self) -> Endpoint:
        """Where its metrics are."""
        return Endpoint(HOST, self.http_port)

    @property
    def listeners(self) -> str:
        """The setting `listeners`."""
        client = "" if self.client is None else f"PLAINTEXT://{self.client},"
        return f"{client}INTERNAL://{self.internal},HTTP://{self.http}"


class Layout:
    """The places of a cluster's nodes; what stands in the directory already is kept."""

    def __init__(self, root: Path, *, free_ports: bool) -> None:
        """Read what is there.

        Raises:
            ConfigError: the file is damaged.
        """
        self.root = root
        self._free_ports = free_ports
        self._rng = random.SystemRandom()
        self.cluster_id = random_cluster_id(self._rng)
        self.places: dict[int, Place] = {}
        path = root / STATE_FILE
        if path.exists():
            try:
                state = json.loads(path.read_text())
                self.cluster_id = state["cluster_id"]
                self.places = {place["node_id"]: Place(**place) for place in state["nodes"]}
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(str(path), error, "the file that a cluster wrote; --fresh begins anew") from None

    def add(self, roles_of: Mapping[int, str]) -> None:
        """Give places to nodes that have none, and write the file."""
        missing = [node_id for node_id in roles_of if node_id not in self.places]
        with _reserved(3 * len(missing) if self._free_ports else 0) as free:
            for index, node_id in enumerate(missing):
                ports = (
                    free[3 * index : 3 * index + 3]
                    if self._free_ports
                    else [CLIENT_PORT + node_id, INTERNAL_PORT + node_id, HTTP_PORT + node_id]
                )
                self.places[node_id] = Place(node_id, roles_of[node_id], str(random_id(self._rng)), *ports)
        self.root.mkdir(parents=True, exist_ok=True)
        state = {"cluster_id": self.cluster_id, "nodes": [asdict(place) for place in self.places.values()]}
        (self.root / STATE_FILE).write_text(json.dumps(state, indent=2))

    def directory(self, node_id: int) -> Path:
        """The node's log directory."""
        return self.root / f"node-{node_id}"

    def settings(self, node_id: int) -> dict[str, str]:
        """The settings that make a process this node."""
        place = self.places[node_id]
        return {
            "node.id": str(node_id),
            "process.roles": place.roles,
            "listeners": place.listeners,
            "log.dirs": str(self.directory(node_id)),
        }

    def format(self, controllers: Sequence[int]) -> None:
        """Format the directories that are not."""
        voters = tuple(
            Voter(NodeId(node_id), UUID(self.places[node_id].directory_id), self.places[node_id].internal)
            for node_id in sorted(controllers)
        )
        for node_id in self.places:
            format_directory(
                RealDisk(),
                NodeConfig(self.settings(node_id)),
                cluster_id=self.cluster_id,
                initial_controllers=voters,
                rng=self._rng,
                ignore_formatted=True,
            )


@contextlib.contextmanager
def _reserved(count: int) -> Iterator[list[int]]:
    """Ports that nobody else gets while they are given out, all different."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        yield [each.getsockname()[1] for each in sockets]
