"""Network faults: cut links, delay, loss, calls that arrive late or twice, broken connections.

A fault ends after a random time, or when everything is healed. Nodes and links are chosen at random.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.chaos.nemesis.nemesis import Nemesis


_TURNS = 5
_TURN_MIN_MS, _TURN_MAX_MS = 7_000, 9_000
"""Number and length of the turns of `seesaw`. In each turn a session of 3 s must expire, clients must find the new
leader, and records must be written."""


def partition(nemesis: Nemesis) -> None:
    """Block the links between two machines in both directions."""
    first, second = nemesis.pair()
    nemesis.world.partition(first, second)
    duration_ms = nemesis.later(lambda: _mend(nemesis, first, second))
    nemesis.note(f"partition {first} <-> {second} for {duration_ms} ms")


def partition_one_way(nemesis: Nemesis) -> None:
    """Block the link from one machine to another, but not the way back."""
    first, second = nemesis.pair()
    nemesis.world.partition(first, second, one_way=True)
    duration_ms = nemesis.later(lambda: _mend(nemesis, first, second))
    nemesis.note(f"partition {first} -> {second} for {duration_ms} ms")


def _mend(nemesis: Nemesis, first: str, second: str) -> None:
    nemesis.world.network.heal(first, second)
    nemesis.world.network.heal(second, first)


def isolate(nemesis: Nemesis) -> None:
    """Block all links of one machine, in both directions."""
    name = nemesis.pick()
    nemesis.world.isolate(name)
    nemesis.note(f"isolate {name} for {nemesis.later(lambda: _reconnect(nemesis, name))} ms")


def cut_off(nemesis: Nemesis) -> None:
    """Block the links between one node and all others: clients reach it as before, and it knows nothing of what the
    others have agreed on since."""
    name = nemesis.pick()
    others = [other for other in nemesis.names if other != name]
    for other in others:
        nemesis.world.partition(name, other)

    def undo() -> None:
        for other in others:
            _mend(nemesis, name, other)

    nemesis.note(f"cut {name} off from the other nodes for {nemesis.later(undo)} ms")


def seesaw(nemesis: Nemesis) -> None:
    """Let two brokers that cannot reach each other lead in turn, while a third one is isolated (schedule 2).

    In each turn one of the two is isolated as well, so that the other one leads, and each gets records of its own in
    every other epoch. Then all links are healed. Needs controllers on other machines than the brokers: otherwise the
    quorum would lose its majority, and no leader could be elected.
    """
    third, first, second = nemesis.rng.sample(list(nemesis.names)[-3:], 3)
    turn_ms = nemesis.rng.randint(_TURN_MIN_MS, _TURN_MAX_MS)
    nemesis.world.partition(first, second)
    nemesis.world.isolate(third)
    nemesis.note(f"seesaw: {third} is isolated, {first} and {second} do not hear each other, {turn_ms} ms each")
    _tilt(nemesis, first, second, turn_ms, _TURNS)


def _tilt(nemesis: Nemesis, gone: str, there: str, turn_ms: int, left: int) -> None:
    if not left:
        for name in list(nemesis.names)[-3:]:
            _reconnect(nemesis, name)
        nemesis.note("seesaw: all meet again")
        return
    third = set(list(nemesis.names)[-3:]) - {gone, there}
    for other in nemesis.world.machines:
        if other not in third | {gone, there}:
            _mend(nemesis, there, other)
    nemesis.world.isolate(gone)
    nemesis.note(f"seesaw: {gone} is isolated, {there} is not")
    nemesis.after(turn_ms, lambda: _tilt(nemesis, there, gone, turn_ms, left - 1))


def _reconnect(nemesis: Nemesis, name: str) -> None:
    for other in nemesis.world.machines:
        if other != name:
            _mend(nemesis, name, other)


def swizzle(nemesis: Nemesis) -> None:
    """Cut off machines one after the other, and reconnect them in another order (FoundationDB's swizzle-clogging). Each
    machine loses its incoming links, its outgoing links, or both."""
    rng, world = nemesis.rng, nemesis.world
    names = rng.sample(list(world.machines), rng.randint(2, len(world.machines)))
    back = rng.sample(names, len(names))
    how = rng.choice(("deaf", "dumb", "deaf and dumb"))
    step_ms = nemesis.duration_ms() / len(names)

    def clog(name: str) -> None:
        for other in world.machines:
            if other != name and how != "dumb":
                world.partition(other, name, one_way=True)
            if other != name and how != "deaf":
                world.partition(name, other, one_way=True)

    for place, name in enumerate(names):
        nemesis.after(place * step_ms, lambda name=name: clog(name))  # type: ignore[misc]
    for place, name in enumerate(back, start=len(names)):
        nemesis.after(place * step_ms, lambda name=name: _reconnect(nemesis, name))  # type: ignore[misc]
    nemesis.note(f"swizzle: {' '.join(names)} get {how}, and whole as {' '.join(back)}, every {step_ms:.0f} ms")


def delay(nemesis: Nemesis) -> None:
    """Add latency to one link."""
    first, second = nemesis.pair()
    link = nemesis.world.network.link(first, second)
    link.extra_latency_us = nemesis.rng.choice((2_000, 20_000, 200_000, 800_000))

    def undo() -> None:
        link.extra_latency_us = 0

    nemesis.note(f"delay {first} -> {second} by {link.extra_latency_us} us for {nemesis.later(undo)} ms")


def loss(nemesis: Nemesis) -> None:
    """Let one link lose packets, which are sent again later."""
    first, second = nemesis.pair()
    link = nemesis.world.network.link(first, second)
    link.loss_probability = nemesis.rng.choice((0.02, 0.2, 0.5))

    def undo() -> None:
        link.loss_probability = 0.0

    nemesis.note(f"lose {link.loss_probability} of {first} -> {second} for {nemesis.later(undo)} ms")


def late_calls(nemesis: Nemesis) -> None:
    """Delay some calls from one node to another: they overtake each other, or arrive after the caller gave up."""
    _some_calls(nemesis, "late_probability", "are late")


def repeated_calls(nemesis: Nemesis) -> None:
    """Repeat some calls from one node to another; the second copy may arrive much later."""
    _some_calls(nemesis, "repeat_probability", "come twice")


def _some_calls(nemesis: Nemesis, setting: str, what: str) -> None:
    first, second = nemesis.rng.sample(list(nemesis.names), 2)
    link = nemesis.world.network.link(first, second)
    probability = nemesis.rng.choice((0.1, 0.5))
    setattr(link, setting, probability)
    lasts_ms = nemesis.later(lambda: setattr(link, setting, 0.0))
    nemesis.note(f"{probability} of the calls {first} -> {second} {what} for {lasts_ms} ms")


def stall_connection(nemesis: Nemesis) -> None:
    """Delay everything sent over one connection of a client (or of a node, if there are no clients). New connections
    are not delayed, so that a request may arrive long after its sender repeated it elsewhere and continued."""
    network, names = nemesis.world.network, nemesis.names
    quick = [one for one in network.sockets if one.remote[0] in names and not one.stalled]
    there = [one for one in quick if one.local[0] not in names] or quick
    if there:
        one, duration_ms = nemesis.rng.choice(there), nemesis.duration_ms()
        network.stall(one, duration_ms * 1000)
        nemesis.note(f"a connection {one.local[0]} -> {one.remote[0]} stalls for {duration_ms} ms")


def break_connections(nemesis: Nemesis) -> None:
    """Reset every connection between two machines."""
    first, second = nemesis.pair()
    broken = nemesis.world.network.break_connections(first, second)
    broken += nemesis.world.network.break_connections(second, first)
    nemesis.note(f"break {broken // 2} connections of {first} and {second}")
