"""One broker of the explored partition: the production roles, cores and stream ends, on a log that is a value.

What the product does in tasks and timers is done here in single steps: opening streams, writing and reading frames,
syncing, proposing. The decisions are all the product's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from strandline.chaos.explore.logs import TOPIC_ID, TOPIC_PARTITION, ModelLog
from strandline.chaos.explore.values import Codec, Fresh
from strandline.log.config import LogConfig
from strandline.log.epochs import LeaderEpochs
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_BROKER_EPOCH, BrokerEpoch, Endpoint, NodeId, TopicId, TopicIdPartition
from strandline.replica import frames
from strandline.replica.core.isr import PendingIsr
from strandline.replica.core.leader import LeaderCore
from strandline.replica.core.progress import FollowerProgress
from strandline.replica.fetcher import Fetcher
from strandline.replica.following import Following
from strandline.replica.leader_stream import FollowerLink
from strandline.replica.partition import Partition
from strandline.replica.partition_set import PartitionSet
from strandline.replica.publisher import Publisher
from strandline.replica.signal import Signal
from strandline.replica.states import (
    ACKS_ALL,
    AlterPartitionItem,
    AlterPartitionOutcome,
    BrokerState,
    PartitionState,
    ReplicaConfig,
)
from strandline.replica.streams import Streams

NOW_MS = 0.0
LONG_AGO_MS = float("-inf")
CREDIT_BYTES = 1 << 20
CLUSTER = "explored"
ENDPOINT = Endpoint(CLUSTER, 1)
"""Where every broker is: streams are opened by name here."""


class _Clock:
    """Time stands still: who lags is a choice."""

    def monotonic_ms(self) -> float:
        return NOW_MS

    def wall_ms(self) -> int:
        return 0


class _Loop:
    """In place of an event loop: timers are choices, so that arming one does nothing."""

    def call_later(self, delay_s: float, callback: object, *args: object) -> _Loop:
        return self

    def cancel(self) -> None:
        return


@contextmanager
def no_loop() -> Iterator[None]:
    """Run code that arms timers without an event loop."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(_Loop())  # type: ignore[arg-type]
    try:
        yield
    finally:
        asyncio._set_running_loop(before)


CLOCK = _Clock()
CONFIG = ReplicaConfig(reconnect_backoff_ms=0, reconnect_backoff_max_ms=0)


NOTHING, THE_PENDING, AN_OLDER = 0, 1, 2


class Pipe:
    """One side's handle of a stream."""

    __slots__ = ("closed",)

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class LogDir:
    """The directory of a broker with one partition."""

    __slots__ = ("high_watermarks", "logs", "offline")

    def __init__(self, log: ModelLog, high_watermark: int) -> None:
        self.logs = {TOPIC_PARTITION: log}
        self.high_watermarks = {TOPIC_PARTITION: high_watermark}
        self.offline: dict[Any, Any] = {}


class ExploredStreams(Streams):
    """The product's streams, which nobody connects by themselves."""

    def _connect(self) -> None:
        return


class Broker:
    """A machine with its disk, and the process that runs on it (none: `partitions` is None).

    Implements the hosts of the product's partition set and of its stream ends, as `ReplicaManager` does.

    Attributes:
        life: how many processes have run here; the broker epoch of the present one.
        asked: what is on its way to the controller: NOTHING, THE_PENDING change of the ISR, or AN_OLDER one, whose
            answer says nothing any more.
        clean: the broker epoch of a process that has ended as it should, by the marker it left; else -1.
        slow: what takes longer here than elsewhere (see `strandline.chaos.explore.partition`).
        trouble: what must not happen, if it happened in this step.
    """

    __slots__ = (
        "asked",
        "broker_epoch",
        "clean",
        "log",
        "node_id",
        "partitions",
        "publisher",
        "slow",
        "streams",
        "trouble",
    )

    cluster_id = CLUSTER
    clock = CLOCK
    config = CONFIG
    rng = random.Random(0)
    rpc: Any = None

    def __init__(self, node: NodeId) -> None:
        self.node_id = node
        self.log = ModelLog()
        self.broker_epoch = BrokerEpoch(NO_BROKER_EPOCH)
        self.partitions: PartitionSet | None = None
        self.streams: ExploredStreams | None = None
        self.publisher: Publisher | None = None
        self.asked = NOTHING
        self.clean = int(NO_BROKER_EPOCH)
        self.slow: tuple[str, ...] = ()
        self.trouble = ""

    # What it is

    @property
    def up(self) -> bool:
        """A process runs, and has registered."""
        return self.partitions is not None

    @property
    def partition(self) -> Partition | None:
        """The hosted partition, once the metadata have named it."""
        return None if self.partitions is None else self.partitions.partitions.get(TOPIC_PARTITION)

    @property
    def brokers(self) -> Mapping[NodeId, BrokerState]:
        """All brokers, as this one knows them."""
        return self._set.brokers

    @property
    def _set(self) -> PartitionSet:
        assert self.partitions is not None
        return self.partitions

    @property
    def fetcher(self) -> Fetcher | None:
        """The stream to the leader that is followed."""
        assert self.streams is not None
        return next(iter(self.streams._fetchers.values()), None)

    # Life

    def start(self, epoch: int) -> None:
        """A process starts on what the disk holds, and is registered."""
        self.broker_epoch = BrokerEpoch(epoch)
        log_dir: Any = LogDir(self.log, 0)
        self.clean = int(NO_BROKER_EPOCH)
        self.partitions = PartitionSet(self.node_id, log_dir, CLOCK, CONFIG, self)
        self.streams = ExploredStreams(self)
        self.streams._started = True
        self.publisher = Publisher(0.0)

    def crash(self, kept: int) -> None:
        """The process ends; of what was not synced the first `kept` writes are there afterwards. Its high watermark was
        last written down long ago."""
        self.log.crash(kept)
        self.partitions = self.streams = self.publisher = None
        self.asked = NOTHING
        self.slow = ()

    def stop(self) -> None:
        """The process ends as it should: everything is synced, and says so."""
        while self.log.unsynced:
            self.log.mark()
            self.log.synced()
        epoch = self.broker_epoch
        self.crash(0)
        self.clean = int(epoch)

    def sync_fails(self) -> None:
        """The sync under way fails: the partition is offline here until the machine starts anew."""
        partition = self.partition
        assert partition is not None
        self.log.syncing = -1
        partition.fail("a sync failed")
        self.stopped(partition)

    def apply(
        self, changes: list[PartitionState], deleted: list[TopicIdPartition], brokers: Mapping[NodeId, BrokerState]
    ) -> None:
        """Committed metadata arrive."""
        assert self.streams is not None
        if self._set.apply(changes, deleted, brokers):
            self.streams.brokers_changed(self._set.brokers)
        self.streams.drop_idle()

    # Clients, syncs, time

    def append(self, value: int) -> None:
        """A client writes: with acks=all, or acks=1 where too few are in sync for that."""
        core, partition = self.core, self.partition
        assert partition is not None
        if core.admit(ACKS_ALL) is not ErrorCode.NONE and core.admit(1) is not ErrorCode.NONE:
            return
        result = self.log.append_own(core.leader_epoch, value)
        advanced = core.appended(result.next_offset, NOW_MS)
        assert self.publisher is not None
        self.publisher.publish(partition, core, result)
        self.log.mark()
        self.progressed(partition, advanced)

    def synced(self) -> None:
        """The sync under way ends."""
        self.log.synced()
        partition = self.partition
        if partition is None:
            return
        if partition.leader is not None:
            if partition.leader.synced(self.log.durable_offset, NOW_MS):
                self._released(partition)
        elif partition.follower is not None:
            assert self.streams is not None
            self.streams.synced(partition)

    def lags(self, follower: NodeId) -> None:
        """A follower has not caught up for replica.lag.time.max.ms."""
        core, partition = self.core, self.partition
        assert partition is not None
        core.followers[follower].last_caught_up_ms = LONG_AGO_MS
        self.progressed(partition, core.sweep(NOW_MS))

    # Proposals

    def propose(self) -> AlterPartitionItem:
        """The pending change of the ISR leaves."""
        core = self.core
        assert core.pending is not None
        core.pending.sent = True
        self.asked = THE_PENDING
        return core.pending.item

    def proposal_answered(self, outcome: AlterPartitionOutcome | None) -> None:
        """The controller's answer; None: there is none, and the change may have been committed or not."""
        asked, self.asked = self.asked, NOTHING
        if asked == AN_OLDER:
            return
        core, partition = self.core, self.partition
        assert partition is not None
        pending = core.pending
        assert pending is not None
        if outcome is None:
            pending.sent = False
            return
        advanced = core.answered(pending, outcome, NOW_MS)
        if core.pending is not pending:
            self.progressed(partition, advanced)
        elif advanced:
            self._released(partition)

    def settle(self, before: PendingIsr | None) -> None:
        """After a step: if what was pending `before` it is so no more, the answer to that is of no interest."""
        partition = self.partition
        core = None if partition is None else partition.leader
        if self.asked == THE_PENDING and (core is None or core.pending is not before):
            self.asked = AN_OLDER

    @property
    def pending(self) -> PendingIsr | None:
        """The change of the ISR that its leadership waits for."""
        partition = self.partition
        return None if partition is None or partition.leader is None else partition.leader.pending

    @property
    def core(self) -> LeaderCore:
        """The leadership."""
        partition = self.partition
        assert partition is not None
        assert partition.leader is not None
        return partition.leader

    # Streams

    def connect(self) -> None:
        """A stream to the leader was opened: fetch what is followed there."""
        fetcher = self.fetcher
        assert fetcher is not None
        fetcher._stream = Pipe()  # type: ignore[assignment]
        fetcher._pieces = []
        for following in fetcher._followings.values():
            fetcher._fetch(following)

    def accept(self, hello: frames.Hello) -> bool:
        """A follower opens a stream. False: it is refused."""
        streams = self.streams
        assert streams is not None
        code, _ = streams._judge(hello)
        if code is not ErrorCode.NONE:
            return False
        previous = streams._links.pop(hello.node_id, None)
        if previous is not None:
            previous.close()
        link = streams._links[hello.node_id] = FollowerLink(self, Pipe(), hello)  # type: ignore[arg-type]
        link.on_credit(CREDIT_BYTES)
        return True

    def say(self) -> bytes:
        """Everything that the follower has to say now, as one frame."""
        fetcher = self.fetcher
        assert fetcher is not None
        return fetcher._next_frame()

    def told_by_follower(self, follower: NodeId, frame: bytes) -> None:
        """A follower's frame arrives."""
        assert self.streams is not None
        link = self.streams._links.get(follower)
        if link is not None and not link.closed:
            frames.read_requests(frame, link)

    def offer(self, follower: NodeId) -> bytes:
        """Everything that there is for a follower now, as one frame."""
        assert self.streams is not None
        assert self.publisher is not None
        self.publisher._send_watermarks()
        return self.streams._links[follower]._next_frame() or b""

    def told_by_leader(self, frame: bytes) -> None:
        """The leader's frame arrives."""
        fetcher = self.fetcher
        if fetcher is not None and fetcher._stream is not None:
            frames.read_replies(frame, fetcher)

    def disconnect(self) -> None:
        """The stream to the leader broke."""
        fetcher = self.fetcher
        if fetcher is not None:
            fetcher._disconnected()

    def hang_up(self, follower: NodeId) -> None:
        """The stream of a follower broke."""
        assert self.streams is not None
        link = self.streams._links.pop(follower, None)
        if link is not None:
            link.close()

    def retry(self) -> None:
        """The pause after a refused fetch is over."""
        fetcher = self.fetcher
        assert fetcher is not None
        fetcher._retry()

    # RoleHost, LeaderHost, FollowerHost: as ReplicaManager has it

    def partition_by_id(self, topic_id: TopicId, partition: int) -> Partition | None:
        """The hosted partition."""
        return self._set.by_id.get((topic_id, partition))

    def led(self, partition: Partition) -> None:
        """It leads."""
        assert self.streams is not None
        self.streams.unfollow(partition)
        self.log.mark()
        self.progressed(partition, advanced=True)

    def followed(self, partition: Partition) -> None:
        """It follows."""
        assert self.streams is not None
        self.log.mark()
        self.streams.follow(partition)

    def stopped(self, partition: Partition) -> None:
        """It does neither."""
        assert self.streams is not None
        self.streams.unfollow(partition)

    def progressed(self, partition: Partition, advanced: bool) -> None:
        """Its leader learned something. What is pending is proposed when it pleases."""
        if advanced:
            self._released(partition)

    def _released(self, partition: Partition) -> None:
        partition.release()
        assert self.publisher is not None
        self.publisher.rose(partition)

    def replicated(self, partition: Partition, size: int) -> None:
        """A follower's log grew, or was cut."""
        self.log.mark()

    def connected(self, leader: NodeId) -> None:
        """A leader has accepted this broker's stream."""

    def truncated_below_high_watermark(self, partition: Partition, offset: int) -> None:
        """Only an unclean election explains that, and there is none here."""
        self.trouble = f"it cuts its log at {offset}, below its high watermark {partition.high_watermark}"

    def log_failed(self, partition: Partition, reason: str) -> None:
        """No disk fails by itself here: the product refuses to lose what was committed."""
        self.trouble = reason
        partition.fail(reason)
        self.stopped(partition)

    def fatal(self, error: BaseException) -> None:
        """The node must stop."""
        self.trouble = str(error)


def _member(member: Any) -> Any:
    return member.node_id


def _itself(node: Any) -> Any:
    return node


def broker_codec() -> Codec:
    """What of a broker is its state."""
    times: dict[tuple[type, str], Any] = {
        (Fetcher, "received_ms"): NOW_MS,
        (Fetcher, "sent_ms"): NOW_MS,
        (Fetcher, "lost_ms"): None,
        (Following, "retry_ms"): NOW_MS,
        (FollowerLink, "now_ms"): NOW_MS,
        (FollowerLink, "received_ms"): NOW_MS,
        (FollowerLink, "sent_ms"): NOW_MS,
        (FollowerProgress, "last_ack_ms"): NOW_MS,
        (FollowerProgress, "leader_end_at_last_ack"): -1,
        (LeaderCore, "_propose_after_ms"): LONG_AGO_MS,
    }
    world: dict[tuple[type, str], Any] = {
        (PartitionSet, "_clock"): CLOCK,
        (PartitionSet, "config"): CONFIG,
        (PartitionSet, "_deletions"): Fresh(dict),
        (PartitionSet, "_awaiting_deletion"): Fresh(dict),
        (Partition, "_watchers"): Fresh(dict),
        (Partition, "_watcher_ids"): 0,
        (PartitionState, "log_config"): LogConfig(),
        (ModelLog, "config"): LogConfig(),
        (LeaderEpochs, "version"): 0,
        (LeaderEpochs, "written"): 0,
        (Fetcher, "_retry_timer"): None,
        (Fetcher, "_signal"): Fresh(Signal),
        (Fetcher, "_task"): None,
        (Fetcher, "_consumed"): 0,
        (Fetcher, "attempts"): 0,
        (Following, "attempts"): 0,
        (Following, "cuts"): 0,
        (FollowerLink, "_signal"): Fresh(Signal),
        (FollowerLink, "_cold_read"): None,
        (FollowerLink, "_credit"): CREDIT_BYTES,
        (FollowerLink, "_catch_up_is_next"): True,
        (FollowerLink, "bytes_out"): 0,
        (Streams, "_ending"): Fresh(dict),
        (Streams, "_ended_bytes_out"): 0,
        (Publisher, "_timer"): None,
        (BrokerState, "endpoint"): ENDPOINT,
        (Fetcher, "_endpoint"): ENDPOINT,
        (PartitionState, "topic"): TOPIC_PARTITION.topic,
        (PartitionState, "topic_id"): TOPIC_ID,
        (PartitionState, "partition"): TOPIC_PARTITION.partition,
        (Broker, "trouble"): "",
    }
    unordered: dict[tuple[type, str], Any] = {
        (PartitionState, "replicas"): _itself,
        (PartitionState, "isr"): _itself,
        (Partition, "isr"): _itself,
        (LeaderCore, "isr"): _itself,
        (LeaderCore, "maximal_isr"): _itself,
        (PendingIsr, "isr"): _itself,
        (AlterPartitionItem, "new_isr"): _member,
    }
    derived: dict[tuple[type, str], Any] = {
        (PartitionSet, "by_id"): _by_id,
        (Streams, "_followed"): _followed,
        (LeaderCore, "_followers"): lambda core: tuple(core.followers.values()),
    }
    return Codec(fixed=times | world, unordered=unordered, derived=derived)


def _by_id(partitions: PartitionSet) -> dict[Any, Partition]:
    return {(one.state.topic_id, one.state.partition): one for one in partitions.partitions.values()}


def _followed(streams: Streams) -> dict[Partition, Fetcher]:
    return {partition: fetcher for fetcher in streams._fetchers.values() for partition in fetcher._followings}
