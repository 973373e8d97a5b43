"""Reader and writer of Fetch (API key 1), written by hand so that records are never copied.

Versions up to 12 name topics, 13 and later give their ids (KIP-516).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import TopicId
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import (
    INT32,
    INT64,
    LEADER,
    LEADER_KNOWN,
    NO_TAGS,
    REQUEST_ELEMENTS_MAX,
    RESPONSE_ELEMENTS_MAX,
    TOPIC_BYTES_MIN,
    Elements,
    Piece,
    Unencodable,
    array_head,
    bytes_head,
    check_end,
    int32_array,
    read_bytes,
    read_count,
    read_fixed,
    read_string,
    read_tags,
    read_topic,
    skip_tags,
    string,
    tag_section,
    tagged_field,
    topic_reference,
    unreadable,
)
from strandline.proto.steps import ITEMS, Steps, whole

FIRST, LAST = 4, 18
FLEXIBLE_SINCE = Api.FETCH.flexible_since
LOG_START_SINCE = 5
STORAGE_ERROR_SINCE = 6
SESSION_SINCE = 7
LEADER_EPOCH_SINCE = 9
RACK_SINCE = 11
TOPIC_ID_SINCE = 13
REPLICA_STATE_SINCE = 15
LEADER_SINCE = 16

REPLICA_STATE_TAG = 1
DIVERGING_TAG = 0
CURRENT_LEADER_TAG = 1

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation levels."""

NO_SESSION = 0
"""The session id of a fetch without a session (KIP-227)."""

FINAL_EPOCH = -1
"""Session epoch of a fetch that needs no session, or that closes its session."""

PartitionKey = tuple[str | UUID, int]
"""(topic name or topic id, partition)."""

_LIMITS = struct.Struct(">iiib")  # max wait in ms, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")  # session id, session epoch
_REPLICA_STATE = struct.Struct(">iqb")  # replica id, its epoch, no tagged fields

_PARTITION_LAYOUTS = {
    4: struct.Struct(">iqi"),  # partition, fetch offset, max bytes
    LOG_START_SINCE: struct.Struct(">iqqi"),  # and log start offset before max bytes
    LEADER_EPOCH_SINCE: struct.Struct(">iiqqi"),  # and current leader epoch after partition
    FLEXIBLE_SINCE: struct.Struct(">iiqiqi"),  # and last fetched epoch after fetch offset
}
_UNKNOWN_EPOCH = -1
_UNKNOWN_LOG_START = -1
"""Log start offset in a consumer's request: only followers report theirs."""


class FetchPartition(NamedTuple):
    """One partition to read; the topic is named by `name` or, from version 13 on, by `topic_id`.

    `last_fetched_epoch` is the leader epoch of the record before `fetch_offset` (-1: unknown). If the leader's log has
    another epoch there, the answer reports the divergence and holds no records (KIP-595). With `current_leader_epoch`
    -1 the leader does not check its epoch.
    """

    name: str | None
    topic_id: TopicId | None
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1

    @property
    def topic(self) -> str | UUID:
        """The topic's name or id, whichever the request uses."""
        return self.topic_id if self.topic_id is not None else self.name or ""


class FetchRequest(NamedTuple):
    """Request to read from partitions.

    Attributes:
        replica_id: node id of a follower; -1 for a consumer, -2 for a consumer that may read any replica.
        max_wait_ms: milliseconds that the broker may wait for `min_bytes`.
        max_bytes: limit of the whole answer. Only the first batch of an answer may exceed it and the limit of its
            partition, so that a consumer always makes progress (KIP-74).
        session_id, session_epoch: those of an incremental fetch session (KIP-227).
        forgotten: partitions to remove from the session.
        rack: the consumer's rack, "" if it has none; None for a consumer from before KIP-392, which reads from leaders
            only.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: Sequence[FetchPartition]
    isolation_level: int = READ_UNCOMMITTED
    rack: str | None = None
    replica_id: int = -1
    session_id: int = NO_SESSION
    session_epoch: int = FINAL_EPOCH
    forgotten: Sequence[PartitionKey] = ()


def write_request(version: int, request: FetchRequest) -> bytearray:
    """Encode the request body.

    Raises:
        Unencodable: the version names topics by id, and a topic has none.
    """
    flexible = version >= FLEXIBLE_SINCE
    out = bytearray()
    if version < REPLICA_STATE_SINCE:
        out += INT32.pack(request.replica_id)
    out += _LIMITS.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    if version >= SESSION_SINCE:
        out += _SESSION.pack(request.session_id, request.session_epoch)
    _write_topics(out, version, request.partitions)
    if version >= SESSION_SINCE:
        _write_forgotten(out, version, request.forgotten)
    if version >= RACK_SINCE:
        out += string(request.rack or "", flexible)
    if flexible:
        named = version >= REPLICA_STATE_SINCE and request.replica_id >= 0
        state = _REPLICA_STATE.pack(request.replica_id, _UNKNOWN_EPOCH, 0)
        out += tag_section([tagged_field(REPLICA_STATE_TAG, state)] if named else [])
    return out


def _write_topics(out: bytearray, version: int, wanted: Sequence[FetchPartition]) -> None:
    flexible = version >= FLEXIBLE_SINCE
    tags = NO_TAGS if flexible else b""
    pack = _layout_of(version).pack
    topics: dict[str | UUID, list[FetchPartition]] = {}
    for one in wanted:
        key = one.topic_id if version >= TOPIC_ID_SINCE else one.name
        if key is None:
            raise Unencodable(f"Fetch v{version} needs the id of topic {one.name}")
        topics.setdefault(key, []).append(one)
    out += array_head(len(topics), flexible)
    for topic, partitions in topics.items():
        out += topic_reference(topic, flexible)
        out += array_head(len(partitions), flexible)
        for _, _, partition, offset, max_bytes, epoch, last_epoch in partitions:
            if flexible:
                out += pack(partition, epoch, offset, last_epoch, _UNKNOWN_LOG_START, max_bytes)
            elif version >= LEADER_EPOCH_SINCE:
                out += pack(partition, epoch, offset, _UNKNOWN_LOG_START, max_bytes)
            elif version >= LOG_START_SINCE:
                out += pack(partition, offset, _UNKNOWN_LOG_START, max_bytes)
            else:
                out += pack(partition, offset, max_bytes)
            out += tags
        out += tags


def _write_forgotten(out: bytearray, version: int, forgotten: Sequence[PartitionKey]) -> None:
    flexible = version >= FLEXIBLE_SINCE
    topics: dict[str | UUID, list[int]] = {}
    for topic, partition in forgotten:
        topics.setdefault(topic, []).append(partition)
    out += array_head(len(topics), flexible)
    for topic, partitions in topics.items():
        out += topic_reference(topic, flexible) + int32_array(partitions, flexible) + (NO_TAGS if flexible else b"")


def _layout_of(version: int) -> struct.Struct:
    return _PARTITION_LAYOUTS[max(since for since in _PARTITION_LAYOUTS if since <= version)]


def read_request_in_steps(view: memoryview, version: int) -> Steps[FetchRequest]:
    """Decode a request body, with pauses for other work. Raises ProtocolError."""
    try:
        return (yield from _read_request(view, version))
    except (struct.error, ProtocolError) as error:
        raise unreadable(f"FetchRequest v{version}", error) from error


read_request = whole(read_request_in_steps)


def _read_request(view: memoryview, version: int) -> Steps[FetchRequest]:
    flexible = version >= FLEXIBLE_SINCE
    position = 0
    replica_id = -1
    if version < REPLICA_STATE_SINCE:
        (replica_id,), position = read_fixed(view, position, INT32)
    (max_wait_ms, min_bytes, max_bytes, isolation_level), position = read_fixed(view, position, _LIMITS)
    session_id, session_epoch = NO_SESSION, FINAL_EPOCH
    if version >= SESSION_SINCE:
        (session_id, session_epoch), position = read_fixed(view, position, _SESSION)
    elements = Elements(REQUEST_ELEMENTS_MAX)
    wanted, position = yield from _read_topics(view, position, version, elements)
    forgotten: list[PartitionKey] = []
    if version >= SESSION_SINCE:
        forgotten, position = yield from _read_forgotten(view, position, version, elements)
    rack = None
    if version >= RACK_SINCE:
        rack, position = read_string(view, position, flexible)
    if flexible:
        fields, position = read_tags(view, position)
        if version >= REPLICA_STATE_SINCE and REPLICA_STATE_TAG in fields:
            (replica_id,), _ = read_fixed(fields[REPLICA_STATE_TAG], 0, INT32)
    check_end(view, position, "the message")
    session = (session_id, session_epoch, forgotten)
    return FetchRequest(max_wait_ms, min_bytes, max_bytes, wanted, isolation_level, rack, replica_id, *session)


def _read_topics(
    view: memoryview, position: int, version: int, elements: Elements
) -> Steps[tuple[list[FetchPartition], int]]:
    flexible = version >= FLEXIBLE_SINCE
    layout = _layout_of(version)
    unpack, size = layout.unpack_from, layout.size
    wanted: list[FetchPartition] = []
    count, position = read_count(view, position, TOPIC_BYTES_MIN, flexible, elements)
    for number in range(1, count + 1):
        name, topic_id, position = read_topic(view, position, version >= TOPIC_ID_SINCE, flexible)
        partition_count, position = read_count(view, position, size, flexible, elements)
        for _ in range(partition_count):
            fields = unpack(view, position)
            position += size
            if flexible:
                position = skip_tags(view, position)
                partition, current_epoch, offset, last_epoch, _, max_bytes = fields
            elif version >= LEADER_EPOCH_SINCE:
                partition, current_epoch, offset, _, max_bytes = fields
                last_epoch = _UNKNOWN_EPOCH
            else:
                partition, offset, max_bytes = fields[0], fields[1], fields[-1]
                current_epoch = last_epoch = _UNKNOWN_EPOCH
            wanted.append(FetchPartition(name, topic_id, partition, offset, max_bytes, current_epoch, last_epoch))
            if len(wanted) % ITEMS == 0:
                yield
        if flexible:
            position = skip_tags(view, position)
        if not partition_count and number % ITEMS == 0:
            yield
    return wanted, position


def _read_forgotten(
    view: memoryview, position: int, version: int, elements: Elements
) -> Steps[tuple[list[PartitionKey], int]]:
    flexible = version >= FLEXIBLE_SINCE
    forgotten: list[PartitionKey] = []
    count, position = read_count(view, position, TOPIC_BYTES_MIN, flexible, elements)
    for number in range(1, count + 1):
        name, topic_id, position = read_topic(view, position, version >= TOPIC_ID_SINCE, flexible)
        partition_count, position = read_count(view, position, INT32.size, flexible, elements)
        for _ in range(partition_count):
            forgotten.append((topic_id or name or "", INT32.unpack_from(view, position)[0]))
            position += INT32.size
            if len(forgotten) % ITEMS == 0:
                yield
        if flexible:
            position = skip_tags(view, position)
        if not partition_count and number % ITEMS == 0:
            yield
    return forgotten, position


# ---------------------------------------------------------------- the answer

_ERROR = struct.Struct(">hi")  # error, session id
_RESULT = struct.Struct(">ihqq")  # partition, error, high watermark, last stable offset
_ABORTED = struct.Struct(">qq")  # producer id, first offset
_DIVERGING = struct.Struct(">iqb")  # epoch, end offset, no tagged fields
_DIVERGING_KNOWN = struct.Struct(">iq")

_NO_RECORDS = memoryview(b"")
_NULL_ARRAY, _NULL_COMPACT_ARRAY = array_head(-1, False), array_head(-1, True)


class PartitionData:
    """Result of one partition. Offsets are -1 where they are not known.

    Attributes:
        topic: the topic's name or id, as in the request.
        chunks: on the broker, runs of whole batches to send.
        records: on the client, a view of the received bytes; it may end with an incomplete batch.
        size: bytes of `chunks` or `records`.
        aborted: (producer id, first offset) of aborted transactions, for read_committed consumers.
        diverging: (leader epoch, end offset) at which the leader's log diverges from the reader's (KIP-595).
        leader_id, leader_epoch: the current leader (KIP-951); -1 where the answer does not say.
        preferred_replica: broker to read from instead (KIP-392), in an answer without records; -1: continue here.
    """

    __slots__ = (
        "aborted", "chunks", "diverging", "error", "high_watermark", "last_stable_offset", "leader_epoch", "leader_id",
        "log_start_offset", "partition", "preferred_replica", "records", "size", "topic",
    )  # fmt: skip

    def __init__(self, topic: str | UUID, partition: int, error: ErrorCode = ErrorCode.NONE) -> None:
        self.topic = topic
        self.partition = partition
        self.error = error
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.chunks: tuple[bytes | memoryview, ...] = ()
        self.records = _NO_RECORDS
        self.size = 0
        self.aborted: tuple[tuple[int, int], ...] = ()
        self.diverging: tuple[int, int] | None = None
        self.leader_id = -1
        self.leader_epoch = -1
        self.preferred_replica = -1


class FetchResponse(NamedTuple):
    """Answer to one fetch. `error` concerns the whole request (its session, topic ids)."""

    throttle_ms: int
    error: ErrorCode
    partitions: list[PartitionData]


def write_response_in_steps(
    version: int,
    results: Sequence[PartitionData],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    error: ErrorCode = ErrorCode.NONE,
    session_id: int = NO_SESSION,
    throttle_ms: int = 0,
    end_tags: bytes = NO_TAGS,
) -> Steps[list[Piece]]:
    """Encode the response body in pieces; records are passed on without a copy.

    Args:
        results: partitions in the order to send. Consecutive ones of a topic are sent as one topic.
        throttle_ms: milliseconds for which the client should send nothing (KIP-219).
        end_tags: tagged-field section at the end of a flexible response.
    """
    flexible = version >= FLEXIBLE_SINCE
    committed = isolation_level == READ_COMMITTED
    topics: list[list[PartitionData]] = []
    before: str | UUID | None = None
    for done, result in enumerate(results, 1):
        if result.topic is not before and result.topic != before:
            before = result.topic
            topics.append([])
        topics[-1].append(result)
        if done % ITEMS == 0:
            yield
    written = 0
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
            written += 1
            if written % ITEMS == 0:
                yield
        if flexible:
            out += NO_TAGS
    if flexible:
        out += end_tags
    parts.append(out)
    return parts


write_response = whole(write_response_in_steps)


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
        fields.append(tagged_field(CURRENT_LEADER_TAG, LEADER.pack(result.leader_id, result.leader_epoch, 0)))
    return tag_section(fields)


def read_response(view: memoryview, version: int) -> FetchResponse:
    """Decode a response body. Records are views of `view`.

    Raises:
        ProtocolError: the body is truncated, has wrong lengths or counts, or bytes after its end.
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
        result.records = records
        result.size = len(records)
    if flexible:
        fields, position = read_tags(view, position)
        if DIVERGING_TAG in fields:
            (epoch, end_offset), _ = read_fixed(fields[DIVERGING_TAG], 0, _DIVERGING_KNOWN)
            result.diverging = (epoch, end_offset)
        if CURRENT_LEADER_TAG in fields:
            (result.leader_id, result.leader_epoch), _ = read_fixed(fields[CURRENT_LEADER_TAG], 0, LEADER_KNOWN)
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
