"""A refusal is made from the schemas of request and response alone. `test_kafka_faults` asks one of each API."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from strandline.cluster.broker.refusal import refused
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api

ERROR, WHY = ErrorCode.NOT_CONTROLLER, "why"


def answer(api: Api, version: int, asked: dict[str, Any]) -> Any:
    """What a client reads of the refusal of this request."""
    request = schema.request(api, version).decode(bytes(schema.request(api, version).encode(asked)))
    written = schema.response(api, version)
    message = {"throttle_time": 0, **refused(api, version, request, ERROR, WHY)}
    return written.decode(bytes(written.encode(message)))


def test_each_item_has_the_error_under_the_name_that_the_request_gave_it() -> None:
    partitions = [{"partition_index": 3, "timestamp": 7}, {"partition_index": 0, "timestamp": 8}]
    told = answer(
        Api.LIST_OFFSETS,
        9,
        {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": partitions}]},
    )
    [topic] = told.topics
    assert topic.name == "t"
    assert [(one.partition_index, one.error_code, one.offset) for one in topic.partitions] == [
        (3, ERROR, -1),
        (0, ERROR, -1),
    ]


def test_a_name_alone_is_an_item() -> None:
    told = answer(Api.DELETE_GROUPS, 2, {"groups_names": ["a", "b"]})
    assert [(one.group_id, one.error_code) for one in told.results] == [("a", ERROR), ("b", ERROR)]


def test_items_without_names_stand_in_the_order_of_the_request() -> None:
    entry = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*"}
    told = answer(Api.CREATE_ACLS, 3, {"creations": [{**entry, "operation": 3, "permission_type": 3}] * 2})
    assert [(one.error_code, one.error_message) for one in told.results] == [(ERROR, WHY)] * 2


def test_an_error_of_the_whole_leaves_its_arrays_empty() -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    told = answer(Api.OFFSET_DELETE, 0, {"group_id": "g", "topics": topics})
    assert (told.error_code, told.topics) == (ERROR, ())


def test_only_what_names_an_item_is_repeated() -> None:
    """A count or an epoch of the request is no answer to it."""
    topic = {"name": "t", "num_partitions": 5, "replication_factor": 3, "assignments": [], "configs": []}
    [told] = answer(Api.CREATE_TOPICS, 7, {"topics": [topic]}).topics
    assert (told.name, told.num_partitions, told.topic_id, told.error_message) == ("t", -1, None, WHY)
    [found] = answer(
        Api.DELETE_TOPICS, 6, {"topics": [{"name": None, "topic_id": UUID(int=4)}], "timeout": 0}
    ).responses
    assert (found.name, found.topic_id) == (None, UUID(int=4))
