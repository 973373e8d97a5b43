"""Rule B19: what was read from a segment is what was written to it, or nobody gets it (row S78)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.log import batch as in_use
from strandline.log import records_python
from strandline.log.batch import HEADER_SIZE, iter_batches
from strandline.log.config import LogConfig
from strandline.log.epochs import intact
from strandline.log.partition_log import PartitionLog
from strandline.log.real_disk import RealDisk
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.log.helpers import client_batch, open_test_log

CODECS: list[ModuleType] = [records_python]
if in_use.COMPILED:
    from strandline.log import _records

    CODECS.append(_records)

BATCHES = 9
PER_BATCH = 2
TIME_MS = 1_700_000_000_000


@contextmanager
def written(tmp_path: Path, interval: int = 150) -> Iterator[tuple[PartitionLog, dict[int, bytes], Path]]:
    """A log of small batches in three leader epochs, each batch by its base offset, and the file."""
    disk = RealDisk()
    config = LogConfig(index_interval_bytes=interval, preallocate_bytes=0)
    log = open_test_log(disk, tmp_path, config=config)
    for i in range(BATCHES):
        log.append_as_leader(client_batch(PER_BATCH, timestamp_ms=TIME_MS + 1_000 * i), i // 4, 0)
    (path,) = Path(tmp_path).glob("*.log")
    yield log, {header.base_offset: bytes(view) for header, view in iter_batches(path.read_bytes())}, path
    log.close()
    disk.close()


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def check_error(error: KafkaError) -> None:
    assert error.code is ErrorCode.CORRUPT_MESSAGE
    assert str(error.figures["file"]).endswith(".log")


def check_reads(log: PartitionLog, batches: dict[int, bytes], rotten: int) -> None:
    """Every offset is read: what comes is what was written, and the batch at `rotten` never comes."""
    end = int(log.log_end_offset)
    for offset in range(end):
        base = offset - offset % PER_BATCH
        for max_bytes in (1, 400, 1 << 20):
            try:
                found = log.read(offset, max_bytes, end)
            except KafkaError as error:
                check_error(error)
                continue
            assert found is not None
            assert found.data
            assert found.first_offset == base
            whole = b"".join(batches[at] for at in range(base, int(found.next_offset), PER_BATCH))
            assert found.data == whole, "bytes that nobody wrote"
            assert rotten not in range(base, int(found.next_offset))
        if base < rotten:
            assert log.read(offset, 1, end), "what stands before the rot is served"


@pytest.mark.parametrize("interval", [150, 100_000])
def test_no_flipped_bit_is_served(tmp_path: Path, interval: int) -> None:
    """Of the header too: no CRC covers base offset, length, epoch and format. With and without index entries near."""
    with written(tmp_path, interval) as (log, batches, path):
        rotten = 4
        start = sum(len(batches[at]) for at in range(0, rotten, PER_BATCH))
        for position in range(start, start + HEADER_SIZE + 12):
            flip(path, position, position % 8)
            check_reads(log, batches, rotten)
            flip(path, position, position % 8)
        assert log.read(0, 1 << 20, int(log.log_end_offset)) is not None


def test_the_last_bits_of_every_batch_count(tmp_path: Path) -> None:
    """Of the first batch and the last one too."""
    with written(tmp_path) as (log, batches, path):
        end = 0
        for base, batch in batches.items():
            end += len(batch)
            flip(path, end - 1, 0)
            check_reads(log, batches, base)
            flip(path, end - 1, 0)


def test_a_batch_in_parts_is_never_whole(tmp_path: Path) -> None:
    """Schedule 54: a batch that goes in pieces is checked as the pieces are read."""
    with written(tmp_path) as (log, batches, path):
        flip(path, HEADER_SIZE + 3, 5)
        size, crc, got = len(batches[0]), 0, 0
        while size - got > 10:
            part = log.read_part(0, got, 10, crc)
            assert part is not None
            crc, got = part.crc, got + len(part.data)
        with pytest.raises(KafkaError, match="CRC"):
            log.read_part(0, got, 10, crc)


def test_no_time_is_looked_up_in_rot(tmp_path: Path) -> None:
    """ListOffsets by time and by the largest time: an offset, or an error."""
    with written(tmp_path) as (log, batches, path):
        end = int(log.log_end_offset)
        flip(path, len(batches[0]) + 36, 0)  # its newest timestamp
        with pytest.raises(KafkaError) as caught:
            log.offset_for_timestamp(TIME_MS + 1_000, end)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        flip(path, len(batches[0]) + 36, 0)
        found = log.offset_for_timestamp(TIME_MS + 1_000, end)
        assert found is not None
        assert found.offset == PER_BATCH
        flip(path, path.stat().st_size - 1, 0)
        with pytest.raises(KafkaError):
            log.max_timestamp(end)


def test_a_size_that_rotted_takes_no_memory(tmp_path: Path) -> None:
    """The first batch of an answer is read whatever its size; no batch is larger than any setting allows."""
    with written(tmp_path) as (log, _, path):
        flip(path, 8, 6)  # 1 GiB more
        log.segments[0].size = 2 << 30
        with pytest.raises(KafkaError) as caught:
            log.read(0, 100, int(log.log_end_offset))
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        log.segments[0].size = path.stat().st_size


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_the_twins_agree(data: st.DataObject) -> None:
    """The compiled check and the one in Python find the same end, whatever bytes they get."""
    epoch = data.draw(st.sampled_from([-1, 3]))
    start, offset, raw = data.draw(st.integers(0, 5)), 7, bytearray(5)
    ends = [(start, offset)]
    del raw[start:]
    for _ in range(data.draw(st.integers(0, 3))):
        batch = bytearray(client_batch(data.draw(st.integers(1, 3))))
        batch[:8], batch[12:16] = offset.to_bytes(8, "big"), (3).to_bytes(4, "big")
        raw += batch
        offset += int.from_bytes(batch[23:27], "big") + 1
        ends.append((len(raw), offset))
    if len(raw) > start and data.draw(st.booleans()):
        at = data.draw(st.integers(start, len(raw) - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    del raw[data.draw(st.integers(start, len(raw))) :]
    until = data.draw(st.sampled_from([7, 8, 9, 10, (1 << 63) - 1]))
    found = {codec.intact(bytes(raw), start, 7, epoch, until, crc32c) for codec in CODECS}
    assert len(found) == 1
    assert intact(bytes(raw), start, 7, epoch, until, crc32c) in found
    position, following = found.pop()
    assert following <= max(until, 7)
    assert (position, following) in ends or epoch == -1
