"""A cluster of containers as a target of chaos: deploy/compose*.yaml under an engine, faults by the engine's own means.

kill      docker kill           pause    docker pause (the cgroup freezer)
stop      docker stop           isolate  docker network disconnect from the nodes' network; clients still reach it
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lab.compose.engine import Engine, EngineError
from strandline.chaos.live.target import ASK, DISK_FAULTS, STORE_FAULTS
from strandline.client import Admin
from strandline.cluster.node.config_values import environment_name
from strandline.cluster.node.ports import is_free
from strandline.cluster.node.settings import BROKER, CONTROLLER
from strandline.proto.errors import StrandlineError
from strandline.proto.ids import Endpoint

READY_S = 180.0
"""Ten seconds are usual; a machine whose cores are all taken has needed more than a minute for six containers."""

HEALTH_S = 30.0
STOP_S = 30.0
LEADER_S = 20.0
RUNNING_S = 0.5
"""Seconds that the answer to "who runs" may be old, unless somebody was started or stopped since: each costs a
process."""

POLL_S = 0.1

HEALTH = ("python3", "-m", "strandline.cluster.node.container", "health")
DATA = "/var/lib/strandline/data"
FAULT_INJECTION = "strandline.fault.injection"

_SLOW = """
import sys, urllib.request
request = urllib.request.Request("http://127.0.0.1:8092/faults", sys.argv[1].encode(), method="POST")
urllib.request.urlopen(request, timeout=5).close()
"""
_DIGEST = """
import json, sys
from pathlib import Path
from strandline.chaos.demo.checks import committed_digest
print(json.dumps(committed_digest(Path(sys.argv[1]), int(sys.argv[2]))))
"""
_REMOVE = """
import shutil, sys
shutil.rmtree(sys.argv[1])
"""
_ROT = """
import sys
from pathlib import Path
from strandline.chaos.live.disk_damage import rot_newest_batch
print(rot_newest_batch(Path(sys.argv[1]), int(sys.argv[2])))
"""


@dataclass
class _Container:
    """One node: its service in the compose file, and its container."""

    service: str
    name: str
    roles: frozenset[str]
    host_port: int | None


class ComposeCluster:
    """The nodes of one compose file, on ports of this machine that were free. A ChaosTarget; not safe for threads.

    Args:
        compose_file: whose services are nodes, but for those with a profile.
        image: the image of all nodes.
        settings: settings of every node, by Kafka's names, beside those of the file.
        variables: what the compose file asks the environment for, beside image and ports.
        project: the prefix of all names that the engine gets to see; a random one if left out.
    """

    def __init__(
        self,
        engine: Engine,
        compose_file: Path,
        *,
        image: str,
        settings: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        project: str | None = None,
    ) -> None:
        self.engine = engine
        self.project = project or f"strandline{random.SystemRandom().randrange(10**6)}"
        self.image = image
        self._file = compose_file
        self._settings = {FAULT_INJECTION: "true", **(settings or {})}
        self._override = engine.directory / f"{self.project}.json"
        self._environment = {**(variables or {}), "STRANDLINE_IMAGE": image, "COMPOSE_PROJECT_NAME": self.project}
        self._nodes: dict[int, _Container] = {}
        self._cut_off: dict[int, None] = {}
        self._paused: dict[int, None] = {}
        self._slow: dict[int, None] = {}
        self._running: list[int] = []
        self._asked_at = -RUNNING_S

    client_properties = None
    """The compose files have listeners without TLS and logins: a client needs no settings."""

    # Life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Make networks, volumes and containers; returns once every node does its work.

        Raises:
            EngineError: the engine refused, or a node was not ready in time; everything is taken away again.
        """
        ports = free_ports(3)
        self._environment |= {f"STRANDLINE_PORT_{number}": str(port) for number, port in enumerate(ports, 1)}
        try:
            services = self.compose("config", "--services").split()
            variables = {environment_name(name): text for name, text in self._settings.items()}
            override = {"services": {name: {"environment": variables} for name in services if name != "prometheus"}}
            self._override.write_text(json.dumps(override))  # JSON is YAML
            self.compose("up", "--detach", "--no-build", timeout_s=180)
            self._find_containers()
            self.wait_ready(self.node_ids)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Remove containers, networks and volumes. Idempotent."""
        for node_id in list(self._paused):
            self.resume(node_id)
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5", timeout_s=180)
        self._nodes.clear()

    def wait_ready(self, nodes: list[int], timeout_s: float = READY_S) -> None:
        """Return once these nodes do their work, as their health checks say. Raises EngineError."""
        deadline = time.monotonic() + timeout_s
        for node_id in nodes:
            while True:
                try:
                    self._exec(node_id, *HEALTH, timeout_s=HEALTH_S)
                    break
                except EngineError as error:
                    if time.monotonic() > deadline:
                        name = self._nodes[node_id].name
                        said = self.engine.docker("logs", "--tail", "20", name)
                        raise EngineError(f"{name} is not ready after {timeout_s:g} s: {error}\n{said}") from error
                    _pause(POLL_S)

    def compose(self, *words: str, timeout_s: float = 120.0) -> str:
        """Run docker compose on this project."""
        files = ["--file", str(self._file)]
        if self._override.exists():
            files += ["--file", str(self._override)]
        return self.engine.compose(*files, *words, timeout_s=timeout_s, environment=self._environment)

    # Faults

    def kill(self, node_id: int) -> None:
        """Kill process 1 by SIGKILL; the restart policy does not undo what an operator did."""
        self._do("kill", node_id)
        self._paused.pop(node_id, None)

    def pause(self, node_id: int) -> None:
        """Freeze every process of the container."""
        self.engine.docker("pause", self._nodes[node_id].name)
        self._paused[node_id] = None

    def resume(self, node_id: int) -> None:
        """Undo `pause`."""
        if node_id in self._paused:
            self.engine.docker("unpause", self._nodes[node_id].name)
            del self._paused[node_id]

    def stop_node(self, node_id: int) -> None:
        """docker stop: SIGTERM, and time enough for a controlled shutdown."""
        self.resume(node_id)
        self._do("stop", node_id, "--time", f"{STOP_S:g}", timeout_s=STOP_S + 30)

    def start_node(self, node_id: int, *, wait: bool = True) -> None:
        """docker start, on the same volume."""
        self._do("start", node_id)
        if wait:
            self.wait_ready([node_id])

    def renew(self, node_id: int) -> None:
        """Make a new container on the same volume, as an upgrade does."""
        service = self._nodes[node_id].service
        self.compose("up", "--detach", "--no-build", "--no-deps", "--force-recreate", service, timeout_s=STOP_S + 60)
        self._find_containers()

    def partition(self, a: int, b: int, *, one_way: bool = False) -> None:
        """Not possible: see `unsupported`. Raises EngineError."""
        raise EngineError(self.unsupported()["partition"])

    def isolate(self, node_id: int) -> None:
        """Take the node off the nodes' network. Its clients still reach it."""
        if node_id not in self._cut_off:
            self.engine.docker("network", "disconnect", self._network, self._nodes[node_id].name)
            self._cut_off[node_id] = None

    def slow_disk(self, node_id: int, delay_ms: float) -> None:
        """Every sync takes so much longer; 0 undoes it. Raises OSError if the node does not answer."""
        try:
            self._exec(node_id, "python3", "-c", _SLOW, json.dumps({"slow_disk_ms": delay_ms}))
        except EngineError as error:
            raise OSError(str(error)) from error
        if delay_ms:
            self._slow[node_id] = None
        else:
            self._slow.pop(node_id, None)

    def fill_disk(self, node_id: int) -> None:
        """Not possible: see `unsupported`. Raises EngineError."""
        raise EngineError(self.unsupported()["disk-full"])

    def free_disk(self, node_id: int) -> None:
        """Nothing to undo."""

    def wipe(self, node_id: int) -> None:
        """Empty the volume of a node that is down; it formats itself when it starts, as the same node.

        Only while all others are whole: a voter that has forgotten its vote may vote a second time.
        """
        self._on_volume(node_id, _REMOVE, DATA)

    def rot_newest(self, node_id: int, topic: str, partition: int, seed: int) -> str:
        """Flip a bit in the newest batch of a replica of a node that is down; says where."""
        return self._on_volume(node_id, _ROT, f"{DATA}/{topic}-{partition}", str(seed)).strip()

    def lose_directory(self, node_id: int, topic: str, partition: int) -> None:
        """Remove the directory of a replica of a node that is down."""
        self._on_volume(node_id, _REMOVE, f"{DATA}/{topic}-{partition}")

    def swap_directories(self, node_id: int) -> None:
        """Not possible: see `unsupported`. Raises EngineError."""
        raise EngineError(self.unsupported()["dirs-swapped"])

    def heal(self) -> None:
        """Undo cuts, pauses and slow disks. Nodes that are down stay down."""
        for node_id in list(self._cut_off):
            node = self._nodes[node_id]
            aliases = ("--alias", f"{node.service}.nodes", "--alias", node.service)
            self.engine.docker("network", "connect", *aliases, self._network, node.name)
            del self._cut_off[node_id]
        for node_id in list(self._paused):
            self.resume(node_id)
        for node_id in list(self._slow):
            if node_id in self.running():
                self.slow_disk(node_id, 0)
            self._slow.pop(node_id, None)

    # What is where

    @property
    def node_ids(self) -> list[int]:
        """Every node."""
        return sorted(self._nodes)

    @property
    def broker_ids(self) -> list[int]:
        """The nodes that hold partitions."""
        return [node_id for node_id in self.node_ids if BROKER in self._nodes[node_id].roles]

    @property
    def controller_ids(self) -> list[int]:
        """The nodes that vote."""
        return [node_id for node_id in self.node_ids if CONTROLLER in self._nodes[node_id].roles]

    @property
    def bootstrap(self) -> str:
        """Bootstrap list for clients outside."""
        return ",".join(self._client(node_id) for node_id in self.broker_ids)

    @property
    def inside(self) -> str:
        """Bootstrap list for clients in containers on the clients' network."""
        return ",".join(f"{self._nodes[node_id].service}:9092" for node_id in self.broker_ids)

    @property
    def clients_network(self) -> str:
        """The network for clients in containers."""
        return f"{self.project}_clients"

    @property
    def responsive(self) -> str:
        """The brokers that run, are not paused and not cut off."""
        running = self.running()
        awake = [node_id for node_id in self.broker_ids if node_id in running and node_id not in self._paused]
        together = [node_id for node_id in awake if node_id not in self._cut_off]
        return ",".join(self._client(node_id) for node_id in together or awake)

    def container(self, node_id: int) -> str:
        """The engine's name of a node's container."""
        return self._nodes[node_id].name

    def running(self) -> list[int]:
        """The nodes whose containers run, paused ones too. What the engine said a moment ago counts as now."""
        if time.monotonic() - self._asked_at > RUNNING_S:
            names = [node.name for node in self._nodes.values()]
            told = self.engine.docker("inspect", "--format", "{{.State.Running}}", *names).split()
            self._running = sorted(node_id for node_id, runs in zip(self._nodes, told, strict=True) if runs == "true")
            self._asked_at = time.monotonic()
        return list(self._running)

    def controller(self) -> int | None:
        """The active controller; None while there is none, or nobody tells."""
        try:
            with Admin(self.responsive or self.bootstrap, **ASK) as admin:
                leader = admin.describe_quorum().leader_id
        except (StrandlineError, OSError, TimeoutError):
            return None
        return leader if leader in self._nodes else None

    def leader(self, topic: str, partition: int = 0) -> int:
        """The partition's leader, as soon as it has one. Raises TimeoutError."""
        deadline = time.monotonic() + LEADER_S
        while True:
            last: BaseException | None = None
            try:
                with Admin(self.responsive or self.bootstrap, **ASK) as admin:
                    [description] = admin.describe_topics([topic])
                leader = description.partitions[partition].leader
                if leader is not None:
                    return leader
            except (StrandlineError, OSError, TimeoutError) as error:
                last = error
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}-{partition} has no leader after {LEADER_S:g} s: {last}") from last
            _pause(POLL_S)

    @property
    def store_url(self) -> None:
        """None: there is no object store."""

    def unsupported(self) -> dict[str, str]:
        """Faults that cannot be done here, and why."""
        return {
            "dirs-swapped": "the nodes of the compose files have one volume each",
            "partition": "`docker network disconnect` cuts a container off from all others, not from one",
            **dict.fromkeys(DISK_FAULTS, "a volume of the engine has no size of its own"),
            **dict.fromkeys(STORE_FAULTS, "the compose files have no object store"),
        }

    def digest(self, node_id: int, topic: str, partition: int, end_offset: int) -> tuple[str, int]:
        """SHA-256 and length of what this replica holds below `end_offset`. Raises EngineError."""
        words = ("python3", "-c", _DIGEST, f"{DATA}/{topic}-{partition}", str(end_offset))
        digest, length = json.loads(self._exec(node_id, *words))
        return digest, length

    def save_logs(self, directory: Path) -> None:
        """Write what every node has logged there."""
        for node_id, node in self._nodes.items():
            text = self.engine.docker("logs", "--timestamps", node.name, merge=True)
            (directory / f"node-{node_id}.log").write_text(text)

    # Inside

    @property
    def _network(self) -> str:
        return f"{self.project}_nodes"

    def _client(self, node_id: int) -> str:
        return f"127.0.0.1:{self._nodes[node_id].host_port}"

    def _do(self, verb: str, node_id: int, *options: str, timeout_s: float = 60.0) -> None:
        """Run a command of the engine that changes who runs."""
        self.engine.docker(verb, *options, self._nodes[node_id].name, timeout_s=timeout_s)
        self._asked_at = -RUNNING_S

    def _exec(self, node_id: int, *words: str, timeout_s: float = 60.0) -> str:
        return self.engine.docker("exec", self._nodes[node_id].name, *words, timeout_s=timeout_s)

    def _on_volume(self, node_id: int, program: str, *arguments: str) -> str:
        """Run a program in a container of its own, with the data of a node that is down."""
        service = self._nodes[node_id].service
        volume = f"{self.project}_{service}:/var/lib/strandline"
        words = ("run", "--rm", "--network", "none", "--volume", volume, "--entrypoint", "python3", self.image)
        return self.engine.docker(*words, "-c", program, *arguments)

    def _find_containers(self) -> None:
        """Learn which container is which node, from what they were told themselves: after `up` has made new ones."""
        label = f"label=com.docker.compose.project={self.project}"
        ids = self.engine.docker("ps", "--all", "--quiet", "--filter", label).split()
        found: dict[int, _Container] = {}
        for told in json.loads(self.engine.docker("inspect", *ids)):
            variables = dict(pair.split("=", 1) for pair in told["Config"]["Env"])
            if environment_name("node.id") not in variables:
                continue  # Prometheus, say
            bindings = [binding for bound in told["HostConfig"]["PortBindings"].values() for binding in bound]
            found[int(variables[environment_name("node.id")])] = _Container(
                told["Config"]["Labels"]["com.docker.compose.service"],
                told["Name"].lstrip("/"),
                frozenset(variables[environment_name("process.roles")].split(",")),
                int(bindings[0]["HostPort"]) if bindings else None,
            )
        self._nodes = dict(sorted(found.items()))


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that connections are given. Raises EngineError."""
    bases = list(range(11_000, 22_000, 10))
    random.SystemRandom().shuffle(bases)
    for base in bases:
        ports = [base + number for number in range(count)]
        if all(is_free(Endpoint("127.0.0.1", port)) for port in ports):
            return ports
    raise EngineError("no run of free ports below 32768 was found")
