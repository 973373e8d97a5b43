"""A topic that is in the object store alone: what is found of it, and its objects for another cluster (rule B25)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

import pytest
from crc32c import crc32c

from strandline.log.batch import Record, build_batch, parse_header
from strandline.log.producer_state import ProducerStates
from strandline.log.segment import OffsetIndex, TimeIndex
from strandline.log.tier.names import partition_prefix, segment_key
from strandline.log.tier.restoring import (
    PRODUCER_IDS_END,
    Brought,
    StoredTopic,
    bring,
    find_stored_topics,
    tiers_to_adopt,
)
from strandline.log.tier.sidecar import HEAD_BYTES, VERSION, SidecarHeader, encode_sidecar, for_cluster, load_sidecar
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import CorruptLogError, KafkaError, StoreError
from tests.log.tier.stores import chunked
from tests.log.tier.tiers import MemoryStore

T = TypeVar("T")
TOPIC_ID = UUID(int=0x77, version=4)
LOG = b"0123456789"
LOG_CRC = crc32c(LOG)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


async def put(
    store: MemoryStore, partition: int, base: int, end: int, cluster_id: str = "old", producers: bytes = b"pp"
) -> None:
    """One segment, with a producer snapshot of two bytes."""
    header = SidecarHeader(cluster_id, "t", TOPIC_ID, partition, base, end, len(LOG), 5, ((3, base),), LOG_CRC, 3)
    index, times = OffsetIndex(), TimeIndex()
    times.append(5, 0)
    sidecar = encode_sidecar(header, index, times, producers)
    prefix, number = partition_prefix(cluster_id, "t", TOPIC_ID, partition), UUID(int=base + 1)
    await store.put(segment_key(prefix, base, number, ".index"), chunked(sidecar, len(sidecar)), len(sidecar))
    await store.put(segment_key(prefix, base, number, ".log"), chunked(LOG, len(LOG)), len(LOG))


@pytest.fixture
def store() -> MemoryStore:
    """Two segments of partition 0, one of partition 2."""
    made = MemoryStore()

    async def fill() -> None:
        await put(made, 0, 0, 10)
        await put(made, 0, 10, 20)
        await put(made, 2, 4, 6)

    run(fill())
    return made


async def found_in(store: MemoryStore, cluster_id: str = "old") -> StoredTopic:
    [found] = await find_stored_topics(store, "t", lambda done, total: None, f"{cluster_id}/t-{TOPIC_ID}")
    return found


async def brought(store: MemoryStore, target: MemoryStore, cluster_id: str = "renewed") -> Brought:
    return await bring(
        store, target, await found_in(store), cluster_id, is_same_store=store is target, report=lambda done, total: None
    )


def test_what_is_there_of_a_topic(store: MemoryStore) -> None:
    found = run(found_in(store))
    assert (found.cluster_id, found.topic_id, found.refusal()) == ("old", TOPIC_ID, "")
    assert {number: (one.start_offset, one.end_offset) for number, one in found.chains.items()} == {
        0: (0, 20),
        2: (4, 6),
    }
    assert found.segment_ids == {UUID(int=1), UUID(int=11), UUID(int=5)}


@pytest.mark.parametrize("same_store", [True, False])
def test_the_copies_are_the_other_clusters_own(store: MemoryStore, same_store: bool) -> None:
    """Their sidecars say so, and are otherwise what they were; what was there is as it was."""
    target = store if same_store else MemoryStore()
    before = dict(store.objects)
    done = run(brought(store, target))
    assert (done.segments, done.bytes) == (3, 30)
    for key, data in before.items():
        assert store.objects[key] == data
        copy = key.replace("old/", "renewed/")
        if key.endswith(".log"):
            assert target.objects[copy] == data
            continue
        sidecar = run(load_sidecar(target.get, copy))
        assert sidecar.header == replace(run(load_sidecar(store.get, key)).header, cluster_id="renewed")
        assert for_cluster(target.objects[copy], copy, "old") == data
        assert target.objects[copy].endswith(b"pp")
    assert run(found_in(target, "renewed")).refusal() == ""


def test_a_repetition_copies_the_rest(store: MemoryStore) -> None:
    """After a kill that left some whole, one without its log and one cut short."""
    target = MemoryStore()
    run(brought(store, target))
    logs = sorted(key for key in target.objects if key.endswith(".log"))
    del target.objects[logs[0]]
    target.objects[logs[1]] = LOG[:4]
    whole = {key: data for key, data in target.objects.items() if key not in logs[:2]}
    target.puts.clear()
    assert run(brought(store, target)).segments == 2
    assert sorted(target.puts) == logs[:2]
    assert {key: target.objects[key] for key in whole} == whole
    assert run(brought(store, target)) == Brought()


def test_under_the_own_id_nothing_is_copied(store: MemoryStore) -> None:
    before = dict(store.objects)
    assert run(brought(store, store, "old")) == Brought()
    assert store.objects == before


def test_other_bytes_than_were_stored_are_not_brought(store: MemoryStore) -> None:
    key = next(key for key in store.objects if key.endswith(".log"))
    store.objects[key] = b"x" + LOG[1:]
    target = MemoryStore()
    with pytest.raises(CorruptLogError, match="CRC"):
        run(brought(store, target))
    assert key.replace("old/", "renewed/") not in target.objects


def test_a_store_that_is_away_ends_it(store: MemoryStore) -> None:
    found = run(found_in(store))
    store.away = True
    with pytest.raises(StoreError):
        run(bring(store, store, found, "renewed", is_same_store=False, report=lambda done, total: None))


def test_what_a_cluster_takes_over(store: MemoryStore) -> None:
    """Only what lies under its own id."""

    async def adopted(cluster_id: str = "old", *, allow_loss: bool = False) -> dict[int, tuple[int, ...]]:
        tiers = await tiers_to_adopt(store, cluster_id, "t", TOPIC_ID, allow_loss=allow_loss, now_ms=9)
        return {one.partition: tuple(segment.base_offset for segment in one.segments) for one in tiers}

    assert run(adopted()) == {0: (0, 10), 2: (4,)}
    for allow_loss in (False, True):
        with pytest.raises(KafkaError, match="nothing under renewed/"):
            run(adopted("renewed", allow_loss=allow_loss))


@pytest.mark.parametrize("gone", [".log", ".index"])
def test_less_than_was_copied_is_refused(store: MemoryStore, gone: str) -> None:
    """A gap, or a sidecar that is damaged: nothing is left out that nobody has agreed to lose."""
    first = sorted(key for key in store.objects if "/0/" in key)
    if gone == ".log":
        run(put(store, 0, 25, 30))
    else:
        damaged = bytearray(store.objects[first[2]])
        damaged[3] ^= 1
        store.objects[first[2]] = bytes(damaged)

    async def adopted(*, allow_loss: bool) -> list[int]:
        tiers = await tiers_to_adopt(store, "old", "t", TOPIC_ID, allow_loss=allow_loss, now_ms=9)
        return [segment.base_offset for segment in tiers[0].segments]

    with pytest.raises(KafkaError) as refused:
        run(adopted(allow_loss=False))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert "partition 0" in refused.value.message
    assert run(adopted(allow_loss=True)) == ([25] if gone == ".log" else [0])


def test_what_a_newer_build_stored_is_left_out_of_no_restore(store: MemoryStore) -> None:
    """Rule B35: not even where a loss was agreed to."""
    key = sorted(key for key in store.objects if key.endswith(".index"))[1]
    data = bytearray(store.objects[key])
    data[4:6] = (VERSION + 1).to_bytes(2, "big")
    data[HEAD_BYTES - 4 : HEAD_BYTES] = crc32c(bytes(data[: HEAD_BYTES - 4])).to_bytes(4, "big")
    store.objects[key] = bytes(data)
    for allow_loss in (False, True):
        with pytest.raises(StoreError, match="Install the build that wrote it"):
            run(tiers_to_adopt(store, "old", "t", TOPIC_ID, allow_loss=allow_loss, now_ms=9))


def test_a_damaged_sidecar_is_not_written_anew(store: MemoryStore) -> None:
    key = next(key for key in store.objects if key.endswith(".index"))
    data = store.objects[key]
    for wrong in (data[:-1], data[:-1] + b"q", b"X" + data[1:]):
        with pytest.raises(CorruptLogError):
            for_cluster(wrong, key, "renewed")


def snapshot(*producer_ids: int) -> bytes:
    """Of these producers."""
    states = ProducerStates()
    for producer_id in producer_ids:
        batch = build_batch([Record(0, 1, None, b"v")], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        states.update(parse_header(batch), 0, 0)
    return states.encode_snapshot()


def test_92_the_ids_of_all_producers_in_what_is_taken_over() -> None:
    """Schedule 92: each segment's snapshot tells of some; what cannot be read tells of none, and an id that no cluster
    can have given out is a client's invention."""
    store = MemoryStore()

    async def ends() -> dict[int, int]:
        tiers = await tiers_to_adopt(store, "old", "t", TOPIC_ID, allow_loss=False, now_ms=9)
        return {one.partition: one.producer_ids_end for one in tiers}

    run(put(store, 0, 0, 10, producers=snapshot(4_000, 3)))
    run(put(store, 0, 10, 20, producers=snapshot(7)))
    run(put(store, 1, 0, 10, producers=snapshot(PRODUCER_IDS_END - 1, PRODUCER_IDS_END, 2**63 - 1)))
    run(put(store, 2, 0, 10, producers=b"rotten"))
    run(put(store, 3, 0, 10, producers=b""))
    run(put(store, 4, 0, 10, producers=snapshot()))
    assert run(ends()) == {0: 4_001, 1: PRODUCER_IDS_END, 2: 0, 3: 0, 4: 0}
    [key] = [key for key in store.objects if "/2/" in key and key.endswith(".index")]
    store.objects[key] = store.objects[key][:-1] + b"x"
    assert run(ends())[2] == 0
