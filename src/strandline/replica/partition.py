"""One hosted partition: its log, its core, the requests that wait for it, and its followers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

import structlog

from strandline.log.partition_log import AppendResult, PartitionLog
from strandline.log.transactions import Marker, Verification
from strandline.proto.ensure import ensure, present
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, NoSpaceLeft, StorageError
from strandline.proto.ids import BrokerEpoch, LeaderEpoch, NodeId, TopicPartition
from strandline.proto.isr import AlterPartitionOutcome
from strandline.proto.marks import mark
from strandline.proto.transitions import next_state
from strandline.replica import frames
from strandline.replica.core import (
    Committed,
    FollowerCore,
    FollowerProgress,
    IsrCommitted,
    IsrProposal,
    LeaderCore,
    LeaderEffects,
    ProposeIsr,
)
from strandline.replica.refusals import note_refusal
from strandline.replica.shared import Shared
from strandline.replica.states import ACKS_ALL, TRANSITIONS, BrokerState, PartitionState, ReplicaStatus, Role, RoleEvent

log = structlog.get_logger("strandline.replica")

_LEADERSHIP_LOST = "leadership was lost before the batch was committed; whether it will be is not known"


# Requests that wait for replicas


ISR_CHANGE = NodeId(-1)
"""Value of `Append.waited_for` for an append that a change of the ISR let through, not a sync or a fetch."""


class Append:
    """Append of a client's batches. Its sender keeps it, and reads the outcome from it once it has `ended`.

    Attributes:
        required_offset: with acks=all, the high watermark at which it is answered.
        error: NONE, or Kafka's error code. If the batch was written, NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            NOT_LEADER_OR_FOLLOWER and REQUEST_TIMED_OUT are indeterminate; so is KAFKA_STORAGE_ERROR, unless the disk
            was merely full. Every other code means that nothing was written.
        message: explanation of an error.
        base_offset: offset of the first record; -1 unless written (or found as a duplicate).
        log_append_time_ms: -1 unless the topic stamps records with the time of their append.
        log_start_offset: the log's start when the batch was written; -1 unless written.
        synced_replicas: nodes known to have synced the batch when the append ended, leader first.
        waited_for: node whose sync (or fetch) the append waited for last; `ISR_CHANGE`; None if it did not wait.
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
        "waited_for",
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
        self.waited_for: NodeId | None = None

    @property
    def ended(self) -> bool:
        """True once the outcome is known and the sender has it."""
        return self._done is None

    def wait_in(self, waiting: deque[Append]) -> None:
        """Insert this append into `waiting`, which is ordered by required offset. Only a duplicate of an older batch
        can require less than the append before it."""
        index = len(waiting)
        while index and waiting[index - 1].required_offset > self.required_offset:
            index -= 1
        waiting.insert(index, self)

    def cancel(self, error: ErrorCode) -> None:
        """Stop waiting. The outcome is `error`, and indeterminate, as the batch stays in the log. No effect on an
        append that has ended."""
        self.end(error, "the batch is written and was not committed in time")

    def end(self, error: ErrorCode, message: str = "", synced: tuple[NodeId, ...] = ()) -> None:
        """Set the outcome and pass the append to the sender's callback; later calls have no effect."""
        done = self._done
        if done is not None:
            self._done = None
            self.error = error
            self.message = message
            self.synced_replicas = synced
            done(self)


AppendDone = Callable[[Append], None]
"""Callback that takes an append that has ended."""


DeletionDone = Callable[[ErrorCode, str, int], None]
"""Callback that takes error code, message and low watermark: no replica that may lead has records below that offset
(-1 with an error)."""

TO_HIGH_WATERMARK = -1
"""Offset that stands for the high watermark: delete everything that is committed."""


class PendingDeletion:
    """Deletion of records from the front of a partition at a client's request (DeleteRecords, KIP-107).

    The leader raises its log start at once and tells its followers, which raise theirs and report it once it is
    durable. The client is answered when every replica that may lead next has done so; otherwise the records would be
    back after an election or a power failure. So the deletion also waits while the ISR is below min.insync.replicas,
    because former members may then be elected (KIP-966). A replica joins the ISR only after it has deleted the records
    (`LeaderCore.deleted_before`).
    """

    __slots__ = ("_done", "offset")

    def __init__(self, offset: int, done: DeletionDone) -> None:
        self.offset = offset
        self._done: DeletionDone | None = done

    def cancel(self) -> None:
        """Stop waiting, with REQUEST_TIMED_OUT; the records stay deleted on the leader. No effect after the end."""
        self.end(ErrorCode.REQUEST_TIMED_OUT, "deleted on the leader; not every replica in sync has followed in time")

    def end(self, error: ErrorCode, message: str = "", low_watermark: int = -1) -> None:
        """Pass the outcome to the client's callback; later calls have no effect."""
        done, self._done = self._done, None
        if done is not None:
            done(error, message, low_watermark)

    @property
    def ended(self) -> bool:
        """True once the client has the outcome."""
        return self._done is None


class Watchers:
    """Callbacks that are called once, at the next change of what they watch."""

    __slots__ = ("_calls", "_last")

    def __init__(self) -> None:
        self._calls: dict[int, Callable[[], None]] = {}
        self._last = 0

    def add(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once, at the next change. Returns a function that withdraws it."""
        self._last += 1
        number = self._last
        self._calls[number] = wake
        return lambda: self._withdraw(number)

    def __len__(self) -> int:
        return len(self._calls)

    def _withdraw(self, number: int) -> None:
        self._calls.pop(number, None)

    def wake(self) -> None:
        """Call all callbacks and forget them."""
        if self._calls:
            calls, self._calls = self._calls, {}
            for call in calls.values():
                call()


# The streams


class Link(Protocol):
    """Stream of a follower's broker, as a partition sees it (`strandline.replica.leader_stream`)."""

    @property
    def node_id(self) -> NodeId: ...

    def offer(self, subscription: Subscription, appended: AppendResult, entry: bytes) -> bytes:
        """Queue just appended batches for a subscription, or mark it as lagging: it then catches up from the log.

        `entry`: the batches as another follower's link encoded them, or b"". Return the entry for the next link.
        """

    def push(self, piece: bytes) -> None:
        """Queue one encoded entry."""

    def ended(self, subscription: Subscription, code: ErrorCode) -> None:
        """Tell the follower that the leadership under a subscription has ended, with the error code `code`."""


class Subscription:
    """Subscription of one follower to a partition, for the time of one leadership.

    Invariants:
    - everything below `next_offset` was queued or sent to the follower. Of the batch that begins there, if it is sent
      in pieces, the first `sent_bytes` bytes were, and `sent_crc` is their CRC-32C;
    - unless `lagging`, `next_offset` is the log's end;
    - it is `live` while it is among the partition's subscriptions: the leadership lasts, and the follower has not
      fetched again.
    """

    __slots__ = (
        "channel",
        "core",
        "follower",
        "id",
        "lagging",
        "link",
        "live",
        "log",
        "next_offset",
        "sent_bytes",
        "sent_crc",
        "sent_high_watermark",
    )

    def __init__(self, link: Link, identity: int, channel: int, core: LeaderCore, log: PartitionLog) -> None:
        self.link = link
        self.id = identity
        self.channel = channel
        self.core = core
        self.log = log
        self.follower: FollowerProgress = core.followers[link.node_id]
        self.next_offset = 0
        self.sent_bytes = 0
        self.sent_crc = 0
        self.sent_high_watermark = -1
        self.lagging = False
        self.live = True

    def end(self, code: ErrorCode) -> None:
        """End the subscription because the leadership ended, and tell the follower `code`."""
        self.live = False
        self.link.ended(self, code)


class Source(Protocol):
    """Stream from which a followed partition gets its data, as the partition sees it (`strandline.replica.fetcher`)."""

    def synced(self) -> None:
        """More of the log is durable on this broker: acknowledge it to the leader."""

    def deleted(self) -> None:
        """The log start is durable on this broker: tell the leader, which may wait for it."""

    def heal(self) -> None:
        """Fetch the rotten ranges of the log from the leader, unless the last attempt was too short a time ago."""

    def end(self) -> None:
        """Stop following."""


# The partition


class Partition:
    """Replica of one partition on this broker. It passes events to its core, and carries out the effects that the core
    returns.

    Invariants:
    - `leader` is set in role LEADER and `follower` in role FOLLOWER; both are None in every other role;
    - `waiting` is ordered by required offset, and empty unless this broker leads;
    - `log` is None only while OFFLINE.
    """

    __slots__ = (
        "_high_watermark",
        "_shared",
        "_stable_offset",
        "_stable_watchers",
        "channel",
        "deletions",
        "follower",
        "leader",
        "log",
        "reason",
        "role",
        "source",
        "state",
        "subscriptions",
        "topic_partition",
        "waiting",
        "watchers",
    )

    def __init__(self, shared: Shared, state: PartitionState, log: PartitionLog | None) -> None:
        self._shared = shared
        self.topic_partition: TopicPartition = state.topic_partition
        self.state = state
        self.log = log
        self.role = Role.IDLE
        self.reason = ""
        self.leader: LeaderCore | None = None
        self.follower: FollowerCore | None = None
        self.channel = 0
        """Number of this leadership on replication streams; 0 unless this broker leads."""
        self.source: Source | None = None
        """Stream that brings the data, while this broker follows a registered leader."""
        self.subscriptions: dict[NodeId, Subscription] = {}
        """Subscriptions by follower, for followers whose fetch was found valid in this leadership."""
        self.waiting: deque[Append] = deque()
        """Appends that wait for the high watermark, in the order of their required offsets."""
        self.deletions: list[PendingDeletion] = []
        """Deletions that wait for followers; empty unless this broker leads."""
        self._high_watermark = 0
        self.watchers = Watchers()
        """Callbacks for the next rise of the high watermark or change of role."""
        self._stable_watchers = Watchers()
        self._stable_offset = -1
        """Last stable offset that the stable watchers know; -1 before the first one."""

    @property
    def high_watermark(self) -> int:
        """Offset below which every record is committed, as far as this broker knows."""
        core = self.leader or self.follower
        return self._high_watermark if core is None else core.high_watermark

    @property
    def log_start_offset(self) -> int:
        """First offset of the partition, object store included; 0 if this broker has no log of it."""
        return 0 if self.log is None else self.state.tier.log_start(self.log.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every record is committed and every transaction decided, as far as this broker knows."""
        high_watermark = self.high_watermark
        return high_watermark if self.log is None else self.log.last_stable_offset(high_watermark)

    def watch_stable(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once, when the last stable offset rises or the role changes. Returns a function that withdraws
        it."""
        if not self._stable_watchers:
            self._stable_offset = self.last_stable_offset
        return self._stable_watchers.add(wake)

    def wake_all(self) -> None:
        """Wake all watchers, because the role or the log changed."""
        self.watchers.wake()
        self._stable_watchers.wake()

    def high_watermark_rose(self) -> None:
        """Wake the watchers of the high watermark, and those of the last stable offset if it rose, too."""
        self.watchers.wake()
        self._look_at_stable()

    def _look_at_stable(self) -> None:
        if self._stable_watchers:
            stable = self.last_stable_offset
            if stable != self._stable_offset:  # rule C13/open-transactions-wake-their-readers
                self._stable_offset = stable
                self._stable_watchers.wake()

    def start_at(self, high_watermark: int) -> None:
        """Set the high watermark that this broker wrote to its checkpoint last."""
        self._high_watermark = high_watermark

    def cannot_read(self, error: KafkaError) -> None:
        """Report that a read of the log failed with `error`: the log may be rotten."""
        self._shared.rot.found(self, error)

    def heal(self) -> None:
        """Fetch rotten ranges of the log from the leader, if another broker leads."""
        if self.source is not None:
            self.source.heal()

    # Status

    def status(self, now_ms: float) -> ReplicaStatus:
        """Return the partition's role, offsets and members, for metrics, heartbeats and describe."""
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
            log_start_offset=-1 if log is None else state.tier.log_start(log.log_start_offset),
            local_log_start_offset=-1 if log is None else log.log_start_offset,
            log_end_offset=-1 if log is None else log.log_end_offset,
            durable_offset=-1 if log is None else log.durable_offset,
            last_epoch=-1 if log is None else log.latest_epoch,
            size_bytes=0 if log is None else log.size_bytes,
            tiered=state.log_config.remote_storage,
            tiered_bytes=state.tier.size_bytes,
            replicas=state.replicas,
            isr=state.isr if leader is None else leader.isr,
            maximal_isr=state.isr if leader is None else leader.maximal_isr,
            effective_min_isr=state.effective_min_isr,
            followers=() if leader is None else leader.follower_statuses(now_ms),
            rotten=log is not None and bool(log.rot),
            directory="" if log is None else log.home,
            reason=self.reason,
            last_stable_offset=self.last_stable_offset,
        )

    # Roles

    def lead(self, core: LeaderCore, channel: int) -> None:
        """Become leader in a new leader epoch."""
        self._enter(RoleEvent.ELECTED, leader=core, channel=channel)

    def follow(self, core: FollowerCore) -> None:
        """Become follower in a new leader epoch."""
        self._enter(RoleEvent.FOLLOW, follower=core)

    def idle(self) -> None:
        """Stop serving: the metadata name no leader."""
        self._enter(RoleEvent.LEADERLESS)

    def delete(self) -> None:
        """Stop serving for good: this broker no longer hosts the partition."""
        self._enter(RoleEvent.DELETED)

    def fail(self, reason: str) -> None:
        """Go offline, because the log can no longer be used. The controller is told, and moves the leadership if this
        node has it."""
        if self.role is not Role.OFFLINE:
            mark("log-offline")
            self._shared.counters.offline_logs += 1
            log.error("a partition is offline", partition=str(self.topic_partition), reason=reason)
        self.reason = self.reason or reason
        self._enter(RoleEvent.DISK_FAILED)
        self._shared.on_change()  # schedule 56/failure-waits-for-the-next-heartbeat

    def _enter(
        self,
        event: RoleEvent,
        *,
        leader: LeaderCore | None = None,
        follower: FollowerCore | None = None,
        channel: int = 0,
    ) -> None:
        """Change the role, then end everything that relied on the old role."""
        self._high_watermark = self.high_watermark
        self.role = next_state(TRANSITIONS, self.role, event)
        serves = self.role is Role.LEADER or self.role is Role.FOLLOWER
        self.leader = leader if serves else None
        self.follower = follower if serves else None
        self.channel = channel if serves else 0
        ensure(
            (self.leader is not None, self.follower is not None)
            == (self.role is Role.LEADER, self.role is Role.FOLLOWER),
            "OneCoreARole",
            partition=self.topic_partition,
            role=self.role.value,
        )
        source, self.source = self.source, None
        if source is not None:
            source.end()
        subscriptions, self.subscriptions = self.subscriptions, {}
        code = ErrorCode.KAFKA_STORAGE_ERROR if self.role is Role.OFFLINE else ErrorCode.NOT_LEADER_OR_FOLLOWER
        for subscription in subscriptions.values():
            subscription.end(code)
        waiting, self.waiting = self.waiting, deque()
        if waiting:
            mark("leadership-lost-while-waiting")
        for append in waiting:
            # rule B9/lost-leadership-is-success, rule B9/lost-leadership-unsaid
            append.end(ErrorCode.NOT_LEADER_OR_FOLLOWER, _LEADERSHIP_LOST)
        deletions, self.deletions = self.deletions, []
        for deletion in deletions:
            deletion.end(code, "leadership was lost; the records may be there again")
        self.wake_all()

    # Refusals

    def refusal(self, current_leader_epoch: int = -1, *, any_replica: bool = False) -> tuple[ErrorCode, str]:
        """Return an error code and a message for a request that this broker cannot answer as leader, else NONE and "".
        With `any_replica` it may answer as follower, too.

        `current_leader_epoch`: the caller's leader epoch; -1 skips the check (KIP-320). If it is older than the
        partition's: FENCED_LEADER_EPOCH. If newer: UNKNOWN_LEADER_EPOCH, as the metadata have not reached this broker.
        """
        if self.role is Role.OFFLINE:
            return ErrorCode.KAFKA_STORAGE_ERROR, self.reason
        leader_epoch = self.state.leader_epoch
        if current_leader_epoch >= 0 and current_leader_epoch != leader_epoch:  # rule B1/callers-epoch-is-not-asked
            older = current_leader_epoch < leader_epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            return code, f"the leader epoch is {leader_epoch} here, not {current_leader_epoch}"
        if self.leader is None and not (any_replica and self.follower is not None):  # rule B14/followers-answer
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.topic_partition}"
        return ErrorCode.NONE, ""

    def follower_refusal(self, node_id: NodeId, leader_epoch: LeaderEpoch) -> ErrorCode:
        """Return an error code for a replica that cannot follow this one in `leader_epoch`, else NONE."""
        if self.role is Role.OFFLINE:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if leader_epoch < self.state.leader_epoch:  # rule B1/fetch-of-an-older-epoch
            mark("fenced-zombie")
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_epoch > self.state.leader_epoch:  # rule B1/fetch-of-a-newer-epoch
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self.leader is None or node_id not in self.leader.followers:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def leading(self) -> tuple[LeaderCore, PartitionLog]:
        """Return core and log of a partition for which `refusal` returned NONE."""
        return present(self.leader, "OneCoreARole"), present(self.log, "LogUnlessOffline")

    # Appending

    def append(
        self, batches: memoryview, acks: int, done: AppendDone, verification: Verification | None = None
    ) -> Append | None:
        """See `ReplicaManager.append`."""
        append, waits = Append(done), acks == ACKS_ALL
        core, plog = self.leader, self.log
        if core is None or plog is None:
            self._refuse(append, batches, *self.refusal())
            return None
        if waits and (error := core.admit_acks_all()) is not ErrorCode.NONE:  # rule B9/acks-1-is-refused-below-min-isr
            self._refuse(append, batches, error, _too_few(core))  # rule B9/written-though-refused
            return None
        shared, now_ms = self._shared, self._shared.clock.monotonic_ms()
        directory = shared.directories.of(plog.home)
        if shared.early_refusals:
            shared.early_refusals.recall(self.topic_partition, self.state.topic_id, plog, batches, now_ms)
        try:
            # schedule 57/full-leader-takes-the-last-byte
            wall_ms, room = shared.believed.latest_ms(), not directory.room.full
            result = plog.append_as_leader(
                batches, core.leader_epoch, wall_ms, has_room=room, verification=verification
            )
        except KafkaError as failure:
            self._refuse(append, batches, failure.code, failure.message or str(failure))
            if isinstance(failure, NoSpaceLeft):
                directory.room.ran_out()  # schedule 57/full-leader-says-nothing
            return None
        except StorageError as failure:
            self.fail(str(failure))
            append.end(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            return None
        if result.duplicate:
            mark("duplicate-batch")
            shared.counters.duplicates += 1
        else:
            shared.counters.messages_in_bytes += len(batches)
        return self._written(append, core, plog, result, now_ms, waits=waits)

    def append_marker(
        self, marker: Marker, transaction_version: int, done: AppendDone, *, leader_epoch: int
    ) -> Append | None:
        """See `ReplicaManager.append_marker`."""
        append = Append(done)
        error, message = self.refusal(leader_epoch)  # rule C28/markers-of-an-older-leadership-count
        if error is not ErrorCode.NONE:
            append.end(error, message)
            return None
        core, plog = self.leading()
        if (error := core.admit_acks_all()) is not ErrorCode.NONE:  # rule C12/a-marker-of-too-few
            append.end(error, _too_few(core))
            return None
        shared = self._shared
        room = shared.directories.of(plog.home).room
        try:
            if room.full:
                raise NoSpaceLeft(f"but log.dir.reserve.bytes in {plog.directory}; the marker may be sent again")
            wall_ms = shared.believed.latest_ms()
            result = plog.append_marker(marker, core.leader_epoch, wall_ms, transaction_version=transaction_version)
        except KafkaError as failure:
            append.end(failure.code, failure.message or str(failure))
            if isinstance(failure, NoSpaceLeft):
                room.ran_out()
            return None
        except StorageError as failure:
            self.fail(str(failure))
            append.end(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            return None
        # rule C12/a-marker-is-answered-at-its-append
        return self._written(append, core, plog, result, shared.clock.monotonic_ms(), waits=True)

    def _written(
        self,
        append: Append,
        core: LeaderCore,
        plog: PartitionLog,
        result: AppendResult,
        now_ms: float,
        *,
        waits: bool,
    ) -> Append | None:
        """Send an append that the log has to the followers, and answer it or let it wait; return it if it waits."""
        append.base_offset, append.required_offset, append.log_append_time_ms, append.log_start_offset, *_ = result
        if self.state.tier.segments:
            append.log_start_offset = self.log_start_offset
        shared = self._shared
        shared.counters.appends += 1
        syncer = shared.directories.of(plog.home).syncer
        if not result.duplicate:
            effects = core.appended(result.next_offset, now_ms)
            self._publish(result)
            if shared.config.sync_before_ack:
                syncer.mark(plog, len(result.data))
            self._carry_out(effects)
        # rule C1/duplicate-answered-uncommitted, rule B9/acks-all-answers-at-the-append, rule B9/acks-1-waits
        if waits and core.high_watermark < result.next_offset:
            append.wait_in(self.waiting)
            return append
        # An ack that waits for nobody names the leader alone, which has the batch but may not have synced it yet.
        synced = core.synced_replicas(result.next_offset) or (shared.node_id,)
        error = core.judge_committed() if waits else ErrorCode.NONE
        if not waits and syncer.is_behind:  # rule B51/acks-1-fills-the-page-cache
            syncer.when_caught_up(partial(append.end, error, "", synced))
        else:
            append.end(error, "", synced)
        return None

    def _refuse(self, append: Append, batches: memoryview, error: ErrorCode, message: str) -> None:
        """End an append that wrote nothing."""
        self.note_refusal(batches, error)
        append.end(error, message)

    def note_refusal(self, batches: memoryview, code: ErrorCode) -> None:
        """Note that a client's batches are refused before they are written. If the reason may pass, later batches of
        the same producer are refused for the same reason (schedule 52)."""
        now_ms, tp = self._shared.clock.monotonic_ms(), self.topic_partition
        if self.log is not None:
            note_refusal(self.log, batches, code, now_ms)
        else:
            self._shared.early_refusals.note(tp.topic, tp.partition, batches, code, now_ms)

    def _publish(self, result: AppendResult) -> None:
        """Send an append to the followers that are at the end of the log. All of them share one copy; the receive
        buffer is no longer used when this returns."""
        entry = b""
        for subscription in self.subscriptions.values():
            entry = subscription.link.offer(subscription, result, entry)

    def wait_of(self, append: Append) -> str:
        """Return what an append with acks=all waits or waited for, as text; "" for nothing."""
        what = "sync" if self._shared.config.sync_before_ack else "fetch"
        if self.leader is not None and (append.error is ErrorCode.REQUEST_TIMED_OUT or not append.ended):
            if self.leader.under_min_isr:
                return f"more replicas in sync: {len(self.leader.isr)} of {self.leader.min_isr}"
            nodes = self.leader.lacking(append.required_offset, self._shared.clock.monotonic_ms())
            return f"still for the {what} of {self._named(nodes)}" if nodes else ""
        if append.waited_for is None:
            return ""
        if append.waited_for == ISR_CHANGE:
            return "a change of the replicas in sync"
        return f"the {what} of {self._named((append.waited_for,))}"

    def _named(self, nodes: Iterable[NodeId]) -> str:
        me = self._shared.node_id
        return ", ".join(f"node {node}" + (" (itself, the leader)" if node == me else "") for node in nodes)

    # Leading: what happened to followers, metadata and time

    def subscribe(
        self, subscription: Subscription, fetch: frames.Fetch, broker_epoch: BrokerEpoch, now_ms: float
    ) -> None:
        """Add a follower's subscription after its fetch was found valid. Its older subscription has ended before."""
        self.subscriptions[subscription.link.node_id] = subscription
        effects = subscription.core.fetched(
            subscription.link.node_id,
            broker_epoch,
            fetch_offset=fetch.fetch_offset,
            durable_offset=fetch.durable_offset,
            log_start_offset=fetch.log_start_offset,
            now_ms=now_ms,
        )
        self._carry_out(effects, subscription.link.node_id)

    def acked(self, subscription: Subscription, fetch_offset: int, durable_offset: int, now_ms: float) -> None:
        """Take a follower's new fetch and durable offsets."""
        if self._shared.directories.trace is not None:
            self._shared.directories.trace.acked(self.topic_partition, subscription.link.node_id, durable_offset)
        effects = subscription.core.acked(subscription.follower, fetch_offset, durable_offset, now_ms)
        self._carry_out(effects, subscription.link.node_id)

    def follower_deleted(self, subscription: Subscription, log_start_offset: int, now_ms: float) -> None:
        """Take a follower's new durable log start."""
        self._carry_out(subscription.core.deleted(subscription.follower, log_start_offset, now_ms))

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove the subscription of a follower that fetches again, or no longer."""
        subscription.live = False
        del self.subscriptions[subscription.link.node_id]

    def follower_gone(self, subscription: Subscription, now_ms: float) -> None:
        """Take note that a follower's stream ended, or that it ended its subscription."""
        if self.leader is subscription.core:
            self._carry_out(subscription.core.disconnected(subscription.link.node_id, now_ms))

    def metadata_changed(self, state: PartitionState, brokers: Mapping[NodeId, BrokerState]) -> None:
        """Take changed metadata of this partition within the leader epoch; nothing restarts."""
        self.state = state
        if self.log is not None:
            self.log.config = state.log_config
        if self.leader is not None:
            for node in [node for node in self.subscriptions if node not in state.replicas]:
                self.subscriptions.pop(node).end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            now_ms = self._shared.clock.monotonic_ms()
            self._carry_out(self.leader.metadata_changed(state, brokers, now_ms))
        elif self.follower is not None:
            self.follower.metadata_changed(state)

    def brokers_changed(self, brokers: Mapping[NodeId, BrokerState], now_ms: float) -> None:
        """Take changed registrations, fencing or shutdowns of brokers."""
        if self.leader is not None:
            self._carry_out(self.leader.brokers_changed(brokers, now_ms))

    def sweep(self, now_ms: float) -> None:
        """Drop ended appends and deletions, and have the core look for followers that lag."""
        if self.leader is None:
            return
        if self.waiting:
            self.waiting = deque(append for append in self.waiting if not append.ended)
        self.deletions = [deletion for deletion in self.deletions if not deletion.ended]
        self._carry_out(self.leader.sweep(now_ms))

    def is_pending(self, proposal: IsrProposal) -> bool:
        """True if the leadership that made the proposal lasts, and still waits for the controller's answer to it."""
        return self.leader is not None and self.leader.pending is proposal

    def isr_answered(self, proposal: IsrProposal, outcome: AlterPartitionOutcome) -> None:
        """Take the controller's answer to a proposal."""
        if outcome.error is not ErrorCode.NONE:
            self._shared.counters.failed_isr_updates += 1
        if self.leader is not None:
            self._carry_out(self.leader.answered(proposal, outcome, self._shared.clock.monotonic_ms()))

    # Effects

    def _carry_out(self, effects: LeaderEffects, by: NodeId = ISR_CHANGE) -> None:
        """Carry out the effects of the leader's core, in order. `by`: node whose sync (or fetch) caused them."""
        for effect in effects:
            match effect:
                case Committed():
                    self._release(effect.up_to, by)
                case ProposeIsr():
                    self._shared.isr_changes.propose(self, effect)
                case IsrCommitted():
                    self._shared.counters.isr_committed(len(effect.before), len(effect.isr))
        if self.deletions:
            self._answer_deletions()

    def _release(self, high_watermark: int, by: NodeId) -> None:
        """Answer, in order, the appends that waited for the new high watermark, and wake its watchers. Followers get it
        with the next data, or alone after `watermark_delay_ms`."""
        leader, waiting, trace = self.leader, self.waiting, self._shared.directories.trace
        if trace is not None:
            trace.committed(self.topic_partition, high_watermark)
        while leader is not None and waiting and waiting[0].required_offset <= high_watermark:
            append = waiting.popleft()
            if not append.ended:
                append.waited_for = by  # rule A40/nobody-was-waited-for
                append.end(leader.judge_committed(), "", leader.synced_replicas(append.required_offset))
        if trace is not None:
            trace.answered(self.topic_partition)
        self.high_watermark_rose()
        if self.subscriptions:
            self._shared.watermarks.add(self.send_high_watermark)

    def send_high_watermark(self, *, log_start_raised: bool = False) -> None:
        """Send high watermark and log start to the followers that lack them; a lagging one gets them with its data."""
        core, plog = self.leader, self.log
        if core is None or plog is None:
            return
        piece = frames.pack_watermark(self.channel, core.high_watermark, plog.log_start_offset)
        for subscription in self.subscriptions.values():
            behind = log_start_raised or subscription.sent_high_watermark < core.high_watermark
            if behind and not subscription.lagging:
                subscription.sent_high_watermark = core.high_watermark
                subscription.link.push(piece)

    def synced(self) -> None:
        """Take note that more of the log is durable: as leader, tell the core; as follower, tell the leader."""
        plog = self.log
        if self.leader is not None and plog is not None:
            effects = self.leader.synced(plog.durable_offset, self._shared.clock.monotonic_ms())
            self._carry_out(effects, self._shared.node_id)
        elif self.source is not None:
            self.source.synced()

    # Deleting from the front

    def delete_records(self, offset: int, done: DeletionDone) -> PendingDeletion | None:
        """See `ReplicaManager.delete_records`."""
        deletion = PendingDeletion(offset, done)
        error, message = self.refusal()
        if error is not ErrorCode.NONE:
            deletion.end(error, message)
            return None
        core, _ = self.leading()
        if offset == TO_HIGH_WATERMARK:
            deletion.offset = core.high_watermark
        if not 0 <= deletion.offset <= core.high_watermark:  # rule B15/deletes-uncommitted-records
            message = f"offset {offset}: the high watermark is {core.high_watermark}"
            deletion.end(ErrorCode.OFFSET_OUT_OF_RANGE, message)
            return None
        self.deletions.append(deletion)
        self.raise_log_start(deletion.offset)
        self._answer_deletions()
        return None if deletion.ended else deletion

    def raise_log_start(self, offset: int) -> None:
        """Delete the records below `offset`, which are committed: here and, as leader, on the followers. If the disk
        fails, the partition goes offline."""
        plog = present(self.log, "LogUnlessOffline")
        try:
            plog.delete_records_before(offset)
        except StorageError as failure:  # schedule 18/failed-deletion-fells-the-node
            self.fail(str(failure))
            return
        self.send_high_watermark(log_start_raised=True)
        self._look_at_stable()  # rule C13/who-waits-for-what-is-deleted-waits-on
        if self._shared.config.sync_before_ack and plog.needs_sync:
            self._shared.directories.of(plog.home).syncer.mark(plog)  # a segment that was begun anew
        self._log_start_raised()

    def _log_start_raised(self) -> None:
        if self.log is not None and self.log.durable_log_start_offset < self.log.log_start_offset:
            self._shared.directories.of(self.log.home).checkpoints.log_start_raised(self.log_start_durable)

    def log_start_durable(self) -> None:
        """Take note that a raised log start is durable (or an older raise of it): answer deletions, or tell the
        leader."""
        if self.role is Role.DELETED:
            return
        if self.deletions:
            self._answer_deletions()
        if self.source is not None:
            self.source.deleted()
        self._log_start_raised()  # again, if it was raised once more in between

    def _answer_deletions(self) -> None:
        """Answer the deletions that no longer wait for followers."""
        core, plog = self.leader, self.log
        if core is None or plog is None:
            return
        # rule B15/leader-answers-before-its-log-start-is-durable
        low_watermark = core.deleted_everywhere(plog.durable_log_start_offset)
        # rule B22/deletions-in-the-tier-are-answered-at-once, schedule 90/deletions-outrun-additions
        if self.state.log_config.remote_storage:  # what is not in the tier may be on its way (schedule 90)
            low_watermark = min(low_watermark, self.state.tier.start_offset)
        for deletion in self.deletions:
            if deletion.offset <= low_watermark:
                core.deleted_before = max(core.deleted_before, deletion.offset)
                deletion.end(ErrorCode.NONE, "", low_watermark)
        self.deletions = [deletion for deletion in self.deletions if not deletion.ended]


def _too_few(core: LeaderCore) -> str:
    return f"{len(core.isr)} of {core.min_isr} replicas are in sync; nothing was written"
