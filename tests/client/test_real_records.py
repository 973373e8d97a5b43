"""Producer and consumer against real brokers, and beside librdkafka (rows S01, S06, S09, S20, S26 to S28, S32, S33,
S71)."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, as_completed
from typing import Any

import confluent_kafka
import pytest

from strandline.client import Ack, Admin, Consumer, ConsumerRecord, Producer, TopicPartition, aio
from strandline.client.errors import BufferExhausted, ClientTimeout, ClosedError, UnknownTopic
from strandline.client.partitioner import partition_of_key
from strandline.client.range_reader import RangeReader, read_range
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.tools.copy import copy_topic
from strandline.tools.handling import handle
from tests.acceptance.raw import produce_with_header_names
from tests.client.conftest import MakeTopic, eventually


def read_all(bootstrap: str, topic: str, partitions: int = 1, **settings: Any) -> list[ConsumerRecord]:
    """Everything the topic holds now."""
    where = [TopicPartition(topic, number) for number in range(partitions)]
    records: list[ConsumerRecord] = []
    with Consumer(bootstrap, **settings) as consumer:
        consumer.assign(where)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(where)
        while any(consumer.position(item) < end for item, end in ends.items()):
            records += consumer.poll(5.0)
    return records


def test_payloads_come_back_as_they_were(bootstrap: str, make_topic: MakeTopic) -> None:
    """Rows S01, S20: empty, null, large, invalid UTF-8; headers in order, names repeated."""
    topic, rng = make_topic(retention_ms="-1"), random.Random(1)
    values = [
        None,
        b"",
        b"\xff\xfe\x00",
        rng.randbytes(900_000),
        *(rng.randbytes(rng.randint(0, 300)) for _ in range(200)),
    ]
    headers = (("a", b"1"), ("a", None), ("ü", b""))
    with Producer(bootstrap) as producer:
        futures = [
            producer.send(
                topic, value, key=None if n % 3 else b"k%d" % n, headers=headers, partition=0, timestamp_ms=7 + n
            )
            for n, value in enumerate(values)
        ]
        acks = [future.result(30) for future in futures]
    assert [(ack.topic, ack.partition, ack.offset, ack.timestamp_ms) for ack in acks] == [
        (topic, 0, n, 7 + n) for n in range(len(values))
    ]
    records = read_all(bootstrap, topic)
    assert [record.value for record in records] == values
    assert [record.key for record in records] == [None if n % 3 else b"k%d" % n for n in range(len(values))]
    assert {record.headers for record in records} == {headers}
    assert [record.timestamp_ms for record in records] == [7 + n for n in range(len(values))]


def test_keys_fall_where_librdkafka_puts_them(bootstrap: str, make_topic: MakeTopic) -> None:
    """Row S06: the same 1,000 keys by this client and by librdkafka's murmur2_random."""
    topic = make_topic(6)
    keys = [random.Random(n).randbytes(n % 40 + 1) for n in range(1_000)]
    theirs: dict[bytes, int] = {}
    other = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        other.produce(topic, key=key, on_delivery=lambda error, sent: theirs.update({sent.key(): sent.partition()}))
        other.poll(0)
    other.flush(30)
    with Producer(bootstrap) as producer:
        ours = {
            key: future.result(30).partition for key, future in [(key, producer.send(topic, key=key)) for key in keys]
        }
    assert ours == theirs == {key: partition_of_key(key, 6) for key in keys}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs_are_read_by_both(bootstrap: str, make_topic: MakeTopic, codec: str) -> None:
    """Row S32: what this client compresses librdkafka reads, and the other way round."""
    topic = make_topic()
    values = [b"line %d of a text that repeats itself, repeats itself" % n for n in range(300)]
    with Producer(bootstrap, compression_type=codec, linger_ms=20) as producer:
        for value in values:
            producer.send(topic, value)
    other = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20})
    for value in values:
        other.produce(topic, value)
    other.flush(30)
    assert [record.value for record in read_all(bootstrap, topic)] == values * 2
    reader = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = [message.value() for _ in range(600) if (message := reader.poll(10)) is not None]
    reader.close()
    assert found == values * 2


def test_one_producer_for_eight_threads(bootstrap: str, make_topic: MakeTopic) -> None:
    """Row S33: each value once, each thread's order kept; (partition, offset) never repeats (row S09)."""
    topic = make_topic(3)
    acks: list[list[Ack]] = [[] for _ in range(8)]
    with Producer(bootstrap, batch_size=2_000) as producer:

        def work(number: int) -> None:
            futures = [producer.send(topic, b"%d:%d" % (number, n), partition=number % 3) for n in range(1_000)]
            acks[number] = [future.result(60) for future in futures]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    places = [(ack.partition, ack.offset) for mine in acks for ack in mine]
    assert len(set(places)) == 8_000
    assert all([ack.offset for ack in mine] == sorted(ack.offset for ack in mine) for mine in acks)
    seen: dict[bytes, list[int]] = {}
    for record in read_all(bootstrap, topic, 3, max_poll_records=5_000):
        thread, number = (record.value or b"").split(b":")
        seen.setdefault(thread, []).append(int(number))
    assert seen == {b"%d" % number: list(range(1_000)) for number in range(8)}


def test_flush_and_full_batches_do_not_linger(bootstrap: str, make_topic: MakeTopic) -> None:
    """Rows S26, S28: with linger 60 s a full batch goes at once, and flush sends the rest."""
    topic = make_topic()
    with Producer(bootstrap, linger_ms=60_000) as producer:
        start = time.monotonic()
        full = [producer.send(topic, b"x" * 100, partition=0) for _ in range(170)]
        full[0].result(40)
        assert not full[-1].done()
        producer.flush(40)
        assert all(future.done() for future in full)
        assert time.monotonic() - start < 50
        go_on = threading.Event()
        assert producer._running is not None
        producer._running.thread.loop.call_soon_threadsafe(go_on.wait, 30)  # else an ack might be quicker than we are
        producer.send(topic, b"one more", partition=0)
        with pytest.raises(ClientTimeout, match=r"within 0\.0 s"):
            producer.flush(0.0)
        go_on.set()
    assert len(read_all(bootstrap, topic)) == 171


def test_partitions_can_be_chosen(bootstrap: str, make_topic: MakeTopic) -> None:
    """Row S07: by a function of one's own, or record by record; a wrong choice is named."""
    topic = make_topic(3)

    def by_value(name: str, key: bytes | None, value: bytes | None, count: int) -> int:
        return int(value or b"0")

    with Producer(bootstrap, partitioner=by_value) as producer:
        assert [producer.send(topic, b"%d" % n).result(30).partition for n in (2, 2, 0, 1)] == [2, 2, 0, 1]
        assert producer.send(topic, b"0", partition=1).result(30).partition == 1
        with pytest.raises(KafkaError, match="has partitions 0 to 2"):
            producer.send(topic, b"3")
        with pytest.raises(KafkaError, match="has partitions 0 to 2"):
            producer.send(topic, b"0", partition=7)
        assert producer.partitions_for(topic) == 3


def test_wrong_records_are_refused_before_they_are_queued(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with Producer(bootstrap) as producer:
        with pytest.raises(TypeError, match=r"value must be bytes or None, not str; encode text with \.encode\(\)"):
            producer.send(topic, "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a header's name must be str"):
            producer.send(topic, b"", headers=[(b"a", b"b")])  # type: ignore[list-item]
        with pytest.raises(KafkaError) as caught:
            producer.send(topic, b"x" * 2_000_000)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert caught.value.figures["allowed_bytes"] == 1_048_576
        assert producer.send(topic, bytearray(b"a"), key=memoryview(b"b")).result(30).offset == 0
    with pytest.raises(ClosedError):
        producer.send(topic, b"late")


def test_an_unknown_topic_is_told_in_seconds(cluster: Any) -> None:
    """The error holds the command that creates it (auto-create is off, row S15)."""
    with Producer(cluster.bootstrap) as producer:
        start = time.monotonic()
        with pytest.raises(UnknownTopic, match="strandline topic create typo --partitions 3"):
            producer.send("typo", b"x")
        assert time.monotonic() - start < 30


def test_no_broker_at_all_blocks_for_max_block_and_names_the_address() -> None:
    """Row S29: a send raises after max.block.ms, with what was met on the way."""
    with Producer("127.0.0.1:1", max_block_ms=500) as producer:
        start = time.monotonic()
        with pytest.raises(ClientTimeout, match=r"127\.0\.0\.1:1: Connection refused"):
            producer.send("t", b"x")
        assert 0.4 < time.monotonic() - start < 10


def test_futures_work_with_the_standard_library(bootstrap: str, make_topic: MakeTopic) -> None:
    """concurrent.futures.as_completed, callbacks, asyncio.wrap_future; no cancelling of what may be on its way."""
    topic = make_topic()
    told: list[Ack] = []
    with Producer(bootstrap) as producer:
        futures = [producer.send(topic, b"%d" % n, partition=0) for n in range(50)]
        futures[3].add_done_callback(lambda future: told.append(future.result()))
        assert not futures[0].cancel()
        assert {future.result().offset for future in as_completed(futures, 30)} == set(range(50))

        async def main() -> Ack:
            future: Future[Ack] = producer.send(topic, b"x", partition=0)
            return await asyncio.wrap_future(future)

        assert asyncio.run(main()).offset == 50
        producer.send(topic, b"y", partition=0).result(30)
    assert [ack.offset for ack in told] == [3]


def test_the_async_twins(bootstrap: str, make_topic: MakeTopic) -> None:
    """Row S70: produce and consume in one loop, beside other work."""
    topic = make_topic(2)

    async def main() -> list[int]:
        async with (
            aio.Producer(bootstrap) as producer,
            aio.Consumer(bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([(topic, 0), (topic, 1)])
            futures = [await producer.send(topic, b"%d" % n) for n in range(100)]
            assert len(await asyncio.gather(*futures)) == 100
            assert (await producer.send_and_wait(topic, b"100")).topic == topic
            values: list[int] = []
            async for record in consumer:
                values.append(int(record.value or b""))
                if len(values) == 101:
                    return values
            raise AssertionError("iteration never ends by itself")

    assert sorted(asyncio.run(main())) == list(range(101))


def test_ranges_and_blocking_iteration(bootstrap: str, make_topic: MakeTopic) -> None:
    """Exactly [start, end), whatever the batches; raw batches cover it."""
    topic = make_topic()
    with Producer(bootstrap, batch_size=700) as producer:
        for n in range(500):
            producer.send(topic, b"%d" % n, partition=0)
    with RangeReader(bootstrap, max_partition_fetch_bytes=2_000) as reader:
        for start, end in ((0, 500), (3, 4), (100, 433), (7, 7)):
            records = list(reader.read_records(topic, 0, start, end))
            assert [int(record.value or b"") for record in records] == list(range(start, end))
            assert [record.offset for record in records] == list(range(start, end))
    batches = list(read_range(bootstrap, topic, 0, start=10, end=20))
    assert batches[0].base_offset <= 10 < 20 <= batches[-1].next_offset
    with Consumer(bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 490)
        assert [record.offset for _, record in zip(range(10), consumer, strict=False)] == list(range(490, 500))


FORK = """
import os, sys
from strandline.client import Consumer, Producer
bootstrap, topic = sys.argv[1:]
producer = Producer(bootstrap, linger_ms=20_000)  # what is queued before the fork is not on its way at the fork
consumer = Consumer(bootstrap)
consumer.assign([(topic, 0)])
consumer.seek((topic, 0), 0)
before = producer.send(topic, b"before", partition=0)
producer.flush(30)
assert before.result(0).offset == 0
assert [record.value for record in consumer.poll(10)] == [b"before"]
mine = producer.send(topic, b"parent", partition=0)
child = os.fork()
if child == 0:
    try:
        assert "ClosedError" in repr(mine.exception(5)), mine
        own = producer.send(topic, b"child", partition=0)
        producer.flush(30)
        own.result(0)
        producer.close()
        values = [b"before"]
        while b"child" not in values:
            values += [record.value for record in consumer.poll(10)]
        assert values.count(b"before") == 1, values
        consumer.close()
    except BaseException as error:
        print("child:", repr(error), flush=True)
        os._exit(1)
    os._exit(0)
producer.flush(30)
mine.result(0)
after = producer.send(topic, b"after", partition=0)
producer.flush(30)
after.result(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
producer.close()
consumer.close()
print("done")
"""


def test_a_producer_and_a_consumer_survive_a_fork(bootstrap: str, make_topic: MakeTopic) -> None:
    """The child has connections and a producer id of its own; what the parent had queued is sent once, by it."""
    topic = make_topic()
    ran = subprocess.run(
        [sys.executable, "-c", FORK, bootstrap, topic], capture_output=True, text=True, timeout=90, check=False,
        env={**os.environ, "PYTHONWARNINGS": "error::DeprecationWarning:strandline"},
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stdout + ran.stderr
    values = [record.value for record in read_all(bootstrap, topic)]
    assert sorted(value or b"" for value in values) == [b"after", b"before", b"child", b"parent"]


def test_the_ack_names_who_had_synced(cluster: Any) -> None:
    """What no other broker tells: the replicas that had the record on disk when the ack was given (acks=all, 1, 0)."""
    from strandline.client import Admin, NewTopic

    topic = f"acks-{os.getpid()}"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 3)])
        [described] = admin.describe_topics([topic])
        leader = described.partitions[0].leader
        told = {}
        for acks in ("all", "1", "0"):
            with Producer(cluster.bootstrap, acks=acks) as producer:
                told[acks] = producer.send(topic, b"x").result(30)
        assert told["all"].replicas is not None
        assert leader in told["all"].replicas
        assert len(told["all"].replicas) >= 2
        assert told["1"].replicas == (leader,)
        assert (told["0"].replicas, told["0"].offset) == ((), -1)
        admin.delete_topics([topic])


def test_buffer_memory_bounds_the_producer_while_brokers_are_silent() -> None:
    """Rows S21, S29: send returns at once while the leader is paused, then blocks for max.block.ms and raises."""
    from strandline.client import Admin, NewTopic
    from strandline.cluster.node.dev import DevCluster

    with DevCluster(nodes=1) as one:
        with Admin(one.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1)])
        with Producer(one.bootstrap, buffer_memory=1_000_000, max_block_ms=500, linger_ms=0) as producer:
            producer.send("t", b"warm").result(30)
            one.pause(1)
            try:
                times, sent = [], []
                with pytest.raises(BufferExhausted, match="stayed full for max"):  # noqa: PT012
                    for _ in range(1_100):
                        start = time.monotonic()
                        try:
                            sent.append(producer.send("t", b"x" * 979))
                        finally:
                            times.append(time.monotonic() - start)
                assert len(sent) == 1_000
                assert sorted(times)[len(times) // 2] < 0.001
                assert 0.4 < times[-1] < 10
            finally:
                one.resume(1)
            assert [future.result(30).offset for future in sent] == list(range(1, 1_001))


NAMES = (b"plain", b"caf\xe9", b"\xff\xfe\x80", b"", b"\xc3\xbc")
"""In ASCII, in Latin-1, no text at all, empty, in UTF-8."""


def test_header_names_of_any_bytes_stop_nobody(bootstrap: str, make_topic: MakeTopic) -> None:
    """Apache Kafka stores them, and its readers see U+FFFD for what is no UTF-8: so do poll, columns, iteration, handle
    and its dead letters, and a copy writes the names as they were read. Our consumer stood still there for ever."""
    topic = make_topic(message_timestamp_type="LogAppendTime")
    with Admin(bootstrap) as admin:
        eventually(lambda: admin.describe_topics([topic])[0].partitions[0].leader is not None)
        leader = admin.describe_topics([topic])[0].partitions[0].leader
        nodes = {node.node_id: f"{node.host}:{node.port}" for node in admin.describe_cluster().nodes}
    assert leader is not None
    with Producer(bootstrap) as producer:
        producer.send(topic, b"before", partition=0).result()
        produce_with_header_names(nodes[leader], topic, NAMES, b"odd")
        producer.send(topic, b"behind", partition=0).result()
    names = [name.decode(errors="replace") for name in NAMES]
    headers = tuple((name, b"%d" % number) for number, name in enumerate(names))
    assert "caf\ufffd" in names

    records = read_all(bootstrap, topic)
    assert [(one.value, one.headers) for one in records] == [(b"before", ()), (b"odd", headers), (b"behind", ())]
    with Consumer(bootstrap, auto_offset_reset="earliest", group_id=f"{topic}-handle") as consumer:
        consumer.subscribe([topic])

        def fails_at_the_odd_one(record: ConsumerRecord) -> None:
            if record.value == b"odd":
                assert record.headers == headers
                raise ValueError("it is odd")
            if record.value == b"behind":
                consumer.stop()

        report = handle(consumer, fails_at_the_odd_one, attempts=1)
        assert (report.handled, report.dead_letters) == (2, 1)
        consumer.unsubscribe()
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        [odd] = [row for row in consumer.poll_columns(5.0, 3).to_arrow().to_pylist() if row["value"] == b"odd"]
        assert [(pair["name"], pair["value"]) for pair in odd["headers"]] == list(headers)
    [letter] = read_all(bootstrap, f"{topic}.dead")
    assert letter.headers[: len(headers)] == headers
    copy_topic(bootstrap, topic, f"{topic}-copy", partitions=1)
    assert [(one.value, one.headers) for one in read_all(bootstrap, f"{topic}-copy")] == [
        (one.value, one.headers) for one in records
    ]
    with Admin(bootstrap) as admin:
        admin.delete_topics([f"{topic}-copy", f"{topic}.dead"])
