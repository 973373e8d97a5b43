"""The sidecar of a segment in the object store: one small object with all that is needed to find things in it.

| bytes | what |
|---|---|
| 4 | `SLTS` |
| 2 | format version: 1, or 2 with aborted transactions |
| 4 × (4 + 4), 5 × (4 + 4) in version 2 | length and CRC-32C of each part below |
| 4 | CRC-32C of what stands above |
| | header: JSON, see `SidecarHeader` |
| | offset index: Kafka's `.index`, relative to the header's `base_offset` |
| | time index: Kafka's `.timeindex` |
| | version 2: aborted transactions, entries of Kafka's `.txnindex` |
| | producers: the `.snapshot` of the segment's end offset, empty where the log had none |

Numbers are big-endian. Readers need all parts but the last, which may be large. The aborted transactions are all that
have records in the segment, also those whose markers lie behind it: readers of committed records need no other sidecar,
and no log. A segment without any is written in version 1, which every build reads.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from uuid import UUID

from crc32c import crc32c

from strandline.log.config import INT64_MAX
from strandline.log.segment import IndexDamaged, OffsetIndex, TimeIndex
from strandline.log.transactions import AbortedIndex, AbortedTransaction
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import TopicId
from strandline.proto.json_text import read_json

WITHOUT_ABORTED, WITH_ABORTED = 1, 2
"""Versions."""

_MAGIC = b"SLTS"
_START = struct.Struct(">4sH")
_HEADS = {WITHOUT_ABORTED: struct.Struct(">4sH8I"), WITH_ABORTED: struct.Struct(">4sH10I")}
_CRC = struct.Struct(">I")
HEAD_BYTES = _HEADS[WITH_ABORTED].size + _CRC.size
"""Bytes of the longest head. No sidecar is shorter: a header has hundreds."""

PARTS_BYTES_MAX = (1 << 20, 64 << 20, 96 << 20, 512 << 20, 256 << 20)
"""The most that each part may have. An offset index of 64 MiB has 8 million entries: one for each 256 bytes of a
segment of 2 GiB, the largest that there is. Kafka's own bound, `segment.index.bytes`, is 10 MiB. Of the smallest
transactions, a record and a marker, such a segment has 14.5 million: 470 MiB, if all were aborted."""

Get = Callable[[str, int, int], Awaitable[bytes]]
"""`ObjectStore.get`, or what counts and bounds it."""

_ADVICE = "The segment cannot be read from the object store; `strandline tier verify` looks at all of them"


@dataclass(frozen=True, slots=True)
class SidecarHeader:
    """Description of a segment.

    Attributes:
        base_offset: of the first batch of the log object.
        end_offset: one past its last record.
        size_bytes: of the log object.
        max_timestamp_ms: the largest of its records; -1: none has a time.
        epochs: each leader epoch of its batches, with the base offset of the first batch that has it; never none.
        log_crc: CRC-32C of the log object.
        leader_epoch: in which it was copied.
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


@dataclass(frozen=True, slots=True)
class SidecarHead:
    """Beginning of a sidecar: how long the head is, and the parts, the producers last."""

    head_bytes: int
    lengths: tuple[int, ...]
    crcs: tuple[int, ...]

    @property
    def producers_bytes(self) -> int:
        """Bytes of the producer snapshot; 0: there is none."""
        return self.lengths[-1]

    @property
    def indexes_end(self) -> int:
        """Bytes of it that a reader needs: all but the producers."""
        return self.head_bytes + sum(self.lengths[:-1])

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole."""
        return self.head_bytes + sum(self.lengths)


class Sidecar:
    """A decoded sidecar, but for the producers."""

    __slots__ = ("aborted", "header", "index", "time_index")

    def __init__(self, header: SidecarHeader, index: OffsetIndex, time_index: TimeIndex, aborted: AbortedIndex) -> None:
        self.header = header
        self.index = index
        self.time_index = time_index
        self.aborted = aborted

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that it takes, about."""
        indexes = 8 * len(self.index) + 12 * len(self.time_index) + 220 * len(self.aborted)
        return 2000 + 100 * len(self.header.epochs) + indexes


def encode_sidecar(
    header: SidecarHeader,
    index: OffsetIndex,
    time_index: TimeIndex,
    producers: bytes,
    aborted: Iterable[AbortedTransaction] = (),
) -> bytes:
    """The whole object; `aborted`: by rising last offset. Raises ValueError for a part that is too large."""
    return _encoded(_header_text(header), _whole(index), _whole(time_index), _whole(AbortedIndex(aborted)), producers)


def _header_text(header: SidecarHeader) -> bytes:
    return json.dumps({**asdict(header), "topic_id": str(header.topic_id)}, separators=(",", ":")).encode()


def _encoded(header: bytes, index: bytes, time_index: bytes, aborted: bytes, producers: bytes) -> bytes:
    parts: tuple[bytes, ...] = (header, index, time_index, aborted, producers)
    for part, most in zip(parts, PARTS_BYTES_MAX, strict=True):
        if len(part) > most:
            raise ValueError(f"a part of a sidecar has {len(part)} bytes, at most {most} are allowed")
    version = WITH_ABORTED
    if not aborted:
        version, parts = WITHOUT_ABORTED, (header, index, time_index, producers)
    head = _HEADS[version].pack(_MAGIC, version, *(number for part in parts for number in (len(part), crc32c(part))))
    return b"".join((head, _CRC.pack(crc32c(head)), *parts))


def decode_head(data: bytes, key: str) -> SidecarHead:
    """The first HEAD_BYTES of the object `key`. Raises CorruptLogError."""
    if len(data) != HEAD_BYTES or data[:4] != _MAGIC:
        raise _corrupt(key, 0, "this is no sidecar")
    version = _START.unpack_from(data)[1]
    if version not in _HEADS:
        raise _corrupt(key, 4, f"version {version} of the format is not known, {' and '.join(map(str, _HEADS))} are")
    layout = _HEADS[version]
    if crc32c(data[: layout.size]) != _CRC.unpack_from(data, layout.size)[0]:
        raise _corrupt(key, 0, "the CRC of the head does not hold")
    _, _, *numbers = layout.unpack_from(data)
    head = SidecarHead(layout.size + _CRC.size, tuple(numbers[0::2]), tuple(numbers[1::2]))
    bounds = PARTS_BYTES_MAX if version == WITH_ABORTED else (*PARTS_BYTES_MAX[:3], PARTS_BYTES_MAX[-1])
    for length, most in zip(head.lengths, bounds, strict=True):
        if length > most:
            raise _corrupt(key, 6, f"a part of {length} bytes, at most {most} are allowed")
    return head


def decode_indexes(head: SidecarHead, data: bytes, key: str) -> Sidecar:
    """The bytes from `head.head_bytes` up to `head.indexes_end`. Raises CorruptLogError."""
    text, index, time_index, *aborted = _parts(head, data, key)
    header = _header(text, key)
    behind = head.head_bytes + len(text)
    try:
        offsets = OffsetIndex.parse(index, header.size_bytes)
        times = TimeIndex.parse(time_index)
        transactions = AbortedIndex.parse(b"".join(aborted), header.base_offset, INT64_MAX)
    except (IndexDamaged, ValueError) as error:
        raise _corrupt(key, behind, str(error)) from error
    span = header.end_offset - header.base_offset
    if any(entries and entries[-1] >= span for entries in (offsets.offsets, times.offsets)):
        raise _corrupt(key, behind, "the index names offsets beyond the segment's end")
    return Sidecar(header, offsets, times, transactions)


def decode_producers(head: SidecarHead, data: bytes, key: str) -> bytes:
    """The bytes from `head.indexes_end` to the end: a producer snapshot; empty where there is none. Raises
    CorruptLogError."""
    if len(data) != head.producers_bytes or crc32c(data) != head.crcs[-1]:
        raise _corrupt(key, head.indexes_end, "the CRC of the producers does not hold")
    return data


def for_cluster(data: bytes, key: str, cluster_id: str) -> bytes:
    """The whole sidecar `key` as another cluster has it. Raises CorruptLogError."""
    head = decode_head(data[:HEAD_BYTES], key)
    if len(data) != head.size_bytes:
        raise _corrupt(key, 0, f"it has {len(data)} bytes instead of the {head.size_bytes} that it says")
    indexes = data[head.head_bytes : head.indexes_end]
    header = decode_indexes(head, indexes, key).header
    producers = decode_producers(head, data[head.indexes_end :], key)
    _, index, time_index, *aborted = _parts(head, indexes, key)
    text = _header_text(replace(header, cluster_id=cluster_id))
    return _encoded(text, index, time_index, b"".join(aborted), producers)


async def load_head(get: Get, key: str) -> SidecarHead:
    """The head of the sidecar `key`. Raises CorruptLogError, and what `get` raises."""
    return decode_head(await get(key, 0, HEAD_BYTES), key)


async def load_sidecar(get: Get, key: str) -> Sidecar:
    """The sidecar `key`, by two GETs. Raises CorruptLogError, and what `get` raises."""
    head = await load_head(get, key)
    return decode_indexes(head, await get(key, head.head_bytes, head.indexes_end), key)


def _parts(head: SidecarHead, data: bytes, key: str) -> list[bytes]:
    start = head.head_bytes
    if len(data) != head.indexes_end - start:
        raise _corrupt(key, start, f"{len(data)} bytes of parts instead of {head.indexes_end - start}")
    parts, position = [], 0
    for length, crc in zip(head.lengths[:-1], head.crcs[:-1], strict=True):
        part = data[position : position + length]
        if crc32c(part) != crc:
            raise _corrupt(key, start + position, "the CRC of a part does not hold")
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
        )
    except (ValueError, TypeError, KeyError) as error:
        raise _corrupt(key, 0, f"the header cannot be read ({type(error).__name__}: {error})") from error
    starts = [start for _, start in header.epochs]
    if not starts or starts[0] != header.base_offset or starts[-1] >= header.end_offset or not _rise(header.epochs):
        raise _corrupt(key, 0, "the leader epochs are not those of a segment of these offsets")
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
