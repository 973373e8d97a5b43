"""RabbitMQ as a peer: three clustered nodes, durable quorum queues, publisher confirms.

Debian's packages are unpacked into the user's cache and run from there, in folders of their own and with a port mapper
of their own: a RabbitMQ of the system, if there is one, is not touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.clusters import end, free_port
from bench.driven import PeerFailed
from bench.fetched import cache, need, run

PACKAGES = (
    "rabbitmq-server",
    *(
        f"erlang-{part}"
        for part in (
            "base",
            "asn1",
            "crypto",
            "eldap",
            "inets",
            "mnesia",
            "os-mon",
            "parsetools",
            "public-key",
            "runtime-tools",
            "ssl",
            "syntax-tools",
            "tools",
            "xmerl",
        )
    ),
)
NODES = (1, 2, 3)
COOKIE = "STRANDLINEBENCH"
COMMAND_TIMEOUT_S = 60


class RabbitCluster:
    """Three nodes of 127.0.0.1 with every default; a quorum queue syncs its log before it confirms."""

    system = "rabbitmq"
    window = 4_096
    name = "rabbitmq, quorum queues"

    def __init__(self) -> None:
        tree = unpacked()
        self._erlang = tree / "usr/lib/erlang"
        [self._home] = (tree / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")
        self._root = Path(tempfile.mkdtemp(prefix="rabbitmq-bench-"))
        self._ports = {node: free_port() for node in NODES}
        self._peer_ports = {node: free_port() for node in NODES}
        self._mapper_port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        cookie = self._root / ".erlang.cookie"
        cookie.write_text(COOKIE)
        cookie.chmod(0o400)
        (self._root / "plugins").write_text("[].\n")
        (self._root / "environment").write_text("")
        for node, port in self._ports.items():
            (self._root / f"n{node}.conf").write_text(
                f"listeners.tcp.1 = 127.0.0.1:{port}\n"
                "cluster_formation.peer_discovery_backend = classic_config\n"
                + "".join(f"cluster_formation.classic_config.nodes.{each} = n{each}@localhost\n" for each in NODES)
                + "log.file = false\nlog.console = true\nlog.console.level = warning\n"
            )

    def _environment(self, node: int) -> dict[str, str]:
        root = str(self._root)
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))},
            "PATH": f"{self._erlang}/bin:{os.environ['PATH']}",
            "HOME": root,
            "RUNNING_UNDER_SYSTEMD": "1",  # the start script becomes the node, rather than waiting for it
            "ERL_EPMD_PORT": str(self._mapper_port),
            "RABBITMQ_NODENAME": f"n{node}@localhost",
            "RABBITMQ_DIST_PORT": str(self._peer_ports[node]),
            "RABBITMQ_CONF_ENV_FILE": f"{root}/environment",
            "RABBITMQ_CONFIG_FILE": f"{root}/n{node}.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{root}/none.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{root}/plugins",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{root}/g{node}",
            "RABBITMQ_MNESIA_BASE": f"{root}/d{node}",
            "RABBITMQ_LOG_BASE": f"{root}/l{node}",
            "RABBITMQ_PID_FILE": f"{root}/n{node}.pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def _spawn(self, name: str, command: list[str], node: int) -> None:
        with (self._root / f"{name}.out").open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(node),
                start_new_session=True,
            )
        self._processes.append(process)

    def start(self) -> None:
        [mapper] = self._erlang.glob("erts-*/bin/epmd")
        self._spawn("epmd", [str(mapper), "-address", "127.0.0.1", "-port", str(self._mapper_port)], 1)
        for node in NODES:
            self._spawn(f"n{node}", [str(self._home / "sbin/rabbitmq-server")], node)

    @property
    def addresses(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def pids(self) -> dict[int, int]:
        nodes = zip(NODES, self._processes[1:], strict=True)
        return {node: process.pid for node, process in nodes if process.poll() is None}

    def check(self) -> None:
        command = [str(self._home / "sbin/rabbitmqctl"), "--quiet", "list_queues", "name", "members"]
        try:
            done = subprocess.run(
                command,
                env=self._environment(1),
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PeerFailed(f"rabbitmqctl did not end within {COMMAND_TIMEOUT_S} s") from error
        if not all(f"n{node}@localhost" in done.stdout for node in NODES):
            raise PeerFailed(f"the queue has not three members: {(done.stdout + done.stderr).strip()[-200:]}")

    def stop(self) -> None:
        end(self._processes)
        shutil.rmtree(self._root, ignore_errors=True)


def unpacked() -> Path:
    """Debian's packages, fetched and unpacked once into the user's cache.

    Raises:
        Unavailable: this is no Debian, or its archive is not reached.
    """
    need("apt-get", "dpkg", what_for="RabbitMQ, taken from Debian's packages,")
    folder = cache() / "rabbitmq"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run(["apt-get", "download", *PACKAGES], folder, "apt-get download")
        for package in sorted(folder.glob("*.deb")):
            run(["dpkg", "-x", package.name, "."], folder, "dpkg -x")
            package.unlink()
        for script in folder.glob("usr/lib/erlang/**/bin/erl"):
            script.write_text(script.read_text().replace("=/usr/lib/erlang", f"={folder}/usr/lib/erlang"))
        (folder / "complete").touch()
    return folder
