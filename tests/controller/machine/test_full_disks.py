"""Brokers that say that their disks are full (schedule 57, schedule 57): what the controller makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.controller import api
from strandline.controller.broker_api import ReplicaSet, TopicReplicaSet
from strandline.controller.machine import elections
from strandline.proto.error_codes import ErrorCode


def standing(cluster: Any, name: str = "t") -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    info = cluster.partition(name)
    return info.leader, info.isr, info.eligible_leader_replicas


def say(cluster: Any, node: int, *, full: bool) -> None:
    """The broker's next heartbeat, and each one after it."""
    (cluster.full.add if full else cluster.full.discard)(node)
    cluster.beat(node)


def test_a_full_leader_leads_no_more_in_the_same_turn(machine_cluster: Any) -> None:
    cluster = machine_cluster(3)
    cluster.create()
    say(cluster, 1, full=True)
    assert standing(cluster) == (2, (2, 3), ())
    assert cluster.image.brokers[1].disk_full
    assert cluster.image.brokers[1].active, "it is read, and follows"


def test_a_full_follower_leaves_the_isr(machine_cluster: Any) -> None:
    cluster = machine_cluster(3)
    cluster.create()
    epoch = cluster.partition().leader_epoch
    say(cluster, 3, full=True)
    assert standing(cluster) == (1, (1, 2), ())
    assert cluster.partition().leader_epoch == epoch
    before = len(cluster.log)
    cluster.beat(3)
    assert len(cluster.log) == before, "said already"


def test_below_min_isr_it_stays_eligible(machine_cluster: Any) -> None:
    """What it has is on its disk: it leads where the others are gone, and gives the leadership back."""
    cluster = machine_cluster(3)
    cluster.create()
    cluster.fence(3)
    say(cluster, 2, full=True)
    assert standing(cluster) == (1, (1,), (2,))
    cluster.fence(1)
    assert standing(cluster) == (2, (2,), (1,))
    cluster.start(1)
    outcome = cluster.alter_isr([2, 1])
    assert outcome.error is ErrorCode.NEW_LEADER_ELECTED
    assert standing(cluster) == (1, (1,), (2,)), "who joins has room: it leads at once"


def test_of_the_eligible_one_with_room_is_elected(machine_cluster: Any) -> None:
    """Both have all that was acknowledged; one can take writes."""
    cluster = machine_cluster(3)
    cluster.create(min_insync_replicas="3")
    for node in (1, 2):
        cluster.fence(node)
        cluster.start(node)
    assert standing(cluster) == (3, (3,), (1, 2))
    say(cluster, 1, full=True)
    cluster.fence(3)
    for node in (1, 2):
        cluster.beat(node)
    cluster.wait_out()
    assert standing(cluster) == (2, (2,), (1, 3))


def test_where_nobody_has_room_nothing_moves(machine_cluster: Any) -> None:
    """The last one leads on, whoever comes and goes."""
    cluster = machine_cluster(3)
    cluster.create()
    for node in (2, 1, 3):
        say(cluster, node, full=True)
    assert standing(cluster) == (3, (3,), (1,))
    before = len(cluster.log)
    for node in (1, 2, 3, 1, 2, 3):
        cluster.beat(node)
    cluster.run(elections.balance_leaders(cluster.state))
    assert len(cluster.log) == before
    assert cluster.alter_isr([3, 1]).error is ErrorCode.INELIGIBLE_REPLICA
    assert cluster.alter_isr([3]).error is ErrorCode.NONE
    say(cluster, 3, full=False)
    assert standing(cluster) == (3, (3,), (1,))


def test_a_full_replica_joins_no_isr(machine_cluster: Any) -> None:
    cluster = machine_cluster(3)
    cluster.create()
    say(cluster, 3, full=True)
    assert cluster.alter_isr([1, 2, 3]).error is ErrorCode.INELIGIBLE_REPLICA
    say(cluster, 3, full=False)
    assert cluster.alter_isr([1, 2, 3]).error is ErrorCode.NONE
    assert standing(cluster) == (1, (1, 2, 3), ())


def test_a_new_topic_is_led_where_there_is_room(machine_cluster: Any) -> None:
    cluster = machine_cluster(3)
    say(cluster, 1, full=True)
    cluster.create("new")
    assert standing(cluster, "new") == (2, (2, 3), ())
    for node in (2, 3):
        say(cluster, node, full=True)
    cluster.create("other")
    assert standing(cluster, "other") == (1, (1, 2, 3), ())


def test_a_new_process_has_not_said_it(machine_cluster: Any) -> None:
    cluster = machine_cluster(3)
    cluster.create()
    say(cluster, 3, full=True)
    cluster.fence(3)
    cluster.full.discard(3)
    cluster.register(3)
    assert not cluster.image.brokers[3].disk_full


def test_another_controller_knows_it(machine_cluster: Any) -> None:
    """It is in the metadata, in their snapshots too."""
    cluster = machine_cluster(3)
    cluster.create()
    say(cluster, 3, full=True)
    cluster.fail_over()
    assert cluster.image.brokers[3].disk_full
    assert cluster.alter_isr([1, 2, 3]).error is ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.parametrize("number", [0, 1])
def test_a_log_that_failed_on_a_full_disk(machine_cluster: Any, number: int) -> None:
    """One heartbeat says both: each partition changes once."""
    cluster = machine_cluster(3)
    cluster.create("t", [[1, 2, 3], [1, 2, 3]])
    cluster.full.add(1)
    topic = TopicReplicaSet(cluster.image.topics["t"].topic_id, (number,))
    cluster.beat(1, unserved=ReplicaSet((topic,)))
    for each in (0, 1):
        info = cluster.partition(number=each)
        assert (info.leader, info.isr, info.partition_epoch) == (2, (2, 3), 1)


def test_a_preferred_leader_without_room_is_not_preferred(machine_cluster: Any) -> None:
    cluster = machine_cluster(3)
    cluster.create()
    say(cluster, 1, full=True)
    assert cluster.elect(api.ElectionKind.PREFERRED)[0].error is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def cramped(cluster: Any, node: int, *numbers: int) -> None:
    """The broker's next heartbeat says that these partitions of t lie in a full directory."""
    topic = TopicReplicaSet(cluster.image.topics["t"].topic_id, numbers)
    cluster.beat(node, without_room=ReplicaSet((topic,) if numbers else ()))


def test_one_full_directory_moves_its_own_partitions(machine_cluster: Any) -> None:
    """The broker leads on what lies in another; what moved joins again once there is room."""
    cluster = machine_cluster(3)
    cluster.create("t", [[1, 2, 3], [1, 2, 3]])
    cramped(cluster, 1, 0)
    assert standing(cluster) == (2, (2, 3), ())
    assert cluster.partition(number=1).leader == 1
    assert cluster.alter_isr([2, 3, 1]).error is ErrorCode.INELIGIBLE_REPLICA
    cramped(cluster, 1)
    assert cluster.alter_isr([2, 3, 1]).error is ErrorCode.NONE


def test_a_full_directory_keeps_the_only_replica(machine_cluster: Any) -> None:
    """Nobody else can lead: it is read, and takes no writes."""
    cluster = machine_cluster(1)
    cluster.create("t", [[1]])
    cramped(cluster, 1, 0)
    assert standing(cluster) == (1, (1,), ())
