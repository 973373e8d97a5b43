"""A voter whose disk did not give back what it had synced, and no trace of it in its log (rule A22, schedule 97)."""

from __future__ import annotations

import asyncio

import pytest
from quorum_trial import Node, Trial

from strandline.controller.raft.config import UNPROVEN_WAIT_MS
from tests.schedules.helpers import schedule
from tests.schedules.quorum.test_lost_log import committed_without
from tests.schedules.quorum.test_tail_in_doubt import LOG, core

ALL = [b"first", b"committed", b"after"]


def lose_the_newest_batch(trial: Trial, node: Node, *, cut: bool = False) -> None:
    """The disk gives back zeros for the batch that was written last, or a file that ends before it."""
    disk = trial.world.machines[f"n{node.number}"].disk
    written = disk.files()[LOG]
    position = end = 0
    while any(written[end : end + 12]):
        position, end = end, end + 12 + int.from_bytes(written[end + 8 : end + 12], "big")
    disk.lose_tail(LOG, position, cut=cut)


async def dishonest(trial: Trial, *, cut: bool = False) -> tuple[Node, Node, Node]:
    """`committed` is on A, and not given back by the disk of B, which had it; C never had it. All are dead."""
    leader, holder, lacking = await committed_without(trial, b"committed")
    for node in trial.nodes.values():
        trial.kill(node.number)
    lose_the_newest_batch(trial, holder, cut=cut)
    trial.world.heal()
    return leader, holder, lacking


async def stop(trial: Trial, node: Node) -> None:
    """The node stops in order."""
    process = trial.world.process(f"n{node.number}")
    assert node.quorum is not None
    assert process is not None
    ended = process.context.copy().run(asyncio.ensure_future, node.quorum.close())
    await trial.until(ended.done)
    trial.kill(node.number)


@pytest.mark.parametrize("cut", [False, True], ids=["zeros", "cut at a batch's end"])
@schedule(97, rule="A22: a vote after an unclean stop says less", mutant="unproven-votes-count-in-full")
def test_97_the_dishonest_voter_and_the_lagging_one_are_back_first(cut: bool) -> None:
    """B and C were a majority, and A cut its log to match. A is back a moment later: it has more, and is asked."""
    for seed in range(3):
        trial = Trial(seed=seed)

        async def test(trial: Trial) -> None:
            leader, holder, lacking = await dishonest(trial, cut=cut)
            trial.start(holder.number, lacking.number)
            await trial.world.sleep_ms(200)
            trial.start(leader.number)
            await trial.commit(b"after")
            for node in trial.nodes.values():
                await trial.until(lambda node=node: node.values == ALL)  # type: ignore[misc]

        trial.play(test)


@pytest.mark.parametrize("silent", [False, True], ids=["it refuses connections", "nothing of it answers"])
def test_97_one_dead_machine_costs_half_a_second(silent: bool) -> None:
    """The disks are honest, and one voter stays dead: the two others elect once the wait is over, and soon then."""
    for seed in range(6):
        trial = Trial(seed=seed)

        async def test(trial: Trial) -> None:
            trial.start()
            leader = await trial.commit(b"first")
            await trial.until(lambda: all(b"first" in node.values for node in trial.nodes.values()))
            dead, *others = (node.number for node in trial.nodes.values() if node is not leader)
            others.append(leader.number)
            for number in (dead, *others):
                trial.kill(number)
            if silent:
                trial.world.isolate(f"n{dead}")
            began = trial.world.now_ms
            trial.start(*others)
            await trial.until(lambda: trial.leading() is not None)
            assert UNPROVEN_WAIT_MS <= trial.world.now_ms - began < UNPROVEN_WAIT_MS + 500

        trial.play(test)


def test_a22_all_together_do_not_wait() -> None:
    """All are back, and grant: nobody is left to ask."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        await trial.commit(b"first")
        for node in trial.nodes.values():
            trial.kill(node.number)
        began = trial.world.now_ms
        trial.start()
        await trial.until(lambda: trial.leading() is not None)
        assert trial.world.now_ms - began < UNPROVEN_WAIT_MS

    trial.play(test)


def test_a22_who_stopped_cleanly_does_not_wait() -> None:
    """Their logs end where they ended: two of three elect at once."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        await trial.commit(b"first")
        await trial.until(lambda: all(b"first" in node.values for node in trial.nodes.values()))
        for node in trial.nodes.values():
            await stop(trial, node)
        began = trial.world.now_ms
        trial.start(1, 2)
        await trial.until(lambda: trial.leading() is not None)
        assert trial.world.now_ms - began < UNPROVEN_WAIT_MS

    trial.play(test)


def test_a22_who_has_caught_up_is_not_doubted() -> None:
    """A voter is killed and back; once it has what the leader has, its vote counts in full, however soon that is."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        leader = await trial.commit(b"first")
        back = next(node.number for node in trial.nodes.values() if node is not leader)
        trial.kill(back)
        trial.start(back)
        began = trial.world.now_ms
        await trial.until(lambda: trial.nodes[back].quorum is not None)
        await trial.until(lambda: core(trial.nodes[back]).node.unproven_until_ms < 0)
        assert trial.world.now_ms - began < UNPROVEN_WAIT_MS

    trial.play(test)


def test_a22_a_clean_stop_vouches_once() -> None:
    """Who stopped in order, is started and killed, has no proof any more of where its log ends."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        await trial.commit(b"first")
        for node in trial.nodes.values():
            await stop(trial, node)
        trial.start(1)
        await trial.until(lambda: trial.nodes[1].quorum is not None)
        assert core(trial.nodes[1]).node.unproven_until_ms < 0
        trial.kill(1)
        trial.start(1)
        await trial.until(lambda: trial.nodes[1].quorum is not None)
        assert core(trial.nodes[1]).node.unproven_until_ms > 0

    trial.play(test)


def test_a22_a_clean_mark_goes_on_a_full_disk() -> None:
    """It cannot be replaced, so it is removed; else a later start would believe it."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        await trial.commit(b"first")
        for node in trial.nodes.values():
            await stop(trial, node)
        ports = trial.world.machines["n1"]
        point = ports.disk.files()["/data/__cluster_metadata-0/recovery-point.properties"]
        assert b"clean=true" in point
        ports.disk.config.capacity_bytes = ports.disk.used_bytes
        trial.start(1)
        await trial.world.sleep_ms(100)
        assert "/data/__cluster_metadata-0/recovery-point.properties" not in ports.disk.files()

    trial.play(test)
