"""After a run: the committed prefixes of all replicas, compared byte by byte (rule E2)."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.stored import stored_batches
from strandline.chaos.sim.disk import SimDisk


def compare_replicas(disks: Mapping[str, SimDisk], data: str, high_watermarks: Mapping[str, Mapping[str, int]]) -> None:
    """Every replica's batches below the lowest high watermark are the same bytes.

    `high_watermarks` is partition directory name -> node name -> high watermark.

    Raises:
        InvariantViolated: IdenticalReplicas.
    """
    for directory, by_node in high_watermarks.items():
        end = min(by_node.values())
        contents = {
            name: b"".join(batch for _, batch in stored_batches(disks[name], f"{data}/{directory}", end=end))
            for name in by_node
        }
        if len(set(contents.values())) > 1:
            sizes = {name: len(content) for name, content in contents.items()}
            raise InvariantViolated(
                "IdenticalReplicas", "committed bytes differ", partition=directory, below=end, sizes=sizes
            )
