"""A topic outlives its cluster (KIP-405, rule B25): every directory is deleted, and a new cluster restores the topic
from the object store alone, each record under its offset. The command is killed in the middle, and goes on."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner

from strandline.cli.main import main
from strandline.client import EARLIEST, LATEST, LATEST_TIERED, Admin, Consumer, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.system import SystemClock
from tests.acceptance.helpers import QUICK, eventually, leader_of, make_topic, wait_isr
from tests.lake.stage import lake
from tests.s3_server import served_s3

pytestmark = pytest.mark.timeout(240)

TOPIC = "orders"
PARTITIONS = 2
BEGAN_MS = 1_600_000_000_000
"""Years ago: retention by age would delete all of it."""

Seen = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Offset, timestamp, key, value, headers."""


def url_of(store: Path | str) -> str:
    return store if isinstance(store, str) else f"file://{store}"


def settings(store: Path | str) -> dict[str, str]:
    return QUICK | {
        "remote.log.storage.url": url_of(store),
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "200",
    }


def write(bootstrap: str, first: int, count: int) -> None:
    """Records numbered from `first`, in turns to all partitions."""
    with Producer(bootstrap, linger_ms=5) as producer:
        futures = [
            producer.send(
                TOPIC,
                b"%08d" % number + b"." * 500,
                key=b"k%d" % number,
                partition=number % PARTITIONS,
                headers=[("n", b"%d" % number)],
                timestamp_ms=BEGAN_MS + number,
            )
            for number in range(first, first + count)
        ]
        for future in futures:
            future.result(30)


def offsets(bootstrap: str, spec: int) -> list[int]:
    """Of each partition, as ListOffsets has it."""
    with Admin(bootstrap) as admin:
        found = admin.list_offsets({(TOPIC, number): spec for number in range(PARTITIONS)})
    return [found[TOPIC, number].offset for number in range(PARTITIONS)]


def seen_by_confluent(bootstrap: str, partition: int, end: int) -> list[Seen]:
    """Everything up to `end`, as librdkafka's consumer gets it."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    found: list[Seen] = []
    deadline = time.monotonic() + 60
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, partition, 0)])
        while len(found) < end:
            assert time.monotonic() < deadline, f"{len(found)} of {end} records"
            for one in consumer.consume(min(200, end - len(found)), timeout=0.5):  # it waits until it has so many
                assert one.error() is None
                headers = tuple((name, value) for name, value in one.headers() or [])
                found.append((one.offset(), one.timestamp()[1], one.key(), one.value(), headers))
    finally:
        consumer.close()
    return found[:end]


def seen_by_ours(bootstrap: str, partition: int, end: int) -> list[Seen]:
    """As `seen_by_confluent`, by our consumer."""
    found: list[Seen] = []
    deadline = time.monotonic() + 60
    with Consumer(bootstrap) as consumer:
        consumer.assign([(TOPIC, partition)])
        consumer.seek_to_beginning()
        while len(found) < end:
            assert time.monotonic() < deadline, f"{len(found)} of {end} records"
            found += [
                (one.offset, one.timestamp_ms, one.key, one.value, tuple(one.headers)) for one in consumer.poll(0.5)
            ]
    return found[:end]


def read(bootstrap: str, ends: Sequence[int]) -> list[list[Seen]]:
    """All partitions up to their ends; both clients get the same."""
    found = [seen_by_confluent(bootstrap, number, end) for number, end in enumerate(ends)]
    assert found == [seen_by_ours(bootstrap, number, end) for number, end in enumerate(ends)]
    return found


def command(bootstrap: str, store: Path | str, *words: str) -> list[str]:
    """The words of the command, behind `strandline`."""
    return ["tier", "restore", TOPIC, "-b", bootstrap, "--store", url_of(store), "-o", "json", *words]


def restore(bootstrap: str, store: Path | str, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, command(bootstrap, store, *words))
    assert done.exit_code == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def refused(bootstrap: str, store: Path, *words: str) -> str:
    done = CliRunner().invoke(main, command(bootstrap, store, *words))
    assert done.exit_code == 1, (done.stdout, done.stderr)
    return done.stderr


def objects(store: Path) -> dict[str, int]:
    """Key -> size; the mark that tells a store from a bare directory is none."""
    sizes = {str(path.relative_to(store)): path.stat().st_size for path in store.rglob("*") if path.is_file()}
    return {key: size for key, size in sizes.items() if key != ".strandline-store"}


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int], list[list[Seen]]]:
    """The store of a cluster that is gone, how far its partitions were copied, and what was in them."""
    store = tmp_path_factory.mktemp("lost") / "store"
    with DevCluster(settings=settings(store)) as cluster:
        make_topic(
            cluster, TOPIC, PARTITIONS, remote_storage_enable="true", segment_bytes="50000", local_retention_ms="300",
            retention_ms="-1", file_delete_delay_ms="0",
        )  # fmt: skip
        write(cluster.bootstrap, 0, 600)
        victim = leader_of(cluster, TOPIC)
        cluster.kill(victim)
        write(cluster.responsive, 600, 600)
        cluster.start_node(victim)
        wait_isr(cluster, TOPIC, {1, 2, 3})
        eventually(lambda: min(offsets(cluster.bootstrap, LATEST_TIERED)) >= 450)
        ends = [end + 1 for end in offsets(cluster.bootstrap, LATEST_TIERED)]
        expected = read(cluster.bootstrap, ends)
        root = cluster.root
    shutil.rmtree(root, ignore_errors=True)
    return store, ends, expected


def test_a_topic_outlives_its_cluster(lost: tuple[Path, list[int], list[list[Seen]]], tmp_path: Path) -> None:
    """A new cluster on the same store. The command is killed while it copies; repeated, it copies the rest; once more,
    it says that all is there. Every record is under its offset, with its time, key and headers; new ones come behind
    them, survive their leader, and go to the store after the old ones. What the lost cluster wrote is untouched."""
    store = tmp_path / "store"
    shutil.copytree(lost[0], store)
    _, ends, expected = lost
    before = objects(store)
    with DevCluster(settings=settings(store)) as cluster:
        dry = restore(cluster.bootstrap, store, "--dry-run")
        assert (dry["dry_run"], dry["existed"], objects(store)) == (True, False, before)
        assert [part["end_offset"] for part in dry["partitions"]] == ends

        kill_in_the_middle(cluster, store, before)
        with Admin(cluster.bootstrap) as admin:
            assert TOPIC not in admin.list_topics()

        told = restore(cluster.bootstrap, store, "-c", "segment.bytes=50000", "-c", "local.retention.ms=300")
        assert 0 < told["copied_segments"] < sum(part["segments"] for part in told["partitions"])
        assert told["topic_id"] == dry["topic_id"]
        assert offsets(cluster.bootstrap, EARLIEST) == [0] * PARTITIONS
        assert offsets(cluster.bootstrap, LATEST) == ends
        assert read(cluster.bootstrap, ends) == expected
        assert restore(cluster.bootstrap, store)["existed"]
        with Admin(cluster.bootstrap) as admin:
            by_time = admin.list_offsets({(TOPIC, 0): BEGAN_MS + 300})
        assert [found.offset for found in by_time.values()] == [150]

        write(cluster.bootstrap, 10_000, 400)
        cluster.kill(leader_of(cluster, TOPIC))
        more = [end + 200 for end in ends]
        eventually(lambda: offsets(cluster.responsive, LATEST) == more)
        again = read(cluster.responsive, more)
        assert [part[:end] for part, end in zip(again, ends, strict=True)] == expected
        assert [one[3] for one in again[0][ends[0] :]] == [b"%08d" % n + b"." * 500 for n in range(10_000, 10_400, 2)]
        eventually(lambda: min(offsets(cluster.responsive, LATEST_TIERED)) > max(ends))
        assert read(cluster.responsive, more) == again
        after = objects(store)
        assert {key: size for key, size in after.items() if key in before} == before

    verified = CliRunner().invoke(main, ["tier", "verify", "--store", f"file://{store}"])
    assert verified.exit_code == 0, verified.stdout


def kill_in_the_middle(cluster: DevCluster, store: Path, before: dict[str, int]) -> None:
    """Begin, and kill once a whole segment has come to what was there before: its log comes last, and several segments
    are on their way at a time."""
    running = subprocess.Popen(
        [sys.executable, "-m", "strandline.cli.main", *command(cluster.bootstrap, store)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not any(key.endswith(".log") and key not in before and "attempts/" not in key for key in objects(store)):
            assert time.monotonic() < deadline, "it copies nothing"
            assert running.poll() is None, "it was not caught in the middle"
        running.send_signal(signal.SIGKILL)
    finally:
        running.kill()
        running.wait(10)


def test_into_another_store(lost: tuple[Path, list[int], list[list[Seen]]], tmp_path: Path) -> None:
    """The objects go from the old store into the new cluster's own, and the old one is needed no more. What cannot be
    restored is refused in words that say what helps, and nothing is created by then."""
    source, store = tmp_path / "source", tmp_path / "store"
    shutil.copytree(lost[0], source)
    _, ends, expected = lost
    with DevCluster(nodes=1, settings=settings(store)) as cluster:
        assert "nothing of the topic is in the store" in refused(cluster.bootstrap, store)
        make_topic(cluster, TOPIC)
        words = ("--from", f"file://{source}")
        assert "is there already" in refused(cluster.bootstrap, store, *words)
        with Admin(cluster.bootstrap) as admin:
            admin.delete_topics([TOPIC])
        eventually(lambda: "is there already" not in dry_run(cluster, store, *words))

        gone = [path for path in source.rglob("*00100*") if path.is_file()] or sorted(source.rglob("1/*"))[4:6]
        aside = {path: path.read_bytes() for path in gone}
        for path in gone:
            path.unlink()
        assert "--allow-loss" in refused(cluster.bootstrap, store, *words)
        for path, data in aside.items():
            path.write_bytes(data)

        restore(cluster.bootstrap, store, *words, "-r", "1")
        shutil.rmtree(source)
        assert read(cluster.bootstrap, ends) == expected
        write(cluster.bootstrap, 10_000, 2)
        assert offsets(cluster.bootstrap, LATEST) == [end + 1 for end in ends]


def dry_run(cluster: DevCluster, store: Path, *words: str) -> str:
    return CliRunner().invoke(main, command(cluster.bootstrap, store, *words, "--dry-run")).stderr


@pytest.fixture
def s3() -> Iterator[str]:
    yield from served_s3()


def test_from_one_bucket_into_another(lost: tuple[Path, list[int], list[list[Seen]]], s3: str) -> None:
    """Through S3: what a cluster wrote into a directory, as it stands there, under a prefix of a bucket."""
    import boto3

    source, ends, expected = lost
    access = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    bucket = boto3.client("s3", endpoint_url=s3, region_name="us-east-1", **access)
    bucket.create_bucket(Bucket="old")
    bucket.create_bucket(Bucket="new")
    for key in objects(source):
        bucket.put_object(Bucket="old", Key=f"pre/fix/{key}", Body=(source / key).read_bytes())
    options = {"aws_endpoint": s3, "aws_region": "us-east-1", **access}
    written = ",".join(f"{key}={value}" for key, value in options.items())
    words = [word for key, value in options.items() for word in ("--store-option", f"{key}={value}")]
    words += [word.replace("--store-", "--from-") for word in words]
    own = "s3://new/log"
    with DevCluster(nodes=1, settings=settings(own) | {"remote.log.storage.options": written}) as cluster:
        told = restore(cluster.bootstrap, own, "--from", "s3://old/pre/fix", *words, "-r", "1")
        assert told["copied_segments"] == sum(part["segments"] for part in told["partitions"])
        for item in bucket.list_objects_v2(Bucket="old")["Contents"]:
            bucket.delete_object(Bucket="old", Key=item["Key"])
        assert read(cluster.bootstrap, ends) == expected
        write(cluster.bootstrap, 10_000, 2)
        assert offsets(cluster.bootstrap, LATEST) == [end + 1 for end in ends]
    bucket.close()


def test_under_the_lost_clusters_id_objects_stay_where_they_are(
    lost: tuple[Path, list[int], list[list[Seen]]], tmp_path: Path
) -> None:
    """A cluster that was formatted with the id of the lost one: nothing is copied, and nothing is deleted while the
    topic is not there yet."""
    store, root = tmp_path / "store", tmp_path / "nodes"
    shutil.copytree(lost[0], store)
    _, ends, expected = lost
    before = objects(store)
    [cluster_id] = {key.partition("/")[0] for key in before}
    root.mkdir()
    (root / "cluster.json").write_text(json.dumps({"cluster_id": cluster_id, "nodes": []}))
    with DevCluster(root, settings=settings(store) | {"remote.log.reaper.interval.ms": "200"}) as cluster:
        told = restore(cluster.bootstrap, store, "-c", "local.retention.ms=300")
        assert (told["cluster_id"], told["copied_segments"]) == (cluster_id, 0)
        assert read(cluster.bootstrap, ends) == expected
        assert objects(store) == before


def test_92_what_is_acknowledged_after_a_restore_is_written(tmp_path: Path) -> None:
    """Schedule 92: a new cluster gave the ids out that the lost one's producers had, the first of which wrote the first
    batches here too. It has ids of its own. One producer has its id from before the restore, another from after it."""
    store = tmp_path / "store"

    def fill(producer: Producer, label: bytes) -> None:
        for number in range(3):  # batches of one record each, the sequences 0, 1, 2
            producer.send(TOPIC, b"%b%d" % (label, number) + b"." * 30_000, partition=0).result(30)

    def last_offset(bootstrap: str, spec: int) -> int:
        with Admin(bootstrap) as admin:
            found = admin.list_offsets({(TOPIC, 0): spec})[TOPIC, 0].offset
        return found if spec == LATEST_TIERED else found - 1

    def values(bootstrap: str) -> list[bytes | None]:
        with Consumer(bootstrap) as consumer:
            consumer.assign([(TOPIC, 0)])
            consumer.seek_to_beginning()
            found: list[bytes | None] = []
            deadline = time.monotonic() + 60
            while len(found) <= last_offset(bootstrap, LATEST):
                assert time.monotonic() < deadline, f"{len(found)} records"
                found += [one.value for one in consumer.poll(0.5)]
        return [None if value is None else value[:4] for value in found]

    with DevCluster(nodes=1, settings=settings(store)) as cluster:
        make_topic(
            cluster, TOPIC, 1, replication=1, remote_storage_enable="true", segment_bytes="50000",
            local_retention_ms="300", file_delete_delay_ms="0",
        )  # fmt: skip
        with Producer(cluster.bootstrap) as producer:
            fill(producer, b"old")
            first_id = producer.producer_id()
        eventually(lambda: last_offset(cluster.bootstrap, LATEST_TIERED) == 1)
    with DevCluster(nodes=1, settings=settings(store)) as cluster:
        make_topic(cluster, "other", 1, replication=1)
        with Producer(cluster.bootstrap) as early:
            early.send("other", b"an id is given out").result(30)
            assert early.producer_id() != first_id
            restore(cluster.bootstrap, store, "-r", "1")
            fill(early, b"new")
            with Producer(cluster.bootstrap) as late:
                fill(late, b"end")
                assert late.producer_id() > early.producer_id()
        written = [b"%b%d" % (label, number) for label in (b"new", b"end") for number in range(3)]
        assert values(cluster.bootstrap) == [b"old0", b"old1", *written]


def test_readers_that_had_read_more_than_was_stored_are_told(tmp_path: Path) -> None:
    """Rule B39: the topic ends beyond their positions again, under its old id, by the time that they come back. They
    keep their positions outside of the cluster: a lake (which refuses), and the checkpoint of a Spark query."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[lake]'")
    from strandline.spark.lookup import ClusterOffsets
    from strandline.spark.options import parse_options
    from strandline.spark.planner import DataLossError
    from strandline.spark.stream_offsets import StreamOffset
    from strandline.spark.stream_planner import StreamPlanner

    store, place = tmp_path / "store", tmp_path / "lake"

    def fill(bootstrap: str) -> None:
        with Producer(bootstrap) as producer:
            for _ in range(3):
                producer.send(TOPIC, b"." * 30_000, partition=0).result(30)

    def export(bootstrap: str, *words: str, expect: int = 0) -> str:
        return lake(bootstrap, "export", TOPIC, "--to", str(place), *words, expect=expect).output

    def next_end(bootstrap: str, start: StreamOffset | None) -> StreamOffset:
        given = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
        with ClusterOffsets(bootstrap, {}) as lookup:
            planner = StreamPlanner(parse_options(given, streaming=True), lookup, SystemClock())
            return planner.next_end(start or planner.initial(), unlimited=True)

    with DevCluster(nodes=1, settings=settings(store)) as cluster:
        make_topic(
            cluster, TOPIC, 1, replication=1, remote_storage_enable="true", segment_bytes="50000",
            local_retention_ms="300", file_delete_delay_ms="0",
        )  # fmt: skip
        fill(cluster.bootstrap)
        export(cluster.bootstrap)
        checkpoint = next_end(cluster.bootstrap, None)
        with Admin(cluster.bootstrap) as admin:
            eventually(lambda: admin.list_offsets({(TOPIC, 0): LATEST_TIERED})[TOPIC, 0].offset == 1)
    with DevCluster(nodes=1, settings=settings(store)) as cluster:
        restore(cluster.bootstrap, store, "-r", "1")
        fill(cluster.bootstrap)
        before = [path.name for path in (place / "commits").iterdir()]
        for words in ((), ("--dry-run",)):
            told = export(cluster.bootstrap, *words, expect=1)
            assert f"{TOPIC}-0 was read up to offset 3, but its log was cut at offset 2 since" in told
        assert [path.name for path in (place / "commits").iterdir()] == before
        saved = StreamOffset.from_json(json.loads(json.dumps(checkpoint.to_json())))
        with pytest.raises(DataLossError, match="up to offset 3, but the log was cut at offset 2"):
            next_end(cluster.bootstrap, saved)
