"""Mutants of rules B1 to B7: the in-sync replicas and the high watermark."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, dropped, instead, never, one_change, part, removed, value

_ISR = "tests/schedules/replication/test_isr.py"
_LEADERS = "tests/schedules/replication/test_leaders.py"
_ISR_TESTS = "tests/replica/test_leader_isr.py"
_WATERMARK_TESTS = "tests/replica/test_leader_watermark.py"
_FOLLOWER_STREAMS = "tests/replica/test_follower_streams.py"
_MANAGER = "tests/replica/test_manager.py"

TABLE: tuple[Mutant, ...] = (
    Mutant(
        "isr-instead-of-maximal",
        "B3: maximal ISR: a pending expansion counts (schedule 9)",
        (instead("self.maximal_isr = maximal_isr = self.isr"),),
        (f"{_ISR}::test_09_a_newcomer_of_whom_the_leader_has_not_heard[holds]",),
    ),
    Mutant(
        "another-process-inherits-what-was-fetched",
        "B5: joining: the fetch's broker epoch is the registered one, and is what is proposed (schedule 8)",
        (
            dropped("broker.broker_epoch == follower.broker_epoch"),
            value("None"),
        ),
        (f"{_ISR}::test_08_a_stale_fetch_of_a_broker_that_registered_again[holds]",),
    ),
    Mutant(
        "progress-outlives-the-leader-epoch",
        "B5: joining: a fetch received in this leader epoch (schedule 10)",
        (
            instead(
                "core.followers.update(partition.leader.followers if partition.leader is not None else {})\n"
                "core._adopt_replicas(self._shared.clock.monotonic_ms())\n"
                "..."
            ),
        ),
        (f"{_ISR}::test_10_removed_and_added_in_one_batch_of_metadata[holds]",),
    ),
    Mutant(
        "no-recheck-when-the-isr-is-committed",
        "B4: high watermark: recheck when an ISR is committed (schedule 14)",
        (part("self._advanced_and_proposed(now_ms)", "self._taken()"),),
        (f"{_ISR}::test_14_a_shrink_is_approved[holds]",),
    ),
    Mutant(
        "waits-for-the-ineligible",
        "B4: high watermark: of those out of the ISR only the eligible hold it (schedule 15)",
        (dropped("self._eligible(follower)"),),
        (f"{_ISR}::test_15_a_stopping_replica_that_keeps_up[holds]",),
    ),
    Mutant(
        "no-strict-high-watermark",
        "B4: high watermark: it stands while |ISR| < min(min.insync, RF) (schedule 21)",
        (never(),),
        (f"{_LEADERS}::test_21_the_isr_shrinks_to_an_isolated_leader[holds]",),
    ),
    Mutant(
        "new-leader-serves-everything",
        "B4: high watermark: a new leader starts from the one that it knew (schedule 41)",
        (part("min(high_watermark, log_end_offset)", "log_end_offset"),),
        (f"{_LEADERS}::test_41_a_new_leader_serves_what_is_committed[holds]",),
    ),
    Mutant(
        "latest-offset-before-the-epoch-start",
        "B7: stale HW: no latest offset before the start of the epoch is committed (schedule 41)",
        (value("True"),),
        (f"{_LEADERS}::test_41_a_new_leader_serves_what_is_committed[holds]",),
    ),
    one_change(
        "joins-below-the-high-watermark",
        "B5: joining: end >= high watermark",
        dropped("counted >= self.high_watermark"),
        f"{_ISR_TESTS}::test_a_replica_below_the_high_watermark_does_not_join",
    ),
    one_change(
        "joins-below-the-epoch-start",
        "B5: joining: end >= start of the leader epoch",
        dropped("counted >= self.epoch_start_offset"),
        f"{_ISR_TESTS}::test_a_replica_below_the_start_of_the_epoch_does_not_join",
    ),
    one_change(
        "joins-while-fenced",
        "B5: joining: unfenced",
        dropped("not self.fenced"),
        f"{_ISR_TESTS}::test_a_replica_does_not_join",
    ),
    one_change(
        "joins-while-stopping",
        "B5: joining: not shutting down",
        dropped("not self.in_controlled_shutdown"),
        f"{_ISR_TESTS}::test_a_replica_does_not_join",
    ),
    one_change(
        "joins-under-another-broker-epoch",
        "B5: joining: the fetch's broker epoch is the cached one",
        dropped("broker.broker_epoch == follower.broker_epoch"),
        f"{_ISR_TESTS}::test_a_replica_does_not_join",
    ),
    one_change(
        "offsets-of-two-processes",
        "B5: joining: judged on one snapshot of the replica",
        removed(),
        f"{_ISR_TESTS}::test_the_next_process_of_a_replica_starts_from_nothing",
    ),
    one_change(
        "proposes-whoever-is-registered",
        "B5: joining: the proposal names the process that fetched",
        value("None"),
        f"{_ISR_TESTS}::test_members_are_proposed_as_the_processes_that_fetched",
    ),
    one_change(
        "joins-though-it-lags",
        "B5: joining: not who would leave at the next sweep",
        dropped("follower.caught_up(self.log_end_offset, self._lag_time_max_ms, now_ms)"),
        f"{_ISR_TESTS}::test_a_replica_that_lags_does_not_join",
    ),
    one_change(
        "nobody-leaves",
        "B6: leaving: not caught up for replica.lag.time.max.ms",
        never(),
        f"{_ISR_TESTS}::test_a_follower_that_lags_leaves",
    ),
    one_change(
        "leaves-for-silence",
        "B6: leaving: who is at the end has caught up, however silent",
        dropped("self.fetch_offset == leader_end"),
        f"{_ISR_TESTS}::test_a_follower_at_the_end_does_not_leave",
    ),
    one_change(
        "leaves-though-it-keeps-pace",
        "B6: leaving: caught up with where the leader was at the last fetch",
        never(),
        f"{_ISR_TESTS}::test_a_follower_that_keeps_pace_with_writes_stays",
    ),
    one_change(
        "lag-counts-from-the-last-fetch",
        "B6: leaving: who was at the end was caught up until the append",
        never(),
        f"{_ISR_TESTS}::test_an_idle_follower_has_the_whole_time_after_the_next_append",
    ),
    one_change(
        "pending-shrink-counts-already",
        "B3: maximal ISR: a pending shrink does not count yet",
        instead("self._set_maximal(self.pending.isr)\n..."),
        f"{_WATERMARK_TESTS}::test_a_shrink_on_its_way_does_not_count_yet",
    ),
    one_change(
        "two-changes-in-flight",
        "B2: AlterPartition: one in flight",
        dropped("self.pending is None"),
        f"{_ISR_TESTS}::test_one_change_at_a_time",
    ),
    one_change(
        "two-changes-in-flight-at-the-sweep",
        "B2: AlterPartition: one in flight",
        dropped("self.pending is not None"),
        f"{_ISR_TESTS}::test_one_change_at_a_time",
    ),
    one_change(
        "withdraws-on-anything",
        "B2: AlterPartition: what is unheard of is sent again (schedule 13)",
        part("Judgement.RETRY", "Judgement.REFUSED"),
        f"{_ISR_TESTS}::test_the_wrong_controller_is_no_answer",
    ),
    one_change(
        "withdraws-on-a-definite-rejection",
        "B2: AlterPartition: only INELIGIBLE_REPLICA and OPERATION_NOT_ATTEMPTED end a proposal",
        instead(
            "found = _JUDGEMENTS.get(error, Judgement.RETRY)\n"
            "return Judgement.REFUSED if found is Judgement.AWAIT_METADATA else found"
        ),
        f"{_ISR_TESTS}::test_a_definite_rejection_stays_pending_until_metadata_arrive",
    ),
    one_change(
        "a-refusal-ends-every-copy",
        "B2: AlterPartition: a refused expansion stands until the partition epoch moves (schedule 50)",
        instead("self.maximal_isr = ()\nself._set_maximal(self.isr)"),
        f"{_ISR}::test_50_refused_in_one_copy_and_committed_in_a_late_one[holds]",
        f"{_ISR_TESTS}::test_a_refused_expansion_is_withdrawn",
    ),
    one_change(
        "a-refused-withdrawal-is-forgotten",
        "B2: AlterPartition: a withdrawal is sent until the partition epoch moves (schedule 50)",
        instead("self.pending = None"),
        f"{_ISR_TESTS}::test_a_refused_withdrawal_is_sent_again",
    ),
    Mutant(
        "a-withdrawal-moves-no-epoch",
        "B2: AlterPartition: each proposal that stands moves the partition epoch (schedule 50)",
        (
            part("accepted(change, topic.topic_id, partition.partition)", "change.build()"),
            value("partition if record is None else ..."),
            instead("records += [record] if record else []"),
        ),
        (
            "tests/controller/machine/test_isr.py::test_a_leader_that_proposes_the_committed_isr_moves_the_partition_epoch",
        ),
    ),
    one_change(
        "never-withdraws",
        "B2: AlterPartition: INELIGIBLE_REPLICA ends a proposal (schedule 12)",
        never(),
        f"{_ISR_TESTS}::test_a_refused_expansion_is_withdrawn",
    ),
    one_change(
        "never-sends-again",
        "B2: AlterPartition: otherwise it retries",
        removed(),
        f"{_ISR_TESTS}::test_the_wrong_controller_is_no_answer",
    ),
    one_change(
        "a-lost-request-stays-lost",
        "B2: AlterPartition: a request that failed is sent again",
        removed(),
        "tests/replica/test_isr_changes.py",
    ),
    one_change(
        "an-overtaken-answer-counts",
        "B2: AlterPartition: metadata settle what was pending",
        never(),
        f"{_ISR_TESTS}::test_an_answer_that_metadata_have_overtaken_is_ignored",
    ),
    one_change(
        "equal-partition-epoch-settles",
        "B1: four epochs: an equal partition epoch says nothing new of the ISR",
        part("state.partition_epoch > self.partition_epoch", "state.partition_epoch >= self.partition_epoch"),
        f"{_ISR_TESTS}::test_metadata_of_the_same_partition_epoch_leave_a_change_pending",
    ),
    Mutant(
        "older-partition-epoch-counts",
        "B1: four epochs: updates of a partition epoch >= the own one",
        (
            removed(),
            part("state.partition_epoch > self.partition_epoch", "state.partition_epoch != self.partition_epoch"),
        ),
        (f"{_ISR_TESTS}::test_older_metadata_are_ignored",),
    ),
    one_change(
        "partition-epoch-restarts",
        "B1: four epochs: only a leader epoch restarts followers (KAFKA-13790)",
        part(
            "state.leader_epoch == partition.state.leader_epoch",
            "state.partition_epoch == partition.state.partition_epoch",
        ),
        f"{_FOLLOWER_STREAMS}::test_metadata_within_a_leader_epoch_restart_nothing",
    ),
    one_change(
        "older-metadata-move-roles",
        "B1: four epochs: metadata that are older change no role",
        never(),
        f"{_MANAGER}::test_older_metadata_move_nothing",
    ),
    one_change(
        "no-recheck-after-an-append",
        "B4: high watermark: recheck after an append",
        value("()"),
        f"{_WATERMARK_TESTS}::test_a_lone_replica_commits_what_it_has_appended",
    ),
    one_change(
        "no-recheck-after-a-sync",
        "B4: high watermark: recheck after the own sync",
        value("()"),
        f"{_WATERMARK_TESTS}::test_min_insync_is_bounded_by_the_replication_factor",
    ),
    one_change(
        "no-recheck-after-a-fetch",
        "B4: high watermark: recheck after a follower's fetch",
        part("self._advanced(now_ms)", "self._taken()"),
        f"{_WATERMARK_TESTS}::test_it_is_the_smallest_offset_of_the_isr",
    ),
    one_change(
        "no-recheck-on-becoming-leader",
        "B4: high watermark: recheck on becoming leader",
        removed(),
        f"{_WATERMARK_TESTS}::test_becoming_leader_judges_it_at_once",
    ),
    one_change(
        "no-recheck-when-metadata-change",
        "B4: high watermark: recheck when metadata change",
        part("self._advanced_and_proposed(now_ms)", "self._taken()"),
        f"{_ISR_TESTS}::test_lowering_min_insync_advances",
    ),
    one_change(
        "no-recheck-when-brokers-change",
        "B4: high watermark: recheck when brokers change (schedule 15)",
        part("self._advanced_and_proposed(now_ms)", "self._taken()"),
        f"{_WATERMARK_TESTS}::test_it_stops_waiting_when_the_replica_begins_to_stop",
    ),
    one_change(
        "waits-for-who-has-gone",
        "B4: high watermark: who is out of the ISR and gone is not waited for",
        removed(),
        f"{_WATERMARK_TESTS}::test_it_stops_waiting_for_a_newcomer_whose_stream_ended",
    ),
    Mutant(
        "watermark-falls",
        "B4: high watermark: it never falls",
        (
            part("offset <= self.high_watermark", "offset == self.high_watermark"),
            part("before < offset", "True"),
        ),
        (f"{_WATERMARK_TESTS}::test_it_never_falls",),
    ),
    one_change(
        "newcomer-is-not-waited-for",
        "B4: high watermark: it waits for who is caught up and may join",
        dropped("self._about_to_join(follower, now_ms)"),
        f"{_WATERMARK_TESTS}::test_a_caught_up_replica_that_may_join_is_waited_for",
    ),
    one_change(
        "min-insync-beyond-the-replicas",
        "B4: high watermark: min(min.insync, RF)",
        part("min(self.min_insync_replicas, len(self.replicas))", "self.min_insync_replicas"),
        f"{_WATERMARK_TESTS}::test_min_insync_is_bounded_by_the_replication_factor",
    ),
    one_change(
        "counts-what-the-leader-has-not-synced",
        "B4: sync before ack: the leader's own end",
        part("self.durable_offset if self._sync_before_ack else self.log_end_offset", "self.log_end_offset"),
        f"{_WATERMARK_TESTS}::test_under_ack_only_what_the_leader_has_synced_counts",
    ),
    one_change(
        "counts-what-a-follower-has-not-synced",
        "B4: sync before ack: a follower's end",
        part("durable_offset if self._sync_before_ack else fetch_offset", "fetch_offset"),
        f"{_WATERMARK_TESTS}::test_under_ack_only_what_a_follower_has_synced_counts",
    ),
    one_change(
        "acknowledges-what-is-not-synced",
        "B4: sync before ack: what a follower says it has synced",
        part("following.log.durable_offset", "following.log.log_end_offset"),
        f"{_FOLLOWER_STREAMS}::test_a_follower_acknowledges_what_it_has_synced",
    ),
)
