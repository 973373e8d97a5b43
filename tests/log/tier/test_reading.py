"""What is read of the object store is what a reader of the log itself would get, or nothing."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from strandline.log.batch import Record
from strandline.log.config import LogConfig
from strandline.log.partition_log import PartitionLog
from strandline.log.tier import reading
from strandline.log.tier.names import log_key, sidecar_key
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ObjectMissing, StoreError
from strandline.proto.tier import TieredSegment
from tests.log.helpers import TOPIC_ID, TP, FailingDisk, decode_all, fill, open_test_log
from tests.log.tier.tiers import PREFIX, MemoryStore, appends, carry_out, copy_closed, tier_reader

ALL = 1 << 60
SLOW = settings(
    max_examples=60, deadline=None, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and headers lie across chunks."""
    monkeypatch.setattr(reading, "CHUNK_BYTES", 700)


def random_log(
    disk: FailingDisk, root: Path, steps: list[tuple[str, Any]], interval_bytes: int, start: int = 0
) -> PartitionLog:
    """In a directory of its own: an example is one of many in a test."""
    directory = f"{tempfile.mkdtemp(dir=root)}/p"
    disk.mkdir(directory)
    config = LogConfig(segment_bytes=6_000, index_interval_bytes=interval_bytes, preallocate_bytes=0)
    log = open_test_log(disk, directory, config=config)
    if start:
        log.truncate_fully_and_start_at(start)
    carry_out(log, steps)
    return log


def records_of(log: PartitionLog, segment: TieredSegment) -> list[Record]:
    data, offset = b"", int(segment.base_offset)
    while offset < segment.end_offset:
        read = log.read(offset, 1 << 20, segment.end_offset)
        assert read is not None
        data, offset = data + read.data, int(read.next_offset)
    return list(decode_all(data))


@SLOW
@given(steps=appends(), interval=st.sampled_from([0, 300, 4096]), data=st.data())
@pytest.mark.usefixtures("small_chunks")
def test_a_read_is_that_of_the_log(
    disk: FailingDisk, tmp_path: Path, steps: list[tuple[str, Any]], interval: int, data: st.DataObject
) -> None:
    """At every offset, by any bound of size and offset."""
    log = random_log(disk, tmp_path, steps, interval, start=data.draw(st.sampled_from([0, 1_000])))
    store = MemoryStore()

    async def main() -> None:
        reader = tier_reader(store, read_ahead_bytes=data.draw(st.sampled_from([0, 5_000])), cache_bytes=4_000)
        segments = await copy_closed(store, log)
        assert [segment.end_offset for segment in segments] == log.bases[1:]
        for segment in segments:
            offsets = st.integers(int(segment.base_offset), int(segment.end_offset) - 1)
            for _ in range(4):
                offset, size = data.draw(offsets), data.draw(st.integers(0, 7_000))
                limit = data.draw(st.one_of(st.just(ALL), offsets))
                expected = log.read(offset, size, min(limit, segment.end_offset))
                assert await reader.read(TP, TOPIC_ID, segment, offset, size, limit_offset=limit) == expected
            assert await reader.epochs(TP, TOPIC_ID, segment) == epochs_of(log, segment)
        await reader.close()

    asyncio.run(main())
    log.close()


def epochs_of(log: PartitionLog, segment: TieredSegment) -> list[tuple[int, int]]:
    found = {log.epoch_at(offset): offset for offset in range(segment.end_offset - 1, segment.base_offset - 1, -1)}
    return sorted((int(epoch), offset) for epoch, offset in found.items())


@SLOW
@given(steps=appends(), data=st.data())
@pytest.mark.usefixtures("small_chunks")
def test_a_record_is_found_by_its_time(
    disk: FailingDisk, tmp_path: Path, steps: list[tuple[str, Any]], data: st.DataObject
) -> None:
    """The first one that is as young, in the order of offsets; and the youngest of all."""
    log = random_log(disk, tmp_path, steps, 300)
    store = MemoryStore()

    async def main() -> None:
        reader = tier_reader(store)
        for segment in await copy_closed(store, log):
            inside = records_of(log, segment)
            start = data.draw(st.integers(int(segment.base_offset), int(segment.end_offset)))
            later = [record for record in inside if record.offset >= start]
            time = data.draw(st.integers(-1, 2_001))
            for among, begin in ((inside, 0), (later, start)):
                first = next((record for record in among if record.timestamp_ms >= time), None)
                found = await reader.offset_for_timestamp(TP, TOPIC_ID, segment, time, start_offset=begin)
                assert (found and (found.offset, found.timestamp_ms)) == (first and (first.offset, first.timestamp_ms))
                best = max(among, key=lambda record: record.timestamp_ms, default=None)
                newest = await reader.max_timestamp(TP, TOPIC_ID, segment, start_offset=begin)
                assert (newest and (newest.offset, newest.timestamp_ms)) == (best and (best.offset, best.timestamp_ms))
        await reader.close()

    asyncio.run(main())
    log.close()


@SLOW
@given(steps=appends(), data=st.data())
@pytest.mark.usefixtures("small_chunks")
def test_rot_goes_to_nobody(
    disk: FailingDisk, tmp_path: Path, steps: list[tuple[str, Any]], data: st.DataObject
) -> None:
    """Rule B19: whatever bit of whatever object turns over, a reader gets the bytes that were written, or an error."""
    log = random_log(disk, tmp_path, steps, 300)
    store = MemoryStore()

    async def main() -> None:
        segments = await copy_closed(store, log)
        assume(segments)
        segment = data.draw(st.sampled_from(segments))
        key = data.draw(st.sampled_from([log_key(PREFIX, segment), sidecar_key(PREFIX, segment)]))
        rotten = bytearray(store.objects[key])
        position = data.draw(st.integers(0, len(rotten) - 1))
        rotten[position] ^= 1 << data.draw(st.integers(0, 7))
        intact, store.objects[key] = store.objects[key], bytes(rotten)
        reader = tier_reader(store)
        offset, failed = int(segment.base_offset), list[ErrorCode]()
        while offset < segment.end_offset:
            expected = log.read(offset, 900, segment.end_offset)
            assert expected is not None
            try:
                read = await reader.read(TP, TOPIC_ID, segment, offset, 900, limit_offset=ALL)
            except KafkaError as error:
                failed.append(error.code)
                offset = int(expected.next_offset)
            else:
                assert expected.data.startswith(read.data)
                assert read.next_offset > offset
                offset = int(read.next_offset)
        assert set(failed) <= {ErrorCode.CORRUPT_MESSAGE}
        if failed:
            assert reader.corrupt
            store.objects[key] = intact
            with suppress(KafkaError):  # an intact batch beside the rotten one has brought that back into the cache
                await reader.read(TP, TOPIC_ID, segment, int(segment.base_offset), 900, limit_offset=ALL)
            await reader.read(TP, TOPIC_ID, segment, int(segment.base_offset), 900, limit_offset=ALL)
        if key.endswith(".log"):
            assert failed, "every byte of a batch is held against something"
        await reader.close()

    asyncio.run(main())
    log.close()


# ---------------------------------------------------------------------- how it fetches


def filled(disk: FailingDisk, directory: object) -> PartitionLog:
    """A log of one closed segment of 5 MB."""
    config = LogConfig(segment_bytes=1 << 24, preallocate_bytes=0)
    log = open_test_log(disk, directory, config=config)
    fill(log, 5_000, size=900)
    log.roll()
    return log


def test_what_many_ask_for_is_fetched_once(disk: FailingDisk, tmp_path: object) -> None:
    """And who gives up takes nothing from the others."""
    log, store = filled(disk, tmp_path), MemoryStore()

    async def main() -> None:
        (segment,) = await copy_closed(store, log)
        reader = tier_reader(store, concurrency=20)
        store.held = asyncio.Event()
        asks = [
            asyncio.ensure_future(reader.read(TP, TOPIC_ID, segment, 10, 1_000, limit_offset=ALL)) for _ in range(12)
        ]
        while not store.under_way:
            await asyncio.sleep(0)
        asks[0].cancel()
        store.held.set()
        done = await asyncio.gather(*asks, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert {answer.next_offset for answer in done[1:] if not isinstance(answer, BaseException)} == {11}
        assert len(store.gets) == len(set(store.gets)) == 3, "the sidecar's head, its indexes, one chunk"
        assert reader.requests == 3
        assert reader.cache_hits >= 20
        await reader.close()

    asyncio.run(main())
    log.close()


def test_readers_of_old_records_are_bounded(disk: FailingDisk, tmp_path: object) -> None:
    """GETs under way, and what is kept: however many read at once, each elsewhere."""
    log, store = filled(disk, tmp_path), MemoryStore()

    async def main() -> None:
        (segment,) = await copy_closed(store, log)
        reader = tier_reader(store, concurrency=2, cache_bytes=2 << 20, read_ahead_bytes=4 << 20)
        reads = await asyncio.gather(
            *(reader.read(TP, TOPIC_ID, segment, 100 * i, 1 << 30, limit_offset=ALL) for i in range(48))
        )
        assert store.under_way_max == 2
        assert reader.cached_bytes <= (2 << 20) + (1 << 20)
        assert all(reading.READ_BYTES_MAX - 2_000 < len(read.data) <= reading.READ_BYTES_MAX for read in reads[:5:2])
        await reader.close()
        assert reader.cached_bytes == 0

    asyncio.run(main())
    log.close()


def test_a_sequential_reader_is_read_ahead_for(disk: FailingDisk, tmp_path: object) -> None:
    """What comes next is under way when it is asked for; a reader that jumps about is not."""
    log, store = filled(disk, tmp_path), MemoryStore()

    async def main() -> None:
        (segment,) = await copy_closed(store, log)
        chunks = -(-segment.size_bytes // reading.CHUNK_BYTES)
        for offset, fetched in ((0, 3), (2_000, 1)):
            reader = tier_reader(store, read_ahead_bytes=2 << 20)
            store.gets.clear()
            await reader.read(TP, TOPIC_ID, segment, offset, 1_000, limit_offset=ALL)
            while store.under_way:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            found = [get for get in store.gets if get[0].endswith(".log")]
            assert len(found) == fetched - (offset == 0)
            await reader.close()
        store.gets.clear()
        reader, offset = tier_reader(store, read_ahead_bytes=2 << 20), 0
        while offset < segment.end_offset:
            offset = int((await reader.read(TP, TOPIC_ID, segment, offset, 50_000, limit_offset=ALL)).next_offset)
        assert len([get for get in store.gets if get[0].endswith(".log")]) == chunks, "nothing twice"
        await reader.close()

    asyncio.run(main())
    log.close()


def test_a_store_that_is_away_is_an_error_of_the_moment(disk: FailingDisk, tmp_path: object) -> None:
    """Nothing of it is kept."""
    log, store = filled(disk, tmp_path), MemoryStore()

    async def main() -> None:
        (segment,) = await copy_closed(store, log)
        reader = tier_reader(store)
        store.away = True
        with pytest.raises(StoreError):
            await reader.read(TP, TOPIC_ID, segment, 0, 100, limit_offset=ALL)
        store.away = False
        assert (await reader.read(TP, TOPIC_ID, segment, 0, 100, limit_offset=ALL)).next_offset == 1
        assert (reader.requests, reader.errors) == (4, 1)
        store.objects.clear()
        with pytest.raises(ObjectMissing):
            await tier_reader(store).read(TP, TOPIC_ID, segment, 0, 100, limit_offset=ALL)
        await reader.close()

    asyncio.run(main())
    log.close()


def test_an_offset_of_another_segment_is_refused(disk: FailingDisk, tmp_path: object) -> None:
    log, store = filled(disk, tmp_path), MemoryStore()

    async def main() -> None:
        (segment,) = await copy_closed(store, log)
        reader = tier_reader(store)
        with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE"):
            await reader.read(TP, TOPIC_ID, segment, 5_000, 100, limit_offset=ALL)
        await reader.close()

    asyncio.run(main())
    log.close()
