"""The pure leader: rule B for the high watermark, the ISR and acks, one schedule of D a test."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import BrokerEpoch, Endpoint, LeaderEpoch, NodeId, PartitionEpoch
from strandline.replica.core.isr import PendingIsr
from strandline.replica.core.leader import PROPOSAL_BACKOFF_MS, LeaderCore
from strandline.replica.states import AlterPartitionOutcome, BrokerState, PartitionState
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
    return core.fetched(
        node,
        BrokerEpoch(epoch or 100 + node),
        fetch_offset=offset,
        durable_offset=offset if durable is None else durable,
        log_start_offset=0,
        now_ms=now,
    )


def wrote(core: LeaderCore, end: int, *, now: float = 0.0) -> None:
    """Appended and synced on the leader."""
    core.appended(end, now)
    core.synced(end, now)


def pending(core: LeaderCore) -> PendingIsr:
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


# The high watermark


def test_it_is_the_smallest_offset_of_the_isr() -> None:
    """Rule B, HW: the minimum over the leader and the ISR, rechecked after an append, a sync and every fetch."""
    core = leader()
    assert not core.appended(10, 0.0)
    assert not fetched(core, TWO, 8)
    assert not core.synced(10, 0.0)
    assert core.high_watermark == 0
    assert fetched(core, THREE, 5)
    assert core.high_watermark == 5
    assert fetched(core, THREE, 9)
    assert core.high_watermark == 8


def test_under_ack_only_what_a_follower_has_synced_counts() -> None:
    """flush.policy = ack: a replica's offset counts only after it is synced (design 4)."""
    core = leader()
    wrote(core, 10)
    fetched(core, TWO, 10)
    assert not fetched(core, THREE, 10, durable=3) or core.high_watermark == 3
    assert core.high_watermark == 3
    assert core.acked(core.followers[THREE], 10, 10, 0.0)
    assert core.high_watermark == 10


def test_under_ack_only_what_the_leader_has_synced_counts() -> None:
    """Rule A-9, flush hazard: the own end counts after the flush alone."""
    core = leader()
    core.appended(10, 0.0)
    fetched(core, TWO, 10)
    fetched(core, THREE, 10)
    assert core.high_watermark == 0
    assert core.synced(7, 0.0)
    assert core.high_watermark == 7


def test_under_replicate_log_ends_count() -> None:
    """flush.policy = replicate: Kafka's rule, the memory of min.insync machines."""
    core = leader(sync_before_ack=False)
    core.appended(10, 0.0)
    fetched(core, TWO, 10, durable=0)
    assert fetched(core, THREE, 10, durable=0)
    assert core.high_watermark == 10


def test_it_never_falls() -> None:
    """A follower that comes back with less does not take back what was committed."""
    core = leader()
    wrote(core, 10)
    fetched(core, TWO, 10)
    fetched(core, THREE, 10)
    assert not fetched(core, TWO, 4, epoch=999)
    assert core.high_watermark == 10


def test_it_stands_still_while_too_few_are_in_sync() -> None:
    """Rule B: no advance while |ISR| < min.insync; acks=1 data are held back too (KIP-966, D-21)."""
    core = leader(state(isr=(1,)))
    wrote(core, 10)
    assert core.high_watermark == 0
    assert core.under_min_isr


def test_min_insync_is_bounded_by_the_replication_factor() -> None:
    """Rule B: min(min.insync, RF): a lone replica commits by itself, at its sync."""
    core = leader(state(replicas=(1,), min_insync_replicas=2), known={ONE: broker(ONE)}, end=4, durable=4)
    assert core.high_watermark == 4
    core.appended(6, 0.0)
    assert core.high_watermark == 4
    assert core.synced(6, 0.0)
    assert core.high_watermark == 6


def test_becoming_leader_judges_it_at_once() -> None:
    """Rule B: recheck on becoming leader; the inherited one is at most the own end."""
    assert leader(state(replicas=(1,), isr=(1,)), end=9, durable=9, high_watermark=2).high_watermark == 9
    assert leader(end=3, high_watermark=7).high_watermark == 3


def test_a_new_leader_does_not_serve_all_it_has_as_committed() -> None:
    """D-41 (redpanda#5090): what it has beyond its old high watermark counts when the ISR has confirmed it."""
    core = leader(end=10, high_watermark=4)
    assert core.high_watermark == 4
    assert not core.knows_committed_end
    fetched(core, TWO, 10)
    assert fetched(core, THREE, 10)
    assert core.knows_committed_end


def test_the_latest_offset_has_no_answer_before_the_epoch_start_is_committed() -> None:
    """Rule B, stale HW: the inherited one may lag the true one until the start of the epoch is reached."""
    core = leader(end=10, high_watermark=4)
    fetched(core, TWO, 10)
    fetched(core, THREE, 9)
    assert core.high_watermark == 9
    assert not core.knows_committed_end


def test_an_expansion_on_its_way_counts_already() -> None:
    """D-9 (VAN 6.5.2): the newcomer may be elected as soon as the controller commits: maximal ISR."""
    core = leader(state(isr=(1, 2)))
    wrote(core, 10)
    fetched(core, TWO, 10)
    fetched(core, THREE, 10)
    assert pending(core).isr == (ONE, TWO, THREE)
    assert core.maximal_isr == (ONE, TWO, THREE)
    assert core.isr == (ONE, TWO)
    wrote(core, 20, now=LAG_MS * 10)
    core.acked(core.followers[TWO], 20, 20, LAG_MS * 10)
    core.sweep(LAG_MS * 20)
    assert core.high_watermark == 10


def test_a_shrink_on_its_way_does_not_count_yet() -> None:
    """Rule B, maximal ISR: with a pending shrink it is the old ISR."""
    core = leader()
    wrote(core, 10, now=1.0)
    fetched(core, TWO, 10, now=1.0)
    late = LAG_MS + 2.0
    core.acked(core.followers[TWO], 10, 10, late)
    core.sweep(late)
    assert pending(core).isr == (ONE, TWO)
    assert core.maximal_isr == (ONE, TWO, THREE)
    assert core.high_watermark == 0


def test_a_committed_shrink_advances_it() -> None:
    """D-14 (KAFKA-13091): without a recheck at the commit, produce requests hang."""
    core = leader()
    wrote(core, 10, now=1.0)
    fetched(core, TWO, 10, now=LAG_MS)
    core.sweep(LAG_MS + 2)
    assert core.answered(pending(core), committed(core), LAG_MS + 3)
    assert core.high_watermark == 10
    assert core.isr == (ONE, TWO)
    assert core.pending is None


def test_a_caught_up_replica_that_may_join_is_waited_for() -> None:
    """Rule B, HW: else a newcomer would chase a high watermark that always flees from it."""
    core = leader(state(isr=(1, 2)), end=12, high_watermark=10)
    fetched(core, THREE, 12, durable=5)
    fetched(core, TWO, 12)
    assert core.pending is None
    assert core.high_watermark == 10
    assert core.acked(core.followers[THREE], 12, 12, 0.0)
    assert core.high_watermark == 12


@pytest.mark.parametrize("flaw", ["fenced", "in_controlled_shutdown"])
def test_a_caught_up_replica_that_may_not_join_is_not_waited_for(flaw: str) -> None:
    """D-15 (KAFKA-15021): a stopping replica that keeps up must not hold the high watermark."""
    core = leader(state(isr=(1, 2)), known=brokers(three=broker(THREE, **{flaw: True})))
    wrote(core, 10)
    fetched(core, THREE, 10, durable=0)
    assert fetched(core, TWO, 10)
    assert core.high_watermark == 10


def test_it_stops_waiting_when_the_replica_begins_to_stop() -> None:
    """D-15: and it notices when that becomes known."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=5)
    fetched(core, THREE, 10, durable=0)
    fetched(core, TWO, 10)
    assert core.high_watermark == 5
    assert core.brokers_changed(brokers(three=broker(THREE, in_controlled_shutdown=True)), 0.0)
    assert core.high_watermark == 10


def test_it_stops_waiting_for_a_newcomer_whose_stream_ended() -> None:
    """Who is not in the ISR and gone is not waited for; who is in it still is."""
    core = leader(state(isr=(1, 2)))
    fetched(core, THREE, 0)
    core.answered(pending(core), refused(core, ErrorCode.INELIGIBLE_REPLICA), 0.0)
    wrote(core, 10)
    fetched(core, TWO, 10)
    assert core.high_watermark == 0
    assert core.disconnected(THREE, 0.0)
    assert core.high_watermark == 10
    wrote(core, 12)
    assert not core.disconnected(TWO, 0.0)
    assert core.high_watermark == 10


# Joining the ISR


def test_a_replica_joins_when_it_has_reached_the_high_watermark() -> None:
    """Rule B, joining: the item names the processes that were judged, by broker epoch."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, TWO, 10)
    fetched(core, THREE, 10)
    item = pending(core).item
    assert [(member.node_id, member.broker_epoch) for member in item.new_isr] == [(1, 101), (2, 102), (3, 103)]
    assert (item.leader_epoch, item.partition_epoch, item.recovering) == (5, 50, False)


@pytest.mark.parametrize(
    ("why", "offset", "durable", "epoch", "known"),
    [
        ("below the high watermark", 9, 9, 103, broker(THREE)),
        ("not synced up to the high watermark", 10, 9, 103, broker(THREE)),
        ("fenced", 10, 10, 103, broker(THREE, fenced=True)),
        ("shutting down", 10, 10, 103, broker(THREE, in_controlled_shutdown=True)),
        ("D-8: it has registered anew since that fetch", 10, 10, 103, broker(THREE, epoch=203)),
        ("D-8: its registration is not known here yet", 10, 10, 203, broker(THREE)),
    ],
)
def test_a_replica_does_not_join(why: str, offset: int, durable: int, epoch: int, known: BrokerState) -> None:
    """Rule B, joining: every condition by itself (D-8: KAFKA-15221)."""
    core = leader(state(isr=(1, 2)), known=brokers(three=known), end=10, high_watermark=10)
    fetched(core, TWO, 10)
    fetched(core, THREE, offset, durable, epoch=epoch)
    core.sweep(0.0)
    assert core.pending is None, why


def test_a_replica_below_the_start_of_the_epoch_does_not_join() -> None:
    """Rule B, joining: end >= start of the leader epoch: the inherited high watermark may lag the true one."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=4)
    fetched(core, THREE, 6)
    core.sweep(0.0)
    assert core.pending is None


def test_a_replica_that_has_not_fetched_in_this_epoch_does_not_join() -> None:
    """D-10 (VAN 6.5.4): what an older epoch knew of it is void: an empty log begins at offset 0, which it may not have
    reached either."""
    core = leader(state(isr=(1, 2)))
    core.sweep(0.0)
    assert core.pending is None
    assert not core.followers[THREE].fetched


def test_a_replica_that_left_the_assignment_and_came_back_is_a_new_one() -> None:
    """D-10: its old offsets do not count."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, THREE, 10)
    gone = replace(state(replicas=(1, 2), isr=(1, 2)), partition_epoch=PartitionEpoch(51))
    core.metadata_changed(gone, brokers(), 0.0)
    core.metadata_changed(replace(state(isr=(1, 2)), partition_epoch=PartitionEpoch(52)), brokers(), 0.0)
    core.sweep(0.0)
    assert core.pending is None
    assert core.followers[THREE].fetch_offset == -1


def test_the_next_process_of_a_replica_starts_from_nothing() -> None:
    """KAFKA-15221: offset and broker epoch are of one process; the older one's caught-up time is not inherited."""
    core = leader(state(isr=(1, 2)), known=brokers(three=broker(THREE, epoch=203)), end=10, high_watermark=5)
    fetched(core, THREE, 10, durable=0)
    fetched(core, THREE, 3, epoch=203)
    assert core.followers[THREE].broker_epoch == 203
    assert core.followers[THREE].fetch_offset == 3
    assert fetched(core, TWO, 10)
    assert core.high_watermark == 10


# AlterPartition


def test_one_change_at_a_time() -> None:
    """Rule B: one in flight; the next is proposed when this one is settled."""
    core = leader(state(isr=(1,), min_insync_replicas=1), end=10, high_watermark=10)
    fetched(core, TWO, 10)
    first = pending(core)
    fetched(core, THREE, 10)
    assert pending(core) is first
    core.answered(first, committed(core), 0.0)
    assert pending(core).isr == (ONE, TWO, THREE)
    assert pending(core).item.partition_epoch == 51


def test_an_ineligible_replica_rolls_the_change_back() -> None:
    """D-12 (KAFKA-13916): back to the committed ISR, and no second try with the next acknowledgement."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, THREE, 10)
    core.answered(pending(core), refused(core, ErrorCode.INELIGIBLE_REPLICA), 0.0)
    assert core.pending is None
    assert core.maximal_isr == (ONE, TWO)
    core.acked(core.followers[THREE], 10, 10, 1.0)
    assert core.pending is None
    core.sweep(PROPOSAL_BACKOFF_MS + 1)
    assert pending(core).isr == (ONE, TWO, THREE)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_a_definite_rejection_stays_pending_until_metadata_arrive(error: ErrorCode) -> None:
    """Rule B: it may have been committed under an earlier try; only metadata tell."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, THREE, 10)
    change = pending(core)
    change.sent = True
    core.answered(change, refused(core, error), 0.0)
    assert pending(core) is change
    assert change.sent
    assert core.maximal_isr == (ONE, TWO, THREE)
    core.metadata_changed(replace(state(isr=(1, 2)), partition_epoch=PartitionEpoch(51)), brokers(), 0.0)
    assert core.pending is not change


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_the_wrong_controller_is_no_answer(error: ErrorCode) -> None:
    """D-13 (KAFKA-14154): a zombie controller's word neither commits nor rolls back; send it again."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, THREE, 10)
    change = pending(core)
    change.sent = True
    core.answered(change, refused(core, error), 0.0)
    assert pending(core) is change
    assert not change.sent
    assert core.maximal_isr == (ONE, TWO, THREE)


def test_an_answer_that_metadata_have_overtaken_is_ignored() -> None:
    """The metadata of the commit may come before its answer."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, THREE, 10)
    change, answer = pending(core), committed(core)
    core.metadata_changed(replace(state(), partition_epoch=PartitionEpoch(51)), brokers(), 0.0)
    assert core.isr == (ONE, TWO, THREE)
    assert core.pending is None
    core.answered(change, replace(answer, isr=(ONE,)), 0.0)
    assert core.isr == (ONE, TWO, THREE)


def test_metadata_of_the_same_partition_epoch_leave_a_change_pending() -> None:
    """Only configs changed: the proposal may still be committed, so its member still counts."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, THREE, 10)
    change = pending(core)
    core.metadata_changed(state(isr=(1, 2), min_insync_replicas=1), brokers(), 0.0)
    assert pending(core) is change
    assert core.maximal_isr == (ONE, TWO, THREE)
    assert core.min_isr == 1


def test_older_metadata_are_ignored() -> None:
    """Rule B: partition epochs: accept updates >= own."""
    core = leader()
    core.metadata_changed(replace(state(isr=(1,)), partition_epoch=PartitionEpoch(49)), brokers(), 0.0)
    assert core.isr == (ONE, TWO, THREE)


def test_a_member_that_was_fenced_is_not_proposed_again() -> None:
    """D-12: its removal and its fencing come in one change of the metadata, and are judged as one."""
    core = leader(end=10, high_watermark=10)
    fetched(core, TWO, 10)
    fetched(core, THREE, 10)
    shrunk = replace(state(isr=(1, 2)), partition_epoch=PartitionEpoch(51))
    core.metadata_changed(shrunk, brokers(three=broker(THREE, fenced=True)), 0.0)
    assert core.pending is None


def test_lowering_min_insync_advances() -> None:
    """The bound of the strict rule is the configured one of now."""
    core = leader(state(isr=(1,)), end=5, durable=5)
    assert core.high_watermark == 0
    assert core.metadata_changed(state(isr=(1,), min_insync_replicas=1), brokers(), 0.0)
    assert core.high_watermark == 5


# Leaving the ISR


def test_a_follower_that_lags_leaves() -> None:
    """Rule B, leaving: not caught up for replica.lag.time.max.ms."""
    core = leader()
    wrote(core, 10, now=100.0)
    fetched(core, TWO, 10, now=100.0)
    core.sweep(LAG_MS)
    assert core.pending is None
    core.sweep(LAG_MS + 1.0)
    assert pending(core).isr == (ONE, TWO)


def test_a_follower_at_the_end_does_not_leave() -> None:
    """An idle partition costs no bytes, and nobody leaves its ISR for silence."""
    core = leader()
    fetched(core, TWO, 0)
    fetched(core, THREE, 0)
    core.sweep(LAG_MS * 100)
    assert core.pending is None


def test_an_idle_follower_has_the_whole_time_after_the_next_append() -> None:
    """It was caught up until that append, however long ago it acknowledged."""
    core = leader()
    fetched(core, TWO, 0)
    fetched(core, THREE, 0)
    core.appended(1, LAG_MS * 100)
    core.sweep(LAG_MS * 100 + LAG_MS)
    assert core.pending is None
    core.sweep(LAG_MS * 101 + 1)
    assert pending(core).isr == (ONE,)


def test_a_follower_that_keeps_pace_with_writes_stays() -> None:
    """Never at the leader's end, but always where that was at its previous acknowledgement."""
    core = leader()
    for step in range(1, 100):
        now = step * LAG_MS / 2
        core.appended(step * 10, now)
        for node in (TWO, THREE):
            fetched(core, node, (step - 1) * 10, now=now)
        core.sweep(now)
        assert core.pending is None


def test_who_was_dropped_does_not_come_back_with_nothing_new() -> None:
    """It left for its lag while nothing was committed beyond it: it must not be proposed again for having reached the
    high watermark, before that moves or after."""
    core = leader()
    fetched(core, TWO, 0)
    fetched(core, THREE, 0)
    wrote(core, 10, now=1.0)
    late = LAG_MS + 2.0
    core.acked(core.followers[TWO], 10, 10, late)
    core.sweep(late)
    assert core.answered(pending(core), committed(core), late)
    assert core.high_watermark == 10
    assert core.pending is None
    core.sweep(late)
    assert core.pending is None


# Acks


def test_acks_all_is_refused_before_anything_is_written() -> None:
    """Rule B, acks: |ISR| < min at the append: NOT_ENOUGH_REPLICAS."""
    core = leader(state(isr=(1,)))
    assert core.admit(-1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert core.admit(1) is ErrorCode.NONE
    assert core.admit(0) is ErrorCode.NONE
    assert leader().admit(-1) is ErrorCode.NONE


def test_too_few_after_the_append_is_said_so() -> None:
    """Rule B, acks: the high watermark passed the batch, but |maximal ISR| < min now: written, indeterminate."""
    core = leader(state(isr=(1, 2)), end=3, high_watermark=3)
    assert core.judge_committed() is ErrorCode.NONE
    core.metadata_changed(replace(state(isr=(1,)), partition_epoch=PartitionEpoch(51)), brokers(), 0.0)
    assert core.judge_committed() is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_who_has_synced_a_batch() -> None:
    """The client learns which replicas had it, and had synced it, at the ack."""
    core = leader()
    core.appended(10, 0.0)
    fetched(core, TWO, 10)
    fetched(core, THREE, 10, durable=9)
    assert core.synced_replicas(10) == (TWO,)
    core.synced(10, 0.0)
    assert core.synced_replicas(10) == (ONE, TWO)
