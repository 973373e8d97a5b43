"""Conversions between messages about topics, settings and the quorum, and the client's value types (`types`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from strandline.client.metadata import TopicView
from strandline.client.types import (
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    PartitionDescription,
    QuorumReplica,
    TopicDescription,
)
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition

_RESOURCE_TYPES = {"topic": 2, "broker": 4, "broker-logger": 8, "client-metrics": 16, "group": 32}
_OPERATIONS = {"set": 0, "delete": 1, "append": 2, "subtract": 3}
_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}


def each_once(names: Iterable[str]) -> list[str]:
    """The names in order, without repetitions.

    Raises:
        TypeError: `names` is a single string, whose letters would be taken for names.
    """
    if isinstance(names, str):
        raise TypeError(f"several names are expected: [{names!r}], not {names!r}")
    return list(dict.fromkeys(names))


def none_if_negative(number: int) -> int | None:
    """`number`, or None if it is negative: Kafka writes -1 for "none"."""
    return None if number < 0 else number


def new_topic(topic: NewTopic) -> dict[str, Any]:
    """A topic as a field of CreateTopics. Raises ConfigError if it has both an assignment and counts."""
    assignment = topic.replica_assignment
    if assignment is not None and (topic.partitions != -1 or topic.replication_factor != -1):
        raise ConfigError("replica_assignment", topic.name, "without partitions and replication_factor")
    return {
        "name": topic.name,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "assignments": [
            {"partition_index": number, "broker_ids": tuple(brokers)} for number, brokers in (assignment or {}).items()
        ],
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
    }


def described(view: TopicView) -> TopicDescription:
    """Description of a topic, from a Metadata response."""
    partitions = tuple(
        PartitionDescription(number, item.leader, item.leader_epoch, item.replicas, item.isr, item.offline)
        for number, item in view.partitions.items()
    )
    return TopicDescription(view.name, view.topic_id, view.is_internal, partitions)


def described_with_elr(topic: Any, partitions: list[Any]) -> TopicDescription:
    """Description of a topic with its eligible leader replicas, from a DescribeTopicPartitions response."""
    described = tuple(
        PartitionDescription(
            item.partition_index,
            none_if_negative(item.leader_id),
            item.leader_epoch,
            item.replica_nodes,
            item.isr_nodes,
            item.offline_replicas,
            item.eligible_leader_replicas,
            item.last_known_elr,
        )
        for item in sorted(partitions, key=lambda item: int(item.partition_index))
    )
    return TopicDescription(topic.name, topic.topic_id, topic.is_internal, described)


def quorum_replica(entry: Any) -> QuorumReplica:
    """A voter or observer, from a DescribeQuorum response."""
    return QuorumReplica(
        entry.replica_id,
        getattr(entry, "replica_directory_id", None),
        entry.log_end_offset,
        getattr(entry, "last_fetch_timestamp", -1),
        getattr(entry, "last_caught_up_timestamp", -1),
    )


def resource_type(resource: ConfigResource) -> int:
    """Kafka's number for the kind of a resource. Raises ConfigError if the kind is unknown."""
    kind = _RESOURCE_TYPES.get(resource.kind)
    if kind is None:
        raise ConfigError("kind", resource.kind, "one of " + ", ".join(_RESOURCE_TYPES))
    return kind


def config_entry(entry: Any) -> ConfigEntry:
    """A setting, from a DescribeConfigs response."""
    source = _SOURCES.get(entry.config_source, "UNKNOWN")
    documentation = getattr(entry, "documentation", None)
    return ConfigEntry(entry.name, entry.value, source, entry.read_only, entry.is_sensitive, documentation)


def config_change(change: ConfigChange) -> dict[str, Any]:
    """A change of a setting, as a field of IncrementalAlterConfigs. Raises ConfigError for an unknown operation."""
    operation = _OPERATIONS.get(change.operation)
    if operation is None:
        raise ConfigError("operation", change.operation, "one of " + ", ".join(_OPERATIONS))
    return {"name": change.name, "config_operation": operation, "value": change.value}


def by_topic(
    partitions: Iterable[TopicPartition | tuple[str, int]],
    name: str = "topic",
    part: Callable[[TopicPartition], Any] = attrgetter("partition"),
    parts: str = "partitions",
) -> list[dict[str, Any]]:
    """Partitions grouped by topic, as fields of a request.

    Args:
        name, parts: names of the request's fields for the topic and for its partitions.
        part: makes the value of one partition in the request.
    """
    found: dict[str, list[Any]] = {}
    for item in partitions:
        found.setdefault(item[0], []).append(part(TopicPartition(*item)))
    return [{name: topic, parts: values} for topic, values in found.items()]
