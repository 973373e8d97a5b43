"""Controllers that are added, removed and replaced under faults (KIP-853), by an operator who is in a hurry.

A destroyed disk is one loss more than what a voter set of one or two bears. So nothing is destroyed where a set that
counts, or may yet, would be left without a majority, and while a destroyed voter is in such a set no other one is
removed: an operator who has lost a machine replaces that one first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from strandline.chaos.checkers.metadata_logs import DIRECTORY
from strandline.chaos.checkers.quorum import QuorumView, VoterSetsMeet
from strandline.chaos.nemesis.operator import leads
from strandline.chaos.sim.world import World
from strandline.controller.quorum.quorum import Quorum
from strandline.controller.raft.messages import ReplicaKey
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId

_ENOUGH = 3
"""Voters of a set that can lose the log of one."""

_FORGOTTEN_MS = 5_000.0
"""Milliseconds for which a leader may take a dead controller for one that has caught up."""


VOTERS_SHARE = 0.3
"""Share of the seeds of the cluster in which voters come and go."""


@dataclass
class VoterOptions:
    """What a seed of the cluster draws of voters that come and go.

    Attributes:
        first_voters: number of voters that the cluster is formatted with at kraft.version 1; 0: all three at
            kraft.version 0.
        raised_after_ms: when kraft.version is raised to 1, where the cluster begins at 0.
        spares: controllers beside the three, which are no brokers, and have no vote in the beginning.
        auto_join: controllers that lack a vote ask for one by themselves.
        gap_ms: mean time between two changes.
    """

    first_voters: int
    raised_after_ms: float
    spares: int
    auto_join: bool
    gap_ms: int

    @classmethod
    def draw(cls, rng: random.Random, duration_ms: int) -> VoterOptions:
        return cls(
            first_voters=rng.choice((0, 0, 1, 3)),
            raised_after_ms=rng.uniform(0, duration_ms / 2),
            spares=rng.choice((0, 0, 1, 2)),
            auto_join=rng.random() < 0.3,
            gap_ms=rng.choice((200, 600, 1_500)),
        )


@dataclass
class VoterChanges:
    """Changes of the voter set, asked of every node that believes that it leads; several may be under way at once."""

    world: World
    rng: random.Random
    gap_ms: int
    auto_join: bool
    controllers: Sequence[str]
    victim: str
    quorums: Callable[[], Mapping[str, Quorum]]
    committed: VoterSetsMeet
    note: Callable[[str], None]
    made: int = 0
    """Number of changes that were answered as committed."""
    _seen: dict[int, QuorumView] = field(default_factory=dict)
    """The last view of each node, dead or alive."""
    _asked: list[tuple[ReplicaKey, ...]] = field(default_factory=list)
    """Voter sets without a voter whose removal was asked for and has no answer. A node that stops in the instant in
    which it appends one has it on its disk, and nobody has seen it (seed 36100896)."""
    _lost: ReplicaKey | None = None
    _lost_ms: float = -_FORGOTTEN_MS

    def see(self, views: Sequence[QuorumView]) -> None:
        """Take in which voter set each living node has."""
        for view in views:
            self._seen[view.node] = view

    def may_destroy(self) -> bool:
        """Whether the victim's data may be destroyed now; if so they count as lost."""
        number = int(self.victim[1:])
        if self.victim not in self.controllers or number not in self._seen:
            return self.victim not in self.controllers
        key = self._seen[number].replica
        sets = self._sets()
        if any(key in voters and len(voters) < _ENOUGH for voters in sets):
            return False
        if self.auto_join and min(map(len, sets)) < _ENOUGH - 1:
            return False  # it may be made a voter in the same instant
        self._lost, self._lost_ms = key, self.world.now_ms
        return True

    async def work(self) -> None:
        """Work until cancelled."""
        while True:
            await self.world.sleep_ms(self.rng.uniform(0, 2 * self.gap_ms))
            self._ask()

    def _sets(self) -> list[tuple[ReplicaKey, ...]]:
        """The committed voter set, and each one that may yet be: some node has it, or was asked for it and has died."""
        offset, newest = self.committed.newest
        return [newest, *self._asked, *(view.voters for view in self._seen.values() if view.voters_offset > offset)]

    def _ask(self) -> None:
        quorums = self.quorums()
        leaders = [name for name, quorum in quorums.items() if leads(quorum)]
        if not leaders:
            return
        name = self.rng.choice(leaders)
        process = self.world.process(name)
        if process is not None and quorums[name].voters.dynamic:
            process.context.copy().run(self.world.loop.create_task, self._change(name, quorums))

    async def _change(self, name: str, quorums: Mapping[str, Quorum]) -> None:
        leader = quorums[name]
        voters = [key for key in leader.voters if self._may_go(key)]
        named = {f"n{key.node_id}" for key in leader.voters}
        others = [other for other in self.controllers if other in quorums and self._may_come(other, named)]
        kind = self.rng.choice(("add", "remove", "replace", "remove the leader"))
        if kind == "remove the leader":
            voters = [key for key in voters if key.node_id == leader.key.node_id]
        try:
            if kind in ("add", "replace") and others:
                key = quorums[self.rng.choice(others)].key
                if key.directory_id is not None:
                    await leader.add_voter(key.node_id, key.directory_id)
                    self._made(f"n{key.node_id} was made a voter")
            if kind != "add" and voters:
                key = self.rng.choice(voters)
                if key.directory_id is not None and self._may_go(key):
                    await self._remove(leader, key, key.directory_id)
                    self._made(f"n{key.node_id} was removed from the voters" + (" it led" if key == leader.key else ""))
        except KafkaError:
            return  # it is told why

    async def _remove(self, leader: Quorum, key: ReplicaKey, directory_id: UUID) -> None:
        """Raises KafkaError. The set without the voter counts as long as its leader may have stopped over it."""
        without = tuple(voter for voter in leader.voters if voter != key)
        self._asked.append(without)
        try:
            await leader.remove_voter(key.node_id, directory_id)
        except KafkaError:
            if leader._driver is not None and not leader._driver.stopped:
                self._asked.remove(without)
            raise
        self._asked.remove(without)

    def _made(self, what: str) -> None:
        self.made += 1
        self.note(what)

    def _may_go(self, key: ReplicaKey) -> bool:
        if key.node_id == NodeId(int(self.victim[1:])):
            return True
        lately = self.world.now_ms - self._lost_ms < _FORGOTTEN_MS
        return not (lately or self._rots() or any(self._lost in voters for voters in self._sets()))

    def _may_come(self, name: str, voters: set[str]) -> bool:
        return name not in voters and not (name == self.victim and self._rots())

    def _rots(self) -> bool:
        return DIRECTORY in self.world.machines[self.victim].disk.rotten
