"""Static members (KIP-345): a restart is no rebalance, the old process is fenced, a failover remembers who is who."""

from __future__ import annotations

from typing import Any

from shard_case import RANGE, STICKY, Driver, assigned

from strandline.cluster.groups.classic.group import GroupState
from strandline.cluster.groups.commands import JoinAnswer, Leaver
from strandline.proto.error_codes import ErrorCode


def static(driver: Driver, instance: str = "a", member_id: str = "", **values: Any) -> int:
    return driver.join(member_id, instance_id=instance, **values)


def stable_static(driver: Driver) -> JoinAnswer:
    joined = driver.joined(static(driver))
    driver.synced(driver.sync(joined, instance_id="a"))
    return joined


def test_a_restart_is_no_rebalance() -> None:
    """The member returns under a new id with the assignment that it had; its leader need not assign (KIP-814)."""
    driver = Driver()
    before = stable_static(driver)
    assert before.member_id.startswith("a-")
    after = driver.joined(static(driver))
    assert after.member_id != before.member_id
    assert (after.generation, after.leader, after.skip_assignment) == (1, after.member_id, True)
    synced = driver.synced(driver.sync(after, instance_id="a"))
    assert synced.assignment == assigned(before.member_id)
    assert driver.group().state is GroupState.STABLE


def test_an_older_client_is_told_its_old_leader() -> None:
    """Before KIP-814 a client that hears that it leads would assign, and nobody waits for that."""
    driver = Driver()
    before = stable_static(driver)
    after = driver.joined(static(driver, may_skip_assignment=False))
    assert (after.leader, after.members, after.skip_assignment) == (before.member_id, (), False)


def test_the_old_process_is_fenced() -> None:
    """FENCED_INSTANCE_ID for everything that it asks with its instance id, UNKNOWN_MEMBER_ID without."""
    driver = Driver()
    before = stable_static(driver)
    driver.joined(static(driver))
    assert driver.beat(before, "a") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.beat(before) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.answer(driver.sync(before, instance_id="a")).error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.answer(static(driver, member_id=before.member_id)).error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.leave(Leaver(before.member_id, "a")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert driver.beat(before, "b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_failover_does_not_bring_the_old_process_back() -> None:
    """Schedule 43: the replacement is in the log before it is answered."""
    driver = Driver()
    before = stable_static(driver)
    driver.hold = True
    asked = static(driver)
    assert asked not in driver.answers
    driver.commit_held()
    after = driver.joined(asked)
    other = driver.failover()
    assert other.beat(before, "a") is ErrorCode.FENCED_INSTANCE_ID
    assert other.beat(after, "a") is ErrorCode.NONE


def test_a_replacement_that_is_refused_changes_nothing() -> None:
    driver = Driver()
    before = stable_static(driver)
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert driver.answer(static(driver)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.beat(before, "a") is ErrorCode.NONE
    driver.refuse = None
    driver.pass_ms(10_000)
    assert driver.beat(before, "a") is ErrorCode.UNKNOWN_MEMBER_ID, "its session counts on"


def test_a_session_of_a_static_member_ends() -> None:
    """Only then is there a rebalance."""
    driver = Driver()
    joined = stable_static(driver)
    driver.pass_ms(10_000)
    assert driver.group().state is GroupState.EMPTY
    assert driver.beat(joined, "a") is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_members_are_not_thrown_out_of_a_rebalance() -> None:
    """One that does not join in time keeps its place until its session ends: it may only be restarting."""
    driver = Driver()
    joined = driver.joined(static(driver, rebalance_timeout_ms=3_000, session_timeout_ms=60_000))
    driver.synced(driver.sync(joined, instance_id="a"))
    second = driver.join(rebalance_timeout_ms=3_000)
    driver.pass_ms(3_000)
    answer = driver.joined(second)
    assert [one.instance_id for one in answer.members] == ["a", None]
    assert answer.leader == answer.member_id, "the leader is one that has joined"


def test_an_administrator_removes_a_static_member() -> None:
    """KIP-345: by its instance id alone; several at once, each with its own answer."""
    driver = Driver()
    stable_static(driver)
    assert driver.leave(Leaver("", "a"), Leaver("", "b")) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.group().state is GroupState.EMPTY


def test_a_return_that_changes_the_assignor_is_a_rebalance() -> None:
    driver = Driver()
    joined = driver.joined(static(driver, protocols=(RANGE, STICKY)))
    driver.synced(driver.sync(joined, instance_id="a"))
    again = driver.joined(static(driver, protocols=(STICKY,)))
    assert (again.generation, again.protocol_name, again.skip_assignment) == (2, "sticky", False)


def test_a_return_while_the_assignment_is_made_is_a_rebalance() -> None:
    """The leader would assign to the old id."""
    driver = Driver()
    joined = driver.joined(static(driver))
    again = driver.joined(static(driver))
    assert again.generation == 2
    assert driver.answer(driver.sync(joined, instance_id="a")).error is ErrorCode.FENCED_INSTANCE_ID


def test_a_join_that_waits_is_fenced_by_the_next_one() -> None:
    """Two processes with one instance id: the later one has it."""
    driver = Driver(initial_rebalance_delay_ms=1_000)
    first = static(driver)
    second = static(driver)
    assert driver.answer(first).error is ErrorCode.FENCED_INSTANCE_ID
    driver.pass_ms(2_000)
    assert [one.instance_id for one in driver.joined(second).members] == ["a"]
