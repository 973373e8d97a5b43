"""Mutants of the log: what is durable, what a stop leaves behind, what is read (rules B, E; D-16 to D-20)."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant, Patch

_STORAGE = "tests/schedules/replication/test_storage.py"

TABLE: tuple[Mutant, ...] = (
    Mutant(
        "index-before-the-end-moves",
        "C: an append moves the end before anything else is written (D-19)",
        (
            Patch(
                "log.partition_log:PartitionLog._write",
                "self.log_end_offset = Offset(offset)",
                "for file in segment.write_indexes() if segment.indexes_wait else []:\n            file.close()\n"
                "        self.log_end_offset = Offset(offset)",
            ),
        ),
        (f"{_STORAGE}::test_19_an_index_write_fails_after_the_append[holds-EIO]",),
    ),
)
