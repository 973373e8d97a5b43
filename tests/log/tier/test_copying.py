"""A segment is copied as it is, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from strandline.log.config import LogConfig
from strandline.log.partition_log import PartitionLog
from strandline.log.producer_state import ProducerStates
from strandline.log.segment import LOG_SUFFIX
from strandline.log.swap import LogChanged
from strandline.log.tier import copying
from strandline.log.tier.copying import copy_segment
from strandline.log.tier.names import log_key, parse_key, sidecar_key
from strandline.log.tier.sidecar import HEAD_BYTES, decode_head, decode_indexes
from strandline.proto.believed import BelievedClock
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StoreError
from strandline.proto.ids import LeaderEpoch, Offset
from strandline.proto.tier import EpochStart, TieredSegment
from tests.log.helpers import TOPIC_ID, TP, FailingDisk, ManualClock, client_batch, fill, open_test_log
from tests.log.tier.tiers import CLUSTER, PREFIX, MemoryStore, copy_closed, tier_reader

ID = UUID(int=9)


def closed_log(disk: FailingDisk, directory: object, batches: int = 300) -> PartitionLog:
    """A log of three closed segments, of 100 batches each, and an empty one."""
    log = open_test_log(disk, directory, config=LogConfig(segment_bytes=1 << 24, preallocate_bytes=0))
    for _ in range(3):
        fill(log, batches // 3, count=2, size=900)
        log.roll()
    return log


def copied(store: MemoryStore, log: PartitionLog, **keywords: object) -> TieredSegment:
    """The second segment."""
    made = {"cluster_id": CLUSTER, "leader_epoch": 7, "believed": BelievedClock(ManualClock()), **keywords}
    return asyncio.run(copy_segment(store, PREFIX, log, log.segments[1], ID, **made))  # type: ignore[arg-type]


def test_the_sidecar_first_and_then_the_log(disk: FailingDisk, tmp_path: Path) -> None:
    """Where the log object is there, so is what it takes to read it."""
    log, store = closed_log(disk, tmp_path), MemoryStore()
    tiered = copied(store, log)
    assert store.puts == [sidecar_key(PREFIX, tiered), log_key(PREFIX, tiered)]
    name = parse_key(store.puts[1])
    assert name is not None
    assert (name.topic_id, name.segment_id) == (TOPIC_ID, ID)
    data = (tmp_path / f"{200:020d}.log").read_bytes()
    assert store.objects[store.puts[1]] == data
    assert (tiered.base_offset, tiered.end_offset, tiered.size_bytes) == (200, 400, len(data))
    assert (tiered.first_epoch, tiered.last_epoch, tiered.max_timestamp_ms) == (0, 0, 1399)
    whole = store.objects[store.puts[0]]
    head = decode_head(whole[:HEAD_BYTES], "k")
    sidecar = decode_indexes(head, whole[HEAD_BYTES : head.indexes_end], "k")
    assert (sidecar.header.log_crc, sidecar.header.leader_epoch) == (crc32c(data), 7)
    log.segments[1].load_indexes(lambda file, size, position: file.pread(size, position))
    index, time_index = log.segments[1].active_indexes()
    assert (sidecar.index.offsets, sidecar.index.positions) == (index.offsets, index.positions)
    assert (sidecar.time_index.offsets, sidecar.time_index.timestamps) == (time_index.offsets, time_index.timestamps)
    log.close()


def test_the_producers_of_its_end_come_along(disk: FailingDisk, tmp_path: Path) -> None:
    """A replica that begins behind the tier knows what its producers wrote last."""
    log = open_test_log(disk, tmp_path, config=LogConfig(preallocate_bytes=0))
    log.append_as_leader(client_batch(3, producer_id=5, producer_epoch=1, sequence=0), 0, 1000)
    log.roll()
    log.append_as_leader(client_batch(1, producer_id=5, producer_epoch=1, sequence=3), 0, 1000)
    log.roll()
    store = MemoryStore()

    async def main() -> None:
        first, second = await copy_closed(store, log)
        (tmp_path / f"{4:020d}.snapshot").unlink()
        (without,) = (await copy_closed(store, log))[1:]
        reader = tier_reader(store)
        states = ProducerStates()
        states.load_snapshot(await reader.producers(TP, TOPIC_ID, first) or b"", 0)
        entry = states.get(5)
        assert entry is not None
        assert [batch.last_sequence for batch in entry.batches] == [2]
        assert second.segment_id == without.segment_id
        assert await tier_reader(store).producers(TP, TOPIC_ID, without) is None
        await reader.close()

    asyncio.run(main())
    log.close()


def test_rot_is_never_copied(disk: FailingDisk, tmp_path: Path) -> None:
    """Whichever batch it is in, and in which field."""
    log = closed_log(disk, tmp_path)
    path = tmp_path / f"{200:020d}.log"
    whole = path.read_bytes()
    for position in (0, 12, 5_000, len(whole) // 2, len(whole) - 1):
        rotten = bytearray(whole)
        rotten[position] ^= 1
        path.write_bytes(rotten)
        store = MemoryStore()
        with pytest.raises(KafkaError) as caught:
            copied(store, log)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        assert not store.objects
    log.close()


def test_what_rots_while_it_is_copied_is_not_copied(disk: FailingDisk, tmp_path: Path) -> None:
    """Between the look at a segment and its sending."""
    log, store = closed_log(disk, tmp_path), MemoryStore()
    path = tmp_path / f"{200:020d}.log"

    async def rot(n_bytes: int) -> None:
        with path.open("r+b") as file:
            file.seek(7_000)
            file.write(b"other bytes")

    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        copied(store, log, limiter=rot)
    assert [key for key in store.objects if key.endswith(".log")] == []
    log.close()


@pytest.mark.parametrize("when", ["while it is looked at", "while it is sent"])
def test_a_segment_that_goes_meanwhile(
    when: str, disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention takes it: its bytes, or none of them."""
    monkeypatch.setattr(copying, "CHUNK_BYTES", 4_000)
    log, store = closed_log(disk, tmp_path), MemoryStore()
    whole = (tmp_path / f"{200:020d}.log").read_bytes()
    calls = 0

    async def remove() -> None:
        log.delete_records_before(400)
        while log.removed:
            await log.delete_oldest_removed()

    async def limiter(n_bytes: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 10:
            await remove()

    if when == "while it is looked at":
        pread_cold = disk.pread_cold

        async def pread(*args: object) -> bytes:
            data = await pread_cold(*args)  # type: ignore[arg-type]
            if log.log_start_offset < 400:
                await remove()
            return data

        monkeypatch.setattr(disk, "pread_cold", pread)
        with pytest.raises(LogChanged):
            copied(store, log)
        assert not store.objects
    else:
        tiered = copied(store, log, limiter=limiter)
        assert store.objects[log_key(PREFIX, tiered)] == whole
    log.close()


def test_the_active_segment_is_not_copied(disk: FailingDisk, tmp_path: Path) -> None:
    log = closed_log(disk, tmp_path)
    with pytest.raises(ValueError, match="active"):
        asyncio.run(
            copy_segment(
                MemoryStore(),
                PREFIX,
                log,
                log.segments[-1],
                ID,
                cluster_id="c",
                leader_epoch=0,
                believed=BelievedClock(ManualClock()),
            )
        )
    log.close()


def test_a_tier_that_ends_in_the_middle_of_a_segment_goes_on_there(disk: FailingDisk, tmp_path: Path) -> None:
    """Another leader had closed its segments elsewhere: what it copied is not copied again."""
    log, store = closed_log(disk, tmp_path), MemoryStore()
    for start, base in ((300, 300), (301, 301), (399, 399)):
        tiered = copied(store, log, start_offset=start)
        assert (tiered.base_offset, tiered.end_offset) == (base, 400)
        assert tiered.epochs == (EpochStart(LeaderEpoch(0), Offset(base)),)

        async def main(tiered: TieredSegment = tiered, start: int = start) -> None:
            reader = tier_reader(store)
            offset = start
            while offset < 400:
                expected = log.read(offset, 5_000, 400)
                assert await reader.read(TP, TOPIC_ID, tiered, offset, 5_000, limit_offset=400) == expected
                assert expected is not None
                offset = int(expected.next_offset)
            assert await reader.epochs(TP, TOPIC_ID, tiered) == [(0, start)]
            await reader.close()

        asyncio.run(main())
        assert tiered.size_bytes == log.segments[1].size // 100 * (100 - (start - 200) // 2)
    with pytest.raises(ValueError, match="beyond"):
        copied(store, log, start_offset=400)
    log.close()


def test_a_log_that_begins_inside_a_segment(disk: FailingDisk, tmp_path: Path) -> None:
    """Records were deleted up to there: the epochs before it are forgotten, and the segment is copied whole."""
    log, store = closed_log(disk, tmp_path), MemoryStore()
    fill(log, 10, epoch=4)
    log.delete_records_before(305)
    tiered = asyncio.run(
        copy_segment(
            store,
            PREFIX,
            log,
            log.segments[0],
            ID,
            cluster_id="c",
            leader_epoch=7,
            believed=BelievedClock(ManualClock()),
        )
    )
    assert (tiered.base_offset, tiered.end_offset) == (200, 400)
    log.close()


def test_every_byte_is_asked_for_before_it_is_sent(disk: FailingDisk, tmp_path: Path) -> None:
    """Of both objects; and a store that takes nothing is an error of the moment."""
    log, store, asked = closed_log(disk, tmp_path), MemoryStore(), []

    async def limiter(n_bytes: int) -> None:
        asked.append(n_bytes)

    limit: Callable[[int], Awaitable[None]] = limiter
    copied(store, log, limiter=limit)
    assert sum(asked) == sum(map(len, store.objects.values()))
    store.away = True
    with pytest.raises(StoreError):
        copied(store, log)
    assert log.segments[1].path(LOG_SUFFIX) in {str(path) for path in tmp_path.iterdir()}
    log.close()
