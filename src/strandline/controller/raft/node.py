"""The part of a quorum node that outlives its roles: its identity, the voter set, its log, and the outputs that its
role orders."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from strandline.controller.raft.config import EPOCH_MAX, PROOF_INTERVAL_MS, UNPROVEN_WAIT_MS, RaftConfig
from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.messages import (
    Batch,
    OffsetAndEpoch,
    Outbound,
    ReadRange,
    ReadSnapshot,
    ReplicaKey,
    Reply,
    Request,
    Response,
    SendRequest,
    VotersChange,
)
from strandline.controller.raft.ready import Append, ElectionState, LogAction, Ready, TruncateTo
from strandline.controller.raft.voters import VoterSet
from strandline.proto.ensure import ensure
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.marks import mark
from strandline.proto.ports import Rng


@dataclass(frozen=True, slots=True)
class Standing:
    """A node's standing beside the voter set.

    Attributes:
        may_vote: it is a controller: what it fetches may count one day, so that it flushes before it fetches on.
        listens_at: where its internal listener is, for other controllers; None: not known, or no controller.
        wants_vote: it asks to be made a voter (KIP-1186), until it is one.
        bootstrap: stand-ins for addresses at which some controller answers, where no voter is known.
        kraft_version: that the voters are to have, as soon as this node leads; it is never lowered.
    """

    may_vote: bool = False
    listens_at: Endpoint | None = None
    wants_vote: bool = False
    bootstrap: tuple[NodeId, ...] = ()
    kraft_version: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """A request without an answer yet, and the number of the stay in a role that sent it."""

    request: SendRequest
    stay: int


class QuorumNode:
    """The part of a quorum node that outlives its roles. Roles read it, and order outputs through it.

    Invariants:
    - the high watermark never goes back (Kafka's MonotonicHighWatermark), but for what a failed write took away;
    - no record below the high watermark is truncated;
    - what must be durable for the present role is in the outputs, or was drained (`remember`).
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
        voteless: bool,
        life: int,
        proven: bool,
        now_ms: float,
        standing: Standing,
    ) -> None:
        """Take the arguments of `RaftCore`."""
        self.key = key
        self.cluster_id = cluster_id
        self.config = config
        self.rng = rng
        self.log = log
        self.voteless = voteless
        self.life = life
        self.standing = standing
        self._configured = voters
        self._said: VotersChange | None = None
        self.voters = voters
        """The latest voter set in the log, committed or not; the configured one while the log has none."""
        self._take_over_voters()
        self.doubt = None if saved is None else saved.doubt
        """End of what this node may have acknowledged and recovery cut; None once it has caught up (rule A15: such a
        vote counts as one in doubt)."""
        self._doubt_ends_at: int | None = None
        self.unproven_until_ms = -math.inf if proven else now_ms + UNPROVEN_WAIT_MS
        """Time until which the log may have been longer for all that is known: others are asked (rule A22)."""
        self.high_watermark = log.snapshot.offset if log.snapshot is not None else 0
        self.rounds_lost = 0
        """Pre-votes and elections lost in a row: each doubles the wait before the next one."""
        self.proven_epoch = 0
        """The newest epoch that is more than a request's claim: found at the start, opened by this node, or named in
        the answer of a voter that it asked; at most one new proof in `PROOF_INTERVAL_MS` (rule A17)."""
        self._next_proof_ms = -math.inf
        self.stay = 0
        """Number of the present stay in a role, rising with each move."""
        self._in_flight: dict[int, Sent] = {}
        self._next_request_id = 0
        self._saved = saved or ElectionState(-1)
        self._persist: ElectionState | None = None
        self._log_actions: list[LogAction] = []
        self._flush = False
        self._send: list[Outbound] = []
        self._notices: list[str] = []
        self._watermark_rose = self.high_watermark > 0

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def is_voter(self) -> bool:
        """Whether this very replica, directory id included, is in the voter set."""
        return self.voters.is_voter(self.key, voteless=self.voteless)

    @property
    def may_stand(self) -> bool:
        """Whether this replica may ask for an election: it votes; or the sets that are without it are not known to be
        committed, and one before has it. It may be the only node whose log is long enough, and then the others need it
        to lead until they have that set, without a vote of its own (Raft 4.2.2)."""
        if self.is_voter or not self.voters.dynamic or self.high_watermark > self.voters_offset:
            return self.is_voter
        before, behind = self.log.voters_at(self.high_watermark), self.log.voters_from(self.high_watermark)
        sets = [self._configured if before is None else self._configured.filled(before)]
        sets += [self._configured.filled(said) for said in behind]
        # rule A36/who-is-removed-leaves-at-once
        return any(one.is_voter(self.key, voteless=self.voteless) for one in sets)

    @property
    def voters_offset(self) -> int:
        """Offset of the voter set in the log; 0 for the configured one (an epoch's record stands there)."""
        return max(0, self.log.voters[0])

    @property
    def said(self) -> VotersChange:
        """The voters in the form that the log has; at kraft.version 0 while it says nothing of them."""
        return self._said or VotersChange(self.voters.keys)

    # --- epochs and what must never be forgotten ---------------------------------------------------------------------

    def next_epoch(self, epoch: int, now_ms: float) -> int | None:
        """The epoch after `epoch`, which this node may open; None once there is none left."""
        if epoch >= EPOCH_MAX:
            self.notice(f"epoch {epoch} is the last: no leader can be elected any more")
            return None
        self.prove(epoch + 1, now_ms)
        return epoch + 1

    def prove(self, epoch: int, now_ms: float) -> None:
        """Note that an epoch is more than a claim (rule A17: what a peer says is bounded); see `proven_epoch`."""
        if epoch > self.proven_epoch and now_ms >= self._next_proof_ms:
            self.proven_epoch = epoch
            self._next_proof_ms = now_ms + PROOF_INTERVAL_MS  # rule A17/every-answer-proves

    def remember(self, election: ElectionState) -> None:
        """Order that the epoch, its leader or the vote is made durable, unless it is (rule A1)."""
        election = replace(election, doubt=self.doubt)  # rule A15/doubt-is-forgotten
        if election != self._saved:
            self._saved = self._persist = election

    def is_in_doubt(self, last: OffsetAndEpoch, now_ms: float) -> bool:
        """Whether this node's vote for a log that ends so says less than others': this node may have acknowledged what
        that log lacks, and its disk not have given it back (rules A15, A22)."""
        # rule A15/who-has-more-than-was-lost-is-doubted, rule A22/unproven-votes-count-in-full
        return now_ms < self.unproven_until_ms or (self.doubt is not None and not last.at_least(self.doubt))

    def caught_up_to(self, high_watermark: int) -> None:
        """The own log is a prefix of that of an epoch's leader, and reaches its high watermark: whatever this node once
        acknowledged and lost, and was committed, lies below. That ends its doubt when it is durable."""
        if self.doubt is not None or self.unproven_until_ms > -math.inf:
            self._doubt_ends_at = high_watermark
            self.settle_doubt()

    def settle_doubt(self) -> None:
        """End the doubt if everything up to where it ends is durable."""
        # rule A15/doubt-ends-before-it-is-durable
        if self._doubt_ends_at is not None and self.log.durable_offset >= self._doubt_ends_at:
            if self.doubt is not None:
                mark("doubt-ended")
            self.unproven_until_ms = -math.inf  # rule A22/caught-up-and-doubted
            self.doubt = self._doubt_ends_at = None
            self.remember(self._saved)

    # --- calls and answers -------------------------------------------------------------------------------------------

    def notice(self, sentence: str) -> None:
        """Order a sentence for the log that an operator should see."""
        self._notices.append(sentence)

    def send(self, to: NodeId, request: Request) -> int:
        """Order a call to a peer; returns its id."""
        self._next_request_id += 1
        sent = SendRequest(self._next_request_id, to, request)
        self._in_flight[sent.request_id] = Sent(sent, self.stay)
        self._send.append(sent)
        return sent.request_id

    def ended(self, request_id: int) -> Sent | None:
        """A call has its answer, or will get none; None if it is not in flight."""
        return self._in_flight.pop(request_id, None)

    def reply(self, token: int, response: Response, read: ReadRange | ReadSnapshot | None = None) -> None:
        """Order the answer to a peer's request."""
        self._send.append(Reply(token, response, read))

    # --- the log -----------------------------------------------------------------------------------------------------

    def order(self, action: LogAction) -> None:
        """Order a change of the log or of a snapshot being fetched."""
        self._log_actions.append(action)

    def append(self, batch: Batch) -> None:
        """Append what this node made as leader, or fetched from the leader."""
        self.log.append(batch)
        self._take_over_voters()  # rule A11/voters-count-from-their-commit-on
        self.order(Append(batch))
        self._flush = True

    def truncate_to(self, offset: int) -> None:
        """Drop a diverging tail, never below the high watermark (rule A8)."""
        # rule A8/truncate-below-the-high-watermark/2
        ensure(offset >= self.high_watermark, "CommittedStays", cut=offset, high_watermark=self.high_watermark)
        self.log.truncate_to(offset)
        self._doubt_ends_at = None
        self._take_over_voters()
        self.order(TruncateTo(offset))

    def append_failed(self, end_offset: int) -> None:
        """Batches that were ordered could not be written: the log ends at `end_offset`."""
        self.log.truncate_to(end_offset)
        self._take_over_voters()
        self.high_watermark = min(self.high_watermark, end_offset)

    def snapshot_installed(self, snapshot: OffsetAndEpoch, voters: VotersChange | None) -> None:
        """Note that a fetched snapshot has replaced the log; `voters` as it says."""
        self.log.reset_to(snapshot, voters)
        self._take_over_voters()
        self.advance_high_watermark(snapshot.offset)

    def advance_high_watermark(self, offset: int) -> None:
        """Note that everything below `offset` is committed; a lower value is ignored (rule A6: it never falls)."""
        if offset > self.high_watermark:  # rule A6/high-watermark-goes-back
            ensure(offset <= self.log.end_offset, "HighWatermarkWithinTheLog", end=self.log.end_offset, now=offset)
            self.high_watermark = offset
            self._watermark_rose = True

    def _take_over_voters(self) -> None:
        """Take over the log's latest voter set, from its append on; a truncation takes it back (rule A11)."""
        _, said = self.log.voters
        if said is self._said:
            return
        self._said = said
        voters = self._configured if said is None else self._configured.filled(said)
        if voters.keys != self.voters.keys:
            mark("voters-changed")
        self.voters = voters
        if self.is_voter:  # rule A38/who-was-removed-asks-again
            self.standing = replace(self.standing, wants_vote=False)

    # --- outputs -----------------------------------------------------------------------------------------------------

    def drain(self) -> Ready:
        """Everything ordered since the last drain."""
        ready = Ready(
            persist=self._persist,
            log=tuple(self._log_actions),
            flush=self._flush,
            send=tuple(self._send),
            high_watermark=self.high_watermark if self._watermark_rose else None,
            notices=tuple(self._notices),
        )
        self._persist = None
        self._log_actions.clear()
        self._flush = False
        self._send.clear()
        self._notices.clear()
        self._watermark_rose = False
        return ready
