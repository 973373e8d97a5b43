"""`strandline lake` against real brokers, as a user types it; read back by pyarrow, pandas and DuckDB."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from strandline.client import Admin, Consumer, Producer
from strandline.client.errors import UnknownTopic
from strandline.client.types import NewTopic
from strandline.cluster.node.dev import DevCluster
from strandline.lake.commits import Lake
from tests.client.conftest import eventually
from tests.lake.stage import DAY_MS, FIRST_DAY_MS, KEPT, assert_each_once, document, files, in_duckdb, lake, send

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[lake]'")

_numbers = itertools.count(1)
EACH = 'SELECT partition, "offset", CAST(CAST(value AS VARCHAR) AS BIGINT) FROM rows'


@pytest.fixture
def admin(cluster: DevCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as admin:
        yield admin


@pytest.fixture
def producer(cluster: DevCluster) -> Iterator[Producer]:
    with Producer(cluster.bootstrap, linger_ms=5) as producer:
        yield producer


@pytest.fixture
def topic(admin: Admin) -> Iterator[str]:
    """Of two partitions; deleted afterwards."""
    name = f"lake-{os.getpid()}-{next(_numbers)}"
    admin.create_topics([NewTopic(name, 2, 3, KEPT)])
    yield name
    with suppress(UnknownTopic):
        admin.delete_topics([name])


def ends(admin: Admin, topic: str) -> dict[int, int]:
    from strandline.client.types import LATEST

    found = admin.list_offsets({(topic, number): LATEST for number in (0, 1)})
    return {where.partition: answer.offset for where, answer in found.items()}


def test_a_topic_as_a_lake(cluster: DevCluster, admin: Admin, producer: Producer, topic: str, tmp_path: Path) -> None:
    """Each record once, by day; a second run has nothing to do, a third one the rest."""
    place = str(tmp_path / "lake")
    send(producer, topic, range(1000))
    told = document(lake(cluster.bootstrap, "export", topic, "--to", place, "--output", "json"))
    assert (told["rows"], told["bad"], told["lost"], told["files"], told["commits"]) == (1000, 0, 0, 3, 1)
    again = document(lake(cluster.bootstrap, "export", topic, "--to", place, "--output", "json"))
    assert (again["rows"], again["commits"], again["partitions"]) == (0, 0, [])
    send(producer, topic, range(1000, 1500))
    lake(cluster.bootstrap, "export", topic, "--to", place, "--commit-interval", "0.1", "--batch-rows", "50")
    assert_each_once(in_duckdb(files(place), EACH), 1500, ends(admin, topic))
    by_date = in_duckdb(files(place), "SELECT CAST(date AS VARCHAR), count(*) FROM rows GROUP BY ALL ORDER BY 1")
    assert by_date == [("2026-01-05", 500), ("2026-01-06", 500), ("2026-01-07", 500)]
    status = document(lake(cluster.bootstrap, "status", place, "--output", "json"))
    assert (status["rows"], status["lag_unknown"]) == (1500, None)
    assert [one["lag"] for one in status["partitions"]] == [0, 0]
    assert document(lake(cluster.bootstrap, "verify", place, "--output", "json"))["held"]


def test_pyarrow_and_pandas_read_the_directory(
    cluster: DevCluster, producer: Producer, topic: str, tmp_path: Path
) -> None:
    import pandas
    from pyarrow import dataset

    send(producer, topic, range(300))
    producer.send(topic, None, key=b"gone", headers=[("why", b"deleted")], partition=0, timestamp_ms=FIRST_DAY_MS)
    producer.flush()
    lake(cluster.bootstrap, "export", topic, "--to", str(tmp_path))
    table = dataset.dataset(tmp_path / "data", partitioning="hive").to_table()
    assert table.num_rows == 301
    frame = pandas.read_parquet(tmp_path / "data")
    assert set(frame.columns) == {"topic", "partition", "offset", "timestamp", "key", "headers", "value", "date"}
    [tombstone] = frame[frame["key"] == b"gone"].to_dict("records")
    assert tombstone["value"] is None
    assert list(tombstone["headers"]) == [{"name": "why", "value": b"deleted"}]
    assert str(frame["timestamp"].min()) == "2026-01-05 00:00:00+00:00"


def test_records_that_fit_no_row_are_kept_apart(
    cluster: DevCluster, producer: Producer, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "schema.json").write_text(json.dumps({"id": "long", "paid": "boolean"}))
    for number in range(100):
        value = b"nonsense" if number % 10 == 3 else json.dumps({"id": number, "paid": number % 2 == 0}).encode()
        producer.send(topic, value, partition=0, timestamp_ms=FIRST_DAY_MS)
    producer.flush()
    place = str(tmp_path / "lake")
    words = ("export", topic, "--to", place, "--value", "json", "--schema", str(tmp_path / "schema.json"))
    told = lake(cluster.bootstrap, *words)
    assert f"! offset 3 of {topic}-0 goes to bad/: JSONDecodeError" in told.output
    assert "! 10 records in bad/: they fit no row" in told.output
    assert in_duckdb(files(place), "SELECT count(*), sum(id), count_if(paid) FROM rows") == [(90, 4470, 50)]
    [bad] = lake(cluster.bootstrap, "files", place, "--bad").stdout.split()
    query = "SELECT \"offset\", CAST(value AS VARCHAR), reason LIKE 'JSONDecodeError%' FROM rows ORDER BY 1"
    assert in_duckdb([bad], query) == [(number, "nonsense", True) for number in range(3, 100, 10)]
    assert document(lake(cluster.bootstrap, "verify", place, "--output", "json"))["bad"] == 10


def test_offsets_without_a_record_are_counted(
    cluster: DevCluster, admin: Admin, producer: Producer, tmp_path: Path
) -> None:
    """What compaction has taken is in the range of the commit, and no row."""
    topic = f"lake-compacted-{os.getpid()}"
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "4096",
               "max.compaction.lag.ms": "100"}  # fmt: skip
    admin.create_topics([NewTopic(topic, 1, 3, configs)])
    try:
        for number in range(600):
            producer.send(topic, b"%d" % number, key=b"%d" % (number % 5), timestamp_ms=FIRST_DAY_MS + number)
            if number % 20 == 0:
                producer.flush()
        producer.flush()
        settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}

        def kept() -> int:
            with Consumer(cluster.bootstrap, **settings) as consumer:  # type: ignore[arg-type]
                consumer.assign([(topic, 0)])
                return next(record.offset for record in iter(consumer))

        eventually(lambda: kept() > 0, within_s=60)
        told = document(lake(cluster.bootstrap, "export", topic, "--to", str(tmp_path), "--output", "json"))
    finally:
        admin.delete_topics([topic])
    assert (told["lost"], told["partitions"]) == (0, [{"partition": 0, "from": 0, "to": 600, "lost": 0}])
    assert told["empty"] == 600 - told["rows"] > 0
    assert in_duckdb(files(tmp_path), 'SELECT count(*), max("offset") FROM rows') == [(told["rows"], 599)]
    assert "without a record" in lake(cluster.bootstrap, "verify", str(tmp_path)).output


def test_records_that_were_deleted_before_are_named(
    cluster: DevCluster, admin: Admin, producer: Producer, topic: str, tmp_path: Path
) -> None:
    for number in range(100):
        producer.send(topic, b"%d" % number, partition=0, timestamp_ms=FIRST_DAY_MS)
    producer.flush()
    admin.delete_records({(topic, 0): 40})
    told = lake(cluster.bootstrap, "export", topic, "--to", str(tmp_path))
    assert f"! 40 offsets of {topic}-0, from 0 to 39, were deleted before they were exported" in told.output
    assert "! 40 offsets lost: deleted before they were exported" in told.output
    commit = json.loads((tmp_path / "commits" / "00000000.json").read_text())
    assert commit["lost"] == {topic: {"0": [[0, 40]]}}
    assert commit["ranges"] == {topic: {"0": [0, 100]}}
    assert document(lake(cluster.bootstrap, "verify", str(tmp_path), "--output", "json"))["lost"] == 40


def test_a_topic_made_anew_is_refused(
    cluster: DevCluster, admin: Admin, producer: Producer, topic: str, tmp_path: Path
) -> None:
    send(producer, topic, range(50))
    place = str(tmp_path)
    refused = lake(cluster.bootstrap, "export", topic, "--to", place, "--new-topic", expect=1)
    assert "--new-topic: the lake has no other topic" in refused.output
    lake(cluster.bootstrap, "export", topic, "--to", place)
    admin.delete_topics([topic])
    admin.create_topics([NewTopic(topic, 2, 3, KEPT)])
    send(producer, topic, range(50, 60))
    refused = lake(cluster.bootstrap, "export", topic, "--to", place, expect=1)
    assert f"topic {topic} was deleted and made anew" in refused.output
    assert "--new-topic goes on with it" in refused.output
    assert "it was made anew" in document(lake(cluster.bootstrap, "status", place, "-o", "json"))["lag_unknown"]
    lake(cluster.bootstrap, "export", topic, "--to", place, "--new-topic")
    lake(cluster.bootstrap, "export", topic, "--to", place)
    numbers = in_duckdb(files(place), "SELECT CAST(CAST(value AS VARCHAR) AS INT) AS n FROM rows ORDER BY n")
    assert numbers == [(number,) for number in range(60)]


def test_many_small_files_become_one_a_day(
    cluster: DevCluster, admin: Admin, producer: Producer, topic: str, tmp_path: Path
) -> None:
    place = str(tmp_path / "lake")
    for start in range(0, 500, 100):
        send(producer, topic, range(start, start + 100))
        lake(cluster.bootstrap, "export", topic, "--to", place)
    told = document(lake(cluster.bootstrap, "compact", place, "-o", "json"))
    assert told == {"lake": place, "files_before": 15, "files": 3, "deleted": 0}
    assert_each_once(in_duckdb(files(place), EACH), 500, ends(admin, topic))
    told = document(lake(cluster.bootstrap, "compact", place, "--keep-minutes", "0", "-o", "json"))
    assert (told["files_before"], told["files"], told["deleted"]) == (3, 3, 15)
    send(producer, topic, range(500, 600))
    lake(cluster.bootstrap, "export", topic, "--to", place)
    assert_each_once(in_duckdb(files(place), EACH), 600, ends(admin, topic))


def test_verify_names_what_is_wrong(cluster: DevCluster, producer: Producer, topic: str, tmp_path: Path) -> None:
    send(producer, topic, range(300))
    place = str(tmp_path)
    lake(cluster.bootstrap, "export", topic, "--to", place)
    first, second, third = (tmp_path / "data" / name for name in sorted(Lake(place).state().files))
    (tmp_path / "data" / "date=2026-01-05" / "stray.parquet").write_bytes(first.read_bytes())
    assert "not in a commit: data/date=2026-01-05/stray.parquet" in lake(cluster.bootstrap, "verify", place).output
    first.unlink()
    second.write_bytes(second.read_bytes()[:-10])
    commit = tmp_path / "commits" / "00000000.json"
    name = third.relative_to(tmp_path / "data").as_posix()
    commit.write_text(commit.read_text().replace(f'"{name}": 100', f'"{name}": 99'))
    told = lake(cluster.bootstrap, "verify", place, expect=1).output
    assert f"! data/{first.parent.name}/{first.name} is in a commit, and not there" in told
    assert f"! data/{second.parent.name}/{second.name} cannot be read" in told
    assert f"! data/{name} has 100 rows, and 99 by its commit" in told


def test_records_of_many_days_in_little_memory(
    cluster: DevCluster, admin: Admin, producer: Producer, topic: str, tmp_path: Path
) -> None:
    """More days than files are open at a time, in batches of a few rows."""
    send(producer, topic, range(2000), days=40)
    lake(cluster.bootstrap, "export", topic, "--to", str(tmp_path), "--batch-rows", "100", "--batch-bytes", "2000")
    assert_each_once(in_duckdb(files(tmp_path), EACH), 2000, ends(admin, topic))
    same_day = f"epoch_ms(timestamp) // {DAY_MS} = epoch_ms(date) // {DAY_MS}"
    dates = in_duckdb(files(tmp_path), f"SELECT bool_and({same_day}) FROM rows")
    assert dates == [(True,)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--to", "x", "--catalog", "sqlite:///y"), "are for --format iceberg"),
        (("--to", "x", "--format", "iceberg"), "needs --catalog"),
        ((), "--to: a directory"),
        (("--to", "x", "--value", "json"), "it needs --schema"),
        (("--to", "x", "--schema", __file__), "--schema is for json, avro and protobuf"),
        (("--to", "x", "--message", "M"), "--message is for --value protobuf"),
        (("--to", "ftp://x"), "a directory, s3://"),
        (("--to", "x", "-X", "isolation.level=read_uncommitted"), "isolation_level"),
    ],
)
def test_what_has_no_effect_is_refused(cluster: DevCluster, words: tuple[str, ...], says: str) -> None:
    assert says in lake(cluster.bootstrap, "export", "orders", *words, expect=2).output


def test_what_is_no_lake_is_said(tmp_path: Path) -> None:
    for command in ("status", "verify", "compact", "files"):
        assert "is no lake: it has no commits/" in lake("127.0.0.1:1", command, str(tmp_path), expect=1).output
