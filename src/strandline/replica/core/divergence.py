"""Where two logs part, judged by leader epochs (KIP-101, KIP-279, KIP-595; rule B8, truncation).

Both functions see a log only through its epochs: `EpochHistory.end_offset_for_epoch(e)` is the largest epoch not above
`e` that the log knows, and the offset after that epoch's last record.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol


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
    # rule B8/unknown-epoch-is-valid, rule B8/longer-log-is-valid
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return FetchJudgement(Verdict.DIVERGING, epoch, end_offset)
    return _VALID


def truncation_offset(
    history: EpochHistory, log_start: int, log_end: int, leader_epoch: int, leader_end_offset: int
) -> int:
    """Where a follower cuts its log after DIVERGING(leader_epoch, leader_end_offset).

    If it knows that epoch, at the smaller of the two ends. If not, at the end of its own largest epoch below: the
    next fetch carries that smaller epoch, and so the two iterate until they meet (KAFKA-6361, schedule 2). If all it
    has is of larger epochs, none of it is the leader's.
    """
    own_epoch, own_end = history.end_offset_for_epoch(leader_epoch)  # rule B8/no-iteration
    if own_epoch < 0:
        return log_start  # rule B8/only-larger-epochs-are-kept
    if own_epoch == leader_epoch:
        own_end = min(own_end, leader_end_offset)  # rule B8/cuts-at-its-own-end-of-the-epoch
    return min(own_end, log_end)
