"""The self-test of rule E7: one seed in 20 processes with other hash seeds and environments, one trace hash."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from lab import selftest
from strandline.chaos.scenario_options import ScenarioOptions

PROCESSES = 20
ROOT = Path(__file__).parents[2]


def traces(arguments: list[str], processes: int = PROCESSES) -> set[str]:
    """The outputs of `processes` runs of `python -m arguments`, two at a time, each in another environment."""
    outputs: set[str] = set()
    for first in range(0, processes, 2):
        running = []
        for number in range(first, min(first + 2, processes)):
            environment = {
                "PATH": os.environ["PATH"],
                "PYTHONHASHSEED": str(number * 1_000_003 % 4_294_967_295),
                "PADDING": "x" * (number * 517),  # another size of the environment moves addresses
            }
            command = [sys.executable, "-m", *arguments]
            running.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True))
        for process in running:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0
            outputs.add(output)
    return outputs


def test_one_seed_gives_one_trace_in_twenty_processes() -> None:
    """Neither string hashing, nor addresses, nor the environment reaches the run."""
    seen = traces(["lab.selftest", "11"])
    assert len(seen) == 1, seen
    assert seen == {selftest.trace(11) + "\n"}


def with_services() -> int:
    """A seed that has all of them."""
    drawn = ((seed, ScenarioOptions.draw(seed).services) for seed in count())
    return next(seed for seed, services in drawn if services is not None and services.copy and services.anew)


def secured() -> int:
    """A seed whose brokers ask, with quotas and sessions that end."""
    drawn = ((seed, ScenarioOptions.draw(seed).secured) for seed in count())
    return next(seed for seed, asking in drawn if asking is not None and asking.quotas and asking.session_ms)


@pytest.mark.parametrize(("seed", "processes"), [(1, 2), (with_services(), 4), (secured(), 4)])
def test_the_cluster_too(seed: int, processes: int) -> None:
    """The production nodes, clients, listeners and logs: nothing of the process they run in reaches the run."""
    seen = traces(["lab.selftest", str(seed), "cluster"], processes)
    assert len(seen) == 1, seen


def test_other_seeds_give_other_traces() -> None:
    """The trace hash does tell runs apart."""
    assert len({selftest.trace(seed) for seed in range(5)}) == 5
