"""Ends of logs that nothing proves, and how long the others are waited for (rule B30). Soft state.

An honest disk gives back what was synced. A dishonest one may give back zeros, or a file that is cut at a batch's end,
and no checksum tells: the log looks as if it had never been longer. Only a clean stop says where a log ends. After any
other stop the member of the last ISR with the greatest log is to lead; which that is, the others have to tell.
"""

from __future__ import annotations

from collections.abc import Iterable

from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.ids import NodeId, TopicIdPartition

WAIT_MS = 500.0
"""Milliseconds that a partition which could have a leader waits for the rest of its last ISR, at the most. The quorum
has waited as long before (rule A22): a machine that stays dead costs both, which is a second."""

NEVER = float("inf")


class UnprovenEnds:
    """Whose logs may end too early, partition by partition; and the partitions that wait for more reports.

    A member's end is proven once the member is in the ISR: then it has all that is committed. It stays proven until the
    next registration after an unclean stop. A new controller has not seen who was in the ISR before it, so that it
    takes for unproven whatever it finds in an ELR; which costs a wait at the most.

    Invariants:
    - a partition waits only while nobody leads it, and from when on some eligible replica could;
    - no wait is longer than `WAIT_MS`, but where the controller itself stood still.
    """

    def __init__(self, image: MetadataImage) -> None:
        self._unproven: dict[TopicIdPartition, dict[NodeId, None]] = {}
        self._waiting: dict[TopicIdPartition, float] = {}
        for topic, partition in image.partitions():
            if partition.eligible_leader_replicas:  # rule B30/new-controller-believes-every-end
                key = TopicIdPartition(topic.topic_id, partition.partition)
                self._unproven[key] = dict.fromkeys(partition.eligible_leader_replicas)

    # Whose end is proven

    def doubt(self, node_id: NodeId, keys: Iterable[TopicIdPartition]) -> None:
        """Note that a broker has registered after an unclean stop: where its logs of these partitions end proves
        nothing."""
        for key in keys:
            self._unproven.setdefault(key, {})[node_id] = None

    def is_proven(self, node_id: NodeId, key: TopicIdPartition) -> bool:
        """True if the replica's log has all that was committed, for certain."""
        return node_id not in self._unproven.get(key, ())  # rule B30/unproven-end-leads-at-once

    def adopted(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Partitions have changed. Who is in an ISR has all that is committed; where somebody leads nobody waits."""
        if not self._unproven and not self._waiting:
            return
        for topic_id, numbers in delta.partitions.items():
            partitions = image.topic_by_id[topic_id].partitions
            for number in numbers:
                key, partition = TopicIdPartition(topic_id, number), partitions[number]
                if partition.has_leader:
                    self._waiting.pop(key, None)
                members = self._unproven.get(key)
                if members is not None:
                    # rule B30/unproven-for-good
                    self._keep(key, {node: None for node in members if node not in partition.isr})
        for topic_id, deleted in delta.deleted_topics.items():
            for number in deleted.partitions:
                self._keep(TopicIdPartition(topic_id, number), {})
                self._waiting.pop(TopicIdPartition(topic_id, number), None)

    def forget_replica(self, key: TopicIdPartition, node_id: NodeId) -> None:
        """Forget a replica that is assigned to its broker no longer."""
        members = self._unproven.get(key)
        if members is not None:
            self._keep(key, {node: None for node in members if node != node_id})

    def _keep(self, key: TopicIdPartition, members: dict[NodeId, None]) -> None:
        if members:
            self._unproven[key] = members
        else:
            self._unproven.pop(key, None)

    # Waits

    def wait(self, key: TopicIdPartition, *, waits: bool) -> None:
        """Note that a partition waits for reports of others, or does not. From when on it waits says `stamp`."""
        if waits:
            self._waiting.setdefault(key, NEVER)
        else:
            self._waiting.pop(key, None)

    def waits(self, key: TopicIdPartition) -> bool:
        """True if the partition waits now."""
        return key in self._waiting

    def stamp(self, now_ms: float) -> None:
        """Waits that have begun since the last call began now."""
        for key, until_ms in self._waiting.items():
            if until_ms == NEVER:
                self._waiting[key] = now_ms + WAIT_MS

    def forgive(self, now_ms: float) -> None:
        """Give those that were to report more time: this controller itself stood still."""
        self._waiting = dict.fromkeys(self._waiting, now_ms + WAIT_MS)  # rule B30/stalled-controller-waits-no-more

    def over(self, now_ms: float) -> list[TopicIdPartition]:
        """The partitions that have waited for long enough."""
        # rule B30/unproven-ends-wait-for-ever
        return [key for key, until_ms in self._waiting.items() if until_ms <= now_ms]

    def next_event_ms(self) -> float:
        """Time when `over` may next name a partition; infinity if never."""
        return min(self._waiting.values(), default=NEVER)
