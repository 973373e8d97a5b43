"""Mutants of what looks through a stopped node's directory, and of what repairs it."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, never, one_change, removed, value

_VERIFY = "tests/cli/test_log_verify.py"
_REPAIR = "tests/log/test_repair.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "reader-takes-no-lock",
        "A3: no node starts on a directory while it is read",
        removed(),
        f"{_VERIFY}::test_the_lock",
    ),
    one_change(
        "repair-cuts-in-silence",
        "schedule 45: a log that a repair has cut is not intact",
        removed(),
        f"{_REPAIR}::test_a_torn_tail",
    ),
    one_change(
        "repair-notes-no-boot",
        "A9: what a repair wrote may be in the page cache alone",
        removed(),
        f"{_REPAIR}::test_the_boot_is_noted",
    ),
    one_change(
        "repair-touches-what-is-refused",
        "E5: in a log that recovery refuses a repair touches nothing",
        never(),
        f"{_REPAIR}::test_what_no_repair_brings_back",
    ),
    one_change(
        "indexes-of-rotten-segments-are-built-anew",
        "B19: beside rot the index is all that tells where batches are",
        value("''"),
        f"{_REPAIR}::test_beside_rot",
    ),
)
