"""AlterPartition: every row of rule B2's table, and the order of the rows; schedules 8, 12, 13."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.controller import api, broker_api
from strandline.controller.machine import isr
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.isr import AlterPartitionItem, IsrMember

ROWS: list[tuple[str, dict[str, Any], ErrorCode]] = [
    ("the leader knows a newer leader epoch (D-13)", {"leader_epoch": 99}, ErrorCode.NOT_CONTROLLER),
    ("the leader knows a newer partition epoch (D-13)", {"partition_epoch": 99}, ErrorCode.NOT_CONTROLLER),
    ("an old leader epoch", {"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
    ("not the leader", {"sender": 3}, ErrorCode.INVALID_REQUEST),
    ("an old partition epoch", {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
    ("a member that is no replica", {"isr": [2, 4]}, ErrorCode.INVALID_REQUEST),
    ("a member twice", {"isr": [2, 2]}, ErrorCode.INVALID_REQUEST),
    ("an empty ISR", {"isr": []}, ErrorCode.INVALID_REQUEST),
    ("an ISR without the leader", {"isr": [3]}, ErrorCode.INVALID_REQUEST),
    ("recovering with two members", {"recovering": True}, ErrorCode.INVALID_REQUEST),
    ("recovered back to recovering", {"recovering": True, "isr": [2]}, ErrorCode.INVALID_REQUEST),
    ("a fenced member (D-12)", {"isr": [2, 1]}, ErrorCode.INELIGIBLE_REPLICA),
    ("a member of another life (D-8)", {"epochs": {3: 0}}, ErrorCode.INELIGIBLE_REPLICA),
    ("all is well", {}, ErrorCode.NONE),
    ("the member's epoch is not asked about", {"epochs": {3: -1}}, ErrorCode.NONE),
]


@pytest.fixture
def cluster(machine_cluster: Any) -> Any:
    """Topic t on 1, 2, 3: broker 1 led and fell, 2 leads (leader epoch 1), 3 in sync; broker 4 is no replica."""
    cluster = machine_cluster(4)
    cluster.create()
    cluster.fence(1)
    assert cluster.partition().leader == 2
    return cluster


def propose(cluster: Any, change: dict[str, Any]) -> ErrorCode:
    change = dict(change)
    nodes = change.pop("isr", [2, 3])
    epochs = change.pop("epochs", {})
    members = tuple(IsrMember(node, epochs.get(node, cluster.epoch(node))) for node in nodes)
    return cluster.alter_isr([], new_isr=members, **change).error


@pytest.mark.parametrize(("name", "change", "error"), ROWS, ids=[row[0] for row in ROWS])
def test_row_of_the_table(cluster: Any, name: str, change: dict[str, Any], error: ErrorCode) -> None:
    """Each row alone gives its error, and nothing changes but by a proposal that stands."""
    before = len(cluster.log)
    assert propose(cluster, change) is error
    assert len(cluster.log) == before + (error is ErrorCode.NONE)


def test_order_of_the_rows(cluster: Any) -> None:
    """A proposal that breaks several rows gets the error of the first; mending them one by one walks down the table."""
    broken: dict[str, Any] = {
        "partition_epoch": 99,
        "leader_epoch": 0,
        "sender": 3,
        "isr": [1],
    }
    assert propose(cluster, broken) is ErrorCode.NOT_CONTROLLER
    broken["partition_epoch"] = 0
    assert propose(cluster, broken) is ErrorCode.FENCED_LEADER_EPOCH
    del broken["leader_epoch"]
    assert propose(cluster, broken) is ErrorCode.INVALID_REQUEST
    del broken["sender"]
    assert propose(cluster, broken) is ErrorCode.INVALID_UPDATE_VERSION
    del broken["partition_epoch"]
    assert propose(cluster, broken) is ErrorCode.INVALID_REQUEST
    broken["isr"] = [1, 2]
    assert propose(cluster, broken) is ErrorCode.INELIGIBLE_REPLICA
    del broken["isr"]
    assert propose(cluster, broken) is ErrorCode.NONE


def test_unregistered_and_stopping_members_are_ineligible(cluster: Any) -> None:
    """Schedule 12 (KAFKA-13916): a leader must not bring a stopping broker back; nor one that is not registered."""
    cluster.beat(3, want_shutdown=False)
    cluster.create("other", [[3]])
    reply = cluster.beat(3, want_shutdown=True)
    assert reply.in_controlled_shutdown
    assert propose(cluster, {}) is ErrorCode.INELIGIBLE_REPLICA
    outcome = cluster.alter_isr([], new_isr=(IsrMember(2, -1), IsrMember(3, -1)))
    assert (outcome.error, outcome.message) == (ErrorCode.INELIGIBLE_REPLICA, "Broker 3 is shutting down.")


def test_unknown_topic_and_partition(cluster: Any) -> None:
    """They are told apart: the leader forgets a topic that is gone, and waits for metadata about a partition."""
    assert cluster.alter_isr([2], partition=7).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.alter_isr([2], topic_id=api.ZERO_UUID).error is ErrorCode.UNKNOWN_TOPIC_ID


def test_sender_of_another_life_is_refused_as_a_whole(cluster: Any) -> None:
    """The request's own broker epoch is checked before any partition."""
    request = broker_api.AlterPartitionRequest(2, cluster.epoch(2) - 1, ())
    with pytest.raises(KafkaError) as caught:
        isr.alter_partition(cluster.state, request)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_shrink_and_expand_answer_what_was_committed(cluster: Any) -> None:
    """After NONE the outcome is the partition as committed; the leader epoch stays, the partition epoch rises."""
    shrunk = cluster.alter_isr([2])
    assert (shrunk.isr, shrunk.leader, shrunk.leader_epoch, shrunk.partition_epoch) == ((2,), 2, 1, 2)
    assert shrunk.min_insync_replicas == 2
    assert cluster.partition().eligible_leader_replicas == (3,)
    expanded = cluster.alter_isr([2, 3])
    assert (expanded.isr, expanded.partition_epoch) == ((2, 3), 3)
    assert cluster.partition().eligible_leader_replicas == ()


def test_a_leader_that_proposes_the_committed_isr_moves_the_partition_epoch(cluster: Any) -> None:
    """Schedule 50: so it withdraws what it proposed before; a late copy of that is based on an older partition
    epoch."""
    before = cluster.partition()
    kept = cluster.alter_isr(list(before.isr))
    assert (kept.error, kept.isr, kept.leader_epoch) == (ErrorCode.NONE, before.isr, before.leader_epoch)
    assert kept.partition_epoch == cluster.partition().partition_epoch == before.partition_epoch + 1
    late = cluster.alter_isr([2], partition_epoch=before.partition_epoch)
    assert late.error is ErrorCode.INVALID_UPDATE_VERSION
    assert cluster.partition().isr == before.isr


def test_one_partition_twice_in_a_request(cluster: Any) -> None:
    """The second proposal was made on an epoch that the first has used up."""
    info = cluster.partition()
    item = AlterPartitionItem(
        cluster.image.topics["t"].topic_id, 0, info.leader_epoch, info.partition_epoch, (IsrMember(2, -1),)
    )
    request = broker_api.AlterPartitionRequest(2, cluster.epoch(2), (item, item))
    outcomes = cluster.run(isr.alter_partition(cluster.state, request)).outcomes
    assert [outcome.error for outcome in outcomes] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def test_recovery_after_an_unclean_election(cluster: Any) -> None:
    """An unclean leader is alone and RECOVERING until it says it has recovered; then its ISR may grow."""
    cluster.set_config("unclean.leader.election.enable", "true")
    cluster.alter_isr([2])
    cluster.fence(3)
    cluster.fence(2)
    assert not cluster.partition().has_leader
    cluster.start(1)
    info = cluster.partition()
    assert (info.leader, info.isr, info.recovering) == (1, (1,), True)
    cluster.start(3)
    assert cluster.alter_isr([1, 3], recovering=True).error is ErrorCode.INVALID_REQUEST
    assert cluster.alter_isr([1], recovering=True).error is ErrorCode.NONE
    assert cluster.alter_isr([1], recovering=False).recovering is False
    assert cluster.alter_isr([1, 3]).error is ErrorCode.NONE
    assert cluster.alter_isr([1], recovering=True).error is ErrorCode.INVALID_REQUEST
