"""Faults of processes and machines: stops, kills, loss of power, pauses, wrong clocks.

A node that is stopped or killed starts again after a random time, unless its function says otherwise. A polite stop is
a controlled shutdown, as by SIGTERM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.chaos.nemesis.nemesis import Nemesis


def stop(nemesis: Nemesis) -> None:
    """Stop one node politely."""
    _stop(nemesis, nemesis.pick())


def stop_all(nemesis: Nemesis) -> None:
    """Stop all nodes politely, in random order."""
    for name in nemesis.rng.sample(list(nemesis.names), len(nemesis.names)):
        _stop(nemesis, name)


def _stop(nemesis: Nemesis, name: str) -> None:
    if nemesis.stop is not None and nemesis.world.process(name) is not None:
        nemesis.stop(name)
        duration_ms = nemesis.later(lambda: _replace(nemesis, name))
        nemesis.note(f"stop {name}; start it again {duration_ms} ms later")


def _replace(nemesis: Nemesis, name: str) -> None:
    """Kill a node that has not finished its polite stop, as a supervisor does, and start it again."""
    nemesis.world.kill(name)
    nemesis.restart(name)


def rolling_restart(nemesis: Nemesis) -> None:
    """Restart one node after the other, all by polite stops or all by kills."""
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
    """Kill one node (SIGKILL)."""
    nemesis.down(nemesis.pick(), "kill", nemesis.world.kill)


def kill_leader(nemesis: Nemesis) -> None:
    """Kill the active controller or a partition's leader (SIGKILL)."""
    name = nemesis.leader()
    if name is not None:
        nemesis.down(name, "kill the leader", nemesis.world.kill)


def kill_controller(nemesis: Nemesis) -> None:
    """Kill the active controller (SIGKILL)."""
    name = nemesis.controller()
    if name is not None:
        nemesis.down(name, "kill the controller", nemesis.world.kill)


def kill_all(nemesis: Nemesis) -> None:
    """Kill all nodes at once (SIGKILL); each starts again after its own random time."""
    for name in nemesis.names:
        nemesis.down(name, "kill of all:", nemesis.world.kill)


def power_cut(nemesis: Nemesis) -> None:
    """Cut the power of one machine: unsynced writes on its disk may be lost."""
    nemesis.down(nemesis.pick(), "power cut", nemesis.world.power_cut)


def power_cut_all(nemesis: Nemesis) -> None:
    """Cut the power of all machines at once: unsynced writes on their disks may be lost."""
    for name in nemesis.names:
        nemesis.down(name, "power cut of all:", nemesis.world.power_cut)


def one_stays_dead(nemesis: Nemesis) -> None:
    """Cut the power of all machines or kill all nodes, and keep one node down until all faults are healed."""
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
    """Kill one node right before one of its disk operations."""
    _strike(nemesis, "kill", nemesis.world.kill)


def power_cut_in_callback(nemesis: Nemesis) -> None:
    """Cut the power of one machine right before one of its disk operations."""
    _strike(nemesis, "power cut", nemesis.world.power_cut)


def power_cut_all_in_callback(nemesis: Nemesis) -> None:
    """Cut the power of all machines right before a disk operation of one of them."""
    name = nemesis.pick()
    operations = nemesis.rng.randint(1, 60)

    def now() -> None:
        for each in nemesis.names:
            nemesis.down(each, "power cut of all in mid-callback:", nemesis.world.power_cut)

    nemesis.disk(name).strike_after(operations, now)
    nemesis.note(f"power cut of all at the {operations}th disk operation of {name} from now")


def pause(nemesis: Nemesis) -> None:
    """Pause one node (SIGSTOP), and let it continue later (SIGCONT)."""
    name = nemesis.pick()
    process = nemesis.world.process(name)
    if process is not None:
        process.pause()
        nemesis.world.loop.effects["paused"] += 1
        nemesis.note(f"pause {name} for {nemesis.later(process.resume)} ms")


DAYS_MS = tuple(days * 86_400_000 for days in (-400, -8, 8, 8, 8, 400, 30_000))
"""Milliseconds by which a clock is set wrong: longer than every retention time, of the tests and by default. The last
one stands for a date with a mistyped digit."""


def wall_days(nemesis: Nemesis) -> None:
    """Set the wall clock of one machine ahead or back by days, and correct it later (schedule 100)."""
    name, by_ms = nemesis.pick(), nemesis.rng.choice(DAYS_MS)
    clock = nemesis.world.machines[name].clock
    clock.jump_wall(by_ms)
    nemesis.world.loop.effects["wall-clock-jumped-days"] += 1
    nemesis.note(f"wall clock of {name} jumps by {by_ms} ms for {nemesis.later(lambda: clock.jump_wall(-by_ms))} ms")


def wall_jump(nemesis: Nemesis) -> None:
    """Set the wall clock of one machine wrong, slightly or by an hour; it is not corrected."""
    name = nemesis.pick()
    by_ms = nemesis.rng.choice((-3_600_000, -500, 500, 3_600_000))
    nemesis.world.machines[name].clock.jump_wall(by_ms)
    nemesis.world.loop.effects["wall-clock-jumped"] += 1
    nemesis.note(f"wall clock of {name} jumps by {by_ms} ms")
