"""One hosted partition: its log, its role, and who waits for its high watermark."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId, TopicPartition
from strandline.proto.marks import mark
from strandline.replica.core.follower import FollowerCore
from strandline.replica.core.leader import LeaderCore
from strandline.replica.core.roles import Trigger, next_role
from strandline.replica.states import AppendOutcome, PartitionState, ReplicaStatus, Role
from strandline.replica.trims import PendingTrim, release

if TYPE_CHECKING:
    from strandline.log.partition_log import PartitionLog
    from strandline.replica.subscription import Subscription

AppendDone = Callable[[AppendOutcome], None]

_LEADERSHIP_LOST = "leadership was lost before the batch was committed; whether it will be is not known"


class PendingAppend:
    """An append with acks=all that is written here and waits for the high watermark."""

    __slots__ = ("_done", "base_offset", "log_append_time_ms", "log_start_offset", "required_offset")

    def __init__(
        self, required_offset: int, base_offset: int, log_append_time_ms: int, log_start_offset: int, done: AppendDone
    ) -> None:
        self.required_offset = required_offset
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self._done: AppendDone | None = done

    @property
    def ended(self) -> bool:
        """The outcome was told."""
        return self._done is None

    def cancel(self, error: ErrorCode) -> None:
        """Stop waiting: the outcome is `error`, and indeterminate, since the batch stays in the log. Nothing happens
        when it has ended."""
        self.finish(error, "the batch is written and was not committed in time")

    def finish(self, error: ErrorCode, message: str = "", synced: tuple[NodeId, ...] = ()) -> None:
        """Tell the outcome, once."""
        done = self._done
        if done is not None:
            self._done = None
            done(
                AppendOutcome(error, message, self.base_offset, self.log_append_time_ms, self.log_start_offset, synced)
            )


class Partition:
    """What one broker has of one partition.

    Invariants:
    - exactly one of `leader` and `follower` is set in the roles of these names, none in the others;
    - `waiting` is ordered by the offset required, and empty unless it leads;
    - `log` is None only while OFFLINE.
    """

    __slots__ = (
        "_high_watermark",
        "_watcher_ids",
        "_watchers",
        "channel",
        "follower",
        "isr",
        "leader",
        "log",
        "reason",
        "role",
        "state",
        "subscriptions",
        "topic_partition",
        "trims",
        "waiting",
    )

    def __init__(self, state: PartitionState, log: PartitionLog | None, high_watermark: int) -> None:
        self.topic_partition: TopicPartition = state.topic_partition
        self.state = state
        self.log = log
        self.role = Role.IDLE
        self.reason = ""
        self.leader: LeaderCore | None = None
        self.follower: FollowerCore | None = None
        self.channel = 0
        """The number of this leadership on replication streams; 0 unless it leads."""
        self.isr: tuple[NodeId, ...] = ()
        """The committed ISR as its leader last saw it; what the counters compare with."""
        self.subscriptions: dict[NodeId, Subscription] = {}
        """Followers whose fetch was found valid in this leadership."""
        self.waiting: deque[PendingAppend] = deque()
        self.trims: list[PendingTrim] = []
        """Deletions that wait for followers; empty unless it leads."""
        self._high_watermark = high_watermark
        self._watchers: dict[int, Callable[[], None]] = {}
        self._watcher_ids = 0

    @property
    def high_watermark(self) -> int:
        """The offset up to which everything is committed, as far as this broker knows."""
        core = self.leader or self.follower
        return self._high_watermark if core is None else core.high_watermark

    def start_at(self, high_watermark: int) -> None:
        """What was known to be committed when this broker last wrote it down."""
        self._high_watermark = high_watermark

    # Roles

    def lead(self, core: LeaderCore, channel: int) -> None:
        """Become leader in a new leader epoch."""
        self.isr = core.isr
        self._enter(Trigger.ELECTED, leader=core, channel=channel)

    def follow(self, core: FollowerCore) -> None:
        """Become follower in a new leader epoch."""
        self._enter(Trigger.FOLLOW, follower=core)

    def idle(self) -> None:
        """There is no leader."""
        self._enter(Trigger.LEADERLESS)

    def fail(self, reason: str) -> None:
        """The log can no longer be used."""
        self.reason = self.reason or reason
        self._enter(Trigger.DISK_FAILED)

    def delete(self) -> None:
        """It is hosted here no longer."""
        self._enter(Trigger.DELETED)

    def _enter(
        self,
        trigger: Trigger,
        *,
        leader: LeaderCore | None = None,
        follower: FollowerCore | None = None,
        channel: int = 0,
    ) -> None:
        """Change the role, then tell everybody who relied on the old one."""
        self._high_watermark = self.high_watermark
        self.role = next_role(self.role, trigger)
        serves = self.role is Role.LEADER or self.role is Role.FOLLOWER
        self.leader = leader if serves else None
        self.follower = follower if serves else None
        self.channel = channel if serves else 0
        subscriptions, self.subscriptions = self.subscriptions, {}
        code = ErrorCode.KAFKA_STORAGE_ERROR if self.role is Role.OFFLINE else ErrorCode.NOT_LEADER_OR_FOLLOWER
        for subscription in subscriptions.values():
            subscription.end(code)
        waiting, self.waiting = self.waiting, deque()
        if waiting:
            mark("leadership-lost-while-waiting")
        for pending in waiting:
            pending.finish(ErrorCode.NOT_LEADER_OR_FOLLOWER, _LEADERSHIP_LOST)
        trims, self.trims = self.trims, []
        for trim in trims:
            trim.finish(ErrorCode.NOT_LEADER_OR_FOLLOWER, "leadership was lost; the records may be there again")
        self.wake_watchers()

    def drop_subscription(self, node_id: NodeId) -> None:
        """The node is no replica any more."""
        subscription = self.subscriptions.pop(node_id, None)
        if subscription is not None:
            subscription.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # Waiting for the high watermark

    def wait(self, pending: PendingAppend) -> None:
        """Finish `pending` once the high watermark reaches what it requires. Only a duplicate of an older batch can
        require less than the one before it."""
        waiting = self.waiting
        index = len(waiting)
        while index and waiting[index - 1].required_offset > pending.required_offset:
            index -= 1
        if index == len(waiting):
            waiting.append(pending)
        else:
            waiting.insert(index, pending)

    def release(self) -> None:
        """The high watermark rose: answer who waited for it, in order, and wake who watches it."""
        leader = self.leader
        waiting = self.waiting
        if leader is not None and waiting:
            high_watermark = leader.high_watermark
            while waiting and waiting[0].required_offset <= high_watermark:
                pending = waiting.popleft()
                if not pending.ended:
                    error = leader.judge_committed()
                    pending.finish(error, "", leader.synced_replicas(pending.required_offset))
        if self._watchers:
            self.wake_watchers()

    def release_trims(self) -> None:
        """Followers, or the ISR, moved on: answer deletions that need not wait any longer."""
        if self.trims and self.leader is not None and self.log is not None:
            self.trims = release(self.trims, self.leader, self.log.durable_log_start_offset)

    def drop_ended(self) -> None:
        """Forget appends and deletions that were cancelled while they waited."""
        if self.waiting:
            self.waiting = deque(pending for pending in self.waiting if not pending.ended)
        if self.trims:
            self.trims = [trim for trim in self.trims if not trim.ended]

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once, at the next rise of the high watermark or change of role. Returns how to withdraw."""
        self._watcher_ids += 1
        watcher = self._watcher_ids
        self._watchers[watcher] = wake
        return lambda: self._withdraw(watcher)

    def _withdraw(self, watcher: int) -> None:
        self._watchers.pop(watcher, None)

    def wake_watchers(self) -> None:
        """Wake all, once."""
        watchers, self._watchers = self._watchers, {}
        for wake in watchers.values():
            wake()

    # Status

    def status(self, now_ms: float) -> ReplicaStatus:
        """What it is and where it stands."""
        state, log, leader = self.state, self.log, self.leader
        return ReplicaStatus(
            topic=state.topic,
            topic_id=state.topic_id,
            partition=state.partition,
            role=self.role,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch if leader is None else leader.partition_epoch,
            high_watermark=self.high_watermark,
            log_start_offset=-1 if log is None else log.log_start_offset,
            log_end_offset=-1 if log is None else log.log_end_offset,
            durable_offset=-1 if log is None else log.durable_offset,
            last_epoch=-1 if log is None else log.latest_epoch,
            size_bytes=0 if log is None else log.size_bytes,
            replicas=state.replicas,
            isr=state.isr if leader is None else leader.isr,
            maximal_isr=state.isr if leader is None else leader.maximal_isr,
            effective_min_isr=state.effective_min_isr,
            followers=() if leader is None else leader.follower_statuses(now_ms),
            reason=self.reason,
        )
