"""Records of the metadata log: every field survives its bytes; what is not understood stops the node."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from strandline.controller.metadata.table import decode_record, encode_record
from strandline.controller.metadata.tiers import (
    DeletedTierRecord,
    TieredSegmentRecord,
    TierReapedRecord,
    TierStartRecord,
)
from strandline.proto.acls import AclBinding, Operation, PatternType, Permission, ResourceKind
from strandline.proto.errors import FatalError
from strandline.proto.ids import Endpoint
from strandline.proto.tier import EpochStart, TieredSegment

nodes = st.integers(0, 2**31 - 1)
int64s = st.integers(0, 2**63 - 1)
uuids = st.uuids()
texts = st.text(max_size=20)
blobs = st.binary(max_size=40)
node_lists = st.lists(nodes, max_size=4).map(tuple)
ports = st.integers(0, 65535)
endpoints = st.builds(Endpoint, texts, ports)
maybe_bools = st.none() | st.booleans()
numbers = st.integers(0, 2**31 - 1)
leaders = st.integers(-1, 2**31 - 1)

acls = st.builds(
    AclBinding,
    st.sampled_from(ResourceKind),
    texts,
    st.sampled_from(PatternType),
    texts,
    texts,
    st.sampled_from(Operation),
    st.sampled_from(Permission),
)

epochs = st.lists(st.builds(EpochStart, numbers, int64s), max_size=3).map(tuple)
segments = st.builds(TieredSegment, uuids, int64s, int64s, int64s, st.integers(-1, 2**63 - 1), epochs, int64s)

records = st.one_of(
    st.builds(AccessControlEntryRecord, acls),
    st.builds(RemoveAccessControlEntryRecord, acls),
    st.builds(MetadataVersionRecord, st.integers(0, 2**32 - 1)),
    st.builds(
        RegisterBrokerRecord,
        nodes,
        uuids,
        int64s,
        st.dictionaries(texts, endpoints, max_size=3),
        endpoints,
        st.none() | texts,
        st.booleans(),
        st.booleans(),
    ),
    st.builds(UnregisterBrokerRecord, nodes, int64s),
    st.builds(BrokerChangeRecord, nodes, int64s, maybe_bools, maybe_bools),
    st.builds(TopicRecord, texts, uuids),
    st.builds(RemoveTopicRecord, uuids),
    st.builds(
        PartitionRecord,
        uuids,
        numbers,
        node_lists,
        node_lists,
        node_lists,
        node_lists,
        leaders,
        numbers,
        numbers,
        st.booleans(),
    ),
    st.builds(
        PartitionChangeRecord,
        uuids,
        numbers,
        st.none() | node_lists,
        st.none() | node_lists,
        st.none() | node_lists,
        st.none() | node_lists,
        st.none() | leaders,
        maybe_bools,
        texts,
    ),
    st.builds(ConfigRecord, st.sampled_from([2, 4]), texts, texts, st.none() | texts),
    st.builds(ProducerIdsRecord, nodes, int64s, int64s),
    st.builds(UserScramCredentialRecord, texts, numbers, blobs, numbers, blobs, blobs),
    st.builds(RemoveUserScramCredentialRecord, texts, numbers),
    st.builds(ScramSecretRecord, blobs),
    st.builds(ClientQuotaRecord, st.none() | texts, st.none() | texts, texts, st.none() | texts, st.none() | texts),
    st.builds(TieredSegmentRecord, uuids, numbers, segments),
    st.builds(TierStartRecord, uuids, numbers, int64s),
    st.builds(DeletedTierRecord, uuids, texts),
    st.builds(TierReapedRecord, uuids),
)


@given(record=records)
def test_every_record_survives_its_bytes(record: MetadataRecord) -> None:
    """None, empty and zero are three things, where a field may be absent."""
    data = encode_record(record)
    assert decode_record(data) == record
    assert encode_record(decode_record(data)) == data


def test_unknown_type_stops_the_node() -> None:
    """Never dropped: a newer program's record may be what forbids what this one would do next."""
    with pytest.raises(FatalError, match="type 300"):
        decode_record(bytes((0xAC, 0x02, 1)))


def test_unknown_version_stops_the_node() -> None:
    """The sentence names record and version."""
    with pytest.raises(FatalError, match="TopicRecord of version 2"):
        decode_record(bytes((5, 2)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x05",
        b"\x85\x85\x85\x85\x85\x85",
        b"\x05\x01\xff\xff\xff",
        b"\x05\x01\x12\x03abc",
        encode_record(TopicRecord("orders", UUID(int=1)))[:-1],
    ],
    ids=["empty", "type alone", "endless varint", "no protobuf", "a topic id of 3 bytes", "cut short"],
)
def test_damaged_record_stops_the_node(data: bytes) -> None:
    """A truncated or altered record is told from a good one, and is fatal."""
    with pytest.raises(FatalError):
        decode_record(data)


@given(record=records, position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_flipped_bit_never_raises_anything_else(record: MetadataRecord, position: int, bit: int) -> None:
    """Whatever a flip makes of the bytes: another record of sound types, or FatalError."""
    data = bytearray(encode_record(record))
    data[position % len(data)] ^= 1 << bit
    try:
        decode_record(bytes(data))
    except FatalError:
        pass
