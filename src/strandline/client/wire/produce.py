"""Produce, by hand: the request that carries the bytes of batches untouched, and its response.

Version 13 names topics by id, older ones by name. Strandline's brokers tell this client, in tagged field 7001 of each
partition's response, which replicas had synced the batch at the ack.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.varint import read_uvarint, write_uvarint

REPLICAS_TAG = 7001
"""Compact array of int32: the ids of the replicas that had synced the batch when it was acknowledged."""

_CURRENT_LEADER_TAG = 0

Batches = Sequence[tuple[int, bytes | bytearray]]
"""(partition, one record batch) of one topic."""

_PARTITION_START = struct.Struct(">ihqqq")


class ProduceTopic(NamedTuple):
    """What one topic gets. The id goes out from version 13 on, the name before."""

    name: str
    topic_id: UUID | None
    batches: Batches


class ProducedPartition(NamedTuple):
    """One partition's answer. `log_append_time_ms` is -1 where the producer's times stand; offsets -1 are unknown.

    `current_leader` is (node id, leader epoch) where the broker says who leads now (KIP-951).
    """

    topic: str | UUID
    partition: int
    error: ErrorCode
    message: str | None
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    replicas: tuple[int, ...] | None
    current_leader: tuple[int, int] | None


def encode_produce(version: int, acks: int, timeout_ms: int, topics: Sequence[ProduceTopic]) -> list[bytes | bytearray]:
    """The body of a Produce request as a list of pieces, the batches among them uncopied."""
    pieces: list[bytes | bytearray] = []
    if version >= 9:
        out = bytearray(b"\x00")
        out += struct.pack(">hi", acks, timeout_ms)
        write_uvarint(out, len(topics) + 1)
        for topic in topics:
            if version >= 13:
                if topic.topic_id is None:
                    raise ProtocolError(f"produce v{version} needs the id of topic {topic.name}")
                out += topic.topic_id.bytes
            else:
                name = topic.name.encode()
                write_uvarint(out, len(name) + 1)
                out += name
            write_uvarint(out, len(topic.batches) + 1)
            for partition, batch in topic.batches:
                out += struct.pack(">i", partition)
                write_uvarint(out, len(batch) + 1)
                pieces += (out, batch)
                out = bytearray(b"\x00")
            out.append(0)
        out.append(0)
        pieces.append(out)
        return pieces
    out = bytearray(struct.pack(">hhii", -1, acks, timeout_ms, len(topics)))
    for topic in topics:
        name = topic.name.encode()
        out += struct.pack(">h", len(name)) + name + struct.pack(">i", len(topic.batches))
        for partition, batch in topic.batches:
            out += struct.pack(">ii", partition, len(batch))
            pieces += (out, batch)
            out = bytearray()
    pieces.append(out)
    return pieces


def decode_produce(version: int, body: bytes | memoryview) -> list[ProducedPartition]:
    """Every partition's answer.

    Raises:
        ProtocolError: the response is shorter than it says.
    """
    try:
        return _decode_flexible(version, body) if version >= 9 else _decode_legacy(version, body)
    except (struct.error, IndexError, ProtocolError, UnicodeDecodeError) as error:
        raise ProtocolError(f"PRODUCE response v{version} cannot be read: {error}") from error


def _decode_flexible(version: int, body: bytes | memoryview) -> list[ProducedPartition]:
    answers = []
    topics, pos = read_uvarint(body, 0)
    for _ in range(topics - 1):
        topic: str | UUID
        if version >= 13:
            topic = UUID(bytes=_take(body, pos, 16))
            pos += 16
        else:
            text, pos = read_compact_string(body, pos)
            topic = text or ""
        partitions, pos = read_uvarint(body, pos)
        for _ in range(partitions - 1):
            answer, pos = _decode_partition(body, pos, topic)
            answers.append(answer)
        pos = skip_tags(body, pos)
    return answers


def _decode_partition(body: bytes | memoryview, pos: int, topic: str | UUID) -> tuple[ProducedPartition, int]:
    partition, error, base, append_time, log_start = _PARTITION_START.unpack_from(body, pos)
    pos += _PARTITION_START.size
    details, pos = read_uvarint(body, pos)
    message = None
    for _ in range(details - 1):
        pos += 4
        detail, pos = read_compact_string(body, pos)
        message = message or detail
        pos = skip_tags(body, pos)
    summary, pos = read_compact_string(body, pos)
    replicas: tuple[int, ...] | None = None
    leader: tuple[int, int] | None = None
    tags, pos = read_uvarint(body, pos)
    for _ in range(tags):
        tag, pos = read_uvarint(body, pos)
        size, pos = read_uvarint(body, pos)
        field = _take(body, pos, size)
        pos += size
        if tag == REPLICAS_TAG:
            count, start = read_uvarint(field, 0)
            replicas = struct.unpack_from(f">{max(count - 1, 0)}i", field, start)
        elif tag == _CURRENT_LEADER_TAG:
            leader = struct.unpack_from(">ii", field, 0)
    text = ": ".join(part for part in (summary, message) if part) or None
    code = ErrorCode.of(error)
    return ProducedPartition(topic, partition, code, text, base, append_time, log_start, replicas, leader), pos


def _decode_legacy(version: int, body: bytes | memoryview) -> list[ProducedPartition]:
    answers = []
    (topics,) = struct.unpack_from(">i", body, 0)
    pos = 4
    for _ in range(topics):
        topic, pos = read_legacy_string(body, pos)
        (partitions,) = struct.unpack_from(">i", body, pos)
        pos += 4
        for _ in range(partitions):
            partition, error, base, append_time = struct.unpack_from(">ihqq", body, pos)
            pos += 22
            log_start = -1
            if version >= 5:
                (log_start,) = struct.unpack_from(">q", body, pos)
                pos += 8
            message = None
            if version >= 8:
                (details,) = struct.unpack_from(">i", body, pos)
                pos += 4
                for _ in range(details):
                    detail, pos = read_legacy_string(body, pos + 4)
                    message = message or detail
                summary, pos = read_legacy_string(body, pos)
                message = ": ".join(part for part in (summary, message) if part) or None
            code = ErrorCode.of(error)
            answers.append(
                ProducedPartition(topic or "", partition, code, message, base, append_time, log_start, None, None)
            )
    return answers


def _take(body: bytes | memoryview, pos: int, size: int) -> bytes:
    if size > len(body) - pos:
        raise IndexError(f"{size} bytes where {len(body) - pos} are left")
    return bytes(body[pos : pos + size])


def read_compact_string(body: bytes | memoryview, pos: int) -> tuple[str | None, int]:
    """A nullable string of the flexible versions."""
    size, pos = read_uvarint(body, pos)
    return (None, pos) if size == 0 else (_take(body, pos, size - 1).decode(), pos + size - 1)


def read_legacy_string(body: bytes | memoryview, pos: int) -> tuple[str | None, int]:
    """A nullable string of the older versions."""
    (size,) = struct.unpack_from(">h", body, pos)
    return (None, pos + 2) if size < 0 else (_take(body, pos + 2, size).decode(), pos + 2 + size)


def skip_tags(body: bytes | memoryview, pos: int) -> int:
    """Step over a tagged-field section that holds nothing for us."""
    count, pos = read_uvarint(body, pos)
    for _ in range(count):
        _, pos = read_uvarint(body, pos)
        size, pos = read_uvarint(body, pos)
        if size > len(body) - pos:
            raise IndexError(f"a tagged field of {size} bytes where {len(body) - pos} are left")
        pos += size
    return pos
