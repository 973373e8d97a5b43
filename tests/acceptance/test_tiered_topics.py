"""A tiered topic (KIP-405) on real nodes, while it is written and read: its leader is killed, the store goes away for a
while, and the topic is deleted. With a directory that all nodes share, and with an S3 server."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import confluent_kafka
import pytest

from strandline.client import EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, Admin, Consumer, Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import QUICK, eventually, leader_of, make_topic, read_all, wait_isr
from tests.log.tier.stores import S3_OPTIONS
from tests.s3_server import served_s3

pytestmark = pytest.mark.timeout(120)

TOPIC = "old"
SETTINGS = QUICK | {
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "remote.log.storage.options": "",
}
TIERED = {
    "remote_storage_enable": "true",
    "segment_bytes": "50000",
    "local_retention_ms": "300",
    "file_delete_delay_ms": "0",
}


class Writer:
    """Writes numbered records until it is left, none twice: it is idempotent, and waits as long as a failover takes.

    Attributes:
        acknowledged: how many were acknowledged so far, in order.
    """

    def __init__(self, cluster: DevCluster) -> None:
        self._producer = Producer(cluster.bootstrap, delivery_timeout_ms=60_000, linger_ms=5)
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: BaseException | None = None
        self.acknowledged = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join(70)
        self._producer.close()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            numbers = itertools.count()
            while not self._left.is_set():
                futures = [self._producer.send(TOPIC, value_of(next(numbers)), partition=0) for _ in range(50)]
                for future in futures:
                    assert future.result(60).offset == self.acknowledged
                    self.acknowledged += 1
                self._left.wait(0.02)
        except BaseException as error:
            self._failure = error

    def wait_more(self, count: int) -> None:
        """Return once so many more were acknowledged."""
        goal = self.acknowledged + count
        eventually(lambda: self._failure is not None or self.acknowledged >= goal, 30)
        assert self._failure is None, self._failure


def value_of(number: int) -> bytes:
    """Of the record at this offset."""
    return b"%08d" % number + b"." * 500


def offset(cluster: DevCluster, spec: int) -> int:
    """As ListOffsets has it."""
    with Admin(cluster.responsive) as admin:
        [found] = admin.list_offsets({(TOPIC, 0): spec}).values()
    return found.offset


def read_by_confluent(bootstrap: str, end: int, on_record: Callable[[int], None] = lambda _: None) -> list[bytes]:
    """The values of the offsets from 0 to `end`, as librdkafka's consumer gets them."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "old", "log_level": 0, "enable.auto.commit": False}
    )
    values: list[bytes] = []
    deadline = time.monotonic() + 30
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        while len(values) < end:
            assert time.monotonic() < deadline, f"read {len(values)} of {end} records"
            for message in consumer.consume(min(100, end - len(values)), timeout=0.5):  # it waits until it has so many
                if message.error() is None:
                    assert message.offset() == len(values)
                    values.append(message.value() or b"")
                    on_record(len(values))
    finally:
        consumer.close()
    return values[:end]


def read_by_ours(bootstrap: str, end: int) -> list[bytes]:
    """As `read_by_confluent`, by our consumer."""
    values: list[bytes] = []
    deadline = time.monotonic() + 30
    with Consumer(bootstrap) as consumer:
        consumer.assign([(TOPIC, 0)])
        consumer.seek_to_beginning()
        while len(values) < end:
            assert time.monotonic() < deadline, f"read {len(values)} of {end} records"
            for record in consumer.poll(timeout_s=0.5):
                assert record.offset == len(values)
                values.append(record.value or b"")
    return values[:end]


@contextmanager
def away(store: Path) -> Iterator[None]:
    """Every call to the store fails: a file stands where its directory was."""
    aside = store.with_name("aside")
    store.rename(aside)
    store.write_bytes(b"")
    try:
        yield
    finally:
        store.unlink()
        aside.rename(store)


def objects(store: Path) -> list[str]:
    """Keys; the mark that tells a store from a bare directory is none."""
    files = (str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())
    return [key for key in files if key != ".strandline-store"]


def test_a_tiered_topic_is_read_whole_under_faults(tmp_path: Path) -> None:
    """Both clients read everything from the beginning while new records come and the leader is killed. With the store
    away producers go on, and nothing leaves the disks that was not copied; afterwards it is. A deleted topic leaves no
    object."""
    store = tmp_path / "store"
    settings = SETTINGS | {"remote.log.storage.url": f"file://{store}"}
    with DevCluster(settings=settings) as cluster:
        make_topic(cluster, TOPIC, **TIERED)
        with Writer(cluster) as writer:
            writer.wait_more(600)
            eventually(lambda: 0 < offset(cluster, EARLIEST_LOCAL) <= offset(cluster, LATEST_TIERED) + 1)
            assert offset(cluster, EARLIEST) == 0

            killed: list[int] = []

            def kill_the_leader(read: int) -> None:
                if read >= 100 and not killed:
                    killed.append(leader_of(cluster, TOPIC))
                    cluster.kill(killed[0])

            end = writer.acknowledged
            assert read_by_confluent(cluster.bootstrap, end, kill_the_leader) == [value_of(n) for n in range(end)]
            assert read_by_ours(cluster.responsive, end) == [value_of(n) for n in range(end)]
            writer.wait_more(200)
            cluster.start_node(killed[0])
            wait_isr(cluster, TOPIC, {1, 2, 3})

            with away(store):
                tiered = offset(cluster, LATEST_TIERED)
                writer.wait_more(800)
                assert offset(cluster, LATEST_TIERED) == tiered
                assert offset(cluster, EARLIEST_LOCAL) <= tiered + 1
                written = writer.acknowledged
            eventually(lambda: offset(cluster, LATEST_TIERED) >= written - 200)
            eventually(lambda: offset(cluster, EARLIEST_LOCAL) > tiered + 1)
        end = writer.acknowledged
        assert read_all(cluster, TOPIC) == [value_of(n) for n in range(end)]
        assert read_by_confluent(cluster.responsive, end) == [value_of(n) for n in range(end)]
        assert objects(store)
        with Admin(cluster.responsive) as admin:
            admin.delete_topics([TOPIC])
        eventually(lambda: not objects(store))


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server."""
    yield from served_s3()


def test_a_tiered_topic_in_s3_is_read_whole(s3: str) -> None:
    """The same reads from an S3 server; a deleted topic leaves no object."""
    boto3 = pytest.importorskip("boto3", reason="boto3, which makes the bucket, is not installed")
    bucket = f"b-{uuid4()}"
    keys = {"aws_access_key_id": S3_OPTIONS["aws_access_key_id"], "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1", **keys)
    client.create_bucket(Bucket=bucket)
    options = {**S3_OPTIONS, "aws_endpoint": s3}
    settings = SETTINGS | {
        "remote.log.storage.url": f"s3://{bucket}/pre/fix",
        "remote.log.storage.options": ",".join(f"{name}={value}" for name, value in options.items()),
    }

    def stored() -> list[str]:
        return [item["Key"] for item in client.list_objects_v2(Bucket=bucket).get("Contents", [])]

    with DevCluster(settings=settings) as cluster:
        make_topic(cluster, TOPIC, **TIERED)
        with Writer(cluster) as writer:
            writer.wait_more(600)
            eventually(lambda: 0 < offset(cluster, EARLIEST_LOCAL) <= offset(cluster, LATEST_TIERED) + 1)
            assert offset(cluster, EARLIEST) == 0
            end = writer.acknowledged
            assert read_by_confluent(cluster.responsive, end) == [value_of(n) for n in range(end)]
            assert read_by_ours(cluster.responsive, end) == [value_of(n) for n in range(end)]
        assert stored()
        assert all(key.startswith("pre/fix/") for key in stored())
        with Admin(cluster.responsive) as admin:
            admin.delete_topics([TOPIC])
        eventually(lambda: not stored())
    client.close()
