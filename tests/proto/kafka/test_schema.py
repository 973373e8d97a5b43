"""The messages by kio's schemas: as kio reads and writes them on good bytes, bounded and quiet on bad ones."""

from __future__ import annotations

import struct
import tracemalloc
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.client.network import SUPPORTED
from strandline.cluster.broker.table import APIS
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ProtocolError
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import REQUEST_ELEMENTS_MAX, Unencodable
from strandline.proto.kafka.schema import kind_of
from strandline.proto.steps import FEW, Steps, at_once
from tests.proto.kafka.samples import instances, plain, read_by_kio, written_by_kio

SERVED = [(served.api, version) for served in APIS.values() for version in range(served.first, served.last + 1)]
CALLED = [(api, version) for api, known in SUPPORTED.items() for version in range(known.low, known.high + 1)]


def names(case: tuple[Api, int]) -> str:
    return f"{case[0].title}-v{case[1]}"


@pytest.mark.parametrize("case", sorted({*SERVED, *CALLED}), ids=names)
def test_keys_names_and_flexibility_are_those_of_kafkas_schemas(case: tuple[Api, int]) -> None:
    """KIP-482: from which version on headers and messages are flexible."""
    api, version = case
    for side in ("request", "response"):
        kind = kind_of(api, version, side)
        assert kind.__api_key__ == api
        assert kind.__flexible__ == api.flexible(version)


def test_a_version_that_kio_does_not_have_yet_is_written_by_hand_here() -> None:
    """KIP-1242: cluster id and node id stand behind the fields of version 4, before the tagged ones."""
    message = schema.request(Api.API_VERSIONS, 5)
    values = {"client_software_name": "a", "client_software_version": "1"}
    assert bytes(message.encode(values)) == b"\x02a\x021\x00\xff\xff\xff\xff\x00"
    raw = bytes(message.encode({**values, "cluster_id": "c", "node_id": 7}))
    assert raw == b"\x02a\x021\x02c\x00\x00\x00\x07\x00"
    read = message.decode(raw)
    assert (read.client_software_name, read.cluster_id, read.node_id) == ("a", "c", 7)
    answer = {"error_code": 129, "api_keys": [], "throttle_time": 0}
    written = [bytes(schema.response(Api.API_VERSIONS, version).encode(answer)) for version in (4, 5)]
    assert written[0] == written[1]


def test_what_is_long_is_read_and_written_in_steps() -> None:
    """Rule A48: in every depth, and what is made is the same."""
    for topics, partitions in ((1, 2000), (2000, 1), (40, 50)):
        numbers = range(partitions)
        asked = [{"partition_index": n, "committed_offset": n, "committed_metadata": "m"} for n in numbers]
        values = {
            "group_id": "g",
            "generation_id_or_member_epoch": 1,
            "member_id": "",
            "topics": [{"name": f"t{n}", "partitions": asked} for n in range(topics)],
        }
        message = schema.request(Api.OFFSET_COMMIT, 9)
        raw = message.encode(values)
        steps = message.encode_in_steps(values)
        stops = topics * (partitions + 1) // FEW
        assert counted(steps) == (raw, stops)
        assert counted(message.decode_in_steps(raw)) == (message.decode(raw), stops)
        with pytest.raises(ProtocolError, match="cannot be read"):
            at_once(message.decode_in_steps(raw[:-1]))
        with pytest.raises(Unencodable):
            at_once(message.encode_in_steps({**values, "topics": [{"name": 1, "partitions": ()}]}))


def counted(steps: Steps[Any]) -> tuple[Any, int]:
    """What they make, and how often they stop."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, count
        count += 1


def test_offsets_of_a_transaction_by_topic_id_are_written_by_hand_here() -> None:
    """KIP-1319: TxnOffsetCommit 6 has the id where version 5 has the name."""
    one = {"partition_index": 3, "committed_offset": 7, "committed_leader_epoch": 2, "committed_metadata": "m"}
    topics = [{"name": "t", "topic_id": UUID(int=5), "partitions": [one]}]
    values = {"transactional_id": "x", "group_id": "g", "producer_id": 9, "producer_epoch": 1, "topics": topics}
    raw = (
        b"\x02x\x02g" + struct.pack(">qhi", 9, 1, -1) + b"\x01\x00"  # whose, and no member
        b"\x02" + UUID(int=5).bytes + b"\x02" + struct.pack(">iqi", 3, 7, 2) + b"\x02m\x00\x00\x00"
    )
    message = schema.request(Api.TXN_OFFSET_COMMIT, 6)
    assert bytes(message.encode(values)) == raw
    [read] = message.decode(raw).topics
    assert (read.topic_id, read.partitions[0].committed_offset) == (UUID(int=5), 7)
    told = {"throttle_time": 0, "topics": [{**topics[0], "partitions": [{"partition_index": 3, "error_code": 100}]}]}
    answer = b"\0\0\0\0\x02" + UUID(int=5).bytes + b"\x02\0\0\0\x03\0\x64\0\0\0"
    assert bytes(schema.response(Api.TXN_OFFSET_COMMIT, 6).encode(told)) == answer


def test_versions_that_kio_has_by_now_are_kios() -> None:
    for (api, version, _), later in schema.LATER.items():
        assert not schema.knows(api, version), "kio has it by now: take the row out"
        assert schema.knows(api, later.like)


@pytest.mark.parametrize("case", SERVED, ids=names)
def test_every_request_reads_back_as_kio_reads_it(case: tuple[Api, int]) -> None:
    """Our reader and kio's agree on what kio writes, and our writer writes it again."""
    kind = kind_of(*case, "request")

    @settings(max_examples=8, deadline=None)
    @given(instances(kind))
    def check(message: Any) -> None:
        raw = written_by_kio(message)
        read = schema.request(*case).decode(raw)
        assert plain(read) == plain(read_by_kio(kind, raw))
        assert schema.request(*case).encode(plain(read)) == raw

    check()


@pytest.mark.parametrize("side", ["request", "response"])
@pytest.mark.parametrize("case", sorted({*SERVED, *CALLED}), ids=names)
def test_random_bytes_raise_protocol_errors_alone(case: tuple[Api, int], side: str) -> None:
    """A peer's bytes end in a message or in ProtocolError."""
    message = getattr(schema, side)(*case)

    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.sampled_from([0, 1, 2, 3, 5, 0x7F, 0x80, 0xFF, 65]), max_size=60))
    def check(raw: list[int]) -> None:
        try:
            message.decode(bytes(raw))
        except ProtocolError:
            pass

    check()


# ---------------------------------------------------------------- requests

CREATE = schema.request(Api.CREATE_TOPICS, 5)
TOPIC = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
ENCODED = bytes(CREATE.encode({"topics": (TOPIC,), "timeout": 100, "validate_only": False}))


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff\xff\xff\x07",  # 2**31 - 1 topics in five bytes
        b"\xff\xff\xff\xff\x0f",  # beyond the protocol's 31 bits
        b"\xff" * 12,  # a varint that does not end
        b"\x02\xff\xff\xff\xff\x07",  # one topic with a name of 2 GB
    ],
)
def test_lying_lengths_allocate_nothing(raw: bytes) -> None:
    """Counts are held against the bytes that are left before anything is allocated; kio's native reader aborts here."""
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="CreateTopicsRequest v5 cannot be read"):
            CREATE.decode(raw)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [2**31 - 1, -2, -(2**31)])
def test_lying_counts_of_the_old_format(count: int) -> None:
    """As above, before flexible versions."""
    with pytest.raises(ProtocolError):
        schema.request(Api.CREATE_TOPICS, 4).decode(struct.pack(">i", count) + b"\0" * 100)


def test_a_message_of_too_many_elements_is_refused() -> None:
    """All arrays together; the bytes alone would be let through."""
    half = REQUEST_ELEMENTS_MAX // 2
    values = {"election_type": 0, "timeout": 0, "topic_partitions": [{"topic": "t", "partitions": range(half)}] * 2}
    elect = schema.request(Api.ELECT_LEADERS, 2)
    with pytest.raises(ProtocolError, match="more than 20000 elements"):
        elect.decode(bytes(elect.encode(values)))


def test_unknown_tagged_fields_are_skipped() -> None:
    """KIP-482: a field that is newer than our schema is passed over, at each level (kio raises KeyError)."""
    assert ENCODED.endswith(b"\0")
    tagged = ENCODED[:-1] + b"\x02" + b"\x63\x02ab" + b"\xe7\x07\x00"
    assert CREATE.decode(tagged) == CREATE.decode(ENCODED)


FETCH = b"\xff\xff\xff\xff" + b"\0" * 12 + b"\0" + b"\0" * 8 + b"\x01" + b"\x01" + b"\x01"
"""A fetch of nothing in version 12, without the tagged fields that end it."""


def test_known_tagged_fields_are_read() -> None:
    """A tagged field of the schema gets its value, whatever unknown ones stand beside it."""
    message = schema.request(Api.FETCH, 12).decode(FETCH + b"\x02" + b"\x00\x04\x04abc" + b"\x09\x01x")
    assert message.cluster_id == "abc"
    assert schema.request(Api.FETCH, 12).decode(FETCH + b"\0").cluster_id is None


def test_a_tagged_field_of_another_size_than_it_claims_is_refused() -> None:
    """The size of a tagged field must be the size of its value."""
    with pytest.raises(ProtocolError, match="2 bytes after the end of the tagged field cluster_id"):
        schema.request(Api.FETCH, 12).decode(FETCH + b"\x01" + b"\x00\x06\x04abcXX")


def test_sections_of_too_many_tagged_fields_are_refused() -> None:
    with pytest.raises(ProtocolError, match="65 tagged fields, 64 are possible"):
        CREATE.decode(ENCODED[:-1] + b"\x41" + b"\x63\x01x" * 65)


def test_bytes_after_the_message_are_refused() -> None:
    """A frame holds one message and nothing else."""
    with pytest.raises(ProtocolError, match="3 bytes after"):
        CREATE.decode(ENCODED + b"abc")


def test_a_name_that_is_not_utf8_is_refused() -> None:
    """Text is UTF-8 or an error."""
    with pytest.raises(ProtocolError, match="UTF-8"):
        CREATE.decode(ENCODED.replace(b"\x02t", b"\x02\xff"))


def test_what_a_version_lacks_is_left_out() -> None:
    """One mapping serves every version; durations are milliseconds, errors numbers."""
    values = {"throttle_time": 7, "error_code": 53, "producer_id": 9, "producer_epoch": 1, "of_a_later_version": True}
    assert schema.response(Api.INIT_PRODUCER_ID, 0).encode(values) == struct.pack(">ihqh", 7, 53, 9, 1)


def test_what_cannot_be_written_is_named() -> None:
    """The caller's fault, not the peer's."""
    with pytest.raises(Unencodable, match=r"CreatableTopic\.num_partitions is missing"):
        CREATE.encode({"topics": [{"name": "x"}]})
    with pytest.raises(Unencodable, match="null where the message must have a value"):
        CREATE.encode({"topics": None, "timeout": 1, "validate_only": False})
    with pytest.raises(Unencodable, match="CreateTopicsRequest v5"):
        CREATE.encode({"topics": [TOPIC | {"name": 5}], "timeout": 1, "validate_only": False})


@pytest.mark.parametrize("version", range(SUPPORTED[Api.METADATA].low, SUPPORTED[Api.METADATA].high + 1))
def test_metadata_requests_are_kios(version: int) -> None:
    """One mapping for every version; what a version does not have is left out."""
    values = {
        "topics": [{"name": "orders", "topic_id": None}],
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    raw = bytes(schema.request(Api.METADATA, version).encode(values))
    told = plain(read_by_kio(kind_of(Api.METADATA, version, "request"), raw))
    assert told["topics"] == [{name: values["topics"][0][name] for name in told["topics"][0]}]  # type: ignore[index]
    assert {name: value for name, value in told.items() if name != "topics"}.items() <= values.items()


# ---------------------------------------------------------------- answers

METADATA = schema.response(Api.METADATA, 12)


def metadata_response() -> bytes:
    """Written by kio."""
    from kio.schema.errors import ErrorCode as KioError
    from kio.schema.metadata.v12 import response as module

    return written_by_kio(
        module.MetadataResponse(  # type: ignore[call-arg]
            throttle_time=timedelta(0),
            brokers=(module.MetadataResponseBroker(node_id=1, host="h", port=9092, rack="a"),),
            cluster_id="c",
            controller_id=1,
            topics=(
                module.MetadataResponseTopic(
                    error_code=KioError.none, name="orders", topic_id=UUID(int=5), is_internal=False,
                    partitions=(
                        module.MetadataResponsePartition(
                            error_code=KioError.leader_not_available, partition_index=0, leader_id=-1, leader_epoch=4,
                            replica_nodes=(1, 2), isr_nodes=(1,), offline_replicas=(),
                        ),
                    ),
                ),
            ),
        )
    )  # fmt: skip


def test_answers_are_read_as_kio_writes_them() -> None:
    answer = METADATA.decode(metadata_response())
    assert (answer.cluster_id, answer.controller_id, answer.throttle_time) == ("c", 1, 0)
    assert answer.brokers[0]._asdict() == {"node_id": 1, "host": "h", "port": 9092, "rack": "a"}
    topic = answer.topics[0]
    assert (topic.name, topic.topic_id, topic.error_code) == ("orders", UUID(int=5), ErrorCode.NONE)
    part = topic.partitions[0]
    assert (part.error_code, part.leader_id, part.leader_epoch) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, 4)
    assert (part.replica_nodes, part.isr_nodes, part.offline_replicas) == ((1, 2), (1,), ())


def test_unknown_error_numbers_are_survived() -> None:
    """A broker newer than this client may add tagged fields (above) and errors."""
    raw = bytes(4) + (9_999).to_bytes(2, "big") + bytes(10)
    assert schema.response(Api.INIT_PRODUCER_ID, 0).decode(raw).error_code is ErrorCode.UNKNOWN_SERVER_ERROR


@given(st.data())
@settings(max_examples=60)
def test_damaged_answers_raise_protocol_errors_only(data: st.DataObject) -> None:
    """Truncated, flipped and random bytes: a ProtocolError, never another exception, never a huge allocation."""
    whole = metadata_response()
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolError):
        METADATA.decode(whole[:cut])
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    for body in (bytes(damaged), data.draw(st.binary(max_size=60))):
        try:
            METADATA.decode(body)
        except ProtocolError:
            continue


def test_a_lying_count_is_refused_before_anything_is_made() -> None:
    with pytest.raises(ProtocolError, match="2147483646 elements, 0 bytes are left"):
        METADATA.decode(bytes(4) + b"\xff\xff\xff\xff\x07")
