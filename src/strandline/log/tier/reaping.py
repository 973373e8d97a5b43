"""Objects that the metadata do not name: what is left over of attempts, of segments that were removed, of topics.

The evidence that an object is needed no more is that of the metadata log, and it is asked for twice: when the object is
found, and again right before it is deleted. An object may also be *not yet* named: its leader is still copying, or asks
the controller just now. Therefore only what was found again and again for a grace is deleted; whoever copies gives an
attempt up well before that is over. Objects of a topic that the metadata do not know are deleted only where somebody
says that it was deleted: a metadata log that was lost, or another cluster's store, names no topic at all.
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
"""The ids of a partition's segments, as the metadata log of a node that has caught up has them; None: it does not know
the topic."""


class Reason(Enum):
    """Reason an object belongs to no segment."""

    NOT_NAMED = "its partition's metadata do not name it"
    UNKNOWN_TOPIC = "the metadata do not know its topic"
    FOREIGN = "its key is none of ours"


@dataclass(frozen=True, slots=True)
class Orphan:
    """An object that belongs to no segment.

    Attributes:
        topic_id, partition, segment_id: by its key; None and -1 of a foreign one.
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
    """Outcome of a round."""

    deleted: int = 0
    deleted_bytes: int = 0
    failed: int = 0
    """Deletions that the store did not carry out: the next round finds these objects again."""
    kept: int = 0
    """Orphans that nothing shows to be needed no more."""


async def find_orphans(store: ObjectStore, cluster_id: str, known: Known) -> AsyncIterator[Orphan]:
    """Every object of the cluster that belongs to no segment now, in no order.

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
    """Delete those of the orphans that are needed no more, by what `known` says now and by which topics were deleted.

    An object that cannot be deleted is counted, and left to the next round.

    Raises StoreError where the listing ends early.
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
