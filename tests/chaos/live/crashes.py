"""A run of the faults that lose a machine or its disk, on a cluster that the test can look at."""

from __future__ import annotations

from pathlib import Path

from strandline.chaos.live.cli import DISK_BYTES_MIN, QUICK
from strandline.chaos.live.cluster import LiveCluster
from strandline.chaos.live.runner import LiveRun, Outcome, RunOptions, check_schedule


def run_each(names: list[str], directory: Path, *, seed: int, minutes: float, controllers: int = 0) -> Outcome:
    """Each of these faults at least once, as `strandline chaos run` does them; the nodes' logs are in `directory`."""
    with LiveCluster(controllers=controllers, settings=QUICK, disk_bytes=DISK_BYTES_MIN) as cluster:
        possible, _ = check_schedule(names, cluster)
        options = RunOptions(possible, minutes, seed, ["own", "confluent"], every_fault=True)
        outcome = LiveRun(cluster, options, directory, print).execute()
        cluster.save_logs(directory)
    assert outcome.violations == []
    assert not outcome.never_struck(options)
    return outcome


def logged(directory: Path) -> str:
    """What all nodes have logged."""
    return "".join(path.read_text() for path in sorted(directory.glob("node-*.log")))
