"""Tools beside transactions that are aborted and open: what each of them takes for a record."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from strandline.cli.main import main
from strandline.client import Consumer, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.tools.copy.topic_copy import copy_topic
from strandline.tools.handling import handle
from tests.acceptance.topics import create


def committed_and_not(cluster: DevCluster, topic: str) -> Producer:
    """10 records committed, 10 aborted, 10 committed, 10 of the transaction that the producer has open."""
    create(cluster.bootstrap, topic, 1, 3)
    producer = Producer(cluster.bootstrap, transactional_id=topic)
    for first, end in ((0, True), (10, False), (20, True), (30, None)):
        producer.begin_transaction()
        for number in range(first, first + 10):
            producer.send(topic, b"%d" % number)
        producer.flush()
        if end is not None:
            producer.commit_transaction() if end else producer.abort_transaction()
    return producer


def read(cluster: DevCluster, topic: str, **settings: Any) -> Counter[Any]:
    found: Counter[Any] = Counter()
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([(topic, 0)])
        ends = consumer.end_offsets([(topic, 0)])
        while consumer.position((topic, 0)) < next(iter(ends.values())):
            found.update(record.value for record in consumer.poll(0.2))
    return found


COMMITTED = Counter(b"%d" % number for number in (*range(10), *range(20, 30)))


def test_a_copy_has_committed_records_alone(cluster: DevCluster) -> None:
    with committed_and_not(cluster, "committed-copy"):
        copy_topic(cluster.bootstrap, "committed-copy", "committed-copy-2", partitions=1)
        assert read(cluster, "committed-copy-2") == COMMITTED


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_handler_gets_what_its_consumer_reads(cluster: DevCluster, level: str) -> None:
    topic = f"committed-handle-{level.replace('_', '-')}"
    wanted = COMMITTED if level == "read_committed" else Counter(b"%d" % number for number in range(40))
    seen: Counter[Any] = Counter()
    with (
        committed_and_not(cluster, topic),
        Consumer(cluster.bootstrap, group_id=topic, isolation_level=level, auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe(topic)
        handle(consumer, lambda record: seen.update([record.value]), idle_s=3.0)
    assert seen == wanted


def test_a_backup_says_why_it_takes_no_transactions(cluster: DevCluster, tmp_path: Path) -> None:
    with committed_and_not(cluster, "committed-backup"):
        command = ["topic", "backup", "committed-backup", "--to", str(tmp_path / "taken"), "-b", cluster.bootstrap]
        told = CliRunner().invoke(main, command)
    assert told.exit_code == 1, told.output
    assert "holds records of transactions, from offset 0 on" in told.output + told.stderr
    assert not (tmp_path / "taken").exists()
