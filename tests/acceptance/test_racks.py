"""Racks: where copies lie and what the death of one rack leaves (row S49); reading from one's own rack (KIP-392)."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial

import confluent_kafka
import pytest

from strandline.client import Ack, Admin, Consumer, Producer
from strandline.cluster.broker.config import RACK_AWARE
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import (
    QUICK,
    describe,
    down,
    eventually,
    leader_of,
    make_topic,
    read_all,
    send_all,
    wait_isr,
)

pytestmark = pytest.mark.timeout(240)

RACKS = {1: "a", 2: "b", 3: "c"}
BYTES = "kafka_server_brokertopicmetrics_bytesout_total"


def fetched_from(cluster: DevCluster) -> dict[int, float]:
    """Bytes that each broker has sent to clients."""
    found = {}
    for node in cluster.node_ids:
        page = urllib.request.urlopen(f"http://{cluster.http(node)}/metrics", timeout=5).read().decode()
        lines = [line for line in page.splitlines() if line.startswith(BYTES)]
        found[node] = sum(float(line.rpartition(" ")[2]) for line in lines)
    return found


class _Reader:
    """An assigned consumer, ours or librdkafka's, from the beginning."""

    def __init__(self, client: str, bootstrap: str, rack: str) -> None:
        self.values: list[bytes | None] = []
        self._ours: Consumer | None = None
        if client == "strandline":
            self._ours = Consumer(bootstrap, client_rack=rack)
            self._ours.assign([("near", 0)])
            self._ours.seek_to_beginning()
            return
        settings = {"bootstrap.servers": bootstrap, "group.id": "near", "client.rack": rack, "log_level": 0}
        self._foreign = confluent_kafka.Consumer(settings | {"enable.auto.commit": False})
        self._foreign.assign([confluent_kafka.TopicPartition("near", 0, 0)])

    def more(self) -> int:
        """Read what there is; how many so far."""
        if self._ours is not None:
            self.values += [record.value for record in self._ours.poll(timeout_s=0.5)]
        else:
            messages = self._foreign.consume(500, timeout=0.5)
            self.values += [message.value() for message in messages if message.error() is None]
        return len(self.values)

    def close(self) -> None:
        (self._ours or self._foreign).close()


@pytest.mark.parametrize("client", ["confluent-kafka", "strandline"])
def test_a_consumer_reads_in_its_rack_and_elsewhere_when_that_replica_dies(client: str) -> None:
    """The leader names the replica in sync in the consumer's rack; everything committed is read there, once and in
    order; with that broker dead the consumer goes on elsewhere."""
    settings = QUICK | {"replica.selector.class": RACK_AWARE}
    node_settings = {node: {"broker.rack": rack} for node, rack in RACKS.items()}
    with DevCluster(settings=settings, node_settings=node_settings) as cluster:
        make_topic(cluster, "near")
        wait_isr(cluster, "near", {1, 2, 3})
        values = [b"%06d" % number * 100 for number in range(500)]
        send_all(cluster, "near", values[:400])
        leader = leader_of(cluster, "near")
        near = next(node for node in RACKS if node != leader)
        before = fetched_from(cluster)
        read = _Reader(client, cluster.bootstrap, RACKS[near])
        eventually(lambda: read.more() >= 400)
        after = fetched_from(cluster)
        assert after[near] - before[near] >= 400 * 600
        assert after[leader] - before[leader] < 100 * 600
        with down(cluster, near):
            send_all(cluster, "near", values[400:])
            eventually(lambda: read.more() >= 500)
        assert read.values == values
        read.close()


SIX = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
PARTITIONS = 12


class _Load(threading.Thread):
    """Sends numbered records, partition after partition, with acks=all, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.acks: list[tuple[int, Future[Ack]]] = []
        """Number and ack, as they came in."""
        self._topic = topic
        self._over = threading.Event()
        self._producer = Producer(bootstrap, linger_ms=2, request_timeout_ms=3000, delivery_timeout_ms=60_000)

    def run(self) -> None:
        while not self._over.wait(0.002):
            number, self.sent = self.sent, self.sent + 1
            future = self._producer.send(self._topic, b"%d" % number, partition=number % PARTITIONS)
            future.add_done_callback(partial(self._note, number))

    def _note(self, number: int, future: Future[Ack]) -> None:
        self.acks.append((number, future))

    def acked_in(self, since: int) -> set[int]:
        """The partitions of which a record from this number on was acknowledged."""
        return {number % PARTITIONS for number, future in list(self.acks) if number >= since and not future.exception()}

    def stop(self) -> None:
        """Send no more, and wait for every ack."""
        self._over.set()
        self.join()
        self._producer.flush(60)
        self._producer.close()


def _racks(replicas: Iterable[int]) -> list[str]:
    return sorted(SIX[node] for node in replicas)


def test_s49_a_rack_dies_under_load_and_everything_acked_is_read_in_order() -> None:
    """Row S49: two nodes in each of the racks a, b, c, factor 3: no partition of any topic has two copies in one rack;
    the leader's rack is killed, both nodes; the producer goes on, every ack stands in two racks, and everything acked
    is read from the other two, in order and once; so it is when the rack is back."""
    node_settings = {node: {"broker.rack": rack} for node, rack in SIX.items()}
    with DevCluster(nodes=6, settings=QUICK, node_settings=node_settings) as cluster, Admin(cluster.bootstrap) as admin:
        make_topic(cluster, "racks", partitions=PARTITIONS, replication=3, min_insync_replicas="2")
        make_topic(cluster, "grown", replication=3)
        admin.create_partitions({"grown": PARTITIONS})
        for single in range(6):
            make_topic(cluster, f"single-{single}", replication=3)
        with Consumer(cluster.bootstrap, group_id="makes-the-offsets-topic") as consumer:
            consumer.subscribe("grown")
            eventually(lambda: consumer.poll(0.1) or consumer.assignment())
        topics = admin.describe_topics(admin.list_topics(include_internal=True))
        assert {"racks", "grown", "__consumer_offsets"} <= {topic.name for topic in topics}
        for part in [part for topic in topics for part in topic.partitions]:
            assert _racks(part.replicas) == ["a", "b", "c"], part
        load = _Load(cluster.bootstrap, "racks")
        load.start()
        try:
            eventually(lambda: load.acked_in(0) == set(range(PARTITIONS)))
            lost = SIX[leader_of(cluster, "racks")]
            dead = [node for node, rack in SIX.items() if rack == lost]
            before = load.sent
            for node in dead:
                cluster.kill(node)
            eventually(lambda: load.acked_in(before + PARTITIONS) == set(range(PARTITIONS)))
        finally:
            load.stop()
        acks = {number: future.result() for number, future in load.acks}
        assert sorted(acks) == list(range(load.sent))
        for ack in acks.values():
            assert ack.replicas is not None
            assert len(set(_racks(ack.replicas))) >= 2, ack
        _assert_read_in_order(cluster, acks)
        for node in dead:
            cluster.start_node(node)
        for partition in range(PARTITIONS):
            wait_isr(cluster, "racks", set(describe(cluster, "racks", partition).replicas), partition, timeout_s=40)
        _assert_read_in_order(cluster, acks)


def _assert_read_in_order(cluster: DevCluster, acks: dict[int, Ack]) -> None:
    """Each partition holds its records as they were sent, each at the offset of its ack, and nothing else."""
    for partition in range(PARTITIONS):
        numbers = sorted(number for number in acks if number % PARTITIONS == partition)
        assert [acks[number].offset for number in numbers] == list(range(len(numbers)))
        assert read_all(cluster, "racks", partition) == [b"%d" % number for number in numbers]
