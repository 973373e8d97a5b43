"""Where the replicas stand, as their brokers last said: soft state, shown with its age."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strandline.controller.api import ReplicaOffsets
from strandline.proto.ids import LeaderEpoch, NodeId, Offset, TopicId, TopicIdPartition


class TrackedOffsets(NamedTuple):
    """One replica's last report; `at_ms` is the controller's monotonic time of it."""

    high_watermark: Offset
    log_end_offset: Offset
    last_epoch: LeaderEpoch
    at_ms: float


class OffsetTracker:
    """The last report of each replica that has reported to this controller since it became active."""

    def __init__(self) -> None:
        self._reports: dict[TopicIdPartition, dict[NodeId, TrackedOffsets]] = {}
        self._topics: dict[TopicId, dict[TopicIdPartition, None]] = {}

    def report(self, node_id: NodeId, offsets: Iterable[ReplicaOffsets], now_ms: float) -> None:
        """Take note of a heartbeat's offsets."""
        for item in offsets:
            key = TopicIdPartition(item.topic_id, item.partition)
            replicas = self._reports.get(key)
            if replicas is None:
                replicas = self._reports[key] = {}
                self._topics.setdefault(item.topic_id, {})[key] = None
            replicas[node_id] = TrackedOffsets(item.high_watermark, item.log_end_offset, item.last_epoch, now_ms)

    def of(self, topic_id: TopicId, partition: int, node_id: NodeId) -> TrackedOffsets | None:
        """A replica's last report, or None."""
        return self._reports.get(TopicIdPartition(topic_id, partition), {}).get(node_id)

    def high_watermark(self, topic_id: TopicId, partition: int) -> int:
        """The highest high watermark that any replica reported; -1 if none did."""
        replicas = self._reports.get(TopicIdPartition(topic_id, partition), {})
        return max((report.high_watermark for report in replicas.values()), default=-1)

    def forget_topic(self, topic_id: TopicId) -> None:
        """The topic is gone."""
        for key in self._topics.pop(topic_id, {}):
            del self._reports[key]

    def rank(self, topic_id: TopicId, partition: int, candidates: Sequence[NodeId]) -> list[NodeId]:
        """Best first by (last epoch, log end), never by length alone; those who never reported last, in given order."""

        def key(node_id: NodeId) -> tuple[int, int]:
            report = self.of(topic_id, partition, node_id)
            return (-1, -1) if report is None else (report.last_epoch, report.log_end_offset)

        return sorted(candidates, key=key, reverse=True)
