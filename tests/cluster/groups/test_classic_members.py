"""Members of the classic protocol in a group of the consumer protocol: what each of their requests is told, and by when
they have to do it (KIP-848, "Online migration")."""

from __future__ import annotations

import pytest
from consumer_protocol_case import ConsumerMember
from migration_case import ClassicClient, classic_group, error_of, mixed, shares, turn, use
from shard_case import Driver, topic_id_of

from strandline.cluster.groups.commands import DescribeGroup, ListGroups
from strandline.cluster.groups.config import MigrationPolicy
from strandline.cluster.groups.consumer_protocol.commands import TopicsChanged
from strandline.proto.error_codes import ErrorCode

T = topic_id_of("t")


def test_who_may_join() -> None:
    """Consumers that have an assignor in common, for the day when they are among themselves."""
    driver = Driver(consumer_max_size=3)
    ConsumerMember(driver, "m").beat()
    client = ClassicClient(driver, "c")
    wrong = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    for values in ({"protocol_type": "connect"}, {"protocols": (("range", b"\x00"),)}, {"protocols": ()}):
        assert error_of(driver, driver.ask(client.join_command(member_id="x", **values))) is wrong
    turn(client)
    subscription = client.join_command().protocols[0][1]
    other = client.join_command(member_id="", protocols=(("sticky", subscription),))
    assert error_of(driver, driver.ask(other)) is wrong
    driver.ask(other._replace(protocols=(("sticky", subscription), ("common", subscription)), member_id="y"))
    assert set(driver.shard.consumer_groups["g"].classic) == {client.member_id, "y"}
    assert error_of(driver, driver.ask(other._replace(protocols=(("range", subscription),), member_id="z"))) is wrong
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    again = other._replace(protocols=(("common", subscription),))
    assert error_of(driver, driver.ask(again)) is full
    assert error_of(driver, driver.ask(again._replace(member_id="z"))) is full
    assert error_of(driver, driver.ask(again._replace(instance_id="i"))) is full
    assert error_of(driver, driver.ask(again._replace(member_id="y"))) is ErrorCode.NONE


def test_an_old_client_joins_in_one_step() -> None:
    """One that does not know KIP-394 gets its id with its first answer."""
    driver = Driver()
    ConsumerMember(driver, "m").beat()
    answer = driver.get(ClassicClient(driver, "c").join_command(member_id_required=False))
    assert (answer.error, answer.leader, answer.members) == (ErrorCode.NONE, "", ())
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert answer.member_id in driver.shard.consumer_groups["g"].classic


def test_who_is_told_to_join_anew() -> None:
    """Who is behind the group's epoch, and who has something to give back until it says that it did."""
    driver = Driver()
    (one,) = classic_group(driver, 1, cooperative=True)
    member = ConsumerMember(driver, "m")
    member.beat()
    assert one.beat() is ErrorCode.REBALANCE_IN_PROGRESS, "behind the group's epoch"
    driver.sync(driver.joined(driver.ask(one.join_command())))
    assert one.beat() is ErrorCode.REBALANCE_IN_PROGRESS, "it has not said that it gave back"
    driver.sync(driver.joined(driver.ask(one.join_command())))
    assert one.beat() is ErrorCode.REBALANCE_IN_PROGRESS, "it says that it has all of them still"
    one.ask_to_join()
    assert one.owned == (0, 1, 2)
    turn(one, member)
    assert shares(one, member) == [3, 3]
    assert one.beat() is ErrorCode.NONE


def test_a_member_that_waits_is_called_when_all_is_free() -> None:
    """It has what is free, and hears by its heartbeat when the rest is; not before, for joining costs an eager one its
    reading."""
    driver = Driver()
    member = ConsumerMember(driver, "m")
    member.beat()
    client = ClassicClient(driver, "c")
    client.step()
    assert (client.owned, client.beat()) == ((), ErrorCode.NONE)
    member.stubborn = True
    member.beat()
    member.beat()
    assert client.beat() is ErrorCode.NONE
    member.owned = {T: (0, 1, 2)}
    member.beat()
    assert client.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    turn(client, rounds=2)
    assert client.owned == (3, 4, 5)


def test_what_sync_and_heartbeat_refuse() -> None:
    driver = Driver()
    one, two, member = mixed(driver)
    command = one.beat_command()
    cases = [
        (command._replace(generation=one.generation - 1), ErrorCode.ILLEGAL_GENERATION),
        (command._replace(member_id="nobody"), ErrorCode.UNKNOWN_MEMBER_ID),
        (command._replace(member_id=member.member_id), ErrorCode.UNKNOWN_MEMBER_ID),
        (command._replace(instance_id="i"), ErrorCode.UNKNOWN_MEMBER_ID),
        (command, ErrorCode.NONE),
    ]
    for case, error in cases:
        assert error_of(driver, driver.ask(case)) is error, case
    joined = driver.get(one.join_command())
    assert driver.synced(driver.sync(joined))
    wrong = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error_of(driver, driver.sync(joined._replace(protocol_type="connect"))) is wrong
    assert error_of(driver, driver.sync(joined._replace(protocol_name="common"))) is wrong
    assert driver.synced(driver.sync(joined._replace(protocol_type=None, protocol_name=None)))
    assert error_of(driver, driver.sync(joined._replace(generation=1))) is ErrorCode.ILLEGAL_GENERATION
    two.leave()
    assert error_of(driver, driver.sync(joined)) is ErrorCode.REBALANCE_IN_PROGRESS


def test_who_may_commit() -> None:
    """A classic member at its epoch, by whatever version of the request; ILLEGAL_GENERATION as it knows it."""
    driver = Driver()
    one, _, member = mixed(driver)
    assert one.commit(3) is ErrorCode.NONE
    one.generation -= 1
    assert one.commit(4) is ErrorCode.ILLEGAL_GENERATION
    one.member_id, one.generation = member.member_id, member.epoch
    assert one.commit(4) is ErrorCode.UNSUPPORTED_VERSION
    assert driver.offsets() == {("t", 0): 3}


def test_topics_that_grow() -> None:
    """The heartbeat of a classic member is enough to see it; no member of the other kind has to be there."""
    driver = Driver(consumer_migration_policy=MigrationPolicy.UPGRADE.value)
    one, two, member = mixed(driver)
    member.leave()
    turn(one, two)
    driver.topics["t"] = 8
    driver.ask(TopicsChanged())
    assert one.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    turn(one, two)
    assert sorted((*one.owned, *two.owned)) == list(range(8))


def test_operators_see_a_group_that_moves() -> None:
    driver = Driver()
    mixed(driver)
    assert driver.get(ListGroups())[0]._replace(protocol_type="") == ("g", "", "Stable", "consumer")
    with pytest.raises(Exception, match="no classic group"):
        driver.get(DescribeGroup("g"))


# ---------------------------------------------------------------- deadlines


def test_a_classic_member_has_the_session_that_it_asked_for() -> None:
    """Not the cluster's; before and behind a failover."""
    for over in (False, True):
        driver = Driver()
        one, _, member = mixed(driver)
        driver = driver.failover() if over else driver
        use(driver, one, member)
        driver.pass_ms(9_000)
        assert one.beat() is ErrorCode.NONE
        driver.pass_ms(2_000)
        assert set(driver.shard.consumer_groups["g"].classic) == {one.member_id}
        driver.pass_ms(9_000)
        assert not driver.shard.consumer_groups["g"].classic


def test_who_does_not_join_anew_is_given_up() -> None:
    """It beats, and has its rebalance timeout from the first time that it was told."""
    driver = Driver(consumer_session_timeout_ms=500_000)
    one, two, _ = mixed(driver)
    ConsumerMember(driver, "n").beat()
    for _ in range(7):
        assert one.beat() is ErrorCode.REBALANCE_IN_PROGRESS
        two.step()
        driver.pass_ms(8_000)
    assert one.member_id in driver.shard.consumer_groups["g"].classic
    one.beat()
    two.step()
    driver.pass_ms(5_000)
    assert set(driver.shard.consumer_groups["g"].classic) == {two.member_id}


def test_who_does_not_collect_its_assignment_is_given_up() -> None:
    """It joined, and has its rebalance timeout to sync; once it has that deadline is gone."""
    driver = Driver(consumer_session_timeout_ms=500_000)
    one, two, _ = mixed(driver)
    joined = driver.get(one.join_command())
    for _ in range(8):
        driver.pass_ms(7_000)
        assert one.beat() is ErrorCode.NONE
        two.beat()
    driver.pass_ms(5_000)
    assert set(driver.shard.consumer_groups["g"].classic) == {two.member_id}
    assert error_of(driver, driver.sync(joined)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_gives_nothing_back_is_given_up() -> None:
    """However often it joins: the others wait for what it has."""
    driver = Driver(consumer_session_timeout_ms=500_000)
    (one,) = classic_group(driver, 1, cooperative=True)
    one.stubborn = True
    member = ConsumerMember(driver, "m")
    member.beat()
    for _ in range(9):
        driver.pass_ms(8_000)
        one.joins = True
        one.step()
        member.beat()
    assert member.numbers(), "what it held is free"


def test_who_changes_its_protocol_has_the_deadlines_of_the_new_one() -> None:
    """A member that was to join anew, or to collect its assignment, joins under its own id by the consumer protocol."""
    driver = Driver(consumer_session_timeout_ms=500_000)
    one, two, member = mixed(driver)
    driver.get(one.join_command())
    new = ConsumerMember(driver, "n")
    new.beat()
    assert two.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    changed = [ConsumerMember(driver, client.member_id) for client in (one, two)]
    for client in changed:
        client.beat()
    driver.pass_ms(70_000)
    assert {client.member_id for client in (*changed, member, new)} == set(driver.shard.consumer_groups["g"].members)
    assert not driver.shard.consumer_groups["g"].classic
