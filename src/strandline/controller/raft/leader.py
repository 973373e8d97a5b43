"""The role of the leader: appends, answers fetches, and counts what a majority holds durably."""

from __future__ import annotations

import math
from dataclasses import dataclass

from strandline.controller.raft.config import (
    CHECK_QUORUM_FACTOR,
    OBSERVER_SESSION_MS,
    OBSERVERS_MAX,
    RETRY_BACKOFF_MAX_MS,
)
from strandline.controller.raft.messages import (
    Batch,
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderChange,
    OffsetAndEpoch,
    ReadRange,
    ReadSnapshot,
    ReplicaKey,
    Response,
    SendRequest,
    VotersChange,
)
from strandline.controller.raft.node import QuorumNode
from strandline.controller.raft.role import Move, Role
from strandline.controller.raft.transitions import Event, RoleKind
from strandline.proto.ensure import ensure
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.marks import mark


@dataclass(slots=True)
class ReplicaProgress:
    """Knowledge of the leader about one other replica. Times are this node's monotonic milliseconds; -inf for never."""

    key: ReplicaKey
    presented: ReplicaKey | None = None
    """Replica as it presented itself in its last valid fetch: `key` may leave the directory open."""
    life: int = 0
    """Number of the replica's start (its process) in that fetch."""
    earlier_life_since_ms: float = math.inf
    """Time since which only fetches of an earlier start have come."""
    end_offset: int = -1
    """The offset of its last valid fetch: it holds all before, durably if it is a voter."""
    last_fetch_ms: float = -math.inf
    last_caught_up_ms: float = -math.inf
    leader_end_at_last_fetch: int = -1
    begin_in_flight: bool = False
    begin_at_ms: float = -math.inf
    """Time when BeginQuorumEpoch is due, unless the replica fetches before."""
    begin_failures: int = 0
    listens_at: Endpoint | None = None
    """Endpoint of the replica from its last valid fetch; only controllers report one."""
    wants_vote: bool = False
    """True if the replica's last valid fetch asked for a vote."""

    def fetched(self, offset: int, leader_end: int, now_ms: float) -> None:
        """Record a valid fetch."""
        if offset >= leader_end:
            self.last_caught_up_ms = now_ms
        elif 0 <= self.leader_end_at_last_fetch <= offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.leader_end_at_last_fetch = leader_end
        self.end_offset = offset
        self.last_fetch_ms = now_ms


@dataclass(frozen=True, slots=True)
class ParkedFetch:
    """A fetch that waits for records or for a higher high watermark."""

    token: int
    request: FetchRequest
    deadline_ms: float
    on_timeout: FetchResponse
    """Answer as it was when the fetch came; returned when the wait ends (KAFKA-15100)."""


class Leader(Role):
    """Leads one epoch.

    Invariants:
    - the first record of the epoch is its LeaderChange (rule A6);
    - the epoch's high watermark is unknown, or above the epoch's start and never decreasing, so that no record of an
      older epoch commits by count (schedule 22);
    - the own end counts only as far as it is flushed (rule A9);
    - one parked fetch a replica at most.
    """

    kind = RoleKind.LEADER

    def __init__(self, node: QuorumNode, move: Move, now_ms: float) -> None:
        super().__init__(node, move, now_ms)
        self._granting = move.granting
        self.since_ms = now_ms
        self.epoch_start_offset = node.log.end_offset
        self.epoch_high_watermark: int | None = None
        self.voters: dict[NodeId, ReplicaProgress] = {
            key.node_id: ReplicaProgress(key) for key in node.voters.others(node.key.node_id)
        }
        self._voter_keys = node.voters.keys
        self.observers: dict[ReplicaKey, ReplicaProgress] = {}
        self._parked: dict[ReplicaKey, ParkedFetch] = {}
        self._recheck_parked = False
        """True: something changed since the last pump for which a fetch may be parked."""
        self._fetched_voters: dict[NodeId, None] = {}
        # rule A5/check-quorum-after-one-fetch-timeout
        self._check_quorum_ms = node.config.fetch_timeout_ms * CHECK_QUORUM_FACTOR
        self._check_quorum_deadline_ms = math.inf

    @property
    def leader_id(self) -> NodeId | None:
        return self.node.key.node_id

    @property
    def _needed(self) -> int:
        """Number of other voters needed for a majority, together with this node if it is a voter (rule A36: a leader
        that was removed from the voters does not count itself)."""
        return self.node.voters.majority - self.node.is_voter  # rule A36/a-removed-leader-keeps-itself-in-office

    @property
    def is_removed(self) -> bool:
        """Whether a committed voter set is without this node (rule A36: then it resigns; KAFKA-17608)."""
        known = self.epoch_high_watermark
        # rule A36/a-removed-leader-goes-at-once
        return not self.node.is_voter and known is not None and known > self.node.voters_offset

    # --- entering, leaving, time -------------------------------------------------------------------------------------

    def entered(self, now_ms: float) -> Move | None:
        node = self.node
        granting = tuple(key for key in node.voters if key.node_id in self._granting)
        change = LeaderChange(node.key.node_id, node.voters.keys, granting)
        base = node.log.end_offset
        self.append(Batch(base, base + 1, self.epoch, change))  # rule A6/no-leader-change-record
        return None

    def left(self, successor: Role) -> None:
        """Answer every parked fetch at once: this node leads no more."""
        for parked in self._parked.values():  # rule A7/parked-fetches-outlive-the-leader
            self.node.reply(
                parked.token,
                FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, successor.epoch, successor.leader_id),
            )
        self._parked.clear()

    def deadline_ms(self) -> float:
        if self.is_removed:  # rule A36/a-removed-leader-stays
            return -math.inf
        begin = (voter.begin_at_ms for voter in self.voters.values() if not voter.begin_in_flight)
        parked = (fetch.deadline_ms for fetch in self._parked.values())
        return min(self._check_quorum_deadline_ms, min(begin, default=math.inf), min(parked, default=math.inf))

    def tick(self, now_ms: float) -> Move | None:
        for key in [key for key, parked in self._parked.items() if now_ms >= parked.deadline_ms]:
            parked = self._parked.pop(key)
            self.node.reply(parked.token, parked.on_timeout)  # rule A7/parked-fetch-times-out-with-an-error
        if self.is_removed:  # rule A36/a-removed-leader-stays/2
            mark("removed-leader-resigns")
            return self.resign(Event.VOTE_REMOVED)
        if now_ms >= self._check_quorum_deadline_ms:
            mark("check-quorum-resign")
            return self.resign(Event.NO_QUORUM)  # rule A5/no-check-quorum
        return None

    def pump(self, now_ms: float) -> None:
        checked = self._needed > 0  # rule A5/single-voter-is-not-exempt
        if checked != (self._check_quorum_deadline_ms < math.inf):  # it leads anew, or has more or fewer voters
            # rule A36/a-quorum-that-grew-is-not-checked
            self._check_quorum_deadline_ms = now_ms + self._check_quorum_ms if checked else math.inf
        if self._recheck_parked:
            self._recheck_parked = False
            for key in [key for key, parked in self._parked.items() if self._has_more_than(parked.request)]:
                parked = self._parked.pop(key)
                self._serve(parked.token, parked.request)
        for voter in self.voters.values():
            if not voter.begin_in_flight and now_ms >= voter.begin_at_ms:
                voter.begin_in_flight = True
                self.node.send(
                    voter.key.node_id,
                    BeginQuorumEpochRequest(self.node.cluster_id, self.node.key.node_id, self.epoch, voter.key),
                )

    # --- the log and what is committed -------------------------------------------------------------------------------

    def append(self, batch: Batch) -> None:
        """Append a batch that continues the log, in this epoch."""
        ensure(batch.epoch == self.epoch, "AppendsInItsEpoch", batch=batch.epoch, epoch=self.epoch)
        self.node.append(batch)
        self._recheck_parked = True
        if self.node.voters.keys != self._voter_keys:
            self._recount_voters()

    def change_voters(self, said: VotersChange) -> int:
        """Append a voter set, in force at once (rule A11); returns its offset. `voter_changes` judges it."""
        base = self.node.log.end_offset
        self.append(Batch(base, base + said.records, self.epoch, said, said))
        return base

    def _recount_voters(self) -> None:
        """Count by another voter set, in force at once (rule A11: the latest set in the log holds): progress goes on
        where the replica is the same one."""
        known = {seen.key: seen for seen in self.observers.values()}
        known |= {seen.presented: seen for seen in self.voters.values() if seen.presented is not None}
        known |= {seen.key: seen for seen in self.voters.values()}
        voters: dict[NodeId, ReplicaProgress] = {}
        for key in self.node.voters.others(self.node.key.node_id):
            progress = voters[key.node_id] = known.get(key) or ReplicaProgress(key)
            progress.key = key
            self.observers.pop(key, None)
        for node, former in self.voters.items():
            if voters.get(node) is not former and former.presented is not None:
                self.observers[former.presented] = ReplicaProgress(former.presented)
        self.voters = voters
        self._voter_keys = self.node.voters.keys
        self._fetched_voters = {node: None for node in self._fetched_voters if node in voters}

    def update_high_watermark(self) -> None:
        """Recompute after a flush of the own log or a valid fetch of a voter (rules A6, A9)."""
        if self.is_removed:  # rule A36/a-removed-leader-commits-on
            return
        ends = [voter.end_offset for voter in self.voters.values()]
        if self.node.is_voter:  # rule A36/a-removed-leader-counts-itself
            ends.append(self.node.log.durable_offset)
        ends.sort(reverse=True)
        # rule A6/one-replica-is-enough
        majority_end = ends[self.node.voters.majority - 1] if len(ends) >= self.node.voters.majority else -1
        if majority_end <= self.epoch_start_offset:  # rule A6/commit-at-the-start-of-the-epoch, rule A6/commit-by-count
            return
        # rule A6/leaders-high-watermark-goes-back
        if self.epoch_high_watermark is None or majority_end > self.epoch_high_watermark:
            self.epoch_high_watermark = majority_end
            self.node.advance_high_watermark(majority_end)
            self.node.caught_up_to(majority_end)
            self.node.rounds_lost = 0
            self._recheck_parked = True

    def resign(self, event: Event) -> Move | None:
        """Give up leading, and propose the other voters, the furthest first."""
        ranked = sorted(self.voters.values(), key=lambda voter: (-voter.end_offset, voter.key.node_id))
        return Move(event, self.epoch, successors=tuple(voter.key for voter in ranked))

    # --- fetches -----------------------------------------------------------------------------------------------------

    def on_fetch(self, token: int, request: FetchRequest, now_ms: float) -> Move | None:
        log = self.node.log
        if request.replica.node_id == self.node.key.node_id and self.node.key.admits(request.replica):
            self.node.reply(token, self._answer(ErrorCode.INVALID_REQUEST))
            return None
        replaced = self._parked.pop(request.replica, None)
        if replaced is not None:  # rule A7/replaced-fetch-is-not-answered
            self.node.reply(replaced.token, replaced.on_timeout)
        if log.needs_snapshot(request.fetch_offset, request.last_fetched_epoch):
            # rule A7/fetch-that-needs-a-snapshot-is-parked, rule A7/fetch-that-needs-a-snapshot-counts
            self.node.reply(token, self._answer(snapshot=log.snapshot))
            return None
        diverging = log.diverges(request.fetch_offset, request.last_fetched_epoch)  # rule A7/divergence-not-judged
        if diverging is not None:
            mark("quorum-diverging")  # rule A7/diverging-fetch-counts
            self.node.reply(token, self._answer(diverging=diverging))  # rule A7/diverging-fetch-is-parked
            return None
        progress = self._progress(request.replica, voteless=request.voteless)
        # rule A15/fetch-of-a-former-life-counts
        if request.life < progress.life and self.voters.get(progress.key.node_id) is progress:
            self.node.reply(token, self._answer(ErrorCode.INVALID_REQUEST))
            return self._on_earlier_life(progress, now_ms)
        if request.life >= progress.life:  # rule A38/an-observers-former-life-counts
            self._note_fetch(progress, request, now_ms)
        self._count_fetch(progress, now_ms)
        if progress.key.node_id in self.voters and self.voters[progress.key.node_id] is progress:
            self.update_high_watermark()
        if request.max_wait_ms <= 0 or self._has_more_than(request) or len(self._parked) >= OBSERVERS_MAX:
            self._serve(token, request)
        else:
            deadline_ms = now_ms + min(request.max_wait_ms, self.node.config.fetch_max_wait_ms)
            self._parked[request.replica] = ParkedFetch(token, request, deadline_ms, self._answer())
        return None

    def _note_fetch(self, progress: ReplicaProgress, request: FetchRequest, now_ms: float) -> None:
        progress.life = request.life
        progress.earlier_life_since_ms = math.inf  # rule A17/one-late-fetch-ends-a-leadership
        progress.presented = request.replica
        progress.listens_at, progress.wants_vote = request.listens_at, request.wants_vote
        progress.fetched(request.fetch_offset, self.node.log.end_offset, now_ms)

    def _on_earlier_life(self, progress: ReplicaProgress, now_ms: float) -> Move | None:
        """A fetch that came late; or the fetch of a live voter, in whose name a later start was claimed. That voter
        would be shut out as long as this node leads. In the next epoch neither a fetch of this one nor a claim counts.
        """
        progress.earlier_life_since_ms = min(progress.earlier_life_since_ms, now_ms)
        if now_ms - progress.earlier_life_since_ms >= CHECK_QUORUM_FACTOR * self.node.config.fetch_timeout_ms:
            mark("false-life-resign")
            self.node.notice(
                f"node {progress.key.node_id} fetches, and somebody has fetched in its name as of a later start: "
                "this node gives up leading, for it cannot tell which is true"
            )
            return self.resign(Event.CONFLICTING_STARTS)  # rule A17/claimed-life-shuts-a-voter-out
        return None

    def on_fetch_snapshot(self, token: int, request: FetchSnapshotRequest, now_ms: float) -> None:
        """Serve bytes of a snapshot. It shows that the replica follows (rule A10), but acknowledges nothing."""
        progress = self._progress(request.replica, voteless=request.voteless)
        progress.last_fetch_ms = now_ms
        self._count_fetch(progress, now_ms)  # rule A10/snapshot-fetch-does-not-count-for-check-quorum
        # rule A10/snapshot-fetch-counts-for-the-high-watermark
        response = FetchSnapshotResponse(ErrorCode.NONE, self.epoch, self.leader_id, request.snapshot)
        limit = min(request.max_bytes, self.node.config.snapshot_chunk_bytes)  # rule A17/snapshot-bytes-without-limit
        self.node.reply(token, response, ReadSnapshot(request.snapshot, request.position, limit))

    def _has_more_than(self, request: FetchRequest) -> bool:
        if self.node.log.end_offset > request.fetch_offset:
            return True
        known = -1 if self.epoch_high_watermark is None else self.epoch_high_watermark
        return min(known, request.fetch_offset) > request.high_watermark

    def _serve(self, token: int, request: FetchRequest) -> None:
        limit = min(request.max_bytes, self.node.config.fetch_max_bytes)
        read = ReadRange(request.fetch_offset, limit) if self.node.log.end_offset > request.fetch_offset else None
        self.node.reply(token, self._answer(), read)

    def _answer(
        self,
        error: ErrorCode = ErrorCode.NONE,
        *,
        diverging: OffsetAndEpoch | None = None,
        snapshot: OffsetAndEpoch | None = None,
    ) -> FetchResponse:
        # rule A6/new-leader-tells-the-high-watermark-it-knew
        known = -1 if self.epoch_high_watermark is None else self.epoch_high_watermark
        start = self.node.log.start.offset
        return FetchResponse(error, self.epoch, self.leader_id, known, start, diverging=diverging, snapshot=snapshot)

    def _progress(self, replica: ReplicaKey, *, voteless: bool) -> ReplicaProgress:
        voter = self.voters.get(replica.node_id)
        # rule A11/fetches-of-a-wiped-voter-count
        if voter is not None and voter.key.counts(replica, voteless=voteless):
            return voter
        seen = self.observers.pop(replica, None)  # rule A12/observers-count-for-the-high-watermark
        if seen is None and len(self.observers) >= OBSERVERS_MAX:  # rule A17/observers-without-number
            del self.observers[next(iter(self.observers))]
        # Again at the end: the first one has been silent for longest.
        self.observers[replica] = seen or ReplicaProgress(replica)
        return self.observers[replica]

    def _count_fetch(self, progress: ReplicaProgress, now_ms: float) -> None:
        """Count a voter's fetch for check-quorum; it needs no BeginQuorumEpoch for a while."""
        node = progress.key.node_id
        if self.voters.get(node) is not progress:  # rule A5/observers-count-for-check-quorum
            return
        progress.begin_at_ms = now_ms + self.node.config.fetch_timeout_ms / 2
        progress.begin_failures = 0
        self._fetched_voters[node] = None
        if len(self._fetched_voters) >= self._needed:  # rule A5/any-one-voter-is-a-majority
            self._fetched_voters.clear()
            self._check_quorum_deadline_ms = now_ms + self._check_quorum_ms

    # --- BeginQuorumEpoch --------------------------------------------------------------------------------------------

    def on_response(self, sent: SendRequest, response: Response, now_ms: float) -> Move | None:
        voter = self.voters.get(sent.to)
        if voter is not None:
            voter.begin_in_flight = False
            voter.begin_failures = 0
            voter.begin_at_ms = now_ms + self.node.config.fetch_timeout_ms / 2
        return None

    def on_failure(self, sent: SendRequest, broken: bool, now_ms: float) -> Move | None:
        voter = self.voters.get(sent.to)
        if voter is None:
            return None
        voter.begin_in_flight = False
        wait_ms = min(self.node.config.retry_backoff_ms * 2**voter.begin_failures, RETRY_BACKOFF_MAX_MS)
        voter.begin_failures = min(voter.begin_failures + 1, 10)
        voter.begin_at_ms = max(voter.begin_at_ms, now_ms + wait_ms)
        return None

    def described_observers(self, now_ms: float) -> list[ReplicaProgress]:
        """Observers that fetched within the last five minutes, by node id; older ones are forgotten."""
        for key in [key for key, seen in self.observers.items() if now_ms - seen.last_fetch_ms > OBSERVER_SESSION_MS]:
            del self.observers[key]
        return sorted(self.observers.values(), key=lambda progress: (progress.key.node_id, str(progress.key)))

    def check(self) -> None:
        ensure(self.node.log.last_epoch == self.epoch, "EpochOpened", log=self.node.log.last_epoch, epoch=self.epoch)
        known = self.epoch_high_watermark
        # rule A6/commit-at-the-start-of-the-epoch/2, rule A6/commit-by-count/2
        ensure(
            known is None or self.epoch_start_offset < known <= self.node.log.end_offset,
            "HighWatermarkWithinTheEpoch",
            high_watermark=known,
            epoch_start=self.epoch_start_offset,
        )
