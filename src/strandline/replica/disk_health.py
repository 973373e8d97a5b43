"""Handling of a log directory's disk that has no room (schedule 57), or that hangs (schedule 58)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from strandline.log.free_space import RESERVE_BYTES, FreeSpace, reserve_of
from strandline.log.log_dir import LogDir
from strandline.proto.errors import FatalError
from strandline.proto.marks import mark
from strandline.proto.ports import Clock
from strandline.proto.tasks import Report

log = structlog.get_logger("strandline.replica")

PROBE_FILE = ".room"
PROBE_BYTES = 64 << 10
"""Bytes written as a probe, and removed again, before room is believed: a quota can leave free bytes on the file system
that no write gets."""

NOTICE_MS = 500.0
"""Time from the report to the controller to the end of the node, enough for a heartbeat, an election, and its news to
reach the others. If this node is the active controller, another one is elected meanwhile."""


class DiskRoom:
    """Tracks whether a directory's disk has room: from writes that found none, and from regular looks at the file
    system.

    While `full`, the broker's heartbeats report the replicas in this directory (all replicas, if no directory has
    room). The controller takes them out of the ISRs and moves their leaderships to replicas that have room. Until then,
    and if no other replica can lead, clients' writes are refused: the rest of the disk (log.dir.reserve.bytes) is kept
    for the metadata log, the checkpoints and deletions.

    Attributes:
        full: True while the disk has no room.
    """

    def __init__(
        self,
        log_dir: LogDir,
        clock: Clock,
        on_change: Callable[[], None],
        on_room: Callable[[], None],
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        """`on_change`: the controller must hear of it at once. `on_room`: the disk has room again for what waited."""
        self.full = False
        self._log_dir = log_dir
        self._clock = clock
        self._on_change = on_change
        self._on_room = on_room
        self._free_space = FreeSpace(reserve_bytes)

    def ran_out(self) -> None:
        """Take note that a write found no room."""
        if self._free_space.ran_out(self._clock.monotonic_ms()):
            self._changed()

    def set_reserve(self, reserve_bytes: int) -> None:
        """Set log.dir.reserve.bytes, and check at once whether the disk is full by it. Regained room must last as long
        as ever before it counts."""
        if reserve_bytes != self._free_space.reserve_bytes:
            self._free_space.reserve_bytes = reserve_bytes
            self.look()

    def look(self) -> None:
        """Ask the file system for its free space, unless the disk is busy: nothing here waits for a slow disk."""
        log_dir = self._log_dir
        if log_dir.disk.busy:
            return
        try:
            free = log_dir.disk.free_bytes(log_dir.path)
            total = log_dir.disk.total_bytes(log_dir.path)
            if self.full and free:
                self._probe()  # schedule 57/room-is-believed-unwritten
        except OSError as error:  # readers and writers of the logs meet it too, and handle it
            log.debug("the disk was not looked at", path=log_dir.path, error=str(error))
            if not self.full:
                return
            free = total = 0
        if self._free_space.looked(free, total, self._clock.monotonic_ms()):
            self._changed(free_bytes=free, reserve_bytes=reserve_of(self._free_space.reserve_bytes, total))

    def _probe(self) -> None:
        """Write, and remove, a probe file. Raises OSError."""
        log_dir = self._log_dir
        path = f"{log_dir.path}/{PROBE_FILE}"
        file = log_dir.disk.open(path, create=True)
        try:
            file.pwrite(bytes(PROBE_BYTES), 0)
        finally:
            file.close()
            log_dir.disk.unlink(path)

    def _changed(self, **figures: int) -> None:
        path = self._log_dir.path
        self.full = self._log_dir.full = self._free_space.full
        if self.full:
            mark("disk-without-room")
            log.error(
                "the disk is full, but for log.dir.reserve.bytes: nothing more is written for clients, and other "
                "brokers lead what this one led, as far as they have room. Make room: a larger disk, shorter "
                "retention, other programs' files away",
                path=path,
                **figures,
            )
        else:
            log.warning("the disk has room again", path=path, **figures)
            self._on_room()  # schedule 57/no-log-is-made-once-there-is-room
        self._on_change()  # schedule 57/full-disk-waits-for-the-next-heartbeat


class DiskStalls:
    """Handles a sync that takes longer than its bound, and its end if it comes after all.

    From then on no partition of the directory can be served: heartbeats report each, and the leaderships move to
    brokers that heard of it before this node ends. The node ends even if the sync ends meanwhile, because its replicas
    have left the ISRs by then, and blocking syncs were refused.

    Attributes:
        hung: True once no replica of the directory can be served any more.
    """

    def __init__(
        self, log_dir: LogDir, sync_before_ack: Callable[[], bool], on_change: Callable[[], None], on_fatal: Report
    ) -> None:
        """`on_change`: the controller must hear of it at once. `on_fatal`: the node has to stop."""
        self._log_dir = log_dir
        self._sync_before_ack = sync_before_ack
        self._on_change = on_change
        self._on_fatal = on_fatal
        self.hung = False

    def stalled(self, age_ms: float) -> None:
        """Take note of a sync that is `age_ms` old. Acks wait for it, except under flush.policy = replicate."""
        if self._sync_before_ack():  # rule B18/hung-sync-is-waited-for
            self.hung = True  # schedule 58/hung-disk-is-told-to-nobody
            self._on_change()
            error = FatalError(f"a sync of {self._log_dir.path} does not end: {age_ms / 1000:.1f} s by now")
            asyncio.get_running_loop().call_later(NOTICE_MS / 1000, self._on_fatal, error)

    def recovered(self) -> None:
        """Take note that the sync has ended."""
        if not self.hung:
            log.info("acks that waited for the disk go on", path=self._log_dir.path)
