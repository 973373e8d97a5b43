"""Mutants of what is believed of one file's word (rule B31)."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_RETENTION = "tests/log/test_retention.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "time-indexes-are-believed",
        "B31: a segment goes by its age once its batches say the same",
        "log.retention:find_expired",
        "if segment.proven_to < segment.size:",
        "if False:",
        f"{_RETENTION}::test_98_a_time_index_alone_takes_no_record",
    ),
    one_change(
        "a-time-index-stays-wrong",
        "B31: a time index that contradicts the batches is built anew",
        "log.retention:prove_newest",
        "if not held and",
        "if False and",
        f"{_RETENTION}::test_98_a_time_index_alone_takes_no_record",
    ),
)
