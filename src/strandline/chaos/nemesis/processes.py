"""Faults of processes and machines: stops, kills, loss of power, pauses, wrong clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.chaos.nemesis.nemesis import Nemesis


def stop(nemesis: Nemesis) -> None:
    """A polite stop."""
    _stop(nemesis, nemesis.pick())


def stop_all(nemesis: Nemesis) -> None:
    """A polite stop of all nodes, in some order."""
    for name in nemesis.rng.sample(list(nemesis.names), len(nemesis.names)):
        _stop(nemesis, name)


def _stop(nemesis: Nemesis, name: str) -> None:
    if nemesis.stop is not None and nemesis.world.process(name) is not None:
        nemesis.stop(name)
        duration_ms = nemesis.later(lambda: _replace(nemesis, name))
        nemesis.note(f"stop {name}; start it again {duration_ms} ms later")


def _replace(nemesis: Nemesis, name: str) -> None:
    """A stop that has not ended by now is cut short, as a supervisor does."""
    nemesis.world.kill(name)
    nemesis.restart(name)


def rolling_restart(nemesis: Nemesis) -> None:
    """One node after the other, each stopped politely, or all of them killed."""
    politely = nemesis.rng.random() < 0.7 and nemesis.stop is not None
    nemesis.note(f"rolling restart, {'polite' if politely else 'by kill'}")
    order = nemesis.rng.sample(list(nemesis.names), len(nemesis.names))
    _roll(nemesis, order, nemesis.duration_ms(), politely)


def _roll(nemesis: Nemesis, names: list[str], pause_ms: int, politely: bool) -> None:
    name, *others = names
    if nemesis.world.process(name) is not None:
        if politely and nemesis.stop is not None:
            nemesis.stop(name)
        else:
            nemesis.world.kill(name)

    def next_one() -> None:
        _replace(nemesis, name)
        if others:
            nemesis.after(pause_ms, lambda: _roll(nemesis, others, pause_ms, politely))

    nemesis.note(f"restart {name} in {nemesis.later(next_one)} ms")


def kill(nemesis: Nemesis) -> None:
    """kill -9."""
    nemesis.down(nemesis.pick(), "kill", nemesis.world.kill)


def kill_leader(nemesis: Nemesis) -> None:
    """kill -9 of the active controller or of some partition's leader."""
    name = nemesis.leader()
    if name is not None:
        nemesis.down(name, "kill the leader", nemesis.world.kill)


def kill_controller(nemesis: Nemesis) -> None:
    """kill -9 of the active controller."""
    name = nemesis.controller()
    if name is not None:
        nemesis.down(name, "kill the controller", nemesis.world.kill)


def kill_all(nemesis: Nemesis) -> None:
    """kill -9 of all nodes at once; each comes back when it likes."""
    for name in nemesis.names:
        nemesis.down(name, "kill of all:", nemesis.world.kill)


def power_cut(nemesis: Nemesis) -> None:
    """One machine loses power."""
    nemesis.down(nemesis.pick(), "power cut", nemesis.world.power_cut)


def power_cut_all(nemesis: Nemesis) -> None:
    """All of them do."""
    for name in nemesis.names:
        nemesis.down(name, "power cut of all:", nemesis.world.power_cut)


def one_stays_dead(nemesis: Nemesis) -> None:
    """All machines lose power, or all nodes are killed, and one does not come back before everything is healed."""
    if nemesis.dead:
        return
    gone = nemesis.pick()
    strike = nemesis.rng.choice((nemesis.world.power_cut, nemesis.world.kill))
    nemesis.dead[gone] = None
    strike(gone)
    nemesis.note(f"{strike.__name__.replace('_', ' ')} of all; {gone} stays dead")
    for name in nemesis.names:
        nemesis.down(name, f"{strike.__name__.replace('_', ' ')} of all:", strike)


def _strike(nemesis: Nemesis, how: str, strike: Callable[[str], Any]) -> None:
    name = nemesis.pick()
    operations = nemesis.rng.randint(1, 60)

    def now() -> None:
        nemesis.down(name, f"{how} in mid-callback", strike)

    nemesis.disk(name).strike_after(operations, now)
    nemesis.note(f"{how} {name} at its {operations}th disk operation from now")


def kill_in_callback(nemesis: Nemesis) -> None:
    """kill -9 right before some call of the disk."""
    _strike(nemesis, "kill", nemesis.world.kill)


def power_cut_in_callback(nemesis: Nemesis) -> None:
    """The power fails right before some call of the disk."""
    _strike(nemesis, "power cut", nemesis.world.power_cut)


def power_cut_all_in_callback(nemesis: Nemesis) -> None:
    """All machines lose power when one of them calls its disk: in the middle of what they are doing."""
    name = nemesis.pick()
    operations = nemesis.rng.randint(1, 60)

    def now() -> None:
        for each in nemesis.names:
            nemesis.down(each, "power cut of all in mid-callback:", nemesis.world.power_cut)

    nemesis.disk(name).strike_after(operations, now)
    nemesis.note(f"power cut of all at the {operations}th disk operation of {name} from now")


def pause(nemesis: Nemesis) -> None:
    """SIGSTOP, then SIGCONT."""
    name = nemesis.pick()
    process = nemesis.world.process(name)
    if process is not None:
        process.pause()
        nemesis.world.loop.effects["paused"] += 1
        nemesis.note(f"pause {name} for {nemesis.later(process.resume)} ms")


DAYS_MS = tuple(days * 86_400_000 for days in (-400, -8, 8, 8, 8, 400, 30_000))
"""Milliseconds by which a clock is set: beyond what anything is kept for, here and by default; the last is a date
with a wrong digit."""


def wall_days(nemesis: Nemesis) -> None:
    """The wall clock is set ahead or back by days, and put right later (schedule 100)."""
    name, by_ms = nemesis.pick(), nemesis.rng.choice(DAYS_MS)
    clock = nemesis.world.machines[name].clock
    clock.jump_wall(by_ms)
    nemesis.world.loop.effects["wall-clock-jumped-days"] += 1
    nemesis.note(f"wall clock of {name} jumps by {by_ms} ms for {nemesis.later(lambda: clock.jump_wall(-by_ms))} ms")


def wall_jump(nemesis: Nemesis) -> None:
    """The wall clock is set, by a little or by an hour; it stays so."""
    name = nemesis.pick()
    by_ms = nemesis.rng.choice((-3_600_000, -500, 500, 3_600_000))
    nemesis.world.machines[name].clock.jump_wall(by_ms)
    nemesis.world.loop.effects["wall-clock-jumped"] += 1
    nemesis.note(f"wall clock of {name} jumps by {by_ms} ms")
