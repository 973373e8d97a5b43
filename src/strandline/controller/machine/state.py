"""The state of the active controller: the working image, and soft state that dies with its leadership."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Generic, TypeVar

from strandline.controller.machine.partition_change import Assignment, Election, LogPosition, PartitionChange
from strandline.controller.machine.placement import ReplicaCounts
from strandline.controller.machine.replica_reports import OffsetTracker, ReportedReplicas
from strandline.controller.machine.sessions import BrokerSessions, SessionTimes
from strandline.controller.machine.unproven import UnprovenEnds
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.features import OWN_LEVELS
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.controller.metadata.records import (
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from strandline.proto.ensure import ensure
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_NODE, NodeId, TopicIdPartition
from strandline.proto.ports import Rng
from strandline.proto.settings import Part, Scope, Settings

PRODUCER_ID_BLOCK = 1000
"""Producer ids given out at once (Kafka's number): one record in the log for a thousand producers."""

PRODUCER_IDS_OF_AN_EPOCH = 1 << 32
PRODUCER_IDS_OF_A_CLUSTER = 1 << 52
"""A million epochs. Ids are below 2^53: programs that read numbers as doubles have them whole."""

MAX_PARTITIONS_PER_REQUEST = 10_000
"""Kafka's MAX_RECORDS_PER_USER_OP: what one request may create is appended as one atomic batch."""

T = TypeVar("T")


def first_producer_id(cluster_id: str) -> int:
    """First producer id of a cluster: each cluster has a range of its own, as far as chance has it (rule B27: a
    restored topic never meets its producers' ids anew)."""
    return int.from_bytes(sha256(cluster_id.encode()).digest()[:8], "big") % PRODUCER_IDS_OF_A_CLUSTER


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """Records to append, all or none, and the reply to give once they are committed.

    A reply without records was read from the working image, which may run ahead of what is committed: it too waits
    until everything appended before it is committed.
    """

    reply: T
    records: list[MetadataRecord] = field(default_factory=list)


class MachineSettings(Settings, scope=Scope.NODE):
    """Settings of the machine.

    Attributes:
        max_elections_per_balance: preferred elections in one pass of the periodic check; it must not stall the loop.
        max_changes_per_step: partitions that a command judges in one turn of the loop (rule A39).
        tiered_storage: this node knows of an object store: topics may be tiered.
        supported: the levels of features that this node's build knows.
    """

    times = Part(SessionTimes)
    max_elections_per_balance = 1000
    max_changes_per_step = 500
    tiered_storage = False
    supported = OWN_LEVELS


class Progress:
    """How far a command has come that may change more partitions than one turn of the loop, or one batch of the log,
    has room for (rule A39). It judges so many a step, and is run again, on the state of that time, until it is through.

    Attributes:
        steps: taken before this one.
        finished: this step is the last: nothing is left.
    """

    def __init__(self) -> None:
        """Without `begin_step` there is one step, with room for everything."""
        self.steps = 0
        self.finished = True
        self._left: float = math.inf
        self._kept: dict[str, Any] = {}
        self._named: set[str] = set()

    def begin_step(self, judged_max: int) -> None:
        """Begin a run of the command."""
        self.finished, self._left, self._named = True, judged_max, set()

    def end_step(self) -> None:
        """End the run; the next one goes on where it stopped."""
        self.steps += 1

    def once(self, name: str, find: Callable[[], T]) -> T:
        """The result of `find`, called in the first step only; later steps get the same result."""
        if self._left == math.inf:
            return find()
        if name not in self._kept:
            self._kept[name] = find()
        found: T = self._kept[name]
        return found

    def take(self, name: str, find: Iterable[T]) -> Iterator[T]:
        """The rest of the work that the first step found, as much as this step may do."""
        ensure(name not in self._named, "OneWorkAName", name=name)
        if self._left != math.inf:
            self._named.add(name)
        queue: deque[T] = self.once(name, lambda: deque(find))
        while queue:
            if self._left <= 0:  # rule A39/a-broker-leaves-in-one-step
                self.finished = False
                return
            self._left -= 1
            yield queue.popleft()


class MachineState:
    """The working image (committed, and what this controller has appended since) with sessions and tracked offsets.

    The image changes by `adopt` alone, by the very records that go into the log, which `replay` has tried before. When
    this node stops leading the whole state is dropped; the next leadership begins on the committed image (rule A13).
    """

    def __init__(
        self,
        image: MetadataImage,
        resolver: ConfigResolver,
        rng: Rng,
        settings: MachineSettings,
        now_ms: float,
        *,
        epoch: int = 0,
        led_before: NodeId | None = None,
    ) -> None:
        """`epoch`: of the quorum, in which this node leads; `led_before`: the node that led it until now, if it was
        another."""
        self.image = image
        self.resolver = resolver
        self.rng = rng
        self.epoch = epoch
        self.settings = settings
        self.sessions = BrokerSessions(settings.times)
        self.offsets = OffsetTracker()
        self.unserved = ReportedReplicas()
        """Replicas that each broker cannot serve: a log that failed, or that recovery refused."""
        self.rotten = ReportedReplicas()
        """Replicas with batches that are not what was written, on a disk that is well otherwise."""
        self.without_room = ReportedReplicas()
        """Replicas in a full directory of a broker that has room in another."""
        self.counts = ReplicaCounts()
        """Numbers of replicas on each broker, for the placement of new ones."""
        self.leaving: dict[NodeId, None] = {}
        """Brokers that are being taken out of the ISRs, step by step: they lead nothing new, and join none."""
        self.progress = Progress()
        """Progress of the command that runs."""
        self.unproven = UnprovenEnds(image)
        """Logs of which nothing proves that they reach to where they did."""
        for node_id, broker in image.brokers.items():
            suspected = node_id == led_before  # schedule 60/deposed-controller-is-trusted
            self.sessions.grant(node_id, fenced=broker.fenced, now_ms=now_ms, probe=True, suspected=suspected)

    def begin_step(self, progress: Progress) -> None:
        """Begin a step of a command that has come so far."""
        self.progress = progress
        progress.begin_step(self.settings.max_changes_per_step)

    def replay(self, records: Sequence[MetadataRecord]) -> MetadataDelta:
        """Change that these records would make; the image stays as it is. Raises FatalError if they cannot be
        replayed."""
        delta = MetadataDelta(self.image, self.settings.supported)
        delta.apply_all(records)
        delta.check_whole()
        return delta

    def adopt(self, delta: MetadataDelta, last_offset: int) -> None:
        """Apply records that were replayed on the working image; the last of them stands at `last_offset`."""
        before = self.image
        self.image = delta.image(last_offset, before.epoch, before.timestamp_ms)
        self.unproven.adopted(delta, self.image)
        for topic_id, numbers in delta.partitions.items():
            old, new = before.topic_by_id.get(topic_id), self.image.topic_by_id[topic_id]
            for number in numbers:
                was = None if old is None else old.partitions.get(number)
                if was is not None and was.replicas != new.partitions[number].replicas:
                    self._forget_replicas(TopicIdPartition(topic_id, number), was, new.partitions[number])
        for topic_id in delta.deleted_topics:
            self.offsets.forget_topic(topic_id)

    def _forget_replicas(self, key: TopicIdPartition, was: PartitionRecord, now: PartitionRecord) -> None:
        """Forget the reports about a removed replica: they say nothing about one that replaces it (rule B46)."""
        for node_id in was.replicas:
            if node_id not in now.replicas:  # rule B46/reports-outlive-the-replica
                self.offsets.forget_replica(key, node_id)
                self.unproven.forget_replica(key, node_id)

    def broker_of_epoch(self, node_id: NodeId, broker_epoch: int) -> RegisterBrokerRecord:
        """The registered broker. Raises KafkaError STALE_BROKER_EPOCH when it is not the one of that epoch."""
        broker = self.image.brokers.get(node_id)
        if broker is None:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {node_id} is not registered.")
        if broker.broker_epoch != broker_epoch:  # rule B12/heartbeat-of-another-life-is-taken
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Broker {node_id} is registered with epoch {broker.broker_epoch}, not {broker_epoch}.",
            )
        return broker

    def change(
        self,
        topic: TopicInfo,
        partition: PartitionRecord,
        reason: str,
        *,
        acceptable: Callable[[NodeId], bool] | None = None,
        target_isr: tuple[NodeId, ...] | None = None,
        assignment: Assignment | None = None,
        recovering: bool | None = None,
        doubtful: NodeId = NO_NODE,
        lost: NodeId = NO_NODE,
        election: Election | None = None,
        resolver_image: MetadataImage | None = None,
        has_room: Callable[[NodeId], bool] | None = None,
        patient: bool = True,
    ) -> PartitionChange:
        """A partition's change under this topic's configs and this moment's live brokers that can serve it, with room
        on their disks or without. `patient`: it may wait for more reports (rule B30)."""
        image = self.image if resolver_image is None else resolver_image
        room = self.image.has_room if has_room is None else has_room
        lives = self.lives if acceptable is None else acceptable
        if election is None:
            unclean = self.resolver.unclean_election_enabled(image, topic.name)
            election = Election.UNCLEAN if unclean else Election.ONLINE
        key = TopicIdPartition(topic.topic_id, partition.partition)
        # schedule 56/unserved-replica-is-elected, schedule 80/rotten-leader-leads-on
        return PartitionChange(
            partition,
            acceptable=lambda node: lives(node) and self.can_serve(node, topic, partition),
            min_isr=self.resolver.configured_min_insync_replicas(image, topic.name),
            election=election,
            target_isr=target_isr,
            assignment=assignment,
            recovering=recovering,
            doubtful=doubtful,
            lost=lost,
            synced=self.acks_are_synced(partition),
            is_fit=lambda node: room(node) and self.is_fit(node, topic, partition),
            position=lambda node: self.position(node, topic, partition),
            rank=lambda nodes: self.offsets.rank(topic.topic_id, partition.partition, nodes),
            proven=lambda node: self.unproven.is_proven(node, key),
            patient=patient,
            on_wait=lambda waits: self.unproven.wait(key, waits=waits),
            reason=reason,
        )

    def can_serve(self, node_id: NodeId, topic: TopicInfo, partition: PartitionRecord) -> bool:
        """True if the broker has not reported that it cannot serve its replica."""
        return not self.unserved.has(node_id, topic.topic_id, partition.partition)

    def is_whole(self, node_id: NodeId, topic: TopicInfo, partition: PartitionRecord) -> bool:
        """True if the broker has not reported rot in its replica."""
        return not self.rotten.has(node_id, topic.topic_id, partition.partition)

    def is_fit(self, node_id: NodeId, topic: TopicInfo, partition: PartitionRecord) -> bool:
        """True if the broker has reported neither rot in its replica, nor that this one has no room though others
        have."""
        cramped = self.without_room.has(node_id, topic.topic_id, partition.partition)
        return not cramped and self.is_whole(node_id, topic, partition)  # schedule 57/a-full-directory-leads

    def acks_are_synced(self, partition: PartitionRecord) -> bool:
        """True if every acknowledged record was synced by every member of the ISR (flush.policy=ack), under any
        leader."""
        brokers = (self.image.brokers.get(node) for node in partition.replicas)
        # rule B11/one-broker-that-acks-unsynced-is-overlooked
        return not any(broker is not None and broker.acks_unsynced for broker in brokers)

    def position(self, node_id: NodeId, topic: TopicInfo, partition: PartitionRecord) -> LogPosition | None:
        """End of a replica's log while its partition has no leader, as the registered process reported it. None without
        a report in this leader epoch: an older one need not hold any more."""
        report = self.offsets.of(topic.topic_id, partition.partition, node_id)
        broker = self.image.brokers.get(node_id)
        if report is None or broker is None or partition.has_leader:
            return None
        # schedule 45/report-of-an-older-leader-epoch-elects, schedule 45/report-of-an-earlier-process-elects
        if report.broker_epoch != broker.broker_epoch or report.leader_epoch != partition.leader_epoch:
            return None
        return LogPosition(report.last_epoch, report.log_end_offset)

    def changes(
        self,
        partitions: Iterable[tuple[TopicInfo, PartitionRecord]],
        reason: str,
        *,
        remove: NodeId = NO_NODE,
        add: NodeId = NO_NODE,
        doubtful: NodeId = NO_NODE,
        lost: NodeId = NO_NODE,
        has_room: Callable[[NodeId], bool] | None = None,
        work: str = "",
    ) -> list[MetadataRecord]:
        """The records of this step that take a broker out of ISRs (`remove`; out of ELRs too, if its log is in doubt;
        of everything that counts, if it is lost) or let it lead.

        What the first step was given is gone through, by later steps too (rule A39), and nothing else; `work` names it,
        where the `reason` does not.

        `add` may lead although the image still has it fenced, for the record that unfences it stands in the same batch;
        likewise the others may not, although the image has them active, and `has_room` knows better than the image.
        """
        leaving = (remove, doubtful, lost)

        def acceptable(node_id: NodeId) -> bool:
            if node_id in leaving:
                return False
            return node_id == add or self.lives(node_id)

        def judged(topic: TopicInfo, partition: PartitionRecord) -> MetadataRecord | None:
            # schedule 45/broker-in-doubt-stays-in-the-isr
            return self.change(
                topic,
                partition,
                reason,
                acceptable=acceptable,
                target_isr=tuple(node for node in partition.isr if node not in leaving),
                doubtful=doubtful,
                lost=lost,
                has_room=has_room,
            ).build()

        keys = (TopicIdPartition(topic.topic_id, one.partition) for topic, one in partitions)
        found = (self.partition_of(key) for key in self.progress.take(work or reason, keys))  # as they are by now
        return [record for item in found if item is not None and (record := judged(*item)) is not None]

    def out_of_isrs(self, node_id: NodeId, reason: str) -> list[MetadataRecord]:
        """The records of this step that take a broker out of every ISR, first where it leads. Until the last one it is
        kept from new ones."""
        led_first = sorted(self.partitions_in_isr(node_id), key=lambda item: item[1].leader != node_id)
        records = self.changes(led_first, reason, remove=node_id)  # rule A39/leaderships-wait-for-the-rest
        if not self.progress.finished:
            self.leaving[node_id] = None  # rule A39/who-leaves-comes-back-between-two-steps
            return records
        if self.progress.steps:
            out = {
                (record.topic_id, record.partition) for record in records if isinstance(record, PartitionChangeRecord)
            }
            new = [item for item in self.partitions_in_isr(node_id) if (item[0].topic_id, item[1].partition) not in out]
            # rule A39/new-partitions-keep-who-leaves
            records += self.changes(new, reason, remove=node_id, work=f"joined by step {self.progress.steps}")
        self.leaving.pop(node_id, None)
        return records

    def lives(self, node_id: NodeId) -> bool:
        """True if the broker is active, and not about to be taken out."""
        return node_id not in self.leaving and self.image.is_active(node_id)

    def partitions_in_isr(self, node_id: NodeId) -> Iterable[tuple[TopicInfo, PartitionRecord]]:
        """Partitions that have the broker in their ISR."""
        return (item for item in self.image.partitions() if node_id in item[1].isr)

    def partitions_that_count_on(self, node_id: NodeId) -> Iterable[tuple[TopicInfo, PartitionRecord]]:
        """Partitions that have the broker in their ISR, among their eligible leader replicas, or in doubt."""
        return (
            item
            for item in self.image.partitions()
            if node_id in (*item[1].isr, *item[1].eligible_leader_replicas, *item[1].last_known_elr)
        )

    def partition_of(self, key: TopicIdPartition) -> tuple[TopicInfo, PartitionRecord] | None:
        """The partition, or None."""
        topic = self.image.topic_by_id.get(key.topic_id)
        partition = None if topic is None else topic.partitions.get(key.partition)
        return None if topic is None or partition is None else (topic, partition)

    def known_partition(self, key: TopicIdPartition) -> tuple[TopicInfo, PartitionRecord]:
        """The partition. Raises KafkaError UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self.image.topic_by_id.get(key.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic with id {key.topic_id}.")
        partition = topic.partitions.get(key.partition)
        if partition is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic.name!r} has no partition {key.partition}."
            )
        return topic, partition

    def partitions_without_leader(self) -> Iterable[tuple[TopicInfo, PartitionRecord]]:
        """Partitions without a leader."""
        return (item for item in self.image.partitions() if not item[1].has_leader)

    def leads_any(self, node_id: NodeId) -> bool:
        """True if the broker leads at least one partition."""
        return any(partition.leader == node_id for _, partition in self.image.partitions())
