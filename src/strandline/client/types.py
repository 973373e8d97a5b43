"""The plain values that the client takes and gives. All are immutable, pickle, and compare by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.words import without_effect

Header = tuple[str, bytes | None]
"""One record header: name and value; a name may repeat and the order is kept."""


class Ack(NamedTuple):
    """The broker's word that it has a record.

    `offset` is -1 under acks=0, where nobody answers, and where the broker only said that it already had the record
    (DUPLICATE_SEQUENCE_NUMBER). `timestamp_ms` is the one the log keeps: the broker's own where the topic says
    ``message.timestamp.type=LogAppendTime``. `replicas` names the nodes that had synced the record when the ack was
    given: the leader alone under acks=1, nobody under acks=0, None where the broker does not say (Apache Kafka).
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    replicas: tuple[int, ...] | None


class ConsumerRecord(NamedTuple):
    """A record as read. (topic, partition, offset) is its identity.

    `timestamp_type` is 0 for the producer's time, 1 for the broker's append time; `leader_epoch` is the epoch of the
    leader that appended it, -1 where unknown. `key` and `value` are bytes or None, or what the consumer's deserializers
    made of them.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: Any
    value: Any
    headers: tuple[Header, ...]
    leader_epoch: int


class OffsetAndTimestamp(NamedTuple):
    """Answer of a look-up by time: the first record at or after it. `leader_epoch` is -1 where unknown."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class OffsetAndMetadata(NamedTuple):
    """A committed offset: that of the next record to read, never of the last one read.

    `metadata` is the committer's own note; `leader_epoch` that of the last record before it, -1 where unknown.
    `topic_id` is that of the topic whose records it counts; None where unknown: a commit then means the topic that the
    consumer reads, or that has the name.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A broker as it advertises itself to clients."""

    node_id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False

    def __str__(self) -> str:
        return f"{self.node_id} ({self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition's place in the cluster. `leader` is None while there is none (an election is due or impossible).

    `eligible_leader_replicas` and `last_known_elr` (KIP-966) are None where the broker does not tell them.
    """

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and where its partitions live. `topic_id` is None from brokers older than Kafka 2.8."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 leaves the choice to the broker's `num.partitions` and `default.replication.factor`.

    `replica_assignment` (partition -> broker ids, first is the preferred leader) excludes the two counts.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    replica_assignment: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic as the broker created it, or would create it under `validate_only`. -1 and None where the broker does not
    say."""

    name: str
    topic_id: UUID | None
    partitions: int
    replication_factor: int
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers that take clients. `controller_id` is None where none is known."""

    cluster_id: str | None
    controller_id: int | None
    nodes: tuple[NodeInfo, ...]


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A member of the metadata quorum. Times are -1 where unknown; they are the leader's wall clock."""

    node_id: int
    directory_id: UUID | None
    log_end_offset: int
    last_fetch_timestamp_ms: int
    last_caught_up_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The metadata quorum as its leader sees it."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


@dataclass(frozen=True, slots=True)
class FeaturesDescription:
    """The levels of features, as one broker tells them (KIP-584).

    Attributes:
        supported: by feature the first and the last level that the broker's build knows.
        finalized: by feature the level that the cluster has settled on; features at level 0 are not in it.
        epoch: rises with every change of the metadata; None where the broker does not know the levels yet.
    """

    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    epoch: int | None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic or broker: `value` is None where it is secret or unset, `source` says in Kafka's words
    where it comes from."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Nobody has set it."""
        return self.source == "DEFAULT_CONFIG"

    def without_effect(self, value: str | None) -> str:
        """Reason why this value would have no effect, from the broker's documentation; "" if it has one, or if no
        documentation was requested (`describe_configs(..., documentation=True)`)."""
        return without_effect(self.documentation, value)


class ConfigResource(NamedTuple):
    """Owner of settings. `kind` is "topic", "broker", "broker-logger" (log levels of a broker), "client-metrics" (a
    subscription to client metrics) or "group". An empty name of a broker means all brokers."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One step of an incremental alteration (KIP-339): `operation` is "set", "delete", "append" or "subtract"."""

    name: str
    value: str | None = None
    operation: str = "set"


class Election(NamedTuple):
    """Outcome of one partition in `Admin.elect_leaders`. `message` tells what was done, or would be, and which records
    it cost."""

    topic: str
    partition: int
    error: ErrorCode
    message: str

    @property
    def held(self) -> bool:
        """A leader was elected, or would be."""
        return self.error is ErrorCode.NONE


class MoveOutcome(NamedTuple):
    """Outcome of one partition in `Admin.alter_partition_reassignments`. `error` NONE: the move is in progress,
    finished or cancelled."""

    topic: str
    partition: int
    error: ErrorCode
    message: str


class PartitionMove(NamedTuple):
    """A partition that is moving (KIP-455).

    Attributes:
        replicas: all that it has now, those of the target first.
        adding: those of them that come.
        removing: those that go once all others are in sync.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas once the move is over."""
        return tuple(node for node in self.replicas if node not in self.removing)


class ListedOffset(NamedTuple):
    """Answer to one `Admin.list_offsets` question. Offset -1: no record that new. `leader_epoch` -1: unknown."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class ReplicaDescription(NamedTuple):
    """One replica on a broker's disk: bytes of its log, and how many offsets it lacks against its leader's."""

    size_bytes: int
    lag_records: int


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A directory where a broker keeps logs. `total_bytes` and `usable_bytes` of its disk: None where the broker
    does not say. `error`: KAFKA_STORAGE_ERROR of one that is offline; the others go on. `moving`: copies of replicas
    that are on their way here from another directory of the broker (KIP-113), and how far each is behind."""

    path: str
    total_bytes: int | None
    usable_bytes: int | None
    replicas: Mapping[TopicPartition, ReplicaDescription]
    error: KafkaError | None = None
    moving: Mapping[TopicPartition, ReplicaDescription] = field(default_factory=dict)


class ProducerDescription(NamedTuple):
    """An idempotent producer as a partition's leader remembers it. Sequence of its last batch; time (ms) of that, or of
    the marker that ended its last transaction.

    `transaction_start_offset` is None without an open transaction; `coordinator_epoch` is of the marker that ended its
    last transaction, None before the first.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start_offset: int | None
    coordinator_epoch: int | None = None


class TransactionListing(NamedTuple):
    """A transactional id as the broker `coordinator` lists it; `state` as Kafka names it: Ongoing, CompleteCommit."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


class FencedProducer(NamedTuple):
    """State of a transactional id after its producer was fenced. No producer writes with this id and epoch."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id at its coordinator.

    Attributes:
        started_ms: when its last transaction began, be it open or not; None: there was none.
        partitions: those of its open transaction, or of the one that is being ended.
    """

    transactional_id: str
    coordinator: NodeInfo
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


class GroupListing(NamedTuple):
    """A group as ListGroups tells it. `state` and `type` are empty where the broker does not say."""

    group_id: str
    state: str
    type: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, with its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group. `state`: Empty, PreparingRebalance, CompletingRebalance, Stable, or (KIP-848) Assigning, Reconciling.

    `type` is "classic" or "consumer" (KIP-848), `assignor` what its members agreed on, empty without members.
    """

    group_id: str
    state: str
    type: str
    assignor: str
    coordinator: NodeInfo
    members: tuple[GroupMember, ...]


class GroupMetadata(NamedTuple):
    """Membership of a consumer, under which a transaction commits its offsets (KIP-447): other members, or older
    generations, are refused. The default is no member, of a group that has none."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


EARLIEST = -2
"""`list_offsets`: the first offset the log still has."""
LATEST = -1
"""`list_offsets`: the offset the next record will get, as consumers may see it (the high watermark)."""
MAX_TIMESTAMP = -3
"""`list_offsets`: the record with the greatest timestamp (KIP-734)."""
EARLIEST_LOCAL = -4
"""`list_offsets`: the first offset on the leader's own disk; older ones are in the object store (KIP-405)."""
LATEST_TIERED = -5
"""`list_offsets`: the last offset in the object store; -1: nothing is there (KIP-1005)."""


SCRAM_ITERATIONS = 8192
"""Twice Kafka's least: a few milliseconds for each login of a client."""


class ScramDescription(NamedTuple):
    """A user's credential, as brokers describe it: the mechanism by name, and its iterations."""

    mechanism: str
    iterations: int


@dataclass(frozen=True, slots=True)
class ScramChange:
    """A user's new password under one mechanism (SCRAM-SHA-256, SCRAM-SHA-512); None: the credential is removed."""

    mechanism: str
    password: str | None = field(repr=False)
    iterations: int = SCRAM_ITERATIONS


class EpochEnd(NamedTuple):
    """End offset of the largest leader epoch that is not above the one asked for; -1, -1 if there is none."""

    leader_epoch: int
    end_offset: int

    def is_before(self, position: int) -> bool:
        """Whether the leader's log parts from what a reader at `position` has read (KIP-320). One that knows no end of
        that epoch tells nothing."""
        return self.leader_epoch >= 0 and 0 <= self.end_offset < position
