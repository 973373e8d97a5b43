"""Check that committed records are on disks: the durable images of the in-sync replicas, looked at as high
watermarks rise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from strandline.chaos.checkers.batches import NotABatch
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.stored import batch_at, find_directory, segments_in
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.disk_image import FileNode
from strandline.chaos.sim.disk_names import DirNode
from strandline.controller.metadata.records import PartitionRecord
from strandline.proto.ids import NodeId, TopicIdPartition
from strandline.replica.core import LeaderCore
from strandline.replica.partition import Partition


@dataclass
class _Held:
    """Durable end of one replica's log: up to `end`, which is where `position` of `file` is."""

    directory: DirNode
    file: FileNode
    position: int
    end: int


class DurableEnds:
    """Offsets up to which replicas' logs would survive a power cut at this instant, whatever that leaves.

    Each look goes on where the one before has ended: what is durable stays so unless it is written over or cut off.
    There is one of these for a world: it keeps its place in the files themselves (`FileNode.changed_from`).
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], _Held] = {}

    def end(self, node: int, disk: SimDisk, path: str) -> int:
        """Durable end of the log in the directory `path` on a node's disk; 0 where nothing is."""
        directory = find_directory(disk, path)
        if not isinstance(directory, DirNode) or not _is_there(disk, path, directory):
            return 0
        segments = segments_in(directory)
        held = self._held.get((node, path))
        known = [number for number, (_, file) in enumerate(segments) if held is not None and file is held.file]
        if held is None or held.directory is not directory or not known or held.file.changed_from < held.position:
            if not segments:
                return 0
            base, file = segments[0]
            held, known = _Held(directory, file, 0, base), [0]
        self._held[node, path] = held
        for base, file in segments[known[0] :]:
            if base > held.end or not disk.names.survives(directory, file):
                break
            if file is not held.file:
                held.file, held.position = file, 0
            _go_on(held)
            file.changed_from = sys.maxsize
        return held.end if disk.names.survives(directory, held.file) else 0


def _is_there(disk: SimDisk, path: str, directory: DirNode) -> bool:
    """True if the directory's own name, and those of the directories above it, survive."""
    node: DirNode = directory
    while node is not disk.names.root:
        path = path.rpartition("/")[0]
        parent = disk.names.find(path)
        if not isinstance(parent, DirNode) or not disk.names.survives(parent, node):
            return False
        node = parent
    return True


def _go_on(held: _Held) -> None:
    """Go on over the batches that follow on what was found, as long as their bytes survive."""
    try:
        while (batch := batch_at(held.file, held.position)) is not None and batch.base_offset == held.end:
            following = held.position + batch.size
            if held.file.survives_until(held.position, following) < following:
                return
            held.position, held.end = following, batch.next_offset
    except NotABatch:
        return  # the beginning of one: it is not written yet, or torn


class CommittedIsDurable:
    """Check at each rise of a leader's high watermark: a power cut of all machines at this instant would leave every
    record below it on the disk of every member of the maximal ISR (rules B6, B7; not under
    flush.policy=replicate).

    A disk on which something was destroyed is not judged before it has been found whole again: what it had
    acknowledged before counts, and is gone. Nor is a member that a move has taken away since: its broker has deleted
    it, and the leader will hear of that (rule B46).
    """

    def __init__(
        self,
        place: Callable[[int, str], tuple[SimDisk, str]],
        committed: Callable[[TopicIdPartition], PartitionRecord | None] = lambda _: None,
    ) -> None:
        """`place` tells the disk and the directory of a node's replica of the partition of a name, `committed` the
        partition by the newest metadata."""
        self.looked = 0
        """Number of members' images that were looked at."""
        self._place = place
        self._committed = committed
        self._ends = DurableEnds()
        self._seen: dict[tuple[int, TopicIdPartition], tuple[LeaderCore, int]] = {}
        """(node, partition) -> its leadership, and the high watermark that was looked at."""
        self._whole: dict[tuple[int, str], int] = {}
        """(node, directory) -> how much of its disk had been destroyed when this was last found whole."""

    def check(self, node: int, partition: Partition) -> None:
        """Look at one replica that leads. Raises InvariantViolated."""
        core = partition.leader
        if core is None:
            return
        key = node, partition.state.topic_id_partition
        seen = self._seen.get(key)
        if seen is not None and seen[0] is core and seen[1] >= core.high_watermark:
            return
        self._seen[key] = core, core.high_watermark
        now = self._committed(partition.state.topic_id_partition)
        left = now.isr if now is not None and now.leader_epoch > core.leader_epoch else core.maximal_isr
        for member in core.maximal_isr:
            if member in left:
                self._check_member(node, partition, core, member)

    def _check_member(self, node: int, partition: Partition, core: LeaderCore, member: NodeId) -> None:
        name = str(partition.topic_partition)
        disk, directory = self._place(int(member), name)
        if directory in disk.rotten:
            return
        self.looked += 1
        end = self._ends.end(int(member), disk, directory)
        if end >= core.high_watermark:
            self._whole[int(member), directory] = disk.destroyed
        elif disk.destroyed == self._whole.get((int(member), directory), 0):
            facts = {"leader": node, "partition": name, "leader_epoch": int(core.leader_epoch)}
            facts |= {"high_watermark": core.high_watermark, "member": int(member), "durable_end": end}
            raise InvariantViolated(
                "CommittedIsDurable", "a member of the ISR could lose what is committed", **facts, isr=core.maximal_isr
            )
