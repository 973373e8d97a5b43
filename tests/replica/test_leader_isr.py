"""The pure leader: rules B2, B5 and B6, joining and leaving the ISR and its changes, one schedule a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import LeaderEpoch, PartitionEpoch
from strandline.replica.core import PROPOSAL_BACKOFF_MS, ProposeIsr
from strandline.replica.states import BrokerState
from tests.replica.leader_bench import (
    LAG_MS,
    ONE,
    THREE,
    TWO,
    broker,
    brokers,
    committed,
    fetched,
    leader,
    pending,
    proposed,
    refused,
    rose,
    state,
    wrote,
)

# Joining the ISR


def test_a_replica_joins_when_it_has_reached_the_high_watermark() -> None:
    """Rule B5, joining: the item names the processes that were judged, by broker epoch."""
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
    """Rule B5, joining: every condition by itself (schedule 8: KAFKA-15221)."""
    core = leader(state(isr=(1, 2)), known=brokers(three=known), end=10, high_watermark=10)
    fetched(core, TWO, 10)
    fetched(core, THREE, offset, durable, epoch=epoch)
    core.sweep(0.0)
    assert core.pending is None, why


def test_a_replica_below_the_start_of_the_epoch_does_not_join() -> None:
    """Rule B5, joining: end >= start of the leader epoch: the inherited high watermark may lag the true one."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=4)
    fetched(core, THREE, 10, durable=6)
    core.sweep(0.0)
    assert core.pending is None
    fetched(core, THREE, 10)
    assert pending(core).isr == (ONE, TWO, THREE)


def test_a_replica_below_the_high_watermark_does_not_join() -> None:
    """Rule B5, joining: end >= high watermark, and under flush.policy = ack what counts is what it has synced."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    wrote(core, 12)
    fetched(core, TWO, 12)
    assert core.high_watermark == 12
    fetched(core, THREE, 12, durable=11)
    core.sweep(0.0)
    assert core.pending is None


def test_a_replica_that_lags_does_not_join() -> None:
    """It has reached the high watermark, which waits for another, and not the leader's end: it would be dropped again
    by the next sweep."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, TWO, 10)
    wrote(core, 20)
    fetched(core, THREE, 10)
    core.sweep(0.0)
    assert core.high_watermark == 10
    assert core.pending is None


def test_a_replica_that_has_not_fetched_in_this_epoch_does_not_join() -> None:
    """Schedule 10 (kafka-tlaplus 6.5.4): what an older epoch knew of it is void: an empty log begins at offset 0, which
    it may not have reached either."""
    core = leader(state(isr=(1, 2)))
    core.sweep(0.0)
    assert core.pending is None
    assert not core.followers[THREE].fetched


def test_a_replica_that_left_the_assignment_and_came_back_is_a_new_one() -> None:
    """Schedule 10: its old offsets do not count."""
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


def test_members_are_proposed_as_the_processes_that_fetched() -> None:
    """KAFKA-15221: a member that has registered anew since its last fetch is proposed under the broker epoch of that
    fetch, which the controller refuses: nobody knows what the new process has."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, TWO, 10)
    core.brokers_changed(brokers(two=broker(TWO, epoch=202)), 0.0)
    fetched(core, THREE, 10)
    assert [member.broker_epoch for member in pending(core).item.new_isr] == [101, 102, 103]


# AlterPartition


def test_one_change_at_a_time() -> None:
    """Rule B2: one in flight; the next is proposed when this one is settled."""
    core = leader(state(isr=(1,), min_insync_replicas=1), end=10, high_watermark=10)
    fetched(core, TWO, 10)
    first = pending(core)
    fetched(core, THREE, 10)
    assert pending(core) is first
    core.sweep(0.0)
    assert pending(core) is first
    core.answered(first, committed(core), 0.0)
    assert pending(core).isr == (ONE, TWO, THREE)
    assert pending(core).item.partition_epoch == 51


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_refused_expansion_is_withdrawn(error: ErrorCode) -> None:
    """Schedule 12 (KAFKA-13916) and schedule 50: the committed ISR is proposed anew under the same partition epoch, and
    the maximal ISR stands until that is committed; then no second try with the next acknowledgement. So it is with what
    the controller says that it has not even tried."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, THREE, 10)
    effects = core.answered(pending(core), refused(core, error), 0.0)
    assert pending(core).isr == (ONE, TWO)
    assert (pending(core).item.partition_epoch, proposed(effects)) == (50, [ProposeIsr(pending(core))])
    assert core.maximal_isr == (ONE, TWO, THREE)
    core.answered(pending(core), committed(core), 0.0)
    assert (core.pending, core.maximal_isr, core.partition_epoch) == (None, (ONE, TWO), 51)
    core.acked(core.followers[THREE], 10, 10, 1.0)
    assert core.pending is None
    core.sweep(PROPOSAL_BACKOFF_MS + 1)
    assert pending(core).isr == (ONE, TWO, THREE)


def test_a_refused_withdrawal_is_sent_again() -> None:
    """Schedule 50: a member of the committed ISR is ineligible: its removal moves the partition epoch, and is on the
    way."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, THREE, 10)
    core.answered(pending(core), refused(core, ErrorCode.INELIGIBLE_REPLICA), 0.0)
    withdrawal = pending(core)
    effects = core.answered(withdrawal, refused(core, ErrorCode.INELIGIBLE_REPLICA), 1.0)
    assert pending(core) is withdrawal
    assert proposed(effects) == [ProposeIsr(withdrawal, again=True)]
    assert core.maximal_isr == (ONE, TWO, THREE)


def test_a_refused_shrink_is_forgotten() -> None:
    """Rule B2: the maximal ISR was the old one all the time. It is proposed again after a pause."""
    core = leader(end=10, high_watermark=10)
    fetched(core, TWO, 10)
    wrote(core, 20, now=1.0)
    fetched(core, TWO, 20, now=LAG_MS)
    core.sweep(LAG_MS + 2)
    assert pending(core).isr == (ONE, TWO)
    core.answered(pending(core), refused(core, ErrorCode.INELIGIBLE_REPLICA), LAG_MS + 3)
    assert (core.pending, core.maximal_isr) == (None, (ONE, TWO, THREE))
    core.sweep(LAG_MS + 3 + PROPOSAL_BACKOFF_MS)
    assert pending(core).isr == (ONE, TWO)


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
    """Rule B2: it may have been committed under an earlier try; only metadata tell."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, THREE, 10)
    change = pending(core)
    assert not proposed(core.answered(change, refused(core, error), 0.0))
    assert pending(core) is change
    assert core.maximal_isr == (ONE, TWO, THREE)
    core.metadata_changed(replace(state(isr=(1, 2)), partition_epoch=PartitionEpoch(51)), brokers(), 0.0)
    assert core.pending is not change


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_the_wrong_controller_is_no_answer(error: ErrorCode) -> None:
    """Schedule 13 (KAFKA-14154): a zombie controller's word neither commits nor rolls back; send it again."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, THREE, 10)
    change = pending(core)
    effects = core.answered(change, refused(core, error), 0.0)
    assert pending(core) is change
    assert proposed(effects) == [ProposeIsr(change, again=True)]
    assert core.maximal_isr == (ONE, TWO, THREE)


def test_an_answer_that_metadata_have_overtaken_is_ignored() -> None:
    """The metadata of the commit may come before its answer."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
    fetched(core, THREE, 10)
    change, answer, refusal = pending(core), committed(core), refused(core, ErrorCode.INELIGIBLE_REPLICA)
    core.metadata_changed(replace(state(), partition_epoch=PartitionEpoch(51)), brokers(), 0.0)
    assert core.isr == (ONE, TWO, THREE)
    assert core.pending is None
    for late in (replace(answer, isr=(ONE,)), refusal):
        assert core.answered(change, late, 0.0) == ()
        assert (core.isr, core.maximal_isr, core.pending) == ((ONE, TWO, THREE), (ONE, TWO, THREE), None)


def test_an_answer_of_other_epochs_is_ignored() -> None:
    """Rule B2: it tells of a partition that has another leader by now, or of what this leader knows to be past; what is
    pending may have been committed all the same, and stays."""
    for over in ({"leader_epoch": LeaderEpoch(9)}, {"partition_epoch": PartitionEpoch(50)}):
        core = leader(state(isr=(1, 2)), end=10, high_watermark=10)
        fetched(core, THREE, 10)
        change = pending(core)
        core.answered(change, replace(committed(core), **over), 0.0)
        assert pending(core) is change
        assert (core.isr, core.maximal_isr) == ((ONE, TWO), (ONE, TWO, THREE))


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
    """Rule B2: partition epochs: accept updates >= own."""
    core = leader()
    core.metadata_changed(replace(state(isr=(1,)), partition_epoch=PartitionEpoch(49)), brokers(), 0.0)
    assert core.isr == (ONE, TWO, THREE)


def test_a_member_that_was_fenced_is_not_proposed_again() -> None:
    """Schedule 12: its removal and its fencing come in one change of the metadata, and are judged as one."""
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
    assert rose(core.metadata_changed(state(isr=(1,), min_insync_replicas=1), brokers(), 0.0))
    assert core.high_watermark == 5


# Leaving the ISR


def test_a_follower_that_lags_leaves() -> None:
    """Rule B6, leaving: not caught up for replica.lag.time.max.ms."""
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
    assert rose(core.answered(pending(core), committed(core), late))
    assert core.high_watermark == 10
    assert core.pending is None
    core.sweep(late)
    assert core.pending is None
