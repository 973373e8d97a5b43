"""The leader's end of a replication stream: what one follower's broker gets of all partitions that it follows here.

A push bounded by the follower's credit: data go out as they are appended to subscriptions that are at the log's end
(one encoded copy serves all followers), and are read from the log in bounded chunks, one subscription after the other,
for those that lag (`catch_up`). A batch that is larger than a chunk goes in pieces, so that no frame comes near the
transport's limit and what is small need not wait for it (schedule 54).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

import structlog

from strandline.log.partition_log import BatchPart, LogRead, PartitionLog
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError, StorageError
from strandline.proto.ids import NodeId, TopicId
from strandline.proto.marks import mark
from strandline.proto.ports import RpcError, Stream
from strandline.proto.tasks import Signal, end
from strandline.replica import frames
from strandline.replica.catch_up import CatchUp
from strandline.replica.core.divergence import Verdict, judge_fetch
from strandline.replica.core.leader import LeaderCore
from strandline.replica.partition import Partition
from strandline.replica.shared import Shared
from strandline.replica.subscription import Subscription

log = structlog.get_logger("strandline.replica")


class FollowerLink:
    """The stream of one follower's broker. Implements `frames.LeaderSide`.

    Its identity (node id and broker epoch) was given once, when the stream was opened, and checked then.
    """

    def __init__(
        self,
        shared: Shared,
        partitions: Mapping[tuple[TopicId, int], Partition],
        stream: Stream,
        hello: frames.Hello,
    ) -> None:
        """`partitions`: all that are hosted here, now and later."""
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
        )
        self._catch_up_is_next = True
        self._entry_bytes_max = 2 * chunk_bytes
        self.now_ms = shared.clock.monotonic_ms()
        self.received_ms = self.now_ms
        self.sent_ms = self.now_ms
        self.closed = False
        self.bytes_out = 0
        """Batches queued for the follower so far."""

    # The stream

    async def run(self, first_frame: bytes, position: int) -> None:
        """Serve the stream to its end. `position`: where the first frame goes on after the hello."""
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
        """Say something after a long silence; give the stream up after a longer one of the other side."""
        if now_ms - self.received_ms > timeout_ms:
            log.warning("a follower's stream is silent and is given up", follower=self.node_id)
            self.close()
        elif now_ms - self.sent_ms > silence_ms:
            self.push(frames.PING_FRAME)

    def push(self, piece: bytes) -> None:
        """Queue one entry."""
        self._queue.append(piece)
        self._signal.set()

    # What the follower says

    def on_fetch(self, fetch: frames.Fetch) -> None:
        """Judge a follower's position; only a valid one is recorded (KAFKA-13141, schedule 6)."""
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
        """A follower got further. Acknowledgements of subscriptions that have ended are dropped."""
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
        if sub.lagging:  # if the high watermark waits for it now, it is throttled no longer
            self._catch_up.resume_one(sub)

    def on_forget(self, subscription: int) -> None:
        """The follower no longer wants it: it is not waited for, unless it is in the ISR."""
        found = self._subscriptions.get(subscription)
        if found is not None:
            partition, sub = found
            self._unsubscribe(partition)
            partition.follower_gone(sub, self.now_ms)

    def on_deleted(self, subscription: int, log_start_offset: int) -> None:
        """A follower has durably deleted what we had deleted."""
        found = self._subscriptions.get(subscription)
        if found is not None:
            partition, sub = found
            partition.follower_deleted(sub, log_start_offset, self.now_ms)

    def on_credit(self, size: int) -> None:
        """More may be sent."""
        self._credit += size
        if self._catch_up:
            self._signal.set()

    def _unsubscribe(self, partition: Partition) -> None:
        subscription = partition.subscriptions.get(self.node_id)
        if subscription is not None and subscription.link is self:
            partition.unsubscribe(subscription)
            self._subscriptions.pop(subscription.id, None)
            self._catch_up.drop(subscription)
            self._signal.set()  # others may have waited until its batch had gone in pieces

    def ended(self, subscription: Subscription, code: ErrorCode) -> None:
        """The leadership under a subscription is over."""
        self._catch_up.drop(subscription)
        if self._subscriptions.pop(subscription.id, None) is not None:
            self.push(frames.pack_error(subscription.id, code))

    # Data

    def offer(self, subscription: Subscription, base_offset: int, next_offset: int, size: int) -> deque[bytes] | None:
        """The queue into which an entry with these just appended batches is to be put, now, for this subscription: it
        is at the end of the log and has credit, they are no more than two chunks, and if it is throttled the quota has
        room. If not, None: it catches up from the log later."""
        if subscription.lagging:
            return None
        # rule B16/large-batches-in-one-frame
        if self._credit <= 0 or subscription.next_offset != base_offset or size > self._entry_bytes_max:
            self._catch_up.add(subscription)
            return None
        if self._is_throttled(subscription):
            if not self._shared.leader_throttle.has_room:
                self._catch_up.add(subscription)
                return None
            self._shared.leader_throttle.take(size)
        self._credit -= size
        self.bytes_out += size
        subscription.next_offset = next_offset
        self._signal.set()
        return self._queue

    def _next_frame(self) -> bytes | None:
        """What was queued, up to the size of a frame; with lagging subscriptions, every other frame reads a chunk for
        one of them first, so that neither they nor those at the end starve."""
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
        """The leader's quota is for it: the topic says so, and no commit waits for it (KIP-73). One waits for the ISR,
        and for who is about to join it: clients would wait, too."""
        core, follower = subscription.core, subscription.follower
        # rule A21/the-isr-is-throttled
        if follower.in_maximal_isr or not self._subscriptions[subscription.id][0].state.leader_throttled:
            return False
        # rule A21/the-isr-is-throttled/2, rule A21/who-is-about-to-join-is-throttled
        return not core.waits_for(follower, self._shared.clock.monotonic_ms())

    def _allowance(self, subscription: Subscription) -> int:
        """How much may be read for it now: of what is throttled no more than the quota brings in a second, and nothing
        while it is used up. A batch of which a part has gone goes to its end: others wait for that."""
        if subscription.sent_bytes or not self._is_throttled(subscription):
            return self._chunk_bytes
        throttle = self._shared.leader_throttle
        if throttle.has_room:  # rule A21/the-leaders-rate-holds-nobody
            return throttle.limit
        mark("replication-throttled-at-the-leader")
        throttle.when_room(self._catch_up.resume)
        return 0

    def _queue_data(self, subscription: Subscription, read: LogRead | BatchPart) -> None:
        """Queue whole batches, or a part of one, that were read for a follower that lags."""
        core, plog, size = subscription.core, subscription.log, len(read.data)
        where = {"high_watermark": core.high_watermark, "log_start_offset": plog.log_start_offset, "size": size}
        place = (subscription.channel, core.leader_epoch, read.first_offset)
        if isinstance(read, LogRead):
            header = frames.pack_data_header(*place, **where)
        else:
            header = frames.pack_piece_header(*place, **where, batch_size=read.batch_size, position=read.position)
        if self._is_throttled(subscription):
            self._shared.leader_throttle.take(size)
        self._credit -= size
        self.bytes_out += size
        subscription.sent_high_watermark = core.high_watermark
        self.push(header + read.data)

    def _cannot_read(self, subscription: Subscription, error: KafkaError | StorageError) -> None:
        """Retention overtook the follower (it shall start anew), or the disk failed."""
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
