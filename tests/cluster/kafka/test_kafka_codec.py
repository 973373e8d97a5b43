"""The reader of Kafka's small messages: equal to kio's own on good bytes, bounded and quiet on bad ones."""

from __future__ import annotations

import dataclasses
import io
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from strandline.cluster.kafka import codec
from strandline.cluster.kafka.api import Api
from strandline.cluster.kafka.table import APIS
from strandline.proto import kio_schemas
from strandline.proto.errors import ProtocolError

HAND_WRITTEN = {"Produce": "produce", "Fetch": "fetch", "Metadata": "metadata", "ApiVersions": "api_versions"}


def kind_of(api: Api, version: int, what: str = "request") -> Any:
    schema = api.schema or HAND_WRITTEN[api.name]
    return getattr(kio_schemas.schema(schema, version, what), f"{api.name}{what.title()}")


EVERY_VERSION = [(api, version) for api in APIS.values() for version in range(api.first, api.last + 1)]


def names(case: tuple[Api, int]) -> str:
    return f"{case[0].name}-v{case[1]}"


@pytest.mark.parametrize("case", EVERY_VERSION, ids=names)
def test_the_table_says_of_each_version_what_the_schema_says(case: tuple[Api, int]) -> None:
    """Key and flexibility of each advertised version are those of Kafka's schema (KIP-482)."""
    api, version = case
    kind = kind_of(api, version)
    assert kind.__api_key__ == api.key
    assert kind.__flexible__ == (version >= api.flexible_since)


@pytest.mark.parametrize("case", EVERY_VERSION, ids=names)
def test_every_request_reads_back_as_kio_reads_it(case: tuple[Api, int]) -> None:
    """Our reader and kio's agree on what kio writes."""
    kind = kind_of(*case)

    @settings(max_examples=8, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        message = data.draw(instances(kind))
        out = io.BytesIO()
        entity_writer(kind)(out, message)
        raw = out.getvalue()
        assert codec.decode(kind, memoryview(raw)) == entity_reader(kind)(raw, 0)[0]

    check()


@pytest.mark.parametrize("case", EVERY_VERSION, ids=names)
def test_random_bytes_raise_protocol_errors_alone(case: tuple[Api, int]) -> None:
    """A peer's bytes end in a message or in ProtocolError."""
    kind = kind_of(*case)

    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.sampled_from([0, 1, 2, 3, 5, 0x7F, 0x80, 0xFF, 65]), max_size=60))
    def check(raw: list[int]) -> None:
        try:
            codec.decode(kind, memoryview(bytes(raw)))
        except ProtocolError:
            pass

    check()


def create_topics(version: int) -> Any:
    return kind_of(APIS[19], version)


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
    codec.decode(create_topics(5), memoryview(encoded_create_topics(5)))  # imports and compiles
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            codec.decode(create_topics(5), memoryview(raw))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [2**31 - 1, -2, -(2**31)])
def test_lying_counts_of_the_old_format(count: int) -> None:
    """As above, before flexible versions."""
    with pytest.raises(ProtocolError):
        codec.decode(create_topics(4), memoryview(struct.pack(">i", count) + b"\0" * 100))


def encoded_create_topics(version: int) -> bytes:
    module = kio_schemas.schema("create_topics", version, "request")
    topic = codec.make(
        module.CreatableTopic, name="t", num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    return codec.encode(codec.make(module.CreateTopicsRequest, topics=(topic,), timeout=100, validate_only=False))


def test_unknown_tagged_fields_are_skipped() -> None:
    """KIP-482: a field that is newer than our schema is passed over, at each level (kio raises KeyError)."""
    raw = encoded_create_topics(5)
    assert raw.endswith(b"\0")
    message = codec.decode(create_topics(5), memoryview(raw))
    tagged = raw[:-1] + b"\x02" + b"\x63\x02ab" + b"\xe7\x07\x00"
    assert codec.decode(create_topics(5), memoryview(tagged)) == message


def test_known_tagged_fields_are_read() -> None:
    """A tagged field of the schema gets its value, whatever unknown ones stand beside it."""
    kind = kio_schemas.schema("fetch", 12, "request").FetchRequest
    plain = b"\xff\xff\xff\xff" + b"\0" * 12 + b"\0" + b"\0" * 8 + b"\x01" + b"\x01" + b"\x01"
    message = codec.decode(kind, memoryview(plain + b"\x02" + b"\x00\x04\x04abc" + b"\x09\x01x"))
    assert message.cluster_id == "abc"


def test_a_tagged_field_of_another_size_than_it_claims_is_refused() -> None:
    """The size of a tagged field must be the size of its value."""
    kind = kio_schemas.schema("fetch", 12, "request").FetchRequest
    plain = b"\xff\xff\xff\xff" + b"\0" * 12 + b"\0" + b"\0" * 8 + b"\x01" + b"\x01" + b"\x01"
    with pytest.raises(ProtocolError):
        codec.decode(kind, memoryview(plain + b"\x01" + b"\x00\x06\x04abcXX"))


def test_bytes_after_the_message_are_refused() -> None:
    """A frame holds one message and nothing else."""
    with pytest.raises(ProtocolError, match="3 bytes after"):
        codec.decode(create_topics(5), memoryview(encoded_create_topics(5) + b"abc"))


def test_a_name_that_is_not_utf8_is_refused() -> None:
    """Text is UTF-8 or an error."""
    raw = encoded_create_topics(5).replace(b"\x02t", b"\x02\xff")
    with pytest.raises(ProtocolError, match="UTF-8"):
        codec.decode(create_topics(5), memoryview(raw))


def test_make_leaves_out_what_the_version_lacks_and_converts() -> None:
    """Handlers speak in milliseconds and our error codes, and name every field a version may have."""
    module = kio_schemas.schema("init_producer_id", 0, "response")
    message = codec.make(
        module.InitProducerIdResponse,
        throttle_time=7,
        error_code=53,
        producer_id=9,
        producer_epoch=1,
        of_a_later_version=True,
    )
    assert codec.encode(message) == struct.pack(">ihqh", 7, 53, 9, 1)


def instances(kind: Any) -> st.SearchStrategy[Any]:
    """Any instance of a kio class, with short lists and texts."""

    def of_field(field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
        annotation, nullable = codec._unwrap_optional(field.type)
        if getattr(annotation, "__origin__", None) is tuple:
            inner = codec._unwrap_optional(annotation.__args__[0])[0]
            values = st.lists(of_type(inner, field), max_size=2).map(tuple)
        else:
            values = of_type(annotation, field)
        # A null id is written as zeros; other values of tagged fields may not be null on the wire.
        return st.none() | values if nullable and "tag" not in field.metadata else values

    def of_type(inner: Any, field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
        kafka_type = field.metadata.get("kafka_type")
        return instances(inner) if kafka_type is None else VALUES[kafka_type]

    return st.builds(kind, **{field.name: of_field(field) for field in dataclasses.fields(kind)})


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "string": st.text(max_size=6),
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=8),
    "uuid": st.uuids(),
    "timedelta_i32": st.integers(0, 2**31 - 1).map(codec._milliseconds),
    "timedelta_i64": st.integers(-1, 10**13).map(codec._milliseconds),
}
