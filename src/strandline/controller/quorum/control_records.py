"""The quorum's own records in Kafka's schemas (LeaderChangeMessage, SnapshotHeaderRecord, SnapshotFooterRecord, v0).

They stand in control batches: key = (version int16, type int16), value = a flexible-version message.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from strandline.controller.raft.messages import LeaderChange, ReplicaKey
from strandline.log.records import Record
from strandline.proto.errors import ProtocolError

_KEY = struct.Struct(">hh")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_VERSION_AND_LEADER = struct.Struct(">hi")
_VERSION_AND_TIME = struct.Struct(">hq")
_NO_TAGS = b"\0"


class ControlType(IntEnum):
    """Kafka's control record types that a metadata log or a snapshot may hold."""

    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4


def leader_change(change: LeaderChange, timestamp_ms: int) -> Record:
    """The record that opens an epoch."""
    value = _VERSION_AND_LEADER.pack(0, change.leader_id) + _voters(change.voters) + _voters(change.granting_voters)
    return _record(ControlType.LEADER_CHANGE, value + _NO_TAGS, timestamp_ms)


def snapshot_header(last_contained_log_timestamp_ms: int, timestamp_ms: int) -> Record:
    """The first record of a snapshot."""
    value = _VERSION_AND_TIME.pack(0, last_contained_log_timestamp_ms) + _NO_TAGS
    return _record(ControlType.SNAPSHOT_HEADER, value, timestamp_ms)


def snapshot_footer(timestamp_ms: int) -> Record:
    """The last record of a snapshot: without it the snapshot is incomplete."""
    return _record(ControlType.SNAPSHOT_FOOTER, _INT16.pack(0) + _NO_TAGS, timestamp_ms)


def control_type(record: Record) -> ControlType | None:
    """What a record of a control batch is; None for a type that this program does not write.

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
    """A compact array of structs; quorums are far smaller than the 126 entries that one length byte can say."""
    if len(keys) > 126:
        raise ValueError(f"{len(keys)} voters")
    return bytes([len(keys) + 1]) + b"".join(_INT32.pack(key.node_id) + _NO_TAGS for key in keys)
