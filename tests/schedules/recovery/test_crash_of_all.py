"""All machines crash: who may lead then (schedules 45, 46, 48 and 53; docs/correctness.md).

Whole nodes with clients, in virtual time; the invariants are checked as events run, and a reader at the end finds what
was acknowledged.
"""

from __future__ import annotations

import pytest

from strandline.replica.states import Role
from tests.schedules.helpers import schedule
from tests.schedules.recovery.ruin import CHECKPOINT_MS, TP, Ruin, both_layouts


@schedule(
    45,
    rule="cut is not intact; an intact member of the last ISR leads",
    mutant="cut-log-is-taken-for-whole",
)
def test_45_the_newest_batch_of_the_last_leader_rots() -> None:
    """All crash; the newest batch of the last leader rots, and is cut like a torn tail. It must not lead: the other one
    that counts, which is away yet, would have to cut what was acknowledged."""

    async def story(ruin: Ruin) -> None:
        await ruin.write(0, 20)
        leader = ruin.leader_name
        assert leader is not None
        await ruin.fall_in_turn(*ruin.others(leader), leader)
        ruin.rot_newest(leader)
        ruin.start(leader)
        await ruin.nobody_leads()
        ruin.start(*ruin.others(leader))
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    for seed in range(2):
        Ruin(seed, split=True).play(story)


def test_45_the_last_leader_starts_last_on_combined_nodes() -> None:
    """The same where the quorum falls with the brokers: the others lead, and the last leader is not asked."""

    async def story(ruin: Ruin) -> None:
        await ruin.write(0, 20)
        leader = ruin.leader_name
        assert leader is not None
        ruin.kill_all()
        ruin.rot_newest(leader)
        ruin.start(*ruin.others(leader))
        await ruin.world.sleep_ms(1_000)
        ruin.start(leader)
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    for seed in range(4):
        Ruin(seed).play(story)


@schedule(
    45,
    rule="members in doubt wait for all of them, and the greatest log leads",
    mutant="member-in-doubt-does-not-wait",
)
def test_45_both_in_doubt_wait_for_each_other() -> None:
    """Of the two that count one has lost its newest batch, the other only a write that was never synced. They look
    alike: both wait, and the third, which holds less for certain, is not asked. The operator is told why."""

    async def story(ruin: Ruin) -> None:
        first, rotten, honest = ruin.brokers
        await ruin.write(0, 5)
        await ruin.fall_in_turn(first)
        await ruin.write(5, 20)
        await ruin.fall_in_turn(rotten, honest)
        ruin.rot_newest(rotten)
        ruin.tear(honest)
        ruin.start(first, rotten)
        await ruin.nobody_leads()
        told = await ruin.preview()
        assert f"The log of broker {rotten[1:]} was cut when it was recovered" in told, told
        assert f"broker {honest[1:]}, which had all that was acknowledged, is away" in told, told
        ruin.start(honest)
        await ruin.write(20, 30)
        assert ruin.leader_name == honest
        await ruin.nothing_is_lost()

    Ruin(1, split=True).play(story)


@schedule(
    45,
    rule="a finding survives until the registration that tells of it is committed",
    mutant="findings-are-dropped-before-they-are-committed",
)
def test_45_killed_between_the_cut_and_the_registration() -> None:
    """It cuts while no controller can be reached, and is killed: the next start finds a log without a torn tail."""

    async def story(ruin: Ruin) -> None:
        await ruin.write(0, 20)
        leader = ruin.leader_name
        assert leader is not None
        other, last = ruin.others(leader)
        await ruin.fall_in_turn(last, other)
        ruin.kill_all()
        ruin.rot_newest(leader)
        for _ in range(2):
            ruin.start(leader)
            await ruin.world.sleep_ms(2_000)
            ruin.kill(leader)
        ruin.start_controllers()
        await ruin.until(lambda: ruin.leader_name is None, "it is fenced")
        ruin.start(leader)
        await ruin.nobody_leads()
        ruin.start(other, last)
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    Ruin(2, split=True).play(story)


def test_45_a_controller_dies_between_two_registrations() -> None:
    """Who is in doubt is on record; where the logs end is told to the next controller anew."""

    async def story(ruin: Ruin) -> None:
        first, rotten, honest = ruin.brokers
        await ruin.write(0, 20)
        await ruin.fall_in_turn(first, rotten, honest)
        ruin.rot_newest(rotten)
        ruin.tear(honest)
        ruin.start(rotten)
        await ruin.until(lambda: int(rotten[1:]) in ruin.partition().last_known_elr, "in doubt")
        controller = ruin.cluster.controller()
        assert controller is not None
        ruin.kill(controller)
        ruin.start(honest)
        await ruin.write(20, 30)
        assert ruin.leader_name == honest
        ruin.start(controller, first)
        await ruin.nothing_is_lost()

    Ruin(3, split=True).play(story)


def test_45_the_elected_one_dies_before_the_others_are_back() -> None:
    """It was the greatest of those in doubt, perhaps the only one that had everything: nobody takes its place, and it
    leads again when it is back."""

    async def story(ruin: Ruin) -> None:
        first, rotten, honest = ruin.brokers
        await ruin.write(0, 20)
        await ruin.fall_in_turn(first, rotten, honest)
        ruin.rot_newest(rotten)
        ruin.tear(honest)
        ruin.world.partition(rotten, honest)
        ruin.start(rotten, honest)
        await ruin.until(lambda: ruin.leader_name == honest, "elected")
        await ruin.fall_in_turn(honest)
        ruin.world.heal()
        ruin.start(first)
        await ruin.nobody_leads()
        ruin.start(honest)
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    Ruin(4, split=True).play(story)


@pytest.mark.parametrize("lost", [1, 2])
@schedule(46, rule="an empty log where checkpoints prove one is not eligible", mutant="lacking-log-counts")
def test_46_the_advice_about_damage_is_followed(lost: int) -> None:
    """Rot below the recovery point: the node refuses the log, and advises to move its directory away and to restart.
    Done so on the last leader, and on another one: no empty log leads; the one that is whole does."""

    async def story(ruin: Ruin) -> None:
        await ruin.write(0, 20)
        await ruin.world.sleep_ms(CHECKPOINT_MS)
        leader = ruin.leader_name
        assert leader is not None
        other, whole = ruin.others(leader)
        await ruin.fall_in_turn(other, whole, leader)
        for name in (leader, other)[:lost]:
            ruin.rot(name, 3)
            ruin.start(name)
            await ruin.world.sleep_ms(500)
            assert "move its directory away and restart" in str(ruin.cluster.live[name].node.log_dirs.first.offline[TP])
            ruin.kill(name)
            ruin.lose_directory(name)
        ruin.start(leader, other)
        await ruin.nobody_leads()
        ruin.start(whole)
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    Ruin(lost, split=True).play(story)


@schedule(48, rule="the clean mark covers what the checkpoints name", mutant="lacking-log-counts")
def test_48_the_leaders_directory_vanishes_after_an_orderly_stop() -> None:
    """All are stopped, the leader last; its directory of the partition is gone. It was made anew, empty and silently,
    and elected cleanly; the full replicas then went offline."""

    for seed in range(2):
        Ruin(seed, split=True).play(_leaders_directory_vanishes)


def test_48_the_leaders_directory_vanishes_on_combined_nodes() -> None:
    """The same where the quorum stops with the brokers."""
    for seed in range(2):
        Ruin(seed).play(_leaders_directory_vanishes)


async def _leaders_directory_vanishes(ruin: Ruin) -> None:
    await ruin.write(0, 20)
    leader = ruin.leader_name
    assert leader is not None
    for name in (*ruin.others(leader), leader):
        ruin.cluster.stop(name)
        await ruin.until(lambda name=name: ruin.world.process(name) is None, f"{name} has stopped")  # type: ignore[misc]
    ruin.lose_directory(leader)
    ruin.start(leader)
    await ruin.world.sleep_ms(1_000)
    ruin.start(*ruin.others(leader))
    await ruin.write(20, 30)
    assert all(ruin.role(name) is not Role.OFFLINE for name in ruin.brokers)
    await ruin.nothing_is_lost()


@schedule(48, rule="an older copy of the directory counts for nothing", mutant="older-copy-counts")
def test_48_an_older_copy_of_the_whole_directory() -> None:
    """A snapshot of the leader's machine, taken in an earlier life, is put back after the crash of all: its logs agree
    with its own checkpoints, and it has never heard of the process that registered last."""

    async def story(ruin: Ruin) -> None:
        leader = ruin.leader_name
        assert leader is not None
        await ruin.write(0, 10)
        ruin.kill(leader)
        copied = ruin.snapshot(leader)
        ruin.start(leader)
        await ruin.cluster.wait_in_sync(30_000)
        await ruin.write(10, 20)
        await ruin.fall_in_turn(*ruin.others(leader), leader)
        ruin.put_back(leader, copied)
        ruin.start(leader)
        await ruin.nobody_leads()
        ruin.start(*ruin.others(leader))
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    Ruin(5, split=True).play(story)


@both_layouts
@schedule(
    140, rule="B38: metadata on the disk prove whose directory it is", mutant="a-kill-of-an-earlier-build-loses-all"
)
def test_140_a_kill_of_a_build_that_left_no_lives(split: bool) -> None:
    """kill -9 of all three, which leaves neither lives nor a clean mark: whoever was in the last ISR leads at once. A
    start that is cut short changes nothing of that."""

    async def story(ruin: Ruin) -> None:
        await ruin.write(0, 20)
        ruin.kill_all()
        ruin.forget_lives(*ruin.brokers)
        ruin.start(ruin.brokers[0])
        await ruin.world.sleep_ms(500)
        ruin.kill(ruin.brokers[0])
        ruin.start_controllers()
        ruin.start(*ruin.brokers)
        await ruin.until(lambda: ruin.leader_name is not None, "somebody leads", within_ms=8_000)
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    Ruin(5, split).play(story)


@schedule(140, rule="B38: the metadata of an older copy are older", mutant="any-registration-proves-the-directory")
def test_140_an_older_copy_that_has_no_lives() -> None:
    """Schedule 48 with directories of a build that notes no lives: a copy from an earlier life counts for nothing."""

    async def story(ruin: Ruin) -> None:
        leader = ruin.leader_name
        assert leader is not None
        await ruin.write(0, 10)
        ruin.kill(leader)
        ruin.forget_lives(leader)
        copied = ruin.snapshot(leader)
        ruin.start(leader)
        await ruin.cluster.wait_in_sync(30_000)
        await ruin.write(10, 20)
        await ruin.fall_in_turn(*ruin.others(leader), leader)
        ruin.put_back(leader, copied)
        ruin.start(leader)
        await ruin.nobody_leads()
        ruin.start(*ruin.others(leader))
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    Ruin(5, split=True).play(story)


@both_layouts
@pytest.mark.parametrize("dead", range(3))
@schedule(53, rule="whoever is intact and was in the last ISR leads at once", mutant="whole-log-is-taken-for-cut")
def test_53_one_stays_dead(split: bool, dead: int) -> None:
    """kill -9 of all three, one machine stays dead: each choice of it. The others have everything between them."""

    async def story(ruin: Ruin) -> None:
        await ruin.write(0, 20)
        ruin.kill_all()
        ruin.start_controllers()
        ruin.start(*ruin.others(ruin.brokers[dead]))
        began = ruin.world.now_ms
        await ruin.until(lambda: ruin.leader_name in ruin.others(ruin.brokers[dead]), "somebody leads", within_ms=6_000)
        await ruin.write(20, 21)
        assert ruin.world.now_ms - began < 6_000
        ruin.start(ruin.brokers[dead])
        await ruin.nothing_is_lost()

    Ruin(dead, split).play(story)


@pytest.mark.parametrize("min_isr", ["1", "2"])
def test_53_alone_in_the_isr_and_back_with_a_torn_tail(min_isr: str) -> None:
    """Nobody else counts: it need not wait for those that were out of sync. With min.insync.replicas 2 the last but one
    counts too, and is waited for."""

    async def story(ruin: Ruin) -> None:
        first, second, last = ruin.brokers
        await ruin.write(0, 10)
        await ruin.fall_in_turn(first, second)
        if min_isr == "1":
            await ruin.write(10, 20)
        await ruin.fall_in_turn(last)
        ruin.tear(last)
        ruin.start(last)
        if min_isr == "2":
            await ruin.nobody_leads()
            ruin.start(second)
        await ruin.until(
            lambda: ruin.leader_name == (last if min_isr == "1" else second), "somebody leads", within_ms=6_000
        )
        ruin.start(first, second) if min_isr == "1" else ruin.start(first)
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    Ruin(6, split=True).play(story, min_insync_replicas=min_isr)


def test_a_topic_that_is_made_and_lost_while_brokers_are_away() -> None:
    """A topic is made while one broker is down, and the power of the others fails before anything is synced: empty logs
    lead once every replica is back and none holds a record. Deleted and made anew under its name, nothing of it is
    missed or mistaken."""

    async def story(ruin: Ruin) -> None:
        await ruin.write(0, 10)
        for name in ruin.brokers:
            ruin.disk(name).config.slow_factor = 1_000.0
        await ruin.remake("t")
        ruin.acked.clear()
        await ruin.world.sleep_ms(30)
        ruin.power_cut(*ruin.brokers)
        for name in ruin.brokers:
            ruin.disk(name).config.slow_factor = 1.0
        await ruin.world.sleep_ms(4_000)
        ruin.start(*ruin.brokers)
        await ruin.write(20, 30)
        await ruin.nothing_is_lost()

    for seed in range(3):
        Ruin(seed, split=True).play(story)
