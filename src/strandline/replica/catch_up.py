"""Reading the log for followers that lag: one chunk a turn, one subscription after the other.

A batch that is larger than a chunk is read in parts, one a turn, and goes in pieces (schedule 54): one batch at a time
on a stream, so that the follower holds one batch that is not whole, whatever it follows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from strandline.log.partition_log import BatchPart, LogRead
from strandline.proto.errors import KafkaError, StorageError
from strandline.proto.marks import mark
from strandline.proto.tasks import Report, spawn
from strandline.replica.subscription import Subscription


class CatchUp:
    """The lagging subscriptions of one stream.

    `allowance(subscription)` says how many bytes may be read for one now: none, and it waits until `resume`.
    `take(subscription, read)` queues what was read for the follower, and `failed(subscription, error)` gets what a
    read raised; `wake` says that there may be more to send; `fatal` gets errors that nobody foresaw.

    Invariants:
    - at most one read waits for the disk;
    - at most one live subscription has sent a part of a batch and not the whole of it.
    """

    def __init__(
        self,
        chunk_bytes: int,
        take: Callable[[Subscription, LogRead | BatchPart], None],
        failed: Callable[[Subscription, KafkaError | StorageError], None],
        wake: Callable[[], None],
        fatal: Report,
        *,
        allowance: Callable[[Subscription], int],
    ) -> None:
        self._chunk_bytes = chunk_bytes
        self._allowance = allowance
        self._take = take
        self._failed = failed
        self._wake = wake
        self._fatal = fatal
        self._lagging: deque[Subscription] = deque()
        self._held: dict[Subscription, None] = {}
        self._in_pieces: Subscription | None = None
        self._cold_read: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        """Whether a subscription waits for its turn."""
        return bool(self._lagging)

    def add(self, subscription: Subscription) -> None:
        """It is not at the end of the log, and nothing is queued for it until it is."""
        subscription.lagging = True
        self._lagging.append(subscription)
        self._wake()

    def drop(self, subscription: Subscription) -> None:
        """Its follower wants nothing of it any more."""
        self._held.pop(subscription, None)

    def resume(self) -> None:
        """Those that were allowed nothing get their turn again."""
        if self._held:
            self._lagging.extend(self._held)
            self._held.clear()
            self._wake()

    def resume_one(self, subscription: Subscription) -> None:
        """As `resume`, if it is one of those."""
        if subscription in self._held:
            del self._held[subscription]
            self._lagging.append(subscription)
            self._wake()

    def close(self) -> None:
        """Read nothing more."""
        if self._cold_read is not None:
            self._cold_read.cancel()
        self._lagging.clear()
        self._held.clear()

    def turn(self, credit: int) -> None:
        """Read one chunk, or as much as the credit allows, for the subscription whose turn it is. Those whose bytes are
        cold are passed over, and so are those that are allowed nothing, or whose next batch must wait until another's
        has gone in pieces."""
        for _ in range(len(self._lagging)):
            subscription = self._lagging.popleft()
            if not subscription.live:
                continue
            allowance = self._allowance(subscription)
            if allowance <= 0:
                self._held[subscription] = None
                continue
            room = max(1, min(self._chunk_bytes, credit, allowance))
            try:
                read = self._read(subscription, room)
            except (KafkaError, StorageError) as error:
                self._failed(subscription, error)
                return
            if read is not None:
                if self._sent(subscription, read):
                    return
            elif self._cold_read is None:
                self._cold_read = spawn(self._read_cold(subscription, room), self._fatal)
            else:
                self._lagging.append(subscription)

    def _read(self, subscription: Subscription, room: int) -> LogRead | BatchPart | None:
        """The next whole batches, or a part of the next one where that is larger than a chunk. No data where there are
        none, or another's batch goes in pieces now. None: cold."""
        plog, offset, chunk = subscription.log, subscription.next_offset, self._chunk_bytes
        if not subscription.sent_bytes:
            # rule B16/large-batches-in-one-frame-to-who-lags
            read = plog.read(offset, room, plog.log_end_offset, one_batch_bytes=chunk)
            if read is None or read.data or not self._may_go_in_pieces(subscription):
                return read
        return plog.read_part(offset, subscription.sent_bytes, chunk, subscription.sent_crc)

    async def _read_cold(self, subscription: Subscription, room: int) -> None:
        """`_read` off the loop; the others go on meanwhile."""
        try:
            read = await self._read_waiting(subscription, room)
        except (KafkaError, StorageError) as error:
            self._failed(subscription, error)
        else:
            if subscription.live:
                self._sent(subscription, read)
        finally:
            self._cold_read = None
            self._wake()

    async def _read_waiting(self, subscription: Subscription, room: int) -> LogRead | BatchPart:
        plog, offset, chunk = subscription.log, subscription.next_offset, self._chunk_bytes
        if not subscription.sent_bytes:
            # rule B16/large-batches-in-one-frame-to-who-lags/2
            read = await plog.read_cold(offset, room, plog.log_end_offset, one_batch_bytes=chunk)
            if read.data or not self._may_go_in_pieces(subscription):
                return read
        return await plog.read_part_cold(offset, subscription.sent_bytes, chunk, subscription.sent_crc)

    def _may_go_in_pieces(self, subscription: Subscription) -> bool:
        """There is a next batch, and no other's is on its way in pieces."""
        current = self._in_pieces
        free = current is None or current is subscription or not current.live
        # rule B16/two-batches-in-pieces-at-once
        return free and subscription.next_offset < subscription.log.log_end_offset

    def _sent(self, subscription: Subscription, read: LogRead | BatchPart) -> bool:
        """Hand over what was read; False if there was nothing, or it may not go now."""
        if isinstance(read, BatchPart) and not self._may_go_in_pieces(subscription):
            read = LogRead(b"", read.first_offset, read.first_offset)  # another's began while the disk was waited for
        if read.data:
            self._take(subscription, read)
            if isinstance(read, LogRead):
                subscription.next_offset = read.next_offset
            else:
                self._sent_part(subscription, read)
        subscription.lagging = subscription.next_offset < subscription.core.log_end_offset
        if subscription.lagging:
            self._lagging.append(subscription)
        return bool(read.data)

    def _sent_part(self, subscription: Subscription, part: BatchPart) -> None:
        self._in_pieces = subscription
        subscription.sent_bytes += len(part.data)
        subscription.sent_crc = part.crc
        if subscription.sent_bytes == part.batch_size:
            mark("batch-in-pieces")
            self._in_pieces = None
            subscription.sent_bytes = subscription.sent_crc = 0
            subscription.next_offset = part.next_offset
