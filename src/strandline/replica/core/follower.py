"""The follower of one partition in a leader epoch: its core, and where its log and the leader's part (rule B8,
truncation).

A core changes itself and nothing else: it returns what is to be done, small frozen values in the order in which they
are to be carried out. Where logs part is `strandline.proto.divergence` within the bounds of the two logs, whose older
records and epochs may be deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from strandline.proto.divergence import cut_offset, is_diverging
from strandline.proto.ensure import ensure
from strandline.proto.ids import LeaderEpoch, NodeId
from strandline.replica.core.leader import Committed
from strandline.replica.states import PartitionState

# Where two logs part


class EpochHistory(Protocol):
    """The leader epochs of one log; `strandline.log.partition_log.PartitionLog` is one."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch <= `epoch`, its end offset); (-1, -1) when every known epoch is larger, or none is known."""
        ...


class Verdict(Enum):
    """Judgement of a leader on a follower's fetch position."""

    VALID = "the follower's log is a prefix of the leader's"
    DIVERGING = "the follower must truncate first"
    OUT_OF_RANGE = "the leader no longer has, or never had, that offset"


class FetchJudgement(NamedTuple):
    """With DIVERGING: the largest epoch of the leader not above the follower's last one, and where it ends."""

    verdict: Verdict
    epoch: int = -1
    end_offset: int = -1


_VALID = FetchJudgement(Verdict.VALID)
_OUT_OF_RANGE = FetchJudgement(Verdict.OUT_OF_RANGE)


def judge_fetch(
    history: EpochHistory, log_start: int, log_end: int, fetch_offset: int, last_fetched_epoch: int
) -> FetchJudgement:
    """Compare a follower's position (log end and last epoch) with the leader's log.

    An offset below the log start is out of range even when the logs diverge (rule B8, truncation). A leader whose
    epochs are all newer than the follower's last one has deleted what would tell more; what it still holds from its
    log start on is of newer epochs, so the follower keeps nothing beyond that.
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
    """Offset at which a follower cuts its log after DIVERGING(leader_epoch, leader_end_offset): see `cut_offset`.

    If all that it has is of larger epochs, none of it is the leader's.
    """
    own_epoch, own_end = history.end_offset_for_epoch(leader_epoch)  # rule B8/no-iteration
    if own_epoch < 0:
        return log_start  # rule B8/only-larger-epochs-are-kept
    return min(cut_offset(own_epoch, own_end, leader_epoch, leader_end_offset), log_end)


# Effects


@dataclass(frozen=True, slots=True)
class DeleteBefore:
    """The leader has deleted its records before `offset`: delete them here too."""

    offset: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log at `offset`, even if nothing ends there (empty epochs beyond it must go too: KAFKA-10706,
    schedule 5).

    `below_high_watermark`: it removes what this replica knew to be committed. An unclean election, or
    flush.policy = replicate, allows that.
    """

    offset: int
    below_high_watermark: bool = False


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Drop the whole log and begin an empty one at `offset`; otherwise as `Truncate`."""

    offset: int
    below_high_watermark: bool = False


@dataclass(frozen=True, slots=True)
class KeepLog:
    """The leader lacks committed records, and nothing explains that: the log must not be cut at `offset`. Somebody
    broke the protocol, and this copy is kept as it is, as evidence."""

    offset: int


FollowerEffects = tuple[Committed | DeleteBefore, ...]
Cut = Truncate | RestartAt | KeepLog


# The follower


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
        """The cut, or KeepLog for one below the high watermark that nothing explains."""
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
