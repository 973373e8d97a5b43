"""Names of the objects of tiered storage in an object store.

A name identifies an object even without metadata:
`{cluster_id}/{topic}-{topic_id}/{partition}/{base_offset:020d}-{segment_id}.log`, and `.index` for its sidecar. Ids are
UUIDs in hexadecimal, as a case-insensitive file system would take two of Kafka's base64 ids for one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from strandline.proto.ids import TopicId
from strandline.proto.tier import TieredSegment

LOG_SUFFIX = ".log"
SIDECAR_SUFFIX = ".index"

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_KEY = re.compile(
    rf"(?P<cluster_id>[A-Za-z0-9_-]+)/(?P<topic>[A-Za-z0-9._-]+)-(?P<topic_id>{_UUID})/(?P<partition>0|[1-9][0-9]{{0,9}})/"
    rf"(?P<base_offset>[0-9]{{20}})-(?P<segment_id>{_UUID})(?P<suffix>\.log|\.index)"
)


@dataclass(frozen=True, slots=True)
class ObjectName:
    """Parsed key of an object.

    Attributes:
        suffix: LOG_SUFFIX or SIDECAR_SUFFIX.
    """

    cluster_id: str
    topic: str
    topic_id: TopicId
    partition: int
    base_offset: int
    segment_id: UUID
    suffix: str

    @property
    def prefix(self) -> str:
        """Prefix of the partition's objects."""
        return partition_prefix(self.cluster_id, self.topic, self.topic_id, self.partition)


def partition_prefix(cluster_id: str, topic: str, topic_id: TopicId, partition: int) -> str:
    """Return the prefix of the keys of all objects of a partition, without the `/` after it."""
    return f"{cluster_id}/{topic}-{topic_id}/{partition}"


def log_key(prefix: str, segment: TieredSegment) -> str:
    """Return the key of the object with the batches of a segment."""
    return segment_key(prefix, segment.base_offset, segment.segment_id, LOG_SUFFIX)


def sidecar_key(prefix: str, segment: TieredSegment) -> str:
    """Return the key of the object with the indexes of a segment (`strandline.log.tier.sidecar`)."""
    return segment_key(prefix, segment.base_offset, segment.segment_id, SIDECAR_SUFFIX)


def segment_key(prefix: str, base_offset: int, segment_id: UUID, suffix: str) -> str:
    """Return the key of an object of a segment, which need not be in the metadata yet."""
    return f"{prefix}/{base_offset:020d}-{segment_id}{suffix}"


def parse_key(key: str) -> ObjectName | None:
    """Parse a key; None if it is not one of ours."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    found = match.groupdict()
    return ObjectName(
        found["cluster_id"],
        found["topic"],
        UUID(found["topic_id"]),
        int(found["partition"]),
        int(found["base_offset"]),
        UUID(found["segment_id"]),
        found["suffix"],
    )
