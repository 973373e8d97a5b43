"""Reading from the replica in one's own rack (KIP-392)."""

from __future__ import annotations

import urllib.request

import confluent_kafka
import pytest

from strandline.client import Consumer
from strandline.cluster.config_identity import RACK_AWARE
from strandline.cluster.dev import DevCluster
from tests.rows.helpers import QUICK, down, eventually, leader_of, make_topic, send_all, wait_isr

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
        eventually(lambda: read.more() >= 400, timeout_s=20)
        after = fetched_from(cluster)
        assert after[near] - before[near] >= 400 * 600
        assert after[leader] - before[leader] < 100 * 600
        with down(cluster, near):
            send_all(cluster, "near", values[400:])
            eventually(lambda: read.more() >= 500, timeout_s=30)
        assert read.values == values
        read.close()
