"""Checks of tiered storage (KIP-405, rule B21): every segment in the metadata is in the object store, every record is
in the store or on the disks, and no other object remains in the store.

The checks read the objects and the disks themselves, never a node's own view of them.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Any
from uuid import UUID

from crc32c import crc32c

from strandline.chaos.checkers.batches import NotABatch, StoredBatch, parse, verify
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.partitions import Known
from strandline.chaos.checkers.stored import find_directory, segments_in
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.disk_image import FileNode
from strandline.chaos.sim.disk_names import DirNode
from strandline.chaos.sim.object_store import SimObject, SimStore
from strandline.controller.metadata.image import MetadataImage, topic_resource
from strandline.controller.metadata.tiers import REMOTE_STORAGE_ENABLE
from strandline.log.checkpoints import PARTITION_METADATA
from strandline.proto.ids import TopicIdPartition
from strandline.proto.json_text import read_json
from strandline.proto.tier import NO_TIER, Tier, TieredSegment

_SIDECAR = Struct(">4sH8II")
"""Magic, version, length and CRC of each of four parts, CRC of what stands before it."""
SHOWN_MAX = 10

Place = tuple[SimDisk, str]
"""The disk and the directory of a broker's replica."""

Objects = Mapping[str, SimObject]
"""Objects in the store, by key."""


def object_key(cluster_id: str, topic: str, where: TopicIdPartition, segment: TieredSegment, suffix: str) -> str:
    """Key of an object of a segment: `.log` or `.index`."""
    name = f"{segment.base_offset:020d}-{segment.segment_id}{suffix}"
    return f"{cluster_id}/{topic}-{where.topic_id}/{where.partition}/{name}"


def batches_in(content: bytes) -> Iterator[tuple[StoredBatch, bytes]]:
    """The batches of an object, whole ones. Raises NotABatch."""
    position = 0
    while position < len(content):
        batch = parse(content[position:])
        found = content[position : position + batch.size]
        verify(batch, found)
        yield batch, found
        position += batch.size


class TierIsStored:
    """Every segment in the committed metadata is in the store: its sidecar, and an object with the committed batches of
    all its offsets, in order, with the leader epochs that the metadata give."""

    def __init__(self, cluster_id: str) -> None:
        self.looked = 0
        """Number of segments checked so far."""
        self._cluster_id = cluster_id
        self._whole: dict[UUID, tuple[SimObject, SimObject]] = {}
        """Segment id -> its objects, as they were when they were checked."""

    def check(self, objects: Objects, where: TopicIdPartition, known: Known, tier: Tier) -> None:
        """Check one partition. Raises InvariantViolated."""
        topic = known.name.rpartition("-")[0]
        end = None
        for segment in tier.segments:
            facts: dict[str, Any] = {"partition": known.name, "segment": str(segment.segment_id)}
            facts |= {"from": int(segment.base_offset), "until": int(segment.end_offset)}
            if end is not None and segment.base_offset != end:
                raise InvariantViolated("TierIsStored", "a segment does not follow on the one before", **facts)
            end = segment.end_offset
            keys = [object_key(self._cluster_id, topic, where, segment, suffix) for suffix in (".index", ".log")]
            found = [objects[key] for key in keys if key in objects]
            if len(found) < len(keys):
                missing = [key for key in keys if key not in objects]
                raise InvariantViolated("TierIsStored", "the store lacks what the metadata name", **facts, keys=missing)
            sidecar, log = found
            if self._whole.get(segment.segment_id) == (sidecar, log):
                continue
            try:
                _look_at_sidecar(sidecar.data, log.data, segment)
                _look_at_batches(log.data, segment, known)
            except NotABatch as error:
                raise InvariantViolated("TierIsStored", str(error), **facts) from error
            self._whole[segment.segment_id] = sidecar, log
            self.looked += 1


def _look_at_sidecar(data: bytes, log: bytes, segment: TieredSegment) -> None:
    """Check that a sidecar is intact and describes its segment. Raises NotABatch if not."""
    if len(data) < _SIDECAR.size:
        raise NotABatch(f"a sidecar of {len(data)} bytes")
    magic, version, *numbers, crc = _SIDECAR.unpack_from(data)
    lengths, crcs = numbers[0::2], numbers[1::2]
    whole = crc == crc32c(data[: _SIDECAR.size - 4]) and len(data) == _SIDECAR.size + sum(lengths)
    if (magic, version) != (b"SLTS", 1) or not whole:
        raise NotABatch("the head of the sidecar does not hold")
    position, parts = _SIDECAR.size, []
    for length, expected in zip(lengths, crcs, strict=True):
        parts.append(data[position : position + length])
        position += length
        if crc32c(parts[-1]) != expected:
            raise NotABatch("a part of the sidecar has other bytes than were written")
    header: dict[str, Any] = read_json(parts[0])
    said = (header["size_bytes"], header["log_crc"], header["end_offset"])
    if said != (len(log), crc32c(log), segment.end_offset):
        raise NotABatch(f"the sidecar speaks of another object: {header}")


def _look_at_batches(log: bytes, segment: TieredSegment, known: Known) -> None:
    """Check that the batches of a segment match its metadata. Raises NotABatch if not."""
    expected = None
    epochs: list[tuple[int, int]] = []
    for batch, _ in batches_in(log):
        if expected is None and not batch.base_offset <= segment.base_offset < batch.next_offset:
            raise NotABatch(f"it begins with the batch at {batch.base_offset}")
        if expected is not None and batch.base_offset != expected:
            raise NotABatch(f"a batch at {batch.base_offset} follows on {expected}")
        if not batch.is_whole:
            raise NotABatch(f"the batch at {batch.base_offset} lacks records")
        expected = batch.next_offset
        if not epochs or epochs[-1][0] != batch.leader_epoch:
            epochs.append((batch.leader_epoch, max(batch.base_offset, segment.base_offset)))
        entry = (batch.leader_epoch, batch.crc, batch.next_offset)
        if known.committed.setdefault(batch.base_offset, entry) != entry:
            raise NotABatch(f"at {batch.base_offset} {known.committed[batch.base_offset]} is committed, not {entry}")
    if expected != segment.end_offset or len(log) != segment.size_bytes:
        raise NotABatch(f"it ends at {expected}, after {len(log)} bytes")
    if expected > max(known.committed_end, known.restored_end):
        raise NotABatch(f"it ends at {expected}, and only what lies below {known.committed_end} is committed")
    if epochs != [(int(start.epoch), int(start.start_offset)) for start in segment.epochs]:
        raise NotABatch(f"its leader epochs are {epochs}")


class TierCoversTheLog:
    """No replica's log on disk begins after the tier's end, except where clients or retention have deleted the records
    between. So no record leaves the disk before it is in the store, and a reader of the tier can continue in the
    log."""

    def check(self, places: Mapping[str, Place], topic_id: UUID, known: Known, tier: Tier, deleted: int) -> None:
        """Check one partition on all brokers. `deleted`: offset below which records may have been deleted. Raises
        InvariantViolated."""
        for name, (disk, directory) in places.items():
            node = find_directory(disk, directory)
            segments = segments_in(node) if isinstance(node, DirNode) and _is_of(node, topic_id) else []
            if segments and segments[0][0] > max(tier.end_offset, deleted):
                facts = {"partition": known.name, "node": name, "log_begins": segments[0][0]}
                facts |= {"tier": (int(tier.start_offset), int(tier.end_offset)), "deleted_below": deleted}
                raise InvariantViolated("TierCoversTheLog", "records are neither in the store nor on a disk", **facts)
        if tier.start_offset > max(deleted, 0):
            facts = {"partition": known.name, "tier_begins": int(tier.start_offset), "deleted_below": deleted}
            raise InvariantViolated("TierCoversTheLog", "the tier forgot what nobody has deleted", **facts)


def _is_of(directory: DirNode, topic_id: UUID) -> bool:
    """True if the directory belongs to this topic."""
    file = directory.entries.get(PARTITION_METADATA)
    id_text = urlsafe_b64encode(topic_id.bytes).rstrip(b"=")
    return isinstance(file, FileNode) and id_text in file.read(file.size, 0)


class NothingLeaks:
    """Check at the end of a run, when the reaper has had its time: the store holds no object that the metadata do
    not name."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id

    def leaks(self, objects: Objects, topics: Mapping[UUID, str], tiers: Mapping[TopicIdPartition, Tier]) -> list[str]:
        """Keys of this cluster's objects that the metadata do not name. `topics`: id -> name."""
        named = {
            object_key(self._cluster_id, topics[where.topic_id], where, segment, suffix)
            for where, tier in tiers.items()
            for segment in tier.segments
            for suffix in (".index", ".log")
        }
        return sorted(key for key in objects.keys() - named if key.startswith(f"{self._cluster_id}/"))

    def check(self, objects: Objects, topics: Mapping[UUID, str], tiers: Mapping[TopicIdPartition, Tier]) -> None:
        """Check the whole store. Raises InvariantViolated."""
        found = self.leaks(objects, topics, tiers)
        if found:
            shown = {key: objects[key].modified_ms for key in found[:SHOWN_MAX]}
            raise InvariantViolated(
                "NothingLeaks", "objects that no metadata name stay", count=len(found), objects=shown
            )


class TierChecks:
    """All checks of tiered storage over one store, by the newest metadata."""

    def __init__(self, store: SimStore, cluster_id: str) -> None:
        self.deletable: Callable[[], Mapping[str, int]] = dict
        """Topic -> offset below which its records may have been deleted; 0 for other topics."""
        self._store = store
        self._cluster_id = cluster_id
        self._stored = TierIsStored(cluster_id)
        self._covers = TierCoversTheLog()
        self._leaks = NothingLeaks(cluster_id)

    @property
    def looked(self) -> int:
        """Number of segments that were read."""
        return self._stored.looked

    def inspect(
        self,
        image: MetadataImage,
        partitions: Mapping[TopicIdPartition, Known],
        places: Callable[[str], Mapping[str, Place]],
    ) -> None:
        """Check what must hold at any instant. `places` says where the brokers have a partition's logs.

        Raises InvariantViolated.
        """
        deletable = self.deletable()
        for where, known in partitions.items():
            if where.topic_id not in image.topic_by_id:
                continue
            tier = image.tiers.get(where, NO_TIER)
            self._stored.check(self._store.objects, where, known, tier)
            topic = known.name.rpartition("-")[0]
            if image.config(topic_resource(topic)).get(REMOTE_STORAGE_ENABLE) == "true":
                self._covers.check(places(known.name), where.topic_id, known, tier, deletable.get(topic, 0))

    def leaks(self, image: MetadataImage) -> list[str]:
        """Objects that the metadata do not name now."""
        return self._leaks.leaks(self._store.objects, _names(image), image.tiers)

    def check_at_the_end(self, image: MetadataImage) -> None:
        """Check that the store holds no object that the metadata do not name. Raises InvariantViolated."""
        self._leaks.check(self._store.objects, _names(image), image.tiers)

    def batches(self, image: MetadataImage) -> dict[str, list[tuple[StoredBatch, bytes]]]:
        """Batches that the metadata name, by the names of partitions' directories."""
        found: dict[str, list[tuple[StoredBatch, bytes]]] = {}
        for where, tier in image.tiers.items():
            topic = image.topic_by_id[where.topic_id].name
            keys = [object_key(self._cluster_id, topic, where, segment, ".log") for segment in tier.segments]
            found[f"{topic}-{where.partition}"] = [
                one for key in keys for one in batches_in(self._store.objects[key].data)
            ]
        return found


def _names(image: MetadataImage) -> dict[UUID, str]:
    return {topic_id: topic.name for topic_id, topic in image.topic_by_id.items()}
