"""The `.snapshot` files of one log: producer state at an offset, so that a restart or a truncation replays little.

One is written at each roll and clean stop (forced to disk with the segment, KAFKA-9892) and, as a mere shortcut that
nothing depends on, after each `SNAPSHOT_INTERVAL_BYTES` of log. The one where the log begins is the only witness of the
producers of records that retention has taken (schedule 86).
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort

from strandline.log.disk import Disk, DiskFull, File, read_file, write_file_durably
from strandline.log.producer_state import ProducerStates, SnapshotDamaged, decode_snapshot
from strandline.log.segment import SNAPSHOT_SUFFIX, Segment, pread_blocking, segment_name
from strandline.proto.marks import mark

SNAPSHOT_INTERVAL_BYTES = 64 << 20
"""Bounds the replay of a truncation: 64 MiB of 1 KB batches are walked in about 0.1 s."""

_NAME = re.compile(r"(\d{20})\.snapshot")


class Snapshots:
    """Which snapshots there are. One at S is the state after every record below S; a log cut below S loses it."""

    __slots__ = ("_directory", "_disk", "_offsets")

    def __init__(self, disk: Disk, directory: str, names: list[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    def offsets(self) -> list[int]:
        """Offsets of the files, rising."""
        return list(self._offsets)

    def has(self, offset: int) -> bool:
        """There is one at this offset."""
        return offset in self._offsets

    def take_in(self, path: str, offset: int) -> None:
        """The file at `path`, which is durable, is the one at `offset` from now on, durably. Blocking."""
        self._disk.rename(path, self._path(offset))
        self._disk.sync_dir(self._directory)  # rule B24/what-a-log-is-told-is-not-durable
        if offset not in self._offsets:
            insort(self._offsets, offset)

    def write(self, offset: int, states: ProducerStates) -> File:
        """Write the state at `offset` (not synced); the caller syncs or not, and closes."""
        file = self._disk.open(self._path(offset), create=True)
        file.truncate(0)
        file.pwrite(states.encode_snapshot(), 0)
        if offset not in self._offsets:
            insort(self._offsets, offset)
        return file

    def fill(self, segments: list[Segment], now_ms: int) -> list[File]:
        """Write those that recovery did not believe: of the beginning of each segment behind the newest one, for once
        what lies before is off the disk nothing else tells of it. Not synced: the caller does that, and closes.

        A full disk is no reason to refuse the log: the rest is told by the batches as long as these are here.
        """
        written: list[File] = []
        try:
            for segment in segments[1:]:
                if not self._offsets or self._offsets[-1] < segment.base_offset:
                    states = self.load(segments, segment.base_offset, now_ms)
                    written.append(self.write(segment.base_offset, states))
        except DiskFull:
            return written
        return written

    def is_readable(self, offset: int) -> bool:
        """There is one at this offset, and it is whole."""
        if offset not in self._offsets:
            return False
        try:
            decode_snapshot(read_file(self._disk, self._path(offset)))
        except SnapshotDamaged:
            return False
        return True

    def write_again(self, offset: int) -> None:
        """Make the one at this offset durable, which may stand in the page cache alone. Raises DiskError."""
        path = self._path(offset)
        write_file_durably(self._disk, path, read_file(self._disk, path))

    def load(self, segments: list[Segment], end_offset: int, now_ms: int) -> ProducerStates:
        """The state after every record below `end_offset`: the newest readable snapshot up to there, then a replay."""
        states = ProducerStates()
        start = segments[0].base_offset
        # rule C2/snapshot-beyond-the-point
        for offset in reversed(self._offsets[: bisect_right(self._offsets, end_offset)]):
            if offset < start:
                break
            try:
                states.load_snapshot(read_file(self._disk, self._path(offset)), now_ms)
            except SnapshotDamaged:
                self.delete(offset)
                continue
            mark("producer-state-from-snapshot")
            start = offset
            break
        replay(states, segments, start, end_offset, now_ms)  # rule C2/no-replay-after-the-snapshot
        return states

    def delete_above(self, offset: int) -> bool:
        """Delete those of a longer log; true if there was one (the caller syncs the directory)."""
        stale = self._offsets[bisect_right(self._offsets, offset) :]
        for at in stale:
            self.delete(at)
        return bool(stale)

    def delete_strays(self, segment_bases: list[int]) -> None:
        """Delete those that belong to no segment, but for the newest of them all."""
        bases = set(segment_bases)
        for offset in self._offsets[:-1]:
            if offset not in bases:
                self.delete(offset)

    def delete(self, offset: int) -> None:
        """Unlink one."""
        self._offsets.remove(offset)
        self._disk.unlink(self._path(offset))

    def delete_below(self, offset: int) -> None:
        """Delete those of records that are out of the log; newer ones contain them."""
        for at in self._offsets[: bisect_right(self._offsets, offset - 1)]:
            self.delete(at)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{segment_name(offset, SNAPSHOT_SUFFIX)}"


def replay(states: ProducerStates, segments: list[Segment], start: int, end_offset: int, now_ms: int) -> None:
    """Take in the batches of [start, end_offset) that end there or before, from their headers, blocking."""
    for i, segment in enumerate(segments):
        if segment.base_offset >= end_offset:
            break
        if i + 1 < len(segments) and segments[i + 1].base_offset <= start:
            continue
        found = segment.find(start, pread_blocking) if start > segment.base_offset else (0, None)
        if found is None:
            continue
        for _, header in segment.headers(found[0], pread_blocking):
            if header.next_offset > end_offset:
                break
            if header.producer_id >= 0 and header.base_offset >= start:
                states.update(header, header.base_offset, now_ms)
