"""Liveness with a minority that stays broken (rule E4): a majority is healed, and must go on without the rest."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from strandline.chaos.nemesis.nemesis import Nemesis
from strandline.chaos.sim.world import World

_SLOW = 100.0

_ALL_DIED = "dead after a power cut of all"

_ALONE = ("dead", "isolated", "deaf", "dumb", "deaf to the nodes", "dumb to the nodes", "paused", "slow disk")
LASTING = (*_ALONE, _ALL_DIED)
"""States in which a machine can be for as long as the others are to do without it."""


def cripple(
    nemesis: Nemesis, names: Sequence[str], rng: random.Random, *, acks_synced: bool = True
) -> Callable[[], None]:
    """Break one of `names` for good; what is returned mends it. Clients may reach it or not, like the other nodes. All
    lose their power only where acks are synced: else who led last is waited for (KIP-966)."""
    world = nemesis.world
    name, how = rng.choice(list(names)), rng.choice(LASTING if acks_synced else _ALONE)
    nemesis.note(f"{name} is {how} from now on; the others must go on")
    if how in ("dead", _ALL_DIED):
        nemesis.dead[name] = None
    if how == _ALL_DIED:
        for each in nemesis.names:
            world.power_cut(each)
        for each in nemesis.names:
            if each != name:
                nemesis.restart(each)
    undo = _break(world, name, how, nemesis.names if how.endswith("nodes") else list(world.machines))
    slow = how == "slow disk"
    if slow:
        nemesis.excuse(name)  # its syncs may take longer than a node bears

    def mend() -> None:
        nemesis.note(f"{name} is mended")
        undo()
        nemesis.dead.pop(name, None)
        if slow:
            nemesis.blame_after_slow_syncs(name, _SLOW)
        nemesis.restart(name)

    return mend


def _break(world: World, name: str, how: str, others: Sequence[str]) -> Callable[[], None]:
    config = world.machines[name].disk.config
    process = world.process(name)
    if how == "dead":
        world.kill(name)
    elif how == "paused" and process is not None:
        process.pause()
        return process.resume
    elif how == "slow disk":
        config.slow_factor = _SLOW

    def undo() -> None:
        config.slow_factor = 1.0
        world.heal()

    if how.startswith(("isolated", "deaf", "dumb")):
        for other in others:
            if other != name and not how.startswith("dumb"):
                world.partition(other, name, one_way=True)
            if other != name and not how.startswith("deaf"):
                world.partition(name, other, one_way=True)
    return undo
