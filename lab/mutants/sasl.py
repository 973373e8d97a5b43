"""Mutants of rule A19: who is not authenticated gets nothing, and learns nothing."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, always, condition, dropped, instead, never, one_change, part, removed, value

_SCRAM = "tests/proto/test_scram.py"
_MACHINE = "tests/controller/machine/test_scram.py"
_LISTENER = "tests/cluster/broker/test_kafka_sasl.py"
_AGAIN = "tests/cluster/broker/test_kafka_reauthentication.py"
_NODE = "tests/cluster/node/test_sasl.py"
_TOKENS = "tests/cluster/security/test_tokens.py"
_BEARERS = "tests/cluster/node/test_sasl_tokens.py"
_SECURED = "seed:cluster:8"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "served-before-the-authentication",
        "A19: nothing is served before the authentication",
        never(),
        f"{_LISTENER}::test_nothing_else_is_served_before",
        _SECURED,
    ),
    one_change(
        "any-proof-is-a-proof",
        "A19: who does not know the password proves nothing",
        never(),
        f"{_SCRAM}::test_a_wrong_password_proves_nothing",
        f"{_LISTENER}::test_a_wrong_password_and_an_unknown_user_look_the_same",
        _SECURED,
    ),
    one_change(
        "nonce-of-another-exchange",
        "A19: a proof belongs to one exchange",
        never(),
        f"{_SCRAM}::test_a_final_message_that_is_none_is_refused",
    ),
    one_change(
        "header-changes-on-the-way",
        "A19: a proof belongs to one exchange, its header among it",
        never(),
        f"{_SCRAM}::test_a_final_message_that_is_none_is_refused",
    ),
    one_change(
        "any-server-is-trusted",
        "A19: a client talks to a server that knows its user",
        never(),
        f"{_SCRAM}::test_a_server_that_does_not_know_the_credential_is_found_out",
    ),
    one_change(
        "salt-of-nobody-changes",
        "A19: who does not exist looks like who does",
        part("secret", "repr(image).encode()"),
        f"{_LISTENER}::test_the_salt_of_nobody_is_stable_and_like_the_others",
    ),
    one_change(
        "nobody-has-another-salt",
        "A19: who does not exist looks like who does, by the size of the salt",
        part("self._shapes.get(mechanism, (SALT_BYTES, ITERATIONS_MIN))", "(SALT_BYTES, ITERATIONS_MIN)"),
        f"{_LISTENER}::test_the_salt_of_nobody_is_stable_and_like_the_others",
    ),
    one_change(
        "second-secret",
        "A19: who does not exist looks like who does, always the same",
        condition("... and self.of.name != 'scram_secret'"),
        f"{_MACHINE}::test_there_is_one_secret",
    ),
    one_change(
        "failure-is-answered-at-once",
        "A19: guessing is slow",
        part("door.settings.failure_delay_ms / 1000", "0"),
        f"{_LISTENER}::test_a_wrong_password_and_an_unknown_user_look_the_same",
    ),
    one_change(
        "another-attempt-on-the-connection",
        "A19: a failed attempt ends the connection",
        removed(),
        f"{_LISTENER}::test_messages_out_of_order",
    ),
    one_change(
        "large-frames-of-anybody",
        "A19: what is not authenticated sends little",
        part("not gate.is_open", "gate.session.is_raw"),
        f"{_LISTENER}::test_a_large_frame_is_not_waited_for",
    ),
    one_change(
        "all-the-time-in-the-world",
        "A19: what is not authenticated stays for seconds",
        removed(),
        f"{_LISTENER}::test_who_does_not_authenticate_is_closed",
    ),
    one_change(
        "unauthenticated-without-number",
        "A19: what is not authenticated is bounded in number",
        never(),
        f"{_LISTENER}::test_who_does_not_authenticate_is_closed",
    ),
    one_change(
        "snapshot-without-credentials",
        "A19: a snapshot holds the credentials",
        instead("if row.of.name != 'scram_credentials':\n    ..."),
        f"{_MACHINE}::test_a_snapshot_keeps_them",
        _SECURED,
    ),
    one_change(
        "session-without-end",
        "A19: a session ends",
        value("False"),
        f"{_AGAIN}::test_a_session_that_is_over_serves_nothing",
    ),
    one_change(
        "another-user-in-the-session",
        "A19: a session stays one user's",
        never(),
        f"{_AGAIN}::test_who_is_another_is_thrown_out",
    ),
    one_change(
        "plain-in-the-clear",
        "A19: no password is asked for where everybody can read it",
        never(),
        "tests/cluster/node/test_sasl_config.py::test_what_cannot_be_is_refused",
    ),
    one_change(
        "denied-clients-try-on",
        "A19: a client that is not let in says so",
        never(),
        f"{_NODE}::test_who_does_not_get_in_is_told_why_at_once",
    ),
    one_change(
        "next-session-overtakes",
        "A19: a session that is renewed reorders nothing",
        always(),
        f"{_NODE}::test_a_session_is_renewed_behind_what_is_under_way",
    ),
    one_change(
        "sessions-are-not-renewed",
        "A19: a client renews its session in time",
        never(),
        f"{_NODE}::test_a_session_is_renewed_behind_what_is_under_way",
    ),
    one_change(
        "request-without-a-caller-is-not-out",
        "A19: a session ends behind its last answer",
        condition("any((not item.answer.done() for item in ...))"),
        "tests/client/test_connection.py::test_what_nobody_waits_for_is_drained_too",
    ),
    one_change(
        "token-of-another-issuer",
        "A19: a token is of the issuer that is trusted",
        never(),
        f"{_TOKENS}::test_what_a_token_says_keeps_it_out",
    ),
    one_change(
        "token-for-somebody-else",
        "A19: a token is for this cluster",
        never(),
        f"{_TOKENS}::test_what_a_token_says_keeps_it_out",
    ),
    one_change(
        "token-for-ever",
        "A19: a token ends",
        never(),
        f"{_TOKENS}::test_what_a_token_says_keeps_it_out",
    ),
    one_change(
        "tokens-end-by-a-clock-set-ahead",
        "B32: a token ends by the time that is believed",
        part("believed.earliest_ms", "believed.latest_ms"),
        f"{_TOKENS}::test_100_a_clock_set_ahead_refuses_no_token_that_holds",
    ),
    one_change(
        "token-outlived-by-its-session",
        "A19: a session ends with its token",
        part("max(1, bearer.expires_ms - self._now_ms())", "0"),
        f"{_BEARERS}::test_a_token_lets_its_bearer_in",
    ),
    one_change(
        "secrets-as-public-keys",
        "A19: a token is signed by a key that only its issuer has",
        dropped("key.get('kty') != 'oct'"),
        f"{_TOKENS}::test_keys_that_are_none",
    ),
    one_change(
        "failed-logins-fill-the-audit",
        "A19: who is not let in fills no disk",
        value("True"),
        f"{_LISTENER}::test_logins_are_audited_within_bounds",
    ),
    one_change(
        "logins-fill-the-audit",
        "A28: logins have lines at a bounded rate of each principal",
        value("True"),
        f"{_LISTENER}::test_logins_are_audited_within_bounds",
    ),
    one_change(
        "secrets-for-every-account",
        "A19: who is nobody on a node's machine reads no secret of it",
        never(),
        "tests/log/test_real_modes.py::test_what_an_older_build_made_is_closed_and_told_once",
    ),
)
