"""Restoring of topics that exist only in the object store, because their cluster is lost, and copies for another
cluster.

The keys of objects name their cluster (`strandline.log.tier.names`), and no cluster changes objects of another one. So
a cluster that takes over a topic copies its objects under its own id; the originals stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from uuid import UUID

from crc32c import crc32c

from strandline.log.object_store import ObjectStore
from strandline.log.producer_state import SnapshotDamaged, decode_snapshot
from strandline.log.tier.chains import Chain, chain_of
from strandline.log.tier.inspection import Inspected, Report, StoredSegment, inspect_store
from strandline.log.tier.names import ObjectName
from strandline.log.tier.sidecar import decode_producers, for_cluster, load_head
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import CorruptLogError, KafkaError
from strandline.proto.ids import ProducerId, TopicId
from strandline.proto.tier import AdoptedTier, ProducerIds

TOPIC_ID = "remote.storage.restore.topic.id"
"""Setting allowed only when a topic is created: the id of the stored topic from which it is restored."""
ALLOW_LOSS = "remote.storage.restore.allow.loss"
"""Setting allowed only when a topic is created, true or false: whether it is created although some records cannot be
restored. If false, it is not created then."""

PRODUCER_IDS_END = 1 << 62
NO_IDS = ProducerId(0)
CHUNK_BYTES = 4 << 20
_AT_ONCE = 4
_SIDECARS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """One topic in an object store.

    Attributes:
        chains: segments by partition; partitions without a segment are left out.
    """

    cluster_id: str
    topic: str
    topic_id: TopicId
    chains: Mapping[int, Chain]

    @property
    def prefix(self) -> str:
        """Prefix of its objects, without the `/` behind it."""
        return topic_prefix(self.cluster_id, self.topic, self.topic_id)

    @property
    def segments(self) -> list[StoredSegment]:
        """Segments of all chains."""
        return [segment for chain in self.chains.values() for segment in chain.segments]

    @property
    def segment_ids(self) -> set[UUID]:
        """Ids of all segments of the topic, including those that are left out."""
        names = [segment.name for segment in self.segments]
        names += [one.segment.name for chain in self.chains.values() for one in chain.left_out]
        return {name.segment_id for name in names}

    def refusal(self) -> str:
        """Reason the restored part is not all that was copied, or ""."""
        losses = [(number, one) for number, chain in self.chains.items() for one in chain.losses]
        if not losses:
            return ""
        number, first = losses[0]
        return (
            f"partition {number} cannot be restored whole: {first.segment.log_key}: {first.why} "
            f"({len(losses)} segment(s) in all)"
        )


def topic_prefix(cluster_id: str, topic: str, topic_id: TopicId) -> str:
    """Prefix of the keys of all objects of a topic, without the `/` behind it."""
    return f"{cluster_id}/{topic}-{topic_id}"


async def find_stored_topics(store: ObjectStore, topic: str, report: Report, prefix: str = "") -> list[StoredTopic]:
    """Find the topics of this name, of every cluster and id, below `prefix`; each sidecar is read.

    Raises StoreError.
    """
    found = await inspect_store(store, topic=topic, every_byte=False, report=report, prefix=prefix)
    topics = []
    for (cluster_id, topic_id), group in groupby(found.segments, key=lambda one: _owner(one.name)):
        partitions = groupby(group, key=lambda one: one.name.partition)
        chains = {number: _chain(list(segments), found) for number, segments in partitions}
        topics.append(StoredTopic(cluster_id, topic, topic_id, dict(sorted(chains.items()))))
    return topics


def _owner(name: ObjectName) -> tuple[str, TopicId]:
    return name.cluster_id, name.topic_id


def _chain(segments: list[StoredSegment], found: Inspected) -> Chain:
    flaws = {flaw.object: flaw.found for flaw in found.flaws}
    damaged = {segment.name: flaws.get(segment.sidecar_key) or flaws.get(segment.log_key) for segment in segments}
    return chain_of(
        [segment for segment in segments if damaged[segment.name] is None],
        [(segment, why) for segment in segments if (why := damaged[segment.name]) is not None],
    )


async def tiers_to_adopt(
    store: ObjectStore, cluster_id: str, topic: str, topic_id: TopicId, *, allow_loss: bool, now_ms: int
) -> tuple[AdoptedTier, ...]:
    """Return the segments of a stored topic under the cluster's own id, as its metadata will name them.

    Raises:
        KafkaError: INVALID_REQUEST: there are none; or, unless `allow_loss`, some records cannot be restored.
        StoreError: the store does not answer.
    """
    prefix = topic_prefix(cluster_id, topic, topic_id)
    found = await find_stored_topics(store, topic, lambda done, total: None, prefix)
    refusal = found[0].refusal() if found else f"there is nothing under {prefix}/ in the object store of this cluster"
    if refusal and not (found and allow_loss):  # rule B25/gaps-are-passed-over-in-silence
        raise KafkaError(ErrorCode.INVALID_REQUEST, refusal)
    chains = {number: chain for number, chain in found[0].chains.items() if chain.segments}
    return tuple(
        [
            AdoptedTier(number, chain.tiered(now_ms), ids.end, ids.first)
            for number, chain in chains.items()
            for ids in [await _producer_ids_of(store, chain)]
        ]
    )


async def _producer_ids_of(store: ObjectStore, chain: Chain) -> ProducerIds:
    """Return the span of the producer ids in the snapshots of the segments. Ids from PRODUCER_IDS_END on are ignored,
    as no cluster assigns them; starting above one that a client invented would leave none. Raises StoreError."""
    room = asyncio.Semaphore(_SIDECARS_AT_ONCE)

    async def ids_in(segment: StoredSegment) -> set[int]:
        async with room:
            return await _producer_ids(store, segment)

    found = await asyncio.gather(*map(ids_in, chain.segments))  # rule B27/one-snapshot-tells-of-all-ids
    ids = {number for some in found for number in some if number < PRODUCER_IDS_END}  # rule B27/invented-ids-use-up-all
    return ProducerIds(ProducerId(min(ids)), ProducerId(max(ids) + 1)) if ids else ProducerIds(NO_IDS, NO_IDS)


async def _producer_ids(store: ObjectStore, segment: StoredSegment) -> set[int]:
    """Producer ids in the snapshot of a segment; none if it cannot be read, which is how it will be read later, too."""
    key = segment.sidecar_key
    try:
        head = await load_head(store.get, key)
        if not head.lengths[3]:
            return set()
        data = decode_producers(head, await store.get(key, head.indexes_end, head.size_bytes), key)
        return {row.producer_id for row in decode_snapshot(data)}
    except (CorruptLogError, SnapshotDamaged):
        return set()


# Copying for another cluster


@dataclass(slots=True)
class Brought:
    """Number of segments and of bytes that were copied, without those that were there already."""

    segments: int = 0
    bytes: int = 0


async def bring(
    source: ObjectStore,
    target: ObjectStore,
    topic: StoredTopic,
    cluster_id: str,
    *,
    is_same_store: bool,
    report: Report,
) -> Brought:
    """Copy the chains of a topic to the target, under the keys of the cluster `cluster_id`. Objects that exist there
    are not copied again, so a repeated call goes on where the last one ended.

    Logs are copied inside of the store if it is the same; else they pass through here, and their CRC is checked.

    Raises:
        StoreError: a store does not answer, or a source was deleted meanwhile.
        CorruptLogError: an object does not match its sidecar.
    """
    own = topic_prefix(cluster_id, topic.topic, topic.topic_id)
    there = {item.key: item.size_bytes async for item in target.list(own)}
    room, done, brought = asyncio.Semaphore(_AT_ONCE), 0, Brought()
    total = sum(chain.size_bytes for chain in topic.chains.values())

    async def bring_one(segment: StoredSegment) -> None:
        nonlocal done
        copy = replace(segment, name=replace(segment.name, cluster_id=cluster_id))
        longer = len(cluster_id) - len(segment.name.cluster_id)
        async with room:
            if there.get(copy.sidecar_key) != segment.sidecar_bytes + longer:
                data = await source.get(segment.sidecar_key, 0, segment.sidecar_bytes)
                written = for_cluster(data, segment.sidecar_key, cluster_id)
                await target.put(copy.sidecar_key, _once(written), len(written))
            if there.get(copy.log_key) != segment.log_bytes:
                if is_same_store:
                    await source.copy(segment.log_key, copy.log_key)
                else:
                    await target.put(copy.log_key, _streamed(source, segment), segment.log_bytes)
                brought.segments += 1
                brought.bytes += segment.log_bytes
        done += segment.log_bytes
        report(done, total)

    if cluster_id != topic.cluster_id or not is_same_store:
        try:
            async with asyncio.TaskGroup() as group:
                for segment in topic.segments:
                    group.create_task(bring_one(segment))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
    return brought


async def _streamed(source: ObjectStore, segment: StoredSegment) -> AsyncIterator[bytes]:
    """Chunks of a log object; the last one is given out only if the CRC of the whole matches what was stored."""
    position = crc = 0
    while position < segment.log_bytes:
        data = await source.get(segment.log_key, position, min(position + CHUNK_BYTES, segment.log_bytes))
        position += len(data)
        crc = crc32c(data, crc)
        # rule B25/rot-is-brought-to-another-store
        if position == segment.log_bytes and segment.header is not None and crc != segment.header.log_crc:
            reason = "the CRC of the object does not hold"
            raise CorruptLogError(segment.log_key, 0, None, reason, "`strandline tier verify` says where")
        yield data


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
