"""Metrics of a live cluster: Kafka's names, right numbers, and every one documented."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.acceptance.helpers import eventually
from tests.acceptance.topics import create

from strandline.client import Admin, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"


def scrape(cluster: DevCluster, node_id: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Every sample of one node by name. Parsing it is a test of its form."""
    with urllib.request.urlopen(f"http://{cluster.http(node_id)}/metrics") as answer:
        page = answer.read().decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(page):
        assert family.documentation or family.name.startswith("process_"), family.name
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def value(samples: dict[str, list[tuple[dict[str, str], float]]], name: str, **labels: str) -> float:
    return sum(number for given, number in samples[name] if labels.items() <= given.items())


def test_metrics_count_what_happened(cluster: DevCluster) -> None:
    """Row S39: what is appended, replicated, led, and how long requests take."""
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, acks="all") as producer:
        admin.create_topics([NewTopic("measured", 3, 3)])
        for number in range(30):
            producer.send("measured", bytes(100), partition=number % 3)
        producer.flush()
        [described] = admin.describe_topics(["measured"])
    nodes = {node_id: scrape(cluster, node_id) for node_id in cluster.node_ids}
    assert sum(value(node, "kafka_controller_kafkacontroller_activecontrollercount") for node in nodes.values()) == 1
    assert sum(value(node, "kafka_server_brokertopicmetrics_bytesin_total") for node in nodes.values()) >= 3000
    assert (
        sum(value(node, "kafka_server_brokertopicmetrics_replicationbytesin_total") for node in nodes.values()) >= 6000
    )
    for part in described.partitions:
        leader = nodes[part.leader or 0]
        where = {"topic": "measured", "partition": str(part.partition)}
        assert value(leader, "kafka_log_log_logendoffset", **where) == 10
        assert value(leader, "kafka_cluster_partition_highwatermark", **where) == 10
        assert value(leader, "kafka_cluster_partition_insyncreplicascount", **where) == 3
        assert value(leader, "kafka_cluster_partition_laststableoffsetlag", **where) == 0
        assert value(leader, "kafka_log_log_size", **where) >= 1000
    produces = sum(
        value(node, "kafka_network_requestmetrics_totaltimems_count", request="Produce") for node in nodes.values()
    )
    below_10_s = sum(
        value(node, "kafka_network_requestmetrics_totaltimems_bucket", request="Produce", le="10000.0")
        for node in nodes.values()
    )
    assert 3 <= below_10_s <= produces
    prefix = "kafka_network_requestmetrics_"
    assert produces == sum(value(node, prefix + "requests_total", request="Produce") for node in nodes.values())
    for node in nodes.values():
        parts = ("requestqueue", "local", "remote", "responsequeue", "responsesend", "total")
        sums = [value(node, f"{prefix}{part}timems_sum", request="Produce") for part in parts]
        assert sum(sums[:-1]) == pytest.approx(sums[-1])
        assert sums[1] > 0


def test_what_a_move_copies_is_counted_apart(cluster: DevCluster) -> None:
    """Kafka's ReassignmentBytesIn and Out: at the broker that gets the replica, and at its leader; nowhere for what
    other replicas fetch."""
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, acks="all") as producer:
        admin.create_topics([NewTopic("moved", replica_assignment={0: (1, 3), 1: (1, 3)})])
        for number in range(20):
            producer.send("moved", bytes(1000), partition=number % 2)
        producer.flush()
        before = {node_id: reassigned(cluster, node_id) for node_id in cluster.node_ids}
        admin.alter_partition_reassignments({("moved", 0): (1, 2)})
        deadline = time.monotonic() + 60
        while admin.list_partition_reassignments():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    (in_1, out_1), (in_2, out_2), third = (
        tuple(now - then for now, then in zip(reassigned(cluster, node_id), before[node_id], strict=True))
        for node_id in (1, 2, 3)
    )
    assert in_1 == out_2 == 0
    assert 10_000 <= in_2 <= out_1 < 15_000
    assert third == (0, 0)


def reassigned(cluster: DevCluster, node_id: int) -> tuple[float, float]:
    """Bytes of moves that came in and went out."""
    page = scrape(cluster, node_id)
    prefix = "kafka_server_brokertopicmetrics_reassignmentbytes"
    return value(page, f"{prefix}in_total"), value(page, f"{prefix}out_total")


def test_metrics_of_transactions(cluster: DevCluster) -> None:
    """An open transaction of offsets and records, over the coordinator and the leaders that it has."""
    create(cluster.bootstrap, "measured-transactions", 2, 3)

    def total(name: str, **labels: str) -> float:
        return sum(value(scrape(cluster, node_id), name, **labels) for node_id in cluster.node_ids)

    states = "strandline_transactional_ids"
    ongoing, done = total(states, state="Ongoing"), total(states, state="CompleteCommit")
    with Producer(cluster.bootstrap, transactional_id="measured", linger_ms=0) as producer:
        producer.begin_transaction()
        for number in range(2):
            producer.send("measured-transactions", b"x", partition=number)
        producer.flush()
        assert total(states, state="Ongoing") == ongoing + 1
        assert total("strandline_transaction_open_seconds_max") > 0
        assert total("kafka_server_addpartitionstotxnmanager_verificationtime_seconds_count") >= 1
        assert total("kafka_server_replicamanager_produceridcount") >= 2
        producer.commit_transaction()
    eventually(lambda: total(states, state="CompleteCommit") == done + 1)
    assert total("strandline_transactions_ending") == 0
    assert total("kafka_server_transaction_coordinator_metrics_num_partitions", state="active") >= 1
    manager = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
    for name in ("unknowndestinationqueuesize", "logappendretryqueuesize"):
        assert total(manager + name) == 0
    assert total("kafka_server_replicamanager_partitionswithlatetransactionscount") == 0


def test_every_metric_is_documented(cluster: DevCluster) -> None:
    """docs/operations.md names every metric of our own making."""
    documented = set(re.findall(r"`([a-z_]+)`", OPERATIONS.read_text(encoding="utf-8")))
    exported = {
        re.sub(r"_(total|bucket|sum|count|created)$", "", name)
        for node_id in cluster.node_ids
        for name in scrape(cluster, node_id)
        if not name.startswith("process_")
    }
    bare = {re.sub(r"_(total|count)$", "", name) for name in documented}
    assert exported - bare == set()
