"""Reads partition logs straight from simulated disks, past every port: looking must change nothing."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.disk_image import DirNode, FileNode
from strandline.log.batch import HEADER_SIZE, BatchHeader, parse_header


def stored_batches(
    disk: SimDisk, directory: str, *, start: int = 0, end: int | None = None
) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches of a partition's directory as written, from the segment that holds `start`, up to offset `end`.

    Raises:
        KafkaError, ProtocolError: what lies there is no batch.
    """
    node = disk.names.find(directory)
    if not isinstance(node, DirNode):
        return
    segments = sorted((int(name[:20]), file) for name, file in node.entries.items() if _is_segment(name))
    for place, (_, file) in enumerate(segments):
        following = segments[place + 1][0] if place + 1 < len(segments) else None
        if following is not None and following <= start:
            continue
        assert isinstance(file, FileNode)
        for header, data in _file_batches(file):
            if end is not None and header.last_offset >= end:
                return
            if header.last_offset >= start:
                yield header, data


def _is_segment(name: str) -> bool:
    return name.endswith(".log") and len(name) == 24 and name[:20].isdigit()


def _file_batches(file: FileNode) -> Iterator[tuple[BatchHeader, bytes]]:
    position = 0
    while position + HEADER_SIZE <= file.size:
        head = file.read(HEADER_SIZE, position)
        if not any(head[:17]):
            return  # preallocated, not written yet
        header = parse_header(head)
        yield header, file.read(header.size, position)
        position += header.size
