"""The users of the simulator: what their checkers flag and what they do not, and seeds that a removed rule fails."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from lab.mutants import without
from strandline.chaos.checkers.history import Partition
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.users import (
    ConsumedRecord,
    ConsumerPosition,
    Content,
    UserRecords,
    check_answered,
    check_memory,
    place_of_key,
)
from strandline.chaos.runner import run_seeds
from strandline.chaos.scenario import ScenarioRun
from strandline.chaos.scenario_options import ScenarioOptions
from strandline.chaos.users.options import USERS_SHARE
from strandline.client.partitioner import partition_of_key

WHERE, OTHER = Partition("orders", 0), Partition("orders", 1)

CATCHERS: dict[str, tuple[int, ...]] = {
    "handed-out-counts-as-done": (12, 17),
    "paused-partition-skips-what-was-polled-ahead": (12, 41),
    "flush-ends-at-once": (1,),
}
"""Seeds that caught each break when this was written; tried first. As the code changes others do: they follow."""


def ledger() -> UserRecords:
    """Five records of one partition, acknowledged, and what they hold."""
    one = UserRecords()
    for offset in range(5):
        one.contents[f"u{offset}"] = Content(b"k", (("h", None),), 1_000 + offset)
        one.ack(WHERE, offset, f"u{offset}")
    return one


def record(offset: int, where: Partition = WHERE, **changes: object) -> ConsumedRecord:
    return ConsumedRecord(where, offset, 1_000 + offset, b"k", f"u{offset}", (("h", None),))._replace(**changes)


def stand() -> ConsumerPosition:
    one = ConsumerPosition("reader", ledger())
    one.seek(WHERE, 0)
    return one


def test_records_come_in_turn() -> None:
    """From where the consumer stands, and on from a seek; whatever lies between two calls, nothing is passed over."""
    one = stand()
    one.given([record(0), record(1)])
    one.given([record(2)])
    one.seek(WHERE, 1)
    one.given([record(1)])
    with pytest.raises(InvariantViolated, match="ReadInTurn"):
        one.given([record(3)])
    with pytest.raises(InvariantViolated, match="ReadInTurn"):
        one.given([record(1)])
    with pytest.raises(InvariantViolated, match="ReadInTurn"):
        one.given([record(0, OTHER)])


def test_a_paused_partition_is_silent() -> None:
    one = stand()
    one.paused.add(WHERE)
    with pytest.raises(InvariantViolated, match="PausedIsSilent"):
        one.given([record(0)])
    one.paused.clear()
    one.given([record(0)])


@pytest.mark.parametrize("changes", [{"key": None}, {"headers": ()}, {"timestamp_ms": 5}, {"value": "u9"}])
def test_a_record_is_what_was_sent(changes: dict[str, object]) -> None:
    with pytest.raises(InvariantViolated, match="RecordIsWhole"):
        stand().given([record(0, **changes)])


def test_a_time_that_nobody_named_is_told_to_all_alike() -> None:
    one = ledger()
    one.contents["u0"].timestamp_ms = None
    one.check_whole("a", [record(0, timestamp_ms=7)])
    one.check_whole("b", [record(0, timestamp_ms=7)])
    with pytest.raises(InvariantViolated, match="RecordIsWhole"):
        one.check_whole("b", [record(0, timestamp_ms=8)])


def test_a_position_is_told_as_it_is() -> None:
    one = stand()
    one.told(WHERE, 0)
    with pytest.raises(InvariantViolated, match="PositionIsTold"):
        one.told(WHERE, 1)


def test_the_end_lies_behind_what_was_acknowledged() -> None:
    """As it was when the seek was made: what came later may lie behind it."""
    one = stand()
    one.seek_end(WHERE)
    one.told(WHERE, 5)
    one.seek_end(WHERE)
    with pytest.raises(InvariantViolated, match="EndIsBehindAcks"):
        one.told(WHERE, 4)


def test_a_lookup_by_time_finds_the_first_record() -> None:
    one = ledger()
    reader = ConsumerPosition("reader", one)
    reader.seek_time(WHERE, 1_002)
    reader.given([record(2)])
    one.check_lookups([record(offset) for offset in range(5)])
    reader.seek_time(WHERE, 1_002)
    reader.given([record(3)])
    with pytest.raises(InvariantViolated, match="FirstAtTime"):
        one.check_lookups([record(offset) for offset in range(5)])


def test_what_is_committed_is_done() -> None:
    """By any member; where a member begins, everything before is."""
    one = ledger()
    one.finish([record(0), record(1)])
    one.check_committed(WHERE, 2)
    with pytest.raises(InvariantViolated, match="CommittedUndone"):
        one.check_committed(WHERE, 3)
    member = ConsumerPosition("buyer", one)
    member.begins = one.check_committed
    member.hold([WHERE])
    member.given([record(2)])
    member.hold([WHERE])
    with pytest.raises(InvariantViolated, match="CommittedUndone"):
        member.given([record(3)])


def test_a_flush_ends_with_answers_and_memory() -> None:
    check_answered("p", "flush", {"u1": True})
    with pytest.raises(InvariantViolated, match="SettledIsAnswered"):
        check_answered("p", "flush", {"u1": True, "u2": False})
    check_memory("p", 0)
    with pytest.raises(InvariantViolated, match="MemoryComesBack"):
        check_memory("p", 1)


def test_a_key_has_the_partition_that_kafka_gives_it() -> None:
    """The checkers' own murmur2 and the product's, written apart, agree."""
    rng = random.Random(1)
    for length in range(64):
        key = rng.randbytes(length)
        assert place_of_key(key, 7) == partition_of_key(key, 7)


def test_seeds_draw_users() -> None:
    """And draw the same again."""
    drawn = [seed for seed in range(400) if ScenarioOptions.draw(seed).users is not None]
    assert 0.7 * USERS_SHARE < len(drawn) / 400 < 1.3 * USERS_SHARE
    assert ScenarioOptions.draw(drawn[0]) == ScenarioOptions.draw(drawn[0])


def test_seeds_hold() -> None:
    """And much was tried in them: records of every kind, calls cut short, and memory that ran out."""
    outcomes = list(run_seeds((1, 12, 17, 24, 41, 63), ScenarioRun, jobs=2))
    assert [(outcome.seed, outcome.message, outcome.details) for outcome in outcomes if not outcome.ok] == []
    figures = [outcome.figures["users"] for outcome in outcomes]
    for act in ("poll_columns", "take_back", "seek_by_question", "first_at", "read back", "exit", "fails"):
        assert sum(one["acts"].get(act, 0) for one in figures) > 0, act
    for call in ("poll", "send", "flush", "next_record"):
        assert sum(one["cut"].get(call, 0) for one in figures) > 0, call
    assert sum(one["errors"].get("BufferExhausted", 0) for one in figures) > 0
    assert any("users:" in text for outcome in outcomes for _, text in outcome.events)


@pytest.mark.parametrize("name", sorted(CATCHERS))
def test_a_broken_rule_is_caught(name: str) -> None:
    """One rule removed, some seed fails, by an invariant and not by an accident."""
    others = (seed for seed in range(100, 300) if ScenarioOptions.draw(seed).users is not None)
    with without(name):
        for outcome in run_seeds(chain(CATCHERS[name], others), ScenarioRun, jobs=2):
            if not outcome.ok:
                assert outcome.details == "", outcome.details
                return
    pytest.fail(f"no seed catches {name}")


def test_a_deposed_leader_may_tell_an_older_end() -> None:
    """It knows nothing of what its successor has acknowledged, and clients may reach it still (seed 36100054)."""
    told = ledger()
    assert told.end(WHERE) == 5
    told.deposed = lambda partition: partition == WHERE
    assert told.end(WHERE) == 0
