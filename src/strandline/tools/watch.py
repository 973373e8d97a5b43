"""Watches: what changes in a cluster, as it happens (row S86). One small question per interval, and what is new.

A broker's death is seen once the controller has fenced it, within an interval and a round trip. What changed and
changed back between two looks is not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from strandline.client.admin import Admin
from strandline.client.aio.admin_base import AdminBase
from strandline.client.errors import ClientTimeout
from strandline.client.metadata import Metadata, PartitionView, TopicView, nodes_of, topic_view
from strandline.client.network import Network
from strandline.client.types import NodeInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api

INTERVAL_MS = 250
ASK_TIMEOUT_MS = 500
"""Milliseconds without an answer after which the connection to a broker is closed: another one may know that it is
dead."""

LOOK_TIMEOUT_MS = 1500
"""Milliseconds for a look in all; more than for an answer, whose own deadline must come first and end the connection.
"""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a cluster.

    Attributes:
        what: broker-joined, broker-left (its session has ended, or it stopped), topic-created, topic-deleted,
            partition-added, leader-changed or isr-changed.
        subject: a broker's id, a topic's name, or a TopicPartition.
        before, after: what it was and is: a NodeInfo of a broker, a leader's id (None: there is none), the ISR's ids.
    """

    what: str
    subject: int | str | TopicPartition
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        where = f"broker {self.subject}" if isinstance(self.subject, int) else str(self.subject)
        if isinstance(self.subject, TopicPartition):
            where = f"{self.subject.topic}-{self.subject.partition}"
        match self.what:
            case "broker-joined" | "broker-left":
                return f"{where} {'joined' if self.after else 'left'}: {self.after or self.before}"
            case "leader-changed":
                return f"{where}: leader {_named(self.before)} -> {_named(self.after)}"
            case "isr-changed":
                return f"{where}: in sync {list(self.before)} -> {list(self.after)}"
        return f"{self.what.replace('-', ' ')}: {where}"


def _named(leader: int | None) -> str:
    return "none" if leader is None else str(leader)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster at one look: the brokers that take clients, and the topics."""

    brokers: Mapping[int, NodeInfo]
    topics: Mapping[str, TopicView]


async def look(network: Network, metadata: Metadata) -> ClusterView:
    """Ask one broker. Membership is asked for by itself where the broker can tell it: in Metadata a broker that was
    fenced a moment ago may still stand, for clients that drop the connections of those that do not.

    Raises:
        BrokerUnreachable, Disconnected, ClientTimeout, KafkaError, ProtocolError.
    """
    answer = await metadata.ask(None, ASK_TIMEOUT_MS)
    topics = {told.name: topic_view(told) for told in answer.topics if told.error_code is ErrorCode.NONE}
    brokers = nodes_of(answer)
    connection = await network.to_any(list(metadata.nodes.values()))
    if Api.DESCRIBE_CLUSTER in connection.versions:
        values = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": False}
        told = await connection.call(Api.DESCRIBE_CLUSTER, values, ASK_TIMEOUT_MS)
        if told.error_code is not ErrorCode.NONE:
            raise KafkaError(told.error_code, told.error_message or "")
        brokers = {node.broker_id: NodeInfo(node.broker_id, node.host, node.port, node.rack) for node in told.brokers}
    return ClusterView(brokers, topics)


def changes_between(before: ClusterView, after: ClusterView) -> Iterator[Change]:
    """Differences between two views, brokers first: what happened to topics follows from that."""
    for node_id in sorted(before.brokers.keys() - after.brokers.keys()):
        yield Change("broker-left", node_id, before=before.brokers[node_id])
    for node_id in sorted(after.brokers.keys() - before.brokers.keys()):
        yield Change("broker-joined", node_id, after=after.brokers[node_id])
    for name in sorted(before.topics.keys() | after.topics.keys()):
        old, new = before.topics.get(name), after.topics.get(name)
        if old is not None and (new is None or new.topic_id != old.topic_id):
            yield Change("topic-deleted", name)
        if new is not None and (old is None or new.topic_id != old.topic_id):
            yield Change("topic-created", name)
        elif old is not None and new is not None:
            for number, view in new.partitions.items():
                yield from _partition_changes(TopicPartition(name, number), old.partitions.get(number), view)


def _partition_changes(where: TopicPartition, old: PartitionView | None, new: PartitionView) -> Iterator[Change]:
    if old is None:
        yield Change("partition-added", where)
        return
    if new.leader_epoch < old.leader_epoch:
        return  # this broker has not heard yet of what another told before
    if new.leader != old.leader:
        yield Change("leader-changed", where, old.leader, new.leader)
    if set(new.isr) != set(old.isr):
        yield Change("isr-changed", where, tuple(old.isr), tuple(new.isr))


async def watch_async(admin: AdminBase, *, interval_ms: float = INTERVAL_MS) -> AsyncIterator[Change]:
    """Changes in the cluster from now on: brokers that come and go, topics, leaders, in-sync replicas.

    Args:
        admin: whose connections are used.
        interval_ms: how often one broker is asked for the metadata of all topics.

    Raises:
        ClientTimeout: no broker answered for default.api.timeout.ms.
    """
    session, patience_ms = admin.session, admin.config.default_api_timeout_ms
    known: ClusterView | None = None
    heard_ms = session.clock.monotonic_ms()
    while True:
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_MS / 1000):
                view = await look(session.network, session.metadata)
        except (StrandlineError, TimeoutError) as error:
            if session.clock.monotonic_ms() - heard_ms > patience_ms:
                raise ClientTimeout(f"no broker answered for {patience_ms:g} ms", error) from None
        else:
            heard_ms = session.clock.monotonic_ms()
            if known is not None:
                for change in changes_between(known, view):
                    yield change
            known = view
        await asyncio.sleep(interval_ms / 1000)


def watch(admin: Admin, *, interval_ms: float = INTERVAL_MS) -> Iterator[Change]:
    """Changes as `watch_async` gives them, with a blocking Admin: each step waits for the next change. Ends when the
    Admin is closed."""
    changes = watch_async(admin, interval_ms=interval_ms)

    async def following() -> Change:
        return await anext(changes)

    while True:
        try:
            change = admin.wait(following)
        except CancelledError:
            return
        yield change
