"""A broker's lines on their way to the topic `__audit`: their order, their bounds, and what is said of those that are
lost; and where they go (rule A20)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from strandline.cluster.node import audit_topic
from strandline.cluster.node.audit_partitions import AppendAuditReply, AppendAuditRequest, AuditPartitions
from strandline.cluster.node.audit_topic import AuditTopic
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord
from strandline.log.batch import RecordBatchBuilder, decode_records
from strandline.proto.audit import AUDIT_TOPIC, audit_line
from strandline.proto.believed import BelievedClock
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId, TopicPartition
from strandline.proto.messages.method import Method
from strandline.proto.ports import RpcRejected, UnaryHandler
from strandline.proto.system import SystemClock
from strandline.replica.partition import Append, AppendDone

DROPPED = "audit lines were dropped: the topic does not have them"


class Partitions:
    """Keeps what it takes; `judge` says what becomes of a batch."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.batches: list[int] = []
        self.open = asyncio.Event()
        self.open.set()
        self.judge: Callable[[list[str]], ErrorCode] = lambda _: ErrorCode.NONE

    async def append(self, batch: bytearray) -> AppendAuditReply:
        await self.open.wait()
        records = decode_records(batch)
        assert all(record.headers == (("broker", b"7"),) for record in records)
        lines = [(record.value or b"").decode() for record in records]
        error = self.judge(lines)
        if error is ErrorCode.NONE:
            self.lines += lines
            self.batches.append(len(lines))
        return AppendAuditReply(error, "for a reason")


def with_topic(body: Callable[[AuditTopic, Partitions], Awaitable[None]]) -> list[dict[str, Any]]:
    """A topic that is written to; what was logged. Nothing unforeseen ends the task."""

    async def main() -> None:
        partitions = Partitions()
        topic = AuditTopic(NodeId(7), partitions, BelievedClock(SystemClock()))
        unforeseen: list[BaseException] = []
        topic.start(unforeseen.append)
        async with asyncio.timeout(20):
            await body(topic, partitions)
        topic.close()
        assert not unforeseen

    with capture_logs() as logs:
        asyncio.run(main())
    return cast("list[dict[str, Any]]", logs)


def add(topic: AuditTopic, *lines: str, is_change: bool = False) -> None:
    for line in lines:
        topic.add(1_700_000_000_000, "User:me", line, is_change=is_change)


async def flushed(topic: AuditTopic) -> None:
    """Return once nothing waits."""
    while topic.waiting:
        await asyncio.sleep(0.001)


def numbered(count: int) -> list[str]:
    return [f"line {number}" for number in range(count)]


def test_lines_are_written_in_their_order() -> None:
    """Those that came while a batch was on its way go together, within bounds."""

    async def body(topic: AuditTopic, partitions: Partitions) -> None:
        partitions.open.clear()
        add(topic, *numbered(1200))
        assert topic.waiting == 1200
        partitions.open.set()
        await flushed(topic)
        assert partitions.lines == numbered(1200)
        assert partitions.batches == [500, 500, 200]
        assert (topic.waiting, topic.dropped) == (0, 0)

    assert with_topic(body) == []


@pytest.mark.parametrize("bound", ["LINES_MAX", "BYTES_MAX"])
def test_what_has_no_room_is_dropped_and_told(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Counted, logged, and in the topic a line at the place of the gap; then lines are taken again."""
    monkeypatch.setattr(audit_topic, bound, {"LINES_MAX": 10, "BYTES_MAX": 130}[bound])
    taken = {"LINES_MAX": 10, "BYTES_MAX": 9}[bound]  # of 7 + 7 bytes each

    async def body(topic: AuditTopic, partitions: Partitions) -> None:
        partitions.open.clear()
        add(topic, *(f"line {number:02}" for number in range(30)))
        assert (topic.waiting, topic.dropped) == (taken, 30 - taken)
        partitions.open.set()
        await flushed(topic)
        add(topic, "after")
        await flushed(topic)
        gap = json.loads(partitions.lines[taken])
        assert (gap["event"], gap["lines"]) == ("dropped", 30 - taken)
        assert partitions.lines == [*(f"line {number:02}" for number in range(taken)), partitions.lines[taken], "after"]

    logs = with_topic(body)
    assert [line["event"] for line in logs] == [DROPPED, DROPPED]  # the first at once, the others at the end
    assert sum(line["lines"] for line in logs) == 30 - taken


def test_changes_have_room_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule A28: however many logins and refusals wait, a change has its place behind them. Its room has an end, too."""
    monkeypatch.setattr(audit_topic, "LINES_MAX", 10)
    monkeypatch.setattr(audit_topic, "CHANGES_BYTES_MAX", 40 * (7 + 9))

    async def body(topic: AuditTopic, partitions: Partitions) -> None:
        partitions.open.clear()
        changes = [f"change {number:02}" for number in range(41)]
        for change in changes:
            add(topic, *(f"login {number:02}" for number in range(5)))
            add(topic, change, is_change=True)
        assert (topic.waiting, topic.dropped) == (10 + 40, 41 * 5 - 10 + 1)
        partitions.open.set()
        await flushed(topic)
        assert [line for line in partitions.lines if "change" in line] == changes[:40]
        assert json.loads(partitions.lines[-1])["lines"] == 41 * 5 - 10 + 1

    with_topic(body)


def test_a_line_that_is_not_taken_takes_no_other_with_it() -> None:
    """Too large for the topic, say: it alone is lost, and that is told."""

    async def body(topic: AuditTopic, partitions: Partitions) -> None:
        partitions.judge = lambda lines: ErrorCode.MESSAGE_TOO_LARGE if "line 33" in lines else ErrorCode.NONE
        partitions.open.clear()
        add(topic, *numbered(100))
        partitions.open.set()
        await flushed(topic)
        gap = json.loads(partitions.lines.pop())
        assert partitions.lines == [line for line in numbered(100) if line != "line 33"]
        assert (gap["lines"], topic.dropped) == (1, 1)

    [told] = with_topic(body)
    assert (told["event"], told["lines"], told["because"]) == (DROPPED, 1, "MESSAGE_TOO_LARGE: for a reason")


def test_an_outage_loses_nothing_that_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """No leader, no controller, or a mistake of ours: tried again, told once, and told when it is over."""
    monkeypatch.setattr(audit_topic, "PAUSE_MS", (1.0, 1.0))
    monkeypatch.setattr(audit_topic, "TELL_MS", 5.0)
    attempts = 0

    async def body(topic: AuditTopic, partitions: Partitions) -> None:
        def judge(_: list[str]) -> ErrorCode:
            nonlocal attempts
            attempts += 1
            if attempts == 3:
                raise RuntimeError("ours")
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if attempts < 30 else ErrorCode.NONE

        partitions.judge = judge
        add(topic, "one")
        await asyncio.sleep(0)
        add(topic, "two")
        await flushed(topic)
        assert (partitions.lines, topic.dropped) == (["one", "two"], 0)

    told = [line["event"] for line in with_topic(body)]
    assert told == ["audit lines wait for the topic", "the topic takes audit lines again"]


def test_a_mistake_of_ours_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its traceback, once in an outage."""
    monkeypatch.setattr(audit_topic, "PAUSE_MS", (1.0, 1.0))
    left = [RuntimeError("first"), RuntimeError("second")]

    async def body(topic: AuditTopic, partitions: Partitions) -> None:
        def judge(_: list[str]) -> ErrorCode:
            if left:
                raise left.pop(0)
            return ErrorCode.NONE

        partitions.judge = judge
        add(topic, "one")
        await flushed(topic)
        assert partitions.lines == ["one"]

    [told] = with_topic(body)
    assert told["event"] == "internal error: audit lines are not written to the topic"


def test_what_a_stop_leaves_is_told() -> None:
    async def body(topic: AuditTopic, partitions: Partitions) -> None:
        partitions.open.clear()
        add(topic, "one", "two")
        await asyncio.sleep(0.01)

    [told] = with_topic(body)
    assert (told["event"], told["lines"], told["because"]) == (DROPPED, 2, audit_topic.STOPPED)


# Where they go


class Cluster:
    """Two brokers, each with the partitions that `leaders` says; calls between them go through bytes. A third one does
    not know the call."""

    def __init__(self, *leaders: int) -> None:
        self.leaders = list(leaders)
        self.logs: dict[tuple[int, int], list[bytes]] = {}
        self.asked: list[str] = []
        self.handlers: dict[str, dict[str, UnaryHandler]] = {}
        self.brokers = {number: self._broker(number) for number in (1, 2)}
        for number, broker in self.brokers.items():
            self.handlers[f"broker:{number}"] = broker.handlers()

    def image(self) -> MetadataImage:
        partitions = {
            number: SimpleNamespace(partition=number, leader=leader, has_leader=leader >= 0)
            for number, leader in enumerate(self.leaders)
        }
        brokers = {number: SimpleNamespace(internal=Endpoint("broker", number)) for number in (1, 2, 3)}
        topics = {AUDIT_TOPIC: SimpleNamespace(partitions=cast("dict[int, PartitionRecord]", partitions))}
        return cast("MetadataImage", SimpleNamespace(topics=topics if partitions else {}, brokers=brokers))

    def _broker(self, number: int) -> AuditPartitions:
        def append(tp: TopicPartition, batches: memoryview, acks: int, done: AppendDone) -> Append | None:
            outcome = Append(done)
            assert (tp.topic, acks) == (AUDIT_TOPIC, -1)
            if self.leaders[tp.partition] == number:
                self.logs.setdefault((number, tp.partition), []).extend(
                    record.value or b"" for record in decode_records(bytes(batches))
                )
                outcome.end(ErrorCode.NONE)
            else:
                outcome.end(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not me")
            return None

        async def ensure() -> None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "brokers here yet: 1")

        return AuditPartitions(
            NodeId(number),
            topic=cast("Any", SimpleNamespace(ensure=ensure)),
            image=self.image,
            replicas=cast("Any", SimpleNamespace(append=append)),
            rpc=cast("Any", SimpleNamespace(call=self._call)),
        )

    async def _call(self, endpoint: Endpoint, method: str, request: bytes, *, timeout_ms: float) -> bytes:
        self.asked.append(str(endpoint))
        if str(endpoint) not in self.handlers:
            raise RpcRejected("unknown call")
        return await self.handlers[str(endpoint)][method](request)


def batch(*lines: bytes) -> bytearray:
    builder = RecordBatchBuilder()
    for line in lines:
        builder.append(1_700_000_000_000, b"User:me", line)
    return builder.build()


def test_lines_go_where_this_broker_leads() -> None:
    """To the same partition as long as it leads that; then to another; without one to another broker."""

    async def main() -> None:
        cluster = Cluster(2, 1, 1)
        broker = cluster.brokers[1]
        for line in (b"a", b"b"):
            assert (await broker.append(batch(line))).error is ErrorCode.NONE
        [(place, lines)] = cluster.logs.items()
        assert (place[0], lines) == (1, [b"a", b"b"])
        cluster.leaders[place[1]] = 2
        other = 3 - place[1]
        assert (await broker.append(batch(b"c"))).error is ErrorCode.NONE
        assert cluster.logs[1, other] == [b"c"]
        cluster.leaders[other] = 2
        assert (await broker.append(batch(b"d", b"e"))).error is ErrorCode.NONE
        assert cluster.logs[2, other] == [b"d", b"e"]

    asyncio.run(main())


def test_what_cannot_be_written_now_is_tried_again() -> None:
    """No topic, no leader, one that does not answer: the same batch is written anew, to another leader perhaps."""

    async def main() -> None:
        assert (await Cluster().brokers[1].append(batch(b"a"))).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        cluster = Cluster(-1)
        assert (await cluster.brokers[1].append(batch(b"a"))).error is ErrorCode.LEADER_NOT_AVAILABLE
        cluster.leaders = [2, 3]
        told = await cluster.brokers[1].append(batch(b"a"))
        assert (told.error, "unknown call" in told.message) == (ErrorCode.REQUEST_TIMED_OUT, True)
        assert (await cluster.brokers[1].append(batch(b"a"))).error is ErrorCode.NONE
        assert cluster.asked == ["broker:3", "broker:2"]
        assert {told.error, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE} <= audit_topic.AGAIN

    asyncio.run(main())


def test_bytes_of_another_node_are_looked_at() -> None:
    """What is no batch gets nowhere near a log."""
    from strandline.cluster.node.audit_partitions import APPEND_AUDIT

    async def main() -> None:
        cluster = Cluster(1)
        method: Method[AppendAuditRequest, AppendAuditReply] = APPEND_AUDIT
        handle = cluster.handlers["broker:1"][method.path]
        for rubbish in (b"", b"x" * 10, bytes(200), bytes(batch(b"a"))[:-1], bytes(batch(b"a")) * 2):
            request = AppendAuditRequest(NodeId(2), 0, rubbish)
            answer = method.reply.decode(await handle(method.request.encode(request)))
            assert answer.error is not ErrorCode.NONE
        assert cluster.logs == {}

    asyncio.run(main())


def test_a_line_is_ascii_whatever_clients_call_themselves() -> None:
    """Line ends and what a terminal obeys are escaped."""
    line = audit_line(0, "change", {"principal": "User:\n\x1b[2Jж\ud800"})
    assert line.isascii()
    assert line.isprintable()
