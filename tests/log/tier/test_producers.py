"""Who wrote what the object store has: as the log itself would know it at each offset (rule B24)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.log.batch import Record, build_batch, patch_base_offset_and_epoch
from strandline.log.config import LogConfig
from strandline.log.partition_log import PartitionLog
from strandline.log.producer_state import ProducerStates
from strandline.log.tier.reading import TierReader, producers_before
from strandline.proto.errors import KafkaError, StoreError
from strandline.proto.ids import Offset, ProducerId, TopicId, TopicPartition
from strandline.proto.tier import ProducerIds, Tier, TieredSegment
from tests.log.helpers import TOPIC_ID, TP, FailingDisk, open_test_log
from tests.log.tier.tiers import MemoryStore, copy_closed, tier_reader

SEGMENTS = 4


def write(log: PartitionLog) -> None:
    """Two batches of two records by each of a few producers, in several epochs, and transactions with later markers."""
    for segment in range(SEGMENTS):
        for producer, transactional in ((1, False), (2, False), (10 + segment, True)):
            epoch = segment // 2
            batch = memoryview(
                build_batch(
                    [Record(i, 1000, None, b"v", ()) for i in range(2)],
                    producer_id=producer,
                    producer_epoch=epoch,
                    base_sequence=2 * (segment % 2),
                    transactional=transactional,
                )
            )
            patch_base_offset_and_epoch(batch, 0, log.log_end_offset, 3)
            log.append_as_follower(batch)
        log.roll()


@pytest.fixture
def log(disk: FailingDisk, tmp_path: Path) -> Iterator[PartitionLog]:
    log = open_test_log(disk, tmp_path, config=LogConfig(preallocate_bytes=0))
    write(log)
    yield log
    log.close_files()


def before(log: PartitionLog, offset: int) -> bytes:
    """What the log knows at an offset, but for open transactions: what was copied is decided (rule C13)."""
    states = log.snapshots.load(log.segments, offset, 0)
    states.end_all()
    return states.encode_snapshot()


def tier_of(store: MemoryStore, log: PartitionLog) -> Tier:
    return Tier(Offset(0), tuple(asyncio.run(copy_closed(store, log))))


def without(reader: TierReader, lost: tuple[int, ...], instead: bytes | None) -> TierReader:
    """The sidecars of these segments have no producers, as those of a log whose snapshot had rotted."""
    whole = reader.producers

    async def producers(tp: TopicPartition, topic_id: TopicId, segment: TieredSegment) -> bytes | None:
        found = await whole(tp, topic_id, segment)
        return instead if segment.base_offset in lost else found

    reader.producers = producers  # type: ignore[method-assign]
    return reader


@pytest.mark.parametrize("lost", [(), (0,), (6, 12), (0, 6, 12, 18)])
@pytest.mark.parametrize("instead", [None, b"not a snapshot"])
def test_it_is_what_the_log_knows(log: PartitionLog, lost: tuple[int, ...], instead: bytes | None) -> None:
    """At each offset: at the end of a segment, inside of one, inside of a batch; also where sidecars lack it."""
    store = MemoryStore()
    tier = tier_of(store, log)
    reader = without(tier_reader(store), lost, instead)
    for offset in range(1, tier.end_offset + 1):
        found = asyncio.run(producers_before(reader, TP, TOPIC_ID, tier, offset, now_ms=0))
        assert found.encode_snapshot() == before(log, offset), offset
    entry = found.get(13)
    assert entry is not None
    assert entry.transaction_start == -1
    assert not found.open


def test_a_beginning_at_the_end_of_a_segment_costs_its_snapshot_alone(log: PartitionLog) -> None:
    store = MemoryStore()
    tier = tier_of(store, log)
    asyncio.run(producers_before(tier_reader(store), TP, TOPIC_ID, tier, 12, now_ms=0))
    assert len(store.gets) == 2, "the head of one sidecar, and its last part"


def test_a_store_that_is_away_tells_nothing(log: PartitionLog) -> None:
    store = MemoryStore()
    tier = tier_of(store, log)
    store.away = True
    with pytest.raises(StoreError):
        asyncio.run(producers_before(tier_reader(store), TP, TOPIC_ID, tier, 12, now_ms=0))


def test_what_has_rotted_tells_nothing(log: PartitionLog) -> None:
    store = MemoryStore()
    tier = tier_of(store, log)
    for key, data in store.objects.items():
        store.objects[key] = data[:-3] + bytes((data[-3] ^ 1,)) + data[-2:]
    with pytest.raises(KafkaError):
        asyncio.run(producers_before(tier_reader(store), TP, TOPIC_ID, tier, 12, now_ms=0))


def test_what_begins_behind_nothing_has_no_producers() -> None:
    found = asyncio.run(producers_before(tier_reader(MemoryStore()), TP, TOPIC_ID, Tier(), 7, now_ms=0))
    assert found.encode_snapshot() == ProducerStates().encode_snapshot()


def adopted(tier: Tier, segments: int, *, first: int, end: int) -> Tier:
    """The first segments are a lost cluster's; this one has given out the ids below `first`, and gives those from `end`
    on."""
    known = ProducerIds(ProducerId(first), ProducerId(end))
    theirs = tuple(replace(segment, producers=known) for segment in tier.segments[:segments])
    return replace(tier, segments=theirs + tier.segments[segments:])


@pytest.mark.parametrize("lost", [(), (0, 6, 12, 18)])
@pytest.mark.parametrize("first", [0, 1, 2, 11, 99])
@pytest.mark.parametrize("end", [0, 2, 12, 100])
def test_92_ids_of_a_lost_clusters_producers_may_be_others_here(
    log: PartitionLog, lost: tuple[int, ...], first: int, end: int
) -> None:
    """Schedule 92: of its segments those ids count that no producer here can have. Ours tell of every one."""
    store = MemoryStore()
    whole = tier_of(store, log)
    reader = without(tier_reader(store), lost, None)

    def known(tier: Tier) -> set[int]:
        found = asyncio.run(producers_before(reader, TP, TOPIC_ID, tier, whole.end_offset, now_ms=0))
        return {entry.producer_id for entry in found.entries()}

    assert known(whole) == {1, 2, 10, 11, 12, 13}
    assert known(adopted(whole, 4, first=first, end=end)) == {one for one in known(whole) if first <= one < end}
    partly = known(adopted(whole, 3, first=first, end=end))
    assert partly >= {1, 2, 13}
    assert lost == () or partly == {1, 2, 13} | {one for one in known(whole) if first <= one < end}
