"""Records deleted at a client's word stay deleted, whoever leads next (KIP-107)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka import TopicPartition as ForeignPartition
from confluent_kafka.admin import AdminClient

from strandline.client import EARLIEST, Admin
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import (
    QUICK,
    down,
    eventually,
    followers,
    leader_of,
    make_topic,
    read_all,
    send_all,
    wait_isr,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    """Three nodes; each test leaves all of them running, and has topics of its own."""
    with DevCluster(settings={**QUICK, "log.stray.delete.delay.ms": "1000"}) as running:
        yield running


def earliest(cluster: DevCluster, topic: str) -> int:
    with Admin(cluster.responsive) as admin:
        [found] = admin.list_offsets({(topic, 0): EARLIEST}).values()
    return found.offset


def test_deleted_records_stay_deleted_over_failovers(cluster: DevCluster) -> None:
    """confluent-kafka's admin deletes; the answer comes when all replicas in sync have done it, so the next leader has;
    one that was down meanwhile does it when it is back."""
    make_topic(cluster, "deleted")
    values = [b"%d" % number for number in range(10)]
    send_all(cluster, "deleted", values)
    wait_isr(cluster, "deleted", {1, 2, 3})
    away = followers(cluster, "deleted")[0]
    with down(cluster, away):
        wait_isr(cluster, "deleted", {1, 2, 3} - {away})
        admin = AdminClient({"bootstrap.servers": cluster.responsive, "log_level": 0})
        wanted = ForeignPartition("deleted", 0, 4)
        [result] = admin.delete_records([wanted], request_timeout=20).values()
        assert result.result(20).low_watermark == 4
        assert earliest(cluster, "deleted") == 4
    wait_isr(cluster, "deleted", {1, 2, 3})
    leader = leader_of(cluster, "deleted")
    with down(cluster, leader):
        eventually(lambda: leader_of(cluster, "deleted") != leader)
        assert earliest(cluster, "deleted") == 4
        assert read_all(cluster, "deleted") == values[4:]
    wait_isr(cluster, "deleted", {1, 2, 3})


def test_a_deletion_outlives_kill_9_of_all(cluster: DevCluster) -> None:
    """Nothing of what was answered is in the memory of processes alone."""
    make_topic(cluster, "outlives")
    values = [b"%d" % number for number in range(10)]
    send_all(cluster, "outlives", values)
    wait_isr(cluster, "outlives", {1, 2, 3})
    with Admin(cluster.responsive) as ours:
        assert list(ours.delete_records({("outlives", 0): 6}).values()) == [6]
    for node in cluster.broker_ids:
        cluster.kill(node)
    for node in cluster.broker_ids:
        cluster.start_node(node, wait=False)
    cluster.wait_ready()
    wait_isr(cluster, "outlives", {1, 2, 3})
    assert earliest(cluster, "outlives") == 6
    assert read_all(cluster, "outlives") == values[6:]


def test_a_replica_that_lost_everything_joins_a_log_that_begins_inside_a_batch(cluster: DevCluster) -> None:
    """Schedule 55 (KAFKA-6975): twenty records in one batch, the first seven deleted; a follower's directory is gone.
    It joins, leads, and other people's consumers and ours read what is left, and nothing before it."""
    make_topic(cluster, "inside")
    values = [b"%d" % number for number in range(20)]
    send_all(cluster, "inside", values, linger_ms=200)
    wait_isr(cluster, "inside", {1, 2, 3})
    with Admin(cluster.responsive) as ours:
        [told] = ours.delete_records({("inside", 0): 7}).values()
        assert told == 7
    lost = followers(cluster, "inside")[0]
    with down(cluster, lost):
        shutil.rmtree(Path(cluster.data_dir(lost)) / "inside-0")
    wait_isr(cluster, "inside", {1, 2, 3})
    [segment] = (Path(cluster.data_dir(lost)) / "inside-0").glob("*.log")
    assert segment.name == f"{0:020}.log", "it has the whole batch, as its leader has"
    send_all(cluster, "inside", [b"more"])
    others = [node for node in cluster.broker_ids if node != lost]
    for node in others:
        wait_isr(cluster, "inside", {1, 2, 3})
        with down(cluster, node):
            eventually(lambda node=node: leader_of(cluster, "inside") != node)  # type: ignore[misc]
            assert earliest(cluster, "inside") == 7
            assert read_all(cluster, "inside") == [*values[7:], b"more"]
            assert foreign(cluster, "inside") == [*values[7:], b"more"]


def directories(cluster: DevCluster, node: int, topic: str) -> list[str]:
    """A node's directories of a topic, strays without what is unique in their names."""
    found = [path.name for path in Path(cluster.data_dir(node)).iterdir() if path.name.startswith(f"{topic}-")]
    return sorted(name.partition(".")[0] + name[-6:] if "." in name else name for name in found)


def test_topics_deleted_while_a_broker_is_down_leave_its_disk(cluster: DevCluster) -> None:
    """Two topics are deleted, one of them is made anew, and a directory of the other is damaged meanwhile: the broker
    sets both aside when it is back, says so, and removes them; the new topic is replicated, and nothing of the old one
    with it."""
    for topic in ("gone", "anew"):
        make_topic(cluster, topic)
        send_all(cluster, topic, [b"old %d" % number for number in range(20)])
        wait_isr(cluster, topic, {1, 2, 3})
    away = followers(cluster, "anew")[0]
    with down(cluster, away):
        with Admin(cluster.responsive) as admin:
            admin.delete_topics(["gone", "anew"])
        [segment] = (Path(cluster.data_dir(away)) / "gone-0").glob("*.log")
        segment.write_bytes(b"?" * 64 + segment.read_bytes()[64:])
        eventually(lambda: "anew" not in known_topics(cluster))
        make_topic(cluster, "anew")
        send_all(cluster, "anew", [b"new"])
    wait_isr(cluster, "anew", {1, 2, 3})
    told = Path(cluster.log_path(away)).read_text()
    for name in ("gone-0", "anew-0"):
        assert re.search(rf"a stray partition is renamed aside.*{name}", told)
    with down(cluster, leader_of(cluster, "anew")):
        assert read_all(cluster, "anew") == [b"new"]
    wait_isr(cluster, "anew", {1, 2, 3})
    eventually(lambda: directories(cluster, away, "gone") == [])
    eventually(lambda: directories(cluster, away, "anew") == ["anew-0"])
    for node in cluster.broker_ids:
        if node != away:
            eventually(lambda node=node: directories(cluster, node, "gone") == [])  # type: ignore[misc]


def known_topics(cluster: DevCluster) -> list[str]:
    with Admin(cluster.responsive) as admin:
        return list(admin.list_topics())


def foreign(cluster: DevCluster, topic: str) -> list[bytes]:
    """What librdkafka reads from the beginning, 14 records."""
    consumer = ForeignConsumer(
        {"bootstrap.servers": cluster.responsive, "group.id": "x", "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.assign([ForeignPartition(topic, 0, OFFSET_BEGINNING)])
    values: list[bytes] = []
    for _ in range(600):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value())
        if len(values) == 14:
            break
    consumer.close()
    return values
