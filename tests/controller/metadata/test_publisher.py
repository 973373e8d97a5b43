"""The publisher: committed batches and snapshots to an image, and who is told (rule A13)."""

from __future__ import annotations

from uuid import UUID

import pytest

from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.publisher import ImagePublisher
from strandline.controller.metadata.records import (
    MetadataRecord,
    MetadataVersionRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from strandline.controller.metadata.table import encode_records
from strandline.controller.quorum.api import CommittedBatch, LeaderAndEpoch
from strandline.proto.errors import FatalError

TOPIC = UUID(int=9)
PARTITION = PartitionRecord(TOPIC, 0, (1,), (1,), (), (), 1, 0, 0, False)


def batch(base_offset: int, *records: MetadataRecord) -> CommittedBatch:
    return CommittedBatch(base_offset, base_offset + len(records) - 1, 3, 1234, encode_records(records))


def test_batches_are_told_once_each_with_the_image_before_and_after() -> None:
    """delta.base is the image before; offsets may jump over control records of the quorum."""
    publisher = ImagePublisher("c")
    heard: list[tuple[MetadataDelta, MetadataImage]] = []
    publisher.subscribe(lambda delta, image: heard.append((delta, image)))
    publisher.handle_commit(batch(1, MetadataVersionRecord(1)))
    publisher.handle_commit(batch(5, TopicRecord("t", TOPIC), PARTITION))
    assert [(delta.base.offset, image.offset) for delta, image in heard] == [(-1, 1), (1, 6)]
    assert heard[1][0].partitions == {TOPIC: {0: None}}
    assert (publisher.image.epoch, publisher.image.timestamp_ms) == (3, 1234)


def test_latecomer_hears_everything_at_once() -> None:
    """A part that subscribes after the start misses nothing; one that left hears nothing."""
    publisher = ImagePublisher("c")
    publisher.handle_commit(batch(0, MetadataVersionRecord(1), TopicRecord("t", TOPIC), PARTITION))
    heard: list[MetadataDelta] = []

    def listen(delta: MetadataDelta, image: MetadataImage) -> None:
        heard.append(delta)

    publisher.subscribe(listen)
    assert list(heard[0].created_topics) == [TOPIC]
    publisher.unsubscribe(listen)
    publisher.handle_commit(batch(3, RemoveTopicRecord(TOPIC)))
    assert len(heard) == 1


def test_snapshot_of_one_publisher_loads_into_another() -> None:
    """And what the snapshot no longer has is told as deleted."""
    publisher = ImagePublisher("c")
    assert publisher.take_snapshot() is None
    publisher.handle_commit(batch(0, MetadataVersionRecord(1), TopicRecord("t", TOPIC), PARTITION))
    behind = ImagePublisher("c")
    behind.handle_load_snapshot(*publisher.take_snapshot())  # type: ignore[misc]
    assert behind.image.topics == publisher.image.topics
    assert behind.image.offset == 2
    heard: list[MetadataDelta] = []
    behind.subscribe(lambda delta, image: heard.append(delta))
    publisher.handle_commit(batch(3, RemoveTopicRecord(TOPIC)))
    behind.handle_load_snapshot(*publisher.take_snapshot())  # type: ignore[misc]
    assert list(heard[-1].deleted_topics) == [TOPIC]


def test_going_back_stops_the_node() -> None:
    """A committed offset twice, or an older snapshot: the quorum's promise is broken."""
    publisher = ImagePublisher("c")
    publisher.handle_commit(batch(4, MetadataVersionRecord(1)))
    with pytest.raises(FatalError):
        publisher.handle_commit(batch(4, TopicRecord("t", TOPIC), PARTITION))
    with pytest.raises(FatalError):
        publisher.handle_load_snapshot(4, 1, encode_records([MetadataVersionRecord(1)]))


def test_damaged_snapshot_changes_nothing() -> None:
    """Schedule 31: the image and its subscribers stay with what was good."""
    publisher = ImagePublisher("c")
    publisher.handle_commit(batch(0, MetadataVersionRecord(1), TopicRecord("t", TOPIC), PARTITION))
    good = publisher.image
    heard: list[MetadataDelta] = []
    publisher.subscribe(lambda delta, image: heard.append(delta))
    with pytest.raises(FatalError):
        publisher.handle_load_snapshot(9, 1, encode_records([MetadataVersionRecord(1), TopicRecord("t", TOPIC)]))
    assert publisher.image is good
    assert len(heard) == 1


def test_leader_changes_are_passed_on() -> None:
    """Those who wait for a controller need not poll."""
    publisher = ImagePublisher("c")
    heard: list[LeaderAndEpoch] = []
    publisher.subscribe_leader(heard.append)
    publisher.handle_leader_change(LeaderAndEpoch(2, 7))
    assert heard == [LeaderAndEpoch(2, 7)]
