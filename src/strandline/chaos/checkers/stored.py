"""Reads partition logs straight from simulated disks, past every port: looking must change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.disk_image import FileNode
from strandline.chaos.sim.disk_names import DirNode
from strandline.log.batch import HEADER_SIZE, BatchHeader, parse_header
from strandline.log.rewriting import AWAY


class Place(NamedTuple):
    """Where a batch stands: who goes on from here need not read what lies before."""

    file: FileNode
    position: int


def names_in(disk: SimDisk, directory: str) -> list[str]:
    """The names in a directory as written; none where there is no such directory."""
    node = _find(disk, directory)
    return sorted(_home(name) for name in node.entries) if isinstance(node, DirNode) else []


def _find(disk: SimDisk, directory: str) -> object:
    """The directory; a start that was cut short may have left it, or names in it, away."""
    return disk.names.find(directory) or disk.names.find(directory + AWAY)


def _home(name: str) -> str:
    return name.removesuffix(AWAY)


def stored_headers(
    disk: SimDisk, directory: str, *, start: int = 0, place: Place | None = None
) -> Iterator[tuple[BatchHeader, Place]]:
    """The headers of a partition's batches as written, from the one that holds offset `start`.

    `place`, where given, is one at or before that batch; it is of no use once its segment is deleted.

    Raises:
        KafkaError, ProtocolError: what lies there is no batch.
    """
    node = _find(disk, directory)
    if not isinstance(node, DirNode):
        return
    segments = sorted((int(name[:20]), file) for name, file in node.entries.items() if _is_segment(_home(name)))
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
        assert isinstance(file, FileNode)
        for header, at in _headers(file, position):
            if header.last_offset >= start:
                yield header, Place(file, at)


def stored_batches(
    disk: SimDisk, directory: str, *, start: int = 0, end: int | None = None
) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches of a partition's directory as written, from the one that holds `start`, up to offset `end`.

    Raises:
        KafkaError, ProtocolError: what lies there is no batch.
    """
    for header, (file, position) in stored_headers(disk, directory, start=start):
        if end is not None and header.last_offset >= end:
            return
        yield header, file.read(header.size, position)


def _is_segment(name: str) -> bool:
    return name.endswith(".log") and len(name) == 24 and name[:20].isdigit()


def _headers(file: FileNode, position: int) -> Iterator[tuple[BatchHeader, int]]:
    while position + HEADER_SIZE <= file.size:
        head = file.read(HEADER_SIZE, position)
        if not any(head[:17]):
            return  # preallocated, not written yet
        header = parse_header(head)
        yield header, position
        position += header.size
