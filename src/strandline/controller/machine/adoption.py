"""A topic is made of what the object store has of it, after the cluster that wrote it was lost (rule B25).

Topic, partitions and tiers are one batch of the metadata log: nobody ever leads a partition that does not know where
its stored records end, and appends at their offsets. Its first leader epoch lies above all that the lost cluster can
have reached (rule B36): not only above those of the stored records.

Producers of the lost cluster go on under the ids that they have, and are known by what the store tells of them, unless
ids of this cluster may be among theirs (rule B27): each cluster has a place of its own for them, so that is rare. Then
those alone are believed that were given to nobody here, and the next id is raised above them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from uuid import UUID

from strandline.controller.api import CreatableTopic
from strandline.controller.machine.state import MachineState, first_producer_id
from strandline.controller.metadata.records import MetadataRecord, ProducerIdsRecord
from strandline.controller.metadata.tiers import (
    REMOTE_STORAGE_ENABLE,
    TieredSegmentRecord,
    place_fault,
    segment_fault,
    tier_records,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_BROKER_EPOCH, NO_NODE, ZERO_UUID, LeaderEpoch, ProducerId, TopicIdPartition
from strandline.proto.settings import INT32_MAX
from strandline.proto.tier import AdoptedTier, ProducerIds, Tier, TieredSegment

EPOCHS_AHEAD = 1 << 16
"""Leader epochs that the lost cluster may have had behind those of the stored records. There is room for thirty
thousand restores."""

IDS_AHEAD = 1 << 44
"""Producer ids of 4,096 quorum epochs: what lies further ahead is not given out in a cluster's life."""
IDS_BEYOND = 1 << 40
"""Producer ids (256 epochs of them) that the lost cluster may have given out behind those of the stored records."""

FIRST_EPOCH = LeaderEpoch(0)

SEGMENTS_MAX = 100_000
"""Segments of one topic at most: 10 MB in one batch of the metadata log, and 50 MB in the memory of each node. With
segments of a gigabyte it is 100 TB."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """First state of a restored topic.

    Attributes:
        records: to stand behind those of its partitions.
        first_epoch: the leader epoch that all of them begin with.
    """

    records: Sequence[MetadataRecord] = ()
    first_epoch: LeaderEpoch = FIRST_EPOCH


def adopted(state: MachineState, topic: CreatableTopic, num_partitions: int, *, dry_run: bool) -> Adopted:
    """Judge what a topic is to begin with; nothing, where it is not a restored one.

    Raises:
        KafkaError: INVALID_REQUEST: the segments make no tier, or belong to no partition; INVALID_CONFIG: the topic
            would not be tiered; POLICY_VIOLATION: there are more than SEGMENTS_MAX.
    """
    if not topic.is_restored:
        return _NOTHING
    _check_topic(state, topic)
    if not topic.tiers and not dry_run:
        raise _refused(f"Nothing of topic {topic.name!r} is in the object store.")
    if sum(len(one.segments) for one in topic.tiers) > SEGMENTS_MAX:
        words = f"Topic {topic.name!r} has more than {SEGMENTS_MAX} segments in the object store."
        raise KafkaError(ErrorCode.POLICY_VIOLATION, words)
    records: list[MetadataRecord] = []
    last_epochs: dict[int, int] = {}
    for one in topic.tiers:
        if not 0 <= one.partition < num_partitions or one.partition in last_epochs:
            raise _refused(
                f"Partition {one.partition} of topic {topic.name!r} is in the object store, and the topic is to have "
                f"{num_partitions} partition(s), each once."
            )
        last_epochs[one.partition] = _last_epoch(topic, one)
        known = _known_producers(state, one)
        segments = tuple(replace(segment, producers=known) for segment in one.segments)
        tier = Tier(segments[0].base_offset, segments)
        records += tier_records({TopicIdPartition(topic.topic_id, one.partition): tier})
    return Adopted(records, _first_epoch(max(last_epochs.values(), default=0)))


_NOTHING = Adopted()


def _first_epoch(last_epoch: int) -> LeaderEpoch:
    """First leader epoch of a restored topic's partitions, of those too of which nothing was stored: clients believe
    nothing of an epoch below the one that they have heard of."""
    # rule B36/restored-partitions-begin-in-the-next-epoch
    return LeaderEpoch(last_epoch + (EPOCHS_AHEAD if last_epoch + EPOCHS_AHEAD < INT32_MAX else 1))


def _known_producers(state: MachineState, one: AdoptedTier) -> ProducerIds:
    """Producer ids of the lost cluster that belong to nobody here, and never will."""
    first, end, next_id = one.producer_ids_first, one.producer_ids_end, state.image.next_producer_id
    own = first_producer_id(state.image.cluster_id)
    # rule B27/lost-producers-are-strangers
    if first >= next_id or IDS_AHEAD <= first <= end <= own:  # builds before places began at 0
        return ProducerIds(first, end)
    return ProducerIds(next_id, max(next_id, end))  # rule B27/lost-producers-have-our-ids


def raised_producer_ids(state: MachineState, records: Iterable[MetadataRecord]) -> list[MetadataRecord]:
    """Records to append behind `records`, which create topics, so that no id is given out that they adopt."""
    segments = [record.segment for record in records if isinstance(record, TieredSegmentRecord)]
    reached = max(state.image.next_producer_id, first_producer_id(state.image.cluster_id))
    ids = [one.producers for one in segments if one.producers is not None]
    end = max((one.end for one in ids if one.first < reached + IDS_AHEAD), default=0)
    if end <= reached:  # rule B27/restored-producer-ids-are-given-out-again
        return []
    # rule B27/what-the-lost-cluster-gave-out-last-is-given-out-again
    return [ProducerIdsRecord(NO_NODE, NO_BROKER_EPOCH, ProducerId(end + IDS_BEYOND))]


def _check_topic(state: MachineState, topic: CreatableTopic) -> None:
    if topic.topic_id == ZERO_UUID:
        raise _refused(f"Topic {topic.name!r} is to be restored under the id that it had, and none is named.")
    if topic.topic_id in state.image.deleted_tiers:  # rule B25/topics-are-restored-while-they-are-deleted
        raise _refused(
            f"Topic {state.image.deleted_tiers[topic.topic_id].topic!r} with the id {topic.topic_id} was deleted in "
            "this cluster, and its objects are being deleted from the object store."
        )
    if topic.configs.get(REMOTE_STORAGE_ENABLE) != "true":
        words = f"A topic that is restored from the object store needs {REMOTE_STORAGE_ENABLE}=true."
        raise KafkaError(ErrorCode.INVALID_CONFIG, words)


def _last_epoch(topic: CreatableTopic, one: AdoptedTier) -> int:
    """The highest leader epoch of a partition's stored records. Raises KafkaError: they make no tier."""
    end_offset = None
    seen: set[UUID] = set()
    for segment in one.segments:
        # rule B25/restored-tiers-have-gaps
        fault = segment_fault(segment) or place_fault(segment, one.segments[0].base_offset, end_offset)
        if not fault and segment.segment_id in seen:
            fault = "its id stands there twice"
        if not fault and segment.last_epoch >= INT32_MAX:
            fault = f"no leader epoch comes after {segment.last_epoch}"
        if fault:
            raise _refused(_at(topic, one, segment, fault))
        seen.add(segment.segment_id)
        end_offset = segment.end_offset
    for before, segment in pairwise(one.segments):
        if segment.first_epoch < before.last_epoch:
            fault = (
                f"its leader epoch, {segment.first_epoch}, is below {before.last_epoch}, that of the records before it"
            )
            raise _refused(_at(topic, one, segment, fault))
    if not one.segments:
        raise _refused(f"Partition {one.partition} of topic {topic.name!r} is named without a segment.")
    return one.segments[-1].last_epoch  # rule B25/restored-topics-repeat-leader-epochs


def _at(topic: CreatableTopic, one: AdoptedTier, segment: TieredSegment, fault: str) -> str:
    return (
        f"Segment {segment.segment_id} of partition {one.partition} of topic {topic.name!r}, offsets "
        f"{segment.base_offset} to {segment.end_offset}, cannot be taken over: {fault}."
    )


def _refused(words: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, words)
