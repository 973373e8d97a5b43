"""Objects that the metadata do not name: those of failed copies, of removed segments, of deleted topics.

The metadata log decides that an object is not needed, and is asked twice: when the object is found, and again right
before it is deleted. An object may also be *not yet* named, while its leader is still copying, or is asking the
controller. So only objects that were found again and again for a grace period are deleted; a leader gives up a copy
well before that is over. Objects of a topic that the metadata do not know are deleted only if the topic is known to be
deleted: a lost metadata log, or another cluster's store, knows no topic at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from strandline.log.object_store import ObjectStore
from strandline.log.tier.names import parse_key
from strandline.proto.errors import StoreError
from strandline.proto.ids import TopicId

Known = Callable[[TopicId, int], frozenset[UUID] | None]
"""Returns the ids of a partition's segments in the metadata log of a node that has caught up; None if the topic is not
known."""


class Reason(Enum):
    """Reason that an object belongs to no segment."""

    NOT_NAMED = "its partition's metadata do not name it"
    UNKNOWN_TOPIC = "the metadata do not know its topic"
    FOREIGN = "its key is none of ours"


@dataclass(frozen=True, slots=True)
class Orphan:
    """An object that belongs to no segment.

    Attributes:
        topic_id, partition, segment_id: from its key; None and -1 for a foreign object.
    """

    key: str
    reason: Reason
    size_bytes: int
    modified_ms: int
    topic_id: TopicId | None
    partition: int
    segment_id: UUID | None


@dataclass(slots=True)
class Reaped:
    """Outcome of one round."""

    deleted: int = 0
    deleted_bytes: int = 0
    failed: int = 0
    """Number of deletions that failed: the next round finds these objects again."""
    kept: int = 0
    """Number of orphans for which nothing proves that they are not needed."""


async def find_orphans(store: ObjectStore, cluster_id: str, known: Known) -> AsyncIterator[Orphan]:
    """Yield every object of the cluster that belongs to no segment now, in no order.

    Raises StoreError.
    """
    async for item in store.list(cluster_id):
        name = parse_key(item.key)
        if name is None:
            yield Orphan(item.key, Reason.FOREIGN, item.size_bytes, item.modified_ms, None, -1, None)
            continue
        segments = known(name.topic_id, name.partition)
        if segments is None or name.segment_id not in segments:
            reason = Reason.UNKNOWN_TOPIC if segments is None else Reason.NOT_NAMED
            yield Orphan(
                item.key,
                reason,
                item.size_bytes,
                item.modified_ms,
                name.topic_id,
                name.partition,
                name.segment_id,
            )


async def reap(
    store: ObjectStore, orphans: AsyncIterator[Orphan], known: Known, deleted_topics: Collection[TopicId]
) -> Reaped:
    """Delete those orphans that are not needed, by the present result of `known` and the deleted topics.

    An object that cannot be deleted is counted, and left to the next round.

    Raises StoreError if the listing fails.
    """
    done = Reaped()
    async for orphan in orphans:
        if not _is_done_with(orphan, known, deleted_topics):
            done.kept += 1
            continue
        try:
            await store.delete(orphan.key)
        except StoreError:
            done.failed += 1
        else:
            done.deleted += 1
            done.deleted_bytes += orphan.size_bytes
    return done


def _is_done_with(orphan: Orphan, known: Known, deleted_topics: Collection[TopicId]) -> bool:
    if orphan.topic_id is None:
        return False
    segments = known(orphan.topic_id, orphan.partition)
    if segments is None:
        return orphan.topic_id in deleted_topics  # rule B23/unknown-topics-lose-their-objects
    return orphan.segment_id not in segments  # rule B23/objects-that-were-named-since-go
