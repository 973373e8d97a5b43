"""Records deleted at a client's word stay deleted, whoever leads next (KIP-107)."""

from __future__ import annotations

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
