"""`strandline why` and what `doctor --http` says of rot, against a real node; what is not known is said to be."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.acceptance.foreign import segment_files, stored_batches
from tests.client.conftest import eventually

from strandline.cli import doctor
from strandline.cli.http_listener import Sample
from strandline.cli.main import main
from strandline.client import Admin, NewTopic, Producer
from strandline.client.types import PartitionDescription
from strandline.cluster.node.dev import DevCluster
from strandline.proto.ids import TopicPartition
from strandline.tools.why import Explanation, LogEnds, Why

TINY = {"segment.bytes": "4096", "file.delete.delay.ms": "0"}
COMPACT = TINY | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def node() -> Iterator[DevCluster]:
    """One node; compaction looks every 200 ms."""
    with DevCluster(nodes=1, settings={"log.cleaner.backoff.ms": "200"}) as cluster:
        yield cluster


def run(cluster: DevCluster, *words: object, expect: int = 0) -> Result:
    told = CliRunner().invoke(main, [*map(str, words), "-b", cluster.bootstrap])
    assert told.exit_code == expect, (told.output, told.exception)
    return told


def why(cluster: DevCluster, *words: object) -> dict[str, Any]:
    return dict(json.loads(run(cluster, "why", *words, "-o", "json").stdout))


def topic(cluster: DevCluster, name: str, **configs: str) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1, {key.replace("_", "."): value for key, value in configs.items()})])


def test_a_record(node: DevCluster) -> None:
    """Who wrote it, when, under which leader, who has it, in which file it lies, how long it stays."""
    topic(node, "orders", segment_bytes="4096")
    now_ms = int(time.time() * 1000)
    with Producer(node.bootstrap, linger_ms=0) as producer:
        for number in range(20):
            producer.send("orders", b"x" * 500, key=b"k%d" % number, timestamp_ms=now_ms - 1000).result()
    found = why(node, "orders", 0, 7)
    assert (found["state"], found["committed"], found["high_watermark"]) == ("record", True, 20)
    assert found["producer"]["sequence"] == 7
    assert found["producer"]["id"] >= 0
    record = {
        "timestamp_ms": now_ms - 1000,
        "timestamp_type": "CreateTime",
        "key": "k7",
        "value_bytes": 500,
        "headers": 0,
    }
    assert found["record"] == record
    assert (found["led_by"], found["written_in_epoch"]) == (1, found["leader_epoch"])
    assert [(replica["node"], replica["role"], replica["has_it"]) for replica in found["replicas"]] == [
        (1, "leader", True)
    ]
    assert found["synced"] is True
    files = {int(path.stem): path for path in segment_files(node.data_dir(1), "orders")}
    base = max(base for base in files if base <= 7)
    assert Path(found["segment"]["path"]) == files[base]
    assert not found["segment"]["is_active"]
    assert found["segment"]["newest_ms"] == now_ms - 1000
    assert found["not_before_ms"] == now_ms - 1000 + 7 * DAY_MS
    assert found["compaction"] == "none: cleanup.policy has no compact"
    assert [sentence.partition(":")[0] for sentence in found["unknown"]] == ["when it was appended"]
    shown = run(node, "why", "orders", 0, 7).stdout
    assert "broker 1, which leads still" in shown
    assert "the topic keeps the producer's time" in shown


def test_when_it_was_appended(node: DevCluster) -> None:
    """LogAppendTime tells; a time of the future tells nothing of retention."""
    topic(node, "stamped", message_timestamp_type="LogAppendTime", retention_bytes="1000000")
    topic(node, "ahead")
    with Producer(node.bootstrap) as producer:
        producer.send("stamped", b"x").result()
        producer.send("ahead", b"x", timestamp_ms=int(time.time() * 1000) + 1_800_000).result()
    found = why(node, "stamped", 0, 0)
    assert found["record"]["timestamp_type"] == "LogAppendTime"
    assert found["unknown"] == []
    assert "once about 1,000,000 more bytes are written" in found["retention"]
    assert why(node, "ahead", 0, 0)["not_before_ms"] is None


def test_what_is_not_there(node: DevCluster) -> None:
    """Below the log start, and at the high watermark."""
    topic(node, "trimmed")
    with Producer(node.bootstrap) as producer:
        for _ in range(5):
            producer.send("trimmed", b"x").result()
    run(node, "topic", "trim", "trimmed", "--before-offset", 3, "--yes")
    gone = why(node, "trimmed", 0, 2)
    assert (gone["state"], gone["producer"], gone["replicas"]) == ("deleted", None, [])
    assert gone["retention"] == "deleted: the log begins at offset 3"
    assert any("whether retention took it or somebody did" in sentence for sentence in gone["unknown"])
    ahead = why(node, "trimmed", 0, 5)
    assert (ahead["state"], ahead["committed"], ahead["replicas"][0]["has_it"]) == ("not-committed", False, None)
    assert "whether it was written at all" in ahead["unknown"][0]
    asked = why(node, "trimmed", 0, 5, "--http", node.http(1))
    assert (asked["replicas"][0]["has_it"], asked["unknown"]) == (False, [])
    assert "0 to 0: those of trimmed" in run(node, "why", "trimmed", 1, 0, expect=2).stderr
    assert "UNKNOWN_TOPIC" in run(node, "why", "nowhere", 0, 0, expect=1).stderr


def test_compacted(node: DevCluster) -> None:
    """A later value of the key, none, none as far as was looked; then compaction takes the record."""
    topic(node, "table", **{key.replace(".", "_"): value for key, value in COMPACT.items()}, min_compaction_lag_ms="0")
    with Producer(node.bootstrap, linger_ms=0) as producer:
        for number in range(12):
            producer.send("table", b"%d" % number, key=b"a" if number in (0, 5) else b"k%d" % number).result()
        found = why(node, "table", 0, 0)
        assert found["superseded_by"] == 5
        assert found["retention"] == "none: cleanup.policy has no delete"
        assert why(node, "table", 0, 5)["compaction"] == "it stays: it is the last value of its key"
        short = why(node, "table", 0, 5, "--look-ahead", 2)
        assert short["compaction"] == "its key has no later value up to offset 7"
        assert any("from offset 8 on" in sentence for sentence in short["unknown"])
        for _ in range(20):
            producer.send("table", b"x" * 1000, key=b"filler").result()
    eventually(lambda: why(node, "table", 0, 0)["state"] == "compacted")
    gone = why(node, "table", 0, 0)
    assert gone["record"] is None
    assert any("by what it was superseded" in sentence for sentence in gone["unknown"])


def test_rot(node: DevCluster) -> None:
    """Neither invents a record. `doctor --http` names the broker, and its advice helps."""
    topic(node, "lone")
    with Producer(node.bootstrap, linger_ms=0) as producer:
        for _ in range(6):
            producer.send("lone", b"x" * 200).result()
    sizes = [len(batch) for batch in stored_batches(node.data_dir(1), "lone")]
    [path] = segment_files(node.data_dir(1), "lone")
    with path.open("r+b") as file:
        file.seek(sum(sizes[:3]) - 50)
        file.write(b"!")
    found = why(node, "lone", 0, 2, "-X", "default.api.timeout.ms=1000")
    assert (found["state"], found["record"], found["producer"]) == ("rotten", None, None)
    assert why(node, "lone", 0, 3)["state"] == "record"

    def said() -> list[dict[str, str]]:
        told = CliRunner().invoke(
            main, ["doctor", "-b", node.bootstrap, "--http", node.http(1), "--http", "127.0.0.1:1", "-o", "json"]
        )
        return [one for one in json.loads(told.stdout) if "rotten" in one["setting"] + one["loses"]]

    eventually(lambda: len(said()) == 2)
    rotten, silent = said()
    assert (rotten["where"], rotten["setting"], silent["kind"]) == ("broker 1", "1 rotten replica", "unchecked")
    assert "strandline topic trim TOPIC --before-offset NEXT_OFFSET" in rotten["remedy"]
    words = Path(node.log_path(1)).read_text()
    [line] = [line for line in words.splitlines() if "a part of a log has rotted" in line and "lone" in line]
    following = re.search(r"next_offset[^0-9]+(\d+)", line)
    assert following is not None
    run(node, "topic", "trim", "lone", "--before-offset", following[1], "--yes")
    eventually(lambda: len(said()) == 1)
    refused = run(node, "doctor", "--http", node.http(1), "--producer", expect=2)
    assert "--http is about a live cluster" in refused.stderr


def test_doctor_names_a_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the histogram of syncs, as a node's metrics have it."""

    def slow_node(_node: str, _cacert: str | None) -> tuple[int, Iterator[Sample]]:
        counts = {"0.05": 80, "0.1": 90, "0.25": 120, "+Inf": 200}
        buckets = [Sample("strandline_sync_seconds_bucket", {"le": bound}, count) for bound, count in counts.items()]
        return 7, iter([*buckets, Sample("strandline_sync_in_flight_seconds", {}, 3.0)])

    monkeypatch.setattr(doctor, "metrics_of", slow_node)
    assert [(one.where, one.setting) for one in doctor._of_metrics("h:1", None)] == [
        ("broker 7", "a sync has taken 3.0 s by now"),
        ("broker 7", "110 of 200 syncs took more than 0.1 s"),
    ]


def test_who_has_it() -> None:
    """By role and by what metrics say: nobody behind is believed to have a record, or to lack it, without them."""
    part = PartitionDescription(0, 1, 4, (1, 2, 3), (1, 2))

    def has(offset: int, node_id: int, **ends: tuple[int, int]) -> bool | None:
        known = {int(name[1:]): LogEnds(*pair) for name, pair in ends.items()}
        found = Explanation("t", 0, offset, 0, 100, 1, 4)
        asked = Why(None, None, TopicPartition("t", 0), offset, ends=known, now_ms=0)  # type: ignore[arg-type]
        return asked._replica(found, part, node_id).has_it

    assert has(99, 1) is True
    assert has(99, 2) is True
    assert has(99, 3) is None
    assert has(99, 3, n3=(50, 50)) is False
    assert has(49, 3, n3=(50, 50)) is True
    assert has(99, 3, n3=(100, 60)) is None, "it may be cut again"
    assert has(100, 1, n1=(101, 100)) is True, "written, and not committed"
    assert has(100, 2) is None
