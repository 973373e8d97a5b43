"""The records of the metadata log, and their envelope.

On disk a record is its type id (varint), its version (varint) and a protobuf message (`proto/v1/metadata.proto`). An
unknown type or version stops the node with a sentence: a record that is not understood must never be dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from strandline.controller.mapping import Mapper
from strandline.proto.errors import FatalError, ProtocolError
from strandline.proto.ids import BrokerEpoch, Endpoint, LeaderEpoch, NodeId, PartitionEpoch, ProducerId, TopicId
from strandline.proto.v1 import metadata_pb2 as pb
from strandline.proto.varint import read_uvarint


@dataclass(frozen=True, slots=True)
class MetadataVersionRecord:
    """First of a log and of each snapshot: the rules by which what follows is replayed."""

    level: int


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord:
    """A broker's process has registered; fields as in `BrokerInfo`."""

    node_id: NodeId
    incarnation_id: UUID
    broker_epoch: BrokerEpoch
    listeners: Mapping[str, Endpoint]
    internal: Endpoint
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    directory_id: UUID | None = None
    acks_unsynced: bool = False
    disk_full: bool = False


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRecord:
    """A broker is taken out of the cluster for good."""

    node_id: NodeId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class BrokerChangeRecord:
    """A broker is fenced, unfenced, begins its controlled shutdown, or its disk is full or has room again; None:
    unchanged."""

    node_id: NodeId
    broker_epoch: BrokerEpoch
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None
    disk_full: bool | None = None


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic is created; its partitions follow in the same batch."""

    name: str
    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic, its partitions and its configs are gone."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition is created, or stands so in a snapshot; fields as in `PartitionInfo`."""

    topic_id: TopicId
    partition: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    eligible_leader_replicas: tuple[NodeId, ...]
    last_known_elr: tuple[NodeId, ...]
    leader: NodeId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    recovering: bool


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """A partition changes; None: unchanged. A leader that is named, even the same, bumps the leader epoch."""

    topic_id: TopicId
    partition: int
    replicas: tuple[NodeId, ...] | None = None
    isr: tuple[NodeId, ...] | None = None
    eligible_leader_replicas: tuple[NodeId, ...] | None = None
    last_known_elr: tuple[NodeId, ...] | None = None
    leader: NodeId | None = None
    recovering: bool | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A dynamic config is set, or removed where the value is None."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """A block of producer ids, up to but without `next_producer_id`, was given to a broker."""

    node_id: NodeId
    broker_epoch: BrokerEpoch
    next_producer_id: ProducerId


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
)
"""Any record of the metadata log."""

RECORD_VERSION = 1
"""The version written for every type; a type that changes in a way protobuf cannot carry gets a version of its own."""

_MAPPERS: dict[int, Mapper[MetadataRecord]] = {
    1: Mapper(MetadataVersionRecord, pb.MetadataVersionRecord),
    2: Mapper(RegisterBrokerRecord, pb.RegisterBrokerRecord),
    3: Mapper(UnregisterBrokerRecord, pb.UnregisterBrokerRecord),
    4: Mapper(BrokerChangeRecord, pb.BrokerChangeRecord),
    5: Mapper(TopicRecord, pb.TopicRecord),
    6: Mapper(RemoveTopicRecord, pb.RemoveTopicRecord),
    7: Mapper(PartitionRecord, pb.PartitionRecord),
    8: Mapper(PartitionChangeRecord, pb.PartitionChangeRecord),
    9: Mapper(ConfigRecord, pb.ConfigRecord),
    10: Mapper(ProducerIdsRecord, pb.ProducerIdsRecord),
}

_TYPE_IDS: dict[type, int] = {mapper.kind: type_id for type_id, mapper in _MAPPERS.items()}


def encode_record(record: MetadataRecord) -> bytes:
    """The record in its envelope."""
    type_id = _TYPE_IDS[type(record)]
    return bytes((type_id, RECORD_VERSION)) + _MAPPERS[type_id].encode(record)


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
    mapper = _MAPPERS.get(type_id)
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
