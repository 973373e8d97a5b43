"""Which of a node's directories each replica lies in, written down in the first one (several `log.dirs`).

A directory that is missing cannot say what was in it. Without this a replica whose directory is offline would look like
one that the node never had: it would be made anew, empty, in another directory. So the place of each replica outside of
the first directory is durable before its log is made, and what the directory's own checkpoints prove of its logs this
proves of the directory: that it is the one that had them, and no older copy of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from strandline.log.checkpoints import decode_id, encode_id, read_twice, write_twice
from strandline.log.disk import Disk
from strandline.proto.ids import TopicId, TopicPartition

FILE_NAME = "replica-directories"

_ADVICE = (
    "Restore the file from a backup. Without one: move it and its copy away and restart, with all directories in "
    "place; the replicas outside of the first directory count as lost until they have caught up."
)


class KnownDirectory(NamedTuple):
    """A directory that has, or had, replicas.

    Attributes:
        path: where it was when it was last used.
        incarnation: of the last process that registered while it used the directory.
    """

    path: str
    incarnation: UUID


class Place(NamedTuple):
    """Where a replica lies: by the directory's id, for a new disk on the same path is another directory."""

    topic_id: TopicId
    directory_id: UUID


_NUMBER = "written"
"""The line that says how many times the file was written."""

_Line = int | tuple[UUID, KnownDirectory] | tuple[TopicPartition, Place]


@dataclass(slots=True)
class _Noted:
    """What one file says. `number` counts the writes: of two files the one with more is the newer one. A file of an
    older build has none, and was written after the copy beside it, of which that build knows nothing."""

    number: int = 0
    directories: dict[UUID, KnownDirectory] = field(default_factory=dict)
    replicas: dict[TopicPartition, Place] = field(default_factory=dict)


class Whereabouts:
    """What is written down, in a file and its copy. The replicas in the first directory are not in it.

    Invariant: the newer file is never behind where a log was made; it may name replicas that were deleted.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        """Raises CorruptLogError, DiskError."""
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self.unwritten = False
        """Something is noted here and not on the disk."""
        either = [_noted(entries) for entries in read_twice(disk, self._path, _parse, _ADVICE)]
        # rule B31/any-of-two-notes-counts
        newest = max(either, key=lambda noted: noted.number or math.inf, default=_Noted())
        self._number = max((noted.number for noted in either), default=0)
        self.directories = newest.directories
        self.replicas = newest.replicas

    def know(self, directory_id: UUID, known: KnownDirectory) -> None:
        """Take note of a directory that is used, in memory; `write` has to follow."""
        self.directories[directory_id] = known
        self.unwritten = True

    def put(self, tp: TopicPartition, place: Place | None) -> None:
        """Take note of where a replica lies, in memory; None: in the first directory, or nowhere. `write` has to
        follow before a log is made there."""
        if self.replicas.get(tp) != place:
            self.unwritten = True
            if place is None:
                del self.replicas[tp]
            else:
                self.replicas[tp] = place

    def write(self) -> None:
        """Make it durable, blocking; nothing where nothing has changed. Raises DiskError."""
        if not self.unwritten:
            return
        self._number += 1
        lines = [f"{_NUMBER} {self._number}"]
        lines += [
            f"directory {encode_id(key)} {encode_id(known.incarnation)} {known.path}"
            for key, known in self.directories.items()
        ]
        lines += [
            f"replica {tp.topic} {tp.partition} {encode_id(place.topic_id)} {encode_id(place.directory_id)}"
            for tp, place in sorted(self.replicas.items())
        ]
        write_twice(self._disk, self._path, lines)
        self.unwritten = False


def _noted(lines: list[_Line]) -> _Noted:
    """What the lines of a file say together."""
    noted = _Noted()
    for line in lines:
        match line:
            case int():
                noted.number = line
            case UUID() as directory_id, KnownDirectory() as known:
                noted.directories[directory_id] = known
            case TopicPartition() as tp, Place() as place:
                noted.replicas[tp] = place
    return noted


def _parse(line: str) -> _Line:
    """Raises ValueError."""
    kind, *words = line.split(" ", 4 if line.startswith("replica ") else 3)
    if kind == "directory":
        directory_id, incarnation, path = words
        return decode_id(directory_id), KnownDirectory(path, decode_id(incarnation))
    if kind == "replica":
        topic, number, topic_id, directory_id = words
        return TopicPartition(topic, int(number)), Place(decode_id(topic_id), decode_id(directory_id))
    if kind == _NUMBER:
        [number] = words
        return int(number)
    raise ValueError(kind)
