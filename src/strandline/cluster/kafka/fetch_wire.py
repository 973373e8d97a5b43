"""The bytes of Fetch: the request read by hand, the answer written around the batches without joining them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from strandline.cluster.kafka.exchange import Part
from strandline.cluster.kafka.fetch_sessions import FINAL_EPOCH, NO_SESSION, PartitionKey
from strandline.cluster.service.fetch import FetchedPartition, FetchPartition
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import ZERO_UUID
from strandline.proto.kafka.bounds import REQUEST_ELEMENTS_MAX, Elements
from strandline.proto.kafka.fields import (
    INT32,
    NO_TAGS,
    array_head,
    read_count,
    read_name,
    read_string,
    read_tags,
    read_uuid,
    skip_tags,
    string,
    tagged_field,
)
from strandline.proto.varint import uvarint

FIRST, LAST = 4, 18
LOG_START_SINCE = 5
STORAGE_ERROR_SINCE = 6
SESSION_SINCE = 7
LEADER_EPOCH_SINCE = 9
RACK_SINCE = 11
FLEXIBLE_SINCE = 12
TOPIC_ID_SINCE = 13
REPLICA_STATE_SINCE = 15
LEADER_SINCE = 16

REPLICA_STATE_TAG = 1
DIVERGING_TAG = 0
CURRENT_LEADER_TAG = 1

READ_COMMITTED = 1

_REPLICA = struct.Struct(">i")
_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_RESULT = struct.Struct(">ihqq")
_INT64 = struct.Struct(">q")
_DIVERGING = struct.Struct(">iqb")
_LEADER = struct.Struct(">iib")

_PARTITION_LAYOUTS = {
    4: struct.Struct(">iqi"),  # partition, fetch offset, max bytes
    LOG_START_SINCE: struct.Struct(">iqqi"),  # and log start offset before max bytes
    LEADER_EPOCH_SINCE: struct.Struct(">iiqqi"),  # and current leader epoch after partition
    FLEXIBLE_SINCE: struct.Struct(">iiqiqi"),  # and last fetched epoch after fetch offset
}


class FetchMessage(NamedTuple):
    """A fetch request as it came; what it means for a session is decided elsewhere."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    wanted: list[FetchPartition]
    forgotten: list[PartitionKey]
    rack: str | None = None


def read_request(view: memoryview, version: int) -> FetchMessage:
    """Raises ProtocolError."""
    try:
        return _read_request(view, version)
    except struct.error as error:
        raise ProtocolError(f"Fetch v{version} ends within a field") from error


def _read_request(view: memoryview, version: int) -> FetchMessage:
    flexible = version >= FLEXIBLE_SINCE
    position = 0
    replica_id = -1
    if version < REPLICA_STATE_SINCE:
        replica_id = _REPLICA.unpack_from(view, 0)[0]
        position = _REPLICA.size
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(view, position)
    position += _LIMITS.size
    session_id, session_epoch = NO_SESSION, FINAL_EPOCH
    if version >= SESSION_SINCE:
        session_id, session_epoch = _SESSION.unpack_from(view, position)
        position += _SESSION.size
    wanted, position = _read_topics(view, position, version)
    forgotten: list[PartitionKey] = []
    if version >= SESSION_SINCE:
        forgotten, position = _read_forgotten(view, position, version)
    rack = None
    if version >= RACK_SINCE:
        rack, position = read_string(view, position, flexible)
    if flexible:
        told, position = _read_replica_state(view, position)
        replica_id = told if version >= REPLICA_STATE_SINCE else replica_id
    if position != len(view):
        raise ProtocolError(f"{len(view) - position} bytes after the end of Fetch v{version}")
    session = (session_id, session_epoch, wanted, forgotten)
    return FetchMessage(replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, *session, rack)


def _read_topic(view: memoryview, position: int, version: int) -> tuple[str | None, UUID | None, int]:
    if version >= TOPIC_ID_SINCE:
        topic_id, position = read_uuid(view, position)
        return None, topic_id, position
    name, position = read_name(view, position, version >= FLEXIBLE_SINCE)
    return name, None, position


def _read_topics(view: memoryview, position: int, version: int) -> tuple[list[FetchPartition], int]:
    flexible = version >= FLEXIBLE_SINCE
    layout = _PARTITION_LAYOUTS[max(since for since in _PARTITION_LAYOUTS if since <= version)]
    unpack, size = layout.unpack_from, layout.size
    wanted: list[FetchPartition] = []
    elements = Elements(REQUEST_ELEMENTS_MAX)
    count, position = read_count(view, position, 3, flexible, elements)
    for _ in range(count):
        name, topic_id, position = _read_topic(view, position, version)
        partition_count, position = read_count(view, position, size, flexible, elements)
        for _ in range(partition_count):
            fields = unpack(view, position)
            position += size
            if flexible:
                position = skip_tags(view, position)
                partition, current_epoch, offset, last_epoch, _, max_bytes = fields
            elif version >= LEADER_EPOCH_SINCE:
                partition, current_epoch, offset, _, max_bytes = fields
                last_epoch = -1
            else:
                partition, offset, max_bytes = fields[0], fields[1], fields[-1]
                current_epoch = last_epoch = -1
            wanted.append(FetchPartition(name, topic_id, partition, offset, max_bytes, current_epoch, last_epoch))
        if flexible:
            position = skip_tags(view, position)
    return wanted, position


def _read_forgotten(view: memoryview, position: int, version: int) -> tuple[list[PartitionKey], int]:
    flexible = version >= FLEXIBLE_SINCE
    forgotten: list[PartitionKey] = []
    elements = Elements(REQUEST_ELEMENTS_MAX)
    count, position = read_count(view, position, 3, flexible, elements)
    for _ in range(count):
        name, topic_id, position = _read_topic(view, position, version)
        partition_count, position = read_count(view, position, 4, flexible, elements)
        for _ in range(partition_count):
            forgotten.append((topic_id or name or "", INT32.unpack_from(view, position)[0]))
            position += 4
        if flexible:
            position = skip_tags(view, position)
    return forgotten, position


def _read_replica_state(view: memoryview, position: int) -> tuple[int, int]:
    """The tagged fields that end the request: (replica id, position); -1 for a consumer, who sends none."""
    fields, position = read_tags(view, position)
    state = fields.get(REPLICA_STATE_TAG, b"")
    return (INT32.unpack_from(state)[0] if len(state) >= INT32.size else -1), position


def write_response(
    version: int,
    results: Sequence[FetchedPartition],
    *,
    isolation_level: int,
    error: ErrorCode = ErrorCode.NONE,
    session_id: int = NO_SESSION,
    end_tags: bytes = NO_TAGS,
) -> list[Part]:
    """The answer in pieces: small ones of our making, and the batches as they were read.

    Args:
        end_tags: the tagged-field section that ends a flexible answer.
    """
    flexible = version >= FLEXIBLE_SINCE
    aborted = _aborted_transactions(isolation_level, flexible)
    topics = _by_topic(results)
    parts: list[Part] = []
    out = bytearray(INT32.pack(0))  # throttle_time_ms
    if version >= SESSION_SINCE:
        out += struct.pack(">hi", error, session_id)
    out += array_head(len(topics), flexible)
    for partitions in topics:
        wanted = partitions[0].wanted
        if version >= TOPIC_ID_SINCE:
            out += (wanted.topic_id or ZERO_UUID).bytes
        else:
            out += string(wanted.name or "", flexible)
        out += array_head(len(partitions), flexible)
        for result in partitions:
            _write_partition_head(out, result, version, aborted)
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


def _by_topic(results: Sequence[FetchedPartition]) -> list[list[FetchedPartition]]:
    """Neighbours of one topic together; the order, which a session turns round, stays."""
    topics: list[list[FetchedPartition]] = []
    last: object = None
    for result in results:
        topic = (result.wanted.name, result.wanted.topic_id)
        if topic != last:
            topics.append([])
            last = topic
        topics[-1].append(result)
    return topics


def _aborted_transactions(isolation_level: int, flexible: bool) -> bytes:
    """None for a reader of everything; an empty list for read_committed: there are no transactions yet."""
    count = 0 if isolation_level == READ_COMMITTED else -1
    return array_head(count, flexible)


def _write_partition_head(out: bytearray, result: FetchedPartition, version: int, aborted: bytes) -> None:
    error = result.error
    if error is ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_SINCE:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    out += _RESULT.pack(result.wanted.partition, error, result.high_watermark, result.last_stable_offset)
    if version >= LOG_START_SINCE:
        out += _INT64.pack(result.log_start_offset)
    out += aborted
    if version >= RACK_SINCE:
        out += INT32.pack(result.preferred_replica)
    out += uvarint(result.size + 1) if version >= FLEXIBLE_SINCE else INT32.pack(result.size)


def _partition_tags(result: FetchedPartition, version: int) -> bytes:
    fields = []
    if result.diverging is not None:
        epoch, end_offset = result.diverging
        fields.append(tagged_field(DIVERGING_TAG, _DIVERGING.pack(epoch, end_offset, 0)))
    if version >= LEADER_SINCE and result.leader_id >= 0:
        fields.append(tagged_field(CURRENT_LEADER_TAG, _LEADER.pack(result.leader_id, result.leader_epoch, 0)))
    return uvarint(len(fields)) + b"".join(fields) if fields else NO_TAGS
