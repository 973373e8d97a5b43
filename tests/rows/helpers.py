"""What the live tests of rows share. They wait for conditions, never for time alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.client.types import PartitionDescription
from strandline.cluster.dev import DevCluster

T = TypeVar("T")

QUICK = {
    "replica.lag.time.max.ms": "1500",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
"""Settings for tests that wait for a silent node to be noticed."""


def eventually(check: Callable[[], T], timeout_s: float = 15.0, pause_s: float = 0.05) -> T:
    """Call `check` until it returns something true without an AssertionError; its last failure after the time.

    Raises:
        AssertionError: it never did.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        failure: AssertionError | None = None
        try:
            found = check()
            if found:
                return found
        except AssertionError as error:
            failure = error
        if time.monotonic() > deadline:
            raise failure or AssertionError(f"not within {timeout_s} s: {check}")
        time.sleep(pause_s)


def make_topic(cluster: DevCluster, name: str, partitions: int = 1, replication: int = -1, **configs: str) -> None:
    """Create a topic; keyword `min_insync_replicas="1"` means min.insync.replicas=1."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    with Admin(cluster.responsive) as admin:
        admin.create_topics([NewTopic(name, partitions, replication, configs=named)])


def describe(
    cluster: DevCluster, topic: str, partition: int = 0, via: Sequence[int] | None = None
) -> PartitionDescription:
    """One partition as the brokers `via` (any that answers) see it."""
    bootstrap = cluster.responsive if via is None else ",".join(cluster.client(node) for node in via)
    with Admin(bootstrap) as admin:
        [description] = admin.describe_topics([topic])
    return description.partitions[partition]


def leader_of(cluster: DevCluster, topic: str, partition: int = 0) -> int:
    """The partition's leader, once it has one."""

    def known() -> int | None:
        return describe(cluster, topic, partition).leader

    found = eventually(known)
    assert found is not None
    return found


def wait_isr(cluster: DevCluster, topic: str, members: set[int], partition: int = 0, timeout_s: float = 20.0) -> None:
    """Return once the ISR is exactly these."""

    def same() -> bool:
        isr = set(describe(cluster, topic, partition).isr)
        assert isr == members, f"the ISR is {isr}"
        return True

    eventually(same, timeout_s)


def send_all(
    cluster: DevCluster, topic: str, values: Sequence[bytes], partition: int = 0, **settings: object
) -> list[int]:
    """Send the values in order; their offsets."""
    with Producer(cluster.responsive, **settings) as producer:
        futures = [producer.send(topic, value, partition=partition) for value in values]
        return [future.result(60).offset for future in futures]


def read_all(cluster: DevCluster, topic: str, partition: int = 0, timeout_s: float = 20.0) -> list[bytes | None]:
    """Every committed value of a partition, from the beginning."""
    with Consumer(cluster.responsive) as consumer:
        consumer.assign([(topic, partition)])
        consumer.seek_to_beginning()
        [end] = consumer.end_offsets([(topic, partition)]).values()
        values: list[bytes | None] = []
        deadline = time.monotonic() + timeout_s
        while consumer.position((topic, partition)) < end:
            values += [record.value for record in consumer.poll(timeout_s=1)]
            assert time.monotonic() < deadline, f"read {len(values)} records, the end is {end}"
    return values


@contextmanager
def paused(cluster: DevCluster, *nodes: int) -> Iterator[None]:
    """These nodes stand still."""
    for node in nodes:
        cluster.pause(node)
    try:
        yield
    finally:
        for node in nodes:
            cluster.resume(node)


@contextmanager
def down(cluster: DevCluster, *nodes: int) -> Iterator[None]:
    """These nodes are killed, and started again afterwards if nobody has done so."""
    for node in nodes:
        cluster.kill(node)
    try:
        yield
    finally:
        for node in nodes:
            if node not in cluster.pids():
                cluster.start_node(node)


def followers(cluster: DevCluster, topic: str) -> list[int]:
    """The brokers that do not lead partition 0."""
    leader = leader_of(cluster, topic)
    return [node for node in cluster.broker_ids if node != leader]
