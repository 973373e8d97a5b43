"""Three nodes to be measured: Strandline, or Apache Kafka as a peer, behind one small interface."""

from __future__ import annotations

import compileall
import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psutil

import strandline
from bench.fetched import cache, need, run
from bench.secured import SecuredKafka, librdkafka_settings, reached_by

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

KAFKA_VERSION = "4.3.0"
KAFKA_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
KAFKA_HEAP = ("-Xms512m", "-Xmx512m")


class Cluster(Protocol):
    """A running cluster of three."""

    name: str

    def start(self) -> None:
        """Start three nodes with empty data; returns once the processes run (not once they are ready)."""

    @property
    def bootstrap(self) -> str: ...

    def pids(self) -> dict[int, int]:
        """Node id -> process id, of those alive."""

    def kill(self, node_id: int) -> None:
        """SIGKILL."""

    def start_node(self, node_id: int) -> None:
        """Start a killed node again, on its data; returns once the process runs."""

    def stop(self) -> None:
        """End every process and delete the data."""


class StrandlineCluster:
    """`strandline dev` as a user has it: sync before ack, every default."""

    name = "strandline"

    def __init__(self, settings: dict[str, str] | None = None, *, security: str = "none") -> None:
        from strandline.cluster.node.dev import DevCluster

        # As pip does when it installs; without bytecode the nodes of a checkout would compile all of it at each start.
        compileall.compile_dir(Path(strandline.__file__).parent, quiet=1)
        self._root = tempfile.mkdtemp(prefix="strandline-bench-")
        self._cluster = DevCluster(
            data_dir=self._root, settings=settings or {}, secure=security != "none", sasl=security == "sasl"
        )

    def start(self) -> None:
        self._cluster.start(wait=False)
        reached_by(self._cluster.client_properties)

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def pids(self) -> dict[int, int]:
        return self._cluster.pids()

    def kill(self, node_id: int) -> None:
        self._cluster.kill(node_id)

    def start_node(self, node_id: int) -> None:
        self._cluster.start_node(node_id, wait=False)

    def stop(self) -> None:
        reached_by(None)
        self._cluster.stop()
        shutil.rmtree(self._root, ignore_errors=True)


class KafkaCluster:
    """Apache Kafka from its Maven artifacts, three combined nodes, its default of no sync before the ack."""

    name = f"kafka {KAFKA_VERSION}"

    def __init__(self, settings: dict[str, str] | None = None, *, sasl: bool = False) -> None:
        self._settings = settings or {}
        self._jars = kafka_jars()
        self._root = Path(tempfile.mkdtemp(prefix="kafka-bench-"))
        self._ports = {node: free_port() for node in (1, 2, 3)}
        self._controller_ports = {node: free_port() for node in (1, 2, 3)}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._secured: SecuredKafka | None = None
        if sasl:
            internal = {node: free_port() for node in self._ports}
            self._secured = SecuredKafka(self._root / "certificates", internal)
        (self._root / "log4j2.properties").write_text(
            "status=off\nname=x\nappenders=c\nappender.c.type=Console\nappender.c.name=c\n"
            "appender.c.layout.type=PatternLayout\nrootLogger.level=warn\nrootLogger.appenderRefs=c\n"
            "rootLogger.appenderRef.c.ref=c\n"
        )
        for node in self._ports:
            self._write_properties(node)
            users = [] if self._secured is None else self._secured.format_options()
            format_it = ["format", "-t", KAFKA_CLUSTER_ID, "-c", self._properties(node), *users]
            subprocess.run(
                self._java("kafka.tools.StorageTool", *format_it),
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def _properties(self, node: int) -> str:
        return str(self._root / f"n{node}.properties")

    def _write_properties(self, node: int) -> None:
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in self._controller_ports.items())
        Path(self._properties(node)).write_text(
            f"process.roles=broker,controller\nnode.id={node}\ncontroller.quorum.voters={voters}\n"
            "controller.listener.names=CONTROLLER\n"
            f"log.dirs={self._root}/d{node}\ndefault.replication.factor=3\nmin.insync.replicas=2\n"
            "offsets.topic.replication.factor=3\noffsets.topic.num.partitions=3\n"
            "transaction.state.log.replication.factor=3\ntransaction.state.log.min.isr=2\n"
            "group.initial.rebalance.delay.ms=150\n"
            + "".join(f"{key}={value}\n" for key, value in {**self._listeners(node), **self._settings}.items())
        )

    def _listeners(self, node: int) -> dict[str, str]:
        client, controller = self._ports[node], self._controller_ports[node]
        if self._secured is not None:
            return self._secured.settings(node, client, controller)
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
            "inter.broker.listener.name": "PLAINTEXT",
        }

    def _java(self, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self._root}/log4j2.properties"
        return ["java", *KAFKA_HEAP, "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", logging, "-cp", self._jars, *arguments]

    def start(self) -> None:
        for node in self._ports:
            self.start_node(node)
        reached_by(None if self._secured is None else self._secured.client_properties)

    def start_node(self, node_id: int) -> None:
        with (self._root / f"n{node_id}.out").open("ab") as output:
            self._processes[node_id] = subprocess.Popen(
                self._java("kafka.Kafka", self._properties(node_id)),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def pids(self) -> dict[int, int]:
        return {node: process.pid for node, process in self._processes.items() if process.poll() is None}

    def kill(self, node_id: int) -> None:
        self._processes[node_id].send_signal(signal.SIGKILL)
        self._processes[node_id].wait()

    def stop(self) -> None:
        reached_by(None)
        end(self._processes.values())
        shutil.rmtree(self._root, ignore_errors=True)


def end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """SIGKILL each process and all that it started, and wait for them."""
    started = list(processes)
    below: list[psutil.Process] = []
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            below += psutil.Process(process.pid).children(recursive=True)
        process.kill()
    for child in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    for process in started:
        process.wait()
    psutil.wait_procs(below, timeout=10)


def end_as_asked() -> None:
    """SIGTERM ends this program as Ctrl-C does: whatever it has started is stopped first."""

    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, leave)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def kafka_jars() -> str:
    """The class path of Apache Kafka. Raises Unavailable."""
    artifacts = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-nop:2.0.16")
    return f"{maven_jars('Apache Kafka', KAFKA_VERSION, artifacts)}/*"


def maven_jars(what: str, name: str, artifacts: Sequence[str], only: Sequence[str] = ()) -> Path:
    """Artifacts (group:artifact:version, or group:artifact:version:classifier) and all they need, fetched by Maven once
    into the user's cache; its folder.

    Args:
        name: the folder's name.
        only: copy these alone (their names without group and version).

    Raises:
        Unavailable: no Java, no Maven, Maven Central is not reached, or has no such artifact.
    """
    need("java", "mvn", what_for=what)
    folder = cache() / name
    done = folder / "complete"
    if done.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(_dependency(*artifact.split(":")) for artifact in artifacts)
    (folder / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>bench</groupId>'
        f"<artifactId>bench</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
    )
    command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    chosen = [f"-DincludeArtifactIds={','.join(only)}"] if only else []
    command += [*chosen, f"-DoutputDirectory={folder}"]
    run(command, folder, f"{what}: fetching {artifacts[0]} with Maven")
    done.touch()
    return folder


def _dependency(group: str, artifact: str, version: str, classifier: str = "") -> str:
    """As a pom names it."""
    names = {"groupId": group, "artifactId": artifact, "version": version, "classifier": classifier}
    return f"<dependency>{''.join(f'<{name}>{text}</{name}>' for name, text in names.items() if text)}</dependency>"


def rss_mb(pids: dict[int, int]) -> float:
    """Mean resident memory of the processes, in MB (10^6 bytes)."""
    sizes = [psutil.Process(pid).memory_info().rss for pid in pids.values()]
    return sum(sizes) / len(sizes) / 1e6


def cpu_seconds(pids: dict[int, int]) -> float:
    """User and system time of the processes so far, from the process table."""
    total = 0.0
    for pid in pids.values():
        times = psutil.Process(pid).cpu_times()
        total += times.user + times.system
    return total


def admin_client(bootstrap: str, **settings: int) -> AdminClient:
    """confluent-kafka's, which logs nothing."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **librdkafka_settings(), **settings})


def wait_ready(bootstrap: str, timeout_s: float = 60) -> None:
    """Return when three brokers are seen, and a controller: librdkafka's admin, told of none, waits for long.

    Raises:
        TimeoutError: not within the time.
    """
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + timeout_s
    admin = admin_client(bootstrap, **{"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50})
    while time.monotonic() < deadline:
        with contextlib.suppress(KafkaException):
            found = admin.list_topics(timeout=1)
            if len(found.brokers) == 3 and found.controller_id >= 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"no three brokers at {bootstrap} within {timeout_s} s")
