"""Topics created, deleted, extended: rows S11 to S16, S82, with Kafka's errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from strandline.controller import api
from strandline.controller.machine import topics
from strandline.controller.machine.topic_names import TakenNames
from strandline.controller.metadata.image import topic_resource
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import ZERO_UUID

REFUSED: list[tuple[str, dict[str, Any], ErrorCode]] = [
    ("an empty name", {"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ("a dot", {"name": "."}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ("two dots", {"name": ".."}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ("a slash", {"name": "a/b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ("a letter that is not ASCII", {"name": "straße"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ("a line feed at the end", {"name": "a\n"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ("250 characters", {"name": "a" * 250}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ("the controllers' own log", {"name": "__cluster_metadata"}, ErrorCode.INVALID_REQUEST),
    ("a collision of '.' and '_'", {"name": "exists.already"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ("a topic that exists", {"name": "exists_already"}, ErrorCode.TOPIC_ALREADY_EXISTS),
    ("no partitions", {"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
    ("minus two partitions", {"num_partitions": -2}, ErrorCode.INVALID_PARTITIONS),
    ("no replicas", {"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
    ("more replicas than brokers (S14)", {"replication_factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
    ("too many partitions for one batch", {"num_partitions": 10_001}, ErrorCode.POLICY_VIOLATION),
    ("a config that does not exist", {"configs": {"retention": "1"}}, ErrorCode.INVALID_CONFIG),
    ("a config that Kafka 4 removed", {"configs": {"message.format.version": "3.0"}}, ErrorCode.INVALID_CONFIG),
    ("tiered storage", {"configs": {"remote.storage.enable": "true"}}, ErrorCode.INVALID_CONFIG),
    ("a config of brokers", {"configs": {"flush.policy": "ack"}}, ErrorCode.INVALID_CONFIG),
    ("a config value that cannot be", {"configs": {"retention.ms": "a week"}}, ErrorCode.INVALID_CONFIG),
    ("a list that repeats itself", {"configs": {"cleanup.policy": "delete,delete"}}, ErrorCode.INVALID_CONFIG),
    ("a fraction without end", {"configs": {"min.cleanable.dirty.ratio": "0." + "0" * 99}}, ErrorCode.INVALID_CONFIG),
    ("a null config", {"configs": {"retention.ms": None}}, ErrorCode.INVALID_CONFIG),
    ("assignments and a count", {"assignments": [[1]], "num_partitions": 1}, ErrorCode.INVALID_REQUEST),
    ("assignments and a factor", {"assignments": [[1]], "replication_factor": 1}, ErrorCode.INVALID_REQUEST),
    ("an empty assignment", {"assignments": [[]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ("a broker twice", {"assignments": [[1, 1]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ("an unknown broker", {"assignments": [[1, 9]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ("uneven factors", {"assignments": [[1, 2], [1]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ("all assigned are fenced", {"assignments": [[3]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
]


def creatable(name: str = "new", assignments: list[list[int]] | None = None, **fields: Any) -> api.CreatableTopic:
    manual = tuple(api.ReplicaAssignment(number, tuple(nodes)) for number, nodes in enumerate(assignments or []))
    return api.CreatableTopic(name, assignments=manual, **fields)


@pytest.mark.parametrize(("what", "fields", "error"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused(machine_cluster: Any, what: str, fields: dict[str, Any], error: ErrorCode) -> None:
    """Kafka's error for each mistake, a sentence, and nothing created; a dry run says the same."""
    cluster = machine_cluster(3)
    cluster.fence(3)
    cluster.create("exists_already", [[1]])
    before = len(cluster.log)
    outcomes = [cluster.create_topic(creatable(**fields), dry_run=dry_run) for dry_run in (True, False)]
    assert [outcome.error for outcome in outcomes] == [error, error]
    assert outcomes[0].message
    assert len(cluster.log) == before


@pytest.mark.parametrize(
    ("numbers", "error"),
    [([0, 0], ErrorCode.INVALID_REPLICA_ASSIGNMENT), ([0, 2], ErrorCode.INVALID_REPLICA_ASSIGNMENT)],
)
def test_manual_assignments_are_numbered_without_gap(
    machine_cluster: Any, numbers: list[int], error: ErrorCode
) -> None:
    """A partition assigned twice, or one left out."""
    assignments = tuple(api.ReplicaAssignment(number, (1,)) for number in numbers)
    outcome = machine_cluster(1).create_topic(api.CreatableTopic("new", assignments=assignments))
    assert outcome.error is error


def test_defaults(machine_cluster: Any) -> None:
    """Rows S12, S13: one partition; three replicas, or as many as there are brokers, and the reply says so."""
    for brokers, factor in ((1, 1), (2, 2), (3, 3), (5, 3)):
        outcome = machine_cluster(brokers).create_topic(creatable())
        assert (outcome.num_partitions, outcome.replication_factor) == (1, factor)
        assert f"Replication factor {factor} was chosen" in outcome.message
        assert ("lost" in outcome.message) == (factor == 1)


def test_defaults_of_the_operator(machine_cluster: Any) -> None:
    """From the node's file, and over it the cluster's dynamic default; a factor that was asked for gets no remark."""
    cluster = machine_cluster(3, static={"num.partitions": "3", "default.replication.factor": "2"})
    outcome = cluster.create_topic(creatable())
    assert (outcome.num_partitions, outcome.replication_factor, outcome.message) == (3, 2, "")
    assert cluster.set_config("num.partitions", "4", topic=None).error is ErrorCode.NONE
    assert cluster.create_topic(creatable("another")).num_partitions == 4
    cluster = machine_cluster(2, static={"default.replication.factor": "3"})
    assert cluster.create_topic(creatable()).error is ErrorCode.INVALID_REPLICATION_FACTOR


def test_dry_run_tells_what_would_be(machine_cluster: Any) -> None:
    """The same answer, placement included, and nothing in the log."""
    cluster = machine_cluster(3)
    before = len(cluster.log)
    outcome = cluster.create_topic(creatable(num_partitions=6), dry_run=True)
    assert (outcome.error, len(outcome.assignments)) == (ErrorCode.NONE, 6)
    assert len(cluster.log) == before
    assert not cluster.image.topics


def test_retry_of_a_creation_finds_its_own_topic(machine_cluster: Any) -> None:
    """Row S82: the controller dies after the commit and before the reply; the retry carries the same proposal and
    succeeds."""
    cluster = machine_cluster(3)
    topic = creatable(topic_id=UUID(int=77 << 64))
    first = cluster.create_topic(topic)
    assert first.topic_id.version == 4
    cluster.fail_over()
    again = cluster.create_topic(topic)
    assert (again.error, again.topic_id, again.assignments) == (ErrorCode.NONE, first.topic_id, first.assignments)
    for other in (UUID(int=78 << 64), ZERO_UUID):
        assert cluster.create_topic(creatable(topic_id=other)).error is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_late_copy_of_a_creation_makes_another_topic(machine_cluster: Any) -> None:
    """The topic is deleted when a copy of the request that created it arrives: a topic id is never used again, for
    whatever knows topics by their ids would take the new one for the old one."""
    cluster = machine_cluster(3)
    topic = creatable(topic_id=UUID(int=77 << 64, version=4))
    first = cluster.create_topic(topic)
    cluster.run(topics.delete_topics(cluster.state, api.DeleteTopicsRequest((api.TopicRef(topic.name),))))
    late = cluster.create_topic(topic)
    assert late.error is ErrorCode.NONE
    assert late.topic_id != first.topic_id


def test_one_request_with_good_and_bad(machine_cluster: Any) -> None:
    """Each topic alone; a name twice is refused twice; names may not collide inside the request either."""
    cluster = machine_cluster(3)
    request = api.CreateTopicsRequest(
        (creatable("good"), creatable("twice"), creatable("twice"), creatable("a.b"), creatable("a_b"))
    )
    outcomes = cluster.run(topics.create_topics(cluster.state, request)).topics
    assert [outcome.error for outcome in outcomes] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert list(cluster.image.topics) == ["good", "a.b"]


def test_an_id_belongs_to_one_topic(machine_cluster: Any) -> None:
    """Rule A16 (schedule 61): an id that another topic has is refused with its name; so is one that is proposed
    twice."""
    cluster = machine_cluster(3)
    taken = cluster.create_topic(creatable("a")).topic_id
    refused = cluster.create_topic(creatable("b", topic_id=taken))
    assert (refused.error, refused.message) == (
        ErrorCode.INVALID_REQUEST,
        f"Topic 'a' has the id {taken} that is proposed for 'b'. Propose none: the controller draws one.",
    )
    request = api.CreateTopicsRequest((creatable("c", topic_id=UUID(int=78)), creatable("d", topic_id=UUID(int=78))))
    outcomes = cluster.run(topics.create_topics(cluster.state, request)).topics
    assert [outcome.error for outcome in outcomes] == [ErrorCode.INVALID_REQUEST] * 2
    assert list(cluster.image.topics) == ["a"]


def test_names_that_may_collide_are_compared_once() -> None:
    """Thousands of names with '_' in one request held the controller for seconds: each was compared with all."""

    class Counted(list[str]):
        rounds = 0

        def __iter__(self) -> Iterator[str]:
            self.rounds += 1
            return super().__iter__()

    existing = Counted(["a.b", "c"])
    taken = TakenNames(existing)
    for number in range(1000):
        taken.check(f"new_{number}")
        taken.add(f"new_{number}")
    for name, other in (("a_b", "a.b"), ("new.7", "new_7")):
        with pytest.raises(KafkaError, match=f"collides with the existing topic '{other}'"):
            taken.check(name)
    taken.check("a.b")
    assert existing.rounds == 1


def test_new_partitions_are_led_by_their_first_active_replica(machine_cluster: Any) -> None:
    """A fenced replica is assigned and not in the ISR; a broker in shutdown gets nothing."""
    cluster = machine_cluster(3)
    cluster.fence(1)
    cluster.create("t", [[1, 2, 3]])
    info = cluster.partition()
    assert (info.leader, info.isr, info.leader_epoch, info.partition_epoch) == (2, (2, 3), 0, 0)
    cluster.create("u", [[3]])
    cluster.beat(3, want_shutdown=True)
    placed = cluster.create_topic(creatable("v", replication_factor=2)).assignments[0].replicas
    assert placed == (2, 1)


def test_every_broker_fenced(machine_cluster: Any) -> None:
    """Nobody could lead."""
    cluster = machine_cluster(2)
    cluster.fence(1)
    cluster.fence(2)
    assert cluster.create_topic(creatable()).error is ErrorCode.INVALID_REPLICATION_FACTOR


def test_delete_by_name_and_id(machine_cluster: Any) -> None:
    """The topic, its partitions and its configs go; a topic of that name made later is another one."""
    cluster = machine_cluster(3)
    for name in ("a", "b", "c"):
        cluster.create(name, retention_ms="1000")
    topic_id = cluster.image.topics["b"].topic_id
    refs = (
        api.TopicRef("a"),
        api.TopicRef(topic_id=topic_id),
        api.TopicRef("b"),
        api.TopicRef("nope"),
        api.TopicRef(topic_id=UUID(int=5)),
    )
    dry = cluster.run(topics.delete_topics(cluster.state, api.DeleteTopicsRequest(refs, dry_run=True)))
    assert set(cluster.image.topics) == {"a", "b", "c"}
    outcomes = cluster.run(topics.delete_topics(cluster.state, api.DeleteTopicsRequest(refs)))
    assert outcomes == dry
    assert [(outcome.name, outcome.error) for outcome in outcomes.topics] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.NONE),
        ("b", ErrorCode.INVALID_REQUEST),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("", ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert set(cluster.image.topics) == {"c"}
    assert list(cluster.image.configs) == [topic_resource("c")]
    cluster.create("b")
    assert cluster.image.topics["b"].topic_id != topic_id


def add(cluster: Any, count: int, assignments: list[list[int]] | None = None, name: str = "t") -> api.TopicOutcome:
    manual = tuple(api.ReplicaAssignment(0, tuple(nodes)) for nodes in assignments or [])
    request = api.CreatePartitionsRequest((api.PartitionsToAdd(name, count, manual),))
    return cluster.run(topics.create_partitions(cluster.state, request)).topics[0]


def test_create_partitions(machine_cluster: Any) -> None:
    """Row S16: more partitions of the same factor; the old ones do not move."""
    cluster = machine_cluster(3)
    cluster.create("t", [[1, 2], [2, 3]])
    before = dict(cluster.image.topics["t"].partitions)
    assert add(cluster, 6).error is ErrorCode.NONE
    after = cluster.image.topics["t"].partitions
    assert {number: after[number] for number in before} == before
    counts = {node: sum(node in info.replicas for info in after.values()) for node in (1, 2, 3)}
    assert counts == {1: 4, 2: 4, 3: 4}
    assert add(cluster, 7, [[3, 1]]).error is ErrorCode.NONE
    assert cluster.partition("t", 6).replicas == (3, 1)


@pytest.mark.parametrize(
    ("count", "assignments", "name", "error"),
    [
        (2, None, "t", ErrorCode.INVALID_PARTITIONS),
        (1, None, "t", ErrorCode.INVALID_PARTITIONS),
        (3, None, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (4, [[1, 2]], "t", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[1]], "t", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[1, 9]], "t", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (20_000, None, "t", ErrorCode.POLICY_VIOLATION),
    ],
)
def test_create_partitions_refused(
    machine_cluster: Any, count: int, assignments: list[list[int]] | None, name: str, error: ErrorCode
) -> None:
    """Kafka's errors; nothing is added."""
    cluster = machine_cluster(3)
    cluster.create("t", [[1, 2], [2, 3]])
    assert add(cluster, count, assignments, name).error is error
    assert len(cluster.image.topics["t"].partitions) == 2
