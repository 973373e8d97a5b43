"""Mutants of correctness rule B: the in-sync replicas and the high watermark."""

from __future__ import annotations

from strandline.chaos.mutants.mutant import Mutant, Patch

_ISR = "tests/schedules/replication/test_isr.py"
_LEADERS = "tests/schedules/replication/test_leaders.py"

TABLE: tuple[Mutant, ...] = (
    Mutant(
        "isr-instead-of-maximal",
        "B: maximal ISR: a pending expansion counts (D-9)",
        (
            Patch(
                "replica.core.leader:LeaderCore._set_maximal",
                "self.maximal_isr = maximal_isr",
                "self.maximal_isr = maximal_isr = self.isr",
            ),
        ),
        (f"{_ISR}::test_09_a_newcomer_of_whom_the_leader_has_not_heard[holds]", "seed:cluster:5"),
    ),
    Mutant(
        "another-process-inherits-what-was-fetched",
        "B: joining: the fetch's broker epoch is the registered one, and is what is proposed (D-8)",
        (
            Patch(
                "replica.core.leader:LeaderCore._eligible",
                " and broker.broker_epoch == follower.broker_epoch",
                "",
            ),
            Patch(
                "replica.core.leader:LeaderCore._broker_epoch",
                "follower = self.followers.get(node_id)",
                "follower = None",
            ),
        ),
        (f"{_ISR}::test_08_a_stale_fetch_of_a_broker_that_registered_again[holds]",),
    ),
    Mutant(
        "progress-outlives-the-leader-epoch",
        "B: joining: a fetch received in this leader epoch (D-10)",
        (
            Patch(
                "replica.partition_set:PartitionSet._lead",
                "self._channel = self._channel % 0xFFFFFFFF + 1",
                "core.followers.update(partition.leader.followers if partition.leader is not None else {})\n"
                "        core._adopt_replicas(self._clock.monotonic_ms())\n"
                "        self._channel = self._channel % 0xFFFFFFFF + 1",
            ),
        ),
        (f"{_ISR}::test_10_removed_and_added_in_one_batch_of_metadata[holds]",),
    ),
    Mutant(
        "no-recheck-when-the-isr-is-committed",
        "B: high watermark: recheck when an ISR is committed (D-14)",
        (
            Patch(
                "replica.core.leader:LeaderCore.answered",
                "return self._advance_and_propose(now_ms)",
                "return False",
            ),
        ),
        (f"{_ISR}::test_14_a_shrink_is_approved[holds]",),
    ),
    Mutant(
        "waits-for-the-ineligible",
        "B: high watermark: of those out of the ISR only the eligible hold it (D-15)",
        (Patch("replica.core.leader:LeaderCore._about_to_join", " and self._eligible(follower)", ""),),
        (f"{_ISR}::test_15_a_stopping_replica_that_keeps_up[holds]",),
    ),
    Mutant(
        "no-strict-high-watermark",
        "B: high watermark: it stands while |ISR| < min(min.insync, RF) (D-21)",
        (
            Patch(
                "replica.core.leader:LeaderCore._advance",
                "if len(self.isr) < self._min_isr:",
                "if False:",
            ),
        ),
        (f"{_LEADERS}::test_21_the_isr_shrinks_to_an_isolated_leader[holds]",),
    ),
    Mutant(
        "new-leader-serves-everything",
        "B: high watermark: a new leader starts from the one that it knew (D-41)",
        (
            Patch(
                "replica.core.leader:LeaderCore.__init__",
                "self.high_watermark = min(high_watermark, log_end_offset)",
                "self.high_watermark = log_end_offset",
            ),
        ),
        (f"{_LEADERS}::test_41_a_new_leader_serves_what_is_committed[holds]",),
    ),
    Mutant(
        "latest-offset-before-the-epoch-start",
        "B: stale HW: no latest offset before the start of the epoch is committed (D-41)",
        (
            Patch(
                "replica.core.leader:LeaderCore.knows_committed_end",
                "return self.high_watermark >= self.epoch_start_offset",
                "return True",
            ),
        ),
        (f"{_LEADERS}::test_41_a_new_leader_serves_what_is_committed[holds]",),
    ),
)
