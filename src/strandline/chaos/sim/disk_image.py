"""What a simulated disk holds: files with a written and a durable image, directories with synced and unsynced names.

A file's written image is what reads see (the page cache). The durable image is kept as an undo log over it: *layers*,
oldest first, each with the content that its pages had before they were first written in it. A sync that starts closes
the current layer; when it ends, the layers up to that point are dropped, and so durable. What a power cut leaves is,
for every sector written since, any of the versions it had.
"""

from __future__ import annotations

import random
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
        """Pages whose write-back failed: the content that is really on the disk. Syncing again does not help (D-32)."""
        self.lost_size: int | None = None

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
        done = 0
        while done < length:
            index, start = divmod(position + done, PAGE_BYTES)
            count = min(PAGE_BYTES - start, length - done)
            self._touch(index)[start : start + count] = data[done : done + count]
            done += count
        self.size = max(self.size, position + length)

    def resize(self, size: int) -> None:
        """Grow with zeros, or cut."""
        if size < self.size:
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
        """The second instant: what the sync covered is durable."""
        for layer in self._take_layers_before(token):
            for index in layer.pages:
                self.lost.pop(index, None)
        self.lost_size = None

    def fail_sync(self, token: int) -> None:
        """The kernel drops its dirty marks: what was covered will never reach the disk unless written again."""
        for layer in self._take_layers_before(token):
            for index, content in layer.pages.items():
                self.lost.setdefault(index, content)
            if self.lost_size is None:
                self.lost_size = layer.size

    # --- power cut ---

    def crash(self, rng: random.Random, sector_bytes: int) -> tuple[int, int]:
        """Become what a power cut leaves: durable content, and of later writes a random subset of sectors. Returns how
        many sectors went back, and how many might have."""
        if not self.dirty and not self.lost and self.lost_size is None:
            return 0, 0
        self._settle_cuts(rng)
        durable_size = self.layers[0].size if self.lost_size is None else self.lost_size
        fate = rng.choice(("nothing", "everything", "some", "some"))
        gone = unsynced = 0
        for index in sorted({index for layer in self.layers for index in layer.pages} | set(self.lost)):
            went_back, might_have = self._crash_page(index, fate, rng, sector_bytes)
            gone += went_back
            unsynced += might_have
        low, high = sorted((durable_size, self.size))
        size = {"nothing": durable_size, "everything": self.size}.get(
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


class DirNode:
    """A directory: its names as written."""

    def __init__(self) -> None:
        self.entries: dict[str, FileNode | DirNode] = {}


@dataclass(eq=False)
class NameChange:
    """One atomic, journalled change of names: a create, an unlink, a rename."""

    steps: list[tuple[DirNode, str, FileNode | DirNode | None, FileNode | DirNode | None]]
    """(directory, name, node before, node after)."""

    def touches(self, directory: DirNode) -> bool:
        return any(step[0] is directory for step in self.steps)

    def apply(self) -> None:
        for directory, name, _, after in self.steps:
            _set(directory, name, after)

    def revert(self) -> None:
        for directory, name, before, _ in reversed(self.steps):
            _set(directory, name, before)


def _set(directory: DirNode, name: str, node: FileNode | DirNode | None) -> None:
    if node is None:
        directory.entries.pop(name, None)
    else:
        directory.entries[name] = node


class Names:
    """The directory tree, with the changes that no `sync_dir` covers yet."""

    def __init__(self) -> None:
        self.root = DirNode()
        self.unsynced: list[NameChange] = []

    def find(self, path: str) -> FileNode | DirNode | None:
        node: FileNode | DirNode | None = self.root
        for part in path.split("/"):
            if part:
                if not isinstance(node, DirNode):
                    return None
                node = node.entries.get(part)
        return node

    def parent(self, path: str) -> tuple[DirNode, str]:
        """The directory that holds, or would hold, `path`, and the last name.

        Raises:
            FileNotFoundError: the directory does not exist.
        """
        head, _, name = path.rstrip("/").rpartition("/")
        directory = self.find(head)
        if not isinstance(directory, DirNode):
            raise FileNotFoundError(2, "No such file or directory", path)
        return directory, name

    def change(self, *steps: tuple[DirNode, str, FileNode | DirNode | None]) -> None:
        """Carry out one atomic change of names."""
        change = NameChange([(where, name, where.entries.get(name), after) for where, name, after in steps])
        change.apply()
        self.unsynced.append(change)

    def begin_sync(self, directory: DirNode) -> list[NameChange]:
        """The first instant of a sync of `directory`: the changes it covers."""
        return [change for change in self.unsynced if change.touches(directory)]

    def complete_sync(self, covered: list[NameChange]) -> None:
        """The second instant: they are durable."""
        self.unsynced = [change for change in self.unsynced if not any(change is done for done in covered)]

    def crash(self, rng: random.Random) -> list[NameChange]:
        """Lose unsynced changes: all after some point of the journal, or, on a looser file system, any of them. Returns
        those."""
        changes, self.unsynced = self.unsynced, []
        if not changes:
            return []
        if rng.random() < 0.5:
            lost = changes[rng.randint(0, len(changes)) :]
        else:
            lost = []
            spoilt: list[tuple[DirNode, str]] = []
            for change in changes:
                names = [(where, name) for where, name, _, _ in change.steps]
                if rng.random() < 0.5 or any(where is w and name == n for where, name in names for w, n in spoilt):
                    lost.append(change)
                    spoilt.extend(names)
        for change in reversed(lost):
            change.revert()
        return lost

    def files(self) -> list[tuple[str, FileNode]]:
        """Every file with its path, in the order of paths."""
        found: list[tuple[str, FileNode]] = []
        stack: list[tuple[str, DirNode]] = [("", self.root)]
        while stack:
            path, directory = stack.pop()
            for name, node in directory.entries.items():
                if isinstance(node, DirNode):
                    stack.append((f"{path}/{name}", node))
                else:
                    found.append((f"{path}/{name}", node))
        return sorted(found, key=lambda item: item[0])
