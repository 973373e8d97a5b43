"""Produce to topics with a codec of their own: what is packed anew off the event loop, over a real socket."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from kafka_node import KafkaNode, kafka_node, until
from kafka_wire import connect
from test_kafka_fetch import fetched
from test_kafka_produce import batch, produce, produced, stored

from strandline.log.batch import decode_records, iter_batches
from strandline.log.compression import Codec
from strandline.log.config import StoredCodec
from strandline.proto import marks
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka import fetch

VERSION = 9
LARGE = random.Random(1).randbytes(150_000).hex().encode()
MARK = "batch-packed-off-the-loop"


def codecs(node: KafkaNode, topic: str = "t", partition: int = 0) -> list[tuple[Codec, list[bytes | None]]]:
    """What is stored: each batch with its codec."""
    return [
        (header.codec, [record.value for record in decode_records(data)])
        for header, data in iter_batches(stored(node, topic, partition))
    ]


def test_what_is_sent_behind_a_slow_batch_comes_after_it(tmp_path: Path) -> None:
    """An idempotent producer has five requests under way: while the first one is packed in a thread no other of its
    connection is taken, or it would be out of order."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", compression_type="gzip")
            async with connect(node.listener.endpoint) as client, connect(node.listener.endpoint) as other:
                before = marks.counts()[MARK]
                tag = {"producer_id": 7, "producer_epoch": 0}
                sent = [
                    produce(client, VERSION, "t", {0: batch(LARGE, b"2", base_sequence=0, **tag)}),
                    produce(client, VERSION, "t", {0: batch(b"3", base_sequence=2, **tag)}),
                    produce(client, VERSION, "t", {0: batch(LARGE, base_sequence=3, **tag)}),
                ]
                assert (await produced(other, VERSION, "u", {0: batch(b"x")})).error_code == 3, "others are served"
                results = [(await client.receive(one)).responses[0].partition_responses[0] for one in sent]
                assert [(one.error_code, one.base_offset) for one in results] == [(0, 0), (0, 2), (0, 3)]
                assert marks.counts()[MARK] == before + 2
            assert codecs(node) == [(Codec.GZIP, [LARGE, b"2"]), (Codec.GZIP, [b"3"]), (Codec.GZIP, [LARGE])]

    asyncio.run(main())


def test_a_codec_and_a_bound_altered_live(tmp_path: Path) -> None:
    """The next append goes by them; a batch that cannot be stored is refused, and others of its request are not."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", 2, compression_type="zstd")

            def alter(codec: Codec | None, max_message_bytes: int) -> None:
                stored_codec = None if codec is None else StoredCodec(codec)
                for number in range(2):
                    partition = node.replicas.partition(TopicPartition("t", number))
                    assert partition is not None
                    assert partition.log is not None
                    partition.log.config = replace(
                        partition.log.config, stored_codec=stored_codec, max_message_bytes=max_message_bytes
                    )

            async with connect(node.listener.endpoint) as client:

                async def sent(**of: bytes) -> list[tuple[int, str | None]]:
                    records: dict[int, Any] = {int(name[1:]): raw for name, raw in of.items()}
                    answer = await client.receive(produce(client, VERSION, "t", records))
                    return [(one.error_code, one.error_message) for one in answer.responses[0].partition_responses]

                packed = batch(b"0" * 400_000, codec=Codec.ZSTD)
                assert await sent(p0=packed) == [(0, None)]
                alter(Codec.NONE, 300_000)
                [(error, message), other] = await sent(p0=packed, p1=batch(b"small", codec=Codec.ZSTD))
                assert error == ErrorCode.MESSAGE_TOO_LARGE
                assert "once it is stored as compression.type has it (none)" in str(message)
                assert other == (0, None)
                alter(Codec.LZ4, 500_000)
                assert await sent(p0=packed, p1=packed) == [(0, None), (0, None)]
                alter(None, 500_000)
                assert await sent(p1=packed) == [(0, None)]
            assert [codec for codec, _ in codecs(node)] == [Codec.ZSTD, Codec.LZ4]
            assert [codec for codec, _ in codecs(node, "t", 1)] == [Codec.NONE, Codec.LZ4, Codec.ZSTD]

    asyncio.run(main())


def test_a_connection_that_is_lost_meanwhile(tmp_path: Path) -> None:
    """What was packed for it is written or not, as with any request; the next client is served."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", compression_type="zstd", compression_zstd_level="22")
            async with connect(node.listener.endpoint) as client:
                for _ in range(3):
                    produce(client, VERSION, "t", {0: batch(LARGE)}, acks=0)
                await asyncio.sleep(0.01)
            await until(lambda: not node.listener.connections)
            async with connect(node.listener.endpoint) as client:
                assert (await produced(client, VERSION, "t", {0: batch(b"after")})).error_code == 0
            assert codecs(node)[-1] == (Codec.ZSTD, [b"after"])

    asyncio.run(main())


def test_a_partition_that_stands_in_a_request_twice(tmp_path: Path) -> None:
    """The first batch is written, packed, and not the second one, whichever of them takes long."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            node.create_topic("t", compression_type="gzip")
            async with connect(node.listener.endpoint) as client:
                for first, second in ((LARGE, b"2"), (b"1", LARGE)):
                    data = [{"index": 0, "records": batch(value)} for value in (first, second)]
                    sent = client.send(
                        "produce",
                        VERSION,
                        transactional_id=None,
                        acks=-1,
                        timeout=5000,
                        topic_data=[{"name": "t", "topic_id": "t", "partition_data": data}],
                    )
                    results = (await client.receive(sent)).responses[0].partition_responses
                    assert [one.error_code for one in results] == [0, ErrorCode.INVALID_REQUEST]
            assert codecs(node) == [(Codec.GZIP, [LARGE]), (Codec.GZIP, [b"1"])]

    asyncio.run(main())


def test_a_consumer_from_before_zstd_is_refused(tmp_path: Path) -> None:
    """KIP-110: by the setting of the topic, as in Kafka."""

    async def main() -> None:
        async with kafka_node(tmp_path) as node:
            topic_id = {name: node.create_topic(name, compression_type=name) for name in ("zstd", "lz4")}
            async with connect(node.listener.endpoint) as client:
                for name in topic_id:
                    assert (await produced(client, VERSION, name, {0: batch(b"x")})).error_code == 0
                for version in range(fetch.FIRST, fetch.LAST + 1):
                    by_id = version >= fetch.TOPIC_ID_SINCE
                    found = {
                        name: (await fetched(client, version, topic_id[name] if by_id else name, {0: 0}))[0].error_code
                        for name in topic_id
                    }
                    refused = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if version < 10 else ErrorCode.NONE
                    assert found == {"zstd": refused, "lz4": ErrorCode.NONE}

    asyncio.run(main())
