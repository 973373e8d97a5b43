"""Compaction of this broker's replicas: one log at a time, the one that needs it most first.

Each replica is compacted by itself, leader or follower (as in Kafka): the result of a pass depends on the log alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

import structlog

from strandline.log.compaction import Compacted, Compaction
from strandline.log.disk import DiskError, DiskFull
from strandline.log.partition_log import PartitionLog
from strandline.log.retention import Cleanable
from strandline.log.swap import LogChanged
from strandline.proto.believed import BelievedClock
from strandline.proto.errors import ConfigError, KafkaError, StorageError
from strandline.proto.ids import Offset, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock
from strandline.proto.tasks import spawn
from strandline.proto.timers import Pauses
from strandline.replica.partition import Partition
from strandline.replica.shared import Shared

log = structlog.get_logger("strandline.replica")

_ROOM = 2
"""Factor: a log is compacted only while free space is at least this many times what a segment's rewrite may take."""


REST_MS = 2.0
"""Milliseconds of owed rest after which compaction rests; also the largest rest kept in advance."""

T = TypeVar("T")


class Pace:
    """Limits compaction to half of the event loop's time and to `log.cleaner.io.max.bytes.per.second`, reads and writes
    together.

    It rests as long as it has worked. Any time in which others have the loop counts as rest, waits for the disk
    included. Timers fire about a millisecond late, as long as many a step takes. So it rests once several steps have
    added up, and a rest that was too long shortens the next.
    """

    def __init__(self, clock: Clock, pauses: Pauses, bytes_per_second: Callable[[], float]) -> None:
        """`bytes_per_second` is called again when `pauses` are woken."""
        self._clock = clock
        self._pauses = pauses
        self._bytes_per_second = bytes_per_second
        self._begun_ms = clock.monotonic_ms()
        self._due_ms = self._begun_ms
        self._rest_ms = 0.0

    async def __call__(self, size_bytes: int) -> None:
        """Wait as long as the rate requires after `size_bytes` were read or written."""
        now_ms = self._clock.monotonic_ms()
        before_ms = max(self._due_ms, now_ms - 1_000)

        def due_ms() -> float:
            return before_ms + size_bytes * 1_000 / self._bytes_per_second()

        rest_ms = self._rest_ms + now_ms - self._begun_ms
        # rule B20/compaction-takes-the-loop
        await self.during(asyncio.sleep((rest_ms if rest_ms >= REST_MS else 0.0) / 1_000))
        if due_ms() > self._clock.monotonic_ms():
            await self.during(self._pauses.until(due_ms))
        self._due_ms = due_ms()

    async def during(self, wait: Awaitable[T]) -> T:
        """Await `wait`; its time counts as rest, as others have the loop meanwhile."""
        began_ms = self._clock.monotonic_ms()
        self._rest_ms += began_ms - self._begun_ms
        try:
            return await wait
        finally:
            self._begun_ms = self._clock.monotonic_ms()
            self._rest_ms = max(self._rest_ms - (self._begun_ms - began_ms), -REST_MS)


class Figures:
    """Figures of compaction, for the metrics.

    Attributes:
        passes: number of completed passes over a log.
        read_bytes, written_bytes, removed: totals of all passes; `removed` counts records.
        last, last_ms: result and duration of the last pass.
        max_dirty_ratio: largest dirty ratio of a log at the last look.
        max_delay_ms: longest time by which a record exceeds max.compaction.lag.ms, at the last look.
    """

    def __init__(self) -> None:
        self.passes = 0
        self.read_bytes = 0
        self.written_bytes = 0
        self.removed = 0
        self.last = Compacted()
        self.last_ms = 0.0
        self.max_dirty_ratio = 0.0
        self.max_delay_ms = 0

    def passed(self, done: Compacted, took_ms: float) -> None:
        """Count a completed pass."""
        self.passes += 1
        self.read_bytes += done.read_bytes
        self.written_bytes += done.written_bytes
        self.removed += done.removed
        self.last, self.last_ms = done, took_ms

    @property
    def recopied_percent(self) -> int:
        """Percentage of the bytes read by the last pass that it wrote again."""
        return 100 * self.last.written_bytes // max(1, self.last.read_bytes)


def _has_closed_segments(partition: Partition) -> bool:
    """True if the topic is compacted, and the log has more than the active segment."""
    plog = partition.log
    return plog is not None and plog.config.compacted and plog.failure is None and len(plog.segments) > 1


class Uncleanable(NamedTuple):
    """Log that compaction skips: the reason, the number of holes that this broker had mended by then, and, if the
    memory was too small for one of its batches, its size in bytes (log.cleaner.dedupe.buffer.size)."""

    reason: str
    mended_holes: int
    small_buffer_bytes: int | None = None


class Compactor:
    """Looks every `log.cleaner.backoff.ms` for logs that are due for compaction, and compacts them.

    Invariants:
    - one pass at a time;
    - a log that cannot be read is `uncleanable` while it is open, or until its holes are mended: it is skipped, and the
      others go on. So is a log with a batch too large for the memory, until the memory is raised.
    """

    def __init__(
        self,
        shared: Shared,
        partitions: Mapping[TopicPartition, Partition],
        believed: BelievedClock,
    ) -> None:
        self._shared = shared
        self._partitions = partitions
        self._clock = believed
        self._timer: asyncio.TimerHandle | None = None
        self._waits_since_ms = 0.0
        self._task: asyncio.Task[None] | None = None
        self._unlinking: set[asyncio.Task[None]] = set()
        self._without_room: set[PartitionLog] = set()
        self.uncleanable: dict[PartitionLog, Uncleanable] = {}
        self.figures = Figures()

    # Life

    def start(self) -> None:
        """Begin to look for logs to compact."""
        self._look_later()

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop compacting; return the tasks that end now. The next start finishes or drops an unfinished pass."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ending = [*self._unlinking] + ([self._task] if self._task is not None else [])
        for task in ending:
            task.cancel()
        return ending

    def reconfigured(self) -> None:
        """Apply a changed log.cleaner.backoff.ms, also to the wait that is under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._look_at(self._waits_since_ms + self._shared.config.cleaner_backoff_ms)

    def _look_later(self) -> None:
        self._waits_since_ms = self._shared.clock.monotonic_ms()
        self._look_at(self._waits_since_ms + self._shared.config.cleaner_backoff_ms)

    def _look_at(self, at_ms: float) -> None:
        delay_ms = max(0.0, at_ms - self._shared.clock.monotonic_ms())
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1_000, self._look)

    def _look(self) -> None:
        self._timer = None
        if any(map(_has_closed_segments, self._partitions.values())):
            self._task = spawn(self._compact_what_is_due(), self._shared.on_fatal)
        else:
            self._look_later()

    async def _compact_what_is_due(self) -> None:
        while (found := await self._most_dirty()) is not None:
            if not await self._compact(*found):
                break
        self._task = None
        self._look_later()

    # Which

    async def _most_dirty(self) -> tuple[Partition, PartitionLog, Cleanable] | None:
        """Return the log to compact next, or None: of those that are due, the one most beyond its maximum lag, else the
        one with the largest dirty ratio."""
        best: tuple[Partition, PartitionLog, Cleanable] | None = None
        figures = self.figures
        figures.max_dirty_ratio, figures.max_delay_ms = 0.0, 0
        self._without_room = {plog for plog in self._without_room if plog.failure is None}
        self.uncleanable = {plog: why for plog, why in self.uncleanable.items() if self._is_given_up(plog, why)}
        for partition in list(self._partitions.values()):
            plog = partition.log
            if plog is None or not _has_closed_segments(partition) or plog in self.uncleanable:
                continue
            try:
                stable = plog.last_stable_offset(
                    Offset(partition.high_watermark)
                )  # rule C11/compaction-passes-what-is-open
                found = await plog.find_cleanable(self._clock.now(), stable)
            except (KafkaError, DiskError, FileNotFoundError) as error:
                self._give_up(partition, plog, error)
                continue
            figures.max_dirty_ratio = max(figures.max_dirty_ratio, found.ratio)
            figures.max_delay_ms = max(figures.max_delay_ms, found.overdue_ms)
            if not found.is_due(plog.config.min_cleanable_dirty_ratio) or not self._has_room(plog, found):
                continue
            if best is None or (found.overdue_ms, found.ratio) > (best[2].overdue_ms, best[2].ratio):
                best = (partition, plog, found)
        return best

    def _has_room(self, plog: PartitionLog, found: Cleanable) -> bool:
        """True if the disk has room to rewrite a segment beside the old one. Logs once if it has not."""
        segment_bytes = min(plog.config.segment_bytes, found.clean_bytes + found.dirty_bytes)
        free = plog.disk.free_bytes(plog.directory)
        if free >= _ROOM * segment_bytes and not self._shared.directories.of(plog.home).room.full:
            self._without_room.discard(plog)
            return True
        if plog not in self._without_room:
            self._without_room.add(plog)
            name = str(plog.topic_partition)
            log.warning("a log is not compacted: the disk has no room", partition=name, free_bytes=free)
        return False

    # One pass

    async def _compact(self, partition: Partition, plog: PartitionLog, found: Cleanable) -> bool:
        """Compact one log. Return False if nothing came of it, so that another look at once would find the same."""
        shared, now = self._shared, self._clock.now()
        one = Compaction(
            plog,
            found,
            buffer_bytes=shared.config.cleaner_dedupe_buffer_bytes,
            now_ms=now.earliest_ms,
            latest_ms=now.wall_ms,
            pace=Pace(shared.clock, shared.pauses, lambda: shared.config.cleaner_io_max_bytes_per_second),
            unlink=lambda paths: self._unlink_later(plog, paths),
        )
        try:
            done = await one.run()
            if plog.needs_sync and plog.failure is None:
                shared.directories.of(plog.home).syncer.mark(plog)
            shared.directories.of(plog.home).checkpoints.write_all()
        except LogChanged:
            return False
        except DiskFull:
            shared.directories.of(plog.home).room.ran_out()
            return False
        except StorageError as error:
            if partition.log is plog:  # else the replica was moved
                partition.fail(str(error))
            return False
        except (KafkaError, ConfigError, DiskError) as error:
            self._give_up(partition, plog, error)
            return False
        took_ms = shared.clock.monotonic_ms() - now.monotonic_ms
        self.figures.passed(done, took_ms)
        log.info(
            "compacted a log",
            partition=str(plog.topic_partition),
            compacted_to=done.end,
            read_bytes=done.read_bytes,
            written_bytes=done.written_bytes,
            records_removed=done.removed,
            tombstones_removed=done.tombstones_removed,
            markers_removed=done.markers_removed,
            keys=done.keys,
            took_ms=round(took_ms),
        )
        return True

    def _give_up(self, partition: Partition, plog: PartitionLog, error: Exception) -> None:
        mark("log-uncleanable")
        small = error.value if isinstance(error, ConfigError) and isinstance(error.value, int) else None
        # rule B20/rot-is-tried-for-ever
        self.uncleanable[plog] = Uncleanable(str(error), self._shared.counters.mended_holes, small)
        log.error(
            "a log is compacted no more until it is healed, or this node starts again; others go on",
            partition=str(plog.topic_partition),
            error=str(error),
            size_bytes=plog.size_bytes,
        )
        if isinstance(error, KafkaError):
            partition.cannot_read(error)  # rule B20/compaction-heals-nothing

    def _is_given_up(self, plog: PartitionLog, why: Uncleanable) -> bool:
        """True if the log is still uncleanable: it is open, and neither healed nor given enough memory since."""
        # rule B20/a-healed-log-is-compacted-no-more
        healed = not plog.rot and self._shared.counters.mended_holes > why.mended_holes
        small = why.small_buffer_bytes
        roomier = small is not None and self._shared.config.cleaner_dedupe_buffer_bytes > small
        return plog.failure is None and not healed and not roomier

    # Files

    def _unlink_later(self, plog: PartitionLog, paths: list[str]) -> None:
        task = spawn(self._unlink(plog, paths), self._shared.on_fatal)
        self._unlinking.add(task)
        task.add_done_callback(self._unlinking.discard)

    async def _unlink(self, plog: PartitionLog, paths: list[str]) -> None:
        await asyncio.sleep(plog.config.file_delete_delay_ms / 1_000)
        for path in paths:
            try:
                await plog.disk.unlink_slowly(path)
            except FileNotFoundError:
                pass  # the whole directory went, or a later pass has put another file of that name there and deleted it
            except DiskError as error:
                log.error("a compacted segment stays on the disk", path=path, error=str(error))
