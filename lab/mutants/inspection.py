"""Mutants of what looks through a stopped node's directory, and of what repairs it."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_VERIFY = "tests/cli/test_log_verify.py"
_REPAIR = "tests/log/test_repair.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "reader-takes-no-lock",
        "A3: no node starts on a directory while it is read",
        "log.real_lock:RealLock.take_to_read",
        "_flock(fd, path, fcntl.LOCK_SH)",
        "pass",
        f"{_VERIFY}::test_the_lock",
    ),
    one_change(
        "repair-cuts-in-silence",
        "schedule 45: a log that a repair has cut is not intact",
        "log.verify.repair:Repair._partition",
        "loading.keep_findings()  # before",
        "pass  # before",
        f"{_REPAIR}::test_a_torn_tail",
    ),
    one_change(
        "repair-notes-no-boot",
        "A9: what a repair wrote may be in the page cache alone",
        "log.verify.repair:Repair.__init__",
        "boots.note_used()",
        "pass",
        f"{_REPAIR}::test_the_boot_is_noted",
    ),
    one_change(
        "repair-touches-what-is-refused",
        "E5: in a log that recovery refuses a repair touches nothing",
        "log.verify.repair:_why_not",
        "if refused is not None or flaw.kind is Kind.IDENTITY:",
        "if False:",
        f"{_REPAIR}::test_what_no_repair_brings_back",
    ),
    one_change(
        "indexes-of-rotten-segments-are-built-anew",
        "B19: beside rot the index is all that tells where batches are",
        "log.verify.repair:_why_not",
        'return BESIDE_ROT if is_rotten and flaw.kind is not Kind.LEFT_OVER else ""',
        'return ""',
        f"{_REPAIR}::test_beside_rot",
    ),
)
