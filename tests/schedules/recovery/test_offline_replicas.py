"""A broker says what it cannot serve (schedule 56): the leadership moves by itself, and the node goes on."""

from __future__ import annotations

import pytest

from strandline.replica.states import Role
from tests.schedules.helpers import schedule
from tests.schedules.recovery.ruin import DIRECTORY, Ruin, both_layouts


@both_layouts
@pytest.mark.parametrize("fault", ["writes", "syncs"])
@schedule(
    56,
    rule="who cannot serve says so, and leads no more",
    mutant=("unserved-replica-keeps-the-leadership", "unserved-replicas-are-not-told"),
)
def test_56_a_leaders_log_fails(split: bool, fault: str) -> None:
    """A write or a sync of one log fails on its leader: another replica leads within a second, the node lives and leads
    what it led besides, and is in sync again once it is restarted."""

    async def story(ruin: Ruin) -> None:
        await ruin.create("other")
        await ruin.write(0, 10)
        leader = ruin.leader_name
        assert leader is not None
        faults = ruin.disk(leader).faults
        faults.where = DIRECTORY
        setattr(faults, fault, 1)
        ruin.cluster.may_fall = ()
        began = ruin.world.now_ms
        await ruin.send(ruin.cluster.bootstrap, "t", 10, 11)
        assert ruin.leader_name in ruin.others(leader)
        assert ruin.world.now_ms - began < 1_000
        assert ruin.role(leader) is Role.OFFLINE
        assert ruin.cluster.live[leader].node.ready, "it serves what else it has"
        await ruin.write(11, 20)
        ruin.kill(leader)
        ruin.start(leader)
        await ruin.nothing_is_lost()

    Ruin(1, split).play(story)


async def follower_offline_and_eligible(ruin: Ruin) -> tuple[str, str, str]:
    """A leader, a follower whose log failed, and a third that was out of sync before: the follower is eligible."""
    leader = ruin.leader_name
    assert leader is not None
    follower, third = ruin.others(leader)
    await ruin.write(0, 10)
    await ruin.fall_in_turn(third)
    faults = ruin.disk(follower).faults
    faults.where, faults.writes = DIRECTORY, 1
    sending = ruin.send(ruin.cluster.bootstrap, "t", 10, 11)  # it is refused, or not committed: one is not enough
    await sending
    await ruin.until(lambda: int(follower[1:]) in ruin.partition().eligible_leader_replicas, "it left the ISR")
    return leader, follower, third


@schedule(56, rule="an offline replica is not elected", mutant="unserved-replica-is-elected")
def test_56_an_offline_replica_is_not_elected() -> None:
    """The leader dies; the only eligible one that lives cannot serve its log: it waits for the leader, which has
    everything, instead of leading with a log that nobody can read."""

    async def story(ruin: Ruin) -> None:
        leader, follower, third = await follower_offline_and_eligible(ruin)
        ruin.start(third)
        ruin.kill(leader)
        await ruin.until(lambda: int(leader[1:]) in ruin.partition().eligible_leader_replicas, "it is fenced")
        await ruin.nobody_leads()
        told = await ruin.preview()
        assert f"broker {follower[1:]}, which had all that was acknowledged, cannot serve its replica" in told, told
        ruin.start(leader)
        await ruin.until(lambda: ruin.leader_name == leader, "the leader is back")
        ruin.kill(follower)
        ruin.start(follower)
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    Ruin(2, split=True).play(story)


@schedule(
    56,
    rule="a session begins with all that cannot be served",
    mutant="unserved-replicas-are-told-to-one-controller",
)
def test_56_a_new_controller_hears_of_it() -> None:
    """The active controller dies with what it knew: the next one is told again before it elects."""

    async def story(ruin: Ruin) -> None:
        leader, follower, third = await follower_offline_and_eligible(ruin)
        controller = ruin.cluster.controller()
        assert controller is not None
        ruin.kill(controller)
        await ruin.until(lambda: ruin.cluster.controller() not in (None, controller), "another is active")
        await ruin.world.sleep_ms(1_000)
        ruin.kill(leader)
        await ruin.until(lambda: int(leader[1:]) in ruin.partition().eligible_leader_replicas, "it is fenced")
        await ruin.nobody_leads()
        ruin.start(controller, leader, third)
        ruin.kill(follower)
        ruin.start(follower)
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    Ruin(3, split=True).play(story)
