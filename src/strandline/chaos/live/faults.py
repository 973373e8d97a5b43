"""The faults of a live run: what strikes which node, and what undoes it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from strandline.chaos.live.restored import restore_then_produce
from strandline.chaos.live.target import ASK, ChaosTarget, client_settings, pause
from strandline.client import Admin
from strandline.client.types import ConfigChange, ConfigResource
from strandline.proto.errors import StrandlineError

SHOWN_MAX = 5
SLOW_DISK_MS = (20, 50, 200)
AHEAD_DAYS = (8, 400, -8)
"""Days by which a clock is set: beyond `retention.ms` of the topics, `offsets.retention.minutes` and
`producer.id.expiration.ms`, or back as far."""
SEGMENT_BYTES = 1 << 20
SMALL_SEGMENT_BYTES = 4096
RETENTION_MS = 7 * 24 * 3_600_000
"""Retention of the topics, in milliseconds: only a clock that is wrong makes a record of theirs older."""

CLOSED_S = 2.0
"""Seconds until a segment.bytes change takes effect, on a machine that is not very busy."""


class NotNow(Exception):
    """A fault cannot strike now: it has no target, or would break a guarantee that is not given. The message says
    which."""


class Violated(Exception):
    """A promise is broken, and the run ends here."""


@dataclass
class ActiveFault:
    """One fault under way.

    Attributes:
        what: was done, and to which node.
        undo: undoes it, in this order; also after the run was cut short.
        down: nodes that this fault killed or stopped.
    """

    what: str
    undo: list[Callable[[], None]] = field(default_factory=list)
    down: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class FaultContext:
    """Cluster and state that a fault works with.

    Attributes:
        whole: whether every replica is in its ISR and every node runs, now.
        wait_whole: returns once it is so; raises TimeoutError.
        wait_acked: returns once something sent from now on was acknowledged in every partition; a run in which nothing
            comes ends there.
    """

    target: ChaosTarget
    rng: random.Random
    partitions: list[tuple[str, int]]
    whole: Callable[[], bool]
    wait_whole: Callable[[], None]
    wait_acked: Callable[[], None]

    def led_partition(self) -> tuple[int, str, int]:
        """The leader of some partition, and which one that is."""
        topic, number = self.rng.choice(self.partitions)
        try:
            return self.target.leader(topic, number), topic, number
        except TimeoutError:
            raise NotNow(f"{topic}-{number} has no leader") from None

    def any_leader(self) -> tuple[int, str]:
        """The leader of some partition, and its name."""
        leader, topic, number = self.led_partition()
        return leader, f"the leader of {topic}-{number}"

    def all_whole(self) -> None:
        """Wait until no replica lags, for what destroys data: one machine of those in sync is all that may lose any."""
        with suppress(TimeoutError):
            self.wait_whole()
        if not self.whole():
            raise NotNow("not every replica is in sync: a disk too many would be lost")

    def any_node(self) -> int:
        """A node that runs, drawn."""
        running = self.target.running()
        if not running:
            raise NotNow("no node runs")
        return self.rng.choice(running)

    def any_broker(self) -> int:
        """A broker that runs, drawn."""
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
    strike: Callable[[FaultContext], ActiveFault]


def _start(target: ChaosTarget, node: int) -> Callable[[], None]:
    return lambda: target.start_node(node, wait=False)


def _kill(scene: FaultContext, node: int, who: str) -> ActiveFault:
    scene.target.kill(node)
    return ActiveFault(f"SIGKILL of node {node}, {who}", [_start(scene.target, node)], [node])


def _kill_leader(scene: FaultContext) -> ActiveFault:
    return _kill(scene, *scene.any_leader())


def _kill_controller(scene: FaultContext) -> ActiveFault:
    node = scene.target.controller()
    if node is None:
        raise NotNow("no controller is known")
    return _kill(scene, node, "the active controller")


def _kill_any(scene: FaultContext) -> ActiveFault:
    return _kill(scene, scene.any_node(), "any node")


def _kill_every_node(scene: FaultContext) -> list[int]:
    """Kill every node. Returns the ids of those that ran, in random order."""
    nodes = scene.target.running()
    for node in nodes:
        scene.target.kill(node)
    scene.rng.shuffle(nodes)
    return nodes


def _start_last(scene: FaultContext, nodes: list[int], last: list[int]) -> list[Callable[[], None]]:
    """Start all but `last`: those must acknowledge by themselves. Then start `last`."""
    starts = [_start(scene.target, node) for node in nodes if node not in last]
    return [*starts, scene.wait_acked, *(_start(scene.target, node) for node in last)]


def _kill_all(scene: FaultContext) -> ActiveFault:
    nodes = _kill_every_node(scene)
    return ActiveFault("SIGKILL of every node at once", [_start(scene.target, node) for node in nodes], nodes)


def _crash_all_one_rots(scene: FaultContext) -> ActiveFault:
    """Crash every node, and damage the batch that one of them wrote last: a start cannot tell it from a torn write
    (schedule 45: one of all nodes rots)."""
    scene.all_whole()
    leader, topic, number = scene.led_partition()
    nodes = _kill_every_node(scene)
    undo = _start_last(scene, nodes, [leader])
    try:
        where = scene.target.rot_newest(leader, topic, number, scene.rng.randrange(1 << 30))
    except (OSError, StrandlineError) as error:
        return ActiveFault(f"SIGKILL of every node at once; nothing rots ({error})", undo, nodes)
    return ActiveFault(
        f"SIGKILL of every node at once; on node {leader}, which led and starts last, {where}", undo, nodes
    )


def _zeroed_tail(scene: FaultContext) -> ActiveFault:
    """Crash every node, and zero the end of one log (schedule 96). The damaged node starts first, all others at once
    after it: an honest copy that comes later than the wait of rule B30 may be cut."""
    scene.all_whole()
    leader, topic, number = scene.led_partition()
    nodes = _kill_every_node(scene)
    nodes.sort(key=lambda node: node != leader)
    undo = [_start(scene.target, node) for node in nodes]
    try:
        where = scene.target.lose_newest(leader, topic, number, scene.rng.randrange(1 << 30))
    except (OSError, StrandlineError) as error:
        return ActiveFault(f"SIGKILL of every node at once; nothing is lost ({error})", undo, nodes)
    return ActiveFault(
        f"SIGKILL of every node at once; on node {leader}, which led and starts first, {where}", undo, nodes
    )


def _one_stays_dead(scene: FaultContext) -> ActiveFault:
    """Crash every node, and keep one broker down (schedule 53), with one controller where controllers are processes of
    their own."""
    dead = [scene.any_broker()]
    if dead[0] not in scene.target.controller_ids:
        dead.append(scene.rng.choice(scene.target.controller_ids))
    nodes = _kill_every_node(scene)
    names = " and ".join(map(str, dead))
    return ActiveFault(
        f"SIGKILL of every node at once; {names} dead until the others acknowledge",
        _start_last(scene, nodes, dead),
        nodes,
    )


def _directory_lost(scene: FaultContext) -> ActiveFault:
    """Remove a leader's log directory (schedule 48), after a crash of the leader alone, or after a stop of all nodes:
    then it starts first."""
    target = scene.target
    scene.all_whole()
    leader, topic, number = scene.led_partition()
    if scene.rng.random() < 0.5:
        target.kill(leader)
        target.lose_directory(leader, topic, number)
        what = f"SIGKILL of node {leader}, and its directory {topic}-{number}, which it led, is removed"
        return ActiveFault(what, [_start(target, leader)], [leader])
    brokers = [node for node in target.broker_ids if node != leader]
    controllers = [node for node in target.controller_ids if node not in target.broker_ids]
    for node in (*brokers, leader, *controllers):
        target.stop_node(node)
    target.lose_directory(leader, topic, number)
    what = f"every node stopped in an orderly way, node {leader} last, and its directory {topic}-{number} is removed"
    nodes = [leader, *controllers, *brokers]
    return ActiveFault(what, [_start(target, node) for node in nodes], nodes)


def _pause(scene: FaultContext) -> ActiveFault:
    node = scene.any_node()
    scene.target.pause(node)
    return ActiveFault(f"SIGSTOP of node {node}", [lambda: scene.target.resume(node)])


def _partition(scene: FaultContext) -> ActiveFault:
    a, b = scene.rng.sample(scene.target.node_ids, 2)
    one_way = scene.rng.random() < 0.5
    scene.target.partition(a, b, one_way=one_way)
    how = f"nothing comes from node {a} to node {b}" + ("" if one_way else ", nor back")
    return ActiveFault(how, [scene.target.heal])


def _isolate(scene: FaultContext) -> ActiveFault:
    node = scene.any_node()
    scene.target.isolate(node)
    return ActiveFault(f"node {node} is cut off from all others", [scene.target.heal])


def _rolling_restart(scene: FaultContext) -> ActiveFault:
    """Restart each node in turn, only while all others are in sync; the undo steps do it, the strike itself nothing."""

    def steps() -> Iterator[Callable[[], None]]:
        for node in scene.target.node_ids:
            yield scene.wait_whole
            yield lambda node=node: scene.target.stop_node(node)  # type: ignore[misc]
            yield _start(scene.target, node)

    return ActiveFault("every node stopped in an orderly way and started again, one after the other", list(steps()))


def _dirs_swapped(scene: FaultContext) -> ActiveFault:
    """Swap the directories from the first undo on: by the second node a majority has another order (schedule 95:
    `log.dirs` in another order)."""

    def steps() -> Iterator[Callable[[], None]]:
        for node in scene.target.node_ids:
            yield scene.wait_whole
            yield lambda node=node: scene.target.stop_node(node)  # type: ignore[misc]
            yield lambda node=node: scene.target.swap_directories(node)  # type: ignore[misc]
            yield _start(scene.target, node)

    return ActiveFault(
        "every node stopped and started with log.dirs in another order, one after the other", list(steps())
    )


def _slow_disk(scene: FaultContext) -> ActiveFault:
    node, delay_ms = scene.any_broker(), scene.rng.choice(SLOW_DISK_MS)
    try:
        scene.target.slow_disk(node, delay_ms)
    except OSError as error:
        raise NotNow(f"node {node} does not answer: {error}") from None
    return ActiveFault(f"syncs of node {node} take {delay_ms} ms longer", [scene.target.heal])


def _clock_ahead(scene: FaultContext) -> ActiveFault:
    """Set the clock of a node wrong (schedule 100). A record that expires by the wrong clock would be lost when it is
    corrected."""
    node, who = scene.any_leader()
    days = scene.rng.choice(AHEAD_DAYS)
    try:
        scene.target.clock_ahead(node, days * 24 * 3_600_000)
    except OSError as error:
        raise NotNow(f"node {node} does not answer: {error}") from None
    how = f"{days} days ahead" if days > 0 else f"{-days} days back"
    return ActiveFault(f"the wall clock of node {node} is set {how}, {who}", [scene.target.heal])


def _fill(scene: FaultContext, node: int, who: str) -> ActiveFault:
    """Fill the disk of a node. Segments are made small before, for they are allocated ahead of their records, and large
    ones would have room for the whole fault."""
    _set_segment_bytes(scene, SMALL_SEGMENT_BYTES)
    pause(CLOSED_S)
    scene.target.fill_disk(node)
    undo = [lambda: scene.target.free_disk(node), lambda: _set_segment_bytes(scene, SEGMENT_BYTES)]
    return ActiveFault(f"the disk of node {node} is full{who}", undo)


def _set_segment_bytes(scene: FaultContext, size: int) -> None:
    change = [ConfigChange("segment.bytes", str(size))]
    with Admin(scene.target.responsive, **ASK, **client_settings(scene.target.client_properties)) as admin:
        admin.alter_configs({ConfigResource("topic", topic): change for topic, _ in scene.partitions})


def _disk_full(scene: FaultContext) -> ActiveFault:
    return _fill(scene, scene.any_node(), "")


def _full_leader(scene: FaultContext) -> ActiveFault:
    node, who = scene.any_leader()
    return _fill(scene, node, f", {who}")


def _wiped_dir(scene: FaultContext) -> ActiveFault:
    """Kill a node and delete its data while all other replicas are in sync. A wiped voter has lost its votes, a wiped
    replica its acknowledged records."""
    target = scene.target
    scene.all_whole()
    node = scene.any_node()
    target.kill(node)
    return ActiveFault(
        f"node {node} killed, its directory emptied and formatted anew",
        [lambda: target.wipe(node), _start(target, node)],
        [node],
    )


def _restore_then_produce(scene: FaultContext) -> ActiveFault:
    """Restore a topic from the object store and write into it (schedule 92); checked here, for no other check knows the
    topic."""
    if scene.target.store_url is None:
        raise NotNow("the nodes have no object store")
    topic = f"chaos-restored-{scene.rng.randrange(1 << 30)}"
    acked, missing = restore_then_produce(scene.target, scene.target.store_url, topic)
    if missing:
        words = f"of {acked} records acknowledged after the restore of {topic} {len(missing)} are not there"
        raise Violated(f"AckedAreWritten: {words}: {missing[:SHOWN_MAX]}")
    return ActiveFault(
        f"{topic} restored from the store of a lost cluster; {acked} records acknowledged, and all there"
    )


_ALL = (
    Fault("kill-leader", "SIGKILL of the leader of some partition; started again", (0.5, 6), _kill_leader),
    Fault("kill-controller", "SIGKILL of the active controller; started again", (0.5, 6), _kill_controller),
    Fault("kill", "SIGKILL of any node; started again", (0.2, 6), _kill_any),
    Fault("kill-all", "SIGKILL of every node at once; all started again, in any order", (0.2, 2), _kill_all),
    Fault(
        "crash-all-one-rots",
        "SIGKILL of every node at once; a bit rots in the newest batch of one that led, which starts last",
        (0.2, 2),
        _crash_all_one_rots,
    ),
    Fault(
        "zeroed-tail",
        "SIGKILL of every node at once; the disk of one that led gives back zeros, or less, for its newest batches",
        (0.2, 2),
        _zeroed_tail,
    ),
    Fault(
        "one-stays-dead",
        "SIGKILL of every node at once; one machine stays dead until the others acknowledge",
        (0.2, 2),
        _one_stays_dead,
    ),
    Fault(
        "directory-lost",
        "a leader is killed, or all are stopped, and its directory of that partition removed; started again",
        (0.2, 2),
        _directory_lost,
    ),
    Fault("pause", "SIGSTOP of any node, shorter or longer than silence is borne; SIGCONT", (0.5, 8), _pause),
    Fault("partition", "the cable between two nodes cut, one way or both", (1, 8), _partition),
    Fault("isolate", "one node cut off from all others; clients still reach it", (1, 8), _isolate),
    Fault("rolling-restart", "every node stopped in an orderly way and started again", (0, 0), _rolling_restart),
    Fault(
        "dirs-swapped",
        "log.dirs of every node turned around, or a new disk put in front, one node after the other",
        (0, 0),
        _dirs_swapped,
    ),
    Fault("slow-disk", "every sync of one broker 20 to 200 ms slower", (2, 6), _slow_disk),
    Fault("clock-ahead", "the wall clock of a leader days ahead or back, then put right", (2, 8), _clock_ahead),
    Fault("disk-full", "one node's disk without room, then with room again", (1, 6), _disk_full),
    Fault("full-leader", "the disk of a partition's leader without room, then with room again", (3, 10), _full_leader),
    Fault("wiped-dir", "a node killed, its directory emptied and formatted anew, all others whole", (1, 4), _wiped_dir),
    Fault(
        "restore-then-produce",
        "a topic of another cluster, which is lost, restored from the object store; new producers write to it",
        (0, 0),
        _restore_then_produce,
    ),
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


def undo(strike: ActiveFault) -> None:
    """Undo a fault as far as possible; a node that cannot be reached is left until the end of the run."""
    while strike.undo:
        step = strike.undo.pop(0)
        with suppress(OSError, StrandlineError):
            step()
