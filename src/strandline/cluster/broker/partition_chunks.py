"""Partition arrays of Metadata answers, which stay encoded until the topic or a broker changes.

A client that asks for everything gets, on a cluster of 10,000 partitions, some 400 kB: building that anew each time
would hold the event loop for a fifth of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from strandline.cluster.broker.brokers import offline_replicas, reachable
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.controller.metadata.records import PartitionRecord
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_NODE, NodeId
from strandline.proto.kafka.fields import INT16, INT32, NO_TAGS, array_head, int32_array


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


def _leader_of(image: MetadataImage, info: PartitionRecord, listener: str, shape: Shape) -> tuple[ErrorCode, int]:
    broker = image.brokers.get(info.leader)
    if broker is None:
        return ErrorCode.LEADER_NOT_AVAILABLE, NO_NODE
    if listener not in broker.listeners:
        has_error = shape >= Shape.LISTENER_ERROR
        return (ErrorCode.LISTENER_NOT_FOUND if has_error else ErrorCode.LEADER_NOT_AVAILABLE), NO_NODE
    return ErrorCode.NONE, info.leader
