"""Values that the replica manager takes (metadata) and returns (outcomes), and the roles of a broker for a partition,
with the legal transitions between them as one table.

They carry no behaviour beyond what their fields imply, import nothing of the network, and may be built by any layer
above (the node maps the controller's image and replies to them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from strandline.log.config import LogConfig
from strandline.log.free_space import RESERVE_BYTES
from strandline.log.transactions import AbortedTransaction
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import (
    BrokerEpoch,
    Endpoint,
    LeaderEpoch,
    NodeId,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
    TopicPartition,
)
from strandline.proto.marks import mark
from strandline.proto.settings import INT32_MAX, ConfigType, Scope, Settings, milliseconds, number, whole
from strandline.proto.tier import NO_TIER, Tier
from strandline.proto.transitions import Transitions

ACKS_ALL = -1
"""Kafka's acks=all: answer when every in-sync replica has the batch."""

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
"""Asks for the first offset on the leader's own disk (KIP-405)."""
LATEST_TIERED_TIMESTAMP = -5
"""Asks for the last offset in the object store (KIP-1005)."""
PENDING_UPLOAD_TIMESTAMP = -6
"""Asks for the first offset that has not been copied to the object store yet (KIP-1023)."""


@dataclass(frozen=True, slots=True)
class BrokerState:
    """State of a broker from the metadata, as far as replication needs it.

    Attributes:
        endpoint: its internal listener, where replication streams are opened.
        broker_epoch: names its process lifetime (its latest registration).
        fenced, in_controlled_shutdown, disk_full: each makes it ineligible to join an ISR.
    """

    node_id: NodeId
    endpoint: Endpoint
    broker_epoch: BrokerEpoch
    fenced: bool = False
    in_controlled_shutdown: bool = False
    disk_full: bool = False

    @property
    def eligible(self) -> bool:
        """True if the broker's registration does not keep it from joining an ISR."""
        # rule B5/joins-while-fenced, rule B5/joins-while-stopping, schedule 57/full-replica-joins-the-isr
        return not self.fenced and not self.in_controlled_shutdown and not self.disk_full


@dataclass(frozen=True, slots=True)
class PartitionState:
    """State of one partition in the committed metadata.

    Attributes:
        leader: leader's node id; NO_NODE while there is none.
        leader_epoch: bumped at each election; partition_epoch: bumped at each change of the partition (rule B1: the
            four epochs are never conflated).
        recovering: the leader was elected uncleanly, so followers may have to give up records they thought committed.
        min_insync_replicas: configured value; `effective_min_isr` is min(this, number of replicas).
        log_config: settings of the topic's log.
        unclean_leader_election: whether the topic allows unclean elections; like `recovering` it lets a follower
            truncate below its high watermark.
        leader_throttled, follower_throttled: this broker's replica is listed as throttled. As leader it sends to
            replicas outside of the ISR within the leader's rate; as follower outside of the ISR it fetches within the
            follower's rate (KIP-73).
        tier: segments of the partition in the object store.
        adding, removing: those of `replicas` that a reassignment adds, and those that it removes at its end.
    """

    topic: str
    topic_id: TopicId
    partition: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    leader: NodeId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    recovering: bool = False
    min_insync_replicas: int = 1
    log_config: LogConfig = field(default_factory=LogConfig)
    unclean_leader_election: bool = False
    leader_throttled: bool = False
    follower_throttled: bool = False
    tier: Tier = NO_TIER
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition by its topic's name."""
        return TopicPartition(self.topic, self.partition)

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition by its topic's id."""
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def effective_min_isr(self) -> int:
        """min(min.insync.replicas, replication factor): below it nothing becomes committed."""
        return min(self.min_insync_replicas, len(self.replicas))  # rule B4/min-insync-beyond-the-replicas


# Outcomes of the data path (NamedTuples: one is made for each request; of an append: `partition.Append`)


class ReadOutcome(NamedTuple):
    """Outcome of a read; high watermark, last stable offset and log end were taken once, before it (schedule 17).

    Attributes:
        high_watermark: value at the time of the read; with committed_only `data` has no record at or beyond it.
        last_stable_offset: limit of read_committed; every transaction below it is decided.
        data: whole record batches, the first of which holds the requested offset; empty at the end.
        next_offset: offset after the last batch in `data` (the requested offset if `data` is empty).
        aborted: with read_committed, the aborted transactions whose records in `data` the reader must leave out.
    """

    error: ErrorCode
    message: str = ""
    high_watermark: int = -1
    log_start_offset: int = -1
    last_stable_offset: int = -1
    data: bytes = b""
    next_offset: int = -1
    aborted: Sequence[AbortedTransaction] = ()


class ListedOffset(NamedTuple):
    """Result of a lookup of an offset by time or position; offset and timestamp are -1 if there is no such record."""

    error: ErrorCode
    message: str = ""
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1


class EpochEnd(NamedTuple):
    """Largest leader epoch not above the requested one, and its end offset, at which the next larger epoch begins. If
    all remaining records are of larger epochs: the requested epoch, with the partition's start as its end (rule B33).
    -1 and -1 if a negative epoch was requested."""

    error: ErrorCode
    message: str = ""
    leader_epoch: int = -1
    end_offset: int = -1


# Status


@dataclass(slots=True)
class ReplicaCounters:
    """Running totals of one broker's replicas since the start."""

    messages_in_bytes: int = 0
    appends: int = 0
    duplicates: int = 0
    replicated_in_bytes: int = 0
    reassigned_in_bytes: int = 0
    reassigned_out_bytes: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    failed_isr_updates: int = 0
    truncations_below_high_watermark: int = 0
    offline_logs: int = 0
    corrupt_batches: int = 0
    mended_holes: int = 0
    scrubbed_bytes: int = 0
    expired_records: int = 0
    expired_bytes: int = 0
    connections: int = 0

    def isr_committed(self, before: int, now: int) -> None:
        """Count an ISR of `now` members that replaced one of `before` members."""
        if now > before:
            mark("isr-expanded")
            self.isr_expands += 1
        else:
            mark("isr-shrunk")
            self.isr_shrinks += 1


class Role(Enum):
    """Role of this broker for a partition; `TRANSITIONS` has the legal ways from one to another."""

    IDLE = "idle"
    """This broker hosts the partition, but the metadata name no leader to follow (yet)."""
    FOLLOWER = "follower"
    """This broker fetches from the leader."""
    LEADER = "leader"
    """This broker takes appends, and serves followers and clients."""
    OFFLINE = "offline"
    """The log is damaged or its disk failed. Only a restart, or the deletion of the partition, ends this role."""
    DELETED = "deleted"
    """The topic was deleted, or this broker is no longer among the replicas."""


class FollowerStatus(NamedTuple):
    """State of a follower as its leader knows it; offsets are -1 until it has fetched in this leader epoch."""

    node_id: NodeId
    fetch_offset: int
    durable_offset: int
    in_isr: bool
    caught_up_age_ms: float


class ReplicaStatus(NamedTuple):
    """Status of one hosted partition, for metrics, heartbeats and describe.

    Attributes:
        last_epoch: leader epoch of the last record.
        isr: on the leader, the ISR that it knows to be committed; elsewhere, the ISR of the metadata.
        maximal_isr: on the leader, `isr` with every proposed member; elsewhere the same as `isr`.
        followers: filled on the leader only.
        last_stable_offset: every transaction below it is decided.
        log_start_offset: first offset of the partition, object store included; local_log_start_offset: first offset on
            this broker's disk.
        tiered: True if closed segments are copied to the object store (`remote.storage.enable`).
        tiered_bytes: size of the partition's segments in the object store.
        rotten: True while a part of the log is not what was written (rot) and has not been mended.
        directory: log directory that holds the log; empty if there is no log.
        reason: reason for being offline, else empty.
    """

    topic: str
    topic_id: TopicId
    partition: int
    role: Role
    leader: NodeId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    high_watermark: int
    log_start_offset: int
    local_log_start_offset: int
    log_end_offset: int
    durable_offset: int
    last_epoch: int
    size_bytes: int
    tiered: bool
    tiered_bytes: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    maximal_isr: tuple[NodeId, ...]
    effective_min_isr: int
    followers: tuple[FollowerStatus, ...] = ()
    rotten: bool = False
    directory: str = ""
    reason: str = ""
    last_stable_offset: int = -1


# Settings


class ReplicaConfig(Settings, scope=Scope.NODE):
    """Settings of replication on one broker.

    Attributes:
        flush_policy: "ack" (default): an offset counts towards the high watermark once it is synced; "replicate": as in
            Kafka, once it is in memory, on min.insync.replicas brokers at least.
        fetch_window_bytes: bytes that a leader may send ahead of what this follower has appended.
        fetch_chunk_bytes: maximum bytes sent to a lagging partition in one turn.
        high_watermark_checkpoint_interval_ms: interval at which high watermarks are written to disk.
        reconnect_backoff_ms, reconnect_backoff_max_ms: first and longest pause before a broken stream is opened again
            or a refused subscription is repeated; half of it is jitter.
        watermark_delay_ms: longest wait of a new high watermark for data to travel with; then it is sent alone.
        stream_timeout_ms: a stream on which nothing arrived for this long is closed; each side sends a byte after a
            third of it without other traffic.
        connect_timeout_ms: time limit for opening a stream, and for the first frame on it.
        scrub_interval_ms: interval at which all logs are read to find rot; 0: never.
        scrub_bytes_per_second: maximum bytes that the scrub reads in a second.
        cleaner_backoff_ms, cleaner_dedupe_buffer_bytes, cleaner_io_max_bytes_per_second: Kafka's
            log.cleaner.backoff.ms, log.cleaner.dedupe.buffer.size and log.cleaner.io.max.bytes.per.second.
        disk_reserve_bytes: log.dir.reserve.bytes. This one and those of scrub and cleaner may change while the node
            runs: from the first `ReplicaManager.reconfigure` on, the values of the metadata hold.
    """

    replica_lag_time_max_ms = milliseconds(
        "replica.lag.time.max.ms",
        30_000,
        "A follower that has not been caught up for this long leaves the ISR. (A fenced broker leaves at once.)",
        type=ConfigType.LONG,
    )
    retention_check_interval_ms = milliseconds(
        "log.retention.check.interval.ms",
        300_000,
        "Interval between checks for segments that retention.ms and retention.bytes allow to delete.",
        type=ConfigType.LONG,
    )
    alter_log_dirs_io_max_bytes_per_second = number(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "1.7976931348623157E308",
        "Bytes a second that moves of replicas between log directories of this broker may copy, all moves together.",
        above=0,
        unit="bytes/s",
    )
    stray_delete_delay_ms = whole(
        "log.stray.delete.delay.ms",
        3_600_000,
        "Directories of partitions whose topic was deleted, or whose replica moved, while this broker was down are "
        "renamed (-stray) at its start, and removed after this time. -1: never, as in Kafka. If the cluster knows no "
        "topic at all they are renamed to -kept-stray and never removed.",
        low=-1,
        high=INT32_MAX,
        unit="ms",
    )
    flush_policy = "ack"
    fetch_window_bytes = 8 * 1024 * 1024
    fetch_chunk_bytes = 1024 * 1024
    high_watermark_checkpoint_interval_ms = 5_000
    reconnect_backoff_ms = 20
    reconnect_backoff_max_ms = 500
    watermark_delay_ms = 50
    stream_timeout_ms = 10_000
    connect_timeout_ms = 5_000
    cleaner_backoff_ms = 15_000
    cleaner_dedupe_buffer_bytes = 128 * 1024 * 1024
    cleaner_io_max_bytes_per_second = float("inf")
    disk_reserve_bytes = RESERVE_BYTES
    scrub_interval_ms = 604_800_000
    scrub_bytes_per_second = 10 << 20

    @property
    def sync_before_ack(self) -> bool:
        """True if the durable offset counts (flush.policy = ack)."""
        return self.flush_policy == "ack"


class RoleEvent(Enum):
    """Event of a partition that decides about its role."""

    ELECTED = "the metadata name this broker as leader, in a new leader epoch"
    FOLLOW = "the metadata name another broker as leader, in a new leader epoch"
    LEADERLESS = "the metadata name no leader"
    DISK_FAILED = "the log is damaged, or the disk failed under it"
    DELETED = "the topic is deleted, or this broker is no longer among the replicas"


TRANSITIONS: Transitions[Role, RoleEvent] = {
    (Role.IDLE, RoleEvent.ELECTED): Role.LEADER,
    (Role.IDLE, RoleEvent.FOLLOW): Role.FOLLOWER,
    (Role.IDLE, RoleEvent.LEADERLESS): Role.IDLE,
    (Role.IDLE, RoleEvent.DISK_FAILED): Role.OFFLINE,
    (Role.IDLE, RoleEvent.DELETED): Role.DELETED,
    (Role.FOLLOWER, RoleEvent.ELECTED): Role.LEADER,
    (Role.FOLLOWER, RoleEvent.FOLLOW): Role.FOLLOWER,
    (Role.FOLLOWER, RoleEvent.LEADERLESS): Role.IDLE,
    (Role.FOLLOWER, RoleEvent.DISK_FAILED): Role.OFFLINE,
    (Role.FOLLOWER, RoleEvent.DELETED): Role.DELETED,
    (Role.LEADER, RoleEvent.ELECTED): Role.LEADER,
    (Role.LEADER, RoleEvent.FOLLOW): Role.FOLLOWER,
    (Role.LEADER, RoleEvent.LEADERLESS): Role.IDLE,
    (Role.LEADER, RoleEvent.DISK_FAILED): Role.OFFLINE,
    (Role.LEADER, RoleEvent.DELETED): Role.DELETED,
    (Role.OFFLINE, RoleEvent.ELECTED): Role.OFFLINE,
    (Role.OFFLINE, RoleEvent.FOLLOW): Role.OFFLINE,
    (Role.OFFLINE, RoleEvent.LEADERLESS): Role.OFFLINE,
    (Role.OFFLINE, RoleEvent.DISK_FAILED): Role.OFFLINE,
    (Role.OFFLINE, RoleEvent.DELETED): Role.DELETED,
}
