"""Tiered storage (KIP-405). The leader copies closed segments to the object store, and deletes from it what retention
allows. Every replica reads the object store for clients, within the time that they wait.

The list of segments in the metadata log is authoritative (`strandline.proto.tier`). A segment is copied under a new id;
then the controller is asked to add it, and refuses a leader of an older epoch. To delete a segment, the controller is
asked to forget it first, and its objects are deleted afterwards. A crash in between leaves objects that the list does
not name: they are never read, and the reaper deletes them (`strandline.cluster.node.tier_reaper`).

Nothing here calls back: each sweep looks at every led partition and finds what there is to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from uuid import UUID

import structlog

from strandline.log.object_store import ObjectStore
from strandline.log.partition_log import LogRead, PartitionLog, TimestampedOffset
from strandline.log.segment import Segment
from strandline.log.swap import LogChanged
from strandline.log.tier.copying import copy_segment
from strandline.log.tier.names import log_key, partition_prefix, sidecar_key
from strandline.log.tier.reading import TierReader
from strandline.log.transactions import AbortedTransaction
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StoreError
from strandline.proto.ids import Offset, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Rng
from strandline.proto.tasks import spawn
from strandline.proto.tier import AS_IT_IS, Tier, TierChange, TieredSegment, TierOutcome
from strandline.replica.core import LeaderCore
from strandline.replica.partition import Partition
from strandline.replica.shared import Shared
from strandline.replica.states import PartitionState
from strandline.replica.throttle import Throttle
from strandline.replica.tier_config import TierConfig

log = structlog.get_logger("strandline.replica")


ChangeTiers = Callable[[Sequence[TierChange]], Awaitable[list[TierOutcome]]]
"""Function that asks the active controller for changes of tiers; raises KafkaError if there was no answer."""


@dataclass(frozen=True, slots=True)
class TierParts:
    """Parts that a broker needs for tiered storage. The store and the reader stay the caller's to close."""

    store: ObjectStore
    reader: TierReader
    config: TierConfig
    change: ChangeTiers


class TierCounters:
    """Running totals of one broker since the start."""

    def __init__(self) -> None:
        self.copied_bytes = 0
        self.copied_segments = 0
        self.copy_errors = 0
        self.deleted_segments = 0
        self.delete_errors = 0


class _Piece(NamedTuple):
    """Part of a log that is to be copied next.

    Attributes:
        start_offset: first offset to copy: the tier's end, or the segment's base offset if that is greater.
        is_first: True if the tier is empty.
    """

    segment: Segment
    start_offset: int
    is_first: bool


class _Copied(NamedTuple):
    """Segment that is in the object store and is to be added to the metadata.

    Attributes:
        start_offset: new start offset of the tier; AS_IT_IS: unchanged.
        begun_ms: monotonic time at which the copy was begun.
    """

    core: LeaderCore
    segment: TieredSegment
    start_offset: int
    begun_ms: float


class Tiering:
    """Copies segments of the partitions that this broker leads to the object store, and deletes expired ones.

    Invariants:
    - at most one copy of a partition is under way, and at most `remote.log.manager.copier.thread.pool.size` in the
      broker;
    - a segment is added to the metadata only by the leader that began to copy it, and early enough that the reaper
      cannot have deleted its objects as unnamed.
    """

    def __init__(
        self,
        shared: Shared,
        partitions: Mapping[TopicPartition, Partition],
        tier: TierParts,
        rng: Rng,
    ) -> None:
        self._shared = shared
        self._partitions = partitions
        self._store, config, self._change = tier.store, tier.config, tier.change
        self._config = config
        self._rng = rng
        self._slots = asyncio.Semaphore(config.copies_max)
        self._throttle = Throttle(shared.clock)
        self._throttle.set_limit(config.copy_bytes_per_second)
        self._seen: dict[Partition, Tier] = {}
        self._starts: dict[Partition, int] = {}
        self._failing_since: dict[Partition, float] = {}
        self._copies: dict[Partition, asyncio.Task[None]] = {}
        self._unanswered: dict[Partition, _Copied] = {}
        """Copied segments for which the controller gave no answer: they are added again rather than copied again."""
        self._others: set[asyncio.Task[None]] = set()
        self._raising: asyncio.Task[None] | None = None
        self._copy_due_ms = 0.0
        self.counters = TierCounters()

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop copying and deleting; return the tasks that end now."""
        tasks = [*self._copies.values(), *self._others, *([] if self._raising is None else [self._raising])]
        for task in tasks:
            task.cancel()
        self._throttle.stop()
        return tasks

    # What there is to do

    def look(self, now_ms: float) -> None:
        """Delete, raise and copy what is due at the monotonic time `now_ms`."""
        copies = now_ms >= self._copy_due_ms
        if copies:
            self._copy_due_ms = now_ms + self._config.task_interval_ms
        seen, self._seen = self._seen, {}
        for partition in self._partitions.values():
            if partition.leader is not None and partition.state.log_config.remote_storage:
                tier = self._seen[partition] = partition.state.tier
                self._forget(partition, seen.get(partition, tier), tier)
                self._raise_for_deletions(partition, tier)
                if copies and partition not in self._copies and self._next_piece(partition, tier.end_offset):
                    self._copies[partition] = spawn(self._copy_all(partition), self._shared.on_fatal)
        self._unanswered = {one: copied for one, copied in self._unanswered.items() if one.leader is copied.core}
        self._starts = {partition: start for partition, start in self._starts.items() if partition in self._seen}
        self._failing_since = {one: since for one, since in self._failing_since.items() if one in self._seen}
        if self._starts and self._raising is None:
            self._raising = spawn(self._raise_starts(), self._shared.on_fatal)

    def _forget(self, partition: Partition, before: Tier, tier: Tier) -> None:
        """Delete the segments that the metadata forgot while this broker led, and raise the log's start on disk to the
        tier's."""
        gone = [segment for segment in before.segments if segment.end_offset <= tier.start_offset]
        if gone:
            task = spawn(self._delete(self._prefix(partition), gone), self._shared.on_fatal)
            self._others.add(task)
            task.add_done_callback(self._others.discard)
        plog, start = partition.log, min(tier.start_offset, partition.high_watermark)
        if plog is not None and plog.failure is None and plog.log_start_offset < start:
            partition.raise_log_start(start)

    # The start

    def raise_start(self, partition: Partition, offset: int) -> None:
        """Ask the controller to forget the records below `offset`, again with each sweep until it has."""
        self._starts[partition] = max(offset, self._starts.get(partition, 0))

    def _raise_for_deletions(self, partition: Partition, tier: Tier) -> None:
        """Raise the tier's start to what clients deleted, or to the log's start if that is beyond the tier's end. So
        the metadata say of every offset below a log's start whether it was deleted (rule B24)."""
        wanted = [deletion.offset for deletion in partition.deletions]
        plog = partition.log
        # rule B24/deletions-before-the-first-copy-are-untold
        if plog is not None and plog.log_start_offset > tier.end_offset:
            wanted.append(plog.log_start_offset)
        if wanted and max(wanted) > tier.start_offset:
            self.raise_start(partition, max(wanted))

    async def _raise_starts(self) -> None:
        try:
            starts, self._starts = self._starts, {}
            changes = [
                self._change_of(partition, core, start_offset=start)
                for partition, start in starts.items()
                if (core := partition.leader) is not None and start > partition.state.tier.start_offset
            ]
            for outcome in await self._change(changes) if changes else ():
                if outcome.error is not ErrorCode.NONE:
                    log.info("a tier's start was not raised", topic_id=str(outcome.topic_id), reason=outcome.message)
        except KafkaError as error:
            log.info("no tier's start was raised: the next sweep finds what is to do", reason=str(error))
        finally:
            self._raising = None

    # Copying

    def _next_piece(self, partition: Partition, copied_to: int) -> _Piece | None:
        """Return the oldest closed segment that is committed, decided and not copied; None if there is none."""
        plog = partition.log
        if plog is None or plog.failure is not None or plog.rot:
            return None
        tier = partition.state.tier
        # rule B22/each-segment-begins-the-tier
        is_first = not tier.segments and copied_to == tier.end_offset  # what was copied a moment ago may not show yet
        for segment, end in zip(plog.segments, plog.bases[1:], strict=False):
            # rule B22/uncommitted-segments-are-copied, rule C13/undecided-segments-are-copied
            if end > partition.last_stable_offset:
                return None
            if end > copied_to:
                return _Piece(segment, max(segment.base_offset, copied_to), is_first)
        return None

    async def _copy_all(self, partition: Partition) -> None:
        copied_to = partition.state.tier.end_offset
        try:
            async with self._slots:
                while (core := partition.leader) is not None and (plog := partition.log) is not None:
                    copied = self._unanswered.pop(partition, None)
                    if copied is None or not self._still_wanted(partition, copied):
                        piece = self._next_piece(partition, max(copied_to, partition.state.tier.end_offset))
                        if piece is None:
                            return
                        copied = await self._copy(partition, core, plog, piece)
                    if not await self._add(partition, copied):
                        return
                    copied_to = copied.segment.end_offset
        except (StoreError, LogChanged) as error:
            self._failed(partition, error)
        except KafkaError as error:
            self._failed(partition, error)
            partition.cannot_read(error)
        finally:
            del self._copies[partition]

    def _still_wanted(self, partition: Partition, copied: _Copied) -> bool:
        """True if the segment was copied in this leadership, and the metadata have neither it nor anything beyond
        it."""
        return partition.leader is copied.core and partition.state.tier.end_offset <= copied.segment.base_offset

    def _failed(self, partition: Partition, error: Exception) -> None:
        mark("tier-copy-failed")
        self.counters.copy_errors += 1
        self._failing_since.setdefault(partition, self._shared.clock.monotonic_ms())
        name = str(partition.topic_partition)
        log.warning(
            "a segment was not copied to the object store and is tried again", partition=name, reason=str(error)
        )

    async def _copy(self, partition: Partition, core: LeaderCore, plog: PartitionLog, piece: _Piece) -> _Copied:
        begun_ms = self._shared.clock.monotonic_ms()
        segment = await copy_segment(
            self._store,
            self._prefix(partition),
            plog,
            piece.segment,
            UUID(int=self._rng.getrandbits(128), version=4),
            cluster_id=self._shared.cluster_id,
            leader_epoch=core.leader_epoch,
            believed=self._shared.believed,
            limiter=self._pace,
            start_offset=piece.start_offset,
        )
        # What is copied lies beyond the tier, so nothing but a deletion has taken the log's start into it.
        deleted = plog.log_start_offset > segment.base_offset
        # rule B22/deleted-records-come-back-with-the-tier, schedule 90/additions-forget-what-is-deleted
        start = max(plog.log_start_offset, segment.base_offset) if piece.is_first or deleted else AS_IT_IS
        return _Copied(core, segment, start, begun_ms)

    async def _add(self, partition: Partition, copied: _Copied) -> bool:
        """Ask the controller to add a copied segment. Return False if it refused, or gave no answer."""
        core, segment = copied.core, copied.segment
        in_time = self._shared.clock.monotonic_ms() - copied.begun_ms < self._config.reaper_grace_ms / 2
        if partition.leader is not core or not in_time:
            return False  # its objects are the reaper's: a call that was not answered may still be on its way
        try:
            [outcome] = await self._change([self._change_of(partition, core, (segment,), copied.start_offset)])
        except KafkaError as error:
            self._failed(partition, error)
            # rule B22/unanswered-segments-are-deleted, rule B22/unanswered-segments-are-copied-again
            self._unanswered[partition] = copied
            return False
        if outcome.error is not ErrorCode.NONE:
            mark("tier-change-refused")
            log.info("a copied segment was not added", partition=str(partition.topic_partition), reason=outcome.message)
            # schedule 87/refused-segments-are-deleted
            return False  # the reaper's, too: a call before it may have been carried out, and its answer lost
        mark("segment-tiered")
        self._failing_since.pop(partition, None)
        self.counters.copied_segments += 1
        self.counters.copied_bytes += segment.size_bytes
        return True

    def _change_of(
        self,
        partition: Partition,
        core: LeaderCore,
        add: tuple[TieredSegment, ...] = (),
        start_offset: int = AS_IT_IS,
    ) -> TierChange:
        state = partition.state
        return TierChange(state.topic_id, state.partition, core.leader_epoch, add, Offset(start_offset))

    async def _pace(self, size: int) -> None:
        """Wait until `remote.log.manager.copy.max.bytes.per.second` allows `size` more bytes."""
        while not self._throttle.has_room:
            room = asyncio.Event()
            self._throttle.when_room(room.set)
            await room.wait()
        self._throttle.take(size)

    # Deleting

    async def _delete(self, prefix: str, segments: Iterable[TieredSegment]) -> None:
        """Delete the objects of segments that the metadata no longer name. The reaper deletes those that fail here."""
        for segment in segments:
            try:
                await self._store.delete(log_key(prefix, segment))
                await self._store.delete(sidecar_key(prefix, segment))
                self.counters.deleted_segments += 1
            except StoreError as error:
                mark("tier-delete-failed")
                self.counters.delete_errors += 1
                log.info("a segment is still in the object store", key=log_key(prefix, segment), reason=str(error))

    def _prefix(self, partition: Partition) -> str:
        state = partition.state
        return partition_prefix(self._shared.cluster_id, state.topic, state.topic_id, state.partition)

    # Status

    def failing_ms(self) -> float:
        """Return the milliseconds for which copies have failed, of the partition with the most; 0 if none fails."""
        now_ms = self._shared.clock.monotonic_ms()
        return max((now_ms - since for since in self._failing_since.values()), default=0.0)

    def copy_lag(self) -> tuple[int, int]:
        """Return the number of segments that may be copied but are not yet, and their bytes."""
        segments = size_bytes = 0
        for partition in self._partitions.values():
            plog, config = partition.log, partition.state.log_config
            if partition.leader is None or plog is None or not config.remote_storage:
                continue
            copied_to = partition.state.tier.end_offset
            for segment, end in zip(plog.segments, plog.bases[1:], strict=False):
                if copied_to < end <= partition.last_stable_offset:
                    segments += 1
                    size_bytes += segment.size
        return segments, size_bytes


# Reading


T = TypeVar("T")

_Read = tuple[UUID, int, int, int, bool]
"""Key of a read: segment id, offset, maximum bytes, limit offset, and whether aborted transactions are wanted."""

TieredRead = tuple[LogRead, Sequence[AbortedTransaction]]


class TierReads:
    """Reads of the tiers of all partitions of a broker.

    A read that takes longer than `remote.fetch.max.wait.ms` returns no data, so that it does not delay the other
    partitions of the same fetch. It goes on in the background, and a later fetch of the same data gets its result.

    If this broker has no object store (no `remote.log.storage.url`), every read raises KafkaError.
    """

    def __init__(self, tier: TierParts | None) -> None:
        self.reader = None if tier is None else tier.reader
        self._wait_ms = 0.0 if tier is None else tier.config.fetch_wait_max_ms
        self._under_way: dict[_Read, asyncio.Task[TieredRead]] = {}

    def stop(self) -> list[asyncio.Task[TieredRead]]:
        """Stop reading; return the tasks that end now."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        return tasks

    async def read(
        self,
        state: PartitionState,
        segment: TieredSegment,
        offset: int,
        max_bytes: int,
        limit_offset: int,
        *,
        read_committed: bool = False,
    ) -> TieredRead:
        """Read whole batches from the one that holds `offset` on; no data if that takes too long or if `offset` is at
        `limit_offset`. With `read_committed`, also return the aborted transactions that have records in the data.

        Raises KafkaError: KAFKA_STORAGE_ERROR if the store does not answer, CORRUPT_MESSAGE if the object is rotten.
        """
        key = segment.segment_id, offset, max_bytes, limit_offset, read_committed
        under_way = self._under_way.get(key)
        if under_way is None:
            read = _asked(_read(self._whole_reader(), state, segment, key))
            under_way = self._under_way[key] = asyncio.get_running_loop().create_task(read)
            under_way.add_done_callback(lambda task: self._ended(key, task))
        # rule B22/fetches-wait-for-the-store-to-the-end
        done, _ = await asyncio.wait([under_way], timeout=self._wait_ms / 1000)
        if not done:
            mark("tier-read-takes-long")
            return LogRead(b"", Offset(offset), Offset(offset)), ()
        return under_way.result()

    def _ended(self, key: _Read, task: asyncio.Task[TieredRead]) -> None:
        """Forget a read that has ended. Its callers hold the task; later reads find the data in the reader's cache, or
        meet the same error."""
        del self._under_way[key]
        if not task.cancelled():
            task.exception()

    async def offset_for_timestamp(
        self, state: PartitionState, timestamp_ms: int, limit_offset: int
    ) -> TimestampedOffset | None:
        """Return the first record of the tier below `limit_offset` with a timestamp of at least `timestamp_ms`, or
        None.

        Raises KafkaError as `read` does.
        """
        reader, tier = self._whole_reader(), state.tier
        for segment in tier.segments:
            if segment.base_offset < limit_offset and segment.max_timestamp_ms >= timestamp_ms:
                found = await _asked(
                    reader.offset_for_timestamp(
                        state.topic_partition,
                        state.topic_id,
                        segment,
                        timestamp_ms,
                        start_offset=tier.start_offset,
                        limit_offset=limit_offset,
                    )
                )
                if found is not None:
                    return found
        return None

    async def max_timestamp(self, state: PartitionState) -> TimestampedOffset | None:
        """Return the first record with the largest timestamp in the tier (KIP-734); None if no record has a timestamp.

        Raises KafkaError as `read` does.
        """
        reader, tier = self._whole_reader(), state.tier
        newest = max(tier.segments, key=lambda segment: segment.max_timestamp_ms)
        return await _asked(
            reader.max_timestamp(state.topic_partition, state.topic_id, newest, start_offset=tier.start_offset)
        )

    def _whole_reader(self) -> TierReader:
        if self.reader is None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "a part of the partition lies in an object store, and this broker has no remote.log.storage.url",
            )
        return self.reader


async def _read(reader: TierReader, state: PartitionState, segment: TieredSegment, wanted: _Read) -> TieredRead:
    _, offset, max_bytes, limit_offset, read_committed = wanted
    where = state.topic_partition, state.topic_id, segment
    found = await reader.read(*where, offset, max_bytes, limit_offset=limit_offset)
    # rule C13/aborted-records-of-the-tier-are-shown
    aborted = await reader.aborted(*where, offset, found.next_offset) if read_committed and found.data else ()
    return found, aborted


async def _asked(read: Coroutine[object, object, T]) -> T:
    """Await a read of the object store. Raises KafkaError if the store fails."""
    try:
        return await read
    except StoreError as error:
        mark("tier-read-failed")
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the object store: {error}") from error
