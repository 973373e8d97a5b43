"""What the checkers of cordoned and drained brokers flag, and what they do not."""

from __future__ import annotations

from uuid import UUID

import pytest

from strandline.chaos.checkers.cordons import CORDONED, CordonedGetsNothing, check_drained, replicas_on
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.controller.metadata.image import MetadataImage, TopicInfo, broker_resource
from strandline.controller.metadata.records import PartitionRecord, TopicRecord
from strandline.proto.ids import LeaderEpoch, NodeId, PartitionEpoch


def image(offset: int, replicas: dict[str, tuple[int, ...]], cordoned: tuple[int, ...] = ()) -> MetadataImage:
    """Metadata of topics of one partition each, with these replicas."""
    topics = {}
    for name, numbers in replicas.items():
        topic_id = UUID(bytes=name.encode().ljust(16))
        nodes = tuple(map(NodeId, numbers))
        record = PartitionRecord(
            topic_id, 0, nodes, nodes, (), (), nodes[0], LeaderEpoch(0), PartitionEpoch(offset), False
        )
        topics[name] = TopicInfo(TopicRecord(name, topic_id), {0: record})
    brokers = {NodeId(node): object() for node in (1, 2, 3)}
    configs = {broker_resource(NodeId(node)): {CORDONED: "*"} for node in cordoned}
    by_id = {topic.topic_id: topic for topic in topics.values()}
    return MetadataImage("c", offset=offset, brokers=brokers, topics=topics, topic_by_id=by_id, configs=configs)


def flags(*images: MetadataImage) -> bool:
    """Whether the second check flags one of these, looked at in turn."""
    check = CordonedGetsNothing()
    try:
        for one in images:
            check.check(one)
    except InvariantViolated:
        return True
    return False


def test_a_cordoned_broker_gets_no_new_replica() -> None:
    """Rule B49: neither of a topic that there is, nor of a new one; what it has it keeps, and may lose."""
    before = image(1, {"a": (1, 2)}, cordoned=(3,))
    assert flags(before, image(2, {"a": (1, 3)}, cordoned=(3,)))
    assert flags(before, image(2, {"a": (1, 2), "b": (3,)}, cordoned=(3,)))
    assert not flags(before, image(2, {"a": (1,)}, cordoned=(3,)))
    assert not flags(image(1, {"a": (1, 3)}, cordoned=(3,)), image(2, {"a": (3, 2)}, cordoned=(3,)))


def test_who_was_cordoned_in_between_may_have_got_one_before() -> None:
    """Only what is cordoned at both looks is judged; an older image, of a node that lags, is not looked at."""
    assert not flags(image(1, {"a": (1, 2)}), image(2, {"a": (1, 3)}, cordoned=(3,)))
    assert not flags(image(1, {"a": (1, 2)}, cordoned=(3,)), image(2, {"a": (1, 3)}))
    assert not flags(image(5, {"a": (1, 2)}, cordoned=(3,)), image(2, {"a": (1, 3)}, cordoned=(3,)))


def test_a_drained_broker_has_nothing() -> None:
    """Neither in the metadata nor, a while later, on its disk."""
    check_drained(image(1, {"a": (1, 2)}), 3)
    with pytest.raises(InvariantViolated, match="DrainedHasNothing"):
        check_drained(image(1, {"a": (1, 3)}), 3)
    world = World(1)
    machine = world.add_machine("n3")

    async def fill(ports: Ports) -> None:
        for name in ("a-0", "__cluster_metadata-0", "a-0.4f-delete"):
            ports.disk.mkdir(f"/data/{name}")

    async def story() -> None:
        main = world.spawn("n3", fill).main
        assert main is not None
        await main
        assert replicas_on(machine.disk, ["/data"], image(1, {"a": (1, 2)})) == ["/data/a-0"]

    world.run(story())
