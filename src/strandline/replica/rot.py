"""Rot: batches on this broker's disk that are not what was written (rule B19), and how a replica gets them back
(schedule 80).

A read or a scrub meets damage. From then on heartbeats tell the controller that the replica is rotten: it leads nothing
and is in no ISR as long as another replica is intact. A scrub of the segment finds the holes. If another broker leads,
its batches are written over them. Nothing is cut, so a replica that stops in the middle of healing has lost nothing;
and if no other replica has the records, everything but the holes is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from strandline.log.disk import DiskError
from strandline.log.partition_log import PartitionLog
from strandline.log.rot import Gone, SegmentScrub
from strandline.log.segment import Hole, Segment
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.marks import mark
from strandline.proto.tasks import Report, spawn
from strandline.replica.states import ReplicaCounters

log = structlog.get_logger("strandline.replica")

TRY_AGAIN_MS = 5_000.0
"""Interval of further attempts after a leader could not heal a replica, or while no other broker leads."""


class Replica(Protocol):
    """A hosted partition, as this module needs it."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def log(self) -> PartitionLog | None: ...

    def heal(self) -> None:
        """Fetch the holes of the log from the leader, if another broker leads."""

    def fail(self, reason: str) -> None:
        """Go offline: the log can no longer be used."""


async def _at_once(_: int) -> None:
    await asyncio.sleep(0)


class RotWatch:
    """Scrubs the segments in which reads met damage, and has them healed; one scrub at a time.

    `on_change`: called when the controller must hear at once that a replica is rotten, or whole again.
    """

    def __init__(self, counters: ReplicaCounters, on_change: Callable[[], None], on_fatal: Report) -> None:
        self._counters = counters
        self._on_change = on_change
        self._on_fatal = on_fatal
        self._rotten: dict[Replica, None] = {}
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def stop(self) -> None:
        """Stop scrubbing and healing."""
        self._stopped = True
        if self._work is not None:
            self._work.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def found(self, replica: Replica, error: KafkaError) -> None:
        """Take the error of a read of the replica's log; errors other than CORRUPT_MESSAGE are ignored."""
        plog = replica.log
        if error.code is not ErrorCode.CORRUPT_MESSAGE or plog is None:
            return
        before = len(plog.rot.suspects)
        plog.rot.suspect(str(error.figures.get("file", "")), int(error.figures.get("position", 0)))
        if len(plog.rot.suspects) > before:
            name, why = str(replica.topic_partition), str(error)
            log.error("a part of a log is not what was written, and nobody gets it", partition=name, found=why)
            self._note(replica)

    def scrubbed(self, replica: Replica, plog: PartitionLog, segment: Segment, holes: list[Hole]) -> None:
        """Record all holes that a scrub found in one segment of a replica."""
        new = [hole for hole in holes if hole not in segment.holes]
        plog.rot.scrubbed(segment, holes)
        for hole in new:
            self._counters.corrupt_batches += 1
            log.error(
                "a part of a log has rotted",
                partition=str(replica.topic_partition),
                offset=hole.offset,
                next_offset=hole.next_offset,
                file=segment.file.path,
                position=hole.position,
                bytes=hole.end - hole.position,
            )
        if new:
            self._note(replica)
        if holes:
            replica.heal()

    def mended(self, replica: Replica) -> None:
        """Take note that a hole was written over; it counts as healed once it is synced and scrubbed."""
        self._counters.mended_holes += 1
        self._note(replica)

    def _note(self, replica: Replica) -> None:
        self._rotten[replica] = None
        self._on_change()
        if self._work is None and not self._stopped:  # schedule 80/rot-is-not-scrubbed
            self._work = spawn(self._look_after(), self._on_fatal)

    async def _look_after(self) -> None:
        """Scrub and sync rotten replicas, and forget healed ones, until this broker alone can do no more."""
        try:
            while any([await self._step(replica) for replica in list(self._rotten)]):
                pass
        finally:
            self._work = None
        if self._rotten and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TRY_AGAIN_MS / 1000, self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        for replica in list(self._rotten):
            replica.heal()
        if self._work is None:
            self._work = spawn(self._look_after(), self._on_fatal)

    async def _step(self, replica: Replica) -> bool:
        """Do one step for a replica; return False if there was none to do."""
        plog = replica.log
        if plog is None or plog.failure is not None or not plog.rot:
            del self._rotten[replica]
            self._on_change()
            if plog is not None and plog.failure is None:
                mark("rot-healed")
                log.warning("a log is whole again, or was all the time", partition=str(replica.topic_partition))
            return False
        for segment in list(plog.rot.suspects):
            await self._scrub(replica, plog, segment)
            return True
        if plog.rot.unsynced:
            await self._sync(replica, plog)
            return True
        return False

    async def _scrub(self, replica: Replica, plog: PartitionLog, segment: Segment) -> None:
        try:
            holes = await SegmentScrub(plog, segment, _at_once).holes()
        except (Gone, FileNotFoundError):
            if segment not in plog.segments or plog.failure is not None:
                plog.rot.forget(segment)  # else it was cut, and is looked at again
        except DiskError as error:
            log.warning("a log cannot be scrubbed", partition=str(replica.topic_partition), error=str(error))
            await asyncio.sleep(TRY_AGAIN_MS / 1000)
        else:
            self.scrubbed(replica, plog, segment, holes)

    async def _sync(self, replica: Replica, plog: PartitionLog) -> None:
        mended, plog.rot.unsynced = plog.rot.unsynced, {}
        plog.rot.suspects.update(mended)  # not whole before it was read again
        try:
            await plog.disk.sync([segment.file for segment in mended])  # rule A9/mended-holes-are-not-synced
        except DiskError as error:
            plog.sync_failed(error)
            replica.fail(f"a sync failed: {error}")
