"""The pure rules of one replica in one leader epoch: the leader (rules B1 to B9) with the progress of its followers,
the follower, and the offset at which their logs diverge (rule B8, truncation).

Nothing here writes, sends or reads a clock. The caller reports events (an append, a finished sync, a follower's fetch
or acknowledgement, metadata, a controller's answer, the passing of time). Each call changes the core alone and returns
the effects that the caller has to carry out, in order: small frozen values, as the Raft core returns its `Ready`. The
`strandline.replica.partition.Partition` around a core carries them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from strandline.proto.divergence import cut_offset, is_diverging
from strandline.proto.ensure import ensure
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_BROKER_EPOCH, BrokerEpoch, LeaderEpoch, NodeId
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome, IsrMember
from strandline.proto.marks import mark
from strandline.replica.states import BrokerState, FollowerStatus, PartitionState

PROPOSAL_BACKOFF_MS = 200.0
"""Pause after the controller refused a proposal. Repeating it at once is useless: the event that the controller knows
of (a fencing, a restart) reaches this broker as metadata within tens of milliseconds."""


# Effects of a leader


class IsrChange(Enum):
    """Kind of a proposed ISR change. No proposal adds and removes members at once."""

    EXPANSION = "a replica joins"
    SHRINK = "replicas that lag leave"
    WITHDRAWAL = "nobody: the committed ISR anew. Its commit moves the partition epoch, and so ends what was proposed"


@dataclass(frozen=True, slots=True, eq=False)
class IsrProposal:
    """A proposed ISR. While it is pending, the leader counts on the larger of old and new ISR, the *maximal ISR*, as
    the controller may have committed either.

    Proposals are compared by identity: two equal ones may be made one after the other.
    """

    item: AlterPartitionItem
    """The proposal as it is sent to the controller."""
    change: IsrChange

    @property
    def isr(self) -> tuple[NodeId, ...]:
        """Node ids of the proposed members."""
        return tuple(member.node_id for member in self.item.new_isr)


@dataclass(frozen=True, slots=True)
class Committed:
    """The high watermark rose to `up_to`: appends that wait for it can be answered, and records below it read."""

    up_to: int


@dataclass(frozen=True, slots=True)
class IsrCommitted:
    """The controller committed an ISR of another size than the one before."""

    before: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Send this proposal to the controller. `again`: it was sent before, and is repeated after a pause."""

    proposal: IsrProposal
    again: bool = False


LeaderEffects = tuple[Committed | IsrCommitted | ProposeIsr, ...]


# The controller's answers


class Judgement(Enum):
    """Meaning of the controller's answer to a pending proposal."""

    COMMITTED = "the answer carries the partition as committed"
    REFUSED = "this copy was refused and changed nothing; another copy of it may still be on its way"
    AWAIT_METADATA = "it was refused because this leader's picture is stale: pending until metadata arrive"
    RETRY = "whether it was committed is unknown, or the controller was the wrong one: send it again"


_JUDGEMENTS: dict[ErrorCode, Judgement] = {
    ErrorCode.NONE: Judgement.COMMITTED,
    ErrorCode.INELIGIBLE_REPLICA: Judgement.REFUSED,
    ErrorCode.OPERATION_NOT_ATTEMPTED: Judgement.REFUSED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Judgement.AWAIT_METADATA,
    ErrorCode.UNKNOWN_TOPIC_ID: Judgement.AWAIT_METADATA,
    ErrorCode.FENCED_LEADER_EPOCH: Judgement.AWAIT_METADATA,
    ErrorCode.NEW_LEADER_ELECTED: Judgement.AWAIT_METADATA,
    ErrorCode.INVALID_UPDATE_VERSION: Judgement.AWAIT_METADATA,
    ErrorCode.INVALID_REQUEST: Judgement.AWAIT_METADATA,
}


def judge_answer(error: ErrorCode) -> Judgement:
    """Return what the controller's answer means (rule B2). INELIGIBLE_REPLICA and OPERATION_NOT_ATTEMPTED end a
    proposal. After other definite rejections it stays pending until metadata arrive; after any other error
    (NOT_CONTROLLER, schedule 13, among them) it is sent again."""
    # rule B2/what-was-not-attempted-is-sent-again, rule B2/withdraws-on-anything
    # rule B2/withdraws-on-a-definite-rejection
    return _JUDGEMENTS.get(error, Judgement.RETRY)


# The followers


class FollowerProgress:
    """Progress of one follower in the leader's epoch; unknown until a fetch of it was found valid.

    Invariants:
    - offset, durable offset and broker epoch are set together by a valid fetch, so that they describe one process
      (KAFKA-15221: judged on one snapshot);
    - durable_offset <= fetch_offset;
    - log_start_offset is durable on the follower; -1 until it was reported;
    - counted_offset is the offset that the high watermark may count on: the durable offset under flush.policy = ack,
      else the fetch offset; -1 until a fetch was found valid in this leader epoch (kafka-tlaplus 6.5.4).
    """

    __slots__ = (
        "broker_epoch",
        "counted_offset",
        "durable_offset",
        "fetch_offset",
        "in_isr",
        "in_maximal_isr",
        "last_ack_ms",
        "last_caught_up_ms",
        "leader_end_at_last_ack",
        "log_start_offset",
        "node_id",
    )

    def __init__(self, node_id: NodeId, *, in_isr: bool, now_ms: float) -> None:
        self.node_id = node_id
        self.fetch_offset = -1
        self.durable_offset = -1
        self.counted_offset = -1
        self.log_start_offset = -1
        self.broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
        self.in_isr = in_isr
        self.in_maximal_isr = in_isr
        self.last_ack_ms = -1.0
        self.leader_end_at_last_ack = -1
        self.last_caught_up_ms = now_ms if in_isr else float("-inf")

    @property
    def fetched(self) -> bool:
        """True once a fetch was found valid in this leader epoch."""
        return self.fetch_offset >= 0

    def forget(self) -> None:
        """Reset the offsets, because another process of that node began to fetch and was not found valid yet."""
        self.fetch_offset = self.durable_offset = self.counted_offset = -1
        self.leader_end_at_last_ack = -1
        if not self.in_isr:
            self.last_caught_up_ms = float("-inf")

    def advance(self, fetch_offset: int, durable_offset: int, counted: int, leader_end: int, now_ms: float) -> None:
        """Record that the follower has everything below `fetch_offset`, and has synced everything below
        `durable_offset`.

        A follower at the leader's end is caught up now. One that has now reached the leader's end at its previous ack
        was caught up then: it cannot be at the end of a log that is being appended to.
        """
        self.fetch_offset = fetch_offset
        self.durable_offset = durable_offset
        self.counted_offset = counted
        if fetch_offset >= leader_end:
            self.last_caught_up_ms = now_ms
        # rule B6/leaves-though-it-keeps-pace
        elif self.leader_end_at_last_ack >= 0 and fetch_offset >= self.leader_end_at_last_ack:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_ack_ms)
        self.leader_end_at_last_ack = leader_end
        self.last_ack_ms = now_ms

    def caught_up(self, leader_end: int, lag_time_max_ms: float, now_ms: float) -> bool:
        """True if the follower is at the leader's end, or was in the last `lag_time_max_ms`
        (replica.lag.time.max.ms)."""
        # rule B6/leaves-for-silence
        return self.fetch_offset == leader_end or now_ms - self.last_caught_up_ms <= lag_time_max_ms


# The leader


class LeaderCore:
    """Leadership of one partition in one leader epoch; a new leader epoch gets a new object.

    Triggers: `appended`, `synced`, `fetched`, `acked`, `deleted`, `disconnected`, `metadata_changed`,
    `brokers_changed`, `answered`, `sweep`.

    Invariants, each checked where it could break (`strandline.proto.ensure`):
    - the high watermark never falls, and never passes the leader's counted offset;
    - it does not move while |ISR| < min(min.insync.replicas, replication factor): that also holds back acks=1 data, and
      makes ELR safe (KIP-966);
    - it passes no member of the maximal ISR, and no replica that has caught up and may join;
    - at most one ISR change is pending;
    - the maximal ISR loses a proposed member only when the partition epoch changes (schedule 50).
    """

    __slots__ = (
        "_brokers",
        "_effects",
        "_followers",
        "_lag_time_max_ms",
        "_me",
        "_min_isr",
        "_propose_after_ms",
        "_state",
        "_sync_before_ack",
        "deleted_before",
        "durable_offset",
        "epoch_start_offset",
        "followers",
        "high_watermark",
        "isr",
        "leader_epoch",
        "log_end_offset",
        "maximal_isr",
        "partition_epoch",
        "pending",
        "recovering",
    )

    def __init__(
        self,
        me: NodeId,
        state: PartitionState,
        brokers: Mapping[NodeId, BrokerState],
        *,
        log_end_offset: int,
        durable_offset: int,
        high_watermark: int,
        sync_before_ack: bool,
        lag_time_max_ms: float,
        now_ms: float,
        log_start_offset: int = 0,
    ) -> None:
        """Become leader. The caller writes (leader epoch, `epoch_start_offset`) to the log (schedule 3), and reads
        `high_watermark`, which is advanced at once (a lone replica waits for no fetch)."""
        self._me = me
        self._state = state
        self._brokers = brokers
        self._sync_before_ack = sync_before_ack  # rule A9/count-before-sync/2
        self._lag_time_max_ms = lag_time_max_ms
        self._propose_after_ms = float("-inf")
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.epoch_start_offset = log_end_offset
        self.log_end_offset = log_end_offset
        self.durable_offset = durable_offset
        self.high_watermark = min(high_watermark, log_end_offset)  # rule B4/new-leader-serves-everything
        self.deleted_before = log_start_offset
        """Offset below which a replica must have durably deleted before it joins the ISR: clients were told of it."""
        self.isr = state.isr
        self.maximal_isr = state.isr
        self.recovering = state.recovering
        self.pending: IsrProposal | None = None
        """Proposal that is neither committed nor given up yet; None if there is none."""
        self._effects: list[Committed | IsrCommitted | ProposeIsr] = []
        self._min_isr = state.effective_min_isr
        self.followers: dict[NodeId, FollowerProgress] = {}
        self._followers: tuple[FollowerProgress, ...] = ()
        self._adopt_replicas(now_ms)
        self._advance(now_ms)  # rule B4/no-recheck-on-becoming-leader
        self._effects.clear()  # nobody waits for the high watermark of a leadership that begins

    # What happened

    def appended(self, next_offset: int, now_ms: float) -> LeaderEffects:
        """Take the log's new end, `next_offset`. A follower that was at the old end counts as caught up until now."""
        end = self.log_end_offset
        for follower in self._followers:
            if follower.fetch_offset == end:  # rule B6/lag-counts-from-the-last-fetch
                follower.last_caught_up_ms = now_ms
        self.log_end_offset = next_offset
        return () if self._sync_before_ack else self._advanced(now_ms)  # rule B4/no-recheck-after-an-append

    def synced(self, durable_offset: int, now_ms: float) -> LeaderEffects:
        """Take note that everything below `durable_offset`, a log end captured before the sync began, is on this
        broker's disk (rule A9)."""
        if durable_offset <= self.durable_offset:
            return ()
        self.durable_offset = durable_offset
        return self._advanced(now_ms) if self._sync_before_ack else ()  # rule B4/no-recheck-after-a-sync

    def fetched(
        self,
        node_id: NodeId,
        broker_epoch: BrokerEpoch,
        *,
        fetch_offset: int,
        durable_offset: int,
        log_start_offset: int,
        now_ms: float,
    ) -> LeaderEffects:
        """Take a replica's fetch that was found VALID. Never call this for a diverging one (KAFKA-13141,
        schedule 6)."""
        follower = self.followers[node_id]
        if follower.broker_epoch != broker_epoch:
            follower.forget()  # rule B5/offsets-of-two-processes
            follower.broker_epoch = broker_epoch
        follower.log_start_offset = log_start_offset
        return self.acked(follower, fetch_offset, durable_offset, now_ms)

    def acked(self, follower: FollowerProgress, fetch_offset: int, durable_offset: int, now_ms: float) -> LeaderEffects:
        """Take the new offsets of a follower that fetched validly in this epoch; they fall if it had to truncate."""
        # rule B4/counts-what-a-follower-has-not-synced
        counted = durable_offset if self._sync_before_ack else fetch_offset
        follower.advance(fetch_offset, durable_offset, counted, self.log_end_offset, now_ms)
        # rule B2/two-changes-in-flight
        if not follower.in_isr and self.pending is None and self._may_join(follower, now_ms):
            self._propose_expand(follower, now_ms)
        return self._advanced(now_ms)  # rule B4/no-recheck-after-a-fetch

    def deleted(self, follower: FollowerProgress, log_start_offset: int, now_ms: float) -> LeaderEffects:
        """Take a follower's new durable log start: its old one may have kept it out of the ISR."""
        follower.log_start_offset = log_start_offset
        if not follower.in_isr and self.pending is None and self._may_join(follower, now_ms):
            self._propose_expand(follower, now_ms)
        return self._taken()

    def disconnected(self, node_id: NodeId, now_ms: float) -> LeaderEffects:
        """Take note that a follower's stream ended. Its acks still count, but outside of the ISR it is not waited
        for."""
        follower = self.followers.get(node_id)
        if follower is None or follower.in_isr:
            return ()
        follower.last_caught_up_ms = float("-inf")  # rule B4/waits-for-who-has-gone
        return self._advanced(now_ms)

    def metadata_changed(
        self, state: PartitionState, brokers: Mapping[NodeId, BrokerState], now_ms: float
    ) -> LeaderEffects:
        """Take changed metadata of this partition within this leader epoch. `brokers` must be of the same change: a
        member that was fenced and removed at once must not be proposed again in between.

        A newer partition epoch settles a pending proposal, as the controller commits none made under an older one. The
        same partition epoch says nothing new about the ISR (only configs changed), and a pending proposal stays.
        """
        if state.partition_epoch < self.partition_epoch:  # rule B1/older-partition-epoch-counts
            return ()
        # rule B1/equal-partition-epoch-settles, rule B1/older-partition-epoch-counts/2
        newer = state.partition_epoch > self.partition_epoch
        isr = state.isr if newer else self.isr
        self._state = state
        self._brokers = brokers
        self._min_isr = state.effective_min_isr
        if newer:
            self.pending = None
            self._commit(isr, state.partition_epoch, state.recovering)
        self._adopt_replicas(now_ms)
        return self._advanced_and_proposed(now_ms)  # rule B4/no-recheck-when-metadata-change

    def brokers_changed(self, brokers: Mapping[NodeId, BrokerState], now_ms: float) -> LeaderEffects:
        """Take changed registrations, fencing or shutdowns. They change which replicas may join, and which ones the
        high watermark waits for (not for a caught-up replica that is stopping, KAFKA-15021, schedule 15)."""
        self._brokers = brokers
        return self._advanced_and_proposed(now_ms)  # rule B4/no-recheck-when-brokers-change

    def answered(self, proposal: IsrProposal, outcome: AlterPartitionOutcome, now_ms: float) -> LeaderEffects:
        """Take the controller's answer to a proposal. It is ignored if metadata have settled the proposal meanwhile."""
        if self.pending is not proposal:  # rule B2/an-overtaken-answer-counts
            return ()
        judgement = judge_answer(outcome.error)
        if judgement is Judgement.COMMITTED:
            # rule B2/answer-of-another-leader-epoch-counts
            if outcome.leader_epoch != self.leader_epoch or outcome.partition_epoch <= self.partition_epoch:
                return ()
            self.pending = None
            self._commit(outcome.isr, outcome.partition_epoch, outcome.recovering)
            return self._advanced_and_proposed(now_ms)  # rule B4/no-recheck-when-the-isr-is-committed
        if judgement is Judgement.REFUSED:  # rule B2/never-withdraws
            self._refused(proposal, now_ms)
        elif judgement is Judgement.RETRY:
            self._effects.append(ProposeIsr(proposal, again=True))  # rule B2/never-sends-again
        return self._advanced(now_ms)

    def sweep(self, now_ms: float) -> LeaderEffects:
        """Propose to drop lagging members or to add a caught-up replica, and stop waiting for replicas that fell
        behind."""
        return self._advanced_and_proposed(now_ms)

    # Judgements

    @property
    def min_isr(self) -> int:
        """min(min.insync.replicas, replication factor)."""
        return self._min_isr

    @property
    def under_min_isr(self) -> bool:
        """True while the ISR is smaller than `min_isr`: nothing becomes committed."""
        return len(self.isr) < self._min_isr

    @property
    def replicas(self) -> tuple[NodeId, ...]:
        """Node ids of the assigned replicas, the preferred leader first."""
        return self._state.replicas

    @property
    def under_replicated(self) -> bool:
        """True if the ISR has fewer members than there are replicas, not counting those that a move is adding."""
        return len(self.isr) < len(self._state.replicas) - len(self._state.adding)

    @property
    def is_moving(self) -> bool:
        """True while the partition is being moved to other brokers."""
        return bool(self._state.adding or self._state.removing)

    @property
    def knows_committed_end(self) -> bool:
        """True once the high watermark has reached the start of this epoch. Before that it may lag the true one, and
        the latest offset is unknown (OFFSET_NOT_AVAILABLE; rule B7, stale HW)."""
        return self.high_watermark >= self.epoch_start_offset  # rule B7/latest-offset-before-the-epoch-start

    def admit_acks_all(self) -> ErrorCode:
        """Return NONE if a batch with acks=all may be written, NOT_ENOUGH_REPLICAS if the ISR is smaller than
        `min_isr`."""
        if len(self.isr) < self._min_isr:  # rule B9/acks-all-without-enough-replicas
            mark("not-enough-replicas")
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    def judge_committed(self) -> ErrorCode:
        """Return the answer for acks=all once the high watermark has passed the batch: NONE, or
        NOT_ENOUGH_REPLICAS_AFTER_APPEND if the maximal ISR is smaller than `min_isr` by then."""
        if len(self.maximal_isr) < self._min_isr:  # rule B9/too-few-after-the-append-unsaid
            mark("not-enough-replicas-after-append")
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def synced_replicas(self, offset: int) -> tuple[NodeId, ...]:
        """Return the nodes known to have synced everything below `offset`; this broker first."""
        nodes = [follower.node_id for follower in self._followers if follower.durable_offset >= offset]
        return (self._me, *nodes) if self.durable_offset >= offset else tuple(nodes)

    def lacking(self, offset: int, now_ms: float) -> tuple[NodeId, ...]:
        """Return the nodes whose sync, or fetch, of the records below `offset` is waited for; this broker first."""
        counted = self.durable_offset if self._sync_before_ack else self.log_end_offset
        nodes = [f.node_id for f in self._followers if f.counted_offset < offset and self.waits_for(f, now_ms)]
        return (self._me, *nodes) if counted < offset else tuple(nodes)

    def waits_for(self, follower: FollowerProgress, now_ms: float) -> bool:
        """True if the high watermark may not pass the follower: it is in the maximal ISR, or caught up and eligible to
        join."""
        return follower.in_maximal_isr or self._about_to_join(follower, now_ms)  # rule B4/newcomer-is-not-waited-for

    def deleted_everywhere(self, durable_log_start: int) -> int:
        """Return the low watermark: no replica that may lead next has records below it. -1 if it is unknown: a member
        of the maximal ISR has not reported its log start yet, or the ISR is below `min_isr`, so that former members may
        be elected (KIP-966).

        `durable_log_start`: durable log start of this broker's log.
        """
        if self.under_min_isr:  # rule B15/deletions-are-answered-below-min-isr
            return -1
        starts = [follower.log_start_offset for follower in self._followers if follower.in_maximal_isr]
        return min([durable_log_start, *starts])

    def follower_statuses(self, now_ms: float) -> tuple[FollowerStatus, ...]:
        """Return the status of each follower, in the order of assignment."""
        return tuple(
            FollowerStatus(f.node_id, f.fetch_offset, f.durable_offset, f.in_isr, now_ms - f.last_caught_up_ms)
            for f in self._followers
        )

    # Rules

    def _advance(self, now_ms: float) -> None:
        """Rule B4: set the high watermark to the minimum of the leader, the maximal ISR, and the caught-up replicas
        that are eligible to join."""
        if len(self.isr) < self._min_isr:  # rule B4/no-strict-high-watermark
            return
        # rule B4/counts-what-the-leader-has-not-synced
        offset = self.durable_offset if self._sync_before_ack else self.log_end_offset
        for follower in self._followers:
            if follower.counted_offset < offset and self.waits_for(follower, now_ms):
                offset = follower.counted_offset
        if offset <= self.high_watermark:  # rule B4/watermark-falls
            return
        self._check_rise(self.high_watermark, offset)
        self.high_watermark = offset
        self._effects.append(Committed(offset))

    def _check_rise(self, before: int, offset: int) -> None:
        """Check the invariants of a new high watermark against the state that it was computed from."""
        counted = self.durable_offset if self._sync_before_ack else self.log_end_offset
        ensure(before < offset, "MonotonicHighWatermark", was=before, now=offset)  # rule B4/watermark-falls/2
        ensure(offset <= counted <= self.log_end_offset, "CommittedOnTheLeader", now=offset, counted=counted)
        ensure(len(self.isr) >= self._min_isr, "CommittedByEnough", isr=self.isr, min_isr=self._min_isr)
        for follower in self._followers:
            if follower.in_maximal_isr:
                ensure(offset <= follower.counted_offset, "CommittedOnTheMaximalIsr", now=offset, node=follower.node_id)

    def _taken(self) -> LeaderEffects:
        """Return the gathered effects, and clear them."""
        if not self._effects:
            return ()
        effects = tuple(self._effects)
        self._effects.clear()
        return effects

    def _advanced(self, now_ms: float) -> LeaderEffects:
        self._advance(now_ms)
        return self._taken()

    def _advanced_and_proposed(self, now_ms: float) -> LeaderEffects:
        """Advance the high watermark, then propose an ISR change. In this order: a member dropped for its lag must be
        behind the high watermark before it is considered for joining, or it would leave and join for ever."""
        self._advance(now_ms)
        self._propose(now_ms)
        return self._taken()

    def _about_to_join(self, follower: FollowerProgress, now_ms: float) -> bool:
        """True if the replica is caught up and eligible. If the high watermark did not wait for it, it could never
        join."""
        # rule B4/waits-for-the-ineligible
        return follower.caught_up(self.log_end_offset, self._lag_time_max_ms, now_ms) and self._eligible(follower)

    def _may_join(self, follower: FollowerProgress, now_ms: float) -> bool:
        """Check all conditions of rule B5 on one snapshot of the replica: it fetched in this leader epoch, its counted
        offset reaches the high watermark and the epoch's start, its broker is neither fenced nor stopping, and is the
        same process that fetched.

        Two conditions are not Kafka's: the replica has deleted what clients were told is deleted; and it has caught up
        lately, as the next sweep would drop it again otherwise.
        """
        counted = follower.counted_offset
        # rule B5/joins-with-what-was-deleted, rule B5/joins-below-the-high-watermark
        # rule B5/joins-below-the-epoch-start, rule B5/joins-though-it-lags
        return (
            counted >= 0
            and counted >= self.high_watermark
            and counted >= self.epoch_start_offset
            and follower.log_start_offset >= self.deleted_before
            and self._eligible(follower)
            and follower.caught_up(self.log_end_offset, self._lag_time_max_ms, now_ms)
        )

    def _eligible(self, follower: FollowerProgress) -> bool:
        broker = self._brokers.get(follower.node_id)
        # rule B5/another-process-inherits-what-was-fetched, rule B5/joins-under-another-broker-epoch
        return broker is not None and broker.eligible and broker.broker_epoch == follower.broker_epoch

    def _propose(self, now_ms: float) -> None:
        """Propose an ISR change if one is due and none is pending; lagging members are dropped before replicas join."""
        if self.pending is not None or now_ms < self._propose_after_ms:  # rule B2/two-changes-in-flight-at-the-sweep
            return
        lagging = [
            f.node_id
            for f in self._followers
            if f.in_isr and not f.caught_up(self.log_end_offset, self._lag_time_max_ms, now_ms)
        ]
        if lagging:  # rule B6/nobody-leaves
            self._ask(tuple(node for node in self.isr if node not in lagging), IsrChange.SHRINK)
            return  # rule B3/pending-shrink-counts-already
        for follower in self._followers:
            if not follower.in_isr and self._may_join(follower, now_ms):
                self._propose_expand(follower, now_ms)
                return

    def _propose_expand(self, follower: FollowerProgress, now_ms: float) -> None:
        if now_ms < self._propose_after_ms:
            return
        self._ask((*self.isr, follower.node_id), IsrChange.EXPANSION)
        self._set_maximal((*self.isr, follower.node_id))

    def _refused(self, proposal: IsrProposal, now_ms: float) -> None:
        """Handle a refused proposal: the controller found a member ineligible. That settles this copy of the proposal
        only. One whose sender gave up, or that the network holds, may still be committed while the partition epoch
        stands (schedule 50). So a refused expansion is withdrawn by proposing the committed ISR again under the same
        partition epoch. One of the two is committed, which changes the epoch; until then the maximal ISR stays.

        A shrink needs no withdrawal, as the maximal ISR is the old ISR and stays. A refused withdrawal is sent again: a
        member of the committed ISR is ineligible, and its removal is on the way.
        """
        self._propose_after_ms = now_ms + PROPOSAL_BACKOFF_MS
        if proposal.change is IsrChange.WITHDRAWAL:
            self._effects.append(ProposeIsr(proposal, again=True))  # rule B2/a-refused-withdrawal-is-forgotten
            return
        self.pending = None
        if proposal.change is IsrChange.EXPANSION:
            mark("isr-change-withdrawn")
            self._ask(self.isr, IsrChange.WITHDRAWAL)  # rule B2/a-refusal-ends-every-copy

    def _ask(self, isr: tuple[NodeId, ...], change: IsrChange) -> None:
        ensure(self.pending is None, "OneIsrChangeAtATime", proposed=isr)
        item = AlterPartitionItem(
            topic_id=self._state.topic_id,
            partition=self._state.partition,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            new_isr=tuple(IsrMember(node, self._broker_epoch(node)) for node in isr),
        )
        self.pending = IsrProposal(item, change)
        self._effects.append(ProposeIsr(self.pending))

    def _broker_epoch(self, node_id: NodeId) -> BrokerEpoch:
        """Return the process to propose: for a follower the one that fetched, never that of the metadata
        (KAFKA-15221)."""
        # rule B5/another-process-inherits-what-was-fetched/2, rule B5/proposes-whoever-is-registered
        follower = self.followers.get(node_id)
        if follower is not None:
            return follower.broker_epoch
        broker = self._brokers.get(node_id)
        return broker.broker_epoch if broker is not None else NO_BROKER_EPOCH

    def _commit(self, isr: tuple[NodeId, ...], partition_epoch: int, recovering: bool) -> None:
        ensure(
            partition_epoch > self.partition_epoch,
            "MonotonicPartitionEpoch",
            was=self.partition_epoch,
            now=partition_epoch,
        )
        self.partition_epoch = type(self.partition_epoch)(partition_epoch)
        self.recovering = recovering
        if len(isr) != len(self.isr):
            self._effects.append(IsrCommitted(self.isr, isr))
        self.isr = isr
        self.maximal_isr = ()  # the partition epoch has moved: what was proposed before cannot be committed any more
        self._set_maximal(isr)

    def _set_maximal(self, maximal_isr: tuple[NodeId, ...]) -> None:
        ensure(
            set(self.isr) | set(self.maximal_isr) <= set(maximal_isr),
            "MaximalIsrHoldsWhatMayBeCommitted",
            isr=self.isr,
            maximal_isr=maximal_isr,
            before=self.maximal_isr,
        )
        self.maximal_isr = maximal_isr  # rule B3/isr-instead-of-maximal
        for follower in self._followers:
            follower.in_isr = follower.node_id in self.isr
            follower.in_maximal_isr = follower.node_id in maximal_isr

    def _adopt_replicas(self, now_ms: float) -> None:
        """Make the other replicas the followers; a node that was one already keeps its progress."""
        known = self.followers
        self.followers = {
            node: known.get(node) or FollowerProgress(node, in_isr=node in self.isr, now_ms=now_ms)
            for node in self._state.replicas
            if node != self._me
        }
        self._followers = tuple(self.followers.values())
        self._set_maximal(self.maximal_isr)


# Where two logs diverge


class EpochHistory(Protocol):
    """Leader epochs of one log; implemented by `strandline.log.partition_log.PartitionLog`."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch <= `epoch`, its end offset); (-1, -1) if every known epoch is larger, or none is known."""
        ...


class Verdict(Enum):
    """A leader's judgement of a follower's fetch position."""

    VALID = "the follower's log is a prefix of the leader's"
    DIVERGING = "the follower must truncate first"
    OUT_OF_RANGE = "the leader no longer has, or never had, that offset"


class FetchJudgement(NamedTuple):
    """Judgement of a fetch. With DIVERGING: the leader's largest epoch not above the follower's last one, and its
    end."""

    verdict: Verdict
    epoch: int = -1
    end_offset: int = -1


_VALID = FetchJudgement(Verdict.VALID)
_OUT_OF_RANGE = FetchJudgement(Verdict.OUT_OF_RANGE)


def judge_fetch(
    history: EpochHistory, log_start: int, log_end: int, fetch_offset: int, last_fetched_epoch: int
) -> FetchJudgement:
    """Compare a follower's position (log end and last epoch) with the leader's log.

    An offset below the log start is out of range even if the logs diverge (rule B8, truncation). If all of the leader's
    epochs are newer than the follower's last one, the leader has deleted the older records; everything from its log
    start on is of newer epochs, so the follower keeps nothing beyond the log start.
    """
    if fetch_offset < log_start:  # rule B8/out-of-range-is-diverging
        return _OUT_OF_RANGE
    if last_fetched_epoch < 0:
        return _VALID if fetch_offset <= log_end else _OUT_OF_RANGE
    epoch, end_offset = history.end_offset_for_epoch(last_fetched_epoch)
    if epoch < 0:
        epoch, end_offset = last_fetched_epoch, log_start
    if is_diverging(epoch, end_offset, last_fetched_epoch, fetch_offset):
        return FetchJudgement(Verdict.DIVERGING, epoch, end_offset)
    return _VALID


def truncation_offset(
    history: EpochHistory, log_start: int, log_end: int, leader_epoch: int, leader_end_offset: int
) -> int:
    """Return the offset at which a follower cuts its log after DIVERGING(leader_epoch, leader_end_offset); see
    `cut_offset`.

    If all of the follower's records are of larger epochs, none of them is the leader's.
    """
    own_epoch, own_end = history.end_offset_for_epoch(leader_epoch)  # rule B8/no-iteration
    if own_epoch < 0:
        return log_start  # rule B8/only-larger-epochs-are-kept
    return min(cut_offset(own_epoch, own_end, leader_epoch, leader_end_offset), log_end)


# Effects of a follower


@dataclass(frozen=True, slots=True)
class DeleteBefore:
    """The leader deleted its records before `offset`: delete them here, too."""

    offset: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log at `offset`, even if no record lies there: epochs without records beyond it must go, too
    (KAFKA-10706, schedule 5).

    `below_high_watermark`: the cut removes records that this replica knew to be committed, which an unclean election or
    flush.policy = replicate allows.
    """

    offset: int
    below_high_watermark: bool = False


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Drop the whole log and begin an empty one at `offset`; otherwise like `Truncate`."""

    offset: int
    below_high_watermark: bool = False


@dataclass(frozen=True, slots=True)
class KeepLog:
    """Do not cut the log at `offset`: the leader lacks committed records, and no unclean election or flush policy
    explains it. Some node broke the protocol, and this copy is kept as evidence."""

    offset: int


FollowerEffects = tuple[Committed | DeleteBefore, ...]
Cut = Truncate | RestartAt | KeepLog


# The follower


class FollowerCore:
    """Following of one leader in one leader epoch; a new leader epoch gets a new object (KAFKA-13790).

    The caller passes on the leader's messages and the results of cuts, and carries out the returned effects.

    Invariants, each checked where it could break (`strandline.proto.ensure`):
    - the high watermark is at most the own log end, and rises only with data or watermarks of a leader whose log has
      this one as a prefix: never from a diverging answer (KAFKA-14704, schedule 7);
    - it falls only with a truncation below it.
    """

    __slots__ = ("_sync_before_ack", "high_watermark", "leader", "leader_epoch", "may_lose_committed")

    def __init__(
        self, state: PartitionState, high_watermark: int, log_end_offset: int, *, sync_before_ack: bool = True
    ) -> None:
        self.leader: NodeId = state.leader
        self.leader_epoch: LeaderEpoch = state.leader_epoch
        self.high_watermark = min(high_watermark, log_end_offset)  # rule B4/follower-begins-beyond-its-end
        self._sync_before_ack = sync_before_ack
        self.may_lose_committed = False
        """True if an unclean election, or flush.policy = replicate, can explain that the leader lacks committed
        records."""
        self.metadata_changed(state)

    def metadata_changed(self, state: PartitionState) -> None:
        """Take changed metadata within the leader epoch; nothing restarts. They may allow the loss of committed
        records."""
        ensure(state.leader_epoch == self.leader_epoch, "OneFollowerPerLeaderEpoch", now=state.leader_epoch)
        self.may_lose_committed = state.recovering or state.unclean_leader_election or not self._sync_before_ack

    def learned(
        self, leader_high_watermark: int, leader_log_start: int, *, log_start: int, log_end: int
    ) -> FollowerEffects:
        """Take the leader's high watermark and log start, which came with data or alone: HW = min(own end, the
        leader's).

        `log_start`, `log_end`: where this replica's log begins and ends, the data included.
        """
        high_watermark = min(leader_high_watermark, log_end)  # rule B4/follower-watermark-beyond-its-end
        effects: FollowerEffects = ()
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            effects = (Committed(high_watermark),)
        if leader_log_start > log_start:
            # rule B15/log-start-not-clamped
            effects = (*effects, DeleteBefore(min(leader_log_start, self.high_watermark)))
        ensure(self.high_watermark <= log_end, "HighWatermarkWithinTheLog", now=self.high_watermark, log_end=log_end)
        return effects

    def diverged(self, history: EpochHistory, log_start: int, log_end: int, epoch: int, end_offset: int) -> Cut:
        """Return the cut for a leader's answer DIVERGING(epoch, end offset). Call `truncated` once the log is cut."""
        offset = truncation_offset(history, log_start, log_end, epoch, end_offset)
        return self._judge(Truncate(offset, below_high_watermark=offset < self.high_watermark))

    def out_of_range(self, log_end_offset: int, leader_start: int, leader_end: int) -> Cut:
        """Return the cut for a leader's OFFSET_OUT_OF_RANGE: start anew at its log start. Call `started_at` afterwards.

        If the leader's log begins beyond our end, retention deleted the records in between, and dropping our older part
        loses nothing committed. Otherwise our log is longer than the leader's, which takes an unclean election.
        """
        lacks_committed = leader_start < log_end_offset and self.high_watermark > leader_end
        return self._judge(RestartAt(leader_start, below_high_watermark=lacks_committed))

    def _judge(self, cut: Truncate | RestartAt) -> Cut:
        """Return the cut, or KeepLog for a cut below the high watermark that nothing explains."""
        # rule B8/cuts-committed-records-silently
        return KeepLog(cut.offset) if cut.below_high_watermark and not self.may_lose_committed else cut

    def truncated(self, offset: int) -> None:
        """Take note that the log was cut at `offset`."""
        ensure(
            offset >= self.high_watermark or self.may_lose_committed,
            "CommittedIsKept",
            high_watermark=self.high_watermark,
            truncated_to=offset,
        )
        self.high_watermark = min(self.high_watermark, offset)  # rule B4/follower-watermark-survives-a-cut

    def started_at(self, offset: int) -> None:
        """Take note that the log was dropped and starts anew, empty, at `offset`; the leader has nothing below it."""
        self.high_watermark = offset
