"""What of a log is not what was written: found by a survey of a segment, and mended with the batches of another
replica (schedule 80).

Only the bytes of a hole are written over, which are no good to anybody. So a log that is mended loses nothing, whatever
comes in between: its end, its epochs and all its other batches stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.log.disk import DiskError
from strandline.log.epochs import intact_end
from strandline.log.log_state import LogState
from strandline.log.segment import Hole, Holes, Segment
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.marks import mark


class Rot:
    """Of one log: segments in which a read met damage, and holes in those that were surveyed."""

    __slots__ = ("_log", "_rotten", "suspects", "unsynced")

    def __init__(self, log: LogState) -> None:
        self._log = log
        self._rotten: dict[Segment, None] = {}
        self.suspects: dict[Segment, None] = {}
        """To be surveyed."""
        self.unsynced: dict[Segment, None] = {}
        """What was mended in them is not known to be durable."""

    def __bool__(self) -> bool:
        """The log cannot vouch for all that it should hold."""
        return bool(self.suspects or self.unsynced) or (bool(self._rotten) and any(True for _ in self.holes()))

    def suspect(self, path: str, position: int) -> None:
        """A read met damage in this file, at this position."""
        for segment in self._log.segments:
            known = any(hole.position <= position < hole.end for hole in segment.holes)
            if segment.file.path == path and not known:
                self.suspects[segment] = None

    def surveyed(self, segment: Segment, holes: list[Hole]) -> None:
        """These are all the holes of a segment."""
        self.suspects.pop(segment, None)
        segment.holes = Holes(holes)
        if holes:
            self._rotten[segment] = None

    def forget(self, segment: Segment) -> None:
        """The segment is not part of the log any more."""
        self.suspects.pop(segment, None)
        self.unsynced.pop(segment, None)
        self._rotten.pop(segment, None)

    def holes(self) -> Iterator[tuple[Segment, Hole]]:
        """In the part of the log that there is now, oldest first."""
        log = self._log
        for segment in sorted(self._rotten, key=lambda segment: segment.base_offset):
            if segment not in log.segments:
                self.forget(segment)
                continue
            for hole in segment.holes:
                if hole.next_offset > log.log_start_offset:  # rule B19/holes-outlive-their-records
                    yield segment, hole

    def before_cut(self, offset: int) -> tuple[Segment, Hole] | None:
        """A hole that has records before `offset`. It is to be healed before the log is cut there (schedule 88): no cut
        lands inside of it, and who wrote what is left after a cut is read from the log.
        """
        # schedule 88/producers-in-a-hole-are-forgotten
        return next((found for found in self.holes() if found[1].offset < offset), None)

    def mend(self, segment: Segment, hole: Hole, batches: memoryview) -> Hole | None:
        """Write over a hole, from its beginning on, the batches that another replica of the same leader epochs has.
        What of `batches` lies behind it is left alone. Returns what is left of the hole.

        Raises:
            KafkaError: CORRUPT_MESSAGE for batches that do not belong there or do not fit; nothing was written.
                KAFKA_STORAGE_ERROR.
            StorageError: the disk failed; the log is fenced from now on.
        """
        log = self._log
        # rule B19/whatever-comes-fills-the-hole
        size, offset = intact_end(batches, hole.offset, log.epochs, log.log_start_offset, hole.next_offset)
        room = hole.end - hole.position
        fits = 0 < size <= room and (offset == hole.next_offset) == (size == room)
        # rule B19/holes-of-former-segments-are-filled
        if not fits or hole not in segment.holes or segment not in log.segments:  # its name may be another's by now
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                "the leader's batches do not fit where these have rotted",
                offset=hole.offset,
                next_offset=hole.next_offset,
                bytes_there=room,
                bytes_come=size,
            )
        mark("rot-mended")
        try:
            segment.file.pwrite(batches[:size], hole.position)
        except DiskError as error:
            raise log.disk_failed(error) from error
        log.unsynced.add(segment.file)
        self.unsynced[segment] = None
        left = None if size == room else Hole(hole.position + size, hole.end, offset, hole.next_offset)
        kept = tuple(left if one == hole else one for one in segment.holes)
        segment.holes = Holes(one for one in kept if one is not None)
        return left
