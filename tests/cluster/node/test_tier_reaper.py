"""The reaper of the object store: how long it looks at what no metadata name before it deletes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from uuid import UUID

from strandline.cluster.node.tier_reaper import TierReaper
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import MetadataVersionRecord, PartitionRecord, TopicRecord
from strandline.controller.metadata.tiers import TieredSegmentRecord
from strandline.log.object_store import StoredObject
from strandline.log.tier.names import log_key, partition_prefix, sidecar_key
from strandline.proto.errors import StoreError
from strandline.proto.ids import TopicId
from strandline.proto.tier import EpochStart, TieredSegment
from strandline.replica.tier_config import TierConfig

TOPIC = UUID(int=9)
SEGMENT = TieredSegment(UUID(int=1), 0, 10, 100, 5, (EpochStart(0, 0),), 7)
COPYING = replace(SEGMENT, segment_id=UUID(int=2))
PREFIX = partition_prefix("c", "t", TOPIC, 0)
GRACE_MS = 60_000


class Clock:
    """Two hands, each where a test has put it."""

    def __init__(self) -> None:
        self.monotonic = 0.0
        self.wall = 1_700_000_000_000

    def monotonic_ms(self) -> float:
        return self.monotonic

    def wall_ms(self) -> int:
        return self.wall


class Store:
    """Keys, all of them as old as the first day; it may break off its listing."""

    def __init__(self) -> None:
        self.keys = {key for one in (SEGMENT, COPYING) for key in (log_key(PREFIX, one), sidecar_key(PREFIX, one))}
        self.breaks = False

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        for key in sorted(self.keys):
            yield StoredObject(key, 7, 1_700_000_000_000)
            if self.breaks:
                raise StoreError("away")

    async def delete(self, key: str) -> None:
        self.keys.discard(key)


class Site:
    """A broker's reaper, whose rounds a test begins."""

    def __init__(self) -> None:
        self.clock, self.store, self.image = Clock(), Store(), MetadataImage("c")
        delta = MetadataDelta(self.image)
        partition = PartitionRecord(TOPIC, 0, (1,), (1,), (), (), 1, 0, 0, False)
        delta.apply_all([MetadataVersionRecord(1), TopicRecord("t", TOPIC), partition])
        delta.apply_all([TieredSegmentRecord(TOPIC, 0, SEGMENT)])
        self.image = delta.image(4, 1, 0)
        self.reaper = TierReaper(
            node_id=1,
            store=self.store,  # type: ignore[arg-type]
            cluster_id="c",
            image=lambda: self.image,
            clock=self.clock,
            config=TierConfig({"remote.log.reaper.grace.ms": GRACE_MS}),
            in_session=lambda: True,
            reaped=self.reaped,
        )

    async def reaped(self, topics: Sequence[TopicId]) -> None:
        """Nobody hears of it."""

    def round(self) -> int:
        """How many objects are left of the segment that is being copied."""
        try:
            asyncio.run(self.reaper._reap_orphans())
        except StoreError:
            assert self.store.breaks
        assert log_key(PREFIX, SEGMENT) in self.store.keys
        return len(self.store.keys) - 2


def test_what_is_being_copied_stays_whatever_the_wall_clocks_say() -> None:
    """The broker's is a day ahead of the store's: by that, an object of this minute is a day old."""
    site = Site()
    site.clock.wall += 24 * 3_600_000
    for now_ms in (0, 1_000, GRACE_MS - 1):
        site.clock.monotonic = now_ms
        assert site.round() == 2
    site.clock.monotonic = GRACE_MS
    assert site.round() == 0


def test_what_was_named_meanwhile_begins_anew() -> None:
    """It was an orphan, was added, and is one again: forgotten by a leader that deletes it itself."""
    site = Site()
    assert site.round() == 2
    before, delta = site.image, MetadataDelta(site.image)
    delta.apply_all([TieredSegmentRecord(TOPIC, 0, replace(COPYING, base_offset=10, end_offset=20))])
    site.image, site.clock.monotonic = delta.image(5, 1, 0), GRACE_MS
    assert site.round() == 2
    site.image, site.clock.monotonic = before, GRACE_MS + 1
    assert site.round() == 2
    site.clock.monotonic = 2 * GRACE_MS + 1
    assert site.round() == 0


def test_a_listing_that_broke_off_forgets_nothing() -> None:
    """What it did not come to is as old as it was."""
    site = Site()
    assert site.round() == 2
    site.store.breaks, site.clock.monotonic = True, GRACE_MS / 2
    site.round()
    site.store.breaks, site.clock.monotonic = False, GRACE_MS
    assert site.round() == 0
