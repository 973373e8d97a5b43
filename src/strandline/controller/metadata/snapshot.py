"""Snapshots of the metadata: an image as records, and records as an image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.features import (
    LEVEL_OF_FEATURES,
    METADATA_FEATURE,
    OWN_LEVELS,
    FeatureLevelRecord,
    Supported,
    first_features,
    release_of,
)
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.quotas import quota_records
from strandline.controller.metadata.records import (
    AccessControlEntryRecord,
    ConfigRecord,
    MetadataRecord,
    MetadataVersionRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from strandline.proto.errors import FatalError
from strandline.proto.ids import NO_BROKER_EPOCH, NO_NODE


def image_records(image: MetadataImage) -> list[MetadataRecord]:
    """The records that add up to `image`, the metadata.version first; equal images give equal records.

    Raises:
        FatalError: the image is empty: there is nothing that a snapshot could say.
    """
    if image.metadata_version == 0:
        raise FatalError(
            "A snapshot of metadata without a metadata.version was asked for: nothing has been replayed yet."
        )
    records = level_records(image.metadata_version, image.features)  # rule A32/snapshot-without-levels
    records.extend(image.brokers[node_id] for node_id in sorted(image.brokers))
    for topic in image.topics.values():
        records.append(TopicRecord(topic.name, topic.topic_id))
        records.extend(topic.partitions.values())
    for resource in sorted(image.configs):
        values = image.configs[resource]
        records.extend(ConfigRecord(int(resource[0]), resource[1], key, values[key]) for key in sorted(values))
    # rule A20/snapshot-without-acls
    records.extend(AccessControlEntryRecord(binding) for binding in sorted(image.acls))
    if image.next_producer_id > 0:
        records.append(ProducerIdsRecord(NO_NODE, NO_BROKER_EPOCH, image.next_producer_id))
    records.extend(image.scram.records())  # rule A19/snapshot-without-credentials
    records.extend(quota_records(image.quotas))  # rule A21/snapshot-without-quotas
    records.extend(image.tiering.records())  # rule B21/snapshot-without-tiers
    return records


def level_records(metadata_version: int, features: Mapping[str, int]) -> list[MetadataRecord]:
    """The records that give a cluster these levels: first of its log, and of each snapshot."""
    release = release_of(METADATA_FEATURE, metadata_version)
    records: list[MetadataRecord] = [MetadataVersionRecord(metadata_version, release)]
    records.extend(
        FeatureLevelRecord(name, features[name], release_of(name, features[name])) for name in sorted(features)
    )
    return records


def first_levels(metadata_version: int) -> list[MetadataRecord]:
    """The first records of a cluster that begins at this level."""
    return level_records(metadata_version, first_features() if metadata_version >= LEVEL_OF_FEATURES else {})


def is_level(record: MetadataRecord) -> bool:
    """A record of `level_records`."""
    return isinstance(record, MetadataVersionRecord | FeatureLevelRecord)


def load_image(
    cluster_id: str, records: Iterable[MetadataRecord], end_offset: int, epoch: int, supported: Supported = OWN_LEVELS
) -> MetadataImage:
    """The image that a snapshot stands for; its last record is taken to be at `end_offset - 1`.

    Raises:
        FatalError: the records do not begin with a metadata.version, or do not fit together; a snapshot that a bit flip
            changed must not be served, and nothing be deleted on its word (schedule 31).
    """
    delta = MetadataDelta(MetadataImage(cluster_id), supported)
    delta.apply_all(records)
    if delta.metadata_version == 0:
        raise FatalError("A metadata snapshot holds no metadata.version record: it is damaged.")
    return delta.image(end_offset - 1, epoch, 0)
