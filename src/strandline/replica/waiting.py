"""Who waits for the replicas: appends and readers for the high watermark, deletions for the followers' log starts. And
how long: the deadlines of parked requests, one timer for all of them, however many there are.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from typing import Protocol

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.ports import Clock


class Append:
    """One append of a client's batches: what its sender waits with, and its outcome once it has `ended`.

    Attributes:
        required_offset: with acks=all it is answered when the high watermark has reached this.
        error: NONE, or Kafka's code. NOT_ENOUGH_REPLICAS_AFTER_APPEND, NOT_LEADER_OR_FOLLOWER and REQUEST_TIMED_OUT
            are indeterminate when the batch had been written, KAFKA_STORAGE_ERROR is unless the disk was merely full;
            every other code means that nothing was written.
        message: a sentence beside an error.
        base_offset: offset of the first record; -1 unless written (or found as a duplicate).
        log_append_time_ms: -1 unless the topic stamps records with the time of their append.
        log_start_offset: where the log began when the batch was written; -1 unless written.
        synced_replicas: the nodes known to have synced the batch when this ended, leader first.
    """

    __slots__ = (
        "_done",
        "base_offset",
        "error",
        "log_append_time_ms",
        "log_start_offset",
        "message",
        "required_offset",
        "synced_replicas",
    )

    def __init__(self, done: AppendDone) -> None:
        self._done: AppendDone | None = done
        self.required_offset = -1
        self.error = ErrorCode.NONE
        self.message = ""
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.log_start_offset = -1
        self.synced_replicas: tuple[NodeId, ...] = ()

    @property
    def ended(self) -> bool:
        """The outcome is known, and its sender has it."""
        return self._done is None

    def wait_in(self, waiting: deque[Append]) -> None:
        """Stand among those that wait for the high watermark, in the order of what they require. Only a duplicate of an
        older batch can require less than the one before it."""
        index = len(waiting)
        while index and waiting[index - 1].required_offset > self.required_offset:
            index -= 1
        waiting.insert(index, self)

    def cancel(self, error: ErrorCode) -> None:
        """Stop waiting: the outcome is `error`, and indeterminate, since the batch stays in the log. Nothing happens
        when it has ended."""
        self.end(error, "the batch is written and was not committed in time")

    def end(self, error: ErrorCode, message: str = "", synced: tuple[NodeId, ...] = ()) -> None:
        """Set the outcome and give it to the sender, once."""
        done = self._done
        if done is not None:
            self._done = None
            self.error = error
            self.message = message
            self.synced_replicas = synced
            done(self)


AppendDone = Callable[[Append], None]
"""Gets an append that has ended."""


DeletionDone = Callable[[ErrorCode, str, int], None]
"""Gets error, sentence and low watermark: no replica that may lead has records below it (-1 with an error)."""

TO_HIGH_WATERMARK = -1
"""Delete everything that is committed."""


class PendingDeletion:
    """Records deleted from the front of a partition at a client's word (DeleteRecords, KIP-107).

    The leader raises its log start at once and tells its followers, who raise theirs and, once that is durable, say so.
    The client is answered when every replica that may lead next has done it: else the deleted records would be back
    after an election or a power cut. So it waits while the ISR is below min.insync.replicas too, for then members that
    left it may be elected (KIP-966); and who joins the ISR later has deleted them first (`LeaderCore.deleted_before`).
    """

    __slots__ = ("_done", "offset")

    def __init__(self, offset: int, done: DeletionDone) -> None:
        self.offset = offset
        self._done: DeletionDone | None = done

    def cancel(self) -> None:
        """Stop waiting: REQUEST_TIMED_OUT. The records are deleted here. Nothing happens when it has ended."""
        self.end(ErrorCode.REQUEST_TIMED_OUT, "deleted on the leader; not every replica in sync has followed in time")

    def end(self, error: ErrorCode, message: str = "", low_watermark: int = -1) -> None:
        """Give the outcome to the client, once."""
        done, self._done = self._done, None
        if done is not None:
            done(error, message, low_watermark)

    @property
    def ended(self) -> bool:
        """The client has its outcome."""
        return self._done is None


class Watchers:
    """Calls to be made once, when something has changed."""

    __slots__ = ("_calls", "_last")

    def __init__(self) -> None:
        self._calls: dict[int, Callable[[], None]] = {}
        self._last = 0

    def add(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once, at the next change. Returns how to withdraw."""
        self._last += 1
        number = self._last
        self._calls[number] = wake
        return lambda: self._withdraw(number)

    def _withdraw(self, number: int) -> None:
        self._calls.pop(number, None)

    def wake(self) -> None:
        """It has changed."""
        if self._calls:
            calls, self._calls = self._calls, {}
            for call in calls.values():
                call()


class Expirable(Protocol):
    """Something that is given up when its time has come."""

    def expire(self) -> None:
        """Called once, at or up to `granularity_ms` after the deadline, unless it was removed before."""


class Ticket:
    """A place in the wheel; `cancel` is cheap, and wanted: most requests end before their deadline."""

    __slots__ = ("_bucket", "_item")

    def __init__(self, bucket: dict[Ticket, None], item: Expirable) -> None:
        self._bucket = bucket
        self._item = item
        bucket[self] = None

    def cancel(self) -> None:
        """Withdraw. Fine after expiry."""
        self._bucket.pop(self, None)

    def expire(self) -> None:
        self._item.expire()


class Deadlines:
    """Buckets of deadlines rounded up to `granularity_ms`; the loop's timer stands at the earliest bucket alone.

    Ending a request before its deadline costs one dict removal and leaves nothing behind but an empty bucket.
    """

    __slots__ = ("_buckets", "_clock", "_granularity", "_order", "_timer", "_timer_tick")

    def __init__(self, clock: Clock, granularity_ms: float) -> None:
        self._clock = clock
        self._granularity = granularity_ms
        self._buckets: dict[int, dict[Ticket, None]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0

    def add(self, delay_ms: float, item: Expirable) -> Ticket:
        """Expire `item` in `delay_ms`, never earlier."""
        tick = int((self._clock.monotonic_ms() + delay_ms) / self._granularity) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heapq.heappush(self._order, tick)
        ticket = Ticket(bucket, item)
        if self._timer is None or tick < self._timer_tick:
            self._arm()
        return ticket

    def close(self) -> None:
        """Forget everything without expiring it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buckets.clear()
        self._order.clear()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._order and not self._buckets[self._order[0]]:
            del self._buckets[heapq.heappop(self._order)]
        if not self._order:
            return
        self._timer_tick = self._order[0]
        delay_ms = self._timer_tick * self._granularity - self._clock.monotonic_ms()
        self._timer = asyncio.get_running_loop().call_later(max(delay_ms, 0) / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_tick = self._clock.monotonic_ms() / self._granularity
        while self._order and self._order[0] <= now_tick:
            bucket = self._buckets.pop(heapq.heappop(self._order))
            for ticket in list(bucket):
                if ticket in bucket:  # else one that expired before it cancelled it
                    ticket.cancel()
                    ticket.expire()
        self._arm()
