"""Logs of random content, and a store in memory that can be held up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from strandline.log.batch import Record, build_batch, gap_batch
from strandline.log.compression import Codec
from strandline.log.object_store import ObjectStore, StoredObject
from strandline.log.partition_log import PartitionLog
from strandline.log.tier.copying import copy_segment
from strandline.log.tier.names import partition_prefix
from strandline.log.tier.reading import TierReader
from strandline.proto.believed import BelievedClock
from strandline.proto.errors import ObjectMissing, StoreError
from strandline.proto.tier import TieredSegment
from tests.log.helpers import TOPIC_ID, TP, ManualClock

CLUSTER = "cluster"
PREFIX = partition_prefix(CLUSTER, TP.topic, TOPIC_ID, TP.partition)


class MemoryStore:
    """Objects in a dict; `held` holds every GET up, `away` fails it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.gets: list[tuple[str, int, int]] = []
        self.under_way = 0
        self.under_way_max = 0
        self.held: asyncio.Event | None = None
        self.away = False

    async def put(self, key: str, chunks: AsyncIterator[bytes], size_bytes: int) -> None:
        data = b"".join([chunk async for chunk in chunks])
        if self.away or len(data) != size_bytes:
            raise StoreError("away")
        self.puts.append(key)
        self.objects[key] = data

    async def get(self, key: str, start: int, end: int) -> bytes:
        self.gets.append((key, start, end))
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            await (self.held.wait() if self.held is not None else asyncio.sleep(0))
        finally:
            self.under_way -= 1
        if self.away:
            raise StoreError("away")
        if key not in self.objects:
            raise ObjectMissing(key)
        if end > len(self.objects[key]) or start >= end:
            raise StoreError("beyond the end")
        return self.objects[key][start:end]

    async def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        for key, data in sorted(self.objects.items()):
            if key.startswith(f"{prefix}/"):
                yield StoredObject(key, len(data), 0)

    async def copy(self, source: str, target: str) -> None:
        self.objects[target] = self.objects[source]

    async def close(self) -> None:
        self.objects.clear()


def tier_reader(store: ObjectStore, **bounds: int) -> TierReader:
    """A reader with room, unless `bounds` say otherwise."""
    settings: dict[str, Any] = {"cache_bytes": 1 << 24, "index_cache_bytes": 1 << 20, "concurrency": 4}
    return TierReader(store, CLUSTER, ManualClock(), **{**settings, "read_ahead_bytes": 0, **bounds})


async def copy_closed(store: ObjectStore, log: PartitionLog, **keywords: Any) -> list[TieredSegment]:
    """All closed segments of a log, in the store."""
    return [
        await copy_segment(
            store,
            PREFIX,
            log,
            segment,
            UUID(int=number),
            cluster_id=CLUSTER,
            leader_epoch=7,
            believed=BelievedClock(ManualClock()),
            **keywords,
        )
        for number, segment in enumerate(log.segments[:-1])
    ]


@st.composite
def appends(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """What is done to a log: batches of any codec, gaps, new epochs, rolls."""
    batch = st.tuples(
        st.just("batch"),
        st.tuples(
            st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 400)), min_size=1, max_size=5),
            st.sampled_from([Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD]),
        ),
    )
    other = st.sampled_from([("gap", 3), ("gap", 700), ("epoch", None), ("roll", None)])
    return draw(st.lists(st.one_of(batch, batch, batch, other), min_size=1, max_size=40))


def carry_out(log: PartitionLog, steps: list[tuple[str, Any]]) -> None:
    """Fill the log; it ends with a roll, so that all of it is closed."""
    epoch = 3
    for kind, what in steps:
        if kind == "roll":
            log.roll()
        elif kind == "epoch":
            epoch += 2
        elif kind == "gap":
            end = int(log.log_end_offset)
            log.append_as_follower(memoryview(gap_batch(end, end + what - 1, epoch)))
        else:
            pairs, codec = what
            records = [Record(i, time, b"k", b"v" * size) for i, (time, size) in enumerate(pairs)]
            log.append_as_leader(memoryview(build_batch(records, codec=codec)), epoch, 2_000)
    log.roll()
