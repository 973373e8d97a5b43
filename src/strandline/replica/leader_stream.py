"""The leader's end of a replication stream: sends one follower's broker the partitions that it follows here.

Data are pushed, bounded by the follower's credit. Subscriptions at the log's end get batches as they are appended (one
encoded copy serves all followers). For lagging ones, `CatchUp` reads bounded chunks from the log, one subscription
after the other. A batch larger than a chunk goes in pieces, so that no frame comes near the transport's limit and small
entries need not wait for it (schedule 54).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

import structlog

from strandline.log.partition_log import AppendResult, BatchPart, LogRead, PartitionLog
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError, StorageError
from strandline.proto.ids import NodeId, TopicId
from strandline.proto.marks import mark
from strandline.proto.ports import RpcError, Stream
from strandline.proto.tasks import Report, Signal, end, spawn
from strandline.replica import frames
from strandline.replica.backlog import CHUNK_BYTES, Backlog
from strandline.replica.core import LeaderCore, Verdict, judge_fetch
from strandline.replica.partition import Partition, Subscription
from strandline.replica.shared import Shared

log = structlog.get_logger("strandline.replica")

RUN_BYTES = 4 << 20
"""Bytes read for one replica that no append waits for before the next one has its turn. While a slow disk syncs, more
data then go to one log, and one more sync covers them."""


class FollowerLink:
    """The stream of one follower's broker. Implements `frames.LeaderSide`.

    The follower's identity (node id and broker epoch) was checked once, when the stream was opened.
    """

    def __init__(
        self,
        shared: Shared,
        partitions: Mapping[tuple[TopicId, int], Partition],
        stream: Stream,
        hello: frames.Hello,
    ) -> None:
        """`partitions`: live mapping of the partitions that are hosted here."""
        self._shared = shared
        self._partitions = partitions
        self._stream = stream
        self.node_id: NodeId = hello.node_id
        self.broker_epoch = hello.broker_epoch
        self._subscriptions: dict[int, tuple[Partition, Subscription]] = {}
        self._queue: deque[bytes] = deque()
        self._signal = Signal()
        self._credit = 0
        chunk_bytes = shared.config.fetch_chunk_bytes
        self._chunk_bytes = chunk_bytes
        self._catch_up = CatchUp(
            chunk_bytes,
            self._queue_data,
            self._cannot_read,
            self._signal.set,
            shared.on_fatal,
            allowance=self._allowance,
            keeps_turn=self._keeps_turn,
        )
        self._catch_up_is_next = True
        self._entry_bytes_max = 2 * chunk_bytes
        self.now_ms = shared.clock.monotonic_ms()
        self.received_ms = self.now_ms
        self.sent_ms = self.now_ms
        self.closed = False
        self._backlog = Backlog()
        self.bytes_out = 0
        """Bytes of batches queued for the follower so far."""

    # The stream

    async def run(self, first_frame: bytes, position: int) -> None:
        """Serve the stream to its end. `position`: index in the first frame after the hello."""
        writer = asyncio.get_running_loop().create_task(self._write())
        try:
            self._take(first_frame, position)
            await self._stream.read_all(self._take)
        finally:
            self.close()
            await end(writer)

    def _take(self, frame: bytes, position: int = 0) -> None:
        self.now_ms = self.received_ms = self._shared.clock.monotonic_ms()
        frames.read_requests(frame, self, position)

    async def _write(self) -> None:
        try:
            while not self.closed:
                frame = self._next_frame()
                if frame is None:
                    await self._signal.wait()
                else:
                    self.sent_ms = self._shared.clock.monotonic_ms()
                    await self._stream.write(frame)
        except RpcError as error:
            log.info("replication to a follower broke", follower=self.node_id, reason=str(error))
        finally:
            self.close()

    def close(self) -> None:
        """End the stream and every subscription on it. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._stream.close()
        self._signal.set()
        self._catch_up.close()
        self._shared.leader_throttle.forget(self._catch_up.resume)
        now_ms = self._shared.clock.monotonic_ms()
        subscriptions, self._subscriptions = self._subscriptions, {}
        for partition, subscription in subscriptions.values():
            if subscription.live:
                partition.unsubscribe(subscription)
                partition.follower_gone(subscription, now_ms)
        self._queue.clear()

    def keep_alive(self, now_ms: float, silence_ms: float, timeout_ms: float) -> None:
        """Send a PING after `silence_ms` without sending; close the stream after `timeout_ms` without receiving."""
        if now_ms - self.received_ms > timeout_ms:
            log.warning("a follower's stream is silent and is given up", follower=self.node_id)
            self.close()
        elif now_ms - self.sent_ms > silence_ms:
            self.push(frames.PING_FRAME)

    def push(self, piece: bytes) -> None:
        """Queue one encoded entry."""
        self._queue.append(piece)
        self._signal.set()

    # Messages of the follower

    def on_fetch(self, fetch: frames.Fetch) -> None:
        """Judge a follower's position; only a valid one counts (KAFKA-13141, schedule 6)."""
        partition = self._partitions.get((fetch.topic_id, fetch.partition))
        if partition is None:
            self.push(frames.pack_error(fetch.subscription, ErrorCode.UNKNOWN_TOPIC_ID))
            return
        self._unsubscribe(partition)
        code = partition.follower_refusal(self.node_id, fetch.current_leader_epoch)
        if code is not ErrorCode.NONE:
            self.push(frames.pack_error(fetch.subscription, code))
            return
        core, plog = partition.leading()
        verdict, epoch, end_offset = judge_fetch(
            plog, plog.log_start_offset, plog.log_end_offset, fetch.fetch_offset, fetch.last_fetched_epoch
        )
        if verdict is Verdict.DIVERGING:
            mark("replica-diverging")  # rule B8/diverging-fetch-recorded, rule B8/watermark-from-a-diverging-answer
            self.push(frames.pack_diverging(fetch.subscription, epoch, end_offset))
        elif verdict is Verdict.OUT_OF_RANGE:
            self.push(
                frames.pack_error(
                    fetch.subscription, ErrorCode.OFFSET_OUT_OF_RANGE, plog.log_start_offset, plog.log_end_offset
                )
            )
        else:
            self._subscribe(fetch, partition, core, plog)

    def _subscribe(self, fetch: frames.Fetch, partition: Partition, core: LeaderCore, plog: PartitionLog) -> None:
        if not 0 <= fetch.durable_offset <= fetch.fetch_offset:
            raise ProtocolError(
                f"{partition.topic_partition}: node {self.node_id} claims to have synced up to "
                f"{fetch.durable_offset} of a log that ends at {fetch.fetch_offset}"
            )
        subscription = Subscription(self, fetch.subscription, partition.channel, core, plog)
        subscription.next_offset = fetch.fetch_offset
        subscription.sent_high_watermark = core.high_watermark
        self._subscriptions[fetch.subscription] = (partition, subscription)
        self.push(
            frames.pack_accepted(fetch.subscription, partition.channel, core.high_watermark, plog.log_start_offset)
        )
        if fetch.fetch_offset < core.log_end_offset:
            self._catch_up.add(subscription)
        partition.subscribe(subscription, fetch, self.broker_epoch, self.now_ms)

    def on_ack(self, subscription: int, fetch_offset: int, durable_offset: int) -> None:
        """Take a follower's new offsets. Acknowledgements of subscriptions that have ended are dropped."""
        found = self._subscriptions.get(subscription)
        if found is None:
            return
        partition, sub = found
        # rule B9/acknowledges-what-was-never-sent
        if not sub.follower.fetch_offset <= fetch_offset <= sub.next_offset or durable_offset > fetch_offset:
            raise ProtocolError(
                f"{partition.topic_partition}: node {self.node_id} acknowledges {fetch_offset} (synced "
                f"{durable_offset}) after {sub.follower.fetch_offset}, and was sent what is below {sub.next_offset}"
            )
        partition.acked(sub, fetch_offset, durable_offset, self.now_ms)
        if self._backlog.bytes:
            synced = durable_offset if self._shared.config.sync_before_ack else fetch_offset
            if self._backlog.synced(subscription, synced, self.now_ms) and self._backlog.has_room:
                self._catch_up.resume()
        if sub.lagging:  # if the high watermark waits for it now, it is throttled no longer
            self._catch_up.resume_one(sub)

    def on_forget(self, subscription: int) -> None:
        """End a subscription that the follower no longer wants; outside of the ISR the replica is not waited for
        then."""
        found = self._subscriptions.get(subscription)
        if found is not None:
            partition, sub = found
            self._unsubscribe(partition)
            partition.follower_gone(sub, self.now_ms)

    def on_deleted(self, subscription: int, log_start_offset: int) -> None:
        """Take a follower's new durable log start."""
        found = self._subscriptions.get(subscription)
        if found is not None:
            partition, sub = found
            partition.follower_deleted(sub, log_start_offset, self.now_ms)

    def on_credit(self, size: int) -> None:
        """Add `size` bytes to what may be sent."""
        self._credit += size
        if self._catch_up:
            self._signal.set()

    def _unsubscribe(self, partition: Partition) -> None:
        subscription = partition.subscriptions.get(self.node_id)
        if subscription is not None and subscription.link is self:
            partition.unsubscribe(subscription)
            self._subscriptions.pop(subscription.id, None)
            self._catch_up.drop(subscription)
            self._forget_backlog(subscription)
            self._signal.set()  # others may have waited until its batch had gone in pieces

    def ended(self, subscription: Subscription, code: ErrorCode) -> None:
        """End a subscription because the leadership under it ended, and tell the follower `code`."""
        self._catch_up.drop(subscription)
        self._forget_backlog(subscription)
        if self._subscriptions.pop(subscription.id, None) is not None:
            self.push(frames.pack_error(subscription.id, code))

    # Data

    def offer(self, subscription: Subscription, appended: AppendResult, entry: bytes) -> bytes:
        """Queue just appended batches for a subscription that is at the end of the log and has credit, if they are no
        more than two chunks, and the quota has room for a throttled one. Otherwise it catches up from the log later.

        `entry`: the batches as another follower's link encoded them, or b"". Return the entry for the next link.
        """
        if subscription.lagging:
            return entry
        size = len(appended.data)
        # rule B16/large-batches-in-one-frame
        if self._credit <= 0 or subscription.next_offset != appended.base_offset or size > self._entry_bytes_max:
            self._catch_up.add(subscription)
            return entry
        if self._is_throttled(subscription):
            if not self._shared.leader_throttle.has_room:
                self._catch_up.add(subscription)
                return entry
            self._shared.leader_throttle.take(size)
        core = subscription.core
        if not entry:
            header = frames.pack_data_header(
                subscription.channel,
                core.leader_epoch,
                appended.base_offset,
                high_watermark=core.high_watermark,
                log_start_offset=appended.log_start_offset,
                size=size,
            )
            entry = b"".join((header, appended.data))
        self._count(subscription, size)
        subscription.next_offset = appended.next_offset
        subscription.sent_high_watermark = core.high_watermark
        self.push(entry)
        return entry

    def _next_frame(self) -> bytes | None:
        """Return the next frame for the follower, made of queued entries; None if nothing is queued. While
        subscriptions lag, every other frame first reads a chunk for one of them, so that neither they nor those at the
        end starve."""
        queue = self._queue
        if self._catch_up and self._credit > 0 and (self._catch_up_is_next or not queue):
            self._catch_up.turn(self._credit)
        self._catch_up_is_next = not self._catch_up_is_next
        if not queue:
            return None
        first = queue.popleft()
        if not queue:
            return first
        pieces = [first]
        size = len(first)
        while queue and size + len(queue[0]) <= frames.FRAME_BYTES_MAX:
            piece = queue.popleft()
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def _is_throttled(self, subscription: Subscription) -> bool:
        """True if the leader's quota applies (KIP-73): the topic lists the replica, and no commit waits for it. Commits
        wait for the ISR and for replicas about to join it; throttling those would make clients wait."""
        core, follower = subscription.core, subscription.follower
        # rule A21/the-isr-is-throttled
        if follower.in_maximal_isr or not self._subscriptions[subscription.id][0].state.leader_throttled:
            return False
        # rule A21/the-isr-is-throttled/2, rule A21/who-is-about-to-join-is-throttled
        return not core.waits_for(follower, self._shared.clock.monotonic_ms())

    def _is_waited_for(self, subscription: Subscription) -> bool:
        """True if a commit may wait for the follower: it is in the ISR, or about to join it."""
        return subscription.core.waits_for(subscription.follower, self._shared.clock.monotonic_ms())

    def _allowance(self, subscription: Subscription) -> int:
        """Return the bytes that may be read for a subscription now. A replica that no commit waits for gets a small
        chunk, and nothing while its broker has much to sync; a throttled one at most what the quota allows in a second,
        and nothing while it is used up. A batch sent in part is sent to its end, as others wait for that."""
        if subscription.sent_bytes or self._is_waited_for(subscription):
            return self._chunk_bytes
        if not self._backlog.has_room:  # rule B50/a-disk-gets-more-than-it-takes
            return 0
        if not self._is_throttled(subscription):
            return CHUNK_BYTES
        throttle = self._shared.leader_throttle
        if throttle.has_room:  # rule A21/the-leaders-rate-holds-nobody
            return min(throttle.limit, CHUNK_BYTES)
        mark("replication-throttled-at-the-leader")
        throttle.when_room(self._catch_up.resume)
        return 0

    def _keeps_turn(self, subscription: Subscription) -> bool:
        """True if a subscription may go on for `RUN_BYTES`: no commit waits for it, and it shares no quota with
        others."""
        return not self._is_waited_for(subscription) and not self._is_throttled(subscription)

    def _forget_backlog(self, subscription: Subscription) -> None:
        if self._backlog.forget(subscription.id):  # others may have its room
            self._catch_up.resume()

    def _queue_data(self, subscription: Subscription, read: LogRead | BatchPart) -> None:
        """Queue whole batches, or a part of one, that were read for a lagging follower."""
        core, plog, size = subscription.core, subscription.log, len(read.data)
        where = {"high_watermark": core.high_watermark, "log_start_offset": plog.log_start_offset, "size": size}
        place = (subscription.channel, core.leader_epoch, read.first_offset)
        if isinstance(read, LogRead):
            header = frames.pack_data_header(*place, **where)
        else:
            header = frames.pack_piece_header(*place, **where, batch_size=read.batch_size, position=read.position)
        if self._is_throttled(subscription):
            self._shared.leader_throttle.take(size)
        if not self._is_waited_for(subscription):
            self._backlog.sent(subscription.id, read.next_offset, size, self._shared.clock.monotonic_ms())
        self._count(subscription, size)
        subscription.sent_high_watermark = core.high_watermark
        self.push(header + read.data)

    def _count(self, subscription: Subscription, size: int) -> None:
        """Count `size` bytes of batches that were queued."""
        self._credit -= size
        self.bytes_out += size
        if self.node_id in self._subscriptions[subscription.id][0].state.adding:
            self._shared.counters.reassigned_out_bytes += size

    def _cannot_read(self, subscription: Subscription, error: KafkaError | StorageError) -> None:
        """End a subscription whose log cannot be read: retention overtook the follower (it starts anew), or the disk
        failed."""
        if not subscription.live:
            return
        partition, _ = self._subscriptions[subscription.id]
        plog = subscription.log
        code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
        self._unsubscribe(partition)
        self.push(frames.pack_error(subscription.id, code, plog.log_start_offset, plog.log_end_offset))
        if code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            name = str(partition.topic_partition)
            log.error("a log cannot be read for a follower", partition=name, follower=self.node_id, error=str(error))
        if isinstance(error, StorageError):
            partition.fail(str(error))
        else:
            partition.cannot_read(error)


class CatchUp:
    """The lagging subscriptions of one stream.

    `allowance(subscription)` returns the bytes that may be read for it now; at 0 it waits until `resume`.
    `keeps_turn(subscription)` tells whether it goes on for `RUN_BYTES` before others have their turn.
    `take(subscription, read)` queues data for the follower; `failed(subscription, error)` takes the error of a read;
    `wake()` tells that there may be more to send; `fatal` takes unexpected errors.

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
        keeps_turn: Callable[[Subscription], bool],
    ) -> None:
        self._chunk_bytes = chunk_bytes
        self._allowance = allowance
        self._keeps_turn = keeps_turn
        self._run_bytes = 0
        """Bytes read in a row for the subscription that keeps its turn."""
        self._take = take
        self._failed = failed
        self._wake = wake
        self._fatal = fatal
        self._lagging: deque[Subscription] = deque()
        self._held: dict[Subscription, None] = {}
        self._in_pieces: Subscription | None = None
        self._cold_read: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        """True if a subscription waits for its turn to read."""
        return bool(self._lagging)

    def add(self, subscription: Subscription) -> None:
        """Read the log for a subscription from now on; nothing else is queued for it until it is at the log's end."""
        subscription.lagging = True
        self._lagging.append(subscription)
        self._wake()

    def drop(self, subscription: Subscription) -> None:
        """Forget a subscription that its follower no longer wants."""
        self._held.pop(subscription, None)

    def resume(self) -> None:
        """Give all subscriptions that were allowed nothing their turn again."""
        if self._held:
            self._lagging.extend(self._held)
            self._held.clear()
            self._wake()

    def resume_one(self, subscription: Subscription) -> None:
        """Give a subscription that was allowed nothing its turn again."""
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
        """Read one chunk, or less if the credit is smaller, for the next subscription. Passed over are those whose
        bytes are cold (not in memory), those that are allowed nothing, and those whose next batch has to wait for
        another that goes in pieces."""
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
        """Read the next whole batches, or a part of the next one if it is larger than a chunk. Returns no data at the
        log's end, or while another batch goes in pieces. None: the bytes are cold."""
        plog, offset, chunk = subscription.log, subscription.next_offset, self._chunk_bytes
        if not subscription.sent_bytes:
            # rule B16/large-batches-in-one-frame-to-who-lags
            read = plog.read(offset, room, plog.log_end_offset, one_batch_bytes=chunk)
            if read is None or read.data or not self._may_go_in_pieces(subscription):
                return read
        return plog.read_part(offset, subscription.sent_bytes, chunk, subscription.sent_crc)

    async def _read_cold(self, subscription: Subscription, room: int) -> None:
        """Do what `_read` does, off the loop; other subscriptions go on meanwhile."""
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
        """True if there is a next batch, and no other batch is being sent in pieces."""
        current = self._in_pieces
        free = current is None or current is subscription or not current.live
        # rule B16/two-batches-in-pieces-at-once
        return free and subscription.next_offset < subscription.log.log_end_offset

    def _sent(self, subscription: Subscription, read: LogRead | BatchPart) -> bool:
        """Pass on what was read. Return False if there was nothing, or if it may not be sent now."""
        if isinstance(read, BatchPart) and not self._may_go_in_pieces(subscription):
            read = LogRead(b"", read.first_offset, read.first_offset)  # another's began while the disk was waited for
        if read.data:
            self._take(subscription, read)
            if isinstance(read, LogRead):
                subscription.next_offset = read.next_offset
            else:
                self._sent_part(subscription, read)
        subscription.lagging = subscription.next_offset < subscription.core.log_end_offset
        self._run_bytes += len(read.data)
        goes_on = read.data and self._run_bytes < RUN_BYTES and self._keeps_turn(subscription)
        if subscription.lagging and goes_on:
            self._lagging.appendleft(subscription)
        else:
            self._run_bytes = 0
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
