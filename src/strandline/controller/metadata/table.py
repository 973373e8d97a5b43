"""The table of the metadata log's records: a row a type; and the envelope in which a record stands on disk.

On disk a record is its type id (varint), its version (varint) and its protobuf message. An unknown type or version
stops the node with a sentence: a record that is not understood must never be dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from strandline.controller.metadata.features import (
    LEVEL_OF_FEATURES,
    METADATA_FEATURE,
    FeatureLevelRecord,
    level_records,
)
from strandline.controller.metadata.image import FIRST_PRODUCER_ID, MetadataImage
from strandline.controller.metadata.maps import MapDeltas, MapOf
from strandline.controller.metadata.quotas import ClientQuotaRecord, quota_records, replay_quota
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
from strandline.controller.metadata.replay import (
    broker_fault,
    of_partition,
    replay_broker_change,
    replay_config,
    replay_feature,
    replay_partition,
    replay_partition_change,
    replay_producer_ids,
    replay_topic,
    replay_topic_removal,
    replay_unregistration,
    replay_version,
)
from strandline.controller.metadata.scram import (
    SALTS,
    RemoveUserScramCredentialRecord,
    ScramSecretRecord,
    UserScramCredentialRecord,
    credential_fault,
    scram_key,
    secret_fault,
)
from strandline.controller.metadata.tiers import (
    DeletedTierRecord,
    TieredSegmentRecord,
    TierReapedRecord,
    TierStartRecord,
    replay_segment,
    replay_start,
    tier_records,
)
from strandline.proto.acls import AclBinding, binding_fault
from strandline.proto.errors import FatalError, ProtocolError
from strandline.proto.ids import NO_BROKER_EPOCH, NO_NODE, TopicId
from strandline.proto.kafka.fields import read_uvarint
from strandline.proto.messages.mapper import Mapper, mapper_of

K = TypeVar("K")
R = TypeVar("R", bound=MetadataRecord)

RECORD_VERSION = 1
"""The version written for every type; a type that changes in a way protobuf cannot carry gets a version of its own."""


Replay = Callable[[MapDeltas, R], None]
"""Function that applies a record to the maps. It raises FatalError if the record does not fit them."""


def no_records(_: MetadataImage) -> Iterable[MetadataRecord]:
    """A snapshot has none of this type, or another row has them."""
    return ()


def no_fault(_: MetadataRecord) -> str:
    """Any may be."""
    return ""


@dataclass(frozen=True)
class RecordType(Generic[R]):
    """A row: one type of record. `kept` and `removal` make the rows of most.

    Attributes:
        type_id: on disk. An id is never given to another record.
        kind: the record's class.
        of: the map that the record is in, or changes first.
        replay: what the record does to the maps.
        snapshot: the records of a snapshot that add up to what the image has of it.
        level: the metadata.version from which on the record may be written; earlier builds do not know it.
    """

    type_id: int
    kind: type[R]
    of: MapOf[Any, Any]
    replay: Replay[R]
    snapshot: Callable[[MetadataImage], Iterable[MetadataRecord]] = no_records
    level: int = 1

    @cached_property
    def mapper(self) -> Mapper[R]:
        """Converts the record to its message, and back."""
        return mapper_of(self.kind)


def kept(
    type_id: int,
    kind: type[R],
    of: MapOf[K, R],
    key: Callable[[R], K],
    *,
    fault: Callable[[R], str] = no_fault,
    once: bool = False,
    level: int = 1,
) -> RecordType[R]:
    """The row of a record that is itself the value in a map, in the place of any earlier one; a snapshot has it in the
    order of the keys.

    `fault`: the reason that nobody can have written it, or "". `once`: there must be no earlier one.
    """

    rule = _Kept(of, key, fault, once)
    return RecordType(type_id, kind, of, rule.replay, rule.snapshot, level)


@dataclass(frozen=True, slots=True)
class _Kept(Generic[K, R]):
    """Records that are themselves the values of a map; the fields are those of `kept`."""

    of: MapOf[K, R]
    key: Callable[[R], K]
    fault: Callable[[R], str]
    once: bool

    def replay(self, deltas: MapDeltas, record: R) -> None:
        at, values, kind = self.key(record), deltas[self.of], type(record).__name__
        why = self.fault(record)
        if why:  # rule A20/damaged-acls-are-replayed
            raise FatalError(f"A {kind} cannot be, {at}: {why}. The metadata is damaged.")
        if self.once and values.has(at):  # rule A19/second-secret
            raise FatalError(f"A {kind} adds what is there already, {at}: the metadata is damaged.")
        values.put(at, record)

    def snapshot(self, image: MetadataImage) -> Iterable[R]:
        values: Mapping[Any, R] = image[self.of]
        return (values[at] for at in sorted(values))


def removal(type_id: int, kind: type[R], of: MapOf[K, Any], key: Callable[[R], K], *, level: int = 1) -> RecordType[R]:
    """The row of a record that takes a key out of a map, where it must be."""

    def replay(deltas: MapDeltas, record: R) -> None:
        at, values = key(record), deltas[of]
        if not values.has(at):
            raise FatalError(f"A {kind.__name__} removes what is not there, {at}: the metadata is damaged.")
        values.remove(at)

    return RecordType(type_id, kind, of, replay, level=level)


def _levels(image: MetadataImage) -> Iterable[MetadataRecord]:
    """The metadata.version, and behind it the other features."""
    features = {name: level for name, level in image.levels.items() if name != METADATA_FEATURE}
    return level_records(image.metadata_version, features)  # rule A32/snapshot-without-levels


def _topics(image: MetadataImage) -> Iterable[MetadataRecord]:
    """Each topic, and its partitions behind it."""
    for topic in image.topics.values():
        yield topic.record
        yield from topic.partitions.values()


def _configs(image: MetadataImage) -> Iterable[MetadataRecord]:
    for resource in sorted(image.configs):
        values = image.configs[resource]
        for name in sorted(values):
            yield ConfigRecord(int(resource[0]), resource[1], name, values[name])


def _producer_ids(image: MetadataImage) -> Iterable[MetadataRecord]:
    reached = image.next_producer_id
    return [ProducerIdsRecord(NO_NODE, NO_BROKER_EPOCH, reached)] if reached > FIRST_PRODUCER_ID else []


def _binding(record: AccessControlEntryRecord | RemoveAccessControlEntryRecord) -> AclBinding:
    return record.binding


def _topic_id(record: DeletedTierRecord | TierReapedRecord) -> TopicId:
    return record.topic_id


OF = MetadataImage
"""Names the maps: `OF.brokers`."""

_ROWS: tuple[RecordType[Any], ...] = (
    RecordType(1, MetadataVersionRecord, OF.levels, replay_version, _levels),
    kept(2, RegisterBrokerRecord, OF.brokers, lambda record: record.node_id, fault=broker_fault),
    RecordType(3, UnregisterBrokerRecord, OF.brokers, replay_unregistration),
    RecordType(4, BrokerChangeRecord, OF.brokers, replay_broker_change),
    RecordType(5, TopicRecord, OF.topic_by_id, replay_topic, _topics),
    RecordType(6, RemoveTopicRecord, OF.topic_by_id, replay_topic_removal),
    RecordType(7, PartitionRecord, OF.topic_by_id, replay_partition),
    RecordType(8, PartitionChangeRecord, OF.topic_by_id, replay_partition_change),
    RecordType(9, ConfigRecord, OF.configs, replay_config, _configs),
    kept(
        13, AccessControlEntryRecord, OF.acls, _binding, fault=lambda record: binding_fault(record.binding), once=True
    ),
    removal(14, RemoveAccessControlEntryRecord, OF.acls, _binding),
    RecordType(10, ProducerIdsRecord, OF.producer_ids, replay_producer_ids, _producer_ids),
    kept(23, ScramSecretRecord, OF.scram_secret, lambda _: SALTS, fault=secret_fault, once=True),
    kept(21, UserScramCredentialRecord, OF.scram_credentials, scram_key, fault=credential_fault),
    removal(22, RemoveUserScramCredentialRecord, OF.scram_credentials, scram_key),
    RecordType(31, ClientQuotaRecord, OF.quotas, replay_quota, lambda image: quota_records(image.quotas)),
    RecordType(
        41, TieredSegmentRecord, OF.tiers, of_partition(replay_segment), lambda image: tier_records(image.tiers)
    ),
    RecordType(42, TierStartRecord, OF.tiers, of_partition(replay_start)),
    kept(43, DeletedTierRecord, OF.deleted_tiers, _topic_id, once=True),
    removal(44, TierReapedRecord, OF.deleted_tiers, _topic_id),
    RecordType(51, FeatureLevelRecord, OF.levels, replay_feature, level=LEVEL_OF_FEATURES),
)

TABLE: dict[int, RecordType[Any]] = {row.type_id: row for row in _ROWS}
"""Every type of record by its id, in the order of a snapshot."""

BY_KIND: dict[type[MetadataRecord], RecordType[Any]] = {row.kind: row for row in _ROWS}
"""Class of a record -> its row in the table."""


def encode_record(record: MetadataRecord) -> bytes:
    """The record in its envelope."""
    row = BY_KIND[type(record)]
    return bytes((row.type_id, RECORD_VERSION)) + row.mapper.encode(record)


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
    row = TABLE.get(type_id)
    if row is None:
        raise FatalError(
            f"The metadata log holds a record of type {type_id}, which this version of Strandline does not know. "
            "It was written by a newer one: start that one."
        )
    if version != RECORD_VERSION:
        raise FatalError(
            f"The metadata log holds a {row.kind.__name__} of version {version}; this version of Strandline knows "
            f"version {RECORD_VERSION} alone. Start the version that wrote it."
        )
    try:
        record: MetadataRecord = row.mapper.decode(data[position:])
    except ProtocolError as error:
        raise FatalError(f"The metadata log holds a {row.kind.__name__} that cannot be read: {error}") from error
    return record


def encode_records(records: Iterable[MetadataRecord]) -> list[bytes]:
    """Each record in its envelope."""
    return [encode_record(record) for record in records]


def decode_records(datas: Iterable[bytes]) -> list[MetadataRecord]:
    """The records of envelopes. Raises FatalError as `decode_record` does."""
    return [decode_record(data) for data in datas]
