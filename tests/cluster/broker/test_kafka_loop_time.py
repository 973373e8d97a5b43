"""The loop's time at the listener: many connections that ask and ask hold neither the loop nor each other (rule A26).

Schedule 104 is of a hundred connections before their login, which moved the leader of the quorum.

Each reading of the clock is a tenth of a millisecond later, so a request takes some of it, however fast the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka_node import KafkaNode, kafka_node, until
from kafka_wire import KafkaClient, connect, frame
from structlog.testing import capture_logs
from test_kafka_fetch import append, committed, fetch
from test_kafka_produce import batch
from test_kafka_tls import ca, listener, trusting  # noqa: F401 - a fixture

from strandline.cluster.broker.handlers import fetch as fetch_handler
from strandline.cluster.broker.handlers.fetch import Fetch, FetchHandler
from strandline.cluster.broker.handlers.fetch_sessions import FetchedPartition
from strandline.cluster.broker.loop_time import STRANGERS_MS, TURN_MS
from strandline.cluster.broker.request import Peer
from strandline.cluster.broker.sasl import AUTHENTICATION_S, REQUESTS_BEFORE_MAX
from strandline.cluster.security.dev_certificates import DevCa
from strandline.cluster.security.sasl import SaslSettings
from strandline.cluster.security.tls_transport import TlsConnection
from strandline.proto import steps
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka import fetch as fetch_messages
from strandline.proto.kafka.fetch import FetchPartition

STEP_MS = 0.1
REQUEST_MS = 3 * STEP_MS
"""What one request takes at least: the clock is read three times for it."""

PASSWORD = "open-sesame"
ASK = frame(18, 0, 1, b"", flexible=False)


class StepClock:
    """Each reading is later."""

    def __init__(self) -> None:
        self.now_ms = 1000.0

    def monotonic_ms(self) -> float:
        self.now_ms += STEP_MS
        return self.now_ms

    def wall_ms(self) -> int:
        return int(self.now_ms)


def stepped(node: KafkaNode) -> None:
    """From now on the listener goes by such a clock."""
    clock = StepClock()
    clock.now_ms = node.broker.clock.monotonic_ms()
    node.listener.clock = node.broker.loop_time._clock = clock


@asynccontextmanager
async def clients(node: KafkaNode, count: int) -> AsyncIterator[Sequence[KafkaClient]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connect(node.listener.endpoint)) for _ in range(count)]


def answers(node: KafkaNode, api: tuple[str, int]) -> int:
    times = node.listener.stats.apis.get(api)
    return 0 if times is None else times.answers


async def most_a_turn(node: KafkaNode, api: tuple[str, int], count: int) -> int:
    """The most answers within one turn of the loop, until there are so many."""
    most, before = 0, answers(node, api)
    async with asyncio.timeout(30):
        while before < count:
            await asyncio.sleep(0)
            now = answers(node, api)
            most, before = max(most, now - before), now
    return most


async def log_in(client: KafkaClient, user: str) -> None:
    assert (await client.ask("sasl_handshake", 1, mechanism="PLAIN")).error_code == 0
    token = f"\0{user}\0{PASSWORD}".encode()
    assert (await client.ask("sasl_authenticate", 2, auth_bytes=token)).error_code == 0


@asynccontextmanager
async def secured(path: Path) -> AsyncIterator[KafkaNode]:
    plain = dict.fromkeys(("alice", "mallory"), PASSWORD)
    async with kafka_node(path, sasl=SaslSettings(["PLAIN"]), plain=plain) as node:
        yield node


def test_104_strangers_that_pipeline_do_not_hold_the_loop(tmp_path: Path) -> None:
    """Fifty connections with as many requests as they may send before the login: in no turn of the loop are more
    answered than strangers have time for, and whoever is known is answered between them."""

    async def main() -> None:
        async with secured(tmp_path) as node, connect(node.listener.endpoint) as alice, clients(node, 50) as strangers:
            await log_in(alice, "alice")
            stepped(node)
            for stranger in strangers:
                stranger.writer.write(ASK * REQUESTS_BEFORE_MAX)
            known = asyncio.ensure_future(alice.ask("api_versions", 2))
            most = await most_a_turn(node, ("ApiVersions", 0), 50 * REQUESTS_BEFORE_MAX)
            assert most <= STRANGERS_MS / REQUEST_MS + 2  # one may go beyond it
            assert (await known).error_code == ErrorCode.NONE
            for stranger in strangers:
                for _ in range(REQUESTS_BEFORE_MAX):
                    await stranger.receive_frame()

    asyncio.run(main())


def test_before_the_login_few_requests_are_answered(tmp_path: Path) -> None:
    """What is beyond them is not read, and the connection ends when the time for its login is over, with a line that
    says what to do: whoever comes again does so every ten seconds. Behind the login there is no such number."""

    async def main() -> None:
        async with secured(tmp_path) as node, clients(node, 2) as (stranger, alice):
            sasl = node.listener.sasl
            assert sasl is not None
            await log_in(alice, "alice")
            stranger.writer.write(ASK * (REQUESTS_BEFORE_MAX + 1))
            for _ in range(REQUESTS_BEFORE_MAX):
                await stranger.receive_frame()
            alice.writer.write(ASK * (2 * REQUESTS_BEFORE_MAX))
            for _ in range(2 * REQUESTS_BEFORE_MAX):
                await alice.receive_frame()
            [heard_no_more] = [one for one in node.listener.connections if one.peer.is_stranger]
            assert heard_no_more.waiting
            assert not heard_no_more._reason
            sasl.clock = StepClock()
            sasl.clock.now_ms = node.broker.clock.monotonic_ms() + AUTHENTICATION_S * 1000
            sasl._drop_late()
            assert await stranger.closed()

    with capture_logs() as logs:
        asyncio.run(main())
    [line] = [line for line in logs if line["event"] == "closed a client's connection"]
    assert "more than 20 requests before the authentication" in line["reason"]


def test_104_one_principals_many_connections_are_one(tmp_path: Path) -> None:
    """Thirty connections of one user that pipeline, and a single request of another: it waits for a slice, and not for
    each of theirs; and in no turn of the loop is more done than clients have time for."""

    async def main() -> None:
        async with secured(tmp_path) as node, clients(node, 30) as many, connect(node.listener.endpoint) as alice:
            for client in many:
                await log_in(client, "mallory")
            await log_in(alice, "alice")
            stepped(node)
            for client in many:
                client.writer.write(ASK * 300)
            total = asyncio.ensure_future(most_a_turn(node, ("ApiVersions", 0), 9000))
            await until(lambda: answers(node, ("ApiVersions", 0)) > 100)
            before = answers(node, ("ApiVersions", 0))
            await alice.ask("api_versions", 2)
            assert answers(node, ("ApiVersions", 0)) - before < 30 * 20
            for client in many:
                for _ in range(300):
                    await client.receive_frame()
            assert await total <= TURN_MS / REQUEST_MS + 2

    asyncio.run(main())


def test_fetches_that_waited_for_the_same_records_are_answered_in_turns(tmp_path: Path) -> None:
    """A record comes, and a thousand parked fetches of one client are woken at once."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node, clients(node, 10) as readers:
            node.create_topic("t")
            for reader in readers:
                for _ in range(100):
                    fetch(reader, 11, "t", {0: 0}, max_wait_ms=20_000)
            await until(lambda: sum(len(one._exchanges) for one in node.listener.connections) == 1000)
            stepped(node)
            most = asyncio.ensure_future(most_a_turn(node, ("Fetch", 11), 1000))
            append(node, "t", 0, batch(b"v"))
            await committed(node, "t", 0, 1)
            assert await most <= TURN_MS / STEP_MS + 1
            for reader in readers:
                for _ in range(100):
                    await reader.receive_frame()

    asyncio.run(main())


def test_a_fetch_of_many_partitions_is_answered_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are answered meanwhile, what is behind it on its connection comes behind it, and its answer is that of one
    step."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node, clients(node, 2) as (reader, other):
            node.create_topic("t")
            append(node, "t", 0, batch(b"v"))
            await committed(node, "t", 0, 1)
            partitions: dict[int, int | dict[str, Any]] = dict.fromkeys(range(19_000), 0)
            for version in (11, 12):
                stepped(node)
                waits = node.broker.loop_time.waits
                fetch(reader, version, "t", partitions, session_id=0, session_epoch=0)
                behind = reader.send("api_versions", 2)
                await until(lambda before=waits: node.broker.loop_time.waits > before)
                assert (await other.ask("api_versions", 2)).error_code == ErrorCode.NONE
                assert answers(node, ("Fetch", version)) == 0
                in_turns = await reader.receive_frame()
                assert (await reader.receive(behind)).error_code == ErrorCode.NONE
                assert node.broker.loop_time.waits - waits > 50
                with monkeypatch.context() as whole:
                    for module in (steps, fetch_messages, fetch_handler):
                        whole.setattr(module, "ITEMS", 100_000)
                    waits = node.broker.loop_time.waits
                    fetch(reader, version, "t", partitions, session_id=0, session_epoch=0)
                    at_once = await reader.receive_frame()
                    assert node.broker.loop_time.waits - waits <= 2
                assert in_turns[4:] == at_once[4:]

    asyncio.run(main())


def test_what_a_long_fetch_leaves_goes_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of objects take as long to end as to be made."""
    waits = []

    async def main() -> None:
        async with kafka_node(tmp_path) as node, clients(node, 1) as (reader,):

            def let_go(items: list[Any]) -> steps.Steps[None]:
                waits.append(node.broker.loop_time.waits)
                yield from steps.let_go(items)

            monkeypatch.setattr("strandline.cluster.broker.handlers.fetch.let_go", let_go)
            node.create_topic("t")
            stepped(node)
            fetch(reader, 11, "t", dict.fromkeys(range(19_000), 0), session_id=0, session_epoch=0)
            behind = reader.send("api_versions", 2)
            await reader.receive_frame()
            assert (await reader.receive(behind)).error_code == ErrorCode.NONE
            assert waits, "what is left goes at once"
            assert node.broker.loop_time.waits - waits[0] > 10

    asyncio.run(main())


def test_many_readable_partitions_are_read_and_watched_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed in a partition between its reading and the wait for it ends the wait. So does what is committed
    later, and of many that wake at once all are read, in turns."""
    monkeypatch.setattr(steps, "ITEMS", 5)
    count = 40

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", count)
            where = [TopicPartition("t", number) for number in range(count)]
            await until(lambda: all(node.replicas.partition(tp) is not None for tp in where))
            shared = node.broker.handlers.of(FetchHandler)._shared

            def begin(min_bytes: int, offsets: dict[int, int]) -> tuple[Fetch, asyncio.Future[dict[int, int]]]:
                wanted = [FetchPartition("t", None, number, offsets.get(number, 0), 1000) for number in range(count)]
                request = fetch_messages.FetchRequest(60_000, min_bytes, 1 << 20, wanted, rack="")
                results = [FetchedPartition(one) for one in wanted]
                for result, tp in zip(results, where, strict=True):
                    result.tp = tp
                done: asyncio.Future[dict[int, int]] = asyncio.get_running_loop().create_future()

                def sizes(found: list[FetchedPartition]) -> None:
                    done.set_result({one.wanted.partition: one.size for one in found if one.size})

                return Fetch(shared, Peer("PLAINTEXT", "127.0.0.1"), request, results, sizes), done

            fetch, done = begin(1, {})
            reading = fetch.begin()
            for _ in range(5):
                next(reading)
            append(node, "t", 3, batch(b"v"))
            await committed(node, "t", 3, 1)
            assert len(list(reading)) == 2 * count // 5 - 5, "a step for every five partitions, twice"
            async with asyncio.timeout(10):
                assert list(await done) == [3]

            fetch, done = begin(500, {3: 1})
            assert len(list(fetch.begin())) == 2 * count // 5
            waits = shared.loop_time.waits
            stepped(node)
            for tp in where:
                append(node, "t", tp.partition, batch(b"v" * 20))
            async with asyncio.timeout(10):
                assert len(await done) >= 5
            assert shared.loop_time.waits > waits

            fetch, done = begin(1, dict.fromkeys(range(count), 1) | {3: 2})
            reading = fetch.begin()
            for _ in range(12):
                next(reading)
            fetch.cancel()
            assert not list(reading)
            assert shared.kept.used_bytes == 0
            await until(lambda: not any(node.replicas.partition(tp).watchers._calls for tp in where))

    asyncio.run(main())


def test_a_long_fetch_whose_connection_is_lost_leaves_nothing(tmp_path: Path) -> None:
    """Nor does a request that ends too early, far behind its begin: its connection is closed as that of a short one."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node, clients(node, 2) as (leaver, damaged):
            node.create_topic("t")
            stepped(node)
            partitions: dict[int, int | dict[str, Any]] = dict.fromkeys(range(19_000), 0)
            fetch(leaver, 11, "t", partitions, session_id=0, session_epoch=0)
            await until(lambda: node.broker.loop_time.waits > 10)
            [gone] = [one for one in node.listener.connections if one._exchanges]
            gone.abort()
            assert await leaver.closed()
            await until(lambda: len(node.listener.connections) == 1)
            waits = node.broker.loop_time.waits
            await asyncio.sleep(0.05)
            assert node.broker.loop_time.waits == waits
            assert node.fetch_sessions == node.broker.kept.used_bytes == 0
            wanted = [FetchPartition("t", None, number, 0, 1000) for number in range(19_000)]
            request = fetch_messages.FetchRequest(0, 1, 1000, wanted, rack="", session_epoch=0)
            body = bytes(fetch_messages.write_request(11, request))[:-1]
            damaged.writer.write(frame(1, 11, 1, body, flexible=False))
            assert await damaged.closed()

    with capture_logs() as logs:
        asyncio.run(main())
    [line] = [line for line in logs if line["event"] == "closed a client's connection"]
    assert "FetchRequest v11" in line["reason"]
    assert not [line for line in logs if "internal error" in line["event"]]


def test_handshakes_take_the_time_of_strangers(
    tmp_path: Path,
    ca: DevCa,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many that begin at once are answered one after the other, and each of them in the end."""

    async def main() -> None:
        async with kafka_node(tmp_path, tls=listener(ca)) as node:
            stepped(node)
            waited: list[object] = []
            loop_time = node.broker.loop_time
            wait = loop_time.wait
            monkeypatch.setattr(loop_time, "wait", lambda peer, call: (waited.append(peer), wait(peer, call)))

            async def come() -> None:
                async with connect(node.listener.endpoint, tls=trusting(ca)) as client:
                    assert (await client.ask("api_versions", 2)).error_code == ErrorCode.NONE

            async with asyncio.timeout(60):
                await asyncio.gather(*(come() for _ in range(30)))
            assert any(isinstance(one, TlsConnection) for one in waited)

    asyncio.run(main())


def test_connections_that_come_to_nothing_take_the_time_of_strangers(tmp_path: Path) -> None:
    """Their beginning and their end. Whoever asks for something, once it may, gives back what it took until then."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            stepped(node)
            loop_time = node.broker.loop_time
            async with clients(node, 10):
                await until(lambda: len(node.listener.connections) == 10)
                begun_ms = loop_time._unproven_ms
                assert begun_ms > 9 * STEP_MS
            await until(lambda: not node.listener.connections)
            ended_ms = loop_time._unproven_ms
            assert ended_ms > begun_ms + 9 * STEP_MS
            async with connect(node.listener.endpoint) as client:
                assert (await client.ask("api_versions", 2)).error_code == ErrorCode.NONE
                assert loop_time._unproven_ms <= ended_ms

    asyncio.run(main())


def test_connections_that_end_together_are_ended_in_turns(tmp_path: Path) -> None:
    """Fifty that go at once: in no turn of the loop are more ended than there is time for, and in the end all are."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node, clients(node, 50):
            await until(lambda: len(node.listener.connections) == 50)
            stepped(node)
            for one in node.listener.connections:
                one.abort()
            most, before = 0, 50
            async with asyncio.timeout(30):
                while before:
                    await asyncio.sleep(0)
                    now = len(node.listener.connections)
                    most, before = max(most, before - now), now
            assert most <= STRANGERS_MS / STEP_MS + 1

    asyncio.run(main())


def test_a_handshake_that_comes_to_something_is_given_back(
    tmp_path: Path,
    ca: DevCa,  # noqa: F811
) -> None:
    async def main() -> None:
        async with kafka_node(tmp_path, tls=listener(ca)) as node:
            stepped(node)
            async with connect(node.listener.endpoint, tls=trusting(ca)) as client:
                assert (await client.ask("api_versions", 2)).error_code == ErrorCode.NONE
                assert node.broker.loop_time._unproven_ms < STEP_MS

    asyncio.run(main())


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"GET / HTTP/1.1\r\n"])
def test_what_is_no_request_is_refused_in_a_busy_loop_too(tmp_path: Path, data: bytes) -> None:
    """It is not taken for a request that is still on its way."""

    async def main() -> None:
        async with secured(tmp_path) as node, clients(node, 2) as (busy, stranger):
            stepped(node)
            busy.writer.write(ASK * REQUESTS_BEFORE_MAX)
            stranger.writer.write(data)
            assert await stranger.closed()
            for _ in range(REQUESTS_BEFORE_MAX):
                await busy.receive_frame()

    asyncio.run(main())


def test_104_whoever_waits_for_a_turn_may_leave(tmp_path: Path) -> None:
    """Connections that are lost while they wait leave nothing behind."""

    async def main() -> None:
        async with secured(tmp_path) as node:
            stepped(node)
            async with clients(node, 20) as strangers:
                for stranger in strangers:
                    stranger.writer.write(ASK * REQUESTS_BEFORE_MAX)
                    await stranger.writer.drain()
                waiting: Any = node.broker.loop_time._strangers.waiting
                await until(lambda: len(waiting) > 5)
                for stranger in strangers:
                    stranger.writer.transport.abort()
                await until(lambda: not node.listener.connections)
                assert len(waiting) == 0

    asyncio.run(main())
