"""`strandline sim`: exit codes, JSON, options, and what a failure tells."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lab.sim import main as sim_without
from strandline.cli.main import main


def sim(arguments: list[str]) -> Result:
    """Through the program, as a user does: click remembers in a command how it was called first."""
    return CliRunner().invoke(main, ["sim", *arguments])


def test_seeds_that_hold_exit_0_and_tell_json() -> None:
    """One object a seed; the trace is the seed's."""
    arguments = ["--scenario", "quorum", "--seeds", "2", "--seed", "1", "--output", "json"]
    result = sim(arguments)
    assert result.exit_code == 0, result.output
    outcomes = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted(outcome["seed"] for outcome in outcomes) == [1, 2]
    assert all(outcome["ok"] and len(outcome["figures"]["trace"]) == 16 for outcome in outcomes)


def test_a_failure_tells_seed_options_and_how_to_replay_it() -> None:
    """Exit 1, the invariant's name, the expanded options, the command; and that command fails the same way."""
    arguments = ["--scenario", "quorum", "--seeds", "60", "--break", "vote-not-durable"]
    result = CliRunner().invoke(sim_without, arguments)
    assert result.exit_code == 1
    replay = next(line for line in result.stdout.splitlines() if "replay:" in line)
    words = replay.split("python -m lab.sim ")[1].split()
    assert '"election_timeout_ms"' in result.stdout
    again = CliRunner().invoke(sim_without, words)
    assert again.exit_code == 1
    message = next(line for line in result.stdout.splitlines() if line.startswith("seed "))
    assert message in again.stdout


def test_options_change_what_the_seed_drew() -> None:
    """Nested, by name; an unknown one is told with those that are known."""
    arguments = ["--scenario", "quorum", "--seed", "1", "--timeline"]
    faults = '{"kinds": ["kill"], "gap_min_ms": 50, "gap_max_ms": 200}'
    changed = sim([*arguments, "--options", f'{{"duration_ms": 1500, "faults": {faults}}}'])
    assert changed.exit_code == 0, changed.output
    assert "kill n" in changed.stdout
    assert "partition" not in changed.stdout
    unknown = sim([*arguments, "--options", '{"faults": {"kinds": ["kil"]}}'])
    assert unknown.exit_code == 2
    assert "there is no fault kil; known here: bit_rot," in " ".join(unknown.output.split())
    wrong = sim([*arguments, "--options", '{"faults": {"kind": 1}}'])
    assert wrong.exit_code == 2
    assert "faults.kind" in wrong.output
    assert "kinds" in wrong.output


HEARD = """
import signal
from strandline.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
"""A shell has its jobs in the background ignore SIGINT, and their children would."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_tells_what_it_has_found(number: signal.Signals) -> None:
    """With how many seeds there were; its children end with it."""
    run_sim = [sys.executable, "-c", HEARD, "sim", "--scenario", "quorum"]
    command = [*run_sim, "--minutes", "5", "--jobs", "1", "--timeline"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        first = run.stdout.readline()
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        run.send_signal(number)
        told = run.stdout.read()
        assert "Traceback" not in run.stderr.read()
    assert first.startswith("seed 0: held")
    assert " seeds held; " in told.splitlines()[-1]
    assert run.returncode == 128 + number
    assert not [child for child in children if Path(f"/proc/{child}/cwd").exists()]
