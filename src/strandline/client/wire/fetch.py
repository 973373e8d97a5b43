"""Fetch, by hand: the consumer's request, and a response whose records stay views of the received frame.

Version 13 and later name topics by id, older ones by name. Requests are sessionless (session id 0, epoch -1), which
every broker takes; a client's few partitions do not repay a session's state on the broker.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from strandline.client.wire.produce import read_legacy_string, skip_tags
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.varint import read_uvarint, write_uvarint

_CURRENT_LEADER_TAG = 1


class FetchWanted(NamedTuple):
    """One partition to read. `leader_epoch` -1 leaves the leader's epoch unchecked."""

    partition: int
    offset: int
    leader_epoch: int
    max_bytes: int


class FetchTopic(NamedTuple):
    """The partitions wanted of one topic. The id goes out from version 13 on, the name before."""

    name: str
    topic_id: UUID | None
    partitions: Sequence[FetchWanted]


class FetchRequest(NamedTuple):
    """A consumer's fetch. Limits in bytes; `max_wait_ms` is how long the broker may hold it for `min_bytes`."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    rack: str
    topics: Sequence[FetchTopic]


class FetchedPartition(NamedTuple):
    """One partition's answer. `records` are whole batches and possibly the start of one more.

    `aborted` are (producer id, first offset) under read_committed, else empty. `current_leader` is (node id, leader
    epoch) where the broker says who leads now (KIP-951); `preferred_replica` is -1 for "go on reading here".
    """

    topic: str | UUID
    partition: int
    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    preferred_replica: int
    current_leader: tuple[int, int] | None
    records: memoryview


class FetchResponse(NamedTuple):
    """The answer to one fetch. `error` concerns the request whole (sessions, topic ids)."""

    throttle_ms: int
    error: ErrorCode
    partitions: list[FetchedPartition]


def encode_fetch(version: int, request: FetchRequest) -> bytearray:
    """The body of a Fetch request at `version` (4 and later)."""
    flexible = version >= 12
    out = bytearray()
    if version < 15:
        out += struct.pack(">i", -1)
    out += struct.pack(
        ">iiib", request.max_wait_ms, request.min_bytes, request.max_bytes, 1 if request.read_committed else 0
    )
    if version >= 7:
        out += struct.pack(">ii", 0, -1)
    _count(out, len(request.topics), flexible)
    for topic in request.topics:
        _topic_start(out, version, topic)
        _count(out, len(topic.partitions), flexible)
        for wanted in topic.partitions:
            out += struct.pack(">i", wanted.partition)
            if version >= 9:
                out += struct.pack(">i", wanted.leader_epoch)
            out += struct.pack(">q", wanted.offset)
            if version >= 12:
                out += struct.pack(">i", -1)
            if version >= 5:
                out += struct.pack(">q", -1)
            out += struct.pack(">i", wanted.max_bytes)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if version >= 7:
        _count(out, 0, flexible)
    if version >= 11:
        _string(out, request.rack, flexible)
    if flexible:
        out.append(0)
    return out


def _topic_start(out: bytearray, version: int, topic: FetchTopic) -> None:
    if version < 13:
        _string(out, topic.name, version >= 12)
    elif topic.topic_id is None:
        raise ProtocolError(f"fetch v{version} needs the id of topic {topic.name}")
    else:
        out += topic.topic_id.bytes


def _count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, count + 1)
    else:
        out += struct.pack(">i", count)


def _string(out: bytearray, text: str, flexible: bool) -> None:
    raw = text.encode()
    if flexible:
        write_uvarint(out, len(raw) + 1)
    else:
        out += struct.pack(">h", len(raw))
    out += raw


def decode_fetch(version: int, body: memoryview) -> FetchResponse:
    """Every partition's answer; `records` are views of `body`.

    Raises:
        ProtocolError: the response is shorter than it says.
    """
    try:
        return _decode(version, body)
    except (struct.error, IndexError, ProtocolError, UnicodeDecodeError) as error:
        raise ProtocolError(f"FETCH response v{version} cannot be read: {error}") from error


def _decode(version: int, body: memoryview) -> FetchResponse:
    flexible = version >= 12
    (throttle_ms,) = struct.unpack_from(">i", body, 0)
    pos = 4
    error = 0
    if version >= 7:
        error, _session = struct.unpack_from(">hi", body, pos)
        pos += 6
    topics, pos = _read_count(body, pos, flexible)
    partitions: list[FetchedPartition] = []
    for _ in range(topics):
        topic: str | UUID
        if version >= 13:
            topic = UUID(bytes=bytes(_view(body, pos, 16)))
            pos += 16
        elif flexible:
            size, pos = read_uvarint(body, pos)
            topic = str(_view(body, pos, size - 1), "utf-8")
            pos += size - 1
        else:
            text, pos = read_legacy_string(body, pos)
            topic = text or ""
        count, pos = _read_count(body, pos, flexible)
        for _ in range(count):
            answer, pos = _decode_partition(version, body, pos, topic)
            partitions.append(answer)
        if flexible:
            pos = skip_tags(body, pos)
    return FetchResponse(throttle_ms, ErrorCode.of(error), partitions)


def _decode_partition(version: int, body: memoryview, pos: int, topic: str | UUID) -> tuple[FetchedPartition, int]:
    flexible = version >= 12
    partition, error, high_watermark, stable = struct.unpack_from(">ihqq", body, pos)
    pos += 22
    log_start = -1
    if version >= 5:
        (log_start,) = struct.unpack_from(">q", body, pos)
        pos += 8
    aborted = []
    count, pos = _read_count(body, pos, flexible)
    for _ in range(count):
        aborted.append(struct.unpack_from(">qq", body, pos))
        pos = skip_tags(body, pos + 16) if flexible else pos + 16
    preferred = -1
    if version >= 11:
        (preferred,) = struct.unpack_from(">i", body, pos)
        pos += 4
    if flexible:
        size, pos = read_uvarint(body, pos)
        size -= 1
    else:
        (size,) = struct.unpack_from(">i", body, pos)
        pos += 4
    size = max(size, 0)
    records = _view(body, pos, size)
    pos += size
    leader: tuple[int, int] | None = None
    if flexible:
        tags, pos = read_uvarint(body, pos)
        for _ in range(tags):
            tag, pos = read_uvarint(body, pos)
            width, pos = read_uvarint(body, pos)
            field = _view(body, pos, width)
            pos += width
            if tag == _CURRENT_LEADER_TAG:
                leader = struct.unpack_from(">ii", field, 0)
    code = ErrorCode.of(error)
    return (
        FetchedPartition(
            topic, partition, code, high_watermark, stable, log_start, tuple(aborted), preferred, leader, records
        ),
        pos,
    )


def _read_count(body: memoryview, pos: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, pos = read_uvarint(body, pos)
        count -= 1
    else:
        (count,) = struct.unpack_from(">i", body, pos)
        pos += 4
    if count > len(body) - pos:
        raise IndexError(f"a count of {count} where {len(body) - pos} bytes are left")
    return max(count, 0), pos


def _view(body: memoryview, pos: int, size: int) -> memoryview:
    if size < 0 or size > len(body) - pos:
        raise IndexError(f"{size} bytes where {len(body) - pos} are left")
    return body[pos : pos + size]
