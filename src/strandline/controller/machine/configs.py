"""IncrementalAlterConfigs, and what a change of config means for partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from strandline.controller.api import (
    AlterConfigsReply,
    AlterConfigsRequest,
    ConfigAlteration,
    ConfigOperation,
    ResourceAlteration,
    ResourceOutcome,
)
from strandline.controller.machine import tiering
from strandline.controller.machine.state import MachineState, Result
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.features import LEVEL_OF_MOVES, METADATA_FEATURE
from strandline.controller.metadata.image import ConfigResource, MetadataImage, ResourceType, TopicInfo
from strandline.controller.metadata.records import ConfigRecord, MetadataRecord, PartitionChangeRecord, PartitionRecord
from strandline.controller.metadata.settings import (
    AGREED_KEYS,
    BROKER_SETTINGS,
    CLIENT_METRICS_SETTINGS,
    TOPIC_SETTINGS,
    validate_broker_settings,
    validate_client_metrics_settings,
    validate_topic_settings,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.ids import NodeId
from strandline.proto.settings import ConfigType, Setting, split_list

_BINDING = AGREED_KEYS & TOPIC_SETTINGS.keys()
"""Topic settings on which elections and the eligible leader replicas depend."""


_SETTINGS: Mapping[ResourceType, Mapping[str, Setting[Any]]] = {
    ResourceType.TOPIC: TOPIC_SETTINGS,
    ResourceType.BROKER: BROKER_SETTINGS,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_SETTINGS,
}

SUBSCRIPTIONS_MAX = 100
"""Subscriptions to client metrics."""

NAME_CHARS_MAX = 249
"""Characters of the name of one: as many as of a topic's."""


def incremental_alter_configs(state: MachineState, request: AlterConfigsRequest) -> Result[AlterConfigsReply]:
    """Set, delete, append to, subtract from configs; each resource succeeds or fails alone.

    A change of min.insync.replicas clears eligible leader replicas that are no longer safe in the same batch, and
    enabling unclean elections elects leaders of partitions without one.
    """
    records: list[MetadataRecord] = []
    outcomes = []
    resources = [(item.resource_type, item.resource_name) for item in request.resources]
    times = Counter(resources)
    for item, resource in zip(request.resources, resources, strict=True):
        try:
            if times[resource] > 1:  # rule A24/resources-are-counted-one-by-one
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names this resource twice.")
            records += _alter_resource(state, item, resource)
            outcomes.append(ResourceOutcome(*resource, ErrorCode.NONE))
        except KafkaError as error:
            outcomes.append(ResourceOutcome(*resource, error.code, str(error.message)))
    if request.dry_run:
        records = []
    elif any(isinstance(record, ConfigRecord) and record.name in _BINDING for record in records):
        records += _consequences(state, records)  # rule B11/min-isr-lowered-and-the-eligible-kept
    return Result(AlterConfigsReply(tuple(outcomes)), records)


def _alter_resource(state: MachineState, item: ResourceAlteration, resource: ConfigResource) -> list[ConfigRecord]:
    _check_resource(state.image, resource)
    names = [alteration.name for alteration in item.alterations]
    current = state.image.config(resource)
    after, times = dict(current), Counter(names)
    for alteration in item.alterations:
        if times[alteration.name] > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request alters {alteration.name} twice.")
        value = _altered(resource[0], alteration, current)
        if value is None:
            after.pop(alteration.name, None)
        else:
            after[alteration.name] = value
    changed = {name: after[name] for name in names if name in after}
    try:
        if resource[0] is ResourceType.TOPIC:
            validate_topic_settings(changed)
            tiering.check_topic(state, resource[1], after)
        elif resource[0] is ResourceType.CLIENT_METRICS:
            validate_client_metrics_settings(changed)
        else:
            validate_broker_settings(changed, cluster_default=not resource[1])
            tiering.check_brokers(state.image, resource, after)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return [
        ConfigRecord(int(resource[0]), resource[1], name, after.get(name))
        for name in names
        if after.get(name) != current.get(name)
    ]


def _check_resource(image: MetadataImage, resource: ConfigResource) -> None:
    kind, name = resource
    if kind is ResourceType.TOPIC:
        if name not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic named {name!r}.")
    elif kind is ResourceType.CLIENT_METRICS:
        _check_subscription(image, name)
    elif name:
        if not name.isdecimal():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"A broker is named by its node id, not {name!r}.")
        if NodeId(int(name)) not in image.brokers:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {name} is not registered.")


def _check_subscription(image: MetadataImage, name: str) -> None:
    """Check that a subscription to client metrics may have this name. Raises KafkaError if it may not, or if
    subscriptions are not possible yet."""
    if image.metadata_version < LEVEL_OF_MOVES:  # rule A42/subscriptions-of-a-level-that-is-not-finalized
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Client metrics are subscribed to from {METADATA_FEATURE} {LEVEL_OF_MOVES} on, and the cluster is at "
            f"{image.metadata_version}: raise it by `strandline upgrade finalize`.",
        )
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"A subscription to client metrics has a name of 1 to {NAME_CHARS_MAX} characters.",
        )
    there = [known for kind, known in image.configs if kind is ResourceType.CLIENT_METRICS]
    if name not in there and len(there) >= SUBSCRIPTIONS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"There are {len(there)} subscriptions to client metrics, and each is matched against each client: delete "
            "one first.",
        )


def _altered(kind: ResourceType, alteration: ConfigAlteration, current: Mapping[str, str]) -> str | None:
    """The key's value after the alteration; None: not set."""
    name, operation, value = alteration.name, alteration.operation, alteration.value
    if operation is ConfigOperation.DELETE:
        return None
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for {operation.name} of {name}.")
    if operation is ConfigOperation.SET:
        return value
    row = _SETTINGS[kind].get(name)
    if row is None or row.type is not ConfigType.LIST:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Cannot {operation.name} to {name}, because its type is not LIST.")
    parts = dict.fromkeys(split_list(current.get(name, row.default or "")))
    for part in split_list(value):
        if operation is ConfigOperation.APPEND:
            parts[part] = None
        else:
            parts.pop(part, None)
    return ",".join(parts)


def _consequences(state: MachineState, records: list[MetadataRecord]) -> list[MetadataRecord]:
    """Changes of partitions that new values of min.insync.replicas or unclean.leader.election.enable call for.

    Eligible leader replicas hold all that is committed only while the high watermark stands still, that is while the
    ISR is below min ISR. When min ISR is lowered to the size of the ISR the watermark goes on without them, so that
    they must leave the list in the very batch that lowers it.

    When min ISR is raised, every partition's epoch is bumped along with it. A leader that has not replayed the new
    value yet could otherwise shrink its ISR, hear by reply that the leaver became eligible, and move the watermark on
    by the old, smaller value; now its proposal is out of date until it has replayed this batch.
    """
    delta = MetadataDelta(state.image)
    delta.apply_all(records)
    image = delta.image(state.image.offset, state.image.epoch, state.image.timestamp_ms)
    topics: dict[str, TopicInfo] = {}
    for record in records:
        if isinstance(record, ConfigRecord) and record.name in _BINDING:
            if record.resource_type == ResourceType.BROKER:
                topics = dict(state.image.topics)
                break
            topics[record.resource_name] = state.image.topics[record.resource_name]
    changes: list[MetadataRecord] = []
    for topic in topics.values():
        for partition in topic.partitions.values():
            change = state.change(topic, partition, "configs changed", resolver_image=image).build()
            if change is None and _min_isr_rises(state, image, topic, partition):
                change = PartitionChangeRecord(topic.topic_id, partition.partition, reason="min.insync.replicas raised")
            if change is not None:
                changes.append(change)
    return changes


def _min_isr_rises(state: MachineState, after: MetadataImage, topic: TopicInfo, partition: PartitionRecord) -> bool:
    old, new = (state.resolver.min_insync_replicas(image, topic.name, partition) for image in (state.image, after))
    return new > old
