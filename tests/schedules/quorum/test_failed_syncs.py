"""A sync of the quorum's files fails, and the process is started again without a reboot: schedule 47."""

from __future__ import annotations

import pytest
from quorum_trial import Trial

from strandline.controller.quorum.api import LeaderAndEpoch
from strandline.proto.ports import RpcError
from tests.schedules.helpers import schedule
from tests.schedules.quorum.test_durable_state import vote


@schedule(
    47,
    rule="A9: after a restart in the same boot the metadata log counts once it is written again",
    mutant="metadata-not-written-again",
)
def test_47_a_failed_sync_of_metadata_is_retried_by_a_restart() -> None:
    """A follower's sync fails; restarted, it finds the record, and its first fetch acknowledges it. Then the power
    fails on both that count, and the third has never had it."""
    trial = Trial()
    large = b"b" * 20_000  # several pages: the last one is written anyway, where the file is cut to its batches

    async def test(trial: Trial) -> None:
        trial.start()
        leader = await trial.commit(b"a")
        follower, third = (node.number for node in trial.nodes.values() if node is not leader)
        await trial.until(lambda: trial.nodes[follower].values == trial.nodes[third].values == [b"a"])
        trial.world.isolate(f"n{third}")
        disk = trial.world.machines[f"n{follower}"].disk
        disk.faults.syncs, disk.faults.where = 1, ".log"
        trial.append(leader, large)
        await trial.until(lambda: trial.nodes[follower].fatal)
        assert leader.values == [b"a"]
        trial.kill(follower)
        trial.start(follower)
        await trial.until(lambda: leader.values == [b"a", large])
        for name in (f"n{follower}", f"n{leader.number}"):
            trial.world.power_cut(name)
        leader.leader = LeaderAndEpoch(None, 0)
        trial.world.heal()
        trial.start(follower)
        node = await trial.commit(b"c")
        assert node.values == [b"a", large, b"c"]

    trial.play(test)


def test_47_a_vote_whose_name_a_failed_sync_forgot() -> None:
    """The vote is written, and the sync of its directory fails: nobody is told. Restarted, the node finds the vote, and
    grants it again. Then the power fails. (rule A1; two things hold it: names are made again, and the second copy of
    the vote is written from the first.)"""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start(1)
        await trial.until(lambda: trial.nodes[1].quorum is not None)
        disk = trial.world.machines["n1"].disk
        disk.faults.dir_syncs, disk.faults.where = 1, "__cluster_metadata"
        with pytest.raises(RpcError):
            await vote(trial, candidate=2)
        assert trial.nodes[1].fatal
        trial.world.kill("n1")
        trial.start(1)
        await trial.until(lambda: trial.nodes[1].quorum is not None)
        assert await vote(trial, candidate=2)
        trial.world.power_cut("n1")
        await trial.world.sleep_ms(20)
        trial.start(1)
        await trial.until(lambda: trial.nodes[1].quorum is not None)
        assert not await vote(trial, candidate=3), "it voted for 2 in this epoch"

    trial.play(test)
