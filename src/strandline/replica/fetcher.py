"""The follower's end of a replication stream: what this broker follows of all that one other broker leads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, NoSpaceLeft, ProtocolError, StorageError
from strandline.proto.ids import BrokerEpoch, Endpoint, NodeId
from strandline.proto.marks import mark
from strandline.proto.ports import RpcError, RpcRejected, Stream
from strandline.proto.tasks import Report, spawn
from strandline.replica import frames
from strandline.replica.core.follower import Truncation
from strandline.replica.following import FollowerHost, Following
from strandline.replica.partition import Partition
from strandline.replica.pieces import Pieces
from strandline.replica.signal import Signal, end

log = structlog.get_logger("strandline.replica")

NO_ROOM_RETRY_MS = 1_000.0
"""On a full disk nothing is fetched that cannot be kept; so often it is seen whether there is room again."""

STREAM_METHOD = "/strandline.v1.Replication/Stream"


class Fetcher:
    """Follows one leader's broker over one stream, as long as there is anything to follow there. Implements
    `frames.FollowerSide`.

    An answer counts only for the subscription it names and only while that is the partition's latest; the position
    cannot have moved since the FETCH, because data come only after it was accepted.
    """

    def __init__(self, host: FollowerHost, leader_id: NodeId, endpoint: Endpoint) -> None:
        self._host = host
        self.leader_id = leader_id
        self._endpoint = endpoint
        self._followings: dict[Partition, Following] = {}
        self._by_id: dict[int, Following] = {}
        self._by_channel: dict[int, Following] = {}
        self._next_id = 0
        self._waiting: dict[Following, None] = {}
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
        """When the stream broke, while no other has been opened since."""

    # What to follow

    @property
    def idle(self) -> bool:
        """Nothing is followed here."""
        return not self._followings

    def start(self, fatal: Report) -> None:
        """Connect, and stay connected; `fatal` is told when the task ends, which only `stop` should cause."""
        if self._task is None:
            self._task = spawn(self._run(), fatal, endless=True)

    def stop(self) -> asyncio.Task[None] | None:
        """End the stream; returns the task that ends with it, if any."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._disconnected()
        return task

    def relocate(self, endpoint: Endpoint) -> None:
        """The leader's broker is (now) to be found there."""
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            self.reconnect()

    def reconnect(self) -> None:
        """End the stream, if there is one, and open another."""
        self.attempts = 0
        if self._stream is not None:
            self._stream.close()

    def follow(self, partition: Partition) -> None:
        """Follow a partition (anew, if it was followed here in an older leader epoch)."""
        self.unfollow(partition)
        core, plog = partition.follower, partition.log
        if core is None or plog is None:
            raise ValueError(f"{partition.topic_partition} is {partition.role.value} and follows nobody")
        following = self._followings[partition] = Following(partition, core, plog)
        if self._stream is not None:
            self._fetch(following)

    def unfollow(self, partition: Partition) -> None:
        """Follow it no longer."""
        following = self._followings.pop(partition, None)
        if following is not None:
            if following.id >= 0 and self._stream is not None:
                self._push(frames.pack_forget(following.id))
            self._unsubscribe(following)

    def synced(self, partition: Partition) -> None:
        """More of the partition's log is durable here: acknowledge it."""
        following = self._followings.get(partition)
        if following is not None:
            self._acknowledge(following)

    def keep_alive(self, now_ms: float, silence_ms: float, timeout_ms: float) -> None:
        """Say something after a long silence; give the stream up after a longer one of the other side."""
        if self._stream is None:
            return
        if now_ms - self.received_ms > timeout_ms:
            log.warning("a leader's stream is silent and is given up", leader=self.leader_id)
            self._stream.close()
        elif now_ms - self.sent_ms > silence_ms:
            self._push(frames.PING_FRAME)

    # The stream

    async def _run(self) -> None:
        config = self._host.config
        while True:
            try:
                stream = await self._host.rpc.open_stream(
                    self._endpoint, STREAM_METHOD, timeout_ms=config.connect_timeout_ms
                )
                try:
                    await self._converse(stream)
                finally:
                    stream.close()
                    self._disconnected()
                    self.lost_ms = self._host.clock.monotonic_ms()
            except RpcRejected as error:
                log.warning("a replication stream was refused", leader=self.leader_id, reason=str(error))
            except RpcError as error:
                log.debug("no replication stream", leader=self.leader_id, reason=str(error))
            except ProtocolError as error:
                log.warning("a leader's stream was ended", leader=self.leader_id, reason=str(error))
            await asyncio.sleep(self._backoff_ms(self.attempts) / 1000)
            self.attempts += 1

    async def _converse(self, stream: Stream) -> None:
        host = self._host
        self._stream = stream
        self.lost_ms = None
        self.received_ms = self.sent_ms = host.clock.monotonic_ms()
        hello = frames.Hello(frames.PROTOCOL_VERSION, host.node_id, self.leader_id, host.broker_epoch, host.cluster_id)
        self._requests = deque((frames.pack_hello(hello), frames.pack_credit(host.config.fetch_window_bytes)))
        self._consumed = 0
        for following in self._followings.values():
            self._fetch(following)
        writer = asyncio.get_running_loop().create_task(self._write(stream))
        try:
            while (frame := await stream.read()) is not None:
                self.received_ms = host.clock.monotonic_ms()
                frames.read_replies(frame, self)
        finally:
            await end(writer)

    async def _write(self, stream: Stream) -> None:
        try:
            while True:
                frame = self._next_frame()
                if frame:
                    self.sent_ms = self._host.clock.monotonic_ms()
                    await stream.write(frame)
                else:
                    await self._signal.wait()
        except RpcError as error:
            log.debug("a replication stream broke", leader=self.leader_id, reason=str(error))
        finally:
            stream.close()

    def _next_frame(self) -> bytes:
        """What there is to say, up to the size of a frame: requests in order, then the latest offsets of what got
        further, then credit."""
        pieces: list[bytes] = []
        size = 0
        while self._requests and size < frames.FRAME_BYTES_MAX:
            pieces.append(self._requests.popleft())
            size += len(pieces[-1])
        while self._acks and size < frames.FRAME_BYTES_MAX:
            following = next(iter(self._acks))
            del self._acks[following]
            if following.id >= 0:
                plog = following.log
                pieces.append(frames.pack_ack(following.id, plog.log_end_offset, plog.durable_offset))
                size += len(pieces[-1])
        consumed = self._consumed
        if consumed and (pieces or consumed >= self._host.config.fetch_window_bytes // 4):
            pieces.append(frames.pack_credit(consumed))
            self._consumed = 0
        return b"".join(pieces)

    def _disconnected(self) -> None:
        self._stream = None
        self._by_id.clear()
        self._by_channel.clear()
        self._waiting.clear()
        self._acks.clear()
        self._requests.clear()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        for following in self._followings.values():
            self._in_pieces.drop(following)
            following.id = following.channel = -1

    def _push(self, piece: bytes) -> None:
        self._requests.append(piece)
        self._signal.set()

    def _backoff_ms(self, attempts: int) -> float:
        """Doubling from the first to the longest pause; its second half is chance, so that followers spread."""
        config = self._host.config
        pause: float = min(config.reconnect_backoff_ms * 2 ** min(attempts, 16), config.reconnect_backoff_max_ms)
        return pause / 2 + self._host.rng.random() * pause / 2

    # Fetching

    def _fetch(self, following: Following) -> None:
        """Tell where our log ends, under a new subscription."""
        self._unsubscribe(following)
        plog = following.log
        following.id = self._next_id
        following.fetch_offset = plog.log_end_offset
        following.last_epoch = plog.latest_epoch
        self._next_id = (self._next_id + 1) & 0xFFFFFFFF
        self._by_id[following.id] = following
        state = following.partition.state
        self._push(
            frames.pack_fetch(
                frames.Fetch(
                    following.id,
                    state.topic_id,
                    state.partition,
                    following.core.leader_epoch,
                    plog.log_end_offset,
                    plog.latest_epoch,
                    plog.durable_offset,
                    plog.durable_log_start_offset,
                )
            )
        )

    def _unsubscribe(self, following: Following) -> None:
        self._by_id.pop(following.id, None)
        self._by_channel.pop(following.channel, None)
        self._acks.pop(following, None)
        self._waiting.pop(following, None)
        self._in_pieces.drop(following)
        following.id = following.channel = -1

    def _fetch_later(self, following: Following) -> None:
        """The leader refused, or its data were no good: ask again after a pause."""
        if following.id >= 0:
            self._push(frames.pack_forget(following.id))
        self._unsubscribe(following)
        pause_ms = self._backoff_ms(following.attempts)
        following.attempts += 1
        following.retry_ms = self._host.clock.monotonic_ms() + pause_ms
        self._waiting[following] = None
        if self._retry_timer is None:
            self._retry_timer = asyncio.get_running_loop().call_later(pause_ms / 1000, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        now_ms = self._host.clock.monotonic_ms()
        for following in [f for f in self._waiting if f.retry_ms <= now_ms + 1]:
            if following.without_room and self._host.disk_room.full:
                following.retry_ms = now_ms + NO_ROOM_RETRY_MS
            else:
                self._fetch(following)
        if self._waiting:
            pause_ms = min(following.retry_ms for following in self._waiting) - now_ms
            self._retry_timer = asyncio.get_running_loop().call_later(max(pause_ms, 1) / 1000, self._retry)

    def _acknowledge(self, following: Following) -> None:
        if following.id >= 0:
            self._acks[following] = None
            self._signal.set()

    # What the leader says

    def on_welcome(self, node_id: NodeId, broker_epoch: BrokerEpoch) -> None:
        """The leader accepted us."""
        if node_id != self.leader_id:
            raise ProtocolError(f"node {node_id} answers where node {self.leader_id} was expected")
        self.attempts = 0
        self._host.connected(node_id)
        log.debug("following", leader=node_id, broker_epoch=broker_epoch, partitions=len(self._followings))

    def on_reject(self, code: ErrorCode, message: str) -> None:
        """It did not."""
        raise ProtocolError(f"node {self.leader_id} refuses to be followed: {code.name}: {message}")

    def on_accepted(self, subscription: int, channel: int, high_watermark: int, log_start_offset: int) -> None:
        """Our log is a prefix of the leader's: data come on this channel."""
        following = self._by_id.get(subscription)
        if following is not None:
            following.channel = channel
            following.cuts = 0
            self._by_channel[channel] = following
            self._learn(following, high_watermark, log_start_offset)

    def on_data(self, data: frames.Data) -> None:
        """Append what the leader sent; its high watermark counts only after that (KAFKA-14704, schedule 7)."""
        following = self._receiver(data.channel, data.leader_epoch, len(data.batches))
        if following is not None:
            self._append(following, data)

    def on_piece(self, piece: frames.Piece) -> None:
        """Keep a part of a batch, and append the batch once it is whole (schedule 54)."""
        following = self._receiver(piece.channel, piece.leader_epoch, len(piece.part))
        batch = None if following is None else self._in_pieces.take(following, piece)
        if following is not None and batch is not None:
            self._append(following, frames.Data(*piece[:5], batch))

    def _receiver(self, channel: int, leader_epoch: int, size: int) -> Following | None:
        """Whose data these are, if they are still wanted; either way the leader may send as much again."""
        self._consumed += size
        if self._consumed >= self._host.config.fetch_window_bytes // 4:
            self._signal.set()
        following = self._by_channel.get(channel)
        if following is not None and leader_epoch != following.core.leader_epoch:
            raise ProtocolError(
                f"{following.partition.topic_partition}: data of leader epoch {leader_epoch} came for a fetch in "
                f"{following.core.leader_epoch}"
            )
        return following

    def _append(self, following: Following, data: frames.Data) -> None:
        plog, partition, size = following.log, following.partition, len(data.batches)
        if self._host.disk_room.full:  # what is left is for the metadata log and the checkpoints
            following.without_room = True
            self._fetch_later(following)
            return
        try:
            plog.append_as_follower(data.batches)
        except KafkaError as error:
            log.warning(
                "replicated data cannot be appended",
                partition=str(partition.topic_partition),
                leader=self.leader_id,
                error=str(error),
            )
            self._refused(following, error)
            return
        except StorageError as error:
            self._host.log_failed(partition, str(error))
            return
        following.attempts = 0  # not before: pauses grow though the leader accepts each fetch
        following.without_room = False
        self._learn(following, data.high_watermark, data.log_start_offset)
        self._host.replicated(partition, size)
        if not self._host.config.sync_before_ack:
            self._acknowledge(following)

    def _refused(self, following: Following, error: KafkaError) -> None:
        """What the leader said could not be carried out, and nothing was changed."""
        if isinstance(error, NoSpaceLeft):
            following.without_room = True
            self._host.disk_room.ran_out()
        self._fetch_later(following)

    def on_watermark(self, channel: int, high_watermark: int, log_start_offset: int) -> None:
        """The leader's high watermark or log start rose, and no data go along."""
        following = self._by_channel.get(channel)
        if following is not None:
            self._learn(following, high_watermark, log_start_offset)

    def _learn(self, following: Following, high_watermark: int, log_start_offset: int) -> None:
        plog, core, partition = following.log, following.core, following.partition
        if core.watermark(high_watermark, plog.log_end_offset):
            partition.wake_watchers()
        if log_start_offset > plog.log_start_offset:
            try:
                plog.delete_records_before(min(log_start_offset, core.high_watermark))
            except StorageError as error:
                self._host.log_failed(partition, str(error))
            else:
                self._host.log_start_raised(partition)

    def trimmed(self, partition: Partition) -> None:
        """The partition's log start is durable here: tell the leader, for somebody may wait for it."""
        following = self._followings.get(partition)
        if following is not None and following.id >= 0:
            self._push(frames.pack_trimmed(following.id, following.log.durable_log_start_offset))

    def on_diverging(self, subscription: int, epoch: int, end_offset: int) -> None:
        """Our log is no prefix of the leader's: cut it and fetch again, until it is. The answer's subscription must be
        the latest and the log where it was: high watermark and data of such an answer do not exist (schedule 7)."""
        following = self._by_id.get(subscription)
        if following is None or following.fetch_offset != following.log.log_end_offset:
            return
        plog, core = following.log, following.core
        mark("truncated")
        following.cuts += 1
        if following.cuts > 1:
            mark("diverged-over-epochs")
        truncation = core.diverged(plog, plog.log_start_offset, plog.log_end_offset, epoch, end_offset)

        def cut() -> None:
            new_end = plog.truncate_to(truncation.offset)
            if new_end == truncation.offset:
                # Epochs without records begin at the very end: they go although no record does (KAFKA-10706,
                # schedule 5).
                plog.epochs.truncate_from_end(new_end)
            core.truncated(new_end)

        self._cut(following, truncation, cut)

    def on_error(self, subscription: int, code: ErrorCode, log_start_offset: int, log_end_offset: int) -> None:
        """The subscription is refused or has ended."""
        following = self._by_id.get(subscription)
        if following is None:
            return
        plog, core = following.log, following.core
        in_range = log_start_offset <= plog.log_end_offset <= log_end_offset
        if code is not ErrorCode.OFFSET_OUT_OF_RANGE or log_start_offset < 0 or in_range:
            self._fetch_later(following)
            return
        mark("restarted-at-log-start")
        truncation = core.out_of_range(plog.log_end_offset, log_start_offset, log_end_offset)

        def cut() -> None:
            plog.truncate_fully_and_start_at(truncation.offset)
            core.started_at(truncation.offset)

        self._cut(following, truncation, cut)

    def _cut(self, following: Following, truncation: Truncation, cut: Callable[[], None]) -> None:
        """Cut the log and fetch again. Below the high watermark only if an unclean election explains it: otherwise
        somebody broke the protocol, and this copy is kept as it is for whoever has to find out."""
        plog, core, partition = following.log, following.core, following.partition
        before = (plog.log_end_offset, plog.latest_epoch)
        if truncation.below_high_watermark:
            if not core.may_lose_committed and self._host.config.sync_before_ack:
                mark("truncation-refused")
                self._unsubscribe(following)
                self._host.log_failed(
                    partition,
                    f"node {self.leader_id}, leader in epoch {core.leader_epoch}, lacks records below the high "
                    f"watermark {core.high_watermark}: the log would have to be cut at {truncation.offset}. If an "
                    "unclean election explains that, set unclean.leader.election.enable=true on the topic and restart "
                    "this node",
                )
                return
            self._host.truncated_below_high_watermark(partition, truncation.offset)
        try:
            cut()
        except KafkaError as error:
            log.warning("a log cannot be cut", partition=str(partition.topic_partition), error=str(error))
            self._refused(following, error)
            return
        except StorageError as error:
            self._host.log_failed(partition, str(error))
            return
        log.info(
            "cut a diverging log",
            partition=str(partition.topic_partition),
            leader=self.leader_id,
            before=before,
            after=(plog.log_end_offset, plog.latest_epoch),
        )
        self._host.replicated(partition, 0)
        if (plog.log_end_offset, plog.latest_epoch) == before:
            self._fetch_later(following)
        else:
            self._fetch(following)
