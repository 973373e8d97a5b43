"""Which of a node's directories each replica lies in, written down in the first one (several `log.dirs`).

A directory that is missing cannot say what was in it. Without this a replica whose directory is offline would look like
one that the node never had: it would be made anew, empty, in another directory. So the place of each replica outside of
the first directory is durable before its log is made, and what the directory's own checkpoints prove of its logs this
proves of the directory: that it is the one that had them, and no older copy of it.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from strandline.log.checkpoints import decode_checkpoint, decode_id, encode_checkpoint, encode_id
from strandline.log.disk import Disk, read_file, write_file_durably
from strandline.proto.ids import TopicId, TopicPartition

FILE_NAME = "replica-directories"

_ADVICE = (
    "Restore the file from a copy. Without one: move it away and restart, with all directories in place; the replicas "
    "outside of the first directory count as lost until they have caught up."
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


class Whereabouts:
    """What is written down. The replicas in the first directory are not in it.

    Invariant: the file is never behind where a log was made; it may name replicas that were deleted.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        """Raises CorruptLogError, DiskError."""
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self.unwritten = False
        """Something is noted here and not on the disk."""
        self.directories: dict[UUID, KnownDirectory] = {}
        self.replicas: dict[TopicPartition, Place] = {}
        if disk.exists(self._path):
            decode_checkpoint(self._path, read_file(disk, self._path), self._parse, _ADVICE)

    def _parse(self, line: str) -> None:
        kind, *words = line.split(" ", 4 if line.startswith("replica ") else 3)
        if kind == "directory":
            directory_id, incarnation, path = words
            self.directories[decode_id(directory_id)] = KnownDirectory(path, decode_id(incarnation))
        elif kind == "replica":
            topic, number, topic_id, directory_id = words
            self.replicas[TopicPartition(topic, int(number))] = Place(decode_id(topic_id), decode_id(directory_id))
        else:
            raise ValueError(kind)

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
        lines = [
            f"directory {encode_id(key)} {encode_id(known.incarnation)} {known.path}"
            for key, known in self.directories.items()
        ]
        lines += [
            f"replica {tp.topic} {tp.partition} {encode_id(place.topic_id)} {encode_id(place.directory_id)}"
            for tp, place in sorted(self.replicas.items())
        ]
        write_file_durably(self._disk, self._path, encode_checkpoint(lines))
        self.unwritten = False
