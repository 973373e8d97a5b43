"""One connection: pieces, pipelining, deadlines, strangers, and the settling of versions."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from strandline.chaos.sim.links import NetworkConfig
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World, WorldConfig
from strandline.client.errors import BrokerUnreachable, ClientTimeout, Disconnected
from strandline.client.network import SUPPORTED, Connection, VersionRange, connect
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import Endpoint
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api

PEER = Endpoint("server", 9092)
Answer = Callable[[int, int, int, bytes], bytes | None]
"""(key, version, correlation id, body) -> the response's bytes after the length, or None for none."""


def versions_body(version: int, error: int = 0) -> bytes:
    keys = [{"api_key": api, "min_version": low, "max_version": high} for api, (low, high) in SUPPORTED.items()]
    values = {"error_code": error, "api_keys": keys, "throttle_time": 0}
    return bytes(schema.response(Api.API_VERSIONS, version).encode(values))


def polite(key: int, version: int, correlation_id: int, body: bytes) -> bytes | None:
    """Answers ApiVersions; everything else with its own body, after a flexible header where there is one."""
    head = struct.pack(">i", correlation_id)
    if key == Api.API_VERSIONS:
        return head + versions_body(version)
    return head + body


def meet(
    answer: Answer, visit: Callable[[Connection], Awaitable[Any]], *, raw: bytes | None = None, seed: int = 1
) -> Any:
    """Run `visit` on a connection to a peer that answers so (or that says `raw` at once, whatever it is asked)."""
    world = World(seed, WorldConfig(network=NetworkConfig(fragment_probability=0.7)))
    world.add_machine("server")
    world.add_machine("client")
    results: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if raw is not None:
                writer.write(raw)
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                key, version, correlation_id, name_size = struct.unpack_from(">hhih", frame)
                told = answer(key, version, correlation_id, frame[10 + name_size :])
                if told is not None and raw is None:
                    writer.write(struct.pack(">i", len(told)) + told)
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async def server(_: Ports) -> None:
        await asyncio.start_server(serve, PEER.host, PEER.port)
        await asyncio.get_running_loop().create_future()

    async def client(_: Ports) -> None:
        connection = await connect(PEER, "me", setup_timeout_ms=2_000, request_timeout_ms=2_000)
        results.append(await visit(connection))
        connection.close()

    async def main() -> None:
        world.spawn("server", server)
        await asyncio.sleep(0.01)
        process = world.spawn("client", client)
        assert process.main is not None
        await process.main

    world.run(main())
    return results[0]


@pytest.mark.parametrize("seed", range(5))
def test_pipelined_answers_find_their_requests_in_any_pieces(seed: int) -> None:
    """Small ones share a buffer, long ones get one of their own."""
    bodies = [
        bytes([number % 251]) * size for number, size in enumerate((1, 70_000, 3, 40, 65_530, 65_536, 9, 300_000))
    ]

    async def visit(connection: Connection) -> list[bytes]:
        futures = [connection.send(Api.LIST_OFFSETS, 1, [body], 5_000) for body in bodies]
        assert connection.in_flight == len(bodies)
        return [bytes(await future) for future in futures]

    assert meet(polite, visit, seed=seed) == bodies


def test_an_older_broker_is_asked_again_in_its_version() -> None:
    """KIP-511: UNSUPPORTED_VERSION comes in version 0, with the versions that it knows."""
    asked: list[int] = []

    def old(key: int, version: int, correlation_id: int, body: bytes) -> bytes:
        asked.append(version)
        if version > 2:
            keys = struct.pack(">ihhh", 1, Api.API_VERSIONS, 0, 2)
            return struct.pack(">ih", correlation_id, 35) + keys
        return struct.pack(">i", correlation_id) + versions_body(version)

    async def visit(connection: Connection) -> VersionRange:
        return connection.versions[Api.FETCH]

    assert meet(old, visit) == SUPPORTED[Api.FETCH]
    assert asked == [SUPPORTED[Api.API_VERSIONS].high, 2]


def test_a_broker_without_a_common_version_is_told_so() -> None:
    async def visit(connection: Connection) -> None:
        connection.versions[Api.FETCH] = VersionRange(0, 3)
        with pytest.raises(KafkaError, match="speaks FETCH 0 to 3, this client 4 to"):
            connection.version(Api.FETCH)
        del connection.versions[Api.DESCRIBE_QUORUM]
        with pytest.raises(KafkaError, match="does not offer DESCRIBE_QUORUM at all"):
            connection.version(Api.DESCRIBE_QUORUM)

    meet(polite, visit)


def test_no_answer_in_time_ends_the_connection() -> None:
    """Answers come in order: behind one that does not come, none can."""

    def silent(key: int, version: int, correlation_id: int, body: bytes) -> bytes | None:
        return polite(key, version, correlation_id, body) if key == Api.API_VERSIONS else None

    async def visit(connection: Connection) -> None:
        start = asyncio.get_running_loop().time()
        first = connection.send(Api.LIST_OFFSETS, 1, [b"a"], 700)
        second = connection.send(Api.LIST_OFFSETS, 1, [b"b"], 5_000)
        with pytest.raises(ClientTimeout, match="did not answer LIST_OFFSETS within 700 ms"):
            await first
        assert asyncio.get_running_loop().time() - start == pytest.approx(0.7, abs=0.05)
        with pytest.raises(ClientTimeout):
            await second
        assert connection.closed
        with pytest.raises(Disconnected, match="is closed"):
            await connection.send(Api.LIST_OFFSETS, 1, [b"c"], 5_000)

    meet(silent, visit)


@pytest.mark.parametrize("answered", [True, False])
def test_what_nobody_waits_for_is_drained_too(answered: bool) -> None:
    """A request whose caller was cancelled is out until its answer is there, or the time is over. Waiting for that
    takes no turns of the loop: it did once, and the simulator stops what goes on in one instant."""

    def maybe(key: int, version: int, correlation_id: int, body: bytes) -> bytes | None:
        return polite(key, version, correlation_id, body) if answered or key == Api.API_VERSIONS else None

    async def visit(connection: Connection) -> tuple[float, int]:
        start = asyncio.get_running_loop().time()
        connection.send(Api.LIST_OFFSETS, 1, [b"a"], 5_000).cancel()
        await connection.drain(700)
        return asyncio.get_running_loop().time() - start, connection.in_flight

    waited_s, in_flight = meet(maybe, visit)
    assert in_flight == (0 if answered else 1)
    assert 0 < waited_s < 0.1 if answered else waited_s >= 0.7


def test_an_answer_to_another_request_ends_the_connection() -> None:
    def confused(key: int, version: int, correlation_id: int, body: bytes) -> bytes | None:
        return polite(key, version, correlation_id + (0 if key == Api.API_VERSIONS else 7), body)

    async def visit(connection: Connection) -> None:
        with pytest.raises(ProtocolError, match="which is not the next one"):
            await connection.send(Api.LIST_OFFSETS, 1, [b"a"], 700)

    meet(confused, visit)


def test_a_client_that_is_throttled_waits_and_loses_nothing() -> None:
    """KIP-219: an answer says to wait 5 s. Nothing is sent for so long; what was sent already gets the time for it."""
    came: list[float] = []

    def throttling(key: int, version: int, correlation_id: int, body: bytes) -> bytes | None:
        if key != Api.FIND_COORDINATOR:
            return polite(key, version, correlation_id, body)
        came.append(asyncio.get_running_loop().time())
        values = {"throttle_time": 5_000 if len(came) == 1 else 0, "error_code": 0, "coordinators": ()}
        written = schema.response(Api.FIND_COORDINATOR, version).encode(values)
        return struct.pack(">i", correlation_id) + b"\0" + bytes(written)

    async def visit(connection: Connection) -> None:
        values = {"coordinator_keys": ("g",), "key_type": 0}
        await connection.call(Api.FIND_COORDINATOR, values, 1_000)
        assert 4_000 < connection.throttled_ms <= 5_000
        under_way = connection.send(Api.LIST_OFFSETS, 1, [b"a"], 1_000)
        connection.throttle(5_000)
        assert connection._pending[0].deadline >= asyncio.get_running_loop().time() + 5
        await connection.call(Api.FIND_COORDINATOR, values, 1_000)
        await under_way

    meet(throttling, visit)
    assert came[-1] - came[0] >= 5


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS; this client connects in plaintext"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP, not Kafka's protocol"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak Kafka's protocol"),
        (b"\xff\xff\xff\xff----", "announced a response of -1 bytes"),
    ],
)
def test_strangers_are_recognised(raw: bytes, says: str) -> None:
    """A TLS or HTTP port is named as such; no length of theirs is believed."""

    async def visit(connection: Connection) -> None:
        raise AssertionError("no connection can be made to a stranger")

    with pytest.raises(ProtocolError, match=says):
        meet(polite, visit, raw=raw)


def test_an_unreachable_advertised_address_is_named() -> None:
    """Row S34: which address, why, and where it came from."""

    async def main() -> None:
        with pytest.raises(BrokerUnreachable) as caught:
            await connect(
                Endpoint("127.0.0.1", 1), "me", setup_timeout_ms=1_000, request_timeout_ms=1_000,
                advertised_by="That is the address broker 7 advertises.",
            )  # fmt: skip
        error = caught.value
        assert (error.endpoint, error.reason) == ("127.0.0.1:1", "Connection refused")
        assert str(error) == (
            "cannot connect to 127.0.0.1:1: Connection refused. That is the address broker 7 advertises."
        )

    asyncio.run(main())


@pytest.mark.parametrize("host", ["x" * 64, "a..b", "a\0b", "127.0.0.1"])
def test_what_can_be_no_address_is_unreachable(host: str) -> None:
    """A broker may advertise anything: what no look-up takes, and a port above all ports, is no more than that."""

    async def main() -> None:
        with pytest.raises(BrokerUnreachable, match="70000"):
            await connect(Endpoint(host, 70_000), "me", setup_timeout_ms=1_000, request_timeout_ms=1_000)

    asyncio.run(main())


def test_a_connection_that_is_lost_behind_its_last_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedule 82: its versions are settled, and it is gone before anybody has it: the attempt has failed. (Simulator
    seed 2000101: it was kept for good, and each later request of a consumer to its coordinator ended at once.)"""
    settle = Connection.settle_versions

    async def settle_and_lose(connection: Connection, *given: Any) -> None:
        await settle(connection, *given)
        connection.close()

    async def visit(connection: Connection) -> None:
        raise AssertionError("nobody gets it")

    monkeypatch.setattr(Connection, "settle_versions", settle_and_lose)
    with pytest.raises(BrokerUnreachable, match="server:9092"):
        meet(polite, visit)
