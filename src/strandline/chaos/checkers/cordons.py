"""Cordoned and drained brokers: a cordoned one gets no new replica, and a drained one has none (rules B47, B49)."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.stored import names_in
from strandline.chaos.sim.disk import SimDisk
from strandline.controller.metadata.image import MetadataImage, TopicInfo, broker_resource
from strandline.proto.ids import NodeId, TopicId

CORDONED = "cordoned.log.dirs"


class CordonedGetsNothing:
    """Between two looks at the metadata a broker that is cordoned in both gets no replica, new topics included."""

    def __init__(self) -> None:
        self._offset = -1
        self._cordoned: frozenset[NodeId] = frozenset()
        self._topics: Mapping[TopicId, TopicInfo] = {}
        self.looked = 0
        """Number of looks at a partition while some broker was cordoned."""

    def check(self, image: MetadataImage) -> None:
        """Look at the newest metadata. Raises InvariantViolated."""
        if image.offset <= self._offset:
            return
        cordoned = frozenset(
            node for node in image.brokers if image.config(broker_resource(node)).get(CORDONED, "") == "*"
        )
        both, before = cordoned & self._cordoned, self._topics
        self._offset, self._cordoned, self._topics = image.offset, cordoned, image.topic_by_id
        if not both or before is image.topic_by_id:
            return
        for topic in image.topic_by_id.values():
            known = before.get(topic.topic_id)
            if known is not topic:
                self._compare(topic, known, both)

    def _compare(self, topic: TopicInfo, known: TopicInfo | None, cordoned: frozenset[NodeId]) -> None:
        for number, partition in topic.partitions.items():
            self.looked += 1
            had = None if known is None else known.partitions.get(number)
            new = {*partition.replicas} - ({*had.replicas} if had is not None else set())
            if new & cordoned:
                facts = {"partition": f"{topic.name}-{number}", "brokers": sorted(new & cordoned)}
                raise InvariantViolated("CordonedGetsNothing", "a cordoned broker got a replica", **facts)


def check_drained(image: MetadataImage, node: int) -> None:
    """Check that a broker of which a drain said that it is empty has no replica. Raises InvariantViolated."""
    left = [f"{topic.name}-{one.partition}" for topic, one in image.partitions() if node in one.replicas]
    if left:
        raise InvariantViolated("DrainedHasNothing", "a drained broker has replicas", node=node, partitions=left)


def replicas_on(disk: SimDisk, paths: list[str], image: MetadataImage) -> list[str]:
    """Directories of partitions that lie in the log directories of one disk."""
    wanted = {f"{topic.name}-{one.partition}" for topic, one in image.partitions()}
    return [f"{path}/{name}" for path in paths for name in names_in(disk, path) if name in wanted]
