"""Mutants of what is done about ends of logs that nothing proves: rules B30 and A22."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, dropped, never, one_change, part, removed, value

_ENDS = "tests/controller/machine/test_unproven_ends.py"
_CRASHES = "tests/schedules/recovery/test_unproven_ends.py"

PARTITIONS: tuple[Mutant, ...] = (
    one_change(
        "unproven-end-leads-at-once",
        "B30: who is back after an unclean stop waits for the rest of the last ISR",
        value("True"),
        f"{_ENDS}::test_the_dishonest_one_is_back_first",
        f"{_CRASHES}::test_96_the_dishonest_one_is_back_first",
    ),
    one_change(
        "first-unproven-end-leads",
        "B30: of those that are back the greatest log leads",
        value("alive[0]"),
        f"{_ENDS}::test_the_dishonest_one_is_back_first",
    ),
    one_change(
        "members-in-doubt-are-not-waited-for",
        "B30: a member whose log was cut may have more than a zeroed one",
        part("{*self._elr, *self._in_doubt()}", "{*self._elr}"),
        f"{_ENDS}::test_a_member_whose_log_was_cut_is_waited_for_too",
    ),
    one_change(
        "unproven-ends-wait-for-ever",
        "B30: the wait is bounded",
        part("until_ms <= now_ms", "until_ms < 0"),
        f"{_ENDS}::test_the_wait_is_bounded",
        f"{_CRASHES}::test_96_one_dead_machine_costs_half_a_second",
    ),
    one_change(
        "clean-ends-are-doubted",
        "B30: after a clean stop the checkpoints say where a log ends",
        always(),
        f"{_ENDS}::test_who_stopped_cleanly_is_not_doubted",
    ),
    one_change(
        "unproven-for-good",
        "B30: who is in the ISR has all that is committed",
        part("node not in partition.isr", "True"),
        f"{_ENDS}::test_who_has_joined_the_isr_since_is_not_doubted",
    ),
    one_change(
        "new-controller-believes-every-end",
        "B30: a new controller doubts whom it does not know",
        never(),
        f"{_ENDS}::test_a_new_controller_doubts_whom_it_does_not_know",
    ),
    one_change(
        "stalled-controller-waits-no-more",
        "B30: a controller that stood still waits anew",
        part("now_ms + WAIT_MS", "now_ms"),
        f"{_ENDS}::test_a_controller_that_stood_still_waits_anew",
    ),
    one_change(
        "preview-ends-the-wait",
        "B30: a preview of an unclean election ends no wait",
        always(),
        f"{_ENDS}::test_an_operator_need_not_wait",
    ),
)

_VOTERS = "tests/schedules/quorum/test_unproven_ends.py"

QUORUM: tuple[Mutant, ...] = (
    one_change(
        "unproven-votes-count-in-full",
        "A22: for a moment after an unclean stop a vote says less than others'",
        dropped("now_ms < self.unproven_until_ms"),
        f"{_VOTERS}::test_97_the_dishonest_voter_and_the_lagging_one_are_back_first",
    ),
    one_change(
        "round-outlives-its-doubt",
        "A22: a round that began in doubt is held again when the own log is doubted no more",
        part("min(self._election_deadline_ms, self._round.proven_at_ms)", "self._election_deadline_ms"),
        f"{_VOTERS}::test_97_one_dead_machine_costs_half_a_second",
    ),
    one_change(
        "voters-back-off-beyond-the-wait",
        "A22: who has lost a round asks anew no later than its log is doubted no more",
        never(),
        f"{_VOTERS}::test_97_one_dead_machine_costs_half_a_second",
    ),
    one_change(
        "clean-voters-are-doubted",
        "A22: after a clean stop the log ends where it ended",
        value("False"),
        f"{_VOTERS}::test_a22_who_stopped_cleanly_does_not_wait",
    ),
    one_change(
        "clean-mark-of-the-quorum-stays",
        "A22: a clean stop vouches for the next start alone",
        removed(),
        f"{_VOTERS}::test_a22_a_clean_stop_vouches_once",
    ),
    one_change(
        "clean-mark-outlives-a-full-disk",
        "A22: where the mark of a clean stop cannot be replaced it goes",
        never(),
        f"{_VOTERS}::test_a22_a_clean_mark_goes_on_a_full_disk",
    ),
    one_change(
        "caught-up-and-doubted",
        "A22: who has caught up with a leader is not doubted",
        removed(),
        f"{_VOTERS}::test_a22_who_has_caught_up_is_not_doubted",
    ),
)

TABLE: tuple[Mutant, ...] = (*PARTITIONS, *QUORUM)
