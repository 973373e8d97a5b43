"""The operator of a simulated cluster: who reads that a controller has no vote, and restores it as the message says.

Where nobody leads the quorum any more the operator takes the last resort (`strandline quorum force-vote`), as the
message about a cut log says: one controller has lost its log, so that another one, which cut a torn write, would wait
for its vote for ever. What is destroyed is that of one machine, the `victim`; the others' torn writes are honest ones,
and their votes are forced without a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from strandline.chaos.sim.process import Process
from strandline.chaos.sim.world import World
from strandline.controller.metadata.features import FIRST_LEVEL, NEWEST_LEVEL
from strandline.controller.quorum.quorum import Quorum, memory_of
from strandline.controller.raft.messages import ReplicaKey
from strandline.log.disk import Disk
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId
from strandline.proto.marks import mark

if TYPE_CHECKING:
    import asyncio
    import random

_LOOKS_EVERY_MS = 500.0
_LAST_RESORT_MS = 10_000.0
"""Milliseconds without a leader after which votes are forced, or an unclean election is requested."""


_ROLL_MS = 2_000.0
_LEVEL_MS = 1_500.0
"""Longest pauses between two restarts of a roll, and between two changes of a level."""


@dataclass
class Operator:
    """Simulated operator: it does what `strandline quorum restore-vote` does, for a node that follows the quorum's
    leader without the vote that it has a place for; and `force-vote` where nobody leads."""

    world: World
    quorums: Callable[[], Mapping[str, Quorum]]
    """Quorums by machine, of those whose processes live."""
    controllers: Sequence[str]
    note: Callable[[str], None]
    victim: str
    """Whose data may be destroyed; empty once that is over, from when on every torn write is an honest one."""
    force: Callable[[str], None]
    """Stop that node, let it vote beyond doubt, and start it again."""
    leaderless: Callable[[bool], frozenset[tuple[str, int]]] = lambda _: frozenset()
    """Partitions without a leader although every node works normally, or (False) every node that runs."""
    elect: Callable[[frozenset[tuple[str, int]]], None] = lambda _: None
    """An unclean election of these, as their preview advises."""
    offline: Callable[[], frozenset[str]] = frozenset
    """Machines whose nodes say of a replica that it stays offline until they are restarted."""
    restart: Callable[[str], None] = lambda _: None
    replaces: bool = False
    """Where voters come and go it restores the vote of a node that had one under another directory, of no other; else
    each controller gets a vote."""
    restored: int = 0
    _nobody_led_since_ms: float | None = None
    _offline: tuple[float, frozenset[str]] = (0.0, frozenset())
    _leaderless: tuple[float, frozenset[tuple[str, int]]] = (0.0, frozenset())
    _task: asyncio.Task[None] | None = None
    _asked: tuple[str, Process] | None = None
    """The leader that is asked, and its process: if that dies, the task in it never ends."""

    async def work(self) -> None:
        """Work for as long as the run lasts."""
        while True:
            await self.world.sleep_ms(_LOOKS_EVERY_MS)
            self._look()

    def _look(self) -> None:
        quorums = self.quorums()
        self._watch(quorums)
        self._watch_partitions()
        self._watch_replicas()
        leaders = [(quorum.leader_and_epoch.epoch, name) for name, quorum in quorums.items() if leads(quorum)]
        if not leaders or self._busy():
            return
        _, leader = max(leaders)
        process = self.world.process(leader)
        for observer in quorums[leader].describe().observers:
            name = f"n{observer.node_id}"
            key = ReplicaKey(observer.node_id, observer.directory_id)
            voters = quorums[leader].voters
            if self.replaces and voters.dynamic and voters.recorded(key.node_id) is None:
                continue
            if process is not None and name in self.controllers and name in quorums and quorums[name].key == key:
                restoring = self._restore(quorums[leader], key)
                self._task = process.context.copy().run(self.world.loop.create_task, restoring)
                self._asked = leader, process
                return

    def _busy(self) -> bool:
        if self._task is None or self._asked is None or self._task.done():
            return False
        leader, process = self._asked
        return self.world.process(leader) is process

    def _watch(self, quorums: Mapping[str, Quorum]) -> None:
        now_ms = self.world.now_ms
        if any(leads(quorum) for quorum in quorums.values()):
            self._nobody_led_since_ms = None
            return
        self._nobody_led_since_ms = self._nobody_led_since_ms or now_ms
        if now_ms - self._nobody_led_since_ms < _LAST_RESORT_MS:
            return
        self._nobody_led_since_ms = None
        for name in self.controllers:
            if name != self.victim and name in quorums and _in_doubt(quorums[name]):
                mark("vote-forced")
                self.note(f"nobody leads: the vote of {name} is forced")
                self.force(name)

    def _watch_partitions(self) -> None:
        """Ask for an unclean election where nobody is elected before the operator says so: the last ISR has nothing
        but new disks and empty logs, and another replica holds more; or one log of the last ISR was cut, and the
        other machine stays dead."""
        since_ms, before = self._leaderless
        now = self.leaderless(self.victim != "")
        if not now or now != before:
            self._leaderless = self.world.now_ms, now
        elif self.world.now_ms - since_ms >= _LAST_RESORT_MS:
            self._leaderless = self.world.now_ms, frozenset()
            mark("unclean-election-asked-for")
            self.note(f"unclean election of {sorted(now)}")
            self.elect(now)

    def _watch_replicas(self) -> None:
        since_ms, before = self._offline
        now = self.offline()
        if not now or now != before:
            self._offline = self.world.now_ms, now
        elif self.world.now_ms - since_ms >= _LAST_RESORT_MS:
            self._offline = self.world.now_ms, frozenset()
            for name in sorted(now):
                self.note(f"replicas of {name} are offline: it is restarted")
                self.restart(name)

    async def _restore(self, leader: Quorum, key: ReplicaKey) -> None:
        former = leader.voters.recorded(key.node_id)
        if key.directory_id is None or former == key:
            return
        try:
            if former is not None:
                await leader.remove_voter(key.node_id, former.directory_id or key.directory_id)
            await leader.add_voter(key.node_id, key.directory_id)
        except KafkaError:
            return  # it is told why, and tries again later
        self.restored += 1
        self.note(f"n{key.node_id} has its vote again")


@dataclass
class LevelChanges:
    """An operator who ends a rolling upgrade in the middle of the faults: nodes of the build before are rolled to this
    one, and then the level is raised and lowered again and again."""

    world: World
    rng: random.Random
    after_ms: float
    is_older: Callable[[str], bool]
    """Tells whether the build before runs on a machine."""
    names: Sequence[str]
    roll: Callable[[], None]
    """From now on this build is started everywhere."""
    restart: Callable[[str], None]
    level: Callable[[], int]
    """The metadata.version, by the newest image."""
    ask: Callable[[int], None]
    """Ask the active controller for another one."""
    note: Callable[[str], None]

    async def work(self) -> None:
        """Work for as long as the run lasts."""
        await self.world.sleep_ms(self.after_ms)
        self.note("nodes of the build before are rolled to this one")
        self.roll()
        for name in self.names:
            if self.is_older(name):
                self.restart(name)
                await self.world.sleep_ms(self.rng.uniform(100, _ROLL_MS))
        while True:
            wanted = NEWEST_LEVEL if self.level() == FIRST_LEVEL else FIRST_LEVEL
            self.note(f"metadata.version {wanted} is asked for")
            self.ask(wanted)
            await self.world.sleep_ms(self.rng.uniform(200, _LEVEL_MS))


def leads(quorum: Quorum) -> bool:
    """True if the node believes that it leads the quorum."""
    return quorum.leader_and_epoch.leader_id == NodeId(quorum.key.node_id)


def _in_doubt(quorum: Quorum) -> bool:
    driver = quorum._driver
    return driver is not None and driver.core.node.doubt is not None


def force_vote(disk: Disk, data_dir: str, directory_id: UUID) -> None:
    """Force the vote as `strandline quorum force-vote` does, on a node that does not run."""
    memory = memory_of(disk, data_dir, directory_id, promises=True)
    memory.recall()
    memory.force_vote()


def all_vote(quorums: Mapping[str, Quorum], controllers: Sequence[str]) -> bool:
    """True if every controller is there and has its vote, beyond doubt, in its own opinion and in that of all
    others, who know that this is committed: a vote that was given a moment ago goes with a power cut of all."""
    there = [quorums[name] for name in controllers if name in quorums]
    return len(there) == len(controllers) and all(_votes(one, there) for one in there)


def _votes(quorum: Quorum, others: Sequence[Quorum]) -> bool:
    driver = quorum._driver
    if driver is None or driver.stopped or driver.core.node.doubt is not None:
        return False
    if driver.core.high_watermark <= driver.core.node.voters_offset:
        return False
    return all(other.voters.is_voter(quorum.key, voteless=driver.core.node.voteless) for other in others)
