"""Mutants of correctness rule C: idempotent producers."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant, Patch

_LEADERS = "tests/schedules/replication/test_leaders.py"

TABLE: tuple[Mutant, ...] = (
    Mutant(
        "followers-forget-producers",
        "C: producer state follows replicated appends too (D-39)",
        (
            Patch(
                "log.partition_log:PartitionLog._write",
                "if header[9] >= 0:",
                "if header[9] >= 0 and leader_epoch is not None:",
            ),
        ),
        (f"{_LEADERS}::test_39_a_retry_after_the_leader_was_killed[holds]",),
    ),
)
