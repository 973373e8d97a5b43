"""Produce over a real socket: each version, each kind of acks, and what is refused (rows S20, S22 to S24, S37, S41)."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from kafka_node import KafkaNode, kafka_node, until
from kafka_wire import KafkaClient, connect
from structlog.testing import capture_logs
from tests.replica.helpers import syncs_held

from strandline.controller import api
from strandline.controller.machine import topics
from strandline.log.batch import HEADER_SIZE, Record, assemble_batch, build_batch
from strandline.log.compression import Codec
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import Endpoint, NodeId, TopicPartition
from strandline.proto.kafka import produce as wire

VERSIONS = range(wire.FIRST, wire.LAST + 1)


def batch(*values: bytes, codec: Codec = Codec.NONE, **producer: int) -> bytes:
    records = [Record(number, 1_000_000 + number, b"key", value, ()) for number, value in enumerate(values)]
    return bytes(build_batch(records, codec=codec, **producer))


def produce(
    client: KafkaClient,
    version: int,
    topic: str | UUID,
    records: dict[int, bytes | None],
    *,
    acks: int = -1,
    timeout_ms: int = 5000,
    transactional_id: str | None = None,
) -> tuple[int, Any]:
    data = [{"index": index, "records": raw} for index, raw in records.items()]
    return client.send(
        "produce",
        version,
        transactional_id=transactional_id,
        acks=acks,
        timeout=timeout_ms,
        topic_data=[{"name": topic, "topic_id": topic, "partition_data": data}],
    )


async def produced(client: KafkaClient, version: int, topic: str | UUID, records: Any, **options: Any) -> Any:
    """The result of the one partition."""
    answer = await client.receive(produce(client, version, topic, records, **options))
    return answer.responses[0].partition_responses[0]


def stored(node: KafkaNode, topic: str, partition: int = 0) -> bytes:
    outcome = node.replicas.read(TopicPartition(topic, partition), 0, 1 << 20)
    assert outcome is not None
    return outcome.data


def test_every_version_appends(tmp_path: Path) -> None:
    """Each advertised version is served whole: names until 12, topic ids from 13 on."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            topic_id = node.create_topic("t")
            async with connect(node.listener.endpoint) as client:
                for number, version in enumerate(VERSIONS):
                    for acks in (1, -1):
                        topic = topic_id if version >= wire.TOPIC_ID_SINCE else "t"
                        result = await produced(client, version, topic, {0: batch(b"x")}, acks=acks)
                        assert result.error_code == 0
                        assert result.base_offset == 2 * number + (acks == -1)
                        if version >= wire.LOG_START_SINCE:
                            assert result.log_start_offset == 0
                        if version >= wire.MESSAGE_SINCE:
                            assert (result.record_errors, result.error_message) == ((), None)

    asyncio.run(main())


def test_a_batch_is_stored_as_it_came(tmp_path: Path) -> None:
    """Row S20: only base offset and leader epoch differ, which no checksum covers; the records are the producer's
    bytes."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            sent = [batch(b"one", b"two"), batch(b"three", codec=Codec.ZSTD), batch(b"")]
            async with connect(node.listener.endpoint) as client:
                for raw in sent:
                    assert (await produced(client, 9, "t", {0: raw})).error_code == 0
            kept = stored(node, "t")
            for raw, base_offset in zip(sent, (0, 2, 3), strict=True):
                assert struct.unpack_from(">q", kept)[0] == base_offset
                assert kept[16 : len(raw)] == raw[16:]
                kept = kept[len(raw) :]
            assert kept == b""

    asyncio.run(main())


def test_acks_0_has_no_answer(tmp_path: Path) -> None:
    """Row S22: nothing is answered, and the next request's answer comes next."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            async with connect(node.listener.endpoint) as client:
                produce(client, 7, "t", {0: batch(b"quiet")}, acks=0)
                assert (await produced(client, 7, "t", {0: batch(b"loud")}, acks=1)).base_offset == 1

    asyncio.run(main())


def test_acks_0_that_fails_closes_the_connection(tmp_path: Path) -> None:
    """Kafka's rule: there is no other way to tell that producer to look for the leader again."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            with capture_logs() as logs:
                async with connect(node.listener.endpoint) as client:
                    produce(client, 7, "absent", {0: batch(b"x")}, acks=0)
                    assert await client.closed()
                await asyncio.sleep(0.01)
            assert "UNKNOWN_TOPIC_OR_PARTITION" in logs[-1]["reason"]

    asyncio.run(main())


def refusals(node: KafkaNode) -> list[tuple[Any, ...]]:
    """(version, topic, partition, records, options, error, words)."""
    good = batch(b"x")
    wrong_crc = bytearray(good)
    wrong_crc[-1] ^= 1
    old_magic = bytearray(good)
    old_magic[16] = 1
    liar = bytearray(good)
    struct.pack_into(">i", liar, 8, 5_000_000)
    many = bytearray(good)
    struct.pack_into(">i", many, 57, 1000)
    struct.pack_into(">I", many, 17, crc32c(bytes(many[21:])))
    return [
        (9, "t", 0, good, {"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS, "acks=2"),
        (9, "t", 0, good, {"acks": -2}, ErrorCode.INVALID_REQUIRED_ACKS, "acks=-2"),
        (9, "absent", 0, good, {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "strandline topic create absent"),
        (9, "t", 7, good, {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t-7"),
        (9, "no/name", 0, good, {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "no/name"),
        (13, UUID(int=77), 0, good, {}, ErrorCode.UNKNOWN_TOPIC_ID, "id"),
        (9, "t", 0, None, {}, ErrorCode.INVALID_RECORD, "exactly one"),
        (9, "t", 0, b"", {}, ErrorCode.INVALID_RECORD, "exactly one"),
        (9, "t", 0, good + good, {}, ErrorCode.INVALID_RECORD, "exactly one"),
        (9, "t", 0, bytes(old_magic), {}, ErrorCode.INVALID_RECORD, "format 1"),
        (9, "t", 0, good[:30], {}, ErrorCode.CORRUPT_MESSAGE, "61"),
        (9, "t", 0, good[:-3], {}, ErrorCode.CORRUPT_MESSAGE, "claims"),
        (9, "t", 0, bytes(liar), {}, ErrorCode.CORRUPT_MESSAGE, "claims"),
        (9, "t", 0, bytes(wrong_crc), {}, ErrorCode.CORRUPT_MESSAGE, ""),
        (9, "t", 0, bytes(many), {}, ErrorCode.INVALID_RECORD, "count"),
        (
            9,
            "t",
            0,
            good,
            {"transactional_id": "a"},
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "has no transactions yet",
        ),
        (6, "t", 0, batch(b"x", codec=Codec.ZSTD), {}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, None),
        (9, "small", 0, batch(bytes(2000)), {}, ErrorCode.MESSAGE_TOO_LARGE, ""),
        *(
            (9, "t", 0, _holding(body, codec), {}, ErrorCode.INVALID_RECORD, words)
            for codec in Codec
            for body, words in (
                (b"\x7fnonsense", "does not parse"),
                (bytes(good[HEADER_SIZE:-1]), "does not parse"),
                (bytes(good[HEADER_SIZE:]) + b"\0", "bytes left"),
            )
        ),
        *((9, "t", 0, _not_packed(codec), {}, ErrorCode.INVALID_RECORD, "unpack") for codec in list(Codec)[1:]),
        (9, "small", 0, _holding(bytes(40_000), Codec.ZSTD), {}, ErrorCode.MESSAGE_TOO_LARGE, "unpacks"),
    ]


def _holding(body: bytes, codec: Codec) -> bytes:
    """A batch with everything right around these bytes in place of one record."""
    return bytes(assemble_batch(body, count=1, last_offset_delta=0, base_timestamp=1, max_timestamp=1, codec=codec))


def _not_packed(codec: Codec) -> bytes:
    """A batch that says it is compressed, and is not; its CRC is that of what it holds."""
    made = bytearray(_holding(b"this was never compressed", Codec.NONE))
    made[22] |= codec
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


def test_what_is_refused_and_why(tmp_path: Path) -> None:
    """Each gets Kafka's error, from version 8 on with a sentence; nothing is written and the connection goes on."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            node.create_topic("small", max_message_bytes="1000")
            async with connect(node.listener.endpoint) as client:
                for version, topic, partition, records, options, error, words in refusals(node):
                    result = await produced(client, version, topic, {partition: records}, **options)
                    assert (result.error_code, result.base_offset) == (error, -1), (error, result)
                    if words is not None:
                        assert words in (result.error_message or ""), result
                assert stored(node, "t") == b""
                assert (await produced(client, 9, "t", {0: batch(b"x")})).base_offset == 0

    asyncio.run(main())


NOT_UNDER_THE_CRC = {
    **dict.fromkeys(range(8), ErrorCode.INVALID_RECORD),  # base offset: not 0, which Kafka looks at first too
    **dict.fromkeys(range(12, 16), ErrorCode.NONE),  # leader epoch: the leader sets it
}
"""Of the bytes of a header, those that a producer's CRC does not cover, and what a flipped bit in one is answered."""


def test_a_flipped_bit_in_a_header_is_a_corrupt_message(tmp_path: Path) -> None:
    """A bit that flipped on the way is told by the CRC, as Kafka tells it, and the producer sends the batch again. A
    field's refusal (INVALID_RECORD) would lose the record."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            good = batch(b"x" * 10, b"y" * 10)
            async with connect(node.listener.endpoint) as client:
                for position in range(HEADER_SIZE):
                    for bit in range(8):
                        flipped = bytearray(good)
                        flipped[position] ^= 1 << bit
                        expected = NOT_UNDER_THE_CRC.get(position, ErrorCode.CORRUPT_MESSAGE)
                        if (position, bit) == (0, 7):  # a base offset below 0
                            expected = ErrorCode.CORRUPT_MESSAGE
                        if flipped[16] in (0, 1):  # format 0 or 1: Kafka, too, looks no further
                            expected = ErrorCode.INVALID_RECORD
                        for version in (5, 9):  # 5: it could not mean zstd
                            result = await produced(client, version, "t", {0: bytes(flipped)})
                            assert result.error_code == expected, (position, bit, version, result)

    asyncio.run(main())


def test_partitions_of_a_request_fail_alone(tmp_path: Path) -> None:
    """Results stand in the order of the request."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", 3)
            await node.led("t")
            async with connect(node.listener.endpoint) as client:
                sent = produce(client, 9, "t", {2: batch(b"a"), 9: batch(b"b"), 0: b"junk", 1: batch(b"c")})
                results = (await client.receive(sent)).responses[0].partition_responses
                assert [(one.index, int(one.error_code)) for one in results] == [(2, 0), (9, 3), (0, 2), (1, 0)]

    asyncio.run(main())


def lonely_topic(node: KafkaNode, leader_first: bool = True) -> None:
    """A topic with a second replica on a broker that will never fetch: nothing gets committed."""
    node.controller.start_broker(NodeId(2), Endpoint("elsewhere", 9092), rack="b")
    replicas = (NodeId(1), NodeId(2)) if leader_first else (NodeId(2), NodeId(1))
    topic = api.CreatableTopic("lonely", assignments=(api.ReplicaAssignment(0, replicas),))
    node.controller.run(topics.create_topics(node.controller.state, api.CreateTopicsRequest((topic,))))


def test_a_request_that_held_the_loop_is_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed batches, and those that their topic packs anew, are left to be sent again; the others cost nothing."""
    monkeypatch.setattr("strandline.cluster.broker.handlers.produce.HOLD_MS_MAX", -1.0)

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", partitions=2)
            node.create_topic("packed", compression_type="lz4")
            async with connect(node.listener.endpoint) as client:
                records = {0: batch(b"plain"), 1: batch(b"small", codec=Codec.GZIP)}
                answer = await client.receive(produce(client, 9, "t", records))
                plain, small = answer.responses[0].partition_responses
                assert (plain.error_code, plain.base_offset) == (0, 0)
                assert small.error_code == ErrorCode.REQUEST_TIMED_OUT
                assert "send this batch again" in small.error_message
                anew = await produced(client, 9, "packed", {0: batch(b"plain")})
                assert anew.error_code == ErrorCode.REQUEST_TIMED_OUT

    asyncio.run(main())


def test_acks_all_that_is_not_replicated_times_out(tmp_path: Path) -> None:
    """Row S24: no ack while a replica in the ISR lacks the batch; the request's timeout answers REQUEST_TIMED_OUT."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            lonely_topic(node)
            async with connect(node.listener.endpoint) as client:
                started = asyncio.get_running_loop().time()
                try:
                    async with asyncio.timeout(5):
                        result = await produced(client, 9, "lonely", {0: batch(b"x")}, timeout_ms=200)
                except TimeoutError:
                    raise AssertionError("no answer, long after the request's own timeout") from None
                assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
                assert 0.2 <= asyncio.get_running_loop().time() - started < 2
                assert (await produced(client, 9, "lonely", {0: batch(b"y")}, acks=1)).base_offset == 1

    asyncio.run(main())


def test_answers_keep_the_order_of_requests(tmp_path: Path) -> None:
    """A request that waits for its replicas holds back the answers behind it, and nothing else."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            lonely_topic(node)
            async with connect(node.listener.endpoint) as client:
                slow = produce(client, 9, "lonely", {0: batch(b"x")}, timeout_ms=150)
                quick = produce(client, 9, "t", {0: batch(b"y")})
                third = client.send("metadata", 9, topics=None)
                assert (await client.receive(slow)).responses[0].partition_responses[0].error_code == 7
                assert (await client.receive(quick)).responses[0].partition_responses[0].error_code == 0
                assert len((await client.receive(third)).topics) == 2

    asyncio.run(main())


def test_a_lost_client_leaves_nothing_behind(tmp_path: Path) -> None:
    """A producer that goes while its batch waits: the batch stays, the request is forgotten."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            lonely_topic(node)
            async with connect(node.listener.endpoint) as client:
                produce(client, 9, "lonely", {0: batch(b"x")}, timeout_ms=100)
                await until(lambda: any(one.log_end_offset for one in node.replicas.hosted()))
            await until(lambda: not node.listener.stats.connections)
            await asyncio.sleep(0.15)  # its time passes

    asyncio.run(main())


def test_a_follower_points_to_the_leader(tmp_path: Path) -> None:
    """Row S37: NOT_LEADER_OR_FOLLOWER, from version 10 on with the leader and where it is (KIP-951)."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            lonely_topic(node, leader_first=False)
            async with connect(node.listener.endpoint) as client:
                answer = await client.receive(produce(client, 10, "lonely", {0: batch(b"x")}))
                result = answer.responses[0].partition_responses[0]
                assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (2, 0)
                assert [(one.node_id, one.host, one.rack) for one in answer.node_endpoints] == [(2, "elsewhere", "b")]
                old = await client.receive(produce(client, 9, "lonely", {0: batch(b"x")}))
                assert old.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(main())


def test_idempotent_batches_are_written_once(tmp_path: Path) -> None:
    """Row S31: a batch sent again gets its first offset; a gap is OUT_OF_ORDER_SEQUENCE_NUMBER."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")

            def numbered(sequence: int, *values: bytes) -> bytes:
                return batch(*values, producer_id=5, producer_epoch=0, base_sequence=sequence)

            async with connect(node.listener.endpoint) as client:
                first = numbered(0, b"a", b"b")
                assert (await produced(client, 9, "t", {0: first})).base_offset == 0
                assert (await produced(client, 9, "t", {0: numbered(2, b"c")})).base_offset == 2
                again = await produced(client, 9, "t", {0: first})
                assert (again.error_code, again.base_offset) == (0, 0)
                gap = await produced(client, 9, "t", {0: numbered(9, b"z")})
                assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert len(stored(node, "t")) == len(first) + len(numbered(2, b"c"))

    asyncio.run(main())


def test_a_batch_that_came_before_its_topic_is_not_overtaken(tmp_path: Path) -> None:
    """Schedule 52: the broker's metadata were behind the client's when the first batch came. The second, which may be
    on its way already, is refused alike until the first has come again."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node, connect(node.listener.endpoint) as client:

            async def sent(sequence: int) -> Any:
                numbered = batch(b"x", producer_id=5, producer_epoch=0, base_sequence=sequence)
                return await produced(client, 9, "late", {0: numbered})

            assert (await sent(0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            node.create_topic("late")
            overtaking = await sent(1)
            assert overtaking.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert "an earlier batch of this producer was refused" in overtaking.error_message
            assert [(await sent(sequence)).base_offset for sequence in (0, 1)] == [0, 1]

    asyncio.run(main())


@pytest.mark.parametrize("software", ["strandline-python", "another-client"])
def test_our_own_client_is_told_who_had_synced(tmp_path: Path, software: str) -> None:
    """The replicas that had synced the batch at the ack, in a tagged field that nobody else is sent."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            async with connect(node.listener.endpoint) as client:
                await client.ask("api_versions", 3, client_software_name=software, client_software_version="1.0")
                produce(client, 9, "t", {0: batch(b"x")})
                raw = await client.receive_frame()
                field = b"\xd9\x36\x05\x02\x00\x00\x00\x01"  # tag 7001, 5 bytes, one element, node 1
                assert (field in raw) == (software == "strandline-python")

    asyncio.run(main())


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_client_is_held_up_by_a_disk_that_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    """Rule B51: beyond a bound of bytes that wait for their sync nothing more is taken from its connection."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t")
            plog = node.replicas.partition(TopicPartition("t", 0)).log  # type: ignore[union-attr]
            assert plog is not None
            async with connect(node.listener.endpoint) as client:
                assert (await produced(client, 9, "t", {0: batch(b"x")})).error_code == 0
                monkeypatch.setattr("strandline.log.syncer.UNSYNCED_BYTES_MAX", 150)
                with syncs_held(plog.disk, monkeypatch):
                    for _ in range(5):
                        produce(client, 9, "t", {0: batch(b"x" * 50)}, acks=acks)
                    await until(lambda: plog.log_end_offset == 3)
                    await asyncio.sleep(0.05)
                    assert plog.log_end_offset == 3, "one makes it too much"
                await until(lambda: plog.log_end_offset == 6)
            assert not node.listener.stats.refused

    asyncio.run(main())
