"""The ObjectStore port, the only way to an object store, and the names of objects in it.

`strandline.log.tier.object_store` has the production one; the simulator's double (`strandline.chaos.sim.object_store`)
is slow, away or refuses as a nemesis has it. `tests/log/tier/test_store_contract.py` holds both to one contract.

A name says enough to tell what an object is when nothing else is left:
`{cluster_id}/{topic}-{topic_id}/{partition}/{base_offset:020d}-{segment_id}.log`, and `.index` for its sidecar. Ids are
UUIDs in hexadecimal: a file system that folds letters' case would take two of Kafka's base64 ids for one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from strandline.proto.ids import TopicId
from strandline.proto.tier import TieredSegment


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object, as a listing has it.

    Attributes:
        modified_ms: when it came to be, in the store's own wall time.
    """

    key: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """Objects by their keys: names joined by `/`. Each object is written once, and never changed.

    Every method raises StoreError where the store is away, slow or refuses, within the timeout that it was opened with.
    """

    async def put(self, key: str, chunks: AsyncIterator[bytes], size_bytes: int) -> None:
        """Write an object of `size_bytes` in all; it appears whole or not at all, and is durable when this returns.

        After an error it may be there all the same. What `chunks` raises is raised, and then there is no object.
        `chunks` is read as fast as the store takes it; no more than 20 MiB of it are in memory. A key is never used
        again: an object that is there already may be replaced.

        Raises:
            StoreError: also where `chunks` are not `size_bytes`; then there is no object.
        """

    async def get(self, key: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of an object; at least one.

        Raises:
            ObjectMissing: there is no such object.
            StoreError: also where the object is shorter than `end`.
        """

    async def delete(self, key: str) -> None:
        """Delete an object; one that is not there is fine."""

    def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """All objects whose keys begin with `prefix` and `/` (every object where it is empty), in no order. An object
        that comes or goes meanwhile is there or not."""

    async def copy(self, source: str, target: str) -> None:
        """Make `target` an object of the same bytes, inside of the store; it appears whole or not at all.

        Raises:
            ObjectMissing: there is no such source.
        """

    async def close(self) -> None:
        """Let go of what the store was reached with. Idempotent."""


LOG_SUFFIX = ".log"
SIDECAR_SUFFIX = ".index"

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_KEY = re.compile(
    rf"(?P<cluster_id>[A-Za-z0-9_-]+)/(?P<topic>[A-Za-z0-9._-]+)-(?P<topic_id>{_UUID})/(?P<partition>0|[1-9][0-9]{{0,9}})/"
    rf"(?P<base_offset>[0-9]{{20}})-(?P<segment_id>{_UUID})(?P<suffix>\.log|\.index)"
)


@dataclass(frozen=True, slots=True)
class ObjectName:
    """What a key names.

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
        """Of the partition's objects."""
        return partition_prefix(self.cluster_id, self.topic, self.topic_id, self.partition)


def partition_prefix(cluster_id: str, topic: str, topic_id: TopicId, partition: int) -> str:
    """What the keys of all objects of a partition begin with, without the `/` behind it."""
    return f"{cluster_id}/{topic}-{topic_id}/{partition}"


def log_key(prefix: str, segment: TieredSegment) -> str:
    """Of the object that holds the batches of a segment."""
    return segment_key(prefix, segment.base_offset, segment.segment_id, LOG_SUFFIX)


def sidecar_key(prefix: str, segment: TieredSegment) -> str:
    """Of the object that holds the indexes of a segment (`strandline.log.tier.sidecar`)."""
    return segment_key(prefix, segment.base_offset, segment.segment_id, SIDECAR_SUFFIX)


def segment_key(prefix: str, base_offset: int, segment_id: UUID, suffix: str) -> str:
    """Of one object of a segment that may not be in the metadata yet."""
    return f"{prefix}/{base_offset:020d}-{segment_id}{suffix}"


def parse_key(key: str) -> ObjectName | None:
    """What a key names; None for a key that is none of ours."""
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
