"""A tail that recovery cut may have been acknowledged: a torn write and a rotten batch look alike (rule A15).

Schedule 45 in the metadata log: a record is committed on A and B; all crash, and the newest batch of B rots; A stays
away. B cut it, and would elect C, or be elected by it, as if nothing had been there.
"""

from __future__ import annotations

from quorum_trial import Node, Trial

from strandline.controller.raft.core import RaftCore
from tests.schedules.helpers import schedule
from tests.schedules.quorum.test_lost_log import committed_without

LOG = "/data/__cluster_metadata-0/00000000000000000000.log"


def core(node: Node) -> RaftCore:
    assert node.quorum is not None
    assert node.quorum._driver is not None
    return node.quorum._driver.core


def rot_the_newest_batch(trial: Trial, node: Node) -> None:
    """One bit of the last record turns over."""
    disk = trial.world.machines[f"n{node.number}"].disk
    written = disk.files()[LOG].rstrip(b"\0")
    disk.flip_bit(LOG, len(written) - 3, 4)


async def rotten(trial: Trial) -> tuple[Node, Node, Node]:
    """`committed` is on A and B, and rotten on B; all are dead."""
    leader, holder, lacking = await committed_without(trial, b"committed")
    for node in trial.nodes.values():
        trial.kill(node.number)
    rot_the_newest_batch(trial, holder)
    trial.world.heal()
    return leader, holder, lacking


@schedule(45, rule="A15: who cut a tail decides nothing alone", mutant=("cut-tail-is-intact", "doubt-is-forgotten"))
def test_45_a_rotten_tail_of_the_metadata_log() -> None:
    """B and C are no majority, whoever stands, and however often B starts anew. With A everything is there."""
    for again in (False, True):
        trial = Trial()

        async def test(trial: Trial, again: bool = again) -> None:
            leader, holder, lacking = await rotten(trial)
            trial.start(holder.number)
            if again:  # what recovery found the first time must outlive the cut
                await trial.until(lambda: trial.nodes[holder.number].quorum is not None)
                trial.kill(holder.number)
                trial.start(holder.number)
            trial.start(lacking.number)
            await trial.world.sleep_ms(10_000)
            assert trial.leading() is None, "one that lacks the record, and one that may"
            assert core(trial.nodes[holder.number]).node.doubt is not None
            trial.start(leader.number)
            await trial.commit(b"after")
            for node in trial.nodes.values():
                await trial.until(lambda node=node: node.values == [b"first", b"committed", b"after"])  # type: ignore[misc]
            await trial.until(lambda: core(trial.nodes[holder.number]).node.doubt is None)

        trial.play(test)


def test_a15_the_doubt_ends_when_it_has_caught_up() -> None:
    """Once it holds what the leader of an epoch has committed, it votes as before: for good, over a restart."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        leader, holder, lacking = await rotten(trial)
        trial.start()
        await trial.commit(b"after")
        await trial.until(lambda: core(trial.nodes[holder.number]).node.doubt is None)
        await trial.until(lambda: b"after" in trial.nodes[holder.number].values)
        for number in (holder.number, leader.number):
            trial.kill(number)
        trial.start(holder.number)
        await trial.commit(b"with it")
        assert core(trial.nodes[holder.number]).node.doubt is None
        assert lacking.number in trial.nodes

    trial.play(test)


def test_a15_all_together_elect_in_spite_of_every_doubt() -> None:
    """The power fails everywhere in the midst of writes, and every tail is cut: all of them together are a majority of
    those who held whatever was committed. Whose log is the furthest leads."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        leader = await trial.commit(b"first")
        await trial.until(lambda: all(b"first" in node.values for node in trial.nodes.values()))
        trial.append(leader, b"torn everywhere")
        await trial.world.sleep_ms(300)
        for node in trial.nodes.values():
            trial.kill(node.number)
        for node in trial.nodes.values():
            rot_the_newest_batch(trial, node)
        trial.start(1, 2)
        await trial.world.sleep_ms(5_000)
        assert trial.leading() is None
        trial.start(3)
        await trial.commit(b"after")
        for node in trial.nodes.values():
            await trial.until(lambda node=node: node.values == [b"first", b"after"])  # type: ignore[misc]
            assert core(node).node.doubt is None

    trial.play(test)


def test_a15_a_lone_voter_goes_on() -> None:
    """There is nobody to ask: a torn tail is cut, as ever."""
    trial = Trial(voters=1)

    async def test(trial: Trial) -> None:
        trial.start()
        await trial.commit(b"first")
        node = await trial.commit(b"second")
        trial.world.kill("n1")
        rot_the_newest_batch(trial, node)
        trial.start()
        await trial.commit(b"third")
        assert trial.nodes[1].values == [b"first", b"third"]

    trial.play(test)
