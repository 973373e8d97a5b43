"""The follower's end of a replication stream: `Fetcher` follows all partitions that one other broker leads; `Following`
is one of those partitions, with the effect of the leader's messages on its log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from strandline.log.config import BATCH_BYTES_MAX
from strandline.log.partition_log import PartitionLog
from strandline.log.segment import Hole, Segment
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, NoSpaceLeft, ProtocolError, StorageError
from strandline.proto.ids import BrokerEpoch, Endpoint, LeaderEpoch, NodeId, Offset
from strandline.proto.marks import mark
from strandline.proto.ports import Rng, Rpc, RpcError, RpcRejected, Stream
from strandline.proto.tasks import Report, Signal, end, spawn
from strandline.replica import frames
from strandline.replica.core import Committed, Cut, FollowerCore, FollowerEffects, KeepLog, Truncate
from strandline.replica.partition import Partition
from strandline.replica.rot import TRY_AGAIN_MS
from strandline.replica.shared import Shared

log = structlog.get_logger("strandline.replica")

NO_ROOM_RETRY_MS = 1_000.0
"""Interval at which a follower with a full disk checks for room; until there is some it fetches nothing."""

LOG_START_MS = 5_000.0
"""Interval at which such a follower asks for the leader's log start. Records that the leader deleted are deleted here,
too, which makes room."""

STREAM_METHOD = "/strandline.v1.Replication/Stream"


class Fetcher:
    """Follows one leader's broker over one stream, as long as it leads a partition that is followed here. Implements
    `frames.FollowerSide`.

    An answer counts only for the subscription that it names, and only while that is the partition's latest. The
    position cannot have moved since the FETCH, as data come only after it was accepted.

    Throttled partitions (KIP-73) are unsubscribed when the follower's quota is used up, and fetched again when there is
    room. Data that the leader sent before that, at most the stream's credit, are kept, and their bytes are owed.
    """

    def __init__(self, shared: Shared, rpc: Rpc, rng: Rng, leader_id: NodeId, endpoint: Endpoint) -> None:
        self._shared = shared
        self._rpc = rpc
        self._rng = rng
        self.leader_id = leader_id
        self._endpoint = endpoint
        self._followings: dict[Following, None] = {}
        self._by_id: dict[int, Following] = {}
        self._by_channel: dict[int, Following] = {}
        self._next_id = 0
        self._waiting: dict[Following, None] = {}
        self._held: dict[Following, None] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        self._requests: deque[bytes] = deque()
        self._in_pieces = Pieces()
        self._acks: dict[Following, None] = {}
        self._consumed = 0
        self._signal = Signal()
        self._stream: Stream | None = None
        self._task: asyncio.Task[None] | None = None
        self.attempts = 0
        self.received_ms = 0.0
        self.sent_ms = 0.0
        self.lost_ms: float | None = None
        """Monotonic time at which the stream broke; None while one is open, and before the first."""

    # What to follow

    @property
    def idle(self) -> bool:
        """True while no partition is followed on this stream."""
        return not self._followings

    def start(self, fatal: Report) -> None:
        """Connect, and stay connected; `fatal` is called if the task ends without `stop`."""
        if self._task is None:
            self._task = spawn(self._run(), fatal, endless=True)

    def stop(self) -> asyncio.Task[None] | None:
        """End the stream; return the task that ends with it, if any."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._disconnected()
        return task

    def relocate(self, endpoint: Endpoint) -> None:
        """Set the endpoint of the leader's broker; reconnect if it changed."""
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            self.reconnect()

    def reconnect(self) -> None:
        """End the stream, if there is one, and open another."""
        self.attempts = 0
        if self._stream is not None:
            self._stream.close()

    def follow(self, partition: Partition) -> None:
        """Follow a partition in its present leader epoch."""
        following = Following(self._shared, self, partition)
        partition.source = following
        self._followings[following] = None
        self._fetch(following)

    def unfollow(self, following: Following) -> None:
        """Stop following a partition."""
        del self._followings[following]
        if following.id >= 0 and self._stream is not None:
            self._push(frames.pack_forget(following.id))
        self._unsubscribe(following)

    def acknowledge(self, following: Following) -> None:
        """Tell the leader, with the next frame, the log's offsets at that time, or how far the hole in the log is
        filled."""
        if following.id >= 0:
            self._acks[following] = None
            self._signal.set()

    def heal(self, following: Following) -> None:
        """Fetch the holes of a log, unless that is under way, or its fetch was not accepted yet: that first shows where
        the logs diverge."""
        if following.channel >= 0 and following.hole is None:
            self._fetch_on(following)

    def tell_deleted(self, following: Following) -> None:
        """Tell the leader the partition's durable log start, as deletions may wait for it."""
        if following.id >= 0:
            self._push(frames.pack_deleted(following.id, following.log.durable_log_start_offset))

    def keep_alive(self, now_ms: float, silence_ms: float, timeout_ms: float) -> None:
        """Send a PING after `silence_ms` without sending; close the stream after `timeout_ms` without receiving."""
        if self._stream is None:
            return
        if now_ms - self.received_ms > timeout_ms:
            log.warning("a leader's stream is silent and is given up", leader=self.leader_id)
            self._stream.close()
        elif now_ms - self.sent_ms > silence_ms:
            self._push(frames.PING_FRAME)

    # The stream

    async def _run(self) -> None:
        while True:
            timeout_ms = self._shared.config.connect_timeout_ms
            try:
                stream = await self._rpc.open_stream(self._endpoint, STREAM_METHOD, timeout_ms=timeout_ms)
                try:
                    await self._converse(stream)
                finally:
                    stream.close()
                    self._disconnected()
                    self.lost_ms = self._shared.clock.monotonic_ms()
            except RpcRejected as error:
                log.warning("a replication stream was refused", leader=self.leader_id, reason=str(error))
            except RpcError as error:
                log.debug("no replication stream", leader=self.leader_id, reason=str(error))
            except ProtocolError as error:
                log.warning("a leader's stream was ended", leader=self.leader_id, reason=str(error))
            await asyncio.sleep(self._backoff_ms(self.attempts) / 1000)
            self.attempts += 1

    async def _converse(self, stream: Stream) -> None:
        shared = self._shared
        self._stream = stream
        self.lost_ms = None
        self.received_ms = self.sent_ms = shared.clock.monotonic_ms()
        hello = frames.Hello(
            frames.PROTOCOL_VERSION, shared.node_id, self.leader_id, shared.broker_epoch, shared.cluster_id
        )
        self._requests = deque((frames.pack_hello(hello), frames.pack_credit(shared.config.fetch_window_bytes)))
        self._consumed = 0
        for following in list(self._followings):
            self._fetch(following)
        writer = asyncio.get_running_loop().create_task(self._write(stream))
        try:
            await stream.read_all(self._take)
        finally:
            await end(writer)

    def _take(self, frame: bytes) -> None:
        self.received_ms = self._shared.clock.monotonic_ms()
        frames.read_replies(frame, self)

    async def _write(self, stream: Stream) -> None:
        try:
            while True:
                frame = self._next_frame()
                if frame:
                    self.sent_ms = self._shared.clock.monotonic_ms()
                    await stream.write(frame)
                else:
                    await self._signal.wait()
        except RpcError as error:
            log.debug("a replication stream broke", leader=self.leader_id, reason=str(error))
        finally:
            stream.close()

    def _next_frame(self) -> bytes:
        """Return the next frame for the leader, or b"": requests in order, then the newest offsets of logs that
        advanced, then credit."""
        pieces: list[bytes] = []
        size = 0
        while self._requests and size < frames.FRAME_BYTES_MAX:
            pieces.append(self._requests.popleft())
            size += len(pieces[-1])
        while self._acks and size < frames.FRAME_BYTES_MAX:
            following = next(iter(self._acks))
            del self._acks[following]
            # rule B4/acknowledges-what-is-not-synced
            offsets: tuple[int, int] = (following.log.log_end_offset, following.log.durable_offset)
            if following.hole is not None:  # of what lies behind it the leader has sent nothing
                offsets = following.filled_to()
            if following.id >= 0 and offsets != following.acked:  # not every sync makes more records durable
                following.acked = offsets
                pieces.append(frames.pack_ack(following.id, *offsets))
                size += len(pieces[-1])
        consumed = self._consumed
        is_due = consumed > 0 and (bool(pieces) or consumed >= self._shared.config.fetch_window_bytes // 4)
        behind = self._shared.directories.behind if is_due else None
        if behind is not None:  # rule B51/leaders-send-more-than-a-disk-takes
            behind.when_caught_up(self._signal.set)
        elif is_due:
            pieces.append(frames.pack_credit(consumed))
            self._consumed = 0
        return b"".join(pieces)

    def _disconnected(self) -> None:
        self._stream = None
        self._by_id.clear()
        self._by_channel.clear()
        self._waiting.clear()
        self._held.clear()
        self._shared.follower_throttle.forget(self._fetch_held)
        self._acks.clear()
        self._requests.clear()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        for following in self._followings:
            self._in_pieces.drop(following)
            following.id = following.channel = -1

    def _push(self, piece: bytes) -> None:
        self._requests.append(piece)
        self._signal.set()

    def _backoff_ms(self, attempts: int) -> float:
        """Return a pause that doubles from the first to the longest; half of it is random, so that followers spread."""
        config = self._shared.config
        pause: float = min(config.reconnect_backoff_ms * 2 ** min(attempts, 16), config.reconnect_backoff_max_ms)
        return pause / 2 + self._rng.random() * pause / 2

    # Fetching

    def _fetch_on(self, following: Following) -> None:
        """Fetch the next hole in our log, or else what follows its end."""
        following.next_hole()
        self._subscribe(following)

    def _fetch(self, following: Following) -> None:
        """Subscribe anew from the end of our log, once the log may take records (`Following.waits_to_begin`)."""
        following.from_end()
        self._unsubscribe(following)
        if self._stream is not None and not following.waits_to_begin(self._fetch):
            self._subscribe(following)

    def _subscribe(self, following: Following) -> None:
        self._unsubscribe(following)
        plog = following.log
        offset, epoch, durable_offset = following.position()
        following.id = self._next_id
        following.fetch_offset, following.last_epoch = offset, epoch
        following.acked = offset, durable_offset
        self._next_id = (self._next_id + 1) & 0xFFFFFFFF
        self._by_id[following.id] = following
        state = following.partition.state
        # rule B8/no-truncation-when-the-leader-returns
        self._push(
            frames.pack_fetch(
                frames.Fetch(
                    following.id,
                    state.topic_id,
                    state.partition,
                    following.core.leader_epoch,
                    Offset(offset),
                    LeaderEpoch(epoch),
                    Offset(durable_offset),
                    plog.durable_log_start_offset,
                )
            )
        )

    def _unsubscribe(self, following: Following) -> None:
        self._by_id.pop(following.id, None)
        self._by_channel.pop(following.channel, None)  # rule B16/data-of-an-older-channel
        self._acks.pop(following, None)
        self._waiting.pop(following, None)
        self._held.pop(following, None)
        self._in_pieces.drop(following)  # rule B16/pieces-outlive-their-subscription
        following.id = following.channel = -1

    def _fetch_later(self, following: Following) -> None:
        """Fetch again after a pause: the leader refused, or its data could not be appended."""
        if following.id >= 0:
            self._push(frames.pack_forget(following.id))
        self._unsubscribe(following)
        pause_ms = self._backoff_ms(following.attempts)
        following.attempts += 1
        following.retry_ms = self._shared.clock.monotonic_ms() + pause_ms
        self._waiting[following] = None
        if self._retry_timer is None:
            self._retry_timer = asyncio.get_running_loop().call_later(pause_ms / 1000, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        now_ms = self._shared.clock.monotonic_ms()
        for following in [f for f in self._waiting if f.retry_ms <= now_ms + 1]:
            # schedule 57/full-follower-fetches-on
            if following.without_room and self._shared.directories.of(following.log.home).room.full:
                if now_ms >= following.log_start_due_ms:
                    following.log_start_due_ms = now_ms + LOG_START_MS
                    self._ask_for_log_start(following)  # schedule 57/full-follower-keeps-what-is-deleted
                following.retry_ms = now_ms + NO_ROOM_RETRY_MS
            else:
                self._fetch(following)
        if self._waiting:
            pause_ms = min(following.retry_ms for following in self._waiting) - now_ms
            self._retry_timer = asyncio.get_running_loop().call_later(max(pause_ms, 1) / 1000, self._retry)

    def _ask_for_log_start(self, following: Following) -> None:
        """Ask for the leader's log start: send a fetch and its FORGET in one frame, so that it is accepted and no data
        come (schedule 57)."""
        self._fetch(following)
        if following.id >= 0:
            self._push(frames.pack_forget(following.id))
        self._waiting[following] = None

    # The follower's quota (KIP-73)

    def _hold(self) -> None:
        """Unsubscribe throttled partitions until the quota has room again. Their channels stay, so that data under way
        are kept. A partition with a part of a batch here is not held before the batch is whole."""
        for channel, following in list(self._by_channel.items()):
            subscribed = following.id >= 0 and following.hole is None
            if subscribed and following.is_throttled and not self._in_pieces.begun(following):
                mark("replication-throttled-at-the-follower")
                self._push(frames.pack_forget(following.id))
                self._unsubscribe(following)
                following.channel = channel
                self._by_channel[channel] = following  # rule A21/what-is-on-its-way-is-dropped
                self._held[following] = None
        self._shared.follower_throttle.when_room(self._fetch_held)

    def _fetch_held(self) -> None:
        """Fetch the held partitions again if the quota has room or they are no longer throttled; those that received
        data longest ago come first."""
        throttle = self._shared.follower_throttle
        has_room = throttle.has_room
        for following in list(self._held):
            if has_room or not following.is_throttled:
                self._fetch(following)
        if self._held:
            throttle.when_room(self._fetch_held)

    # Messages of the leader

    def on_welcome(self, node_id: NodeId, broker_epoch: BrokerEpoch) -> None:
        """The leader accepted this broker as a follower."""
        if node_id != self.leader_id:
            raise ProtocolError(f"node {node_id} answers where node {self.leader_id} was expected")
        self.attempts = 0
        self._shared.counters.connections += 1
        log.debug("following", leader=node_id, broker_epoch=broker_epoch, partitions=len(self._followings))

    def on_reject(self, code: ErrorCode, message: str) -> None:
        """The leader refused this broker as a follower."""
        raise ProtocolError(f"node {self.leader_id} refuses to be followed: {code.name}: {message}")

    def on_accepted(self, subscription: int, channel: int, high_watermark: int, log_start_offset: int) -> None:
        """Take the acceptance of a fetch: our log is a prefix of the leader's, and data come on this channel."""
        following = self._by_id.get(subscription)
        if following is not None:
            following.channel, following.cuts = channel, 0
            self._by_channel[channel] = following
            following.learn(high_watermark, log_start_offset)
            following.heal()

    def on_data(self, data: frames.Data) -> None:
        """Append what the leader sent; its high watermark counts only after that (KAFKA-14704, schedule 7)."""
        following = self._receiver(data.channel, data.leader_epoch, len(data.batches))
        if following is not None:
            self._append(following, data)

    def on_piece(self, piece: frames.Piece) -> None:
        """Keep a part of a batch; append the batch once it is whole (schedule 54)."""
        following = self._receiver(piece.channel, piece.leader_epoch, len(piece.part))
        if following is None:
            return
        if following in self._held:  # the rest of the batch may not come, and nothing behind it fits without it
            del self._by_channel[following.channel]  # rule A21/what-follows-a-batch-that-is-not-whole-is-tried
            following.channel = -1
            return
        batch = self._in_pieces.take(following, piece)
        if batch is not None:
            self._append(following, frames.Data(*piece[:5], batch))

    def _receiver(self, channel: int, leader_epoch: int, size: int) -> Following | None:
        """Return the partition that receives the data of `channel`; None if they are no longer wanted. Either way the
        leader gets credit for `size` bytes."""
        self._consumed += size
        if self._consumed >= self._shared.config.fetch_window_bytes // 4:
            self._signal.set()
        following = self._by_channel.get(channel)
        # rule B16/data-of-another-leader-epoch
        if following is not None and leader_epoch != following.core.leader_epoch:
            raise ProtocolError(
                f"{following.partition.topic_partition}: data of leader epoch {leader_epoch} came for a fetch in "
                f"{following.core.leader_epoch}"
            )
        if following is not None and following.is_throttled:
            self._shared.follower_throttle.take(size)
            # rule A21/one-throttled-partition-takes-it-all
            self._by_channel[channel] = self._by_channel.pop(channel)  # behind those that got something longer ago
        return following

    def _append(self, following: Following, data: frames.Data) -> None:
        if following.hole is not None:
            self._fill(following, data.batches)
            return
        # The rest is for the metadata log and the checkpoints.
        if self._shared.directories.of(following.log.home).room.full:  # schedule 57/full-follower-takes-the-last-byte
            following.without_room = True
            self._fetch_later(following)
            return
        try:
            following.append(data.batches, data.high_watermark, data.log_start_offset)
        except KafkaError as error:
            log.warning(
                "replicated data cannot be appended",
                partition=str(following.partition.topic_partition),
                leader=self.leader_id,
                error=str(error),
            )
            self._fetch_later(following)
        else:
            # rule A21/the-followers-rate-holds-nobody
            if following.is_throttled and not self._shared.follower_throttle.has_room:
                self._hold()

    def _fill(self, following: Following, batches: memoryview) -> None:
        try:
            filled = following.fill(batches)
        except KafkaError as error:
            following.not_healed(str(error))
            self._fetch(following)
        else:
            if filled:
                self._fetch_on(following)
            else:
                self.acknowledge(following)  # rule B50/nobody-hears-how-far-a-hole-is-filled

    def on_watermark(self, channel: int, high_watermark: int, log_start_offset: int) -> None:
        """Take the leader's high watermark and log start, of which one rose without data to travel with."""
        following = self._by_channel.get(channel)
        if following is not None:
            following.learn(high_watermark, log_start_offset)

    def on_diverging(self, subscription: int, epoch: int, end_offset: int) -> None:
        """Cut our log, which is no prefix of the leader's, and fetch again, until it is. The answer must be to the
        latest subscription, and our log's end unmoved. Such an answer carries no high watermark and no data
        (schedule 7)."""
        following = self._by_id.get(subscription)  # rule B16/verdict-on-an-older-fetch-counts
        # rule B16/verdict-on-another-position-counts
        if following is None or (following.hole is None and following.fetch_offset != following.log.log_end_offset):
            return
        try:
            changed = following.diverged(epoch, end_offset)
        except KafkaError as error:
            self._cannot_cut(following, error)
        else:
            self._fetch_after_cut(following, changed)

    def on_error(self, subscription: int, code: ErrorCode, log_start_offset: int, log_end_offset: int) -> None:
        """Take note that the subscription is refused or has ended."""
        following = self._by_id.get(subscription)
        if following is None:
            return
        if following.hole is not None:
            following.not_healed(code.name)
            self._fetch_later(following)
            return
        in_range = log_start_offset <= following.log.log_end_offset <= log_end_offset
        if code is not ErrorCode.OFFSET_OUT_OF_RANGE or log_start_offset < 0 or in_range:
            self._fetch_later(following)
            return
        try:
            changed = following.out_of_range(log_start_offset, log_end_offset)
        except KafkaError as error:
            self._cannot_cut(following, error)
        else:
            self._fetch_after_cut(following, changed)

    def _fetch_after_cut(self, following: Following, changed: bool) -> None:
        if following.hole is not None:  # healed before the cut
            self._subscribe(following)
        elif changed:
            self._fetch(following)
        elif following in self._followings:  # else the cut has failed, and the partition is offline
            self._fetch_later(following)

    def _cannot_cut(self, following: Following, error: KafkaError) -> None:
        log.warning("a log cannot be cut", partition=str(following.partition.topic_partition), error=str(error))
        following.partition.cannot_read(error)  # schedule 88/rot-that-a-cut-meets-is-not-told
        self._fetch_later(following)


class Following:
    """Following of one leader in one leader epoch. It passes the leader's messages to the core, and carries out the
    effects that the core returns.

    A storage error takes the partition offline, which ends this. A method that raises KafkaError has changed nothing.

    Attributes:
        id: subscription of the latest FETCH; -1 if none is out (it waits for a connection, or for a retry).
        channel: channel on which data come; -1 until the fetch was accepted.
        fetch_offset, last_epoch: position in the latest FETCH.
        acked: log end and durable offset that were sent to the leader last.
        attempts: number of refusals in a row.
        cuts: truncations since the leader last accepted a fetch.
        retry_ms: monotonic time of the next fetch after a refusal.
        log_start_due_ms: monotonic time at which to ask for the leader's log start while the disk is full.
        leader_high_watermark: the leader's high watermark, as last received; -1 before that.
        without_room: True if the last append or cut found the disk full.
        hole: hole in the log that is being fetched; None while data are fetched from the end of the log.
        parts_at: offset at which to cut the log once that hole is filled up to there (schedule 88); -1: no cut.
        heal_after_ms: monotonic time before which healing is not tried again.
    """

    __slots__ = (
        "_fetcher",
        "_shared",
        "acked",
        "attempts",
        "channel",
        "core",
        "cuts",
        "fetch_offset",
        "heal_after_ms",
        "hole",
        "id",
        "last_epoch",
        "leader_high_watermark",
        "log",
        "log_start_due_ms",
        "partition",
        "parts_at",
        "retry_ms",
        "without_room",
    )

    def __init__(self, shared: Shared, fetcher: Fetcher, partition: Partition) -> None:
        core, plog = partition.follower, partition.log
        if core is None or plog is None:
            raise ValueError(f"{partition.topic_partition} is {partition.role.value} and follows nobody")
        self._shared = shared
        self._fetcher = fetcher
        self.partition = partition
        self.core: FollowerCore = core
        self.log: PartitionLog = plog
        self.id = -1
        self.channel = -1
        self.fetch_offset = -1
        self.last_epoch = -1
        self.acked = (-1, -1)
        self.attempts = 0
        self.cuts = 0
        self.retry_ms = 0.0
        self.log_start_due_ms = 0.0
        self.leader_high_watermark = -1
        self.without_room = False
        self.hole: tuple[Segment, Hole] | None = None
        self.parts_at = -1
        self.heal_after_ms = float("-inf")

    # The partition's source

    def synced(self) -> None:
        """More of the log is durable here: acknowledge it."""
        self._fetcher.acknowledge(self)

    def deleted(self) -> None:
        """The log start is durable here: tell the leader."""
        self._fetcher.tell_deleted(self)

    def heal(self) -> None:
        """Fetch the holes of the log from the leader, if any and if it is time to."""
        if self.must_heal:
            self._fetcher.heal(self)

    def end(self) -> None:
        """Stop following."""
        self._fetcher.unfollow(self)

    @property
    def is_waited_for(self) -> bool:
        """True if an acknowledgement may wait for this replica: it is in the ISR, or has all that the leader has
        committed and may be about to join."""
        lags = self.log.log_end_offset < self.leader_high_watermark
        return not lags or self._shared.node_id in self.partition.state.isr

    @property
    def is_throttled(self) -> bool:
        """True if the follower's quota applies (KIP-73): the topic lists the replica, and no append waits for it."""
        return self.partition.state.follower_throttled and not self.is_waited_for

    def waits_to_begin(self, then: Callable[[Following], None]) -> bool:
        """Return True while the log begins after records that only the object store has, and does not know their
        producers (rule B24). `then` is called once it does, if this is still the partition's source."""
        return self._shared.beginnings.awaits(
            self.partition, lambda: then(self) if self.partition.source is self else None
        )

    # Healing (schedule 80)

    @property
    def must_heal(self) -> bool:
        """True if the log has a hole, and the leader has not failed to fill one in the last `TRY_AGAIN_MS`."""
        rot = self.log.rot
        # schedule 80/holes-stay
        return bool(rot) and self._shared.clock.monotonic_ms() >= self.heal_after_ms and any(rot.holes())

    def next_hole(self) -> None:
        """Choose the first hole to be fetched next, or else the end of the log. A cut that is due comes before
        holes."""
        self.hole = next(self.log.rot.holes(), None) if self.must_heal and self.parts_at < 0 else None
        self.parts_at = -1

    def from_end(self) -> None:
        """Choose the end of the log to be fetched next."""
        self.hole, self.parts_at = None, -1

    def position(self) -> tuple[int, int, int]:
        """Return the position of the next FETCH: offset, epoch of the record before it, and durable offset. The log up
        to a hole is intact, so that it is a prefix of the leader's there as well."""
        plog = self.log
        if self.hole is None:
            return plog.log_end_offset, plog.latest_epoch, plog.durable_offset
        offset = max(self.hole[1].offset, plog.log_start_offset)
        return offset, plog.epochs.epoch_at(offset - 1), min(offset, plog.durable_offset)

    def filled_to(self) -> tuple[int, int]:
        """Return the offsets to acknowledge while a hole is filled: the hole's beginning, which advances, and the
        durable offset up to there. The log start is not used, as it may rise above all that the leader has sent."""
        assert self.hole is not None
        offset = max(self.acked[0], self.hole[1].offset)
        return offset, min(offset, self.log.durable_offset)

    def fill(self, batches: memoryview) -> bool:
        """Write the leader's batches over the hole that is fetched. Return True once the hole is filled, not counting a
        part that is to be cut.

        Raises:
            KafkaError: the batches do not belong there, or cannot be written.
        """
        assert self.hole is not None
        segment, hole = self.hole
        try:
            left = self.log.rot.mend(segment, hole, batches)
        except StorageError as error:
            self.partition.fail(str(error))
            return False
        filled = left is None or 0 <= self.parts_at <= left.offset  # schedule 88/a-hole-is-filled-beyond-the-cut
        self.hole = None if left is None or filled else (segment, left)
        if filled:
            self._shared.rot.mended(self.partition)
        return filled

    def not_healed(self, reason: str) -> None:
        """Give up the hole, which the leader cannot fill, until `TRY_AGAIN_MS` have passed; go on at the end of the
        log."""
        mark("rot-stays")
        assert self.hole is not None
        offset = self.hole[1].offset
        self.from_end()
        self.heal_after_ms = self._shared.clock.monotonic_ms() + TRY_AGAIN_MS
        name = str(self.partition.topic_partition)
        log.warning(
            "what has rotted in a log was not healed by its leader; it is tried again. If this stays, stop this node, "
            "move the partition's directory away and start it: the replica is fetched anew",
            partition=name,
            leader=self.core.leader,
            offset=offset,
            reason=reason,
        )

    # Messages of the leader

    def append(self, batches: memoryview, leader_high_watermark: int, leader_log_start: int) -> None:
        """Append what the leader sent; its high watermark counts only after that (KAFKA-14704, schedule 7).

        Raises:
            KafkaError: the batches cannot be appended.
        """
        shared = self._shared
        durable_log_start = self.log.durable_log_start_offset
        try:
            self.log.append_as_follower(batches)
        except NoSpaceLeft:
            self._no_room()
            raise
        except StorageError as error:
            self.partition.fail(str(error))
            return
        self.attempts = 0  # not before: pauses grow though the leader accepts each fetch
        self.without_room = False
        if self.log.durable_log_start_offset < durable_log_start:  # rule B16/a-start-inside-a-batch-is-durable
            mark("log-start-to-be-made-durable-again")
            self.partition.log_start_durable()
        self.learn(leader_high_watermark, leader_log_start)
        shared.counters.replicated_in_bytes += len(batches)
        if shared.node_id in self.partition.state.adding:
            shared.counters.reassigned_in_bytes += len(batches)
        if shared.directories.trace is not None:
            shared.directories.trace.followed_up(self.partition.topic_partition, self.log.log_end_offset)
        if shared.config.sync_before_ack:
            # rule B50/who-catches-up-is-synced-with-the-others
            syncer = shared.directories.of(self.log.home).syncer
            syncer.mark(self.log, len(batches), waited_for=self.is_waited_for)
        else:
            self._fetcher.acknowledge(self)

    def learn(self, leader_high_watermark: int, leader_log_start: int) -> None:
        """Take the leader's high watermark and log start. While a hole is filled before a cut, our log is known to be a
        prefix of the leader's only up to the hole."""
        plog = self.log
        self.leader_high_watermark = leader_high_watermark
        if self.hole is not None and self.parts_at >= 0:  # schedule 88/watermark-beyond-a-hole
            leader_high_watermark = min(leader_high_watermark, self.hole[1].offset)
        effects = self.core.learned(
            leader_high_watermark, leader_log_start, log_start=plog.log_start_offset, log_end=plog.log_end_offset
        )
        if effects:
            self._carry_out(effects)

    def _carry_out(self, effects: FollowerEffects) -> None:
        """Carry out the core's effects, in order."""
        for effect in effects:
            if isinstance(effect, Committed):
                self.partition.high_watermark_rose()
                continue
            self.partition.raise_log_start(effect.offset)  # rule B15/follower-tells-before-its-log-start-is-durable

    def diverged(self, epoch: int, end_offset: int) -> bool:
        """Cut this log, which differs from the leader's, or set `hole` if rot must be healed before the cut. Return
        False if the log was not changed.

        Raises:
            KafkaError: the log cannot be cut.
        """
        plog = self.log
        cut = self.core.diverged(plog, plog.log_start_offset, plog.log_end_offset, epoch, end_offset)
        if self.hole is not None and cut.offset >= self.hole[1].offset:  # schedule 88/logs-part-behind-every-hole
            self.not_healed("its log is another one")
            return True
        self.from_end()
        mark("truncated")
        self.cuts += 1
        if self.cuts > 1:
            mark("diverged-over-epochs")
        return self._cut(cut)

    def out_of_range(self, leader_start: int, leader_end: int) -> bool:
        """Begin anew at the leader's log start, as the leader has nothing at our log's end. Otherwise like
        `diverged`."""
        mark("restarted-at-log-start")
        return self._cut(self.core.out_of_range(self.log.log_end_offset, leader_start, leader_end))

    def _cut(self, cut: Cut) -> bool:
        plog, core, partition = self.log, self.core, self.partition
        before = (plog.log_end_offset, plog.latest_epoch)
        if isinstance(cut, KeepLog):
            mark("truncation-refused")
            partition.fail(
                f"node {core.leader}, leader in epoch {core.leader_epoch}, lacks records below the high watermark "
                f"{core.high_watermark}: the log would have to be cut at {cut.offset}. If an unclean election explains "
                "that, set unclean.leader.election.enable=true on the topic and restart this node"
            )
            return False
        # schedule 88/what-rotted-before-a-cut-stays
        if isinstance(cut, Truncate) and self.must_heal and (hole := plog.rot.before_cut(cut.offset)) is not None:
            mark("healed-before-a-cut")
            self.hole, self.parts_at = hole, cut.offset
            return False
        if cut.below_high_watermark:
            self._report_loss(cut.offset)
        try:
            if isinstance(cut, Truncate):
                new_end = plog.truncate_to(cut.offset)
                if new_end == cut.offset:
                    # Epochs without records begin at the very end: they go although no record does (KAFKA-10706,
                    # schedule 5).
                    plog.epochs.truncate_from_end(new_end)  # rule B8/empty-epochs-stay
                core.truncated(new_end)
            else:
                plog.truncate_fully_and_start_at(cut.offset)
                core.started_at(cut.offset)
        except NoSpaceLeft:
            self._no_room()
            raise
        except StorageError as error:
            partition.fail(str(error))
            return False
        after = (plog.log_end_offset, plog.latest_epoch)
        name = str(partition.topic_partition)
        log.info("cut a diverging log", partition=name, leader=core.leader, before=before, after=after)
        self._shared.directories.of(plog.home).syncer.mark(plog)
        return after != before

    def _report_loss(self, offset: int) -> None:
        """Report committed records that are given up, as an unclean election (or flush.policy = replicate) allows."""
        mark("truncated-below-high-watermark")
        self._shared.counters.truncations_below_high_watermark += 1
        log.error(
            "records that were committed are given up after an unclean election",
            partition=str(self.partition.topic_partition),
            high_watermark=self.core.high_watermark,
            truncated_to=offset,
        )

    def _no_room(self) -> None:
        self.without_room = True
        self._shared.directories.of(self.log.home).room.ran_out()  # schedule 57/full-follower-says-nothing


class Pieces:
    """The pieces received so far of a batch that is too large for one entry (schedule 54).

    One stream brings one such batch at a time, and no batch is larger than the largest allowed setting: that bounds the
    memory that a leader can use here. The buffer grows as bytes arrive, whatever size was announced.
    """

    __slots__ = ("_batch", "_following")

    def __init__(self) -> None:
        self._batch = bytearray()
        self._following: Following | None = None

    def take(self, following: Following, piece: frames.Piece) -> memoryview | None:
        """Keep a piece. Return the whole batch if it was the last one, else None.

        Raises:
            ProtocolError: the piece does not start where the last one ended, another partition's batch is not whole
                yet, or the batch is larger than any that can have been appended.
        """
        name, size = following.partition.topic_partition, len(piece.part)
        if self._following not in (None, following):
            raise ProtocolError(f"{name}: a piece came before another partition's batch was whole")
        if piece.batch_size > BATCH_BYTES_MAX:
            raise ProtocolError(f"{name}: a batch of {piece.batch_size} bytes; the largest has {BATCH_BYTES_MAX}")
        # rule B16/a-piece-goes-on-anywhere
        if piece.position != len(self._batch) or not 0 < size <= piece.batch_size - piece.position:
            raise ProtocolError(
                f"{name}: a piece of {size} bytes at byte {piece.position} of {piece.batch_size} came after "
                f"{len(self._batch)} bytes of the batch"
            )
        self._following = following
        self._batch += piece.part
        if len(self._batch) < piece.batch_size:
            return None
        batch = memoryview(self._batch)
        self._batch, self._following = bytearray(), None
        return batch

    def begun(self, following: Following) -> bool:
        """True if a part of a batch of this partition was received, but not all of it."""
        return self._following is following

    def drop(self, following: Following) -> None:
        """Forget a partial batch of this partition: the rest is not wanted, or will not come."""
        if self._following is following:
            self._batch, self._following = bytearray(), None
