"""Placement of the replicas of new partitions.

A cordoned broker gets none. Goals, the first before the next: copies of one partition in different racks; none on a
fenced broker where an unfenced one is left; each topic's copies spread evenly over the brokers (counts differ by at
most one); so are its leaders; and the first followers of one leader vary, so that a broker's fall spreads its
leaderships. Constraints: no broker has two copies of a partition, and the first replica is unfenced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.controller.metadata.settings import BrokerSettings
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId, TopicId
from strandline.proto.ports import Rng


@dataclass(frozen=True, slots=True)
class UsableBroker:
    """A broker that may get replicas: registered, not shutting down and not cordoned."""

    node_id: NodeId
    rack: str | None
    fenced: bool


DEFAULT_REPLICATION_FACTOR_MAX = 3
"""The default replication factor is this, or as many as there are brokers (design: safe by default)."""


def default_replication_factor(brokers: int) -> int:
    """Copies of a topic's partitions where neither the topic nor default.replication.factor says how many."""
    return max(1, min(DEFAULT_REPLICATION_FACTOR_MAX, brokers))


def usable_brokers(image: MetadataImage) -> list[UsableBroker]:
    """The brokers that may get replicas, by node id."""
    cordoned = cordoned_brokers(image)
    return [
        UsableBroker(broker.node_id, broker.rack, broker.fenced)
        for _, broker in sorted(image.brokers.items())
        if not broker.in_controlled_shutdown and broker.node_id not in cordoned  # rule B49/the-cordoned-get-replicas
    ]


def cordoned_brokers(image: MetadataImage) -> list[NodeId]:
    """The registered brokers that get no new replicas, by node id (`cordoned.log.dirs=*`)."""
    row = BrokerSettings.cordoned_log_dirs
    return [node for node in sorted(image.brokers) if ConfigResolver({}, node).broker_value(image, row)]


def check_not_cordoned(image: MetadataImage, nodes: Iterable[NodeId]) -> None:
    """Check an assignment that somebody made.

    Raises:
        KafkaError: INVALID_REPLICA_ASSIGNMENT: one of these brokers, which would get a new replica, is cordoned.
    """
    cordoned = sorted(set(nodes).intersection(cordoned_brokers(image)))
    if cordoned:  # rule B49/the-cordoned-get-what-is-assigned
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The assignment gives broker {cordoned[0]} a new replica, and it is cordoned (cordoned.log.dirs): assign "
            f"it to another broker, or let it have replicas again by `strandline broker uncordon {cordoned[0]}`.",
        )


class ReplicaCounts:
    """Replicas and preferred leaderships of each broker in the whole cluster.

    They are counted by topic, and again for topics alone that have changed since the last time: images share what has
    not, so identity says it all. To count everything for each topic that is created takes as long as the cluster is
    large (rule A24).
    """

    def __init__(self) -> None:
        self._replicas: Counter[NodeId] = Counter()
        self._leaders: Counter[NodeId] = Counter()
        self._topics: dict[TopicId, tuple[TopicInfo, Counter[NodeId], Counter[NodeId]]] = {}

    def of(self, image: MetadataImage) -> tuple[Counter[NodeId], Counter[NodeId]]:
        """Counters of (replicas, preferred leaderships), for the caller to change."""
        for topic_id in [gone for gone in self._topics if gone not in image.topic_by_id]:
            self._forget(topic_id)
        for topic_id, topic in image.topic_by_id.items():
            known = self._topics.get(topic_id)
            if known is None or known[0] is not topic:  # rule A24/replicas-are-counted-for-each-topic
                self._forget(topic_id)
                self._add(topic_id, topic)
        return self._replicas.copy(), self._leaders.copy()

    def _add(self, topic_id: TopicId, topic: TopicInfo) -> None:
        parts = topic.partitions.values()
        replicas = Counter(node for part in parts for node in part.replicas)
        leaders = Counter(part.preferred_leader for part in parts)
        self._topics[topic_id] = topic, replicas, leaders
        self._replicas.update(replicas)
        self._leaders.update(leaders)

    def _forget(self, topic_id: TopicId) -> None:
        known = self._topics.pop(topic_id, None)
        if known is not None:
            self._replicas.subtract(known[1])
            self._leaders.subtract(known[2])


class Placer:
    """Places the partitions of one topic after another; counts what the cluster has and what it has placed itself."""

    def __init__(
        self, brokers: Sequence[UsableBroker], image: MetadataImage, rng: Rng, counts: ReplicaCounts | None = None
    ) -> None:
        self._brokers = list(brokers)
        cordoned = cordoned_brokers(image)
        them = ", ".join(map(str, cordoned))
        self._cordoned = f" Cordoned: {them} (`strandline broker uncordon`)." if cordoned else ""
        # Ties go to the first broker here; shuffled once, so that one topic after another does not load one broker.
        rng.shuffle(self._brokers)
        self._replicas, self._leaders = (counts or ReplicaCounts()).of(image)

    def place(
        self, count: int, replication_factor: int, existing: Iterable[tuple[NodeId, ...]] = ()
    ) -> list[tuple[NodeId, ...]]:
        """Assignments for `count` more partitions of a topic that has the `existing` ones.

        Raises:
            KafkaError: INVALID_REPLICATION_FACTOR: more copies than brokers, or every broker is fenced.
        """
        if replication_factor > len(self._brokers):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {replication_factor} time(s): the cluster has "
                f"{len(self._brokers)} broker(s) that may hold replicas.{self._cordoned}",
                brokers=len(self._brokers),
            )
        if all(broker.fenced for broker in self._brokers):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {replication_factor} time(s): every broker is fenced.",
            )
        topic = _TopicLoad(existing)
        placed = []
        for _ in range(count):
            replicas = self._place_one(replication_factor, topic)
            topic.add(replicas)
            self._replicas.update(replicas)
            placed.append(replicas)
        fenced = {broker.node_id for broker in self._brokers if broker.fenced}
        _even_out_leaders(placed, topic.leaders, [b.node_id for b in self._brokers if not b.fenced], fenced)
        self._leaders.update(replicas[0] for replicas in placed)
        return placed

    def _place_one(self, replication_factor: int, topic: _TopicLoad) -> tuple[NodeId, ...]:
        chosen: list[UsableBroker] = []
        racks: Counter[str | None] = Counter()
        left = list(self._brokers)
        while len(chosen) < replication_factor:
            # The last choice must not leave the partition without an unfenced broker to lead it.
            needs_leader = len(chosen) == replication_factor - 1 and all(broker.fenced for broker in chosen)
            best = min(
                (broker for broker in left if not (needs_leader and broker.fenced)),
                key=lambda broker: (
                    racks[broker.rack] if broker.rack is not None else 0,
                    broker.fenced,
                    topic.replicas[broker.node_id],
                    topic.leaders[broker.node_id],
                    self._replicas[broker.node_id],
                    self._leaders[broker.node_id],
                ),
            )
            left.remove(best)
            chosen.append(best)
            racks[best.rack] += 1
        leader = min(
            (broker.node_id for broker in chosen if not broker.fenced),
            key=lambda node: (topic.leaders[node], self._leaders[node]),
        )
        followers = [broker for broker in chosen if broker.node_id != leader]
        followers.sort(
            key=lambda broker: (
                broker.fenced,
                topic.seconds[leader, broker.node_id],
                topic.all_seconds[broker.node_id],
            )
        )
        return (leader, *(broker.node_id for broker in followers))


class _TopicLoad:
    """Spread of one topic's copies so far."""

    def __init__(self, existing: Iterable[tuple[NodeId, ...]]) -> None:
        self.replicas: Counter[NodeId] = Counter()
        self.leaders: Counter[NodeId] = Counter()
        self.seconds: Counter[tuple[NodeId, NodeId]] = Counter()
        self.all_seconds: Counter[NodeId] = Counter()
        for replicas in existing:
            self.add(replicas)

    def add(self, replicas: tuple[NodeId, ...]) -> None:
        self.replicas.update(replicas)
        self.leaders[replicas[0]] += 1
        if len(replicas) > 1:
            self.seconds[replicas[0], replicas[1]] += 1
            self.all_seconds[replicas[1]] += 1


def _even_out_leaders(
    placed: list[tuple[NodeId, ...]], leaders: Counter[NodeId], nodes: Sequence[NodeId], fenced: set[NodeId]
) -> None:
    """Choose leaders anew within the placed sets until no two brokers differ by more than one, or nothing helps.

    The sets are even, so such a choice exists where racks and fenced brokers leave the freedom; it is found by shifting
    leaderships along a path: the most loaded broker hands one partition to a broker that hands one on, and so forth.
    """
    while True:
        path = _path_to_even(placed, leaders, nodes, fenced)
        if not path:
            return
        for index, leader in path:
            leaders[placed[index][0]] -= 1
            leaders[leader] += 1
            placed[index] = (leader, *(node for node in placed[index] if node != leader))


def _path_to_even(
    placed: list[tuple[NodeId, ...]], leaders: Counter[NodeId], nodes: Sequence[NodeId], fenced: set[NodeId]
) -> list[tuple[int, NodeId]]:
    """(partition, its new leader) for each step from the most loaded broker to one with two leaderships fewer."""
    most = max(nodes, key=lambda node: leaders[node])
    led: dict[NodeId, list[int]] = {}
    for index, replicas in enumerate(placed):
        led.setdefault(replicas[0], []).append(index)
    came: dict[NodeId, tuple[int, NodeId]] = {}
    queue = [most]
    for node in queue:
        for index in led.get(node, ()):
            for other in placed[index][1:]:
                if other in came or other == most or other in fenced:
                    continue
                came[other] = (index, node)
                if leaders[other] <= leaders[most] - 2:
                    return _walk_back(came, other, most)
                queue.append(other)
    return []


def _walk_back(came: dict[NodeId, tuple[int, NodeId]], last: NodeId, first: NodeId) -> list[tuple[int, NodeId]]:
    path = []
    node = last
    while node != first:
        index, before = came[node]
        path.append((index, node))
        node = before
    return path
