"""Fetch over a real socket: versions, limits, waiting, sessions, epochs and errors (rows S37, S40, S51, S52)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka_node import KafkaNode, kafka_node, until
from kafka_wire import KafkaClient, connect
from structlog.testing import capture_logs
from test_kafka_produce import batch, lonely_topic

from strandline.client import Admin, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.log.batch import iter_batches
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import Endpoint, TopicPartition
from strandline.proto.kafka.fetch import FIRST, LAST, TOPIC_ID_SINCE
from strandline.replica.partition import Append

VERSIONS = range(FIRST, LAST + 1)


def append(node: KafkaNode, topic: str, partition: int, *batches: bytes) -> None:
    """Write through the replicas, as the leader does."""
    outcomes: list[Append] = []
    for raw in batches:
        node.replicas.append(TopicPartition(topic, partition), memoryview(bytearray(raw)), 1, outcomes.append)
    assert [outcome.error for outcome in outcomes] == [0] * len(batches), outcomes


async def committed(node: KafkaNode, topic: str, partition: int, offset: int) -> None:
    """Wait until the high watermark is there: it follows the sync."""
    async with asyncio.timeout(5):
        while True:
            reached = node.replicas.list_offset(TopicPartition(topic, partition), -1)
            if reached.error == 0 and reached.offset >= offset:
                return
            await asyncio.sleep(0.002)


def parked(node: KafkaNode) -> bool:
    """A request has come, and waits for its answer."""
    return any(connection._exchanges for connection in node.listener.connections)


def fetch(
    client: KafkaClient,
    version: int,
    topic: str | UUID,
    partitions: dict[int, int | dict[str, Any]],
    *,
    max_wait_ms: int = 0,
    **options: Any,
) -> tuple[int, Any]:
    """Partitions: index -> offset, or the fields."""
    asked = []
    for index, fields in partitions.items():
        given = fields if isinstance(fields, dict) else {"fetch_offset": fields}
        asked.append({"partition": index, "partition_max_bytes": 1 << 20, **given})
    values: dict[str, Any] = {
        "replica_id": -1,
        "min_bytes": 1,
        "max_bytes": 1 << 24,
        "topics": [{"topic": topic, "topic_id": topic, "partitions": asked}] if asked else [],
        "forgotten_topics_data": (),
        **options,
    }
    return client.send("fetch", version, max_wait=max_wait_ms, **values)


async def fetched(client: KafkaClient, version: int, topic: str | UUID, partitions: Any, **options: Any) -> list[Any]:
    """The results, one a partition."""
    answer = await client.receive(fetch(client, version, topic, partitions, **options))
    return [one for part in answer.responses for one in part.partitions]


def sizes(raw: bytes) -> list[tuple[int, int]]:
    """(base offset, count) of the batches in an answer."""
    return [(header.base_offset, header.count) for header, _ in iter_batches(memoryview(raw))]


def test_every_version_reads(tmp_path: Path) -> None:
    """Each advertised version is served whole: names until 12, topic ids from 13 on."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            topic_id = node.create_topic("t", 2)
            append(node, "t", 0, batch(b"a", b"b"), batch(b"c"))
            await committed(node, "t", 0, 3)
            async with connect(node.listener.endpoint) as client:
                for version in VERSIONS:
                    topic = topic_id if version >= TOPIC_ID_SINCE else "t"
                    full, empty = await fetched(client, version, topic, {0: 0, 1: 0})
                    assert (full.error_code, full.high_watermark, full.last_stable_offset) == (0, 3, 3)
                    assert sizes(full.records) == [(0, 2), (2, 1)]
                    assert full.aborted_transactions is None
                    assert (empty.error_code, empty.records, empty.high_watermark) == (0, b"", 0)
                    (tail,) = await fetched(client, version, topic, {0: 2}, isolation_level=1)
                    assert sizes(tail.records) == [(2, 1)]
                    assert tail.aborted_transactions == ()

    asyncio.run(main())


def test_answers_respect_their_limits_and_make_progress(tmp_path: Path) -> None:
    """KIP-74: whole batches within the partition's and the answer's limit, but one batch at least in an answer."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", 2)
            big, small = batch(bytes(50_000)), batch(b"s")
            append(node, "t", 0, big, big, small)
            append(node, "t", 1, big)
            await committed(node, "t", 0, 3)
            await committed(node, "t", 1, 1)
            async with connect(node.listener.endpoint) as client:
                tiny = {"fetch_offset": 0, "partition_max_bytes": 10}
                first, second = await fetched(client, 11, "t", {0: tiny, 1: tiny})
                assert sizes(first.records) == [(0, 1)]
                assert second.records == b""
                assert second.high_watermark == 1
                (one,) = await fetched(client, 11, "t", {0: 0}, max_bytes=60_000)
                assert sizes(one.records) == [(0, 1)]
                (both,) = await fetched(client, 11, "t", {0: 0}, max_bytes=110_000)
                assert sizes(both.records) == [(0, 1), (1, 1), (2, 1)]
                first, second = await fetched(client, 11, "t", {0: 0, 1: 0}, max_bytes=len(big) * 2 + 10)
                assert (len(sizes(first.records)), second.records) == (2, b"")
                (nothing,) = await fetched(client, 11, "t", {0: 3}, max_bytes=0)
                assert nothing.records == b""

    asyncio.run(main())


def test_a_long_poll_is_answered_when_a_record_is_committed(tmp_path: Path) -> None:
    """Row S52: no busy waiting: one request, answered within moments of the record."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", 3)
            async with connect(node.listener.endpoint) as client:
                loop = asyncio.get_running_loop()
                sent = fetch(client, 11, "t", {0: 0, 1: 0, 2: 0}, max_wait_ms=20_000)
                await until(lambda: parked(node))
                started = loop.time()
                append(node, "t", 1, batch(b"news"))
                answer = await client.receive(sent)
                assert loop.time() - started < 10
                results = {one.partition_index: one for one in answer.responses[0].partitions}
                assert sizes(results[1].records) == [(0, 1)]
                assert results[1].high_watermark == 1
                assert results[0].records == b""

    asyncio.run(main())


def test_a_long_poll_ends_empty_after_its_wait(tmp_path: Path) -> None:
    """Nothing came: the answer says so after max_wait, not before."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            async with connect(node.listener.endpoint) as client:
                started = asyncio.get_running_loop().time()
                (result,) = await fetched(client, 11, "t", {0: 0}, max_wait_ms=120)
                assert 0.12 <= asyncio.get_running_loop().time() - started < 10
                assert (result.error_code, result.records) == (0, b"")

    asyncio.run(main())


def test_min_bytes_gathers_several_appends(tmp_path: Path) -> None:
    """What a parked fetch has read it keeps, in order, until there is enough of it."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            piece = batch(bytes(1000))
            async with connect(node.listener.endpoint) as client:
                sent = fetch(client, 11, "t", {0: 0}, max_wait_ms=20_000, min_bytes=3 * len(piece))
                for number in range(3):
                    await asyncio.sleep(0.01)
                    append(node, "t", 0, piece)
                    await committed(node, "t", 0, number + 1)
                (result,) = (await client.receive(sent)).responses[0].partitions
                assert sizes(result.records) == [(0, 1), (1, 1), (2, 1)]
                assert result.high_watermark == 3

    asyncio.run(main())


def test_a_lost_client_leaves_no_parked_fetch(tmp_path: Path) -> None:
    """The node's accounts are checked at the end of each test; here a fetch is parked when its client goes."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            append(node, "t", 0, batch(b"x"))
            await committed(node, "t", 0, 1)
            async with connect(node.listener.endpoint) as client:
                fetch(client, 11, "t", {0: 0}, max_wait_ms=20_000, min_bytes=1 << 20)
                await until(lambda: node.broker.memory.used_bytes)
            await until(lambda: not node.broker.memory.used_bytes)

    asyncio.run(main())


def test_what_is_refused(tmp_path: Path) -> None:
    """Each partition gets Kafka's error alone, and an error ends the wait of the whole answer."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            topic_id = node.create_topic("t")
            append(node, "t", 0, batch(b"x"))
            await committed(node, "t", 0, 1)
            cases: list[tuple[int, str | UUID, int, dict[str, Any], dict[str, Any], ErrorCode]] = [
                (11, "absent", 0, {}, {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                (11, "t", 9, {}, {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                (13, UUID(int=3), 0, {}, {}, ErrorCode.UNKNOWN_TOPIC_ID),
                (13, topic_id, 9, {}, {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                (11, "t", 0, {"fetch_offset": 5}, {}, ErrorCode.OFFSET_OUT_OF_RANGE),
                (11, "t", 0, {"fetch_offset": -1}, {}, ErrorCode.OFFSET_OUT_OF_RANGE),
                (11, "t", 0, {"current_leader_epoch": 7}, {}, ErrorCode.UNKNOWN_LEADER_EPOCH),
                (11, "t", 0, {}, {"replica_id": 2}, ErrorCode.INVALID_REQUEST),
                (15, topic_id, 0, {}, {"replica_state": {"replica_id": 2}}, ErrorCode.INVALID_REQUEST),
            ]
            async with connect(node.listener.endpoint) as client:
                for version, topic, partition, fields, options, error in cases:
                    asked = {partition: {"fetch_offset": 0, **fields}}
                    (result,) = await fetched(client, version, topic, asked, max_wait_ms=20_000, **options)
                    assert (result.error_code, result.records) == (error, b""), (error, result)
                bad, good = await fetched(client, 11, "t", {9: 0, 0: 0}, max_wait_ms=20_000)
                assert (bad.error_code, good.error_code, sizes(good.records)) == (3, 0, [(0, 1)])

    asyncio.run(main())


def test_a_follower_points_to_the_leader(tmp_path: Path) -> None:
    """Row S37: NOT_LEADER_OR_FOLLOWER; from version 16 on with the leader and its endpoint (KIP-951)."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            lonely_topic(node, leader_first=False)
            topic_id = node.controller.image.topics["lonely"].topic_id
            async with connect(node.listener.endpoint) as client:
                answer = await client.receive(fetch(client, 16, topic_id, {0: 0}, max_wait_ms=20_000))
                result = answer.responses[0].partitions[0]
                assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (2, 0)
                assert [(one.node_id, one.host, one.port) for one in answer.node_endpoints] == [(2, "elsewhere", 9092)]
                (old,) = await fetched(client, 11, "lonely", {0: 0}, max_wait_ms=20_000)
                assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(main())


def test_a_follower_answers_a_debugging_consumer(tmp_path: Path) -> None:
    """Replica id -2 (FetchRequest.DEBUGGING_CONSUMER_ID), as kafka-replica-verification reads each replica by its own
    broker: in the versions that name a rack (KIP-392), as with Kafka; before them it reads from leaders alone."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            lonely_topic(node, leader_first=False)
            topic_id = node.controller.image.topics["lonely"].topic_id
            debugging: dict[str, Any] = {"replica_id": -2}
            since_15: dict[str, Any] = {"replica_state": {"replica_id": -2}}
            async with connect(node.listener.endpoint) as client:
                for version, topic, options in ((11, "lonely", debugging), (17, topic_id, since_15)):
                    (result,) = await fetched(client, version, topic, {0: 0}, **options)
                    assert (result.error_code, result.records) == (0, b""), version
                (old,) = await fetched(client, 10, "lonely", {0: 0}, **debugging)
                assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                (consumer,) = await fetched(client, 11, "lonely", {0: 0})
                assert consumer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(main())


def test_every_replica_is_read_by_its_own_broker(cluster: DevCluster) -> None:
    """The same on real brokers: all three replicas give the same bytes, up to the high watermark that each knows."""
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topics([NewTopic("verified", 1, 3)])
        for number in range(10):
            producer.send("verified", b"%d" % number).result()

    async def read(address: str) -> bytes:
        host, _, port = address.rpartition(":")
        async with connect(Endpoint(host, int(port))) as client, asyncio.timeout(30):
            while True:  # followers hear of the high watermark a moment later
                (result,) = await fetched(client, 11, "verified", {0: 0}, replica_id=-2)
                assert result.error_code == 0
                if result.high_watermark == 10:
                    return bytes(result.records)
                await asyncio.sleep(0.01)

    async def main() -> None:
        first, *others = [await read(cluster.client(node)) for node in cluster.broker_ids]
        assert sum(count for _, count in sizes(first)) == 10
        assert others == [first, first]

    asyncio.run(main())


def test_uncommitted_records_are_not_shown(tmp_path: Path) -> None:
    """Row S40: a record that one replica of the ISR lacks is beyond the high watermark."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            lonely_topic(node)
            append(node, "lonely", 0, batch(b"x"))
            async with connect(node.listener.endpoint) as client:
                (result,) = await fetched(client, 11, "lonely", {0: 0}, max_wait_ms=60)
                assert (result.error_code, result.high_watermark, result.records) == (0, 0, b"")

    asyncio.run(main())


def test_a_reader_whose_history_diverges_is_told(tmp_path: Path) -> None:
    """KIP-595: the epoch before the fetch offset ended elsewhere in the leader's log."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            append(node, "t", 0, batch(b"x"))
            await committed(node, "t", 0, 1)
            async with connect(node.listener.endpoint) as client:
                same = {"fetch_offset": 1, "last_fetched_epoch": 0}
                (result,) = await fetched(client, 12, "t", {0: same})
                assert (result.error_code, result.diverging_epoch.epoch) == (0, -1)
                parted = {"fetch_offset": 1, "last_fetched_epoch": 4}
                (result,) = await fetched(client, 12, "t", {0: parted}, max_wait_ms=20_000)
                assert (result.diverging_epoch.epoch, result.diverging_epoch.end_offset) == (0, 1)
                assert result.records == b""

    asyncio.run(main())


@pytest.mark.parametrize("version", [7, 12, 18])
def test_an_incremental_session(tmp_path: Path, version: int) -> None:
    """KIP-227 on the wire: opened in full, then only news; errors of the session stand at the top."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            topic_id = node.create_topic("t", 3)
            await node.led("t")
            topic = topic_id if version >= TOPIC_ID_SINCE else "t"

            async def ask(session_id: int, epoch: int, partitions: Any, **options: Any) -> Any:
                sent = fetch(client, version, topic, partitions, session_id=session_id, session_epoch=epoch, **options)
                return await client.receive(sent)

            def told(answer: Any) -> list[tuple[int, int]]:
                return [(one.partition_index, len(one.records)) for part in answer.responses for one in part.partitions]

            async with connect(node.listener.endpoint) as client:
                opened = await ask(0, 0, {0: 0, 1: 0, 2: 0})
                assert opened.session_id > 0
                assert told(opened) == [(0, 0), (1, 0), (2, 0)]
                quiet = await ask(opened.session_id, 1, {})
                assert (quiet.error_code, quiet.session_id, told(quiet)) == (0, opened.session_id, [])
                raw = batch(b"x")
                append(node, "t", 1, raw)
                await committed(node, "t", 1, 1)
                assert told(await ask(opened.session_id, 2, {})) == [(1, len(raw))]
                assert told(await ask(opened.session_id, 3, {1: 1})) == []
                forgotten = [{"topic": topic, "topic_id": topic, "partitions": (0,)}]
                append(node, "t", 0, raw)
                await committed(node, "t", 0, 1)
                assert told(await ask(opened.session_id, 4, {}, forgotten_topics_data=forgotten)) == []
                stale = await ask(opened.session_id, 4, {})
                assert stale.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
                unknown = await ask(opened.session_id + 99, 1, {})
                assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
                assert node.fetch_sessions == 1
                assert (await ask(opened.session_id, -1, {2: 0})).session_id == 0
                assert node.fetch_sessions == 0

    asyncio.run(main())


def test_a_session_does_not_outlive_its_connection(tmp_path: Path) -> None:
    """Nor can another connection use it."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            async with connect(node.listener.endpoint) as client, connect(node.listener.endpoint) as other:
                opened = await client.receive(fetch(client, 11, "t", {0: 0}, session_epoch=0))
                stolen = await other.receive(fetch(other, 11, "t", {}, session_id=opened.session_id, session_epoch=1))
                assert stolen.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
                assert node.fetch_sessions == 1
            await until(lambda: not node.fetch_sessions)

    asyncio.run(main())


def test_cold_bytes_are_read_off_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not in memory is read by a task; answers keep their order, limits and contents, also for a fetch that was
    parked before, and a client that goes away meanwhile costs nothing."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", 2)
            append(node, "t", 0, batch(b"a"), batch(b"b"))
            await committed(node, "t", 0, 2)
            monkeypatch.setattr(node.replicas, "read", lambda *place, **limits: None)
            async with connect(node.listener.endpoint) as client:
                first = fetch(client, 11, "t", {0: 0, 1: 0})
                second = client.send("metadata", 4, topics=())
                cold, empty = (await client.receive(first)).responses[0].partitions
                assert (sizes(cold.records), empty.records, cold.high_watermark) == ([(0, 1), (1, 1)], b"", 2)
                await client.receive(second)
                waits = fetch(client, 11, "t", {1: 0}, max_wait_ms=20_000)
                await until(lambda: parked(node))
                append(node, "t", 1, batch(b"c"))
                (late,) = (await client.receive(waits)).responses[0].partitions
                assert sizes(late.records) == [(0, 1)]
                (bad,) = await fetched(client, 11, "t", {0: 99})
                assert bad.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

                async def never(*place: Any, **limits: Any) -> None:
                    await asyncio.sleep(60)

                monkeypatch.setattr(node.replicas, "read_cold", never)
                fetch(client, 11, "t", {0: 0})
                await until(lambda: node.broker.memory.used_bytes)
            await until(lambda: not node.broker.memory.used_bytes)

    asyncio.run(main())


def test_a_mistake_of_ours_in_a_parked_fetch_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no caller is left to see an exception, it is logged and the client is told UNKNOWN_SERVER_ERROR."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            async with connect(node.listener.endpoint) as client:
                sent = fetch(client, 11, "t", {0: 0}, max_wait_ms=20_000)
                await until(lambda: parked(node))

                def fail(*place: Any, **limits: Any) -> None:
                    raise ZeroDivisionError("on purpose")

                monkeypatch.setattr(node.replicas, "read", fail)
                with capture_logs() as logs:
                    append(node, "t", 0, batch(b"x"))
                    (result,) = (await client.receive(sent)).responses[0].partitions
                assert result.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
                assert [line["log_level"] for line in logs] == ["error"]

    asyncio.run(main())
