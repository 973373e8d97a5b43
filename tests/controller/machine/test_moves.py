"""Moves of partitions to other brokers, as the machine decides them (KIP-455, KIP-860; rules B40, B41, B44 to B46)."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.controller import api
from strandline.controller.machine import brokers, configs, elections, topics
from strandline.controller.metadata.features import LEVEL_OF_MOVES
from strandline.controller.metadata.image import ResourceType
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_NODE
from strandline.proto.isr import IsrMember

Place = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@pytest.fixture
def cluster(machine_cluster: Any) -> Any:
    """Five brokers; topic t has one partition, on 1, 2 and 3."""
    cluster = machine_cluster(5, level=LEVEL_OF_MOVES)
    cluster.create()
    return cluster


def place(cluster: Any, name: str = "t") -> Place:
    """Replicas, those that a move adds, and those that it removes."""
    info = cluster.partition(name)
    return info.replicas, info.adding_replicas, info.removing_replicas


def move(cluster: Any, replicas: list[int] | None, name: str = "t") -> None:
    outcome = cluster.move(replicas, name)
    assert outcome.error is ErrorCode.NONE, outcome


def refused(cluster: Any, replicas: list[int] | None, name: str = "t", **how: Any) -> tuple[ErrorCode, str]:
    """What a move is refused with; nothing is written."""
    before = len(cluster.log)
    outcome = cluster.move(replicas, name, **how)
    assert len(cluster.log) == before
    return outcome.error, outcome.message


# Begun, replaced, cancelled, over


@pytest.mark.parametrize(
    ("target", "now"),
    [
        ([1, 2, 4], ((1, 2, 4, 3), (4,), (3,))),
        ([4, 5, 1], ((4, 5, 1, 2, 3), (4, 5), (2, 3))),
        ([1, 2, 3, 4], ((1, 2, 3, 4), (4,), ())),
        ([5], ((5, 1, 2, 3), (5,), (1, 2, 3))),
    ],
)
def test_the_arithmetic_is_kafkas(cluster: Any, target: list[int], now: Place) -> None:
    """Rule B40: the target in its order, then what is removed."""
    move(cluster, target)
    assert place(cluster) == now
    assert cluster.partition().leader == 1
    cluster.alter_isr([1, 2, 3, *now[1]])
    assert place(cluster) == (tuple(target), (), ())
    assert cluster.partition().isr == tuple(node for node in (1, 2, 3, *now[1]) if node in target)
    assert cluster.partition().leader in target


def test_a_pure_order_is_set_at_once(cluster: Any) -> None:
    """No replica comes or goes: the leader epoch stays, and so does the leader until the balance."""
    before = cluster.partition()
    move(cluster, [3, 1, 2])
    info = cluster.partition()
    assert place(cluster) == ((3, 1, 2), (), ())
    assert (info.leader, info.leader_epoch) == (1, before.leader_epoch)
    assert info.partition_epoch == before.partition_epoch + 1


def test_a_pure_removal_is_over_at_once_where_all_that_stay_are_in_sync(cluster: Any) -> None:
    """KIP-860: fewer replicas, and the leader gives way where it goes."""
    move(cluster, [2, 3])
    info = cluster.partition()
    assert place(cluster) == ((2, 3), (), ())
    assert (info.isr, info.leader) == ((2, 3), 2)


def test_a_removal_waits_for_those_that_stay(cluster: Any) -> None:
    """Rule B44: with 2 out of sync the partition would be left with one copy of what is acknowledged."""
    cluster.alter_isr([1, 3])
    move(cluster, [1, 2])
    assert place(cluster) == ((1, 2, 3), (), (3,))
    cluster.alter_isr([1, 3, 2])
    assert place(cluster) == ((1, 2), (), ())


def test_a_move_that_is_asked_for_twice_changes_nothing(cluster: Any) -> None:
    """An answer that was lost."""
    move(cluster, [1, 2, 4])
    length = len(cluster.log)
    move(cluster, [1, 2, 4])
    assert len(cluster.log) == length


def test_a_move_under_way_is_replaced(cluster: Any) -> None:
    """KIP-455: what the first was adding goes at once where it counts for nothing, the original ones come back."""
    move(cluster, [4, 2, 3])
    move(cluster, [1, 2, 5])
    assert place(cluster) == ((1, 2, 5, 3), (5,), (3,))
    cluster.alter_isr([1, 2, 3, 5])
    assert place(cluster) == ((1, 2, 5), (), ())


def test_a_move_is_cancelled(cluster: Any) -> None:
    move(cluster, [4, 5, 3])
    move(cluster, None)
    assert place(cluster) == ((3, 1, 2), (), ())
    assert cluster.partition().isr == (1, 2, 3)
    code, words = refused(cluster, None)
    assert code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert "is not moving" in words


@pytest.mark.parametrize(
    "replicas", [[], [1, 1], [-1], [1, 9]], ids=["empty", "a broker twice", "a negative id", "nobody"]
)
def test_what_cannot_be_a_target(cluster: Any, replicas: list[int]) -> None:
    """Rule B40: empty, a broker twice, none that is registered."""
    assert refused(cluster, replicas)[0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_cordoned_broker_is_no_new_target(cluster: Any) -> None:
    """Rule B49: what it has, and what is on its way to it, stays."""
    cluster.create("u", [[1, 2, 3]])
    move(cluster, [1, 2, 4])
    change = api.ConfigAlteration("cordoned.log.dirs", api.ConfigOperation.SET, "*")
    for node in "14":
        resource = api.ResourceAlteration(ResourceType.BROKER, node, (change,))
        done = configs.incremental_alter_configs(cluster.state, api.AlterConfigsRequest((resource,)))
        assert cluster.run(done).resources[0].error is ErrorCode.NONE
    code, words = refused(cluster, [1, 2, 4], "u")
    assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "strandline broker uncordon 4" in words
    move(cluster, [4, 1])
    move(cluster, [1, 5, 2], "u")


def test_partitions_that_there_are_not(cluster: Any) -> None:
    assert refused(cluster, [1], "x")[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(cluster, None, "t", number=4)[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_factor_is_kept_where_that_is_asked_for(cluster: Any) -> None:
    """KIP-860: AllowReplicationFactorChange is false. A move under way counts with its target."""
    code, words = refused(cluster, [1, 2], keeps_factor=True)
    assert code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "from 3 to 2" in words
    move(cluster, [4])
    assert refused(cluster, [1, 2, 5], keeps_factor=True)[0] is ErrorCode.INVALID_REPLICATION_FACTOR
    assert cluster.move([5], keeps_factor=True).error is ErrorCode.NONE


def test_below_its_level_nothing_moves(machine_cluster: Any) -> None:
    """Rule B40: an older build would not know that the partition moves."""
    cluster = machine_cluster(2, level=LEVEL_OF_MOVES - 1)
    cluster.create("t", [[1]])
    with pytest.raises(KafkaError, match="strandline upgrade finalize") as caught:
        cluster.move([2])
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_no_partitions_are_added_during_a_move(cluster: Any) -> None:
    """Rule B40: how many replicas the new ones would have is not settled."""
    move(cluster, [1, 2, 4])
    request = api.CreatePartitionsRequest((api.PartitionsToAdd("t", 2),))
    assert cluster.run(topics.create_partitions(cluster.state, request)).topics[0].error is (
        ErrorCode.REASSIGNMENT_IN_PROGRESS
    )
    move(cluster, None)
    assert cluster.run(topics.create_partitions(cluster.state, request)).topics[0].error is ErrorCode.NONE


def test_a_deleted_topic_moves_no_longer(cluster: Any) -> None:
    move(cluster, [4, 5, 3])
    request = api.DeleteTopicsRequest((api.TopicRef("t"),))
    assert cluster.run(topics.delete_topics(cluster.state, request)).topics[0].error is ErrorCode.NONE
    cluster.create("t", [[1, 2, 3]])
    assert place(cluster) == ((1, 2, 3), (), ())


# When it is over (rule B44)


def test_a_move_is_over_with_the_last_of_its_target(cluster: Any) -> None:
    """And the leader goes to the first of the target in the very record, under a new epoch: schedule 145."""
    move(cluster, [4, 5, 3])
    cluster.alter_isr([1, 2, 3, 4])
    assert cluster.partition().is_moving
    before = cluster.partition().leader_epoch
    outcome = cluster.alter_isr([1, 2, 3, 4, 5])
    info = cluster.partition()
    assert outcome.error is ErrorCode.NEW_LEADER_ELECTED
    assert (place(cluster), info.isr) == (((4, 5, 3), (), ()), (3, 4, 5))
    assert (info.leader, info.leader_epoch) == (4, before + 1)
    assert "the move is over" in cluster.log[-1].reason


@pytest.mark.parametrize("step", ["asked for", "one of two in sync", "over"])
def test_the_leader_dies_at_each_step(cluster: Any, step: str) -> None:
    """Schedule 145: the move goes on under another leader, and ends."""
    move(cluster, [4, 5, 3])
    if step != "asked for":
        cluster.alter_isr([1, 2, 3, 4])
    if step == "over":
        cluster.alter_isr([1, 2, 3, 4, 5])
    leader = cluster.partition().leader
    cluster.fence(leader)
    info = cluster.partition()
    assert info.leader not in (leader, NO_NODE)
    cluster.start(leader)
    cluster.alter_isr([node for node in info.replicas if node != leader])
    if cluster.partition().is_moving:
        cluster.alter_isr(list(cluster.partition().replicas))
    assert place(cluster) == ((4, 5, 3), (), ())


def test_a_new_controller_goes_on_with_the_moves(cluster: Any) -> None:
    """Schedule 144 (KAFKA-9478, KAFKA-9089): a move is in the metadata, so no change of the controller loses it, and
    none brings one back that was over or cancelled."""
    cluster.create("u", [[1, 2, 3]])
    cluster.create("v", [[1, 2, 3]])
    for name in "tuv":
        move(cluster, [1, 2, 4], name)
    move(cluster, None, "u")
    cluster.alter_isr([1, 2, 3, 4], "v")
    cluster.fail_over()
    assert place(cluster) == ((1, 2, 4, 3), (4,), (3,))
    assert place(cluster, "u") == ((1, 2, 3), (), ())
    assert place(cluster, "v") == ((1, 2, 4), (), ())
    cluster.alter_isr([1, 2, 3, 4])
    assert place(cluster) == ((1, 2, 4), (), ())


def test_brokers_are_bounced_during_a_move(cluster: Any) -> None:
    """KAFKA-4214: each broker of it restarts, the target too; the move ends all the same."""
    move(cluster, [1, 4, 5])
    for node in (4, 1, 5, 2, 3):
        cluster.fence(node)
        assert cluster.partition().is_moving
        cluster.start(node)
        info = cluster.partition()
        if node not in (*info.isr, 4, 5):
            cluster.alter_isr([*info.isr, node])
    for node in (4, 5):
        cluster.alter_isr([*cluster.partition().isr, node])
    assert place(cluster) == ((1, 4, 5), (), ())


def test_what_only_removes_is_a_move_too(cluster: Any) -> None:
    """KAFKA-10125: such a partition counts as moving, and can be cancelled."""
    cluster.alter_isr([1, 3])
    move(cluster, [1, 2])
    assert cluster.partition().is_moving
    move(cluster, None)
    assert place(cluster) == ((1, 2, 3), (), ())


def test_a_topic_keeps_its_id(cluster: Any) -> None:
    """KAFKA-14190: no step of a move touches it."""
    topic_id = cluster.partition().topic_id
    move(cluster, [4, 5])
    cluster.alter_isr([1, 2, 3, 4, 5])
    assert cluster.partition().topic_id == topic_id == cluster.image.topics["t"].topic_id


def test_a_target_that_is_offline_waits_and_can_be_let_go(cluster: Any) -> None:
    """The ISR stays as it is; the move ends when the broker is back, or when another takes its place."""
    cluster.fence(4)
    move(cluster, [1, 2, 4])
    assert place(cluster) == ((1, 2, 4, 3), (4,), (3,))
    assert cluster.alter_isr([1, 2, 3, 4]).error is ErrorCode.INELIGIBLE_REPLICA
    assert cluster.partition().isr == (1, 2, 3)
    move(cluster, [1, 2, 5])
    cluster.alter_isr([1, 2, 3, 5])
    assert place(cluster) == ((1, 2, 5), (), ())


def test_a_target_that_is_reborn_empty_does_not_count(cluster: Any) -> None:
    """Schedule 147 (KIP-903): what the leader counts on was fetched by the process before."""
    move(cluster, [1, 2, 4])
    before = cluster.epoch(4)
    cluster.fence(4)
    cluster.start(4, found=None)
    late = cluster.alter_isr([], new_isr=members(cluster, [1, 2, 3], (4, before)))
    assert late.error is ErrorCode.INELIGIBLE_REPLICA
    assert cluster.partition().is_moving
    cluster.alter_isr([1, 2, 3, 4])
    assert place(cluster) == ((1, 2, 4), (), ())


def members(cluster: Any, nodes: list[int], *others: tuple[int, int]) -> tuple[Any, ...]:
    return (*(IsrMember(node, cluster.epoch(node)) for node in nodes), *(IsrMember(*one) for one in others))


def test_an_election_prefers_whoever_stays(cluster: Any) -> None:
    """The replicas of the target stand first."""
    move(cluster, [1, 3, 4])
    cluster.fence(1)
    assert cluster.partition().leader == 3


def test_an_isr_that_an_election_leaves_alone_ends_the_move(cluster: Any) -> None:
    """Rule B44: all fall, one eligible replica comes back, and the target is that one alone."""
    for node in (1, 3, 2):
        cluster.fence(node)
    move(cluster, [2])
    assert cluster.partition().is_moving
    cluster.start(2)
    cluster.wait_out()
    assert place(cluster) == ((2,), (), ())
    assert cluster.partition().leader == 2


def test_two_moves_cross(cluster: Any) -> None:
    """Schedule 146: each partition goes where the other was, at the same time."""
    cluster.create("u", [[4, 5, 3]])
    move(cluster, [4, 5, 3])
    move(cluster, [1, 2, 3], "u")
    cluster.alter_isr([4, 5, 3, 1], "u")
    cluster.alter_isr([1, 2, 3, 4])
    cluster.alter_isr([4, 5, 3, 1, 2], "u")
    cluster.alter_isr([1, 2, 3, 4, 5])
    assert place(cluster) == ((4, 5, 3), (), ())
    assert place(cluster, "u") == ((1, 2, 3), (), ())


# What goes at once (rule B41)


def test_the_last_in_sync_are_not_dropped(cluster: Any) -> None:
    """Schedule 141: two of the original replicas die, and what was acknowledged since lies on 1 and 4 alone. Without 4
    one copy would be left; a target that keeps it is another way out."""
    move(cluster, [1, 2, 4])
    cluster.alter_isr([1, 2, 3])
    cluster.fence(2)
    cluster.alter_isr([1, 3, 4])
    cluster.fence(3)
    assert cluster.partition().isr == (1, 4)
    code, words = refused(cluster, None)
    assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "broker 4 may hold what no other replica does" in words
    assert refused(cluster, [1, 2, 5])[0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    move(cluster, [1, 4])
    assert place(cluster) == ((1, 4), (), ())


def test_who_is_eligible_is_not_dropped_either(cluster: Any) -> None:
    """Schedule 141: all are down, and 4 is one of two that have everything: nobody is in sync, so nobody goes."""
    move(cluster, [1, 4, 5])
    cluster.alter_isr([1, 4])
    cluster.fence(1)
    cluster.fence(4)
    assert 4 in cluster.partition().eligible_leader_replicas
    assert refused(cluster, None)[0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_an_unclean_topic_lets_the_last_go(cluster: Any) -> None:
    """Kafka's way out: the loss is what the setting allows. Rule B41: never for a log that is empty by the move."""
    cluster.set_config("unclean.leader.election.enable", "true")
    move(cluster, [4, 5])
    cluster.alter_isr([1, 4])
    cluster.fence(1)
    move(cluster, None)
    assert cluster.partition().leader in (2, 3)
    assert cluster.partition().recovering
    for node in (1, 2, 3):
        cluster.fence(node)
    move(cluster, [5])
    assert cluster.partition().leader == NO_NODE
    assert cluster.elect(api.ElectionKind.UNCLEAN)[0].leader == 5


# min.insync.replicas (rule B45)


def test_one_replica_becomes_three_and_one_again(machine_cluster: Any) -> None:
    """Schedule 143: while the copies come one replica is enough, as before; from then on it takes two."""
    cluster = machine_cluster(3, level=LEVEL_OF_MOVES)
    cluster.create("t", [[1]])

    def min_isr() -> int:
        return int(cluster.state.resolver.min_insync_replicas(cluster.image, "t", cluster.partition()))

    move(cluster, [1, 2, 3])
    assert min_isr() == 1
    cluster.alter_isr([1, 2])
    assert (min_isr(), cluster.partition().eligible_leader_replicas) == (1, ())
    epoch = cluster.partition().leader_epoch
    cluster.alter_isr([1, 2, 3])
    assert (min_isr(), cluster.partition().leader_epoch) == (2, epoch + 1)
    move(cluster, [2])
    assert (place(cluster), min_isr()) == (((2,), (), ()), 1)


def test_two_in_sync_stay_enough_with_one_dead(cluster: Any) -> None:
    """min.insync.replicas is 2, broker 3 is dead, and its replica moves: at no time fewer than two are asked for, and
    at no time more."""
    cluster.fence(3)
    move(cluster, [1, 2, 4])
    assert cluster.partition().isr == (1, 2)
    cluster.alter_isr([1, 2, 4])
    assert place(cluster) == ((1, 2, 4), (), ())
    assert cluster.partition().isr == (1, 2, 4)


# Epochs, and what is known of a replica that was away (rule B46)


def test_a_replica_that_goes_ends_the_leader_epoch(cluster: Any) -> None:
    """Schedule 142 (KAFKA-16120, KAFKA-16121): a leader that hears of the removal and of the next move at once must
    not count what that replica had fetched before it was deleted."""
    epoch = cluster.partition().leader_epoch
    move(cluster, [1, 2, 3, 4])
    assert cluster.partition().leader_epoch == epoch
    cluster.alter_isr([1, 2, 3, 4])
    assert cluster.partition().leader_epoch == epoch + 1
    move(cluster, [1, 2, 3])
    assert cluster.partition().leader_epoch == epoch + 2
    move(cluster, [1, 2, 3, 5])
    move(cluster, None)
    assert cluster.partition().leader_epoch == epoch + 3


def test_reports_do_not_outlive_the_replica(cluster: Any) -> None:
    """Rule B46: what 3 told of its log is not said of the empty one that it gets anew."""
    topic_id = cluster.partition().topic_id
    cluster.report(3, hw=90, leo=100, epoch=0)
    move(cluster, [1, 2])
    assert cluster.state.offsets.of(topic_id, 0, 3) is None
    move(cluster, [1, 2, 3])
    candidates = elections.candidates_of(cluster.state, cluster.image.topics["t"], cluster.partition(), 0.0)
    assert [one.log_end_offset for one in candidates if one.node_id == 3] == [-1]


def test_an_unregistered_broker_is_still_assigned(cluster: Any) -> None:
    """Its move is replaced: it cannot be a target any more."""
    move(cluster, [1, 2, 4])
    cluster.fence(4)
    request = brokers.UnregisterBrokerRequest(4)
    cluster.run(brokers.unregister_broker(cluster.state, request))
    assert place(cluster) == ((1, 2, 4, 3), (4,), (3,))
    assert refused(cluster, [1, 4])[0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    move(cluster, None)
    assert place(cluster) == ((1, 2, 3), (), ())
