"""Additions to the report of a test that failed."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.chaos.testing.live import ClusterUnderTest
    from strandline.chaos.testing.simulation import Simulation

Section = tuple[str, str]

LINES = 15
"""Lines of each node's log."""


def simulation_sections(nodeid: str, simulation: Simulation) -> list[Section]:
    """The seed, the command that replays it, and the timeline of each run."""
    lines = [f"replay: {replay_command(nodeid, simulation.seed)}"]
    if sys.flags.hash_randomization and "PYTHONHASHSEED" not in os.environ:
        lines.append(
            "(Sets of your own code that hold texts are iterated in another order in each process. Should the replay "
            "not fail, search with PYTHONHASHSEED=0 in the environment, and replay with it.)"
        )
    for run in simulation.runs:
        lines += ["", "virtual ms"]
        lines += [f"{at_ms:>10}  {what}" for at_ms, what in run.timeline()]
    return [(f"strandline: seed {simulation.seed}", "\n".join(lines))]


def replay_command(nodeid: str, seed: int) -> str:
    """Command that shows one seed again."""
    return f"pytest {shlex.quote(nodeid)} --strandline-seed {seed}"


def cluster_sections(cluster: ClusterUnderTest) -> list[Section]:
    """The faults of the cluster, and the end of each node's log."""
    sections = [("strandline: faults", "\n".join(cluster.story) or "none was asked for")]
    for node_id in cluster.node_ids:
        words = cluster.last_words(node_id).splitlines()
        sections.append((f"strandline: node {node_id}, {cluster.state(node_id)}", "\n".join(words[-LINES:])))
    return sections
