"""Layout of a development cluster: node ids, ports and directories, stored in a file of the cluster's directory."""

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
"""Default of the first client port. With base b, node n listens for clients at port b + n - 1, for other nodes at
10,000 more, and for HTTP at 1,000 less."""

INTERNAL_DISTANCE, HTTP_DISTANCE = 10_000, -1_000
PORT_BASES = range(1100, 50_001)

REBALANCE_DELAY_MS = 150
"""Value of group.initial.rebalance.delay.ms. Kafka's default of 3 s is long for a test. At 0, kafka-python (3.0.12) may
forget an assignment that arrives while it still looks up its topics: 1 group in 10 at 0 ms, 0 of 32 at 150 ms."""

STATE_FILE = "cluster.json"

CERTIFICATES = "certs"
CLIENT_FILE = "client.properties"
"""Name of the file in the directory `CERTIFICATES` with the settings of a client that may connect."""


@dataclass(frozen=True)
class Place:
    """Addresses and ids of one node. A node that is only a controller has a client port too, but does not use it."""

    node_id: int
    roles: str
    directory_id: str
    client_port: int
    internal_port: int
    http_port: int
    host: str = HOST

    @property
    def client(self) -> Endpoint | None:
        """Endpoint for clients; None for a node that is only a controller."""
        return Endpoint(self.host, self.client_port) if "broker" in self.roles else None

    @property
    def internal(self) -> Endpoint:
        """Endpoint for other nodes."""
        return Endpoint(self.host, self.internal_port)

    @property
    def http(self) -> Endpoint:
        """Endpoint of the HTTP listener, which serves metrics."""
        return Endpoint(self.host, self.http_port)

    def listeners(self, protocol: str) -> str:
        """Value of the setting `listeners`. `protocol` is that of the listener for clients."""
        client = "" if self.client is None else f"{protocol}://{self.client},"
        return f"{client}INTERNAL://{self.internal},HTTP://{self.http}"


class PortTaken(StrandlineError):
    """A port that a node needs is used by another process."""

    def __init__(self, node_id: int, port: int, holder: str) -> None:
        self.port = port
        advice = "--port-base N takes others, --port-base 0 any free ones"
        super().__init__(f"port {port} of node {node_id} is taken: {holder}. {advice}")


class Layout:
    """Places of a cluster's nodes. Those stored in the directory are kept, except for ports that another `port_base`
    changes.

    Args:
        root: directory of the cluster.
        port_base: first port for clients, see `PORT_BASE`; 0: any free ports, kept from one start to the next.
        secure: every listener uses TLS, with certificates created in the directory.
        sasl: clients also log in, as a user whose credentials are created in the directory.
        host_of: node id -> address at which the node listens.
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
        """Read the stored layout, if there is one.

        Raises:
            ConfigError: the file is damaged, `port_base` is out of range, or `sasl` is asked for a cluster that was
                created without it.
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
        """Ids of the nodes with this role, in order."""
        return sorted(node_id for node_id, place in self.places.items() if role in place.roles.split(","))

    def add(self, roles_of: Mapping[int, str]) -> None:
        """Give places to nodes without one, reserve their ports, and write the file. `roles_of`: node id -> roles."""
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
        """Stop reserving the ports: no more nodes will be started."""
        self._ports.release()

    def check_ports(self, node_ids: Sequence[int]) -> None:
        """Check that the ports of these nodes are free. Raises PortTaken, which names the process that uses one."""
        for node_id in node_ids:
            place = self.places[node_id]
            for endpoint in (place.client, place.internal, place.http):
                if endpoint is not None and not is_free(endpoint):
                    raise PortTaken(node_id, endpoint.port, holder_of(endpoint.port))

    def directory(self, node_id: int) -> Path:
        """The node's log directory."""
        return self.root / f"node-{node_id}"

    def directory_id(self, node_id: int) -> UUID:
        """Directory id of the node, which names it as a voter together with its node id."""
        return UUID(self.places[node_id].directory_id)

    def settings(self, node_id: int) -> dict[str, str]:
        """Settings to start this node with."""
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
        """Directory with the certificates of a secure cluster and its clients' settings."""
        return self.root / CERTIFICATES

    def make_certificates(self) -> None:
        """Create the certificates of nodes that have none, and those of a client. Raises ConfigError."""
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
        """Format the nodes' directories that are not formatted yet."""
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
