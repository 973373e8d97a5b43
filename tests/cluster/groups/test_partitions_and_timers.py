"""Which partition of the internal topic a group is kept in, and the deadlines of its members."""

from __future__ import annotations

from strandline.cluster.groups.partitions import java_hash, partition_of
from strandline.cluster.groups.timers import Timers
from strandline.proto.believed import Now


def test_partitions_are_chosen_as_kafka_does() -> None:
    """`Utils.abs(groupId.hashCode()) % partitions`; the hashes are Java's."""
    assert java_hash("") == 0
    assert java_hash("group") == 98629247
    assert java_hash("polygenelubricants") == -(2**31), "the well-known string whose hash has no absolute value"
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("group", 50) == 98629247 % 50
    assert java_hash("\U0001f600") == 31 * 0xD83D + 0xDE00


def test_timers() -> None:
    """One deadline a key; a later one replaces an earlier one; equal ones in the order of their setting."""
    timers = Timers()
    seen: list[str] = []

    def note(name: str) -> None:
        timers.set(name, 100.0, lambda _now: seen.append(name))

    for name in "abc":
        note(name)
    timers.set("b", 200.0, lambda _now: seen.append("b later"))
    timers.cancel("c")
    timers.cancel("never set")
    timers.run(Now(99.0, 0, 0))
    assert seen == []
    timers.run(Now(100.0, 0, 0))
    assert seen == ["a"]
    assert timers.next_ms == 200.0
    timers.set("b", 150.0, lambda _now: seen.append("b sooner"))
    timers.run(Now(150.0, 0, 0))
    assert seen == ["a", "b sooner"]
    timers.run(Now(300.0, 0, 0))
    assert seen == ["a", "b sooner"]
    assert len(timers) == 0


def test_renewed_sessions_do_not_fill_the_heap() -> None:
    """A heartbeat costs no entry: the heap has one a member at most, and few beyond that after many have gone."""
    timers = Timers()
    for turn in range(50):
        for member in range(100):
            timers.set(member, 1000.0 + turn, lambda _now: None)
    assert len(timers._heap) == 100
    for member in range(100):
        timers.cancel(member)
    assert len(timers._heap) <= 64
