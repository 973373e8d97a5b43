"""Watches a simulated run from outside, and keeps every change: nothing in the run can tell that it is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from strandline.chaos.quorum_scenario import view
from strandline.chaos.sim.process import Process
from strandline.controller.metadata.image import MetadataImage
from strandline.replica.partition import Partition

if TYPE_CHECKING:
    from strandline.chaos.cluster import SimCluster
    from strandline.controller.quorum.quorum import Quorum

QUORUM = "metadata quorum"
"""The name of the subject that is no partition."""

DOWN = "down"

LOOK_EVERY = 4
"""Events of the loop between two looks."""


class Replica(NamedTuple):
    """State of one partition, or of the metadata quorum, on a node, from `at_ms` on."""

    at_ms: float
    role: str
    """leader, follower, idle, offline; the quorum's roles; "down" while no process runs."""
    epoch: int = -1
    high_watermark: int = -1
    log_end: int = -1
    log_end_epoch: int = -1
    """Leader epoch of the last record."""
    note: str = ""
    """The leader's maximal ISR; a quorum node's vote."""


class Committed(NamedTuple):
    """Committed metadata of a partition from `at_ms` on."""

    at_ms: float
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    recovering: bool


@dataclass
class Recording:
    """Every change of every subject, in order of time."""

    nodes: list[str] = field(default_factory=list)
    replicas: dict[str, dict[str, list[Replica]]] = field(default_factory=dict)
    """subject -> node -> changes."""
    committed: dict[str, list[Committed]] = field(default_factory=dict)
    """partition -> changes of its committed state."""


class Stopped(Exception):
    """The run was to be stopped at this instant."""


class Recorder:
    """Looks at a run each time that its checkers do, before them.

    `until_ms` ends the run there: it raises `Stopped` out of the run. Only runs with a `world`, and a `cluster` or
    `members`, can be watched.
    """

    def __init__(
        self,
        run: Any,
        *,
        until_ms: float | None = None,
        on_stop: Callable[[Any, Recording], dict[str, Any]] = lambda run, recording: {},
    ) -> None:
        self.run = run
        self.recording = Recording()
        self.stopped_at: dict[str, Any] = {}
        """State that `on_stop` saw, while everything was still alive."""
        self._until_ms = until_ms
        self._on_stop = on_stop
        self._image: MetadataImage | None = None
        self._seen: dict[tuple[str, object], tuple[object, ...]] = {}
        self._living: list[str] = []
        loop = run.world.loop
        self._check: Callable[[], None] | None = loop.observe
        self._every = loop.observe_every
        self._events = 0
        loop.observe = self._observe
        loop.observe_every = min(loop.observe_every, LOOK_EVERY)

    def _observe(self) -> None:
        """The run's own checks come as often as they would."""
        now_ms: float = self.run.world.now_ms
        if self._until_ms is not None and now_ms >= self._until_ms:
            self.look(now_ms)
            self.stopped_at = self._on_stop(self.run, self.recording)
            raise Stopped
        self.look(now_ms)
        loop = self.run.world.loop
        if self._check is not None and loop.events - self._events >= self._every:
            self._events = loop.events
            self._check()

    def look(self, now_ms: float) -> None:
        """Note what has changed. Most of the time nothing has, and that must cost little."""
        living = []
        for process, quorum in _quorums(self.run):
            name = process.machine.name
            living.append(name)
            driver = quorum._driver
            if driver is None:
                continue
            core = driver.core
            key = (core.role, core.epoch, core.leader_id, core.high_watermark, core.log.end_offset)
            if self._seen.get((name, QUORUM)) != key and (seen := view(quorum, int(name[1:]), process)) is not None:
                self._seen[name, QUORUM] = key
                vote = "" if seen.voted_for is None else f"vote for n{seen.voted_for}"
                role = core.role.kind.value.lower()
                point = Replica(now_ms, role, seen.epoch, seen.high_watermark, seen.log_end, seen.last_epoch, vote)
                self._note(QUORUM, name, point)
        cluster: SimCluster | None = getattr(self.run, "cluster", None)
        if cluster is not None:
            for live in cluster.nodes():
                self._partitions(now_ms, f"n{live.number}", cluster.replicas(live))
            self._metadata(now_ms, cluster.newest_image())
        if living != self._living:
            self._living = living
            self._down(now_ms)

    def _partitions(self, now_ms: float, name: str, partitions: list[Partition]) -> None:
        for partition in partitions:
            log, core = partition.log, partition.leader
            end = -1 if log is None else log.log_end_offset
            maximal = () if core is None else core.maximal_isr
            key = (partition.role, partition.state.leader_epoch, partition.high_watermark, end, maximal)
            where = (name, partition.topic_partition)
            if self._seen.get(where) != key:
                self._seen[where] = key
                self._note(str(partition.topic_partition), name, _replica(now_ms, partition))

    def _down(self, now_ms: float) -> None:
        """Processes came or went: what the dead had is over, and the new are looked at afresh."""
        self._seen.clear()
        for by_node in self.recording.replicas.values():
            for name, points in by_node.items():
                if name not in self._living and points[-1].role != DOWN:
                    points.append(points[-1]._replace(at_ms=now_ms, role=DOWN, note=""))

    def _note(self, subject: str, node: str, point: Replica) -> None:
        points = self.recording.replicas.setdefault(subject, {}).setdefault(node, [])
        if not points or points[-1][1:] != point[1:]:
            points.append(point)

    def _metadata(self, now_ms: float, image: MetadataImage | None) -> None:
        if image is None or image is self._image or (self._image is not None and image.offset <= self._image.offset):
            return
        self._image = image
        for topic, partition in image.partitions():
            changes = self.recording.committed.setdefault(f"{topic.name}-{partition.partition}", [])
            point = Committed(
                now_ms,
                int(partition.leader),
                int(partition.leader_epoch),
                int(partition.partition_epoch),
                tuple(int(node) for node in partition.isr),
                tuple(int(node) for node in partition.eligible_leader_replicas),
                partition.recovering,
            )
            if not changes or changes[-1][1:] != point[1:]:
                changes.append(point)


def _quorums(run: Any) -> Iterator[tuple[Process, Quorum]]:
    """The living nodes' quorums, and the processes they live in."""
    if hasattr(run, "cluster"):
        for live in run.cluster.nodes():
            yield live.process, live.node.quorum
        return
    for node, member in run.members.items():
        process = run.world.process(f"n{node}")
        if process is not None and process.incarnation == member.incarnation:
            yield process, member.quorum


def _replica(now_ms: float, partition: Partition) -> Replica:
    log, leader = partition.log, partition.leader
    log_end = -1 if log is None else int(log.log_end_offset)
    return Replica(
        now_ms,
        partition.role.name.lower(),
        int(partition.state.leader_epoch),
        int(partition.high_watermark),
        log_end,
        -1 if log is None or log_end <= 0 else int(log.epochs.epoch_at(log_end - 1)),
        "" if leader is None else "waits for " + " ".join(f"n{node}" for node in leader.maximal_isr),
    )
