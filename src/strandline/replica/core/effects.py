"""What a core wants done: small frozen values, to be carried out in the order in which they stand.

A core changes itself and nothing else. Whoever tells it what happened gets these back, as the Raft core gives back its
`Ready`, and the `strandline.replica.partition.Partition` around it carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.isr import AlterPartitionItem


class IsrChange(Enum):
    """What a proposal changes. It never adds and removes at once."""

    EXPANSION = "a replica joins"
    SHRINK = "replicas that lag leave"
    WITHDRAWAL = "nobody: the committed ISR anew. Its commit moves the partition epoch, and so ends what was proposed"


@dataclass(frozen=True, slots=True, eq=False)
class IsrProposal:
    """A proposed ISR. While it is pending the leader counts on the larger of old and new, the *maximal ISR*: the
    controller may have committed either.

    Two proposals are the same only if they are one object: equal ones may be made one after the other.
    """

    item: AlterPartitionItem
    """What is sent."""
    change: IsrChange

    @property
    def isr(self) -> tuple[NodeId, ...]:
        """The proposed members."""
        return tuple(member.node_id for member in self.item.new_isr)


# Effects


@dataclass(frozen=True, slots=True)
class Committed:
    """The high watermark rose to `up_to`: what waits for it can be answered and read."""

    up_to: int


@dataclass(frozen=True, slots=True)
class IsrCommitted:
    """The controller has committed an ISR with more members than the one before, or with fewer."""

    before: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Send this proposal to the controller; `again`: as before, after a pause."""

    proposal: IsrProposal
    again: bool = False


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


LeaderEffects = tuple[Committed | IsrCommitted | ProposeIsr, ...]
FollowerEffects = tuple[Committed | DeleteBefore, ...]
Cut = Truncate | RestartAt | KeepLog


# The controller's answers


class Judgement(Enum):
    """What the controller's answer means for a pending proposal."""

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
    """Rule B2: only INELIGIBLE_REPLICA and OPERATION_NOT_ATTEMPTED end a proposal; definite rejections stay pending
    until metadata arrive; anything else (NOT_CONTROLLER, schedule 13, among it) is sent again."""
    # rule B2/what-was-not-attempted-is-sent-again, rule B2/withdraws-on-anything
    # rule B2/withdraws-on-a-definite-rejection
    return _JUDGEMENTS.get(error, Judgement.RETRY)
