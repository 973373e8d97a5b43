"""From metadata to replicas: a broker hears of the tiers of its own replicas, and asks for changes as itself."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from strandline.cluster.node.replica_feed import ReplicaFeed, tier_changer, tier_reaper
from strandline.controller.broker_api import AlterTiersReply, AlterTiersRequest
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    MetadataVersionRecord,
    PartitionRecord,
    TopicRecord,
)
from strandline.controller.metadata.tiers import TieredSegmentRecord, TierStartRecord
from strandline.controller.operations import ALTER_TIERS
from strandline.proto.error_codes import ErrorCode
from strandline.proto.tier import EpochStart, Tier, TierChange, TieredSegment, TierOutcome
from strandline.replica.states import ReplicaConfig

TOPIC = UUID(int=9)
SEGMENT = TieredSegment(UUID(int=1), 0, 10, 100, 5, (EpochStart(0, 0),), 7)


class Replicas:
    """What the feed tells."""

    def __init__(self) -> None:
        self.told: list[dict[int, Any]] = []
        self.config = ReplicaConfig()

    def reconfigure(self, config: ReplicaConfig) -> None:
        """Not asked here."""

    def set_throttled_rates(self, leader: int, follower: int) -> None:
        """Not asked here."""

    def apply(self, changes: Any, deleted: Any, brokers: Any) -> None:
        self.told.append({state.partition: state for state in changes})


def fed(node: int, *batches: list[MetadataRecord]) -> list[dict[int, Any]]:
    replicas, image = Replicas(), MetadataImage("c")
    feed = ReplicaFeed(node, ConfigResolver({}, node), replicas)  # type: ignore[arg-type]
    for batch in batches:
        delta = MetadataDelta(image)
        delta.apply_all(batch)
        image = delta.image(image.offset + len(batch), 1, 0)
        feed.on_metadata(delta, image)
    return replicas.told


START: list[MetadataRecord] = [
    MetadataVersionRecord(1),
    TopicRecord("t", TOPIC),
    PartitionRecord(TOPIC, 0, (1, 2), (1, 2), (), (), 1, 0, 0, False),
    PartitionRecord(TOPIC, 1, (3,), (3,), (), (), 3, 0, 0, False),
    ConfigRecord(2, "t", "remote.storage.enable", "true"),
]


def test_replicas_hear_of_their_tiers() -> None:
    """Leaders and followers; a broker without a replica hears nothing."""
    batches = [START, [TieredSegmentRecord(TOPIC, 0, SEGMENT)], [TierStartRecord(TOPIC, 0, 10)]]
    for node in (1, 2):
        first, added, raised = fed(node, *batches)
        assert (list(first), first[0].tier, first[0].log_config.remote_storage) == ([0], Tier(), True)
        assert (list(added), added[0].tier) == ([0], Tier(0, (SEGMENT,)))
        assert (list(raised), raised[0].tier) == ([0], Tier(10))
    assert len(fed(3, *batches)) == 1


def test_changes_are_asked_for_as_the_process_that_asks() -> None:
    """Its node id, and the broker epoch of the moment."""
    asked: list[AlterTiersRequest] = []

    class Channel:
        async def ask(self, operation: object, request: AlterTiersRequest, timeout_ms: float) -> AlterTiersReply:
            assert operation is ALTER_TIERS
            asked.append(request)
            return AlterTiersReply(
                tuple(TierOutcome(one.topic_id, one.partition, ErrorCode.NONE) for one in request.changes)
            )

    epochs = iter((7, 8))
    channel: Any = Channel()
    change = TierChange(TOPIC, 0, 0, (SEGMENT,))
    outcomes = asyncio.run(tier_changer(1, channel, lambda: next(epochs))([change]))
    assert outcomes == [TierOutcome(TOPIC, 0, ErrorCode.NONE)]
    asyncio.run(tier_reaper(1, channel, lambda: next(epochs))([TOPIC]))
    assert asked == [AlterTiersRequest(1, 7, (change,)), AlterTiersRequest(1, 8, (), (TOPIC,))]
