"""Reading what lies in the object store, for clients: no longer than they want to wait (KIP-405)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar
from uuid import UUID

from strandline.log.partition_log import LogRead, TimestampedOffset
from strandline.log.tier.reading import TierReader
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StoreError
from strandline.proto.ids import Offset
from strandline.proto.marks import mark
from strandline.proto.tier import TieredSegment
from strandline.replica.states import PartitionState
from strandline.replica.tiering import TierParts

T = TypeVar("T")

_Read = tuple[UUID, int, int, int]
"""Segment, offset, the most that is wanted, and the limit."""


class TierReads:
    """Reads of the tiers of all partitions of a broker.

    A read that takes longer than `remote.fetch.max.wait.ms` is answered with nothing, so that the other partitions of
    the same fetch need not wait for it. It goes on, and the fetch that comes next finds what it brought.

    Where this broker has no object store (no `remote.log.storage.url`), every read is an error that says so.
    """

    def __init__(self, tier: TierParts | None) -> None:
        self.reader = None if tier is None else tier.reader
        self._wait_ms = 0.0 if tier is None else tier.config.fetch_wait_max_ms
        self._under_way: dict[_Read, asyncio.Task[LogRead]] = {}

    def stop(self) -> list[asyncio.Task[LogRead]]:
        """Read nothing more; the tasks that end with it."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        return tasks

    async def read(
        self, state: PartitionState, segment: TieredSegment, offset: int, max_bytes: int, limit_offset: int
    ) -> LogRead:
        """Whole batches from the one that holds `offset` on; nothing, if that takes too long or stands at the limit.

        Raises KafkaError: KAFKA_STORAGE_ERROR where the store does not answer, CORRUPT_MESSAGE where it has rotted.
        """
        key = segment.segment_id, offset, max_bytes, limit_offset
        under_way = self._under_way.get(key)
        if under_way is None:
            where = state.topic_partition, state.topic_id, segment, offset, max_bytes
            read = _asked(self._whole_reader().read(*where, limit_offset=limit_offset))
            under_way = self._under_way[key] = asyncio.get_running_loop().create_task(read)
            under_way.add_done_callback(lambda task: self._ended(key, task))
        # rule B22/fetches-wait-for-the-store-to-the-end
        done, _ = await asyncio.wait([under_way], timeout=self._wait_ms / 1000)
        if not done:
            mark("tier-read-takes-long")
            return LogRead(b"", Offset(offset), Offset(offset))
        return under_way.result()

    def _ended(self, key: _Read, task: asyncio.Task[LogRead]) -> None:
        """Whoever waits has the task. Without anybody what it brought stays in the reader's cache, and an error is met
        again."""
        del self._under_way[key]
        if not task.cancelled():
            task.exception()

    async def offset_for_timestamp(
        self, state: PartitionState, timestamp_ms: int, limit_offset: int
    ) -> TimestampedOffset | None:
        """The first record of the tier that is as young as `timestamp_ms` or younger, below the limit; None: none.

        Raises KafkaError as `read`.
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
        """The first record of the tier that has the largest timestamp there (KIP-734); None: none has a time.

        Raises KafkaError as `read`.
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


async def _asked(read: Coroutine[object, object, T]) -> T:
    """What the store gave. Raises KafkaError."""
    try:
        return await read
    except StoreError as error:
        mark("tier-read-failed")
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the object store: {error}") from error
