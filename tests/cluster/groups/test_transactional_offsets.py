"""Offsets that are committed in transactions (TxnOffsetCommit; rules C7 and C17): when they count, which one counts,
who may commit them, and what an open transaction keeps from being forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shard_case import Batch, Driver

from strandline.cluster.groups import shard
from strandline.cluster.groups.commands import (
    UNSTABLE,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    ForgetTopics,
    Leaver,
    ListGroups,
    OffsetToCommit,
)
from strandline.cluster.groups.connections import Superseded
from strandline.cluster.groups.consumer_protocol.commands import ConsumerHeartbeat
from strandline.cluster.groups.machine import Transaction
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.group_records import group_record

DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS
T0 = ("t", 0)
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
A, B = 7, 8
"""Producers."""


def fine(driver: Driver, asked: int) -> None:
    assert driver.answer(asked) == [ErrorCode.NONE]


def refused(driver: Driver, asked: int) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        driver.answer(asked)
    return error.value.code


def groups(driver: Driver) -> list[str]:
    return [group.group_id for group in driver.get(ListGroups())]


def both(driver: Driver) -> tuple[Driver, Driver]:
    """The coordinator, and the one that comes after it."""
    return driver, driver.failover()


# When an offset counts


def test_an_offset_counts_with_the_commit_marker() -> None:
    """Before, readers see what was there, and those that ask for stable offsets are told to wait (KIP-447)."""
    driver = Driver()
    fine(driver, driver.commit(3))
    fine(driver, driver.commit_in(A, 5))
    for one in both(driver):
        assert one.offsets() == {T0: 3}
        assert one.stable_offset() is UNSTABLE
        assert one.stable_offset(1) is None, "another partition is stable"
        assert one.stable_offset(group_id="other") is None
    driver.mark(A, commit=True)
    for one in both(driver):
        assert one.offsets() == {T0: 5}
        assert one.stable_offset() == 5


def test_stable_offsets_are_told_with_a_proof() -> None:
    """Once a write behind the question is committed; the log says nothing new. Where no write can be, without it."""
    driver = Driver()
    fine(driver, driver.commit(3))
    asked = FetchOffsets("g", (("t", (0,)),), stable=True)
    driver.hold = True
    number = driver.ask(asked)
    assert number not in driver.answers
    driver.hold = False
    driver.refuse = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused(driver, driver.ask(asked)) is ErrorCode.NOT_COORDINATOR
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert driver.stable_offset() == 3
    driver.refuse = None
    for one in both(driver):
        assert one.offsets() == {T0: 3}
        assert one.stable_offset() == 3


def test_an_aborted_offset_is_nowhere() -> None:
    driver = Driver()
    fine(driver, driver.commit(3))
    fine(driver, driver.commit_in(A, 5))
    fine(driver, driver.commit_in(A, 6))
    driver.mark(A, commit=False)
    for one in both(driver):
        assert one.offsets() == {T0: 3}
        assert one.stable_offset() == 3


def test_the_next_transaction_of_a_producer_is_another() -> None:
    driver = Driver()
    fine(driver, driver.commit_in(A, 5))
    driver.mark(A, commit=True)
    fine(driver, driver.commit_in(A, 6))
    driver.mark(A, commit=False)
    driver.mark(A, commit=True)
    for one in both(driver):
        assert one.offsets() == {T0: 5}


# Clients of the first protocol, whose epoch lasts over many transactions

OLD, NEW = 3, 5
"""Connections."""


def test_184_offsets_that_come_late_are_not_of_the_next_transaction() -> None:
    """A connection is slow. The client gives it up, commits its offsets by another one, and its transaction. What it
    gave up arrives in the next transaction, behind the offsets of that."""
    driver = Driver()
    fine(driver, driver.commit_in(A, 5, connection=NEW))
    driver.mark(A, commit=True)
    fine(driver, driver.commit_in(A, 9, connection=NEW))
    assert driver.answer(driver.commit_in(A, 5, connection=OLD)) == Superseded()
    driver.mark(A, commit=True)
    assert driver.offsets() == {T0: 9}


def test_185_offsets_of_what_was_aborted_come_late() -> None:
    """The client aborts instead, and goes on. The offsets that it gave up come first: nobody reads an answer there. The
    client has another connection, of before or behind the abort, and asks again by it."""
    for connection in (NEW, 7):
        driver = Driver()
        driver.numbers.newest = NEW
        driver.mark(A, commit=False)
        assert refused(driver, driver.commit_in(A, 5, partition=1, connection=OLD)) is LOADING
        if connection == NEW:
            assert refused(driver, driver.commit_in(A, 9, connection=NEW)) is LOADING
        fine(driver, driver.commit_in(A, 9, connection=connection))
        assert driver.answer(driver.commit_in(A, 5, partition=1, connection=OLD)) == Superseded()
        driver.mark(A, commit=True)
        assert driver.offsets() == {T0: 9}


def test_a_client_goes_on_with_its_connection_behind_an_abort() -> None:
    """What it sent had come, and was aborted: nothing of it is under way."""
    driver = Driver()
    driver.numbers.newest = NEW
    fine(driver, driver.commit_in(A, 5, connection=NEW))
    driver.mark(A, commit=False)
    driver.numbers.newest = NEW + 1
    fine(driver, driver.commit_in(A, 5, connection=NEW))
    fine(driver, driver.commit_in(A, 6, connection=NEW))
    driver.mark(A, commit=True)
    driver.mark(A, commit=False)
    assert refused(driver, driver.commit_in(A, 7, connection=NEW)) is LOADING
    assert driver.offsets() == {T0: 6}


def test_a_client_that_never_says_anything_again_goes_on() -> None:
    """It aborts at each error, as kafkajs does: what it was told in the transaction before counts in the next."""
    driver = Driver()
    driver.numbers.newest = NEW
    driver.mark(A, commit=False)
    assert refused(driver, driver.commit_in(A, 5, connection=OLD)) is LOADING
    driver.mark(A, commit=False)
    fine(driver, driver.commit_in(A, 5, connection=OLD))
    driver.mark(A, commit=True)
    assert driver.offsets() == {T0: 5}


def test_the_second_protocol_has_an_epoch_for_each_transaction() -> None:
    driver = Driver()
    driver.numbers.newest = NEW
    fine(driver, driver.commit_in(A, 5))
    driver.mark(A, commit=False)
    fine(driver, driver.commit_in(A, 6))


def test_of_producers_that_are_forgotten_only_new_connections_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """More producers than a coordinator remembers: late offsets of one that it has forgotten do not count either."""
    monkeypatch.setattr(shard, "PRODUCERS_KEPT", 1)
    driver = Driver()
    driver.numbers.newest = NEW
    fine(driver, driver.commit_in(A, 5, connection=NEW + 1))
    driver.numbers.newest = NEW + 2
    fine(driver, driver.commit_in(B, 5, partition=1, connection=NEW + 2))
    assert refused(driver, driver.commit_in(A, 3, connection=NEW)) is LOADING
    driver.numbers.newest = NEW + 3
    fine(driver, driver.commit_in(A, 6, connection=NEW + 3))


def test_who_asks_for_the_whole_group_is_told_of_what_is_pending_alone() -> None:
    driver = Driver()
    fine(driver, driver.commit_in(A, 5, partition=2))
    fine(driver, driver.commit(4))
    for one in both(driver):
        found = one.get(FetchOffsets("g", None, stable=True))
        told = {(topic, partition): value for topic, values in found for partition, value in values}
        assert told["t", 2] is UNSTABLE
        assert told[T0].offset == 4
        assert one.offsets() == {T0: 4}


def test_kafka_14505_the_last_offset_in_the_log_counts() -> None:
    """KAFKA-14505 (part 7): a commit outside comes behind one of a transaction, whose marker comes last. By the marker
    the older offset would count, in this coordinator or in the next one."""
    driver = Driver()
    fine(driver, driver.commit_in(A, 5))
    fine(driver, driver.commit(9))
    driver.mark(A, commit=True)
    for one in both(driver):
        assert one.offsets() == {T0: 9}
        assert one.stable_offset() == 9


def test_an_older_commit_outside_does_not_count() -> None:
    driver = Driver()
    fine(driver, driver.commit(9))
    fine(driver, driver.commit_in(A, 5))
    driver.mark(A, commit=True)
    for one in both(driver):
        assert one.offsets() == {T0: 5}


@pytest.mark.parametrize("first", [A, B])
def test_two_transactions_with_one_partition(first: int) -> None:
    """Whichever ends first, what was written last counts."""
    driver = Driver()
    fine(driver, driver.commit_in(A, 5))
    fine(driver, driver.commit_in(B, 6))
    driver.mark(first, commit=True)
    assert [one.offsets() for one in both(driver)] == [{T0: 5 if first == A else 6}] * 2
    assert [one.stable_offset() for one in both(driver)] == [UNSTABLE if first == A else 6] * 2
    driver.mark(A + B - first, commit=True)
    assert [one.offsets() for one in both(driver)] == [{T0: 6}] * 2
    assert [one.stable_offset() for one in both(driver)] == [6, 6]


def test_the_marker_of_a_later_transaction_that_is_aborted_leaves_the_earlier_one() -> None:
    driver = Driver()
    fine(driver, driver.commit_in(A, 5))
    fine(driver, driver.commit_in(B, 6))
    driver.mark(B, commit=False)
    assert [one.stable_offset() for one in both(driver)] == [UNSTABLE, UNSTABLE]
    driver.mark(A, commit=True)
    assert [one.stable_offset() for one in both(driver)] == [5, 5]


def test_redpanda_5543_a_marker_counts_while_the_group_rebalances() -> None:
    driver = Driver()
    (joined,) = driver.stable()
    fine(driver, driver.commit_in(A, 5, joined))
    driver.join()
    driver.mark(A, commit=True)
    assert driver.stable_offset() == 5


# Who may commit


def test_the_generation_fences() -> None:
    """KIP-447: who is told its generation and is not of it any more works on partitions that are another's by now."""
    driver = Driver()
    (joined,) = driver.stable()
    fine(driver, driver.commit_in(A, 5, joined))
    assert refused(driver, driver.commit_in(A, 6, joined._replace(generation=0))) is ErrorCode.ILLEGAL_GENERATION
    assert refused(driver, driver.commit_in(A, 6, joined._replace(member_id="x"))) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(driver, driver.commit_in(A, 6, joined, instance_id="b")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(driver, driver.commit_in(A, 6, joined, group_id="none")) is ErrorCode.ILLEGAL_GENERATION
    driver.mark(A, commit=True)
    assert driver.offsets() == {T0: 5}


def test_who_is_told_no_generation_is_fenced_by_its_epoch_alone() -> None:
    """As all producers were before KIP-447: versions 0 to 2 of the request have no place for it."""
    driver = Driver()
    (joined,) = driver.stable()
    fine(driver, driver.commit_in(A, 5))
    assert refused(driver, driver.commit_in(A, 6, generation=-1, member_id="x")) is ErrorCode.UNKNOWN_MEMBER_ID
    driver.leave(Leaver(joined.member_id))
    fine(driver, driver.commit_in(A, 7))
    driver.mark(A, commit=True)
    assert driver.offsets() == {T0: 7}


def test_a_rebalance_that_completes_takes_offsets_of_its_members() -> None:
    """A producer cannot join; the new generation has the partitions from the moment that it is told of them, and its
    members wait for stable offsets."""
    driver = Driver()
    (joined,) = driver.stable()
    second = driver.join()
    again = driver.joined(driver.join(joined.member_id))
    driver.joined(second)
    fine(driver, driver.commit_in(A, 6, again))
    assert refused(driver, driver.commit_in(A, 6, joined)) is ErrorCode.ILLEGAL_GENERATION
    assert driver.stable_offset() is UNSTABLE


def test_members_of_the_consumer_protocol_are_fenced_by_their_epoch() -> None:
    """STALE_MEMBER_EPOCH; before version 6 of the request producers know ILLEGAL_GENERATION alone (KIP-1319)."""
    driver = Driver()
    beat = ConsumerHeartbeat("c", "m", 0, "c", "/h", rebalance_timeout_ms=60_000, topics=("t",), owned={})
    told = driver.get(beat)
    values = {"group_id": "c", "member_id": "m"}
    fine(driver, driver.commit_in(A, 5, generation=told.epoch, knows_epochs=False, **values))
    for epoch in (told.epoch + 1, told.epoch - 1):
        for knows, code in ((False, ErrorCode.ILLEGAL_GENERATION), (True, ErrorCode.STALE_MEMBER_EPOCH)):
            assert refused(driver, driver.commit_in(A, 6, generation=epoch, knows_epochs=knows, **values)) is code
    assert refused(driver, driver.commit_in(A, 6, group_id="c", member_id="x")) is ErrorCode.UNKNOWN_MEMBER_ID
    fine(driver, driver.commit_in(A, 5, group_id="c"))
    driver.mark(A, commit=True)
    assert [one.stable_offset(group_id="c") for one in both(driver)] == [5, 5]


def test_a_refused_write_leaves_nothing_pending() -> None:
    """The log refuses a transaction that ended while its coordinator was asked (KAFKA-15449)."""
    driver = Driver()
    driver.refuse = ErrorCode.INVALID_TXN_STATE
    assert driver.answer(driver.commit_in(A, 5)) == [ErrorCode.INVALID_TXN_STATE]
    driver.refuse = None
    assert driver.stable_offset() is None
    assert groups(driver) == []


# What is not forgotten


def test_a_group_of_pending_offsets_is_there() -> None:
    """It is seen, and cannot be deleted: with it would go what the transaction commits. It ends with an abort."""
    driver = Driver()
    fine(driver, driver.commit_in(A, 5))
    for one in both(driver):
        assert groups(one) == ["g"]
        assert refused(one, one.ask(DeleteGroup("g"))) is ErrorCode.NON_EMPTY_GROUP
    driver.mark(A, commit=False)
    for one in both(driver):
        assert groups(one) == []


def test_a_group_is_deleted_once_the_transaction_has_ended() -> None:
    driver = Driver()
    fine(driver, driver.commit_in(A, 5))
    driver.mark(A, commit=True)
    assert driver.get(DeleteGroup("g")) is None
    for one in both(driver):
        assert groups(one) == []
        assert one.offsets() == {}


def test_redpanda_31483_offsets_of_an_open_transaction_do_not_expire() -> None:
    """A tombstone behind a pending offset would take what the transaction commits."""
    driver = Driver()
    fine(driver, driver.commit(3))
    fine(driver, driver.commit(3, partition=1))
    fine(driver, driver.commit_in(A, 5))
    driver.pass_ms(2 * WEEK_MS)
    assert driver.offsets() == {T0: 3}
    driver.mark(A, commit=True)
    for one in both(driver):
        assert one.offsets() == {T0: 5}
    driver.pass_ms(2 * WEEK_MS)
    for one in both(driver):
        assert groups(one) == []


def test_a_group_whose_transaction_is_open_does_not_expire() -> None:
    """Its members have gone, and nothing of it counts yet."""
    driver = Driver()
    (joined,) = driver.stable()
    fine(driver, driver.commit_in(A, 5, joined))
    driver.leave(Leaver(joined.member_id))
    driver.pass_ms(2 * WEEK_MS)
    assert groups(driver) == ["g"]
    assert driver.get(ListGroups())[0].protocol_type == "consumer"
    driver.mark(A, commit=True)
    for one in both(driver):
        assert one.stable_offset() == 5


def test_a_consumer_group_whose_transaction_is_open_does_not_expire() -> None:
    driver = Driver()
    beat = ConsumerHeartbeat("c", "m", 0, "c", "/h", rebalance_timeout_ms=60_000, topics=("t",), owned={})
    told = driver.get(beat)
    fine(driver, driver.commit(3, group_id="c", member_id="m", generation=told.epoch))
    fine(driver, driver.commit_in(A, 5, group_id="c", member_id="m", generation=told.epoch))
    driver.get(beat._replace(epoch=-1))
    driver.pass_ms(2 * WEEK_MS)
    assert groups(driver) == ["c"]
    driver.mark(A, commit=True)
    for one in both(driver):
        assert one.stable_offset(group_id="c") == 5


def test_a_deleted_offset_does_not_come_back_with_the_marker() -> None:
    """OffsetDelete is behind it in the log, so it counts."""
    driver = Driver()
    fine(driver, driver.commit_in(A, 5))
    assert driver.get(DeleteOffsets("g", (("t", 0),))) == [ErrorCode.NONE]
    for one in both(driver):
        assert one.stable_offset() is None
    driver.mark(A, commit=True)
    for one in both(driver):
        assert one.offsets() == {}
        assert groups(one) == []


def test_offsets_of_a_deleted_topic_do_not_come_back_with_the_marker() -> None:
    driver = Driver(topics={"t": 1, "u": 1})
    fine(driver, driver.commit_in(A, 5))
    fine(driver, driver.commit_in(A, 6, topic="u"))
    del driver.topics["t"]
    driver.get(ForgetTopics(("t",)))
    driver.mark(A, commit=True)
    for one in both(driver):
        assert one.offsets() == {("u", 0): 6}


def test_offsets_of_a_topic_that_was_deleted_meanwhile_end_when_they_are_loaded() -> None:
    driver = Driver(topics={"t": 1, "u": 1})
    fine(driver, driver.commit_in(A, 5))
    del driver.topics["t"]
    other = driver.failover()
    other.mark(A, commit=True)
    assert other.offsets() == {}
    assert groups(other.failover()) == []


def test_the_end_of_a_group_leaves_what_is_pending() -> None:
    """The tombstone of a group, as an expiry on another broker writes it, ends members and no offsets."""
    driver = Driver()
    (joined,) = driver.stable()
    fine(driver, driver.commit_in(A, 5, joined))
    driver.shard.replay(group_record("g", None))
    assert groups(driver) == ["g"]
    driver.mark(A, commit=True)
    assert driver.offsets() == {T0: 5}


# Any order

KINDS = ("plain", "in", "in", "commit", "abort", "delete", "failover", "expire", "remove")
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 1))


class Model:
    """The log as it is, read from its beginning each time: of a partition the last record counts that is in no
    transaction, or in one that a marker behind it commits."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, int | None, int | None]] = []
        """(kind, partition or producer, producer, offset)."""

    def fate(self, position: int, producer: int) -> str:
        ends = (kind for kind, who, *_ in self.log[position:] if kind in ("commit", "abort") and who == producer)
        return next(ends, "open")

    def read(self) -> tuple[dict[int, int], set[int]]:
        """What counts, and what is unstable."""
        counts: dict[int, int | None] = {}
        unstable: set[int] = set()
        for position, (kind, partition, producer, offset) in enumerate(self.log):
            if kind in ("commit", "abort"):
                continue
            fate = "commit" if producer is None else self.fate(position, producer)
            if fate == "commit":
                counts[partition] = offset
                unstable.discard(partition)
            elif fate == "open":
                unstable.add(partition)
        return {partition: offset for partition, offset in counts.items() if offset is not None}, unstable


@given(st.lists(STEPS, max_size=30))
@example([("in", 0, 0), ("plain", 0, 0), ("commit", 0, 0)])
@example([("in", 0, 0), ("in", 1, 0), ("commit", 1, 0), ("commit", 0, 0)])
@example([("in", 0, 0), ("in", 1, 0), ("in", 0, 0), ("failover", 0, 0), ("commit", 1, 0), ("abort", 0, 0)])
@settings(max_examples=200, deadline=None)
def test_what_counts_is_what_the_log_says(steps: Sequence[tuple[str, int, int]]) -> None:
    """Against a model that knows the log alone; over failovers; and a log in which markers are passed over counts
    nothing of a transaction."""
    driver, model = Driver(offsets_retention_check_ms=DAY_MS), Model()
    for number, (kind, who, partition) in enumerate(steps):
        if kind == "failover":
            driver = driver.failover()
        elif kind in ("plain", "in"):
            producer = None if kind == "plain" else who
            transaction = None if producer is None else Transaction(producer, 0)
            offsets = (OffsetToCommit("t", partition, number, -1, ""),)
            driver.get(CommitOffsets("g", -1, "", None, offsets, transaction=transaction))
            model.log.append(("offset", partition, producer, number))
        elif kind in ("commit", "abort"):
            driver.mark(who, commit=kind == "commit")
            model.log.append((kind, who, None, None))
        elif kind == "delete":
            answer = _or_error(driver, DeleteOffsets("g", (("t", partition),)))
            if answer == [ErrorCode.NONE]:
                model.log.append(("offset", partition, None, None))
        elif kind == "expire":
            driver.pass_ms(2 * WEEK_MS)
            counts, unstable = model.read()
            model.log += [("offset", one, None, None) for one in counts if one not in unstable]
        else:
            counts, unstable = model.read()
            gone = _or_error(driver, DeleteGroup("g"))
            assert (gone is None) == (bool(counts) and not unstable)
            if gone is None:
                model.log += [("offset", one, None, None) for one in counts]
        check(driver, model)
    check(driver.failover(), model)


def check(driver: Driver, model: Model) -> None:
    counts, unstable = model.read()
    assert driver.offsets() == {("t", partition): offset for partition, offset in counts.items()}
    for place in (0, 1):
        assert (driver.stable_offset(place) is UNSTABLE) == (place in unstable)
    assert groups(driver) == (["g"] if counts or unstable else [])


def _or_error(driver: Driver, command: Any) -> Any:
    try:
        return driver.get(command)
    except KafkaError as error:
        return error.code


def test_a_compacted_log_says_the_same() -> None:
    """Compaction stops at the first open transaction, and drops what no reader of committed records would see."""
    driver = Driver()
    fine(driver, driver.commit_in(A, 5))
    fine(driver, driver.commit(9))
    driver.mark(A, commit=True)
    fine(driver, driver.commit_in(B, 7))
    kept = [batch for batch in driver.batches if batch.records != driver.batches[0].records]
    other = Driver()
    other.load([Batch(), *kept])
    assert other.offsets() == driver.offsets() == {T0: 9}
    assert other.stable_offset() is UNSTABLE
