"""The metadata for people and programs: an image as a document, a record as a sentence, and what cannot be in an image.

No secret is in any of it: of a SCRAM credential the name, the mechanism and the iterations are told, and of configs
that hold secrets that there is one (rule A19).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from strandline.controller.metadata.features import FeatureLevelRecord
from strandline.controller.metadata.image import CLUSTER_DEFAULT, MetadataImage, ResourceType, TopicInfo
from strandline.controller.metadata.quotas import ClientQuotaRecord
from strandline.controller.metadata.records import (
    AccessControlEntryRecord,
    BrokerChangeRecord,
    ConfigRecord,
    MetadataRecord,
    MetadataVersionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from strandline.controller.metadata.scram import (
    RemoveUserScramCredentialRecord,
    ScramSecretRecord,
    UserScramCredentialRecord,
)
from strandline.controller.metadata.tiers import (
    DeletedTierRecord,
    TieredSegmentRecord,
    TierReapedRecord,
    TierStartRecord,
)
from strandline.proto.acls import AclBinding
from strandline.proto.ids import NO_NODE, NodeId, TopicId
from strandline.proto.quotas import QuotaEntity
from strandline.proto.scram import ScramMechanism
from strandline.proto.secrets import HIDDEN, shown


def document(image: MetadataImage) -> dict[str, Any]:
    """All of an image but its secrets."""
    return {
        "cluster_id": image.cluster_id,
        "offset": image.offset,
        "epoch": image.epoch,
        "timestamp_ms": image.timestamp_ms or None,
        "levels": dict(sorted(image.finalized.items())),
        "next_producer_id": image.next_producer_id,
        "brokers": [fields_of(image.brokers[node]) for node in sorted(image.brokers)],
        "topics": [topic_document(image, topic) for topic in image.topics.values()],
        "broker_configs": [
            {"broker": None if resource == CLUSTER_DEFAULT else resource[1], "configs": shown_configs(values)}
            for resource, values in sorted(image.configs.items())
            if resource[0] is ResourceType.BROKER
        ],
        "acls": [fields_of(binding) for binding in sorted(image.acls)],
        "users": [
            {"user": key.name, "mechanism": key.mechanism.name, "iterations": record.iterations, "keys": HIDDEN}
            for key, record in sorted(image.scram_credentials.items())
        ],
        "quotas": [
            {"user": entity.user, "client_id": entity.client_id, "ip": entity.ip, "quotas": dict(values)}
            for entity, values in image.quotas.items()
        ],
        "deleted_tiers": [record.topic for record in image.deleted_tiers.values()],
    }


def topic_document(image: MetadataImage, topic: TopicInfo) -> dict[str, Any]:
    """One topic, its configs and its partitions."""
    configs = image.config((ResourceType.TOPIC, topic.name))
    parts = []
    for part in topic.partitions.values():
        told = {name: value for name, value in fields_of(part).items() if name != "topic_id"}
        told["leader"] = part.leader if part.has_leader else None
        tier = image.tier(topic.topic_id, part.partition)
        parts.append(told | {"tiered_segments": len(tier.segments)})
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "configs": shown_configs(configs),
        "partitions": parts,
    }


def shown_configs(configs: Any) -> dict[str, Any]:
    """Configs as they may be shown."""
    return {name: shown(name, configs[name]) for name in sorted(configs)}


_SECRET_FIELDS = frozenset({"salt", "stored_key", "server_key", "secret"})


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a record for JSON; those that hold secrets are hidden."""
    hidden = (
        isinstance(record, ConfigRecord) and record.value is not None and shown(record.name, record.value) == HIDDEN
    )
    names = [one.name for one in fields(record)] if hasattr(record, "__dataclass_fields__") else record._fields
    return {
        name: HIDDEN if name in _SECRET_FIELDS or (hidden and name == "value") else _plain(getattr(record, name))
        for name in names
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if hasattr(value, "__dataclass_fields__") or hasattr(value, "_fields"):
        return fields_of(value)
    if hasattr(value, "items"):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value]


# ------------------------------------------------------------------ one record


def topic_name(topic_id: TopicId, *images: MetadataImage) -> str:
    """Name of a topic in the first image that has it; else its id."""
    found = (image.topic_by_id.get(topic_id) for image in images)
    return next((topic.name for topic in found if topic is not None), str(topic_id))


class Subject(NamedTuple):
    """Subject of a record. A field is None if it does not apply."""

    topic: str | None = None
    partition: int | None = None
    broker: int | None = None


def subject(record: MetadataRecord, before: MetadataImage, after: MetadataImage) -> Subject:
    """The topic, partition, broker or other thing that a record is about."""
    topic_id = getattr(record, "topic_id", None)
    topic = None if topic_id is None else topic_name(topic_id, after, before)
    if isinstance(record, ConfigRecord):
        kind, name = record.resource_type, record.resource_name
        if kind == ResourceType.TOPIC:
            topic = name
        elif name.isdecimal():
            return Subject(broker=int(name))
    return Subject(topic, getattr(record, "partition", None), getattr(record, "node_id", None))


def sentence(record: MetadataRecord, before: MetadataImage, after: MetadataImage) -> str:
    """Description of a record's effect, as a sentence. `before` and `after` are the images around its batch."""
    match record:
        case PartitionRecord() | PartitionChangeRecord():
            place = f"{topic_name(record.topic_id, after, before)}-{record.partition}"
            if isinstance(record, PartitionRecord):
                return (
                    f"{place} is created: replicas {_nodes(record.replicas)}, ISR {_nodes(record.isr)}, {_led(record)}"
                )
            return f"{place}: {_changed(record)}" + (f" (why: {record.reason})" if record.reason else "")
        case RegisterBrokerRecord():
            known = before.brokers.get(record.node_id)
            again = " anew, another process" if known and known.incarnation_id != record.incarnation_id else ""
            where = ", ".join(f"{name} {endpoint}" for name, endpoint in record.listeners.items())
            return f"broker {record.node_id} is registered{again}: {where}; broker epoch {record.broker_epoch}"
        case UnregisterBrokerRecord():
            return f"broker {record.node_id} is taken out of the cluster"
        case BrokerChangeRecord():
            return f"broker {record.node_id}: {_broker_changed(record)}"
        case TopicRecord():
            return f"topic {record.name} is created, id {record.topic_id}"
        case RemoveTopicRecord():
            return f"topic {topic_name(record.topic_id, before, after)} is deleted"
        case ConfigRecord():
            owner = f"topic {record.resource_name}"
            if record.resource_type != ResourceType.TOPIC:
                owner = f"broker {record.resource_name}" if record.resource_name else "all brokers"
            value = "its default" if record.value is None else shown(record.name, record.value)
            return f"{owner}: {record.name} = {value}"
        case _:
            return _other(record)


def _other(record: MetadataRecord) -> str:
    match record:
        case ProducerIdsRecord():
            return f"broker {record.node_id} has producer ids up to {record.next_producer_id - 1}"
        case MetadataVersionRecord():
            return f"metadata.version is {record.level}"
        case FeatureLevelRecord():
            return f"{record.name} is {record.level}"
        case AccessControlEntryRecord():
            return f"access: {_acl(record.binding)} is added"
        case RemoveAccessControlEntryRecord():
            return f"access: {_acl(record.binding)} is removed"
        case UserScramCredentialRecord():
            mechanism = ScramMechanism(record.mechanism).name
            return f"user {record.name} has a password for {mechanism}, {record.iterations} iterations"
        case RemoveUserScramCredentialRecord():
            return f"user {record.name} has no password for {ScramMechanism(record.mechanism).name} any more"
        case ScramSecretRecord():
            return "the secret behind the salts of unknown users is drawn"
        case ClientQuotaRecord():
            entity = QuotaEntity(record.user, record.client_id, record.ip)
            whose = " ".join(f"{kind} {name or '(default)'}" for kind, name in entity.parts())
            return f"quota of {whose}: {record.key} = {'none' if record.value is None else record.value}"
        case TieredSegmentRecord() | TierStartRecord() | DeletedTierRecord() | TierReapedRecord():
            return f"tiered storage: {fields_of(record)}"
        case _:
            return f"{type(record).__name__}: {fields_of(record)}"


def _led(part: PartitionRecord) -> str:
    return f"leader {part.leader}, leader epoch {part.leader_epoch}" if part.has_leader else "nobody leads"


def _nodes(nodes: Iterable[NodeId]) -> str:
    return "[" + ",".join(map(str, nodes)) + "]"


def _changed(record: PartitionChangeRecord) -> str:
    said = []
    if record.leader is not None:
        said.append("nobody leads" if record.leader == NO_NODE else f"leader {record.leader}")
    for one in fields(record):
        value = getattr(record, one.name)
        if one.name in ("topic_id", "partition", "leader", "reason") or value is None:
            continue
        words = _WORDS.get(one.name, one.name.replace("_", " "))
        said.append(f"{words} {_nodes(value) if isinstance(value, tuple) else str(value).lower()}")
    return ", ".join(said) or "nothing but its partition epoch"


_WORDS = {"isr": "ISR", "eligible_leader_replicas": "ELR", "last_known_elr": "in doubt"}


def _broker_changed(record: BrokerChangeRecord) -> str:
    words = {
        "fenced": ("is fenced", "is unfenced"),
        "in_controlled_shutdown": ("shuts down in order", "shuts down no more"),
        "disk_full": ("has a full disk", "has room on its disk again"),
    }
    said = []
    for one in fields(record):
        value = getattr(record, one.name)
        if one.name in ("node_id", "broker_epoch") or value is None:
            continue
        if one.name == "in_controlled_shutdown" and not value:
            continue  # it comes with each fencing
        yes, no = words.get(one.name, (f"{one.name} is true", f"{one.name} is false"))
        said.append(yes if value else no)
    return ", ".join(said)


def _acl(binding: AclBinding) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields_of(binding).items())


# ------------------------------------------------------------------ what cannot be


class Flaw(NamedTuple):
    """Something in an image that is invalid, or gets in the way, and what to do about it."""

    where: str
    found: str
    advice: str


_BUG = "report it with `strandline cluster bundle`: no node writes this"


def flaws(image: MetadataImage) -> Iterator[Flaw]:
    """Everything in an image that cannot be, or leaves a partition without what it is to have. What the replay itself
    forbids (`replay.check_partition`) no image has."""
    by_name = {topic.name for topic in image.topic_by_id.values()}
    if by_name != set(image.topics) or len(image.topics) != len(image.topic_by_id):
        yield Flaw("topics", "the topics by name are not those by id", _BUG)
    for resource in image.configs:
        if resource[0] is ResourceType.TOPIC and resource[1] not in image.topics:
            yield Flaw(f"configs of topic {resource[1]}", "there is no such topic", _BUG)
    for key in image.tiers:
        topic = image.topic_by_id.get(key.topic_id)
        if topic is None or key.partition not in topic.partitions:
            yield Flaw(f"tier of {key.topic_id}-{key.partition}", "there is no such partition", _BUG)
    for topic in image.topics.values():
        if list(topic.partitions) != list(range(len(topic.partitions))):
            yield Flaw(f"topic {topic.name}", "its partitions are not numbered 0, 1, ... without a gap", _BUG)
        for part in topic.partitions.values():
            for found, advice in _partition_flaws(image, topic, part):
                yield Flaw(f"{topic.name}-{part.partition}", found, advice)


def _partition_flaws(image: MetadataImage, topic: TopicInfo, part: PartitionRecord) -> Iterator[tuple[str, str]]:
    unknown = [node for node in part.replicas if node not in image.brokers]
    if unknown:
        advice = "start a broker of this id, or move the replica: `strandline topic move`"
        yield f"replicas {_nodes(unknown)} are on brokers that are not registered", advice
    if part.topic_id != topic.topic_id:
        yield f"it says that it is of topic {part.topic_id}, not {topic.topic_id}", _BUG
    away = [node for node in part.isr if not image.is_active(node)]
    if away and not unknown:
        yield f"its ISR has brokers {_nodes(away)}, which are fenced, or shutting down", _BUG
    if part.has_leader and part.recovering and len(part.isr) > 1:
        yield "it recovers from an unclean election, and its leader is not alone in the ISR", _BUG
    if not part.has_leader:
        elected = f"`strandline topic elect {topic.name} --partition {part.partition} --unclean --dry-run` says why"
        if part.eligible_leader_replicas or part.isr:
            yield (
                f"nobody leads; brokers {_nodes((*part.isr, *part.eligible_leader_replicas))} may",
                f"start one; {elected}",
            )
        else:
            yield "nobody leads, and nobody may", elected
