"""What members of a group tell one another through the coordinator: Kafka's ConsumerProtocol, versions 0 to 3.

Every client of Kafka reads and writes these bytes, so groups may mix ours with Java's and librdkafka's. A newer version
only appends fields: what follows the known ones is ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strandline.proto.errors import ProtocolError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.fields import (
    INT16,
    INT32,
    RESPONSE_ELEMENTS_MAX,
    Elements,
    array_head,
    bytes_head,
    int32_array,
    nullable_string,
    read_bytes,
    read_count,
    read_fixed,
    read_int16,
    read_name,
    read_string,
    string,
    unreadable,
)

SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 3
OWNED_SINCE, GENERATION_SINCE, RACK_SINCE = 1, 2, 3

_TOPIC_BYTES_MIN = 6
"""A name's length and a count."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants and has.

    Attributes:
        topics: that it subscribes to, sorted.
        owned: partitions that it holds while it joins (KIP-429); empty under the eager protocol.
        generation: in which it got them (KIP-792); -1 unknown.
        user_data: the assignor's own; see `assignors`.
        rack: of the member (KIP-881); None unknown.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    user_data: bytes | None = None
    rack: str | None = None


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Partitions gathered under their topics, as every message of this protocol has them."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    out = array_head(len(topics), False)
    for topic, numbers in topics.items():
        out += string(topic, False) + int32_array(numbers, False)
    return out


def decode_partitions(data: bytes) -> tuple[tuple[TopicPartition, ...], bytes]:
    """Partitions, and the bytes that follow them. Raises ProtocolError."""
    partitions, position = _read_partitions(data, 0, Elements(RESPONSE_ELEMENTS_MAX))
    return partitions, data[position:]


def _read_partitions(data: bytes, position: int, elements: Elements) -> tuple[tuple[TopicPartition, ...], int]:
    found: list[TopicPartition] = []
    count, position = read_count(data, position, _TOPIC_BYTES_MIN, False, elements)
    for _ in range(count):
        topic, position = read_name(data, position, False)
        size, position = read_count(data, position, INT32.size, False, elements)
        numbers = struct.unpack_from(f">{max(size, 0)}i", data, position)
        position += INT32.size * len(numbers)
        found += [TopicPartition(topic, number) for number in numbers]
    return tuple(found), position


def _user_data(data: bytes | None) -> bytes:
    return bytes_head(-1, False) if data is None else bytes_head(len(data), False) + data


def encode_subscription(item: Subscription) -> bytes:
    """Version 3, which older clients read as far as they know it."""
    out = INT16.pack(SUBSCRIPTION_VERSION) + array_head(len(item.topics), False)
    out += b"".join(string(topic, False) for topic in item.topics)
    out += _user_data(item.user_data) + encode_partitions(item.owned) + INT32.pack(item.generation)
    return out + nullable_string(item.rack, False)


def decode_subscription(data: bytes) -> Subscription:
    """Any version.

    Raises:
        ProtocolError: it is cut off or says nonsense.
    """
    try:
        return _decode_subscription(data)
    except ProtocolError as error:
        raise unreadable("a member's subscription", error) from error


def _decode_subscription(data: bytes) -> Subscription:
    elements = Elements(RESPONSE_ELEMENTS_MAX)
    version, topics, position = _read_topics(data, elements)
    user_data, position = read_bytes(data, position, False)
    owned: tuple[TopicPartition, ...] = ()
    generation, rack = -1, None
    if version >= OWNED_SINCE:
        owned, position = _read_partitions(data, position, elements)
    if version >= GENERATION_SINCE:
        (generation,), position = read_fixed(data, position, INT32)
    if version >= RACK_SINCE:
        rack, position = read_string(data, position, False)
    return Subscription(topics, owned, generation, user_data, rack)


def _read_topics(data: bytes, elements: Elements) -> tuple[int, tuple[str, ...], int]:
    """(version, topics, position after them): the beginning of a subscription of every version."""
    version = _read_version(data)
    count, position = read_count(data, INT16.size, INT16.size, False, elements)
    topics = []
    for _ in range(count):
        topic, position = read_name(data, position, False)
        topics.append(topic)
    return version, tuple(topics), position


def _read_version(data: bytes) -> int:
    version, _ = read_int16(data, 0)
    if version < 0:
        raise ProtocolError(f"Version {version}")
    return version


def subscribed_topics(subscription: bytes) -> tuple[str, ...] | None:
    """The topics of a consumer's subscription; None when it does not parse, for the bytes are the clients' own."""
    try:
        return _read_topics(subscription, Elements(RESPONSE_ELEMENTS_MAX))[1]
    except ProtocolError:
        return None


def encode_assignment(partitions: Sequence[TopicPartition], user_data: bytes | None = None) -> bytes:
    """Encode the assignment that the group's leader gives to one member."""
    return INT16.pack(ASSIGNMENT_VERSION) + encode_partitions(partitions) + _user_data(user_data)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of an assignment; no bytes at all: none.

    Raises:
        ProtocolError: it is cut off or says nonsense.
    """
    if not data:
        return ()
    try:
        _read_version(data)
        partitions, position = _read_partitions(data, INT16.size, Elements(RESPONSE_ELEMENTS_MAX))
        read_bytes(data, position, False)
    except ProtocolError as error:
        raise unreadable("a member's assignment", error) from error
    return partitions
