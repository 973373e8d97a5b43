"""A group moves between the classic and the consumer protocol while its members read (KIP-848, "Online migration")."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_protocol_case import ConsumerMember, described
from migration_case import ClassicClient, check, classic_group, error_of, mixed, shares, turn, use
from shard_case import Driver, topic_id_of

from strandline.cluster.groups.classic.group import GroupState
from strandline.cluster.groups.commands import LeaveGroup, Leaver, ListGroups
from strandline.cluster.groups.config import MigrationPolicy
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.consumer_group_records import (
    GROUP_EPOCH,
    MEMBER,
    ClassicMember,
    Epoch,
    MemberInfo,
    OfGroup,
    OfMember,
)
from strandline.proto.kafka.consumer_protocol import decode_assignment, encode_assignment

T = topic_id_of("t")
KINDS = pytest.mark.parametrize("cooperative", [False, True], ids=["eager", "cooperative"])


# ---------------------------------------------------------------- up


@KINDS
def test_up_and_down_while_everybody_reads(cooperative: bool) -> None:
    """Two classic members, then a third of the consumer protocol, then none of the classic; and back again. Nobody ever
    reads what another reads, nobody loses its place, and what was committed stays."""
    driver = Driver()
    classic = classic_group(driver, cooperative=cooperative)
    assert classic[0].commit(7) is ErrorCode.NONE
    new = [ConsumerMember(driver, f"m{number}") for number in range(2)]
    turn(*classic, new[0])
    assert shares(*classic, new[0]) == [2, 2, 2]
    assert driver.get(ListGroups())[0].type == "consumer"
    assert driver.offsets() == {("t", 0): 7}
    classic[0].leave()
    turn(classic[1], *new)
    assert shares(classic[1], *new) == [2, 2, 2]
    classic[1].leave()
    turn(*new)
    assert shares(*new) == [3, 3]
    assert not driver.shard.consumer_groups["g"].classic

    turn(*new, classic[0])
    assert shares(*new, classic[0]) == [2, 2, 2]
    new[0].leave()
    turn(classic[0], new[1])
    turn(*classic, new[1])
    assert shares(*classic, new[1]) == [2, 2, 2]
    new[1].leave()
    turn(*classic)
    assert shares(*classic) == [3, 3]
    assert driver.get(ListGroups())[0]._replace(protocol_type="") == ("g", "", "Stable", "classic")
    assert not sum(client.lost for client in classic), "each time they were told by REBALANCE_IN_PROGRESS"
    assert driver.offsets() == {("t", 0): 7}


def test_what_a_group_becomes() -> None:
    """Members, generation and assignments are those of the classic group; the generation goes on to count, and the next
    epoch is above it. A new coordinator knows all of it."""
    driver = Driver()
    one, two = classic_group(driver)
    generation, before = one.generation, {one.member_id: one.owned, two.member_id: two.owned}
    ConsumerMember(driver, "m").beat()
    assert "g" not in driver.shard.groups
    for side in (driver, driver.failover()):
        found = described(side)
        assert (found.epoch, found.target_epoch) == (generation + 1, generation + 1)
        members = {member.member_id: member for member in found.members}
        assert {one: members[one].assigned[T] for one in before} == before
        assert {one: members[one].epoch for one in before} == dict.fromkeys(before, generation)
        assert [members[one].classic for one in (*before, "m")] == [True, True, False]
        assert members[one.member_id].topics == ("t",)
        assert side.get(ListGroups())[0].state == "Reconciling"
    use(driver.failover(), one, two)
    assert one.commit(5) is ErrorCode.NONE
    assert one.beat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_before_it_is_committed_the_new_member_hears_nothing() -> None:
    """And those who wait for the end of a rebalance hear of it only then, and that they shall join anew."""
    driver = Driver()
    one, two = classic_group(driver)
    third = ClassicClient(driver, "c3")
    third.step()
    joined = driver.ask(one.join_command())
    driver.hold = True
    member = ConsumerMember(driver, "m")
    asked = driver.ask(member.command())
    assert asked not in driver.answers
    assert joined not in driver.answers
    driver.commit_held()
    driver.hold = False
    assert error_of(driver, joined) is ErrorCode.REBALANCE_IN_PROGRESS
    member.take(driver.answer(asked))
    one.owned, one.joins = (), True
    turn(one, two, third, member)
    assert sorted(shares(one, two, third, member)) == [1, 1, 2, 2]


def test_up_while_the_leader_assigns() -> None:
    """Cooperative members read on in a rebalance, what they were assigned before; that is theirs in the new group too,
    also when the rebalance was begun anew. And who waits for an assignment joins anew."""
    for again in (False, True):
        driver = Driver()
        (one,) = classic_group(driver, 1, cooperative=True)
        two = ClassicClient(driver, "c1", cooperative=True)
        two.step()
        joining = driver.ask(one.join_command())
        two.step()  # the rebalance has everybody, and `one`, who leads, does not assign
        assert driver.group().state is GroupState.COMPLETING_REBALANCE
        if again:
            three = ClassicClient(driver, "c2", cooperative=True)
            three.step()
        member = ConsumerMember(driver, "m")
        member.beat()
        two.step()
        assert ErrorCode.REBALANCE_IN_PROGRESS in two.errors
        one.generation = driver.joined(joining).generation
        assert member.numbers() == ()
        turn(one, two, member)
        assert shares(one, two, member) == [2, 2, 2]


@pytest.mark.parametrize("policy", list(MigrationPolicy))
def test_the_policy_of_moving_up(policy: MigrationPolicy) -> None:
    """group.consumer.migration.policy; GROUP_ID_NOT_FOUND as Kafka has it."""
    driver = Driver(consumer_migration_policy=policy.value)
    classic_group(driver)
    member = ConsumerMember(driver, "m")
    if policy in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL):
        assert member.beat().epoch > 0
    else:
        assert member.refused() is ErrorCode.GROUP_ID_NOT_FOUND
        assert member.refused(epoch=3) is ErrorCode.GROUP_ID_NOT_FOUND
        assert not driver.shard.consumer_groups
        assert len(driver.group().members) == 2


@pytest.mark.parametrize(
    "values",
    [
        {"protocol_type": "connect"},
        {"protocols": (("range", b"\x00\x00\x00"),)},
    ],
)
def test_what_cannot_move_up(values: dict[str, Any]) -> None:
    """A group of something else than consumers, and one whose bytes do not parse."""
    driver = Driver()
    driver.sync(driver.joined(driver.join(**values)), lambda _member: encode_assignment([TopicPartition("t", 0)]))
    assert ConsumerMember(driver, "m").refused() is ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.group().state is GroupState.STABLE


def test_more_members_than_fit_do_not_move_up() -> None:
    driver = Driver(consumer_max_size=1)
    classic_group(driver)
    assert ConsumerMember(driver, "m").refused() is ErrorCode.GROUP_ID_NOT_FOUND
    driver = Driver(consumer_max_size=2)
    classic_group(driver)
    assert ConsumerMember(driver, "m").refused() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not driver.shard.consumer_groups


def test_a_refused_move_leaves_the_group_as_it_was() -> None:
    """Its members have their sessions still, and end with them."""
    driver = Driver()
    one, two = classic_group(driver)
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert ConsumerMember(driver, "m").refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.refuse = None
    assert (one.beat(), two.beat()) == (ErrorCode.NONE, ErrorCode.NONE)
    driver.pass_ms(11_000)
    assert "g" not in driver.shard.consumer_groups
    assert not driver.group().members


def test_an_empty_group_that_both_want() -> None:
    """A classic member ends the empty group of the consumer protocol; before that is committed there is one again, with
    a member. The classic one joins that, or is told why it may not."""
    for protocol_type, error in (("consumer", ErrorCode.NONE), ("connect", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)):
        driver = Driver()
        member = ConsumerMember(driver, "m")
        member.beat()
        member.leave()
        driver.hold = True
        command = ClassicClient(driver, "c").join_command(protocol_type=protocol_type, member_id_required=False)
        joining = driver.ask(command)
        driver.ask(member.command())
        driver.commit_held()
        driver.commit_held()
        assert error_of(driver, joining) is error


def test_sessions_of_a_group_that_moved_up() -> None:
    """Classic members have their own sessions from the move on, whether they say anything more or not."""
    driver = Driver()
    classic_group(driver)
    ConsumerMember(driver, "m").beat()
    driver.pass_ms(11_000)
    assert set(driver.shard.consumer_groups["g"].members) == {"m"}


def test_a_member_of_the_consumer_protocol_that_was_forgotten_joins_anew() -> None:
    """It was given up, and the group went down: UNKNOWN_MEMBER_ID, on which clients join (Kafka: GROUP_ID_NOT_FOUND, on
    which they end)."""
    driver = Driver()
    classic_group(driver)
    assert ConsumerMember(driver, "m").refused(epoch=3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert "g" in driver.shard.groups


def test_two_readers_of_one_partition_do_not_move_with_it() -> None:
    """What a leader assigned twice, or of topics that there are not, one member has, or nobody."""
    driver = Driver()
    one, two = classic_group(driver)
    for member in driver.group().members.values():
        member.assignment = b"\x00\x00\x00\x00\x00\x02\x00\x01t\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x63" + (
            b"\x00\x04gone\x00\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff"
        )
    ConsumerMember(driver, "m").beat()
    members = {member.member_id: member.assigned for member in described(driver).members}
    assert [members[one.member_id], members[two.member_id]] == [{T: (1,)}, {}]


# ---------------------------------------------------------------- down


@KINDS
def test_down_with_the_end_of_a_session(cooperative: bool) -> None:
    """The last member of the consumer protocol says nothing more: the classic ones share what it had."""
    driver = Driver()
    one, two, _ = mixed(driver, cooperative=cooperative)
    for _ in range(10):
        driver.pass_ms(5_000)
        turn(one, two, rounds=2)
    assert shares(one, two) == [3, 3]
    assert driver.group().protocol_type == "consumer"
    assert (one.lost, two.lost) == (0, 0)


@pytest.mark.parametrize("moment", ["the member has gone", "the group has come down"])
def test_a_failover_in_the_middle_loses_nothing(moment: str) -> None:
    """A coordinator that finds classic members alone brings the group down; one that finds a group that came down and
    was not rebalanced rebalances it, else nobody would read what the last member had."""
    driver = Driver()
    one, two, member = mixed(driver)
    driver.hold = moment == "the member has gone"
    member.leave() if not driver.hold else driver.ask(member.command(epoch=-1))
    assert ("g" in driver.shard.consumer_groups) is driver.hold
    other = driver.failover()
    assert other.group().state is GroupState.PREPARING_REBALANCE
    use(other, one, two)
    assert one.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    turn(one, two)
    assert shares(one, two) == [3, 3]
    assert (one.lost, two.lost) == (0, 0)
    again = other.failover()
    assert again.group().state is GroupState.STABLE, "this one it rebalanced itself"


def test_sessions_of_a_group_that_came_down() -> None:
    """They are the members' own, whether the write was answered or not."""
    driver = Driver()
    *_, member = mixed(driver)
    member.leave()
    driver.pass_ms(11_000)
    assert not driver.group().members


def test_a_group_that_came_down_keeps_what_each_has() -> None:
    """Also what it shall give back and has not: the log says what it may be reading."""
    driver = Driver()
    (one,) = classic_group(driver, 1, cooperative=True)
    member = ConsumerMember(driver, "m")
    member.beat()
    one.joins = True
    driver.ask(one.join_command())
    assert [len(two.assigned.get(T, ())) for two in described(driver).members] == [3, 0]
    member.leave()
    classic = driver.group()
    assert classic.generation == one.generation + 1
    assert len(decode_assignment(classic.members[one.member_id].assignment)) == 6
    turn(one)
    fresh = ConsumerMember(driver, "n")
    fresh.beat()
    check([one, fresh])
    turn(one, fresh)
    assert shares(one, fresh) == [3, 3]


@pytest.mark.parametrize("policy", list(MigrationPolicy))
def test_the_policy_of_moving_down(policy: MigrationPolicy) -> None:
    """A group that may not move down is one of the consumer protocol with classic members alone, and works."""
    driver = Driver(consumer_migration_policy=policy.value)
    member = ConsumerMember(driver, "m")
    member.beat()
    classic = ClassicClient(driver, "c")
    turn(member, classic)
    assert shares(member, classic) == [3, 3]
    member.leave()
    turn(classic)
    assert shares(classic) == [6]
    down = policy in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)
    assert driver.get(ListGroups())[0].type == ("classic" if down else "consumer")
    driver.topics["t"] = 6
    assert ("g" in driver.failover().shard.groups) is down


def test_too_many_for_a_classic_group_stay() -> None:
    driver = Driver(max_size=1)
    member = ConsumerMember(driver, "m")
    member.beat()
    classic = [ClassicClient(driver, f"c{number}") for number in range(2)]
    turn(member, *classic)
    member.leave()
    turn(*classic)
    assert "g" in driver.shard.consumer_groups
    classic[0].leave()
    turn(classic[1])
    assert "g" in driver.shard.groups


def test_members_that_agree_on_no_assignor_stay() -> None:
    """A log may say so; nobody could lead such a classic group."""
    infos = [
        MemberInfo(None, None, "c", "/h", ("t",), None, 60_000, None, ClassicMember(10_000, ((name, b""),)))
        for name in ("range", "sticky")
    ]
    log = [GROUP_EPOCH.record(OfGroup("g"), Epoch(5))]
    log += [MEMBER.record(OfMember("g", f"c{one}"), info) for one, info in enumerate(infos)]
    assert set(Driver(log=log).shard.consumer_groups["g"].classic) == {"c0", "c1"}


def test_an_administrator_removes_the_last_of_the_new_members() -> None:
    """That is a way to bring a group down, too."""
    driver = Driver()
    one, two, member = mixed(driver)
    assert driver.get(LeaveGroup("g", (Leaver(member.member_id),))) == [ErrorCode.NONE]
    turn(one, two)
    assert shares(one, two) == [3, 3]
    assert "g" in driver.shard.groups


# ---------------------------------------------------------------- static members


def test_a_static_member_changes_its_protocol_and_moves_nobody() -> None:
    """Rolled one by one, each under its instance id: the new process has what the old one had, at once, and the old one
    is fenced. The last to go up or down takes the group with it."""
    driver = Driver()
    old = [ClassicClient(driver, f"c{number}", instance_id=f"i{number}") for number in range(2)]
    turn(*old)
    had = [client.owned for client in old]
    old_id = old[0].member_id
    stopped, old[0].owned = old[0], ()
    new = ConsumerMember(driver, "m0", instance_id="i0")
    turn(new, old[1])
    assert (new.numbers(), old[1].owned) == tuple(had)
    assert stopped.beat() is ErrorCode.FENCED_INSTANCE_ID
    assert old_id not in driver.shard.consumer_groups["g"].members
    new.leave(-2)
    turn(old[1], rounds=2)
    assert "g" in driver.shard.consumer_groups, "it will be back"
    back = ClassicClient(driver, "c2", instance_id="i0")
    turn(old[1], back)
    assert shares(old[1], back) == [3, 3]
    assert "g" in driver.shard.groups
    assert driver.group().instances.keys() == {"i0", "i1"}


def test_a_living_static_member_is_not_replaced_by_its_own_protocol() -> None:
    """Two processes with one instance id: of the consumer protocol the second waits, of the classic one the first ends;
    also in a group of both."""
    driver = Driver()
    ConsumerMember(driver, "m").beat()
    first = ConsumerMember(driver, "m0", instance_id="i")
    first.beat()
    assert ConsumerMember(driver, "m1", instance_id="i").refused() is ErrorCode.UNRELEASED_INSTANCE_ID
    one = ClassicClient(driver, "c0", instance_id="i")
    one.step()
    assert one.generation > 0
    assert first.refused() is ErrorCode.FENCED_INSTANCE_ID
    two = ClassicClient(driver, "c1", instance_id="i")
    two.step()
    assert one.beat() is ErrorCode.FENCED_INSTANCE_ID
    assert error_of(driver, driver.ask(two.join_command(member_id=one.member_id))) is ErrorCode.FENCED_INSTANCE_ID
    assert error_of(driver, driver.ask(two.join_command(instance_id="j"))) is ErrorCode.UNKNOWN_MEMBER_ID
