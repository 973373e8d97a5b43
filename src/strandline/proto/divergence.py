"""Where two logs part, judged by leader epochs (KIP-101, KIP-279, KIP-595; rules A7, A8 and B8).

The quorum's logs and the partitions' go by the same two functions. Both see a log only through an epoch and its end:
the largest epoch that the log has and that is not above the one asked for, and the offset after its last record.
"""

from __future__ import annotations


def is_diverging(epoch: int, end_offset: int, fetch_epoch: int, fetch_offset: int) -> bool:
    """Whether a log that ends at `fetch_offset` with a record of `fetch_epoch` is no prefix of the leader's.

    Args:
        epoch: largest epoch of the leader's log that is not above `fetch_epoch`.
        end_offset: where that epoch ends there.
    """
    # rule A7/divergence-judged-by-epoch-alone, rule B8/unknown-epoch-is-valid, rule B8/longer-log-is-valid
    return epoch != fetch_epoch or end_offset < fetch_offset


def cut_offset(epoch: int, end_offset: int, leader_epoch: int, leader_end_offset: int) -> int:
    """Offset at which a follower cuts its log, after the leader's answer that its own largest epoch not above the
    follower's is `leader_epoch`, which ends at `leader_end_offset`.

    If the follower has that epoch, it is the smaller of the two ends. If not, it is the end of its own largest epoch
    below: the next fetch carries that smaller epoch, and so the two iterate until they meet (KAFKA-6361, schedule 2).

    Args:
        epoch: largest epoch of the follower's log that is not above `leader_epoch`.
        end_offset: where that epoch ends there.
    """
    if epoch == leader_epoch:  # rule A8/truncation-does-not-iterate
        # rule A8/truncate-to-the-leaders-end, rule B8/cuts-at-its-own-end-of-the-epoch
        return min(end_offset, leader_end_offset)
    return end_offset
