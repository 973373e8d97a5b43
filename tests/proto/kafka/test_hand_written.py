"""The messages that are read by hand (Produce, Fetch, Metadata) say what kio's schema says, whatever stands in them."""

from __future__ import annotations

import dataclasses
import io
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial._serialize import get_field_writer

from strandline.cluster.broker.handlers import metadata
from strandline.cluster.broker.table import APIS
from strandline.proto.errors import ProtocolError
from strandline.proto.ids import ZERO_UUID
from strandline.proto.kafka import fetch, produce
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import tagged_field, uvarint
from strandline.proto.kafka.schema import kind_of
from tests.proto.kafka.samples import instances, written_by_kio

READERS: dict[Api, Any] = {
    Api.PRODUCE: produce.read_request,
    Api.FETCH: fetch.read_request,
    Api.METADATA: metadata.read_request,
}
CASES = [(api, version) for api in READERS for version in range(APIS[api].first, APIS[api].last + 1)]
UNKNOWN_TAG = 9_999
MILLISECOND = timedelta(milliseconds=1)


def with_unknown_tags(entity: Any) -> bytes:
    """The message as a newer client would write it: one tagged field more at the end of every struct."""
    out = io.BytesIO()
    known: list[bytes] = []
    for field in sorted(dataclasses.fields(entity), key=lambda field: field.metadata.get("tag", -1)):
        value = getattr(entity, field.name)
        tag = field.metadata.get("tag")
        target = out if tag is None else io.BytesIO()
        if "kafka_type" not in field.metadata and value is not None and isinstance(value, tuple):
            target.write(uvarint(len(value) + 1) + b"".join(map(with_unknown_tags, value)))
        elif "kafka_type" not in field.metadata and value is not None:
            target.write(with_unknown_tags(value))
        else:
            writer = get_field_writer(field, flexible=True, is_request_header=False, is_tag=tag is not None)
            writer(target, value)
        if tag is not None and value != field.default:
            known.append(tagged_field(tag, target.getvalue()))
    unknown = tagged_field(UNKNOWN_TAG, b"new")
    return out.getvalue() + uvarint(len(known) + 1) + b"".join(known) + unknown


def expected(api: Api, version: int, message: Any) -> Any:
    """What the reader should make of it."""
    if api is Api.PRODUCE:
        return (
            message.acks,
            message.timeout // MILLISECOND,
            message.transactional_id,
            [
                (
                    getattr(topic, "name", None),
                    (topic.topic_id or ZERO_UUID) if version >= produce.TOPIC_ID_SINCE else None,
                    [(one.index, one.records) for one in topic.partition_data],
                )
                for topic in message.topic_data
            ],
        )
    if api is Api.METADATA:
        everything = message.topics is None or (version == 0 and not message.topics)
        return (
            None if everything else [None if getattr(one, "topic_id", None) else one.name for one in message.topics],
            getattr(message, "allow_auto_topic_creation", True),
            getattr(message, "include_cluster_authorized_operations", False),
            getattr(message, "include_topic_authorized_operations", False),
        )
    replica = message.replica_id if version < fetch.REPLICA_STATE_SINCE else message.replica_state.replica_id

    def topic_of(topic: Any) -> Any:
        return (topic.topic_id or ZERO_UUID) if version >= fetch.TOPIC_ID_SINCE else topic.topic

    return (
        (replica, message.max_wait // MILLISECOND, message.min_bytes, message.max_bytes),
        (message.isolation_level, getattr(message, "session_id", 0), getattr(message, "session_epoch", -1)),
        [
            (
                topic_of(topic),
                one.partition,
                one.fetch_offset,
                one.partition_max_bytes,
                getattr(one, "current_leader_epoch", -1),
                getattr(one, "last_fetched_epoch", -1),
            )
            for topic in message.topics
            for one in topic.partitions
        ],
        [(topic_of(topic), one) for topic in getattr(message, "forgotten_topics_data", ()) for one in topic.partitions],
    )


def seen(api: Api, read: Any) -> Any:
    """What the reader made, in the same shape."""
    if api is Api.PRODUCE:
        return (
            read.acks,
            read.timeout_ms,
            read.transactional_id,
            [
                (topic.name, topic.topic_id, [(index, None if raw is None else bytes(raw)) for index, raw in topic[2]])
                for topic in read.topics
            ],
        )
    if api is Api.METADATA:
        topics = None if read.topics is None else [one.name for one in read.topics]
        return topics, read.may_create, read.cluster_operations, read.topic_operations
    return (
        (read.replica_id, read.max_wait_ms, read.min_bytes, read.max_bytes),
        (read.isolation_level, read.session_id, read.session_epoch),
        [
            (
                one.topic_id if one.name is None else one.name,
                one.partition,
                one.fetch_offset,
                one.max_bytes,
                one.current_leader_epoch,
                one.last_fetched_epoch,
            )
            for one in read.partitions
        ],
        read.forgotten,
    )


@pytest.mark.parametrize(("api", "version"), CASES)
def test_what_is_read_is_what_was_written(api: Api, version: int) -> None:
    """Every field that counts, of every version; unknown tagged fields change nothing (KIP-482)."""
    kind = kind_of(api, version, "request")

    @settings(max_examples=15, deadline=None)
    @given(instances(kind))
    def check(message: Any) -> None:
        read = READERS[api](memoryview(written_by_kio(message)), version)
        assert seen(api, read) == expected(api, version, message)
        if kind.__flexible__:
            newer = READERS[api](memoryview(with_unknown_tags(message)), version)
            assert seen(api, newer) == seen(api, read)

    check()


@pytest.mark.parametrize(("api", "version"), CASES)
def test_a_message_that_is_cut_is_refused(api: Api, version: int) -> None:
    """At whatever byte it ends too early: ProtocolError (or, as it happens, another whole message)."""
    kind = kind_of(api, version, "request")

    @settings(max_examples=8, deadline=None)
    @given(instances(kind), st.data())
    def check(message: Any, data: st.DataObject) -> None:
        raw = written_by_kio(message)
        cut = data.draw(st.integers(0, len(raw) - 1))
        with pytest.raises(ProtocolError):
            READERS[api](memoryview(raw[:cut]), version)

    check()


@pytest.mark.parametrize(("api", "version"), [case for case in CASES if case[0] is not Api.METADATA])
def test_bytes_after_the_message_are_refused(api: Api, version: int) -> None:
    """Metadata excepted: librdkafka sends some, and Kafka never looks."""
    kind = kind_of(api, version, "request")

    @settings(max_examples=3, deadline=None)
    @given(instances(kind))
    def check(message: Any) -> None:
        with pytest.raises(ProtocolError, match="3 bytes after"):
            READERS[api](memoryview(written_by_kio(message) + b"abc"), version)

    check()
