"""Holes: ranges of a segment that are known not to be what was written (schedule 80)."""

from __future__ import annotations

from typing import NamedTuple


class Hole(NamedTuple):
    """A range of a segment that is not what was written, between batches that are."""

    position: int
    end: int
    """Position after it."""
    offset: int
    """The first one that is missing."""
    next_offset: int


class Holes(tuple[Hole, ...]):
    """Those of one segment, in order."""

    __slots__ = ()

    def ending_at(self, position: int) -> Hole | None:
        """The hole that ends here."""
        return next((hole for hole in self if hole.end == position), None)

    def out_of(self, position: int) -> int:
        """The end of the hole that `position` lies in, as an entry of an index may; else `position`."""
        # rule B19/what-stands-in-a-hole-is-a-batch
        return next((hole.end for hole in self if hole.position <= position < hole.end), position)

    def around(self, offset: int) -> Hole | None:
        """The hole in which the record at `offset` was."""
        return next((hole for hole in self if hole.offset <= offset < hole.next_offset), None)

    def offset_after(self, offset: int) -> int:
        """The offset from `offset` on at which the next hole begins; far beyond the end if there is none."""
        return next((hole.offset for hole in self if hole.offset >= offset), 1 << 63)
