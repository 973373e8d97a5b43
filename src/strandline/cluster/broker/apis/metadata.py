"""Metadata (3): topics, partitions and brokers, from chunks that stay encoded until the topic or a broker changes.

A client that asks for everything gets, on a cluster of 10,000 partitions, some 400 kB: building that anew each time
would hold the event loop for a fifth of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from strandline.cluster.broker.api import ServedApi
from strandline.cluster.broker.exchange import Exchange
from strandline.cluster.broker.service.broker_service import BrokerService
from strandline.cluster.broker.service.context import RequestContext
from strandline.cluster.broker.service.metadata import (
    DescribedTopic,
    TopicRef,
    offline_replicas,
    reachable,
)
from strandline.cluster.broker.service.topics import INTERNAL_TOPICS
from strandline.controller.metadata.image import MetadataImage, PartitionInfo, TopicInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import NO_NODE, ZERO_UUID, NodeId
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.bounds import REQUEST_ELEMENTS_MAX, Elements
from strandline.proto.kafka.fields import (
    INT16,
    INT32,
    NO_TAGS,
    array_head,
    int32_array,
    nullable_string,
    read_bool,
    read_count,
    read_name,
    read_string,
    read_uuid,
    skip_tags,
    string,
)

FIRST, LAST = 0, 13
RACK_SINCE = 1
CLUSTER_ID_SINCE = 2
THROTTLE_SINCE = 3
MAY_CREATE_SINCE = 4
EPOCH_SINCE = 7
OPERATIONS_SINCE = 8
FLEXIBLE_SINCE = 9
TOPIC_ID_SINCE = 10
NO_CLUSTER_OPERATIONS_SINCE = 11
BY_ID_SINCE = 12
ERROR_SINCE = 13

NEWS_MS = 20.0
"""A client that has just lost its leader asks at once where the partitions are now, and overtakes the news of its death
by a few milliseconds. Told the old leader again, librdkafka looks anew only a second later. So who asks for topics
that other brokers lead is answered a moment later, and while such a leader is in doubt, when the new one is known."""

SETTLE_MS_MAX = 500.0
"""An election takes less; longer than this nobody waits for its end."""

OPERATIONS_NOT_ASKED = -(2**31)


class MetadataMessage(NamedTuple):
    """The request; `topics` is None for all of them."""

    topics: list[TopicRef] | None
    may_create: bool
    cluster_operations: bool
    topic_operations: bool


def read_request(view: memoryview, version: int) -> MetadataMessage:
    """Raises ProtocolError."""
    flexible = version >= FLEXIBLE_SINCE
    count, position = read_count(view, 0, 1 if flexible else 2, flexible, Elements(REQUEST_ELEMENTS_MAX))
    if count < 0 and version < RACK_SINCE:
        raise ProtocolError("A null array where the message must have one")
    topics: list[TopicRef] = []
    for _ in range(count):
        topic_id = None
        if version >= TOPIC_ID_SINCE:
            topic_id, position = read_uuid(view, position)
            name, position = read_string(view, position, flexible)
        else:
            name, position = read_name(view, position, flexible)
        # By id where there is one: Java leaves an empty name beside it, which is not null.
        by_id = name is None or topic_id not in (None, ZERO_UUID)
        topics.append(TopicRef(None, topic_id) if by_id else TopicRef(name, None))
        if flexible:
            position = skip_tags(view, position)
    may_create, cluster_operations, topic_operations = True, False, False
    if version >= MAY_CREATE_SINCE:
        may_create, position = read_bool(view, position)
    if OPERATIONS_SINCE <= version < NO_CLUSTER_OPERATIONS_SINCE:
        cluster_operations, position = read_bool(view, position)
    if version >= OPERATIONS_SINCE:
        topic_operations, position = read_bool(view, position)
    if flexible:
        position = skip_tags(view, position)
    # Bytes after the end are let pass here, and here alone: librdkafka (2.16 at least) sends three of them when it asks
    # for all topics in a flexible version, and Kafka never looks.
    everything = count < 0 or (version == 0 and count == 0)
    return MetadataMessage(None if everything else topics, may_create, cluster_operations, topic_operations)


class Shape(IntEnum):
    """The formats that a topic's partitions have had."""

    LIVE_ONLY = 0  # version 0 leaves dead replicas out
    PLAIN = 1
    OFFLINE = 5
    LISTENER_ERROR = 6
    EPOCH = 7
    FLEXIBLE = 9


def shape_of(version: int) -> Shape:
    return max(shape for shape in Shape if shape <= version)


class _Chunk(NamedTuple):
    topic: TopicInfo
    brokers: object
    encoded: bytes


class PartitionChunks:
    """Encoded partition arrays, by listener, shape and topic.

    A chunk holds as long as the image has the very same topic and the very same brokers: images share what has not
    changed, so identity says it all.
    """

    def __init__(self) -> None:
        self._chunks: dict[tuple[str, Shape, object], _Chunk] = {}

    def get(
        self, image: MetadataImage, topic: TopicInfo, listener: str, shape: Shape, doubtful: Sequence[NodeId]
    ) -> bytes:
        """The partitions of a topic in one format."""
        if doubtful:
            return encode_partitions(image, topic, listener, shape, doubtful)
        key = (listener, shape, topic.topic_id)
        chunk = self._chunks.get(key)
        if chunk is None or chunk.topic is not topic or chunk.brokers is not image.brokers:
            if len(self._chunks) > 2 * len(Shape) * (len(image.topics) + 16):
                self._chunks.clear()  # most of it is of topics that are gone
            chunk = _Chunk(topic, image.brokers, encode_partitions(image, topic, listener, shape, ()))
            self._chunks[key] = chunk
        return chunk.encoded


def encode_partitions(
    image: MetadataImage, topic: TopicInfo, listener: str, shape: Shape, doubtful: Sequence[NodeId]
) -> bytes:
    """The partition array of a topic. Partitions of a leader in doubt have none for now, so that clients ask again
    soon, instead of waiting at a door that nobody opens."""
    flexible = shape is Shape.FLEXIBLE
    out = bytearray(array_head(len(topic.partitions), flexible))
    for info in topic.partitions.values():
        replicas, isr = list(info.replicas), list(info.isr)
        error, leader = _leader_of(image, info, listener, shape)
        if leader in doubtful:
            error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_NODE
        if shape is Shape.LIVE_ONLY:
            replicas, isr = (
                [node for node in nodes if reachable(image.brokers.get(node), listener)] for nodes in (replicas, isr)
            )
            if error is ErrorCode.NONE and (len(replicas) < len(info.replicas) or len(isr) < len(info.isr)):
                error = ErrorCode.REPLICA_NOT_AVAILABLE
        out += INT16.pack(error) + INT32.pack(info.partition) + INT32.pack(leader)
        if shape >= Shape.EPOCH:
            out += INT32.pack(info.leader_epoch)
        out += int32_array(replicas, flexible) + int32_array(isr, flexible)
        if shape >= Shape.OFFLINE:
            out += int32_array(offline_replicas(image, info, listener), flexible)
        if flexible:
            out += NO_TAGS
    return bytes(out)


def _leader_of(image: MetadataImage, info: PartitionInfo, listener: str, shape: Shape) -> tuple[ErrorCode, int]:
    broker = image.brokers.get(info.leader)
    if broker is None:
        return ErrorCode.LEADER_NOT_AVAILABLE, NO_NODE
    if listener not in broker.listeners:
        has_error = shape >= Shape.LISTENER_ERROR
        return (ErrorCode.LISTENER_NOT_FOUND if has_error else ErrorCode.LEADER_NOT_AVAILABLE), NO_NODE
    return ErrorCode.NONE, info.leader


def _handle(exchange: Exchange, body: memoryview, service: BrokerService) -> None:
    request = read_request(body, exchange.context.version)
    if request.topics and service.led_elsewhere(request.topics):
        _answer_later(exchange, request, service)
    else:
        _answer(exchange, request, service)


def _answer(exchange: Exchange, request: MetadataMessage, service: BrokerService) -> None:
    topics = service.describe_topics(exchange.context, request.topics, may_create=request.may_create)
    chunks = exchange.connection.listener.partition_chunks
    exchange.respond(write_response(exchange.context, request, topics, service, chunks))


def _answer_later(exchange: Exchange, request: MetadataMessage, service: BrokerService) -> None:
    """In a moment, or when leaders in doubt have been replaced."""
    in_doubt = service.doubtful_leaders()
    waited_ms = service.clock.monotonic_ms() - exchange.context.received_ms
    settled = waited_ms >= NEWS_MS and not (request.topics and service.led_by(request.topics, in_doubt))
    if settled or waited_ms >= SETTLE_MS_MAX:
        exchange.attempt(lambda: _answer(exchange, request, service))
    else:
        loop = asyncio.get_running_loop()
        exchange.when_gone = loop.call_later(NEWS_MS / 1000, _answer_later, exchange, request, service).cancel


def write_response(
    context: RequestContext,
    request: MetadataMessage,
    topics: list[DescribedTopic],
    service: BrokerService,
    chunks: PartitionChunks,
    *,
    error: ErrorCode = ErrorCode.NONE,
) -> list[bytes]:
    version = context.version
    flexible = version >= FLEXIBLE_SINCE
    image = service.image()
    parts = [_head(context, service)]
    parts.append(array_head(len(topics), flexible))
    shape = shape_of(version)
    doubtful = service.doubtful_leaders()
    for topic in topics:
        parts.append(_topic_head(topic, version))
        if topic.info is None:
            parts.append(array_head(0, flexible))
        else:
            parts.append(chunks.get(image, topic.info, context.peer.listener, shape, doubtful))
        if version >= OPERATIONS_SINCE:
            asked = request.topic_operations and topic.info is not None
            name = topic.info.name if topic.info is not None else ""
            parts.append(INT32.pack(service.topic_operations(context, name) if asked else OPERATIONS_NOT_ASKED))
        if flexible:
            parts.append(NO_TAGS)
    if OPERATIONS_SINCE <= version < NO_CLUSTER_OPERATIONS_SINCE:
        asked = request.cluster_operations
        parts.append(INT32.pack(service.cluster_operations(context) if asked else OPERATIONS_NOT_ASKED))
    if version >= ERROR_SINCE:
        parts.append(INT16.pack(error))
    if flexible:
        parts.append(NO_TAGS)
    return [b"".join(parts)]


def _head(context: RequestContext, service: BrokerService) -> bytes:
    version = context.version
    flexible = version >= FLEXIBLE_SINCE
    brokers = service.known_brokers(context)
    out = bytearray(INT32.pack(0) if version >= THROTTLE_SINCE else b"")
    out += array_head(len(brokers), flexible)
    for broker in brokers:
        out += INT32.pack(broker.node_id) + string(broker.endpoint.host, flexible) + INT32.pack(broker.endpoint.port)
        if version >= RACK_SINCE:
            out += nullable_string(broker.rack, flexible)
        if flexible:
            out += NO_TAGS
    if version >= CLUSTER_ID_SINCE:
        out += nullable_string(service.image().cluster_id, flexible)
    if version >= RACK_SINCE:
        out += INT32.pack(service.controller_id(context))
    return bytes(out)


def _topic_head(topic: DescribedTopic, version: int) -> bytes:
    flexible = version >= FLEXIBLE_SINCE
    name = topic.info.name if topic.info is not None else topic.ref.name
    out = INT16.pack(topic.error)
    out += nullable_string(name, flexible) if version >= BY_ID_SINCE else string(name or "", flexible)
    if version >= TOPIC_ID_SINCE:
        topic_id = topic.info.topic_id if topic.info is not None else topic.ref.topic_id
        out += (topic_id or ZERO_UUID).bytes
    if version >= RACK_SINCE:
        out += b"\x01" if name in INTERNAL_TOPICS else b"\x00"
    return out


def _refuse_all(exchange: Exchange, body: memoryview, service: BrokerService, error: ErrorCode) -> bool:
    context = exchange.context
    request = read_request(body, context.version)
    wanted = request.topics
    if wanted is None:
        wanted = [TopicRef(info.name, info.topic_id) for info in service.image().topics.values()]
    whole = ErrorCode.NONE if wanted else error
    if whole is not ErrorCode.NONE and context.version < ERROR_SINCE:
        return False
    topics = [DescribedTopic(ref, None, error) for ref in wanted]
    chunks = exchange.connection.listener.partition_chunks
    exchange.respond(write_response(context, request, topics, service, chunks, error=whole))
    return True


API = ServedApi(Api.METADATA, FIRST, LAST, _handle, _refuse_all)
