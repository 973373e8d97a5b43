"""Formats of the files in a node's directories, and a check that refuses files of a newer build.

A build reads every format of earlier builds. It would take a later format for damage, and repair it: rebuild the file,
or count logs as lost. So all files are checked before anything is changed, even names, and a file with a newer format
ends the start (rule B35).

A version is a digit or two, which a disk error can change. So a newer version counts only if a checksum confirms it.
Every future format starts with the line `strandline VERSION RELEASE CRC32C`, a header whose checksum covers the
version, the release and the rest of the file (`sealed`). A file without this header has version 0, unless it has a
version under a checksum of its own.

A file that cannot hold a version has a guard, i.e. another file whose version counts for both. A build that writes a
newer format of the file first raises the guard's version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from crc32c import crc32c

import strandline
from strandline.log.checkpoints import check_checksum, decode_properties
from strandline.log.disk import LOCK_FILE, METADATA_DIRECTORY, DirectoryLock, Disk, DiskError, read_file
from strandline.log.rewriting import AWAY
from strandline.proto.errors import ConfigError
from strandline.proto.json_text import read_json

_HEAD = re.compile(rb"strandline (\d{1,9}) ([0-9.]{1,32}) (\d{1,10})\n")


class FileVersion(NamedTuple):
    """Version of a file, and the first release that can read it; "" if the file does not name the release."""

    version: int
    release: str = ""


def sealed(version: int, release: str, body: bytes) -> bytes:
    """Content of a file with the header of a later version. `release`: the first release that can read it."""
    said = b"%d %s" % (version, release.encode())
    return b"strandline %s %d\n%s" % (said, crc32c(said + b"\n" + body), body)


def unsealed(data: bytes) -> tuple[FileVersion, bytes]:
    """Split the content of a file into (version, body). A file without a valid header has version 0, and its whole
    content is the body."""
    head = _HEAD.match(data)
    if head is None:
        return FileVersion(0), data
    version, release, checksum = head.groups()
    body = data[head.end() :]
    if crc32c(b"%s %s\n%s" % (version, release, body)) != int(checksum):  # rule B35/a-rotten-version-counts
        return FileVersion(0), data
    return FileVersion(int(version), release.decode()), body


def _in_nothing(_: bytes) -> int:
    """Version 0: the file's first format has no version, or none that is covered by a checksum."""
    return 0


def _in_properties(data: bytes) -> int:
    """Version in a properties file, if its checksum is correct (`with_checksum`)."""
    check_checksum(data)
    return int(decode_properties(data)["version"]) if b"#crc32c=" in data else 0


def _in_quorum_state(data: bytes) -> int:
    """Version (`data_version`) in a file of Kafka's QuorumStateData, if our checksum field is correct."""
    fields = read_json(data)
    whole = fields.pop("crc") == crc32c(json.dumps(fields, separators=(",", ":")).encode())
    return int(fields["data_version"]) if whole else 0


class Format(NamedTuple):
    """Format of one kind of file.

    Attributes:
        name: path in the data directory, as in docs/storage.md; `T-P` stands for the directory of any partition.
        version: newest version that this build reads, and the one that it writes.
        stands_in: reads the version of a file without the header; 0 if no checksum confirms one.
        guard: name of the guard, for a file that cannot hold a version; "" if it can.
    """

    name: str
    version: int = 0
    stands_in: Callable[[bytes], int] = _in_nothing
    guard: str = ""

    def told(self, data: bytes) -> FileVersion:
        """Version of a file of this kind, from its content."""
        told, _ = unsealed(data)
        if told.version:
            return told
        try:
            return FileVersion(self.stands_in(data))
        except (KeyError, ValueError, TypeError, AttributeError):
            return FileVersion(0)  # damaged


_META, _COPY, _STATE, _PARTITION = (
    "meta.properties",
    "offset-checkpoints-copy",
    f"{METADATA_DIRECTORY}/quorum-state",
    "T-P/partition.metadata",
)

FORMATS = (
    Format(_META, 1, _in_properties),
    Format("recovery-point-offset-checkpoint", guard=_COPY),
    Format("replication-offset-checkpoint", guard=_COPY),
    Format("log-start-offset-checkpoint", guard=_COPY),
    Format("cleaner-offset-checkpoint", 1, guard=_COPY),
    Format(_COPY),
    Format("incarnations"),
    Format("incarnations-copy"),
    Format(".boot-id"),
    Format(".kafka_cleanshutdown", guard=_META),
    Format("recovery-findings"),
    Format(".retention-clock"),
    Format("replica-directories"),
    Format("replica-directories-copy"),
    Format("bootstrap-records"),
    Format("initial-controllers"),
    Format(LOCK_FILE, guard=_META),
    Format("quorum-promise", 1, _in_quorum_state),
    Format(_STATE, 1, _in_quorum_state),
    Format(f"{METADATA_DIRECTORY}/recovery-point.properties"),
    Format(f"{METADATA_DIRECTORY}/*.checkpoint", guard=_STATE),
    Format(f"{METADATA_DIRECTORY}/leader-epoch-checkpoint", guard=_STATE),
    Format(f"{METADATA_DIRECTORY}/*.log", guard=_STATE),
    Format(f"{METADATA_DIRECTORY}/*.index", guard=_STATE),
    Format(f"{METADATA_DIRECTORY}/*.timeindex", guard=_STATE),
    Format(f"{METADATA_DIRECTORY}/*.snapshot", 1, guard=_STATE),
    Format(_PARTITION, stands_in=_in_properties),
    Format("T-P/leader-epoch-checkpoint", guard=_PARTITION),
    Format("T-P/*.log", guard=_PARTITION),
    Format("T-P/*.index", guard=_PARTITION),
    Format("T-P/*.timeindex", guard=_PARTITION),
    Format("T-P/*.txnindex", guard=_PARTITION),
    Format("T-P/*.snapshot", 1, guard=_PARTITION),
)
"""All files that a node writes into its directories. A new file needs a new row; a new format a higher version."""

_BY_NAME = {one.name: one for one in FORMATS if not one.guard}


def take_directory(disk: Disk, path: str) -> DirectoryLock:
    """Lock a directory for this process, before it changes anything in it.

    Raises:
        ConfigError: the directory has a file of a newer build; nothing was changed.
        DirectoryInUse: another process has locked the directory.
        DiskError: the directory cannot be locked or read.
    """
    lock = disk.lock(path)
    try:
        refuse_newer(disk, path)  # rule B35/newer-files-are-taken-for-damage
    except BaseException:
        lock.release()
        raise
    return lock


def refuse_newer(disk: Disk, path: str) -> None:
    """Check that no file of a directory has a newer format, including files moved away by an earlier start
    (`rewriting`).

    Raises:
        ConfigError: a file has a newer format.
        DiskError: the directory cannot be listed.
    """
    for file, one in _files(disk, path):
        try:
            told = one.told(read_file(disk, f"{path}/{file}"))
        except (DiskError, FileNotFoundError):
            continue  # the file does not exist, or cannot be read: the code that needs it reports that
        if told.version > one.version:
            install = f"Strandline {told.release} or newer" if told.release else "the build that wrote it"
            expected = (
                f"{file} in it has the format {told.version}, and this build, Strandline {strandline.__version__}, "
                f"reads it up to {one.version}. Install {install}; nothing here was changed"
            )
            raise ConfigError("log.dirs", path, expected)


def _files(disk: Disk, path: str) -> Iterator[tuple[str, Format]]:
    """(path, format) of each file in the directory that may hold a version."""
    for name in disk.listdir(path):
        here = name.removesuffix(AWAY)  # rule B35/what-was-moved-away-is-not-looked-at
        if here in _BY_NAME:
            yield name, _BY_NAME[here]
            continue
        kind = METADATA_DIRECTORY if here == METADATA_DIRECTORY else "T-P"
        for inner, one in _BY_NAME.items():
            if inner.startswith(f"{kind}/"):
                file = f"{name}/{inner.partition('/')[2]}"
                yield from ((file, one), (f"{file}{AWAY}", one))


def format_of(file: str) -> Format | None:
    """Format of a file, by its path in the directory; None if no node writes such a file."""
    directory, _, name = file.rpartition("/")
    kinds = (directory, "T-P") if directory and directory != METADATA_DIRECTORY else (directory,)
    names = [f"{kind}/{name}".lstrip("/") for kind in kinds]
    return next((one for one in FORMATS if any(fnmatchcase(each, one.name) for each in names)), None)
