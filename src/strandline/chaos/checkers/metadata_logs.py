"""Invariants of the metadata logs as they lie on the simulated disks: whether their nodes live does not matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.chaos.checkers.batches import NotABatch
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.stored import Place, names_in, stored_headers
from strandline.chaos.sim.disk import SimDisk
from strandline.controller.raft.messages import OffsetAndEpoch, ReplicaKey

DIRECTORY = "/data/__cluster_metadata-0"
"""Directory of the metadata log of every simulated node."""

_SNAPSHOT = ".checkpoint"


def stored_end(disk: SimDisk, directory: str = DIRECTORY) -> int:
    """End of a metadata log on a disk: after its last batch, or at its newest snapshot where that is further."""
    end = max((int(name[:20]) for name in names_in(disk, directory) if name.endswith(_SNAPSHOT)), default=0)
    try:
        for header, _ in stored_headers(disk, directory, start=end):
            end = max(end, header.next_offset)
    except NotABatch:
        pass  # a torn end: what lies before it counts
    return end


class MajorityReachedHighWatermark:
    """Check at each rise of a leader's high watermark: a majority of the voters has everything below it on its disk
    (rules A6, A8, A9: a majority has synced
    what is committed, and no cut takes it).

    Where a disk was destroyed in part, what it had when that was last seen counts: it had been acknowledged. So it does
    for a replica that cut a tail and has not caught up since (rule A15).
    """

    def __init__(self, disk_of: Callable[[int], SimDisk]) -> None:
        self._disk_of = disk_of
        self.reached = 0
        """The highest that any leader had."""
        self._held: dict[ReplicaKey, int] = {}

    def note(self, replica: ReplicaKey, durable_end: int, *, doubt: bool) -> None:
        """Note up to where the log of a living replica is synced."""
        self._held[replica] = max(durable_end, self._held.get(replica, 0)) if doubt else durable_end

    def check(
        self, voters: Sequence[ReplicaKey], majority: int, living: Sequence[ReplicaKey], high_watermark: int
    ) -> None:
        """Check a leader's high watermark that rose to this, counted over its voters. Raises InvariantViolated."""
        if high_watermark <= self.reached:
            return
        self.reached = high_watermark
        if not self.holds(voters, majority, living, high_watermark):
            ends = {key: self._end(key, living) for key in voters}
            facts = {"high_watermark": high_watermark, "synced": {str(key): end for key, end in ends.items()}}
            raise InvariantViolated("MajorityReachedHighWatermark", "a minority holds what is committed", **facts)

    def holds(
        self, voters: Sequence[ReplicaKey], majority: int, living: Sequence[ReplicaKey], high_watermark: int
    ) -> bool:
        """Whether a majority of these voters has everything below."""
        return sum(self._end(key, living) >= high_watermark for key in voters) >= majority

    def _end(self, key: ReplicaKey, living: Sequence[ReplicaKey]) -> int:
        seen = [replica for replica in self._held if key.admits(replica)]
        if any(replica in living for replica in seen):
            return max(self._held[replica] for replica in seen)
        disk = self._disk_of(key.node_id)
        if disk.destroyed:
            return max([self._held[replica] for replica in seen] + [stored_end(disk)])
        return stored_end(disk)


class SnapshotAtLogStart:
    """A log that does not begin at 0 reaches back to where a snapshot ends that is on the disk (rule A10,
    KAFKA-14238)."""

    def __init__(self, disk_of: Callable[[int], SimDisk]) -> None:
        self._disk_of = disk_of
        self._looked: dict[tuple[int, int], tuple[int, int]] = {}

    def check(self, node: int, incarnation: int, start: OffsetAndEpoch, log_start: int) -> None:
        """`start`: from where on the node counts on its log; `log_start`: where that really begins."""
        if self._looked.get((node, incarnation), (0, 0)) == (start.offset, log_start):
            return
        self._looked[node, incarnation] = (start.offset, log_start)
        name = f"{start.offset:020d}-{start.epoch:010d}{_SNAPSHOT}"
        missing = start.offset and name not in names_in(self._disk_of(node), DIRECTORY)
        if missing or log_start > start.offset:
            facts = {"node": node, "snapshot": tuple(start), "log_start": log_start}
            raise InvariantViolated("SnapshotAtLogStart", "no snapshot ends where the log begins", **facts)


@dataclass
class _Scanned:
    """Position up to which a node's log was compared: everything below was committed, and stays as it is."""

    end: int = 0
    place: Place | None = None


class MetadataLogMatching:
    """Metadata logs are one log: an (offset, epoch) names one batch wherever it is, and below their high watermarks all
    nodes have the same batches (kafka-tlaplus `kip_966_properties`; raft's Log Matching), byte for byte by their
    CRCs."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, int], int] = {}
        self._committed: dict[int, tuple[int, int]] = {}
        self._scanned: dict[tuple[int, int], _Scanned] = {}
        """(node, incarnation): a new process may have found another log."""

    def check(self, node: int, incarnation: int, disk: SimDisk, bounds: tuple[int, int, int]) -> None:
        """Compare one log with all that was seen of others; not while a bit of it is known to be rotten. `bounds`: its
        start, high watermark and end."""
        if DIRECTORY in disk.rotten:
            return
        start, high_watermark, log_end = bounds
        scanned = self._scanned.setdefault((node, incarnation), _Scanned())
        begin = expected = max(scanned.end, start)
        try:
            for header, place in stored_headers(disk, DIRECTORY, start=begin, place=scanned.place):
                if header.next_offset > log_end:
                    break
                expected = header.next_offset
                offset, epoch = header.base_offset, header.leader_epoch
                facts = {"node": node, "offset": offset, "epoch": epoch}
                if self._written.setdefault((offset, epoch), header.crc) != header.crc:
                    raise InvariantViolated("MetadataLogMatching", "one offset and epoch, two batches", **facts)
                if header.next_offset <= high_watermark:
                    known = self._committed.setdefault(offset, (epoch, header.crc))
                    if known != (epoch, header.crc):
                        raise InvariantViolated("MetadataLogMatching", "committed batches differ", **facts)
                    scanned.end, scanned.place = header.next_offset, place
        except NotABatch as error:
            if expected < log_end:
                message = f"the log does not parse: {error}"
                raise InvariantViolated("MetadataLogMatching", message, node=node) from error
