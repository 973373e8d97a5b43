"""The follower of one partition in a leader epoch: its core (rule B8, truncation), and what its leader knows of it."""

from __future__ import annotations

from strandline.proto.ensure import ensure
from strandline.proto.ids import NO_BROKER_EPOCH, BrokerEpoch, LeaderEpoch, NodeId
from strandline.replica.core.divergence import EpochHistory, truncation_offset
from strandline.replica.core.effects import Committed, Cut, DeleteBefore, FollowerEffects, KeepLog, RestartAt, Truncate
from strandline.replica.states import PartitionState


class FollowerCore:
    """Following one leader in one leader epoch; a new leader epoch gets a new object (KAFKA-13790).

    The caller says what the leader said and what became of the log, and carries out the effects that it gets back.

    Invariants, each checked where it could break (`strandline.proto.ensure`):
    - the high watermark is at most the own log end, and rises only with data or words of a leader whose log this one
      is a prefix of: never from a diverging answer (KAFKA-14704, schedule 7);
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
        """An unclean election explains that the leader lacks what was committed, or flush.policy = replicate does."""
        self.metadata_changed(state)

    def metadata_changed(self, state: PartitionState) -> None:
        """Metadata changed within the leader epoch: nothing restarts, only what may be given up is learned."""
        ensure(state.leader_epoch == self.leader_epoch, "OneFollowerPerLeaderEpoch", now=state.leader_epoch)
        self.may_lose_committed = state.recovering or state.unclean_leader_election or not self._sync_before_ack

    def learned(
        self, leader_high_watermark: int, leader_log_start: int, *, log_start: int, log_end: int
    ) -> FollowerEffects:
        """The leader gave its high watermark and its log start, with data or without: HW = min(own end, the leader's).

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
        """The leader answered DIVERGING(epoch, end offset). Tell `truncated` once the log is cut."""
        offset = truncation_offset(history, log_start, log_end, epoch, end_offset)
        return self._judge(Truncate(offset, below_high_watermark=offset < self.high_watermark))

    def out_of_range(self, log_end_offset: int, leader_start: int, leader_end: int) -> Cut:
        """The leader answered OFFSET_OUT_OF_RANGE: start anew at its log start. Tell `started_at` once that is done.

        If its log begins beyond our end, what we lack was deleted by retention and nothing committed is given up by
        dropping our older part. Otherwise our log is longer than the leader's: that takes an unclean election.
        """
        lacks_committed = leader_start < log_end_offset and self.high_watermark > leader_end
        return self._judge(RestartAt(leader_start, below_high_watermark=lacks_committed))

    def _judge(self, cut: Truncate | RestartAt) -> Cut:
        """Below the high watermark a log is cut only if something explains it."""
        # rule B8/cuts-committed-records-silently
        return KeepLog(cut.offset) if cut.below_high_watermark and not self.may_lose_committed else cut

    def truncated(self, offset: int) -> None:
        """The log was cut at `offset`."""
        ensure(
            offset >= self.high_watermark or self.may_lose_committed,
            "CommittedIsKept",
            high_watermark=self.high_watermark,
            truncated_to=offset,
        )
        self.high_watermark = min(self.high_watermark, offset)  # rule B4/follower-watermark-survives-a-cut

    def started_at(self, offset: int) -> None:
        """The log was dropped and starts anew, empty, at `offset`: the leader has nothing committed below it."""
        self.high_watermark = offset


class FollowerProgress:
    """What a leader knows of one follower in its leader epoch: unknown at first, filled by a validated fetch.

    Invariants:
    - offset, durable offset and broker epoch are set together by a validated fetch, so that they are of one process
      (KAFKA-15221: judged on one snapshot);
    - durable_offset <= fetch_offset;
    - log_start_offset is durable there, too; -1 until the follower gave it;
    - counted_offset is what the high watermark may count on: the durable offset under flush.policy = ack, else the
      fetch offset; -1 until a fetch was validated in this leader epoch (kafka-tlaplus 6.5.4).
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
        """A fetch of it was validated in this leader epoch."""
        return self.fetch_offset >= 0

    def forget(self) -> None:
        """Its offsets are void: another process of that node began to fetch, and was not found valid yet."""
        self.fetch_offset = self.durable_offset = self.counted_offset = -1
        self.leader_end_at_last_ack = -1
        if not self.in_isr:
            self.last_caught_up_ms = float("-inf")

    def advance(self, fetch_offset: int, durable_offset: int, counted: int, leader_end: int, now_ms: float) -> None:
        """It has everything below `fetch_offset`, and synced everything below `durable_offset`.

        It was caught up now if it is at the leader's end, and at the time of its previous ack if it has now what the
        leader had then (it cannot be expected to stand still with a leader that is written to).
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
        """At the leader's end, or was so within the last `lag_time_max_ms` (Kafka's replica.lag.time.max.ms)."""
        # rule B6/leaves-for-silence
        return self.fetch_offset == leader_end or now_ms - self.last_caught_up_ms <= lag_time_max_ms
