"""Shared by the tests of the log: clocks, batches, logs in a temporary directory, a disk that can be made to fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from strandline.log.batch import Record, build_batch, decode_records
from strandline.log.compression import Codec
from strandline.log.config import LogConfig
from strandline.log.disk import Disk, DiskError, DiskFull, File
from strandline.log.offset_checkpoints import LastLife
from strandline.log.partition_log import PartitionLog
from strandline.log.real_disk import RealDisk, RealFile
from strandline.log.recovery import open_log
from strandline.proto.ids import TopicPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

TP = TopicPartition("orders", 0)
TOPIC_ID = UUID("6f1e6a3c-9a58-4a43-9d2b-0e9d7f3f5a01")
NO_STEPS = LogConfig(preallocate_bytes=0)


class ManualClock:
    """Time stands still until a test moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def monotonic_ms(self) -> float:
        """Same hand as the wall clock."""
        return float(self.now_ms)

    def wall_ms(self) -> int:
        """What the test set."""
        return self.now_ms


class JumpingClock(ManualClock):
    """The hands are apart: `now_ms` is the monotonic one, and the wall clock is set by `jump`."""

    def __init__(self, now_ms: int = 1_000, wall_ms: int = 1_700_000_000_000) -> None:
        super().__init__(now_ms)
        self._apart_ms = wall_ms - now_ms

    def wall_ms(self) -> int:
        """The monotonic hand and all jumps."""
        return self.now_ms + self._apart_ms

    def jump(self, by_ms: int) -> None:
        """Somebody sets the wall clock."""
        self._apart_ms += by_ms


class FailingDisk(RealDisk):
    """A real disk on which a test can make the next writes or syncs fail; `reads` counts reads of files."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.write_error: DiskError | None = None
        self.bytes_left: int | None = None
        self.sync_error: DiskError | None = None
        self.boot = "boot-1"

    def open(self, path: str, *, create: bool = False) -> RealFile:
        """A file whose writes obey this disk."""
        real = super().open(path, create=create)
        real.__class__ = _FailingFile
        return real

    def boot_id(self) -> str:
        """What the test set."""
        return self.boot

    def sync_now(self, files: Sequence[File], directories: Sequence[str] = ()) -> None:
        """Fails if told to."""
        if self.sync_error is not None:
            raise self.sync_error
        super().sync_now(files, directories)

    async def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> None:
        """Fails if told to."""
        if self.sync_error is not None:
            raise self.sync_error
        await super().sync(files, directories, wait_ms)


async def group_sync(disk: Disk, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> None:
    """A group sync, to its end: for `asyncio.run`, since a sync begins in a loop."""
    await disk.sync(files, directories, wait_ms)


class _FailingFile(RealFile):
    __slots__ = ()

    def pread(self, size: int, position: int) -> bytes:
        disk = self._disk
        assert isinstance(disk, FailingDisk)
        disk.reads += 1
        return super().pread(size, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        disk = self._disk
        assert isinstance(disk, FailingDisk)
        if disk.write_error is not None:
            raise disk.write_error
        size = memoryview(data).nbytes
        if disk.bytes_left is not None and size > disk.bytes_left:
            super().pwrite(memoryview(data)[: disk.bytes_left], position)
            raise DiskFull(28, "No space left on device", self.path)
        super().pwrite(data, position)


def records(count: int, *, first: int = 0, size: int = 10, timestamp_ms: int = 1_700_000_000_000) -> list[Record]:
    """`count` records whose values say their number."""
    return [
        Record(i, timestamp_ms + i, b"k%d" % i, (b"v%d-" % i).ljust(size, b"x")) for i in range(first, first + count)
    ]


def client_batch(
    count: int = 1,
    *,
    first: int = 0,
    size: int = 10,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    timestamp_ms: int = 1_700_000_000_000,
) -> memoryview:
    """A batch as a client sends it, in a writable buffer."""
    return memoryview(
        build_batch(
            records(count, first=first, size=size, timestamp_ms=timestamp_ms),
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
        )
    )


def open_test_log(
    disk: RealDisk,
    directory: object,
    *,
    config: LogConfig | None = None,
    last_life: LastLife | None = None,
    clock: ManualClock | None = None,
) -> PartitionLog:
    """The log in `directory`."""
    return open_log(
        disk,
        str(directory),
        TP,
        clock=clock or ManualClock(),
        topic_id=TOPIC_ID,
        config=config or NO_STEPS,
        last_life=last_life,
    )


def fill(log: PartitionLog, batches: int, *, count: int = 1, size: int = 10, epoch: int = 0) -> None:
    """Append `batches` batches of `count` records."""
    for _ in range(batches):
        first = int(log.log_end_offset)
        log.append_as_leader(client_batch(count, first=first, size=size, timestamp_ms=1000), epoch, 1000)


def all_records(log: PartitionLog, *, max_bytes: int = 1 << 20) -> list[Record]:
    """Every record of the log, read as a consumer reads."""
    found: list[Record] = []
    offset = int(log.log_start_offset)
    while offset < log.log_end_offset:
        read = log.read(offset, max_bytes, log.log_end_offset)
        if read is None:
            continue  # a simulated disk: its bytes are cold this time
        assert read.data, f"nothing at {offset} below the log end {log.log_end_offset}"
        found += [record for record in decode_all(read.data) if record.offset >= offset]
        offset = int(read.next_offset)
    return found


def decode_all(data: bytes) -> Iterable[Record]:
    """Records of consecutive batches."""
    from strandline.log.batch import iter_batches

    return [record for _, batch in iter_batches(data) for record in decode_records(batch)]


def failing_call(number: int) -> Callable[..., None]:
    """A system call that fails."""

    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call
