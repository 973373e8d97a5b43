"""A cluster of real processes."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from strandline.client import Admin, ConfigResource, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster, DevError
from strandline.cluster.node.dev_layout import PortTaken
from strandline.proto.errors import ConfigError


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with DevCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "in time"
        time.sleep(0.02)


def test_every_node_says_that_it_is_ready(cluster: DevCluster) -> None:
    """Row S98: ready means unfenced, on every node."""
    for node_id in cluster.node_ids:
        with urllib.request.urlopen(f"http://{cluster.http(node_id)}/readyz") as answer:
            assert json.loads(answer.read())["node_id"] == node_id


def test_a_node_at_rest_is_small(cluster: DevCluster) -> None:
    """Issue, speed and memory: <= 70 MB RSS a node at rest."""
    for pid in cluster.pids().values():
        assert psutil.Process(pid).memory_info().rss <= 70 * 1024 * 1024


def test_a_killed_leader_is_replaced_and_comes_back(cluster: DevCluster) -> None:
    """Row S38: SIGKILL, the next ack comes soon; what was acknowledged stays; the node starts again on the same
    ports."""
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topics([NewTopic("killed", 1, 3)])
        assert producer.send("killed", b"before").result(20).offset == 0
        [described] = admin.describe_topics(["killed"])
        leader = described.partitions[0].leader
        assert leader is not None
        cluster.kill(leader)
        assert producer.send("killed", b"after").result(20).offset == 1
        cluster.start_node(leader)

        def in_sync() -> bool:
            [now] = admin.describe_topics(["killed"])
            return set(now.partitions[0].isr) == {1, 2, 3}

        until(in_sync)


def test_brokers_and_controllers_as_processes_of_their_own() -> None:
    """Roles: brokers alone observe the quorum; its leader is described from any of them."""
    with DevCluster(nodes=1, controllers=1) as split:
        assert split.node_ids == [1, 101]
        with Admin(split.bootstrap) as admin:
            quorum = admin.describe_quorum()
            assert [voter.node_id for voter in quorum.voters] == [101]
            assert [observer.node_id for observer in quorum.observers] == [1]
            admin.create_topics([NewTopic("t", 1, 1)])
        with Producer(split.bootstrap) as producer:
            assert producer.send("t", b"x").result(20).replicas == (1,)
        with urllib.request.urlopen(f"http://{split.http(101)}/metrics") as answer:
            assert b"kafka_controller_kafkacontroller_activecontrollercount 1.0" in answer.read()


def test_a_cluster_keeps_its_data_over_a_restart(tmp_path: Path) -> None:
    """--data-dir keeps records, ports and the cluster's id; a different number of nodes below is refused."""
    with DevCluster(tmp_path, nodes=1) as first, Producer(first.bootstrap) as producer:
        with Admin(first.bootstrap) as admin:
            admin.create_topics([NewTopic("kept", 1, 1)])
        producer.send("kept", b"x").result(20)
        bootstrap = first.bootstrap
    with DevCluster(tmp_path) as second:
        assert second.bootstrap == bootstrap
        with Admin(second.bootstrap) as admin:
            assert admin.list_offsets({("kept", 0): -1})[("kept", 0)].offset == 1  # type: ignore[index]


def test_fewer_nodes_than_there_are_is_refused(tmp_path: Path) -> None:
    """Nodes left out would take a majority of the quorum with them."""
    there = DevCluster(tmp_path, nodes=3)
    there._prepare()
    with pytest.raises(ConfigError, match="at least the 3 nodes"):
        DevCluster(tmp_path, nodes=1)


def test_a_taken_port_names_its_holder_and_the_option(tmp_path: Path) -> None:
    """Bad input, a taken port."""
    with socket.socket() as held:
        # A free one of those that a base of at most 50,000 leads to: the kernel also gives out higher ones.
        for place in range(40_001, 50_000):
            try:
                held.bind(("127.0.0.1", place))
                break
            except OSError:
                continue
        held.listen(1)
        port = held.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"process {os.getpid()} .*--port-base") as raised:
            DevCluster(tmp_path, nodes=1, port_base=port).start()
        assert raised.value.port == port


def test_a_wrong_setting_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Bad input: a sentence at once, not a log of a dead node."""
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions"):
        DevCluster(tmp_path, nodes=1, settings={"num.partition": "3"}).start()


def test_a_node_that_cannot_start_tells_its_last_words(tmp_path: Path) -> None:
    """The error of a child is the error that its parent shows."""
    cluster = DevCluster(tmp_path, nodes=1)
    cluster._prepare()
    (Path(cluster.data_dir(1)) / "replica-directories").write_text("half a li")
    with pytest.raises(DevError, match=r"(?s)exit code 1.*replica-directories"):
        cluster.start()


def test_strandline_dev_for_programs(tmp_path: Path) -> None:
    """`strandline dev --output json`: one line when ready, one when a node dies, none restarted; SIGINT stops all; and
    `kill -9` of the program leaves no node behind."""
    command = [sys.executable, "-m", "strandline.cli.main", "dev", "--port-base", "0", "--output", "json"]
    command += ["--nodes", "3", "--data-dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        assert ready["event"] == "ready"
        pids = [node["pid"] for node in ready["nodes"]]
        os.kill(pids[0], signal.SIGKILL)
        ended = json.loads(process.stdout.readline())
        assert (ended["event"], ended["node_id"], ended["exit_code"]) == ("ended", 1, -signal.SIGKILL)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert all(gone(pid) for pid in pids)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        pids = [node["pid"] for node in json.loads(process.stdout.readline())["nodes"]]
        process.kill()
        process.wait()
    until(lambda: all(gone(pid) for pid in pids))


DIES_WHEN_READY = """
import os, signal, sys
from strandline.cli import dev
from strandline.cli.main import main

when, *words = sys.argv[1:]
tell = dev._tell_ready

def kill_node_1(cluster):
    os.kill(cluster.pid(1), signal.SIGKILL)
    while cluster.exit_code(1) is None:
        pass

def tell_and_kill(cluster, *args, **kwargs):
    if when == "before":
        kill_node_1(cluster)
    tell(cluster, *args, **kwargs)
    if when == "behind":
        kill_node_1(cluster)

dev._tell_ready = tell_and_kill
main(words)
"""


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_node_that_dies_before_dev_first_looks_is_told(tmp_path: Path, when: str) -> None:
    """It was ready, and dead when dev began to watch: its end was told by nobody, and who waited for it hung."""
    words = ["dev", "--port-base", "0", "--output", "json", "--nodes", "2", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-c", DIES_WHEN_READY, when, *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert [node["node_id"] for node in ready["nodes"]] == [1, 2]
        told = select.poll()  # unlike select() it takes descriptors above 1023
        told.register(process.stdout, select.POLLIN)
        until(lambda: bool(told.poll(0)))
        ended = json.loads(process.stdout.readline())
        assert (ended["event"], ended["node_id"], ended["exit_code"]) == ("ended", 1, -signal.SIGKILL)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_groups_of_dev_wait_a_moment_for_members(cluster: DevCluster) -> None:
    """kafka-python's consumer forgets its assignment in a group that forms at once (1 of 10), with 150 ms in none."""
    resource = ConfigResource("broker", "1")
    with Admin(cluster.bootstrap) as admin:
        values = {entry.name: entry.value for entry in admin.describe_configs([resource])[resource]}
    assert values["group.initial.rebalance.delay.ms"] == "150"
