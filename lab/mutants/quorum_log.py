"""Mutants of the quorum, rules A7 to A9, A11 and A12: fetches, followers, syncs, directories, observers."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, instead, never, one_change, part, removed, value

_RAFT = "tests/controller/raft"
_LEADER = f"{_RAFT}/test_raft_leader.py"
_FOLLOWER = f"{_RAFT}/test_raft_follower.py"
_ROLES = f"{_RAFT}/test_raft_roles.py"
_QUORUM = "tests/controller/quorum"
_FAULTS = f"{_QUORUM}/test_quorum_faults.py"
_SCHEDULES = "tests/schedules/quorum"

FETCHES: tuple[Mutant, ...] = (
    one_change(
        "diverging-fetch-counts",
        "A7: a diverging fetch updates nothing",
        instead(
            "self._progress(request.replica, voteless=request.voteless).fetched(request.fetch_offset, "
            "log.end_offset, now_ms)\n"
            "self.update_high_watermark()\n"
            "..."
        ),
        f"{_LEADER}::test_a7_only_a_valid_fetch_updates_replica_state",
    ),
    one_change(
        "fetch-that-needs-a-snapshot-counts",
        "A7: a fetch answered by a snapshot updates nothing",
        instead(
            "self._progress(request.replica, voteless=request.voteless).fetched(request.fetch_offset, "
            "log.end_offset, now_ms)\n"
            "..."
        ),
        f"{_SCHEDULES}/test_fetches.py::test_a7_a_fetch_answered_by_a_snapshot_counts_for_nothing",
    ),
    one_change(
        "divergence-not-judged",
        "A7: a fetch is judged by its last epoch, too",
        value("None"),
        f"{_LEADER}::test_a7_only_a_valid_fetch_updates_replica_state",
        f"{_SCHEDULES}/test_fetches.py::test_a7_a_diverging_tail_is_cut",
    ),
    one_change(
        "divergence-judged-by-epoch-alone",
        "A7: a fetch beyond its epoch's end diverges",
        dropped("end_offset < fetch_offset"),
        f"{_SCHEDULES}/test_fetches.py::test_a7_a_fetch_beyond_its_epochs_end_diverges",
    ),
    one_change(
        "stale-fetch-is-served",
        "A7: a fetch of an older epoch is fenced",
        never(),
        f"{_LEADER}::test_a7_errors_of_fetch",
    ),
    one_change(
        "fetch-of-an-unknown-epoch-is-served",
        "A7: a fetch of a newer epoch is told UNKNOWN_LEADER_EPOCH",
        never(),
        f"{_LEADER}::test_a7_errors_of_fetch",
    ),
    one_change(
        "fetch-of-another-cluster-is-served",
        "A7: a fetch of another cluster is refused",
        never(),
        f"{_LEADER}::test_a7_errors_of_fetch",
    ),
    one_change(
        "follower-does-not-say-that-it-leads-not",
        "A7: who does not lead says NOT_LEADER_OR_FOLLOWER",
        part("ErrorCode.NOT_LEADER_OR_FOLLOWER", "ErrorCode.NONE"),
        f"{_LEADER}::test_a7_errors_of_fetch",
    ),
    one_change(
        "parked-fetch-times-out-with-an-error",
        "A7: a parked fetch that times out returns its original answer",
        part("parked.on_timeout", "self._answer(ErrorCode.REQUEST_TIMED_OUT)"),
        f"{_LEADER}::test_a7_a_parked_fetch_returns_its_original_answer",
    ),
    one_change(
        "parked-fetches-outlive-the-leader",
        "A7: parked fetches are answered when the leader goes",
        value("()"),
        f"{_LEADER}::test_a7_parked_fetches_learn_at_once_that_the_leader_is_gone",
    ),
    one_change(
        "replaced-fetch-is-not-answered",
        "A7: one parked fetch a replica, the older is answered",
        never(),
        f"{_LEADER}::test_a7_one_parked_fetch_a_replica",
    ),
)

FOLLOWERS: tuple[Mutant, ...] = (
    one_change(
        "fetch-before-flush",
        "A8: a voter flushes before its next fetch",
        value("True"),
        f"{_FOLLOWER}::test_a8_a_voter_flushes_before_it_fetches_again",
        f"{_SCHEDULES}/test_durability.py::test_23_no_flush_crash_the_high_watermark_goes_back",
        f"{_SCHEDULES}/test_durability.py::test_30_unsynced_writes_of_one_node_lost",
    ),
    one_change(
        "truncate-to-the-leaders-end",
        "A8: truncate to the smaller of both ends of that epoch",
        part("min(end_offset, leader_end_offset)", "leader_end_offset"),
        f"{_SCHEDULES}/test_fetches.py::test_a8_the_smaller_end_of_the_epoch",
    ),
    one_change(
        "truncation-does-not-iterate",
        "A8: iterate where the follower lacks the leader's epoch",
        always(),
        f"{_FOLLOWER}::test_a8_truncation_to_the_smaller_end",
    ),
    Mutant(
        "truncate-below-the-high-watermark",
        "A8: never truncate below the high watermark",
        (
            never(),
            part("offset >= self.high_watermark", "True"),
        ),
        (f"{_FOLLOWER}::test_a8_never_truncates_below_the_high_watermark",),
    ),
    one_change(
        "truncation-is-skipped",
        "A8: a diverging tail is cut",
        removed(),
        f"{_FOLLOWER}::test_a8_truncation_to_the_smaller_end",
        f"{_SCHEDULES}/test_fetches.py::test_a7_a_diverging_tail_is_cut",
    ),
    one_change(
        "leaders-high-watermark-taken-whole",
        "A8: high watermark = min(own end, the leader's)",
        part("min(node.log.end_offset, response.high_watermark)", "response.high_watermark"),
        f"{_FOLLOWER}::test_a8_high_watermark_is_the_smaller_of_own_end_and_the_leaders",
    ),
    Mutant(
        "answer-given-up-is-taken",
        "A8: an answer counts only while it fits the log and the question",
        (
            never(),
            never(),
        ),
        (f"{_SCHEDULES}/test_fetches.py::test_a8_an_answer_given_up_is_ignored",),
    ),
    one_change(
        "records-that-do-not-fit-are-appended",
        "A8: only records that continue the log are appended",
        never(),
        f"{_FOLLOWER}::test_a8_records_that_do_not_fit_are_refused",
    ),
    Mutant(
        "count-before-sync",
        "A9: the own end counts only once synced, in the quorum and in partitions",
        (
            instead("self.end_offset = self.durable_offset = batch.next_offset"),
            value("False"),
        ),
        (
            f"{_LEADER}::test_a9_the_leaders_own_end_counts_only_when_flushed",
            f"{_SCHEDULES}/test_durability.py::test_23_no_flush_crash_the_high_watermark_goes_back",
        ),
    ),
    one_change(
        "a-flush-covers-what-came-later",
        "A9: a flush covers what was written before it began",
        part("min(offset, self.end_offset)", "self.end_offset"),
        f"{_LEADER}::test_a9_a_flush_that_began_before_an_append_does_not_cover_it",
    ),
    one_change(
        "what-a-restart-finds-is-not-synced",
        "A9: what a restart finds is synced before it counts",
        never(),
        f"{_SCHEDULES}/test_durability.py::test_a9_what_a_restart_finds_is_synced_before_it_counts",
    ),
    one_change(
        "failed-sync-does-not-stop-the-quorum",
        "A9: a failed sync stops the node",
        removed(),
        f"{_FAULTS}::test_a_failed_sync_stops_the_node_and_acks_nothing",
    ),
    Mutant(
        "failed-sync-is-retried",
        "A9: a failed sync is never retried",
        (
            part("self.fail(error)", "self._syncer.mark(_[0])"),
            removed(),
        ),
        (f"{_SCHEDULES}/test_durability.py::test_32_a_failed_sync_retried_with_success",),
    ),
    one_change(
        "what-was-not-written-is-handed-over",
        "A8: the high watermark is at most the own end, also when a write found no room",
        part("min(ready.high_watermark, self.core.high_watermark)", "ready.high_watermark"),
        f"{_FAULTS}::test_what_a_full_disk_did_not_take_is_not_handed_over_as_committed",
    ),
    one_change(
        "leader-stays-after-a-failed-write",
        "A9: a leader whose own write failed steps down",
        removed(),
        f"{_ROLES}::test_a_leader_whose_write_failed_steps_down",
        f"{_SCHEDULES}/test_durability.py::test_24_a_leader_whose_own_write_fails",
    ),
)

WHO_COUNTS: tuple[Mutant, ...] = (
    one_change(
        "wiped-candidate-is-heard",
        "A11: a candidate of another directory is not that voter",
        dropped("not known"),
        f"{_ROLES}::test_a11_a_wiped_voter_is_not_elected_and_its_fetches_do_not_count",
    ),
    one_change(
        "wiped-voter-votes-in-its-old-name",
        "A11: a vote is asked of one directory",
        dropped("not asked"),
        f"{_ROLES}::test_a11_a_wiped_voter_does_not_vote_in_its_old_name",
    ),
    one_change(
        "fetches-of-a-wiped-voter-count",
        "A11: fetches of another directory are an observer's",
        dropped("voter.key.counts(replica, voteless=voteless)"),
        f"{_ROLES}::test_a11_a_wiped_voter_is_not_elected_and_its_fetches_do_not_count",
    ),
    one_change(
        "directory-id-is-ignored",
        "A11: a directory id that differs is not that voter: a wiped disk cannot vote",
        value("True"),
        f"{_ROLES}::test_a11_a_wiped_voter_observes",
        f"{_SCHEDULES}/test_commit.py::test_26_a_voter_loses_its_disk",
    ),
    one_change(
        "observers-count-for-the-high-watermark",
        "A12: observers do not count for the high watermark",
        instead("return self.voters.setdefault(replica.node_id, ReplicaProgress(replica))"),
        f"{_ROLES}::test_a12_observers_count_for_nothing",
    ),
    one_change(
        "observer-asks-one-voter-only",
        "A12: an observer finds the leader by asking any voter",
        removed(),
        f"{_ROLES}::test_a12_an_observer_finds_the_leader_by_fetching_from_any_voter",
    ),
)

TABLE = (*FETCHES, *FOLLOWERS, *WHO_COUNTS)
