"""Isolation levels over a real socket: Fetch and ListOffsets of committed transactions, parked and in sessions (rule
C13)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kafka_node import KafkaNode, kafka_node
from kafka_wire import connect
from test_kafka_fetch import append, committed, fetch, fetched, parked, sizes, until
from test_kafka_produce import batch

from strandline.log.batch import Record, build_batch
from strandline.log.transactions import ABORTED_MAX, Marker
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.fetch import FIRST, LAST, READ_COMMITTED, READ_UNCOMMITTED, TOPIC_ID_SINCE
from strandline.replica.partition import Append

LATEST, NEWEST = -1, -3
LATER = 1_750_000_000_000
"""Newer than every other record."""


def write(
    node: KafkaNode, producer_id: int, sequence: int, *values: bytes, topic: str = "t", time_ms: int = 1_700_000_000_000
) -> None:
    """A batch of a transaction, as the leader takes it once the coordinator was asked."""
    tp = TopicPartition(topic, 0)
    partition = node.replicas.partition(tp)
    assert partition is not None
    assert partition.log is not None
    asked = partition.log.begin_verification(producer_id, 0, sequence, begins_at_0=False)
    records = [Record(0, time_ms, None, value, ()) for value in values]
    raw = build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True)
    outcomes: list[Append] = []
    node.replicas.append(tp, memoryview(raw), 1, outcomes.append, asked)
    assert [outcome.error for outcome in outcomes] == [0], outcomes[0].message


async def end(node: KafkaNode, producer_id: int, *, commit: bool, topic: str = "t") -> None:
    ended: asyncio.Future[Append] = asyncio.get_running_loop().create_future()
    node.replicas.append_marker(TopicPartition(topic, 0), Marker(producer_id, 0, commit, 0), 1, ended.set_result)
    async with asyncio.timeout(5):
        assert (await ended).error == 0


def aborted(result: Any) -> list[tuple[int, int]] | None:
    found = result.aborted_transactions
    return None if found is None else [(one.producer_id, one.first_offset) for one in found]


def test_every_version_knows_the_isolation_level(tmp_path: Path) -> None:
    """Both levels get LastStableOffset; one of them ends there, and gets what was aborted, by producer and first
    offset."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            topic_id = node.create_topic("t", 1)
            append(node, "t", 0, batch(b"a"))
            write(node, 7, 0, b"b", b"c")
            write(node, 8, 0, b"d")
            await end(node, 7, commit=False)
            append(node, "t", 0, batch(b"e"))
            await committed(node, "t", 0, 6)
            async with connect(node.listener.endpoint) as client:
                for version in range(FIRST, LAST + 1):
                    topic = topic_id if version >= TOPIC_ID_SINCE else "t"
                    (plain,) = await fetched(client, version, topic, {0: 0}, isolation_level=READ_UNCOMMITTED)
                    assert (plain.high_watermark, plain.last_stable_offset, aborted(plain)) == (6, 3, None)
                    assert sizes(plain.records)[-1] == (5, 1)
                    (stable,) = await fetched(client, version, topic, {0: 0}, isolation_level=READ_COMMITTED)
                    assert (stable.high_watermark, stable.last_stable_offset) == (6, 3)
                    assert (sizes(stable.records), aborted(stable)) == ([(0, 1), (1, 2)], [(7, 1)])
                    (none,) = await fetched(client, version, topic, {0: 3}, isolation_level=READ_COMMITTED)
                    assert (none.records, aborted(none)) == (b"", [])
                await end(node, 8, commit=True)
                (whole,) = await fetched(client, 11, "t", {0: 2}, isolation_level=READ_COMMITTED)
                assert (sizes(whole.records)[-1], aborted(whole), whole.last_stable_offset) == ((6, 1), [(7, 1)], 7)

    asyncio.run(main())


def test_a_long_poll_for_committed_transactions_ends_with_the_marker(tmp_path: Path) -> None:
    """What comes behind an open transaction answers who reads everything, and not who reads what is committed."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", 1)
            write(node, 7, 0, b"a")
            await committed(node, "t", 0, 1)
            async with connect(node.listener.endpoint) as client, connect(node.listener.endpoint) as other:
                waits = fetch(client, 11, "t", {0: 0}, max_wait_ms=60_000, isolation_level=READ_COMMITTED)
                await until(lambda: parked(node))
                reads, read = 0, node.replicas.read

                def counted(*args: Any, **options: Any) -> Any:
                    nonlocal reads
                    reads += options["read_committed"]
                    return read(*args, **options)

                node.replicas.read = counted  # type: ignore[method-assign]
                append(node, "t", 0, batch(b"b"))
                (plain,) = await fetched(other, 11, "t", {0: 1}, max_wait_ms=60_000)
                assert sizes(plain.records) == [(1, 1)]
                assert parked(node)
                assert reads == 0, "a parked poll costs nothing while the transaction is open"
                await end(node, 7, commit=False)
                answer = await client.receive(waits)
                [result] = answer.responses[0].partitions
                assert [base for base, _ in sizes(result.records)] == [0, 1, 2]
                assert (aborted(result), result.last_stable_offset) == ([(7, 0)], 3)

    asyncio.run(main())


def test_a_parked_poll_that_gathers_names_each_aborted_transaction_once(tmp_path: Path) -> None:
    """It has two parts of one transaction that was aborted, from two reads: the second began inside of it."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", 1)
            async with connect(node.listener.endpoint) as client:
                append(node, "t", 0, batch(b"x" * 300))
                await committed(node, "t", 0, 1)
                waits = fetch(client, 11, "t", {0: 0}, max_wait_ms=60_000, min_bytes=900, isolation_level=1)
                await until(lambda: parked(node))
                write(node, 7, 0, b"b")
                write(node, 8, 0, b"c")
                await end(node, 7, commit=False)
                await end(node, 8, commit=False)
                append(node, "t", 0, batch(b"y" * 300))
                answer = await client.receive(waits)
                [result] = answer.responses[0].partitions
                assert [base for base, _ in sizes(result.records)] == [0, 1, 2, 3, 4, 5]
                assert aborted(result) == [(7, 1), (8, 2)]

    asyncio.run(main())


def test_an_answer_names_no_more_aborted_transactions_than_it_has_batches(tmp_path: Path) -> None:
    """Many producers have a transaction open at once, and each one overlaps every read between its two ends. A reader
    needs those of which it gets a batch."""
    several = ABORTED_MAX + 20

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", 1)
            for producer_id in range(several):
                write(node, producer_id, 0, b"a")
            for producer_id in range(several):
                await end(node, producer_id, commit=False)
            async with connect(node.listener.endpoint) as client:
                (whole,) = await fetched(client, 11, "t", {0: 0}, isolation_level=1)
                assert aborted(whole) == [(producer_id, producer_id) for producer_id in range(several)]
                last = several - 1
                (one,) = await fetched(client, 11, "t", {0: last}, isolation_level=1, max_bytes=1)
                assert (sizes(one.records), aborted(one)) == ([(last, 1)], [(last, last)])

    asyncio.run(main())


def test_a_session_tells_of_the_last_stable_offset(tmp_path: Path) -> None:
    """KIP-227: an incremental answer has the partition again when its last stable offset rose, even without records for
    the client."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            topic_id = node.create_topic("t", 1)
            write(node, 7, 0, b"a")
            await committed(node, "t", 0, 1)
            async with connect(node.listener.endpoint) as client:
                first = await client.receive(
                    fetch(client, 13, topic_id, {0: 0}, session_epoch=0, isolation_level=READ_COMMITTED)
                )
                session = {"session_id": first.session_id, "isolation_level": READ_COMMITTED}
                assert first.responses[0].partitions[0].last_stable_offset == 0
                again = await client.receive(fetch(client, 13, topic_id, {}, session_epoch=1, **session))
                assert again.responses == ()
                append(node, "t", 0, batch(b"b"))
                await committed(node, "t", 0, 2)
                more = await client.receive(fetch(client, 13, topic_id, {}, session_epoch=2, **session))
                assert [more.responses[0].partitions[0].last_stable_offset] == [0], "the high watermark has risen"
                assert more.responses[0].partitions[0].records == b""
                await end(node, 7, commit=True)
                ended = await client.receive(fetch(client, 13, topic_id, {}, session_epoch=3, **session))
                [result] = ended.responses[0].partitions
                assert (result.last_stable_offset, [base for base, _ in sizes(result.records)]) == (3, [0, 1, 2])

    asyncio.run(main())


@pytest.mark.parametrize("version", [1, 2, 7, 11])
def test_offsets_of_committed_transactions(tmp_path: Path, version: int) -> None:
    """ListOffsets: latest is the last stable offset, and no time of an open transaction is told. Version 1 knows no
    isolation level."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", 1)
            append(node, "t", 0, batch(b"a"))
            write(node, 7, 0, b"b", time_ms=LATER)
            await committed(node, "t", 0, 2)
            async with connect(node.listener.endpoint) as client:

                async def ask(timestamp: int, level: int) -> int:
                    asked = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
                    fields: dict[str, Any] = {"replica_id": -1, "topics": [{"name": "t", "partitions": [asked]}]}
                    if version >= 2:
                        fields["isolation_level"] = level
                    if version >= 10:
                        fields["timeout_ms"] = 1_000
                    answer = await client.ask("list_offsets", version, **fields)
                    [found] = answer.topics[0].partitions
                    assert found.error_code == 0
                    offset: int = found.offset
                    return offset

                stable = READ_COMMITTED if version >= 2 else READ_UNCOMMITTED
                assert await ask(LATEST, READ_UNCOMMITTED) == 2
                assert await ask(LATER, READ_UNCOMMITTED) == 1
                if stable == READ_COMMITTED:
                    assert await ask(LATEST, READ_COMMITTED) == 1
                    assert await ask(LATER, READ_COMMITTED) == -1
                    if version >= 7:
                        assert (await ask(NEWEST, READ_COMMITTED), await ask(NEWEST, READ_UNCOMMITTED)) == (0, 1)
                await end(node, 7, commit=False)
                assert await ask(LATEST, stable) == 3

    asyncio.run(main())
