"""Sessions, suspicions and probes: who is fenced, when, and who is not (design, section 5)."""

from __future__ import annotations

from strandline.controller.machine.sessions import NEVER, BrokerSessions, ProbeFinding, SessionTimes

TIMES = SessionTimes(
    session_timeout_ms=9000, silence_timeout_ms=2500, suspicion_ms=500, refused_grace_ms=120, probe_interval_ms=40
)


def sessions(*, probe: bool = False) -> BrokerSessions:
    """One unfenced broker, 1, granted at 0."""
    result = BrokerSessions(TIMES)
    result.grant(1, fenced=False, now_ms=0, probe=probe)
    return result


def connected() -> BrokerSessions:
    """Broker 1 has a stream, and answered the first probe, of 1000, at 1001."""
    result = sessions()
    result.stream_opened(1)
    assert result.next_event_ms() == 1000
    assert result.due_probes(1000) == [1]
    result.probed(1, ProbeFinding.ALIVE, 1001, sent_ms=1000)
    return result


def probe_until_fenced(
    all_sessions: BrokerSessions, finding: ProbeFinding, now_ms: float, *, takes_ms: float = 1
) -> float:
    """Serve timers and probes until broker 1 expires; when that was."""
    for _ in range(10_000):
        if all_sessions.expired(now_ms):
            return now_ms
        if all_sessions.due_probes(now_ms):
            all_sessions.probed(1, finding, now_ms + takes_ms, sent_ms=now_ms)
            now_ms += takes_ms
        else:
            event = all_sessions.next_event_ms()
            assert event != NEVER
            now_ms = max(now_ms, event)
    raise AssertionError("never fenced")


def test_a_broker_that_answers_and_sends_no_heartbeats_is_fenced_after_the_session_timeout() -> None:
    """Its event loop lives; what is wrong with its heartbeats is not known."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    assert probe_until_fenced(all_sessions, ProbeFinding.ALIVE, 0) == 9000
    assert not all_sessions.is_silent(1, 9000)


def test_heartbeats_extend_the_session() -> None:
    """Each heartbeat grants a full session from its own time."""
    all_sessions = sessions()
    all_sessions.touch(1, fenced=False, metadata_offset=5, now_ms=8000)
    assert not all_sessions.expired(16_999)
    assert all_sessions.expired(17_000) == [1]


def test_60_open_and_silent_is_fenced_after_the_silence_timeout() -> None:
    """Row S84: a stopped process keeps its connections; only the probe that it does not answer tells, and soon."""
    all_sessions = connected()
    assert all_sessions.next_event_ms() == 2001
    assert all_sessions.due_probes(2001) == [1]
    assert all_sessions.next_event_ms() == 3501
    assert not all_sessions.expired(3500)
    assert not all_sessions.is_silent(1, 3500)
    assert all_sessions.expired(3501) == [1]
    assert all_sessions.is_silent(1, 3501)


def test_60_a_late_answer_is_an_answer() -> None:
    """A loop under load answers after 1.4 s: it is alive, and the next silence is counted from there."""
    all_sessions = connected()
    assert all_sessions.due_probes(2001) == [1]
    all_sessions.probed(1, ProbeFinding.ALIVE, 3400, sent_ms=2001)
    assert not all_sessions.expired(3501)
    assert all_sessions.next_event_ms() == 4400


def test_60_a_heartbeat_ends_the_silence_and_the_probe_of_before_decides_nothing() -> None:
    """The probe under way is of the silence before: whether it fails is no matter."""
    all_sessions = connected()
    assert all_sessions.due_probes(2001) == [1]
    all_sessions.touch(1, fenced=False, metadata_offset=5, now_ms=2200)
    assert all_sessions.due_probes(3200) == [], "one is under way, and answers for the silence that begins here too"
    all_sessions.probed(1, ProbeFinding.SILENT, 3501, sent_ms=2001)
    assert probe_until_fenced(all_sessions, ProbeFinding.SILENT, 3501, takes_ms=100) == 4700


def test_60_whose_probes_never_arrive_lives_by_its_heartbeats() -> None:
    """A listener that the controller cannot reach (one-way cut, a wrong address): silence says nothing about it."""
    for finding in (ProbeFinding.SILENT, ProbeFinding.REFUSED):
        all_sessions = sessions()
        all_sessions.stream_opened(1)
        assert probe_until_fenced(all_sessions, finding, 0, takes_ms=20) == 9000


def test_60_who_was_fenced_for_a_cut_that_lasts_is_fenced_for_it_once() -> None:
    """Probes arrived before the cut. Heartbeats come through it, farther apart than silence is borne: no seesaw."""
    all_sessions = connected()
    assert probe_until_fenced(all_sessions, ProbeFinding.SILENT, 1001, takes_ms=100) == 3501
    all_sessions.mark_fenced(1)
    all_sessions.touch(1, fenced=False, metadata_offset=5, now_ms=4000)
    assert probe_until_fenced(all_sessions, ProbeFinding.SILENT, 4000, takes_ms=100) == 13_000


def test_60_a_controller_that_stood_still_counts_silence_anew() -> None:
    """It may have been the controller that did not listen."""
    all_sessions = connected()
    assert all_sessions.due_probes(2001) == [1]
    all_sessions.forgive(3600)
    assert not all_sessions.expired(5099)
    assert all_sessions.expired(5100) == [1]


def test_60_a_broker_is_probed_as_soon_as_it_is_unfenced() -> None:
    """Whether probes reach it is to be known before it may fall silent."""
    all_sessions = BrokerSessions(TIMES)
    all_sessions.grant(1, fenced=True, now_ms=0, probe=False)
    all_sessions.stream_opened(1)
    assert not all_sessions.due_probes(100), "it has nothing to lose"
    all_sessions.touch(1, fenced=False, metadata_offset=5, now_ms=200)
    assert all_sessions.due_probes(200) == [1]
    all_sessions.probed(1, ProbeFinding.ALIVE, 201, sent_ms=200)
    assert probe_until_fenced(all_sessions, ProbeFinding.SILENT, 201) == 2701


def test_60_the_silence_timeout_is_never_longer_than_the_session() -> None:
    """Kafka's setting stays the upper bound, and as great as that the new one is without effect."""
    assert SessionTimes(session_timeout_ms=1000).probe_after_ms == 400
    assert SessionTimes(session_timeout_ms=1000).answer_ms == 600
    assert SessionTimes().probe_after_ms + SessionTimes().answer_ms == 2500


def test_60_an_answer_from_before_the_stream_broke_ends_no_suspicion() -> None:
    """kill -9 right after it answered: only a younger probe tells."""
    all_sessions = connected()
    assert all_sessions.due_probes(2001) == [1]
    all_sessions.stream_broke(1, 2002)
    all_sessions.probed(1, ProbeFinding.ALIVE, 2003, sent_ms=2001)
    assert probe_until_fenced(all_sessions, ProbeFinding.REFUSED, 2003) <= 2200


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


def test_71_another_process_at_the_address_and_no_heartbeat_end_the_session() -> None:
    """Power was lost and is back: the stream looks open, and no probe was answered yet. It was fenced after 9 s."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    all_sessions.registration_refused(1, 300)
    assert all_sessions.next_event_ms() == 300
    assert all_sessions.due_probes(300) == [1]
    assert all_sessions.due_heartbeats() == [1], "its stream is as good a way to it as its address"
    assert all_sessions.due_heartbeats() == []
    all_sessions.probed(1, ProbeFinding.OTHER_PROCESS, 301, sent_ms=300)
    assert all_sessions.due_heartbeats() == [1]
    assert all_sessions.is_displaced(1)
    assert not all_sessions.expired(800)
    assert probe_until_fenced(all_sessions, ProbeFinding.OTHER_PROCESS, 301) == 801


def test_71_a_heartbeat_counts_for_more_than_another_process_at_the_address() -> None:
    """Two processes live under one node id, and the address leads to the second: the first keeps its session, for it
    answers over its stream whenever it is asked."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    now_ms = 0
    while now_ms < 30_000:
        now_ms += 50
        all_sessions.registration_refused(1, now_ms)
        if all_sessions.due_probes(now_ms):
            all_sessions.probed(1, ProbeFinding.OTHER_PROCESS, now_ms + 5, sent_ms=now_ms)
        assert not all_sessions.expired(now_ms + 5)
        if all_sessions.due_heartbeats():
            all_sessions.touch(1, fenced=False, metadata_offset=5, now_ms=now_ms + 10)
            assert not all_sessions.is_displaced(1)


def test_71_a_refused_registration_probes_at_once_and_again_after_a_while() -> None:
    """The first probe went to a machine without power: the second one is not kept waiting for its end. A process that
    asks twenty times a second causes four probes."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    sent = []
    for now_ms in range(0, 1000, 50):
        all_sessions.registration_refused(1, now_ms)
        sent += [now_ms for _ in all_sessions.due_probes(now_ms)]
    assert sent == [0, 250, 500, 750]
    all_sessions.probed(1, ProbeFinding.ALIVE, 1000, sent_ms=750)
    assert not all_sessions.expired(1500), "any of them that is answered will do"


def test_71_a_probe_of_the_process_before_decides_nothing() -> None:
    """It ends after the next process has registered, and found that one: `another` than it was sent for."""
    all_sessions = connected()
    assert all_sessions.due_probes(2001) == [1]
    all_sessions.grant(1, fenced=True, now_ms=2100, probe=False)
    all_sessions.touch(1, fenced=False, metadata_offset=5, now_ms=2200)
    all_sessions.stream_broke(1, 2300)
    assert all_sessions.due_probes(2300) == [1]
    all_sessions.probed(1, ProbeFinding.OTHER_PROCESS, 2301, sent_ms=2001)
    assert not all_sessions.expired(2400)
    all_sessions.probed(1, ProbeFinding.ALIVE, 2401, sent_ms=2300)
    assert not all_sessions.expired(4000)


def test_reconnect_ends_the_suspicion() -> None:
    """A connection may break and be rebuilt: nobody is fenced for that."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    all_sessions.stream_broke(1, 1000)
    assert all_sessions.due_probes(1000) == [1]
    all_sessions.stream_opened(1)
    all_sessions.touch(1, fenced=False, metadata_offset=5, now_ms=1200)
    all_sessions.probed(1, ProbeFinding.REFUSED, 1300, sent_ms=1000)
    assert probe_until_fenced(all_sessions, ProbeFinding.ALIVE, 1300) == 10_200


def test_probe_that_is_answered_ends_the_suspicion() -> None:
    """The process lives; it will find its way back, or the session timeout takes it."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    all_sessions.stream_broke(1, 1000)
    assert all_sessions.due_probes(1000) == [1]
    all_sessions.probed(1, ProbeFinding.ALIVE, 1010, sent_ms=1000)
    assert probe_until_fenced(all_sessions, ProbeFinding.ALIVE, 1010) == 9000


def test_single_refusal_fences_nobody() -> None:
    """A listener that is being rebuilt refuses once; the next probe clears it."""
    all_sessions = sessions()
    all_sessions.stream_opened(1)
    all_sessions.stream_broke(1, 1000)
    assert all_sessions.due_probes(1000) == [1]
    all_sessions.probed(1, ProbeFinding.REFUSED, 1001, sent_ms=1000)
    assert not all_sessions.expired(1400)
    assert all_sessions.due_probes(1041) == [1]
    all_sessions.probed(1, ProbeFinding.ALIVE, 1042, sent_ms=1041)
    assert not all_sessions.expired(8999)


def test_new_controller_grants_full_sessions_and_probes_at_once() -> None:
    """Its election alone fences nobody: a slow answer to its first probe does not, nor do heartbeats that take long."""
    all_sessions = sessions(probe=True)
    assert all_sessions.due_probes(0) == [1]
    all_sessions.probed(1, ProbeFinding.ALIVE, 1400, sent_ms=0)
    assert probe_until_fenced(all_sessions, ProbeFinding.ALIVE, 1400) == 9000


def test_60_a_new_controller_fences_who_was_silent_under_the_old_one() -> None:
    """It probes everybody at once: who does not answer has no stream that could break, and no session to live on."""
    assert probe_until_fenced(sessions(probe=True), ProbeFinding.SILENT, 0, takes_ms=100) == 1500


def test_60_who_led_the_quorum_before_is_suspected() -> None:
    """It was given up for being silent, most likely: it has half a second to say that it lives."""
    all_sessions = BrokerSessions(TIMES)
    all_sessions.grant(1, fenced=False, now_ms=0, probe=True, suspected=True)
    assert probe_until_fenced(all_sessions, ProbeFinding.SILENT, 0, takes_ms=600) == 600
    all_sessions.grant(1, fenced=False, now_ms=0, probe=True, suspected=True)
    assert all_sessions.due_probes(0) == [1]
    all_sessions.probed(1, ProbeFinding.ALIVE, 400, sent_ms=0)
    assert not all_sessions.expired(1900)


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
