"""Produce and Fetch by hand, held against kio's reading and writing in every version, and against themselves."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.kafka import fetch, produce, schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fetch import READ_COMMITTED, FetchPartition, FetchRequest, PartitionData
from strandline.proto.kafka.fields import Unencodable, tag_section, tagged_field
from strandline.proto.kafka.produce import PartitionResult, ProduceRequest, ProduceTopic
from strandline.proto.kafka.schema import kind_of
from tests.proto.kafka.samples import read_by_kio

PRODUCE = range(produce.FIRST, produce.LAST + 1)
FETCH = range(fetch.FIRST, fetch.LAST + 1)
ID = UUID(int=77)
UNKNOWN = tagged_field(99, b"zz")


def built(api: Api, version: int, values: dict[str, Any]) -> memoryview:
    return memoryview(schema.response(api, version).encode(values))


# ---------------------------------------------------------------- Produce

TOPICS = [
    ProduceTopic("orders", ID, [(0, memoryview(b"batch-0")), (5, memoryview(b"batch-5" * 30))]),
    ProduceTopic("b", ID, [(1, memoryview(b"x")), (2, None)]),
]


def produce_request(version: int) -> bytes:
    return b"".join(produce.write_request(version, ProduceRequest(-1, 1500, None, TOPICS)))


@pytest.mark.parametrize("version", PRODUCE)
def test_produce_requests(version: int) -> None:
    """Names to version 12, ids from 13 (KIP-516); the batches' bytes as they are. What is written is read."""
    body = produce_request(version)
    told = read_by_kio(kind_of(Api.PRODUCE, version, "request"), body)
    assert (told.acks, told.timeout.total_seconds(), told.transactional_id) == (-1, 1.5, None)
    names = [topic.topic_id if version >= 13 else topic.name for topic in told.topic_data]
    assert names == ([ID, ID] if version >= 13 else ["orders", "b"])
    parts = [[(part.index, part.records) for part in topic.partition_data] for topic in told.topic_data]
    assert parts == [[(0, b"batch-0"), (5, b"batch-5" * 30)], [(1, b"x"), (2, None)]]
    read = produce.read_request(memoryview(body), version)
    assert read[:3] == (-1, 1500, None)
    assert [topic.partitions for topic in read.topics] == [topic.partitions for topic in TOPICS]
    assert [topic.topic_id or topic.name for topic in read.topics] == names


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
    [(topic, (good, bad))] = produce.read_response(built(Api.PRODUCE, version, values), version).topics
    assert topic == (ID if version >= 13 else "orders")
    assert (good.index, good.error, good.base_offset, good.log_append_time_ms) == (2, ErrorCode.NONE, 40, -1)
    assert good.log_start_offset == (7 if version >= 5 else -1)
    assert (good.synced_replicas, good.leader_id) == (None, -1)
    assert bad.error is ErrorCode.INVALID_RECORD
    assert bad.message == ("bad batch: no key" if version >= 8 else "")


def produce_response(version: int) -> bytes:
    good, moved = PartitionResult(2), PartitionResult(3, ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")
    good.base_offset, good.log_append_time_ms, good.log_start_offset = 40, 5, 7
    good.synced_replicas = (1, 2, 3)
    moved.leader_id, moved.leader_epoch = 2, 11
    end = tag_section([UNKNOWN])
    return produce.write_response(version, [(TOPICS[0], [good, moved])], tell_replicas=version >= 9, end_tags=end)


@pytest.mark.parametrize("version", PRODUCE)
def test_the_answer_that_is_written_is_read(version: int) -> None:
    """Tagged field 7001: who had synced the batch; tag 0: who leads now (KIP-951)."""
    [(topic, (good, moved))] = produce.read_response(produce_response(version), version).topics
    assert topic == (ID if version >= 13 else "orders")
    assert (good.base_offset, good.log_append_time_ms, good.log_start_offset) == (40, 5, 7 if version >= 5 else -1)
    assert good.synced_replicas == ((1, 2, 3) if version >= 9 else None)
    assert (moved.error, moved.message) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved" if version >= 8 else "")
    assert (moved.leader_id, moved.leader_epoch) == ((2, 11) if version >= 10 else (-1, -1))


# ---------------------------------------------------------------- Fetch

WANTED = [
    FetchPartition("orders", ID, 0, 100, 1000, 4, 3),
    FetchPartition("b", UUID(int=5), 1, 8, 500),
    FetchPartition("orders", ID, 3, 7, 2000),
]


def wanted_request(version: int, **changes: Any) -> FetchRequest:
    forgotten = [(ID, 1), (ID, 2)] if version >= 13 else [("orders", 1), ("orders", 2)]
    full = FetchRequest(500, 1, 52_428_800, WANTED, READ_COMMITTED, "rack-a", -1, 6, 2, forgotten)
    return full._replace(**changes)


@pytest.mark.parametrize("version", FETCH)
def test_fetch_requests(version: int) -> None:
    """Partitions are gathered under their topics; what a version has no room for is left out."""
    told = read_by_kio(
        kind_of(Api.FETCH, version, "request"), bytes(fetch.write_request(version, wanted_request(version)))
    )
    assert (told.max_wait.total_seconds(), told.min_bytes, told.max_bytes) == (0.5, 1, 52_428_800)
    assert told.isolation_level == 1
    if version >= 7:
        assert (told.session_id, told.session_epoch) == (6, 2)
        assert [topic.partitions for topic in told.forgotten_topics_data] == [(1, 2)]
    if version >= 11:
        assert told.rack_id == "rack-a"
    orders, other = told.topics
    assert (orders.topic_id == ID) if version >= 13 else (orders.topic == "orders")
    parts = [(part.partition, part.fetch_offset, part.partition_max_bytes) for part in orders.partitions]
    assert parts == [(0, 100, 1000), (3, 7, 2000)]
    assert [part.fetch_offset for part in other.partitions] == [8]
    if version >= 9:
        assert [part.current_leader_epoch for part in orders.partitions] == [4, -1]


@pytest.mark.parametrize("version", FETCH)
@pytest.mark.parametrize("replica_id", [-1, 3])
def test_the_request_that_is_written_is_read(version: int, replica_id: int) -> None:
    sent = wanted_request(version, replica_id=replica_id)
    read = fetch.read_request(memoryview(fetch.write_request(version, sent)), version)
    assert read[:3] == sent[:3]
    assert (read.isolation_level, read.replica_id) == (READ_COMMITTED, replica_id)
    assert read.rack == ("rack-a" if version >= 11 else None)
    if version >= 7:
        assert (read.session_id, read.session_epoch, read.forgotten) == (6, 2, sent.forgotten)
    gathered = [WANTED[0], WANTED[2], WANTED[1]]
    assert [(one.partition, one.fetch_offset, one.max_bytes) for one in read.partitions] == [
        (one.partition, one.fetch_offset, one.max_bytes) for one in gathered
    ]
    assert [one.topic for one in read.partitions] == [one.topic if version >= 13 else one.name for one in gathered]
    assert read.partitions[0].last_fetched_epoch == (3 if version >= 12 else -1)


def fetched(version: int) -> memoryview:
    """By kio's schema."""
    partitions = [
        {"partition_index": 0, "error_code": 0, "high_watermark": 50, "last_stable_offset": 45, "log_start_offset": 3,
         "aborted_transactions": ({"producer_id": 5, "first_offset": 41},), "preferred_read_replica": 2,
         "records": b"some bytes"},
        {"partition_index": 1, "error_code": 6, "high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1,
         "aborted_transactions": None, "preferred_read_replica": -1, "records": None,
         "current_leader": {"leader_id": 3, "leader_epoch": 8}},
    ]  # fmt: skip
    topics = [{"topic": "orders", "topic_id": ID, "partitions": partitions}]
    return built(Api.FETCH, version, {"throttle_time": 12, "error_code": 0, "session_id": 0, "responses": topics})


@pytest.mark.parametrize("version", FETCH)
def test_fetch_responses(version: int) -> None:
    """Records stay a view of what was received."""
    body = fetched(version)
    told = fetch.read_response(body, version)
    assert (told.throttle_ms, told.error) == (12, ErrorCode.NONE)
    good, moved = told.partitions
    assert good.topic == (ID if version >= 13 else "orders")
    assert (good.partition, good.high_watermark, good.last_stable_offset) == (0, 50, 45)
    assert good.log_start_offset == (3 if version >= 5 else -1)
    assert good.preferred_replica == (2 if version >= 11 else -1)
    assert good.aborted == ((5, 41),)
    assert bytes(good.records) == b"some bytes"
    assert good.records.obj is body.obj
    assert (moved.error, moved.size, len(moved.records)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, 0)
    assert (moved.leader_id, moved.leader_epoch) == ((3, 8) if version >= 12 else (-1, -1))


@pytest.mark.parametrize("version", FETCH)
def test_the_records_that_are_written_are_read(version: int) -> None:
    """Pieces of one partition are one run for who reads them; of which transactions nobody asks, nothing is said."""
    topic: str | UUID = ID if version >= 13 else "orders"
    good, other = PartitionData(topic, 0), PartitionData(topic, 4, ErrorCode.FENCED_LEADER_EPOCH)
    good.high_watermark, good.last_stable_offset, good.log_start_offset = 50, 45, 3
    good.chunks, good.size, good.aborted = (b"some ", b"bytes"), 10, ((5, 41),)
    other.diverging, other.leader_id, other.leader_epoch = (3, 17), 2, 9
    for level, aborted in ((READ_COMMITTED, ((5, 41),)), (fetch.READ_UNCOMMITTED, ())):
        parts = fetch.write_response(version, [good, other], isolation_level=level, session_id=8)
        told = fetch.read_response(memoryview(b"".join(parts)), version)
        read, fenced = told.partitions
        assert (read.topic, bytes(read.records), read.aborted) == (topic, b"some bytes", aborted)
        assert (read.high_watermark, read.last_stable_offset) == (50, 45)
        assert fenced.error is ErrorCode.FENCED_LEADER_EPOCH
        assert fenced.diverging == ((3, 17) if version >= 12 else None)
        assert (fenced.leader_id, fenced.leader_epoch) == ((2, 9) if version >= 16 else (-1, -1))


# ---------------------------------------------------------------- damage

READERS: list[tuple[Callable[..., Any], Callable[[int], bytes | memoryview], range]] = [
    (produce.read_request, produce_request, PRODUCE),
    (produce.read_response, produce_response, PRODUCE),
    (fetch.read_request, lambda version: fetch.write_request(version, wanted_request(version)), FETCH),
    (fetch.read_response, fetched, FETCH),
]


@pytest.mark.parametrize(("read", "make", "versions"), READERS)
def test_damaged_messages(read: Callable[..., Any], make: Callable[[int], bytes], versions: range) -> None:
    """Cut or followed by something: ProtocolError. One byte changed, or random bytes: that or a message."""

    @settings(max_examples=60, deadline=None)
    @given(st.sampled_from(list(versions)), st.data())
    def check(version: int, data: st.DataObject) -> None:
        whole = bytes(make(version))
        for broken in (whole[: data.draw(st.integers(0, len(whole) - 1))], whole + b"abc"):
            with pytest.raises(ProtocolError, match=f" v{version} cannot be read: "):
                read(memoryview(broken), version)
        damaged = bytearray(whole)
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        for body in (bytes(damaged), data.draw(st.binary(max_size=80))):
            try:
                read(memoryview(body), version)
            except ProtocolError:
                continue

    check()


def test_tagged_fields_that_are_too_short_are_refused() -> None:
    """The leader's id without its epoch, more replicas than there are bytes."""
    head = b"\x02\x07orders\x02" + struct.pack(">ihqqq", 0, 0, 9, -1, 0) + b"\x01\x00"
    for field in (tagged_field(0, b"\0\0\0\1"), tagged_field(produce.SYNCED_REPLICAS_TAG, b"\x7f\0\0\0\1")):
        with pytest.raises(ProtocolError, match="ProduceResponse v10 cannot be read"):
            produce.read_response(head + tag_section([field]) + b"\0" + bytes(4) + b"\0", 10)


def test_a_version_that_names_by_id_needs_the_id() -> None:
    topics = [ProduceTopic("orders", None, [(0, memoryview(b"x"))])]
    with pytest.raises(Unencodable, match="needs the id of topic orders"):
        produce.write_request(13, ProduceRequest(-1, 1, None, topics))
    with pytest.raises(Unencodable, match="needs the id of topic orders"):
        fetch.write_request(13, wanted_request(13, partitions=[WANTED[0]._replace(topic_id=None)]))
