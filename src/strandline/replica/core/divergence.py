"""Where a partition's log and its leader's part (rule B8, truncation): `strandline.proto.divergence` within the bounds
of the two logs, whose older records and epochs may be deleted.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from strandline.proto.divergence import cut_offset, is_diverging


class EpochHistory(Protocol):
    """The leader epochs of one log; `strandline.log.partition_log.PartitionLog` is one."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch <= `epoch`, its end offset); (-1, -1) when every known epoch is larger, or none is known."""
        ...


class Verdict(Enum):
    """What a leader makes of a follower's fetch position."""

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
