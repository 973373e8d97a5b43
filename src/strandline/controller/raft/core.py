"""The quorum core: messages, ticks and flush reports in, an ordered `Ready` out."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from strandline.controller.raft import requests, voter_changes
from strandline.controller.raft.candidate import Candidate
from strandline.controller.raft.config import EPOCH_MAX, RaftConfig
from strandline.controller.raft.follower import Follower
from strandline.controller.raft.leader import Leader
from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import (
    Batch,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotResponse,
    Inbound,
    OffsetAndEpoch,
    ReplicaKey,
    Request,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    VoteRequest,
    VoteResponse,
    VotersChange,
)
from strandline.controller.raft.node import QuorumNode, Standing
from strandline.controller.raft.observer import Observer
from strandline.controller.raft.prospective import Prospective
from strandline.controller.raft.ready import ElectionState, Ready
from strandline.controller.raft.resigned import Resigned
from strandline.controller.raft.restart import first_move
from strandline.controller.raft.role import Move, Role
from strandline.controller.raft.transitions import TRANSITIONS, Event, RoleKind
from strandline.controller.raft.unattached import Unattached
from strandline.controller.raft.voters import VoterSet
from strandline.proto.ensure import ensure, present
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.marks import mark
from strandline.proto.ports import Rng
from strandline.proto.transitions import next_state

_ROLES: dict[RoleKind, type[Role]] = {
    role.kind: role for role in (Unattached, Prospective, Candidate, Follower, Leader, Resigned, Observer)
}


class RaftCore:
    """One node of the quorum: what outlives its roles (`node`), and its present role.

    Usage: after any of `step`, `tick`, `append`, `flushed`, `resign`, the changes of a voter and the `snapshot_*`
    reports, carry out `ready()`; call `tick` at `deadline_ms()`.

    Invariants:
    - the epoch never goes back (Kafka's MonotonicEpoch);
    - one leader an epoch, as far as this node can see: a peer that names another is not believed;
    - no request lifts the epoch more than `EPOCH_LEAD_MAX` above the last that was proven (rule A17);
    - no record at or above the high watermark is handed to the state machine.
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
        proven: bool = True,
        standing: Standing | None = None,
    ) -> None:
        """Start a node.

        Args:
            voters: the configured ones.
            log: what recovery found.
            saved: the quorum-state file's content, None if there is none.
            now_ms: this node's monotonic time, as in all calls.
            voteless: this replica has lost its log, and votes only where its directory is named (rule A14).
            life: greater at each start.
            proven: the stop before was clean, or there was none: the log ends where it did (rule A22).
            standing: left out: a configured voter may vote, and no other node.
        """
        self.node = QuorumNode(
            key=key,
            cluster_id=cluster_id,
            voters=voters,
            config=config,
            rng=rng,
            log=log,
            saved=saved,
            voteless=voteless,
            life=life,
            proven=proven,
            now_ms=now_ms,
            standing=standing or Standing(may_vote=key.node_id in voters.places),
        )
        self._now_ms = now_ms
        move = first_move(self.node, saved or ElectionState(0), now_ms)
        self.node.proven_epoch = move.epoch
        self.role: Role = self._next_role(None, move)
        self._make(self.role.entered(now_ms))

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
    def leading(self) -> Leader | None:
        """The leader's role while this node leads."""
        return self.role if isinstance(self.role, Leader) else None

    @property
    def key(self) -> ReplicaKey:
        """Node id and directory id of this replica."""
        return self.node.key

    @property
    def log(self) -> LogSummary:
        """The shape of this node's log."""
        return self.node.log

    @property
    def high_watermark(self) -> int:
        """Everything below this offset is committed, as far as this node knows."""
        return self.node.high_watermark

    @property
    def voters(self) -> VoterSet:
        """The latest voter set in the log, committed or not; the configured one while the log has none."""
        return self.node.voters

    @property
    def is_voter(self) -> bool:
        """Whether this very replica, directory id included, is in the voter set."""
        return self.node.is_voter

    def deadline_ms(self) -> float:
        """Time when `tick` is due, in monotonic milliseconds; infinity for never."""
        return self.role.deadline_ms()

    # --- inputs ------------------------------------------------------------------------------------------------------

    def step(self, message: Inbound, now_ms: float) -> None:
        """Take in one message."""
        self._now_ms = now_ms
        if isinstance(message, RequestReceived):
            self._on_request(message.token, message.request)
        elif isinstance(message, ResponseReceived):
            self._on_response(message)
        else:
            self._on_failure(message)
        self._fit_role()

    def tick(self, now_ms: float) -> None:
        """Take in that time has passed; harmless when early."""
        self._now_ms = now_ms
        self._make(self.role.tick(now_ms))

    def append(self, batch: Batch, now_ms: float) -> None:
        """Append as the leader. The batch must continue the log, in the current epoch."""
        self._now_ms = now_ms
        present(self.leading, "LeaderAppends", role=self.role.kind.value).append(batch)

    def flushed(self, offset: int, now_ms: float) -> None:
        """Take in that a sync of the log ended which covers everything before `offset`."""
        self._now_ms = now_ms
        self.node.log.flushed(offset)
        if isinstance(self.role, Leader):
            self.role.update_high_watermark()
        self.node.settle_doubt()

    def append_failed(self, end_offset: int, now_ms: float) -> None:
        """Take in that writing ordered batches failed; the log really ends at `end_offset`. A leader steps down: it
        must not write something else at an (offset, epoch) that others may hold (schedule 24). A fetcher tries
        again."""
        self._now_ms = now_ms
        self.node.append_failed(end_offset)
        if isinstance(self.role, Follower | Observer):
            self.role.fetching.failed(now_ms)
        self._make(self.role.resign(Event.WRITE_FAILED))  # rule A9/leader-stays-after-a-failed-write
        self._fit_role()

    def resign(self, now_ms: float) -> None:
        """Give up leading; nothing happens if this node does not lead."""
        self._now_ms = now_ms
        self._make(self.role.resign(Event.RESIGN_REQUESTED))

    def add_voter(
        self, node_id: NodeId, directory_id: UUID, now_ms: float, endpoint: Endpoint | None = None
    ) -> int | None:
        """Carry out `voter_changes.add_voter` as the leader. Raises KafkaError NOT_CONTROLLER besides."""
        self._now_ms = now_ms
        return voter_changes.add_voter(self._as_leader(), node_id, directory_id, now_ms, endpoint)

    def judge_addition(
        self, node_id: NodeId, directory_id: UUID, now_ms: float, endpoint: Endpoint | None = None
    ) -> None:
        """Tell whether `add_voter` would add that voter now. Raises KafkaError as it does."""
        voter_changes.judged_addition(self._as_leader(), ReplicaKey(node_id, directory_id), endpoint, now_ms)

    def remove_voter(self, node_id: NodeId, directory_id: UUID, now_ms: float) -> int | None:
        """Carry out `voter_changes.remove_voter` as the leader. Raises KafkaError NOT_CONTROLLER besides."""
        self._now_ms = now_ms
        return voter_changes.remove_voter(self._as_leader(), node_id, directory_id, now_ms)

    def update_voter(self, key: ReplicaKey, endpoint: Endpoint | None, levels: range, now_ms: float) -> int | None:
        """Carry out `voter_changes.update_voter` as the leader. Raises KafkaError NOT_CONTROLLER besides."""
        self._now_ms = now_ms
        return voter_changes.update_voter(self._as_leader(), key, endpoint, levels)

    def raise_kraft_version(self, version: int) -> None:
        """The voters are to have this kraft.version, as soon as this node leads and each one's directory is known."""
        self.node.standing = replace(self.node.standing, kraft_version=version)

    def snapshot_taken(self, snapshot: OffsetAndEpoch, start: OffsetAndEpoch) -> None:
        """Take in that a local snapshot is durable, and the log below `start` (the end of a kept snapshot) was
        deleted."""
        # A snapshot holds committed records alone (rule A10).
        # rule A10/snapshot-of-uncommitted-records/2
        ensure(snapshot.offset <= self.high_watermark, "CommittedSnapshot", snapshot=snapshot, hw=self.high_watermark)
        self.node.log.snapshot_taken(snapshot)
        self.node.log.advance_start(start)

    def snapshot_installed(self, snapshot: OffsetAndEpoch, now_ms: float, voters: VotersChange | None = None) -> None:
        """Take in that the fetched snapshot is durable, has replaced the log, and is about to be loaded; `voters` as
        it says."""
        self._now_ms = now_ms
        self.node.snapshot_installed(snapshot, voters)
        if isinstance(self.role, Follower | Observer):
            self.role.fetching.snapshot_installed()
        self._fit_role()

    def snapshot_refused(self, now_ms: float) -> None:
        """Take in that the fetched snapshot is damaged and was dropped."""
        self._now_ms = now_ms
        if isinstance(self.role, Follower | Observer):
            self.role.fetching.snapshot_refused(now_ms)

    def ready(self) -> Ready:
        """Drain the outputs."""
        if isinstance(self.role, Leader):
            voter_changes.record_what_is_known(self.role)
        self.role.pump(self._now_ms)
        self.node.log.check()
        self.role.check()
        return self.node.drain()

    # --- requests of peers -------------------------------------------------------------------------------------------

    def _on_request(self, token: int, request: Request) -> None:
        node, role = self.node, self.role
        error = requests.judge(node, role, request)
        if isinstance(request, VoteRequest):
            granted = error is ErrorCode.NONE and self._on_vote(request)
            in_doubt = node.is_in_doubt(request.last, self._now_ms)
            node.reply(token, VoteResponse(error, self.epoch, self.leader_id, granted, in_doubt))
        elif isinstance(request, BeginQuorumEpochRequest):
            told_where = request.leader_at is not None
            if error is ErrorCode.NONE and not self._learn(request.epoch, request.leader_id, told_where=told_where):
                error = ErrorCode.INVALID_REQUEST
            node.reply(token, BeginQuorumEpochResponse(error, self.epoch, self.leader_id))
        elif isinstance(request, EndQuorumEpochRequest):
            if error is ErrorCode.NONE:
                error = self._on_end(request)
            node.reply(token, EndQuorumEpochResponse(error, self.epoch, self.leader_id))
        elif isinstance(request, FetchRequest):
            if error is ErrorCode.NONE:
                self._make(role.on_fetch(token, request, self._now_ms))
            else:
                node.reply(token, FetchResponse(error, self.epoch, self.leader_id))
        elif error is ErrorCode.NONE:
            role.on_fetch_snapshot(token, request, self._now_ms)
        else:
            node.reply(token, FetchSnapshotResponse(error, self.epoch, self.leader_id, request.snapshot))

    def _on_vote(self, request: VoteRequest) -> bool:
        """Whether the vote is granted (rule A3: one vote an epoch, for a log not below its
        own; rule A4: no pre-vote against a working leader)."""
        if request.candidate_epoch > self.epoch:
            self._adopt(request.candidate_epoch, None)
        up_to_date = request.last.at_least(self.node.log.end)  # rule A3/vote-for-any-log
        granted = self.role.may_grant(request, up_to_date)
        if not up_to_date:
            mark("vote-refused-log-behind")
        elif request.pre_vote and not granted:
            mark("pre-vote-refused")
        # rule A4/pre-vote-is-a-vote
        if granted and not request.pre_vote and self.role.voted_for != request.candidate:
            # The election timer starts anew: the candidate is at least as good as this node.
            # rule A3/vote-does-not-reset-the-election-timer
            self._make(Move(Event.VOTE_GRANTED, self.epoch, voted_for=request.candidate))
        return granted

    def _on_end(self, request: EndQuorumEpochRequest) -> ErrorCode:
        if not self._learn(request.epoch, request.leader_id):
            return ErrorCode.INVALID_REQUEST
        if self.leader_id == request.leader_id:
            self.role.on_leader_resigned(request, self._now_ms)
        return ErrorCode.NONE

    # --- answers of peers --------------------------------------------------------------------------------------------

    def _on_response(self, message: ResponseReceived) -> None:
        sent = self.node.ended(message.request_id)
        if sent is None:
            return
        response = message.response
        if response.error is not ErrorCode.INCONSISTENT_CLUSTER_ID:
            self._learn(response.epoch, response.leader_id, told_where=response.leader_at is not None)
            if response.epoch == self.epoch:
                self.node.prove(self.epoch, self._now_ms)  # rule A17/answers-prove-nothing
        if sent.stay != self.node.stay:
            return
        if response.epoch == self.epoch or isinstance(response, VoteResponse):
            self._make(self.role.on_response(sent.request, response, self._now_ms))
        else:
            self._make(self.role.on_failure(sent.request, broken=False, now_ms=self._now_ms))

    def _on_failure(self, message: RequestFailed) -> None:
        sent = self.node.ended(message.request_id)
        if sent is not None and sent.stay == self.node.stay:
            self._make(self.role.on_failure(sent.request, message.broken, self._now_ms))

    def _learn(self, epoch: int, leader_id: NodeId | None, *, told_where: bool = False) -> bool:
        """Take over a higher epoch, or the leader of this one, from what a peer says; `told_where`: with its address,
        as peers tell it whose voters come and go.

        False: it cannot be so, and is logged and not believed: an epoch that cannot be reached, or another leader in an
        epoch that has one.
        """
        known = leader_id is not None and (told_where or self.voters.believes(leader_id))
        if leader_id == self.key.node_id or not known:  # rule A37/a-leader-that-is-not-known-is-not-followed
            leader_id = None
        if epoch > EPOCH_MAX:  # rule A17/any-epoch-is-adopted/2
            self.node.notice(f"refused: a peer names epoch {epoch}, beyond the last that there can be")
            return False
        if epoch > self.epoch:
            self._adopt(epoch, leader_id)
        elif epoch == self.epoch and leader_id is not None and not isinstance(self.role, Resigned):
            if self.leader_id is None:
                self._adopt(epoch, leader_id)
            elif self.leader_id != leader_id:  # rule A3/second-leader-of-an-epoch-is-borne
                mark("second-leader-refused")  # rule A17/another-leader-of-the-epoch-kills
                self.node.notice(
                    f"a peer names node {leader_id} as the leader of epoch {epoch}, which node {self.leader_id} leads: "
                    "the peer is wrong, or a voter has forgotten its vote"
                )
                return False
        return True

    # --- transitions -------------------------------------------------------------------------------------------------

    def _adopt(self, epoch: int, leader_id: NodeId | None) -> None:
        """Adopt a leader that became known, or a higher epoch without one, which lets a running election timer go on
        (rule A3: a request alone restarts no timer)."""
        if leader_id is not None:
            self._make(Move(Event.LEADER_FOUND, epoch, leader_id=leader_id))
        else:
            deadline_ms = self.role.election_deadline_ms()  # rule A3/higher-epoch-restarts-the-election-timer
            self._make(Move(Event.HIGHER_EPOCH, epoch, election_deadline_ms=deadline_ms))

    def _fit_role(self) -> None:
        """Take the role that fits the voter set: what was fetched, or cut, may have made a voter of this observer, or
        the other way round."""
        role = self.role
        if isinstance(role, Follower | Unattached) and not self.node.may_stand:
            self._make(Move(Event.VOTE_REMOVED, self.epoch, leader_id=role.leader_id, voted_for=role.voted_for))
        elif isinstance(role, Observer) and self.node.may_stand:
            event = Event.VOTE_ADDED if role.leader_id is None else Event.VOTE_ADDED_WITH_LEADER
            self._make(Move(event, self.epoch, leader_id=role.leader_id, voted_for=role.voted_for))

    def _make(self, move: Move | None) -> None:
        """Go to the role that a move leads to, and on to those that it asks for."""
        while move is not None:
            ensure(move.epoch >= self.epoch, "MonotonicEpoch", was=self.epoch, now=move.epoch)
            before, self.role = self.role, self._next_role(self.role.kind, move)
            self.node.stay += 1
            before.left(self.role)
            move = self.role.entered(self._now_ms)

    def _next_role(self, kind: RoleKind | None, move: Move) -> Role:
        """The role after `kind`, its epoch, leader and vote ordered to be durable before anything else (rule A1)."""
        role = _ROLES[next_state(TRANSITIONS, kind, move.event)](self.node, move, self._now_ms)
        self.node.remember(role.election())  # rule A1/vote-not-persisted, rule A1/leader-not-persisted
        return role

    def _as_leader(self) -> Leader:
        if not isinstance(self.role, Leader):
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This node does not lead the metadata quorum.")
        return self.role
