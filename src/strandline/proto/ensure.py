"""Safety checks that stop the node: `assert` vanishes under `python -O`, `ensure` does not.

`ensure` is for what can be false only by an error in this code, or by a disk that returned other bytes than were
written. What a peer, a client or an operator can bring about gets an error of its own (`proto.errors`), which says what
to do.
"""

from __future__ import annotations

from typing import TypeVar

from strandline.proto.errors import FatalError

T = TypeVar("T")

INVARIANTS: dict[str, str] = {
    # every state machine
    "LegalTransition": "a state changes only as the table of its transitions says",
    # the metadata quorum
    "AppendsInItsEpoch": "a leader appends batches of its own epoch only",
    "CommittedSnapshot": "a snapshot holds committed records only (rule A10)",
    "CommittedStays": "no record below the high watermark is truncated (rule A8)",
    "CutWithinTheLog": "a truncation point lies between the log's start and its end",
    "ElectedByAMajority": "a candidate leads only with the votes of a majority",
    "EpochOpened": "a leader's log ends with records of its own epoch (rule A6)",
    "EpochsAscend": "the epochs of a log, and the offsets where they start, strictly increase",
    "EpochsWithinTheLog": "each epoch of a log starts between the log's start and its end",
    "FollowsAnother": "a follower's leader is known, and another node",
    "HighWatermarkWithinTheEpoch": "an epoch's high watermark lies above the epoch's start (rule A6, schedule 22)",
    "HighWatermarkWithinTheLog": "the high watermark does not pass the log's end",
    "LeaderAppends": "only a leader appends batches of its own",
    "LeaderOrVote": "no epoch has both a known leader and a vote given away",
    "LogBounds": "a log's start and its durable end do not pass its end",
    "MonotonicEpoch": "the epoch never goes back",
    "NoGap": "each batch begins where the log ends",
    "NoRecordsOfAContestedEpoch": "a candidate's log holds no record of the epoch that it stands for",
    "ObserverIsNoVoter": "an observer is not in its own voter set (rule A12)",
    "OnceAndInOrder": "committed batches reach a listener once and in order",
    "OneAnswerAVoter": "a voter's answer counts once, and a round of votes is not both won and lost",
    "SnapshotAtLogStart": "a log begins at offset 0 or at the end of a snapshot, and never after its latest snapshot",
    "SnapshotsAscend": "a new snapshot ends at or after the one before it, within the log",
    "VotersWithinTheLog": "the voter sets of a log stand in ascending order before the log's end",
    # the metadata machine
    "OneWorkAName": "two works of one step have two names: the second would be left out (rule A39)",
    # the replicas
    "CommittedByEnough": "the high watermark rises only while enough replicas are in sync (KIP-966)",
    "CommittedIsKept": "a follower cuts what it knew to be committed only where an unclean election explains it",
    "CommittedOnTheLeader": "the high watermark does not pass what counts of the leader's own log",
    "CommittedOnTheMaximalIsr": "the high watermark does not pass any member of the maximal ISR (rule B3)",
    "AbortedIndexIsLoaded": "a log that is open has the aborted transactions of each segment (rule C6)",
    "LogUnlessOffline": "a partition that is not offline has a log",
    "MaximalIsrHoldsWhatMayBeCommitted": "what was proposed counts until the partition epoch moves (schedule 50)",
    "MonotonicHighWatermark": "a leader's high watermark never falls",
    "MonotonicPartitionEpoch": "a committed ISR has a newer partition epoch than the one before it",
    "OneCoreARole": "a leader has a leader's core, a follower a follower's, and other roles have none",
    "MovedLogIsTheSame": "a log that was copied to another directory ends where the one did that it takes the place of",
    "OneFlushPolicy": "the flush policy is set before the first partition is hosted",
    "OneFollowerPerLeaderEpoch": "a new leader epoch gets a new follower",
    "OneIsrChangeAtATime": "a leader has at most one ISR change pending (rule B2)",
    # the coordinators
    "OrderHasPartitions": "markers are ordered for at least one partition (rule C16)",
}
"""name -> what always holds. Each name is used by some `ensure` or `present`; a test holds both directions."""


def ensure(holds: bool, invariant: str, **facts: object) -> None:
    """Stop the node if an invariant does not hold.

    Args:
        invariant: its name in `INVARIANTS`.
        facts: figures for the error's message; computed on each call, so keep them cheap.

    Raises:
        FatalError: `holds` is false. The message has the invariant's name, its sentence and the facts.
        KeyError: `holds` is false, and `INVARIANTS` does not declare the name.
    """
    if not holds:
        raise _broken(invariant, facts)


def present(value: T | None, invariant: str, **facts: object) -> T:
    """`value`, which an invariant says is not None; the way to tell a type checker so.

    Raises:
        FatalError: it is None.
        KeyError: it is None, and `INVARIANTS` does not declare the name.
    """
    if value is None:
        raise _broken(invariant, facts)
    return value


def _broken(invariant: str, facts: dict[str, object]) -> FatalError:
    figures = ", ".join(f"{name}={fact}" for name, fact in facts.items())
    what = f"internal error: {invariant} does not hold: {INVARIANTS[invariant]}"
    return FatalError(what + (f" [{figures}]" if figures else ""))
