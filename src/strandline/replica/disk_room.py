"""What a broker does while its disk has no room (schedule 57)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from strandline.log.log_dir import LogDir
from strandline.log.room import Room
from strandline.proto.marks import mark
from strandline.proto.ports import Clock

log = structlog.get_logger("strandline.replica")

PROBE_FILE = ".room"
PROBE_BYTES = 64 << 10
"""What is written and removed again before room is believed: a quota leaves bytes on the file system that no write
gets."""


class RoomHost(Protocol):
    """The broker whose disk it is."""

    @property
    def clock(self) -> Clock: ...
    @property
    def log_dir(self) -> LogDir: ...


class DiskRoom:
    """Told of writes that found no room, and looks now and then how much is left.

    While `full` the broker's heartbeats say so: the controller takes its replicas out of the ISRs and moves the
    leaderships to replicas that have room. Nothing is refused for that here: reads are served, what was preallocated is
    written, and where nobody else can lead each write is tried.
    """

    def __init__(self, host: RoomHost, on_change: Callable[[], None], on_room: Callable[[], None]) -> None:
        """`on_change`: the controller is to hear of it at once. `on_room`: what waited for room can go on."""
        self._host = host
        self._on_change = on_change
        self._on_room = on_room
        self._room = Room()

    @property
    def full(self) -> bool:
        """The disk has no room."""
        return self._room.full

    def ran_out(self) -> None:
        """A write found no room."""
        if self._room.ran_out(self._host.clock.monotonic_ms()):
            self._changed()

    def look(self) -> None:
        """Ask the file system. Nothing here waits for a disk that is slow."""
        log_dir = self._host.log_dir
        if log_dir.disk.busy:
            return
        try:
            free = log_dir.disk.free_bytes(log_dir.path)
            total = log_dir.disk.total_bytes(log_dir.path)
            if self.full and free:
                self._probe()
        except OSError as error:  # whoever reads and writes the logs meets it too, and knows what to do
            log.debug("the disk was not looked at", path=log_dir.path, error=str(error))
            if not self.full:
                return
            free = total = 0
        if self._room.looked(free, total, self._host.clock.monotonic_ms()):
            self._changed()

    def _probe(self) -> None:
        """Raises OSError."""
        log_dir = self._host.log_dir
        path = f"{log_dir.path}/{PROBE_FILE}"
        file = log_dir.disk.open(path, create=True)
        try:
            file.pwrite(bytes(PROBE_BYTES), 0)
        finally:
            file.close()
            log_dir.disk.unlink(path)

    def _changed(self) -> None:
        path = self._host.log_dir.path
        if self.full:
            mark("disk-without-room")
            log.error("the disk is full: other brokers lead what this one led, as far as they have room", path=path)
        else:
            log.warning("the disk has room again", path=path)
            self._on_room()
        self._on_change()
