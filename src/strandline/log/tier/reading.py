"""Reading of segments in the object store: by offset, by time, and their producers. Memory is bounded, and each object
part is fetched once, however many readers ask for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from strandline.log.batch import HEADER_SIZE, BatchHeader, decode_records, sized_header
from strandline.log.epochs import OFFSET_MAX, LeaderEpochs, intact_end, why_not_intact
from strandline.log.object_store import ObjectStore
from strandline.log.partition_log import LogRead, TimestampedOffset
from strandline.log.producer_state import ProducerStates, SnapshotDamaged
from strandline.log.tier.names import log_key, partition_prefix, sidecar_key
from strandline.log.tier.sidecar import Sidecar, decode_producers, load_head, load_sidecar
from strandline.log.transactions import AbortedTransaction, overlapping
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import CorruptLogError, KafkaError, StoreError
from strandline.proto.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from strandline.proto.marks import mark
from strandline.proto.ports import Clock
from strandline.proto.tier import ProducerIds, Tier, TieredSegment

CHUNK_BYTES = 1 << 20
"""Bytes of an object fetched at a time. A GET of 1 MiB takes little longer than the smallest (tens of
milliseconds)."""

READ_BYTES_MAX = 4 << 20
"""Maximum bytes that one read returns, unless one batch is larger. With the limit on reads it bounds their memory."""

_READERS_KEPT = 1024
"""Remembered positions of readers, by which a sequential reader is recognised."""


class TierReader:
    """Reads segments of every partition of a node.

    Invariants:
    - at most `concurrency` reads wait for the store at a time, each holding READ_BYTES_MAX or one batch, and at most
      `concurrency` GETs are under way; in addition the two caches hold up to their limits;
    - a reader never gets a batch whose CRC, offsets or leader epoch differ from those that were written.

    Every method raises, in addition to its own errors:
        KafkaError: CORRUPT_MESSAGE if an object is not what was written.
        StoreError: the store did not answer; ObjectMissing if it has no such object, as after the segment was removed
            from the metadata.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        clock: Clock,
        *,
        cache_bytes: int,
        index_cache_bytes: int,
        concurrency: int,
        read_ahead_bytes: int,
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._clock = clock
        self._chunks: Fetched[tuple[str, int], bytes] = Fetched(cache_bytes, len)
        self._sidecars: Fetched[str, Sidecar] = Fetched(index_cache_bytes, lambda sidecar: sidecar.memory_bytes)
        self._reads = asyncio.Semaphore(concurrency)
        self._gets = asyncio.Semaphore(concurrency)
        self._read_ahead_chunks = -(-read_ahead_bytes // CHUNK_BYTES)
        self._next: OrderedDict[tuple[str, int], None] = OrderedDict()
        self.requests = 0
        """Number of GETs so far."""
        self.errors = 0
        """Number of failed GETs."""
        self.fetched_bytes = 0
        self.fetch_ms = 0.0
        """Milliseconds that all GETs took together."""
        self.corrupt = 0
        """Number of objects found damaged."""

    @property
    def cache_hits(self) -> int:
        """Number of requests for chunks and sidecars that were in memory, or being fetched."""
        return self._chunks.hits + self._sidecars.hits

    @property
    def cached_bytes(self) -> int:
        """Bytes in the caches, sidecars included."""
        return self._chunks.bytes + self._sidecars.bytes

    async def close(self) -> None:
        """Cancel every GET, and empty the caches; the store stays the caller's."""
        await self._chunks.close()
        await self._sidecars.close()

    # ------------------------------------------------------------------ by offset

    async def read(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        segment: TieredSegment,
        offset: int,
        max_bytes: int,
        *,
        limit_offset: int,
    ) -> LogRead:
        """Return whole batches from the one that holds `offset` on: at most `max_bytes` and READ_BYTES_MAX, but at
        least one batch, and none that reaches beyond the segment's end or `limit_offset`. Empty at the limit.

        Raises KafkaError: OFFSET_OUT_OF_RANGE if the segment does not hold the offset.
        """
        if not segment.base_offset <= offset < segment.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                "the segment does not hold this offset",
                offset=offset,
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
            )
        limit = min(segment.end_offset, limit_offset)
        if offset >= limit:
            return LogRead(b"", Offset(offset), Offset(offset))
        async with self._reads:
            found = await self._object(tp, topic_id, segment)
            position, header = await found.find(offset)
            size = max(min(max_bytes, READ_BYTES_MAX), header.size)
            data = await found.read_bytes(position, min(position + size, found.size))
        # rule B19/rot-of-the-tier-is-served
        end, following = intact_end(data, header.base_offset, found.epochs, 0, limit)
        if not end and header.last_offset < limit:
            raise found.rotten(position, why_not_intact(data, header.base_offset, found.epochs.epoch_at(offset)))
        if not end:
            found.check(position, header, data)  # it reaches the limit, if its header is right
            return LogRead(b"", Offset(offset), Offset(offset))
        self._read_on(found, offset, following, position + end)
        return LogRead(data[:end], Offset(header.base_offset), Offset(following))

    async def aborted(
        self, tp: TopicPartition, topic_id: TopicId, segment: TieredSegment, start: int, end: int
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in [`start`, `end`), which lies in the segment."""
        found = await self._object(tp, topic_id, segment)
        return overlapping(iter((found.sidecar.aborted,)), start, end)

    def _read_on(self, found: _Object, offset: int, following: int, position: int) -> None:
        """Fetch ahead from `position` for a reader that went from `offset` to `following`, if it reads sequentially."""
        sequential = self._next.pop((found.key, offset), self) is None or offset == found.base_offset
        self._next[found.key, following] = None
        if len(self._next) > _READERS_KEPT:
            self._next.popitem(last=False)
        if not sequential or position >= found.size:
            return
        first = position // CHUNK_BYTES
        for number in range(first, min(first + self._read_ahead_chunks, -(-found.size // CHUNK_BYTES))):
            if not self._gets.locked() and not self._chunks.has((found.key, number)):
                self._chunks.begin((found.key, number), partial(self._chunk, found, number))

    # ------------------------------------------------------------------ by time

    async def offset_for_timestamp(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        segment: TieredSegment,
        timestamp_ms: int,
        *,
        start_offset: int = 0,
        limit_offset: int = OFFSET_MAX,
    ) -> TimestampedOffset | None:
        """Return the first record in [start_offset, limit_offset) with a timestamp of at least `timestamp_ms`; None if
        the segment has none."""
        if segment.max_timestamp_ms < timestamp_ms:
            return None
        start, limit = max(start_offset, segment.base_offset), min(limit_offset, segment.end_offset)
        if start >= limit:
            return None
        async with self._reads:
            found = await self._object(tp, topic_id, segment)
            start = max(start, found.base_offset + found.sidecar.time_index.offset_before(timestamp_ms))
            async for header, batch in found.batches(start):
                if header.base_offset >= limit:
                    return None
                if header.max_timestamp >= timestamp_ms:
                    for record in decode_records(batch):
                        if record.timestamp_ms >= timestamp_ms and start_offset <= record.offset:
                            if record.offset >= limit:
                                return None
                            if record.offset >= segment.base_offset:
                                return _at(record.offset, record.timestamp_ms, header)
        return None

    async def max_timestamp(
        self, tp: TopicPartition, topic_id: TopicId, segment: TieredSegment, *, start_offset: int = 0
    ) -> TimestampedOffset | None:
        """Return the first record from `start_offset` on with the largest timestamp there (KIP-734); None if no record
        has a timestamp."""
        if segment.max_timestamp_ms < 0:
            return None
        whole = start_offset <= segment.base_offset
        if whole:
            found = await self.offset_for_timestamp(tp, topic_id, segment, segment.max_timestamp_ms)
            if found is not None:
                return found
        return await self._newest(tp, topic_id, segment, start_offset)

    async def _newest(
        self, tp: TopicPartition, topic_id: TopicId, segment: TieredSegment, start_offset: int
    ) -> TimestampedOffset | None:
        """Do what `max_timestamp` does, by reading every batch of a part of a segment."""
        best: TimestampedOffset | None = None
        start = max(start_offset, segment.base_offset)
        if start >= segment.end_offset:
            return None
        async with self._reads:
            found = await self._object(tp, topic_id, segment)
            async for header, batch in found.batches(start):
                if header.base_offset >= segment.end_offset:
                    break
                if header.max_timestamp <= (best.timestamp_ms if best else -1):
                    continue
                for record in decode_records(batch):
                    inside = start <= record.offset < segment.end_offset
                    if inside and record.timestamp_ms > (best.timestamp_ms if best else -1):
                        best = _at(record.offset, record.timestamp_ms, header)
        return best

    # ------------------------------------------------------------------ what the sidecar says

    async def epochs(self, tp: TopicPartition, topic_id: TopicId, segment: TieredSegment) -> list[tuple[int, int]]:
        """Return (leader epoch, offset of its first record in the segment) of each epoch, oldest first. The first may
        have begun in an earlier segment."""
        async with self._reads:
            found = await self._object(tp, topic_id, segment)
        epochs = LeaderEpochs(list(found.sidecar.header.epochs))
        epochs.bound(segment.base_offset, segment.end_offset)
        return epochs.entries()

    async def producers(self, tp: TopicPartition, topic_id: TopicId, segment: TieredSegment) -> bytes | None:
        """Return the producer snapshot at the end of the segment's object, for `ProducerStates.load_snapshot`; None if
        the copied log had none."""
        key = sidecar_key(partition_prefix(self._cluster_id, tp.topic, topic_id, tp.partition), segment)
        try:
            async with self._reads:
                head = await load_head(self._get, key)
                if not head.lengths[3]:
                    return None
                return decode_producers(head, await self._get(key, head.indexes_end, head.size_bytes), key)
        except CorruptLogError as error:
            raise self.damaged(error.path, error.position, error.reason) from error

    async def each_header(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        segment: TieredSegment,
        limit_offset: int,
        take: Callable[[BatchHeader], None],
    ) -> None:
        """Call `take` with the header of every batch of the segment that begins below `limit_offset`."""
        async with self._reads:
            found = await self._object(tp, topic_id, segment)
            async for header, _ in found.batches(segment.base_offset):
                if header.base_offset >= min(segment.end_offset, limit_offset):
                    return
                take(header)

    # ------------------------------------------------------------------ fetching

    async def _object(self, tp: TopicPartition, topic_id: TopicId, segment: TieredSegment) -> _Object:
        prefix = partition_prefix(self._cluster_id, tp.topic, topic_id, tp.partition)
        key = sidecar_key(prefix, segment)
        sidecar = await self._sidecars.get(key, partial(self._sidecar, key))
        header = sidecar.header
        if header.topic_id != topic_id or header.partition != tp.partition or header.size_bytes != segment.size_bytes:
            raise self.damaged(key, 0, "the sidecar is of another segment than the metadata say")
        return _Object(self, log_key(prefix, segment), sidecar)

    async def _sidecar(self, key: str) -> Sidecar:
        try:
            return await load_sidecar(self._get, key)
        except CorruptLogError as error:  # not a damaged log of this node
            raise self.damaged(error.path, error.position, error.reason) from error

    async def chunk(self, found: _Object, number: int) -> bytes:
        """Return one chunk of CHUNK_BYTES; the last one is shorter."""
        return await self._chunks.get((found.key, number), partial(self._chunk, found, number))

    async def _chunk(self, found: _Object, number: int) -> bytes:
        start = number * CHUNK_BYTES
        return await self._get(found.key, start, min(start + CHUNK_BYTES, found.size))

    async def _get(self, key: str, start: int, end: int) -> bytes:
        async with self._gets:
            self.requests += 1
            began_ms = self._clock.monotonic_ms()
            try:
                data = await self._store.get(key, start, end)
            except StoreError:
                self.errors += 1
                raise
            finally:
                self.fetch_ms += self._clock.monotonic_ms() - began_ms
        self.fetched_bytes += len(data)
        return data

    def damaged(self, key: str, position: int, reason: str) -> KafkaError:
        """Return the error for an object that is not what was written. It is fetched anew for the next reader, as the
        damage may have come on the way."""
        mark("tier-rot-found")
        self._chunks.forget(lambda chunk: chunk[0] == key)
        self._sidecars.forget(lambda sidecar: sidecar == key)
        self.corrupt += 1
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, reason, object=key, position=position)


class _Object:
    """The log object of one segment, for one read."""

    def __init__(self, reader: TierReader, key: str, sidecar: Sidecar) -> None:
        self._reader = reader
        self.key = key
        self.sidecar = sidecar
        self.base_offset = sidecar.header.base_offset
        self.size = sidecar.header.size_bytes
        self.epochs = LeaderEpochs(list(sidecar.header.epochs))
        self._held: tuple[int, bytes] = (-1, b"")

    async def read_bytes(self, start: int, end: int) -> bytes:
        """Return the bytes [start, end)."""
        parts: list[memoryview] = []
        while start < end:
            number, skipped = divmod(start, CHUNK_BYTES)
            if self._held[0] != number:
                self._held = number, await self._reader.chunk(self, number)
            part = memoryview(self._held[1])[skipped : skipped + end - start]
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    async def find(self, offset: int) -> tuple[int, BatchHeader]:
        """Return position and header of the batch that holds `offset`."""
        position, end = self.sidecar.index.entry_before(offset - self.base_offset)
        following = self.base_offset if end < 0 else -1
        while position < self.size:
            header = await self._header(position)
            if following < 0 and header.last_offset != self.base_offset + end:
                raise self.rotten(position, "the index names another batch than the one that stands there")
            if following >= 0 and header.base_offset != following:
                found = f"a batch of offset {header.base_offset} stands where {following} must follow"
                raise self.rotten(position, found)
            if header.last_offset >= offset:
                return position, header
            following = header.next_offset
            position += header.size
        raise self.rotten(position, f"offset {offset} is missing: the object ends before it")

    async def batches(self, offset: int) -> AsyncIterator[tuple[BatchHeader, bytes]]:
        """Yield the batch that holds `offset`, and all after it."""
        position, header = await self.find(offset)
        while True:
            data = await self.read_bytes(position, position + header.size)
            self.check(position, header, data)
            yield header, data
            position += header.size
            if position >= self.size:
                return
            following, header = header.next_offset, await self._header(position)
            if header.base_offset != following:
                raise self.rotten(
                    position, f"a batch of offset {header.base_offset} stands where {following} must follow"
                )

    async def _header(self, position: int) -> BatchHeader:
        try:
            data = await self.read_bytes(position, min(position + HEADER_SIZE, self.size))
            return sized_header(data, 0, self.size - position)
        except KafkaError as error:
            raise self.rotten(position, error.message) from error

    def check(self, position: int, header: BatchHeader, data: bytes) -> None:
        """Raise KafkaError unless `data` begin with the batch of that header, as it was written."""
        if not intact_end(data, header.base_offset, self.epochs, 0)[0]:
            raise self.rotten(
                position, why_not_intact(data, header.base_offset, self.epochs.epoch_at(header.base_offset))
            )

    def rotten(self, position: int, reason: str) -> KafkaError:
        """Return the error for bytes that are not those that were written."""
        return self._reader.damaged(self.key, position, reason)


def _at(offset: int, timestamp_ms: int, header: BatchHeader) -> TimestampedOffset:
    return TimestampedOffset(Offset(offset), timestamp_ms, LeaderEpoch(header.leader_epoch))


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Fetched(Generic[K, V]):
    """Cache of fetched values: the most recently used, up to a number of bytes.

    Invariants:
    - one fetch of a key is under way at a time; all callers meanwhile get its result, or its error;
    - a cancelled caller does not cancel the fetch for others;
    - errors are not cached: later callers fetch anew.
    """

    def __init__(self, bytes_max: int, size: Callable[[V], int]) -> None:
        self._bytes_max = bytes_max
        self._size = size
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._under_way: dict[K, asyncio.Task[V]] = {}
        self.bytes = 0
        """Bytes in the cache."""
        self.hits = 0
        """Number of requests whose value was cached, or being fetched."""

    def find(self, key: K) -> V | None:
        """Return the value of a key if it is cached, else None."""
        value = self._kept.get(key)
        if value is not None:
            self._kept.move_to_end(key)
            self.hits += 1
        return value

    def begin(self, key: K, fetch: Callable[[], Coroutine[Any, Any, V]]) -> asyncio.Task[V]:
        """Return the task that fetches a key, starting it if there is none; it need not be awaited."""
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.get_running_loop().create_task(fetch())
            task.add_done_callback(lambda task: self._ended(key, task))
        else:
            self.hits += 1
        return task

    async def get(self, key: K, fetch: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the value of a key, from the cache or by a fetch. Raises the errors of `fetch`, StoreError once this
        is closed."""
        value = self.find(key)
        if value is not None:
            return value
        task = self.begin(key, fetch)
        await asyncio.wait((task,))  # does not cancel the task, even if this caller is cancelled
        if task.cancelled():
            raise StoreError("the object store is not read any more: the node stops")
        return task.result()

    def forget(self, wanted: Callable[[K], bool]) -> None:
        """Remove the values of these keys, which are fetched anew the next time."""
        for key in [key for key in self._kept if wanted(key)]:
            self.bytes -= self._size(self._kept.pop(key))

    def has(self, key: K) -> bool:
        """True if the key is there, or being fetched."""
        return key in self._kept or key in self._under_way

    def _ended(self, key: K, task: asyncio.Task[V]) -> None:
        self._under_way.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._kept[key] = value = task.result()
        self.bytes += self._size(value)
        while self.bytes > self._bytes_max and self._kept:
            _, old = self._kept.popitem(last=False)
            self.bytes -= self._size(old)

    async def close(self) -> None:
        """Cancel fetches under way, and empty the cache."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._kept.clear()
        self.bytes = 0


async def producers_before(
    reader: TierReader, tp: TopicPartition, topic_id: TopicId, tier: Tier, offset: int, *, now_ms: int
) -> ProducerStates:
    """Return the state of producers (KIP-98) after every batch that ends at `offset` or before, which the tier reaches:
    for a log that begins there. They count as seen now.

    Every sidecar has the producer snapshot of its segment's end. If a log begins in the middle of a segment, or a
    sidecar has none, the batches since the last snapshot are read. Segments of a lost cluster name that cluster's
    producers. This cluster may have assigned the same ids to others, and then a new batch of theirs would pass for a
    retry, be acknowledged, and not be written. So such ids are left out (rule B27).

    A batch that `offset` lies inside of is left out, as a log that begins there has the whole batch.

    No transaction is open in the result. Only decided ones are copied, and the sidecars say which were aborted. The
    marker of one may come in the log that begins here, or never, if an unclean leader or a lost cluster lost it.

    Raises KafkaError and StoreError as `TierReader`.
    """
    states = ProducerStates()
    untold: list[TieredSegment] = []
    for segment in reversed(tier.segments):
        if segment.base_offset >= offset:
            continue
        # rule B24/producers-of-what-follows
        snapshot = await reader.producers(tp, topic_id, segment) if segment.end_offset <= offset else None
        if snapshot is not None and _is_loaded(states, snapshot, now_ms):
            if segment.producers is not None:  # rule B27/lost-producers-are-ours
                states.keep(segment.producers)
            break
        untold.append(segment)

    for segment in reversed(untold):
        await reader.each_header(tp, topic_id, segment, offset, _taker(states, segment.producers, offset, now_ms))
    states.end_all()  # rule C13/transactions-of-the-tier-stay-open
    return states


def _taker(
    states: ProducerStates, known: ProducerIds | None, offset: int, now_ms: int
) -> Callable[[BatchHeader], None]:
    def take(header: BatchHeader) -> None:
        theirs = known is None or header.producer_id in known  # rule B27/lost-producers-are-ours-where-snapshots-lack
        # rule B24/a-batch-is-known-before-it-comes
        if header.producer_id >= 0 and header.next_offset <= offset and theirs:
            if header.is_control:
                states.end(header, None, header.base_offset, now_ms)
            else:
                states.update(header, header.base_offset, now_ms)

    return take


def _is_loaded(states: ProducerStates, snapshot: bytes, now_ms: int) -> bool:
    try:
        states.load_snapshot(snapshot, now_ms)
    except SnapshotDamaged:  # as it was copied
        return False
    return True
