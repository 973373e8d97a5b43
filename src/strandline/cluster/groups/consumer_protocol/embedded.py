"""The subscriptions and assignments of classic members, in their own bytes, in a group of the consumer protocol.

Kafka's ConsumerProtocol names topics where this protocol has ids: a topic that does not exist (any more) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.controller.metadata.image import MetadataImage
from strandline.proto.ids import TopicId, TopicPartition
from strandline.proto.kafka.consumer_group_records import Assignment, sorted_assignment
from strandline.proto.kafka.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)


def subscription_of(protocols: tuple[tuple[str, bytes], ...]) -> Subscription:
    """What a member reads and owns, by its favourite assignor; the others say the same. Raises ProtocolError."""
    return decode_subscription(protocols[0][1])


def assignment_of(raw: bytes, image: MetadataImage) -> Assignment:
    """What a leader assigned. Raises ProtocolError."""
    return by_id(decode_assignment(raw), image)


def by_id(partitions: Iterable[TopicPartition], image: MetadataImage) -> Assignment:
    """Those partitions that there are."""
    found: list[tuple[TopicId, int]] = []
    for name, number in partitions:
        topic = image.topics.get(name)
        if topic is not None and number in topic.partitions:
            found.append((topic.topic_id, number))
    return sorted_assignment(found)


def assignment_bytes(assignment: Mapping[TopicId, tuple[int, ...]], image: MetadataImage) -> bytes:
    """The assignment that answers a SyncGroup of a member of the classic protocol."""
    return encode_assignment(
        [
            TopicPartition(image.topic_by_id[topic_id].name, number)
            for topic_id, numbers in assignment.items()
            if topic_id in image.topic_by_id
            for number in numbers
        ]
    )
