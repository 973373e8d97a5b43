"""One partition's change: who is in the ISR, who is eligible, who leads (Kafka's PartitionChangeBuilder, KIP-966).

Election order (rule B): the current leader if it still may lead; the ISR in replica order; the eligible leader replicas
in replica order, if the ISR is empty; the last known leader, if ISR and ELR are empty; and, where the topic allows an
unclean election, the live replica with the greatest (last epoch, log end). The last two may lose committed records:
the ISR becomes the new leader alone, and the partition is RECOVERING.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from strandline.controller.metadata.image import PartitionInfo
from strandline.controller.metadata.records import PartitionChangeRecord
from strandline.proto.ids import NO_NODE, NodeId, TopicId
from strandline.proto.marks import mark


class Election(Enum):
    """How far an election may go."""

    ONLINE = "keep a leader that may lead, else elect a clean one"
    PREFERRED = "the first replica, if it is in the ISR, even if another one leads"
    UNCLEAN = "as ONLINE, and at last any live replica"


Rank = Callable[[Sequence[NodeId]], Sequence[NodeId]]
"""Orders live candidates of an unclean election, the best first."""


def keep_order(candidates: Sequence[NodeId]) -> Sequence[NodeId]:
    """The rank of those who know nothing of the candidates' logs: replica order."""
    return candidates


class PartitionChange:
    """Computes the record that brings a partition from what it is to what it should be.

    Invariants of the result:

    * the leader is in the ISR, and only acceptable replicas are elected;
    * ISR and ELR are disjoint, and the ELR is empty while |ISR| >= min ISR;
    * a replica leaves ISR and ELR together only if it shut down uncleanly, was in neither, or the ISR reached min ISR;
    * an unclean election leaves ISR = {leader}, ELR empty, recovering.
    """

    def __init__(
        self,
        partition: PartitionInfo,
        topic_id: TopicId,
        *,
        acceptable: Callable[[NodeId], bool],
        min_isr: int,
        election: Election = Election.ONLINE,
        target_isr: tuple[NodeId, ...] | None = None,
        recovering: bool | None = None,
        unclean_shutdown: NodeId = NO_NODE,
        disk_lost: bool = False,
        rank: Rank = keep_order,
        reason: str = "",
    ) -> None:
        self._partition = partition
        self._topic_id = topic_id
        self._acceptable = acceptable
        self._min_isr = min_isr
        self._election = election
        self._isr = partition.isr if target_isr is None else target_isr
        self._elr = partition.eligible_leader_replicas
        self._recovering = partition.recovering if recovering is None else recovering
        self._unclean_shutdown = unclean_shutdown
        self._disk_lost = disk_lost
        self._rank = rank
        self._reason = reason

    def build(self) -> PartitionChangeRecord | None:
        """The record, or None when the partition stays as it is."""
        old = self._partition
        self._elr = self._next_elr()
        leader, unclean = self._elect()
        self._mark(leader, unclean)
        if leader != old.leader and leader in self._elr:
            # Alone at min ISR 1 it moves the high watermark on its own: then nobody else stays eligible.
            self._isr = (leader,)
            self._elr = () if self._min_isr <= 1 else tuple(node for node in self._elr if node != leader)
        if unclean:
            self._isr = (leader,)
            self._elr = ()
            self._recovering = True
        last_known = self._next_last_known_leader(leader)
        record = PartitionChangeRecord(
            topic_id=self._topic_id,
            partition=old.partition,
            isr=None if self._isr == old.isr else self._isr,
            eligible_leader_replicas=None if self._elr == old.eligible_leader_replicas else self._elr,
            last_known_elr=None if last_known == old.last_known_elr else last_known,
            leader=None if leader == old.leader else leader,
            recovering=None if self._recovering == old.recovering else self._recovering,
            reason=f"{self._reason}, unclean election" if unclean else self._reason,
        )
        return record if _changes(record) else None

    def _mark(self, leader: NodeId, unclean: bool) -> None:
        """Coverage marks: how the leader was found."""
        old = self._partition
        if leader != old.leader:
            if leader == NO_NODE:
                mark("partition-leaderless")
            elif unclean:
                mark("elected-last-known-leader" if old.last_known_elr == (leader,) else "elected-unclean")
            else:
                mark("elected-from-elr" if leader in self._elr else "elected-from-isr")
        if len(self._elr) > len(old.eligible_leader_replicas):
            mark("elr-grew")

    def _next_elr(self) -> tuple[NodeId, ...]:
        """KIP-966: below min ISR those who leave the ISR stay eligible; at min ISR the list is cleared.

        Safe because the high watermark stands still while |ISR| < min ISR (the strict rule of B): whoever was in the
        ISR when it fell below holds all that is committed.
        """
        if len(self._isr) >= self._min_isr:
            return ()
        candidates = {*self._partition.eligible_leader_replicas, *self._partition.isr}
        return tuple(
            node
            for node in self._partition.replicas
            if node in candidates and node not in self._isr and node != self._unclean_shutdown
        )

    def _elect(self) -> tuple[NodeId, bool]:
        """The leader, and whether the election is unclean."""
        old = self._partition
        order = [old.leader, *old.replicas]
        if self._election is Election.PREFERRED:
            order.insert(0, old.preferred_leader)
        for node in order:
            if self._may_lead(node):
                return node, False
        if not self._isr and not self._elr and len(old.last_known_elr) == 1:
            last_known = old.last_known_elr[0]
            if self._acceptable(last_known):
                return last_known, True
        if self._election is Election.UNCLEAN:
            for node in self._rank([node for node in old.replicas if self._acceptable(node)]):
                return node, True
        return NO_NODE, False

    def _may_lead(self, node: NodeId) -> bool:
        in_sync = node in self._isr or (not self._isr and node in self._elr)
        return in_sync and self._acceptable(node)

    def _next_last_known_leader(self, leader: NodeId) -> tuple[NodeId, ...]:
        """Remembered from the moment the partition loses its leader and its ISR until it has a leader again, or has
        lost its disk: it would lead with an empty log."""
        old = self._partition
        if leader != NO_NODE:
            return ()
        last_known = (old.leader,) if not self._isr and old.leader != NO_NODE else old.last_known_elr
        return () if self._disk_lost and last_known == (self._unclean_shutdown,) else last_known


def _changes(record: PartitionChangeRecord) -> bool:
    return any(
        value is not None
        for value in (
            record.isr,
            record.eligible_leader_replicas,
            record.last_known_elr,
            record.leader,
            record.recovering,
        )
    )
