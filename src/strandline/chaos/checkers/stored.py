"""Reads partition logs straight from simulated disks, past every port and by no parser of the product's: looking must
change nothing, and must not believe what it looks at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from strandline.chaos.checkers.batches import HEADER_BYTES, StoredBatch, parse, verify
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.disk_image import FileNode
from strandline.chaos.sim.disk_names import DirNode
from strandline.log.rewriting import AWAY

_SWAP = ".swap"


class Place(NamedTuple):
    """Position of a batch in a file, from which a reader can continue without reading the earlier ones."""

    file: FileNode
    position: int


def names_in(disk: SimDisk, directory: str) -> list[str]:
    """The names in a directory as written; none where there is no such directory."""
    node = find_directory(disk, directory)
    return sorted(_home(name) for name in node.entries) if isinstance(node, DirNode) else []


def find_directory(disk: SimDisk, directory: str) -> object:
    """The directory; a start that was cut short may have left it, or names in it, away."""
    return disk.names.find(directory) or disk.names.find(directory + AWAY)


def _home(name: str) -> str:
    return name.removesuffix(AWAY)


def stored_headers(
    disk: SimDisk, directory: str, *, start: int = 0, place: Place | None = None
) -> Iterator[tuple[StoredBatch, Place]]:
    """A partition's batches as written, from the one that holds offset `start`; their CRCs hold.

    `place`, where given, is one at or before that batch; it is of no use once its segment is deleted.

    Raises:
        NotABatch: what lies there is none that is whole.
    """
    node = find_directory(disk, directory)
    if not isinstance(node, DirNode):
        return
    segments = segments_in(node)
    known = place is not None and any(file is place.file for _, file in segments)
    for number, (_, file) in enumerate(segments):
        position = 0
        if known:
            assert place is not None
            if file is not place.file:
                continue
            known, position = False, place.position
        elif number + 1 < len(segments) and segments[number + 1][0] <= start:
            continue
        for batch, at in _batches(file, position):
            if batch.last_offset >= start:
                yield batch, Place(file, at)


def stored_batches(
    disk: SimDisk, directory: str, *, start: int = 0, end: int | None = None
) -> Iterator[tuple[StoredBatch, bytes]]:
    """The batches of a partition's directory as written, from the one that holds `start`, up to offset `end`.

    Raises:
        NotABatch: what lies there is none that is whole.
    """
    for batch, (file, position) in stored_headers(disk, directory, start=start):
        if end is not None and batch.last_offset >= end:
            return
        yield batch, file.read(batch.size, position)


def segments_in(directory: DirNode) -> list[tuple[int, FileNode]]:
    """The segments that lie there, by the offset that each begins at. One that compaction is swapping in counts as soon
    as an old one has made way for it: that a start would finish."""
    names = {_home(name): file for name, file in directory.entries.items()}
    for name in [name for name in names if name.endswith(_SWAP) and name.removesuffix(_SWAP) not in names]:
        names[name.removesuffix(_SWAP)] = names[name]
    return _segments(names.items())


def _segments(names: Iterable[tuple[str, object]]) -> list[tuple[int, FileNode]]:
    found = [(int(name[:20]), file) for name, file in names if _is_segment(name)]
    return sorted(((base, file) for base, file in found if isinstance(file, FileNode)), key=lambda one: one[0])


def _is_segment(name: str) -> bool:
    return name.endswith(".log") and len(name) == 24 and name[:20].isdigit()


def batch_at(file: FileNode, position: int) -> StoredBatch | None:
    """Header of the batch that begins there; None at the end of what was written. Raises NotABatch."""
    head = file.read(HEADER_BYTES, position)
    return parse(head) if any(head[:17]) else None  # zeros are preallocated, and not written yet


def _batches(file: FileNode, position: int) -> Iterator[tuple[StoredBatch, int]]:
    while (batch := batch_at(file, position)) is not None:
        verify(batch, file.read(batch.size, position))
        yield batch, position
        position += batch.size
