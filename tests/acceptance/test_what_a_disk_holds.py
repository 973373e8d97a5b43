"""A topic may be larger than a disk, a partition may not (row S05): real nodes, each on a file system of 32 MiB."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from strandline.client import Producer
from strandline.client.errors import DeliveryTimeout
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually, make_topic, read_all, send_all
from tests.acceptance.test_bad_input_harms_nothing import metric, small_disk

DISK_BYTES = 32 << 20
VALUE_BYTES = 100_000
BATCHES = {"batch_size": 200_000, "linger_ms": 0}


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"%d:" % number + bytes(VALUE_BYTES) for number in range(first, first + count)]


def test_a_topic_exceeds_one_disk_and_a_partition_may_not(tmp_path: Path) -> None:
    """48 MB over three partitions are all read back. The second topic's one partition fills its disk: what does not fit
    is refused, with the reason; what was acknowledged is read, there and of the first topic."""
    with ExitStack() as stack:
        for node in (1, 2, 3):
            stack.enter_context(small_disk(tmp_path / f"node-{node}", DISK_BYTES))
        cluster = stack.enter_context(DevCluster(tmp_path, nodes=3))
        make_topic(cluster, "wide", partitions=3, replication=1, segment_bytes="4000000")
        sent = {number: values(160, 1000 * number) for number in range(3)}
        for number, part in sent.items():
            send_all(cluster, "wide", part, number, **BATCHES)
        assert sum(len(value) for part in sent.values() for value in part) > DISK_BYTES
        for number, part in sent.items():
            assert read_all(cluster, "wide", number) == part

        make_topic(cluster, "narrow", replication=1, segment_bytes="4000000")
        acked: list[bytes] = []
        refused: list[DeliveryTimeout] = []
        with Producer(cluster.responsive, delivery_timeout_ms=3_000, request_timeout_ms=1_000, **BATCHES) as producer:
            for value in values(DISK_BYTES // VALUE_BYTES):
                try:
                    producer.send("narrow", value, partition=0).result(30)
                except DeliveryTimeout as error:
                    refused.append(error)
                    break
                acked.append(value)
        assert 20 <= len(acked) < DISK_BYTES // VALUE_BYTES
        [error] = refused
        assert "KAFKA_STORAGE_ERROR (56): no space left but log.dir.reserve.bytes in" in str(error)
        assert read_all(cluster, "narrow")[: len(acked)] == acked
        for number, part in sent.items():
            assert read_all(cluster, "wide", number) == part
        eventually(lambda: sum(metric(cluster, node, "strandline_disk_full") for node in cluster.node_ids) == 1)
