"""All replication streams of one broker: those that it opened to leaders, and those that followers opened to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError, ProtocolError
from strandline.proto.ids import NO_BROKER_EPOCH, NodeId, TopicId
from strandline.proto.ports import Rng, Rpc, RpcError, Stream
from strandline.replica import frames
from strandline.replica.fetcher import Fetcher
from strandline.replica.leader_stream import FollowerLink
from strandline.replica.partition import Partition
from strandline.replica.shared import Shared
from strandline.replica.states import BrokerState, Role

log = structlog.get_logger("strandline.replica")


class Streams:
    """Streams of this broker: one to each broker that leads a partition followed here, one from each follower's broker.

    Invariants:
    - at most one stream of each follower's broker is served: the newest of its newest process;
    - no stream is opened before this process is registered.
    """

    def __init__(self, shared: Shared, rpc: Rpc, rng: Rng, partitions: Mapping[tuple[TopicId, int], Partition]) -> None:
        """`partitions`: live mapping of the partitions that are hosted here."""
        self._shared = shared
        self._rpc = rpc
        self._rng = rng
        self._partitions = partitions
        self._brokers: Mapping[NodeId, BrokerState] = {}
        self._started = False
        self._fetchers: dict[NodeId, Fetcher] = {}
        self._homeless: dict[Partition, None] = {}
        self._links: dict[NodeId, FollowerLink] = {}
        self._ending: dict[asyncio.Task[None], None] = {}
        self._ended_bytes_out = 0

    @property
    def bytes_out(self) -> int:
        """Bytes of batches sent to followers since the start."""
        return self._ended_bytes_out + sum(link.bytes_out for link in self._links.values())

    def start(self) -> None:
        """Open streams from now on."""
        self._started = True
        self._connect()

    def stop(self) -> list[asyncio.Task[None]]:
        """End every stream; return the tasks that end with them."""
        self._started = False
        for link in list(self._links.values()):
            link.close()
        for fetcher in self._fetchers.values():
            self._end(fetcher)
        self._fetchers.clear()
        self._homeless.clear()
        return list(self._ending)

    def reconnect(self) -> None:
        """Open the streams again, because this process has registered (again) and has a new broker epoch."""
        for fetcher in self._fetchers.values():
            fetcher.reconnect()
        self._connect()

    def _connect(self) -> None:
        if self._started and self._shared.broker_epoch != NO_BROKER_EPOCH:
            for fetcher in self._fetchers.values():
                if not fetcher.idle:
                    fetcher.start(self._shared.on_fatal)

    def _end(self, fetcher: Fetcher) -> None:
        task = fetcher.stop()
        if task is not None and not task.done():
            self._ending[task] = None
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._ending.pop(task, None)

    # Following

    def follow(self, partition: Partition) -> None:
        """Follow the leader of a partition that has become a follower; if that broker is not registered yet, wait for
        it."""
        leader = partition.state.leader
        broker = self._brokers.get(leader)
        if broker is None:
            self._homeless[partition] = None
            return
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(self._shared, self._rpc, self._rng, leader, broker.endpoint)
        fetcher.follow(partition)
        self._connect()

    def lost_leaders(self, since_ms: float) -> list[NodeId]:
        """Leaders followed here whose stream has broken since `since_ms` and could not be opened again."""
        return [
            leader
            for leader, fetcher in self._fetchers.items()
            if fetcher.lost_ms is not None and fetcher.lost_ms >= since_ms
        ]

    def drop_idle(self) -> None:
        """End the streams on which nothing is followed any more."""
        self._homeless = {partition: None for partition in self._homeless if _seeks_leader(partition)}
        for leader in [leader for leader, fetcher in self._fetchers.items() if fetcher.idle]:
            self._end(self._fetchers.pop(leader))

    def brokers_changed(self, brokers: Mapping[NodeId, BrokerState]) -> None:
        """Take the new registrations: leaders may have a new endpoint, and streams of followers' older processes
        end."""
        self._brokers = brokers
        for leader, fetcher in self._fetchers.items():
            broker = brokers.get(leader)
            if broker is not None:
                fetcher.relocate(broker.endpoint)
        homeless, self._homeless = self._homeless, {}
        for partition in homeless:
            if _seeks_leader(partition):
                self.follow(partition)
        for node, link in list(self._links.items()):
            broker = brokers.get(node)
            if broker is not None and broker.broker_epoch > link.broker_epoch:  # rule B1/older-process-stays
                link.close()

    def keep_alive(self, now_ms: float) -> None:
        """Send a byte on streams that have been silent for a third of the timeout, and close those that timed out."""
        timeout_ms = float(self._shared.config.stream_timeout_ms)
        for link in list(self._links.values()):
            link.keep_alive(now_ms, timeout_ms / 3, timeout_ms)
        for fetcher in self._fetchers.values():
            fetcher.keep_alive(now_ms, timeout_ms / 3, timeout_ms)

    # Serving

    async def serve(self, stream: Stream) -> None:
        """Serve one incoming stream to its end. The follower's identity is checked once, on its first frame."""
        try:
            async with asyncio.timeout(self._shared.config.connect_timeout_ms / 1000):
                frame = await stream.read()
            if frame is None:
                return
            hello, position = frames.read_hello(frame)
            code, message = self._judge(hello)
            if code is not ErrorCode.NONE:
                log.warning("a follower is refused", follower=hello.node_id, reason=message)
                await stream.write(frames.pack_reject(code, message))
                return
            await self._serve(stream, hello, frame, position)
        except TimeoutError:
            log.warning("a stream was opened and nothing was said on it")
        except RpcError as error:
            log.debug("a follower's stream broke", reason=str(error))
        except ProtocolError as error:
            log.warning("a follower's stream was ended", reason=str(error))
        except FatalError as error:
            self._shared.on_fatal(error)
            raise
        finally:
            stream.close()

    async def _serve(self, stream: Stream, hello: frames.Hello, frame: bytes, position: int) -> None:
        previous = self._links.pop(hello.node_id, None)
        if previous is not None:
            self._ended_bytes_out += previous.bytes_out
            previous.close()
        link = self._links[hello.node_id] = FollowerLink(self._shared, self._partitions, stream, hello)
        link.push(frames.pack_welcome(self._shared.node_id, self._shared.broker_epoch))
        try:
            await link.run(frame, position)
        finally:
            if self._links.get(hello.node_id) is link:
                self._ended_bytes_out += link.bytes_out
                del self._links[hello.node_id]

    def _judge(self, hello: frames.Hello) -> tuple[ErrorCode, str]:
        shared = self._shared
        if not self._started:
            return ErrorCode.BROKER_NOT_AVAILABLE, "this broker does not serve yet, or no longer"
        if hello.version != frames.PROTOCOL_VERSION:
            return ErrorCode.UNSUPPORTED_VERSION, (
                f"replication protocol {hello.version} is spoken there, {frames.PROTOCOL_VERSION} here"
            )
        if hello.cluster_id != shared.cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID, f"cluster {hello.cluster_id} is not {shared.cluster_id}"
        if hello.target_id != shared.node_id:
            return ErrorCode.BROKER_NOT_AVAILABLE, f"this is node {shared.node_id}, not {hello.target_id}"
        if hello.node_id == shared.node_id:
            return ErrorCode.INVALID_REQUEST, "a node does not follow itself"
        known = self._brokers.get(hello.node_id)
        previous = self._links.get(hello.node_id)
        epoch = max(
            known.broker_epoch if known is not None else NO_BROKER_EPOCH,
            previous.broker_epoch if previous is not None else NO_BROKER_EPOCH,
        )
        if hello.broker_epoch < epoch:  # rule B1/older-process-is-let-in
            return ErrorCode.STALE_BROKER_EPOCH, (
                f"node {hello.node_id} has registered anew (epoch {epoch}) since {hello.broker_epoch}"
            )
        return ErrorCode.NONE, ""


def _seeks_leader(partition: Partition) -> bool:
    return partition.role is Role.FOLLOWER and partition.source is None
