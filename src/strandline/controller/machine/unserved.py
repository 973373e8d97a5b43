"""Replicas that their brokers say they cannot serve: a log that failed or was refused. Soft state, by broker."""

from __future__ import annotations

from strandline.controller.reports import Unserved
from strandline.proto.ids import NodeId, TopicId, TopicIdPartition


class UnservedReplicas:
    """What each broker said last, since it registered."""

    def __init__(self) -> None:
        self._by_node: dict[NodeId, dict[TopicIdPartition, None]] = {}

    def take(self, node_id: NodeId, said: Unserved) -> tuple[list[TopicIdPartition], list[TopicIdPartition]]:
        """Replace what the broker said: which replicas it cannot serve any more, and which it can again."""
        before = self._by_node.get(node_id, {})
        now = {TopicIdPartition(topic.topic_id, number): None for topic in said.topics for number in topic.partitions}
        if now:
            self._by_node[node_id] = now
        else:
            self._by_node.pop(node_id, None)
        return [key for key in now if key not in before], [key for key in before if key not in now]

    def has(self, node_id: NodeId, topic_id: TopicId, partition: int) -> bool:
        """The broker cannot serve its replica."""
        unserved = self._by_node.get(node_id)
        return unserved is not None and TopicIdPartition(topic_id, partition) in unserved

    def forget(self, node_id: NodeId) -> None:
        """Another process of the broker registers, or none will."""
        self._by_node.pop(node_id, None)
