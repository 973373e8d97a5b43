"""No log, no vote: schedule 49. A voter whose log is gone, or an older copy, must not count under its old promise."""

from __future__ import annotations

from quorum_trial import Node, Trial

from strandline.controller.raft.state import RoleKind
from tests.schedules.helpers import schedule

METADATA = "/data/__cluster_metadata-0"


async def committed_without(trial: Trial, value: bytes) -> tuple[Node, Node, Node]:
    """Three nodes; `value` is committed on two. The leader, the other that has it, and the one that lacks it."""
    trial.start()
    leader = await trial.commit(b"first")
    holder, lacking = (node for node in trial.nodes.values() if node is not leader)
    await trial.until(lambda: all(b"first" in node.values for node in trial.nodes.values()))
    trial.world.isolate(f"n{lacking.number}")
    trial.append(leader, value)
    await trial.until(lambda: value in leader.values and value in holder.values)
    return leader, holder, lacking


def role(node: Node) -> RoleKind:
    assert node.quorum is not None
    assert node.quorum._driver is not None
    return node.quorum._driver.core.role.kind


def lose(trial: Trial, node: Node) -> None:
    """The node dies, and its metadata directory with it; meta.properties and the partitions stay."""
    trial.world.kill(f"n{node.number}")
    trial.world.machines[f"n{node.number}"].disk.remove_directory(METADATA)


@schedule(49, rule="A14: no log, no vote", mutant=("lost-log-keeps-its-vote", "promise-not-kept-outside"))
def test_49_a_voter_without_its_log() -> None:
    """A committed record is on A and B. B's metadata directory is moved away; meta.properties keeps its directory id.
    With C it would elect a leader that lacks the record."""
    for recorded in (True, False):
        trial = Trial(recorded=recorded)

        async def test(trial: Trial = trial) -> None:
            leader, holder, _ = await committed_without(trial, b"committed")
            trial.world.kill(f"n{leader.number}")
            lose(trial, holder)
            trial.world.heal()
            trial.start(holder.number)
            await trial.world.sleep_ms(10_000)
            holder = trial.nodes[holder.number]
            assert trial.leading() is None, "C and an empty log are no majority"
            assert role(holder) is RoleKind.OBSERVER
            trial.start(leader.number)
            await trial.commit(b"after")
            for node in trial.nodes.values():
                await trial.until(lambda node=node: node.values == [b"first", b"committed", b"after"])  # type: ignore[misc]
            # It has everything by now, and is an observer still: its fetches count for nothing.
            assert role(trial.nodes[holder.number]) is RoleKind.OBSERVER
            third = trial.leading()
            assert third is not None
            other = next(node for node in trial.nodes.values() if node not in (third, trial.nodes[holder.number]))
            trial.world.kill(f"n{other.number}")
            trial.append(third, b"by one voter")
            await trial.world.sleep_ms(2_000)
            assert b"by one voter" not in third.values

        trial.run(test)
