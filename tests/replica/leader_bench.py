"""A pure leader on a bench: node 1 leads, 2 and 3 follow; what they tell it, and what it asks the controller."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import BrokerEpoch, Endpoint, LeaderEpoch, NodeId, PartitionEpoch
from strandline.proto.isr import AlterPartitionOutcome
from strandline.replica.core import Committed, IsrProposal, LeaderCore, LeaderEffects, ProposeIsr
from strandline.replica.states import BrokerState, PartitionState
from tests.replica.fake_controller import partition_state

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
LAG_MS = 30_000.0


def brokers(**changes: BrokerState) -> dict[NodeId, BrokerState]:
    known = {node: broker(node) for node in (ONE, TWO, THREE)}
    known.update({state.node_id: state for state in changes.values()})
    return known


def broker(
    node: NodeId, *, epoch: int | None = None, fenced: bool = False, in_controlled_shutdown: bool = False
) -> BrokerState:
    """Node n is registered with broker epoch 100 + n."""
    broker_epoch = BrokerEpoch(100 + node if epoch is None else epoch)
    return BrokerState(node, Endpoint("n", node), broker_epoch, fenced, in_controlled_shutdown)


def state(**more: object) -> PartitionState:
    built = partition_state(topic_id=UUID(int=1), **more)  # type: ignore[arg-type]
    return replace(built, leader_epoch=LeaderEpoch(5), partition_epoch=PartitionEpoch(50))


def leader(
    partition: PartitionState | None = None,
    *,
    known: dict[NodeId, BrokerState] | None = None,
    end: int = 0,
    durable: int | None = None,
    high_watermark: int = 0,
    sync_before_ack: bool = True,
) -> LeaderCore:
    return LeaderCore(
        ONE,
        partition or state(),
        known or brokers(),
        log_end_offset=end,
        durable_offset=end if durable is None else durable,
        high_watermark=high_watermark,
        sync_before_ack=sync_before_ack,
        lag_time_max_ms=LAG_MS,
        now_ms=0.0,
    )


def fetched(
    core: LeaderCore, node: NodeId, offset: int, durable: int | None = None, *, now: float = 0.0, epoch: int = 0
) -> bool:
    """Whether the high watermark rose."""
    effects = core.fetched(
        node,
        BrokerEpoch(epoch or 100 + node),
        fetch_offset=offset,
        durable_offset=offset if durable is None else durable,
        log_start_offset=0,
        now_ms=now,
    )
    return rose(effects)


def rose(effects: LeaderEffects) -> bool:
    """The high watermark did."""
    return any(isinstance(effect, Committed) for effect in effects)


def proposed(effects: LeaderEffects) -> list[ProposeIsr]:
    """What is to be sent to the controller."""
    return [effect for effect in effects if isinstance(effect, ProposeIsr)]


def wrote(core: LeaderCore, end: int, *, now: float = 0.0) -> None:
    """Appended and synced on the leader."""
    core.appended(end, now)
    core.synced(end, now)


def pending(core: LeaderCore) -> IsrProposal:
    assert core.pending is not None
    return core.pending


def committed(core: LeaderCore, *, isr: tuple[NodeId, ...] | None = None) -> AlterPartitionOutcome:
    """The controller's yes to what is pending."""
    item = pending(core).item
    return AlterPartitionOutcome(
        item.topic_id,
        item.partition,
        ErrorCode.NONE,
        leader=ONE,
        leader_epoch=core.leader_epoch,
        partition_epoch=PartitionEpoch(item.partition_epoch + 1),
        isr=tuple(member.node_id for member in item.new_isr) if isr is None else isr,
    )


def refused(core: LeaderCore, error: ErrorCode) -> AlterPartitionOutcome:
    item = pending(core).item
    return AlterPartitionOutcome(item.topic_id, item.partition, error)
