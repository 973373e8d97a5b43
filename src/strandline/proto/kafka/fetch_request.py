"""The request of Fetch (1) in both directions, by hand.

Versions up to 12 name topics, 13 and later give their ids (KIP-516).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from strandline.proto.errors import ProtocolError
from strandline.proto.ids import TopicId
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.bounds import REQUEST_ELEMENTS_MAX, Elements
from strandline.proto.kafka.fields import (
    INT32,
    NO_TAGS,
    Unencodable,
    array_head,
    check_end,
    int32_array,
    read_count,
    read_fixed,
    read_string,
    read_tags,
    read_topic,
    skip_tags,
    string,
    tag_section,
    tagged_field,
    topic_reference,
    unreadable,
)

FIRST, LAST = 4, 18
FLEXIBLE_SINCE = Api.FETCH.flexible_since
LOG_START_SINCE = 5
SESSION_SINCE = 7
LEADER_EPOCH_SINCE = 9
RACK_SINCE = 11
TOPIC_ID_SINCE = 13
REPLICA_STATE_SINCE = 15

REPLICA_STATE_TAG = 1

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Isolation levels."""

NO_SESSION = 0
"""The session id of a fetch without a session (KIP-227)."""

FINAL_EPOCH = -1
"""The session epoch of a fetch that wants none, or no more."""

PartitionKey = tuple[str | UUID, int]
"""(topic's name or id, partition)."""

TOPIC_BYTES_MIN = 3
"""A topic with an empty name, no partition and no tagged field takes a byte each."""

_LIMITS = struct.Struct(">iiib")  # max wait in ms, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")  # session id, session epoch
_REPLICA_STATE = struct.Struct(">iqb")  # replica id, its epoch, no tagged fields

_PARTITION_LAYOUTS = {
    4: struct.Struct(">iqi"),  # partition, fetch offset, max bytes
    LOG_START_SINCE: struct.Struct(">iqqi"),  # and log start offset before max bytes
    LEADER_EPOCH_SINCE: struct.Struct(">iiqqi"),  # and current leader epoch after partition
    FLEXIBLE_SINCE: struct.Struct(">iiqiqi"),  # and last fetched epoch after fetch offset
}
_UNKNOWN_EPOCH = -1
_UNKNOWN_LOG_START = -1
"""Only replicas say where their logs start."""


class FetchPartition(NamedTuple):
    """One partition to read; the topic is named by `name` or, from version 13 on, by `topic_id`.

    `last_fetched_epoch` is the leader epoch of the record before `fetch_offset` (-1: unknown): where it diverges from
    the leader's log, the answer says so and holds no records (KIP-595). `current_leader_epoch` -1 leaves the leader's
    epoch unchecked.
    """

    name: str | None
    topic_id: TopicId | None
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1

    @property
    def topic(self) -> str | UUID:
        """The name or id by which it is asked for."""
        return self.topic_id if self.topic_id is not None else self.name or ""


class FetchRequest(NamedTuple):
    """What is to be read.

    Attributes:
        replica_id: -1 for consumers, -2 for those that read a replica on its own broker, whoever leads.
        max_wait_ms: how long the answer may wait for `min_bytes`.
        max_bytes: of the whole answer. It and each partition's own are exceeded only by the first batch of the answer,
            so that a consumer always makes progress (KIP-74).
        session_id, session_epoch: of an incremental session (KIP-227); what they mean is decided elsewhere.
        forgotten: what the session shall forget.
        rack: where the consumer says it is, "" nowhere; None is a consumer of before KIP-392, who reads from leaders
            alone.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: Sequence[FetchPartition]
    isolation_level: int = READ_UNCOMMITTED
    rack: str | None = None
    replica_id: int = -1
    session_id: int = NO_SESSION
    session_epoch: int = FINAL_EPOCH
    forgotten: Sequence[PartitionKey] = ()


def write_request(version: int, request: FetchRequest) -> bytearray:
    """The body.

    Raises:
        Unencodable: the version names topics by id, and an id is missing.
    """
    flexible = version >= FLEXIBLE_SINCE
    out = bytearray()
    if version < REPLICA_STATE_SINCE:
        out += INT32.pack(request.replica_id)
    out += _LIMITS.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    if version >= SESSION_SINCE:
        out += _SESSION.pack(request.session_id, request.session_epoch)
    _write_topics(out, version, request.partitions)
    if version >= SESSION_SINCE:
        _write_forgotten(out, version, request.forgotten)
    if version >= RACK_SINCE:
        out += string(request.rack or "", flexible)
    if flexible:
        named = version >= REPLICA_STATE_SINCE and request.replica_id >= 0
        state = _REPLICA_STATE.pack(request.replica_id, _UNKNOWN_EPOCH, 0)
        out += tag_section([tagged_field(REPLICA_STATE_TAG, state)] if named else [])
    return out


def _write_topics(out: bytearray, version: int, wanted: Sequence[FetchPartition]) -> None:
    flexible = version >= FLEXIBLE_SINCE
    tags = NO_TAGS if flexible else b""
    pack = _layout_of(version).pack
    topics: dict[str | UUID, list[FetchPartition]] = {}
    for one in wanted:
        key = one.topic_id if version >= TOPIC_ID_SINCE else one.name
        if key is None:
            raise Unencodable(f"Fetch v{version} needs the id of topic {one.name}")
        topics.setdefault(key, []).append(one)
    out += array_head(len(topics), flexible)
    for topic, partitions in topics.items():
        out += topic_reference(topic, flexible)
        out += array_head(len(partitions), flexible)
        for _, _, partition, offset, max_bytes, epoch, last_epoch in partitions:
            if flexible:
                out += pack(partition, epoch, offset, last_epoch, _UNKNOWN_LOG_START, max_bytes)
            elif version >= LEADER_EPOCH_SINCE:
                out += pack(partition, epoch, offset, _UNKNOWN_LOG_START, max_bytes)
            elif version >= LOG_START_SINCE:
                out += pack(partition, offset, _UNKNOWN_LOG_START, max_bytes)
            else:
                out += pack(partition, offset, max_bytes)
            out += tags
        out += tags


def _write_forgotten(out: bytearray, version: int, forgotten: Sequence[PartitionKey]) -> None:
    flexible = version >= FLEXIBLE_SINCE
    topics: dict[str | UUID, list[int]] = {}
    for topic, partition in forgotten:
        topics.setdefault(topic, []).append(partition)
    out += array_head(len(topics), flexible)
    for topic, partitions in topics.items():
        out += topic_reference(topic, flexible) + int32_array(partitions, flexible) + (NO_TAGS if flexible else b"")


def _layout_of(version: int) -> struct.Struct:
    return _PARTITION_LAYOUTS[max(since for since in _PARTITION_LAYOUTS if since <= version)]


def read_request(view: memoryview, version: int) -> FetchRequest:
    """Raises ProtocolError."""
    try:
        return _read_request(view, version)
    except (struct.error, ProtocolError) as error:
        raise unreadable(f"FetchRequest v{version}", error) from error


def _read_request(view: memoryview, version: int) -> FetchRequest:
    flexible = version >= FLEXIBLE_SINCE
    position = 0
    replica_id = -1
    if version < REPLICA_STATE_SINCE:
        (replica_id,), position = read_fixed(view, position, INT32)
    (max_wait_ms, min_bytes, max_bytes, isolation_level), position = read_fixed(view, position, _LIMITS)
    session_id, session_epoch = NO_SESSION, FINAL_EPOCH
    if version >= SESSION_SINCE:
        (session_id, session_epoch), position = read_fixed(view, position, _SESSION)
    elements = Elements(REQUEST_ELEMENTS_MAX)
    wanted, position = _read_topics(view, position, version, elements)
    forgotten: list[PartitionKey] = []
    if version >= SESSION_SINCE:
        forgotten, position = _read_forgotten(view, position, version, elements)
    rack = None
    if version >= RACK_SINCE:
        rack, position = read_string(view, position, flexible)
    if flexible:
        fields, position = read_tags(view, position)
        if version >= REPLICA_STATE_SINCE and REPLICA_STATE_TAG in fields:
            (replica_id,), _ = read_fixed(fields[REPLICA_STATE_TAG], 0, INT32)
    check_end(view, position, "the message")
    session = (session_id, session_epoch, forgotten)
    return FetchRequest(max_wait_ms, min_bytes, max_bytes, wanted, isolation_level, rack, replica_id, *session)


def _read_topics(view: memoryview, position: int, version: int, elements: Elements) -> tuple[list[FetchPartition], int]:
    flexible = version >= FLEXIBLE_SINCE
    layout = _layout_of(version)
    unpack, size = layout.unpack_from, layout.size
    wanted: list[FetchPartition] = []
    count, position = read_count(view, position, TOPIC_BYTES_MIN, flexible, elements)
    for _ in range(count):
        name, topic_id, position = read_topic(view, position, version >= TOPIC_ID_SINCE, flexible)
        partition_count, position = read_count(view, position, size, flexible, elements)
        for _ in range(partition_count):
            fields = unpack(view, position)
            position += size
            if flexible:
                position = skip_tags(view, position)
                partition, current_epoch, offset, last_epoch, _, max_bytes = fields
            elif version >= LEADER_EPOCH_SINCE:
                partition, current_epoch, offset, _, max_bytes = fields
                last_epoch = _UNKNOWN_EPOCH
            else:
                partition, offset, max_bytes = fields[0], fields[1], fields[-1]
                current_epoch = last_epoch = _UNKNOWN_EPOCH
            wanted.append(FetchPartition(name, topic_id, partition, offset, max_bytes, current_epoch, last_epoch))
        if flexible:
            position = skip_tags(view, position)
    return wanted, position


def _read_forgotten(
    view: memoryview, position: int, version: int, elements: Elements
) -> tuple[list[PartitionKey], int]:
    flexible = version >= FLEXIBLE_SINCE
    forgotten: list[PartitionKey] = []
    count, position = read_count(view, position, TOPIC_BYTES_MIN, flexible, elements)
    for _ in range(count):
        name, topic_id, position = read_topic(view, position, version >= TOPIC_ID_SINCE, flexible)
        partition_count, position = read_count(view, position, INT32.size, flexible, elements)
        for _ in range(partition_count):
            forgotten.append((topic_id or name or "", INT32.unpack_from(view, position)[0]))
            position += INT32.size
        if flexible:
            position = skip_tags(view, position)
    return forgotten, position
