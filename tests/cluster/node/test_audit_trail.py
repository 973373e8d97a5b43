"""The audit of a node in the topic `__audit`: read by those who may, and by `strandline audit tail` (rule A20)."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs
from tests.cluster.node.secure_node import at
from tests.cluster.node.test_acls import allow, client_of, in_thread, run

from strandline.cli import audit_sources
from strandline.cli.audit import audit
from strandline.cli.audit_sources import AuditRecords, Raw
from strandline.client import ConfigResource, ConsumerRecord, NewTopic, Operation, metadata
from strandline.client import Consumer as SyncConsumer
from strandline.client.aio import Admin, Consumer, Producer
from strandline.cluster.node.audit_partitions import APPEND_AUDIT, AppendAuditRequest
from strandline.cluster.node.metrics import Metrics
from strandline.cluster.node.node import Node
from strandline.log.batch import RecordBatchBuilder
from strandline.proto.audit import AUDIT_TOPIC, audit_line
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.messages.method import call


async def written(node: Node) -> None:
    """Every line is in the topic."""
    assert node.broker is not None
    assert node.broker.audit_trail is not None
    assert node.broker.audit_trail.topic is not None
    async with asyncio.timeout(20):
        while node.broker.audit_trail.topic.waiting:
            await asyncio.sleep(0.01)


async def in_topic(node: Node, name: str) -> list[ConsumerRecord]:
    """What a client of this name reads in the topic."""
    async with Consumer(at(node, "SSL"), auto_offset_reset="earliest", **client_of(name)) as consumer:
        consumer.assign([(AUDIT_TOPIC, 0)])
        ends = await consumer.end_offsets([(AUDIT_TOPIC, 0)])
        records: list[ConsumerRecord] = []
        while len(records) < sum(ends.values()):
            records += await consumer.poll(5.0)
        return records


async def tail(node: Node, *words: str, name: str = "admin") -> Result:
    """`strandline audit tail` by a client of this name."""
    settings = [word for key, value in client_of(name).items() for word in ("-X", f"{key.replace('_', '.')}={value}")]
    where = ["--bootstrap", at(node, "SSL"), *settings]
    return await in_thread(lambda: CliRunner().invoke(audit, ["tail", *words, *where]))


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


async def relayed(node: Node, broker: int, partition: int = 0) -> ErrorCode:
    """A line of another broker, as it gives them to this one; what became of it."""
    host, _, port = str(node.describe()["INTERNAL"]).rpartition(":")
    builder = RecordBatchBuilder()
    line = audit_line(node.clock.wall_ms(), "dropped", {"lines": 3})
    builder.append(node.clock.wall_ms(), b"", line.encode(), (("broker", b"%d" % broker),))
    request = AppendAuditRequest(NodeId(broker), partition, bytes(builder.build()))
    reply = await call(node.rpc, Endpoint(host, int(port)), APPEND_AUDIT, request, timeout_ms=5_000)
    return reply.error


def test_the_topic_has_what_the_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same lines, in their order; READ is asked for, nobody else writes there, and writing has no line itself."""
    monkeypatch.setattr(metadata, "UNKNOWN_TOPIC_GRACE_MS", 50)
    path = tmp_path / "audit.log"

    async def body(node: Node) -> None:
        missing = await tail(node)
        assert missing.exit_code == 1
        assert f"there is no topic {AUDIT_TOPIC} here" in missing.output
        bootstrap = at(node, "SSL")
        async with Admin(bootstrap, **client_of("admin")) as admin, Admin(at(node, "PLAINTEXT")) as nobody:
            await admin.create_topics([NewTopic("t", 1, 1)])
            with pytest.raises(KafkaError):
                await admin.create_topics([NewTopic("t", 1, 1)])
            with pytest.raises(KafkaError):
                await nobody.describe_acls()
            await admin.create_acls([allow("User:alice", Operation.READ, AUDIT_TOPIC)])
            await written(node)
            [entries] = (await admin.describe_configs([ConfigResource("topic", AUDIT_TOPIC)])).values()
        configs = {entry.name: entry.value for entry in entries}
        kept_for = (configs["cleanup.policy"], configs["retention.ms"], configs["segment.ms"])
        assert kept_for == ("delete", "604800000", "86400000")
        records = await in_topic(node, "alice")
        kept = [record.value or b"" for record in records]
        in_files = path.read_bytes().splitlines() + Path(f"{path}.attempts").read_bytes().splitlines()
        assert sorted(kept) == sorted(in_files)
        assert [json.loads(line)["event"] for line in kept] == ["change", "change", "denied", "change"]
        assert [record.key for record in records] == [json.loads(line)["principal"].encode() for line in kept]
        assert {record.headers for record in records} == {(("broker", b"1"),)}
        assert abs(records[-1].timestamp_ms - node.clock.wall_ms()) < 60_000
        async with Producer(bootstrap, **client_of("admin")) as producer:
            with pytest.raises(KafkaError, match=f"only the cluster itself writes to {AUDIT_TOPIC}"):
                await producer.send_and_wait(AUDIT_TOPIC, b"{}")
        await tailed(node)
        page = Metrics(node).render().decode()
        for told in ('dropped_total{to="topic"} 0.0', 'dropped_total{to="file"} 0.0', "waiting 0.0"):
            assert f"strandline_audit_{told}" in page

    run(tmp_path / "data", body, audit_log_path=str(path), audit_topic_enable="true")


async def tailed(node: Node) -> None:
    """What the command shows of the lines of the test above."""
    told = lines(await tail(node, "-o", "json"))
    assert [(line["event"], line["broker"]) for line in told] == [
        *(("change", 1), ("change", 1), ("denied", 1), ("change", 1))
    ]
    [denied] = lines(await tail(node, "-o", "json", "--result", "denied"))
    assert (denied["principal"], denied["operation"]) == ("User:ANONYMOUS", "DESCRIBE")
    [failed] = lines(await tail(node, "-o", "json", "--action", "CreateTopics", "--result", "failed"))
    assert failed["result"] == "TOPIC_ALREADY_EXISTS"
    assert lines(await tail(node, "-o", "json", "-n", "1", "--principal", "User:admin"))[0]["api"] == "CreateAcls"
    refused = await tail(node, name="bob")
    assert (refused.exit_code, "TOPIC_AUTHORIZATION_FAILED" in refused.output) == (1, True)
    assert await relayed(node, 2) is ErrorCode.NONE
    shown = (await tail(node, "-n", "2")).output
    assert "broker 2 could not write 3 lines" in shown


def test_the_topic_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From behind what was shown on, in partitions that were added meanwhile too."""
    monkeypatch.setattr(audit_sources, "LOOK_MS", 0.0)

    async def body(node: Node) -> None:
        following: queue.Queue[list[Raw]] = queue.Queue()
        stop = threading.Event()

        def follow() -> None:
            with SyncConsumer(
                at(node, "SSL"), auto_offset_reset="none", metadata_max_age_ms=100, **client_of("admin")
            ) as consumer:
                source = AuditRecords(consumer)
                following.put(source.newest(1, lambda _: True))
                source.begin_at_end()
                while not stop.is_set():
                    found = source.poll(0.1)
                    if found:
                        following.put(found)

        async def more() -> list[tuple[int | None, str]]:
            found = await in_thread(lambda: following.get(timeout=20))
            return [(raw.broker, raw.where) for raw in found]

        async with Admin(at(node, "SSL"), **client_of("admin")) as admin:
            await admin.create_topics([NewTopic(AUDIT_TOPIC, 1, 1), NewTopic("t", 1, 1)])
            await written(node)
            follower = asyncio.create_task(in_thread(follow))
            try:
                assert await more() == [(1, "__audit-0 offset 1")]
                assert await relayed(node, 2) is ErrorCode.NONE
                assert await more() == [(2, "__audit-0 offset 2")]
                await admin.create_partitions({AUDIT_TOPIC: 2})
                assert await relayed(node, 3, partition=1) is ErrorCode.NONE
                found = await more()
                while len(found) < 2:
                    found += await more()
                assert sorted(found) == [(1, "__audit-0 offset 3"), (3, "__audit-1 offset 0")]
            finally:
                stop.set()
                await follower

    run(tmp_path, body, audit_topic_enable="true")


def test_a_stop_writes_what_waits(tmp_path: Path) -> None:
    """The last line is there after a restart, though nobody waited for it; and nothing is said to be lost. The command
    finds a line however many came after it."""
    groups = [[allow(f"User:u{number}", Operation.READ) for number in range(at, at + 100)] for at in (0, 100, 200)]

    async def first(node: Node) -> None:
        async with Admin(at(node, "SSL"), **client_of("admin")) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])
            for bindings in groups:
                await admin.create_acls(bindings)
        assert node.broker is not None
        assert node.broker.audit_trail is not None
        assert node.broker.audit_trail.topic is not None
        assert node.broker.audit_trail.topic.waiting

    async def again(node: Node) -> None:
        expected = ["topic t", *(f"ACL {binding}" for bindings in groups for binding in bindings)]
        told = lines(await tail(node, "-o", "json", "-n", "150"))
        assert [line["what"] for line in told] == expected[-150:]
        [oldest] = lines(await tail(node, "-o", "json", "-n", "1", "--action", "createtopics"))
        assert oldest["what"] == "topic t"
        assert [line["what"] for line in lines(await tail(node, "-o", "json", "-n", "1000"))] == expected
        assert lines(await tail(node, "-o", "json", "-n", "0")) == []

    with capture_logs() as logs:
        run(tmp_path, first, audit_topic_enable="true")
        run(tmp_path, again, audit_topic_enable="true")
    assert not [line for line in logs if "audit lines" in line["event"]]
