"""What the tests of the controller share: the pure machine with brokers in it, driven by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

import pytest

from strandline.controller import api, broker_api, moves_api
from strandline.controller.broker_api import ReplicaOffsets, TopicFindings
from strandline.controller.machine import brokers, configs, elections, isr, moves, topics
from strandline.controller.machine.state import MachineSettings, MachineState, Result
from strandline.controller.machine.unproven import WAIT_MS
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import CLUSTER_DEFAULT, MetadataImage, ResourceType
from strandline.controller.metadata.records import MetadataRecord, MetadataVersionRecord, PartitionRecord
from strandline.controller.metadata.table import decode_record, encode_record
from strandline.log.findings import LogCondition
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import Endpoint
from strandline.proto.isr import AlterPartitionItem, AlterPartitionOutcome, IsrMember

T = TypeVar("T")


class MachineCluster:
    """A machine, a log of what it decided (each record through its bytes), and brokers that do as they are told."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        racks: dict[int, str] | None = None,
        static: dict[str, str] | None = None,
        flush_policy: str = "",
        tiered_storage: bool = False,
        level: int = 1,
    ) -> None:
        self.losses: list[elections.Loss] = []
        self.now_ms = 0.0
        self.flush_policy = flush_policy
        self.racks = racks or {}
        self.settings = MachineSettings(tiered_storage=tiered_storage)
        self.static = static or {}
        self.log: list[MetadataRecord] = []
        self.incarnations = 0
        self.full: set[int] = set()
        """Whose heartbeats say that the disk is full."""
        self.logs: dict[tuple[int, str, int], tuple[int, int]] = {}
        """(node, topic, partition) -> last epoch and end of a replica's log, which its heartbeats tell while nobody
        leads; what is not named has ten records of epoch 0."""
        self.rng = random.Random(7)
        self.on_append: Callable[[MetadataImage], None] = lambda _: None
        self.quorum_epoch = 0
        self.state = self._state(MetadataImage("test-cluster"))
        self._append([MetadataVersionRecord(level)])
        for node in range(1, nodes + 1):
            self.start(node)

    def _state(self, image: MetadataImage) -> MachineState:
        return MachineState(
            image, ConfigResolver(self.static), self.rng, self.settings, self.now_ms, epoch=self.quorum_epoch
        )

    def _append(self, records: list[MetadataRecord]) -> None:
        if records:
            records = [decode_record(encode_record(record)) for record in records]
            before = self.image
            self.state.adopt(self.state.replay(records), len(self.log) + len(records) - 1)
            self.log += records
            self.on_append(before)

    @property
    def image(self) -> MetadataImage:
        return self.state.image

    def run(self, result: Result[T]) -> T:
        """Commit a result's records and hand out its reply."""
        self.losses += elections.losses(self.state, result.records, self.now_ms)
        self._append(result.records)
        return result.reply

    def fail_over(self) -> None:
        """Another node becomes the active controller: a state of its own on what is committed."""
        delta = MetadataDelta(MetadataImage("test-cluster"))
        delta.apply_all(self.log)
        self.state = self._state(delta.image(len(self.log) - 1, 1, 0))

    # Brokers

    def registration(
        self, node: int, found: LogCondition | None = LogCondition.INTACT, **changes: Any
    ) -> broker_api.RegisterBrokerRequest:
        """Of a new process on the same directory, which `found` all its logs so; None: it found none."""
        self.incarnations += 1
        incarnation = UUID(int=self.incarnations)
        before = self.image.brokers.get(node)
        fields: dict[str, Any] = {
            "cluster_id": "test-cluster",
            "node_id": node,
            "incarnation_id": incarnation,
            "listeners": {"PLAINTEXT": Endpoint("127.0.0.1", 9091 + node)},
            "internal": Endpoint("127.0.0.1", 19091 + node),
            "rack": self.racks.get(node),
            "directory_id": UUID(int=1000 + node),
            "lives": (incarnation,) if before is None else (before.incarnation_id, incarnation),
            "replaces": None if before is None else before.incarnation_id,
            "flush_policy": self.flush_policy,
            "findings": () if found is None else self.findings(node, lambda _: found),
        }
        return broker_api.RegisterBrokerRequest(**{**fields, **changes})

    def findings(
        self, node: int, found_in: Callable[[tuple[str, int]], LogCondition | None]
    ) -> tuple[TopicFindings, ...]:
        """Of all partitions that have a replica there, but for those of which nothing is found."""
        found = []
        for topic in self.image.topics.values():
            conditions = {
                number: condition
                for number, info in topic.partitions.items()
                if node in info.replicas and (condition := found_in((topic.name, number))) is not None
            }
            numbers = tuple(conditions)
            ends = tuple(self.log_of(node, topic.name, number) for number in numbers)
            found.append(
                TopicFindings(
                    topic=topic.name,
                    topic_id=topic.topic_id,
                    partitions=numbers,
                    log_end_offsets=tuple(end for _, end in ends),
                    last_epochs=tuple(epoch for epoch, _ in ends),
                    conditions=tuple(conditions.values()),
                )
            )
        return tuple(found)

    def log_of(self, node: int, topic: str, number: int) -> tuple[int, int]:
        return self.logs.get((node, topic, number), (0, 10))

    def register(self, node: int, **changes: Any) -> int:
        request = self.registration(node, **changes)
        return self.run(brokers.register_broker(self.state, request, len(self.log), self.now_ms)).broker_epoch

    def beat(self, node: int, **changes: Any) -> broker_api.HeartbeatReply:
        fields: dict[str, Any] = {
            "node_id": node,
            "broker_epoch": self.epoch(node),
            "metadata_offset": len(self.log) - 1,
            "want_fence": False,
            "want_shutdown": False,
            "offsets": self.leaderless_logs(node),
            "disk_full": node in self.full,
        }
        beat = broker_api.Heartbeat(**{**fields, **changes})
        return self.run(brokers.heartbeat(self.state, beat, len(self.log), self.now_ms))

    def leaderless_logs(self, node: int) -> tuple[ReplicaOffsets, ...]:
        """What heartbeats tell of replicas that nobody leads."""
        told = []
        for topic, info in self.image.partitions():
            if node in info.replicas and not info.has_leader:
                epoch, end = self.log_of(node, topic.name, info.partition)
                told.append(ReplicaOffsets(topic.topic_id, info.partition, 0, end, epoch, info.leader_epoch))
        return tuple(told)

    def start(self, node: int, **changes: Any) -> None:
        """Register and unfence."""
        self.register(node, **changes)
        self.beat(node)

    def fence(self, node: int) -> None:
        """Its session is over."""
        self._append(brokers.fence(self.state, node, "in a test"))
        self.state.sessions.mark_fenced(node)

    def stop_cleanly(self, node: int) -> int:
        """A controlled shutdown to its end; the epoch that its clean marker holds."""
        epoch = self.epoch(node)
        for _ in range(10):
            if self.beat(node, want_shutdown=True).should_shut_down:
                return epoch
            for other, broker in self.image.brokers.items():
                if broker.active:
                    self.beat(other)
        raise AssertionError("the controlled shutdown never ended")

    def epoch(self, node: int) -> int:
        return self.image.brokers[node].broker_epoch

    def wait_out(self) -> None:
        """Time passes: nobody waits for a report any longer (rule B30)."""
        self.state.unproven.stamp(self.now_ms)
        self.now_ms += WAIT_MS
        self.run(elections.end_waits(self.state, self.now_ms))

    # Topics

    def create(self, name: str = "t", replicas: list[list[int]] | None = None, **configs: str) -> None:
        assignments = tuple(
            api.ReplicaAssignment(number, tuple(nodes)) for number, nodes in enumerate(replicas or [[1, 2, 3]])
        )
        values = {key.replace("_", "."): value for key, value in configs.items()}
        outcome = self.create_topic(api.CreatableTopic(name, assignments=assignments, configs=values))
        assert outcome.error is ErrorCode.NONE, outcome

    def create_topic(self, topic: api.CreatableTopic, *, dry_run: bool = False) -> api.CreatedTopic:
        request = api.CreateTopicsRequest((topic,), dry_run=dry_run)
        return self.run(topics.create_topics(self.state, request)).topics[0]

    def partition(self, name: str = "t", number: int = 0) -> PartitionRecord:
        info = self.image.partition(name, number)
        assert info is not None
        return info

    def alter_isr(
        self, isr_nodes: list[int], name: str = "t", number: int = 0, **changes: Any
    ) -> AlterPartitionOutcome:
        info = self.partition(name, number)
        sender = changes.pop("sender", info.leader)
        fields: dict[str, Any] = {
            "topic_id": self.image.topics[name].topic_id,
            "partition": number,
            "leader_epoch": info.leader_epoch,
            "partition_epoch": info.partition_epoch,
            "new_isr": tuple(IsrMember(node, self.epoch(node)) for node in isr_nodes),
        }
        item = AlterPartitionItem(**{**fields, **changes})
        request = broker_api.AlterPartitionRequest(sender, self.epoch(sender), (item,))
        return self.run(isr.alter_partition(self.state, request)).outcomes[0]

    def move(
        self, replicas: list[int] | None, name: str = "t", number: int = 0, *, keeps_factor: bool = False
    ) -> moves_api.MoveOutcome:
        """Ask for a move; None: cancel it."""
        wanted = moves_api.PartitionMove(name, number, None if replicas is None else tuple(replicas))
        request = moves_api.AlterReassignmentsRequest((wanted,), keeps_factor)
        return self.run(moves.alter_reassignments(self.state, request)).outcomes[0]

    def set_config(
        self, name: str, value: str | None, topic: str | int | None = "t", *, dry_run: bool = False
    ) -> api.ResourceOutcome:
        """`topic`: None for all brokers, a number for one of them."""
        if topic is None or isinstance(topic, int):
            kind, resource = CLUSTER_DEFAULT if topic is None else (ResourceType.BROKER, str(topic))
        else:
            kind, resource = ResourceType.TOPIC, topic
        operation = api.ConfigOperation.DELETE if value is None else api.ConfigOperation.SET
        alteration = api.ResourceAlteration(kind, resource, (api.ConfigAlteration(name, operation, value),))
        request = api.AlterConfigsRequest((alteration,), dry_run=dry_run)
        return self.run(configs.incremental_alter_configs(self.state, request)).resources[0]

    def elect(
        self, kind: api.ElectionKind, *, dry_run: bool = False, everything: bool = False
    ) -> tuple[api.ElectionOutcome, ...]:
        refs = () if everything else (api.PartitionRef("t", 0),)
        request = api.ElectLeadersRequest(kind, refs, dry_run=dry_run)
        return self.run(elections.elect_leaders(self.state, request, self.now_ms)).outcomes

    def report(self, node: int, *, hw: int, leo: int, epoch: int, name: str = "t") -> None:
        """The broker's heartbeat tells where its replica stands."""
        offsets = (ReplicaOffsets(self.image.topics[name].topic_id, 0, hw, leo, epoch),)
        self.state.offsets.report(node, self.epoch(node), offsets, self.now_ms)


@pytest.fixture(scope="session")
def machine_cluster_factory() -> Callable[..., MachineCluster]:
    """As `machine_cluster`, for tests that make many."""
    return MachineCluster


@pytest.fixture
def machine_cluster() -> Callable[..., MachineCluster]:
    """Makes a machine with so many brokers (three), registered and unfenced."""
    return MachineCluster
