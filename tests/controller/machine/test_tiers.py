"""AlterTiers: what leaders may say of their partitions' tiers, and what a lost answer leads to (KIP-405)."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

import pytest

from strandline.controller import api
from strandline.controller.broker_api import AlterTiersRequest
from strandline.controller.machine import tiers, topics
from strandline.controller.metadata.tiers import DeletedTierRecord
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.tier import AS_IT_IS, EpochStart, Tier, TierChange, TieredSegment, TierOutcome


def segment(base: int, end: int, number: int = 0, **changes: Any) -> TieredSegment:
    fields = {"size_bytes": 100, "max_timestamp_ms": 5, "epochs": ((0, base), (1, base + 1)), "copied_ms": 7, **changes}
    fields["epochs"] = tuple(EpochStart(*start) for start in fields["epochs"])
    return TieredSegment(UUID(int=number or base + 1), base, end, **fields)


@pytest.fixture
def cluster(machine_cluster: Any) -> Any:
    """Topic t, tiered, on 1, 2, 3: broker 1 led and fell, 2 leads in leader epoch 1; topic plain is not tiered."""
    cluster = machine_cluster(tiered_storage=True)
    cluster.create(remote_storage_enable="true")
    cluster.create("plain", [[2, 3]])
    cluster.fence(1)
    assert (cluster.partition().leader, cluster.partition().leader_epoch) == (2, 1)
    return cluster


def change_of(cluster: Any, *add: TieredSegment, start: int = AS_IT_IS, topic: str = "t", **changes: Any) -> TierChange:
    info = cluster.partition(topic)
    made = TierChange(cluster.image.topics[topic].topic_id, 0, info.leader_epoch, tuple(add), start)
    return dataclasses.replace(made, **changes)


def send(cluster: Any, *changes: TierChange, sender: int = 2, reaped: tuple[UUID, ...] = ()) -> tuple[TierOutcome, ...]:
    request = AlterTiersRequest(sender, cluster.epoch(sender), changes, reaped)
    return cluster.run(tiers.alter_tiers(cluster.state, request)).outcomes


def alter(cluster: Any, *add: TieredSegment, sender: int = 2, **changes: Any) -> ErrorCode:
    """One change; nothing is written where it is refused."""
    before = len(cluster.log)
    (outcome,) = send(cluster, change_of(cluster, *add, **changes), sender=sender)
    assert outcome.error is ErrorCode.NONE or len(cluster.log) == before
    assert bool(outcome.message) == (outcome.error is not ErrorCode.NONE)
    return outcome.error


def tier(cluster: Any) -> Tier:
    return cluster.image.tier(cluster.image.topics["t"].topic_id, 0)


FIRST, SECOND, THIRD = segment(3, 10), segment(10, 20), segment(20, 30)


def test_segments_are_added_where_the_tier_ends(cluster: Any) -> None:
    """The first one anywhere: the oldest records may be gone when the tier is turned on."""
    assert alter(cluster, FIRST) is ErrorCode.NONE
    assert alter(cluster, SECOND, THIRD) is ErrorCode.NONE
    assert tier(cluster) == Tier(0, (FIRST, SECOND, THIRD))


ROWS: list[tuple[str, dict[str, Any], ErrorCode]] = [
    ("no such topic", {"topic_id": UUID(int=5)}, ErrorCode.UNKNOWN_TOPIC_ID),
    ("no such partition", {"partition": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("a leader that was deposed", {"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
    ("a leader of whom this controller does not know", {"leader_epoch": 2}, ErrorCode.NOT_CONTROLLER),
    ("not the leader", {"sender": 3}, ErrorCode.INVALID_REQUEST),
    ("all is well", {}, ErrorCode.NONE),
]


@pytest.mark.parametrize(("name", "changes", "error"), ROWS, ids=[row[0] for row in ROWS])
def test_only_the_leader_of_this_epoch_is_heard(
    cluster: Any, name: str, changes: dict[str, Any], error: ErrorCode
) -> None:
    """Of segments, and of the start alone: a deposed leader's idea of retention is as old as it is."""
    assert alter(cluster, FIRST, **changes) is error
    assert alter(cluster, start=2, **changes) is error


def test_deposed_leader_is_fenced_even_where_its_change_is_in(cluster: Any) -> None:
    """It must stop, whatever became of its change."""
    assert alter(cluster, FIRST) is ErrorCode.NONE
    assert alter(cluster, FIRST, leader_epoch=0) is ErrorCode.FENCED_LEADER_EPOCH


FAULTS: list[tuple[str, list[TieredSegment]]] = [
    ("a gap behind the tier", [segment(21, 30)]),
    ("an overlap with the tier", [segment(19, 30)]),
    ("a gap between two", [THIRD, segment(31, 40)]),
    ("an overlap of two", [THIRD, segment(29, 40)]),
    ("no record", [segment(20, 20, 50)]),
    ("offsets that go back", [segment(20, 15, 50)]),
    ("a negative size", [segment(20, 30, 50, size_bytes=-1)]),
    ("a negative epoch", [segment(20, 30, 50, epochs=((-1, 20),))]),
    ("epochs that go back", [segment(20, 30, 50, epochs=((1, 20), (0, 25)))]),
    ("epochs whose offsets go back", [segment(20, 30, 50, epochs=((0, 20), (1, 19)))]),
    ("no epoch", [segment(20, 30, 50, epochs=())]),
    ("no epoch of its first record", [segment(20, 30, 50, epochs=((0, 21),))]),
    ("an epoch that is to come", [segment(20, 30, 50, epochs=((0, 20), (2, 25)))]),
    ("an id that is in the tier", [segment(20, 30, FIRST.segment_id.int)]),
    ("an id twice", [segment(20, 30, 50), segment(30, 40, 50)]),
    ("one that is in, and a new one", [SECOND, THIRD]),
]


@pytest.mark.parametrize(("name", "add"), FAULTS, ids=[row[0] for row in FAULTS])
def test_segments_that_do_not_continue_the_tier_are_refused(cluster: Any, name: str, add: list[TieredSegment]) -> None:
    """All of a change, or nothing."""
    assert alter(cluster, FIRST, SECOND) is ErrorCode.NONE
    assert alter(cluster, *add) is ErrorCode.INVALID_REQUEST
    assert tier(cluster) == Tier(0, (FIRST, SECOND))


def test_retry_of_a_change_that_is_in_is_a_success_that_writes_nothing(cluster: Any) -> None:
    """Its answer was lost. The same offsets under another id are another attempt, and no retry."""
    assert alter(cluster, FIRST, SECOND) is ErrorCode.NONE
    length = len(cluster.log)
    assert alter(cluster, FIRST, SECOND) is ErrorCode.NONE
    assert alter(cluster, SECOND) is ErrorCode.NONE
    assert len(cluster.log) == length
    assert alter(cluster, FIRST) is ErrorCode.INVALID_REQUEST
    assert alter(cluster, segment(10, 20, 50)) is ErrorCode.INVALID_REQUEST


def test_retry_is_a_success_where_the_start_has_passed_a_part_of_it(cluster: Any) -> None:
    """Nothing that was refused is in the tier: its object can be deleted."""
    assert alter(cluster, FIRST, SECOND, start=15) is ErrorCode.NONE
    length = len(cluster.log)
    assert alter(cluster, FIRST, SECOND, start=15) is ErrorCode.NONE
    assert len(cluster.log) == length
    assert alter(cluster, start=20) is ErrorCode.NONE
    assert alter(cluster, FIRST, SECOND) is ErrorCode.INVALID_REQUEST


def test_start_only_rises(cluster: Any) -> None:
    """A lower or equal one is a success that writes nothing."""
    assert alter(cluster, FIRST, SECOND) is ErrorCode.NONE
    assert alter(cluster, start=10) is ErrorCode.NONE
    assert tier(cluster) == Tier(10, (SECOND,))
    length = len(cluster.log)
    for start in (10, 9, 0, -1, -5):
        assert alter(cluster, start=start) is ErrorCode.NONE
    assert len(cluster.log) == length


def test_start_beyond_the_end_leaves_no_segment(cluster: Any) -> None:
    """The next segment begins there, or later."""
    assert alter(cluster, FIRST, SECOND, start=25) is ErrorCode.NONE
    assert tier(cluster) == Tier(25)
    assert alter(cluster, segment(24, 30)) is ErrorCode.INVALID_REQUEST
    assert alter(cluster, segment(26, 30)) is ErrorCode.NONE


def test_topics_without_the_setting_get_no_segments(cluster: Any) -> None:
    """Their start may rise: what is there is deleted in its time."""
    assert alter(cluster, segment(3, 10, epochs=((0, 3),)), topic="plain") is ErrorCode.INVALID_REQUEST
    assert alter(cluster, topic="plain", start=5) is ErrorCode.NONE


def test_each_change_is_judged_alone(cluster: Any) -> None:
    """And a partition that is named twice once: the second was made on what the first has changed."""
    good = change_of(cluster, FIRST)
    bad = change_of(cluster, SECOND, partition=7)
    outcomes = send(cluster, bad, good, change_of(cluster, SECOND))
    codes = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert [outcome.error for outcome in outcomes] == codes
    assert [outcome.partition for outcome in outcomes] == [7, 0, 0]
    assert tier(cluster) == Tier(0, (FIRST,))


def test_sender_of_another_life_is_refused_as_a_whole(cluster: Any) -> None:
    """The request's own broker epoch is checked before any partition."""
    request = AlterTiersRequest(2, cluster.epoch(2) - 1, (change_of(cluster, FIRST),))
    with pytest.raises(KafkaError) as caught:
        tiers.alter_tiers(cluster.state, request)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_reaped_topics_are_forgotten(cluster: Any) -> None:
    """Once; the id of a topic that lives, or of none, does nothing."""
    assert alter(cluster, FIRST) is ErrorCode.NONE
    gone, plain = cluster.image.topics["t"].topic_id, cluster.image.topics["plain"].topic_id
    send(cluster, reaped=(gone, plain))
    assert cluster.image.tiers
    cluster.run(
        topics.delete_topics(cluster.state, api.DeleteTopicsRequest((api.TopicRef("t"), api.TopicRef("plain"))))
    )
    assert cluster.image.deleted_tiers == {gone: DeletedTierRecord(gone, "t")}
    length = len(cluster.log)
    send(cluster, reaped=(gone, plain, gone))
    assert cluster.image.deleted_tiers == {}
    assert len(cluster.log) == length + 1
