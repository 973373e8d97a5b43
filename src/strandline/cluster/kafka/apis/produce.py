"""Produce (0): the request is read in place; batches stay views of the receive buffer until they are written."""

from __future__ import annotations

import struct

from strandline.cluster.kafka.api import INJECTED, ServedApi
from strandline.cluster.kafka.exchange import Exchange
from strandline.cluster.kafka.node_endpoints import node_endpoints
from strandline.cluster.service.broker_service import BrokerService
from strandline.cluster.service.produce import PartitionResult, ProduceRequest, ProduceResult, ProduceTopic
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import ZERO_UUID
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.bounds import REQUEST_ELEMENTS_MAX, Elements
from strandline.proto.kafka.fields import (
    INT32,
    NO_TAGS,
    array_head,
    int32_array,
    nullable_string,
    read_bytes,
    read_count,
    read_name,
    read_string,
    read_uuid,
    skip_tags,
    string,
    tagged_field,
)
from strandline.proto.varint import uvarint

FIRST, LAST = 3, 13
FLEXIBLE_SINCE = 9
STORAGE_ERROR_SINCE = 4
LOG_START_SINCE = 5
MESSAGE_SINCE = 8
LEADER_SINCE = 10
TOPIC_ID_SINCE = 13

CURRENT_LEADER_TAG = 0
SYNCED_REPLICAS_TAG = 7001
"""Ours: the ids of the replicas that had synced the batch at the ack. Only our own client is told."""

OWN_CLIENT = "strandline-python"
"""The software that is told so."""

_HEAD = struct.Struct(">hi")
_PARTITION_INDEX = INT32
_RESULT = struct.Struct(">ihqq")
_RESULT_WITH_START = struct.Struct(">ihqqq")
_LEADER = struct.Struct(">iib")
_NO_RECORD_ERRORS = array_head(0, False)


TOPIC_BYTES_MIN = 3
"""A topic with an empty name, no partition and no tagged field takes a byte each."""


def read_request(view: memoryview, version: int) -> ProduceRequest:
    """Raises ProtocolError."""
    flexible = version >= FLEXIBLE_SINCE
    by_id = version >= TOPIC_ID_SINCE
    transactional_id, position = read_string(view, 0, flexible)
    if position + _HEAD.size > len(view):
        raise ProtocolError("The message ends within a field")
    acks, timeout_ms = _HEAD.unpack_from(view, position)
    elements = Elements(REQUEST_ELEMENTS_MAX)
    count, position = read_count(view, position + _HEAD.size, TOPIC_BYTES_MIN, flexible, elements)
    topics = []
    for _ in range(count):
        name = topic_id = None
        if by_id:
            topic_id, position = read_uuid(view, position)
        else:
            name, position = read_name(view, position, flexible)
        partition_count, position = read_count(view, position, 5, flexible, elements)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            if position + 4 > len(view):
                raise ProtocolError("The message ends within a field")
            index = _PARTITION_INDEX.unpack_from(view, position)[0]
            records, position = read_bytes(view, position + 4, flexible)
            partitions.append((index, records))
            if flexible:
                position = skip_tags(view, position)
        if flexible:
            position = skip_tags(view, position)
        topics.append(ProduceTopic(name, topic_id, partitions))
    if flexible:
        position = skip_tags(view, position)
    if position != len(view):
        raise ProtocolError(f"{len(view) - position} bytes after the end of Produce v{version}")
    return ProduceRequest(acks, timeout_ms, transactional_id, topics)


def _handle(exchange: Exchange, body: memoryview, service: BrokerService) -> None:
    request = read_request(body, exchange.context.version)

    def done(result: ProduceResult) -> None:
        if request.acks != 0:
            exchange.respond([write_response(exchange, service, result)])
        elif result.failed:
            # Kafka's rule: with acks=0 a closed connection is the only way to tell the producer to look again.
            exchange.drop_connection(f"a write with acks=0 failed: {_first_fault(result)}")
        else:
            exchange.respond_nothing()

    service.produce(exchange.context, request, lambda result: exchange.attempt(lambda: done(result)))


def write_response(exchange: Exchange, service: BrokerService, result: ProduceResult) -> bytes:
    context = exchange.context
    version = context.version
    flexible = version >= FLEXIBLE_SINCE
    ours = flexible and context.peer.software_name == OWN_CLIENT
    out = bytearray(array_head(len(result.topics), flexible))
    for topic, partitions in result.topics:
        if version >= TOPIC_ID_SINCE:
            out += (topic.topic_id or ZERO_UUID).bytes
        else:
            out += string(topic.name or "", flexible)
        out += array_head(len(partitions), flexible)
        for partition in partitions:
            _write_partition(out, partition, version, ours)
        if flexible:
            out += NO_TAGS
    out += INT32.pack(0)  # throttle_time_ms
    if flexible:
        out += _end_tags(exchange, service, result)
    return bytes(out)


def _write_partition(out: bytearray, result: PartitionResult, version: int, ours: bool) -> None:
    error = result.error
    if error is ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_SINCE:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= LOG_START_SINCE:
        out += _RESULT_WITH_START.pack(
            result.index, error, result.base_offset, result.log_append_time_ms, result.log_start_offset
        )
    else:
        out += _RESULT.pack(result.index, error, result.base_offset, result.log_append_time_ms)
    if version < MESSAGE_SINCE:
        return
    flexible = version >= FLEXIBLE_SINCE
    out += uvarint(1) if flexible else _NO_RECORD_ERRORS
    out += nullable_string(result.message or None, flexible)
    if flexible:
        out += _partition_tags(result, version, ours)


def _partition_tags(result: PartitionResult, version: int, ours: bool) -> bytes:
    fields = []
    if version >= LEADER_SINCE and result.leader_id >= 0:
        fields.append(tagged_field(CURRENT_LEADER_TAG, _LEADER.pack(result.leader_id, result.leader_epoch, 0)))
    if ours and result.error is ErrorCode.NONE:
        fields.append(tagged_field(SYNCED_REPLICAS_TAG, int32_array(result.synced_replicas, True)))
    return uvarint(len(fields)) + b"".join(fields) if fields else NO_TAGS


def _end_tags(exchange: Exchange, service: BrokerService, result: ProduceResult) -> bytes:
    if not result.failed or exchange.context.version < LEADER_SINCE:
        return NO_TAGS
    leaders = [partition.leader_id for _, partitions in result.topics for partition in partitions]
    return node_endpoints(service, exchange.context, leaders)


def _first_fault(result: ProduceResult) -> str:
    for topic, partitions in result.topics:
        for partition in partitions:
            if partition.error is not ErrorCode.NONE:
                return f"{topic.name or topic.topic_id}-{partition.index}: {partition.error.name} {partition.message}"
    return ""


def _refuse_all(exchange: Exchange, body: memoryview, service: BrokerService, error: ErrorCode) -> bool:
    request = read_request(body, exchange.context.version)
    if not any(topic.partitions for topic in request.topics):
        return False
    if request.acks == 0:
        exchange.drop_connection(f"a write with acks=0 failed: {error.name} {INJECTED}")
        return True
    result = ProduceResult(
        [
            (topic, [PartitionResult(index, error, INJECTED) for index, _records in topic.partitions])
            for topic in request.topics
        ],
        failed=True,
    )
    exchange.respond([write_response(exchange, service, result)])
    return True


API = ServedApi(Api.PRODUCE, FIRST, LAST, _handle, _refuse_all, large=True)
