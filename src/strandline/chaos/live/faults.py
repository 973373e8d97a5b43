"""The faults of a live run: what strikes whom, and what undoes it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from strandline.chaos.live.target import ChaosTarget
from strandline.proto.errors import StrandlineError

SLOW_DISK_MS = (20, 50, 200)


class NotNow(Exception):
    """The fault has no victim at the moment, or would break a promise that nobody made; the message says which."""


@dataclass
class Strike:
    """One fault under way.

    Attributes:
        said: what was done to whom.
        undo: undoes it, in this order; also after the run was cut short.
        down: nodes that this fault killed or stopped.
    """

    said: str
    undo: list[Callable[[], None]] = field(default_factory=list)
    down: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Scene:
    """What a fault may look at and do.

    Attributes:
        whole: whether every replica is in its ISR and every node runs, now.
        wait_whole: returns once it is so; raises TimeoutError.
    """

    target: ChaosTarget
    rng: random.Random
    partitions: list[tuple[str, int]]
    whole: Callable[[], bool]
    wait_whole: Callable[[], None]

    def any_leader(self) -> tuple[int, str]:
        """The leader of some partition, and its name."""
        topic, number = self.rng.choice(self.partitions)
        try:
            return self.target.leader(topic, number), f"the leader of {topic}-{number}"
        except TimeoutError:
            raise NotNow(f"{topic}-{number} has no leader") from None

    def any_node(self) -> int:
        """Some node that runs."""
        running = self.target.running()
        if not running:
            raise NotNow("no node runs")
        return self.rng.choice(running)

    def any_broker(self) -> int:
        """Some broker that runs."""
        running = [node for node in self.target.running() if node in self.target.broker_ids]
        if not running:
            raise NotNow("no broker runs")
        return self.rng.choice(running)


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        sentence: what it does.
        hold_s: how long it lasts, drawn from this range.
    """

    name: str
    sentence: str
    hold_s: tuple[float, float]
    strike: Callable[[Scene], Strike]


def _start(target: ChaosTarget, node: int) -> Callable[[], None]:
    return lambda: target.start_node(node, wait=False)


def _kill(scene: Scene, node: int, who: str) -> Strike:
    scene.target.kill(node)
    return Strike(f"SIGKILL of node {node}, {who}", [_start(scene.target, node)], [node])


def _kill_leader(scene: Scene) -> Strike:
    return _kill(scene, *scene.any_leader())


def _kill_controller(scene: Scene) -> Strike:
    node = scene.target.controller()
    if node is None:
        raise NotNow("no controller is known")
    return _kill(scene, node, "the active controller")


def _kill_any(scene: Scene) -> Strike:
    return _kill(scene, scene.any_node(), "any node")


def _kill_all(scene: Scene) -> Strike:
    nodes = scene.target.running()
    for node in nodes:
        scene.target.kill(node)
    scene.rng.shuffle(nodes)
    return Strike("SIGKILL of every node at once", [_start(scene.target, node) for node in nodes], nodes)


def _pause(scene: Scene) -> Strike:
    node = scene.any_node()
    scene.target.pause(node)
    return Strike(f"SIGSTOP of node {node}", [lambda: scene.target.resume(node)])


def _partition(scene: Scene) -> Strike:
    a, b = scene.rng.sample(scene.target.node_ids, 2)
    one_way = scene.rng.random() < 0.5
    scene.target.partition(a, b, one_way=one_way)
    how = f"nothing comes from node {a} to node {b}" + ("" if one_way else ", nor back")
    return Strike(how, [scene.target.heal])


def _isolate(scene: Scene) -> Strike:
    node = scene.any_node()
    scene.target.isolate(node)
    return Strike(f"node {node} is cut off from all others", [scene.target.heal])


def _rolling_restart(scene: Scene) -> Strike:
    """Strikes from the first undo on: each node in turn, and only while the others are whole."""

    def steps() -> Iterator[Callable[[], None]]:
        for node in scene.target.node_ids:
            yield scene.wait_whole
            yield lambda node=node: scene.target.stop_node(node)  # type: ignore[misc]
            yield _start(scene.target, node)

    return Strike("every node stopped in an orderly way and started again, one after the other", list(steps()))


def _slow_disk(scene: Scene) -> Strike:
    node, delay_ms = scene.any_broker(), scene.rng.choice(SLOW_DISK_MS)
    try:
        scene.target.slow_disk(node, delay_ms)
    except OSError as error:
        raise NotNow(f"node {node} does not answer: {error}") from None
    return Strike(f"syncs of node {node} take {delay_ms} ms longer", [scene.target.heal])


def _disk_full(scene: Scene) -> Strike:
    node = scene.any_node()
    scene.target.fill_disk(node)
    return Strike(f"the disk of node {node} is full", [lambda: scene.target.free_disk(node)])


def _wiped_dir(scene: Scene) -> Strike:
    """A wiped voter has forgotten its votes, a wiped replica what it acknowledged: only the others' being whole keeps
    the promises."""
    target = scene.target
    with suppress(TimeoutError):
        scene.wait_whole()
    if not scene.whole():
        raise NotNow("not every replica is in sync: a disk too many would be lost")
    node = scene.any_node()
    target.kill(node)
    return Strike(
        f"node {node} killed, its directory emptied and formatted anew",
        [lambda: target.wipe(node), _start(target, node)],
        [node],
    )


_ALL = (
    Fault("kill-leader", "SIGKILL of the leader of some partition; started again", (0.5, 6), _kill_leader),
    Fault("kill-controller", "SIGKILL of the active controller; started again", (0.5, 6), _kill_controller),
    Fault("kill", "SIGKILL of any node; started again", (0.2, 6), _kill_any),
    Fault("kill-all", "SIGKILL of every node at once; all started again, in any order", (0.2, 2), _kill_all),
    Fault("pause", "SIGSTOP of any node, shorter or longer than silence is borne; SIGCONT", (0.5, 8), _pause),
    Fault("partition", "the cable between two nodes cut, one way or both", (1, 8), _partition),
    Fault("isolate", "one node cut off from all others; clients still reach it", (1, 8), _isolate),
    Fault("rolling-restart", "every node stopped in an orderly way and started again", (0, 0), _rolling_restart),
    Fault("slow-disk", "every sync of one broker 20 to 200 ms slower", (2, 6), _slow_disk),
    Fault("disk-full", "one node's disk without room, then with room again", (1, 6), _disk_full),
    Fault("wiped-dir", "a node killed, its directory emptied and formatted anew, all others whole", (1, 4), _wiped_dir),
)

FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in _ALL}
"""Every fault, by name."""


def plan(names: list[str], rng: random.Random) -> Iterator[Fault]:
    """Faults without end: rounds in which each kind comes once, each round in another order."""
    while True:
        once = list(names)
        rng.shuffle(once)
        for name in once:
            yield FAULTS[name]


def undo(strike: Strike) -> None:
    """Undo a fault as far as it goes: a node that cannot be reached is left to the end of the run."""
    while strike.undo:
        step = strike.undo.pop(0)
        with suppress(OSError, StrandlineError):
            step()
