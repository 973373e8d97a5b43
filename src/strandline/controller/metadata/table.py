"""The table of the metadata log's records: a row a type; and the envelope in which a record stands on disk.

On disk a record is its type id (varint), its version (varint) and its protobuf message. An unknown type or version
stops the node with a sentence: a record that is not understood must never be dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from strandline.controller.metadata.features import LEVEL_OF_FEATURES, FeatureLevelRecord
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
from strandline.proto.errors import FatalError, ProtocolError
from strandline.proto.kafka.fields import read_uvarint
from strandline.proto.messages.mapper import Mapper, mapper_of

R = TypeVar("R", bound=MetadataRecord)

RECORD_VERSION = 1
"""The version written for every type; a type that changes in a way protobuf cannot carry gets a version of its own."""


@dataclass(frozen=True)
class RecordType(Generic[R]):
    """A row: one type of record.

    Attributes:
        type_id: on disk. An id is never given to another record.
        kind: the record's class.
        level: the metadata.version from which on the record may be written; earlier builds do not know it.
    """

    type_id: int
    kind: type[R]
    level: int = 1

    @cached_property
    def mapper(self) -> Mapper[R]:
        """Converts the record to its message, and back."""
        return mapper_of(self.kind)


TABLE: tuple[RecordType[MetadataRecord], ...] = (
    RecordType(1, MetadataVersionRecord),
    RecordType(2, RegisterBrokerRecord),
    RecordType(3, UnregisterBrokerRecord),
    RecordType(4, BrokerChangeRecord),
    RecordType(5, TopicRecord),
    RecordType(6, RemoveTopicRecord),
    RecordType(7, PartitionRecord),
    RecordType(8, PartitionChangeRecord),
    RecordType(9, ConfigRecord),
    RecordType(13, AccessControlEntryRecord),
    RecordType(14, RemoveAccessControlEntryRecord),
    RecordType(10, ProducerIdsRecord),
    RecordType(23, ScramSecretRecord),
    RecordType(21, UserScramCredentialRecord),
    RecordType(22, RemoveUserScramCredentialRecord),
    RecordType(31, ClientQuotaRecord),
    RecordType(41, TieredSegmentRecord),
    RecordType(42, TierStartRecord),
    RecordType(43, DeletedTierRecord),
    RecordType(44, TierReapedRecord),
    RecordType(51, FeatureLevelRecord, LEVEL_OF_FEATURES),
)
"""Every type of record."""

BY_ID: dict[int, RecordType[MetadataRecord]] = {row.type_id: row for row in TABLE}
BY_KIND: dict[type[MetadataRecord], RecordType[MetadataRecord]] = {row.kind: row for row in TABLE}


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
    row = BY_ID.get(type_id)
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
        return row.mapper.decode(data[position:])
    except ProtocolError as error:
        raise FatalError(f"The metadata log holds a {row.kind.__name__} that cannot be read: {error}") from error


def encode_records(records: Iterable[MetadataRecord]) -> list[bytes]:
    """Each record in its envelope."""
    return [encode_record(record) for record in records]


def decode_records(datas: Iterable[bytes]) -> list[MetadataRecord]:
    """The records of envelopes. Raises FatalError as `decode_record` does."""
    return [decode_record(data) for data in datas]
