"""Brokers that say that a replica has rotted (schedule 80): what the controller makes of it."""

from __future__ import annotations

from typing import Any

from strandline.controller.broker_api import ReplicaSet, TopicReplicaSet
from strandline.controller.machine import elections
from strandline.proto.error_codes import ErrorCode
from tests.controller.machine.test_full_disks import say, standing


def rotten(cluster: Any, node: int, *numbers: int, **more: Any) -> None:
    """The broker's next heartbeat names these partitions of t."""
    topic = TopicReplicaSet(cluster.image.topics["t"].topic_id, numbers)
    cluster.beat(node, rotten=ReplicaSet((topic,) if numbers else ()), **more)


def test_a_leader_with_rot_leads_no_more(machine_cluster: Any) -> None:
    """And its other partitions stay with it."""
    cluster = machine_cluster(3)
    cluster.create("t", [[1, 2, 3], [1, 2, 3]])
    rotten(cluster, 1, 0)
    assert standing(cluster) == (2, (2, 3), ())
    assert cluster.partition(number=1).leader == 1
    assert cluster.alter_isr([2, 3, 1]).error is ErrorCode.INELIGIBLE_REPLICA
    rotten(cluster, 1)
    assert cluster.alter_isr([2, 3, 1]).error is ErrorCode.NONE
    assert standing(cluster) == (2, (2, 3, 1), ())


def test_a_follower_with_rot_leaves_the_isr(machine_cluster: Any) -> None:
    cluster = machine_cluster(3)
    cluster.create()
    rotten(cluster, 3, 0)
    assert standing(cluster) == (1, (1, 2), ())
    before = len(cluster.log)
    rotten(cluster, 3, 0)
    assert len(cluster.log) == before, "said already"


def test_below_min_isr_it_stays_eligible(machine_cluster: Any) -> None:
    """It has all the rest, and nothing of it is cut: better than none. The whole one takes over when it is back."""
    cluster = machine_cluster(2)
    cluster.create("t", [[1, 2]], min_insync_replicas="2")
    rotten(cluster, 1, 0)
    assert standing(cluster) == (2, (2,), (1,))
    cluster.fence(2)
    assert standing(cluster) == (1, (1,), (2,))
    cluster.start(2)
    assert cluster.alter_isr([1, 2]).error is ErrorCode.NEW_LEADER_ELECTED
    assert standing(cluster) == (2, (2,), (1,))


def test_the_only_replica_leads_on(machine_cluster: Any) -> None:
    cluster = machine_cluster(1)
    cluster.create("t", [[1]])
    before = len(cluster.log)
    rotten(cluster, 1, 0)
    assert standing(cluster) == (1, (1,), ())
    cluster.run(elections.balance_leaders(cluster.state))
    assert len(cluster.log) == before


def test_where_all_have_rotted_the_first_that_is_healed_leads(machine_cluster: Any) -> None:
    """Each has what another lacks: followers are healed by the leader, and then it by one of them."""
    cluster = machine_cluster(3)
    cluster.create()
    for node in (3, 2, 1):
        rotten(cluster, node, 0)
    assert standing(cluster) == (1, (1,), (2,))
    assert cluster.alter_isr([1, 2]).error is ErrorCode.NONE, "what is gone everywhere must not stop the partition"
    rotten(cluster, 2)
    assert standing(cluster) == (2, (2,), (1,))


def test_a_new_process_has_not_said_it_and_a_new_controller_is_told(machine_cluster: Any) -> None:
    """The report of a process ends with it; a controller hears all of it in the first heartbeat of a session."""
    cluster = machine_cluster(3)
    cluster.create()
    rotten(cluster, 3, 0)
    cluster.fail_over()
    rotten(cluster, 3, 0)
    assert cluster.alter_isr([1, 2, 3]).error is ErrorCode.INELIGIBLE_REPLICA
    cluster.fence(3)
    cluster.start(3)
    assert cluster.alter_isr([1, 2, 3]).error is ErrorCode.NONE


def test_one_heartbeat_says_everything(machine_cluster: Any) -> None:
    """A full disk, a failed log and rot: each partition changes once."""
    cluster = machine_cluster(3)
    cluster.create("t", [[1, 2, 3], [1, 2, 3], [1, 2, 3]])
    cluster.full.add(1)
    topic = TopicReplicaSet(cluster.image.topics["t"].topic_id, (0,))
    rotten(cluster, 1, 0, 1, unserved=ReplicaSet((topic,)))
    for each in (0, 1, 2):
        info = cluster.partition(number=each)
        assert (info.leader, info.isr, info.partition_epoch) == (2, (2, 3), 1)
    say(cluster, 1, full=False)
