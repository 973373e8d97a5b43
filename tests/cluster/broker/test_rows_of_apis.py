"""An API is its number, its row beside its handler, and the rights it asks for: one that nobody serves is added so.

RenewDelegationToken stands in Kafka's protocol, and nothing here answers it. What it does in these tests is made up.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_case import run
from kafka_node import KafkaNode
from kafka_wire import KafkaClient, connect, frame
from quota_case import EVERY_USER, set_quota, waits_ms
from test_acls_wire import acl, authorize, grant
from test_audit import watch
from test_kafka_faults import inject

from lab.pages.access import access_table
from lab.pages.apis import api_table
from strandline.cluster.broker import broker
from strandline.cluster.broker.api import ApiRow, Call, Change, by_schema, part
from strandline.cluster.broker.each_item import THROTTLED
from strandline.cluster.broker.request import Authorizer, require
from strandline.cluster.broker.table import APIS, BY_TITLE
from strandline.proto.acls import CLUSTER, Operation, ResourceKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.access import ACCESS, Asks
from strandline.proto.kafka.apis import Api

ME = EVERY_USER
NAME, KEY, FLEXIBLE_SINCE = "RENEW_DELEGATION_TOKEN", 39, 2
RENEWED_AT_MS = 7_000


# What the file of a new family would have


class RenewalsHandler:
    """Renews whatever it is asked for, as one change of the metadata."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    async def renew(self, call: Call) -> Any:
        """The time until which the token holds. Raises KafkaError CLUSTER_AUTHORIZATION_FAILED, or for the quota."""
        require(self._authorizer, call.context, Operation.ALTER, CLUSTER)
        with call.charge() as charge:
            admitted = charge.admits(20)
        if not admitted:
            raise KafkaError(*THROTTLED)
        return part(error_code=ErrorCode.NONE, expiry_timestamp=RENEWED_AT_MS + call.request.renew_period)


def _renewed(request: Any, answer: Any) -> Iterator[Change]:
    yield f"token {request.hmac.decode()}", answer.error_code


def row_of(api: Api) -> ApiRow:
    return by_schema(api, (1, 2), RenewalsHandler, RenewalsHandler.renew, changes=_renewed, strict_since=2)


# What its other lines do


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Api:
    """Its number, its row in the table of APIs, its right, and its handler among those of a broker."""
    api = numbered(monkeypatch)
    monkeypatch.setitem(APIS, api, row_of(api))  # type: ignore[arg-type]
    monkeypatch.setitem(BY_TITLE, api.title, APIS[api])  # type: ignore[arg-type]
    asks = Asks(Operation.ALTER, ResourceKind.CLUSTER, "the cluster", "CLUSTER_AUTHORIZATION_FAILED")
    monkeypatch.setitem(ACCESS, api, (asks,))  # type: ignore[arg-type]
    others = broker._cluster_handlers

    def with_renewals(parts: broker.BrokerParts, brokers: Any) -> Iterator[object]:
        yield from others(parts, brokers)
        yield RenewalsHandler(parts.authorizer)

    monkeypatch.setattr(broker, "_cluster_handlers", with_renewals)
    return api


def numbered(monkeypatch: pytest.MonkeyPatch) -> Api:
    """What a line of the enum does, which takes no member once it is made."""
    enum: Any = Api
    member: Api = enum._new_member_(Api, KEY, FLEXIBLE_SINCE)
    member._name_ = NAME
    enum.__init__(member, KEY, FLEXIBLE_SINCE)
    monkeypatch.setitem(enum._value2member_map_, KEY, member)
    monkeypatch.setitem(enum._member_map_, NAME, member)
    monkeypatch.setattr(enum, "_member_names_", [*enum._member_names_, NAME])
    return member


async def renew(client: KafkaClient, version: int = 2) -> Any:
    return await client.ask(NAME.lower(), version, hmac=b"a", renew_period=5)


def told(answer: Any) -> tuple[int, float]:
    """The error, and until when the token holds."""
    return int(answer.error_code), answer.expiry_timestamp.timestamp() * 1000


def test_it_is_served_advertised_and_counted(made_up: Api, tmp_path: Path) -> None:
    """In each version of its row; another one of Kafka's is refused in its own format, and one of nobody's closes."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        answer = await client.ask("api_versions", 2)
        assert [(one.min_version, one.max_version) for one in answer.api_keys if one.api_key == KEY] == [(1, 2)]
        for version in (1, 2):
            assert told(await renew(client, version)) == (0, RENEWED_AT_MS + 5)
            assert node.listener.stats.apis["RenewDelegationToken", version].answers == 1
        async with connect(node.listener.endpoint) as other:
            other.writer.write(frame(KEY, 3, 1, struct.pack(">i", 0), flexible=True))
            assert await other.closed()
        async with connect(node.listener.endpoint) as other:
            other.writer.write(frame(KEY, 2, 1, b"\x09lies", flexible=True))
            assert await other.closed(), "what is no such message is no such request"

    run(tmp_path, main)
    assert made_up is Api(KEY)


def test_it_is_authorized_and_audited(made_up: Api, tmp_path: Path) -> None:
    """The refusal is made from the schema; a change has its line."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        authorize(node)
        lines = watch(node)
        for version in (1, 2):
            assert told(await renew(client, version))[0] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        grant(node, acl(Operation.ALTER, CLUSTER.name, ResourceKind.CLUSTER))
        assert told(await renew(client))[0] == 0
        assert lines == [(made_up.title, "token a", "NONE")], "who may not do it fills no audit"

    run(tmp_path, main)


@pytest.mark.parametrize("version", [1, 2])
def test_it_is_throttled(made_up: Api, tmp_path: Path, version: int) -> None:
    """By the quota of all requests, and by that of changes: an error since the version that knows it, else a wait."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        set_quota(node, ME, controller_mutation_rate=1)
        assert told(await renew(client, version))[0] == 0
        async with connect(node.listener.endpoint) as other:
            answer = await renew(other, version)
        assert told(answer)[0] == (ErrorCode.THROTTLING_QUOTA_EXCEEDED if version == 2 else 0)
        assert waits_ms(answer) > 5_000
        set_quota(node, ME, controller_mutation_rate=None, request_percentage=1e-6)
        async with connect(node.listener.endpoint) as other:
            assert waits_ms(await renew(other, version)) > 0

    run(tmp_path, main)


def test_it_can_be_made_to_fail(made_up: Api, tmp_path: Path) -> None:
    """Fault injection answers it with any error, once, and nothing is done."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        lines = watch(node)
        fault = inject(node).fail_next(NAME, "DELEGATION_TOKEN_EXPIRED")
        assert [told(await renew(client))[0] for _ in range(2)] == [66, 0]
        assert (fault.api, fault.met) == (made_up.title, 1)
        assert lines == [(made_up.title, "token a", "NONE")]

    run(tmp_path, main)


@pytest.mark.usefixtures("made_up")
def test_it_is_documented() -> None:
    assert "| 39 | RenewDelegationToken | 1-2 | 2 |\n" in api_table()
    assert "| RenewDelegationToken | ALTER | the cluster | CLUSTER_AUTHORIZATION_FAILED |\n" in access_table()
