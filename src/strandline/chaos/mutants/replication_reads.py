"""Mutants of correctness rule B: acks, reads, and the streams between replicas."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant, Patch

_LEADERS = "tests/schedules/replication/test_leaders.py"
_STORAGE = "tests/schedules/replication/test_storage.py"

TABLE: tuple[Mutant, ...] = (
    Mutant(
        "acks-all-without-enough-replicas",
        "B: acks=all: |ISR| < min at the append: NOT_ENOUGH_REPLICAS, nothing written (D-21)",
        (
            Patch(
                "replica.core.leader:LeaderCore.admit",
                "if acks == ACKS_ALL and len(self.isr) < self._min_isr:",
                "if False:",
            ),
        ),
        (f"{_LEADERS}::test_21_the_isr_shrinks_to_an_isolated_leader[holds]",),
    ),
    Mutant(
        "log-start-not-clamped",
        "B: a log start is at most the high watermark (D-16)",
        (
            Patch(
                "replica.fetcher:Fetcher._learn",
                "min(log_start_offset, core.high_watermark)",
                "log_start_offset",
            ),
        ),
        (f"{_STORAGE}::test_16_the_leaders_log_start_is_ahead_of_a_follower[holds]",),
    ),
    Mutant(
        "bounds-taken-anew-in-mid-read",
        "B: a read has one snapshot of its bounds (D-17)",
        (
            Patch(
                "log.reader:LogReader.read_cold",
                "await self._warm(cold)",
                "await self._warm(cold)\n                limit_offset = self._log.log_end_offset",
            ),
        ),
        (f"{_STORAGE}::test_17_appends_and_commits_in_mid_read[holds]",),
    ),
)
