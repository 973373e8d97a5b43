"""`strandline dev --secure`: three processes whose listeners all speak TLS; what it prints is run."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.client import Consumer, Producer
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_values import read_file
from strandline.cluster.node.dev import DevCluster
from strandline.cluster.node.settings import STANDARD_AUTHORIZER
from strandline.proto.errors import ConfigError

STRANDLINE = (sys.executable, "-m", "strandline.cli.main")


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(secure=True) as running:
        yield running


def settings(cluster: DevCluster) -> dict[str, str]:
    assert cluster.client_properties is not None
    return read_file(str(cluster.client_properties))


def test_a_secure_cluster_replicates_and_survives_a_killed_node(cluster: DevCluster) -> None:
    """Votes, registration, replication: all of it over mutual TLS; a node that comes back is let in again."""
    make = [*STRANDLINE, "topic", "create", "t", "-b", cluster.bootstrap]
    done = subprocess.run(
        [*make, "--command-config", str(cluster.client_properties)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    client = {key.replace(".", "_"): value for key, value in settings(cluster).items()}
    with Producer(cluster.bootstrap, **client) as producer:
        assert len(producer.send("t", b"one", partition=0).result().replicas) == 3
        cluster.kill(1)
        producer.send("t", b"two", partition=0).result()
        cluster.start_node(1)
        producer.send("t", b"three", partition=0).result()
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest", **client) as consumer:
        consumer.assign([("t", 0)])
        assert [next(consumer).value for _ in range(3)] == [b"one", b"two", b"three"]


def test_no_listener_speaks_plaintext(cluster: DevCluster) -> None:
    """An alert answers what is no TLS, on each port; without a certificate neither clients nor nodes come in."""
    file = (cluster.root / "node-1.properties").read_text()
    ports = [int(port) for port in re.findall(r"://127\.0\.0\.1:(\d+)", file)]
    assert len(ports) == 3
    for port in ports:
        with socket.create_connection(("127.0.0.1", port), 10) as plain:
            plain.sendall(bytes(16))
            assert plain.recv(16)[:2] == b"\x15\x03"
    trusting = ssl.create_default_context(cafile=settings(cluster)["ssl.truststore.location"])
    http, *others = sorted(ports, key=lambda port: f":{port}" not in cluster.http(1))
    with urllib.request.urlopen(f"https://127.0.0.1:{http}/readyz", context=trusting, timeout=10) as page:
        assert page.status == 200
    for port in others:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as raw,
            trusting.wrap_socket(raw, server_hostname="127.0.0.1") as encrypted,
            pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
        ):
            encrypted.recv(1)


def test_no_secret_and_no_complaint_stands_in_what_the_nodes_wrote(cluster: DevCluster) -> None:
    keys = [path.read_text().splitlines()[1] for path in cluster.root.glob("certs/*.pem") if "KEY" in path.read_text()]
    assert len(keys) == 4
    for node_id in cluster.node_ids:
        log = Path(cluster.log_path(node_id)).read_text()
        assert "refused an internal call" not in log
        assert not any(key in log for key in keys)


ASKS = {"authorizer.class.name": STANDARD_AUTHORIZER}
MAPPED = {"ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/U"}


@pytest.mark.parametrize(
    ("sasl", "settings", "super_users"),
    [
        (True, ASKS, ("User:dev",)),
        (False, ASKS, ("User:CN=dev",)),
        (False, ASKS | MAPPED, ("User:DEV",)),
        (True, ASKS | {"super.users": "User:ann;User:bob"}, ("User:ann", "User:bob", "User:dev")),
        (True, ASKS | {"super.users": "User:dev"}, ("User:dev",)),
        (True, ASKS | {"allow.everyone.if.no.acl.found": "true"}, ("User:dev",)),
        (True, {}, ()),
    ],
)
def test_its_user_may_do_everything(
    tmp_path: Path, sasl: bool, settings: dict[str, str], super_users: tuple[str, ...]
) -> None:
    """Where the nodes ask who may do what, beside whoever else may; where they do not, nothing is set."""
    DevCluster(tmp_path / "c", nodes=1, secure=True, sasl=sasl, settings=settings)._prepare()
    written = NodeConfig.load(str(tmp_path / "c" / "node-1.properties"), {}, {})
    assert written.super_users == super_users


@pytest.mark.parametrize(
    ("secure", "sasl", "settings", "said"),
    [
        (False, False, ASKS, "add --secure, or --secure --sasl"),
        (False, False, ASKS | {"super.users": "User:ann"}, "add --secure, or --secure --sasl"),
        (True, False, ASKS | {"ssl.client.auth": "none"}, "User:ANONYMOUS, and may do nothing"),
        (True, True, {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}, "SCRAM-SHA-512 among them: the user dev"),
    ],
)
def test_what_would_lock_its_user_out_is_refused(
    tmp_path: Path, secure: bool, sasl: bool, settings: dict[str, str], said: str
) -> None:
    """The second attempt finds nothing of the first one."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        DevCluster(tmp_path / "c", nodes=1, secure=secure, sasl=sasl, settings=settings)._prepare()
    DevCluster(tmp_path / "c", nodes=1, secure=True, sasl=True, settings=ASKS)._prepare()


@pytest.mark.parametrize("settings", [{"super.users": "User:ANONYMOUS"}, {"allow.everyone.if.no.acl.found": "true"}])
def test_what_lets_everybody_in_is_nobodys_mistake(tmp_path: Path, settings: dict[str, str]) -> None:
    DevCluster(tmp_path / "c", nodes=1, settings=ASKS | settings)._prepare()


def test_what_it_prints_is_true_where_brokers_ask(tmp_path: Path) -> None:
    """The printed user makes topics and ACLs; what it gives to others are ACLs."""
    flags = ["--secure", "--sasl", "-X", f"authorizer.class.name={STANDARD_AUTHORIZER}"]
    command = [*STRANDLINE, "dev", *flags, "--nodes", "1", "--port-base", "0", "--data-dir", str(tmp_path / "c")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as dev:
        assert dev.stdout is not None
        try:
            lines = []
            for line in dev.stdout:
                lines.append(line.strip())
                if "Ctrl-C stops the cluster" in line:
                    break
            printed = [line for line in lines if line.startswith("strandline ")]
            assert [line.split()[1] for line in printed] == ["topic", "acl"]
            for ours in printed:
                done = subprocess.run(
                    [*STRANDLINE, *shlex.split(ours)[1:]], capture_output=True, text=True, timeout=60, check=False
                )
                assert done.returncode == 0, done.stderr
        finally:
            dev.send_signal(signal.SIGINT)
            dev.wait(60)


def test_what_it_prints_is_true(tmp_path: Path) -> None:
    """Each printed command, as printed, where the program is installed."""
    command = [*STRANDLINE, "dev", "--secure", "--nodes", "1", "--port-base", "0", "--data-dir", str(tmp_path / "c")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as dev:
        assert dev.stdout is not None
        try:
            lines = []
            for line in dev.stdout:
                lines.append(line.strip())
                if "Ctrl-C stops the cluster" in line:
                    break
            [ours] = [line for line in lines if line.startswith("strandline ")]
            done = subprocess.run(
                [*STRANDLINE, *shlex.split(ours)[1:]], capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stderr
            [kcat] = [line for line in lines if line.startswith("kcat ")]
            if shutil.which("kcat"):
                listed = subprocess.run(shlex.split(kcat), capture_output=True, text=True, timeout=60, check=True)
                assert "orders" in listed.stdout
            [curl] = [line for line in lines if line.startswith("curl ")]
            [table] = [line for line in lines if "/metrics" in line]
            url = next(word for word in table.split() if word.startswith("https://"))
            if shutil.which("curl"):
                page = subprocess.run(
                    [*shlex.split(curl)[:3], url], capture_output=True, text=True, timeout=60, check=True
                )
                assert "kafka_server" in page.stdout
        finally:
            dev.send_signal(signal.SIGINT)
            dev.wait(60)
