"""A change of the in-sync replicas on its way to the controller (rules B2, B3: AlterPartition, maximal ISR)."""

from __future__ import annotations

from enum import Enum

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.isr import AlterPartitionItem


class IsrChange(Enum):
    """What a proposal changes. It never adds and removes at once."""

    EXPANSION = "a replica joins"
    SHRINK = "replicas that lag leave"
    WITHDRAWAL = "nobody: the committed ISR anew. Its commit moves the partition epoch, and so ends what was proposed"


class PendingIsr:
    """A proposed ISR. While it is pending the leader counts on the larger of old and new, the *maximal ISR*: the
    controller may have committed either.

    Attributes:
        item: what is (to be) sent.
        isr: the proposed members.
        change: what it changes.
        sent: the item is on its way or was answered by a definite rejection; nothing else may be sent.
    """

    __slots__ = ("change", "isr", "item", "sent")

    def __init__(self, item: AlterPartitionItem, change: IsrChange) -> None:
        self.item = item
        self.isr: tuple[NodeId, ...] = tuple(member.node_id for member in item.new_isr)
        self.change = change
        self.sent = False


class Judgement(Enum):
    """What the controller's answer means for a pending change."""

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
    return _JUDGEMENTS.get(error, Judgement.RETRY)
