"""A controller for tests: one partition table, the checks of AlterPartition in their order, elections by request.

It is told who lives, answers proposals, and hands metadata to whoever subscribed. It is no model of the quorum: its
word is committed as it is spoken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import (
    NO_NODE,
    BrokerEpoch,
    LeaderEpoch,
    NodeId,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
    TopicPartition,
)
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.proto.tier import Tier, TierChange, TierOutcome
from strandline.replica.states import BrokerState, PartitionState

Subscriber = Callable[[list[PartitionState], list[TopicIdPartition], dict[NodeId, BrokerState]], None]


@dataclass
class Elr:
    """Members that left an ISR below min.insync: they hold all that is committed (KIP-966)."""

    members: tuple[NodeId, ...] = ()


class FakeController:
    def __init__(self) -> None:
        self.brokers: dict[NodeId, BrokerState] = {}
        self.partitions: dict[TopicIdPartition, PartitionState] = {}
        self.elr: dict[TopicIdPartition, Elr] = {}
        self.subscribers: dict[NodeId, Subscriber] = {}
        self.proposals: list[AlterPartitionItem] = []
        self._epoch = 0

    # Metadata out

    def publish(self, changes: list[PartitionState], deleted: list[TopicIdPartition] | None = None) -> None:
        for subscriber in list(self.subscribers.values()):
            subscriber(changes, deleted or [], dict(self.brokers))

    def subscribe(self, node: NodeId, subscriber: Subscriber) -> None:
        """Hand over everything, then every change."""
        self.subscribers[node] = subscriber
        subscriber(list(self.partitions.values()), [], dict(self.brokers))

    # Brokers

    def register(self, broker: BrokerState, *, clean: bool = True) -> BrokerEpoch:
        """A process registers, fenced. After an unclean stop it leaves every ISR and ELR (KAFKA-15586), but where it is
        the last member of both: nobody else has what is committed."""
        known = self.brokers.get(broker.node_id)
        if known is not None and not known.fenced:
            self.fence(broker.node_id)
        changes = [] if clean else self._forget(broker.node_id)
        self._epoch += 1
        epoch = BrokerEpoch(self._epoch)
        self.brokers[broker.node_id] = replace(broker, broker_epoch=epoch, fenced=True)
        self.publish(changes)
        return epoch

    def _forget(self, node: NodeId) -> list[PartitionState]:
        changes = []
        for key, state in list(self.partitions.items()):
            elr = self.elr[key]
            if set(state.isr) | set(elr.members) <= {node}:
                continue
            elr.members = tuple(member for member in elr.members if member != node)
            if node in state.isr:
                isr = tuple(member for member in state.isr if member != node)
                changes.append(self._store(key, replace(state, isr=isr)))
        return changes

    def unfence(self, node: NodeId) -> None:
        self.brokers[node] = replace(self.brokers[node], fenced=False)
        self.publish([self._elect(key) for key, state in list(self.partitions.items()) if state.leader == NO_NODE])

    def fence(self, node: NodeId) -> None:
        """The broker is gone: it leaves the ISRs (the last member of one stays) and its leaderships move."""
        self.brokers[node] = replace(self.brokers[node], fenced=True)
        self._withdraw(node)

    def begin_shutdown(self, node: NodeId) -> None:
        self.brokers[node] = replace(self.brokers[node], in_controlled_shutdown=True)
        self._withdraw(node)

    def unserved(self, node: NodeId, tp: TopicPartition) -> None:
        """The broker says that it cannot serve its replica: out of the ISR, and the leadership moves."""
        key = self.state(tp).topic_id_partition
        self.brokers[node], whole = replace(self.brokers[node], fenced=True), self.brokers[node]
        changed = self._shrink(key, node) if node in self.partitions[key].isr else self.partitions[key]
        changed = self._elect(key) if changed.leader == node else changed
        self.brokers[node] = whole
        self.publish([changed])

    def _withdraw(self, node: NodeId) -> None:
        changes = []
        for key, state in list(self.partitions.items()):
            if node not in state.replicas:
                continue
            changed = state
            if node in state.isr:
                changed = self._shrink(key, node)
            if changed.leader == node:
                changed = self._elect(key)
            if changed is not state:
                changes.append(changed)
        self.publish(changes)

    def _shrink(self, key: TopicIdPartition, node: NodeId) -> PartitionState:
        """A member leaves the ISR; below min.insync it stays eligible to lead (KIP-966)."""
        state, elr = self.partitions[key], self.elr[key]
        isr = tuple(member for member in state.isr if member != node)
        if len(isr) < state.effective_min_isr:
            elr.members = (*elr.members, node)
        return self._store(key, replace(state, isr=isr))

    def _store(self, key: TopicIdPartition, state: PartitionState) -> PartitionState:
        state = replace(state, partition_epoch=PartitionEpoch(state.partition_epoch + 1))
        if len(state.isr) >= state.effective_min_isr:
            self.elr[key].members = ()
        self.partitions[key] = state
        return state

    def _elect(self, key: TopicIdPartition, chosen: NodeId | None = None) -> PartitionState:
        """From the ISR in replica order, else from the ELR; nobody if neither has an active member."""
        state = self.partitions[key]
        candidates = [node for node in state.replicas if node in state.isr] + [
            node for node in state.replicas if node in self.elr[key].members and node not in state.isr
        ]
        active = [node for node in candidates if (broker := self.brokers.get(node)) is not None and broker.eligible]
        leader = NO_NODE
        if active:
            leader = chosen if chosen in active else active[0]
        if leader == NO_NODE and state.leader == NO_NODE:
            return state
        isr = state.isr
        if leader != NO_NODE and leader not in isr:
            isr = (leader,)
            self.elr[key].members = tuple(node for node in self.elr[key].members if node != leader)
        return self._store(
            key, replace(state, leader=leader, isr=isr, leader_epoch=LeaderEpoch(state.leader_epoch + 1))
        )

    # Partitions

    def create(self, state: PartitionState) -> None:
        self.partitions[state.topic_id_partition] = state
        self.elr[state.topic_id_partition] = Elr()
        self.publish([state])

    def delete(self, key: TopicIdPartition) -> None:
        del self.partitions[key]
        del self.elr[key]
        self.publish([], [key])

    def state(self, tp: TopicPartition) -> PartitionState:
        return next(state for state in self.partitions.values() if state.topic_partition == tp)

    def elect(self, tp: TopicPartition, leader: NodeId) -> None:
        """Move the leadership to a member of the ISR or ELR."""
        self.publish([self._elect(self.state(tp).topic_id_partition, leader)])

    def elect_uncleanly(self, tp: TopicPartition, leader: NodeId) -> None:
        state = self.state(tp)
        key = state.topic_id_partition
        self.elr[key].members = ()
        self.publish(
            [
                self._store(
                    key,
                    replace(
                        state,
                        leader=leader,
                        isr=(leader,),
                        recovering=True,
                        leader_epoch=LeaderEpoch(state.leader_epoch + 1),
                    ),
                )
            ]
        )

    def change(self, tp: TopicPartition, **changes: object) -> None:
        """Any other change of a partition."""
        state = self.state(tp)
        self.publish([self._store(state.topic_id_partition, replace(state, **changes))])  # type: ignore[arg-type]

    # Tiers: rule B21, as far as replicas meet it

    def alter_tiers(self, node: NodeId, changes: Sequence[TierChange]) -> list[TierOutcome]:
        changed: list[PartitionState] = []
        outcomes = [self._alter_tier(node, change, changed) for change in changes]
        self.publish(changed)
        return outcomes

    def _alter_tier(self, node: NodeId, change: TierChange, changed: list[PartitionState]) -> TierOutcome:
        key = TopicIdPartition(change.topic_id, change.partition)
        state = self.partitions.get(key)
        error = ErrorCode.NONE
        if state is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        elif change.leader_epoch < state.leader_epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        elif node != state.leader or change.leader_epoch > state.leader_epoch:
            error = ErrorCode.INVALID_REQUEST
        if error is ErrorCode.NONE and state is not None:
            tier = state.tier
            known = {segment.segment_id for segment in tier.segments}
            add = tuple(segment for segment in change.add if segment.segment_id not in known)
            if add and tier.segments and add[0].base_offset != tier.end_offset:
                error = ErrorCode.INVALID_REQUEST
            else:
                start = max(tier.start_offset, change.start_offset)
                segments = tuple(one for one in (*tier.segments, *add) if one.end_offset > start)
                self.partitions[key] = replace(state, tier=Tier(start, segments))
                changed.append(self.partitions[key])
        return TierOutcome(change.topic_id, change.partition, error)

    # AlterPartition, checks in the order of rule B2

    def alter_partition(self, node: NodeId, items: list[AlterPartitionItem]) -> list[AlterPartitionOutcome]:
        changed: list[PartitionState] = []
        outcomes = [self._alter(node, item, changed) for item in items]
        self.publish(changed)
        return outcomes

    def _alter(self, node: NodeId, item: AlterPartitionItem, changed: list[PartitionState]) -> AlterPartitionOutcome:
        self.proposals.append(item)
        key = TopicIdPartition(item.topic_id, item.partition)
        state = self.partitions.get(key)
        error = ErrorCode.UNKNOWN_TOPIC_ID if state is None else self._judge(node, item, state)
        if error is not ErrorCode.NONE or state is None:
            return AlterPartitionOutcome(item.topic_id, item.partition, error)
        state = self._store(
            key,
            replace(state, isr=tuple(member.node_id for member in item.new_isr), recovering=item.recovering),
        )
        changed.append(state)
        return AlterPartitionOutcome(
            item.topic_id,
            item.partition,
            ErrorCode.NONE,
            "",
            state.leader,
            state.leader_epoch,
            state.partition_epoch,
            state.isr,
            state.recovering,
        )

    def _judge(self, node: NodeId, item: AlterPartitionItem, state: PartitionState) -> ErrorCode:
        if item.leader_epoch > state.leader_epoch or item.partition_epoch > state.partition_epoch:
            return ErrorCode.NOT_CONTROLLER
        if item.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if node != state.leader:
            return ErrorCode.INVALID_REQUEST
        if item.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        nodes = [member.node_id for member in item.new_isr]
        if any(member not in state.replicas for member in nodes) or state.leader not in nodes:
            return ErrorCode.INVALID_REQUEST
        for member in item.new_isr:
            broker = self.brokers.get(member.node_id)
            if broker is None or not broker.eligible:
                return ErrorCode.INELIGIBLE_REPLICA
            if member.broker_epoch not in (-1, broker.broker_epoch):
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE


def partition_state(
    topic: str = "t",
    *,
    topic_id: TopicId,
    replicas: tuple[int, ...] = (1, 2, 3),
    leader: int | None = None,
    isr: tuple[int, ...] | None = None,
    partition: int = 0,
    min_insync_replicas: int = 2,
    **more: object,
) -> PartitionState:
    """A partition as it is created."""
    nodes = tuple(NodeId(node) for node in replicas)
    return PartitionState(
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        replicas=nodes,
        isr=nodes if isr is None else tuple(NodeId(node) for node in isr),
        leader=nodes[0] if leader is None else NodeId(leader),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
        min_insync_replicas=min_insync_replicas,
        **more,  # type: ignore[arg-type]
    )
