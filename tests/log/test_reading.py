"""Bounded reads against a linear scan; cold reads; the cache of indexes."""

from __future__ import annotations

import asyncio
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.log.batch import iter_batches
from strandline.log.config import LogConfig
from strandline.log.disk import DiskError
from strandline.log.log_state import IndexCache
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import ANY_SIZE, LogRead, PartitionLog
from strandline.log.real_disk import RealDisk, RealFile
from strandline.log.recovery import open_log
from strandline.log.segment import pread_blocking
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.log.helpers import TP, FailingDisk, ManualClock, all_records, client_batch, fill, open_test_log


@contextmanager
def log_of(sizes: list[tuple[int, int]], config: LogConfig) -> Iterator[PartitionLog]:
    """A log with a batch of (count, value bytes) each, closed and opened again so that indexes come from files."""
    with tempfile.TemporaryDirectory(prefix="strandline-read-") as directory:
        disk = RealDisk()
        log = open_test_log(disk, directory, config=config)
        for count, size in sizes:
            log.append_as_leader(client_batch(count, size=size), 0, 0)
        log.close()
        log = open_test_log(disk, directory, config=config, last_life=LastLife(clean=True))
        yield log
        log.close()
        disk.close()


def expected_read(
    batches: list[tuple[int, int, bytes, int]], offset: int, max_bytes: int, limit: int, one: bool
) -> tuple[bytes, int, int]:
    """By definition: from the batch that holds `offset`, whole batches of one segment below the limit, in the size."""
    data = b""
    first = next_offset = offset
    segment = -1
    for base, end, raw, base_of_segment in batches:
        if end <= offset:
            continue
        if end > limit or (segment >= 0 and base_of_segment != segment):
            break
        if len(data) + len(raw) > max_bytes and not (one and not data):
            break
        if not data:
            first, segment = base, base_of_segment
        data += raw
        next_offset = end
    return data, first if data else offset, next_offset


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 300)), min_size=1, max_size=25),
    st.sampled_from([0, 200, 1000]),
    st.sampled_from([600, 3000, 1 << 20]),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 2500), st.integers(0, 80), st.booleans()), max_size=25),
)
@settings(max_examples=40, deadline=None)
def test_reads_equal_a_linear_scan(
    sizes: list[tuple[int, int]], interval: int, segment_bytes: int, asked: list[tuple[int, int, int, bool]]
) -> None:
    """Whole batches only, none at or beyond the limit, never more than asked for but for the first."""
    config = LogConfig(segment_bytes=max(segment_bytes, 1500), index_interval_bytes=interval, preallocate_bytes=0)
    with log_of(sizes, config) as log:
        batches = []
        for segment in log.segments:
            raw = segment.file.pread(segment.size, 0)
            batches += [(h.base_offset, h.next_offset, bytes(v), segment.base_offset) for h, v in iter_batches(raw)]
        for offset, max_bytes, limit, one in asked:
            if offset > log.log_end_offset:
                continue
            read = log.read(offset, max_bytes, limit, one_batch_bytes=ANY_SIZE if one else 0)
            assert read == LogRead(*expected_read(batches, offset, max_bytes, limit, one))  # type: ignore[arg-type]
        assert len(all_records(log, max_bytes=700)) == sum(count for count, _ in sizes)


class ColdFile(RealFile):
    """Whose bytes are in memory only after somebody read them off the loop."""

    __slots__ = ()

    def pread_nowait(self, size: int, position: int) -> bytes | None:
        disk = self._disk
        assert isinstance(disk, ColdDisk)
        return self.pread(size, position) if (self.path, position) in disk.warm else None


class ColdDisk(FailingDisk):
    """Every byte is cold until it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.warm: dict[tuple[str, int], None] = {}
        self.cold_reads = 0

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        file.__class__ = ColdFile
        return file

    async def pread_cold(self, file: object, size: int, position: int) -> bytes:
        assert isinstance(file, RealFile)
        self.cold_reads += 1
        self.warm[file.path, position] = None
        return await super().pread_cold(file, size, position)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3_000)), min_size=1, max_size=12),
    st.sampled_from([0, 200, 1_000]),
    st.integers(1, 4_000),
)
@settings(max_examples=25, deadline=None)
def test_parts_of_a_batch_make_the_batch(sizes: list[tuple[int, int]], interval: int, part_bytes: int) -> None:
    """Schedule 54: whatever offset of the batch is asked for, and however small the parts are."""
    config = LogConfig(segment_bytes=10_000, index_interval_bytes=interval, preallocate_bytes=0)
    with log_of(sizes, config) as log:
        batches = [
            (header, bytes(view))
            for segment in log.segments
            for header, view in iter_batches(segment.file.pread(segment.size, 0))
        ]
        for header, raw in batches:
            for offset in range(header.base_offset, header.next_offset):
                got, crc = bytearray(), 0
                while len(got) < len(raw):
                    part = log.read_part(offset, len(got), part_bytes, crc)
                    assert part is not None
                    assert part[1:5] == (len(got), len(raw), header.base_offset, header.next_offset)
                    assert len(part.data) == min(part_bytes, len(raw) - len(got))
                    got += part.data
                    crc = part.crc
                assert bytes(got) == raw
        for offset in (-1, int(log.log_end_offset) + 1):
            with pytest.raises(KafkaError) as caught:
                log.read_part(offset, 0, 100, 0)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_parts_of_a_cold_batch_are_read_off_the_loop(tmp_path: Path) -> None:
    """Schedule 54: a follower's catching up over a large batch never holds the loop for the disk."""
    disk = ColdDisk()
    log = open_test_log(disk, tmp_path)
    fill(log, 3, size=5_000)
    assert log.read_part(1, 1_000, 2_000, 0) is None

    async def parts() -> bytes:
        found, crc = [], 0
        for at in range(0, 6_000, 1_500):
            part = await log.read_part_cold(1, at, 1_500, crc)
            found.append(part.data)
            crc = part.crc
        return b"".join(found)

    got = asyncio.run(parts())
    assert disk.cold_reads
    assert got == [bytes(view) for _, view in iter_batches(log.segments[0].file.pread(log.segments[0].size, 0))][1]
    log.close()


def test_cold_reads_leave_the_loop(tmp_path: Path) -> None:
    """Design 8: what is not in the page cache is read in a thread: index, header and data."""
    disk = ColdDisk()
    config = LogConfig(segment_bytes=4000, index_interval_bytes=500, preallocate_bytes=0)
    log = open_test_log(disk, tmp_path, config=config)
    fill(log, 20, size=400)
    log.close()
    log = open_test_log(disk, tmp_path, config=config, last_life=LastLife(clean=True))
    assert log.read(3, 1000, 20) is None

    async def read_all() -> list[int]:
        offsets = []
        offset = 0
        while offset < 20:
            read = await log.read_cold(offset, 1000, 20)
            offsets += [header.base_offset for header, _ in iter_batches(read.data)]
            offset = int(read.next_offset)
        with pytest.raises(KafkaError) as caught:
            await log.read_cold(21, 1000, 20)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        return offsets

    assert asyncio.run(read_all()) == list(range(20))
    assert disk.cold_reads > 0
    log.close()
    disk.close()


def test_a_cache_that_forgets_at_once(tmp_path: Path) -> None:
    """Under memory pressure a read gives in and waits rather than try for ever."""
    disk = ColdDisk()
    log = open_test_log(disk, tmp_path)
    fill(log, 3)

    async def forgetful() -> LogRead:
        disk.warm = {}
        read = await log.read_cold(0, 1000, 3)
        assert read.next_offset == 3
        return read

    class NeverWarm(dict[tuple[str, int], None]):
        def __contains__(self, key: object) -> bool:
            return False

    assert asyncio.run(forgetful()).data
    disk.warm = NeverWarm()
    assert asyncio.run(log.read_cold(0, 1000, 3)).next_offset == 3
    disk.close()


def test_read_error_is_kafkas_and_does_not_fence(disk: FailingDisk, tmp_path: Path) -> None:
    """A disk that cannot read answers KAFKA_STORAGE_ERROR; the replica's other reads go on."""
    log = open_test_log(disk, tmp_path)
    fill(log, 2)

    class Unreadable(RealFile):
        __slots__ = ()

        def pread_nowait(self, size: int, position: int) -> bytes | None:
            raise DiskError(5, "Input/output error", self.path)

        def pread(self, size: int, position: int) -> bytes:
            raise DiskError(5, "Input/output error", self.path)

    log.segments[0].file.__class__ = Unreadable
    reads: list[Callable[[], object]] = [
        lambda: log.read(0, 100, 2),
        lambda: log.offset_for_timestamp(1, 2),
        lambda: log.max_timestamp(2),
    ]
    for read in reads:
        with pytest.raises(KafkaError) as caught:
            read()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    log.segments[0].file.__class__ = RealFile
    fill(log, 1)


def test_indexes_of_closed_segments_are_dropped(disk: FailingDisk, tmp_path: Path) -> None:
    """Lazy indexes: reading an old segment loads its index, reading others drops it again."""
    config = LogConfig(segment_bytes=1000, index_interval_bytes=0, preallocate_bytes=0)
    cache = IndexCache(max_bytes=60)
    log = open_log(disk, str(tmp_path), TP, clock=ManualClock(), config=config, cache=cache)
    fill(log, 40, size=100)
    assert len(log.segments) > 5
    assert len(all_records(log)) == 40
    loaded = [segment for segment in log.segments[:-1] if segment.index_bytes]
    assert len(loaded) <= 3
    log.truncate_to(int(log.bases[2]))
    log.delete_records_before(int(log.bases[1]))
    log.close()
    assert all_records(open_log(disk, str(tmp_path), TP, clock=ManualClock(), config=config, cache=cache))


def test_a_wrong_index_is_built_anew(disk: FailingDisk, tmp_path: Path) -> None:
    """An index is a hint: one that parses and points into the void costs a rebuild and no wrong answer."""
    config = LogConfig(index_interval_bytes=100, preallocate_bytes=0)
    log = open_test_log(disk, tmp_path, config=config)
    fill(log, 50, size=50)
    log.close()
    path = tmp_path / "00000000000000000000.index"
    raw = bytearray(path.read_bytes())
    for entry in range(0, len(raw) - 8, 8):
        (at,) = struct.unpack_from(">I", raw, entry + 4)
        struct.pack_into(">I", raw, entry + 4, at + 1)  # one byte on: still rising, still within the segment
    path.write_bytes(raw)
    log = open_test_log(disk, tmp_path, config=config, last_life=LastLife(clean=True))
    for offset in range(50):
        read = log.read(offset, 10, 50)
        assert read is not None
        assert read.first_offset == offset
    assert [record.offset for record in all_records(log)] == list(range(50))


@pytest.mark.parametrize("bit", [60, 6, 0])
def test_a_rotten_base_offset_is_refused(disk: FailingDisk, tmp_path: Path, bit: int) -> None:
    """The CRC does not cover it. Whoever asks for the batch is told where the damage is, not that there is nothing."""
    log = open_test_log(disk, str(tmp_path / "t-0"))
    fill(log, 8)
    segment = log.segments[0]
    position = next(at for at, header in segment.headers(0, pread_blocking) if header.base_offset == 5)
    segment.file.pwrite((5 ^ 1 << bit).to_bytes(8, "big"), position)
    with pytest.raises(KafkaError, match=r"CORRUPT_MESSAGE.* stands where 5 must follow"):
        log.read(5, 1 << 20, 8)
