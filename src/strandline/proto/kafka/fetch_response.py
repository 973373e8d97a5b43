"""The answer of Fetch (1) in both directions, by hand: records are not copied, neither written nor read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.kafka.bounds import RESPONSE_ELEMENTS_MAX, Elements
from strandline.proto.kafka.fetch_request import (
    FLEXIBLE_SINCE,
    LOG_START_SINCE,
    NO_SESSION,
    RACK_SINCE,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    SESSION_SINCE,
    TOPIC_BYTES_MIN,
    TOPIC_ID_SINCE,
)
from strandline.proto.kafka.fields import (
    INT32,
    INT64,
    NO_TAGS,
    Piece,
    array_head,
    bytes_head,
    check_end,
    read_bytes,
    read_count,
    read_fixed,
    read_tags,
    read_topic,
    skip_tags,
    tag_section,
    tagged_field,
    topic_reference,
    unreadable,
)

STORAGE_ERROR_SINCE = 6
LEADER_SINCE = 16

DIVERGING_TAG = 0
CURRENT_LEADER_TAG = 1

_ERROR = struct.Struct(">hi")  # error, session id
_RESULT = struct.Struct(">ihqq")  # partition, error, high watermark, last stable offset
_ABORTED = struct.Struct(">qq")  # producer id, first offset
_DIVERGING = struct.Struct(">iqb")  # epoch, end offset, no tagged fields
_LEADER = struct.Struct(">iib")  # node id, leader epoch, no tagged fields
_LEADER_KNOWN = struct.Struct(">ii")
_DIVERGING_KNOWN = struct.Struct(">iq")


_NO_RECORDS = memoryview(b"")
_NULL_ARRAY, _NULL_COMPACT_ARRAY = array_head(-1, False), array_head(-1, True)


class PartitionData:
    """What one partition gave; -1 for offsets that are not known.

    Attributes:
        topic: its name or id, as it was asked for.
        chunks: runs of whole batches; what a client reads may end with the start of one more. `size` is their bytes.
        aborted: (producer id, first offset) of transactions, for readers of committed records.
        diverging: (leader epoch, end offset) where the leader's log parts from the reader's (KIP-595).
        leader_id, leader_epoch: who leads now (KIP-951), -1 where the answer does not say.
        preferred_replica: where the consumer shall read instead (KIP-392); there are no records then. -1: go on here.
    """

    __slots__ = (
        "aborted",
        "chunks",
        "diverging",
        "error",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch",
        "leader_id",
        "log_start_offset",
        "partition",
        "preferred_replica",
        "size",
        "topic",
    )

    def __init__(self, topic: str | UUID, partition: int, error: ErrorCode = ErrorCode.NONE) -> None:
        self.topic = topic
        self.partition = partition
        self.error = error
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.chunks: list[bytes | memoryview] = []
        self.size = 0
        self.aborted: tuple[tuple[int, int], ...] = ()
        self.diverging: tuple[int, int] | None = None
        self.leader_id = -1
        self.leader_epoch = -1
        self.preferred_replica = -1

    @property
    def records(self) -> memoryview:
        """The records of an answer that was read, a view of what was received."""
        return memoryview(self.chunks[0]) if self.chunks else _NO_RECORDS


class FetchResponse(NamedTuple):
    """The answer to one fetch. `error` concerns the request as a whole (sessions, topic ids)."""

    throttle_ms: int
    error: ErrorCode
    partitions: list[PartitionData]


def write_response(
    version: int,
    results: Sequence[PartitionData],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    error: ErrorCode = ErrorCode.NONE,
    session_id: int = NO_SESSION,
    throttle_ms: int = 0,
    end_tags: bytes = NO_TAGS,
) -> list[Piece]:
    """The body in pieces, the records among them as they are.

    Args:
        results: neighbours of one topic stand together; their order, which a session turns round, stays.
        throttle_ms: how long the client should send nothing (KIP-219).
        end_tags: the tagged-field section that ends a flexible answer.
    """
    flexible = version >= FLEXIBLE_SINCE
    committed = isolation_level == READ_COMMITTED
    # Tuples are compared by their elements' identity first, which spares the comparison of ids.
    topics = [list(partitions) for _, partitions in groupby(results, lambda result: (result.topic,))]
    parts: list[Piece] = []
    out = bytearray(INT32.pack(throttle_ms))
    if version >= SESSION_SINCE:
        out += _ERROR.pack(error, session_id)
    out += array_head(len(topics), flexible)
    for partitions in topics:
        out += topic_reference(partitions[0].topic, flexible)
        out += array_head(len(partitions), flexible)
        for result in partitions:
            _write_partition_head(out, result, version, committed)
            if result.chunks:
                parts.append(out)
                parts += result.chunks
                out = bytearray()
            if flexible:
                out += _partition_tags(result, version)
        if flexible:
            out += NO_TAGS
    if flexible:
        out += end_tags
    parts.append(out)
    return parts


def _write_partition_head(out: bytearray, result: PartitionData, version: int, committed: bool) -> None:
    flexible = version >= FLEXIBLE_SINCE
    error = result.error
    if error is ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_SINCE:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    out += _RESULT.pack(result.partition, error, result.high_watermark, result.last_stable_offset)
    if version >= LOG_START_SINCE:
        out += INT64.pack(result.log_start_offset)
    if not committed:
        out += _NULL_COMPACT_ARRAY if flexible else _NULL_ARRAY
    else:
        out += array_head(len(result.aborted), flexible)
        for transaction in result.aborted:
            out += _ABORTED.pack(*transaction) + (NO_TAGS if flexible else b"")
    if version >= RACK_SINCE:
        out += INT32.pack(result.preferred_replica)
    out += bytes_head(result.size, flexible)


def _partition_tags(result: PartitionData, version: int) -> bytes:
    fields = []
    if result.diverging is not None:
        fields.append(tagged_field(DIVERGING_TAG, _DIVERGING.pack(*result.diverging, 0)))
    if version >= LEADER_SINCE and result.leader_id >= 0:
        fields.append(tagged_field(CURRENT_LEADER_TAG, _LEADER.pack(result.leader_id, result.leader_epoch, 0)))
    return tag_section(fields)


def read_response(view: memoryview, version: int) -> FetchResponse:
    """Every partition's answer; records are views of what was received.

    Raises:
        ProtocolError: truncated, lying lengths or counts, or bytes after the end.
    """
    try:
        return _read_response(view, version)
    except (struct.error, ProtocolError) as error:
        raise unreadable(f"FetchResponse v{version}", error) from error


def _read_response(view: memoryview, version: int) -> FetchResponse:
    flexible = version >= FLEXIBLE_SINCE
    (throttle_ms,), position = read_fixed(view, 0, INT32)
    error = 0
    if version >= SESSION_SINCE:
        (error, _), position = read_fixed(view, position, _ERROR)
    elements = Elements(RESPONSE_ELEMENTS_MAX)
    results: list[PartitionData] = []
    count, position = read_count(view, position, TOPIC_BYTES_MIN, flexible, elements)
    for _ in range(count):
        name, topic_id, position = read_topic(view, position, version >= TOPIC_ID_SINCE, flexible)
        topic = topic_id or name or ""
        partition_count, position = read_count(view, position, _RESULT.size, flexible, elements)
        for _ in range(partition_count):
            result, position = _read_partition(view, position, version, topic, elements)
            results.append(result)
        if flexible:
            position = skip_tags(view, position)
    if flexible:
        position = skip_tags(view, position)
    check_end(view, position, "the message")
    return FetchResponse(throttle_ms, ErrorCode.of(error), results)


def _read_partition(
    view: memoryview, position: int, version: int, topic: str | UUID, elements: Elements
) -> tuple[PartitionData, int]:
    flexible = version >= FLEXIBLE_SINCE
    partition, error, high_watermark, last_stable_offset = _RESULT.unpack_from(view, position)
    position += _RESULT.size
    result = PartitionData(topic, partition, ErrorCode.of(error) if error else ErrorCode.NONE)
    result.high_watermark, result.last_stable_offset = high_watermark, last_stable_offset
    if version >= LOG_START_SINCE:
        result.log_start_offset = INT64.unpack_from(view, position)[0]
        position += INT64.size
    count, position = read_count(view, position, _ABORTED.size, flexible, elements)
    if count > 0:
        result.aborted, position = _read_aborted(view, position, count, flexible)
    if version >= RACK_SINCE:
        result.preferred_replica = INT32.unpack_from(view, position)[0]
        position += INT32.size
    records, position = read_bytes(view, position, flexible)
    if records:
        result.chunks.append(records)
        result.size = len(records)
    if flexible:
        fields, position = read_tags(view, position)
        if DIVERGING_TAG in fields:
            (epoch, end_offset), _ = read_fixed(fields[DIVERGING_TAG], 0, _DIVERGING_KNOWN)
            result.diverging = (epoch, end_offset)
        if CURRENT_LEADER_TAG in fields:
            (result.leader_id, result.leader_epoch), _ = read_fixed(fields[CURRENT_LEADER_TAG], 0, _LEADER_KNOWN)
    return result, position


def _read_aborted(
    view: memoryview, position: int, count: int, flexible: bool
) -> tuple[tuple[tuple[int, int], ...], int]:
    aborted = []
    for _ in range(count):
        producer_id, first_offset = _ABORTED.unpack_from(view, position)
        position += _ABORTED.size
        if flexible:
            position = skip_tags(view, position)
        aborted.append((producer_id, first_offset))
    return tuple(aborted), position
