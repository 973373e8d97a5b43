"""Mutants of rules B9, B14, B15 and B16: acks, reads, log starts, and the streams between replicas."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, condition, dropped, instead, never, one_change, part, removed

_LEADERS = "tests/schedules/replication/test_leaders.py"
_STORAGE = "tests/schedules/replication/test_storage.py"
_MANAGER = "tests/replica/test_manager.py"
_FAULTS = "tests/replica/test_faults.py"
_PRODUCE = "tests/cluster/broker/test_kafka_produce.py"

TABLE: tuple[Mutant, ...] = (
    Mutant(
        "acks-all-without-enough-replicas",
        "B9: acks=all: |ISR| < min at the append: NOT_ENOUGH_REPLICAS, nothing written (schedule 21)",
        (never(),),
        (f"{_LEADERS}::test_21_the_isr_shrinks_to_an_isolated_leader[holds]",),
    ),
    Mutant(
        "log-start-not-clamped",
        "B15: a log start is at most the high watermark (schedule 16)",
        (part("min(leader_log_start, self.high_watermark)", "leader_log_start"),),
        (f"{_STORAGE}::test_16_the_leaders_log_start_is_ahead_of_a_follower[holds]",),
    ),
    Mutant(
        "bounds-taken-anew-in-mid-read",
        "B14: a read has one snapshot of its bounds (schedule 17)",
        (part("limit_offset", "self._log.log_end_offset"),),
        (f"{_STORAGE}::test_17_appends_and_commits_in_mid_read[holds]",),
    ),
    one_change(
        "acks-1-is-refused-below-min-isr",
        "B9: acks=1: after the local append, however few are in sync",
        dropped("waits"),
        f"{_MANAGER}::test_too_few_in_sync",
    ),
    one_change(
        "written-though-refused",
        "B9: acks=all: NOT_ENOUGH_REPLICAS: nothing is written",
        instead("plog.append_as_leader(batches, core.leader_epoch, self._shared.believed.latest_ms())\n..."),
        f"{_MANAGER}::test_too_few_in_sync",
    ),
    one_change(
        "acks-all-answers-at-the-append",
        "B9: acks=all: not before the high watermark has passed the batch",
        never(),
        f"{_MANAGER}::test_acks",
    ),
    one_change(
        "acks-1-waits",
        "B9: acks=1: after the local append",
        dropped("waits"),
        f"{_MANAGER}::test_acks",
    ),
    one_change(
        "acks-0-is-answered",
        "B9: acks=0: no reply",
        always(),
        f"{_PRODUCE}::test_acks_0_has_no_answer",
    ),
    one_change(
        "acks-0-fails-silently",
        "B9: acks=0: a failure closes the connection",
        never(),
        f"{_PRODUCE}::test_acks_0_that_fails_closes_the_connection",
    ),
    one_change(
        "too-few-after-the-append-unsaid",
        "B9: acks=all: NOT_ENOUGH_REPLICAS_AFTER_APPEND when |maximal ISR| < min",
        never(),
        "tests/replica/test_leader_watermark.py::test_too_few_after_the_append_is_said_so",
    ),
    one_change(
        "lost-leadership-is-success",
        "B9: acks=all: leadership lost while waiting: NOT_LEADER_OR_FOLLOWER",
        part("append.end(ErrorCode.NOT_LEADER_OR_FOLLOWER, _LEADERSHIP_LOST)", "append.end(ErrorCode.NONE)"),
        f"{_MANAGER}::test_failover_cuts_what_was_not_committed",
    ),
    one_change(
        "lost-leadership-unsaid",
        "B9: acks=all: who waits is told that leadership was lost",
        removed(),
        f"{_MANAGER}::test_failover_cuts_what_was_not_committed",
    ),
    one_change(
        "timeout-unsaid",
        "B9: acks=all: REQUEST_TIMED_OUT, indeterminate",
        removed(),
        f"{_PRODUCE}::test_acks_all_that_is_not_replicated_times_out",
    ),
    one_change(
        "one-answer-for-two-partitions",
        "B9: acks: a request is answered when all its appends have ended",
        part("self.left == 0", "self.left >= 0"),
        "tests/cluster/broker/test_kafka_produce.py",
    ),
    one_change(
        "reads-beyond-the-high-watermark",
        "B14: reads: nothing at or beyond the high watermark",
        part("committed_only", "False"),
        f"{_MANAGER}::test_too_few_in_sync",
    ),
    one_change(
        "a-deposed-leader-answers",
        "B14: reads: not after leadership was lost in mid-read (schedule 17)",
        condition("... and False"),
        f"{_FAULTS}::test_leadership_is_lost_while_the_disk_is_read",
    ),
    one_change(
        "times-of-uncommitted-records",
        "B14: reads: offsets by time are below the high watermark",
        part("end", "log.log_end_offset"),
        f"{_MANAGER}::test_offsets_of_uncommitted_records",
    ),
    one_change(
        "newest-time-of-uncommitted-records",
        "B14: reads: the record with the largest timestamp is below the high watermark",
        part("end", "log.log_end_offset"),
        f"{_MANAGER}::test_offsets_of_uncommitted_records",
    ),
    one_change(
        "deletes-uncommitted-records",
        "B15: log start: a leader deletes nothing above the high watermark (schedule 16)",
        part("core.high_watermark", "core.log_end_offset"),
        f"{_STORAGE}::test_16_a_leader_is_asked_to_delete_what_is_not_committed[holds]",
    ),
    one_change(
        "callers-epoch-is-not-asked",
        "B1: four epochs: a caller's leader epoch is compared (KIP-320)",
        never(),
        f"{_MANAGER}::test_the_old_and_the_new_epoch_of_a_caller",
    ),
    one_change(
        "followers-answer",
        "B14: reads: only the leader answers",
        part("self.leader", "self.log"),
        "tests/replica/test_manager.py::test_failover_cuts_what_was_not_committed",
    ),
    one_change(
        "epochs-of-nothing-have-no-end",
        "B33: an epoch that is older than all that is left ended where the next larger one begins (schedules 102, 103)",
        never(),
        "tests/schedules/replication/test_positions.py",
    ),
)
