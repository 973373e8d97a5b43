"""The small APIs' encoding against kio's own, and against damaged and newer peers."""

from __future__ import annotations

import io
from datetime import timedelta
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.client.wire.apis import FIRST_FLEXIBLE, SUPPORTED, Api, VersionRange, choose_version
from strandline.client.wire.schema import decode_response, encode_request
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError

EVERY_VERSION = [(api, v) for api, known in SUPPORTED.items() for v in range(known.low, known.high + 1)]


def kio(api: Api, version: int, side: str) -> Any:
    module = import_module(f"kio.schema.{api.name.lower()}.v{version}.{side}")
    name = "".join(part.capitalize() for part in api.name.lower().split("_")) + side.capitalize()
    return module, getattr(module, name)


def written_by_kio(entity: Any) -> bytes:
    from kio.serial import entity_writer

    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_flexibility_is_as_kafkas_schemas_say(api: Api, version: int) -> None:
    """KIP-482: from which version on headers and bodies are flexible."""
    for side in ("request", "response"):
        assert kio(api, version, side)[1].__flexible__ == (version >= FIRST_FLEXIBLE[api])


@pytest.mark.parametrize("version", range(SUPPORTED[Api.METADATA].low, SUPPORTED[Api.METADATA].high + 1))
def test_metadata_requests_are_kios(version: int) -> None:
    """One mapping for every version; what a version does not have is left out."""
    values = {
        "topics": [{"name": "orders", "topic_id": None}],
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    module, kind = kio(Api.METADATA, version, "request")
    known = kind.__dataclass_fields__
    topic_fields = module.MetadataRequestTopic.__dataclass_fields__
    topics = tuple(
        module.MetadataRequestTopic(**{key: value for key, value in topic.items() if key in topic_fields})
        for topic in values["topics"]  # type: ignore[attr-defined]
    )
    theirs = kind(**{key: topics if key == "topics" else value for key, value in values.items() if key in known})
    assert bytes(encode_request(Api.METADATA, version, values)) == written_by_kio(theirs)


@pytest.mark.parametrize("version", [7, 4])
def test_create_topics_requests_are_kios(version: int) -> None:
    """Nested entities, maps of configs, durations in milliseconds."""
    values = {
        "topics": [
            {
                "name": "orders", "num_partitions": 3, "replication_factor": 3,
                "assignments": [{"partition_index": 0, "broker_ids": (1, 2)}],
                "configs": [{"name": "retention.ms", "value": "1"}, {"name": "x", "value": None}],
            }
        ],
        "timeout": 30_000,
        "validate_only": True,
    }  # fmt: skip
    module, kind = kio(Api.CREATE_TOPICS, version, "request")
    theirs = kind(
        topics=(
            module.CreatableTopic(
                name="orders", num_partitions=3, replication_factor=3,
                assignments=(module.CreatableReplicaAssignment(partition_index=0, broker_ids=(1, 2)),),
                configs=(
                    module.CreatableTopicConfig(name="retention.ms", value="1"),
                    module.CreatableTopicConfig(name="x", value=None),
                ),
            ),
        ),
        timeout=timedelta(seconds=30),
        validate_only=True,
    )  # fmt: skip
    assert bytes(encode_request(Api.CREATE_TOPICS, version, values)) == written_by_kio(theirs)


def metadata_response(version: int = 12) -> bytes:
    module, kind = kio(Api.METADATA, version, "response")
    from kio.schema.errors import ErrorCode as KioError

    return written_by_kio(
        kind(
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


def test_responses_are_read_as_kio_writes_them() -> None:
    answer = decode_response(Api.METADATA, 12, metadata_response())
    assert (answer.cluster_id, answer.controller_id, answer.throttle_time) == ("c", 1, 0)
    assert vars(answer.brokers[0]) == {"node_id": 1, "host": "h", "port": 9092, "rack": "a"}
    topic = answer.topics[0]
    assert (topic.name, topic.topic_id, topic.error_code) == ("orders", UUID(int=5), ErrorCode.NONE)
    part = topic.partitions[0]
    assert (part.error_code, part.leader_id, part.leader_epoch) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, 4)
    assert (part.replica_nodes, part.isr_nodes, part.offline_replicas) == ((1, 2), (1,), ())


def test_unknown_tagged_fields_and_error_numbers_are_survived() -> None:
    """KIP-482: a broker newer than this client may add tagged fields and errors."""
    plain = metadata_response()
    assert plain.endswith(b"\0")
    tagged = plain[:-1] + b"\x02\x63\x03abc\xe8\x07\x01z"
    assert decode_response(Api.METADATA, 12, tagged) == decode_response(Api.METADATA, 12, plain)
    assert decode_response(Api.INIT_PRODUCER_ID, 0, bytes(4) + (9_999).to_bytes(2, "big") + bytes(10)).error_code is (
        ErrorCode.UNKNOWN_SERVER_ERROR
    )


@given(st.data())
@settings(max_examples=60)
def test_damaged_responses_raise_protocol_errors_only(data: st.DataObject) -> None:
    """Truncated, flipped and random bytes: a ProtocolError, never another exception, never a huge allocation."""
    whole = metadata_response()
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolError):
        decode_response(Api.METADATA, 12, whole[:cut])
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    for body in (bytes(damaged), data.draw(st.binary(max_size=60))):
        try:
            decode_response(Api.METADATA, 12, body)
        except ProtocolError:
            continue


def test_a_lying_count_is_refused_before_anything_is_made() -> None:
    with pytest.raises(ProtocolError, match="where 0 bytes are left"):
        decode_response(Api.METADATA, 12, bytes(4) + b"\xff\xff\xff\xff\x07")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"CreatableTopic\.num_partitions is missing"):
        encode_request(Api.CREATE_TOPICS, 7, {"topics": [{"name": "x"}]})


def test_versions_are_chosen_from_what_both_speak() -> None:
    """KIP-35: the highest common one; none is an error with both ranges."""
    assert choose_version(Api.FETCH, VersionRange(4, 99), "b") == SUPPORTED[Api.FETCH].high
    assert choose_version(Api.FETCH, VersionRange(0, 11), "b") == 11
    assert choose_version(Api.FETCH, VersionRange(4, 99), "b", at_most=12) == 12
    for offered in (None, VersionRange(0, 2), VersionRange(50, 60)):
        with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
            choose_version(Api.FETCH, offered, "b")
