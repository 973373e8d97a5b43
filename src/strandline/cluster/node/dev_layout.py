"""Layout of a development cluster: ids, ports, directories; kept in a file of the cluster's directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import UUID

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_values import write_voters
from strandline.cluster.node.dev_login import KCAT_FILE, USER, DevLogin, write_secret
from strandline.cluster.node.format import format_directory, random_cluster_id, random_id
from strandline.cluster.node.ports import HeldPorts, holder_of, is_free
from strandline.cluster.node.settings import CONTROLLER
from strandline.cluster.security.dev_certificates import CA_FILE, DevCa, client_properties
from strandline.controller.quorum.api import Voter
from strandline.log.real_disk import DIRECTORY_MODE, RealDisk
from strandline.proto.errors import ConfigError, StrandlineError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.json_text import read_json
from strandline.proto.system import system_rng

HOST = "127.0.0.1"

PORT_BASE = 9092
"""The usual first port of clients. From a base b on, node n has b + n - 1 for clients, 10,000 more between nodes, and
1,000 less for HTTP."""

INTERNAL_DISTANCE, HTTP_DISTANCE = 10_000, -1_000
PORT_BASES = range(1100, 50_001)

REBALANCE_DELAY_MS = 150
"""Kafka waits 3 s for further members of a new group, which is long in a test. Without any wait kafka-python (3.0.12)
may forget the assignment that it was given while it still looked for its topics: it hit 1 group in 10 at 0 ms, and none
of 32 at 150 ms."""

STATE_FILE = "cluster.json"

CERTIFICATES = "certs"
CLIENT_FILE = "client.properties"
"""Name of the file, in that directory, with the settings of a client that may come in."""


@dataclass(frozen=True)
class Place:
    """One node's place. A controller alone has a port for clients too, and does not use it."""

    node_id: int
    roles: str
    directory_id: str
    client_port: int
    internal_port: int
    http_port: int
    host: str = HOST

    @property
    def client(self) -> Endpoint | None:
        """Endpoint for clients; None for a controller alone."""
        return Endpoint(self.host, self.client_port) if "broker" in self.roles else None

    @property
    def internal(self) -> Endpoint:
        """Endpoint for other nodes."""
        return Endpoint(self.host, self.internal_port)

    @property
    def http(self) -> Endpoint:
        """Endpoint of its metrics."""
        return Endpoint(self.host, self.http_port)

    def listeners(self, protocol: str) -> str:
        """The setting `listeners`; `protocol` of the clients' one."""
        client = "" if self.client is None else f"{protocol}://{self.client},"
        return f"{client}INTERNAL://{self.internal},HTTP://{self.http}"


class PortTaken(StrandlineError):
    """A port that a node shall have is somebody else's."""

    def __init__(self, node_id: int, port: int, holder: str) -> None:
        self.port = port
        advice = "--port-base N takes others, --port-base 0 any free ones"
        super().__init__(f"port {port} of node {node_id} is taken: {holder}. {advice}")


class Layout:
    """The places of a cluster's nodes; what stands in the directory already is kept, save ports that are to be others.

    Args:
        port_base: the first port of clients, see `PORT_BASE`; 0: any free ports, kept from one start to the next.
        secure: every listener speaks TLS, with certificates that are made in the directory.
        sasl: and clients log in, as a user that is made in the directory.
        host_of: the address at which a node listens.
    """

    def __init__(
        self,
        root: Path,
        *,
        port_base: int,
        secure: bool = False,
        sasl: bool = False,
        host_of: Callable[[int], str] = lambda _: HOST,
    ) -> None:
        """Read what is there.

        Raises:
            ConfigError: the file is damaged, the ports cannot be, or a cluster without users shall have one.
        """
        if sasl and not secure:
            raise ConfigError("--sasl", True, "add --secure: passwords and records are for nobody else to read")
        if port_base and port_base not in PORT_BASES:
            raise ConfigError("--port-base", port_base, f"0 or a port from {PORT_BASES[0]} to {PORT_BASES[-1]}")
        self.root = root
        self.secure = secure
        self.sasl = sasl
        self._port_base = port_base
        self._ports = HeldPorts(HOST)
        self._host_of = host_of
        self._rng = system_rng()
        self.cluster_id = random_cluster_id(self._rng)
        self.places: dict[int, Place] = {}
        path = root / STATE_FILE
        if path.exists():
            try:
                state = read_json(path.read_text())
                self.cluster_id = state["cluster_id"]
                self.places = {place["node_id"]: Place(**place) for place in state["nodes"]}
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(str(path), error, "the file that a cluster wrote; --fresh begins anew") from None

    def ids(self, role: str) -> list[int]:
        """The nodes that have this role."""
        return sorted(node_id for node_id, place in self.places.items() if role in place.roles.split(","))

    def add(self, roles_of: Mapping[int, str]) -> None:
        """Give places to nodes that have none, hold their ports, and write the file."""
        base = self._port_base
        missing = [node_id for node_id in roles_of if node_id not in self.places]
        free = self._ports.any(0 if base else 3 * len(missing))
        for index, node_id in enumerate(missing):
            client, internal, http = free[3 * index : 3 * index + 3] if not base else _ports_from(base, node_id)
            directory_id, host = str(random_id(self._rng)), self._host_of(node_id)
            self.places[node_id] = Place(node_id, roles_of[node_id], directory_id, client, internal, http, host)
        if base:
            for node_id, place in self.places.items():
                client, internal, http = _ports_from(base, node_id)
                self.places[node_id] = replace(
                    place, client_port=client, internal_port=internal, http_port=http, host=self._host_of(node_id)
                )
        for place in self.places.values():
            if place.host == HOST:
                for port in (place.client_port, place.internal_port, place.http_port):
                    self._ports.hold(port)
        self.root.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        state = {"cluster_id": self.cluster_id, "nodes": [asdict(place) for place in self.places.values()]}
        (self.root / STATE_FILE).write_text(json.dumps(state, indent=2))

    def release_ports(self) -> None:
        """Nodes are not started any more: their ports may be anybody's."""
        self._ports.release()

    def check_ports(self, node_ids: Sequence[int]) -> None:
        """Raises PortTaken, naming who holds it, when a port of one of these nodes is taken."""
        for node_id in node_ids:
            place = self.places[node_id]
            for endpoint in (place.client, place.internal, place.http):
                if endpoint is not None and not is_free(endpoint):
                    raise PortTaken(node_id, endpoint.port, holder_of(endpoint.port))

    def directory(self, node_id: int) -> Path:
        """The node's log directory."""
        return self.root / f"node-{node_id}"

    def directory_id(self, node_id: int) -> UUID:
        """The id that the node's directory has as a voter's."""
        return UUID(self.places[node_id].directory_id)

    def settings(self, node_id: int) -> dict[str, str]:
        """The settings that make a process this node."""
        place = self.places[node_id]
        return {
            "node.id": str(node_id),
            "process.roles": place.roles,
            "listeners": place.listeners(self._client_protocol),
            "log.dirs": str(self.directory(node_id)),
            "controller.quorum.voters": write_voters(self._voters()),
            "group.initial.rebalance.delay.ms": str(REBALANCE_DELAY_MS),
            **(self._tls(node_id) if self.secure else {}),
        }

    @property
    def certificates(self) -> Path:
        """Directory of the certificates of a secure cluster, and of its clients' settings."""
        return self.root / CERTIFICATES

    def make_certificates(self) -> None:
        """Make those of nodes that have none, and of a client. Raises ConfigError."""
        ca = DevCa(self.certificates)
        for node_id, place in self.places.items():
            if not self._keystore(node_id).exists():
                ca.node(node_id, hosts=(place.host,), cluster_id=self.cluster_id)
        own = client_properties(ca.file, ca.client(USER))
        if self.sasl:
            login = DevLogin(self.certificates)
            login.make(is_new=not any(self.directory(node_id).exists() for node_id in self.places))
            own = login.properties(ca.file)
            write_secret(self.certificates / KCAT_FILE, login.for_librdkafka(ca.file))
        write_secret(self.certificates / CLIENT_FILE, own)

    @property
    def _client_protocol(self) -> str:
        return "SASL_SSL" if self.sasl else "SSL" if self.secure else "PLAINTEXT"

    def _keystore(self, node_id: int) -> Path:
        return self.certificates / f"node-{node_id}.pem"

    def _tls(self, node_id: int) -> dict[str, str]:
        return {
            "listener.security.protocol.map": f"{self._client_protocol}:{self._client_protocol},INTERNAL:SSL,HTTP:SSL",
            "ssl.keystore.location": str(self._keystore(node_id)),
            "ssl.truststore.location": str(self.certificates / CA_FILE),
            "ssl.client.auth": "required",
            "listener.name.http.ssl.client.auth": "none",
        }

    def _voters(self) -> tuple[Voter, ...]:
        places = [self.places[node_id] for node_id in self.ids(CONTROLLER)]
        return tuple(Voter(NodeId(place.node_id), UUID(place.directory_id), place.internal) for place in places)

    def format(self) -> None:
        """Format the directories that are not."""
        users = DevLogin(self.certificates).as_formatted() if self.sasl else ()
        for node_id, place in self.places.items():
            format_directory(
                RealDisk(),
                NodeConfig(self.settings(node_id)),
                cluster_id=self.cluster_id,
                rng=self._rng,
                ignore_formatted=True,
                add_scram=users if CONTROLLER in place.roles else (),
            )


def _ports_from(base: int, node_id: int) -> list[int]:
    client = base + node_id - 1
    return [client, client + INTERNAL_DISTANCE, client + HTTP_DISTANCE]
