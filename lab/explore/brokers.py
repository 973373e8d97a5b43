"""One broker of the explored partition: the production roles, cores and stream ends, on a log that is a value.

What the product does in tasks and timers is done here in single steps: opening streams, writing and reading frames,
syncing, proposing. The decisions are all the product's.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lab.explore.directories import DIRECTORIES, LogDirs
from lab.explore.logs import TOPIC_PARTITION, ModelLog
from strandline.log.findings import LogCondition
from strandline.proto.believed import BelievedClock
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_BROKER_EPOCH, BrokerEpoch, Endpoint, NodeId, TopicId, TopicIdPartition
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome
from strandline.proto.timers import Delayed, Pauses
from strandline.replica import frames
from strandline.replica.beginnings import Beginnings
from strandline.replica.core import IsrProposal, LeaderCore, ProposeIsr
from strandline.replica.fetcher import Fetcher
from strandline.replica.leader_stream import FollowerLink
from strandline.replica.partition import Partition
from strandline.replica.partition_set import PartitionSet
from strandline.replica.refusals import EarlyRefusals
from strandline.replica.rot import RotWatch
from strandline.replica.shared import Shared
from strandline.replica.states import BrokerState, PartitionState, ReplicaConfig, ReplicaCounters, ReplicaStatus, Role
from strandline.replica.streams import Streams
from strandline.replica.throttle import Throttle

NOW_MS = 0.0
LONG_AGO_MS = float("-inf")
CREDIT_BYTES = 1 << 20
CLUSTER = "explored"
ENDPOINT = Endpoint(CLUSTER, 1)
"""Endpoint of every broker: streams are opened by name here."""


class _Clock:
    """Time stands still: who lags is a choice."""

    def monotonic_ms(self) -> float:
        return NOW_MS

    def wall_ms(self) -> int:
        return 0


class _Loop:
    """Replacement of an event loop: timers are choices, so that arming one does nothing."""

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
RNG = random.Random(0)
RPC: Any = None
CONFIG = ReplicaConfig(reconnect_backoff_ms=0, reconnect_backoff_max_ms=0)


NOTHING, THE_PENDING, AN_OLDER = 0, 1, 2


class Pipe:
    """One side's handle of a stream."""

    __slots__ = ("closed",)

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class ExploredStreams(Streams):
    """The product's streams, which nobody connects by themselves."""

    def _connect(self) -> None:
        return


class Proposals:
    """The change of the ISR that is to be sent to the controller, which is a step of the model."""

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due: IsrProposal | None = None

    def propose(self, proposer: object, effect: ProposeIsr) -> None:
        self.due = effect.proposal


def nothing() -> None:
    """Nobody is to be told."""


def refuse(error: BaseException) -> None:
    """The node must stop: the step shows it."""
    raise error


ROT = RotWatch(ReplicaCounters(), nothing, refuse)
BEGINNINGS = Beginnings(None, CLOCK, refuse)
PAUSES = Pauses(CLOCK)


class _Syncs:
    """Nor does a sync of theirs hang."""

    hung = False


class Broker:
    """A machine with its disk, and the process that runs on it (none: `partitions` is None).

    Its parts are the product's, put together as `ReplicaManager` does.

    Attributes:
        life: how many processes have run here; the broker epoch of the present one.
        asked: what is on its way to the controller: NOTHING, THE_PENDING change of the ISR, or AN_OLDER one, whose
            answer says nothing any more.
        found: what the recovery of the next process finds: INTACT, CUT or LACKING (as a number).
        ruined: the disk has lost, since its last process ended, what had been synced.
        zeroed: the disk has once given back zeros for it, which no recovery sees.
        slow: what takes longer here than elsewhere (see `lab.explore.partition`).
        trouble: what must not happen, if it happened in this step.
    """

    disk_stalls: Any = _Syncs()

    __slots__ = (
        "asked",
        "broker_epoch",
        "found",
        "log",
        "node_id",
        "partitions",
        "ruined",
        "shared",
        "slow",
        "streams",
        "trouble",
        "zeroed",
    )

    def __init__(self, node: NodeId) -> None:
        self.node_id = node
        self.log = ModelLog()
        self.broker_epoch = BrokerEpoch(NO_BROKER_EPOCH)
        self.partitions: PartitionSet | None = None
        self.streams: ExploredStreams | None = None
        self.shared: Shared | None = None
        self.asked = NOTHING
        self.found = int(LogCondition.INTACT)
        self.ruined = self.zeroed = False
        self.slow: tuple[str, ...] = ()
        self.trouble = ""

    # What it is

    @property
    def up(self) -> bool:
        """True if a process runs, and has registered."""
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
        """Start a process on what the disk holds, and register it: what its recovery found is committed by that."""
        self.broker_epoch = BrokerEpoch(epoch)
        log_dirs: Any = LogDirs(self.log)
        self.found = int(LogCondition.INTACT)
        self.ruined = False
        self.shared = Shared(
            node_id=self.node_id,
            cluster_id=CLUSTER,
            clock=CLOCK,
            believed=BelievedClock(CLOCK),
            config=CONFIG,
            pauses=PAUSES,
            counters=ReplicaCounters(),
            early_refusals=EarlyRefusals(),
            directories=DIRECTORIES,
            isr_changes=Proposals(),  # type: ignore[arg-type]
            watermarks=Delayed(0.0),
            leader_throttle=Throttle(CLOCK),
            follower_throttle=Throttle(CLOCK),
            beginnings=BEGINNINGS,
            rot=ROT,
            on_change=nothing,
            on_fatal=refuse,
            broker_epoch=self.broker_epoch,
        )
        by_id: dict[tuple[TopicId, int], Partition] = {}
        self.streams = ExploredStreams(self.shared, RPC, RNG, by_id)
        self.streams._started = True
        self.partitions = PartitionSet(self.shared, log_dirs, self.streams, by_id)

    def crash(self, kept: int, torn: str = "") -> None:
        """End the process; of what was not synced the first `kept` writes are there afterwards. Its high watermark was
        last written down long ago.

        `torn`: a part of the next write is there too, and recovery cuts it off.
        """
        self.log.crash(kept)
        self.partitions = self.streams = self.shared = None
        self.asked = NOTHING
        self.slow = ()
        self.found = int(LogCondition.CUT if torn else LogCondition.INTACT)

    def stop(self) -> None:
        """End the process as it should end: everything is synced, unless a sync has failed before."""
        partition = self.partition
        while self.log.unsynced and (partition is None or partition.role is not Role.OFFLINE):
            self.log.mark()
            self.log.synced()
        self.crash(0)

    def rot(self, kept: int) -> None:
        """Rot the log on the disk behind its first `kept` records: recovery will cut the others off."""
        self._ruin(kept, LogCondition.CUT)

    def lose(self, kept: int) -> None:
        """Lose the log on the disk behind its first `kept` records, while the directory's checkpoints prove that
        there were more: it is gone, an older copy took its place, or it is refused."""
        self._ruin(kept, LogCondition.LACKING)

    def zero(self, kept: int) -> None:
        """Lose the log on the disk behind its first `kept` records, while nothing tells that there were more."""
        self._ruin(kept, LogCondition.INTACT)
        self.zeroed = True

    def _ruin(self, kept: int, condition: LogCondition) -> None:
        self.log.lose_end(kept)
        self.ruined = True
        self.found = max(self.found, int(condition))

    def sync_fails(self) -> None:
        """Fail the sync under way: the partition is offline here until the machine starts anew."""
        partition = self.partition
        assert partition is not None
        self.log.syncing = -1
        partition.fail("a sync failed")
        self._parts.counters.offline_logs = 0  # that is no trouble

    def apply(
        self, changes: list[PartitionState], deleted: list[TopicIdPartition], brokers: Mapping[NodeId, BrokerState]
    ) -> None:
        """Committed metadata arrive."""
        assert self.streams is not None
        if self._set.apply(changes, deleted, brokers):
            self.streams.brokers_changed(self._set.brokers)
        self.streams.drop_idle()

    def hosted(self) -> list[ReplicaStatus]:
        """Every hosted partition, as heartbeats tell of it."""
        return [partition.status(NOW_MS) for partition in self._set.partitions.values()]

    # Clients, syncs, time

    def append(self, value: int) -> None:
        """Write as a client: with acks=all, or acks=1 where too few are in sync for that."""
        core, partition = self.core, self.partition
        assert partition is not None
        result = self.log.append_own(core.leader_epoch, value)
        effects = core.appended(result.next_offset, NOW_MS)
        partition._publish(result)
        self.log.mark()
        partition._carry_out(effects)

    def synced(self) -> None:
        """End the sync under way."""
        self.log.synced()
        if self.partition is not None:
            self.partition.synced()

    def lags(self, follower: NodeId) -> None:
        """Note that a follower has not caught up for replica.lag.time.max.ms."""
        core, partition = self.core, self.partition
        assert partition is not None
        core.followers[follower].last_caught_up_ms = LONG_AGO_MS
        partition.sweep(NOW_MS)

    # Proposals

    def propose(self) -> AlterPartitionItem:
        """The pending change of the ISR leaves."""
        proposals = self._proposals
        assert proposals.due is not None
        item, proposals.due = proposals.due.item, None
        self.asked = THE_PENDING
        return item

    def proposal_answered(self, outcome: AlterPartitionOutcome | None) -> None:
        """Take the controller's answer; None: there is none, and the change may have been committed or not."""
        asked, self.asked = self.asked, NOTHING
        if asked == AN_OLDER:
            return
        partition, pending = self.partition, self.pending
        assert partition is not None
        assert pending is not None
        if outcome is None:
            self._proposals.due = pending
        else:
            partition.isr_answered(pending, outcome)

    def settle(self, before: IsrProposal | None) -> None:
        """Settle after a step: if what was pending `before` it is so no more, the answer to that is of no interest.
        And what must not happen here: nothing ever explains that a disk fails, or that committed records are given
        up."""
        partition = self.partition
        core = None if partition is None else partition.leader
        if self.asked == THE_PENDING and (core is None or core.pending is not before):
            self.asked = AN_OLDER
        if self.shared is None or partition is None:
            return
        if self._proposals.due is not self.pending:
            self._proposals.due = None
        counters = self.shared.counters
        if counters.truncations_below_high_watermark:
            self.trouble = "it cuts its log below its high watermark"
        elif counters.offline_logs:
            self.trouble = partition.reason

    @property
    def pending(self) -> IsrProposal | None:
        """The change of the ISR that its leadership waits for."""
        partition = self.partition
        return None if partition is None or partition.leader is None else partition.leader.pending

    @property
    def proposes(self) -> bool:
        """True if a change of the ISR waits to be sent."""
        return self._proposals.due is not None and self.asked == NOTHING

    @property
    def _proposals(self) -> Proposals:
        proposals: Any = self._parts.isr_changes
        return proposals  # type: ignore[no-any-return]

    @property
    def _parts(self) -> Shared:
        assert self.shared is not None
        return self.shared

    @property
    def core(self) -> LeaderCore:
        """The leadership."""
        partition = self.partition
        assert partition is not None
        assert partition.leader is not None
        return partition.leader

    # Streams

    def connect(self) -> None:
        """Open a stream to the leader: fetch what is followed there."""
        fetcher = self.fetcher
        assert fetcher is not None
        fetcher._stream = Pipe()  # type: ignore[assignment]
        fetcher._requests = deque()
        for following in fetcher._followings:
            fetcher._fetch(following)

    def accept(self, hello: frames.Hello) -> bool:
        """Let a follower open a stream; False if it is refused. False: it is refused."""
        streams = self.streams
        assert streams is not None
        code, _ = streams._judge(hello)
        if code is not ErrorCode.NONE:
            return False
        previous = streams._links.pop(hello.node_id, None)
        if previous is not None:
            previous.close()
        link = streams._links[hello.node_id] = FollowerLink(self._parts, self._set.by_id, Pipe(), hello)  # type: ignore[arg-type]
        link.on_credit(CREDIT_BYTES)
        return True

    def say(self) -> bytes:
        """Everything that the follower has to say now, as one frame."""
        fetcher = self.fetcher
        assert fetcher is not None
        return fetcher._next_frame()

    def receive_requests(self, follower: NodeId, frame: bytes) -> None:
        """Take a follower's frame."""
        assert self.streams is not None
        link = self.streams._links.get(follower)
        if link is not None and not link.closed:
            frames.read_requests(frame, link)

    def offer(self, follower: NodeId) -> bytes:
        """Everything that there is for a follower now, as one frame."""
        assert self.streams is not None
        self._parts.watermarks.run()
        return self.streams._links[follower]._next_frame() or b""

    def receive_replies(self, frame: bytes) -> None:
        """Take the leader's frame."""
        fetcher = self.fetcher
        if fetcher is not None and fetcher._stream is not None:
            frames.read_replies(frame, fetcher)

    def disconnect(self) -> None:
        """Break the stream to the leader."""
        fetcher = self.fetcher
        if fetcher is not None:
            fetcher._disconnected()

    def hang_up(self, follower: NodeId) -> None:
        """Break the stream of a follower."""
        assert self.streams is not None
        link = self.streams._links.pop(follower, None)
        if link is not None:
            link.close()

    def retry(self) -> None:
        """End the pause after a refused fetch."""
        fetcher = self.fetcher
        assert fetcher is not None
        fetcher._retry()
