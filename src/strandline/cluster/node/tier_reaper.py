"""Deletes unneeded objects from the object store: those of deleted topics at once, those of interrupted copies and
deletions ("orphans", which no metadata name) after a grace period.

One broker of the cluster does this: the active broker with the lowest id, according to its own image. It must have a
session with the controller and be unfenced; otherwise its metadata may be too old to name segments that others have
copied since.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from uuid import UUID

import structlog

from strandline.controller.metadata.image import MetadataImage
from strandline.log.object_store import ObjectStore
from strandline.log.tier.reaping import Orphan, find_orphans, reap
from strandline.proto.errors import KafkaError, StoreError
from strandline.proto.ids import NodeId, TopicId
from strandline.proto.marks import mark
from strandline.proto.ports import Clock
from strandline.proto.tasks import Report, spawn
from strandline.replica.tier_config import TierConfig

log = structlog.get_logger("strandline.node")


class TierReaper:
    """Periodic deletion of unneeded objects by one broker.

    Attributes:
        deleted: number of objects deleted since the start.
        deleted_bytes: bytes of the orphans among them.
        kept: number of orphans that the last round did not delete, as nothing proves that they are unneeded; the log
            names them.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        store: ObjectStore,
        cluster_id: str,
        image: Callable[[], MetadataImage],
        clock: Clock,
        config: TierConfig,
        in_session: Callable[[], bool],
        reaped: Callable[[Sequence[TopicId]], Awaitable[None]],
    ) -> None:
        """`in_session`: returns whether this broker is unfenced and has a session with the controller. `reaped`: tells
        the controller which deleted topics have no objects left."""
        self._node_id = node_id
        self._store = store
        self._cluster_id = cluster_id
        self._image = image
        self._clock = clock
        self._config = config
        self._in_session = in_session
        self._reaped = reaped
        self._empty_since: dict[TopicId, float] = {}
        self._orphan_since: dict[str, float] = {}
        self._round_due_ms = 0.0
        self._task: asyncio.Task[None] | None = None
        self.deleted = self.deleted_bytes = self.kept = 0

    def start(self, on_fatal: Report) -> None:
        """Start the periodic deletion."""
        self._round_due_ms = self._clock.monotonic_ms() + self._config.reaper_interval_ms
        self._task = spawn(self._run(), on_fatal, endless=True)

    async def stop(self) -> None:
        """Stop the periodic deletion."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._config.task_interval_ms / 1000)
            if not self._is_mine():
                continue
            try:
                await self._reap_deleted()
                if self._clock.monotonic_ms() >= self._round_due_ms:
                    self._round_due_ms = self._clock.monotonic_ms() + self._config.reaper_interval_ms
                    await self._reap_orphans()
            except (StoreError, KafkaError) as error:
                log.info("the object store was not looked through to its end", reason=str(error))

    def _is_mine(self) -> bool:
        active = [node_id for node_id, broker in self._image().brokers.items() if broker.active]
        return self._in_session() and bool(active) and min(active) == self._node_id

    def _known(self, topic_id: TopicId, partition: int) -> frozenset[UUID] | None:
        image = self._image()
        if not self._in_session() or topic_id not in image.topic_by_id:
            return None
        return frozenset(segment.segment_id for segment in image.tier(topic_id, partition).segments)

    async def _reap_deleted(self) -> None:
        """Delete the objects of deleted topics. The controller is told that a topic has none left only after the grace
        period, as a leader that did not know of the deletion may still have copied segments."""
        gone, now_ms = [], self._clock.monotonic_ms()
        for topic_id, deleted in self._image().deleted_tiers.items():
            keys = [item.key async for item in self._store.list(f"{self._cluster_id}/{deleted.topic}-{topic_id}")]
            for key in keys:
                await self._store.delete(key)
                self.deleted += 1
            if keys:
                mark("deleted-topic-reaped")
                log.info("a deleted topic's objects are deleted", topic=deleted.topic, objects=len(keys))
                self._empty_since.pop(topic_id, None)
            elif now_ms - self._empty_since.setdefault(topic_id, now_ms) >= self._config.reaper_grace_ms:
                gone.append(topic_id)
        if gone:
            await self._reaped(gone)

    async def _reap_orphans(self) -> None:
        done = await reap(self._store, self._old_orphans(), self._known, self._image().deleted_tiers)
        self.deleted += done.deleted
        self.deleted_bytes += done.deleted_bytes
        self.kept = done.kept
        if done.deleted or done.kept or done.failed:
            mark("orphans-reaped")
            log.info(
                "objects that no metadata name",
                deleted=done.deleted,
                deleted_bytes=done.deleted_bytes,
                failed=done.failed,
                kept=done.kept,
            )

    async def _old_orphans(self) -> AsyncIterator[Orphan]:
        """Yield the orphans that rounds of this broker have seen for at least the grace period. The store's timestamps
        are not used: its clock may be hours off, so that objects of running copies would be deleted."""
        now_ms, before, found = self._clock.monotonic_ms(), self._orphan_since, dict[str, float]()
        self._orphan_since = dict(before)
        async for orphan in find_orphans(self._store, self._cluster_id, self._known):
            since_ms = found[orphan.key] = before.get(orphan.key, now_ms)
            self._orphan_since[orphan.key] = since_ms
            if now_ms - since_ms >= self._config.reaper_grace_ms:  # rule B23/young-objects-are-orphans
                yield orphan
        self._orphan_since = found
