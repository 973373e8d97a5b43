"""Mutants of rule A19: who is not authenticated gets nothing, and learns nothing."""

from __future__ import annotations

from lab.mutants.mutant import Mutant, one_change

_SCRAM = "tests/proto/test_scram.py"
_MACHINE = "tests/controller/machine/test_scram.py"
_LISTENER = "tests/cluster/broker/test_kafka_sasl.py"
_AGAIN = "tests/cluster/broker/test_kafka_reauthentication.py"
_NODE = "tests/cluster/node/test_sasl.py"

TABLE: tuple[Mutant, ...] = (
    one_change(
        "served-before-the-authentication",
        "A19: nothing is served before the authentication",
        "cluster.broker.sasl:SaslGate.check",
        "if key not in _BEFORE:",
        "if False:",
        f"{_LISTENER}::test_nothing_else_is_served_before",
    ),
    one_change(
        "any-proof-is-a-proof",
        "A19: who does not know the password proves nothing",
        "proto.scram:ScramServer.final",
        "if not hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key):",
        "if False:",
        f"{_SCRAM}::test_a_wrong_password_proves_nothing",
        f"{_LISTENER}::test_a_wrong_password_and_an_unknown_user_look_the_same",
    ),
    one_change(
        "nonce-of-another-exchange",
        "A19: a proof belongs to one exchange",
        "proto.scram:ScramServer.final",
        "if parts[1][2:] not in (self._nonce, self._client_nonce + self._nonce):",
        "if False:",
        f"{_SCRAM}::test_a_final_message_that_is_none_is_refused",
    ),
    one_change(
        "header-changes-on-the-way",
        "A19: a proof belongs to one exchange, its header among it",
        "proto.scram:ScramServer.final",
        "if _unbase64(parts[0][2:]) != self._gs2.encode():",
        "if False:",
        f"{_SCRAM}::test_a_final_message_that_is_none_is_refused",
    ),
    one_change(
        "any-server-is-trusted",
        "A19: a client talks to a server that knows its user",
        "proto.scram:ScramClient.verify",
        'if not hmac.compare_digest(_unbase64(text[2:].split(",")[0]), self._signature):',
        "if False:",
        f"{_SCRAM}::test_a_server_that_does_not_know_the_credential_is_found_out",
    ),
    one_change(
        "salt-of-nobody-changes",
        "A19: who does not exist looks like who does",
        "cluster.broker.scram_users:ScramUsers.credential",
        "self._nobody(image.secret or self._cluster_id, mechanism, name)",
        "self._nobody(repr(image).encode(), mechanism, name)",
        f"{_LISTENER}::test_the_salt_of_nobody_is_stable_and_like_the_others",
    ),
    one_change(
        "nobody-has-another-salt",
        "A19: who does not exist looks like who does, by the size of the salt",
        "cluster.broker.scram_users:ScramUsers._nobody",
        "self._shapes.get(mechanism, (SALT_BYTES, ITERATIONS_MIN))",
        "(SALT_BYTES, ITERATIONS_MIN)",
        f"{_LISTENER}::test_the_salt_of_nobody_is_stable_and_like_the_others",
    ),
    one_change(
        "second-secret",
        "A19: who does not exist looks like who does, always the same",
        "controller.metadata.scram:ScramDelta.set_secret",
        "if self._secret or len(record.secret) != SECRET_BYTES:",
        "if len(record.secret) != SECRET_BYTES:",
        f"{_MACHINE}::test_there_is_one_secret",
    ),
    one_change(
        "failure-is-answered-at-once",
        "A19: guessing is slow",
        "cluster.broker.sasl:SaslGate._answer",
        "await asyncio.sleep(door.settings.failure_delay_ms / 1000)",
        "await asyncio.sleep(0)",
        f"{_LISTENER}::test_a_wrong_password_and_an_unknown_user_look_the_same",
    ),
    one_change(
        "another-attempt-on-the-connection",
        "A19: a failed attempt ends the connection",
        "cluster.broker.sasl:SaslGate._answer",
        "connection.shut()",
        "pass",
        f"{_LISTENER}::test_messages_out_of_order",
    ),
    one_change(
        "large-frames-of-anybody",
        "A19: what is not authenticated sends little",
        "cluster.broker.connection:KafkaConnection._check_length",
        "if gate is not None and not gate.is_open:",
        "if gate is not None and gate.session.is_raw:",
        f"{_LISTENER}::test_a_large_frame_is_not_waited_for",
    ),
    one_change(
        "all-the-time-in-the-world",
        "A19: what is not authenticated stays for seconds",
        "cluster.broker.sasl:SaslDoor.opened",
        "self._schedule()",
        "pass",
        f"{_LISTENER}::test_who_does_not_authenticate_is_closed",
    ),
    one_change(
        "unauthenticated-without-number",
        "A19: what is not authenticated is bounded in number",
        "cluster.broker.sasl:SaslDoor.opened",
        "if len(self._waiting) > UNAUTHENTICATED_MAX:",
        "if False:",
        f"{_LISTENER}::test_who_does_not_authenticate_is_closed",
    ),
    one_change(
        "session-without-end",
        "A19: a session ends",
        "cluster.security.sasl:SaslSession.is_over",
        "return 0.0 < self._ends_ms <= now_ms",
        "return False",
        f"{_AGAIN}::test_a_session_that_is_over_serves_nothing",
    ),
    one_change(
        "another-user-in-the-session",
        "A19: a session stays one user's",
        "cluster.security.sasl:SaslSession.authenticate",
        "if self.user not in (None, user):",
        "if False:",
        f"{_AGAIN}::test_who_is_another_is_thrown_out",
    ),
    one_change(
        "plain-in-the-clear",
        "A19: no password is asked for where everybody can read it",
        "cluster.node.config_sasl:check_sasl",
        "if protocol == SASL_PLAINTEXT and not plain_without_tls:",
        "if False:",
        "tests/cluster/node/test_sasl_config.py::test_what_cannot_be_is_refused",
    ),
    one_change(
        "denied-clients-try-on",
        "A19: a client that is not let in says so",
        "client.metadata:Metadata.update",
        "if isinstance(self.last_error, AuthenticationFailed):",
        "if False:",
        f"{_NODE}::test_who_does_not_get_in_is_told_why_at_once",
    ),
    one_change(
        "next-session-overtakes",
        "A19: a session that is renewed reorders nothing",
        "client.network:Network._renew",
        "if not connection.in_flight:",
        "if True:",
        f"{_NODE}::test_a_session_is_renewed_behind_what_is_under_way",
    ),
    one_change(
        "sessions-are-not-renewed",
        "A19: a client renews its session in time",
        "client.network:Network._open_new",
        "if connection.session_ms:",
        "if False:",
        f"{_NODE}::test_a_session_is_renewed_behind_what_is_under_way",
    ),
)
