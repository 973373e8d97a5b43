"""Reading of a log directory's files, damaged ones included, for `strandline log dump`. Nothing is changed.

Every function yields the contents in order. Bytes that make no sense are yielded as a `Problem` with their position,
and reading goes on after them if possible.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from strandline.log.batch import CRC_START, HEADER_SIZE, BatchHeader, BatchJudge, Record, check_content, decode_records
from strandline.log.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    CLEANER_VERSION,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    decode_checkpoint,
    decode_properties,
)
from strandline.log.disk import Disk, File, read_file
from strandline.log.producer_state import SnapshotDamaged, SnapshotRow, decode_snapshot
from strandline.log.scan import find_batch_after, only_zeros
from strandline.log.segment import (
    ABORTED_INDEX_SUFFIX,
    ENTRY_BYTES,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_ENTRY_BYTES,
    TIME_INDEX_SUFFIX,
)
from strandline.log.transactions import ABORTED_ENTRY_BYTES, AbortedIndex, Marker, read_marker
from strandline.proto.errors import ConfigError, CorruptLogError, KafkaError

_INDEX_ENTRY = struct.Struct(">II")
_TIME_INDEX_ENTRY = struct.Struct(">qI")


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """One batch of a `.log` file."""

    position: int
    header: BatchHeader
    crc_holds: bool
    records: list[Record] | None
    """Records of the batch; None unless decoding was requested. A marker has none."""
    marker: Marker | None = None
    """Marker that ends a transaction; None if the batch is not one."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One entry of an `.index` file."""

    position: int
    """Position of the entry in its file, in bytes."""
    offset: int
    log_position: int


@dataclass(frozen=True, slots=True)
class TimeIndexEntry:
    """One entry of a `.timeindex` file."""

    position: int
    timestamp_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class AbortedEntry:
    """One entry of a `.txnindex` file."""

    position: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a text file: a checkpoint's fields, or a property and its value."""

    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Padding:
    """Zeros of preallocation from `position` to the end of the file."""

    position: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Bytes that do not match the file's format."""

    position: int
    reason: str


Dumped = DumpedBatch | IndexEntry | TimeIndexEntry | AbortedEntry | SnapshotRow | Line | Padding | Problem


def dump_file(disk: Disk, path: str, *, decode: bool = False) -> Iterator[Dumped]:
    """Yield the contents of a file, whose kind is told by its name. `decode` also decodes the batches' records.

    Raises:
        ConfigError: the name is not one of a log directory's files.
        FileNotFoundError, DiskError
    """
    name = path.rpartition("/")[2]
    if name.endswith(LOG_SUFFIX):
        return dump_log(disk, path, decode=decode)
    if name.endswith(INDEX_SUFFIX):
        return dump_index(disk, path)
    if name.endswith(TIME_INDEX_SUFFIX):
        return dump_time_index(disk, path)
    if name.endswith(ABORTED_INDEX_SUFFIX):
        return dump_aborted(disk, path)
    if name.endswith(SNAPSHOT_SUFFIX):
        return dump_snapshot(disk, path)
    if name in (CLEANER_OFFSETS, HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, LEADER_EPOCHS):
        return dump_checkpoint(disk, path)
    if name in (META_PROPERTIES, PARTITION_METADATA):
        return dump_properties(disk, path)
    if name == CLEAN_SHUTDOWN:
        return iter([Line((read_file(disk, path).decode("utf-8", "replace"),))])
    raise ConfigError(
        "file", path, "a file of a log directory: .log, .index, .timeindex, .txnindex, .snapshot, a checkpoint"
    )


def dump_log(disk: Disk, path: str, *, decode: bool = False) -> Iterator[DumpedBatch | Padding | Problem]:
    """Yield the batches of a segment. After damage, the next batch whose CRC matches is searched for."""
    file = disk.open(path)
    try:
        yield from _walk(file, decode)
    finally:
        file.close()


def _walk(file: File, decode: bool) -> Iterator[DumpedBatch | Padding | Problem]:
    size = file.size()
    judge = BatchJudge(0, gaps=True)
    position = 0
    while position < size:
        try:
            header = judge.header(file.pread(HEADER_SIZE, position), 0, size - position)
        except KafkaError as error:
            if only_zeros(file, position, size):
                yield Padding(position, size - position)
                return
            yield Problem(position, error.message)
            following = find_batch_after(file, position, judge.offset - 1)
            if following is None:
                return
            position = following[0]
            continue
        try:
            judge.check_place(header)
        except KafkaError as error:
            yield Problem(position, error.message)
        yield from _dump_batch(file.pread(header.size, position), position, header, decode)
        judge.follow(header)
        position += header.size


def _dump_batch(data: bytes, position: int, header: BatchHeader, decode: bool) -> Iterator[DumpedBatch | Problem]:
    try:
        check_content(header, data)
    except KafkaError as error:
        yield DumpedBatch(position, header, crc32c(memoryview(data)[CRC_START:]) == header.crc, None)
        yield Problem(position, str(error.message))
        return
    try:
        marker = read_marker(data)
        records = decode_records(data) if decode and marker is None else None
    except KafkaError as error:
        yield DumpedBatch(position, header, True, None)
        yield Problem(position, f"the records do not parse: {error}")
        return
    yield DumpedBatch(position, header, True, records, marker)


def dump_index(disk: Disk, path: str) -> Iterator[IndexEntry | Problem]:
    """Yield the entries of an offset index."""
    base_offset = _base_offset(path)
    data = read_file(disk, path)
    last = (-1, -1)
    for position in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
        entry = _INDEX_ENTRY.unpack_from(data, position)
        if entry[0] <= last[0] or entry[1] <= last[1]:
            yield Problem(position, f"entry {entry} after {last}: offsets and positions must rise")
        last = entry
        yield IndexEntry(position, base_offset + entry[0], entry[1])
    if len(data) % ENTRY_BYTES:
        yield Problem(len(data) - len(data) % ENTRY_BYTES, "the last entry is not whole")


def dump_time_index(disk: Disk, path: str) -> Iterator[TimeIndexEntry | Problem]:
    """Yield the entries of a time index."""
    base_offset = _base_offset(path)
    data = read_file(disk, path)
    last = (-1, -1)
    for position in range(0, len(data) - TIME_ENTRY_BYTES + 1, TIME_ENTRY_BYTES):
        entry = _TIME_INDEX_ENTRY.unpack_from(data, position)
        if entry[0] <= last[0] or entry[1] < last[1]:
            yield Problem(position, f"entry {entry} after {last}: timestamps must rise")
        last = entry
        yield TimeIndexEntry(position, entry[0], base_offset + entry[1])
    if len(data) % TIME_ENTRY_BYTES:
        yield Problem(len(data) - len(data) % TIME_ENTRY_BYTES, "the last entry is not whole")


def dump_aborted(disk: Disk, path: str) -> Iterator[AbortedEntry | Problem]:
    """Yield the entries of an index of aborted transactions."""
    base_offset = _base_offset(path)
    data = read_file(disk, path)
    for position in range(0, len(data) - ABORTED_ENTRY_BYTES + 1, ABORTED_ENTRY_BYTES):
        try:
            [entry] = AbortedIndex.parse(data[position : position + ABORTED_ENTRY_BYTES], base_offset).entries
        except ValueError as error:
            yield Problem(position, str(error))
            continue
        yield AbortedEntry(position, *entry)
        base_offset = entry.last_offset + 1
    if len(data) % ABORTED_ENTRY_BYTES:
        yield Problem(len(data) - len(data) % ABORTED_ENTRY_BYTES, "the last entry is not whole")


def dump_snapshot(disk: Disk, path: str) -> Iterator[SnapshotRow | Problem]:
    """Yield the rows of a producer snapshot: one for each remembered batch, up to five a producer, the newest last."""
    try:
        yield from decode_snapshot(read_file(disk, path))
    except SnapshotDamaged as error:
        yield Problem(0, str(error))


def dump_checkpoint(disk: Disk, path: str) -> Iterator[Line | Problem]:
    """Yield the lines of an offset or epoch checkpoint."""
    try:
        yield from decode_checkpoint(
            path,
            read_file(disk, path),
            lambda line: Line(tuple(line.split())),
            "",
            newest=CLEANER_VERSION if path.endswith(CLEANER_OFFSETS) else 0,
        )
    except CorruptLogError as error:
        yield Problem(error.position, error.reason)


def dump_properties(disk: Disk, path: str) -> Iterator[Line]:
    """Yield the properties of a file with their values."""
    for key, value in decode_properties(read_file(disk, path)).items():
        yield Line((key, value))


def _base_offset(path: str) -> int:
    digits = path.rpartition("/")[2].partition(".")[0]
    if not digits.isdigit():
        raise ConfigError("file", path, "an index is named by its base offset in 20 digits")
    return int(digits)
