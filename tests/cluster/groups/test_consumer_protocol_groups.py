"""The rules of the consumer protocol (KIP-848): epochs, reconciliation, fencing, static members, deadlines."""

from __future__ import annotations

import pytest
from consumer_protocol_case import ConsumerMember, described, members, settle
from shard_case import Driver, topic_id_of

from strandline.cluster.groups.commands import (
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    FetchOffsets,
    LeaveGroup,
    Leaver,
    ListGroups,
)
from strandline.cluster.groups.config import MigrationPolicy
from strandline.cluster.groups.consumer_protocol.commands import TopicsChanged
from strandline.cluster.groups.consumer_protocol.group import ConsumerGroupState
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.internal_topics import INTERNAL_TOPICS

T = topic_id_of("t")


def error_of(driver: Driver, command: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        driver.get(command)
    return caught.value.code


def test_the_first_member_gets_all() -> None:
    """It joins at epoch 0, is told epoch 1, and hears of an assignment again only when that changes, or it asks with a
    whole request."""
    driver = Driver()
    (member,) = members(driver, 1)
    answer = member.beat()
    assert (answer.epoch, answer.assigned, answer.heartbeat_interval_ms) == (1, {T: (0, 1, 2, 3, 4, 5)}, 5_000)
    written = len(driver.log)
    assert member.beat().assigned is None
    assert member.beat(rebalance_timeout_ms=60_000, topics=("t",)).assigned == {T: (0, 1, 2, 3, 4, 5)}
    assert len(driver.log) == written, "nothing changed, nothing is written"
    found = described(driver)
    assert (found.state, found.epoch, found.target_epoch, found.assignor) == ("Stable", 1, 1, "uniform")


def test_revoke_acknowledge_assign() -> None:
    """What moves is given back first, at the old epoch; only when its owner says so is it the other's."""
    driver = Driver()
    one, two = members(driver, 2)
    one.beat()
    joined = two.beat()
    assert (joined.epoch, joined.assigned) == (2, {}), "at the new epoch, with nothing yet"
    one.stubborn = True
    told = one.beat()
    assert (told.epoch, told.assigned) == (1, {T: (0, 1, 2)}), "the old epoch, and what is left"
    assert one.beat().assigned is None
    assert two.beat().assigned is None, "not given back yet"
    assert described(driver).state == "Reconciling"
    one.stubborn, one.owned = False, {T: (0, 1, 2)}
    assert one.beat().epoch == 2
    assert two.beat().assigned == {T: (3, 4, 5)}
    assert described(driver).state == "Stable"


def test_a_heartbeat_without_partitions_acknowledges_nothing() -> None:
    """Null means as before (KIP-848), not none."""
    driver = Driver()
    one, two = members(driver, 2)
    one.beat()
    two.beat()
    one.beat()
    assert one.beat(owned=None).epoch == 1
    assert two.beat().assigned is None


def test_who_does_not_give_back_is_given_up() -> None:
    """After its own rebalance timeout, however often it sends heartbeats."""
    driver = Driver()
    one, two = members(driver, 2)
    one.beat(rebalance_timeout_ms=30_000)
    two.beat()
    one.stubborn = True
    one.beat()
    for _ in range(2):
        driver.pass_ms(14_000)
        one.beat()
        two.beat()
    driver.pass_ms(3_000)
    assert one.refused() is ErrorCode.UNKNOWN_MEMBER_ID
    assert two.beat().assigned == {T: (0, 1, 2, 3, 4, 5)}


def test_a_silent_member_is_given_up() -> None:
    """Its session is the group's, not its own; several that fall silent together cost one epoch."""
    driver = Driver()
    clients = members(driver, 3)
    settle(*clients)
    assert [client.numbers() for client in clients] == [(0, 1), (3, 4), (2, 5)]
    driver.pass_ms(30_000)
    clients[0].beat()
    before = described(driver).epoch
    driver.pass_ms(16_000)
    assert [member.member_id for member in described(driver).members] == ["m0"]
    assert described(driver).epoch == before + 1
    assert described(driver).state == "Assigning"
    settle(clients[0], rounds=1)
    assert clients[0].numbers() == (0, 1, 2, 3, 4, 5)
    driver.pass_ms(46_000)
    assert driver.shard.consumer_groups["g"].state is ConsumerGroupState.EMPTY
    assert len(driver.shard._context.timers) == 1, "none is left but the look for old offsets"


def test_a_refused_removal_is_tried_again() -> None:
    """A member that could not be taken out of the log is a member, and is given up later."""
    driver = Driver()
    (member,) = members(driver, 1)
    member.beat()
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    driver.pass_ms(46_000)
    assert "m0" in driver.shard.consumer_groups["g"].members
    driver.refuse = None
    driver.pass_ms(46_000)
    assert driver.shard.consumer_groups["g"].is_empty


def test_a_refused_return_leaves_the_deadline() -> None:
    """A static member is away; that its successor takes its place is refused, and nobody comes: it is given up."""
    driver = Driver()
    old, other = ConsumerMember(driver, "old", instance_id="i"), ConsumerMember(driver, "other")
    settle(old, other)
    old.leave(-2)
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert ConsumerMember(driver, "new", instance_id="i").refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.refuse = None
    driver.pass_ms(40_000)
    other.beat()
    driver.pass_ms(6_000)
    assert other.beat().assigned == {T: (0, 1, 2, 3, 4, 5)}


def test_a_refused_removal_leaves_the_time_to_give_back() -> None:
    """A member that gives nothing back is to be taken out, and that is refused. It beats on, and has to go later."""
    driver = Driver()
    one, two = members(driver, 2)
    one.beat()
    one.stubborn = True
    for _ in range(2):
        two.beat()
        one.beat()
        driver.pass_ms(31_000)
        driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    one.beat()
    driver.refuse = None
    for _ in range(2):
        assert "m0" in driver.shard.consumer_groups["g"].members
        two.beat()
        one.beat()
        driver.pass_ms(31_000)
    assert one.refused() is ErrorCode.UNKNOWN_MEMBER_ID
    assert two.beat().assigned == {T: (0, 1, 2, 3, 4, 5)}


def test_leaving() -> None:
    """What it had is free at once; the others hear of it with their next heartbeat."""
    driver = Driver()
    one, two = members(driver, 2)
    settle(one, two)
    assert two.leave().epoch == -1
    assert one.beat().assigned == {T: (0, 1, 2, 3, 4, 5)}
    assert two.refused(epoch=-1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert ConsumerMember(driver, "x").refused(epoch=-1, group_id="none") is ErrorCode.UNKNOWN_MEMBER_ID


def test_epochs_are_fenced() -> None:
    """A larger epoch and an old one are fenced; the one before is taken where the last answer may have been lost, and
    the member has nothing that it should not."""
    driver = Driver()
    one, two = members(driver, 2)
    one.beat()
    assert one.refused(epoch=2) is ErrorCode.FENCED_MEMBER_EPOCH
    lost = one.epoch
    two.beat()
    one.beat()
    one.beat()
    assert one.epoch == 2
    assert driver.get(one.command(epoch=lost)).epoch == 2
    assert one.refused(epoch=lost, owned={T: (5,)}) is ErrorCode.FENCED_MEMBER_EPOCH
    assert one.refused(epoch=lost, owned=None) is ErrorCode.FENCED_MEMBER_EPOCH
    driver.topics["t"] = 8
    driver.ask(TopicsChanged())
    settle(one, two)
    assert one.epoch == 3
    assert one.refused(epoch=1) is ErrorCode.FENCED_MEMBER_EPOCH
    assert ConsumerMember(driver, "x").refused(epoch=4) is ErrorCode.UNKNOWN_MEMBER_ID


def test_joining_again_with_the_same_id() -> None:
    """Its client gave up and starts over: it is told what it has. A late copy of a join takes nothing from anybody: it
    does not count as giving back."""
    driver = Driver()
    one, two = members(driver, 2)
    one.beat()
    two.beat()
    one.stubborn = True
    assert one.beat().epoch == 1, "it has to give back"
    join = one.command(epoch=0, owned={}, topics=("t",), rebalance_timeout_ms=60_000)
    again = driver.get(join)
    assert (again.epoch, again.assigned) == (1, {T: (0, 1, 2)})
    assert two.beat().assigned is None
    assert one.beat(owned={T: (0,)}).epoch == 2
    assert two.beat().assigned == {T: (3, 4, 5)}


def test_static_members() -> None:
    """Who leaves for a moment (-2) keeps its place; its successor takes it under another id; until then the instance id
    is not released. The old id is fenced."""
    driver = Driver()
    old = ConsumerMember(driver, "old", instance_id="i")
    other = ConsumerMember(driver, "other")
    settle(old, other)
    had, epoch = old.numbers(), described(driver).epoch
    new = ConsumerMember(driver, "new", instance_id="i")
    assert new.refused() is ErrorCode.UNRELEASED_INSTANCE_ID
    assert old.refused(epoch=-2, instance_id=None) is ErrorCode.INVALID_REQUEST
    assert old.leave(-2).epoch == -2
    assert other.beat().assigned is None, "nothing moves"
    assert old.refused(epoch=epoch) is ErrorCode.FENCED_MEMBER_EPOCH
    new.beat()
    assert (new.numbers(), described(driver).epoch) == (had, epoch)
    assert old.refused(epoch=epoch) is ErrorCode.FENCED_INSTANCE_ID
    assert ConsumerMember(driver, "x", instance_id="nobody").refused(epoch=1) is ErrorCode.UNKNOWN_MEMBER_ID
    driver = driver.failover()
    assert driver.shard.consumer_groups["g"].instances == {"i": "new"}


def test_a_static_member_that_does_not_come_back() -> None:
    """It has until the end of its session; and may come back with its own id."""
    driver = Driver()
    old, other = ConsumerMember(driver, "old", instance_id="i"), ConsumerMember(driver, "other")
    settle(old, other)
    old.leave(-2)
    driver.pass_ms(40_000)
    other.beat()
    assert old.beat().assigned == {T: (0, 1, 2)}
    old.leave(-2)
    driver.pass_ms(40_000)
    other.beat()
    driver.pass_ms(6_000)
    assert other.beat().assigned == {T: (0, 1, 2, 3, 4, 5)}


def test_a_static_member_returns_to_less() -> None:
    """While it was away a third joined: it comes back to what it shall have now, at once."""
    driver = Driver()
    old, other = ConsumerMember(driver, "old", instance_id="i"), ConsumerMember(driver, "other")
    settle(old, other)
    old.leave(-2)
    third = ConsumerMember(driver, "third")
    third.beat()
    new = ConsumerMember(driver, "new", instance_id="i")
    answer = new.beat()
    assert answer.epoch == 3
    assert len(new.numbers()) == 2
    settle(new, other, third)
    assert sorted((*new.numbers(), *other.numbers(), *third.numbers())) == [0, 1, 2, 3, 4, 5]


def test_an_administrator_removes_members() -> None:
    """LeaveGroup with an instance id, as `removeMembersFromConsumerGroup` sends it."""
    driver = Driver()
    static, other = ConsumerMember(driver, "s", instance_id="i"), ConsumerMember(driver, "o")
    settle(static, other)
    errors = driver.get(LeaveGroup("g", (Leaver("", "i"), Leaver("", "none"), Leaver("nobody"))))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert errors == [ErrorCode.NONE, unknown, unknown]
    assert other.beat().assigned == {T: (0, 1, 2, 3, 4, 5)}


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"instance_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"rack": ""}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": {T: (1,)}}, ErrorCode.INVALID_REQUEST),
        ({"topics": ()}, ErrorCode.INVALID_REQUEST),
        ({"topics": None}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 1, "member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"regex": "(a|b)" * 900}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_nonsense_is_refused(values: dict[str, object], error: ErrorCode) -> None:
    """And leaves no trace: neither a group nor a deadline."""
    driver = Driver()
    assert ConsumerMember(driver, "m").refused(**values) is error
    assert not driver.shard.consumer_groups
    assert not driver.log
    assert len(driver.shard._context.timers) == 1


def test_assignors() -> None:
    """The one that most members would like; the first where nobody cares; those not configured are refused."""
    driver = Driver(topics={"a": 3, "b": 3})
    one, two, three = members(driver, 3, topics=("a", "b"))
    one.beat(assignor="range")
    assert described(driver).assignor == "range"
    two.beat(assignor="uniform")
    three.beat(assignor="range")
    settle(one, two, three)
    assert described(driver).assignor == "range"
    assert all(client.numbers("a") == client.numbers("b") for client in (one, two, three))
    driver = Driver(consumer_assignors="range")
    assert ConsumerMember(driver, "m").refused(assignor="uniform") is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_the_group_is_full() -> None:
    driver = Driver(consumer_max_size=2)
    one, two = ConsumerMember(driver, "one"), ConsumerMember(driver, "two", instance_id="i")
    settle(one, two)
    assert ConsumerMember(driver, "x").refused() is ErrorCode.GROUP_MAX_SIZE_REACHED
    one.beat()
    two.leave(-2)
    ConsumerMember(driver, "new", instance_id="i").beat()


def test_topics_come_grow_and_go() -> None:
    """Each is a new epoch, with the next heartbeat of anybody; a topic made anew is another one."""
    driver = Driver()
    (member,) = members(driver, 1, topics=("t", "later"))
    member.beat()
    driver.topics["t"] = 7
    driver.ask(TopicsChanged())
    settle(member, rounds=1)
    assert member.numbers() == (0, 1, 2, 3, 4, 5, 6)
    driver.topics["later"] = 2
    driver.ask(TopicsChanged())
    settle(member, rounds=2)
    assert member.numbers("later") == (0, 1)
    epoch = member.epoch
    driver.topics["other"] = 2
    driver.ask(TopicsChanged())
    settle(member, rounds=2)
    assert member.epoch == epoch, "nobody reads that one"
    del driver.topics["t"]
    driver.ask(TopicsChanged())
    settle(member, rounds=2)
    assert member.numbers() == ()


def test_topics_that_change_while_nobody_coordinates() -> None:
    """The next coordinator looks by itself."""
    driver = Driver()
    (member,) = members(driver, 1)
    member.beat()
    other = driver.failover()
    other.topics = {"t": 8}
    member.driver = other
    settle(member, rounds=2)
    assert len(member.numbers()) == 8


def test_subscriptions_change() -> None:
    """By name and by pattern; an empty pattern takes it back. Internal topics are not matched by a pattern."""
    driver = Driver(topics={"t": 2, "t-2": 2, "x": 1, **dict.fromkeys(INTERNAL_TOPICS, 5)})
    (member,) = members(driver, 1, topics=())
    member.beat(regex="t.*")
    assert (member.numbers("t"), member.numbers("t-2")) == ((0, 1), (0, 1))
    member.beat(topics=("x",), regex="")
    settle(member, rounds=2)
    assert member.owned == {topic_id_of("x"): (0,)}
    member.beat(regex=".*", topics=())
    settle(member, rounds=2)
    assert set(member.owned) == {topic_id_of(name) for name in ("t", "t-2", "x")}
    driver.topics["new"] = 1
    driver.ask(TopicsChanged())
    settle(member, rounds=1)
    assert member.numbers("new") == (0,)


def test_offsets_of_members() -> None:
    """STALE_MEMBER_EPOCH for another epoch, UNKNOWN_MEMBER_ID for who is none; anybody while the group is empty. A
    client that knows no epochs is told that its version will not do."""
    driver = Driver()
    (member,) = members(driver, 1)
    member.beat()
    mine = {"member_id": "m0", "generation": 1}
    assert driver.get_commit(7, **mine) == [ErrorCode.NONE]
    for values, error in (
        ({**mine, "generation": 2}, ErrorCode.STALE_MEMBER_EPOCH),
        ({**mine, "generation": 0}, ErrorCode.STALE_MEMBER_EPOCH),
        ({**mine, "member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({**mine, "knows_epochs": False}, ErrorCode.UNSUPPORTED_VERSION),
    ):
        with pytest.raises(KafkaError) as caught:
            driver.get_commit(8, **values)
        assert caught.value.code is error, values
    assert driver.offsets() == {("t", 0): 7}
    asked = (("t", (0,)),)
    assert driver.get(FetchOffsets("g", asked, "m0", 1))[0][1][0][1].offset == 7
    assert error_of(driver, FetchOffsets("g", asked, "m0", 2)) is ErrorCode.STALE_MEMBER_EPOCH
    assert error_of(driver, FetchOffsets("g", asked, "x", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    member.leave()
    assert driver.get_commit(9) == [ErrorCode.NONE]


def test_operators_see_such_groups() -> None:
    """Listed with their type and state, described by their own API alone, deleted when they are empty; offsets of
    topics that are read stay."""
    driver = Driver()
    (member,) = members(driver, 1)
    member.beat()
    driver.get_commit(7, member_id="m0", generation=1)
    driver.get_commit(3, group_id="old")
    listed = driver.get(ListGroups())
    assert [(one.group_id, one.type, one.state) for one in listed] == [
        ("old", "classic", "Empty"),
        ("g", "consumer", "Stable"),
    ]
    assert [one.group_id for one in driver.get(ListGroups((), ("Consumer",)))] == ["g"]
    assert [one.group_id for one in driver.get(ListGroups(("empty",), ()))] == ["old"]
    assert error_of(driver, DescribeGroup("g")) is ErrorCode.GROUP_ID_NOT_FOUND
    with pytest.raises(KafkaError):
        described(driver, "old")
    assert error_of(driver, DeleteGroup("g")) is ErrorCode.NON_EMPTY_GROUP
    assert driver.get(DeleteOffsets("g", (("t", 0), ("u", 0)))) == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
    ]
    member.leave()
    assert driver.get(DeleteGroup("g")) is None
    assert "g" not in driver.shard.consumer_groups
    assert "g" not in driver.failover().shard.consumer_groups
    assert not driver.failover().offsets()


def test_old_offsets_and_groups_are_forgotten() -> None:
    """Offsets of topics that nobody reads, by the time of their commit; then a group without members."""
    driver = Driver(offsets_retention_minutes=1, offsets_retention_check_ms=10_000, consumer_session_timeout_ms=500_000)
    (member,) = members(driver, 1)
    member.beat()
    driver.get_commit(7, member_id="m0", generation=1)
    driver.get_commit(8, member_id="m0", generation=1, topic="u")
    driver.pass_ms(120_000)
    assert driver.offsets() == {("t", 0): 7}
    member.leave()
    driver.pass_ms(20_000)
    assert not driver.offsets()
    assert "g" not in driver.shard.consumer_groups
    assert "g" not in driver.failover().shard.consumer_groups


def test_an_empty_group_changes_its_protocol() -> None:
    """Both ways, whatever the policy; offsets stay. With members it may be that it does not (`test_moves`)."""
    driver = Driver(consumer_migration_policy=MigrationPolicy.DISABLED.value)
    classic = driver.stable(1)
    driver.synced(driver.sync(classic[0]))
    driver.get_commit(5, member_id=classic[0].member_id, generation=classic[0].generation)
    (member,) = members(driver, 1)
    assert member.refused() is ErrorCode.GROUP_ID_NOT_FOUND
    driver.leave(Leaver(classic[0].member_id))
    member.beat()
    assert "g" not in driver.shard.groups
    assert driver.offsets() == {("t", 0): 5}
    assert "g" not in driver.failover().shard.groups
    member.leave()
    driver.joined(driver.join())
    assert "g" not in driver.shard.consumer_groups
    assert driver.offsets() == {("t", 0): 5}
    other = driver.failover()
    assert "g" not in other.shard.consumer_groups
    assert other.offsets() == {("t", 0): 5}
