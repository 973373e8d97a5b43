"""No log, no vote: schedule 49. A voter whose log is gone, or an older copy, must not count under its old promise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from quorum_trial import Node, Trial

from strandline.controller.quorum.api import QuorumConfig
from strandline.controller.quorum.quorum import Quorum
from strandline.controller.raft.messages import ReplicaKey
from strandline.controller.raft.transitions import RoleKind
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId
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
    trial.kill(node.number)
    trial.world.machines[f"n{node.number}"].disk.remove_directory(METADATA)


@schedule(49, rule="A14: no log, no vote", mutant=("lost-log-keeps-its-vote", "promise-not-kept-outside"))
def test_49_a_voter_without_its_log() -> None:
    """A committed record is on A and B. B's metadata directory is moved away; meta.properties keeps its directory id.
    With C it would elect a leader that lacks the record."""
    for recorded in (True, False):
        trial = Trial(recorded=recorded)

        async def test(trial: Trial) -> None:
            leader, holder, _ = await committed_without(trial, b"committed")
            trial.kill(leader.number)
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
            trial.kill(other.number)
            trial.append(third, b"by one voter")
            await trial.world.sleep_ms(2_000)
            assert b"by one voter" not in third.values

        trial.play(test)


async def restored(trial: Trial, number: int, *, former: UUID | None) -> None:
    """The vote of a node that lost its log and runs again goes to its new directory, as an operator does it."""
    await trial.until(lambda: trial.nodes[number].quorum is not None)
    observer = key_of(trial.nodes[number])
    for change in (
        lambda quorum: quorum.remove_voter(NodeId(number), former),
        lambda quorum: quorum.add_voter(NodeId(number), observer.directory_id),
    ):
        await ask_the_leader(trial, change)
    await trial.until(lambda: role(trial.nodes[number]) is not RoleKind.OBSERVER)


async def ask_the_leader(trial: Trial, change: Callable[[Quorum], Awaitable[None]]) -> None:
    """Until it is done: a leader may have been elected just now, or the observer lag."""
    for _ in range(100):
        leader = await trial.elect()
        process = trial.world.process(f"n{leader.number}")
        assert process is not None
        assert leader.quorum is not None
        quorum = leader.quorum

        async def inside(quorum: Quorum = quorum) -> None:
            await change(quorum)

        task = process.context.copy().run(lambda inside=inside: trial.world.loop.create_task(inside()))  # type: ignore[misc]
        try:
            await task
            return
        except KafkaError as error:
            last = error
        await trial.world.sleep_ms(200)
    raise AssertionError(f"it was never done: {last}")


def key_of(node: Node) -> ReplicaKey:
    assert node.quorum is not None
    return node.quorum.key


@pytest.mark.parametrize("recorded", [True, False])
def test_49_the_vote_comes_back_by_a_voter_change(recorded: bool) -> None:
    """Rules A14, A11: removed and added, the new directory votes: with it alone the others commit, and it may lead."""
    trial = Trial(recorded=recorded)

    async def test(trial: Trial) -> None:
        leader, holder, lacking = await committed_without(trial, b"committed")
        number = holder.number
        lose(trial, holder)
        trial.world.heal()
        trial.start(number)
        former = UUID(int=number)
        await restored(trial, number, former=former)
        restarted = trial.nodes[number]
        assert key_of(restarted).directory_id not in (former, None)
        trial.kill(lacking.number)
        await trial.commit(b"with its vote")
        # It kept its vote over a restart, and is elected where it is the only one that has everything.
        trial.kill(number)
        trial.start(number)
        await trial.commit(b"once more")
        await trial.until(lambda: b"once more" in trial.nodes[number].values)
        trial.kill(leader.number)
        trial.start(lacking.number)
        third = await trial.elect()
        await trial.until(lambda: (trial.leading() or third).number == number)
        await trial.commit(b"led by it")
        assert trial.nodes[number].values == [b"first", b"committed", b"with its vote", b"once more", b"led by it"]

    trial.play(test)


def test_49_a_vote_is_not_taken_from_who_has_its_log() -> None:
    """Rule A11: a voter that fetches is not removed, the leader is not, nor the last one that a majority needs; a
    replica that lags, or does not fetch, is not added; only configured controllers are."""
    trial = Trial()

    async def refusal(change: Callable[[Quorum], Awaitable[None]]) -> str:
        leader = await trial.elect()
        process = trial.world.process(f"n{leader.number}")
        assert process is not None
        assert leader.quorum is not None
        quorum = leader.quorum

        async def inside() -> None:
            await change(quorum)

        with pytest.raises(KafkaError) as refused:
            await process.context.copy().run(lambda: trial.world.loop.create_task(inside()))
        return str(refused.value)

    async def test(trial: Trial) -> None:
        trial.start()
        leader = await trial.commit(b"a")
        first, second = (node.number for node in trial.nodes.values() if node is not leader)
        await trial.world.sleep_ms(5_000)

        def removing(number: int, directory: int | None = None) -> Callable[[Quorum], Awaitable[None]]:
            return lambda quorum: quorum.remove_voter(NodeId(number), UUID(int=directory or number))

        def adding(number: int, directory: int) -> Callable[[Quorum], Awaitable[None]]:
            return lambda quorum: quorum.add_voter(NodeId(number), UUID(int=directory))

        assert "its log is not lost" in await refusal(removing(first))
        assert "it has lost nothing" in await refusal(removing(leader.number))
        assert "votes with directory" in await refusal(removing(first, 99))
        assert "is no controller of this cluster" in await refusal(removing(9))
        assert "remove that voter first" in await refusal(adding(first, 99))
        assert "Only the configured controllers vote: 1, 2, 3, not 9" in await refusal(adding(9, 9))
        trial.kill(first)
        await trial.world.sleep_ms(4_000)
        await ask_the_leader(trial, removing(first))
        await ask_the_leader(trial, removing(first))  # again: it is done
        assert "does not fetch. Start it" in await refusal(adding(first, 99))
        assert "Restore the vote of another node first" in await refusal(removing(second))

    trial.play(test)


def test_49_a_vote_outlives_the_log_in_a_snapshot() -> None:
    """Rule A11: the records that gave the vote are deleted with the log below a snapshot; it says who voted. So knows
    who fetches that snapshot, and who restarts on it."""
    trial = Trial(config=QuorumConfig(snapshot_max_new_record_bytes=1_000, log_segment_bytes=1_024))

    async def test(trial: Trial) -> None:
        _, holder, lacking = await committed_without(trial, b"committed")
        number = holder.number
        lose(trial, holder)
        trial.world.heal()
        trial.start(number)
        await restored(trial, number, former=UUID(int=number))
        named = key_of(trial.nodes[number])
        trial.kill(lacking.number)
        for count in range(60):
            await trial.commit(b"value %d" % count + b"x" * 100)
        leader = await trial.elect()
        assert leader.quorum is not None
        assert leader.quorum._driver is not None
        await trial.until(lambda: leader.quorum._driver.core.log.start.offset > 20)  # type: ignore[union-attr]
        trial.start(lacking.number)
        behind = trial.nodes[lacking.number]
        await trial.until(lambda: behind.values == leader.values)
        assert behind.quorum is not None
        assert behind.quorum.voters.recorded(NodeId(number)) == named
        trial.kill(number)
        trial.start(number)
        await trial.until(lambda: trial.nodes[number].values == leader.values)
        assert role(trial.nodes[number]) is not RoleKind.OBSERVER

    trial.play(test)
