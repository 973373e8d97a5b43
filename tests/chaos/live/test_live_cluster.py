"""Real processes: each fault does what it says, and everything is undone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from strandline.chaos.checkers.history import Partition
from strandline.chaos.live.cluster import LiveCluster, can_mount, why_no_mount
from strandline.chaos.live.replicas import compare
from strandline.client import Admin, NewTopic, Producer
from strandline.cluster.node.dev import DevError

QUICK = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "1500",
}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiveCluster]:
    with LiveCluster(settings=QUICK, disk_bytes=192 << 20) as running:
        yield running


def topic(cluster: LiveCluster, name: str, **configs: str) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 3, {key.replace("_", "."): value for key, value in configs.items()})])
    cluster.wait_isr(name)


def send(cluster: LiveCluster, name: str, *values: bytes) -> None:
    with Producer(cluster.responsive, linger_ms=0, request_timeout_ms=2000) as producer:
        for future in [producer.send(name, value) for value in values]:
            future.result(40)


def test_an_isolated_leader_is_replaced_and_comes_back(cluster: LiveCluster) -> None:
    """A cut of everything between one node and the others; clients reach the new leader through `responsive`."""
    topic(cluster, "isolated")
    old = cluster.leader("isolated")
    cluster.isolate(old)
    assert str(cluster.client(old)) not in cluster.responsive
    others = {node for node in cluster.broker_ids if node != old}
    cluster.wait_isr("isolated", members=others)
    send(cluster, "isolated", b"x")
    cluster.heal()
    cluster.wait_isr("isolated")
    assert compare(cluster, [Partition("isolated", 0)]) == []


def test_a_cut_between_two_followers_harms_nobody(cluster: LiveCluster) -> None:
    """A cut is between a pair: who leads, and is reached by both, goes on with all in sync."""
    topic(cluster, "pair")
    leader = cluster.leader("pair")
    controller = cluster.controller()
    one, two = (node for node in cluster.broker_ids if node != leader)
    if controller == leader:
        cluster.partition(one, two)
        send(cluster, "pair", b"x")
        cluster.wait_isr("pair")
        assert cluster.leader("pair") == leader
    else:
        cluster.partition(one, two, one_way=True)
        send(cluster, "pair", b"x")
    cluster.heal()
    cluster.wait_isr("pair")


@pytest.mark.skipif(not can_mount(), reason=why_no_mount() or "")
def test_a_full_disk_stops_its_replica_alone_and_room_heals_it(cluster: LiveCluster) -> None:
    """disk-full: the node runs on; with room again its replica catches up."""
    topic(cluster, "full", min_insync_replicas="1")
    leader = cluster.leader("full")
    victim = next(node for node in cluster.broker_ids if node != leader)
    pid = cluster.pids()[victim]
    cluster.fill_disk(victim)
    send(cluster, "full", *(b"x" * 5000 for _ in range(1500)))
    cluster.wait_isr("full", members=set(cluster.broker_ids) - {victim})
    cluster.free_disk(victim)
    cluster.wait_isr("full")
    assert cluster.pids()[victim] == pid
    assert compare(cluster, [Partition("full", 0)]) == []


def test_a_wiped_node_comes_back_as_itself(cluster: LiveCluster) -> None:
    """wiped-dir: an empty directory, the same node; it has everything again."""
    topic(cluster, "wiped")
    send(cluster, "wiped", *(b"%d" % number for number in range(100)))
    victim = cluster.leader("wiped")
    with pytest.raises(DevError, match="runs"):
        cluster.wipe(victim)
    cluster.kill(victim)
    cluster.wipe(victim)
    assert not Path(cluster.data_dir(victim), "wiped-0").exists()
    cluster.start_node(victim)
    cluster.wait_isr("wiped")
    assert compare(cluster, [Partition("wiped", 0)]) == []


def test_a_slow_disk_delays_acks(cluster: LiveCluster) -> None:
    """slow-disk: through the node's own fault hook; healing undoes it."""
    topic(cluster, "slow")
    leader = cluster.leader("slow")
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        producer.send("slow", b"warm").result(10)
        cluster.slow_disk(leader, 300)
        future = producer.send("slow", b"x")
        with pytest.raises(TimeoutError):
            future.result(0.2)
        future.result(10)
        cluster.heal()


def test_replicas_that_differ_are_found(cluster: LiveCluster) -> None:
    """The comparison sees one changed byte in one replica."""
    topic(cluster, "differ")
    send(cluster, "differ", b"the same everywhere")
    where = [Partition("differ", 0)]
    assert compare(cluster, where) == []
    [segment] = sorted(Path(cluster.data_dir(2), "differ-0").glob("*.log"))
    content = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(content.index(b"everywhere"))
        file.write(b"E")
    [found] = compare(cluster, where)
    assert found.startswith("IdenticalReplicas: differ-0")


def test_the_order_of_directories_changes_on_every_node(cluster: LiveCluster) -> None:
    """dirs-swapped (schedule 95): first a new disk is put in front, then the order is turned around. Each node begins
    from the directory with its metadata. The last test of this cluster: topics made later lie on either disk."""
    topic(cluster, "swapped")
    values = [b"%d" % number for number in range(100)]
    send(cluster, "swapped", *values)
    with pytest.raises(DevError, match="runs"):
        cluster.swap_directories(1)
    for _ in range(2):
        for node in cluster.node_ids:
            cluster.stop_node(node)
            cluster.swap_directories(node)
            cluster.start_node(node)
            cluster.wait_isr("swapped")
        send(cluster, "swapped", *values)
    for node in cluster.node_ids:
        assert Path(cluster.data_dir(node), "swapped-0").exists()
        assert "renamed aside" not in Path(cluster.log_path(node)).read_text()
    assert compare(cluster, [Partition("swapped", 0)]) == []


def test_nothing_is_left_behind() -> None:
    """stop: no process, no mount, no directory."""
    cluster = LiveCluster(nodes=1, disk_bytes=64 << 20)
    try:
        cluster.start()
        pids = list(cluster.pids().values())
    finally:
        cluster.stop()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not cluster.root.exists()
    assert str(cluster.root) not in Path("/proc/mounts").read_text()
    cluster.stop()
