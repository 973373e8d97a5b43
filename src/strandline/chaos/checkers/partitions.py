"""Invariants of partition replication (rules B; kafka-tlaplus kip_966_properties), checked as events run.

`PartitionChecks` looks at the live replicas from outside: at their roles and watermarks after turns of the loop, and
less often at their batches on the simulated disks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from strandline.chaos.checkers.batches import NotABatch
from strandline.chaos.checkers.compacted import CompactedRecords, stored_records, tombstones_go
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.stored import Place, stored_headers
from strandline.chaos.sim.disk import SimDisk
from strandline.controller.metadata.image import MetadataImage
from strandline.log.partition_log import PartitionLog
from strandline.proto.ids import NodeId, TopicIdPartition
from strandline.proto.tier import Tier
from strandline.replica.core import LeaderCore
from strandline.replica.partition import Partition


@dataclass
class Known:
    """Facts about one partition that the run has shown so far."""

    name: str
    leaders: dict[int, int] = field(default_factory=dict)
    """Leader epoch -> node id of its leader."""
    committed_end: int = 0
    """Highest high watermark that any leader has shown."""
    log_start: int = 0
    """Highest log start offset that any leader has shown: records below it were deleted."""
    committed: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Base offset -> (leader epoch, CRC, next offset) of each batch below some replica's high watermark."""
    compacted: CompactedRecords = field(default_factory=CompactedRecords)
    """Committed records of a compacted partition, where batches may differ between replicas."""
    written: dict[tuple[int, int], int] = field(default_factory=dict)
    """(base offset, leader epoch) -> CRC of each batch, committed or not."""
    restored_end: int = 0
    """Offset below which all records were restored from the object store of another cluster."""

    @property
    def on_disks_end(self) -> int:
        """End offset of the committed records that replicas must hold. Restored records are only in the object store
        until a record is written after them; until then a leader with an empty log is correct."""
        return self.committed_end if self.committed_end > self.restored_end else 0


@dataclass
class Seen:
    """State of one replica when it was last seen."""

    incarnation: int
    core: object = None
    high_watermark: int = -1
    log_end: int = -1
    scanned: int = 0
    """Offset below which the batches have been compared already."""
    place: Place | None = None
    """Where the batch at `scanned` begins on disk; None if not known."""


@dataclass(frozen=True, slots=True)
class _Range:
    """Range of a log to compare, and the name of the invariant that a difference violates."""

    name: str
    start: int
    committed_end: int
    place: Place | None = None


def restored_end(tier: Tier) -> int:
    """Offset after the records in `tier` that were restored from another cluster."""
    return max((int(one.end_offset) for one in tier.segments if one.producers is not None), default=0)


class PartitionChecks:
    """All partition invariants.

    - OneLeaderPerLeaderEpoch: a leader epoch has one leader.
    - MonotonicHighWatermark: while a replica keeps its role, its high watermark never falls and never exceeds its log
      end offset.
    - LeaderCompleteness: a new leader holds everything below any high watermark ever exposed, byte for byte.
    - CommittedPrefixIdentical: below their high watermarks all replicas hold the same batches.
    - LogMatching: batches with the same (base offset, leader epoch) are equal on all replicas.
    - MaximalIsr: the ISR that the controller has committed lies within the leader's maximal ISR.
    """

    def __init__(self, lost: PartitionChecks | None = None) -> None:
        """`lost`: the checks of an earlier, destroyed cluster whose topics this one may have restored."""
        self.partitions: dict[TopicIdPartition, Known] = {}
        self._restored: dict[TopicIdPartition, int] = {}
        """Partition -> offset after its records that were restored from the lost cluster."""
        self._lost = {} if lost is None else lost.partitions
        self.truncations = 0
        """Number of truncations observed. It shows that the runs reach the cases which they are meant to test."""
        self._seen: dict[tuple[int, TopicIdPartition], Seen] = {}

    # --- cheap: after turns of the loop ---

    def observe(self, node: int, incarnation: int, disk: SimDisk, partition: Partition) -> None:
        """Check the role and the watermarks of one replica. Raises InvariantViolated."""
        key = partition.state.topic_id_partition
        seen = self._seen.get((node, key))
        if seen is None or seen.incarnation != incarnation:
            seen = self._seen[node, key] = Seen(incarnation)
        core = partition.leader or partition.follower
        log = partition.log
        if core is None or log is None:
            return
        known = self._known(key, partition)
        high_watermark = core.high_watermark
        if core is not seen.core:
            seen.core = core
            seen.high_watermark = high_watermark
            seen.scanned, seen.place = 0, None
            if isinstance(core, LeaderCore):
                self._new_leader(node, core, log, disk, known)
        elif high_watermark < seen.high_watermark:
            facts = {"node": node, "partition": known.name, "was": seen.high_watermark, "now": high_watermark}
            raise InvariantViolated("MonotonicHighWatermark", "a high watermark fell", **facts)
        seen.high_watermark = high_watermark
        if log.log_end_offset < seen.log_end:
            self.truncations += 1
        seen.log_end = log.log_end_offset
        if high_watermark > log.log_end_offset:
            facts = {"node": node, "partition": known.name, "now": high_watermark, "log_end": log.log_end_offset}
            raise InvariantViolated("MonotonicHighWatermark", "a high watermark passed the log end", **facts)
        if isinstance(core, LeaderCore):
            known.committed_end = max(known.committed_end, high_watermark)
            known.log_start = max(known.log_start, log.log_start_offset)

    def is_deposed(self, partition: Partition) -> bool:
        """True if this replica leads in its own eyes, and a leader of a later epoch was seen."""
        known, leader = self.partitions.get(partition.state.topic_id_partition), partition.leader
        return known is not None and leader is not None and leader.leader_epoch < max(known.leaders, default=-1)

    def note_restored(self, image: MetadataImage) -> None:
        """Note from the metadata which records of each partition were restored from another cluster."""
        for where, tier in image.tiers.items():
            if where not in self._restored:
                self._restored[where] = restored_end(tier)

    def _known(self, key: TopicIdPartition, partition: Partition) -> Known:
        known = self.partitions.get(key)
        if known is None:
            known = self.partitions[key] = Known(str(partition.topic_partition))
            end = known.restored_end = self._restored.get(key, 0)
            if key in self._lost:
                lost = self._lost[key]
                known.written = lost.written
                known.committed = {base: entry for base, entry in lost.committed.items() if entry[2] <= end}
        return known

    def _new_leader(self, node: int, core: LeaderCore, log: PartitionLog, disk: SimDisk, known: Known) -> None:
        epoch = int(core.leader_epoch)
        leader = known.leaders.setdefault(epoch, node)
        facts = {"node": node, "partition": known.name, "leader_epoch": epoch}
        if leader != node:
            raise InvariantViolated("OneLeaderPerLeaderEpoch", f"node {leader} leads this epoch", **facts)
        if epoch < max(known.leaders):
            return  # the broker replays old metadata; the other nodes ignore this leader
        if log.log_end_offset < max(known.committed_end, known.restored_end):
            facts |= {"log_end": log.log_end_offset, "committed_end": known.committed_end}
            facts |= {"restored_end": known.restored_end}
            raise InvariantViolated("LeaderCompleteness", "a new leader lacks committed records", **facts)
        if log.directory not in disk.rotten:
            self._compare(node, log, disk, known, _Range("LeaderCompleteness", 0, known.committed_end))

    # --- expensive: at faults, and from time to time ---

    def scan(self, node: int, disk: SimDisk, partition: Partition) -> None:
        """Compare a replica's batches with those of all replicas seen before. Raises InvariantViolated."""
        log, core = partition.log, partition.leader or partition.follower
        seen = self._seen.get((node, partition.state.topic_id_partition))
        if log is None or core is None or seen is None or seen.core is not core or log.directory in disk.rotten:
            return
        known = self._known(partition.state.topic_id_partition, partition)
        committed_end = min(core.high_watermark, log.log_end_offset)
        if committed_end < seen.scanned:
            seen.scanned, seen.place = 0, None
        what = _Range("CommittedPrefixIdentical", seen.scanned, committed_end, seen.place)
        seen.place = self._compare(node, log, disk, known, what)
        seen.scanned = committed_end

    def _compare(self, node: int, log: PartitionLog, disk: SimDisk, known: Known, what: _Range) -> Place | None:
        """Compare the batches from `what.start` to the log end; those below `what.committed_end` are committed.
        Returns where the last committed batch begins."""
        name, place, log_end = what.name, what.place, log.log_end_offset
        facts = {"node": node, "partition": known.name}
        expected = max(what.start, log.log_start_offset)
        if log.config.compacted:
            what = replace(what, start=int(log.log_start_offset), place=None)
            expected = what.start
            stored, ends = stored_records(disk, log.directory)
            go = tombstones_go(log.config)
            end, catches_up = min(what.committed_end, log_end), log_end < known.committed_end
            known.compacted.check(
                name, stored, expected, end, tombstones_go=go, catches_up=catches_up, ends=ends, **facts
            )
        try:
            for header, at in stored_headers(disk, log.directory, start=expected, place=what.place):
                if header.next_offset > log_end:
                    break
                offset, epoch, crc = header.base_offset, header.leader_epoch, header.crc
                if offset > expected:
                    raise InvariantViolated(name, "records are missing", offset=expected, until=offset, **facts)
                expected = header.next_offset
                if log.config.compacted:
                    continue
                if not header.is_whole:
                    raise InvariantViolated(name, "a batch lacks records", offset=offset, count=header.count, **facts)
                if known.written.setdefault((offset, epoch), crc) != crc:
                    facts |= {"offset": offset, "leader_epoch": epoch}
                    raise InvariantViolated("LogMatching", "one offset and epoch, two batches", **facts)
                if expected <= what.committed_end:
                    place = at
                    entry = (epoch, crc, expected)
                    if known.committed.setdefault(offset, entry) != entry:
                        facts |= {"offset": offset, "here": entry, "elsewhere": known.committed[offset]}
                        raise InvariantViolated(name, "committed records differ", **facts)
        except NotABatch as error:
            if expected < log_end:
                raise InvariantViolated(name, f"the log does not parse: {error}", **facts) from error
        if expected < log_end:
            facts |= {"stored_end": expected, "log_end": log_end}
            raise InvariantViolated(name, "the log's end is not on the disk", **facts)
        return place

    def check_isr(self, node: int, partition: Partition, image: MetadataImage) -> None:
        """Check MaximalIsr for a leader under the newest committed metadata. Raises InvariantViolated."""
        core = partition.leader
        topic = image.topic_by_id.get(partition.state.topic_id)
        if core is None or topic is None:
            return
        committed = topic.partitions.get(partition.state.partition)
        if committed is None or committed.leader != NodeId(node) or committed.leader_epoch != core.leader_epoch:
            return
        if not set(committed.isr) <= set(core.maximal_isr):
            facts = {"node": node, "partition": str(partition.topic_partition), "committed": committed.isr}
            raise InvariantViolated(
                "MaximalIsr", "the leader does not wait for a member of the ISR", maximal_isr=core.maximal_isr, **facts
            )
