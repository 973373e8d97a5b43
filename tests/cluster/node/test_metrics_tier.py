"""Metrics of tiered storage: what was copied and read, and what waits while the store is away."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from tests.acceptance.helpers import eventually
from tests.cluster.node.test_metrics import OPERATIONS, scrape, value

from strandline.cli.main import main
from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster

TOPICS = "kafka_server_brokertopicmetrics_remote"
TIERED = {"remote.storage.enable": "true", "segment.bytes": "20000", "local.retention.ms": "1000"}


def write(cluster: DevCluster, count: int) -> None:
    with Producer(cluster.bootstrap) as producer:
        for _ in range(count):
            producer.send("old", bytes(1000), partition=0).result(30)


def tell(cluster: DevCluster, *words: str) -> Any:
    """What the command tells programs."""
    told = CliRunner().invoke(main, [*words, "-b", cluster.bootstrap, "-o", "json"])
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


def test_a_node_with_a_store_tells_of_it(tmp_path: Path) -> None:
    """Copied and in the store are the same bytes; what is read twice is read from memory; every metric is documented;
    with the store away segments wait,."""
    store = tmp_path / "store"
    settings = {
        "remote.log.storage.url": f"file://{store}",
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "200",
    }
    with DevCluster(nodes=1, settings=settings) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("old", 1, 1, configs=TIERED)])
        write(cluster, 100)
        eventually(lambda: value(scrape(cluster, 1), "strandline_tier_copied_segments_total") >= 4)
        eventually(lambda: value(scrape(cluster, 1), TOPICS + "copylagsegments") == 0)
        eventually(lambda: value(scrape(cluster, 1), "kafka_log_log_size", topic="old") < 50_000)
        for _ in range(2):
            with Consumer(cluster.bootstrap) as consumer:
                consumer.assign([("old", 0)])
                consumer.seek_to_beginning()
                assert next(iter(consumer.poll(timeout_s=10))).offset == 0
        found = scrape(cluster, 1)
        assert value(found, TOPICS + "copybytes_total") == value(found, TOPICS + "logsizebytes", topic="old") > 80_000
        assert value(found, TOPICS + "fetchbytes_total") > 0
        assert value(found, "strandline_tier_cache_hits_total") > 0
        assert value(found, TOPICS + "copyerrors_total") == value(found, TOPICS + "fetcherrors_total") == 0
        documented = set(re.findall(r"`([a-z_]+)`", OPERATIONS.read_text(encoding="utf-8")))
        assert {
            re.sub("_(total|created)$", "", name) for name in found if "tier_" in name or TOPICS in name
        } <= documented

        last = int(value(found, "kafka_log_log_logendoffset", topic="old")) - 1
        told = tell(cluster, "why", "old", "0", "0")
        assert told["tier"].startswith("it lies in the object store alone: the disks begin at offset ")
        assert (told["state"], told["replicas"], told["segment"]) == ("record", [], None)
        assert told["not_before_ms"] is not None
        assert tell(cluster, "why", "old", "0", str(last))["tier"].startswith("it lies on the disks alone")
        [part] = tell(cluster, "topic", "size", "old")["partitions"]
        assert part["start_offset"] == 0 < part["local_start_offset"] <= part["tiered_end_offset"] < 100
        assert part["tiered_records"] == part["tiered_end_offset"]
        [described] = tell(cluster, "topic", "describe", "old")
        assert described["partitions"][0]["local_log_start_offset"] == part["local_start_offset"]
        shown = CliRunner().invoke(main, ["topic", "describe", "old", "-b", cluster.bootstrap]).stdout
        assert f"old-0 begins on the disks at offset {part['local_start_offset']}: offsets 0 to " in shown

        store.rename(tmp_path / "aside")
        store.write_bytes(b"")
        write(cluster, 60)
        eventually(lambda: value(scrape(cluster, 1), "strandline_tier_copies_failing_seconds") > 0)
        found = scrape(cluster, 1)
        assert value(found, TOPICS + "copylagsegments") >= 2
        assert value(found, TOPICS + "copylagbytes") >= 40_000
        assert value(found, TOPICS + "copyerrors_total") >= 1
        store.unlink()
        (tmp_path / "aside").rename(store)
        eventually(lambda: value(scrape(cluster, 1), "strandline_tier_copies_failing_seconds") == 0)
        eventually(lambda: value(scrape(cluster, 1), TOPICS + "copylagsegments") == 0)


def test_a_broker_without_the_store_of_a_tiered_topic_is_found(tmp_path: Path) -> None:
    """Controllers know the store and allow the topic; the broker that hosts it does not."""
    with DevCluster(
        nodes=1, controllers=1, node_settings={101: {"remote.log.storage.url": f"file://{tmp_path}"}}
    ) as cluster:
        assert "strandline_tier_partitions_without_store" not in scrape(cluster, 1)
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("old", 1, 1, configs=TIERED)])
        eventually(lambda: value(scrape(cluster, 1), "strandline_tier_partitions_without_store") == 1)
        words = ["doctor", "-b", cluster.bootstrap, "--http", cluster.http(1), "-o", "json"]
        told = json.loads(CliRunner().invoke(main, words).stdout)
        assert "1 partition of tiered topics, and no remote.log.storage.url" in [one["setting"] for one in told]
