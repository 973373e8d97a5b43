"""The models: small bounds hold and close, and paths can be told and walked again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lab.explore.bounds import PRESETS, PartitionBounds, Preset, QuorumBounds
from lab.explore.cli import explore, steps_of
from lab.explore.model import Model
from lab.explore.models import make_model
from lab.explore.search import Found, Limits, search
from lab.explore.trace import named, retrace, walk


def run(*args: str) -> Result:
    return CliRunner().invoke(explore, list(args), catch_exceptions=False)


def closed(model: Model) -> Found:
    found = search(model, Limits())
    assert found.broken is None, (found.broken.violation, retrace(model, found.broken).names)
    assert found.complete
    return found


# --- what holds ---


def test_every_state_of_an_election_holds() -> None:
    """Three voters, one epoch, three timers: every order of votes, pre-votes and first fetches."""
    assert closed(make_model("quorum", QuorumBounds(epochs=1, records=0, crashes=0))).states > 2_000


def test_every_state_of_a_quorum_that_crashes_holds() -> None:
    """One crash, at any instant, with any part of the tail that was not synced."""
    assert closed(make_model("quorum", QuorumBounds(epochs=1, records=0, timeouts=1))).states > 500


def test_every_state_of_a_partition_without_delays_holds() -> None:
    """One crash and a follower that lags: everything else happens at once."""
    assert closed(make_model("partition", PartitionBounds(delays=0))).states > 70


def test_every_state_of_a_partition_whose_leader_moves_holds() -> None:
    assert closed(make_model("partition", PartitionBounds(crashes=0, moves=1, records=1, lags=0))).states > 100


def test_every_state_after_a_crash_of_all_holds() -> None:
    """One record is committed, nobody lives, and one disk is ruined: whoever comes back in whatever order."""
    bounds = PartitionBounds(records=1, crashes=0, delays=0, rots=1, lags=0, leader_epochs=3, changes=8)
    after = ["append 1", "crash 3 0", "fence 3", "crash 1 0", "crash 2 0"]
    assert closed(make_model("partition", bounds, after)).states > 300


@pytest.mark.parametrize(("name", "preset"), [(name, one) for name, all_of in PRESETS.items() for one in all_of])
def test_presets_begin(name: str, preset: Preset) -> None:
    """Their steps before the search can be taken, and `make explore` runs every one of them."""
    model = make_model(name, preset.bounds, steps_of(preset.after))
    assert search(model, Limits(states=60)).broken is None
    rule = (Path(__file__).parents[3] / "Makefile").read_text().partition("\nexplore:")[2].partition("\n\n")[0]
    loop = next(line for line in rule.split("done") if f"explore {name}" in line)
    assert preset.name in loop.partition(";")[0].split()


def test_nothing_at_once() -> None:
    """Where every frame, sync and change of metadata is a step of its own, each is offered as one."""
    model = make_model("partition", PartitionBounds(delays=-1, crashes=0, records=1, lags=0))
    state = walk(model, ["append 1"]).taken[-1].state
    assert state is not None
    assert [name for name, _ in named(model, state)] == ["sync 1", "offer 1 2", "offer 1 3"]


# --- the command ---


def test_the_command_tells_what_it_met() -> None:
    result = run("quorum", "--preset", "small", "--records", "0", "--timeouts", "1", "--jobs", "1")
    assert result.exit_code == 0
    assert "every state within the bounds holds" in result.stdout


def test_the_command_tells_a_path_and_walks_it_again(tmp_path: Path) -> None:
    page, scenario = tmp_path / "path.html", tmp_path / "path.txt"
    arguments = ("quorum", "--preset", "small", "--break", "two-votes-an-epoch", "--jobs", "2")
    result = run(*arguments, "--html", str(page), "--scenario", str(scenario))
    assert result.exit_code == 1
    assert "VotedOnce at step 6" in result.stdout
    assert "6. call " in result.stdout
    assert "VotedOnce" in page.read_text()
    assert scenario.read_text().startswith("# VotedOnce")
    again = run(*arguments, "--replay", f"@{scenario}", "--output", "json")
    assert again.exit_code == 1
    assert json.loads(again.stdout)["invariant"] == "VotedOnce"
    steps = "; ".join(json.loads(again.stdout)["steps"])
    assert run("quorum", "--replay", steps).exit_code == 0, "with the rule in place the second vote is refused"


def test_the_command_in_figures() -> None:
    result = run("partition", "--delays", "0", "--crashes", "0", "--records", "1", "--jobs", "1", "--output", "json")
    answer = json.loads(result.stdout)
    assert answer["complete"]
    assert answer["memory_mb"] > 10
    assert answer["path"] is None
    assert answer["states"] == answer["levels"][-1]["states"]
    assert answer["bounds"]["delays"] == 0


def test_mistakes_on_the_command_line() -> None:
    assert "cannot happen there" in run("quorum", "--after", "timeout 9", "--jobs", "1").output
    assert "cannot happen there" in run("quorum", "--replay", "sync 1").output
    assert "Invalid value" in run("quorum", "--preset", "enormous").output
    assert "is not in the range 0<=x<=1" in run("partition", "--rots", "2").output
    assert "--rots 1 needs --min-isr 2" in run("partition", "--rots", "1", "--min-isr", "1").output
    assert "No such option" in run("partition", "--epochs", "3").output


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_search_ends_at_its_limit_of_memory(jobs: str) -> None:
    result = run("quorum", "--memory-mb", "1", "--jobs", jobs)
    assert result.exit_code == 0
    assert "stopped by the limit of 1 MB" in result.stdout
