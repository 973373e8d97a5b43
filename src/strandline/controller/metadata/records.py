"""The records of the metadata log, and their envelope.

On disk a record is its type id (varint), its version (varint) and a protobuf message, defined here alone (see
`strandline.proto.messages`). An unknown type or version stops the node with a sentence: a record that is not understood
must never be dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from strandline.controller.metadata.features import FeatureLevelRecord
from strandline.controller.metadata.quotas import ClientQuotaRecord
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
from strandline.proto.errors import FatalError, ProtocolError
from strandline.proto.ids import BrokerEpoch, Endpoint, LeaderEpoch, NodeId, PartitionEpoch, ProducerId, TopicId
from strandline.proto.kafka.fields import read_uvarint
from strandline.proto.messages.fields import Int32, Int64, SInt32, UInt32
from strandline.proto.messages.mapper import Mapper, mapper_of


@dataclass(frozen=True, slots=True)
class MetadataVersionRecord:
    """First of a log and of each snapshot: the rules by which what follows is replayed.

    Attributes:
        release: the first release that knows the level, for builds that do not.
    """

    level: Annotated[int, UInt32(1)]
    release: Annotated[str, 2] = ""


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord:
    """A broker's process has registered, in the place of any earlier one of its node id; fields as in `BrokerInfo`.

    Only snapshots and amended registrations have `fenced` false, or `in_controlled_shutdown` or `disk_full` true.
    """

    node_id: Annotated[NodeId, Int32(1)]
    incarnation_id: Annotated[UUID, 2]
    broker_epoch: Annotated[BrokerEpoch, Int64(3)]
    listeners: Annotated[Mapping[str, Endpoint], 4]
    internal: Annotated[Endpoint, 5]
    rack: Annotated[str | None, 6] = None
    fenced: Annotated[bool, 7] = True
    in_controlled_shutdown: Annotated[bool, 8] = False
    directory_id: Annotated[UUID | None, 9] = None
    acks_unsynced: Annotated[bool, 10] = False
    disk_full: Annotated[bool, 11] = False


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRecord:
    """A broker is taken out of the cluster for good."""

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, Int64(2)]


@dataclass(frozen=True, slots=True)
class BrokerChangeRecord:
    """A broker is fenced, unfenced, begins its controlled shutdown, or its disk is full or has room again; None:
    unchanged."""

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, Int64(2)]
    fenced: Annotated[bool | None, 3] = None
    in_controlled_shutdown: Annotated[bool | None, 4] = None
    disk_full: Annotated[bool | None, 5] = None


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic is created; its partitions follow in the same batch."""

    name: Annotated[str, 1]
    topic_id: Annotated[TopicId, 2]


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic, its partitions, its configs and its tiers are gone; its objects in the store are yet to be."""

    topic_id: Annotated[TopicId, 1]


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition is created, or stands so in a snapshot; fields as in `PartitionInfo`."""

    topic_id: Annotated[TopicId, 1]
    partition: Annotated[int, Int32(2)]
    replicas: Annotated[tuple[NodeId, ...], Int32(3)]
    isr: Annotated[tuple[NodeId, ...], Int32(4)]
    eligible_leader_replicas: Annotated[tuple[NodeId, ...], Int32(5)]
    last_known_elr: Annotated[tuple[NodeId, ...], Int32(6)]
    leader: Annotated[NodeId, SInt32(7)]
    leader_epoch: Annotated[LeaderEpoch, Int32(8)]
    partition_epoch: Annotated[PartitionEpoch, Int32(9)]
    recovering: Annotated[bool, 10]


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """A partition changes; None: unchanged.

    Each such record bumps the partition epoch, and one that names a leader, even the same one, the leader epoch.
    `reason` is for people who read the log ("broker 2 fenced"): the replay does not look at it.
    """

    topic_id: Annotated[TopicId, 1]
    partition: Annotated[int, Int32(2)]
    replicas: Annotated[tuple[NodeId, ...] | None, 3] = None
    isr: Annotated[tuple[NodeId, ...] | None, 4] = None
    eligible_leader_replicas: Annotated[tuple[NodeId, ...] | None, 5] = None
    last_known_elr: Annotated[tuple[NodeId, ...] | None, 6] = None
    leader: Annotated[NodeId | None, SInt32(7)] = None
    recovering: Annotated[bool | None, 8] = None
    reason: Annotated[str, 9] = ""


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A dynamic config is set, or removed where the value is None; resources as in `api.ResourceAlteration`."""

    resource_type: Annotated[int, Int32(1)]
    resource_name: Annotated[str, 2]
    name: Annotated[str, 3]
    value: Annotated[str | None, 4]


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """A block of producer ids, up to but without `next_producer_id`, was given to a broker: never again to any."""

    node_id: Annotated[NodeId, Int32(1)]
    broker_epoch: Annotated[BrokerEpoch, Int64(2)]
    next_producer_id: Annotated[ProducerId, Int64(3)]


@dataclass(frozen=True, slots=True)
class AccessControlEntryRecord:
    """An access control entry is there from now on. It is its own name: no two are equal."""

    binding: Annotated[AclBinding, 1]


@dataclass(frozen=True, slots=True)
class RemoveAccessControlEntryRecord:
    """An access control entry is gone."""

    binding: Annotated[AclBinding, 1]


MetadataRecord = (
    MetadataVersionRecord
    | RegisterBrokerRecord
    | UnregisterBrokerRecord
    | BrokerChangeRecord
    | TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | ProducerIdsRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | ScramSecretRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | ClientQuotaRecord
    | TieredSegmentRecord
    | TierStartRecord
    | DeletedTierRecord
    | TierReapedRecord
    | FeatureLevelRecord
)
"""Any record of the metadata log."""

RECORD_VERSION = 1
"""The version written for every type; a type that changes in a way protobuf cannot carry gets a version of its own."""

MAPPERS: dict[int, Mapper[MetadataRecord]] = {
    1: mapper_of(MetadataVersionRecord),
    2: mapper_of(RegisterBrokerRecord),
    3: mapper_of(UnregisterBrokerRecord),
    4: mapper_of(BrokerChangeRecord),
    5: mapper_of(TopicRecord),
    6: mapper_of(RemoveTopicRecord),
    7: mapper_of(PartitionRecord),
    8: mapper_of(PartitionChangeRecord),
    9: mapper_of(ConfigRecord),
    10: mapper_of(ProducerIdsRecord),
    21: mapper_of(UserScramCredentialRecord),
    22: mapper_of(RemoveUserScramCredentialRecord),
    23: mapper_of(ScramSecretRecord),
    13: mapper_of(AccessControlEntryRecord),
    14: mapper_of(RemoveAccessControlEntryRecord),
    31: mapper_of(ClientQuotaRecord),
    41: mapper_of(TieredSegmentRecord),
    42: mapper_of(TierStartRecord),
    43: mapper_of(DeletedTierRecord),
    44: mapper_of(TierReapedRecord),
    51: mapper_of(FeatureLevelRecord),
}
"""Type id on disk -> the record. An id is never given to another record."""

_TYPE_IDS: dict[type, int] = {mapper.kind: type_id for type_id, mapper in MAPPERS.items()}


def encode_record(record: MetadataRecord) -> bytes:
    """The record in its envelope."""
    type_id = _TYPE_IDS[type(record)]
    return bytes((type_id, RECORD_VERSION)) + MAPPERS[type_id].encode(record)


def decode_record(data: bytes) -> MetadataRecord:
    """The record of an envelope.

    Raises:
        FatalError: unknown type or version, or bytes that are no such record. The node must stop.
    """
    try:
        type_id, position = read_uvarint(data, 0)
        version, position = read_uvarint(data, position)
    except ProtocolError:
        raise FatalError(f"The metadata log holds a record whose envelope is cut short: {data[:8].hex()}") from None
    mapper = MAPPERS.get(type_id)
    if mapper is None:
        raise FatalError(
            f"The metadata log holds a record of type {type_id}, which this version of Strandline does not know. "
            "It was written by a newer one: start that one."
        )
    if version != RECORD_VERSION:
        raise FatalError(
            f"The metadata log holds a {mapper.kind.__name__} of version {version}; this version of Strandline knows "
            f"version {RECORD_VERSION} alone. Start the version that wrote it."
        )
    try:
        return mapper.decode(data[position:])
    except ProtocolError as error:
        raise FatalError(f"The metadata log holds a {mapper.kind.__name__} that cannot be read: {error}") from error


def encode_records(records: Iterable[MetadataRecord]) -> list[bytes]:
    """Each record in its envelope."""
    return [encode_record(record) for record in records]


def decode_records(datas: Iterable[bytes]) -> list[MetadataRecord]:
    """The records of envelopes. Raises FatalError as `decode_record` does."""
    return [decode_record(data) for data in datas]
