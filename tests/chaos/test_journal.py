"""A history on its way through a file while it happens: what a live run's clients write and the run reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.chaos.checkers.history import (
    Commit,
    History,
    OffsetRead,
    Partition,
    Poll,
    Send,
    Status,
    Transaction,
)
from strandline.chaos.checkers.journal import BadHistory, Follower, Recorder, read_columns, read_history

A, B = Partition("a", 0), Partition("b", 1)


def test_what_is_recorded_comes_back_while_it_happens(tmp_path: Path) -> None:
    """Sends, how they ended and polls reach a reader at each sweep; a send without an end stays invoked."""
    path = tmp_path / "own.jsonl"
    history = History()
    follower = Follower(path, history)
    assert follower.read() == []
    with Recorder(path) as recorder:
        first = recorder.send(Send("p", A, "one", acks=1, group=7, invoked_ms=10.0))
        recorder.send(Send("p", B, "two", invoked_ms=11.0))
        recorder.sweep()
        assert follower.read() == []
        assert [send.value for send in history.sends] == ["one", "two"]
        first.status, first.offset, first.completed_ms = Status.OK, 5, 20.5
        recorder.poll(Poll("c", [(A, 5, "one"), (B, 0, "x")], 2, invoked_ms=1.0, completed_ms=2.0, final=True))
        recorder.errors({"Disconnected": 3})
        recorder.sweep()
        assert follower.read() == [first]
    assert follower.read() == []
    assert history.sends == [first, Send("p", B, "two", invoked_ms=11.0)]
    [poll] = history.polls
    assert (poll.process, poll.generation, poll.final) == ("c", 2, True)
    assert list(poll.records) == [(A, 5, "one"), (B, 0, "x")]
    assert follower.errors == {"Disconnected": 3}
    assert follower.size_bytes == path.stat().st_size


def test_a_recorder_keeps_every_kind_of_operation(tmp_path: Path) -> None:
    """Commits and transactions are written when they have ended, or, if they never do, at the end as they are."""
    path = tmp_path / "own.jsonl"
    ended = Transaction("p", [Send("p", A, "in", status=Status.OK, offset=1)], Status.INVOKED, 1.0, 0.0)
    never = Transaction("q", [Send("q", A, "out", status=Status.INVOKED)], Status.INVOKED, 2.0, 0.0)
    committed = Commit("c", "g", A, 9, 2, invoked_ms=3.0)
    told = OffsetRead("c", "g", A, 9, 2, 4.0, 5.0)
    with Recorder(path) as recorder:
        recorder.transaction(ended)
        recorder.transaction(never)
        recorder.commit(committed)
        recorder.offset_read(told)
        recorder.sweep()
        ended.status, committed.status = Status.OK, Status.FAIL
    history = read_history(path)
    assert history.transactions == [ended, never]
    assert history.commits == [committed]
    assert history.offset_reads == [told]


def test_a_line_that_is_half_written_waits_for_its_end(tmp_path: Path) -> None:
    """A reader that comes in the middle of a write takes nothing apart; one that comes after the end leaves it out."""
    path = tmp_path / "own.jsonl"
    history = History()
    follower = Follower(path, history)
    line = '{"op":"send","process":"p","status":"invoked","partition":"a-0","value":"one","ms":[1.0,0.0],"id":0}\n'
    path.write_text(line[:20])
    assert follower.read() == []
    assert history.sends == []
    assert read_history(path).sends == []
    path.write_text(line)
    follower.read()
    assert [send.value for send in history.sends] == ["one"]


def test_a_follower_says_which_line_is_none(tmp_path: Path) -> None:
    """A client that writes nonsense is a bug of the client, and not passed over."""
    path = tmp_path / "own.jsonl"
    path.write_text('{"errors":{}}\nnonsense\n')
    with pytest.raises(BadHistory, match="line 2"):
        Follower(path, History()).read()


def test_errors_are_no_operations(tmp_path: Path) -> None:
    """`strandline check` judges a client's journal as it is."""
    path = tmp_path / "own.jsonl"
    with Recorder(path) as recorder:
        recorder.errors({"Disconnected": 3})
        recorder.send(Send("p", A, "one", status=Status.OK, offset=0))
        recorder.poll(Poll("c", [(A, 0, "one")]))
    columns = read_columns(path)
    assert (len(columns.sends), len(columns.polls)) == (1, 1)
