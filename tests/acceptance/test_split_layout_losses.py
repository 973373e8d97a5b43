"""Rows S42, S44 and S49 with controllers and brokers in processes of their own: who may lead, how many may be lost."""

from __future__ import annotations

import pytest

from strandline.chaos.live.cluster import LiveCluster
from strandline.client import Admin, ConfigResource, Producer
from strandline.client.types import ConfigChange
from strandline.cluster.node.dev import DevCluster
from strandline.proto.errors import KafkaError
from tests.acceptance.helpers import (
    QUICK,
    describe,
    eventually,
    leader_of,
    make_topic,
    others,
    read_all,
    send_all,
    wait_isr,
)

pytestmark = pytest.mark.timeout(180)

ONE_TRY = {"enable_idempotence": False, "retries": 0, "request_timeout_ms": 5000, "delivery_timeout_ms": 6000}


def serving(cluster: LiveCluster) -> set[int]:
    """The brokers that the controller has not fenced."""
    with Admin(cluster.responsive) as admin:
        return {node.node_id for node in admin.describe_cluster().nodes if not node.fenced}


def test_s42_replicas_that_are_up_and_behind_do_not_lead(split: LiveCluster) -> None:
    """Row S42: min.insync.replicas 1, so no eligible-leader list; the ISR is {1}; 2 and 3 are back, serve, and cannot
    catch up, for the cables to 1 are cut. 1 dies: nobody leads. 1 is back: it leads, and has what it acknowledged
    alone."""
    make_topic(split, "s42-behind", min_insync_replicas="1")
    wait_isr(split, "s42-behind", set(split.broker_ids))
    leader = leader_of(split, "s42-behind")
    behind = others(split, leader)
    assert send_all(split, "s42-behind", [b"everywhere"]) == [0]
    for node in behind:
        split.kill(node)
    wait_isr(split, "s42-behind", {leader})
    assert send_all(split, "s42-behind", [b"here alone"]) == [1]
    for node in behind:
        split.partition(leader, node)
        split.start_node(node)
    eventually(lambda: serving(split) == set(split.broker_ids), 30)
    eventually(lambda: all(split.held(node, leader) for node in behind), 30)  # they have asked it, and heard nothing
    assert describe(split, "s42-behind").leader == leader
    assert set(describe(split, "s42-behind").isr) == {leader}
    split.kill(leader)
    eventually(lambda: all(describe(split, "s42-behind", via=[node]).leader is None for node in behind), 30)
    assert serving(split) == set(behind)
    assert not set(describe(split, "s42-behind", via=behind).isr) & set(behind)
    split.heal()
    assert describe(split, "s42-behind", via=behind).leader is None
    split.start_node(leader)
    assert eventually(lambda: describe(split, "s42-behind", via=behind).leader, 30) == leader
    assert read_all(split, "s42-behind") == [b"everywhere", b"here alone"]
    wait_isr(split, "s42-behind", set(split.broker_ids))


def test_s44_three_copies_survive_two_losses_and_two_copies_one(split: LiveCluster) -> None:
    """Row S44: three copies: two brokers are stopped one after the other, everything acknowledged is read from the
    third; with min.insync.replicas 2 it refuses writes, and appends nothing; with 1 it accepts them. Two copies and
    min.insync.replicas 1: one is lost, and the other serves reads and writes."""
    make_topic(split, "s44-three", min_insync_replicas="2", unclean_leader_election_enable="false")
    wait_isr(split, "s44-three", set(split.broker_ids))
    sent = [b"%d" % number for number in range(200)]
    assert send_all(split, "s44-three", sent) == list(range(200))
    last = leader_of(split, "s44-three")
    left = set(split.broker_ids)
    for node in others(split, last):
        left.remove(node)
        split.stop_node(node)
        wait_isr(split, "s44-three", left)
    assert leader_of(split, "s44-three") == last
    assert read_all(split, "s44-three") == sent
    with Producer(split.client(last), **ONE_TRY) as producer, pytest.raises(KafkaError, match="NOT_ENOUGH_REPLICAS"):
        producer.send("s44-three", b"refused").result(20)
    assert read_all(split, "s44-three") == sent
    with Admin(split.client(last)) as admin:
        change = ConfigChange("min.insync.replicas", "1")
        admin.alter_configs({ConfigResource("topic", "s44-three"): [change]})
    assert send_all(split, "s44-three", [b"alone"]) == [200]
    split.revive()
    wait_isr(split, "s44-three", set(split.broker_ids))
    assert read_all(split, "s44-three") == [*sent, b"alone"]

    make_topic(split, "s44-two", replication=2, min_insync_replicas="1")
    copies = set(describe(split, "s44-two").replicas)
    assert len(copies) == 2
    wait_isr(split, "s44-two", copies)
    assert send_all(split, "s44-two", sent) == list(range(200))
    lost = leader_of(split, "s44-two")
    split.kill(lost)
    eventually(lambda: describe(split, "s44-two").leader in copies - {lost}, 30)
    assert read_all(split, "s44-two") == sent
    assert send_all(split, "s44-two", [b"alone"]) == [200]
    split.start_node(lost)
    wait_isr(split, "s44-two", copies)
    assert read_all(split, "s44-two") == [*sent, b"alone"]


def test_s49_the_death_of_a_rack_loses_nothing() -> None:
    """Row S49: four brokers in the racks a, a, b, c: no partition has two copies in one rack; the rack of a leader is
    killed, all of it: what was acknowledged is read in order from the others, which take writes."""
    racks = {1: "a", 2: "a", 3: "b", 4: "c"}
    node_settings = {node: {"broker.rack": rack} for node, rack in racks.items()}
    with DevCluster(nodes=4, controllers=3, settings=QUICK, node_settings=node_settings) as cluster:
        make_topic(cluster, "s49", partitions=4, replication=3, min_insync_replicas="2")
        sent = [b"%d" % number for number in range(100)]
        for partition in range(4):
            replicas = describe(cluster, "s49", partition).replicas
            assert sorted(racks[node] for node in replicas) == ["a", "b", "c"]
            assert send_all(cluster, "s49", sent, partition) == list(range(100))
        lost = racks[leader_of(cluster, "s49")]
        for node in [node for node, rack in racks.items() if rack == lost]:
            cluster.kill(node)
        for partition in range(4):
            assert send_all(cluster, "s49", [b"after"], partition, request_timeout_ms=3000) == [100]
            assert read_all(cluster, "s49", partition) == [*sent, b"after"]
