"""Formats of the files in a node's directories: one table, and who refuses a file of a newer build.

A build reads every format of the builds before it. One that came later it would take for damage, and do what helps
against damage: build the file anew, count logs as lost. So the files are looked at before anything is changed, names
included, and a newer one ends the start (rule B35).

Bits rot, and a version is a digit or two: a newer version counts only where a checksum bears it out. So there is one
head for every format that is to come, whatever the file: the line `strandline VERSION RELEASE CRC32C`, with a checksum
of the version, the release and all that follows the line (`sealed`). What stands today has no head. That is version 0,
but for files with a version under a checksum of their own, which counts too.

A file that cannot say it is guarded by one that can: a build that writes a newer format of it raises that one's version
before.
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
    """Version of a file, and the first release that knows it; empty: the file does not say which."""

    version: int
    release: str = ""


def sealed(version: int, release: str, body: bytes) -> bytes:
    """A file of a version that came after its first one. `release`: the first that knows it."""
    said = b"%d %s" % (version, release.encode())
    return b"strandline %s %d\n%s" % (said, crc32c(said + b"\n" + body), body)


def unsealed(data: bytes) -> tuple[FileVersion, bytes]:
    """What `sealed` was given; of a file without that head, or damaged, version 0 and all its bytes."""
    head = _HEAD.match(data)
    if head is None:
        return FileVersion(0), data
    version, release, checksum = head.groups()
    body = data[head.end() :]
    if crc32c(b"%s %s\n%s" % (version, release, body)) != int(checksum):  # rule B35/a-rotten-version-counts
        return FileVersion(0), data
    return FileVersion(int(version), release.decode()), body


def _in_nothing(_: bytes) -> int:
    """The first format has no number, or none that a checksum covers."""
    return 0


def _in_properties(data: bytes) -> int:
    """The `version` of Kafka's properties under our checksum (`with_checksum`)."""
    check_checksum(data)
    return int(decode_properties(data)["version"]) if b"#crc32c=" in data else 0


def _in_quorum_state(data: bytes) -> int:
    """The `data_version` of Kafka's QuorumStateData, with our checksum among the fields."""
    fields = read_json(data)
    whole = fields.pop("crc") == crc32c(json.dumps(fields, separators=(",", ":")).encode())
    return int(fields["data_version"]) if whole else 0


class Format(NamedTuple):
    """One kind of file.

    Attributes:
        name: in the directory, as docs/storage.md has it; `T-P`: the directory of any partition.
        version: the newest that this build reads, and writes.
        stands_in: reads the version of a file without the head of `sealed`, as far as a checksum bears it out.
        guard: the file whose version stands for this one's, where its own bytes cannot.
    """

    name: str
    version: int = 0
    stands_in: Callable[[bytes], int] = _in_nothing
    guard: str = ""

    def told(self, data: bytes) -> FileVersion:
        """Version of a file of this kind."""
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
"""Every file that a node writes into its directories. Whoever adds one adds a row; a newer form raises its version."""

_BY_NAME = {one.name: one for one in FORMATS if not one.guard}


def take_directory(disk: Disk, path: str) -> DirectoryLock:
    """Lock a directory for this process, which is about to change it, unless it holds a file of a newer build.

    Raises:
        ConfigError: it does; nothing has changed.
        DirectoryInUse: another process has it.
        DiskError: it cannot be locked or read.
    """
    lock = disk.lock(path)
    try:
        refuse_newer(disk, path)  # rule B35/newer-files-are-taken-for-damage
    except BaseException:
        lock.release()
        raise
    return lock


def refuse_newer(disk: Disk, path: str) -> None:
    """Look at the files of a directory, also at those that a start has moved away (`rewriting`).

    Raises:
        ConfigError: one of them is of a newer build.
        DiskError: the directory cannot be listed.
    """
    for file, one in _files(disk, path):
        try:
            told = one.told(read_file(disk, f"{path}/{file}"))
        except (DiskError, FileNotFoundError):
            continue  # it is not there; or whoever needs it meets the same, and knows what to do
        if told.version > one.version:
            install = f"Strandline {told.release} or newer" if told.release else "the build that wrote it"
            expected = (
                f"{file} in it has the format {told.version}, and this build, Strandline {strandline.__version__}, "
                f"reads it up to {one.version}. Install {install}; nothing here was changed"
            )
            raise ConfigError("log.dirs", path, expected)


def _files(disk: Disk, path: str) -> Iterator[tuple[str, Format]]:
    """Files that say their own version, if they are there, and what is known of each."""
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
    """The row of a file, by its path in the directory; None: no node writes it."""
    directory, _, name = file.rpartition("/")
    kinds = (directory, "T-P") if directory and directory != METADATA_DIRECTORY else (directory,)
    names = [f"{kind}/{name}".lstrip("/") for kind in kinds]
    return next((one for one in FORMATS if any(fnmatchcase(each, one.name) for each in names)), None)
