"""Mutants of the rules about silence: who is probed, who is fenced for it, and who is not."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_UNIT = "tests/controller/machine/test_sessions.py"
_SCHEDULES = "tests/schedules/quorum/test_pauses.py"
_SILENT_AT = "controller.machine.sessions:BrokerSessions._silent_at_ms"
_PROBED = "controller.machine.sessions:BrokerSessions.probed"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "silence-is-no-suspicion",
        "schedule 60: open and silent is suspected",
        _SILENT_AT,
        "return session.asked_ms + self.times.answer_ms if reachable else NEVER",
        "return NEVER",
        f"{_UNIT}::test_60_open_and_silent_is_fenced_after_the_silence_timeout",
        f"{_UNIT}::test_60_a_new_controller_fences_who_was_silent_under_the_old_one",
        f"{_SCHEDULES}::test_60_any_node_is_paused",
    ),
    one_change(
        "deposed-controller-is-trusted",
        "schedule 60: who led the quorum and was given up is suspected",
        "controller.machine.state:MachineState.__init__",
        "suspected = node_id == led_before",
        "suspected = False",
        f"{_SCHEDULES}::test_60_the_active_controller_is_paused_with_its_broker",
    ),
    one_change(
        "leader-given-up-for-being-late",
        "schedule 60: a late answer is an answer",
        "controller.raft.fetching:FetchLoop._next_request",
        "max_wait_ms = 0 if self._failures else min(",
        "max_wait_ms = min(",
        f"{_SCHEDULES}::test_60_a_controller_that_is_late_stays_what_it_is",
    ),
    one_change(
        "answer-to-a-probe-ends-no-silence",
        "schedule 60: a late answer is an answer",
        _PROBED,
        "            self._clear(session)\n",
        "",
        f"{_UNIT}::test_60_a_late_answer_is_an_answer",
        f"{_SCHEDULES}::test_60_a_broker_that_is_late_is_not_fenced",
    ),
    one_change(
        "answer-of-the-dead-counts",
        "schedule 60: a late answer is an answer, but not of before the stream broke",
        _PROBED,
        "if NEVER > session.suspected_since_ms > session.probed_ms:",
        "if False:",
        f"{_UNIT}::test_60_an_answer_from_before_the_stream_broke_ends_no_suspicion",
    ),
    one_change(
        "unreachable-broker-counts-as-silent",
        "schedule 60: where heartbeats come and no probe was ever answered, silence is not counted",
        _SILENT_AT,
        "reachable = session.answers or session.streams == 0",
        "reachable = True",
        f"{_UNIT}::test_60_whose_probes_never_arrive_lives_by_its_heartbeats",
    ),
    one_change(
        "slept-and-blames-the-others",
        "schedule 60: a controller that stood still counts silence anew",
        "controller.machine.sessions:BrokerSessions.forgive",
        "                session.asked_ms = now_ms\n",
        "                pass\n",
        f"{_UNIT}::test_60_a_controller_that_stood_still_counts_silence_anew",
    ),
)
