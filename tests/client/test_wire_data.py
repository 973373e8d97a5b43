"""Produce and Fetch by hand, held against kio's reading and writing in every version."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.client.versions import SUPPORTED
from strandline.client.wire.fetch import FetchRequest, FetchTopic, FetchWanted, decode_fetch, encode_fetch
from strandline.client.wire.produce import ProduceTopic, decode_produce, encode_produce
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from tests.proto.kafka.samples import kind_of, read_by_kio

PRODUCE = range(SUPPORTED[Api.PRODUCE].low, SUPPORTED[Api.PRODUCE].high + 1)
FETCH = range(SUPPORTED[Api.FETCH].low, SUPPORTED[Api.FETCH].high + 1)
ID = UUID(int=77)


def built(api: Api, version: int, values: dict[str, Any]) -> bytes:
    return bytes(schema.response(api, version).encode(values))


@pytest.mark.parametrize("version", PRODUCE)
def test_produce_requests(version: int) -> None:
    """Names to version 12, ids from 13 (KIP-516); the batches' bytes as they are."""
    topics = [
        ProduceTopic("orders", ID, [(0, b"batch-0"), (5, bytearray(b"batch-5" * 30))]),
        ProduceTopic("b", ID, [(1, b"x")]),
    ]
    body = b"".join(encode_produce(version, -1, 1500, topics))
    told = read_by_kio(kind_of(Api.PRODUCE, version), body)
    assert (told.acks, told.timeout.total_seconds(), told.transactional_id) == (-1, 1.5, None)
    names = [topic.topic_id if version >= 13 else topic.name for topic in told.topic_data]
    assert names == ([ID, ID] if version >= 13 else ["orders", "b"])
    parts = [[(part.index, bytes(part.records)) for part in topic.partition_data] for topic in told.topic_data]
    assert parts == [[(0, b"batch-0"), (5, b"batch-5" * 30)], [(1, b"x")]]


@pytest.mark.parametrize("version", PRODUCE)
def test_produce_responses(version: int) -> None:
    """Offsets, errors, the record that was at fault."""
    details = ({"batch_index": 3, "batch_index_error_message": "no key"},)
    partitions = [
        {"index": 2, "error_code": 0, "base_offset": 40, "log_append_time": -1, "log_start_offset": 7,
         "record_errors": (), "error_message": None},
        {"index": 3, "error_code": 87, "base_offset": -1, "log_append_time": -1, "log_start_offset": -1,
         "record_errors": details, "error_message": "bad batch"},
    ]  # fmt: skip
    values = {"responses": [{"name": "orders", "topic_id": ID, "partition_responses": partitions}], "throttle_time": 0}
    good, bad = decode_produce(version, memoryview(built(Api.PRODUCE, version, values)))
    assert good.topic == (ID if version >= 13 else "orders")
    assert (good.partition, good.error, good.base_offset, good.log_append_time_ms) == (2, ErrorCode.NONE, 40, -1)
    assert good.log_start_offset == (7 if version >= 5 else -1)
    assert (good.replicas, good.current_leader) == (None, None)
    assert bad.error is ErrorCode.INVALID_RECORD
    assert bad.message == ("bad batch: no key" if version >= 8 else None)


def test_the_replicas_of_an_ack_and_the_current_leader() -> None:
    """Tagged field 7001: who had synced the batch; tag 0: who leads now (KIP-951); others are skipped."""
    tags = b"\x03" + b"\x00\x09" + struct.pack(">ii", 2, 11) + b"\x00"
    tags += b"\x63\x02zz" + b"\xd9\x36\x0d" + b"\x04" + struct.pack(">iii", 1, 2, 3)
    body = (
        b"\x02\x07orders\x02"
        + struct.pack(">ihqqq", 0, 0, 9, -1, 0)
        + b"\x01\x00"
        + tags
        + b"\x00"
        + bytes(4)
        + b"\x00"
    )
    [told] = decode_produce(10, body)
    assert told.replicas == (1, 2, 3)
    assert told.current_leader == (2, 11)


def request(**changes: Any) -> FetchRequest:
    wanted = [FetchWanted(0, 100, 4, 1000), FetchWanted(3, 7, -1, 2000)]
    return FetchRequest(500, 1, 52_428_800, False, "rack-a", [FetchTopic("orders", ID, wanted)])._replace(**changes)


@pytest.mark.parametrize("version", FETCH)
@pytest.mark.parametrize("committed", [False, True])
def test_fetch_requests(version: int, committed: bool) -> None:
    """A consumer's fetch without a session, in every version."""
    body = bytes(encode_fetch(version, request(read_committed=committed)))
    told = read_by_kio(kind_of(Api.FETCH, version), body)
    assert (told.max_wait.total_seconds(), told.min_bytes, told.max_bytes) == (0.5, 1, 52_428_800)
    assert told.isolation_level == int(committed)
    if version >= 7:
        assert (told.session_id, told.session_epoch, told.forgotten_topics_data) == (0, -1, ())
    if version >= 11:
        assert told.rack_id == "rack-a"
    [topic] = told.topics
    assert (topic.topic_id == ID) if version >= 13 else (topic.topic == "orders")
    parts = [(part.partition, part.fetch_offset, part.partition_max_bytes) for part in topic.partitions]
    assert parts == [(0, 100, 1000), (3, 7, 2000)]
    if version >= 9:
        assert [part.current_leader_epoch for part in topic.partitions] == [4, -1]


def fetch_response(version: int) -> bytes:
    partitions = [
        {"partition_index": 0, "error_code": 0, "high_watermark": 50, "last_stable_offset": 45, "log_start_offset": 3,
         "aborted_transactions": ({"producer_id": 5, "first_offset": 41},), "preferred_read_replica": 2,
         "records": b"some bytes"},
        {"partition_index": 1, "error_code": 6, "high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1,
         "aborted_transactions": None, "preferred_read_replica": -1, "records": None,
         "current_leader": {"leader_id": 3, "leader_epoch": 8}},
    ]  # fmt: skip
    topics = [{"topic": "orders", "topic_id": ID, "partitions": partitions}]
    values = {"throttle_time": 12, "error_code": 0, "session_id": 0, "responses": topics}
    return built(Api.FETCH, version, values)


@pytest.mark.parametrize("version", FETCH)
def test_fetch_responses(version: int) -> None:
    """Records stay a view of what was received."""
    body = memoryview(fetch_response(version))
    told = decode_fetch(version, body)
    assert (told.throttle_ms, told.error) == (12, ErrorCode.NONE)
    good, moved = told.partitions
    assert good.topic == (ID if version >= 13 else "orders")
    assert (good.partition, good.high_watermark, good.last_stable_offset) == (0, 50, 45)
    assert good.log_start_offset == (3 if version >= 5 else -1)
    assert good.preferred_replica == (2 if version >= 11 else -1)
    assert good.aborted == ((5, 41),)
    assert bytes(good.records) == b"some bytes"
    assert good.records.obj is body.obj
    assert (moved.error, len(moved.records)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert moved.current_leader == ((3, 8) if version >= 12 else None)


@given(st.sampled_from(list(FETCH)), st.data())
@settings(max_examples=80)
def test_damaged_fetch_responses(version: int, data: st.DataObject) -> None:
    """Cut, or one byte changed: ProtocolError or an answer, nothing else."""
    whole = fetch_response(version)
    with pytest.raises(ProtocolError):
        decode_fetch(version, memoryview(whole[: data.draw(st.integers(0, len(whole) - 2))]))
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_fetch(version, memoryview(damaged))
    except ProtocolError:
        return


@given(st.sampled_from(list(PRODUCE)), st.binary(max_size=80))
@settings(max_examples=80)
def test_random_produce_responses(version: int, body: bytes) -> None:
    """Random bytes: ProtocolError or an answer, nothing else."""
    try:
        decode_produce(version, body)
    except ProtocolError:
        return


def test_a_version_that_names_by_id_needs_the_id() -> None:
    with pytest.raises(ProtocolError, match="needs the id of topic orders"):
        encode_produce(13, -1, 1, [ProduceTopic("orders", None, [(0, b"x")])])
    with pytest.raises(ProtocolError, match="needs the id of topic orders"):
        encode_fetch(13, request(topics=[FetchTopic("orders", None, [])]))
