"""Re-authentication (KIP-368): a session ends, and goes on for who proves again that it is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_node import KafkaNode
from kafka_wire import KafkaClient, connect
from structlog.testing import capture_logs
from test_kafka_sasl import FAILED, ILLEGAL, SHA_512, handshake, log_in, principal, run, set_user

from strandline.controller.machine.scram import alter_scram_credentials
from strandline.controller.scram_api import AlterScramRequest, ScramDeletion
from strandline.proto.scram import ScramMechanism

FOR_LONG = 60_000


def end(node: KafkaNode) -> None:
    """Its time is over."""
    (connection,) = node.listener.connections
    gate = connection.peer.sasl
    assert gate is not None
    assert not gate.session.is_over(node.broker.clock.monotonic_ms())
    gate.session._ends_ms = 1.0


def test_a_session_that_is_over_serves_nothing(tmp_path: Path) -> None:
    """Nor after a request for the versions, which anybody may ask for; what was promised is said in the answer."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        last = await log_in(client)
        assert last.session_lifetime.total_seconds() == FOR_LONG / 1000
        end(node)
        assert (await client.ask("api_versions", 0)).error_code == 0
        client.send("metadata", 9, topics=None)
        assert await client.closed()
        assert node.listener.sasl is not None
        assert node.listener.sasl.counts.expired_connections_killed == 1

    with capture_logs() as logs:
        run(tmp_path, body, session_ms_max=FOR_LONG)
    [line] = [line for line in logs if line["log_level"] == "warning"]
    assert "connections.max.reauth.ms" in line["reason"]


def test_who_authenticates_anew_goes_on(tmp_path: Path) -> None:
    """Also after the session's end."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        await log_in(client)
        end(node)
        assert (await log_in(client)).error_code == 0
        assert (await client.ask("metadata", 9, topics=None)).brokers
        assert await principal(node) == "User:alice"
        assert node.listener.sasl is not None
        counts = node.listener.sasl.counts
        assert (counts.successful_authentication, counts.successful_reauthentication) == (1, 1)

    run(tmp_path, body, session_ms_max=FOR_LONG)


def test_requests_between_are_served_while_the_session_lasts(tmp_path: Path) -> None:
    async def body(node: KafkaNode, client: KafkaClient) -> None:
        await log_in(client)
        assert await handshake(client) == 0
        assert (await client.ask("metadata", 9, topics=None)).brokers

    run(tmp_path, body, session_ms_max=FOR_LONG)


@pytest.mark.parametrize("other", ["user", "mechanism", "password"])
def test_who_is_another_is_thrown_out(tmp_path: Path, other: str) -> None:
    async def body(node: KafkaNode, client: KafkaClient) -> None:
        set_user(node, "bob")
        await log_in(client)
        if other == "mechanism":
            assert await handshake(client, SHA_512.title) is ILLEGAL
        elif other == "user":
            assert (await log_in(client, "bob")).error_code == FAILED
        else:
            assert (await log_in(client, password="wrong")).error_code == FAILED
        assert await client.closed()
        assert node.listener.sasl is not None
        counts = node.listener.sasl.counts
        assert (counts.failed_authentication, counts.failed_reauthentication) == (0, 1)

    run(tmp_path, body, session_ms_max=FOR_LONG)


def test_a_deleted_user_loses_access_at_the_sessions_end(tmp_path: Path) -> None:
    async def body(node: KafkaNode, client: KafkaClient) -> None:
        await log_in(client)
        deletions = tuple(ScramDeletion("alice", int(mechanism)) for mechanism in ScramMechanism)
        node.controller.run(alter_scram_credentials(node.controller.state, AlterScramRequest(deletions, ())))
        assert (await client.ask("metadata", 9, topics=None)).brokers
        end(node)
        assert (await log_in(client)).error_code == FAILED
        assert await client.closed()
        async with connect(node.listener.endpoint) as new:
            assert (await log_in(new)).error_code == FAILED

    run(tmp_path, body, session_ms_max=FOR_LONG)
