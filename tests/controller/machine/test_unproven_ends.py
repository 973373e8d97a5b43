"""An end that nothing proves: after an unclean stop the greatest log of the last ISR leads (rule B30, schedule 96)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from strandline.controller import api
from strandline.controller.machine import topics
from strandline.controller.machine.unproven import WAIT_MS
from strandline.log.findings import LogCondition
from strandline.proto.ids import NO_NODE

INTACT, CUT, LACKING, AWAY = LogCondition

COMMITTED = (0, 10)
ZEROED = (0, 6)
"""A dishonest disk gave back zeros for the newest batches, and recovery found nothing wrong."""


def crashed(machine_cluster: Any, **configs: str) -> Any:
    """Topic t on 1, 2 and 3; all crash, 1 first: the eligible are 2, whose disk is dishonest, and 3."""
    cluster = machine_cluster(3)
    cluster.create(**configs)
    for node in (1, 2, 3):
        cluster.fence(node)
    cluster.logs = {(1, "t", 0): (0, 2), (2, "t", 0): ZEROED, (3, "t", 0): COMMITTED}
    return cluster


def test_the_dishonest_one_is_back_first(machine_cluster: Any) -> None:
    """It waits for the other one that counts, which has more, and leads."""
    cluster = crashed(machine_cluster)
    cluster.start(2)
    assert not cluster.partition().has_leader
    cluster.start(3)
    info = cluster.partition()
    assert (info.leader, info.isr, info.eligible_leader_replicas, info.recovering) == (3, (3,), (2,), False)


def test_the_dishonest_one_is_back_before_the_other_is_fenced(machine_cluster: Any) -> None:
    """The record says that the other one leads, which is dead, and registers anew."""
    cluster = machine_cluster(3)
    cluster.create()
    cluster.fence(1)
    cluster.logs = {(2, "t", 0): ZEROED, (3, "t", 0): COMMITTED}
    cluster.now_ms = 60_000.0
    cluster.start(2)
    assert cluster.partition().leader == 3, "by the record"
    cluster.register(3)
    assert not cluster.partition().has_leader
    cluster.beat(2)
    assert not cluster.partition().has_leader
    cluster.beat(3)
    assert cluster.partition().leader == 3


def test_the_wait_is_bounded(machine_cluster: Any) -> None:
    """The other one stays away: the one that is there leads after half a second, and not before."""
    cluster = crashed(machine_cluster)
    cluster.start(2)
    state = cluster.state
    state.unproven.stamp(cluster.now_ms)
    assert state.unproven.next_event_ms() == cluster.now_ms + WAIT_MS <= cluster.now_ms + 500
    cluster.now_ms += WAIT_MS - 1
    state.unproven.stamp(cluster.now_ms)
    assert state.unproven.over(cluster.now_ms) == []
    cluster.now_ms += 1
    cluster.wait_out()
    info = cluster.partition()
    assert (info.leader, info.isr, info.eligible_leader_replicas, info.recovering) == (2, (2,), (3,), False)
    assert state.unproven.next_event_ms() == float("inf")


def test_a_controller_that_stood_still_waits_anew(machine_cluster: Any) -> None:
    """Who was to report could not."""
    cluster = crashed(machine_cluster)
    cluster.start(2)
    cluster.state.unproven.stamp(cluster.now_ms)
    cluster.now_ms += 10 * WAIT_MS
    cluster.state.unproven.forgive(cluster.now_ms)
    assert cluster.state.unproven.over(cluster.now_ms) == []


def test_the_wait_begins_anew_with_the_one_that_could_lead(machine_cluster: Any) -> None:
    """It dies while it waits, and is back later."""
    cluster = crashed(machine_cluster)
    cluster.start(2)
    cluster.state.unproven.stamp(cluster.now_ms)
    cluster.fence(2)
    cluster.wait_out()
    assert cluster.state.unproven.next_event_ms() == float("inf")
    cluster.now_ms += 10 * WAIT_MS
    cluster.start(2)
    assert not cluster.partition().has_leader
    cluster.state.unproven.stamp(cluster.now_ms)
    assert cluster.state.unproven.next_event_ms() == cluster.now_ms + WAIT_MS


def test_who_stopped_cleanly_is_not_doubted(machine_cluster: Any) -> None:
    """Its checkpoints say where its log ends: it leads at once, whoever is away."""
    cluster = crashed(machine_cluster)
    cluster.logs[2, "t", 0] = COMMITTED
    cluster.start(2, previous_broker_epoch=cluster.epoch(2))
    assert cluster.partition().leader == 2


def test_a_clean_stop_proves_nothing_of_a_life_that_was_in_no_isr(machine_cluster: Any) -> None:
    """What the disk did not give back to the life before is not there after it."""
    cluster = crashed(machine_cluster)
    cluster.start(2)
    epoch = cluster.stop_cleanly(2)
    cluster.start(2, previous_broker_epoch=epoch)
    assert not cluster.partition().has_leader


def test_who_never_died_leads_at_once(machine_cluster: Any) -> None:
    """A member of the ISR was fenced by mistake, and is the same process: its log is what it was."""
    cluster = machine_cluster(3)
    cluster.create()
    for node in (1, 2, 3):
        cluster.fence(node)
    assert cluster.partition().eligible_leader_replicas == (2, 3)
    cluster.beat(3)
    assert cluster.partition().leader == 3


def test_who_has_joined_the_isr_since_is_not_doubted(machine_cluster: Any) -> None:
    """It caught up with a leader after its unclean start, so that it has all that is committed."""
    cluster = crashed(machine_cluster)
    cluster.start(2)
    cluster.start(3)
    cluster.alter_isr([2, 3])
    for node in (2, 3):
        cluster.fence(node)
    cluster.beat(2)
    assert cluster.partition().leader == 2


def test_who_fell_back_and_never_rejoined_is_doubted(machine_cluster: Any) -> None:
    """2 is killed and back, behind the leader, when the leader dies: it waits for the leader."""
    cluster = machine_cluster(3)
    cluster.create()
    for node in (1, 2):
        cluster.fence(node)
    cluster.logs = {(2, "t", 0): ZEROED, (3, "t", 0): COMMITTED}
    cluster.start(2)
    assert cluster.partition().leader == 3
    cluster.fence(3)
    cluster.beat(2)
    assert not cluster.partition().has_leader
    cluster.start(3)
    assert cluster.partition().leader == 3


def test_a_new_controller_doubts_whom_it_does_not_know(machine_cluster: Any) -> None:
    """What was registered before it is not known to it: nobody is believed who is in no ISR."""
    cluster = crashed(machine_cluster)
    cluster.start(2)
    cluster.fail_over()
    cluster.beat(2, offsets=())
    assert not cluster.partition().has_leader
    cluster.start(3)
    assert cluster.partition().leader == NO_NODE, "2 has not reported to this controller in the present leader epoch"
    cluster.beat(2)
    assert cluster.partition().leader == 3


@pytest.mark.parametrize("end", [COMMITTED, ZEROED], ids=["cut behind what was committed", "cut before it"])
def test_a_member_whose_log_was_cut_is_waited_for_too(machine_cluster: Any, end: tuple[int, int]) -> None:
    """A torn write cuts an honest log behind all that was acknowledged: it may have more than a zeroed one. Whoever
    leads, the other one counts as it did."""
    cluster = crashed(machine_cluster)
    cluster.logs[3, "t", 0] = end
    cluster.start(2)
    cluster.start(3, found=CUT)
    info = cluster.partition()
    if end == COMMITTED:
        assert (info.leader, info.isr, info.eligible_leader_replicas, info.last_known_elr) == (3, (3,), (2,), ())
    else:
        assert (info.leader, info.isr, info.eligible_leader_replicas, info.last_known_elr) == (2, (2,), (), (3,))
    assert not info.recovering


def test_a_member_that_lost_its_log_is_not_waited_for(machine_cluster: Any) -> None:
    """Its registration alone lets the other one lead."""
    cluster = crashed(machine_cluster)
    cluster.start(2)
    cluster.register(3, directory_id=UUID(int=99))
    assert cluster.partition().leader == 2


@pytest.mark.parametrize("replicas", [[2], [2, 1]], ids=["the only replica", "alone in the ISR"])
def test_where_no_other_counts_nobody_waits(machine_cluster: Any, replicas: list[int]) -> None:
    """One replica, or min.insync.replicas 1 with one in sync."""
    cluster = machine_cluster(3)
    cluster.create("t", [replicas], min_insync_replicas="1")
    for node in (1, 2):
        cluster.fence(node)
    assert cluster.partition().eligible_leader_replicas == (2,)
    cluster.register(2)
    cluster.beat(2, offsets=())
    assert cluster.partition().leader == 2


def test_unclean_elections_wait_too(machine_cluster: Any) -> None:
    """A topic that allows them is no reason to take a log that may be the lesser one."""
    cluster = crashed(machine_cluster, unclean_leader_election_enable="true")
    cluster.start(1)
    assert cluster.partition().leader == 1, "where nobody is eligible and alive, as ever"
    cluster = crashed(machine_cluster, unclean_leader_election_enable="true")
    cluster.start(2)
    cluster.beat(1) if cluster.image.is_active(1) else cluster.start(1)
    assert not cluster.partition().has_leader


def test_an_operator_need_not_wait(machine_cluster: Any) -> None:
    """A preview says who is waited for, and ends no wait; the command does."""
    cluster = crashed(machine_cluster)
    cluster.start(2)
    [preview] = cluster.elect(api.ElectionKind.UNCLEAN, dry_run=True)
    assert (preview.leader, preview.unclean) == (2, False)
    cluster.state.unproven.stamp(cluster.now_ms)
    assert cluster.state.unproven.next_event_ms() == cluster.now_ms + WAIT_MS
    cluster.elect(api.ElectionKind.UNCLEAN)
    assert cluster.partition().leader == 2


def test_a_topic_that_is_deleted_is_waited_for_no_more(machine_cluster: Any) -> None:
    """Nothing of it is left in memory."""
    cluster = crashed(machine_cluster)
    cluster.start(2)
    cluster.run(topics.delete_topics(cluster.state, api.DeleteTopicsRequest((api.TopicRef("t"),))))
    assert cluster.state.unproven.next_event_ms() == float("inf")


def test_equal_logs_prefer_a_disk_with_room(machine_cluster: Any) -> None:
    """Who can take writes leads among equals; who has more leads even if its disk is full."""
    for end in (COMMITTED, ZEROED):
        cluster = crashed(machine_cluster)
        cluster.logs[3, "t", 0] = end
        cluster.logs[2, "t", 0] = COMMITTED
        cluster.full = {2}
        cluster.start(2)
        cluster.beat(2)
        cluster.start(3)
        assert cluster.partition().leader == (3 if end == COMMITTED else 2)
