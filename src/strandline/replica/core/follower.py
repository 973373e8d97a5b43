"""The follower of one partition in one leader epoch (rule B8, truncation)."""

from __future__ import annotations

from typing import NamedTuple

from strandline.proto.ids import LeaderEpoch, NodeId
from strandline.replica.core.divergence import EpochHistory, truncation_offset
from strandline.replica.states import PartitionState


class Truncation(NamedTuple):
    """Cut the log at `offset`, even if nothing ends there (empty epochs beyond it must go too: KAFKA-10706,
    schedule 5).

    `below_high_watermark`: it removes what this replica knew to be committed. Only an unclean election explains it.
    """

    offset: int
    below_high_watermark: bool


class FollowerCore:
    """Following one leader in one leader epoch; a new leader epoch gets a new object (KAFKA-13790).

    Invariants:
    - the high watermark is at most the own log end, and rises only with data or words of a leader whose log this one
      is a prefix of: never from a diverging answer (KAFKA-14704, schedule 7);
    - it falls only with a truncation below it.
    """

    __slots__ = ("high_watermark", "leader", "leader_epoch", "may_lose_committed")

    def __init__(self, state: PartitionState, high_watermark: int, log_end_offset: int) -> None:
        self.leader: NodeId = state.leader
        self.leader_epoch: LeaderEpoch = state.leader_epoch
        self.high_watermark = min(high_watermark, log_end_offset)
        self.may_lose_committed = state.recovering or state.unclean_leader_election

    def metadata_changed(self, state: PartitionState) -> None:
        """Metadata changed within the leader epoch: nothing restarts, only what may be given up is learned."""
        self.may_lose_committed = state.recovering or state.unclean_leader_election

    def watermark(self, leader_high_watermark: int, log_end_offset: int) -> bool:
        """The leader told its high watermark: HW = min(own end, the leader's). True if it rose."""
        high_watermark = min(leader_high_watermark, log_end_offset)
        if high_watermark <= self.high_watermark:
            return False
        self.high_watermark = high_watermark
        return True

    def diverged(self, history: EpochHistory, log_start: int, log_end: int, epoch: int, end_offset: int) -> Truncation:
        """The leader answered DIVERGING(epoch, end offset)."""
        offset = truncation_offset(history, log_start, log_end, epoch, end_offset)
        return Truncation(offset, below_high_watermark=offset < self.high_watermark)

    def truncated(self, offset: int) -> None:
        """The log was cut at `offset`."""
        self.high_watermark = min(self.high_watermark, offset)

    def out_of_range(self, log_end_offset: int, leader_start: int, leader_end: int) -> Truncation:
        """The leader answered OFFSET_OUT_OF_RANGE: start anew at its log start.

        If its log begins beyond our end, what we lack was deleted by retention and nothing committed is given up by
        dropping our older part. Otherwise our log is longer than the leader's: that takes an unclean election.
        """
        if leader_start >= log_end_offset:
            return Truncation(leader_start, below_high_watermark=False)
        return Truncation(leader_start, below_high_watermark=self.high_watermark > leader_end)

    def started_at(self, offset: int) -> None:
        """The log was dropped and starts anew, empty, at `offset`: the leader has nothing committed below it."""
        self.high_watermark = offset
