"""How large topics are and when a disk is full: the arithmetic, and the command against brokers."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from click.testing import CliRunner

from strandline.cli.main import main
from strandline.cli.sizes import shown_bytes
from strandline.client import Admin, NewTopic, Producer
from strandline.tools.sizes import DAY_MS, Growing, bytes_a_day, days_until_full, known_at, records_a_day
from tests.client.conftest import eventually

NOW = 100 * DAY_MS


def test_records_a_day() -> None:
    """Of an old log those of the last day; of a young one all, projected; of a very young one nobody knows."""
    assert records_a_day(1000, 1, 900, 0, now_ms=NOW) == 100
    assert records_a_day(1000, NOW - DAY_MS // 2, 0, 0, now_ms=NOW) == 2000
    assert records_a_day(1000, NOW - 60_000, 0, 0, now_ms=NOW) is None
    assert records_a_day(1000, 1, -1, 0, now_ms=NOW) == 0, "nothing came today"
    assert records_a_day(7, -1, -1, 7, now_ms=NOW) == 0, "it is empty"
    assert records_a_day(7, -1, -1, 0, now_ms=NOW) is None, "no record has a time"
    assert records_a_day(7, NOW + 5, 0, 0, now_ms=NOW) is None, "they are of the future"


def test_bytes_a_day() -> None:
    assert bytes_a_day(1000, 100, 10) == 100
    assert bytes_a_day(1000, 100, None) is None
    assert bytes_a_day(0, 0, 0) == 0
    assert bytes_a_day(0, 0, 5) is None, "this replica has nothing yet"


def test_when_a_growth_is_known() -> None:
    assert known_at(NOW - 60_000) == NOW + 59 * 60_000
    assert known_at(-1) is None, "no record has a time"


def test_days_until_full() -> None:
    """Replicas grow until retention stops them, one after the other."""
    free = Growing(0, 10, math.inf)
    assert days_until_full(100, [free]) == (10, "")
    assert days_until_full(100, [free, Growing(0, 10, 20)]) == (8, "")
    assert days_until_full(100, [Growing(50, 10, 120)]) == (None, "retention keeps it below")
    assert days_until_full(100, [Growing(50, 10, 150)]) == (10, "")
    assert days_until_full(100, [Growing(50, 0, math.inf), Growing(5, 9, 5)]) == (None, "nothing grows")
    assert days_until_full(None, [free])[0] is None
    assert days_until_full(0, [Growing(50, 0, math.inf)]) == (0, "it is full"), "whether something grows or not"


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (5 * 1024**4, "5.0 TiB")],
)
def test_shown_bytes(number: float, shown: str) -> None:
    assert shown_bytes(number) == shown


def test_the_command(cluster: Any) -> None:
    """By partition and replica, for people and for programs; the last day's records are those with its timestamps."""
    now_ms = int(time.time() * 1000)
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topics([NewTopic("sized", 2, 3, {"retention.ms": "-1"})])
        for hours in (72, 48, 20, 10, 5):
            producer.send("sized", b"x" * 1000, partition=0, timestamp_ms=now_ms - hours * 3_600_000).result()

    def measured() -> dict[str, Any]:
        told = CliRunner().invoke(main, ["topic", "size", "sized", "-b", cluster.bootstrap, "-o", "json"])
        assert told.exit_code == 0, told.output
        return dict(json.loads(told.stdout))

    def is_replicated() -> bool:
        sizes = {replica["bytes"] for replica in measured()["partitions"][0]["replicas"]}
        return len(sizes) == 1 and sizes.pop() > 5000

    eventually(is_replicated)
    found = measured()
    first, second = found["partitions"]
    assert (first["records"], first["records_a_day"], second["records"], second["records_a_day"]) == (5, 3, 0, 0)
    replicas = first["replicas"]
    assert sorted(replica["node"] for replica in replicas) == sorted(cluster.node_ids)
    assert replicas[0]["role"] == "leader"
    assert replicas[0]["bytes_a_day"] == pytest.approx(replicas[0]["bytes"] * 3 / 5)
    assert [disk["node"] for disk in found["disks"]] == sorted(cluster.node_ids)
    assert all(disk["days_until_full"] > 1 for disk in found["disks"])
    assert all(0 < disk["reserve_bytes"] <= 64 << 20 for disk in found["disks"])
    shown = CliRunner().invoke(main, ["topic", "size", "-b", cluster.bootstrap])
    assert shown.exit_code == 0, shown.output
    assert "sized-0" in shown.stdout
    assert " days" in shown.stdout
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topics([NewTopic("young", 1, 3)])
        producer.send("young", b"x" * 1000, timestamp_ms=now_ms).result()
    young = CliRunner().invoke(main, ["topic", "size", "young", "-b", cluster.bootstrap, "-o", "json"])
    document = json.loads(young.stdout)
    [one] = document["partitions"]
    leader = one["replicas"][0]
    assert (leader["bytes_a_day"], leader["known_at_ms"]) == (None, now_ms + 3_600_000)
    assert all(disk["unknown"] >= 1 and disk["known_at_ms"] >= now_ms + 3_600_000 for disk in document["disks"])
    shown = CliRunner().invoke(main, ["topic", "size", "young", "-b", cluster.bootstrap])
    assert "or sooner" in shown.stdout
    assert "It is known from 20" in shown.stdout
    unknown = CliRunner().invoke(main, ["topic", "size", "nowhere", "-b", cluster.bootstrap])
    assert unknown.exit_code == 1
