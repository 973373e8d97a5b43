"""SASL at the listener, message by message: who gets in, and that nobody else gets a word or a byte too many."""

from __future__ import annotations

import asyncio
import struct
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka_node import KafkaNode, kafka_node, until
from kafka_wire import KafkaClient, connect
from structlog.testing import capture_logs

from strandline.cluster.broker import audit
from strandline.cluster.broker import sasl as gate
from strandline.cluster.security.sasl import SaslSettings
from strandline.controller.machine.scram import alter_scram_credentials
from strandline.controller.scram_api import AlterScramRequest, ScramDeletion, ScramUpsertion
from strandline.proto.error_codes import ErrorCode
from strandline.proto.scram import SaltedPasswords, ScramClient, ScramMechanism, credential_of, salted_password

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
PASSWORD = "open-sesame"
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
ILLEGAL = ErrorCode.ILLEGAL_SASL_STATE

Body = Callable[[KafkaNode, KafkaClient], Awaitable[None]]


def set_user(node: KafkaNode, name: str = "alice", password: str = PASSWORD, salt: bytes = b"SALTY" * 4) -> None:
    changes = []
    for mechanism in ScramMechanism:
        made = credential_of(mechanism, salted_password(mechanism, password, salt, 4096), salt, 4096)
        changes.append(ScramUpsertion(name, int(mechanism), salt, 4096, made.stored_key, made.server_key))
    node.controller.run(alter_scram_credentials(node.controller.state, AlterScramRequest((), tuple(changes))))


def run(path: Path, body: Body, *, mechanisms: Sequence[str] = ("SCRAM-SHA-256", "SCRAM-SHA-512"), **more: Any) -> None:
    settings = SaslSettings(mechanisms, **{"failure_delay_ms": 20, **more})

    async def main() -> None:
        async with kafka_node(path, sasl=settings, plain={"bob": PASSWORD}) as node:
            set_user(node)
            async with connect(node.listener.endpoint) as client:
                await body(node, client)

    asyncio.run(main())


async def handshake(client: KafkaClient, mechanism: str = "SCRAM-SHA-256", version: int = 1) -> ErrorCode:
    answer = await client.ask("sasl_handshake", version, mechanism=mechanism)
    return ErrorCode(answer.error_code)


async def token(client: KafkaClient, data: bytes, version: int = 2) -> Any:
    return await client.ask("sasl_authenticate", version, auth_bytes=data)


async def log_in(
    client: KafkaClient,
    user: str = "alice",
    password: str = PASSWORD,
    mechanism: ScramMechanism = SHA_256,
    version: int = 2,
) -> Any:
    """The whole exchange; the last answer."""
    assert await handshake(client, mechanism.title) is ErrorCode.NONE
    scram = ScramClient(mechanism, user, SaltedPasswords(password), "client-nonce")
    first = await token(client, scram.first(), version)
    assert first.error_code == 0
    last = await token(client, scram.final(first.auth_bytes), version)
    if last.error_code == 0:
        scram.verify(last.auth_bytes)
    return last


async def principal(node: KafkaNode) -> str:
    (connection,) = node.listener.connections
    return connection.peer.principal


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
@pytest.mark.parametrize("version", [0, 1, 2])
def test_who_knows_the_password_is_that_user(tmp_path: Path, mechanism: ScramMechanism, version: int) -> None:
    async def body(node: KafkaNode, client: KafkaClient) -> None:
        assert (
            await client.ask("api_versions", 3, client_software_name="x", client_software_version="1")
        ).error_code == 0
        assert (await log_in(client, mechanism=mechanism, version=version)).error_code == 0
        assert await principal(node) == "User:alice"
        assert (await client.ask("metadata", 9, topics=None)).brokers
        assert node.listener.sasl is not None
        assert node.listener.sasl.waiting == 0
        assert node.listener.sasl.counts.successful_authentication == 1

    with capture_logs() as logs:
        run(tmp_path, body)
    [line] = [line for line in logs if line["event"] == "a client authenticated"]
    assert (line["mechanism"], line["principal"]) == (mechanism.title, "User:alice")


def test_plain(tmp_path: Path) -> None:
    async def body(node: KafkaNode, client: KafkaClient) -> None:
        assert await handshake(client, "PLAIN") is ErrorCode.NONE
        assert (await token(client, f"bob\0bob\0{PASSWORD}".encode())).error_code == 0
        assert await principal(node) == "User:bob"

    run(tmp_path, body, mechanisms=["PLAIN"])


def test_tokens_without_a_header(tmp_path: Path) -> None:
    """Clients from before KIP-152: SaslHandshake 0, and then the bare messages; a wrong one ends the connection."""

    async def raw(client: KafkaClient, data: bytes) -> bytes:
        client.writer.write(struct.pack(">i", len(data)) + data)
        return await client.receive_frame()

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        assert await handshake(client, "SCRAM-SHA-256", 0) is ErrorCode.NONE
        scram = ScramClient(SHA_256, "alice", SaltedPasswords(PASSWORD), "abc")
        scram.verify(await raw(client, scram.final(await raw(client, scram.first()))))
        assert (await client.ask("metadata", 9, topics=None)).brokers
        async with connect(node.listener.endpoint) as other:
            assert await handshake(other, "PLAIN", 0) is ErrorCode.NONE
            other.writer.write(struct.pack(">i", 5) + b"\0bo\0x" + struct.pack(">i", 5) + b"\0bo\0y")
            assert await other.closed()
        assert node.listener.sasl is not None
        assert node.listener.sasl.counts.failed_authentication == 1

    run(tmp_path, body, mechanisms=["SCRAM-SHA-256", "PLAIN"])


def test_logins_are_audited_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules A19 and A28: those that fail, and those of a client that authenticates anew without end. Others keep their
    lines, and what has none is counted."""
    monkeypatch.setattr(audit, "FAILED_LOGINS_MAX", (2, 100))
    monkeypatch.setattr(audit, "LOGINS_MAX", (3, 100))
    lines: list[tuple[str, Any]] = []

    class Sink:
        def write(self, event: str, figures: Mapping[str, Any]) -> None:
            lines.append((event, figures))

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        assert node.listener.sasl is not None
        audited = audit.Audit(Sink())
        node.listener.sasl.audit = audited.login
        assert (await log_in(client)).error_code == 0
        for _ in range(4):
            async with connect(node.listener.endpoint) as other:
                assert (await log_in(other, password=PASSWORD + "!")).error_code == FAILED
        for _ in range(6):
            assert (await log_in(client)).error_code == 0
        audited.close()

    with capture_logs() as logs:
        run(tmp_path, body)
    told = [line for event, line in lines if event == "left_out"]
    assert [(line["what"], line["lines"]) for line in told] == [("logins", 4), ("logins that failed", 2)]
    assert [(event, line["what"], line["result"], line["principal"]) for event, line in lines[:-2]] == [
        ("login", "SCRAM-SHA-256 of 'alice'", "NONE", "User:alice"),
        ("login", "SCRAM-SHA-256 of 'alice'", "SASL_AUTHENTICATION_FAILED", "User:ANONYMOUS"),
        ("login", "SCRAM-SHA-256 of 'alice'", "SASL_AUTHENTICATION_FAILED", "User:ANONYMOUS"),
        ("login", "SCRAM-SHA-256 of 'alice'", "NONE", "User:alice"),
        ("login", "SCRAM-SHA-256 of 'alice'", "NONE", "User:alice"),
    ]
    assert PASSWORD not in repr(lines) + repr(logs)


@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_password_and_an_unknown_user_look_the_same(tmp_path: Path, user: str) -> None:
    """The same error and words, as late; nothing before, nothing behind; and the salt of nobody stays."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        began = asyncio.get_running_loop().time()
        last = await log_in(client, user, "wrong")
        assert asyncio.get_running_loop().time() - began >= 0.02
        assert last.error_code == FAILED
        assert (
            last.error_message == "Authentication failed due to invalid credentials with SASL mechanism SCRAM-SHA-256"
        )
        assert last.auth_bytes == b""
        assert await client.closed()
        assert node.listener.sasl is not None
        assert node.listener.sasl.counts.failed_authentication == 1

    with capture_logs() as logs:
        run(tmp_path, body)
    [line] = [line for line in logs if line["log_level"] == "warning"]
    assert line["event"] == "a client failed to authenticate"
    assert line["user"] == user
    assert ("no SCRAM-SHA-256 credential" in line["reason"]) == (user == "nobody")


def test_the_salt_of_nobody_is_stable_and_like_the_others(tmp_path: Path) -> None:
    """Also while users are made, and at each node (the secret is the cluster's); another name has another salt."""

    async def salt_of(node: KafkaNode, name: str, mechanism: ScramMechanism = SHA_256) -> tuple[bytes, bytes]:
        async with connect(node.listener.endpoint) as client:
            assert await handshake(client, mechanism.title) is ErrorCode.NONE
            first = (await token(client, ScramClient(mechanism, name, SaltedPasswords("x"), "abc").first())).auth_bytes
            _, salt, iterations = first.split(b",")
            return salt, iterations

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        salt, iterations = await salt_of(node, "nobody")
        assert len(salt) == len((await salt_of(node, "alice"))[0])
        assert iterations == b"i=4096"
        for number in range(5):
            set_user(node, f"user-{number}", salt=bytes([number]) * 20)
        assert await salt_of(node, "nobody") == (salt, iterations)
        assert len({salt, *[(await salt_of(node, f"no-{number}"))[0] for number in range(5)]}) == 6
        assert await salt_of(node, "nobody", SHA_512) != (salt, iterations)
        for number in range(20):
            set_user(node, f"java-{number}", salt=b"1an0u4bcj8q2zjjx5l5q94rbf2")
        like_java = (await salt_of(node, "nobody"))[0]
        assert like_java != salt
        assert await salt_of(node, "nobody") == (like_java, b"i=4096")

    run(tmp_path, body)


def test_a_mechanism_that_is_not_enabled(tmp_path: Path) -> None:
    async def body(node: KafkaNode, client: KafkaClient) -> None:
        answer = await client.ask("sasl_handshake", 1, mechanism="PLAIN")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
        assert await client.closed()

    run(tmp_path, body)


def test_messages_out_of_order(tmp_path: Path) -> None:
    async def body(node: KafkaNode, client: KafkaClient) -> None:
        assert (await token(client, b"n,,n=alice,r=abc")).error_code == ILLEGAL
        assert await client.closed()
        async with connect(node.listener.endpoint) as twice:
            assert await handshake(twice) is ErrorCode.NONE
            assert await handshake(twice) is ILLEGAL
            assert await twice.closed()
        async with connect(node.listener.endpoint) as final_first:
            assert await handshake(final_first) is ErrorCode.NONE
            final = b"c=biws,r=abc,p=" + b64encode(bytes(32))
            assert (await token(final_first, final)).error_code == FAILED
            assert await final_first.closed()
        async with connect(node.listener.endpoint) as again:
            assert (await log_in(again)).error_code == 0
            assert (await token(again, b"n,,n=alice,r=abc")).error_code == ILLEGAL
            assert await again.closed()

    run(tmp_path, body)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\xff" * 40, b"n,,n=alice", b"p=tls-unique,,n=alice,r=abc", b"n,a=root,n=alice,r=abc", b"n" * 9000],
)
def test_nonsense_is_a_failure_like_any_other(tmp_path: Path, data: bytes) -> None:
    async def body(node: KafkaNode, client: KafkaClient) -> None:
        assert await handshake(client) is ErrorCode.NONE
        answer = await token(client, data)
        assert (answer.error_code, answer.auth_bytes) == (FAILED, b"")
        assert await client.closed()

    run(tmp_path, body)


@pytest.mark.parametrize("change", [b"no base64", b"another nonce", b"another header"])
def test_a_changed_final_message(tmp_path: Path, change: bytes) -> None:
    async def body(node: KafkaNode, client: KafkaClient) -> None:
        assert await handshake(client) is ErrorCode.NONE
        scram = ScramClient(SHA_256, "alice", SaltedPasswords(PASSWORD), "client-nonce")
        final = scram.final((await token(client, scram.first())).auth_bytes)
        changed = {
            b"no base64": final + b"!",
            b"another nonce": final.replace(b"client-nonce", b"client-nonsense"),
            b"another header": final.replace(b"c=biws", b"c=eSws"),
        }[change]
        assert (await token(client, changed)).error_code == FAILED
        assert await client.closed()

    run(tmp_path, body)


@pytest.mark.parametrize(
    ("api", "version", "values"),
    [
        ("metadata", 9, {"topics": None}),
        ("create_topics", 5, {"topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}]}),
        ("describe_user_scram_credentials", 0, {"users": None}),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
def test_nothing_else_is_served_before(
    tmp_path: Path, api: str, version: int, values: dict[str, Any], begun: bool
) -> None:
    """Not a byte is answered, and nothing is done; one line says what a client that wants no SASL should do."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        if begun:
            assert await handshake(client) is ErrorCode.NONE
        client.send(api, version, **values)
        assert await client.closed()
        assert not node.controller.image.topics

    with capture_logs() as logs:
        run(tmp_path, body)
    [line] = [line for line in logs if line["log_level"] == "warning"]
    assert "before the authentication: this listener speaks SASL" in line["reason"]


def test_a_large_frame_is_not_waited_for(tmp_path: Path) -> None:
    """A request for Produce's 100 MB is refused by its first bytes; so is a long token, with a header or without."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        client.writer.write(struct.pack(">ihh", 4097, 0, 9))
        assert await client.closed()
        async with connect(node.listener.endpoint) as other:
            assert await handshake(other, version=0) is ErrorCode.NONE
            other.writer.write(struct.pack(">i", 4097))
            assert await other.closed()
        async with connect(node.listener.endpoint) as other:
            assert (await log_in(other)).error_code == 0
            asked = [{"name": f"{number:0>200}"} for number in range(30)]
            assert len((await other.ask("metadata", 9, topics=asked)).topics) == 30

    with capture_logs() as logs:
        run(tmp_path, body, frame_bytes_max=4096)
    [line] = [line for line in logs if line["log_level"] == "warning"]
    assert "from 8 to 4096 (sasl.server.max.receive.size, before the authentication)" in line["reason"]


def test_who_does_not_authenticate_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In time, and the oldest when there are too many; who is authenticated stays."""
    monkeypatch.setattr(gate, "AUTHENTICATION_S", 0.3)
    monkeypatch.setattr(gate, "UNAUTHENTICATED_MAX", 3)

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        assert (await log_in(client)).error_code == 0
        assert node.listener.sasl is not None
        clients = [await asyncio.open_connection(*node.listener.endpoint) for _ in range(4)]
        await until(lambda: node.listener.sasl.waiting == 3 and len(node.listener.connections) == 4)
        assert await clients[0][0].read(1) == b""
        for reader, _ in clients:
            assert await reader.read(1) == b""
        assert (await client.ask("metadata", 9, topics=None)).brokers
        for _, writer in clients:
            writer.close()

    with capture_logs() as logs:
        run(tmp_path, body)
    events = [line["event"] for line in logs]
    assert "dropped a connection that had not authenticated: too many at once" in events
    assert "did not authenticate within 0.3 s" in str(logs)


def test_a_listener_without_sasl_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with kafka_node(tmp_path) as node, connect(node.listener.endpoint) as client:
            assert await handshake(client) is ILLEGAL
            answer = await token(client, b"x")
            assert answer.error_code == ILLEGAL
            assert "speaks no SASL" in answer.error_message
            assert (await client.ask("metadata", 9, topics=None)).brokers

    asyncio.run(main())


def test_credentials_that_change_count_at_the_next_login(tmp_path: Path) -> None:
    """A connection stays who it is; a new one needs the new password; a user that is gone gets in no more."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        assert (await log_in(client)).error_code == 0
        set_user(node, password="new")
        assert (await client.ask("metadata", 9, topics=None)).brokers
        async with connect(node.listener.endpoint) as old:
            assert (await log_in(old)).error_code == FAILED
        async with connect(node.listener.endpoint) as new:
            assert (await log_in(new, password="new")).error_code == 0
        deletions = tuple(ScramDeletion("alice", int(mechanism)) for mechanism in ScramMechanism)
        node.controller.run(alter_scram_credentials(node.controller.state, AlterScramRequest(deletions, ())))
        async with connect(node.listener.endpoint) as gone:
            assert (await log_in(gone, password="new")).error_code == FAILED
        assert (await client.ask("metadata", 9, topics=None)).brokers

    run(tmp_path, body)
