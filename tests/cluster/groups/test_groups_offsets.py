"""Committed offsets: who may commit, what is written, what is forgotten (rule C7, KIP-211, KIP-496)."""

from __future__ import annotations

from typing import Any

import pytest
from shard_case import RANGE, WALL_MS, Driver

from strandline.cluster.groups.commands import (
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    FetchOffsets,
    ForgetTopics,
    Leaver,
    ListGroups,
    OffsetToCommit,
)
from strandline.cluster.groups.machine import WriteOutcome
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.group_records import offset_record, read_key

WEEK_MS = 7 * 24 * 3600 * 1000
T0 = ("t", 0)


def refused(driver: Driver, *arguments: Any, **values: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        driver.answer(driver.commit(*arguments, **values))
    return error.value.code


def test_a_member_commits() -> None:
    driver = Driver()
    (joined,) = driver.stable()
    assert driver.answer(driver.commit(5, joined)) == [ErrorCode.NONE]
    assert driver.offsets() == {T0: 5}
    ((_, ((_, value),)),) = driver.get(FetchOffsets("g", (("t", (0,)),)))
    assert (value.leader_epoch, value.metadata, value.commit_ms) == (1, "note", WALL_MS + int(driver.now_ms))
    ((_, missing),) = driver.get(FetchOffsets("g", (("t", (7,)),)))
    assert missing == [(7, None)]


def test_who_may_not_commit() -> None:
    """Wrong generation, unknown member, fenced instance; from outside only while the group has no members."""
    driver = Driver()
    (joined,) = driver.stable()
    assert refused(driver, 5, joined._replace(generation=0)) is ErrorCode.ILLEGAL_GENERATION
    assert refused(driver, 5, joined._replace(generation=2)) is ErrorCode.ILLEGAL_GENERATION
    assert refused(driver, 5, joined._replace(member_id="x")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(driver, 5) is ErrorCode.UNKNOWN_MEMBER_ID, "generation -1 only when empty"
    assert refused(driver, 5, joined._replace(generation=-1)) is ErrorCode.ILLEGAL_GENERATION
    assert refused(driver, 5, joined, instance_id="b") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.offsets() == {}
    driver.leave(Leaver(joined.member_id))
    assert driver.answer(driver.commit(7)) == [ErrorCode.NONE]
    assert refused(driver, 5, joined) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_does_not_exist() -> None:
    """Offsets may be kept without members; a member's commit into nothing is told so as its client understands it."""
    driver = Driver()
    values = {"generation": 3, "member_id": "m"}
    assert refused(driver, 5, **values) is ErrorCode.ILLEGAL_GENERATION
    assert refused(driver, 5, **values, unknown_group=ErrorCode.GROUP_ID_NOT_FOUND) is ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.shard.groups == {}
    assert driver.answer(driver.commit(5)) == [ErrorCode.NONE]
    described = driver.get(DescribeGroup("g"))
    assert (described.state, described.protocol_type, described.members) == ("Empty", "", ())
    assert driver.offsets("none") == {}


def test_not_while_a_rebalance_completes() -> None:
    """REBALANCE_IN_PROGRESS: the partitions may be another's already; while it is prepared, commits come in."""
    driver = Driver()
    (joined,) = driver.stable()
    second = driver.join()
    assert driver.answer(driver.commit(5, joined)) == [ErrorCode.NONE]
    again = driver.joined(driver.join(joined.member_id))
    driver.joined(second)
    assert refused(driver, 6, again) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.offsets() == {T0: 5}


def test_a_commit_is_answered_when_it_is_committed() -> None:
    """And is refused with what its client retries, when it is not."""
    driver = Driver()
    driver.hold = True
    asked = driver.commit(5)
    assert asked not in driver.answers
    driver.commit_held()
    assert driver.answer(asked) == [ErrorCode.NONE]
    asked = driver.commit(6)
    driver.commit_held(WriteOutcome(ErrorCode.REQUEST_TIMED_OUT, True))
    assert driver.answer(asked) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    driver.hold = False
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert driver.answer(driver.commit(7)) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert driver.offsets() == {T0: 6}, "what was refused is in no log and in no memory"
    driver.refuse = ErrorCode.MESSAGE_TOO_LARGE
    assert driver.answer(driver.commit(7)) == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE]


def test_metadata_that_is_too_long_costs_its_own_offset() -> None:
    driver = Driver(offset_metadata_max_bytes=4)
    offsets = (OffsetToCommit("t", 0, 5, -1, "long text"), OffsetToCommit("t", 1, 6, -1, "ok"))
    answer = driver.answer(driver.commit(0, offsets=offsets))
    assert answer == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert driver.offsets() == {("t", 1): 6}


def test_a_negative_offset_is_kept() -> None:
    """kafkajs commits -2, or -1, to go to its default; Kafka takes it, and readers hold what is below 0 for none."""
    driver = Driver()
    driver.answer(driver.commit(5))
    assert driver.answer(driver.commit(0, offsets=(OffsetToCommit("t", 0, -2, -1, ""),))) == [ErrorCode.NONE]
    assert driver.offsets() == {T0: -2}


def test_a_failover_has_every_offset() -> None:
    """In the order of the log: the last commit counts, be it smaller."""
    driver = Driver()
    for offset in (5, 9, 7):
        driver.answer(driver.commit(offset))
    driver.answer(driver.commit(1, partition=3))
    assert driver.failover().offsets() == driver.offsets() == {T0: 7, ("t", 3): 1}


def test_offsets_of_a_group_without_members_expire() -> None:
    """KIP-211: a week after the last member left, and the group with them; not while it has members."""
    driver = Driver()
    (joined,) = driver.stable(session_timeout_ms=1_800_000)
    driver.answer(driver.commit(5, joined))
    for _ in range(10 * 24 * 3):
        driver.pass_ms(1_200_000)
        assert driver.beat(joined) is ErrorCode.NONE
    assert driver.offsets() == {T0: 5}
    driver.leave(Leaver(joined.member_id))
    driver.pass_ms(WEEK_MS - 600_000)
    assert driver.offsets() == {T0: 5}
    driver.pass_ms(1_200_000)
    assert driver.shard.groups == {}
    assert driver.failover().shard.groups == {}
    assert driver.failover().offsets() == {}


def test_100_a_clock_set_ahead_drops_no_offset() -> None:
    """Schedule 100: by the coordinator's clock the time of retention is over, and it is not believed. What is committed
    meanwhile is kept for longer, never for less."""
    driver = Driver()
    driver.answer(driver.commit(5))
    driver.ahead_ms = 8 * 24 * 3_600_000
    driver.pass_ms(1_200_000)
    assert driver.offsets() == {T0: 5}
    driver.answer(driver.commit(6, partition=3))
    driver.ahead_ms = 0
    driver.pass_ms(WEEK_MS)
    assert driver.offsets() == {("t", 3): 6}


def test_offsets_of_topics_that_nobody_reads_any_more_expire() -> None:
    """A stable group's offsets of other topics go by the time of the commit."""
    driver = Driver(offsets_retention_minutes=60)
    (joined,) = driver.stable(session_timeout_ms=1_800_000)
    driver.answer(driver.commit(5, joined))
    driver.answer(driver.commit(5, joined, topic="old"))
    for _ in range(6):
        driver.pass_ms(900_000)
        driver.beat(joined)
    assert driver.offsets() == {T0: 5}


def test_offsets_kept_from_outside_expire_by_their_commit() -> None:
    driver = Driver()
    driver.answer(driver.commit(5))
    driver.pass_ms(WEEK_MS / 2)
    driver.answer(driver.commit(6, partition=1))
    driver.pass_ms(WEEK_MS / 2 + 700_000)
    assert driver.offsets() == {("t", 1): 6}
    driver.answer(driver.commit(6, partition=2, retention_ms=1_000))
    driver.pass_ms(1_200_000)
    assert driver.offsets() == {("t", 1): 6}, "a client's own retention (OffsetCommit 2 to 4)"


def test_expiry_that_is_refused_is_tried_again() -> None:
    driver = Driver()
    driver.answer(driver.commit(5))
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    driver.pass_ms(WEEK_MS + 700_000)
    assert driver.offsets() == {T0: 5}
    driver.refuse = None
    driver.pass_ms(600_000)
    assert driver.offsets() == {}


def test_offsets_are_deleted() -> None:
    """KIP-496: not of topics that the group reads; nothing is known of what members of other protocols read."""
    driver = Driver()
    (joined,) = driver.stable()
    for topic in ("t", "u"):
        driver.answer(driver.commit(5, joined, topic=topic))
    command = DeleteOffsets("g", (("t", 0), ("u", 0), ("u", 1)))
    assert driver.get(command) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE]
    assert driver.failover().offsets() == driver.offsets() == {T0: 5}
    driver.leave(Leaver(joined.member_id))
    assert driver.get(command)[0] is ErrorCode.NONE
    assert driver.offsets() == {}
    other = Driver()
    other.stable(protocol_type="connect")
    with pytest.raises(KafkaError, match="NON_EMPTY_GROUP"):
        other.get(command)
    with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
        other.get(command._replace(group_id="none"))


def test_a_group_is_deleted() -> None:
    driver = Driver()
    (joined,) = driver.stable()
    driver.answer(driver.commit(5, joined))
    with pytest.raises(KafkaError, match="NON_EMPTY_GROUP"):
        driver.get(DeleteGroup("g"))
    driver.leave(Leaver(joined.member_id))
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
        driver.get(DeleteGroup("g"))
    assert driver.offsets() == {T0: 5}
    driver.refuse = None
    assert driver.get(DeleteGroup("g")) is None
    for one in (driver, driver.failover()):
        assert (one.shard.groups, one.offsets()) == ({}, {})
    with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
        driver.get(DeleteGroup("g"))


def test_deleted_topics_are_forgotten() -> None:
    driver = Driver(topics={"t": 1, "u": 1})
    for topic in ("t", "u"):
        driver.answer(driver.commit(5, topic=topic))
    del driver.topics["t"]
    driver.ask(ForgetTopics(("t", "never")))
    assert driver.failover().offsets() == driver.offsets() == {("u", 0): 5}
    assert driver.failover().log == driver.log, "there was nothing left to forget"


def made_anew(driver: Driver) -> None:
    """Topic t is another one; nobody has told this shard."""
    driver.made["t"] += 1


def test_63_offsets_of_a_topic_made_anew_are_told_to_nobody() -> None:
    """Not by name, not among all of a group, before the deletion is heard of; new ones are."""
    driver = Driver()
    driver.answer(driver.commit(100))
    driver.answer(driver.commit(7, partition=1))
    made_anew(driver)
    assert driver.offsets() == {}
    assert driver.get(FetchOffsets("g", (("t", (0, 1)),))) == [("t", [(0, None), (1, None)])]
    driver.answer(driver.commit(3))
    assert driver.offsets() == {T0: 3}
    driver.ask(ForgetTopics(("t",)))
    assert driver.offsets() == {T0: 3}, "the deletion is that of the topic before"
    assert driver.failover().offsets() == {T0: 3}


@pytest.mark.parametrize("end", ["made anew", "deleted"])
def test_63_offsets_of_a_deleted_topic_end_when_they_are_loaded(end: str) -> None:
    """ForgetTopics reached nobody: the topic went while no coordinator served."""
    driver = Driver(topics={"t": 2, "u": 1})
    driver.answer(driver.commit(100))
    driver.answer(driver.commit(5, topic="u", group_id="h"))
    if end == "deleted":
        del driver.topics["t"]
    else:
        made_anew(driver)
    other = driver.failover()
    assert (other.offsets(), other.offsets("h")) == ({}, {("u", 0): 5})
    assert list(other.shard.groups) == ["h"], "a group that only kept those offsets is none any more"
    driver.topics["t"] = 2
    driver.made["t"] = 0
    assert Driver(log=other.log, topics=driver.topics).offsets() == {}, "the log says so too"


def test_63_what_could_not_be_forgotten_is_forgotten_with_the_next_look() -> None:
    """The write of the deletion is refused: nobody is told the offset all the same, and the next look forgets it."""
    driver = Driver()
    driver.answer(driver.commit(100))
    made_anew(driver)
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    driver.ask(ForgetTopics(("t",)))
    assert list(driver.shard.offsets()) == [("g", "t", 0, 100)]
    driver.refuse = None
    driver.pass_ms(driver.config.offsets_retention_check_ms)
    assert list(driver.shard.offsets()) == []


def test_offsets_that_do_not_say_whose_they_are() -> None:
    """Records of version 3 and before, and those with an expiry of their own, have no place for the topic's id: they
    count for whatever topic has the name, until a deletion is heard of."""
    driver = Driver()
    driver.answer(driver.commit(5, retention_ms=WEEK_MS))
    driver.answer(driver.commit(0, offsets=(OffsetToCommit("t", 1, 6, -1, ""),)))
    made_anew(driver)
    assert driver.failover().offsets() == driver.offsets() == {T0: 5, ("t", 1): 6}
    driver.ask(ForgetTopics(("t",)))
    assert driver.offsets() == {}


def test_describe_and_list() -> None:
    """Row S85: members with what they subscribed to and were assigned, while the group is stable."""
    driver = Driver()
    (joined,) = driver.stable()
    driver.answer(driver.commit(5, group_id="kept"))
    described = driver.get(DescribeGroup("g"))
    (member,) = described.members
    assert (described.state, described.protocol_name, member.member_id) == ("Stable", "range", joined.member_id)
    assert (member.subscription, member.assignment) == (RANGE[1], b"for " + joined.member_id.encode())
    driver.join()
    described = driver.get(DescribeGroup("g"))
    assert (described.state, described.protocol_name) == ("PreparingRebalance", "")
    assert described.members[0].assignment == b""
    assert [one.group_id for one in driver.get(ListGroups())] == ["g", "kept"]
    assert [one.group_id for one in driver.get(ListGroups(("EMPTY",)))] == ["kept"]
    assert driver.get(ListGroups((), ("consumer",))) == ()


def test_records_of_unknown_kinds_are_kept_apart() -> None:
    """A log that a newer version has written is served as far as it is understood."""
    driver = Driver()
    driver.answer(driver.commit(5))
    newer = offset_record(read_key(driver.log[0].key), None)._replace(key=b"\x00\x09new", value=b"?")  # type: ignore[arg-type]
    other = Driver(log=[newer, *driver.log])
    assert other.shard.unknown_records == 1
    assert other.offsets() == {T0: 5}
