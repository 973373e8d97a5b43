"""Words of the commands that move replicas: what is typed, and what is told of a plan."""

from __future__ import annotations

import click
import pytest

from strandline.cli.common import CommandWrong
from strandline.cli.moves import Brokers, _partitions
from strandline.cli.moving import ROWS_SHOWN, Ask, Rate, plan_document, show_plan, shown_seconds
from strandline.proto.ids import TopicPartition
from strandline.tools.moves.layout import DirectoryMove, HeldUp, Left, Move, Plan


@pytest.mark.parametrize(
    ("text", "rate"),
    [("50MB", 50_000_000), ("20MiB/s", 20 << 20), ("1.5 GB", 1_500_000_000), ("700", 700), ("10kb/s", 10_000)],
)
def test_rates(text: str, rate: int) -> None:
    assert Rate().convert(text, None, None) == rate


@pytest.mark.parametrize("text", ["", "0", "fast", "-1", "50MB/h"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(click.BadParameter, match="50MB, 20MiB/s or a number"):
        Rate().convert(text, None, None)


def test_partitions_of_a_topic() -> None:
    name, chosen = _partitions("orders:0,3-5")
    assert (name, [number for number in range(9) if chosen(number)]) == ("orders", [0, 3, 4, 5])
    assert _partitions("orders")[1](7)
    for wrong in ("orders:", "orders:a", "orders:1-"):
        with pytest.raises(CommandWrong, match="as orders:0,3-5"):
            _partitions(wrong)
    with pytest.raises(click.BadParameter, match="as 1,2,3"):
        Brokers().convert("1,,2", None, None)


def test_times() -> None:
    assert [shown_seconds(seconds) for seconds in (0.2, 40, 600, 36_000)] == ["1 s", "40 s", "10 min", "10.0 h"]


def plan(moves: int) -> Plan:
    return Plan(
        tuple(
            Move(TopicPartition("t", number), (1, 2), (3, 2), (1,), 5_000_000, ("off broker 1",))
            for number in range(moves)
        ),
        (DirectoryMove(TopicPartition("d", 0), 2, "/a", "/b", 10),),
        (Left(TopicPartition("c", 0), "broker 9, to which it moves, is down"),),
        (Left(TopicPartition("l", 0), "no room"),),
    )


def test_a_plan_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    ask = Ask("strandline topic move t", None, 4, 10_000_000, True, "table")
    show_plan(ask, plan(ROWS_SHOWN))
    told = capsys.readouterr().out
    assert "... and 1 more: --output json has them all" in told
    assert "c-0: its move is cancelled, broker 9, to which it moves, is down" in told
    assert "! l-0 stays: no room" in told
    assert "41 partitions would move, 190.7 MiB copied between brokers: about 20 s at 10.0 MB a second" in told
    show_plan(ask, Plan())
    assert capsys.readouterr().out == "nothing is to be moved\n"
    show_plan(ask, Plan(left=(Left(TopicPartition("l", 0), "no room"),)))
    assert "nothing can be moved" in capsys.readouterr().out


def test_a_plan_for_programs() -> None:
    told = plan_document(Ask("strandline topic move t", None, 4, None, True, "json"), plan(1))
    assert told["moves"] == [
        {
            "topic": "t",
            "partition": 0,
            "from": [1, 2],
            "to": [3, 2],
            "bytes": 5_000_000,
            "reasons": ["off broker 1"],
        }
    ]
    assert [one["to"] for one in told["directories"]] == ["/b"]
    assert (told["bytes"], told["estimated_seconds"], told["dry_run"]) == (5_000_000, 0.1, True)
    assert told["left"] == [{"topic": "l", "partition": 0, "why": "no room"}]


def test_who_is_down_is_named_before_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """Its moves would wait for it, with nothing but their plan before. A program reads it at the end, too."""
    partitions = tuple(TopicPartition("t", number) for number in range(7))
    held = Plan(plan(1).moves, held_up=(HeldUp(4, partitions),))
    for output in ("table", "json"):
        show_plan(Ask("strandline cluster rebalance", None, 4, None, False, output), held)
        told = capsys.readouterr()
        assert told.err == (
            "! broker 4 is down: 7 moves (t-0, t-1, t-2, t-3, t-4 and 2 more) cannot end before it is back and in "
            "sync. Start it first; or, if it does not come back, take it out first: `strandline broker decommission 4`"
            "\n"
        )
        assert ("1 partition to move" in told.out) is (output == "table")
    told_to_programs = plan_document(Ask("strandline cluster rebalance", None, 4, None, False, "json"), held)
    [one] = told_to_programs["held_up"]
    assert (one["broker"], one["why"], one["partitions"][6]) == (4, "down", {"topic": "t", "partition": 6})
