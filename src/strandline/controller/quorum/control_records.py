"""Control records of the metadata log and its snapshots, in Kafka's schemas (LeaderChangeMessage,
SnapshotHeaderRecord, SnapshotFooterRecord, KRaftVersionRecord, VotersRecord, all v0).

They are stored in control batches: key = (version int16, type int16), value = a message with a flexible version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from uuid import UUID

from strandline.controller.raft.messages import LeaderChange, ReplicaKey, VotersChange
from strandline.log.batch import Record
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import ZERO_UUID, Endpoint, NodeId

_KEY = struct.Struct(">hh")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_VERSION_AND_LEADER = struct.Struct(">hi")
_VERSION_AND_TIME = struct.Struct(">hq")
_VERSION_AND_COUNT = struct.Struct(">hB")
_VOTER = struct.Struct(">i16sB")
"""Node id, directory id, number of endpoints + 1. At kraft.version 0 there are no endpoints: nodes know them from their
configuration."""
_UINT16 = struct.Struct(">H")
_RANGE = struct.Struct(">hhBB")
"""Lowest and highest kraft.version that a voter supports, then two empty tagged-field sections."""
_LISTENER = "INTERNAL"
"""Name of the listener whose endpoint is recorded for a voter."""
_NO_TAGS = b"\0"
KRAFT_VERSION_MAX = 1
"""Newest kraft.version that this build supports."""
_VOTERS_MAX = 126
"""Maximum voters in one record: its length has one byte, and quorums are far smaller."""
_TEXT_MAX = 16_000
"""Maximum bytes of a host name, whose length is written in two bytes. DNS names have at most 255."""


class ControlType(IntEnum):
    """Kafka's control record types that a metadata log or a snapshot may hold."""

    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    VOTERS = 6


def leader_change(change: LeaderChange, timestamp_ms: int) -> Record:
    """LeaderChangeMessage record, the first record of an epoch."""
    value = _VERSION_AND_LEADER.pack(0, change.leader_id) + _voters(change.voters) + _voters(change.granting_voters)
    return _record(ControlType.LEADER_CHANGE, value + _NO_TAGS, timestamp_ms)


def read_leader(value: bytes) -> NodeId:
    """Node id of the leader in a LeaderChangeMessage. Raises ProtocolError if `value` is not such a message."""
    try:
        return NodeId(_VERSION_AND_LEADER.unpack_from(value)[1])
    except struct.error as error:
        raise ProtocolError(f"a LeaderChangeMessage of {len(value)} bytes: {error}") from error


def voters_records(said: VotersChange, timestamp_ms: int) -> list[Record]:
    """Records that set the voters from their offset on. From kraft.version 1 on a KRaftVersionRecord precedes each
    VotersRecord, so that a set of voters can be read alone."""
    _check_count(said.voters)
    value = _VERSION_AND_COUNT.pack(0, len(said.voters) + 1)
    for place, key in enumerate(said.voters):
        directory_id = ZERO_UUID if key.directory_id is None else key.directory_id
        endpoints = said.endpoints[place : place + 1]
        value += _VOTER.pack(key.node_id, directory_id.bytes, len(endpoints) + 1)
        value += b"".join(_endpoint(endpoint) for endpoint in endpoints)
        value += _RANGE.pack(0, KRAFT_VERSION_MAX, 0, 0)
    voters = _record(ControlType.VOTERS, value + _NO_TAGS, timestamp_ms)
    if said.kraft_version == 0:
        return [voters]
    version = _INT16.pack(0) + _INT16.pack(said.kraft_version) + _NO_TAGS
    return [_record(ControlType.KRAFT_VERSION, version, timestamp_ms), voters]


def _endpoint(endpoint: Endpoint) -> bytes:
    return _text(_LISTENER) + _text(endpoint.host) + _UINT16.pack(endpoint.port) + _NO_TAGS


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) > _TEXT_MAX:
        raise ValueError(f"{len(data)} bytes in a name of a voter's endpoint")
    return _length(len(data) + 1) + data


def _length(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])


def read_voters(records: Iterable[Record]) -> VotersChange | None:
    """The voters set by a control batch; None if it does not set them.

    Raises:
        ProtocolError: a record is not a control record, or has a form that this program does not support, e.g. another
            kraft.version.
    """
    version = 0
    for record in records:
        kind = control_type(record)
        if kind is ControlType.KRAFT_VERSION:
            version = _read_version(record.value or b"")
        elif kind is ControlType.VOTERS:
            return _read_voters(record.value or b"", version)
    return None


def _read_version(value: bytes) -> int:
    if len(value) != 2 * _INT16.size + len(_NO_TAGS) or value[:2] != _INT16.pack(0):
        raise ProtocolError(f"a KRaftVersionRecord of {len(value)} bytes")
    (version,) = _INT16.unpack_from(value, _INT16.size)
    if not 1 <= version <= KRAFT_VERSION_MAX:
        raise ProtocolError(f"kraft.version {version}: this build knows 0 to {KRAFT_VERSION_MAX}")
    return int(version)


def _read_voters(value: bytes, kraft_version: int) -> VotersChange:
    voters: list[tuple[ReplicaKey, Endpoint | None]] = []
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(value)
        if version != 0 or not 2 <= count <= _VOTERS_MAX + 1:
            raise ProtocolError(f"a VotersRecord of version {version} with {count - 1} voters")
        at = _VERSION_AND_COUNT.size
        for _ in range(count - 1):
            voter, at = _read_voter(value, at, kraft_version)
            voters.append(voter)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a VotersRecord of {len(value)} bytes: {error}") from error
    if len(value) != at + len(_NO_TAGS):
        raise ProtocolError(f"a VotersRecord of {len(value)} bytes, of which {at} are of its voters")
    keys = tuple(key for key, _ in voters)
    if len({key.node_id for key in keys}) != len(keys) or min(key.node_id for key in keys) < 0:
        raise ProtocolError(f"a VotersRecord with these nodes: {[int(key.node_id) for key in keys]}")
    endpoints = tuple(endpoint for _, endpoint in voters if endpoint is not None)
    if len(endpoints) != (len(keys) if kraft_version > 0 else 0):
        raise ProtocolError(f"a VotersRecord of kraft.version {kraft_version} with {len(endpoints)} endpoints")
    if kraft_version > 0 and any(key.directory_id is None for key in keys):
        raise ProtocolError(f"a VotersRecord of kraft.version {kraft_version} that leaves a directory open")
    return VotersChange(keys, kraft_version, endpoints)


def _read_voter(value: bytes, at: int, kraft_version: int) -> tuple[tuple[ReplicaKey, Endpoint | None], int]:
    """Parse the voter at `at`. Returns ((voter, its endpoint), position of the next one)."""
    node, raw, listeners = _VOTER.unpack_from(value, at)
    at += _VOTER.size
    endpoint: Endpoint | None = None
    for _ in range(listeners - 1):
        name, at = _read_text(value, at)
        host, at = _read_text(value, at)
        (port,) = _UINT16.unpack_from(value, at)
        at += _UINT16.size + len(_NO_TAGS)
        if name == _LISTENER:
            endpoint = Endpoint(host, port)
    low, high, *_ = _RANGE.unpack_from(value, at)
    if not low <= kraft_version <= high:
        raise ProtocolError(f"a voter of kraft.version {low} to {high} in a set of {kraft_version}")
    directory_id = UUID(bytes=raw)
    key = ReplicaKey(NodeId(node), None if directory_id == ZERO_UUID else directory_id)
    return (key, endpoint), at + _RANGE.size


def _read_text(value: bytes, at: int) -> tuple[str, int]:
    length = value[at]
    at += 1
    if length >= 128:
        length = length & 127 | value[at] << 7
        at += 1
    data = value[at : at + length - 1]
    if length < 1 or len(data) != length - 1:
        raise IndexError(f"a text of {length - 1} bytes at {at}")
    return data.decode(), at + length - 1


def snapshot_header(last_contained_log_timestamp_ms: int, timestamp_ms: int) -> Record:
    """SnapshotHeaderRecord, the first record of a snapshot. Times are in milliseconds."""
    value = _VERSION_AND_TIME.pack(0, last_contained_log_timestamp_ms) + _NO_TAGS
    return _record(ControlType.SNAPSHOT_HEADER, value, timestamp_ms)


def snapshot_footer(timestamp_ms: int) -> Record:
    """SnapshotFooterRecord, the last record of a snapshot; a snapshot without it is incomplete."""
    return _record(ControlType.SNAPSHOT_FOOTER, _INT16.pack(0) + _NO_TAGS, timestamp_ms)


def control_type(record: Record) -> ControlType | None:
    """Type of a record of a control batch; None for a type that this program does not write.

    Raises:
        ProtocolError: the key is not that of a control record.
    """
    if record.key is None or len(record.key) != _KEY.size:
        raise ProtocolError(f"a control record's key must be {_KEY.size} bytes, not {record.key!r}")
    _, number = _KEY.unpack(record.key)
    return ControlType(number) if number in ControlType.__members__.values() else None


def _record(kind: ControlType, value: bytes, timestamp_ms: int) -> Record:
    return Record(0, timestamp_ms, _KEY.pack(0, kind), value)


def _voters(keys: tuple[ReplicaKey, ...]) -> bytes:
    """Encode voters as a compact array of structs."""
    _check_count(keys)
    return bytes([len(keys) + 1]) + b"".join(_INT32.pack(key.node_id) + _NO_TAGS for key in keys)


def _check_count(keys: tuple[ReplicaKey, ...]) -> None:
    if len(keys) > _VOTERS_MAX:
        raise ValueError(f"{len(keys)} voters")
