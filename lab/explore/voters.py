"""One voter of the explored quorum: the production core, and a disk that forgets what was not synced."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, NamedTuple

from lab.explore.model import NODES
from lab.explore.values import Codec, Fresh
from strandline.controller.raft.candidate import Candidate
from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.core import RaftCore
from strandline.controller.raft.election import VoteRound
from strandline.controller.raft.fetching import FetchLoop
from strandline.controller.raft.follower import Follower
from strandline.controller.raft.leader import Leader, ReplicaProgress
from strandline.controller.raft.log_summary import EMPTY, LogSummary
from strandline.controller.raft.messages import (
    Batch,
    EndQuorumEpochRequest,
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
)
from strandline.controller.raft.node import QuorumNode, Sent
from strandline.controller.raft.prospective import Prospective
from strandline.controller.raft.ready import Append, ElectionState, InstallSnapshot, Ready, StoreSnapshotChunk
from strandline.controller.raft.resigned import Resigned
from strandline.controller.raft.role import Role
from strandline.controller.raft.transitions import RoleKind
from strandline.controller.raft.unattached import Unattached
from strandline.controller.raft.voters import VoterSet
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId

CLUSTER = "explored"
NOW_MS = 0.0
"""Time stands still. A timer fires by being brought forward: see `TIMERS`."""

PENDING_MS = 1.0
"""Every deadline is some time ahead: which comes first is a choice."""

TIMERS = {
    RoleKind.UNATTACHED: "_election_deadline_ms",
    RoleKind.PROSPECTIVE: "_election_deadline_ms",
    RoleKind.CANDIDATE: "_election_deadline_ms",
    RoleKind.FOLLOWER: "_fetch_deadline_ms",
    RoleKind.LEADER: "_check_quorum_deadline_ms",
    RoleKind.RESIGNED: "_election_deadline_ms",
}
"""The timer of each role whose end changes something; calls that failed are repeated at once."""

_CALL_AT_HAND = 1
"""The id of the call that is answered in this step: ids only tell calls apart, and would make equal states differ."""

_STAY = 1
"""The number of the present stay in a role, likewise."""


class _Half(random.Random):
    """Generator that always draws one half: chance decides only how long voters wait, and waits are choices here."""

    def random(self) -> float:
        return 0.5


VOTERS = VoterSet([ReplicaKey(node, None) for node in NODES])
CONFIG = RaftConfig(retry_backoff_ms=0)
CHANCE = _Half()


def voter_codec() -> Codec:
    """Codec of a voter's state; what only says how long it waits is left out."""
    waits: dict[tuple[type, str], Any] = {
        (role, "_election_deadline_ms"): PENDING_MS for role in (Unattached, Prospective, Candidate, Resigned)
    }
    return Codec(
        fixed={
            **waits,
            (QuorumNode, "cluster_id"): CLUSTER,
            (QuorumNode, "voters"): VOTERS,
            (QuorumNode, "_configured"): VOTERS,
            (QuorumNode, "_notices"): Fresh(list),
            (QuorumNode, "proven_epoch"): 0,
            (QuorumNode, "_next_proof_ms"): NOW_MS,
            (Leader, "_voter_keys"): VOTERS.keys,
            (QuorumNode, "config"): CONFIG,
            (QuorumNode, "rng"): CHANCE,
            (QuorumNode, "rounds_lost"): 0,
            (QuorumNode, "_in_flight"): Fresh(dict),
            (QuorumNode, "_next_request_id"): _CALL_AT_HAND,
            (QuorumNode, "stay"): _STAY,
            (RaftCore, "_now_ms"): NOW_MS,
            (Follower, "_fetch_deadline_ms"): PENDING_MS,
            (Follower, "_patience_ms"): PENDING_MS,
            (FetchLoop, "_failures"): 0,
            (FetchLoop, "_retry_at_ms"): NOW_MS,
            (Leader, "_check_quorum_deadline_ms"): PENDING_MS,
            (Leader, "_granting"): (),
            (Resigned, "_failures"): Fresh(dict),
            (ReplicaProgress, "begin_failures"): 0,
            (ReplicaProgress, "last_fetch_ms"): NOW_MS,
            (ReplicaProgress, "last_caught_up_ms"): NOW_MS,
            (ReplicaProgress, "leader_end_at_last_fetch"): -1,
        },
        normal={
            (FetchLoop, "_in_flight"): lambda call: None if call is None else _CALL_AT_HAND,
            (VoteRound, "_failed"): lambda failed: dict.fromkeys(failed, 1),
        },
        unordered={
            (Resigned, "_successors"): lambda key: key.node_id,
            (EndQuorumEpochRequest, "preferred_candidates"): lambda key: key.node_id,
        },
    )


class Answered(NamedTuple):
    """An answer that left a voter, to whom it had asked under `token`."""

    token: Any
    response: Response


class Written(NamedTuple):
    """Something written that no sync has covered yet: a batch at the log's end, or a cut at an offset."""

    batch: Batch | None
    cut_at: int = -1


class Voter:
    """One machine of the quorum. `core` is None while no process runs.

    Attributes:
        life: how many processes have run here.
        saved: the quorum-state file, always durable.
        disk: the batches that survive a power cut; start: where they begin; snapshot: the newest on the disk.
        unsynced: what was written since, in order; the first `syncing` of it are covered by the sync under way (-1:
            there is none).
    """

    __slots__ = ("core", "disk", "life", "node", "saved", "snapshot", "start", "syncing", "unsynced")

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.life = 0
        self.core: RaftCore | None = None
        self.saved: ElectionState | None = None
        self.disk: tuple[Batch, ...] = ()
        self.start = EMPTY
        self.snapshot: OffsetAndEpoch | None = None
        self.unsynced: tuple[Written, ...] = ()
        self.syncing = -1

    # What it is

    @property
    def log(self) -> tuple[Batch, ...]:
        """The log as the process sees it."""
        return _after(self.disk, self.unsynced)

    @property
    def role(self) -> RoleKind | None:
        """None while no process runs."""
        return None if self.core is None else self.core.role.kind

    @property
    def role_object(self) -> Role:
        """The present stay in a role."""
        return self._core().role

    # What happens to it

    def start_process(self, *, proven: bool = True) -> list[Any]:
        """Start a process on what the disk holds, and sync that before anything counts on it. `proven`: nothing was
        there that is gone, as far as others may rely on it."""
        epochs: list[tuple[int, int]] = []
        for batch in self.disk:
            if not epochs or batch.epoch > epochs[-1][0]:
                epochs.append((batch.epoch, batch.base_offset))
        end = self.disk[-1].next_offset if self.disk else self.start.offset
        log = LogSummary(start=self.start, end_offset=end, epochs=tuple(epochs), snapshot=self.snapshot)
        self.life += 1
        self.core = RaftCore(
            key=ReplicaKey(self.node, None),
            cluster_id=CLUSTER,
            voters=VOTERS,
            config=CONFIG,
            rng=CHANCE,
            log=log,
            saved=self.saved,
            now_ms=NOW_MS,
            life=self.life,
            proven=proven,
        )
        return self._carry_out()

    def crash(self, kept: int) -> list[Any]:
        """End the process and start another one; of what was not synced the first `kept` writes are there
        afterwards. Who was doubted still is: no stop was clean."""
        doubted = self._core().node.unproven_until_ms > NOW_MS
        self.disk = _after(self.disk, self.unsynced[:kept])
        self.unsynced = ()
        self.syncing = -1
        return self.start_process(proven=not doubted)

    def zeroed(self, lost: int) -> list[Any]:
        """Crash as `crash` does, and the disk does not give back the newest `lost` batches that it had synced.

        Time stands still, so that the end of this log is doubted until it has caught up: the wait of rule A22 is taken
        to be long enough for the others to be there.
        """
        self.disk = self.disk[:-lost]
        self.unsynced = ()
        self.syncing = -1
        return self.start_process(proven=False)

    def time_out(self) -> list[Any]:
        """Let the timer of its role run out."""
        core = self._core()
        setattr(core.role, TIMERS[core.role.kind], NOW_MS)
        core.tick(NOW_MS)
        return self._carry_out()

    def append(self, value: int) -> list[Any]:
        """Append a client's record, as the leader."""
        core = self._core()
        end = core.log.end_offset
        core.append(Batch(end, end + 1, core.epoch, bytes([value])), NOW_MS)
        return self._carry_out()

    def synced(self) -> list[Any]:
        """End the sync under way; another begins if more was written meanwhile."""
        core = self._core()
        covered, self.unsynced = self.unsynced[: self.syncing], self.unsynced[self.syncing :]
        self.disk = _after(self.disk, covered)
        self.syncing = len(self.unsynced) or -1
        core.flushed(self._durable_end(), NOW_MS)
        return self._carry_out()

    def asked(self, token: Any, request: Request) -> list[Any]:
        """Take a peer's request."""
        self._core().step(RequestReceived(token, request), NOW_MS)
        return self._carry_out()

    def answered(self, target: NodeId, request: Request, response: Response, *, current: bool) -> list[Any]:
        """Take a peer's answer; `current`: in the stay in a role that asked for it."""
        self._awaits(target, request, current)
        self._core().step(ResponseReceived(_CALL_AT_HAND, response), NOW_MS)
        return self._carry_out()

    def failed(self, target: NodeId, request: Request, *, broken: bool) -> list[Any]:
        """Fail a call of its present role."""
        self._awaits(target, request, current=True)
        self._core().step(RequestFailed(_CALL_AT_HAND, broken), NOW_MS)
        return self._carry_out()

    def take_snapshot(self) -> list[Any]:
        """Write a snapshot of everything committed, and delete the log below it."""
        core = self._core()
        offset = core.high_watermark
        snapshot = OffsetAndEpoch(offset, core.log.epoch_before(offset))
        core.snapshot_taken(snapshot, snapshot)
        self.snapshot = self.start = snapshot
        self.disk = tuple(batch for batch in self.disk if batch.base_offset >= offset)
        return self._carry_out()

    def _awaits(self, target: NodeId, request: Request, current: bool) -> None:
        sent = Sent(SendRequest(_CALL_AT_HAND, target, request), _STAY if current else _STAY - 1)
        node = self._core().node
        node.stay, node._in_flight = _STAY, {_CALL_AT_HAND: sent}

    def _core(self) -> RaftCore:
        assert self.core is not None
        return self.core

    def _durable_end(self) -> int:
        """End up to which the disk agrees with the log as it is."""
        end = self.start.offset
        for held, written in zip(self.disk, self.log, strict=False):
            if held != written:
                break
            end = held.next_offset
        return end

    # What the core orders

    def _carry_out(self) -> list[Any]:
        """Carry out what the core wants done, in its order; requests and answers are left for the network."""
        core = self._core()
        sent: list[Any] = []
        while not (ready := core.ready()).empty:
            self._obey(ready, sent)
        return sent

    def _obey(self, ready: Ready, sent: list[Any]) -> None:
        if ready.persist is not None:
            self.saved = ready.persist
        for action in ready.log:
            if isinstance(action, Append):
                self.unsynced += (Written(_plain(action.batch)),)
            elif isinstance(action, InstallSnapshot):
                self._install(action.snapshot)
            elif not isinstance(action, StoreSnapshotChunk):
                self.unsynced += (Written(None, action.offset),)
        if ready.flush and self.syncing < 0 and self.unsynced:
            self.syncing = len(self.unsynced)
        for message in ready.send:
            sent.append(self._answer(message) if isinstance(message, Reply) else message)

    def _install(self, snapshot: OffsetAndEpoch) -> None:
        self.snapshot = self.start = snapshot
        self.disk, self.unsynced, self.syncing = (), (), -1
        self._core().snapshot_installed(snapshot, NOW_MS)

    def _answer(self, reply: Reply) -> Answered:
        response = reply.response
        if isinstance(reply.read, ReadRange):
            assert isinstance(response, FetchResponse)
            offset = reply.read.offset
            batches = tuple(batch for batch in self.log if batch.base_offset >= offset)
            response = replace(response, batches=batches[:1])  # as if the next one were beyond the limit of bytes
        elif isinstance(reply.read, ReadSnapshot):
            assert isinstance(response, FetchSnapshotResponse)
            if self.snapshot != reply.read.snapshot:
                response = replace(response, error=ErrorCode.SNAPSHOT_NOT_FOUND)
            else:
                response = replace(response, size=1, position=reply.read.position, data=b"s"[reply.read.position :])
        return Answered(reply.token, response)


def _plain(batch: Batch) -> Batch:
    """Batch without who voted for the leader, which makes no two logs differ."""
    if not isinstance(batch.data, LeaderChange):
        return batch
    return Batch(batch.base_offset, batch.next_offset, batch.epoch, LeaderChange(batch.data.leader_id, (), ()))


def _after(batches: tuple[Batch, ...], written: tuple[Written, ...]) -> tuple[Batch, ...]:
    """A log after writes."""
    for one in written:
        if one.batch is None:
            batches = tuple(batch for batch in batches if batch.next_offset <= one.cut_at)
        else:
            batches = (*batches, one.batch)
    return batches


CODEC = voter_codec()
