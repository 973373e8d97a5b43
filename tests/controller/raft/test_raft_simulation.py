"""Random schedules over the pure core; every run is a function of its seed."""

from __future__ import annotations

import random

import pytest
from raft_invariants import CheckedWorld
from raft_node import SimNode, directory

from strandline.controller.raft.messages import ReplicaKey
from strandline.proto.errors import KafkaError

SEEDS = range(40)
COMERS = (0, 8, 12, 14, 20, 21, 37, 39)
"""Seeds whose voters come and go in ways that stopped an earlier quorum for good."""
LOSSES = range(15)
"""Longer runs, with losses of data that each must be healed before the next."""


def chaos(world: CheckedWorld, rng: random.Random, duration_ms: float) -> int:
    """Appends, crashes, cuts, losses and snapshots for a while; returns how many values were appended."""
    end = world.now_ms + duration_ms
    appended = 0
    while world.now_ms < end:
        world.run(rng.uniform(5, 120))
        for leader in world.leaders():
            for _ in range(rng.randrange(4)):
                appended += leader.append(f"v{appended}") is not None
        dice = rng.random()
        nodes = list(world.nodes.values())
        up = [node for node in nodes if node.up]
        if dice < 0.10 and up:
            world.crash(rng.choice(up).id, silent=rng.random() < 0.3)
        elif dice < 0.14 and up:
            for node in up:  # the power goes out everywhere
                world.crash(node.id)
        elif dice < 0.18:
            world.isolate(rng.choice(nodes).id)
        elif dice < 0.24 and len(nodes) > 1:
            a, b = rng.sample(nodes, 2)
            world.cut(a.id, b.id, one_way=rng.random() < 0.5)
        elif dice < 0.32:
            world.heal()
        elif dice < 0.36 and up:
            rng.choice(up).take_snapshot()
        elif dice < 0.38:
            for leader in world.leaders():
                assert leader.core is not None
                leader.core.resign(world.now_ms)
                leader.pump()
        for node in nodes:
            if not node.up and rng.random() < 0.3:
                node.start()
    return appended


@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_hold_and_the_quorum_recovers(seed: int) -> None:
    """Kafka's RaftEventSimulationTest: safety throughout, then liveness once a majority is healed."""
    rng = random.Random(seed)
    size = rng.choice([1, 3, 3, 3, 5])
    observers = [101, 102][: rng.randrange(3)]
    world = CheckedWorld(range(1, size + 1), seed=seed, observers=observers)
    world.latency_ms = (0.5, rng.choice([2.0, 20.0, 80.0]))
    world.flush_range_ms = (0.5, rng.choice([3.0, 30.0]))
    world.loss = rng.choice([0.0, 0.02, 0.1])
    world.duplication = rng.choice([0.0, 0.05])
    for node in world.nodes.values():
        node.start()
    appended = chaos(world, rng, 12_000)

    world.heal()
    world.loss = world.duplication = 0.0
    for node in world.nodes.values():
        if not node.up:
            node.start()
    assert world.run(15_000, until=lambda: world.established() is not None), "no leader 15 s after healing"
    leader = world.established()
    assert leader is not None
    assert leader.append("last") is not None
    everyone = world.nodes.values()
    done = world.run(10_000, until=lambda: all(node.applied and node.applied[-1][2] == "last" for node in everyone))
    assert done, "the last value is not everywhere 10 s after healing"
    for node in everyone:
        world.assert_all_applied(node)
    assert appended == 0 or world.committed_to > 0


def restore(world: CheckedWorld, node: SimNode) -> None:
    """One step of an operator who gives a node that lost its log its vote back, if the quorum lets it."""
    for leader in world.leaders():
        core = leader.core
        assert core is not None
        recorded = core.voters.recorded(node.id)
        try:
            if recorded is None:
                core.add_voter(node.id, directory(node.directory), world.now_ms)
            elif not recorded.counts(node.key, voteless=True):
                core.remove_voter(node.id, recorded.directory_id, world.now_ms)
        except KafkaError:
            continue
        leader.pump()


def votes(world: CheckedWorld, node: SimNode) -> bool:
    """A majority of the nodes have it that this directory votes, and committed so."""
    cores = [other.core for other in world.nodes.values() if other.core is not None]
    named = [core for core in cores if core.voters.recorded(node.id) == node.key]
    return len([core for core in named if core.high_watermark > core.node.voters_offset]) > len(world.nodes) // 2


@pytest.mark.parametrize("seed", LOSSES)
@pytest.mark.parametrize("recorded", [True, False])
def test_invariants_hold_over_lost_logs_and_voter_changes(seed: int, recorded: bool) -> None:
    """Rules A11, A14: again and again one voter loses its log under everything else that happens, and gets its vote
    back by voter changes, at any instant; never two at once, so that a majority keeps what was committed."""
    rng = random.Random(seed)
    world = CheckedWorld(range(1, rng.choice([3, 3, 5]) + 1), seed=seed, recorded_directories=recorded)
    world.latency_ms = (0.5, rng.choice([2.0, 20.0]))
    world.loss = rng.choice([0.0, 0.02])
    world.duplication = rng.choice([0.0, 0.1])
    nodes = list(world.nodes.values())
    for node in nodes:
        node.start()
    losses = 0
    lost: SimNode | None = None
    for _ in range(40):
        chaos(world, rng, rng.uniform(100, 1_500))
        if lost is not None:
            if rng.random() < 0.5:
                world.heal()
            for _ in range(rng.randrange(8)):
                restore(world, lost)
                world.run(rng.uniform(10, 1_000))
            if votes(world, lost):
                lost = None
        elif rng.random() < 0.5 and world.committed_to:
            lost = rng.choice(nodes)
            if lost.up:
                world.crash(lost.id)
            losses += 1
            lost.wipe(1_000 + losses, voteless=True)

    world.heal()
    world.loss = world.duplication = 0.0
    for node in nodes:
        if not node.up:
            node.start()
    for _ in range(200):
        if lost is None or votes(world, lost):
            break
        restore(world, lost)
        world.run(200)
    assert lost is None or votes(world, lost), "the vote never came back"
    assert world.run(15_000, until=lambda: world.established() is not None), "no leader 15 s after healing"
    leader = world.established()
    assert leader is not None
    assert leader.append("last") is not None
    assert world.run(40_000, until=lambda: all(node.applied and node.applied[-1][2] == "last" for node in nodes))
    for node in nodes:
        world.assert_all_applied(node)
    assert losses, "nothing was lost"


@pytest.mark.parametrize("seed", LOSSES)
def test_invariants_hold_over_tails_that_are_cut(seed: int) -> None:
    """Rule A15: one voter at a time loses durable batches off the end of its log, others cut tails that nobody had
    counted on, and all of them know only that they cut. Nothing committed is lost while one that held it has it
    still."""
    rng = random.Random(seed)
    world = CheckedWorld(range(1, rng.choice([3, 3, 5]) + 1), seed=seed)
    world.latency_ms = (0.5, rng.choice([2.0, 20.0, 80.0]))
    world.loss = rng.choice([0.0, 0.02])
    world.duplication = rng.choice([0.0, 0.1])
    nodes = list(world.nodes.values())
    for node in nodes:
        node.start()
    cuts = 0
    damaged: SimNode | None = None
    for _ in range(60):
        chaos(world, rng, rng.uniform(50, 800))
        if damaged is not None and damaged.core is not None and damaged.core.node.doubt is None:
            damaged = None
        victim = rng.choice(nodes)
        if rng.random() < 0.5:
            if victim.up:
                world.crash(victim.id)
            if damaged in (None, victim):
                damaged = victim
                victim.cut_tail(rng.randrange(1, 6))
                cuts += 1
            else:
                victim.cut_tail(0)
        if rng.random() < 0.3:
            world.heal()

    world.heal()
    world.loss = world.duplication = 0.0
    for node in nodes:
        if not node.up:
            node.start()
    assert world.run(30_000, until=lambda: world.established() is not None), "all are up, and elect nobody"
    leader = world.established()
    assert leader is not None
    assert leader.append("last") is not None
    assert world.run(40_000, until=lambda: all(node.applied and node.applied[-1][2] == "last" for node in nodes))
    assert world.run(1_000, until=lambda: not any(node.in_doubt for node in nodes)), "the doubt never ends"
    for node in nodes:
        world.assert_all_applied(node)
    assert cuts, "nothing was cut"


def change_voters(world: CheckedWorld, rng: random.Random) -> bool:
    """Add or remove some controller at every node that believes that it leads; whether it was taken."""
    taken = False
    node = rng.choice(list(world.nodes.values()))
    for leader in world.leaders():
        core = leader.core
        assert core is not None
        recorded = core.voters.recorded(node.id)
        try:
            if recorded is not None and recorded.directory_id is not None:
                taken |= core.remove_voter(node.id, recorded.directory_id, world.now_ms) is not None
            else:
                taken |= core.add_voter(node.id, directory(node.directory), world.now_ms) is not None
        except KafkaError:
            continue
        leader.pump()
    return taken


def may_be_lost(world: CheckedWorld, node: SimNode) -> bool:
    """Every voter set on any disk has two others beside this node: what it held, one of them holds."""
    sets = [said for other in world.nodes.values() for _, said in other.durable.voters()]
    sets += [other.core.node.said for other in world.nodes.values() if other.core is not None]
    return all(len(said.voters) >= 3 or node.key not in said.voters for said in sets)


def replaced(world: CheckedWorld, key: ReplicaKey) -> bool:
    """The committed voter set is without a directory that was lost, and no set with it is left on any disk."""
    sets = [list(other.durable.voters())[-1:] for other in world.nodes.values()]
    cores = [other.core for other in world.nodes.values() if other.core is not None]
    named = any(key in said.voters for found in sets for _, said in found)
    return not named and not any(key in core.voters.keys for core in cores)


def all_have(nodes: list[SimNode], value: str) -> bool:
    return all(node.applied and node.applied[-1][2] == value for node in nodes)


@pytest.mark.parametrize("seed", COMERS)
def test_invariants_hold_over_voters_that_come_and_go(seed: int) -> None:
    """Rules A11, A36 (KIP-853): any of five controllers is added or removed at any instant, leaders too, while nodes
    die, are cut off and lose their disks, one at a time. No two leaders an epoch, nothing committed is lost, and once
    all are up again the quorum works."""
    rng = random.Random(seed)
    first = rng.choice([1, 1, 3])
    world = CheckedWorld(
        range(1, first + 1),
        seed=seed,
        observers=range(first + 1, 6),
        controllers=range(1, 6),
        kraft_version=1,
    )
    world.latency_ms = (0.5, rng.choice([2.0, 20.0]))
    world.loss = rng.choice([0.0, 0.02])
    world.duplication = rng.choice([0.0, 0.1])
    nodes = list(world.nodes.values())
    for node in nodes:
        node.start()
    changes = losses = 0
    lost: ReplicaKey | None = None
    for _ in range(50):
        chaos(world, rng, rng.uniform(50, 800))
        if rng.random() < 0.5:
            world.heal()
            for _ in range(rng.randrange(6)):
                changes += change_voters(world, rng)
                world.run(rng.uniform(1, 300))
        if lost is not None and replaced(world, lost):
            lost = None
        victim = rng.choice(nodes)
        if lost is None and rng.random() < 0.2 and may_be_lost(world, victim):
            if victim.up:
                world.crash(victim.id)
            lost = victim.key
            losses += 1
            victim.wipe(1_000 + losses, voteless=True)

    world.heal()
    world.loss = world.duplication = 0.0
    for node in nodes:
        if not node.up:
            node.start()
    for attempt in range(20):  # a leader that was removed a moment ago leads no longer than that is committed
        world.run(20_000, until=lambda: world.established() is not None)
        leader = world.established()
        if (
            leader is not None
            and leader.append(f"last {attempt}") is not None
            and world.run(5_000, until=lambda: all_have(nodes, f"last {attempt}"))  # noqa: B023
        ):
            break
    else:
        pytest.fail("no progress after healing")
    for node in nodes:
        world.assert_all_applied(node)
    assert changes, "nothing was changed"
