"""Produce (0) in both directions, by hand: batches are not copied when a request is written, nor when it is read.

Versions up to 12 name topics, 13 and later give their ids (KIP-516). Strandline's brokers tell its own client, in
tagged field 7001 of each partition's result, which replicas had synced the batch at the ack.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import ZERO_UUID, TopicId
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import (
    INT32,
    LEADER,
    LEADER_KNOWN,
    NO_TAGS,
    REQUEST_ELEMENTS_MAX,
    RESPONSE_ELEMENTS_MAX,
    TOPIC_BYTES_MIN,
    Buffer,
    Elements,
    Piece,
    Unencodable,
    array_head,
    bytes_head,
    check_end,
    int32_array,
    nullable_string,
    read_bytes,
    read_count,
    read_fixed,
    read_string,
    read_tags,
    read_topic,
    skip_tags,
    tag_section,
    tagged_field,
    topic_reference,
    unreadable,
    write_uvarint,
)

FIRST, LAST = 3, 13
FLEXIBLE_SINCE = Api.PRODUCE.flexible_since
STORAGE_ERROR_SINCE = 4
LOG_START_SINCE = 5
MESSAGE_SINCE = 8
LEADER_SINCE = 10
TOPIC_ID_SINCE = 13

CURRENT_LEADER_TAG = 0
SYNCED_REPLICAS_TAG = 7001
"""Strandline's own: a compact array of int32, the ids of the replicas that had synced the batch at the ack."""

_HEAD = struct.Struct(">hi")  # acks, timeout in ms
_RESULT = struct.Struct(">ihqq")  # partition, error, base offset, append time in ms
_RESULT_WITH_START = struct.Struct(">ihqqq")  # and log start offset
_NO_RECORD_ERRORS = (array_head(0, False), array_head(0, True))


class ProduceTopic(NamedTuple):
    """Batches for one topic, which is named by `name` or, from version 13 on, by `topic_id`.

    `partitions` are (partition, records): in what our client sends, one whole batch.
    """

    name: str | None
    topic_id: TopicId | None
    partitions: Sequence[tuple[int, memoryview | None]]


class ProduceRequest(NamedTuple):
    """`acks` is -1 (all), 0 or 1; `timeout_ms` bounds the wait for acks=all; `transactional_id` is None outside of
    transactions.
    """

    acks: int
    timeout_ms: int
    transactional_id: str | None
    topics: Sequence[ProduceTopic]


class PartitionResult:
    """How the append to one partition ended; -1 for offsets and times that are not known.

    Attributes:
        error, message: NONE and "" where the batch is in the log; `message` is for people.
        base_offset: of the batch's first record.
        log_append_time_ms: -1 where the producer's own times stand.
        synced_replicas: who had synced the batch at the ack; None where the broker does not say.
        leader_id, leader_epoch: who leads now (KIP-951), -1 where the answer does not say.
    """

    __slots__ = (
        "base_offset",
        "error",
        "index",
        "leader_epoch",
        "leader_id",
        "log_append_time_ms",
        "log_start_offset",
        "message",
        "synced_replicas",
    )

    def __init__(self, index: int, error: ErrorCode = ErrorCode.NONE, message: str = "") -> None:
        self.index = index
        self.error = error
        self.message = message
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.log_start_offset = -1
        self.synced_replicas: tuple[int, ...] | None = None
        self.leader_id = -1
        self.leader_epoch = -1


# ---------------------------------------------------------------- the request


def write_request(version: int, request: ProduceRequest) -> list[Piece]:
    """The body in pieces, the batches among them as they are.

    Raises:
        Unencodable: the version names topics by id, and an id is missing.
    """
    flexible = version >= FLEXIBLE_SINCE
    tags = NO_TAGS if flexible else b""
    pieces: list[Piece] = []
    pack_index = INT32.pack
    out = bytearray(nullable_string(request.transactional_id, flexible))
    out += _HEAD.pack(request.acks, request.timeout_ms)
    out += array_head(len(request.topics), flexible)
    for topic in request.topics:
        key = topic.topic_id if version >= TOPIC_ID_SINCE else topic.name
        if key is None:
            raise Unencodable(f"Produce v{version} needs the id of topic {topic.name}")
        out += topic_reference(key, flexible)
        out += array_head(len(topic.partitions), flexible)
        for partition, records in topic.partitions:
            out += pack_index(partition)
            if records is None:
                out += bytes_head(-1, flexible) + tags
                continue
            if flexible:
                write_uvarint(out, len(records) + 1)
            else:
                out += INT32.pack(len(records))
            pieces += (out, records)
            out = bytearray(tags)
        out += tags
    out += tags
    pieces.append(out)
    return pieces


def read_request(view: memoryview, version: int) -> ProduceRequest:
    """Records stay views of what was received. Raises ProtocolError."""
    try:
        return _read_request(view, version)
    except ProtocolError as error:
        raise unreadable(f"ProduceRequest v{version}", error) from error


def _read_request(view: memoryview, version: int) -> ProduceRequest:
    flexible = version >= FLEXIBLE_SINCE
    by_id = version >= TOPIC_ID_SINCE
    unpack_index = INT32.unpack_from
    transactional_id, position = read_string(view, 0, flexible)
    (acks, timeout_ms), position = read_fixed(view, position, _HEAD)
    elements = Elements(REQUEST_ELEMENTS_MAX)
    count, position = read_count(view, position, TOPIC_BYTES_MIN, flexible, elements)
    topics = []
    for _ in range(count):
        name, topic_id, position = read_topic(view, position, by_id, flexible)
        partition_count, position = read_count(view, position, 5, flexible, elements)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            if position + 4 > len(view):
                raise ProtocolError("The message ends within a field")
            index = unpack_index(view, position)[0]
            records, position = read_bytes(view, position + 4, flexible)
            partitions.append((index, records))
            if flexible:
                position = skip_tags(view, position)
        if flexible:
            position = skip_tags(view, position)
        topics.append(ProduceTopic(name, topic_id, partitions))
    if flexible:
        position = skip_tags(view, position)
    check_end(view, position, "the message")
    return ProduceRequest(acks, timeout_ms, transactional_id, topics)


# ---------------------------------------------------------------- the answer


def write_response(
    version: int,
    topics: Sequence[tuple[ProduceTopic, Sequence[PartitionResult]]],
    *,
    tell_replicas: bool = False,
    throttle_ms: int = 0,
    end_tags: bytes = NO_TAGS,
) -> bytes:
    """The body.

    Args:
        tell_replicas: say who had synced each batch, to a client that knows the field.
        throttle_ms: how long the client should send nothing (KIP-219).
        end_tags: the tagged-field section that ends a flexible answer.
    """
    flexible = version >= FLEXIBLE_SINCE
    out = bytearray(array_head(len(topics), flexible))
    for topic, partitions in topics:
        key = (topic.topic_id or ZERO_UUID) if version >= TOPIC_ID_SINCE else topic.name or ""
        out += topic_reference(key, flexible)
        out += array_head(len(partitions), flexible)
        for partition in partitions:
            _write_partition(out, partition, version, tell_replicas)
        if flexible:
            out += NO_TAGS
    out += INT32.pack(throttle_ms)
    if flexible:
        out += end_tags
    return bytes(out)


def _write_partition(out: bytearray, result: PartitionResult, version: int, tell_replicas: bool) -> None:
    error = result.error
    if error is ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_SINCE:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    fields = (result.index, error, result.base_offset, result.log_append_time_ms)
    if version >= LOG_START_SINCE:
        out += _RESULT_WITH_START.pack(*fields, result.log_start_offset)
    else:
        out += _RESULT.pack(*fields)
    if version < MESSAGE_SINCE:
        return
    flexible = version >= FLEXIBLE_SINCE
    out += _NO_RECORD_ERRORS[flexible]  # the message names the record that is at fault
    out += nullable_string(result.message or None, flexible)
    if flexible:
        out += _partition_tags(result, version, tell_replicas)


def _partition_tags(result: PartitionResult, version: int, tell_replicas: bool) -> bytes:
    fields = []
    if version >= LEADER_SINCE and result.leader_id >= 0:
        fields.append(tagged_field(CURRENT_LEADER_TAG, LEADER.pack(result.leader_id, result.leader_epoch, 0)))
    if tell_replicas and result.error is ErrorCode.NONE:
        fields.append(tagged_field(SYNCED_REPLICAS_TAG, int32_array(result.synced_replicas or (), True)))
    return tag_section(fields)


class ProduceResponse(NamedTuple):
    """The answer: results by topic, which stands there by name or by id."""

    throttle_ms: int
    topics: list[tuple[str | UUID, list[PartitionResult]]]


def read_response(buffer: Buffer, version: int) -> ProduceResponse:
    """Every partition's result.

    Raises:
        ProtocolError: truncated, lying lengths or counts, or bytes after the end.
    """
    try:
        return _read_response(buffer, version)
    except (struct.error, ProtocolError) as error:
        raise unreadable(f"ProduceResponse v{version}", error) from error


def _read_response(buffer: Buffer, version: int) -> ProduceResponse:
    flexible = version >= FLEXIBLE_SINCE
    elements = Elements(RESPONSE_ELEMENTS_MAX)
    count, position = read_count(buffer, 0, TOPIC_BYTES_MIN, flexible, elements)
    topics: list[tuple[str | UUID, list[PartitionResult]]] = []
    for _ in range(count):
        name, topic_id, position = read_topic(buffer, position, version >= TOPIC_ID_SINCE, flexible)
        partition_count, position = read_count(buffer, position, _RESULT.size, flexible, elements)
        results = []
        for _ in range(partition_count):
            result, position = _read_partition(buffer, position, version, elements)
            results.append(result)
        if flexible:
            position = skip_tags(buffer, position)
        topics.append((name or topic_id or "", results))
    (throttle_ms,), position = read_fixed(buffer, position, INT32)
    if flexible:
        position = skip_tags(buffer, position)
    check_end(buffer, position, "the message")
    return ProduceResponse(throttle_ms, topics)


def _read_partition(buffer: Buffer, position: int, version: int, elements: Elements) -> tuple[PartitionResult, int]:
    flexible = version >= FLEXIBLE_SINCE
    start = -1
    if version >= LOG_START_SINCE:
        index, error, base_offset, append_time_ms, start = _RESULT_WITH_START.unpack_from(buffer, position)
        position += _RESULT_WITH_START.size
    else:
        index, error, base_offset, append_time_ms = _RESULT.unpack_from(buffer, position)
        position += _RESULT.size
    result = PartitionResult(index, ErrorCode.of(error) if error else ErrorCode.NONE)
    result.base_offset, result.log_append_time_ms, result.log_start_offset = base_offset, append_time_ms, start
    if version >= MESSAGE_SINCE:
        result.message, position = _read_message(buffer, position, flexible, elements)
    if flexible:
        fields, position = read_tags(buffer, position)
        if fields:
            _take_tags(result, fields.get(CURRENT_LEADER_TAG), fields.get(SYNCED_REPLICAS_TAG))
    return result, position


def _read_message(buffer: Buffer, position: int, flexible: bool, elements: Elements) -> tuple[str, int]:
    """The sentence beside the error, and the first of those about single records."""
    count, position = read_count(buffer, position, 5, flexible, elements)
    first = None
    for _ in range(count):
        detail, position = read_string(buffer, position + 4, flexible)  # after the record's number in the batch
        first = first or detail
        if flexible:
            position = skip_tags(buffer, position)
    summary, position = read_string(buffer, position, flexible)
    if first:
        return f"{summary}: {first}" if summary else first, position
    return summary or "", position


def _take_tags(result: PartitionResult, leader: Buffer | None, replicas: Buffer | None) -> None:
    if leader is not None:
        (result.leader_id, result.leader_epoch), _ = read_fixed(leader, 0, LEADER_KNOWN)
    if replicas is not None:
        count, position = read_count(replicas, 0, 4, True)
        result.synced_replicas = struct.unpack_from(f">{max(count, 0)}i", replicas, position)
