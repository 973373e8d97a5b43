"""Retention of the partitions that this broker leads: a pass over all of them every few minutes.

The leader alone decides, and followers raise their log starts to its: the replicas of a partition begin at one offset,
whatever their clocks say and wherever their segments end. (In Kafka each replica decides for itself.)

In a partition whose older part is in the object store (KIP-405), `retention.ms` and `retention.bytes` apply to the
whole, `local.retention.ms` and `local.retention.bytes` to the part on the disks, of which nothing is deleted before it
was copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from uuid import UUID

import structlog

from strandline.log.config import LogConfig
from strandline.log.disk import DiskError
from strandline.log.log_dir import LogDir
from strandline.log.partition_log import PartitionLog
from strandline.log.retention import Keep, note_time
from strandline.proto.believed import BelievedClock, Now
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Offset, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.tasks import spawn
from strandline.proto.tier import Tier, TieredSegment
from strandline.replica.partition import Partition
from strandline.replica.shared import Shared

log = structlog.get_logger("strandline.replica")

FIRST_CHECK_MS = 30_000
"""Longest time from the start to the first pass, in milliseconds (Kafka's log.initial.task.delay.ms)."""


class Retention:
    """Deletes records older than `retention.ms` or beyond `retention.bytes`, every
    `log.retention.check.interval.ms`."""

    def __init__(
        self,
        shared: Shared,
        partitions: Mapping[TopicPartition, Partition],
        log_dir: LogDir,
        believed: BelievedClock,
        raise_tier_start: Callable[[Partition, int], None],
    ) -> None:
        """`raise_tier_start(partition, offset)` is called when the tier need not keep records below the offset."""
        self._shared = shared
        self._partitions = partitions
        self._log_dir = log_dir
        self._clock = believed
        self._raise_tier_start = raise_tier_start
        self._ahead_told = False
        self._undated: dict[Partition, dict[UUID, float]] = {}
        """Monotonic time, in milliseconds, at which each tiered segment without usable timestamps was first seen."""
        self._read_clock()
        interval_ms = shared.config.retention_check_interval_ms
        self._next_ms = shared.clock.monotonic_ms() + min(FIRST_CHECK_MS, interval_ms)
        self._pass: asyncio.Task[None] | None = None

    def look(self, now_ms: float) -> None:
        """Begin a pass if one is due at the monotonic time `now_ms`, and none is under way."""
        self._read_clock()
        if now_ms >= self._next_ms and self._pass is None:
            self._next_ms = now_ms + self._shared.config.retention_check_interval_ms
            self._pass = spawn(self._expire_all(), self._shared.on_fatal)

    def stop(self) -> None:
        """Stop deleting."""
        if self._pass is not None:
            self._pass.cancel()

    def _read_clock(self) -> int:
        now_ms, told = self._clock.earliest_ms(), self._ahead_told
        self._ahead_told = self._clock.ahead_ms != 0
        if self._ahead_told and not told:
            log.warning(
                "the wall clock was set ahead, or this broker was away for more than a day; for a day everything "
                "expires by the time before, so that nothing goes too early. Put the clock right if it is wrong",
                ahead_ms=self._clock.ahead_ms,
            )
        return now_ms

    async def _expire_all(self) -> None:
        try:
            self._note_time()
            self._undated = {one: seen for one, seen in self._undated.items() if one.leader is not None}
            for partition in list(self._partitions.values()):
                try:
                    await self._expire(partition)
                except (KafkaError, DiskError, FileNotFoundError) as error:
                    name = str(partition.topic_partition)
                    log.warning("retention cannot look into a log", partition=name, error=str(error))
                    if isinstance(error, KafkaError):
                        partition.cannot_read(error)
                await asyncio.sleep(0)
        finally:
            self._pass = None

    def _note_time(self) -> None:
        if not self._clock.is_founded:
            return
        try:
            note_time(self._log_dir.disk, self._log_dir.path, self._read_clock())
        except DiskError as error:
            log.warning("retention's time was not written down", error=str(error))

    async def _expire(self, partition: Partition) -> None:
        core, plog, config = partition.leader, partition.log, partition.state.log_config
        if core is None or plog is None or plog.failure is not None:
            return
        self._read_clock()
        now, tier = self._clock.now(), partition.state.tier
        if tier.segments:
            self._expire_tier(partition, plog, now)
        keep = keep_local(config, tier) if config.remote_storage else keep_whole(config)
        expired = await plog.find_expired(now, core.high_watermark, keep)
        if expired is None and config.remote_storage and not tier.segments:
            expired = await plog.find_expired(now, core.high_watermark, keep_whole(config))
        if expired is None or partition.leader is not core or partition.log is not plog:
            return
        records = expired.offset - plog.log_start_offset
        if keep.copied_to is None or expired.offset > keep.copied_to:
            mark("records-expired")
            self._shared.counters.expired_records += records
            self._shared.counters.expired_bytes += expired.size_bytes
        else:
            mark("local-records-expired")
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

    def _expire_tier(self, partition: Partition, plog: PartitionLog, now: Now) -> None:
        """Delete expired segments of the object store, which hold the oldest records."""
        tier, config = partition.state.tier, partition.state.log_config
        undated = [one.segment_id for one in tier.segments if not 0 <= one.max_timestamp_ms <= now.wall_ms]
        before = self._undated.get(partition, {})
        seen = self._undated[partition] = {number: before.get(number, now.monotonic_ms) for number in undated}
        uncopied_bytes = sum(segment.size for segment in plog.segments if segment.base_offset >= tier.end_offset)
        start = expired_start(tier, keep_whole(config), uncopied_bytes, now, seen)
        if start > tier.start_offset:
            self._raise_tier_start(partition, start)


def keep_whole(config: LogConfig) -> Keep:
    """Return the retention limits of a whole partition."""
    return Keep(config.retention_ms, config.retention_bytes)


def keep_local(config: LogConfig, tier: Tier) -> Keep:
    """Return the retention limits of the part on the disks, for a partition whose older part was copied to `tier`."""
    copied_to = tier.end_offset if tier.segments else 0  # rule B22/local-retention-takes-what-was-not-copied
    return Keep(config.local_retention_ms, config.local_retention_bytes, "local.", copied_to)


def expired_start(tier: Tier, keep: Keep, uncopied_bytes: int, now: Now, seen: Mapping[UUID, float]) -> Offset:
    """Return the tier's first offset after retention: whole segments go from the front, up to the tier's end.
    `uncopied_bytes`: size of the log beyond the tier. `seen`: for segments without usable timestamps, the monotonic
    time at which this process first saw them."""
    # rule B22/size-of-the-tier-is-not-counted
    excess = tier.size_bytes + uncopied_bytes - keep.size_bytes if keep.size_bytes >= 0 else -1
    for segment in tier.segments:
        too_old = keep.age_ms >= 0 and now.earliest_ms - _newest_ms(segment, now, seen) > keep.age_ms
        if not too_old and excess < segment.size_bytes:
            return max(tier.start_offset, segment.base_offset)
        excess -= segment.size_bytes
    return tier.end_offset


def _newest_ms(segment: TieredSegment, now: Now, seen: Mapping[UUID, float]) -> int:
    """Return the time of a segment's newest record. A timestamp in the future would keep the segment for as long, so it
    counts as the time of copying; so does a missing timestamp. The broker that copied may have had a clock days behind,
    so the time of copying counts as no earlier than this process first saw the segment."""
    newest_ms = segment.max_timestamp_ms
    since_ms = seen.get(segment.segment_id)
    if since_ms is None:
        return newest_ms
    # rule B32/a-tiered-segment-is-as-old-as-it-says
    copied_ms = max(segment.copied_ms, now.earliest_ms - int(now.monotonic_ms - since_ms))
    return copied_ms if newest_ms < 0 else min(newest_ms, copied_ms)
