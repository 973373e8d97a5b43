"""Row S100, its second half: one topic restored from a backup into an empty cluster."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from strandline.cli.main import main
from strandline.client import EARLIEST, LATEST, Admin, ConfigResource, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.proto.ids import TopicPartition
from tests.acceptance.helpers import eventually, send_all
from tests.acceptance.topics import create, drain

TOPIC = "ledger"
CONFIGS = {"retention.ms": "1500000000000", "max.message.bytes": "200000", "message.timestamp.type": "CreateTime"}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LONG_AGO_MS = 1_000_000_000_000
"""In 2001: the topic keeps records for 47 years, as a cluster that tests share looks for old ones each five minutes."""


def run(cluster: DevCluster, *words: str, expect: int = 0) -> Result:
    """One command of the program."""
    told = CliRunner().invoke(main, words, env={"STRANDLINE_BOOTSTRAP": cluster.bootstrap})
    assert told.exit_code == expect, (told.output, told.stderr, told.exception)
    return told


@pytest.fixture(scope="module")
def empty() -> Iterator[DevCluster]:
    """Another cluster, with nothing in it."""
    with DevCluster(nodes=1) as running:
        yield running


@pytest.fixture(scope="module")
def source(cluster: DevCluster) -> DevCluster:
    """The cluster with a topic of four partitions: of every codec; trimmed to the middle of a batch; trimmed behind its
    last record; never used."""
    create(cluster.bootstrap, TOPIC, 4, configs=CONFIGS)
    for codec in CODECS:
        with Producer(cluster.bootstrap, compression_type=codec, linger_ms=20) as producer:
            for n in range(60):
                producer.send(
                    TOPIC, None if n % 10 == 9 else f"{codec} {n}".encode() * 5, key=b"k%d" % (n % 7), partition=0,
                    headers=[("codec", codec.encode()), ("none", None)], timestamp_ms=LONG_AGO_MS + n,
                )  # fmt: skip
    send_all(cluster, TOPIC, [b"%d" % n for n in range(100)], 1, linger_ms=50)
    send_all(cluster, TOPIC, [b"%d" % n for n in range(7)], 2)
    with Admin(cluster.bootstrap) as admin:
        admin.delete_records({(TOPIC, 1): 37, (TOPIC, 2): 7})
    return cluster


@pytest.fixture(scope="module")
def taken(source: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of it, in small files."""
    directory = tmp_path_factory.mktemp("backups") / "ledger"
    dry = run(source, "topic", "backup", TOPIC, "--to", str(directory), "--dry-run")
    assert "would copy 363 records" in dry.stdout
    assert not directory.exists()
    told = run(source, "topic", "backup", TOPIC, "--to", str(directory), "--segment-bytes", "4000", "-o", "json")
    parts = json.loads(told.stdout)["partitions"]
    assert [(part["log_start_offset"], part["high_watermark"]) for part in parts] == [
        (0, 300),
        (37, 100),
        (7, 7),
        (0, 0),
    ]
    assert parts[0]["files"] > 1
    return directory


def offsets(cluster: DevCluster, topic: str, times: Sequence[int] = (EARLIEST, LATEST)) -> list[list[int]]:
    """What each partition answers to each question."""
    places = [(topic, number) for number in range(4)]
    with Admin(cluster.bootstrap) as admin:
        answers = [admin.list_offsets(dict.fromkeys(places, time)) for time in times]
    return [[answer[TopicPartition(*place)].offset for answer in answers] for place in places]


def own_configs(cluster: DevCluster, topic: str) -> dict[str, Any]:
    with Admin(cluster.bootstrap) as admin:
        [entries] = admin.describe_configs([ConfigResource("topic", topic)]).values()
    return {entry.name: entry.value for entry in entries if entry.source == "DYNAMIC_TOPIC_CONFIG"}


def test_s100_a_topic_restored_into_an_empty_cluster_has_equal_counts_and_offsets(
    source: DevCluster, taken: Path, empty: DevCluster
) -> None:
    """Row S100: every record with its offset, key, value, headers and time; log starts, ends, look-ups by time;
    settings. Whoever writes next gets the next offset."""
    told = run(empty, "topic", "restore", str(taken), "--replication", "1")
    assert "restored, read back and compared 363 records" in told.stdout
    times = (EARLIEST, LATEST, LONG_AGO_MS + 30, LONG_AGO_MS + 60)
    assert offsets(empty, TOPIC, times) == offsets(source, TOPIC, times)
    was, now = (sorted(drain(one.bootstrap, TOPIC, 4), key=lambda r: r[:3]) for one in (source, empty))
    assert len(was) == 363
    assert [record._replace(leader_epoch=0) for record in was] == [record._replace(leader_epoch=0) for record in now]
    assert own_configs(empty, TOPIC) == own_configs(source, TOPIC) == CONFIGS
    assert send_all(empty, TOPIC, [b"next"], 1) == [100]
    assert send_all(empty, TOPIC, [b"next"], 2) == [7]


def test_a_backup_is_read_by_log_dump(source: DevCluster, taken: Path) -> None:
    """Its files are segments in Kafka's format."""
    told = run(source, "log", "dump", str(taken / f"{TOPIC}-0"), "--records")
    assert "zstd 58" in told.stdout
    assert "zstd" in told.stdout


def test_nothing_is_overwritten(source: DevCluster, taken: Path) -> None:
    """A topic that has had records, another number of partitions, a directory that is there: refused, and unchanged."""
    before = offsets(source, TOPIC)
    told = run(source, "topic", "restore", str(taken), expect=1)
    assert f"topic {TOPIC} is there and has had records" in told.stderr
    assert offsets(source, TOPIC) == before
    create(source.bootstrap, "ledger-2", 2)
    told = run(source, "topic", "restore", str(taken), "--to", "ledger-2", expect=1)
    assert "is there with 2 partitions; the backup has 4" in told.stderr
    told = run(source, "topic", "backup", TOPIC, "--to", str(taken), expect=1)
    assert "is there already and not empty" in told.stderr
    assert [path.name for path in taken.parent.iterdir()] == [taken.name]


def test_into_an_empty_topic_and_under_another_name(source: DevCluster, taken: Path) -> None:
    """A dry run creates nothing; an empty topic gets records and settings of the backup."""
    run(source, "topic", "restore", str(taken), "--to", "ledger-3", "--dry-run")
    with Admin(source.bootstrap) as admin:
        assert "ledger-3" not in admin.list_topics()
    create(source.bootstrap, "ledger-3", 4)
    run(source, "topic", "restore", str(taken), "--to", "ledger-3")
    assert offsets(source, "ledger-3") == offsets(source, TOPIC)
    eventually(lambda: own_configs(source, "ledger-3") == CONFIGS)  # a broker hears of settings a moment later


def test_times_that_the_broker_gave_are_kept(source: DevCluster, empty: DevCluster, tmp_path: Path) -> None:
    """LogAppendTime: a restore is no new append; afterwards the setting holds again."""
    configs = {"message.timestamp.type": "LogAppendTime"}
    create(source.bootstrap, "stamped", 1, configs=configs)
    send_all(source, "stamped", [b"one", b"two"])
    run(source, "topic", "backup", "stamped", "--to", str(tmp_path / "stamped"))
    run(empty, "topic", "restore", str(tmp_path / "stamped"), "--replication", "1")
    was, now = (drain(one.bootstrap, "stamped", 1) for one in (source, empty))
    assert [(r.offset, r.timestamp_ms, r.timestamp_type, r.value) for r in was] == [
        (r.offset, r.timestamp_ms, r.timestamp_type, r.value) for r in now
    ]
    assert own_configs(empty, "stamped") == configs


def test_a_damaged_backup_restores_nothing(source: DevCluster, taken: Path, tmp_path: Path) -> None:
    """One bit of the last file: no topic is created."""
    copy = tmp_path / "copy"
    shutil.copytree(taken, copy)
    last = max((copy / f"{TOPIC}-1").iterdir())
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    told = run(source, "topic", "restore", str(copy), "--to", "ledger-4", expect=1)
    assert f"the backup is damaged: {TOPIC}-1/{last.name}" in told.stderr
    with Admin(source.bootstrap) as admin:
        assert "ledger-4" not in admin.list_topics()
