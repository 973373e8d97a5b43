"""Snapshots of the metadata: an image as records, and records as an image."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.features import OWN_LEVELS, Supported, is_level
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.levels import level_of
from strandline.controller.metadata.records import ConfigRecord, MetadataRecord, PartitionRecord
from strandline.controller.metadata.table import TABLE
from strandline.proto.errors import FatalError
from strandline.proto.steps import ITEMS, Steps, whole


def image_records(image: MetadataImage) -> list[MetadataRecord]:
    """The records that add up to `image`, the metadata.version first; equal images give equal records.

    Raises:
        FatalError: the image is empty: there is nothing that a snapshot could say.
    """
    if image.metadata_version == 0:
        raise FatalError(
            "A snapshot of metadata without a metadata.version was asked for: nothing has been replayed yet."
        )
    records: list[MetadataRecord] = []
    for row in TABLE.values():
        # rule A19/snapshot-without-credentials, rule A20/snapshot-without-acls
        # rule A21/snapshot-without-quotas, rule B21/snapshot-without-tiers
        records.extend(row.snapshot(image))
    return records


def load_steps(
    cluster_id: str, records: Iterable[MetadataRecord], end_offset: int, epoch: int, supported: Supported = OWN_LEVELS
) -> Steps[MetadataImage]:
    """The image that a snapshot stands for; its last record is taken to be at `end_offset - 1`.

    Raises:
        FatalError: the records do not begin with a metadata.version, or do not fit together; a snapshot that a bit flip
            changed must not be served, and nothing be deleted on its word (schedule 31).
    """
    delta = MetadataDelta(MetadataImage(cluster_id), supported)
    for number, record in enumerate(records, 1):
        delta.apply(record)
        if number % ITEMS == 0:  # rule A39/snapshots-are-tried-in-one-turn
            yield
    if delta.empty:
        raise FatalError("A metadata snapshot holds no metadata.version record: it is damaged.")
    return delta.image(end_offset - 1, epoch, 0)


def what_needs_more_than(level: int, image: MetadataImage) -> str:
    """Description of something in the metadata that needs a higher metadata.version than `level` (apart from feature
    levels); "" if there is nothing."""
    for record in image_records(image):
        if not is_level(record) and level_of(record) > level:
            if isinstance(record, PartitionRecord):
                return f"partition {record.partition} of topic {image.topic_by_id[record.topic_id].name!r} is moving"
            if isinstance(record, ConfigRecord):
                return f"there is a subscription {record.resource_name!r} to client metrics"
            return str(record)
    return ""


load_image = whole(load_steps)
