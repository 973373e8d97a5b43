"""An operation of the admin clients is declared once: each column of each is demanded, and a made-up one needs no more
than its declaration."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import strandline.client
from strandline.client import Admin, NewTopic, aio
from strandline.client.aio.admin_base import (
    AdminBase,
    Awaited,
    Known,
    Operation,
    Question,
    Route,
    alone,
    by_key,
    operations_of,
)
from strandline.client.errors import ClientTimeout, UnknownTopic
from strandline.client.network import SUPPORTED, Connection
from strandline.client.types import ConfigResource
from strandline.controller.metadata.features import NEWEST_LEVEL
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.kafka.access import ACCESS, OPEN
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.schema import kind_of, knows
from tests.client.members import simulate
from tests.client.test_limits import ADMIN, MANY, TOPIC

OPERATIONS = operations_of(aio.Admin)
EVERY = [pytest.param(name, operation, id=name) for name, operation in OPERATIONS.items()]

SAMPLES = ADMIN | {"describe_log_dirs": lambda c: c.describe_log_dirs()}
"""Of brokers that there are."""

FINDS = {Api.METADATA, Api.API_VERSIONS}
"""What every client asks, to find the brokers."""


def kinds(api: Api, side: str) -> list[type]:
    """The messages of an API, in the versions that the client speaks."""
    low, high = SUPPORTED[api]
    found = [version for version in range(low, high + 1) if knows(api, version)]
    return [kind_of(api, version, side) for version in found]


def parts_of(kind: type, name: str) -> type:
    """The struct of an array field."""
    hint = get_type_hints(kind)[name]
    while not is_dataclass(hint):
        hint = get_args(hint)[0]
    return hint


def names_in(kind: type) -> set[str]:
    return {item.name for item in fields(kind)}


@pytest.mark.parametrize(("name", "operation"), EVERY)
def test_every_column_of_every_operation(name: str, operation: Operation) -> None:
    """API and versions, right, route, items and their names, what an error is about, dry run, both clients."""
    asynchronous, blocking = getattr(aio.Admin, name), getattr(Admin, name)
    assert inspect.iscoroutinefunction(asynchronous)
    assert not inspect.iscoroutinefunction(blocking)
    shape = inspect.signature(asynchronous)
    assert inspect.signature(blocking) == shape
    assert "Question" not in str(shape)
    assert all(item.annotation is not item.empty for item in list(shape.parameters.values())[1:])
    assert blocking.__doc__ == asynchronous.__doc__
    assert re.match(r"(?s)[A-Z].+\.", asynchronous.__doc__)
    assert name in ADMIN, "a sample for the tests of limits, and of what is asked"
    assert operation.api in SUPPORTED
    assert operation.api in ACCESS or operation.api in OPEN
    answers, requests = kinds(operation.api, "response"), kinds(operation.api, "request")
    assert answers
    lists, keys = (text.split(".") if text else [] for text in (operation.each, operation.key))
    assert len(keys) in (0, len(lists))
    with_items = [answer for answer in answers if not lists or lists[0] in names_in(answer)]
    assert with_items
    for answer in with_items:
        struct = answer
        for number, part in enumerate(lists):
            struct = parts_of(struct, part)
            assert not keys or keys[number] in names_in(struct)
        if lists:
            assert "error_code" in names_in(struct)
    if lists and not keys:
        assert "items" in inspect.getsource(asynchronous), "items without names come in the order they were asked in"
    if operation.about:
        assert re.fullmatch("[a-z]+", operation.about)
    if "validate_only" in {field for request in requests for field in names_in(request)}:
        assert operation.dry_run
    if operation.dry_run:
        parameter = shape.parameters[operation.dry_run]
        assert (parameter.default, parameter.kind) == (False, parameter.KEYWORD_ONLY)


def test_help_is_complete() -> None:
    """As if each client had the method written out."""
    words = pydoc.plain(pydoc.render_doc(Admin.create_topics))
    assert "create_topics(self, topics: 'Iterable[NewTopic]', *, validate_only: 'bool' = False) -> " in words
    assert "-> 'dict[str, CreatedTopic]'" in words
    assert "TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR" in words
    for kind in (Admin, aio.Admin):
        whole = pydoc.plain(pydoc.render_doc(kind))
        assert all(f" {name}(self" in whole for name in OPERATIONS)


def test_what_is_asked_stands_in_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample call, in a simulated cluster: the APIs of its row, and no field that the API has not."""
    asked: dict[Api, set[str]] = defaultdict(set)
    call = Connection.call

    async def noted(self: Connection, api: Api, values: Mapping[str, Any], *rest: Any, **more: Any) -> Any:
        asked[api].update(values)
        return await call(self, api, values, *rest, **more)

    monkeypatch.setattr(Connection, "call", noted)

    async def main(env: Any) -> dict[str, dict[Api, set[str]]]:
        found = {}
        async with aio.Admin(env.bootstrap) as admin:
            await admin.update_features({"metadata.version": NEWEST_LEVEL, "transaction.version": 2})
        for name in OPERATIONS:
            async with aio.Admin(env.bootstrap, default_api_timeout_ms=5_000) as admin:
                with suppress(StrandlineError):  # those that are there already
                    await admin.create_topics([NewTopic(topic, 2, 1) for topic in (TOPIC, *MANY)])
                asked.clear()
                with suppress(StrandlineError):
                    await SAMPLES[name](admin)
            found[name] = {api: set(names) for api, names in asked.items()}
        return found

    for name, apis in simulate(main).items():
        operation = OPERATIONS[name]
        assert apis.keys() - FINDS <= {operation.api, *operation.also}, name
        assert operation.api in apis, name
        for api, given in apis.items():
            known = {field for request in kinds(api, "request") for field in names_in(request)} | {"timeout"}
            assert given <= known, (name, api)


class CountingAdmin(AdminBase):
    """An area more, with operations of each kind."""

    @Operation(Api.DESCRIBE_CONFIGS, route=Route.BROKERS, each="results")
    async def count_settings(
        self, resources: list[ConfigResource], *, broker: int | None = None
    ) -> Question[dict[ConfigResource, int]]:
        """How many settings there are."""

        def values(group: list[ConfigResource]) -> dict[str, Any]:
            resources = [{"resource_type": 2, "resource_name": one.name, "configuration_keys": None} for one in group]
            return {"resources": resources, "include_synonyms": False, "include_documentation": False}

        return Question(values, lambda told: len(told.configs), by_key, items=resources, broker=lambda one: broker)

    @Operation(Api.DESCRIBE_CLUSTER)
    async def cluster_id(self, known: str = "") -> Question[str]:
        """The cluster's id."""
        values = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": False}
        return Known(known) if known else Question(values, lambda told: str(told.cluster_id), alone)

    @Operation(Api.LIST_GROUPS, route=Route.EVERY_BROKER)
    async def brokers_without_groups(self) -> Question[list[int]]:
        """Brokers by their ids."""
        values = {"states_filter": (), "types_filter": ()}
        return Question(values, lambda told: not told.groups, lambda none: [node for node in none if none[node]])

    @Operation(Api.METADATA)
    async def fails(self) -> None:
        """Nothing but an error of the network."""
        await self._retrying(self._lost)

    async def _lost(self) -> None:
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the cable is out")


class AsyncCounting(CountingAdmin, aio.Admin):
    """What a line in the list of areas makes."""


class Counting(CountingAdmin, Admin):
    """Its twin."""


def test_a_declaration_is_all_that_an_operation_needs(cluster: Any) -> None:
    """Both clients have it, with its types and words, retries, limits, errors of items and answers in any order."""
    topic, missing = ConfigResource("topic", "counted"), ConfigResource("topic", "nowhere")
    with Counting(cluster.bootstrap, default_api_timeout_ms=30_000) as admin:
        admin.create_topics([NewTopic("counted", 1, 3)])
        try:
            count = admin.count_settings([topic, topic])[topic]
            assert count == admin.count_settings([topic], broker=1)[topic] > 20
            with pytest.raises(UnknownTopic, match="nowhere"):
                admin.count_settings([missing])
            with pytest.raises(KafkaError, match="there is no broker 9; the brokers are 1, 2, 3"):
                admin.count_settings([topic], broker=9)
            told = admin.cluster_id()
            assert told == admin.describe_cluster().cluster_id
            assert admin.cluster_id("x") == "x"
            assert set(admin.brokers_without_groups()) <= {1, 2, 3}
        finally:
            admin.delete_topics(["counted"])
    with Counting(cluster.bootstrap, default_api_timeout_ms=300) as admin, pytest.raises(ClientTimeout, match="cable"):
        admin.fails()

    async def main() -> str:
        async with AsyncCounting(cluster.bootstrap) as same:
            return await same.cluster_id()

    assert asyncio.run(main()) == told
    assert str(inspect.signature(Counting.cluster_id)) == "(self, known: 'str' = '') -> 'str'"


def test_an_operation_stands_in_one_place() -> None:
    """Of the client's source its name is bound once: the sync twin, the limit, the table of rows follow."""
    source = [path.read_text() for path in Path(strandline.client.__file__).parent.glob("**/admin*.py")]
    assert len(source) > 8
    for name in OPERATIONS:
        bound = [
            line
            for text in source
            for line in text.splitlines()
            if re.match(rf"\s*(async )?(def )?{name}\b( =|\()", line)
        ]
        assert len(bound) == 1, name


def test_an_api_without_versions_is_no_operation() -> None:
    with pytest.raises(TypeError, match=r"AlterConfigs: the versions that this client speaks are to stand in client/n"):
        Operation(Api.ALTER_CONFIGS)


def test_an_item_that_the_answer_leaves_out_is_an_error() -> None:
    """Or one of two settled things would be missing in silence."""

    class Half(AdminBase, Awaited):
        @Operation(Api.CREATE_PARTITIONS, each="results", key="name", about="topic")
        async def half(self) -> Question[dict[str, int]]:
            """Both topics."""
            return Question({}, lambda told: 1, by_key, items=["a", "b"])

    async def main() -> None:
        client = Half()

        async def call(api: Api, *_: Any) -> Any:
            return type("Answer", (), {"results": [type("One", (), {"name": "a", "error_code": ErrorCode.NONE})]})

        client._call = call  # type: ignore[method-assign]
        with pytest.raises(StrandlineError, match="no answer for it"):
            await client.half()
        await client.session.close()

    asyncio.run(main())
