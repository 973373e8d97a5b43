"""The last reports of brokers about their replicas: offsets with their age, and which cannot be served or have rotted.
Soft state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strandline.controller.broker_api import ReplicaOffsets, ReplicaSet, TopicFindings
from strandline.log.findings import LogCondition
from strandline.proto.ids import NO_EPOCH, BrokerEpoch, LeaderEpoch, NodeId, Offset, TopicId, TopicIdPartition


class TrackedOffsets(NamedTuple):
    """One replica's last report; `at_ms` is the controller's monotonic time of it.

    `broker_epoch` names the process that made it, `leader_epoch` the partition's as the replica knew it; -1 for what
    recovery found, which is reported before the replica knows of any.
    """

    high_watermark: Offset
    log_end_offset: Offset
    last_epoch: LeaderEpoch
    at_ms: float
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch


class OffsetTracker:
    """The last report of each replica that has reported to this controller since it became active."""

    def __init__(self) -> None:
        self._reports: dict[TopicIdPartition, dict[NodeId, TrackedOffsets]] = {}
        self._conditions: dict[NodeId, dict[TopicIdPartition, LogCondition]] = {}
        self._topics: dict[TopicId, dict[TopicIdPartition, None]] = {}

    def report(
        self, node_id: NodeId, broker_epoch: BrokerEpoch, offsets: Iterable[ReplicaOffsets], now_ms: float
    ) -> None:
        """Take note of a heartbeat's offsets."""
        for item in offsets:
            self._replicas(TopicIdPartition(item.topic_id, item.partition))[node_id] = TrackedOffsets(
                item.high_watermark, item.log_end_offset, item.last_epoch, now_ms, broker_epoch, item.leader_epoch
            )

    def recovered(
        self, node_id: NodeId, broker_epoch: BrokerEpoch, findings: Iterable[TopicFindings], now_ms: float
    ) -> None:
        """Take note of a registration's findings: they hold until a heartbeat reports more."""
        conditions = self._conditions[node_id] = {}
        for topic in findings:
            columns = (topic.partitions, topic.log_end_offsets, topic.last_epochs, topic.conditions)
            for number, end, epoch, condition in zip(*columns, strict=True):
                key = TopicIdPartition(topic.topic_id, number)
                conditions[key] = condition
                replicas = self._replicas(key)
                before = replicas.pop(node_id, None)
                if end >= 0:
                    known = Offset(-1) if before is None else before.high_watermark
                    replicas[node_id] = TrackedOffsets(known, end, epoch, now_ms, broker_epoch, NO_EPOCH)

    def _replicas(self, key: TopicIdPartition) -> dict[NodeId, TrackedOffsets]:
        replicas = self._reports.get(key)
        if replicas is None:
            replicas = self._reports[key] = {}
            self._topics.setdefault(key.topic_id, {})[key] = None
        return replicas

    def condition(self, topic_id: TopicId, partition: int, node_id: NodeId) -> LogCondition | None:
        """Finding of a replica's recovery, or None."""
        return self._conditions.get(node_id, {}).get(TopicIdPartition(topic_id, partition))

    def of(self, topic_id: TopicId, partition: int, node_id: NodeId) -> TrackedOffsets | None:
        """A replica's last report, or None."""
        return self._reports.get(TopicIdPartition(topic_id, partition), {}).get(node_id)

    def high_watermark(self, topic_id: TopicId, partition: int) -> int:
        """The highest high watermark that any replica reported; -1 if none did."""
        replicas = self._reports.get(TopicIdPartition(topic_id, partition), {})
        return max((report.high_watermark for report in replicas.values()), default=-1)

    def forget_topic(self, topic_id: TopicId) -> None:
        """Forget a topic that is gone."""
        for key in self._topics.pop(topic_id, {}):
            del self._reports[key]
            for conditions in self._conditions.values():
                conditions.pop(key, None)

    def forget_replica(self, key: TopicIdPartition, node_id: NodeId) -> None:
        """Forget a replica that is assigned to its broker no longer."""
        self._reports.get(key, {}).pop(node_id, None)
        self._conditions.get(node_id, {}).pop(key, None)

    def rank(self, topic_id: TopicId, partition: int, candidates: Sequence[NodeId]) -> list[NodeId]:
        """Best first by (last epoch, log end), never by length alone; without a report last, in the given order."""

        def key(node_id: NodeId) -> tuple[int, int]:
            report = self.of(topic_id, partition, node_id)
            return (-1, -1) if report is None else (report.last_epoch, report.log_end_offset)

        return sorted(candidates, key=key, reverse=True)


class ReportedReplicas:
    """Replicas of which each broker says one thing, by its last report since it registered."""

    def __init__(self) -> None:
        self._by_node: dict[NodeId, dict[TopicIdPartition, None]] = {}

    def replace(self, node_id: NodeId, report: ReplicaSet) -> tuple[list[TopicIdPartition], list[TopicIdPartition]]:
        """Take a broker's report; returns the replicas that are in it now, and those that are in it no longer."""
        before = self._by_node.get(node_id, {})
        now = {TopicIdPartition(topic.topic_id, number): None for topic in report.topics for number in topic.partitions}
        if now:
            self._by_node[node_id] = now
        else:
            self._by_node.pop(node_id, None)
        return [key for key in now if key not in before], [key for key in before if key not in now]

    def has(self, node_id: NodeId, topic_id: TopicId, partition: int) -> bool:
        """True if the broker's last report names its replica."""
        reported = self._by_node.get(node_id)
        return reported is not None and TopicIdPartition(topic_id, partition) in reported

    def forget(self, node_id: NodeId) -> None:
        """Forget a broker's reports: another process of it registers, or none will."""
        self._by_node.pop(node_id, None)
