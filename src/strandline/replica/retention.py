"""Retention of the partitions that this broker leads: a pass over all of them every few minutes.

The leader alone decides, and followers raise their log starts with its: the replicas of a partition begin at one
offset, whatever their clocks say and wherever their segments end. (In Kafka each replica decides for itself.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from strandline.log.disk import DiskError
from strandline.log.log_dir import LogDir
from strandline.log.retention import RetentionClock, note_time
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.marks import mark
from strandline.proto.tasks import spawn
from strandline.replica.partition import Partition
from strandline.replica.shared import Shared

log = structlog.get_logger("strandline.replica")

FIRST_CHECK_MS = 30_000
"""The first pass, after the start (Kafka's log.initial.task.delay.ms), unless passes are more frequent than that."""


class Retention:
    """Deletes what is older than `retention.ms` or beyond `retention.bytes`, every
    `log.retention.check.interval.ms`."""

    def __init__(
        self,
        shared: Shared,
        partitions: Mapping[TopicPartition, Partition],
        log_dir: LogDir,
        retention_clock: RetentionClock,
    ) -> None:
        self._shared = shared
        self._partitions = partitions
        self._log_dir = log_dir
        self._clock = retention_clock
        self._read_clock()
        interval_ms = shared.config.retention_check_interval_ms
        self._next_ms = shared.clock.monotonic_ms() + min(FIRST_CHECK_MS, interval_ms)
        self._pass: asyncio.Task[None] | None = None

    def look(self, now_ms: float) -> None:
        """Time passed (monotonic): begin a pass if one is due and none is under way."""
        self._read_clock()
        if now_ms >= self._next_ms and self._pass is None:
            self._next_ms = now_ms + self._shared.config.retention_check_interval_ms
            self._pass = spawn(self._expire_all(), self._shared.on_fatal)

    def stop(self) -> None:
        """Delete nothing more."""
        if self._pass is not None:
            self._pass.cancel()

    def _read_clock(self) -> int:
        before_ms = self._clock.ahead_ms
        now_ms = self._clock.read(self._shared.clock.wall_ms(), self._shared.clock.monotonic_ms())
        if self._clock.ahead_ms and not before_ms:
            log.warning(
                "the wall clock was set ahead, or this broker was away for more than a day; for a day retention goes "
                "by the time before, so that nothing is deleted too early. Put the clock right if it is wrong",
                ahead_ms=self._clock.ahead_ms,
            )
        return now_ms

    async def _expire_all(self) -> None:
        try:
            self._note_time()
            for partition in list(self._partitions.values()):
                try:
                    await self._expire(partition)
                except (KafkaError, DiskError, FileNotFoundError) as error:
                    name = str(partition.topic_partition)
                    log.warning("retention cannot look into a log", partition=name, error=str(error))
                await asyncio.sleep(0)
        finally:
            self._pass = None

    def _note_time(self) -> None:
        try:
            note_time(self._log_dir.disk, self._log_dir.path, self._read_clock())
        except DiskError as error:
            log.warning("retention's time was not written down", error=str(error))

    async def _expire(self, partition: Partition) -> None:
        core, plog = partition.leader, partition.log
        if core is None or plog is None or plog.failure is not None:
            return
        expired = await plog.find_expired(self._read_clock(), core.high_watermark)
        if expired is None or partition.leader is not core or partition.log is not plog:
            return
        mark("records-expired")
        records = expired.offset - plog.log_start_offset
        self._shared.counters.expired_records += records
        self._shared.counters.expired_bytes += expired.size_bytes
        log.info(
            "records expired",
            partition=str(partition.topic_partition),
            by=expired.by,
            records=records,
            segments=expired.segments,
            size_bytes=expired.size_bytes,
            log_start_offset=expired.offset,
        )
        partition.raise_log_start(expired.offset)
