"""The quorum's own records in Kafka's schemas (LeaderChangeMessage, SnapshotHeaderRecord, SnapshotFooterRecord,
VotersRecord, all v0).

They stand in control batches: key = (version int16, type int16), value = a flexible-version message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from uuid import UUID

from strandline.controller.raft.messages import LeaderChange, ReplicaKey
from strandline.log.batch import Record
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import ZERO_UUID, NodeId

_KEY = struct.Struct(">hh")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_VERSION_AND_LEADER = struct.Struct(">hi")
_VERSION_AND_TIME = struct.Struct(">hq")
_VERSION_AND_COUNT = struct.Struct(">hB")
_VOTER = struct.Struct(">i16sBhhBB")
"""Node id, directory id, no endpoints (each node knows them from its configuration), the quorum versions it supports,
no tags twice."""
_NO_TAGS = b"\0"
_VOTERS_MAX = 126
"""Voters in one record, at most: its length byte can say no more, and quorums are far smaller."""


class ControlType(IntEnum):
    """Kafka's control record types that a metadata log or a snapshot may hold."""

    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    VOTERS = 6


def leader_change(change: LeaderChange, timestamp_ms: int) -> Record:
    """The record that opens an epoch."""
    value = _VERSION_AND_LEADER.pack(0, change.leader_id) + _voters(change.voters) + _voters(change.granting_voters)
    return _record(ControlType.LEADER_CHANGE, value + _NO_TAGS, timestamp_ms)


def read_leader(value: bytes) -> NodeId:
    """The controller that a LeaderChangeMessage names. Raises ProtocolError: it is none."""
    try:
        return NodeId(_VERSION_AND_LEADER.unpack_from(value)[1])
    except struct.error as error:
        raise ProtocolError(f"a LeaderChangeMessage of {len(value)} bytes: {error}") from error


def voters_record(voters: tuple[ReplicaKey, ...], timestamp_ms: int) -> Record:
    """The record that says who votes from its offset on."""
    _check_count(voters)
    value = _VERSION_AND_COUNT.pack(0, len(voters) + 1)
    for key in voters:
        directory_id = ZERO_UUID if key.directory_id is None else key.directory_id
        value += _VOTER.pack(key.node_id, directory_id.bytes, 1, 0, 1, 0, 0)
    return _record(ControlType.VOTERS, value + _NO_TAGS, timestamp_ms)


def read_voters(records: Iterable[Record]) -> tuple[ReplicaKey, ...] | None:
    """The voters that a control batch says; None if it does not.

    Raises:
        ProtocolError: a record is no control record, or a VotersRecord that this program did not write.
    """
    for record in records:
        if control_type(record) is ControlType.VOTERS:
            return _read_voters(record.value or b"")
    return None


def _read_voters(value: bytes) -> tuple[ReplicaKey, ...]:
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(value)
        size = _VERSION_AND_COUNT.size + (count - 1) * _VOTER.size + len(_NO_TAGS)
        if version != 0 or not 2 <= count <= _VOTERS_MAX + 1 or len(value) != size:
            raise ProtocolError(f"a VotersRecord of version {version} with {count - 1} voters in {len(value)} bytes")
        keys = []
        for index in range(count - 1):
            node, raw, *_ = _VOTER.unpack_from(value, _VERSION_AND_COUNT.size + index * _VOTER.size)
            directory_id = UUID(bytes=raw)
            keys.append(ReplicaKey(NodeId(node), None if directory_id == ZERO_UUID else directory_id))
    except struct.error as error:
        raise ProtocolError(f"a VotersRecord of {len(value)} bytes: {error}") from error
    if len({key.node_id for key in keys}) != len(keys) or min(key.node_id for key in keys) < 0:
        raise ProtocolError(f"a VotersRecord with these nodes: {[int(key.node_id) for key in keys]}")
    return tuple(keys)


def snapshot_header(last_contained_log_timestamp_ms: int, timestamp_ms: int) -> Record:
    """The first record of a snapshot."""
    value = _VERSION_AND_TIME.pack(0, last_contained_log_timestamp_ms) + _NO_TAGS
    return _record(ControlType.SNAPSHOT_HEADER, value, timestamp_ms)


def snapshot_footer(timestamp_ms: int) -> Record:
    """The last record of a snapshot: without it the snapshot is incomplete."""
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
    """A compact array of structs."""
    _check_count(keys)
    return bytes([len(keys) + 1]) + b"".join(_INT32.pack(key.node_id) + _NO_TAGS for key in keys)


def _check_count(keys: tuple[ReplicaKey, ...]) -> None:
    if len(keys) > _VOTERS_MAX:
        raise ValueError(f"{len(keys)} voters")
