"""The sidecar of a segment in the object store: one small object with everything needed to find records in it.

| bytes | what |
|---|---|
| 4 | `SLTS` |
| 2 | format version: 1, or 2 with aborted transactions |
| 4 × (4 + 4) | length and CRC-32C of each part below |
| 4 | CRC-32C of the bytes above |
| | header: JSON, see `SidecarHeader` |
| | offset index: Kafka's `.index`, relative to the header's `base_offset` |
| | time index: Kafka's `.timeindex`; in version 2 followed by aborted transactions: entries of Kafka's `.txnindex` |
| | producers: the `.snapshot` of the segment's end offset, empty if the log had none |

Numbers are big-endian. Readers need all parts except the last, which may be large. The fields before the header are the
same in every version, so that a build which does not know the version can tell it from damage.

The aborted transactions are all those with records in the segment, even if their markers come later: read_committed
readers need no other sidecar, and no log. A segment without any is written in version 1, as before.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from uuid import UUID

from crc32c import crc32c

import strandline
from strandline.log.config import INT64_MAX
from strandline.log.segment import IndexDamaged, OffsetIndex, TimeIndex
from strandline.log.transactions import ABORTED_ENTRY_BYTES, AbortedIndex, AbortedTransaction
from strandline.proto.errors import CorruptLogError, StoreError
from strandline.proto.ids import TopicId
from strandline.proto.json_text import read_json

WITHOUT_ABORTED, VERSION = 1, 2
_MAGIC = b"SLTS"
_HEAD = struct.Struct(">4sH8I")
_CRC = struct.Struct(">I")
HEAD_BYTES = _HEAD.size + _CRC.size

PARTS_BYTES_MAX = (1 << 20, 64 << 20, 608 << 20, 256 << 20)
"""Maximum size of each part. An offset index of 64 MiB has 8 million entries: one for each 256 bytes of the largest
segment, 2 GiB. Kafka's own limit, `segment.index.bytes`, is 10 MiB. The time index of such a segment has 96 MiB; filled
with the smallest transactions, a record and a marker, it has 14.5 million of them, 470 MiB."""

Get = Callable[[str, int, int], Awaitable[bytes]]
"""`ObjectStore.get`, or a wrapper that counts and limits it."""

_ADVICE = "The segment cannot be read from the object store; `strandline tier verify` looks at all of them"


@dataclass(frozen=True, slots=True)
class SidecarHeader:
    """Description of a segment.

    Attributes:
        base_offset: base offset of the first batch of the log object.
        end_offset: offset after its last record.
        size_bytes: size of the log object.
        max_timestamp_ms: largest timestamp of its records; -1 if none has one.
        epochs: each leader epoch of its batches, with the base offset of the first batch of that epoch; never empty.
        log_crc: CRC-32C of the log object.
        leader_epoch: epoch in which it was copied.
        aborted: number of aborted transactions after the time index.
    """

    cluster_id: str
    topic: str
    topic_id: TopicId
    partition: int
    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    epochs: tuple[tuple[int, int], ...]
    log_crc: int
    leader_epoch: int
    aborted: int = 0


@dataclass(frozen=True, slots=True)
class SidecarHead:
    """The first HEAD_BYTES of a sidecar: lengths and checksums of its parts."""

    lengths: tuple[int, int, int, int]
    crcs: tuple[int, int, int, int]

    @property
    def indexes_end(self) -> int:
        """Position after the parts that a reader needs, which are all but the producers."""
        return HEAD_BYTES + sum(self.lengths[:3])

    @property
    def size_bytes(self) -> int:
        """Size of the whole sidecar."""
        return HEAD_BYTES + sum(self.lengths)


class Sidecar:
    """A decoded sidecar, without the producers."""

    __slots__ = ("aborted", "header", "index", "time_index")

    def __init__(self, header: SidecarHeader, index: OffsetIndex, time_index: TimeIndex, aborted: AbortedIndex) -> None:
        self.header = header
        self.index = index
        self.time_index = time_index
        self.aborted = aborted

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory, in bytes."""
        indexes = 8 * len(self.index) + 12 * len(self.time_index) + 220 * len(self.aborted)
        return 2000 + 100 * len(self.header.epochs) + indexes


def encode_sidecar(
    header: SidecarHeader,
    index: OffsetIndex,
    time_index: TimeIndex,
    producers: bytes,
    aborted: Sequence[AbortedTransaction] = (),
) -> bytes:
    """Encode a sidecar; `aborted` by rising last offset. Raises ValueError if a part is too large."""
    header = replace(header, aborted=len(aborted))
    return _encoded(header, _whole(index), _whole(time_index) + _whole(AbortedIndex(aborted)), producers)


def _header_text(header: SidecarHeader) -> bytes:
    fields = {**asdict(header), "topic_id": str(header.topic_id)}
    if not header.aborted:
        del fields["aborted"]
    return json.dumps(fields, separators=(",", ":")).encode()


def _encoded(header: SidecarHeader, *indexes_and_producers: bytes) -> bytes:
    parts = (_header_text(header), *indexes_and_producers)
    version = VERSION if header.aborted else WITHOUT_ABORTED
    for part, most in zip(parts, PARTS_BYTES_MAX, strict=True):
        if len(part) > most:
            raise ValueError(f"a part of a sidecar has {len(part)} bytes, at most {most} are allowed")
    head = _HEAD.pack(_MAGIC, version, *(number for part in parts for number in (len(part), crc32c(part))))
    return b"".join((head, _CRC.pack(crc32c(head)), *parts))


def decode_head(data: bytes, key: str) -> SidecarHead:
    """Decode the first HEAD_BYTES of the object `key`.

    Raises:
        CorruptLogError: the head is damaged.
        StoreError: the sidecar is of a newer build, so it must not be left out as a damaged one may be.
    """
    if len(data) != HEAD_BYTES or data[:4] != _MAGIC:
        raise _corrupt(key, 0, "this is no sidecar")
    if crc32c(data[: _HEAD.size]) != _CRC.unpack_from(data, _HEAD.size)[0]:
        raise _corrupt(key, 0, "the CRC of the head does not hold")
    _, version, *numbers = _HEAD.unpack_from(data)
    if version > VERSION:  # rule B35/newer-sidecars-are-taken-for-damage
        expected = f"this build, Strandline {strandline.__version__}, reads it up to {VERSION}"
        raise StoreError(f"{key} has the format {version}, and {expected}. Install the build that wrote it")
    if version < WITHOUT_ABORTED:
        raise _corrupt(key, 4, f"version {version} of the format is none")
    head = SidecarHead(tuple(numbers[0::2]), tuple(numbers[1::2]))
    for length, most in zip(head.lengths, PARTS_BYTES_MAX, strict=True):
        if length > most:
            raise _corrupt(key, 6, f"a part of {length} bytes, at most {most} are allowed")
    return head


def decode_indexes(head: SidecarHead, data: bytes, key: str) -> Sidecar:
    """Decode the bytes from HEAD_BYTES up to `head.indexes_end`. Raises CorruptLogError."""
    text, index, time_index = _parts(head, data, key)
    header = _header(text, key)
    try:
        offsets = OffsetIndex.parse(index, header.size_bytes)
        behind = len(time_index) - header.aborted * ABORTED_ENTRY_BYTES
        if behind < 0:
            raise IndexDamaged(f"it has no room for {header.aborted} aborted transactions")
        times = TimeIndex.parse(time_index[:behind])
        aborted = AbortedIndex.parse(time_index[behind:], header.base_offset)
    except (IndexDamaged, ValueError) as error:
        raise _corrupt(key, HEAD_BYTES + len(text), str(error)) from error
    span = header.end_offset - header.base_offset
    if any(entries and entries[-1] >= span for entries in (offsets.offsets, times.offsets)):
        raise _corrupt(key, HEAD_BYTES + len(text), "the index names offsets beyond the segment's end")
    return Sidecar(header, offsets, times, aborted)


def decode_producers(head: SidecarHead, data: bytes, key: str) -> bytes:
    """Check the bytes from `head.indexes_end` to the end, a producer snapshot; empty if there is none. Raises
    CorruptLogError."""
    if len(data) != head.lengths[3] or crc32c(data) != head.crcs[3]:
        raise _corrupt(key, head.indexes_end, "the CRC of the producers does not hold")
    return data


def for_cluster(data: bytes, key: str, cluster_id: str) -> bytes:
    """Return the whole sidecar `key` with another cluster's id. Raises CorruptLogError."""
    head = decode_head(data[:HEAD_BYTES], key)
    if len(data) != head.size_bytes:
        raise _corrupt(key, 0, f"it has {len(data)} bytes instead of the {head.size_bytes} that it says")
    sidecar = decode_indexes(head, data[HEAD_BYTES : head.indexes_end], key)
    producers = decode_producers(head, data[head.indexes_end :], key)
    _, *parts = _parts(head, data[HEAD_BYTES : head.indexes_end], key)
    return _encoded(replace(sidecar.header, cluster_id=cluster_id), *parts, producers)


async def load_head(get: Get, key: str) -> SidecarHead:
    """Load the head of the sidecar `key`. Raises CorruptLogError, and the errors of `get`."""
    return decode_head(await get(key, 0, HEAD_BYTES), key)


async def load_sidecar(get: Get, key: str) -> Sidecar:
    """Load the sidecar `key` with two GETs. Raises CorruptLogError, and the errors of `get`."""
    head = await load_head(get, key)
    return decode_indexes(head, await get(key, HEAD_BYTES, head.indexes_end), key)


def _parts(head: SidecarHead, data: bytes, key: str) -> list[bytes]:
    if len(data) != head.indexes_end - HEAD_BYTES:
        raise _corrupt(key, HEAD_BYTES, f"{len(data)} bytes of parts instead of {head.indexes_end - HEAD_BYTES}")
    parts, position = [], 0
    for length, crc in zip(head.lengths[:3], head.crcs[:3], strict=True):
        part = data[position : position + length]
        if crc32c(part) != crc:
            raise _corrupt(key, HEAD_BYTES + position, "the CRC of a part does not hold")
        parts.append(part)
        position += length
    return parts


def _header(text: bytes, key: str) -> SidecarHeader:
    try:
        fields = read_json(text)
        epochs = tuple((_number(epoch), _number(start)) for epoch, start in fields["epochs"])
        header = SidecarHeader(
            cluster_id=_text(fields["cluster_id"]),
            topic=_text(fields["topic"]),
            topic_id=UUID(_text(fields["topic_id"])),
            partition=_number(fields["partition"]),
            base_offset=_number(fields["base_offset"]),
            end_offset=_number(fields["end_offset"]),
            size_bytes=_number(fields["size_bytes"]),
            max_timestamp_ms=_number(fields["max_timestamp_ms"], least=-1),
            epochs=epochs,
            log_crc=_number(fields["log_crc"]),
            leader_epoch=_number(fields["leader_epoch"]),
            aborted=_number(fields.get("aborted", 0)),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise _corrupt(key, HEAD_BYTES, f"the header cannot be read ({type(error).__name__}: {error})") from error
    starts = [start for _, start in header.epochs]
    if not starts or starts[0] != header.base_offset or starts[-1] >= header.end_offset or not _rise(header.epochs):
        raise _corrupt(key, HEAD_BYTES, "the leader epochs are not those of a segment of these offsets")
    return header


def _rise(epochs: tuple[tuple[int, int], ...]) -> bool:
    return all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(epochs))


def _number(value: object, *, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= INT64_MAX:
        raise ValueError(f"{value!r} where a number of at least {least} belongs")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} where text belongs")
    return value


def _whole(index: OffsetIndex | TimeIndex | AbortedIndex) -> bytes:
    position, data = index.tail_bytes()
    if position:
        raise ValueError("an index that was written before is not whole")
    return data


def _corrupt(key: str, position: int, reason: str) -> CorruptLogError:
    return CorruptLogError(key, position, None, reason, _ADVICE)
