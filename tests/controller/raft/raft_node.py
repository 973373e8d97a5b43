"""A node of the raft tests: a pure core on a disk that forgets.

Each node has a durable image of its log and the operations since the last flush that *began* before a crash; a crash
keeps any prefix of those. A flush covers what was written when it began and tells at its end.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from strandline.controller.raft.core import RaftCore
from strandline.controller.raft.leader import Leader
from strandline.controller.raft.log_summary import EMPTY, LogSummary
from strandline.controller.raft.messages import (
    Batch,
    BeginQuorumEpochRequest,
    FetchResponse,
    FetchSnapshotResponse,
    LeaderChange,
    OffsetAndEpoch,
    ReadRange,
    ReadSnapshot,
    ReplicaKey,
    Reply,
    Request,
    RequestFailed,
    RequestReceived,
    Response,
    ResponseReceived,
    SendRequest,
    VotersChange,
)
from strandline.controller.raft.ready import Append, ElectionState, Ready, StoreSnapshotChunk, TruncateTo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import Endpoint, NodeId

if TYPE_CHECKING:
    from raft_world import World

CLUSTER = "test-cluster"


def directory(number: int) -> UUID:
    """A readable directory id."""
    return UUID(int=number)


@dataclass(frozen=True)
class Snapshot:
    """A snapshot's content: every value below its end."""

    id: OffsetAndEpoch
    values: tuple[tuple[int, int, str], ...]
    voters: VotersChange | None = None


def text(data: object) -> str:
    if isinstance(data, VotersChange):
        name = "voters:" if data.kraft_version == 0 else f"voters at {data.kraft_version}:"
        return name + ",".join(f"{key.node_id}/{short(key.directory_id)}" for key in data.voters)
    return "leader-change" if isinstance(data, LeaderChange) else bytes(data).decode()  # type: ignore[call-overload]


Plain = tuple[list[tuple[int, int | None]], int, list[tuple[str, int]]]


def plain(said: VotersChange | None) -> Plain | None:
    if said is None:
        return None
    keys = [(int(key.node_id), None if key.directory_id is None else key.directory_id.int) for key in said.voters]
    return keys, said.kraft_version, [tuple(endpoint) for endpoint in said.endpoints]


def unplain(said: Plain | None) -> VotersChange | None:
    if said is None:
        return None
    keys, version, endpoints = said
    voters = (ReplicaKey(NodeId(node), number and directory(number)) for node, number in keys)  # type: ignore[arg-type]
    return VotersChange(tuple(voters), version, tuple(Endpoint(*endpoint) for endpoint in endpoints))


def endpoint_of(node: int) -> Endpoint:
    """Where a node listens."""
    return Endpoint(f"n{node}", 19092)


def short(directory_id: UUID | None) -> str:
    return "any" if directory_id is None else str(directory_id.int)


class DiskImage:
    """What a node's disk holds: the log as batches from `start`, snapshots, quorum state."""

    def __init__(self) -> None:
        self.saved: ElectionState | None = None
        self.start = EMPTY
        self.batches: list[Batch] = []
        self.snapshot: Snapshot | None = None

    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.start.offset

    def apply(self, operation: tuple[str, object]) -> None:
        kind, value = operation
        if kind == "append":
            assert isinstance(value, Batch)
            assert value.base_offset == self.end_offset()
            self.batches.append(value)
        elif kind == "truncate":
            assert isinstance(value, int)
            self.batches = [batch for batch in self.batches if batch.base_offset < value]
        else:
            raise AssertionError(kind)

    def copy(self) -> DiskImage:
        other = DiskImage()
        other.saved, other.start, other.snapshot = self.saved, self.start, self.snapshot
        other.batches = list(self.batches)
        return other

    def summary(self) -> LogSummary:
        epochs: list[tuple[int, int]] = []
        for batch in self.batches:
            if not epochs or batch.epoch > epochs[-1][0]:
                epochs.append((batch.epoch, batch.base_offset))
        snapshot = None if self.snapshot is None else self.snapshot.id
        return LogSummary(
            start=self.start,
            end_offset=self.end_offset(),
            epochs=tuple(epochs),
            snapshot=snapshot,
            voters=tuple(self.voters()),
        )

    def voters(self) -> Iterator[tuple[int, VotersChange]]:
        """Voter sets from the latest snapshot on."""
        end = 0
        if self.snapshot is not None:
            end = self.snapshot.id.offset
            if self.snapshot.voters is not None:
                yield end - 1, self.snapshot.voters
        for batch in self.batches:
            if batch.voters is not None and batch.base_offset >= end:
                yield batch.base_offset, batch.voters


class SimNode:
    """One node: its disk over all lives, and its core in the present one."""

    def __init__(self, world: World, node_id: int, directory_number: int) -> None:
        self.world = world
        self.id = NodeId(node_id)
        self.directory = directory_number
        self.voteless = False
        self.lost: dict[ReplicaKey, list[DiskImage]] = {}
        """What it held, by its name then, each time that it lost something of it."""
        self.durable = DiskImage()
        self.written = DiskImage()
        self.unflushed: list[tuple[str, object]] = []
        self.core: RaftCore | None = None
        self.life = 0
        self.flushes = 0
        self.syncing = False
        self.hold_flush = False
        self.flush_wanted = False
        self.applied: list[tuple[int, int, str]] = []
        self.applied_to = 0
        self.part: tuple[OffsetAndEpoch, bytearray] | None = None
        self.tokens: dict[int, Callable[[Response], None]] = {}
        self.next_token = 0
        self.in_flight: dict[int, SendRequest] = {}
        self.role_seen = ""
        self.tick_at = math.inf

    @property
    def up(self) -> bool:
        return self.core is not None

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.id, directory(self.directory))

    def start(self) -> None:
        assert self.core is None
        self.life += 1
        self.written = self.durable.copy()
        self.unflushed = []
        self.syncing = self.flush_wanted = False
        self.applied, self.applied_to = [], 0
        self.part = None
        self.tokens, self.in_flight = {}, {}
        self.tick_at = math.inf
        snapshot = self.written.snapshot
        if snapshot is not None:
            self.applied, self.applied_to = list(snapshot.values), snapshot.id.offset
        self.core = RaftCore(
            key=self.key,
            cluster_id=CLUSTER,
            voters=self.world.voters,
            config=self.world.config,
            rng=random.Random(self.world.rng.random()),
            log=self.written.summary(),
            saved=self.durable.saved,
            now_ms=self.world.now_ms,
            voteless=self.voteless,
            life=self.life,
            standing=self.world.standing_of(self.id),
        )
        self.role_seen = ""
        self.pump()

    def crash(self, *, keep: float | None = None) -> None:
        """Die; any prefix of what was not flushed survives (`keep` of 0: nothing, of 1: everything)."""
        assert self.core is not None
        fraction = self.world.rng.random() if keep is None else keep
        for operation in self.unflushed[: round(fraction * len(self.unflushed))]:
            self.durable.apply(operation)
        self.core = None
        self.life += 1
        self.hold_flush = False

    def wipe(self, directory_number: int, *, voteless: bool = False) -> None:
        """Lose the disk and format it anew; `voteless`: only the log, and the node knows it (rule A14)."""
        assert self.core is None
        self.lost.setdefault(self.key, []).append(self.durable)
        self.voteless = voteless
        self.durable = DiskImage()
        self.directory = directory_number

    def cut_tail(self, batches: int) -> None:
        """Recovery cuts so many batches off the end, and knows that they may have been acknowledged (rule A15)."""
        assert self.core is None
        self.lost.setdefault(self.key, []).append(self.durable.copy())
        saved = self.durable.saved or ElectionState(0)
        end = max(self.durable.end_offset(), 0 if saved.doubt is None else saved.doubt.offset) + 3
        for _ in range(batches):
            if self.durable.batches:
                self.durable.batches.pop()
        self.durable.saved = replace(saved, doubt=OffsetAndEpoch(end, saved.epoch))

    @property
    def in_doubt(self) -> bool:
        return self.durable.saved is not None and self.durable.saved.doubt is not None

    def acknowledged(self, key: ReplicaKey) -> list[DiskImage]:
        """The disks on whose strength a replica of this node may be counted: what a voter held when it lost it was
        acknowledged. Until its vote is taken, or its doubt has ended, it counts as one that is down."""
        images = [self.durable] if key.admits(self.key) else []
        return images + (self.lost.get(key, []) if not images or self.in_doubt else [])

    # --- running -----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        while self.core is not None:
            ready = self.core.ready()
            self.world.after_ready(self, ready)
            if ready.empty:
                break
            self.carry_out(ready)
        if self.core is not None:
            self.world.arm(self)

    def carry_out(self, ready: Ready) -> None:
        assert self.core is not None
        if ready.persist is not None:
            self.durable.saved = self.written.saved = ready.persist
            self.world.trace(f"{self.id} persists {describe_election(ready.persist)}")
        for action in ready.log:
            if isinstance(action, Append):
                self.operate(("append", action.batch))
                batch = action.batch
                self.world.trace(f"{self.id} writes {text(batch.data)} at {batch.base_offset} in epoch {batch.epoch}")
            elif isinstance(action, TruncateTo):
                self.operate(("truncate", action.offset))
                self.world.trace(f"{self.id} truncates to {action.offset}")
            elif isinstance(action, StoreSnapshotChunk):
                if action.position == 0:
                    self.part = (action.snapshot, bytearray())
                assert self.part is not None
                assert self.part[0] == action.snapshot
                self.part[1][action.position :] = action.data
            else:
                self.install(action.snapshot)
        if ready.flush:
            self.begin_flush()
        for message in ready.send:
            if isinstance(message, SendRequest):
                self.in_flight[message.request_id] = message
                self.world.send_request(self, self.telling(message))
            else:
                self.answer(message)
        if ready.high_watermark is not None:
            self.world.trace(f"{self.id} commits below {ready.high_watermark}")
            self.apply(ready.high_watermark)

    def telling(self, message: SendRequest) -> SendRequest:
        """The request with this node's address, as the driver adds it."""
        if isinstance(message.request, BeginQuorumEpochRequest) and self.core is not None and self.core.voters.dynamic:
            return replace(message, request=replace(message.request, leader_at=endpoint_of(self.id)))
        return message

    def operate(self, operation: tuple[str, object]) -> None:
        self.written.apply(operation)
        self.unflushed.append(operation)

    def install(self, snapshot: OffsetAndEpoch) -> None:
        """Freeze, truncate fully, reload."""
        assert self.core is not None
        assert self.part is not None
        values, said = eval(bytes(self.part[1]).decode())
        voters = unplain(said)
        assert not isinstance(self.core.role, Leader), "LeaderNeverLoadSnapshot"
        for image in (self.durable, self.written):
            image.snapshot = Snapshot(snapshot, values, voters)
            image.start = snapshot
            image.batches = []
        self.unflushed = []
        self.syncing = False
        self.flushes += 1  # a flush under way covers nothing any more
        self.world.trace(f"{self.id} installs snapshot {snapshot}")
        self.applied, self.applied_to = list(values), snapshot.offset
        self.core.snapshot_installed(snapshot, self.world.now_ms, voters)

    def begin_flush(self) -> None:
        if self.syncing or self.hold_flush:
            self.flush_wanted = True
            return
        self.syncing, self.flush_wanted = True, False
        count, life, flush = len(self.unflushed), self.life, self.flushes
        durable_to = [self.written.end_offset()]

        def end() -> None:
            if self.life != life or self.flushes != flush or self.core is None:
                return
            self.syncing = False
            for operation in self.unflushed[:count]:
                self.durable.apply(operation)
            for operation in self.unflushed[count:]:
                if operation[0] == "truncate":
                    assert isinstance(operation[1], int)
                    durable_to[0] = min(durable_to[0], operation[1])
            del self.unflushed[:count]
            self.core.flushed(durable_to[0], self.world.now_ms)
            self.world.trace(f"{self.id} has flushed to {durable_to[0]}")
            if self.flush_wanted:
                self.begin_flush()
            self.pump()

        self.world.after(self.world.flush_ms(), end)

    def release_flush(self) -> None:
        self.hold_flush = False
        if self.flush_wanted:
            self.begin_flush()

    def apply(self, high_watermark: int) -> None:
        for batch in self.written.batches:
            if self.applied_to <= batch.base_offset < high_watermark:
                for offset in range(batch.base_offset, batch.next_offset):
                    entry = (offset, batch.epoch, text(batch.data))
                    self.applied.append(entry)
                    self.world.applied(self, entry)
                self.applied_to = batch.next_offset

    def tick(self) -> None:
        if self.core is not None:
            self.core.tick(self.world.now_ms)
            self.pump()

    # --- messages ----------------------------------------------------------------------------------------------------

    def receive(self, request: Request, reply: Callable[[Response], None]) -> None:
        assert self.core is not None
        self.next_token += 1
        self.tokens[self.next_token] = reply
        self.core.step(RequestReceived(self.next_token, request), self.world.now_ms)
        self.pump()

    def answer(self, message: Reply) -> None:
        reply = self.tokens.pop(message.token)
        response = message.response
        if self.core is not None and self.core.voters.dynamic and response.leader_id is not None:
            response = replace(response, leader_at=endpoint_of(response.leader_id))
        if isinstance(message.read, ReadRange):
            assert isinstance(response, FetchResponse)
            batches = [batch for batch in self.written.batches if batch.base_offset >= message.read.offset]
            response = replace(response, batches=tuple(batches[: self.world.batches_max]))
        elif isinstance(message.read, ReadSnapshot):
            assert isinstance(response, FetchSnapshotResponse)
            snapshot = self.written.snapshot
            if snapshot is None or snapshot.id != message.read.snapshot:
                response = replace(response, error=ErrorCode.SNAPSHOT_NOT_FOUND)
            else:
                data = repr((snapshot.values, plain(snapshot.voters))).encode()
                chunk = data[message.read.position :][: self.world.chunk_bytes]
                response = replace(response, size=len(data), position=message.read.position, data=chunk)
        reply(response)

    def conclude(self, request_id: int, outcome: ResponseReceived | RequestFailed) -> None:
        """The end of a call, once."""
        if self.core is not None and self.in_flight.pop(request_id, None) is not None:
            self.core.step(outcome, self.world.now_ms)
            self.pump()

    # --- what a test does --------------------------------------------------------------------------------------------

    def append(self, value: str) -> tuple[int, int] | None:
        """Append if leading; returns (offset, epoch)."""
        if self.core is None or self.core.leading is None:
            return None
        base = self.core.log.end_offset
        epoch = self.core.epoch
        self.core.append(Batch(base, base + 1, epoch, value.encode()), self.world.now_ms)
        self.pump()
        return base, epoch

    def take_snapshot(self, *, delete_log: bool = True) -> None:
        """A snapshot of all that was applied."""
        assert self.core is not None
        if not self.applied or (self.written.snapshot and self.applied_to <= self.written.snapshot.id.offset):
            return
        last = self.applied[-1]
        said = self.core.log.voters_at(self.applied_to)
        snapshot = Snapshot(OffsetAndEpoch(self.applied_to, last[1]), tuple(self.applied), said)
        start = snapshot.id if delete_log else self.core.log.start
        for image in (self.durable, self.written):
            image.snapshot = snapshot
        if delete_log:
            self.written.start = start
            self.written.batches = [batch for batch in self.written.batches if batch.base_offset >= start.offset]
            # the durable image keeps what it has until the next start, as segment files do
            if self.durable.end_offset() >= start.offset:
                self.durable.start = start
                self.durable.batches = [b for b in self.durable.batches if b.base_offset >= start.offset]
            else:
                self.durable.start, self.durable.batches = start, []
                self.unflushed = [
                    operation
                    for operation in self.unflushed
                    if isinstance(operation[1], Batch) and operation[1].base_offset >= start.offset
                ]
        self.core.snapshot_taken(snapshot.id, start)
        self.world.trace(f"{self.id} takes snapshot {snapshot.id}")


def describe_election(state: ElectionState) -> str:
    parts = [f"epoch {state.epoch}"]
    if state.leader_id is not None:
        parts.append(f"leader {state.leader_id}")
    if state.voted_for is not None:
        parts.append(f"vote for {state.voted_for.node_id}")
    return ", ".join(parts)
