"""The services' topics that are altered while they are written to: records deleted from the front of one, the settings
of another changed, a third that keeps no more than its size allows, and a fourth that is compacted."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from uuid import UUID

from strandline.chaos.services.options import ALTERED, COMPACTED, EXPIRING, TOMBSTONES_MS, TRIMMED
from strandline.chaos.services.shared import Shared
from strandline.chaos.services.topics import SAFE, Topics
from strandline.chaos.workload import Ports
from strandline.client.aio import Admin, Producer
from strandline.client.types import ConfigChange, ConfigResource, NewTopic
from strandline.proto.errors import StrandlineError

_BURST_MAX = 8
"""Records that go in one batch: many a deletion ends in the middle of one."""

_GAP_S = 0.7
"""Seconds between two deletions, or two changes of settings."""

_SEGMENT_BYTES = ("20000", "100000", "1073741824")


_EXPIRES = {"retention.bytes": "1000", "segment.bytes": "1024"}
_EXPIRES_TIERED = _EXPIRES | {"local.retention.bytes": "300", "local.retention.ms": "-2"}
_PADDING = "." * 80
_COMPACTS = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0.2"}
_TOMBSTONES = 0.1
"""Share of records that delete a key."""
_REMADE = 0.05
"""Share of bursts after which `compacted` is deleted and made anew, as long as it is to be."""
_FILL = 40
"""Records that are enough for another pass."""
_PASSES = 4
"""Looks at what is due after which everything was compacted."""
_KEYS = 6
"""Keys of `compacted`: few, so that most of what is sent is superseded."""

EXPIRING_LEAST = 5
"""Records that `expiring` keeps at least once some have gone: one alone in its batch takes less than 200 bytes."""


class Altered:
    """State over all incarnations of the services' process.

    Attributes:
        fed: everything was sent, and answered.
        asked: records of `trimmed` below may be gone: their deletion was asked for.
        deleted: records of `trimmed` below are gone: it was answered.
        changes: so many of settings were answered.
        tombstones: so many were sent, acknowledged or not, by topic id and key.
    """

    def __init__(self, shared: Shared, topics: Topics) -> None:
        self.trimmed_id: UUID | None = None
        self.altered_id: UUID | None = None
        self.expiring_id: UUID | None = None
        self.compacted_id: UUID | None = None
        self.fed = False
        self.asked = 0
        self.deleted = 0
        self.changes = 0
        self.tombstones: Counter[tuple[UUID, str]] = Counter()
        self._remakes = 0
        self._shared = shared
        self._topics = topics
        self._sent = 0

    async def feed(self, ports: Ports) -> None:
        """Make both topics, and send bursts to one or the other."""
        options, rng, producer = self._shared.options, ports.rng, self._shared.producer(ports)
        async with self._shared.admin(ports) as admin:
            self.trimmed_id = await self._topics.create(admin, NewTopic(TRIMMED, 1, 3, SAFE | options.tiered))
            self.altered_id = await self._topics.create(admin, NewTopic(ALTERED, 1, 3, SAFE))
            delay = {"file.delete.delay.ms": str(options.delete_delay_ms)}
            expires = SAFE | options.tiered | (_EXPIRES_TIERED if options.tiered else _EXPIRES) | delay
            self.expiring_id = await self._topics.create(admin, NewTopic(EXPIRING, 1, 3, expires))
            await self._make_compacted(admin)
            while self._sent < options.records:
                await asyncio.sleep(rng.uniform(0, 2 * options.gap_ms) / 1000)
                await self._burst(rng, producer)
                if self._remakes < options.remakes and rng.random() < _REMADE:
                    await producer.flush()
                    await self._remake(admin)
        await producer.flush()
        self.fed = True

    async def _burst(self, rng: random.Random, producer: Producer) -> None:
        topics = {TRIMMED: self.trimmed_id, ALTERED: self.altered_id, EXPIRING: self.expiring_id,
                  COMPACTED: self.compacted_id}  # fmt: skip
        topic = rng.choice((*topics, COMPACTED))
        topic_id = topics[topic]
        assert topic_id is not None
        padding = _PADDING if topic == EXPIRING else ""
        for _ in range(rng.randint(1, _BURST_MAX)):
            self._sent += 1
            value: str | None = f"a{self._sent}{padding}"
            key = f"k{rng.randrange(_KEYS)}" if topic == COMPACTED else None
            if key is not None and rng.random() < _TOMBSTONES:
                value = None
                self.tombstones[topic_id, key] += 1
            await self._topics.send(producer, topic_id, topic, value, 0, wait=False, key=key)

    async def _make_compacted(self, admin: Admin) -> None:
        """Create the compacted topic unless it exists."""
        options = self._shared.options
        keeps = {"delete.retention.ms": str(TOMBSTONES_MS)} if options.tombstones_go else {}
        compacts = SAFE | _COMPACTS | keeps | {"file.delete.delay.ms": str(options.delete_delay_ms)}
        while self.compacted_id is None:
            made = await self._topics.create(admin, NewTopic(COMPACTED, 1, 3, compacts))
            if made in self._shared.ledger.deleted:
                await self._topics.delete(admin, COMPACTED)
            else:
                self.compacted_id = made

    async def _remake(self, admin: Admin) -> None:
        """Make the topic anew under its name, with another id."""
        assert self.compacted_id is not None
        self._remakes += 1
        self._shared.ledger.deleted[self.compacted_id] = None
        self.compacted_id = None
        await self._topics.delete(admin, COMPACTED)
        await self._make_compacted(admin)

    async def let_tombstones_go(self, ports: Ports) -> None:
        """Wait until the tombstones are gone: a pass marks them, their time passes, and another pass takes them:
        each needs something to compact."""
        producer = self._shared.producer(ports)
        assert self.compacted_id is not None
        for pause_ms in (TOMBSTONES_MS, 0):
            for number in range(_FILL):
                await self._topics.send(
                    producer, self.compacted_id, COMPACTED, f"f{number}" + _PADDING, 0, wait=True, key="f"
                )
            await asyncio.sleep((_PASSES * self._shared.options.cleaner_backoff_ms + pause_ms) / 1000)

    async def trim(self, ports: Ports) -> None:
        """Delete what was acknowledged, up to some offset, again and again."""
        await self._again_and_again(ports, self._delete)

    async def alter(self, ports: Ports) -> None:
        """Change settings of `altered`, again and again."""
        await self._again_and_again(ports, self._change)

    async def _again_and_again(self, ports: Ports, act: Callable[[Admin, random.Random], Awaitable[None]]) -> None:
        async with self._shared.admin(ports) as admin:
            while not self.fed:
                await asyncio.sleep(ports.rng.expovariate(1 / _GAP_S))
                try:
                    await act(admin, ports.rng)
                except StrandlineError as error:
                    self._shared.failed(error)

    async def _delete(self, admin: Admin, rng: random.Random) -> None:
        end = 0 if self.trimmed_id is None else self._shared.ledger.ends(self.trimmed_id).get(0, 0)
        if end > self.asked:
            self.asked = before = rng.randint(self.asked, end)
            await admin.delete_records({(TRIMMED, 0): before})
            self.deleted = max(self.deleted, before)

    async def _change(self, admin: Admin, rng: random.Random) -> None:
        if self.altered_id is None:
            return
        # What is answered at 1 may be on one disk alone, and what was at 2 may be so once one is the whole ISR:
        # then nothing may destroy a disk, and the options say so.
        changes = [ConfigChange("segment.bytes", rng.choice(_SEGMENT_BYTES))]
        if self._shared.options.lowers_min_isr:
            changes.append(ConfigChange("min.insync.replicas", rng.choice(("1", "2"))))
        await admin.alter_configs({ConfigResource("topic", ALTERED): changes})
        self.changes += 1
