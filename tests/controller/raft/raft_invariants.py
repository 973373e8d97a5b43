"""Kafka's simulation invariants and those of kraft_kip_853_properties.tla, checked as events run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raft_node import DiskImage, SimNode
from raft_world import World

from strandline.controller.raft.messages import ReplicaKey
from strandline.controller.raft.ready import Ready


class CheckedWorld(World):
    """A world that fails at the first broken invariant.

    - MonotonicEpoch: no node's epoch goes back, restarts included.
    - SingleLeader: one leader an epoch.
    - MonotonicHighWatermark: the leaders' high watermark never goes back, over all epochs.
    - MajorityReachedHighWatermark: what a leader calls committed is durable on a majority.
    - ConsistentCommittedData: all nodes are handed the same batch at the same offset, in order, without a gap.
    - LeaderHasAllAcked: a new leader holds all that was ever committed.
    - SnapshotAtLogStart: a log starts at 0 or at the end of a snapshot.
    - AckedValueNotLost (at the end): every committed value is still handed out.
    """

    def __init__(self, voters: Iterable[int], **options: Any) -> None:
        super().__init__(voters, **options)
        self.epochs: dict[ReplicaKey, int] = {}
        self.leader_of: dict[int, int] = {}
        self.high_watermark = 0
        self.committed: dict[int, tuple[int, str]] = {}
        self.committed_to = 0

    def after_ready(self, node: SimNode, ready: Ready) -> None:
        super().after_ready(node, ready)
        core = node.core
        assert core is not None
        assert core.epoch >= self.epochs.get(node.key, 0), f"MonotonicEpoch: {node.id} went back to {core.epoch}"
        assert core.log.start.offset == 0 or node.written.snapshot is not None, "SnapshotAtLogStart"
        self.epochs[node.key] = core.epoch
        leading = core.leading
        if leading is None:
            return
        first = self.leader_of.setdefault(core.epoch, node.id)
        assert first == node.id, f"SingleLeader: {first} and {node.id} in epoch {core.epoch}"
        if ready.log and leading.epoch_start_offset == core.log.end_offset - 1:
            assert leading.epoch_start_offset >= self.committed_to, (
                f"LeaderHasAllAcked: {node.id} leads epoch {core.epoch} from {leading.epoch_start_offset}, "
                f"but {self.committed_to} are committed"
            )
        if leading.epoch_high_watermark is not None and leading.epoch_high_watermark > self.high_watermark:
            self._majority_has(leading.epoch_high_watermark, node)
            self.high_watermark = leading.epoch_high_watermark
        if ready.high_watermark is not None and leading.epoch_high_watermark is not None:
            assert leading.epoch_high_watermark >= self.high_watermark or self._outdated(core.epoch), (
                "MonotonicHighWatermark"
            )

    def _outdated(self, epoch: int) -> bool:
        return max(self.leader_of) > epoch

    def _majority_has(self, high_watermark: int, leader: SimNode) -> None:
        """The leader's own write of this very drain is not on its disk yet, and need not be."""
        wanted = {b.base_offset: b.epoch for b in leader.written.batches if b.base_offset < high_watermark}
        holders = 0
        assert leader.core is not None
        for key in leader.core.voters:
            images = self.nodes[key.node_id].acknowledged(key)
            holders += any(_holds(image, high_watermark, wanted) for image in images)
        voters = leader.core.voters
        assert holders >= voters.majority, (
            f"MajorityReachedHighWatermark: {high_watermark} is durable on {holders} of {len(voters)}"
        )

    def applied(self, node: SimNode, entry: tuple[int, int, str]) -> None:
        offset, epoch, value = entry
        known = self.committed.setdefault(offset, (epoch, value))
        assert known == (epoch, value), (
            f"ConsistentCommittedData: offset {offset} is {known} elsewhere and {(epoch, value)} on {node.id}"
        )
        previous = node.applied[-2][0] if len(node.applied) > 1 else -1
        assert offset == previous + 1, f"a gap on {node.id}: {previous} then {offset}"
        self.committed_to = max(self.committed_to, offset + 1)

    def assert_all_applied(self, node: SimNode) -> None:
        """AckedValueNotLost."""
        assert [entry[0] for entry in node.applied] == list(range(len(node.applied)))
        for offset, epoch, value in node.applied:
            assert self.committed.get(offset) == (epoch, value)
        assert len(node.applied) >= self.committed_to


def _holds(image: DiskImage, high_watermark: int, wanted: dict[int, int]) -> bool:
    """The disk has everything below a high watermark, as the leader has it."""
    have = {batch.base_offset: batch.epoch for batch in image.batches}
    start = image.start.offset
    return image.end_offset() >= high_watermark and all(
        have.get(offset) == epoch for offset, epoch in wanted.items() if offset >= start
    )
