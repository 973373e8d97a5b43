"""Swap of a log's segments for their compacted replacement, which a crash may interrupt anywhere.

| step | names on the disk | after a crash |
|---|---|---|
| the new segment is written and synced | `X.log.cleaned` | it is deleted |
| its files are renamed, durably | `X.log.swap` | the swap is finished |
| the old ones make way, durably | `X.log.deleted`, `Y.log.deleted` | the swap is finished |
| the new one gets its name | `X.log` | nothing is left to do |
| the old ones are deleted, after `file.delete.delay.ms` | | they are deleted |

So at any instant either all the old segments have their names or `X.log.swap` has its own, and a start needs no more
than that to know which counts (schedule 75). These are the suffixes and the order of Kafka.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from strandline.log.disk import Disk, DiskError
from strandline.log.segment import LOG_SUFFIX, PARTS, Segment, delete_files, pread_blocking
from strandline.proto.errors import StorageError, StrandlineError
from strandline.proto.marks import mark

if TYPE_CHECKING:
    from strandline.log.log_state import LogState

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

_SEGMENT = re.compile(r"(\d{20})\.log")
_SWAP = re.compile(r"(\d{20})\.log\.swap")


class LogChanged(StrandlineError):
    """The log lost segments while they were being compacted, or was closed: there is nothing to do."""


class Swap:
    """One swap in a running log.

    Invariants:
    - the old segments are neighbours, closed, and durable; `new` holds the batches that compaction left of them, up to
      `end`, and is synced;
    - readers find the old segments, then the new one: they change in one step, between two turns of the loop;
    - a log that is cut in the middle of it calls `settle` first: then the files on disk are those of the log in memory.
    """

    __slots__ = ("_log", "_new", "_old", "_replaced", "end")

    def __init__(self, log: LogState, old: list[Segment], new: Segment, end: int) -> None:
        self._log = log
        self._old = old
        self._new = new
        self._replaced = False
        self.end = end

    async def carry_out(self) -> list[str]:
        """Replace the segments; return the files to unlink.

        Raises:
            LogChanged: the swap was given up, or finished by `settle`; nothing is left to do.
            StorageError: the disk failed; the log is fenced from now on.
        """
        log = self._log
        self._check()
        log.swap = self
        try:
            self._new.rename(SWAP_SUFFIX)
            await log.disk.sync([], [log.directory])  # schedule 75/old-segments-go-first
            if log.swap is not self:
                raise LogChanged(f"{log.topic_partition} was cut")
            if not self._stands():
                self.settle()
                raise LogChanged(f"{log.topic_partition} lost segments while they were compacted")
            aside = self._replace()
            await log.disk.sync([], [log.directory])  # schedule 75/old-segments-come-back
            if log.swap is self:
                self._name()
        except FileNotFoundError as error:  # its directory was renamed, to be deleted
            log.swap = None
            raise LogChanged(str(error)) from error
        except DiskError as error:
            log.sync_failed(error)
            raise StorageError(f"{log.topic_partition}: segments cannot be swapped: {error}") from error
        return aside

    def settle(self) -> None:
        """Give the swap up, or finish it, durably, as the log is about to be cut. Blocking; raises DiskError."""
        log = self._log
        mark("swap-given-up")
        if self._replaced:
            log.disk.sync_dir(log.directory)
            self._name()
            return
        log.swap = None
        remove(log.disk, self._new)
        log.disk.sync_dir(log.directory)

    def _stands(self) -> bool:
        segments, old = self._log.segments, self._old  # rule B20/expired-segments-come-back
        if self._log.failure is not None or old[0] not in segments:
            return False
        first = segments.index(old[0])
        return segments[first : first + len(old)] == old and first + len(old) < len(segments)

    def _check(self) -> None:
        if not self._stands():
            remove(self._log.disk, self._new)
            raise LogChanged(f"{self._log.topic_partition} lost segments while they were compacted")

    def _replace(self) -> list[str]:
        """Replace the segments in memory and on disk, within one turn of the loop."""
        mark("log-compacted")
        log, old = self._log, self._old
        aside = [path for segment in old for path in segment.set_aside()]
        first = log.segments.index(old[0])
        log.segments[first : first + len(old)] = [self._new]
        log.bases[first : first + len(old)] = [self._new.base_offset]
        log.size_bytes = sum(segment.size for segment in log.segments)
        self._replaced = True
        for segment in old:
            log.cache.forget(segment)
            log.unsynced.drop(segment.file)
            segment.close()
        log.cache.touch(self._new)
        return aside

    def _name(self) -> None:
        log = self._log
        log.swap = None
        if log.disk.exists(self._new.path(LOG_SUFFIX)):  # else retention has taken it
            self._new.rename("")
            log.unsynced.add_directory(log.directory)


def remove(disk: Disk, segment: Segment) -> None:
    """Unlink a segment that is not, or not yet, part of its log. Raises DiskError."""
    segment.close()
    for part in PARTS:
        if disk.exists(segment.path(part)):
            disk.unlink(segment.path(part))


def finish_swaps(disk: Disk, directory: str, names: list[str]) -> bool:
    """At a start: finish the swaps that a crash interrupted in a directory with these names. True if anything changed.

    Raises:
        KafkaError: CORRUPT_MESSAGE if a segment that was swapped in is damaged; nothing was changed.
        DiskError: the disk failed.
    """
    swapped = [int(match[1]) for name in names if (match := _SWAP.fullmatch(name))]
    for base in swapped:
        mark("swap-finished-at-start")
        new = Segment(disk, directory, base, created_ms=0, suffix=SWAP_SUFFIX)
        end = base
        for _, header in new.headers(0, pread_blocking):
            end = header.next_offset
        for part in PARTS[:-1]:  # built anew: what has this name may be of the old segment
            if disk.exists(new.path(part)):
                disk.unlink(new.path(part))
        for old in sorted(int(match[1]) for name in names if (match := _SEGMENT.fullmatch(name))):
            if base <= old < end:
                delete_files(disk, directory, old)
        disk.sync_dir(directory)
        new.rename("")
        disk.sync_dir(directory)
        new.close()
    return bool(swapped)
