"""A cluster of real processes on this machine, for `strandline dev`, the demo, benchmarks and tests.

    with DevCluster() as cluster:              # three nodes on free ports, in a directory that is deleted at the end
        cluster.kill(2)                        # SIGKILL
        cluster.start_node(2)

Nodes are started as new programs, never forked, as a process that has used gRPC must not fork. Each reads from a pipe
of this process and stops when that is closed, so that no node outlives a killed program.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.dev_layout import CLIENT_FILE, HOST, Layout
from strandline.cluster.node.dev_login import for_owner, with_rights, write_secret
from strandline.cluster.node.run_node import END_WITH_INPUT
from strandline.cluster.node.settings import BROKER, CONTROLLER
from strandline.proto.errors import ConfigError, StrandlineError

FIRST_CONTROLLER = 101
"""Id of the first controller in clusters whose controllers are separate processes."""

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
HAND_OVER_S = 1.0


class DevError(StrandlineError):
    """A node did not start; the message contains the end of its log."""


@dataclass
class NodeProcess:
    """One node of a cluster: its files, and its process while it runs."""

    node_id: int
    config_path: Path
    log_path: Path
    log_start: int = 0
    paused: bool = False
    process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def last_words(self) -> str:
        """Return the end of what the current or last process of the node has logged."""
        with self.log_path.open("rb") as log:
            log.seek(max(self.log_start, self.log_path.stat().st_size - 2000))
            return log.read().decode(errors="replace").strip()


class DevCluster:
    """A development cluster with brokers 1 to `nodes`. Each is a controller too, unless `controllers` is given: then
    that many separate controllers run, with ids from 101.

    Args:
        data_dir: directory of the nodes' data, which is kept; None: a temporary directory, deleted by `stop`.
        nodes: number of brokers; None: as many as the directory has, or three.
        port_base: port for clients of node 1 (see `dev_layout.PORT_BASE`); 0: any free ports.
        secure: every listener speaks TLS, and clients show certificates; `client_properties` has the client's.
        sasl: with `secure`, clients log in by SASL too; `client_properties` has the password.
        settings: settings of every node, by Kafka's names.
        node_settings: settings of single nodes, by node id.

    Not thread-safe.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        nodes: int | None = None,
        controllers: int = 0,
        port_base: int = 0,
        secure: bool = False,
        sasl: bool = False,
        settings: Mapping[str, str] | None = None,
        node_settings: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        self._temporary = data_dir is None
        self.root = Path(tempfile.mkdtemp(prefix="strandline-")) if data_dir is None else Path(data_dir).absolute()
        self._settings = dict(settings or {})
        self._node_settings = {node: dict(given) for node, given in (node_settings or {}).items()}
        self._layout = Layout(self.root, port_base=port_base, secure=secure, sasl=sasl, host_of=self._host)
        there = self._layout.ids(BROKER)
        if nodes is not None and nodes < len(there):
            raise ConfigError("--nodes", nodes, f"at least the {len(there)} nodes whose data are in {self.root}")
        self.broker_ids = there + list(range(len(there) + 1, (nodes or len(there) or 3) + 1))
        self.controller_ids = self._layout.ids(CONTROLLER) or [FIRST_CONTROLLER + n for n in range(controllers)]
        self.controller_ids = self.controller_ids or list(self.broker_ids)
        self._nodes: dict[int, NodeProcess] = {}

    # Life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self, *, wait: bool = True) -> None:
        """Format directories that are not formatted, and start every node that does not run.

        Args:
            wait: return only once every node is ready.

        Raises:
            ConfigError: a setting is invalid.
            PortTaken: another process listens on a port of a node.
            DevError: a node ended, or was not ready in time; every node is stopped.
        """
        try:
            self._prepare()
            starting = [node_id for node_id, node in self._nodes.items() if not node.alive]
            self._check_ports(starting)
            for node_id in starting:
                self._spawn(self._nodes[node_id])
        except BaseException:
            self._layout.release_ports()
            raise
        if wait:
            self.wait_ready()

    def wait_ready(self, nodes: Sequence[int] | None = None, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return once these nodes (None: all that were started) have reported that they are ready.

        Raises:
            DevError: a node ended, or was not ready in time; every node is stopped.
        """
        deadline = time.monotonic() + timeout_s
        for node_id in nodes if nodes is not None else [each for each in self._nodes if self._nodes[each].process]:
            node = self._nodes[node_id]
            try:
                self._read_ready(node, deadline)
            except DevError:
                self.stop()
                raise

    def stop(self) -> None:
        """Stop every node by a controlled shutdown; kill those that do not end. Deletes a temporary directory.

        Brokers are stopped first, all at once, as controllers must agree to their shutdown. A broker that has not
        handed over its leaderships after `HAND_OVER_S` is told not to wait, as no broker is left to take them.
        """
        brokers = [node for node_id, node in self._nodes.items() if node_id in self.broker_ids]
        controllers = [node for node_id, node in self._nodes.items() if node_id not in self.broker_ids]
        for node in controllers:
            self._signal(node, signal.SIGCONT)
        self._stop_together(brokers)
        self._stop_together(controllers)
        self._layout.release_ports()
        if self._temporary:
            shutil.rmtree(self.root, ignore_errors=True)

    def _stop_together(self, nodes: Sequence[NodeProcess]) -> None:
        alive = [node for node in nodes if node.alive]
        for node in alive:
            self._signal(node, signal.SIGCONT)
            self._signal(node, signal.SIGTERM)
        deadline = time.monotonic() + HAND_OVER_S
        for node in alive:
            if not self._ended(node, max(0.0, deadline - time.monotonic())):
                self._signal(node, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for node in nodes:
            self._reap(node, max(0.1, deadline - time.monotonic()))

    # Faults

    def kill(self, node_id: int) -> None:
        """Kill a node by SIGKILL, like a crash; returns when the process has ended."""
        node = self._nodes[node_id]
        self._signal(node, signal.SIGKILL)
        self._reap(node, STOP_TIMEOUT_S)

    def pause(self, node_id: int) -> None:
        """Pause a node by SIGSTOP: it does not answer, and its connections stay open."""
        self._signal(self._nodes[node_id], signal.SIGSTOP)
        self._nodes[node_id].paused = True

    def resume(self, node_id: int) -> None:
        """Resume a paused node by SIGCONT."""
        self._signal(self._nodes[node_id], signal.SIGCONT)
        self._nodes[node_id].paused = False

    def stop_node(self, node_id: int) -> None:
        """Stop a node by SIGTERM, a controlled shutdown; returns when the process has ended."""
        node = self._nodes[node_id]
        self._signal(node, signal.SIGTERM)
        self._reap(node, STOP_TIMEOUT_S)

    def start_node(self, node_id: int, *, wait: bool = True) -> None:
        """Start a stopped or killed node again, on the same ports and data."""
        node = self._nodes[node_id]
        if node.alive:
            raise DevError(f"node {node_id} runs already")
        self._spawn(node)
        if wait:
            self.wait_ready([node_id])

    def add_broker(self, *, wait: bool = True) -> int:
        """Start a new broker with the next free id; returns the id."""
        node_id = max(self.broker_ids) + 1
        self.broker_ids.append(node_id)
        self._prepare()
        self._spawn(self._nodes[node_id])
        if wait:
            self.wait_ready([node_id])
        return node_id

    # Addresses, files and processes

    @property
    def bootstrap(self) -> str:
        """Addresses for clients of all brokers, separated by commas."""
        return ",".join(self.client(node_id) for node_id in self.broker_ids)

    @property
    def responsive(self) -> str:
        """Addresses for clients of the brokers that run and are not paused, separated by commas."""
        awake = [node_id for node_id, node in self._nodes.items() if node.alive and not node.paused]
        clients = [self._layout.places[node_id].client for node_id in awake]
        return ",".join(str(client) for client in clients if client is not None)

    @property
    def node_ids(self) -> list[int]:
        """Ids of all nodes, separate controllers included."""
        return sorted(self._nodes)

    def client(self, node_id: int) -> str:
        """Address for clients of one broker."""
        return str(self._layout.places[node_id].client)

    @property
    def client_properties(self) -> Path | None:
        """File with the settings of a client of a secure cluster; None: the cluster is not secure."""
        return self._layout.certificates / CLIENT_FILE if self._layout.secure else None

    @property
    def super_users(self) -> tuple[str, ...]:
        """Principals that may do everything; empty if the brokers have no authorizer."""
        config = NodeConfig(self._given(self.broker_ids[0]))
        return config.super_users if config.authorizer else ()

    def http(self, node_id: int) -> str:
        """Address of one node's HTTP listener."""
        return str(self._layout.places[node_id].http)

    def data_dir(self, node_id: int) -> str:
        """Log directory of one node."""
        return str(self._layout.directory(node_id))

    def log_path(self, node_id: int) -> str:
        """Path of the file to which one node logs."""
        return str(self._nodes[node_id].log_path)

    def roles(self, node_id: int) -> str:
        """The setting process.roles of one node."""
        return self._layout.places[node_id].roles

    def last_words(self, node_id: int) -> str:
        """Return the end of what the current or last process of a node has logged."""
        return self._nodes[node_id].last_words()

    def exit_code(self, node_id: int) -> int | None:
        """Exit code of a node's process (below 0: the signal that ended it); None while it runs, or after this cluster
        has stopped or killed it."""
        process = self._nodes[node_id].process
        return None if process is None else process.poll()

    def pids(self) -> dict[int, int]:
        """Process ids of the running nodes, by node id."""
        return {
            node_id: node.process.pid
            for node_id, node in self._nodes.items()
            if node.process is not None and node.alive
        }

    def pid(self, node_id: int) -> int:
        """Process id of a node that this cluster has started and not stopped; the process may have ended by itself."""
        process = self._nodes[node_id].process
        assert process is not None
        return process.pid

    # Inside

    def _prepare(self) -> None:
        """Choose ports, format directories and write configurations. Data and ports of an earlier start are kept."""
        roles = dict.fromkeys(self.broker_ids, "broker")
        for node_id in self.controller_ids:
            roles[node_id] = "broker,controller" if node_id in roles else "controller"
        self._layout.add(roles)
        for node_id in roles:
            self._given(node_id)  # invalid settings raise before any file exists that a second attempt would find
        if self._layout.secure:
            self._layout.make_certificates()
        self._make_directories()
        self._layout.format()
        for node_id in roles:
            if node_id not in self._nodes:
                config_path = self.root / f"node-{node_id}.properties"
                self._nodes[node_id] = NodeProcess(node_id, config_path, self.root / f"node-{node_id}.log")
                self._write_settings(node_id)

    def _write_settings(self, node_id: int) -> NodeConfig:
        """Write a node's file, which its next start reads. Raises ConfigError."""
        config = NodeConfig(self._settings_of(node_id))
        lines = (f"{key}={value}\n" for key, value in config.given.items())
        write_secret(self._nodes[node_id].config_path, "".join(lines))
        return config

    def _host(self, node_id: int) -> str:
        """Address at which a node listens; overridden by subclasses that give nodes separate networks."""
        return HOST

    def _check_ports(self, node_ids: Sequence[int]) -> None:
        """Check that the ports are free; raises PortTaken."""
        self._layout.check_ports(node_ids)

    def _make_directories(self) -> None:
        """Hook before the directories are formatted, for subclasses that mount other disks on them."""

    def _settings_of(self, node_id: int) -> dict[str, str]:
        """Return the settings for a node's file; subclasses may change them."""
        return self._given(node_id)

    def _given(self, node_id: int) -> dict[str, str]:
        """Return a node's settings from the layout and the caller. Raises ConfigError."""
        settings = {**self._layout.settings(node_id), **self._settings, **self._node_settings.get(node_id, {})}
        return with_rights(settings, logs_in=self._layout.sasl)

    def _spawn(self, node: NodeProcess) -> None:
        with open(node.log_path, "ab", opener=for_owner) as log:
            node.log_start = log.tell()
            node.process = subprocess.Popen(
                [sys.executable, "-m", "strandline.cluster.node.run_node", str(node.config_path), END_WITH_INPUT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def _read_ready(self, node: NodeProcess, deadline: float) -> None:
        """Wait for the line that a node writes to its standard output once, when it is ready. Raises DevError."""
        assert node.process is not None
        output = node.process.stdout
        if output is None:
            return  # read already
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            said = selector.select(max(0.0, deadline - time.monotonic()))
        line = output.readline() if said else b""
        if not line:
            how = "was not ready in time" if not said else f"ended with exit code {node.process.wait()}"
            raise DevError(f"node {node.node_id} {how}; its log ends:\n{node.last_words()}")
        output.close()
        node.process.stdout = None

    @staticmethod
    def _signal(node: NodeProcess, number: signal.Signals) -> None:
        if node.process is not None and node.process.poll() is None:
            node.process.send_signal(number)

    @staticmethod
    def _ended(node: NodeProcess, timeout_s: float) -> bool:
        assert node.process is not None
        try:
            node.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    @staticmethod
    def _reap(node: NodeProcess, timeout_s: float) -> None:
        process = node.process
        if process is None:
            return
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        node.process = None
