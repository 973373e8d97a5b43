"""Mutants of the rules about silence: who is probed, who is fenced for it, and who is not."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, dropped, never, one_change, part, removed, value

_UNIT = "tests/controller/machine/test_sessions.py"
_SCHEDULES = "tests/schedules/quorum/test_pauses.py"
_POWER_CUTS = "tests/schedules/quorum/test_power_cuts.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "silence-is-no-suspicion",
        "schedule 60: open and silent is suspected",
        part("session.asked_ms + self.times.answer_ms if reachable else NEVER", "NEVER"),
        f"{_UNIT}::test_60_open_and_silent_is_fenced_after_the_silence_timeout",
        f"{_UNIT}::test_60_a_new_controller_fences_who_was_silent_under_the_old_one",
        f"{_SCHEDULES}::test_60_any_node_is_paused",
    ),
    one_change(
        "deposed-controller-is-trusted",
        "schedule 60: who led the quorum and was given up is suspected",
        value("False"),
        f"{_SCHEDULES}::test_60_the_active_controller_is_paused_with_its_broker",
    ),
    one_change(
        "leader-given-up-for-being-late",
        "schedule 60: a late answer is an answer",
        part(
            "0 if self._failures else min(node.config.fetch_max_wait_ms, node.config.fetch_timeout_ms // 3)",
            "min(node.config.fetch_max_wait_ms, node.config.fetch_timeout_ms // 3)",
        ),
        f"{_SCHEDULES}::test_60_a_controller_that_is_late_stays_what_it_is",
    ),
    one_change(
        "answer-to-a-probe-ends-no-silence",
        "schedule 60: a late answer is an answer",
        removed(),
        f"{_UNIT}::test_60_a_late_answer_is_an_answer",
        f"{_SCHEDULES}::test_60_a_broker_that_is_late_is_not_fenced",
    ),
    one_change(
        "answer-of-the-dead-counts",
        "schedule 60: a late answer is an answer, but not of before the stream broke",
        never(),
        f"{_UNIT}::test_60_an_answer_from_before_the_stream_broke_ends_no_suspicion",
    ),
    one_change(
        "unreachable-broker-counts-as-silent",
        "schedule 60: where heartbeats come and no probe was ever answered, silence is not counted",
        value("True"),
        f"{_UNIT}::test_60_whose_probes_never_arrive_lives_by_its_heartbeats",
    ),
    one_change(
        "other-process-is-not-believed",
        "schedule 71: another process at the address of one that sends no heartbeat takes its place",
        removed(),
        f"{_UNIT}::test_71_another_process_at_the_address_and_no_heartbeat_end_the_session",
        f"{_POWER_CUTS}::test_71_a_machine_loses_power_after_it_registered_and_is_back_at_once",
    ),
    one_change(
        "refused-registration-probes-nothing",
        "schedule 71: a process that is refused for another one's sake is a reason to probe that one",
        removed(),
        f"{_POWER_CUTS}::test_71_a_machine_loses_power_after_it_registered_and_is_back_at_once",
    ),
    one_change(
        "displaced-broker-is-not-asked",
        "schedule 71: a broker at whose address another process answers is asked for a heartbeat",
        dropped("reply.heartbeat_now"),
        f"{_POWER_CUTS}::test_71_a_live_broker_whose_address_leads_to_another_process_stays",
    ),
    one_change(
        "heartbeat-ends-no-displacement",
        "schedule 71: a heartbeat counts for more than what answers at the address",
        removed(),
        f"{_UNIT}::test_71_a_heartbeat_counts_for_more_than_another_process_at_the_address",
        f"{_POWER_CUTS}::test_71_a_live_broker_whose_address_leads_to_another_process_stays",
    ),
    one_change(
        "finding-about-the-process-before",
        "schedule 71: a probe that was sent before the registration is about another process",
        dropped("sent_ms < session.granted_ms"),
        f"{_UNIT}::test_71_a_probe_of_the_process_before_decides_nothing",
    ),
    one_change(
        "slept-and-blames-the-others",
        "schedule 60: a controller that stood still counts silence anew",
        removed(),
        f"{_UNIT}::test_60_a_controller_that_stood_still_counts_silence_anew",
    ),
)
