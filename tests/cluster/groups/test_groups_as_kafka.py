"""Rules that were found by reading Apache Kafka's GroupMetadataManager and OffsetMetadataManager beside ours. Each test
names the rule's test there."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_protocol_case import ConsumerMember
from shard_case import Driver

from strandline.cluster.groups.classic.group import GroupState
from strandline.cluster.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    JoinAnswer,
    JoinGroup,
    OffsetToCommit,
    SyncAnswer,
    SyncGroup,
)
from strandline.cluster.groups.config import GroupConfig
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError

LONG = {"session_timeout_ms": 1_000_000}
NOT_PARSED = (("range", b"nonsense"),)


@pytest.mark.parametrize("who", [{"instance_id": "i"}, {"member_id": "m"}, {"member_id": "m", "instance_id": "i"}])
def test_offsets_are_kept_for_a_group_that_nobody_has_joined(who: dict[str, str]) -> None:
    """testSimpleGroupOffsetCommitWithInstanceId: Java's consumer with a group.instance.id tells it also where its
    partitions are assigned by hand; nobody is a member, so nobody is fenced."""
    driver = Driver()
    assert driver.get_commit(5, **who) == [ErrorCode.NONE]
    assert driver.get_commit(6, **who) == [ErrorCode.NONE], "the group is there by now, and is empty"
    assert driver.offsets() == {("t", 0): 6}


def test_a_group_that_has_become_too_large_is_rebalanced_when_it_is_loaded() -> None:
    """testOnLoadedExceedGroupMaxSizeTriggersRebalance, testLastJoiningMembersAreKickedOut...: who joins first stays."""
    driver = Driver()
    members = driver.stable(3, **LONG)
    smaller = Driver(
        GroupConfig({"group.initial.rebalance.delay.ms": 0, "group.max.size": 2}), driver.log, driver.now_ms
    )
    assert smaller.group().state is GroupState.PREPARING_REBALANCE
    assert [smaller.beat(one) for one in members] == [ErrorCode.REBALANCE_IN_PROGRESS] * 3
    first, second, late = (smaller.join(one.member_id, **LONG) for one in members)
    assert smaller.answer(late) == JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert {smaller.joined(one).generation for one in (first, second)} == {members[0].generation + 1}
    assert len(smaller.group().members) == 2
    as_large = Driver(
        GroupConfig({"group.initial.rebalance.delay.ms": 0, "group.max.size": 3}), driver.log, driver.now_ms
    )
    assert as_large.group().state is GroupState.STABLE


def test_offsets_that_consumers_may_read() -> None:
    """testGenericGroupOffsetDeleteWithErrors, isSubscribedToTopic: while it is not known what consumers read, it may be
    any topic; members of another protocol type make it NON_EMPTY_GROUP for the whole request."""
    driver = Driver()
    driver.answer(driver.commit(5))
    driver.stable(protocols=NOT_PARSED)
    assert driver.get(DeleteOffsets("g", (("t", 0), ("u", 0)))) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] * 2
    other = Driver()
    other.answer(other.commit(5))
    other.stable(protocol_type="connect", protocols=NOT_PARSED)
    with pytest.raises(KafkaError, match="NON_EMPTY_GROUP"):
        other.get(DeleteOffsets("g", (("t", 0),)))
    before = Driver(initial_rebalance_delay_ms=3_000)
    before.answer(before.commit(5))
    before.join()
    assert before.get(DeleteOffsets("g", (("t", 0),))) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert before.offsets() == {("t", 0): 5}


def test_a_sync_before_the_first_generation() -> None:
    """isProtocolInconsistent: a group that has not chosen yet contradicts nobody; its rebalance is under way."""
    driver = Driver(initial_rebalance_delay_ms=3_000)
    driver.join()
    (member_id,) = driver.group().members
    answer: SyncAnswer = driver.get(SyncGroup("g", 0, member_id, None, "consumer", "range", ()))
    assert answer.error is ErrorCode.REBALANCE_IN_PROGRESS


def left_behind() -> Driver:
    """An empty group of the consumer protocol, with an offset."""
    driver = Driver()
    member = ConsumerMember(driver, "m")
    member.beat()
    offsets = (OffsetToCommit("t", 0, 5, 1, ""),)
    assert driver.get(CommitOffsets("g", member.epoch, "m", None, offsets)) == [ErrorCode.NONE]
    member.beat(epoch=-1)
    return driver


def late_join(driver: Driver, **values: Any) -> JoinAnswer:
    command = JoinGroup("g", "of old", None, "c", "/h", 10_000, 60_000, "consumer", (("range", b""),))
    answer: JoinAnswer = driver.get(command._replace(**values))
    return answer


def test_a_late_join_does_not_end_an_empty_group_of_the_consumer_protocol() -> None:
    """testClassicGroupJoinWithEmptyConsumerGroup: only a new member makes a classic group of it. A refused one used to
    end the group and leave its offsets to nobody: they could be neither seen nor deleted, and never expired."""
    driver = left_behind()
    assert late_join(driver).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(driver.shard.consumer_groups) == ["g"]
    for coordinator in (driver.failover(), driver):
        assert coordinator.offsets() == {("t", 0): 5}
        assert coordinator.get(DeleteGroup("g")) is None
        assert coordinator.offsets() == {}


def test_offsets_that_a_group_leaves_behind_are_a_group() -> None:
    """What a coordinator that loads the log makes of them, too: live and loaded do not differ."""
    driver = left_behind()
    assert late_join(driver, member_id="").error is ErrorCode.MEMBER_ID_REQUIRED
    driver.pass_ms(20_000)
    assert list(driver.shard.groups) == list(driver.failover().shard.groups) == ["g"]
    driver.pass_ms(8 * 24 * 3600 * 1000)
    for coordinator in (driver, driver.failover()):
        assert (coordinator.shard.groups, coordinator.offsets()) == ({}, {})
