"""`strandline chaos run --operations` whole: a run that holds, and what its end finds where something was left."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.chaos.live.cli import QUICK
from strandline.chaos.live.cluster import LiveCluster
from strandline.chaos.live.operations import Operator
from strandline.client import Admin, NewTopic
from strandline.client.types import ConfigChange, ConfigResource

COMMAND = [sys.executable, "-m", "strandline.cli.main", "chaos", "run", "--operations"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", ["combined", "split"])
def test_a_run_with_an_operator_holds(layout: str, tmp_path: Path) -> None:
    """Moves, drains and voters meet killed, isolated and restarted nodes; most of what is typed ends well."""
    words = ["--minutes", "1.5", "--seed", "21", "--schedule", "kill-leader,isolate", "--evidence", str(tmp_path)]
    program = [*COMMAND, *words, "--layout", layout, "-o", "json"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["violations"] == []
    rows = {row["operation"]: row for row in told["operations"]}
    assert sum(row["ended"] for row in rows.values()) > sum(row["failed"] for row in rows.values())
    assert rows["watch"]["ended"] >= 1
    assert rows["rebalance"]["ended"] >= 1
    assert told["figures"]["faults"] >= 1
    assert list(tmp_path.iterdir()) == []


def _until(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.1)


@pytest.mark.timeout(600)
def test_what_is_left_is_found(tmp_path: Path) -> None:
    """A throttle, a cordon, a factor and an assignment that somebody else makes after the operator's last command."""
    with LiveCluster(nodes=4, settings=QUICK) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("t", replica_assignment={0: (1, 2, 3), 1: (1, 2, 4), 2: (1, 3, 4)})])
            admin.alter_configs(
                {
                    ConfigResource("broker", "3"): [
                        ConfigChange("follower.replication.throttled.rate", "1000"),
                        ConfigChange("cordoned.log.dirs", "*"),
                    ],
                    ConfigResource("topic", "t"): [ConfigChange("leader.replication.throttled.replicas", "0:1")],
                }
            )
            admin.alter_partition_reassignments({("t", 2): (1, 4)})
        operator = Operator(cluster, random.Random(1), {"t": 3}, tmp_path, print)
        found = operator.judge(lambda holds, _, what: _until(holds, 5, what))
        assert {one.partition(":")[0] for one in found} == {
            "NoThrottleLeft", "NoBrokerLeftCordoned", "FactorIsKept", "Balanced",
        }  # fmt: skip
        assert sum(one.startswith("NoThrottleLeft") for one in found) == 2
        assert operator.finish(_until) == []
