"""Records at the bound of max.message.bytes, on real processes and through other people's clients (schedule 54).

gRPC ends a replication stream over one frame above 64 MiB: until batches crossed it in pieces one such record stopped
every partition of its leader.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from click.testing import CliRunner

from strandline.chaos.demo.checks import committed_digest
from strandline.cli.main import main
from strandline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from strandline.cluster.node.dev import DevCluster
from strandline.cluster.node.internal.options import MESSAGE_BYTES_MAX
from strandline.log.config import BATCH_BYTES_MAX
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.acceptance.helpers import QUICK, down, followers, leader_of, send_all, wait_isr, wait_led

pytestmark = pytest.mark.timeout(300)

TOPIC = "large"
VALUE = random.Random(1).randbytes(BATCH_BYTES_MAX - 61 - 13)
"""A batch has 61 bytes of header, and its only record, without a key, 13 more than its value."""


@pytest.fixture(scope="module")
def three() -> Iterator[DevCluster]:
    """Three nodes, a topic that takes the largest batches, and one beside it."""
    with DevCluster(settings=QUICK) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 3, {"max.message.bytes": str(BATCH_BYTES_MAX)})])
            admin.create_topics([NewTopic("beside", 1, 3)])
        for topic in (TOPIC, "beside"):
            wait_led(cluster.bootstrap, topic)
        yield cluster


def produce(bootstrap: str, value: bytes) -> int:
    """One record by librdkafka, as its users set it up for large records; its offset."""
    told: list[object] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "message.max.bytes": 100_000_000 + 1_000_000,
            "enable.idempotence": True,
            "message.timeout.ms": 120_000,
        }
    )
    producer.produce(TOPIC, value, on_delivery=lambda error, message: told.append(error or message.offset()))
    assert producer.flush(150) == 0
    [offset] = told
    assert isinstance(offset, int), offset
    return offset


def test_the_largest_record_is_replicated_and_stops_nobody(three: DevCluster) -> None:
    """It is on all three nodes, byte for byte, and acks of the topic beside it come all the while."""
    assert len(VALUE) > MESSAGE_BYTES_MAX
    stop = threading.Event()
    beside: list[int] = []

    def write_beside() -> None:
        while not stop.is_set():
            beside.extend(send_all(three, "beside", [b"x"]))

    writer = threading.Thread(target=write_beside)
    writer.start()
    try:
        assert produce(three.bootstrap, VALUE) == 0
        acked = len(beside)
        while len(beside) < acked + 3:
            assert writer.is_alive(), "acks of the topic beside it have stopped"
    finally:
        stop.set()
        writer.join()
    wait_isr(three, TOPIC, {1, 2, 3})
    digests = {committed_digest(Path(three.data_dir(node)) / f"{TOPIC}-0", 1) for node in three.broker_ids}
    assert {length for _, length in digests} == {BATCH_BYTES_MAX}
    assert len(digests) == 1


def test_a_follower_that_lost_its_copy_gets_it_again(three: DevCluster) -> None:
    """Its directory is gone: it catches up from the leader's log, and leads."""
    node = followers(three, TOPIC)[0]
    with down(three, node):
        shutil.rmtree(Path(three.data_dir(node)) / f"{TOPIC}-0")
        assert send_all(three, TOPIC, [b"while it was away"]) == [1]
    wait_isr(three, TOPIC, {1, 2, 3})
    digests = {committed_digest(Path(three.data_dir(one)) / f"{TOPIC}-0", 2) for one in three.broker_ids}
    assert len(digests) == 1
    with down(three, leader_of(three, TOPIC)):
        assert read_by_librdkafka(three) == [VALUE, b"while it was away"]
    wait_isr(three, TOPIC, {1, 2, 3})


def read_by_librdkafka(cluster: DevCluster) -> list[bytes]:
    """Everything, by a consumer that says that it takes such records, as librdkafka wants it to be said."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.responsive,
            "group.id": "large",
            "fetch.message.max.bytes": BATCH_BYTES_MAX,
            "receive.message.max.bytes": 2 * BATCH_BYTES_MAX,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    values: list[bytes] = []
    for _ in range(600):
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value())
        if len(values) == 2:
            break
    consumer.close()
    return values


def test_our_own_client_writes_and_reads_it(three: DevCluster) -> None:
    """With its defaults where it reads: a first batch is returned whatever its size (KIP-74)."""
    settings = {"max_request_size": 2 * BATCH_BYTES_MAX, "buffer_memory": 2 * BATCH_BYTES_MAX}
    with Producer(three.bootstrap, request_timeout_ms=120_000, delivery_timeout_ms=150_000, **settings) as producer:
        ack = producer.send(TOPIC, VALUE).result(150)
        with pytest.raises(KafkaError) as caught:
            producer.send(TOPIC, VALUE + bytes(100)).result(150)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with Consumer(three.bootstrap) as consumer:
        where = TopicPartition(TOPIC, 0)
        consumer.assign([where])
        consumer.seek(where, ack.offset)
        records = consumer.poll(60.0)
    assert [record.value for record in records] == [VALUE]


def test_it_is_backed_up_and_restored(three: DevCluster, tmp_path: Path) -> None:
    """Row S100 at the bound: read into files, written back under another name, compared by the command itself."""
    for words in (("backup", TOPIC, "--to"), ("restore", "--to", f"{TOPIC}-again")):
        told = CliRunner().invoke(
            main, ["topic", *words, str(tmp_path / "backup")], env={"STRANDLINE_BOOTSTRAP": three.bootstrap}
        )
        assert told.exit_code == 0, (told.output, told.stderr, told.exception)
    assert "restored, read back and compared" in told.stdout


def test_beyond_the_bound_is_refused_with_the_bound(three: DevCluster) -> None:
    """A setting that no path below it could keep is no setting."""
    with Admin(three.bootstrap) as admin, pytest.raises(KafkaError, match="from 0 to 100663296") as caught:
        admin.create_topics([NewTopic("larger", 1, 3, {"max.message.bytes": str(BATCH_BYTES_MAX + 1)})])
    assert caught.value.code is ErrorCode.INVALID_CONFIG
