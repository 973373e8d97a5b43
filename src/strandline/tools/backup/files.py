"""The directory of a backup.

    manifest.json                            what was copied, from where, and what must be in each file
    orders-0/00000000000000000000.log        batches as they lay in the log, in Kafka's own format
    orders-0/00000000000000048221.log

A segment is named by the offset of its first record, as in a log, so that whatever reads a log's segments reads these.
The manifest is written last: a directory without one is no backup. It holds a checksum of itself and of every file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from strandline.client.errors import ClientError
from strandline.log.batch import HEADER_SIZE, BatchHeader, BatchJudge, check_content
from strandline.proto.errors import KafkaError
from strandline.proto.json_text import read_json
from strandline.proto.kafka.fields import RESPONSE_BYTES_MAX

MANIFEST = "manifest.json"
FORMAT = 1
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class BackupDamaged(ClientError):
    """A backup is not what its manifest says. `path` is the file, relative to the backup."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"the backup is damaged: {path}: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.path, self.reason))


class BackupRefused(ClientError):
    """The backup would not give the promised equality of offsets, or would overwrite something."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One file. Offsets from `base_offset` up to, not including, `next_offset`, without a gap."""

    base_offset: int
    next_offset: int
    batches: int
    size_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.base_offset:020d}.log"


@dataclass(frozen=True, slots=True)
class PartitionCopy:
    """One partition: the records from `log_start` up to, not including, `end`, the high watermark when it was copied.

    The first batch may begin before `log_start`: a log's start may lie inside of a batch.
    """

    partition: int
    log_start: int
    end: int
    segments: tuple[SegmentFile, ...]

    @property
    def records(self) -> int:
        """Number of records."""
        return self.end - self.log_start

    @property
    def first_offset(self) -> int:
        """Offset of the first batch; `log_start` without any."""
        return self.segments[0].base_offset if self.segments else self.log_start

    @property
    def size_bytes(self) -> int:
        """Size of the partition's files, in bytes."""
        return sum(segment.size_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of a backup, as its manifest says. `configs` are the topic's own, not those it had from its cluster's
    defaults."""

    topic: str
    topic_id: str
    cluster_id: str
    taken_ms: int
    replication_factor: int
    configs: Mapping[str, str]
    partitions: tuple[PartitionCopy, ...]

    @property
    def records(self) -> int:
        """Number of records of all partitions."""
        return sum(part.records for part in self.partitions)

    @property
    def size_bytes(self) -> int:
        """Size of all segment files, in bytes."""
        return sum(part.size_bytes for part in self.partitions)

    def directory(self, partition: int) -> str:
        """Directory of a partition's files, relative to the backup."""
        return f"{self.topic}-{partition}"

    def path(self, partition: int, segment: SegmentFile) -> str:
        """A file, relative to the backup."""
        return f"{self.directory(partition)}/{segment.name}"


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, synced: the last step of a backup. The last step of a backup."""
    told = {"format": FORMAT, **asdict(manifest)}
    text = json.dumps({**told, "checksum": _checksum(told)}, indent=1)
    with (directory / MANIFEST).open("x", encoding="utf-8") as file:
        file.write(text + "\n")
        _sync(file)


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a backup.

    Raises:
        BackupDamaged: it is not there, or not as it was written.
    """
    path = directory / MANIFEST
    try:
        told = read_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BackupDamaged(MANIFEST, f"it is not there: {directory} is no backup, or one that was not ended") from None
    except ValueError as error:
        raise BackupDamaged(MANIFEST, f"it is no JSON: {error}") from None
    if not isinstance(told, dict) or told.pop("checksum", None) != _checksum(told):
        raise BackupDamaged(MANIFEST, "it does not have the checksum that it was written with")
    if told.pop("format", None) != FORMAT:
        raise BackupDamaged(MANIFEST, f"this program reads format {FORMAT} alone")
    try:
        parts = tuple(
            PartitionCopy(**{**part, "segments": tuple(SegmentFile(**each) for each in part["segments"])})
            for part in told.pop("partitions")
        )
        manifest = Manifest(**told, partitions=parts)
        if not _TOPIC_NAME.fullmatch(manifest.topic):
            raise ValueError(f"{manifest.topic!r} is no topic's name")
    except (KeyError, TypeError, ValueError) as error:
        raise BackupDamaged(MANIFEST, f"a field is missing or not what it should be: {error}") from None
    return manifest


def read_batches(directory: Path, manifest: Manifest, partition: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Every batch of one partition, in order.

    Raises:
        BackupDamaged: a file is missing, shorter or longer than it was, or its bytes are not those that were written.
    """
    for segment in manifest.partitions[partition].segments:
        path = manifest.path(partition, segment)
        try:
            with (directory / path).open("rb") as file:
                yield from _read_segment(file, path, segment)
        except FileNotFoundError:
            raise BackupDamaged(path, "it is not there") from None


def _read_segment(file: IO[bytes], path: str, segment: SegmentFile) -> Iterator[tuple[BatchHeader, bytes]]:
    size = os.fstat(file.fileno()).st_size
    if size != segment.size_bytes:
        raise BackupDamaged(path, f"it has {size} bytes, {segment.size_bytes} were written")
    digest = hashlib.sha256()
    judge = BatchJudge(segment.base_offset, bytes_max=RESPONSE_BYTES_MAX)
    position, count = 0, 0
    while position < size:
        head = file.read(HEADER_SIZE)
        try:
            header = judge.header(head, 0, size - position)
            batch = head + file.read(header.size - HEADER_SIZE)
            check_content(header, batch)
            judge.check_place(header)
        except KafkaError as error:
            raise BackupDamaged(path, f"at byte {position}: {error.message}") from None
        digest.update(batch)
        yield header, batch
        judge.follow(header)
        position, count = position + header.size, count + 1
    if (judge.offset, count, digest.hexdigest()) != (segment.next_offset, segment.batches, segment.sha256):
        raise BackupDamaged(path, "it does not have the checksum that it was written with")


def verify(directory: Path, manifest: Manifest, read: Callable[[int], None]) -> int:
    """Read everything and compare it with the manifest; the size of the largest batch. `read` is told of bytes read.

    Raises:
        BackupDamaged.
    """
    largest = 0
    for number, part in enumerate(manifest.partitions):
        ends = [part.first_offset, *(segment.next_offset for segment in part.segments)]
        starts = [*(segment.base_offset for segment in part.segments), part.end]
        if part.partition != number or ends != starts or not 0 <= part.first_offset <= part.log_start <= part.end:
            raise BackupDamaged(MANIFEST, f"the offsets of partition {number} do not follow on each other")
        for _, batch in read_batches(directory, manifest, number):
            largest = max(largest, len(batch))
            read(len(batch))
    return largest


class SegmentWriter:
    """Writes the files of one partition, each synced when it is whole. A context manager.

    Args:
        size_max: a file does not grow beyond this many bytes, unless one batch is larger.
    """

    def __init__(self, directory: Path, size_max: int) -> None:
        self.segments: list[SegmentFile] = []
        self._directory = directory
        self._size_max = size_max
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._base = self._next = self._size = self._batches = 0
        directory.mkdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._end_file()
            sync_directory(self._directory)
        elif self._file is not None:
            self._file.close()

    def append(self, header: BatchHeader, batch: bytes | memoryview) -> None:
        """Write one batch, which follows on the one before."""
        if self._file is not None and self._size + len(batch) > self._size_max:
            self._end_file()
        if self._file is None:
            self._base = header.base_offset
            self._digest = hashlib.sha256()
            self._size = self._batches = 0
            self._file = (self._directory / f"{header.base_offset:020d}.log").open("xb")
        self._file.write(batch)
        self._digest.update(batch)
        self._size += len(batch)
        self._batches += 1
        self._next = header.next_offset

    def _end_file(self) -> None:
        if self._file is not None:
            with self._file as file:
                _sync(file)
            self._file = None
            self.segments.append(
                SegmentFile(self._base, self._next, self._batches, self._size, self._digest.hexdigest())
            )


def sync_directory(directory: Path) -> None:
    """Sync the names in the directory."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _checksum(told: Mapping[str, Any]) -> str:
    """Checksum of a manifest without its checksum field."""
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
