"""A cluster of which a test says when copies arrive and brokers die: what an admin client shows of moves, and the
arithmetic of KIP-455, for schedules of the commands that move replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.client.types import (
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    LogDirDescription,
    MoveOutcome,
    NodeInfo,
    PartitionDescription,
    PartitionMove,
    ReplicaDescription,
    TopicDescription,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition

SIZE = 1000
"""Bytes of each partition."""


@dataclass
class Placed:
    """A partition: its replicas, those that come, those that go, and the bytes that each has."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    sizes: dict[int, int] = field(default_factory=dict)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(node for node in self.replicas if node not in self.removing)


class MovingCluster:
    """Stands in for `strandline.client.Admin`.

    Attributes:
        down: brokers that are fenced.
        late: brokers that have not heard yet of what is set on them.
        configs: what is set on topics and brokers.
        calls: names of what was asked for that changes something.
    """

    def __init__(self, brokers: int, partitions: Mapping[str, Sequence[tuple[int, ...]]]) -> None:
        self.brokers = range(1, brokers + 1)
        self.placed = {
            TopicPartition(topic, number): Placed(replicas, sizes=dict.fromkeys(replicas, SIZE))
            for topic, parts in partitions.items()
            for number, replicas in enumerate(parts)
        }
        self.down: set[int] = set()
        self.late: set[int] = set()
        self.configs: dict[ConfigResource, dict[str, str]] = {}
        self.calls: list[str] = []

    def arrive(self) -> None:
        """Whatever is copied to brokers that are up has come, and moves without a dead target are over."""
        for one in self.placed.values():
            for node in one.adding:
                if node not in self.down:
                    one.sizes[node] = SIZE
            if not set(one.adding) & self.down:
                one.replicas, one.adding, one.removing = one.target, (), ()

    def describe_cluster(self) -> ClusterDescription:
        nodes = tuple(NodeInfo(node, "host", 9092, None, node in self.down) for node in self.brokers)
        return ClusterDescription("c", 1, nodes)

    def describe_topics(self, names: None, *, include_internal: bool) -> list[TopicDescription]:
        topics: dict[str, list[PartitionDescription]] = {}
        for tp, one in self.placed.items():
            isr = tuple(node for node in one.replicas if one.sizes.get(node) == SIZE and node not in self.down)
            part = PartitionDescription(tp.partition, isr[0] if isr else None, 0, one.replicas, isr)
            topics.setdefault(tp.topic, []).append(part)
        return [TopicDescription(name, None, False, tuple(parts)) for name, parts in topics.items()]

    def describe_log_dirs(self, nodes: Sequence[int]) -> dict[int, list[LogDirDescription]]:
        return {
            node: [
                LogDirDescription(
                    "/data",
                    None,
                    None,
                    {
                        tp: ReplicaDescription(one.sizes[node], 0)
                        for tp, one in self.placed.items()
                        if node in one.sizes
                    },
                )
            ]
            for node in nodes
        }

    def describe_configs(self, resources: Sequence[ConfigResource]) -> dict[ConfigResource, list[ConfigEntry]]:
        kinds = {"topic": "DYNAMIC_TOPIC_CONFIG", "broker": "DYNAMIC_BROKER_CONFIG"}
        return {
            resource: [
                ConfigEntry(name, value, kinds[resource.kind], False, False)
                for name, value in self.configs.get(resource, {}).items()
                if resource.kind != "broker" or int(resource.name) not in self.late
            ]
            for resource in resources
        }

    def alter_configs(self, changes: Mapping[ConfigResource, Sequence[ConfigChange]]) -> None:
        self.calls.append("alter_configs")
        for resource, wanted in changes.items():
            own = self.configs.setdefault(resource, {})
            for change in wanted:
                if change.operation == "delete":
                    own.pop(change.name, None)
                else:
                    own[change.name] = str(change.value)

    def list_partition_reassignments(self) -> dict[TopicPartition, PartitionMove]:
        return {
            tp: PartitionMove(one.replicas, one.adding, one.removing)
            for tp, one in self.placed.items()
            if one.adding or one.removing
        }

    def alter_partition_reassignments(self, moves: Mapping[TopicPartition, Sequence[int] | None]) -> list[MoveOutcome]:
        self.calls.append("alter_partition_reassignments")
        for tp, wanted in moves.items():
            one = self.placed[tp]
            original = tuple(node for node in one.replicas if node not in one.adding)
            target = original if wanted is None else tuple(wanted)
            one.removing = tuple(node for node in original if node not in target)
            one.adding = tuple(node for node in target if node not in original)
            one.replicas = (*target, *one.removing)
        return [MoveOutcome(tp.topic, tp.partition, ErrorCode.NONE, "") for tp in moves]

    def elect_leaders(self, partitions: Any, *, unclean: bool) -> list[Any]:
        return []

    @property
    def throttled(self) -> bool:
        """A throttle is set anywhere."""
        return any("throttled" in name for own in self.configs.values() for name in own)
