"""Where the time of a request goes (rule A40), by a clock that the test moves, and through a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

import pytest
from kafka_case import run
from kafka_node import KafkaNode, kafka_node, until
from kafka_wire import KafkaClient, connect
from structlog.testing import capture_logs
from test_kafka_produce import batch, produce, produced
from tests.log.helpers import ManualClock

from strandline.cluster.broker.loop_time import TURN_MS
from strandline.cluster.broker.request import Connection, Exchange, Parts, Peer, RequestContext
from strandline.cluster.broker.sending import ANSWERS_MAX, Sending
from strandline.cluster.broker.slow_requests import LINES_MAX, WINDOW_MS, SlowRequests
from strandline.cluster.broker.stats import TIME_BOUNDS_MS, ListenerStats


class Site:
    """A connection whose transport holds as much as it is told to, and what is counted and logged of it."""

    def __init__(self, threshold_ms: float = 1000) -> None:
        self.clock = ManualClock(0)
        self.lines: list[dict[str, Any]] = []
        self.listener = self
        self.unsent_bytes = 0
        self.stats = ListenerStats(SlowRequests(self.clock, threshold_ms, self.write))
        self.sending = Sending(self)

    def write(self, event: str, **figures: Any) -> None:
        assert event == "a slow request"
        self.lines.append(figures)

    def answered(self, exchange: Exchange) -> None:
        exchange.answered_ms = self.clock.monotonic_ms()
        exchange.end_step(exchange.answered_ms)
        if self.stats.slow.may_be_slow(exchange.answered_ms - exchange.arrived_ms, exchange.size):
            exchange.take_detail()

    def identity(self) -> dict[str, Any]:
        return {"client": "10.0.0.7:4711", "software": "a 1", "listener": "PLAINTEXT"}

    def exchange(self, api: str = "Produce", version: int = 9) -> Exchange:
        """A request that is taken now."""
        context = RequestContext(Peer("PLAINTEXT", "10.0.0.7"), "c" * 300, api, version, 42, self.clock.monotonic_ms())
        connection: Connection = self  # type: ignore[assignment]
        return Exchange(connection, context, False)

    def serve(self, took_ms: float, api: str = "Produce", waits_ms: float = 0, body: bytes = b"") -> Exchange:
        """A request that is answered after a time on the loop, and handed to the transport."""
        exchange = self.exchange(api)
        exchange.may_wait_ms = waits_ms
        exchange.explained_by(lambda: {"topic_partitions": "orders-0"})
        exchange.end_step(self.clock.monotonic_ms())
        self.clock.now_ms += took_ms  # type: ignore[assignment]
        exchange.respond([body])
        self.sending.handed_over([exchange], self.clock.monotonic_ms())
        return exchange


def parts_of(stats: ListenerStats, api: str = "Produce", version: int = 9) -> dict[str, float]:
    times = stats.apis[api, version]
    return dict(zip(Parts._fields, (part.ms_total for part in times.parts), strict=True))


def test_each_part_of_a_request_by_the_instants_that_bound_it() -> None:
    """Queue, loop, wait, order of answers, socket; a coroutine's steps are local, what lies between them is not."""

    async def main() -> None:
        site = Site()
        site.clock.now_ms = 10
        exchange = site.exchange()
        exchange.arrived_ms = 4
        exchange.throttled_ms = 500
        exchange.end_step(13)  # the handler has returned
        exchange.begin_step(20)
        exchange.end_step(21)
        exchange.begin_step(40)
        site.clock.now_ms = 42
        exchange.respond([b"x" * 96])
        site.unsent_bytes = 50
        site.clock.now_ms = 47
        site.sending.handed_over([exchange], 45)
        assert not site.stats.apis
        site.clock.now_ms = 60
        site.sending.look()
        assert not site.stats.apis
        site.unsent_bytes = 0
        site.clock.now_ms = 100
        await until(lambda: site.stats.apis)  # it looks by itself
        assert parts_of(site.stats) == {
            "request_queue": 6,
            "local": 3 + 1 + 2,
            "remote": 32 - 6,
            "throttle": 500,
            "response_queue": 3,
            "response_send": 55,
            "total": 96,
        }

    asyncio.run(main())


def test_answers_that_nobody_takes_are_held_up_to_a_number() -> None:
    """Bounded, whatever a client that reads nothing makes a node hold; a connection that goes takes them with it."""

    async def main() -> None:
        site = Site()
        site.unsent_bytes = 1 << 20
        for _ in range(ANSWERS_MAX + 5):
            site.serve(1, body=b"x" * 1000)
        assert site.stats.apis["Produce", 9].answers == 5
        site.sending.close()
        site.unsent_bytes = 0
        site.sending.look()
        assert site.stats.apis["Produce", 9].answers == 5

    asyncio.run(main())


def test_buckets_hold_every_answer() -> None:
    async def main() -> None:
        site = Site(0)
        for took_ms in (0, 0.1, 0.15, 3, 29_999, 30_000, 40_000):
            site.serve(took_ms)
        times = site.stats.apis["Produce", 9]
        counts = times.parts[-1].counts(times.answers)
        assert len(counts) == len(TIME_BOUNDS_MS) + 1
        assert [counts[0], counts[1], counts[5], counts[16], counts[17]] == [2, 1, 1, 2, 1]
        assert sum(counts) == times.answers == 7
        assert times.ms_max == pytest.approx(40_000)
        [(api, merged)] = site.stats.by_api()
        assert api == "Produce"
        assert merged.parts[-1].counts(merged.answers) == counts

    asyncio.run(main())


@pytest.mark.parametrize(
    ("api", "waits_ms", "took_ms", "slow"),
    [
        ("Produce", 0, 999, False),
        ("Produce", 0, 1000, True),
        ("Fetch", 5000, 5500, False),
        ("Fetch", 5000, 6000, True),
        ("JoinGroup", 0, 60_000, False),
        ("Metadata", 0, 2000, True),
    ],
)
def test_what_is_slow(api: str, waits_ms: float, took_ms: float, slow: bool) -> None:
    """A wait that the client wants is none of the node's slowness."""

    async def main() -> None:
        site = Site()
        site.serve(took_ms, api, waits_ms)
        assert len(site.lines) == slow
        assert site.stats.slow.counted == ({api: 1} if slow else {})

    asyncio.run(main())


def test_the_line_of_a_slow_request() -> None:
    """All that an operator asks for, and no more of a name than fits a line."""

    async def main() -> None:
        site = Site()
        site.serve(2345.678)
        [line] = site.lines
        assert line == {
            "api": "Produce",
            "version": 9,
            "client_id": "c" * 100,
            "correlation_id": 42,
            "request_queue_ms": 0,
            "local_ms": 0,
            "remote_ms": 2345.7,
            "throttle_ms": 0,
            "response_queue_ms": 0,
            "response_send_ms": 0,
            "total_ms": 2345.7,
            "answered": True,
            "topic_partitions": "orders-0",
            "suppressed": 0,
            "principal": "User:ANONYMOUS",
            "client": "10.0.0.7:4711",
            "software": "a 1",
            "listener": "PLAINTEXT",
        }

    asyncio.run(main())


def test_lines_are_bounded_and_say_what_was_left_out() -> None:
    async def main() -> None:
        site = Site()
        for _ in range(LINES_MAX):
            site.serve(1000)
            site.clock.now_ms -= 1000  # they run beside each other
        for _ in range(7):
            site.serve(1000)
            site.clock.now_ms -= 1000
        assert len(site.lines) == LINES_MAX
        site.clock.now_ms += int(WINDOW_MS)
        site.serve(1000)
        assert len(site.lines) == LINES_MAX + 1
        assert site.lines[-1]["suppressed"] == 7
        assert site.stats.slow.counted["Produce"] == LINES_MAX + 8

    asyncio.run(main())


def test_no_threshold_no_lines() -> None:
    async def main() -> None:
        site = Site(0)
        exchange = site.serve(1_000_000, body=b"x" * 1_000_000)
        assert site.stats.slow.threshold_ms == inf
        assert not site.lines
        assert not exchange.detail

    asyncio.run(main())


def test_what_the_parts_are_through_a_socket(tmp_path: Path) -> None:
    """A fetch that waits does so in remote; a throttled one says so; the parts make up the whole."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("orders")
        await produced(client, 9, "orders", {0: batch(b"x")})
        await fetch(client, 300)
        stats = node.listener.stats
        parts = parts_of(stats, "Fetch", 11)
        assert 250 < parts["remote"] < parts["total"]
        assert parts["throttle"] == 0
        whole = sum(parts.values()) - parts["total"] - parts["throttle"]
        assert whole == pytest.approx(parts["total"])
        assert parts_of(stats)["local"] > 0

    run(tmp_path, main)


def test_a_request_whose_time_ends_later_holds_no_bytes_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the transport's once it has them: a client that reads nothing keeps them there, and nowhere else."""
    handed: list[Exchange] = []
    goes_on = Sending.handed_over

    def handed_over(self: Sending, exchanges: Sequence[Exchange], flushed_ms: float) -> None:
        handed.extend(exchanges)
        goes_on(self, exchanges, flushed_ms)

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("orders")
        await produced(client, 9, "orders", {0: batch(b"x")})
        await produced(client, 9, "orders", {0: batch(b"y" * 1000)})
        await until(lambda: len(handed) == 2)
        await fetch(client, 300)
        assert handed[-1].size > 1000
        assert [exchange.parts for exchange in handed] == [[], [], []]

    monkeypatch.setattr(Sending, "handed_over", handed_over)
    run(tmp_path, main)


def test_a_request_that_waits_for_its_turn_is_queued(tmp_path: Path) -> None:
    """The loop's time of this turn is used up by others: the frame is there, and is taken later."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        loop_time, clock = node.broker.loop_time, ManualClock(10_000)
        node.listener.clock = loop_time._clock = clock
        wait = loop_time.wait

        def wait_long(peer: Any, call: Any) -> None:
            clock.now_ms += 50
            wait(peer, call)

        loop_time.wait = wait_long  # type: ignore[method-assign]
        loop_time._known.spent_ms = TURN_MS
        await client.ask("api_versions", 2)
        await until(lambda: node.listener.stats.apis)
        parts = parts_of(node.listener.stats, "ApiVersions", 2)
        assert (parts["request_queue"], parts["total"]) == (50, 50)
        await client.ask("api_versions", 2)
        assert parts_of(node.listener.stats, "ApiVersions", 2)["request_queue"] == 50

    run(tmp_path, main)


def test_who_gives_up_has_a_line_too(tmp_path: Path) -> None:
    """A client that got no answer for too long closes the connection: it is the slowest of all."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("orders", min_insync_replicas="1")
            with capture_logs() as lines:
                async with connect(node.listener.endpoint) as client:
                    await produced(client, 9, "orders", {0: batch(b"x")})
                    node.listener.stats.slow.threshold_ms = 0.001
                    await asyncio.wait([asyncio.ensure_future(fetch(client, 5_000))], timeout=0.05)
                    [connection] = node.listener._connections
                    connection._exchanges[0].may_wait_ms = 0
                await until(lambda: not node.listener.stats.connections)
            [line] = [line for line in lines if line["event"] == "a slow request"]
            assert (line["api"], line["answered"], line["topic_partitions"]) == ("Fetch", False, "orders-0@1")

    asyncio.run(main())


async def fetch(client: KafkaClient, wait_ms: int) -> Any:
    partition = {
        "partition": 0, "fetch_offset": 1, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1,
        "log_start_offset": -1,
    }  # fmt: skip
    return await client.ask(
        "fetch", 11, replica_id=-1, max_wait=wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[{"topic": "orders", "partitions": [partition]}], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip


async def logged(node: KafkaNode, work: Callable[[], Any]) -> list[dict[str, Any]]:
    """The lines of slow requests, where every one is slow."""
    node.listener.stats.slow.threshold_ms = 0
    with capture_logs() as lines:
        await work()
        await asyncio.sleep(0)
    return [dict(line) for line in lines if line["event"] == "a slow request"]


def test_a_lone_leader_waits_for_its_own_sync(tmp_path: Path) -> None:
    """acks=all names whose sync was last; acks=1 waits for nobody; so does a fetch from memory."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node, connect(node.listener.endpoint) as client:
            node.create_topic("orders", 2)
            [line] = await logged(node, lambda: produced(client, 9, "orders", {0: batch(b"x")}))
            assert line["waited_for"] == "orders-0: the sync of node 1 (itself, the leader)"
            assert (line["acks"], line["topic_partitions"]) == (-1, "orders-0")
            [line] = await logged(node, lambda: client.receive(produce(client, 9, "orders", {1: batch(b"x")}, acks=1)))
            assert "waited_for" not in line
            [line] = await logged(node, lambda: fetch(client, 0))
            assert line["topic_partitions"] == "orders-0@1"

    asyncio.run(main())
