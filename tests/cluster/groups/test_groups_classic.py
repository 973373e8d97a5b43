"""The protocol of classic groups, rule by rule (rule C7; the KIPs are named where they rule)."""

from __future__ import annotations

from itertools import product

import pytest
from shard_case import RANGE, STICKY, Driver, assigned

from strandline.cluster.groups import context
from strandline.cluster.groups.classic.group import TRANSITIONS, Group, GroupEvent, GroupState
from strandline.cluster.groups.commands import Heartbeat, JoinGroup, Leaver, SyncGroup
from strandline.cluster.groups.config import NEW_MEMBER_JOIN_TIMEOUT_MS
from strandline.cluster.groups.machine import WriteOutcome
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError


def test_one_member() -> None:
    """Join, sync, heartbeat: the first generation is 1."""
    driver = Driver()
    joined = driver.joined(driver.join())
    assert (joined.generation, joined.leader, joined.protocol_name) == (1, joined.member_id, "range")
    assert [one.member_id for one in joined.members] == [joined.member_id]
    assert joined.member_id.startswith("c-")
    synced = driver.synced(driver.sync(joined))
    assert synced.assignment == assigned(joined.member_id)
    assert driver.beat(joined) is ErrorCode.NONE
    assert driver.group().state is GroupState.STABLE


def test_the_table_of_states_is_the_only_way() -> None:
    """An event that the table does not have for a state raises, and changes nothing; no state and no event is idle."""
    for state, event in product(GroupState, GroupEvent):
        group = Group("g", state=state)
        if (state, event) in TRANSITIONS:
            group.move(event, 5)
            assert (group.before, group.state, group.state_ms) == (state, TRANSITIONS[state, event], 5)
        else:
            with pytest.raises(FatalError, match="LegalTransition"):
                group.move(event, 5)
            assert (group.state, group.state_ms) == (state, -1)
    assert {event for _, event in TRANSITIONS} == set(GroupEvent)
    assert {state for state, _ in TRANSITIONS} == {None, *GroupState}


def test_a_member_is_given_its_id_before_it_joins() -> None:
    """KIP-394: a client that gives up during the join leaves no member behind. Who has an id may take its time, but no
    longer than a session; older clients join at once."""
    driver = Driver()
    command = JoinGroup("g", "", None, "c", "/h", 10_000, 60_000, "consumer", (RANGE,))
    first = driver.get(command)
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    assert driver.group().members == {}
    driver.pass_ms(9_999)
    assert first.member_id in driver.group().pending
    driver.pass_ms(1)
    assert "g" not in driver.shard.groups, "nothing is left of a group that was only thought of"
    late = driver.get(command._replace(member_id=first.member_id))
    assert late.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(driver.ask(command._replace(member_id_required=False))).generation == 1


def test_a_second_member_rebalances_the_group() -> None:
    """The first hears of it by its heartbeat, joins anew, and both get the next generation, the leader the members."""
    driver = Driver()
    (first,) = driver.stable()
    second = driver.join()
    assert second not in driver.answers
    assert driver.beat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    again = driver.joined(driver.join(first.member_id))
    joined = driver.joined(second)
    assert (again.generation, joined.generation) == (2, 2)
    assert [one.member_id for one in again.members] == [first.member_id, joined.member_id]
    assert joined.members == ()
    waits = driver.sync(joined)
    assert waits not in driver.answers, "the leader has not assigned yet"
    assert driver.synced(driver.sync(again)).assignment == assigned(first.member_id)
    assert driver.synced(waits).assignment == assigned(joined.member_id)


def test_who_does_not_join_in_time_is_out() -> None:
    """The longest rebalance timeout of the members is what the others wait."""
    driver = Driver()
    first, second = driver.stable(2, rebalance_timeout_ms=5_000, session_timeout_ms=100_000)
    asked = driver.join(first.member_id, rebalance_timeout_ms=5_000, session_timeout_ms=100_000)
    driver.pass_ms(4_999)
    assert asked not in driver.answers
    driver.pass_ms(1)
    assert [one.member_id for one in driver.joined(asked).members] == [first.member_id]
    assert driver.beat(second) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_ends() -> None:
    """A silent member is removed and the others rebalance; heartbeats and commits keep it."""
    driver = Driver()
    first, second = driver.stable(2)
    for _ in range(4):
        driver.pass_ms(4_000)
        assert driver.beat(first) is ErrorCode.NONE
        driver.answer(driver.commit(1, second))
    driver.pass_ms(9_000)
    assert driver.beat(first) is ErrorCode.NONE
    driver.pass_ms(1_000)
    assert driver.beat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.beat(second) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(driver.join(first.member_id)).generation == 3


def test_who_waits_for_an_answer_does_not_expire() -> None:
    """A member that has joined says nothing because it is not answered; a new one is given up after five minutes."""
    driver = Driver()
    (first,) = driver.stable(rebalance_timeout_ms=1_000_000)
    second = driver.join(rebalance_timeout_ms=1_000_000)
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 5_000 - 1):
        driver.pass_ms(5_000)
        assert driver.beat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert second not in driver.answers
    driver.pass_ms(5_000)
    assert driver.answer(second).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_first_rebalance_waits_for_more_members() -> None:
    """KIP-134: `group.initial.rebalance.delay.ms`, and again as long as members come, within the rebalance timeout."""
    driver = Driver(initial_rebalance_delay_ms=3_000)
    first = driver.join(rebalance_timeout_ms=7_000)
    driver.pass_ms(2_000)
    second = driver.join(rebalance_timeout_ms=7_000)
    driver.pass_ms(3_999)
    assert first not in driver.answers
    driver.pass_ms(1)
    assert len(driver.joined(first).members) == 2
    assert driver.joined(second).generation == 1


def test_a_member_that_leaves() -> None:
    """LeaveGroup: the others rebalance at once; the last one leaves an empty group behind, which is written down."""
    driver = Driver()
    first, second = driver.stable(2)
    assert driver.leave(Leaver(second.member_id)) == [ErrorCode.NONE]
    assert driver.leave(Leaver(second.member_id)) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.beat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.leave(Leaver(first.member_id)) == [ErrorCode.NONE]
    assert driver.group().state is GroupState.EMPTY
    other = driver.failover()
    assert other.group().state is GroupState.EMPTY
    assert other.group().generation == driver.group().generation


def test_wrong_generation_and_unknown_members() -> None:
    """Heartbeat and SyncGroup: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID; SyncGroup: INCONSISTENT_GROUP_PROTOCOL."""
    driver = Driver()
    (joined,) = driver.stable()
    assert driver.beat(joined._replace(generation=0)) is ErrorCode.ILLEGAL_GENERATION
    assert driver.beat(joined._replace(member_id="x")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.get(Heartbeat("none", 1, "x", None)) is ErrorCode.UNKNOWN_MEMBER_ID
    for changed, error in (
        ({"generation": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "other"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ):
        command = SyncGroup("g", 1, joined.member_id, None, "consumer", "range", ())._replace(**changed)  # type: ignore[arg-type]
        assert driver.get(command).error is error


def test_join_with_an_unknown_id() -> None:
    """A member of a group that is gone, or a foreign one, begins anew."""
    driver = Driver()
    assert driver.answer(driver.join("x")).error is ErrorCode.UNKNOWN_MEMBER_ID
    driver.stable()
    assert driver.answer(driver.join("x")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert "none" not in driver.shard.groups


def test_the_assignor_is_voted_for() -> None:
    """Only what all members have; each votes for its favourite among those."""
    driver = Driver()
    (first,) = driver.stable(protocols=(STICKY, RANGE))
    assert first.protocol_name == "sticky"
    second = driver.join(protocols=(RANGE,))
    assert driver.joined(driver.join(first.member_id, protocols=(STICKY, RANGE))).protocol_name == "range"
    driver.joined(second)
    refused = driver.answer(driver.join(protocols=(STICKY,)))
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    refused = driver.answer(driver.join(protocol_type="connect"))
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_majority_chooses_the_assignor() -> None:
    driver = Driver(initial_rebalance_delay_ms=100)
    asked = [driver.join(protocols=one) for one in ((RANGE, STICKY), (STICKY, RANGE), (STICKY, RANGE))]
    driver.pass_ms(300)
    assert {driver.joined(one).protocol_name for one in asked} == {"sticky"}


def test_a_member_joins_again_without_news() -> None:
    """A follower that lost its answer gets the same generation; the leader's join asks for a rebalance, and so does a
    changed subscription."""
    driver = Driver()
    first, second = driver.stable(2)
    assert driver.joined(driver.join(second.member_id)).generation == first.generation
    assert driver.group().state is GroupState.STABLE
    changed = driver.join(second.member_id, protocols=(("range", b"other"),))
    assert driver.group().state is GroupState.PREPARING_REBALANCE
    driver.join(first.member_id)
    assert driver.joined(changed).generation == first.generation + 1


def test_a_member_fails_while_the_assignment_is_made() -> None:
    """Those that wait for it are told at once that there is another rebalance."""
    driver = Driver()
    (first,) = driver.stable()
    asked = driver.join()
    again = driver.joined(driver.join(first.member_id))
    second = driver.joined(asked)
    waits = driver.sync(second)
    driver.leave(Leaver(again.member_id))
    assert driver.answer(waits).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.joined(driver.join(second.member_id)).leader == second.member_id


def test_who_does_not_ask_for_its_assignment_is_out() -> None:
    """The rebalance timeout holds for SyncGroup too."""
    driver = Driver()
    first, second = driver.stable(2, rebalance_timeout_ms=5_000, session_timeout_ms=100_000)
    values = {"rebalance_timeout_ms": 5_000, "session_timeout_ms": 100_000}
    asked = driver.join(first.member_id, **values)
    driver.join(second.member_id, **values)
    joined = driver.joined(asked)
    driver.sync(joined)
    driver.pass_ms(5_000)
    assert driver.beat(joined) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.beat(second._replace(generation=joined.generation)) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("written", [False, True])
def test_an_assignment_that_is_not_stored_is_not_told(written: bool) -> None:
    """Whether the write was refused or its fate is not known: everybody joins anew."""
    driver = Driver()
    joined = driver.joined(driver.join())
    if written:
        driver.hold = True
    else:
        driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    asked = driver.sync(joined)
    if written:
        assert asked not in driver.answers, "not before it is committed"
        driver.hold = False
        driver.commit_held(WriteOutcome(ErrorCode.REQUEST_TIMED_OUT, True))
    driver.refuse = None
    assert driver.answer(asked).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = driver.joined(driver.join(joined.member_id))
    assert again.generation == 2
    assert driver.synced(driver.sync(again)).assignment == assigned(joined.member_id)


def test_a_rebalance_overtakes_the_storing_of_an_assignment() -> None:
    """What is committed then is told to nobody: another generation is being made."""
    driver = Driver()
    joined = driver.joined(driver.join())
    driver.hold = True
    asked = driver.sync(joined)
    second = driver.join()
    assert driver.answer(asked).error is ErrorCode.REBALANCE_IN_PROGRESS
    driver.commit_held()
    assert driver.group().state is GroupState.PREPARING_REBALANCE
    driver.hold = False
    assert driver.joined(driver.join(joined.member_id)).generation == 2
    driver.joined(second)


def test_group_max_size() -> None:
    """Members beyond it are refused, and those that were given an id count."""
    driver = Driver(max_size=2)
    driver.stable(2)
    assert driver.answer(driver.join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    driver = Driver(max_size=2)
    for number in range(3):
        asked = driver.get(JoinGroup("g", "", None, "c", "/h", 10_000, 60_000, "consumer", (RANGE,)))
        wanted = ErrorCode.MEMBER_ID_REQUIRED if number < 2 else ErrorCode.GROUP_MAX_SIZE_REACHED
        assert asked.error is wanted


def test_groups_that_are_only_thought_of_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request each, and half an hour in memory: beyond a bound others are told to try again; groups that are stored
    do not count."""
    monkeypatch.setattr(context, "UNSTORED_GROUPS_MAX", 3)
    driver = Driver()
    driver.stable()
    for name, error in (
        ("a", ErrorCode.MEMBER_ID_REQUIRED),
        ("b", ErrorCode.MEMBER_ID_REQUIRED),
        ("c", ErrorCode.MEMBER_ID_REQUIRED),
        ("d", ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ):
        asked = driver.get(JoinGroup(name, "", None, "c", "/h", 10_000, 60_000, "consumer", (RANGE,)))
        assert asked.error is error
    driver.pass_ms(10_000)
    assert driver.get(asked_again()).error is ErrorCode.MEMBER_ID_REQUIRED


def asked_again() -> JoinGroup:
    return JoinGroup("d", "", None, "c", "/h", 10_000, 60_000, "consumer", (RANGE,))


def test_a_failover_keeps_the_generation() -> None:
    """The new coordinator knows members and assignments, and gives each a whole session."""
    driver = Driver()
    first, second = driver.stable(2)
    driver.pass_ms(9_000)
    other = driver.failover()
    other.pass_ms(9_000)
    assert other.beat(first) is ErrorCode.NONE
    other.pass_ms(1_000)
    assert other.beat(first) is ErrorCode.REBALANCE_IN_PROGRESS, "the other one was silent"
    assert other.beat(second) is ErrorCode.UNKNOWN_MEMBER_ID
    asked = other.get(SyncGroup("g", first.generation, first.member_id, None, None, None, ()))
    assert asked.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_hundred_members() -> None:
    """All of them within one rebalance, each with its own assignment."""
    driver = Driver(initial_rebalance_delay_ms=1_000)
    asked = [driver.join() for _ in range(100)]
    driver.pass_ms(3_000)
    joined = [driver.joined(one) for one in asked]
    assert {one.generation for one in joined} == {1}
    syncs = [driver.sync(one) for one in joined]
    assert {driver.synced(one).assignment for one in syncs} == {assigned(one.member_id) for one in joined}
