"""Fault injection on the Kafka listener: any API, any version, a valid answer with the error that was asked for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from kafka_case import run
from kafka_node import KafkaNode
from kafka_wire import KafkaClient, request_class
from test_groups_wire import found
from test_kafka_produce import batch, produced

from strandline.cluster.broker.api import ApiRow, ServedApi
from strandline.cluster.broker.table import APIS
from strandline.cluster.node.faults.injection import BadFault, FaultInjection
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.schema import without_none

ERROR = "DELEGATION_TOKEN_EXPIRED"
"""Nothing here answers so by itself."""

NUMBER = 66

QUORUM = {"topics": ({"topic_name": "__cluster_metadata", "partitions": ({"partition_index": 0},)},)}

NO_PLACE = {("DescribeLogDirs", 1), ("DescribeLogDirs", 2)}
"""Versions whose answer has no error of the whole."""


def one_of_each(kind: Any, api: str) -> dict[str, Any]:
    """A request that asks for one thing: every array has one element, every text a letter."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if "tag" in field.metadata:
            continue
        annotation, nullable = without_none(field.type)
        is_list = getattr(annotation, "__origin__", None) is tuple
        inner = without_none(annotation.__args__[0])[0] if is_list else annotation
        kafka_type = field.metadata.get("kafka_type")
        if kafka_type is None:
            values[field.name] = one_of_each(inner, api)
        elif kafka_type == "string":
            values[field.name] = "a"
        elif kafka_type in ("bytes", "records", "uuid"):
            values[field.name] = None if nullable else b""
        elif kafka_type == "bool":
            values[field.name] = False
        else:
            values[field.name] = 1
        if is_list:
            values[field.name] = (values[field.name],)
    if api == "Fetch":
        values |= {"session_id": 0, "session_epoch": -1, "max_wait": 0}
    return values


def errors_in(message: Any) -> set[int]:
    """Every error code of an answer."""
    if isinstance(message, tuple):
        return set().union(*map(errors_in, message))
    if not dataclasses.is_dataclass(message):
        return set()
    inner = [errors_in(getattr(message, field.name)) for field in dataclasses.fields(message)]
    own = {int(getattr(message, name, 0) or 0) for name in ("error_code", "partition_error_code")}
    return own.union(*inner)


def _never(*_arguments: object) -> bool:
    raise AssertionError("no request comes here")


UNBOUND = {key: ServedApi(row.api, row.first, row.last, _never, _never) for key, row in APIS.items()}


def inject(node: KafkaNode) -> FaultInjection:
    faults = FaultInjection()
    node.listener.apis = faults.intercept(node.listener.apis)
    return faults


@pytest.mark.parametrize("served", APIS.values(), ids=lambda served: served.api.title)
def test_every_version_of_every_api_answers_with_the_error_once(tmp_path: Path, served: ApiRow) -> None:
    """The answer is one of that version, kio reads all of it, the error stands in it; the next request is served."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        await found(client, "a")  # or each request about a group waits a second for its coordinator
        faults = inject(node)
        api, name = served.api, served.api.name.lower()
        for version in range(served.first, served.last + 1):
            values = one_of_each(request_class(name, version), api.title)
            if api is Api.DESCRIBE_QUORUM:  # it has one partition, and says of all others that they are unknown
                values = QUORUM
            if (api.title, version) in NO_PLACE:
                continue
            fault = faults.fail_next(api.title, ERROR)
            assert NUMBER in errors_in(await client.ask(name, version, **values)), version
            assert fault.met == 1
            assert NUMBER not in errors_in(await client.ask(name, version, **values)), version

    run(tmp_path, main)


def test_nothing_is_written_by_a_produce_that_was_made_to_fail(tmp_path: Path) -> None:
    """The fault strikes before the log; the same batch then goes in at offset 0, and only `times` requests fail."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        faults = inject(node)
        node.create_topic("orders")
        fault = faults.fail_next("PRODUCE", "NOT_LEADER_OR_FOLLOWER", times=2)
        codes = [await produced(client, 9, "orders", {0: batch(b"x")}) for _ in range(4)]
        assert [(int(one.error_code), one.base_offset) for one in codes] == [(6, -1), (6, -1), (0, 0), (0, 1)]
        assert (fault.met, fault.times) == (2, 2)

    run(tmp_path, main)


def test_a_request_with_no_place_for_an_error_does_not_use_the_fault_up(tmp_path: Path) -> None:
    """Metadata before version 13 has errors of topics alone: asked for none, it is answered, and the fault waits."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        faults = inject(node)
        fault = faults.fail_next("Metadata", ERROR)
        assert errors_in(await client.ask("metadata", 9, topics=())) == {0}
        assert fault.met == 0
        assert NUMBER in errors_in(await client.ask("metadata", 13, topics=()))
        assert fault.met == 1

    run(tmp_path, main)


def test_produce_without_an_answer_is_told_by_a_closed_connection(tmp_path: Path) -> None:
    """Kafka's rule for acks=0."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        faults = inject(node)
        node.create_topic("orders")
        fault = faults.fail_next("Produce", ERROR)
        client.send("produce", 9, acks=0, topic_data=({"name": "orders", "partition_data": ({"index": 0},)},))
        assert await client.closed()
        assert fault.met == 1

    run(tmp_path, main)


def test_faults_of_one_api_strike_one_after_the_other_until_they_are_cleared(tmp_path: Path) -> None:
    """The order in which they were asked for; what was met stays counted."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        faults = inject(node)
        faults.fail_next("InitProducerId", "COORDINATOR_NOT_AVAILABLE")
        faults.fail_next("INIT_PRODUCER_ID", "NOT_COORDINATOR", times=9)
        asked = [await client.ask("init_producer_id", 4, producer_id=-1, producer_epoch=-1) for _ in range(2)]
        assert [int(one.error_code) for one in asked] == [15, 16]
        faults.clear()
        assert int((await client.ask("init_producer_id", 4, producer_id=-1, producer_epoch=-1)).error_code) == 0
        told = json.loads(faults.page().body)["faults"]
        assert [(one["api"], one["met"], one["times"]) for one in told] == [
            ("InitProducerId", 1, 1),
            ("InitProducerId", 1, 9),
        ]

    run(tmp_path, main)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "Expecting value"),
        (b"[]", "a JSON object"),
        (b'{"fail": 1}', "a JSON object"),
        (b'{"fail_next": {"api": "Produse", "error": "UNKNOWN_SERVER_ERROR"}}', "one of "),
        (b'{"fail_next": {"api": "Produce", "error": "NONE"}}', "the name of one of Kafka's errors"),
        (b'{"fail_next": {"api": "Produce", "error": "UNKNOWN_SERVER_ERROR", "times": 0}}', "a number from 1"),
        (b'{"fail_next": {"api": "Produce"}}', "error"),
        (b'{"slow_disk_ms": -1}', "milliseconds from 0"),
        (b'{"slow_disk_ms": "much"}', "not supported"),
    ],
)
def test_what_is_no_fault_is_refused_with_a_sentence(body: bytes, words: str) -> None:
    """Bad input to POST /faults: 400, and nothing is armed."""
    faults = FaultInjection()
    faults.intercept(UNBOUND)
    page = faults.command(body)
    assert page.status == 400
    assert words in json.loads(page.body)["error"]
    assert faults.faults == []


def test_the_names_of_apis_are_taken_in_both_spellings() -> None:
    """Kafka's tools write INIT_PRODUCER_ID, its messages InitProducerId."""
    faults = FaultInjection()
    faults.intercept(UNBOUND)
    assert {faults.fail_next(name, ERROR).api for name in ("INIT_PRODUCER_ID", "InitProducerId")} == {"InitProducerId"}
    with pytest.raises(BadFault):
        faults.fail_next("", ERROR)
