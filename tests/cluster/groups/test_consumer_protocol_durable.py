"""What a coordinator of the consumer protocol told stands in its log; what does not was told to nobody (KIP-848)."""

from __future__ import annotations

import pytest
from consumer_protocol_case import described, members, settle
from shard_case import Driver

from strandline.cluster.groups.consumer_protocol.commands import TopicsChanged
from strandline.cluster.groups.machine import WriteOutcome
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError


def test_a_failover_loses_no_member_and_no_epoch() -> None:
    """What members were told stands in the log; who has to give back has its whole time again."""
    driver = Driver()
    one, two = members(driver, 2)
    one.beat()
    two.beat()
    one.stubborn = True
    one.beat()
    other = driver.failover()
    assert described(other) == described(driver)
    one.driver = two.driver = other
    assert (one.beat().epoch, two.beat().epoch) == (1, 2)
    driver.pass_ms(50_000)
    other.pass_ms(40_000)
    one.beat()
    two.beat()
    other.pass_ms(21_000)
    assert one.refused() is ErrorCode.UNKNOWN_MEMBER_ID


def test_nothing_is_told_before_it_is_committed() -> None:
    """Neither the epoch nor, to somebody who changes nothing, what was written just before."""
    driver = Driver()
    one, two = members(driver, 2)
    driver.hold = True
    asked = driver.ask(one.command())
    assert asked not in driver.answers
    driver.commit_held()
    one.take(driver.answer(asked))
    asked = driver.ask(two.command())
    driver.commit_held(WriteOutcome(ErrorCode.REQUEST_TIMED_OUT, True))
    with pytest.raises(KafkaError) as caught:
        driver.answer(asked)
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.hold = False
    assert two.beat().epoch == 2, "it asks again, and is who it is"


def test_a_refused_write_leaves_nothing() -> None:
    """Not enough replicas: no group, no member, no epoch; the next attempt begins anew."""
    driver = Driver()
    (member,) = members(driver, 1)
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert member.refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not driver.shard.consumer_groups
    driver.refuse = None
    member.beat()
    driver.topics["t"] = 8
    driver.ask(TopicsChanged())
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert member.refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.refuse = None
    settle(member, rounds=1)
    assert len(member.numbers()) == 8, "it is not forgotten that the topic grew"
