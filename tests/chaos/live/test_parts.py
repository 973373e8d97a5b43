"""The parts of a live run that need no cluster: journals, gaps, the order of faults."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from strandline.chaos.checkers.history import History, Partition, Poll, Send, Status
from strandline.chaos.live.faults import FAULTS, plan
from strandline.chaos.live.gaps import NO_FAULT, AckTimes, Window, table
from strandline.chaos.live.journal import Follower, Journal

A, B = Partition("a", 0), Partition("b", 1)


def acked(partition: Partition, *times_ms: float, acks: int = -1) -> list[Send]:
    return [
        Send("p", partition, f"{at}", acks=acks, status=Status.OK, offset=number, completed_ms=at)
        for number, at in enumerate(times_ms)
    ]


def test_a_journal_comes_back_as_the_history_it_was(tmp_path: Path) -> None:
    """Sends, how they ended and polls survive the way through a file; a send without an end stays invoked."""
    path = tmp_path / "own.jsonl"
    history = History()
    follower = Follower(path, history)
    assert follower.read() == []
    with path.open("w") as file:
        journal = Journal(file)
        first = journal.send(Send("p", A, "one", acks=1, group=7, invoked_ms=10.0))
        journal.send(Send("p", B, "two", invoked_ms=11.0))
        journal.sweep()
        assert follower.read() == []
        first.status, first.offset, first.completed_ms = Status.OK, 5, 20.5
        journal.poll(Poll("c", [(A, 5, "one"), (B, 0, "x")], 2, invoked_ms=1.0, completed_ms=2.0, final=True))
        journal.errors({"Disconnected": 3})
        journal.sweep()
    assert follower.read() == [first]
    assert history.sends == [first, Send("p", B, "two", invoked_ms=11.0)]
    assert history.sends[1].status is Status.INVOKED
    [poll] = history.polls
    assert (poll.process, poll.generation, poll.final) == ("c", 2, True)
    assert list(poll.records) == [(A, 5, "one"), (B, 0, "x")]
    assert follower.errors == {"Disconnected": 3}


def test_a_line_that_is_half_written_waits_for_its_end(tmp_path: Path) -> None:
    """A reader that comes in the middle of a write takes nothing apart."""
    path = tmp_path / "own.jsonl"
    history = History()
    follower = Follower(path, history)
    line = '["s",1,"p","a",0,"one",-1,null,1.0]\n'
    path.write_text(line[:20])
    assert follower.read() == []
    assert history.sends == []
    path.write_text(line)
    follower.read()
    assert [send.value for send in history.sends] == ["one"]


def test_a_gap_is_from_the_last_ack_before_to_the_first_after() -> None:
    """Availability: the longest time without an acks=all ack that touches the fault; acks=1 do not count."""
    times = AckTimes()
    times.note(acked(A, 100, 200, 300, 4300, 4400))
    times.note(acked(A, 1000, 2000, acks=1))
    assert times.gap_ms(A, 350, 2000) == 4000
    assert times.gap_ms(A, 120, 180) == 100
    assert times.gap_ms(B, 0, 500) == 500
    assert times.quiet_gap_ms(A, 150, 400) == 100
    assert times.acked_since(A, 4400)
    assert not times.acked_since(A, 4401)


def test_the_table_has_a_row_for_each_kind() -> None:
    """Median and longest over faults and partitions; the times between faults by themselves."""
    times = AckTimes()
    times.note(acked(A, 0, 100, 200, 1200, 1300))
    times.note(acked(B, 0, 100, 400, 500, 1250))
    windows = [Window("kill", 150, 1100, 1250), Window(NO_FAULT, 0, 100, 100)]
    kill, quiet = table(windows, times, [A, B])
    assert kill == {
        "fault": "kill", "times": 1, "gap_median_ms": 875, "gap_max_ms": 1000, "whole_max_ms": 150, "acks": 5,
    }  # fmt: skip
    assert quiet["fault"] == NO_FAULT
    assert quiet["gap_max_ms"] == 100


@pytest.mark.parametrize("names", [["kill"], list(FAULTS)])
def test_each_round_has_each_fault_once_and_the_seed_decides_the_order(names: list[str]) -> None:
    """--seed: the same seed is the same order of faults."""
    faults = [fault.name for fault in islice(plan(names, random.Random(7)), 3 * len(names))]
    for begin in range(0, len(faults), len(names)):
        assert sorted(faults[begin : begin + len(names)]) == sorted(names)
    assert faults == [fault.name for fault in islice(plan(names, random.Random(7)), 3 * len(names))]
