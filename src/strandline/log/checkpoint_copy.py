"""The copy of a directory's offset checkpoints that stands beside them, under a checksum (rule B31, schedule 99).

Recovery points, high watermarks and log starts are Kafka's text files, which have no checksum: one bit makes a
well-formed offset that is wrong, by which records are deleted, or missed. So the three stand in one more file as well.
A start that finds a checkpoint damaged takes the copy of it. Where both can be read and differ, one of them is an older
one, or was damaged, or the node died between the two: of two offsets neither is proven, and the lower one promises and
deletes less.

An older build knows nothing of the copy, and a directory of its has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import structlog
from crc32c import crc32c

from strandline.log.checkpoints import (
    CLEANER_OFFSETS,
    LOG_STARTS,
    OFFSET_CHECKPOINTS,
    Cleaned,
    decode_cleaned,
    decode_offsets,
)
from strandline.log.disk import Disk, read_file
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import TopicPartition
from strandline.proto.marks import mark

log = structlog.get_logger("strandline.log")

CHECKPOINT_COPY = "offset-checkpoints-copy"

_VERSION = b"0"
_ADVICE = "It is written anew with the next checkpoint."


def encode_copy(checkpoints: Mapping[str, bytes]) -> bytes:
    """Version and checksum; then of each checkpoint its name, its size and its bytes."""
    body = b"".join(b"%s %d\n%s" % (name.encode(), len(data), data) for name, data in sorted(checkpoints.items()))
    return b"%s %d\n%s" % (_VERSION, crc32c(body), body)


def decode_copy(path: str, data: bytes) -> dict[str, bytes]:
    """The checkpoints of `encode_copy`, by name. Raises CorruptLogError."""
    head, _, body = data.partition(b"\n")
    if head != b"%s %d" % (_VERSION, crc32c(body)):
        raise CorruptLogError(path, 0, None, "its checksum does not hold", _ADVICE)
    found: dict[str, bytes] = {}
    while body:
        line, _, body = body.partition(b"\n")
        name, _, size = line.decode().partition(" ")
        found[name], body = body[: int(size)], body[int(size) :]
    return found


class Believed(NamedTuple):
    """What the files of one directory say together.

    Attributes:
        offsets: by checkpoint: the lower one where two files differ. A name that is missing is of a file that is, with
            its copy.
        starts_claimed: log starts that one file alone says, all higher than those in `offsets`. A third witness may
            bear them out: the log's own leader epochs.
        cleaned: how far logs were compacted, as both files say: what is not known is compacted again.
        in_doubt: what was durable is not known: a checkpoint and its copy are both damaged.
    """

    offsets: dict[str, dict[TopicPartition, int]]
    starts_claimed: dict[TopicPartition, int]
    cleaned: dict[TopicPartition, Cleaned]
    in_doubt: bool


def read_checkpoints(disk: Disk, directory: str) -> Believed:
    """Hold the checkpoints of a directory against their copy. Raises DiskError."""
    copies = _read_copy(disk, directory)
    believed = Believed({}, {}, {}, False)
    for name in OFFSET_CHECKPOINTS:
        path = f"{directory}/{name}"
        if name == CLEANER_OFFSETS:
            believed.cleaned.update(_read_cleaned(disk, path, copies.get(name)))
            continue
        there = disk.exists(path)
        # rule B31/a-damaged-checkpoint-has-no-copy
        copy = None if name not in copies else decode_offsets(path, copies[name])
        own = _read_own(disk, path, has_copy=copy is not None) if there else None
        if own is not None and copy is not None and own != copy:
            _tell_difference(path, own, copy)
        if own is not None and name == LOG_STARTS:
            highest = {tp: max(own.get(tp, 0), (copy or {}).get(tp, 0)) for tp in own.keys() | (copy or {}).keys()}
            believed.offsets[name] = lower = _lower(own, copy or {})
            believed.starts_claimed.update((tp, at) for tp, at in highest.items() if at > lower.get(tp, 0))
        elif own is not None or copy is not None:
            believed.offsets[name] = copy or {} if own is None else own if copy is None else _lower(own, copy)
        elif there and name != LOG_STARTS:
            believed = believed._replace(in_doubt=True)
    return believed


def _read_cleaned(disk: Disk, path: str, copy: bytes | None) -> dict[TopicPartition, Cleaned]:
    if not disk.exists(path):
        return {}
    copied = {} if copy is None else decode_cleaned(path, copy)
    try:
        own = decode_cleaned(path, read_file(disk, path))
    except CorruptLogError as error:
        mark("checkpoint-damaged")
        log.warning("a checkpoint is damaged: what its copy does not say is compacted again", error=str(error))
        return copied
    both = {
        tp: min(own[tp], copied[tp]) for tp in own.keys() & copied.keys() if own[tp].topic_id == copied[tp].topic_id
    }
    if both != copied or both != own:
        mark("checkpoints-differ")
        log.warning("one file alone says how far some logs were compacted; they are compacted again", file=path)
    return both


def _tell_difference(path: str, own: Mapping[TopicPartition, int], copy: Mapping[TopicPartition, int]) -> None:
    mark("checkpoints-differ")
    differ = sorted(str(tp) for tp in own.keys() | copy.keys() if own.get(tp, 0) != copy.get(tp, 0))
    log.warning(
        "a checkpoint and its copy differ: the lower offset counts, and both are written anew",
        file=path,
        partitions=len(differ),
        first=differ[:3],
    )


def _lower(own: Mapping[TopicPartition, int], copy: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {tp: min(own[tp], copy[tp]) for tp in own.keys() & copy.keys()}  # rule B31/the-higher-promise-counts


def _read_copy(disk: Disk, directory: str) -> dict[str, bytes]:
    path = f"{directory}/{CHECKPOINT_COPY}"
    if not disk.exists(path):
        return {}
    try:
        return decode_copy(path, read_file(disk, path))
    except CorruptLogError as error:
        mark("checkpoint-copy-damaged")
        log.warning("the copy of the checkpoints is damaged, and is written anew", error=str(error))
        return {}


def _read_own(disk: Disk, path: str, *, has_copy: bool) -> dict[TopicPartition, int] | None:
    try:
        return decode_offsets(path, read_file(disk, path))
    except CorruptLogError as error:
        mark("checkpoint-damaged")
        if has_copy:
            log.warning("a checkpoint is damaged, and is built anew from its copy", error=str(error))
        else:
            log.error("a checkpoint is damaged and has no copy: the logs alone say what it said", error=str(error))
        return None
