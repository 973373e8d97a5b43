"""Mutants of rule A27: what clients make a node keep is bounded."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, dropped, one_change, part, removed, value

_WRITERS = "tests/cluster/broker/test_kafka_slow_writers.py"
_MEMORY = "tests/cluster/broker/test_service_memory.py"
_SESSIONS = "tests/cluster/broker/test_kafka_fetch_sessions.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "sessions-of-what-may-not-be-read",
        "A27: no fetch session begins with partitions that the client may not read, or that are not there",
        part("any(map(_is_nothing_to_it, results))", "False"),
        f"{_SESSIONS}::test_105_no_session_begins_with_what_the_client_may_not_read",
    ),
    one_change(
        "one-principal-is-kept-everything",
        "A27: of what is kept, one principal has a part",
        dropped("held > self.of_principal_bytes"),
        f"{_SESSIONS}::test_all_principals_together_have_a_bound",
    ),
    one_change(
        "sessions-grow-without-bound",
        "A27: a session that grows beyond what may be kept ends",
        part("PARTITION_BYTES * len(new)", "0"),
        f"{_SESSIONS}::test_what_sessions_keep_is_bounded_for_each_principal",
    ),
    one_change(
        "ended-sessions-keep-their-room",
        "A27: what ends gives its room back",
        removed(),
        f"{_SESSIONS}::test_what_sessions_keep_is_bounded_for_each_principal",
    ),
    one_change(
        "sessions-without-a-connection",
        "A27: a session whose connection goes while it is made keeps nothing",
        value("True"),
        f"{_SESSIONS}::test_a_session_that_ends_while_it_is_made_keeps_nothing",
    ),
    one_change(
        "any-number-of-fetches-wait",
        "A27: a fetch that there is no room for is answered at once",
        dropped("not self._may_wait()"),
        f"{_SESSIONS}::test_fetches_that_wait_are_kept_within_bounds",
    ),
    one_change(
        "one-payer-has-all-the-room",
        "A27: of the room for requests, one payer has half",
        dropped("own + size <= self._payer_limit * fraction"),
        f"{_MEMORY}::test_one_payer_has_half_of_the_room",
    ),
    one_change(
        "who-has-the-turn-takes-others-room",
        "A27: what grows by turn does not count against others",
        part("self._used[Account.RECEIVE] - self._turn_bytes", "self._used[Account.RECEIVE]"),
        f"{_WRITERS}::test_who_drips_keeps_others_of_its_own_waiting_alone",
    ),
    one_change(
        "requests-may-drip",
        "A27: while others wait for room, who holds some and drips is closed",
        part("seen.slow_since_ms is not None", "False"),
        f"{_WRITERS}::test_the_slowest_is_closed_when_others_wait",
    ),
)
