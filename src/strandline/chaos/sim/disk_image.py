"""A file of a simulated disk, with a written and a durable image; `disk_names` has the directories.

A file's written image is what reads see (the page cache). The durable image is kept as an undo log over it: *layers*,
oldest first, each with the content that its pages had before they were first written in it. A sync that starts closes
the current layer; when it ends, the layers up to that point are dropped, and so durable. What a power cut leaves is,
for every sector written since, any of the versions it had.

A sync that fails does what Linux does: the pages it covered count as clean from then on. Readers still see them, and
another sync of the file succeeds without bringing them to the disk; only writing them again does, and a sync after that
(schedule 32).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

PAGE_BYTES = 4096
_ZEROS = bytes(PAGE_BYTES)


@dataclass
class Layer:
    """Undo of one stretch of writes to a file."""

    number: int
    size: int
    """The file's size when the layer began."""
    pages: dict[int, bytes | None] = field(default_factory=dict)
    """Page -> content before the layer's first write to it; None is zeros."""
    cut_to: int | None = None
    """The layer began with a truncation to this size: a journalled step that survives whole or not at all."""


class FileNode:
    """One file, whatever names lead to it."""

    def __init__(self) -> None:
        self.size = 0
        self.pages: dict[int, bytearray] = {}
        self.layers: list[Layer] = [Layer(0, 0)]
        self.lost: dict[int, bytes | None] = {}
        """Pages whose write-back failed: the content that is really on the disk, until they are written again."""
        self.lost_size: int | None = None
        """The size that is really on the disk, where a failed sync should have changed it."""
        self.changed_from = 0
        """The lowest position that was written, or cut off, since the last check of this file set it."""
        self.modified_ms = 0
        """Time of the last write, by the wall clock of the process that wrote."""

    # --- reading and writing the page cache ---

    def read(self, size: int, position: int) -> bytes:
        end = min(position + size, self.size)
        if position >= end:
            return b""
        first, last = position // PAGE_BYTES, (end - 1) // PAGE_BYTES
        pages = self.pages
        joined = b"".join([bytes(pages.get(index, _ZEROS)) for index in range(first, last + 1)])
        start = position - first * PAGE_BYTES
        return joined[start : start + end - position]

    def write(self, data: memoryview, position: int) -> None:
        length = len(data)
        self.changed_from = min(self.changed_from, position)
        done = 0
        while done < length:
            index, start = divmod(position + done, PAGE_BYTES)
            count = min(PAGE_BYTES - start, length - done)
            self._touch(index)[start : start + count] = data[done : done + count]
            done += count
        self.size = max(self.size, position + length)

    def become(self, data: bytes) -> None:
        """Replace the whole content by `data`, which counts as durable."""
        self.pages = {
            start // PAGE_BYTES: bytearray(data[start : start + PAGE_BYTES].ljust(PAGE_BYTES, b"\0"))
            for start in range(0, len(data), PAGE_BYTES)
        }
        self.size = len(data)
        self.changed_from = 0
        self.layers = [Layer(self.layers[-1].number + 1, self.size)]
        self.lost, self.lost_size = {}, None

    def resize(self, size: int) -> None:
        """Extend the file with zeros, or truncate it."""
        if size < self.size:
            self.changed_from = min(self.changed_from, size)
            self._push_layer(cut_to=size)
            first = -(-size // PAGE_BYTES)
            for index in [index for index in self.pages if index >= first]:
                self._remember(index)
                del self.pages[index]
            if size % PAGE_BYTES and size // PAGE_BYTES in self.pages:
                page = self._touch(size // PAGE_BYTES)
                page[size % PAGE_BYTES :] = bytes(PAGE_BYTES - size % PAGE_BYTES)
        self.size = size

    def _remember(self, index: int) -> None:
        undo = self.layers[-1].pages
        if index not in undo:
            page = self.pages.get(index)
            undo[index] = None if page is None else bytes(page)

    def _touch(self, index: int) -> bytearray:
        self._remember(index)
        page = self.pages.get(index)
        if page is None:
            page = self.pages[index] = bytearray(PAGE_BYTES)
        return page

    def _push_layer(self, cut_to: int | None = None) -> Layer:
        layer = Layer(self.layers[-1].number + 1, self.size, cut_to=cut_to)
        self.layers.append(layer)
        return layer

    # --- syncing: two instants ---

    @property
    def dirty(self) -> bool:
        return len(self.layers) > 1 or bool(self.layers[0].pages) or self.layers[0].size != self.size

    def begin_sync(self) -> int:
        """The first instant: what is written by now is covered. Returns the token for the second."""
        return self._push_layer().number

    def _take_layers_before(self, token: int) -> list[Layer]:
        taken = [layer for layer in self.layers if layer.number < token]
        self.layers = [layer for layer in self.layers if layer.number >= token]
        return taken

    def complete_sync(self, token: int) -> None:
        """The second instant: what the sync covered is durable. What an earlier one failed over is not, unless it was
        written again since: a page by a write, the size by a change of it or by a write of what it should reach."""
        covered = self._take_layers_before(token)
        pages = [index for layer in covered for index in layer.pages]
        for index in pages:
            self.lost.pop(index, None)
        if self.lost_size is None or not covered:
            return
        size = self.layers[0].size
        if self._size_changed(covered, size):
            self.lost_size = None
        else:
            reached = min(size, PAGE_BYTES * (1 + max(pages, default=-1)))
            self.lost_size = max(self.lost_size, reached)
            self._forget_size(size)

    def _size_changed(self, covered: Sequence[Layer], size: int) -> bool:
        return any(layer.cut_to is not None or layer.size != size for layer in covered)

    def _forget_size(self, size: int) -> None:
        if self.lost_size == size:
            self.lost_size = None

    def fail_sync(self, token: int) -> None:
        """Fail the sync. Covered pages count as clean: they never reach the disk unless they are written again."""
        covered = self._take_layers_before(token)
        for layer in covered:
            for index, content in layer.pages.items():
                self.lost.setdefault(index, content)
            if self.lost_size is None:
                self.lost_size = layer.size
        if covered:
            self._forget_size(self.layers[0].size)

    # --- what would certainly survive ---

    def survives_until(self, start: int, end: int) -> int:
        """End, at most `end`, up to which the bytes from `start` on are the same in everything that a power cut at
        this instant may leave."""
        sizes = [self.size, *(layer.size for layer in self.layers)]
        sizes += [layer.cut_to for layer in self.layers if layer.cut_to is not None]
        sizes += [] if self.lost_size is None else [self.lost_size]
        position, end = start, min(end, *sizes)
        while position < end:
            index = position // PAGE_BYTES
            stop = min(end, (index + 1) * PAGE_BYTES)
            first, last = position - index * PAGE_BYTES, stop - index * PAGE_BYTES
            now = bytes(self.pages.get(index, _ZEROS)[first:last])
            for content in self._left_of(index):
                if (content or _ZEROS)[first:last] != now:
                    return position
            position = stop
        return max(start, end)

    def _left_of(self, index: int) -> list[bytes | None]:
        """Contents of a page that a power cut may leave instead of what is written now."""
        versions = [layer.pages[index] for layer in self.layers if index in layer.pages]
        return [self.lost[index]] if index in self.lost else versions

    def evict(self) -> None:
        """Drop clean pages from the page cache, as a kernel without memory does: reads then see what is on the disk."""
        dirty = {index for layer in self.layers for index in layer.pages}
        for index in [index for index in self.lost if index not in dirty]:
            self._put(index, self.lost.pop(index))
        if self.lost_size is not None and not self.dirty:
            self.size, self.lost_size = self.lost_size, None
            self.layers = [Layer(0, self.size)]

    # --- power cut ---

    def crash(self, rng: random.Random, sector_bytes: int) -> tuple[int, int]:
        """Become what a power cut leaves: durable content, and of later writes a random subset of sectors. Returns how
        many sectors went back, and how many might have."""
        if not self.dirty and not self.lost and self.lost_size is None:
            return 0, 0
        dirty = self.dirty
        self._settle_cuts(rng)
        durable_size = self.layers[0].size if self.lost_size is None else self.lost_size
        fate = rng.choice(("nothing", "everything", "some", "some"))
        gone = unsynced = 0
        for index in sorted({index for layer in self.layers for index in layer.pages} | set(self.lost)):
            went_back, might_have = self._crash_page(index, fate, rng, sector_bytes)
            gone += went_back
            unsynced += might_have
        written_size = durable_size if self.lost_size is not None and not dirty else self.size
        low, high = sorted((durable_size, written_size))
        size = {"nothing": durable_size, "everything": written_size}.get(
            fate, rng.choice((low, high, rng.randint(low, high)))
        )
        self.lost.clear()
        self.lost_size = None
        # What sectors of an older, longer file were left beyond the end reads as zeros when the file grows again.
        self.size = max(size, PAGE_BYTES * (1 + max(self.pages, default=0)))
        self.resize(size)
        self.layers = [Layer(0, size)]
        return gone, unsynced

    def _settle_cuts(self, rng: random.Random) -> None:
        """Truncations persist in order: undo the last of them whole, let no older data shine through the others."""
        cuts = [position for position, layer in enumerate(self.layers) if layer.cut_to is not None]
        kept = rng.randint(0, len(cuts))
        if kept < len(cuts):
            first = cuts[kept]
            for layer in reversed(self.layers[first:]):
                for index, content in layer.pages.items():
                    self._put(index, content)
                self.size = layer.size
            self.layers = self.layers[:first] or [Layer(0, self.size)]
        for position in cuts[:kept]:
            cut_to = self.layers[position].cut_to
            assert cut_to is not None
            for layer in self.layers[: position + 1]:
                layer.pages = {index: _cut(index, content, cut_to) for index, content in layer.pages.items()}
                layer.size = min(layer.size, cut_to)
            self.lost = {index: _cut(index, content, cut_to) for index, content in self.lost.items()}
            if self.lost_size is not None:
                self.lost_size = min(self.lost_size, cut_to)

    def _crash_page(self, index: int, fate: str, rng: random.Random, sector_bytes: int) -> tuple[int, int]:
        """Returns how many of the page's sectors went back, and how many might have."""
        versions = [layer.pages[index] for layer in self.layers if index in layer.pages]
        page = self.pages.get(index)
        now = None if page is None else bytes(page)
        if index in self.lost:
            versions = [self.lost[index], now] if versions else [self.lost[index]]
        else:
            versions.append(now)
        if fate == "nothing":
            self._put(index, versions[0])
        elif fate == "everything":
            self._put(index, versions[-1])
        else:
            sectors = []
            for start in range(0, PAGE_BYTES, sector_bytes):
                content = rng.choice(versions)
                sectors.append((content or _ZEROS)[start : start + sector_bytes])
            self._put(index, b"".join(sectors))
        page = self.pages.get(index)
        left, old = page or _ZEROS, versions[0] or _ZEROS
        new = now or _ZEROS
        starts = range(0, PAGE_BYTES, sector_bytes)
        went_back = sum(left[at : at + sector_bytes] != new[at : at + sector_bytes] for at in starts)
        return went_back, sum(old[at : at + sector_bytes] != new[at : at + sector_bytes] for at in starts)

    def _put(self, index: int, content: bytes | None) -> None:
        if content is None:
            self.pages.pop(index, None)
        else:
            self.pages[index] = bytearray(content)


def _cut(index: int, content: bytes | None, size: int) -> bytes | None:
    """A page's content in a file that was cut to `size`."""
    start = index * PAGE_BYTES
    if content is None or start >= size:
        return None
    keep = size - start
    return content if keep >= PAGE_BYTES else content[:keep] + bytes(PAGE_BYTES - keep)
