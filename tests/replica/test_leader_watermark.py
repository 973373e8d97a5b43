"""The pure leader: rules B4 and B9, the high watermark and acks, one schedule a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import PartitionEpoch
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
    refused,
    rose,
    state,
    wrote,
)


def test_it_is_the_smallest_offset_of_the_isr() -> None:
    """Rule B4, HW: the minimum over the leader and the ISR, rechecked after an append, a sync and every fetch."""
    core = leader()
    assert not rose(core.appended(10, 0.0))
    assert not fetched(core, TWO, 8)
    assert not rose(core.synced(10, 0.0))
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
    assert rose(core.acked(core.followers[THREE], 10, 10, 0.0))
    assert core.high_watermark == 10


def test_under_ack_only_what_the_leader_has_synced_counts() -> None:
    """Rule A9, flush hazard: the own end counts after the flush alone."""
    core = leader()
    core.appended(10, 0.0)
    fetched(core, TWO, 10)
    fetched(core, THREE, 10)
    assert core.high_watermark == 0
    assert rose(core.synced(7, 0.0))
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
    """Rule B4: no advance while |ISR| < min.insync; acks=1 data are held back too (KIP-966, schedule 21)."""
    core = leader(state(isr=(1,)))
    wrote(core, 10)
    assert core.high_watermark == 0
    assert core.under_min_isr


def test_min_insync_is_bounded_by_the_replication_factor() -> None:
    """Rule B4: min(min.insync, RF): a lone replica commits by itself, at its sync."""
    core = leader(state(replicas=(1,), min_insync_replicas=2), known={ONE: broker(ONE)}, end=4, durable=4)
    assert core.high_watermark == 4
    core.appended(6, 0.0)
    assert core.high_watermark == 4
    assert rose(core.synced(6, 0.0))
    assert core.high_watermark == 6


def test_a_lone_replica_commits_what_it_has_appended() -> None:
    """Rule B4: recheck after an append; flush.policy = replicate, and nobody else to wait for."""
    core = leader(state(replicas=(1,), isr=(1,)), known={ONE: broker(ONE)}, sync_before_ack=False)
    assert rose(core.appended(3, 0.0))
    assert core.high_watermark == 3


def test_becoming_leader_judges_it_at_once() -> None:
    """Rule B4: recheck on becoming leader; the inherited one is at most the own end."""
    assert leader(state(replicas=(1,), isr=(1,)), end=9, durable=9, high_watermark=2).high_watermark == 9
    assert leader(end=3, high_watermark=7).high_watermark == 3


def test_a_new_leader_does_not_serve_all_it_has_as_committed() -> None:
    """Schedule 41 (redpanda#5090): what it has beyond its old high watermark counts when the ISR has confirmed it."""
    core = leader(end=10, high_watermark=4)
    assert core.high_watermark == 4
    assert not core.knows_committed_end
    fetched(core, TWO, 10)
    assert fetched(core, THREE, 10)
    assert core.knows_committed_end


def test_the_latest_offset_has_no_answer_before_the_epoch_start_is_committed() -> None:
    """Rule B7, stale HW: the inherited one may lag the true one until the start of the epoch is reached."""
    core = leader(end=10, high_watermark=4)
    fetched(core, TWO, 10)
    fetched(core, THREE, 9)
    assert core.high_watermark == 9
    assert not core.knows_committed_end


def test_an_expansion_on_its_way_counts_already() -> None:
    """Schedule 9 (kafka-tlaplus 6.5.2): the newcomer may be elected as soon as the controller commits: maximal ISR."""
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
    """Rule B3, maximal ISR: with a pending shrink it is the old ISR."""
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
    """Schedule 14 (KAFKA-13091): without a recheck at the commit, produce requests hang."""
    core = leader()
    wrote(core, 10, now=1.0)
    fetched(core, TWO, 10, now=LAG_MS)
    core.sweep(LAG_MS + 2)
    assert rose(core.answered(pending(core), committed(core), LAG_MS + 3))
    assert core.high_watermark == 10
    assert core.isr == (ONE, TWO)
    assert core.pending is None


def test_a_caught_up_replica_that_may_join_is_waited_for() -> None:
    """Rule B4, HW: else a newcomer would chase a high watermark that always flees from it."""
    core = leader(state(isr=(1, 2)), end=12, high_watermark=10)
    fetched(core, THREE, 12, durable=5)
    fetched(core, TWO, 12)
    assert core.pending is None
    assert core.high_watermark == 10
    assert rose(core.acked(core.followers[THREE], 12, 12, 0.0))
    assert core.high_watermark == 12


@pytest.mark.parametrize("flaw", ["fenced", "in_controlled_shutdown"])
def test_a_caught_up_replica_that_may_not_join_is_not_waited_for(flaw: str) -> None:
    """Schedule 15 (KAFKA-15021): a stopping replica that keeps up must not hold the high watermark."""
    core = leader(state(isr=(1, 2)), known=brokers(three=broker(THREE, **{flaw: True})))
    wrote(core, 10)
    fetched(core, THREE, 10, durable=0)
    assert fetched(core, TWO, 10)
    assert core.high_watermark == 10


def test_it_stops_waiting_when_the_replica_begins_to_stop() -> None:
    """Schedule 15: and it notices when that becomes known."""
    core = leader(state(isr=(1, 2)), end=10, high_watermark=5)
    fetched(core, THREE, 10, durable=0)
    fetched(core, TWO, 10)
    assert core.high_watermark == 5
    assert rose(core.brokers_changed(brokers(three=broker(THREE, in_controlled_shutdown=True)), 0.0))
    assert core.high_watermark == 10


def test_it_stops_waiting_for_a_newcomer_whose_stream_ended() -> None:
    """Who is not in the ISR and gone is not waited for; who is in it still is."""
    core = leader(state(isr=(1, 2)))
    fetched(core, THREE, 0)
    core.answered(pending(core), refused(core, ErrorCode.INELIGIBLE_REPLICA), 0.0)
    core.answered(pending(core), committed(core), 0.0)
    wrote(core, 10)
    fetched(core, TWO, 10)
    assert core.high_watermark == 0
    assert rose(core.disconnected(THREE, 0.0))
    assert core.high_watermark == 10
    wrote(core, 12)
    assert not rose(core.disconnected(TWO, 0.0))
    assert core.high_watermark == 10


# Acks


def test_acks_all_is_refused_before_anything_is_written() -> None:
    """Rule B9, acks: |ISR| < min at the append: NOT_ENOUGH_REPLICAS."""
    assert leader(state(isr=(1,))).admit_acks_all() is ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader().admit_acks_all() is ErrorCode.NONE


def test_too_few_after_the_append_is_said_so() -> None:
    """Rule B9, acks: the high watermark passed the batch, but |maximal ISR| < min now: written, indeterminate."""
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
