"""What the live tests of rows share. They wait for conditions, never for time alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.client.errors import UnknownTopic
from strandline.client.types import PartitionDescription
from strandline.cluster.node.dev import DevCluster

T = TypeVar("T")

QUICK = {
    "replica.lag.time.max.ms": "1500",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
"""Settings for tests that wait for a silent node to be noticed."""


def eventually(check: Callable[[], T], timeout_s: float = 60.0, pause_s: float = 0.05) -> T:
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
    """Create a topic, known to every broker that answers; keyword `min_insync_replicas="1"` means
    min.insync.replicas=1."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    with Admin(cluster.responsive) as admin:
        admin.create_topics([NewTopic(name, partitions, replication, configs=named)])
    wait_led(cluster.responsive, name)


def wait_led(bootstrap: str, topic: str, where: Callable[[Sequence[PartitionDescription]], bool] = any) -> None:
    """Return once each of these brokers knows a leader of every partition, and the partitions are as `where` says.

    A creation is answered by the controller: a broker hears of it a moment later, on a busy machine a long one. The
    same holds for elections.
    """

    def known(admin: Admin) -> bool:
        if topic not in admin.list_topics(include_internal=True):
            return False
        [description] = admin.describe_topics([topic])
        parts = description.partitions
        assert all(part.leader is not None for part in parts), f"{topic}: {parts}"
        assert where(parts), f"{topic}: {parts}"
        return True

    for address in bootstrap.split(","):
        with Admin(address) as admin:
            eventually(partial(known, admin))


def wait_gone(bootstrap: str, topic: str) -> None:
    """Return once none of these brokers knows the topic: who creates it anew must not write into the old one."""
    for address in bootstrap.split(","):
        with Admin(address) as admin:
            eventually(lambda: topic not in admin.list_topics())


def describe(
    cluster: DevCluster, topic: str, partition: int = 0, via: Sequence[int] | None = None
) -> PartitionDescription:
    """One partition as the brokers `via` (any that answers) see it."""
    return _describe(
        cluster.responsive if via is None else ",".join(cluster.client(node) for node in via), topic, partition
    )


def _describe(bootstrap: str, topic: str, partition: int) -> PartitionDescription:
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


def wait_isr(cluster: DevCluster, topic: str, members: set[int], partition: int = 0, timeout_s: float = 60.0) -> None:
    """Return once the ISR is exactly these, in the eyes of every broker that answers: one that stood still, or was cut
    off, goes on telling for a moment what was before."""

    def same() -> bool:
        answering = cluster.responsive.split(",")
        try:
            seen = {address: set(_describe(address, topic, partition).isr) for address in answering}
        except UnknownTopic:
            return False  # it stood still when the topic was made
        assert all(isr == members for isr in seen.values()), f"the ISR of {topic}-{partition} is {seen}, not {members}"
        return True

    eventually(same, timeout_s)


def wait_leaderless(cluster: DevCluster, topic: str, nodes: Sequence[int], partition: int = 0) -> None:
    """Return once each of these brokers has heard that the leader is gone; nobody may have taken its place."""
    for node in nodes:
        eventually(lambda: describe(cluster, topic, partition, via=[node]).leader is None)  # noqa: B023  called at once


def send_all(
    cluster: DevCluster, topic: str, values: Sequence[bytes], partition: int = 0, **settings: object
) -> list[int]:
    """Send the values in order; their offsets."""
    with Producer(cluster.responsive, **settings) as producer:
        futures = [producer.send(topic, value, partition=partition) for value in values]
        return [future.result(60).offset for future in futures]


def read_all(cluster: DevCluster, topic: str, partition: int = 0, timeout_s: float = 60.0) -> list[bytes | None]:
    """Every committed value of a partition, from the beginning: what was acknowledged under acks=all, and what the
    followers have of the rest."""
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


def others(cluster: DevCluster, node: int) -> list[int]:
    """The brokers but this one."""
    return [each for each in cluster.broker_ids if each != node]


def followers(cluster: DevCluster, topic: str) -> list[int]:
    """The brokers that do not lead partition 0."""
    leader = leader_of(cluster, topic)
    return [node for node in cluster.broker_ids if node != leader]
