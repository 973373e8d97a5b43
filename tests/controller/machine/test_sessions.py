"""Sessions, suspicions and probes: who is fenced, when, and who is not (design, section 5)."""

from __future__ import annotations

from strandline.controller.machine.sessions import NEVER, BrokerSessions, ProbeFinding, SessionTimes

TIMES = SessionTimes(session_timeout_ms=9000, suspicion_ms=500, refused_grace_ms=120, probe_interval_ms=40)


def sessions(*, probe: bool = False) -> BrokerSessions:
    """One unfenced broker, 1, granted at 0."""
    result = BrokerSessions(TIMES)
    result.grant(1, fenced=False, now_ms=0, probe=probe)
    return result


def probe_until_fenced(
    all_sessions: BrokerSessions, finding: ProbeFinding, now_ms: float, *, takes_ms: float = 1
) -> float:
    """Serve timers and probes until broker 1 expires; when that was."""
    for _ in range(1000):
        if all_sessions.expired(now_ms):
            return now_ms
        if all_sessions.due_probes(now_ms):
            all_sessions.probed(1, finding, now_ms + takes_ms)
            now_ms += takes_ms
        else:
            event = all_sessions.next_event_ms()
            assert event != NEVER
            now_ms = max(now_ms, event)
    raise AssertionError("never fenced")


def test_silence_fences_after_the_session_timeout() -> None:
    """Row S84: a stopped process keeps its connection; only silence tells."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    assert all_sessions.next_event_ms() == 9000
    assert not all_sessions.expired(8999)
    assert all_sessions.expired(9000) == [1]


def test_heartbeats_extend_the_session() -> None:
    """Each heartbeat grants a full session from its own time."""
    all_sessions = sessions()
    all_sessions.touch(1, fenced=False, metadata_offset=5, now_ms=8000)
    assert not all_sessions.expired(16_999)
    assert all_sessions.expired(17_000) == [1]


def test_broken_stream_and_a_refused_port_fence_within_a_fraction_of_a_second() -> None:
    """kill -9: the stream breaks, the port refuses; fenced once the refusal has lasted, well under half a second."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    all_sessions.stream_broke(1, 1000)
    fenced_at = probe_until_fenced(all_sessions, ProbeFinding.REFUSED, 1000)
    assert 1120 <= fenced_at <= 1200


def test_broken_stream_and_no_answer_fence_after_half_a_second() -> None:
    """Nobody answers and nobody refuses: the suspicion lasts 500 ms."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    all_sessions.stream_broke(1, 1000)
    fenced_at = probe_until_fenced(all_sessions, ProbeFinding.SILENT, 1000, takes_ms=10)
    assert 1500 <= fenced_at <= 1520


def test_another_process_at_the_port_means_the_registered_one_is_dead() -> None:
    """A fast restart: the new process answers, the old session ends at once, so that the new one may register."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    all_sessions.stream_broke(1, 1000)
    assert all_sessions.has_valid_session(1, 1000)
    assert probe_until_fenced(all_sessions, ProbeFinding.OTHER_PROCESS, 1000) == 1001
    assert not all_sessions.has_valid_session(1, 1001)


def test_reconnect_ends_the_suspicion() -> None:
    """A connection may break and be rebuilt: nobody is fenced for that."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    all_sessions.stream_broke(1, 1000)
    assert all_sessions.due_probes(1000) == [1]
    all_sessions.stream_opened(1)
    all_sessions.touch(1, fenced=False, metadata_offset=5, now_ms=1200)
    all_sessions.probed(1, ProbeFinding.REFUSED, 1300)
    assert not all_sessions.expired(10_199)
    assert all_sessions.next_event_ms() == 10_200


def test_probe_that_is_answered_ends_the_suspicion() -> None:
    """The process lives; it will find its way back, or the session timeout takes it."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    all_sessions.stream_broke(1, 1000)
    assert all_sessions.due_probes(1000) == [1]
    all_sessions.probed(1, ProbeFinding.ALIVE, 1010)
    assert all_sessions.next_event_ms() == 9000


def test_single_refusal_fences_nobody() -> None:
    """A listener that is being rebuilt refuses once; the next probe clears it."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    all_sessions.stream_broke(1, 1000)
    assert all_sessions.due_probes(1000) == [1]
    all_sessions.probed(1, ProbeFinding.REFUSED, 1001)
    assert not all_sessions.expired(1400)
    assert all_sessions.due_probes(1041) == [1]
    all_sessions.probed(1, ProbeFinding.ALIVE, 1042)
    assert not all_sessions.expired(8999)


def test_new_controller_grants_full_sessions_and_probes_at_once() -> None:
    """Its election alone fences nobody: neither silence nor a slow answer to its first probe does."""
    all_sessions = sessions(probe=True)
    assert all_sessions.due_probes(0) == [1]
    all_sessions.probed(1, ProbeFinding.SILENT, 500)
    assert not all_sessions.expired(8999)
    assert all_sessions.expired(9000) == [1]


def test_new_controller_fences_who_died_with_the_old_one() -> None:
    """kill -9 of a combined node: the new controller's probes are refused, without any stream that could break."""
    assert probe_until_fenced(sessions(probe=True), ProbeFinding.REFUSED, 0) <= 200


def test_fenced_brokers_are_neither_probed_nor_expired() -> None:
    """They have nothing to lose."""
    all_sessions = sessions()
    all_sessions.mark_fenced(1)
    all_sessions.stream_opened(1)
    all_sessions.stream_broke(1, 10)
    assert all_sessions.next_event_ms() == NEVER
    assert not all_sessions.expired(1e9)
    assert not all_sessions.due_probes(1e9)


def test_one_of_two_streams_breaking_is_no_suspicion() -> None:
    """A broker that has reconnected already is not suspected for its old stream's end."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    all_sessions.stream_opened(1)
    all_sessions.stream_broke(1, 10)
    assert not all_sessions.due_probes(10)


def test_silence_that_the_controller_slept_through_is_forgiven() -> None:
    """A stopped machine, a closed lid: on waking it must not fence everybody."""
    all_sessions = sessions()
    all_sessions.forgive(60_000)
    assert not all_sessions.expired(68_999)
    assert all_sessions.expired(69_000) == [1]
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    all_sessions.stream_broke(1, 10)
    all_sessions.forgive(60_000)
    assert probe_until_fenced(all_sessions, ProbeFinding.SILENT, 60_000) >= 60_500
