"""Rows S91 and S93: clients that log in. Other people's clients and tools on a cluster of `strandline dev --sasl`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.cluster.node.config_values import read_file
from strandline.cluster.node.dev import DevCluster
from strandline.cluster.node.dev_login import KCAT_FILE, PASSWORD_FILE
from tests.acceptance.foreign import kafka_tools, kcat, needs_kcat


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(secure=True, sasl=True) as running:
        with Admin(running.bootstrap, **settings(running)) as admin:
            admin.create_topics([NewTopic("orders", 1, 3)])
        yield running


def settings(cluster: DevCluster) -> dict[str, str]:
    return {key.replace(".", "_"): text for key, text in read_file(str(cluster.client_properties)).items()}


def beside(cluster: DevCluster, name: str) -> Path:
    assert cluster.client_properties is not None
    return cluster.client_properties.with_name(name)


@needs_kcat
def test_who_knows_the_password_lists_topics_and_nobody_else(cluster: DevCluster, tmp_path: Path) -> None:
    """Row S91, with its message; and row S93: the same command without a login says what it met."""
    right = beside(cluster, KCAT_FILE)
    assert 'topic "orders"' in kcat("-F", str(right), "-b", cluster.bootstrap, "-L")
    wrong = tmp_path / "wrong.conf"
    wrong.write_text(right.read_text() + "sasl.password=wrong\n")
    said = kcat("-F", str(wrong), "-b", cluster.bootstrap, "-L", "-m", "5", fails=True)
    assert "orders" not in said
    assert "Authentication failed due to invalid credentials with SASL mechanism SCRAM-SHA-512" in said
    ca = f"ssl.ca.location={beside(cluster, 'ca.pem')}"
    said = kcat("-b", cluster.bootstrap, "-L", "-m", "5", "-X", "security.protocol=ssl", "-X", ca, fails=True)
    assert "orders" not in said


def test_records_survive_a_killed_node_and_its_user_too(cluster: DevCluster) -> None:
    """Every node has the users by its own replay; passwords that change do not lose a record."""
    own = settings(cluster)
    with Producer(cluster.bootstrap, **own) as producer:
        producer.send("orders", b"one", partition=0).result()
        cluster.kill(1)
        producer.send("orders", b"two", partition=0).result()
        cluster.start_node(1)
        producer.send("orders", b"three", partition=0).result()
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest", **own) as consumer:
        consumer.assign([("orders", 0)])
        assert [next(consumer).value for _ in range(3)] == [b"one", b"two", b"three"]


def test_kafkas_own_tools_change_users(cluster: DevCluster, tmp_path: Path) -> None:
    """`kafka-configs.sh` sets a password, and takes it away; who has it lists topics. Java's own SCRAM."""
    tools = kafka_tools(cluster.bootstrap)
    config = ["--command-config", str(cluster.client_properties)]
    of_erin = ["--entity-type", "users", "--entity-name", "erin"]
    erin = tmp_path / "erin.properties"
    given = beside(cluster, "client.properties").read_text()
    password = beside(cluster, PASSWORD_FILE).read_text().strip()
    erin.write_text(given.replace('username="dev"', 'username="erin"').replace(password, "pass-of-erin"))
    try:
        changed = "SCRAM-SHA-512=[iterations=8192,password=pass-of-erin]"
        said = tools.run("kafka-configs", *config, "--alter", "--add-config", changed, *of_erin)
        assert "Completed updating config for user erin" in said
        assert "orders" in tools.run("kafka-topics", "--command-config", str(erin), "--list")
        with Admin(cluster.bootstrap, **settings(cluster)) as admin:
            assert admin.describe_scram_credentials(["erin"])["erin"][0].iterations == 8192
            tools.run("kafka-configs", *config, "--alter", "--delete-config", "SCRAM-SHA-512", *of_erin)
            assert "erin" not in admin.describe_scram_credentials()
    finally:
        tools.stop()


def test_the_password_stands_in_no_log_and_no_data(cluster: DevCluster) -> None:
    password = beside(cluster, PASSWORD_FILE).read_text().strip().encode()
    assert beside(cluster, "client.properties").stat().st_mode & 0o77 == 0
    for node_id in cluster.node_ids:
        files = [Path(cluster.log_path(node_id)), *Path(cluster.data_dir(node_id)).rglob("*")]
        assert not [path for path in files if path.is_file() and password in path.read_bytes()]


def test_sasl_needs_tls_and_a_cluster_that_was_made_with_it(tmp_path: Path) -> None:
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-m", "strandline.cli.main", "dev", "--sasl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "add --secure" in done.stderr
    with DevCluster(tmp_path / "c", nodes=1, secure=True):
        pass
    with pytest.raises(Exception, match="--fresh begins anew"):
        DevCluster(tmp_path / "c", nodes=1, secure=True, sasl=True).start()
