"""Placement: rows S03, S18, S49 (the constraints and the goals of `machine.placement`)."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from strandline.controller import api
from strandline.controller.machine import topics
from strandline.controller.machine.placement import Placer, UsableBroker
from strandline.controller.metadata.features import LEVEL_OF_MOVES
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError


def place(brokers: list[UsableBroker], partitions: int, factor: int, seed: int = 1) -> list[tuple[int, ...]]:
    return Placer(brokers, MetadataImage("c"), random.Random(seed)).place(partitions, factor)


def spread(counter: Counter[int], nodes: int) -> int:
    counts = [counter[node] for node in range(nodes)]
    return max(counts) - min(counts)


@pytest.mark.parametrize("nodes", range(1, 8))
def test_copies_and_leaders_are_even_for_any_shape(nodes: int) -> None:
    """Rows S03, S18: no broker has two copies of a partition; copies and leaderships differ by at most one."""
    for factor in range(1, nodes + 1):
        for partitions in range(1, 20):
            placed = place([UsableBroker(node, None, False) for node in range(nodes)], partitions, factor)
            assert all(len(set(replicas)) == factor for replicas in placed)
            assert spread(Counter(node for replicas in placed for node in replicas), nodes) <= 1
            assert spread(Counter(replicas[0] for replicas in placed), nodes) <= 1


def test_racks_come_first() -> None:
    """Row S49: with as many racks as copies every partition has a copy in each; with fewer, none has them all in
    one."""
    brokers = [UsableBroker(node, "abc"[node % 3], False) for node in range(7)]
    racks = {broker.node_id: broker.rack for broker in brokers}
    for seed in range(5):
        for replicas in place(brokers, 30, 3, seed):
            assert {racks[node] for node in replicas} == {"a", "b", "c"}
    two = [UsableBroker(node, "ab"[node % 2], False) for node in range(4)]
    for replicas in place(two, 20, 3):
        assert {node % 2 for node in replicas} == {0, 1}


def test_fenced_brokers_come_last_and_lead_nothing() -> None:
    """They get copies only where unfenced ones do not suffice."""
    brokers = [UsableBroker(node, None, node == 0) for node in range(4)]
    assert all(0 not in replicas for replicas in place(brokers, 12, 3))
    placed = place(brokers, 12, 4)
    assert all(replicas[-1] == 0 for replicas in placed)
    brokers = [UsableBroker(0, "a", True), UsableBroker(1, "a", False), UsableBroker(2, "b", True)]
    assert all(replicas[0] == 1 for replicas in place(brokers, 6, 2))


def test_first_followers_vary() -> None:
    """When a broker falls, its leaderships go to more than one other."""
    placed = place([UsableBroker(node, None, False) for node in range(3)], 12, 3)
    seconds = Counter(replicas[:2] for replicas in placed)
    assert set(seconds.values()) == {2}


def test_topics_after_one_another_do_not_pile_up(machine_cluster: Any) -> None:
    """Twelve topics of one partition each: the leaders are as even as those of one topic of twelve."""
    cluster = machine_cluster(3)
    for number in range(12):
        cluster.create_topic(api.CreatableTopic(f"topic-{number}", num_partitions=1, replication_factor=1))
    leaders = Counter(info.leader for _, info in cluster.image.partitions())
    assert leaders == {1: 4, 2: 4, 3: 4}


def test_impossible() -> None:
    """Row S14: more copies than brokers; nobody unfenced."""
    for brokers, factor in (([UsableBroker(1, None, False)], 2), ([UsableBroker(1, None, True)], 1), ([], 1)):
        with pytest.raises(KafkaError) as caught:
            place(brokers, 1, factor)
        assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


# --- cordon -----------------------------------------------------------------------------------------------------------


def test_placement_passes_over_it(machine_cluster: Any) -> None:
    cluster = machine_cluster(4)
    cluster.create("t", [[3, 1]])
    assert cluster.set_config("cordoned.log.dirs", "*", topic=3).error is ErrorCode.NONE
    cluster.create_topic(api.CreatableTopic("new", num_partitions=12, replication_factor=3))
    more = api.CreatePartitionsRequest((api.PartitionsToAdd("t", 6),))
    cluster.run(topics.create_partitions(cluster.state, more))
    new = [one.replicas for topic, one in cluster.image.partitions() if topic.name == "new" or one.partition > 0]
    assert len(new) == 12 + 5
    assert not any(3 in replicas for replicas in new)
    assert cluster.partition().leader == 3  # what it has it keeps
    cluster.set_config("cordoned.log.dirs", None, topic=3)
    cluster.create_topic(api.CreatableTopic("newer", num_partitions=4, replication_factor=1))
    assert any(3 in one.replicas for topic, one in cluster.image.partitions() if topic.name == "newer")


def test_too_few_are_left_and_it_says_so(machine_cluster: Any) -> None:
    cluster = machine_cluster(3)
    cluster.set_config("cordoned.log.dirs", "*", topic=2)
    outcome = cluster.create_topic(api.CreatableTopic("new", num_partitions=1, replication_factor=3))
    assert outcome.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert outcome.message == (
        "Unable to replicate the partition 3 time(s): the cluster has 2 broker(s) that may hold replicas. "
        "Cordoned: 2 (`strandline broker uncordon`)."
    )
    chosen = cluster.create_topic(api.CreatableTopic("chosen", num_partitions=1))
    assert chosen.replication_factor == 2
    assert "Replication factor 2 was chosen" in chosen.message


def test_nobody_assigns_it_a_replica_by_hand(machine_cluster: Any) -> None:
    cluster = machine_cluster(3)
    cluster.set_config("cordoned.log.dirs", "*", topic=2)
    manual = (api.ReplicaAssignment(0, (1, 2)),)
    outcome = cluster.create_topic(api.CreatableTopic("new", assignments=manual))
    assert outcome.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "it is cordoned" in outcome.message
    assert "`strandline broker uncordon 2`" in outcome.message


def test_nothing_moves_to_it(machine_cluster: Any) -> None:
    """What it has may be put in another order; another replica is refused."""
    cluster = machine_cluster(3, level=LEVEL_OF_MOVES)
    cluster.create("t", [[1, 2]])
    cluster.set_config("cordoned.log.dirs", "*", topic=2)
    cluster.set_config("cordoned.log.dirs", "*", topic=3)
    outcome = cluster.move([1, 3])
    assert outcome.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "gives broker 3 a new replica, and it is cordoned" in outcome.message
    assert cluster.move([2, 1]).error is ErrorCode.NONE
    assert cluster.partition().replicas == (2, 1)


def test_it_stays_cordoned_while_it_is_down_and_anew(machine_cluster: Any) -> None:
    """The metadata have it, and no process: neither a death nor a new registration takes it away."""
    cluster = machine_cluster(3)
    cluster.set_config("cordoned.log.dirs", "*", topic=2)
    cluster.fence(2)
    cluster.start(2)
    cluster.fail_over()
    outcome = cluster.create_topic(api.CreatableTopic("new", num_partitions=1, replication_factor=3))
    assert outcome.error is ErrorCode.INVALID_REPLICATION_FACTOR


def test_one_directory_is_not_cordoned(machine_cluster: Any) -> None:
    outcome = machine_cluster(1).set_config("cordoned.log.dirs", "/disk1", topic=1)
    assert outcome.error is ErrorCode.INVALID_CONFIG
    assert "strandline log move" in outcome.message


def test_replicas_are_counted_again_for_changed_topics_alone(machine_cluster: Any) -> None:
    """Rule A24: one more topic costs what it has, and not what the cluster has; and the counts stay those of the image,
    whatever is created, extended, changed and deleted."""
    cluster = machine_cluster(4)
    counts = cluster.state.counts
    rng = random.Random(3)

    def check() -> None:
        replicas, leaders = counts.of(cluster.image)
        parts = [part for _, part in cluster.image.partitions()]
        assert +replicas == Counter(node for part in parts for node in part.replicas)
        assert +leaders == Counter(part.preferred_leader for part in parts)

    for number in range(12):
        cluster.create_topic(api.CreatableTopic(f"t{number}", num_partitions=rng.randint(1, 5), replication_factor=2))
        check()
        if number % 3 == 2:
            ref = api.TopicRef(name=f"t{number - 1}")
            cluster.run(topics.delete_topics(cluster.state, api.DeleteTopicsRequest((ref,))))
            check()
        if number % 4 == 3:
            cluster.fence(number % 3 + 2)
            check()
            cluster.start(number % 3 + 2)
    kept = counts._topics[cluster.image.topics["t0"].topic_id]
    cluster.create_topic(api.CreatableTopic("last", num_partitions=1, replication_factor=2))
    check()
    assert counts._topics[cluster.image.topics["t0"].topic_id] is kept
