"""The metadata quorum under faults, rules A checked as events run: three voters that stay, or five controllers that
come and go as voters (kraft.version 1), and an observer.

Every node is the production `Quorum` over the simulated network and disk; the leader appends numbered records. A
record counts as acked when the leader that appended it hands it to its listener as committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.metadata_logs import MetadataLogMatching
from strandline.chaos.checkers.quorum import QuorumChecks, QuorumView
from strandline.chaos.logs import LogCapture
from strandline.chaos.nemesis.kinds import FAULTS, KINDS
from strandline.chaos.nemesis.minority import cripple
from strandline.chaos.nemesis.nemesis import Nemesis
from strandline.chaos.nemesis.operator import Operator, all_vote, force_vote
from strandline.chaos.nemesis.options import FaultOptions
from strandline.chaos.nemesis.voters import VoterChanges
from strandline.chaos.sim.disk import DiskConfig
from strandline.chaos.sim.links import NetworkConfig
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.process import Process
from strandline.chaos.sim.seeds import split
from strandline.chaos.sim.world import World, WorldConfig
from strandline.controller.quorum.api import CommittedBatch, LeaderAndEpoch, NotLeader, QuorumConfig, Voter
from strandline.controller.quorum.quorum import Quorum
from strandline.controller.quorum.state_file import PROMISE, Remembered, StateFile
from strandline.controller.raft.messages import ReplicaKey
from strandline.controller.raft.ready import ElectionState
from strandline.proto import marks
from strandline.proto.errors import CorruptLogError
from strandline.proto.ids import Endpoint, NodeId

PORT = 19092
CLUSTER = "simulated"
PROGRESS_MS = 20_000
"""Milliseconds of virtual time after healing within which a commit must come."""

CATCH_UP_MS = 60_000
"""Milliseconds after healing within which a controller that lost its log must have fetched everything, and have its
vote."""


@dataclass
class QuorumOptions:
    """Everything that the seed decides, expanded: printed when a run fails."""

    world: WorldConfig
    faults: FaultOptions
    quorum: QuorumConfig
    duration_ms: int
    append_gap_ms: int
    observers: int
    kraft_version: int = 0
    """1: voters come and go."""
    first_voters: int = 3
    """Number of voters with which a cluster of kraft.version 1 begins."""
    auto_join: bool = False
    """Controllers that lack a vote ask for one by themselves, in a cluster of kraft.version 1."""
    change_gap_ms: int = 500
    """Mean time between two changes of the voters."""

    @property
    def controllers(self) -> int:
        """Number of nodes that vote, or may be given a vote."""
        return 3 if self.kraft_version == 0 else 5

    @property
    def begins_with(self) -> int:
        """Number of voters on the first day."""
        return 3 if self.kraft_version == 0 else self.first_voters

    @classmethod
    def draw(cls, seed: int) -> QuorumOptions:
        rng = split(seed, "options")
        latency_us = rng.choice((300, 2_000, 20_000))
        network = NetworkConfig(
            latency_min_us=50, latency_max_us=latency_us, loss_probability=rng.choice((0.0, 0.0, 0.01))
        )
        disk = DiskConfig(sync_max_us=rng.choice((500, 4_000, 20_000)), sector_bytes=rng.choice((512, 4096)))
        world = WorldConfig(network, disk, clock_rate_error=rng.choice((0.0, 0.001, 0.05)), wall_error_ms=1000.0)
        quorum = QuorumConfig(
            election_timeout_ms=rng.choice((200, 1000)),
            fetch_timeout_ms=rng.choice((500, 2000)),
            fetch_max_wait_ms=rng.choice((100, 500)),
            snapshot_chunk_bytes=rng.choice((2_000, 10_000, 1 << 20)),
            snapshot_max_new_record_bytes=rng.choice((2_000, 20_000, 1 << 30)),
            log_segment_bytes=rng.choice((1_024, 16_384, 1 << 26)),
        )
        changes = split(seed, "voters")
        return cls(
            world,
            FaultOptions.draw(rng, KINDS),
            quorum,
            duration_ms=rng.choice((5_000, 15_000)),
            append_gap_ms=rng.choice((5, 50, 300)),
            observers=rng.randint(0, 1),
            kraft_version=changes.randint(0, 1),
            first_voters=changes.choice((1, 3)),
            auto_join=changes.random() < 0.3,
            change_gap_ms=changes.choice((50, 200, 600)),
        )


@dataclass
class Member:
    """One incarnation of a quorum node: the listener, and the appender while it leads."""

    run: QuorumRun
    node: int
    incarnation: int
    ports: Ports
    quorum: Quorum = field(init=False)
    state: dict[int, list[bytes]] = field(default_factory=dict)
    """Replayed: offset -> records; what a snapshot holds."""
    applied: tuple[int, int] = (0, 0)
    leading: LeaderAndEpoch = field(default=LeaderAndEpoch(None, 0))
    appended: dict[int, list[bytes]] = field(default_factory=dict)
    """Records appended by this incarnation, not yet seen committed, by base offset."""

    async def main(self) -> None:
        ports = self.ports
        # A new disk is formatted under a directory id of its own, which no voter set knows (rule A11); every other time
        # as the documentation says, without a vote.
        name = f"n{self.node}"
        disk = self.run.world.machines[name].disk
        wipes = disk.wipes
        directory_id = UUID(int=self.node + 1_000 * wipes)
        options = self.run.options
        voters = [
            Voter(
                NodeId(number), directory_id if number == self.node else UUID(int=number), Endpoint(f"n{number}", PORT)
            )
            for number in range(1, options.begins_with + 1)
        ]
        dynamic = options.kraft_version > 0
        is_voter = self.node <= options.controllers
        if dynamic and (wipes or self.node > options.begins_with):
            voters = []  # it was formatted for a cluster that there is
        ports.disk.mkdir("/data")
        ports.disk.sync_dir("/")
        advised = name in self.run.nemesis.without_vote
        if (wipes % 2 or advised) and not ports.disk.exists(f"/data/{PROMISE}"):
            fresh = UUID(int=1_000_000 * disk.destroyed + self.node) if advised else directory_id
            StateFile(ports.disk, "/data", PROMISE).write(Remembered(ElectionState(0), fresh, has_vote=False))
            self.run.nemesis.without_vote.pop(name, None)
        if name in self.run.nemesis.forced:
            del self.run.nemesis.forced[name]
            force_vote(ports.disk, "/data", directory_id)
        self.quorum = Quorum(
            node_id=NodeId(self.node),
            directory_id=directory_id,
            cluster_id=CLUSTER,
            voters=voters,
            is_voter=is_voter,
            disk=ports.disk,
            clock=ports.clock,
            rng=ports.rng,
            rpc=ports.rpc,
            data_dir="/data",
            config=options.quorum,
            on_fatal=self.fell,
            listens_at=Endpoint(name, PORT) if is_voter and dynamic else None,
            bootstrap=[Endpoint(other, PORT) for other in self.run.controllers] if dynamic else (),
            auto_join=dynamic and is_voter and options.auto_join,
        )
        self.quorum.raise_kraft_version(options.kraft_version)
        self.quorum.register(self)
        unary, streams = self.quorum.rpc_handlers()
        try:
            await self.quorum.start()
        except CorruptLogError as error:
            self.fell(error)
            return
        self.run.members[self.node] = self
        await ports.rpc.serve(Endpoint(f"n{self.node}", PORT), unary, streams)
        await self.append()

    def fell(self, error: BaseException) -> None:
        """Judge a node that stopped itself: only rot gives it a reason to. Only rot gives it a reason to."""
        name = f"n{self.node}"
        if name not in self.run.nemesis.excused:
            self.run.violations.append(f"{name} fell: {type(error).__name__}: {error}")
        self.run.nemesis.note(f"{name} stops itself: {error}")
        self.run.world.loop.call_at_us(0, self.run.world.kill, name)

    async def append(self) -> None:
        while True:
            await asyncio.sleep(self.ports.rng.uniform(0, 2 * self.run.options.append_gap_ms) / 1000)
            leader, epoch = self.leading
            if leader != self.node or self.run.quiet:
                continue
            records = [self.run.next_record() for _ in range(self.ports.rng.randint(1, 3))]
            try:
                last = self.quorum.append(epoch, records)
            except NotLeader:
                continue
            self.appended[last - len(records) + 1] = records

    @property
    def leads(self) -> bool:
        """True if the member believes that it leads."""
        return self.leading.leader_id == self.node

    # --- QuorumListener ---

    def handle_commit(self, batch: CommittedBatch) -> None:
        self.run.checks.log.committed(self.node, batch)
        if batch.base_offset < self.applied[0]:
            self.run.violations.append(f"n{self.node} was handed offset {batch.base_offset} after {self.applied[0]}")
        self.state[batch.base_offset] = batch.records
        self.applied = (batch.last_offset + 1, batch.epoch)
        if self.appended.pop(batch.base_offset, None) == batch.records:
            self.run.acked[batch.base_offset] = batch.records

    def handle_load_snapshot(self, end_offset: int, epoch: int, records: Iterable[bytes]) -> None:
        self.state = _unpack(records)
        self.applied = (end_offset, epoch)
        for offset, held in self.state.items():
            known = self.run.checks.log.batches.get(offset)
            if known is not None and known.records != held:
                self.run.violations.append(f"n{self.node} loaded a snapshot with other records at {offset}")

    def handle_leader_change(self, leader_and_epoch: LeaderAndEpoch) -> None:
        self.leading = leader_and_epoch
        if leader_and_epoch.leader_id == self.node and self.state.keys() < self.run.acked.keys():
            self.run.violations.append(f"n{self.node} may lead epoch {leader_and_epoch.epoch} and lacks acked records")

    def take_snapshot(self) -> tuple[int, int, list[bytes]] | None:
        return (*self.applied, _pack(self.state))


def _pack(state: dict[int, list[bytes]]) -> list[bytes]:
    return [b"%d " % offset + record for offset, records in state.items() for record in records]


def _unpack(records: Iterable[bytes]) -> dict[int, list[bytes]]:
    state: dict[int, list[bytes]] = {}
    for packed in records:
        offset, _, record = packed.partition(b" ")
        state.setdefault(int(offset), []).append(record)
    return state


class QuorumRun:
    """One seed."""

    def __init__(self, seed: int, options: QuorumOptions | None = None) -> None:
        marks.reset()
        self.seed = seed
        self.options = options or QuorumOptions.draw(seed)
        self.world = World(seed, self.options.world)
        self.checks = QuorumChecks(lambda node: self.world.machines[f"n{node}"].disk)
        self.matching = MetadataLogMatching()
        self.violations: list[str] = []
        self.acked: dict[int, list[bytes]] = {}
        self.members: dict[int, Member] = {}
        self.quiet = False
        """True once nothing more is appended: the replicas must then become equal."""
        self._records = 0
        names = [f"n{number}" for number in range(1, self.options.controllers + self.options.observers + 1)]
        self.controllers = names[: self.options.controllers]
        for name in names:
            self.world.add_machine(name)
        self.nemesis = Nemesis(
            self.world,
            split(seed, "faults"),
            names,
            self._start,
            self.options.faults,
            leader=self._leader,
            controller=self._leader,
            on_fault=self._inspect,
        )
        self._logs = LogCapture(lambda: self.world.now_ms)
        self.operator = Operator(
            self.world, self._quorums, self.controllers, self.nemesis.note, self.nemesis.victim, self.nemesis.force_vote
        )
        self.changes: VoterChanges | None = None
        if self.options.kraft_version > 0:
            self.operator.replaces = True
            self.changes = VoterChanges(
                self.world,
                split(seed, "voter changes"),
                self.options.change_gap_ms,
                self.options.auto_join,
                self.controllers,
                self.nemesis.victim,
                self._quorums,
                self.checks.voters,
                self.nemesis.note,
            )
            self.nemesis.may_destroy = self.changes.may_destroy
        self.world.loop.observe = self._observe
        self.world.loop.observe_every = 1

    def next_record(self) -> bytes:
        self._records += 1
        return b"record %d" % self._records

    def _start(self, name: str) -> None:
        node = int(name[1:])
        incarnation = self.world.machines[name].incarnations + 1
        self.members.pop(node, None)
        self.world.spawn(name, lambda ports: Member(self, node, incarnation, ports).main())

    def _leader(self) -> str | None:
        leaders = [(member.leading.epoch, member.node) for member in self.members.values() if member.leads]
        return f"n{max(leaders)[1]}" if leaders else None

    def _living(self) -> dict[str, tuple[Member, Process]]:
        """Members whose processes live, by machine."""
        found = {}
        for member in self.members.values():
            process = self.world.process(f"n{member.node}")
            if process is not None and process.incarnation == member.incarnation:
                found[process.machine.name] = (member, process)
        return found

    def _quorums(self) -> dict[str, Quorum]:
        return {name: member.quorum for name, (member, _) in self._living().items()}

    def _whole(self) -> bool:
        """True if every voter has its vote, beyond doubt, and everything that any of them knows to be committed."""
        quorums = self._quorums()
        committed = max((quorum.high_watermark for quorum in quorums.values()), default=0)
        names = self._voters()
        return all_vote(quorums, names) and all(quorums[name].log_end_offset >= committed for name in names)

    def _voters(self) -> list[str]:
        """Machines of the voters in the last committed voter set."""
        if self.changes is None:
            return self.controllers
        _, voters = self.checks.voters.newest
        return [f"n{key.node_id}" for key in voters]

    def _views(self) -> list[QuorumView]:
        seen = (view(member.quorum, member.node, process) for member, process in self._living().values())
        return [one for one in seen if one is not None]

    def _observe(self) -> None:
        views = self._views()
        self.checks.observe(views)
        if self.changes is not None:
            self.changes.see(views)
        if self.violations:
            raise InvariantViolated("NoNodeMisbehaves", self.violations[0])

    def _inspect(self) -> None:
        """Check the expensive invariants, after each fault and at the end."""
        self._observe()
        compare_metadata_logs(self.matching, self._views(), self.world)

    async def scenario(self) -> None:
        for name in self.nemesis.names:
            self._start(name)
        operating = self.world.loop.create_task(self.operator.work())
        changing = self.world.loop.create_task(self.changes.work()) if self.changes is not None else None
        await self.nemesis.run(self.options.duration_ms, FAULTS)
        if changing is not None:
            changing.cancel()
        self.nemesis.heal()
        if not await self._all_count():
            # A vote that is lost, or in doubt, and one more that is away: that needs its operator.
            await self._progress()
            self.quiet = True  # who fetches everything anew must not run after what is appended
            await self._until("every voter has its vote", self._whole, CATCH_UP_MS)
            self.quiet = False
        voters = self._voters()
        if len(voters) >= 3:  # a majority alone, whatever state the faults have left
            mend = cripple(self.nemesis, voters, split(self.seed, "minority"))
            await self._progress()
            mend()
        await self._progress()
        self.quiet = True
        await self._agree()
        operating.cancel()

    async def _all_count(self) -> bool:
        """True once every voter has come back with its vote."""
        names = self._voters()
        await self._until("every controller has started", lambda: set(names) <= self._quorums().keys())
        return all_vote(self._quorums(), names)

    async def _until(self, what: str, holds: Callable[[], bool], within_ms: int = PROGRESS_MS) -> None:
        deadline_ms = self.world.now_ms + within_ms
        while not holds():
            if self.world.now_ms > deadline_ms:
                raise InvariantViolated("Progress", f"not within {within_ms} ms after healing: {what}")
            await self.world.sleep_ms(50)

    async def _progress(self) -> None:
        """Liveness: after healing, acks come again."""
        acked = len(self.acked)
        deadline_ms = self.world.now_ms + PROGRESS_MS
        while len(self.acked) < acked + 5:
            if self.world.now_ms > deadline_ms:
                leaders = {node: member.quorum.leader_and_epoch for node, member in self.members.items()}
                raise InvariantViolated("Progress", "no commits after healing", leaders=leaders)
            await self.world.sleep_ms(50)

    async def _agree(self) -> None:
        """Every node replays every acked record, and has the voter set that was committed last."""
        wanted = dict(self.acked)
        deadline_ms = self.world.now_ms + PROGRESS_MS
        while True:
            missing = {
                node: offset
                for node, member in self.members.items()
                for offset, records in wanted.items()
                if member.state.get(offset) != records
            }
            sets = {node: member.quorum.voters.keys for node, member in self.members.items()}
            _, voters = self.checks.voters.newest
            others = {node: keys for node, keys in sets.items() if self.changes is not None and keys != voters}
            if not missing and not others and len(self.members) == len(self.nemesis.names):
                self._inspect()
                return
            if self.world.now_ms > deadline_ms:
                if not missing:
                    raise InvariantViolated(
                        "Progress", "voter sets differ after healing", committed=voters, sets=others
                    )
                raise InvariantViolated("AckedRecordsSurvive", "acked records are missing", missing=missing)
            await self.world.sleep_ms(200)

    def expanded(self) -> dict[str, Any]:
        return {**asdict(self.options), "quorum": vars(self.options.quorum)}

    def timeline(self) -> list[tuple[int, str]]:
        return sorted([*self.nemesis.events, *self._logs.lines], key=lambda line: line[0])

    def execute(self) -> dict[str, Any]:
        """Run it.

        Raises:
            InvariantViolated
        """
        self.world.run(self.scenario())
        if self.world.loop.unhandled:
            raise InvariantViolated("NoUnhandledErrors", str(self.world.loop.unhandled[0]))
        return {
            "trace": f"{self.world.trace:016x}",
            "events": self.world.loop.events,
            "virtual_ms": round(self.world.now_ms),
            "acked": len(self.acked),
            "voter_changes": 0 if self.changes is None else self.changes.made,
            "marks": {name: count for name, count in marks.counts().items() if count},
            "struck": {name: count for name, count in sorted(self.nemesis.struck.items()) if count},
            "effects": {name: count for name, count in sorted(self.world.loop.effects.items()) if count},
            "epochs": max(member.quorum.leader_and_epoch.epoch for member in self.members.values()),
        }


def view(quorum: Quorum, node: int, process: Process) -> QuorumView | None:
    """View of a live quorum for the checks; None before it has started, once it has stopped, and while its disk has
    no room for its vote: what it could not make durable counts for nobody."""
    driver = quorum._driver
    if driver is None or driver.stopped or driver._held_back is not None:
        return None
    core = driver.core
    replica = core.key
    if (
        replica.node_id not in core.voters.places and not core.node.standing.may_vote
    ):  # it promises nothing, so it remembers nothing of what was destroyed
        replica = ReplicaKey(replica.node_id, UUID(int=process.machine.disk.destroyed))
    voted_for = core.role.voted_for
    return QuorumView(
        node=node,
        incarnation=process.incarnation,
        replica=replica,
        doubt=core.node.doubt is not None,
        epoch=core.epoch,
        leader=core.leader_id,
        leading=core.leading is not None,
        # Without a directory it is nobody's vote: a start takes the epoch's leader, which is no voter any more, for it.
        voted_for=None if voted_for is None or voted_for.directory_id is None else voted_for.node_id,
        high_watermark=core.high_watermark,
        log_end=core.log.end_offset,
        last_epoch=core.log.last_epoch,
        voters=core.voters.keys,
        voters_offset=core.log.voters[0],
        majority=core.voters.majority,
        durable_end=driver.durable_offset,
        log=core.log,
        log_start=driver.log_start_offset,
        reloads=driver.reloads,
    )


def compare_metadata_logs(matching: MetadataLogMatching, views: Iterable[QuorumView], world: World) -> None:
    """MetadataLogMatching over the disks of live nodes. Raises InvariantViolated."""
    for seen in views:
        assert seen.log is not None
        bounds = (seen.log.start.offset, seen.high_watermark, seen.log_end)
        matching.check(seen.node, seen.incarnation, world.machines[f"n{seen.node}"].disk, bounds)
