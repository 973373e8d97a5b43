"""The quorum core: messages, ticks and flush reports in, an ordered `Ready` out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from strandline.controller.raft.candidate import Candidate
from strandline.controller.raft.config import EPOCH_MAX, PROOF_INTERVAL_MS, RaftConfig
from strandline.controller.raft.election import election_backoff_ms, election_timeout_ms
from strandline.controller.raft.follower import Follower
from strandline.controller.raft.leader import Leader
from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import (
    Batch,
    Inbound,
    OffsetAndEpoch,
    Outbound,
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
    VoteResponse,
    VotersChange,
)
from strandline.controller.raft.observer import Observer
from strandline.controller.raft.prospective import Prospective
from strandline.controller.raft.ready import Append, ElectionState, LogAction, Ready, TruncateTo
from strandline.controller.raft.requests import handle_request
from strandline.controller.raft.resigned import Resigned
from strandline.controller.raft.restart import initial_role
from strandline.controller.raft.state import LEGAL, Role
from strandline.controller.raft.unattached import Unattached
from strandline.controller.raft.voter_changes import record_directories
from strandline.controller.raft.voters import VoterSet
from strandline.proto.ensure import ensure
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError
from strandline.proto.ids import NodeId
from strandline.proto.marks import mark
from strandline.proto.ports import Rng


@dataclass(frozen=True, slots=True)
class _Sent:
    request: SendRequest
    role: Role


class RaftCore:
    """One node of the quorum.

    Usage: after any of `step`, `tick`, `append`, `flushed`, `resign` and the `snapshot_*` reports, carry out
    `ready()`; call `tick` at `deadline_ms()`.

    Invariants:
    - the epoch never goes back (Kafka's MonotonicEpoch), nor does the high watermark (MonotonicHighWatermark);
    - one leader an epoch, as far as this node can see: who names another is not believed;
    - no request lifts the epoch more than `EPOCH_LEAD_MAX` above the last that was proven (rule A17);
    - no record at or above the high watermark is handed to the state machine, none below it is truncated.
    """

    def __init__(
        self,
        *,
        key: ReplicaKey,
        cluster_id: str,
        voters: VoterSet,
        config: RaftConfig,
        rng: Rng,
        log: LogSummary,
        saved: ElectionState | None,
        now_ms: float,
        voteless: bool = False,
        life: int = 0,
    ) -> None:
        """`saved` is the quorum-state file's content, None if there is none; `log` is what recovery found; `voteless`
        says that this replica has lost its log, and votes only where its directory is named (rule A14); `life` is
        greater at each start."""
        self.key = key
        self.voteless = voteless
        self.life = life
        self.doubt = None if saved is None else saved.doubt
        """Up to where this node may have acknowledged what recovery cut; None once it has caught up (rule A15)."""
        self._doubt_ends_at: int | None = None
        self.cluster_id = cluster_id
        self._configured = voters
        self.voters = voters
        """The latest voter set in the log, committed or not; the configured one while the log says nothing."""
        self.config = config
        self.rng = rng
        self.log = log
        self._voters_moved()
        self.rounds_lost = 0
        self.high_watermark = log.snapshot.offset if log.snapshot is not None else 0
        self._now_ms = now_ms
        self._saved = saved
        self._persist: ElectionState | None = None
        self._log_actions: list[LogAction] = []
        self._flush = False
        self._send: list[Outbound] = []
        self._notices: list[str] = []
        self._watermark_moved = self.high_watermark > 0
        self._next_request_id = 0
        self._in_flight: dict[int, _Sent] = {}
        self.role: Role = initial_role(self, saved or ElectionState(0), now_ms)
        self.proven_epoch = self.role.epoch
        """The newest epoch that did not merely stand in a request: found at the start, opened by this node, or told in
        the answer of a voter that it asked; the newest but for the last `PROOF_INTERVAL_MS`."""
        self._next_proof_ms = -math.inf
        self._remember(self.role.election())
        self.role.entered(now_ms)

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self.role.epoch

    @property
    def leader_id(self) -> NodeId | None:
        """The known leader of the current epoch."""
        return self.role.leader_id

    @property
    def voters_offset(self) -> int:
        """Where in the log the voter set stands; 0 for the configured one (an epoch's record stands there)."""
        return max(0, self.log.voters[0])

    @property
    def is_voter(self) -> bool:
        """Whether this very replica, directory id included, is in the voter set."""
        return self.voters.is_voter(self.key, voteless=self.voteless)

    @property
    def leading(self) -> Leader | None:
        """The leader's role while this node leads."""
        return self.role if isinstance(self.role, Leader) else None

    def deadline_ms(self) -> float:
        """When `tick` is due; infinity for never."""
        return self.role.deadline_ms()

    # --- inputs ------------------------------------------------------------------------------------------------------

    def step(self, message: Inbound, now_ms: float) -> None:
        """Take in one message."""
        self._now_ms = now_ms
        if isinstance(message, RequestReceived):
            handle_request(self, message.token, message.request, now_ms)
        elif isinstance(message, ResponseReceived):
            self._on_response(message, now_ms)
        else:
            self._on_failure(message, now_ms)

    def tick(self, now_ms: float) -> None:
        """Time passed; harmless when early."""
        self._now_ms = now_ms
        self.role.tick(now_ms)

    def append(self, batch: Batch, now_ms: float) -> None:
        """The leader appends. The batch must continue the log, in the current epoch."""
        self._now_ms = now_ms
        ensure(batch.epoch == self.epoch, "AppendsInItsEpoch", batch=batch.epoch, epoch=self.epoch)
        self.append_own(batch)

    def flushed(self, offset: int, now_ms: float) -> None:
        """A sync of the log ended that covers everything before `offset`."""
        self._now_ms = now_ms
        self.log.flushed(offset)
        if isinstance(self.role, Leader):
            self.role.update_high_watermark()
        self._end_doubt()

    def append_failed(self, end_offset: int, now_ms: float) -> None:
        """Writing ordered batches failed; the log really ends at `end_offset`. A leader steps down: it must not write
        something else at an (offset, epoch) that others may hold (schedule 24). A fetcher tries again."""
        self._now_ms = now_ms
        self.log.truncate_to(end_offset)
        self._voters_moved()
        self.high_watermark = min(self.high_watermark, end_offset)
        if isinstance(self.role, Leader):
            self.resign(now_ms)
        elif isinstance(self.role, Follower | Observer):
            self.role.fetching.failed(now_ms)

    def resign(self, now_ms: float) -> None:
        """Give up leading; nothing happens if this node does not lead."""
        self._now_ms = now_ms
        if isinstance(self.role, Leader):
            successors = self.role.successors()
            deadline_ms = now_ms + election_timeout_ms(self) if successors else now_ms
            self._move(Resigned(self, self.epoch, successors=successors, election_deadline_ms=deadline_ms), now_ms)

    def snapshot_taken(self, snapshot: OffsetAndEpoch, start: OffsetAndEpoch) -> None:
        """A local snapshot is durable, and the log below `start` (the end of a kept snapshot) was deleted."""
        # A snapshot holds committed records alone (rule A10).
        ensure(snapshot.offset <= self.high_watermark, "CommittedSnapshot", snapshot=snapshot, hw=self.high_watermark)
        self.log.snapshot_taken(snapshot)
        self.log.advance_start(start)

    def snapshot_installed(
        self, snapshot: OffsetAndEpoch, now_ms: float, voters: tuple[ReplicaKey, ...] | None = None
    ) -> None:
        """The fetched snapshot is durable, has replaced the log, and is about to be loaded; `voters` as it says."""
        self._now_ms = now_ms
        self.log.reset_to(snapshot, voters)
        self._voters_moved()
        self.advance_high_watermark(snapshot.offset)
        if isinstance(self.role, Follower | Observer):
            self.role.fetching.snapshot_installed()

    def snapshot_refused(self, now_ms: float) -> None:
        """The fetched snapshot is damaged and was dropped."""
        self._now_ms = now_ms
        if isinstance(self.role, Follower | Observer):
            self.role.fetching.snapshot_refused(now_ms)

    def ready(self) -> Ready:
        """Drain the outputs."""
        self._fit_role()
        record_directories(self, self._now_ms)
        self.role.pump(self._now_ms)
        self.log.check()
        self.role.check()
        ready = Ready(
            persist=self._persist,
            log=tuple(self._log_actions),
            flush=self._flush,
            send=tuple(self._send),
            high_watermark=self.high_watermark if self._watermark_moved else None,
            notices=tuple(self._notices),
        )
        self._notices.clear()
        self._persist = None
        self._log_actions.clear()
        self._flush = False
        self._send.clear()
        self._watermark_moved = False
        return ready

    # --- answers of peers --------------------------------------------------------------------------------------------

    def _on_response(self, message: ResponseReceived, now_ms: float) -> None:
        sent = self._in_flight.pop(message.request_id, None)
        if sent is None:
            return
        response = message.response
        before = self.role
        if response.error is not ErrorCode.INCONSISTENT_CLUSTER_ID:
            self.learn(response.epoch, response.leader_id, now_ms)
            if response.epoch == self.epoch:
                self._prove(self.epoch)
        if self.role is not before or sent.role is not before:
            return
        if response.epoch == self.epoch or isinstance(response, VoteResponse):
            self.role.on_response(sent.request, response, now_ms)
        else:
            self.role.on_failure(sent.request, broken=False, now_ms=now_ms)

    def _on_failure(self, message: RequestFailed, now_ms: float) -> None:
        sent = self._in_flight.pop(message.request_id, None)
        if sent is not None and sent.role is self.role:
            self.role.on_failure(sent.request, message.broken, now_ms)

    def learn(self, epoch: int, leader_id: NodeId | None, now_ms: float) -> bool:
        """Take over a higher epoch, or the leader of this one, from what a peer says.

        False: it cannot be so, and is noticed and not believed: an epoch that cannot be reached, or another leader in
        an epoch that has one.
        """
        if leader_id is not None and (leader_id == self.key.node_id or leader_id not in self.voters.places):
            leader_id = None
        if epoch > EPOCH_MAX:
            self.notice(f"a peer told of epoch {epoch}, beyond the last that there can be")
            return False
        if epoch > self.epoch:
            if leader_id is not None:
                self.follow(epoch, leader_id, now_ms)
            else:
                self.become_unattached(epoch, now_ms)
        elif epoch == self.epoch and leader_id is not None and not isinstance(self.role, Resigned):
            if self.leader_id is None:
                self.follow(epoch, leader_id, now_ms)
            elif self.leader_id != leader_id:
                mark("second-leader-refused")
                self.notice(
                    f"a peer names node {leader_id} as the leader of epoch {epoch}, which node {self.leader_id} leads: "
                    "the peer is wrong, or a voter has forgotten its vote"
                )
                return False
        return True

    # --- transitions (called by roles too) ---------------------------------------------------------------------------

    def become_unattached(self, epoch: int, now_ms: float, *, election_deadline_ms: float | None = None) -> None:
        """A higher epoch without a known leader. A running election timer goes on (rule A3)."""
        ensure(epoch > self.epoch, "MonotonicEpoch", was=self.epoch, now=epoch)
        if not self.is_voter:
            self._move(Observer(self, epoch), now_ms)
            return
        if election_deadline_ms is None:
            election_deadline_ms = self.role.election_deadline_ms()
        if election_deadline_ms is None:
            election_deadline_ms = now_ms + election_timeout_ms(self)
        self._move(Unattached(self, epoch, election_deadline_ms=election_deadline_ms), now_ms)

    def follow(self, epoch: int, leader_id: NodeId, now_ms: float) -> None:
        """A leader became known."""
        if self.is_voter:
            self._move(Follower(self, epoch, leader_id, now_ms=now_ms), now_ms)
        else:
            self._move(Observer(self, epoch, leader_id=leader_id), now_ms)

    def become_prospective(self, now_ms: float) -> None:
        """Ask whether an election would be won."""
        leader_id = self.leader_id
        voted_for = self.role.voted_for if leader_id is None else None
        self._move(Prospective(self, self.epoch, leader_id=leader_id, voted_for=voted_for, now_ms=now_ms), now_ms)

    def lost_pre_vote(self, leader_id: NodeId | None, voted_for: ReplicaKey | None, now_ms: float) -> None:
        """An election would not be won now: try the known leader again, or wait."""
        self.rounds_lost += 1
        if leader_id is not None:
            self.follow(self.epoch, leader_id, now_ms)
        else:
            deadline_ms = now_ms + election_backoff_ms(self)
            role = Unattached(self, self.epoch, election_deadline_ms=deadline_ms, voted_for=voted_for)
            self._move(role, now_ms)

    def become_candidate(self, now_ms: float) -> None:
        """Open a new epoch and vote for oneself in it."""
        epoch = self.next_epoch()
        if epoch is None:
            self.lost_pre_vote(self.leader_id, self.role.voted_for, now_ms)
        else:
            self._move(Candidate(self, epoch, now_ms=now_ms), now_ms)

    def next_epoch(self) -> int | None:
        """The epoch that this node may open; None once there is none left."""
        if self.epoch >= EPOCH_MAX:
            self.notice(f"epoch {self.epoch} is the last: no leader can be elected any more")
            return None
        self._prove(self.epoch + 1)
        return self.epoch + 1

    def _prove(self, epoch: int) -> None:
        if epoch > self.proven_epoch and self._now_ms >= self._next_proof_ms:
            self.proven_epoch = epoch
            self._next_proof_ms = self._now_ms + PROOF_INTERVAL_MS

    def become_leader(self, granting: tuple[NodeId, ...], now_ms: float) -> None:
        """A majority voted for this node."""
        ensure(len(granting) >= self.voters.majority, "ElectedByAMajority", granting=granting)
        self._move(Leader(self, self.epoch, granting, now_ms=now_ms), now_ms)

    def vote_for(self, candidate: ReplicaKey, now_ms: float) -> None:
        """Granting resets the election timer: the candidate is at least as good as this node."""
        role: Role
        if self.is_voter:
            deadline_ms = now_ms + election_timeout_ms(self)
            role = Unattached(self, self.epoch, election_deadline_ms=deadline_ms, voted_for=candidate)
        else:
            role = Observer(self, self.epoch, voted_for=candidate)
        self._move(role, now_ms)

    def change_voters(self, keys: tuple[ReplicaKey, ...], now_ms: float) -> int:
        """The leader appends a voter set, which counts at once (rule A11); its offset. `voter_changes` judges it."""
        self._now_ms = now_ms
        base = self.log.end_offset
        keys = tuple(sorted(keys, key=lambda key: key.node_id))
        self.append_own(Batch(base, base + 1, self.epoch, VotersChange(keys), keys))
        return base

    def _voters_moved(self) -> None:
        """The log was moved: its latest voter set holds, from its append on; a truncation takes it back (rule A11)."""
        _, keys = self.log.voters
        voters = self._configured if keys is None else self._configured.filled(keys)
        if voters.keys != self.voters.keys:
            mark("voters-changed")
            self.voters = voters

    def _fit_role(self) -> None:
        """What was fetched, or cut, may have made a voter of this observer, or the other way round."""
        role = self.role
        if isinstance(role, Follower) and not self.is_voter:
            self._move(Observer(self, self.epoch, leader_id=role.leader_id), self._now_ms)
        elif isinstance(role, Observer) and self.is_voter:
            if role.leader_id is not None:
                self.follow(self.epoch, role.leader_id, self._now_ms)
            else:
                deadline_ms = self._now_ms + election_timeout_ms(self)
                vote = role.voted_for
                self._move(Unattached(self, self.epoch, election_deadline_ms=deadline_ms, voted_for=vote), self._now_ms)

    def _move(self, role: Role, now_ms: float) -> None:
        move = LEGAL.get((self.role.kind, role.kind))
        if move is None:
            raise FatalError(f"a quorum node may not go from {self.role.kind.value} to {role.kind.value}")
        ensure(role.epoch >= self.epoch, "MonotonicEpoch", was=self.epoch, now=role.epoch)
        before, self.role = self.role, role
        if move.durable:
            self._remember(role.election())
        before.left(now_ms)
        role.entered(now_ms)

    def caught_up_to(self, high_watermark: int) -> None:
        """The own log is a prefix of that of an epoch's leader, and reaches its high watermark: whatever this node once
        acknowledged and lost, and was committed, lies below. That ends its doubt when it is durable."""
        if self.doubt is not None:
            self._doubt_ends_at = high_watermark
            self._end_doubt()

    def _end_doubt(self) -> None:
        if self._doubt_ends_at is not None and self.log.durable_offset >= self._doubt_ends_at:
            mark("doubt-ended")
            self.doubt = self._doubt_ends_at = None
            self._remember(self.role.election())

    def _remember(self, election: ElectionState) -> None:
        election = replace(election, doubt=self.doubt)
        if election != self._saved:
            self._saved = self._persist = election

    # --- outputs (called by roles) -----------------------------------------------------------------------------------

    def notice(self, what: str) -> None:
        """Have a sentence logged that an operator should see."""
        self._notices.append(what)

    def send(self, to: NodeId, request: Request) -> int:
        """Order a call to a peer; returns its id."""
        self._next_request_id += 1
        sent = SendRequest(self._next_request_id, to, request)
        self._in_flight[sent.request_id] = _Sent(sent, self.role)
        self._send.append(sent)
        return sent.request_id

    def reply(self, token: int, response: Response, read: ReadRange | ReadSnapshot | None = None) -> None:
        """Order the answer to a peer's request."""
        self._send.append(Reply(token, response, read))

    def order(self, action: LogAction) -> None:
        """Order a change of the log or of a snapshot being fetched."""
        self._log_actions.append(action)

    def append_own(self, batch: Batch) -> None:
        """Append as leader."""
        leading = self.leading
        if leading is None:
            raise FatalError("internal error: a node that does not lead appended a batch of its own")
        self.log.append(batch)
        self._voters_moved()
        self.order(Append(batch))
        self._flush = True
        leading.appended()

    def append_fetched(self, batch: Batch) -> None:
        """Append what the leader sent."""
        self.log.append(batch)
        self._voters_moved()
        self.order(Append(batch))
        self._flush = True

    def truncate_to(self, offset: int) -> None:
        """Drop a diverging tail, never below the high watermark (rule A8)."""
        ensure(offset >= self.high_watermark, "CommittedStays", cut=offset, high_watermark=self.high_watermark)
        self.log.truncate_to(offset)
        self._doubt_ends_at = None
        self._voters_moved()
        self.order(TruncateTo(offset))

    def advance_high_watermark(self, offset: int) -> None:
        """Everything below `offset` is committed; a lower value is ignored (rule A6)."""
        if offset > self.high_watermark:
            ensure(offset <= self.log.end_offset, "HighWatermarkWithinTheLog", end=self.log.end_offset, now=offset)
            self.high_watermark = offset
            self._watermark_moved = True
