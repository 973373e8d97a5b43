"""Records deleted from the front of a partition at a client's word (DeleteRecords, KIP-107).

The leader raises its log start at once and tells its followers, who raise theirs and, once that is durable, say so
(TRIMMED). The client is answered when every replica that may lead next has done it: else the deleted records would be
back after an election or a power cut. So it waits while the ISR is below min.insync.replicas too, for then members that
left it may be elected (KIP-966); and who joins the ISR later has deleted them first (`LeaderCore.deleted_before`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from strandline.proto.error_codes import ErrorCode

if TYPE_CHECKING:
    from strandline.replica.core.leader import LeaderCore

TrimDone = Callable[[ErrorCode, str, int], None]
"""Gets error, sentence and low watermark: no replica that may lead has records below it (-1 with an error)."""

TO_HIGH_WATERMARK = -1
"""Delete everything that is committed."""


class PendingTrim:
    """A deletion that is done here and waits for followers."""

    __slots__ = ("_done", "offset")

    def __init__(self, offset: int, done: TrimDone) -> None:
        self.offset = offset
        self._done: TrimDone | None = done

    def cancel(self) -> None:
        """Stop waiting: REQUEST_TIMED_OUT. The records are deleted here. Nothing happens when it has ended."""
        self.finish(
            ErrorCode.REQUEST_TIMED_OUT, "deleted on the leader; not every replica in sync has followed in time"
        )

    def finish(self, error: ErrorCode, message: str = "", low_watermark: int = -1) -> None:
        """Tell the outcome, once."""
        done, self._done = self._done, None
        if done is not None:
            done(error, message, low_watermark)

    @property
    def ended(self) -> bool:
        """The outcome was told."""
        return self._done is None


def low_watermark(core: LeaderCore, durable_log_start: int) -> int:
    """The smallest durable log start of the leader and of every follower in the maximal ISR (-1: one has not told it
    yet)."""
    starts = [follower.log_start_offset for follower in core.followers.values() if follower.in_maximal_isr]
    return min([durable_log_start, *starts])


def release(trims: list[PendingTrim], core: LeaderCore, durable_log_start: int) -> list[PendingTrim]:
    """Answer who need not wait any longer; the others."""
    low = -1 if core.under_min_isr else low_watermark(core, durable_log_start)
    for trim in trims:
        if trim.offset <= low:
            core.deleted_before = max(core.deleted_before, trim.offset)
            trim.finish(ErrorCode.NONE, "", low)
    return [trim for trim in trims if not trim.ended]
