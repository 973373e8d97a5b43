"""A data directory as a node leaves it, what was damaged in it, and what a real start then does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID

from strandline.log.config import LogConfig
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.overlay import OverlayDisk
from strandline.log.partition_log import PartitionLog
from strandline.log.real_disk import RealDisk
from strandline.log.verify.directory import Verification, Verified
from strandline.log.verify.flaws import Flaw
from strandline.proto.ids import NodeId
from tests.log.helpers import TOPIC_ID, TP, ManualClock, client_batch

SMALL = LogConfig(segment_bytes=2000, preallocate_bytes=0, index_interval_bytes=0)


def made(path: Path, *, batches: int = 30, stop: bool = True) -> Path:
    """A directory with the log of `TP`: some segments, one producer, three leader epochs. Returns its root."""
    disk = RealDisk()
    root = path / "data"
    format_log_dir(disk, str(root), "cluster-1", NodeId(3), UUID(int=7))
    log_dir = LogDir.open(disk, str(root), ManualClock(), SMALL)
    log = log_dir.create(TP, TOPIC_ID, SMALL)
    append(log, batches)
    log.sync_now()
    log.sync_now()
    log_dir.write_checkpoints({TP: int(log.log_end_offset)})
    if stop:
        log_dir.close(5)
    else:
        log.close_files()
    disk.close()
    return root


def append(log: PartitionLog, batches: int) -> None:
    """Batches of three records of producer 7, each later than the one before."""
    for _ in range(batches):
        first = int(log.log_end_offset)
        batch = client_batch(
            3,
            first=first,
            size=60,
            producer_id=7,
            producer_epoch=0,
            sequence=first,
            timestamp_ms=1_600_000_000_000 + 10 * first,
        )
        log.append_as_leader(batch, min(2, first // 30), 1000)


def segments(root: Path) -> list[Path]:
    """The log's segments."""
    return sorted((root / str(TP)).glob("*.log"))


def verify(root: Path) -> Verified:
    """What is found; that nothing changes is checked each time."""
    before = fingerprint(root)
    with closing(OverlayDisk(str(root))) as disk:
        found = Verification(disk, str(root), ManualClock(), lambda done, total: None, lambda *_: []).run()
    assert fingerprint(root) == before
    return found


def fingerprint(root: Path) -> dict[str, tuple[int, str]]:
    """Every name with its time of change and content."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_mtime_ns,
            _digest(path) if path.is_file() else "",
        )
        for path in sorted(root.rglob("*"))
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def start(root: Path, look: Callable[[LogDir], None]) -> None:
    """Start on it for good, look, and end without a clean stop."""
    disk = RealDisk()
    log_dir = LogDir.open(disk, str(root), ManualClock(), SMALL)
    try:
        look(log_dir)
    finally:
        for log in log_dir.logs.values():
            log.close_files()
        disk.close()


def only(found: Verified) -> Flaw:
    """The one flaw."""
    assert len(found.flaws) == 1, found.flaws
    return found.flaws[0]


def flip(path: Path, position: int) -> None:
    """Rot: one bit."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
