"""Numbers by offset, in pages: compact as an array where offsets are dense, frugal as a dict where they are not."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

PAGE_BITS = 9
PAGE_SIZE = 1 << PAGE_BITS
PAGE_MASK = PAGE_SIZE - 1


class Pages:
    """A map from offsets (>= 0) to ints of 64 bits, with a value for "none".

    `pages` is there for loops that cannot afford a call each; keys are `offset >> PAGE_BITS`.
    """

    __slots__ = ("_fresh", "default", "pages")

    def __init__(self, default: int = -1) -> None:
        self.default = default
        self.pages: dict[int, array[int]] = {}
        self._fresh = array("q", [default]) * PAGE_SIZE

    def get(self, offset: int) -> int:
        """The number at `offset`, or the default."""
        page = self.pages.get(offset >> PAGE_BITS)
        return self.default if page is None else page[offset & PAGE_MASK]

    def put(self, offset: int, number: int) -> None:
        """Set the number at `offset`."""
        key = offset >> PAGE_BITS
        page = self.pages.get(key)
        if page is None:
            page = self.pages[key] = self._fresh[:]
        page[offset & PAGE_MASK] = number

    def items(self) -> Iterator[tuple[int, int]]:
        """(offset, number) of all that were set, in order of offset."""
        for key in sorted(self.pages):
            base = key << PAGE_BITS
            for place, number in enumerate(self.pages[key]):
                if number != self.default:
                    yield base + place, number
