"""Row S78, rule B19: a byte of a running leader's segment is another; no client gets it, checks of CRCs off or on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka

from strandline.cluster.node.dev import DevCluster
from tests.acceptance.foreign import segment_files, stored_batches, topic_cli
from tests.acceptance.helpers import QUICK, eventually, leader_of, make_topic, read_all, send_all, wait_isr
from tests.acceptance.test_bad_input_harms_nothing import flip, metric

VALUES = [b"%d:" % number + bytes(200) for number in range(200)]


def foreign_read(bootstrap: str, topic: str, first: int, end: int, timeout_s: float = 30.0) -> tuple[list[bytes], int]:
    """Values of a partition from offset `first` to `end`, or to the first error; and the error's code, or 0.

    librdkafka checks no CRC unless it is told to.
    """
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "foreign", "check.crcs": False, "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, first)])
    values: list[bytes] = []
    deadline = time.monotonic() + timeout_s
    try:
        while len(values) < end - first:
            message = consumer.poll(1.0)
            assert time.monotonic() < deadline, f"{len(values)} values of {topic} from {first} on"
            if message is None:
                continue
            if message.error():
                return values, message.error().code()
            values.append(message.value())
        return values, 0
    finally:
        consumer.close()


def rot(segment: Path, batches: Sequence[bytes], number: int) -> None:
    """A byte of the last value of batch `number` is another."""
    flip(segment, sum(map(len, batches[: number + 1])) - 50)


def first_offset(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big")


def test_the_only_copy_serves_everything_but_the_rot(tmp_path: Path) -> None:
    """Replication factor 1: CORRUPT_MESSAGE at the batch, each time; what stands before it and behind it is read."""
    with DevCluster(tmp_path, nodes=1) as cluster:
        make_topic(cluster, "lone", replication=1)
        assert send_all(cluster, "lone", VALUES, batch_size=3_000) == list(range(len(VALUES)))
        batches = stored_batches(cluster.data_dir(1), "lone")
        assert len(batches) > 9
        [segment] = segment_files(cluster.data_dir(1), "lone")
        rot(segment, batches, 4)
        rotten, behind = first_offset(batches[4]), first_offset(batches[5])
        for _ in range(2):
            values, code = foreign_read(cluster.bootstrap, "lone", 0, len(VALUES))
            assert values == VALUES[:rotten]
            assert code == confluent_kafka.KafkaError.INVALID_MSG  # Kafka's CORRUPT_MESSAGE
        assert foreign_read(cluster.bootstrap, "lone", behind, len(VALUES)) == (VALUES[behind:], 0)
        assert metric(cluster, 1, "strandline_corrupt_batches_total") == 1
        words = Path(cluster.log_path(1)).read_text()
        assert str(segment) in words
        assert f"offset={rotten} next_offset={behind} " in words
        assert metric(cluster, 1, "strandline_rotten_replicas") == 1
        trim = ["trim", "lone", "--before-offset", str(behind), "--yes"]  # as docs/storage.md advises
        topic_cli(cluster.bootstrap, *trim)
        assert foreign_read(cluster.bootstrap, "lone", behind, len(VALUES)) == (VALUES[behind:], 0)
        eventually(lambda: metric(cluster, 1, "strandline_rotten_replicas") == 0)


def test_a_leader_with_rot_steps_aside_and_is_healed(tmp_path: Path) -> None:
    """Schedule 80: no wrong value; the leadership moves; the replica gets its bytes back from the new leader, in the
    same place, and is in the ISR again, by itself."""
    with DevCluster(tmp_path, nodes=3, settings=QUICK) as cluster:
        make_topic(cluster, "healed", replication=3)
        send_all(cluster, "healed", VALUES, batch_size=3_000)
        wait_isr(cluster, "healed", {1, 2, 3})
        leader = leader_of(cluster, "healed")
        batches = stored_batches(cluster.data_dir(leader), "healed")
        [segment] = segment_files(cluster.data_dir(leader), "healed")
        before = segment.read_bytes()
        rot(segment, batches, 2)
        flip(segment, sum(map(len, batches[:6])) + 9)  # and a length
        values, code = foreign_read(cluster.bootstrap, "healed", 0, len(VALUES))
        assert values == VALUES[: len(values)]
        assert len(values) == len(VALUES) or code == confluent_kafka.KafkaError.INVALID_MSG
        eventually(lambda: segment.read_bytes() == before)
        words = Path(cluster.log_path(leader)).read_text()
        assert "a part of a log has rotted" in words
        eventually(lambda: "a log is whole again" in Path(cluster.log_path(leader)).read_text())
        wait_isr(cluster, "healed", {1, 2, 3})
        assert metric(cluster, leader, "strandline_mended_holes_total") == 2
        assert metric(cluster, leader, "strandline_rotten_replicas") == 0
        send_all(cluster, "healed", [b"more"])
        assert read_all(cluster, "healed") == [*VALUES, b"more"]
