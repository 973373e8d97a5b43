"""Records deleted at a client's word stay deleted, whoever leads next (KIP-107)."""

from __future__ import annotations

import shutil
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka import TopicPartition as ForeignPartition
from confluent_kafka.admin import AdminClient

from strandline.client import EARLIEST, Admin
from strandline.cluster.dev import DevCluster
from tests.rows.helpers import QUICK, down, eventually, followers, leader_of, make_topic, read_all, send_all, wait_isr


def earliest(cluster: DevCluster) -> int:
    with Admin(cluster.responsive) as admin:
        [found] = admin.list_offsets({("deleted", 0): EARLIEST}).values()
    return found.offset


def test_deleted_records_stay_deleted_over_failovers() -> None:
    """confluent-kafka's admin deletes; the answer comes when all replicas in sync have done it, so the next leader has;
    one that was down meanwhile does it when it is back."""
    with DevCluster(settings=QUICK) as cluster:
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
            assert earliest(cluster) == 4
        wait_isr(cluster, "deleted", {1, 2, 3})
        leader = leader_of(cluster, "deleted")
        with down(cluster, leader):
            eventually(lambda: leader_of(cluster, "deleted") != leader)
            assert earliest(cluster) == 4
            assert read_all(cluster, "deleted") == values[4:]
        wait_isr(cluster, "deleted", {1, 2, 3})


def test_a_replica_that_lost_everything_joins_a_log_that_begins_inside_a_batch() -> None:
    """F-55 (KAFKA-6975): twenty records in one batch, the first seven deleted; a follower's directory is gone. It
    joins, leads, and other people's consumers and ours read what is left, and nothing before it."""
    with DevCluster(settings=QUICK) as cluster:
        make_topic(cluster, "deleted")
        values = [b"%d" % number for number in range(20)]
        send_all(cluster, "deleted", values, linger_ms=200)
        wait_isr(cluster, "deleted", {1, 2, 3})
        with Admin(cluster.responsive) as ours:
            [told] = ours.delete_records({("deleted", 0): 7}).values()
            assert told == 7
        lost = followers(cluster, "deleted")[0]
        with down(cluster, lost):
            shutil.rmtree(Path(cluster.data_dir(lost)) / "deleted-0")
        wait_isr(cluster, "deleted", {1, 2, 3})
        [segment] = (Path(cluster.data_dir(lost)) / "deleted-0").glob("*.log")
        assert segment.name == f"{0:020}.log", "it has the whole batch, as its leader has"
        send_all(cluster, "deleted", [b"more"])
        others = [node for node in cluster.broker_ids if node != lost]
        for node in others:
            wait_isr(cluster, "deleted", {1, 2, 3})
            with down(cluster, node):
                eventually(lambda node=node: leader_of(cluster, "deleted") != node)  # type: ignore[misc]
                assert earliest(cluster) == 7
                assert read_all(cluster, "deleted") == [*values[7:], b"more"]
                assert foreign(cluster) == [*values[7:], b"more"]


def foreign(cluster: DevCluster) -> list[bytes]:
    """What librdkafka reads from the beginning, 14 records."""
    consumer = ForeignConsumer(
        {"bootstrap.servers": cluster.responsive, "group.id": "x", "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.assign([ForeignPartition("deleted", 0, OFFSET_BEGINNING)])
    values: list[bytes] = []
    for _ in range(600):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value())
        if len(values) == 14:
            break
    consumer.close()
    return values
