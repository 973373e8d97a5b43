"""Levels of a broker's loggers over the wire (rule A41): who may set them, what is refused, what a level reaches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka_case import run
from kafka_node import KafkaNode
from kafka_wire import KafkaClient
from structlog.testing import capture_logs
from test_audit import watch

import strandline
from strandline.cluster.broker.log_levels import LEVELS, LOGGERS, OUR, ROOT, LogLevels
from strandline.cluster.broker.request import Action, AllowAll, RequestContext
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode

BROKER_LOGGER = 8
SET, DELETE, APPEND = 0, 1, 2


async def levels(client: KafkaClient, name: str = "1", keys: list[str] | None = None) -> dict[str, str]:
    resources = [{"resource_type": BROKER_LOGGER, "resource_name": name, "configuration_keys": keys}]
    answer = await client.ask(
        "describe_configs", 4, resources=resources, include_synonyms=True, include_documentation=True
    )
    [result] = answer.results
    assert not result.error_code, result.error_message
    assert all(one.config_source == 6 and not one.read_only and one.documentation for one in result.configs)
    return {one.name: one.value for one in result.configs}


async def alter(
    client: KafkaClient, *changes: tuple[str, int, str | None], name: str = "1", dry_run: bool = False, times: int = 1
) -> Any:
    configs = [{"name": one, "config_operation": operation, "value": value} for one, operation, value in changes]
    resource = {"resource_type": BROKER_LOGGER, "resource_name": name, "configs": configs}
    answer = await client.ask("incremental_alter_configs", 1, resources=[resource] * times, validate_only=dry_run)
    return answer.responses[0]


def test_a_level_reaches_what_is_below_and_goes_again(tmp_path: Path) -> None:
    """Described as Kafka describes them; set, rehearsed, deleted; each change is in the log, with who made it."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        before = await levels(client)
        assert set(before) == set(LOGGERS)
        assert set(before.values()) == {"INFO"}
        assert not (await alter(client, ("strandline.kafka", SET, "DEBUG"), dry_run=True)).error_code
        assert await levels(client) == before
        with capture_logs() as lines:
            assert not (await alter(client, (OUR, SET, "WARN"), ("strandline.kafka", SET, "DEBUG"))).error_code
        told = [(line["logger"], line["level"], line["principal"]) for line in lines]
        assert told == [(OUR, "WARN", "User:ANONYMOUS"), ("strandline.kafka", "DEBUG", "User:ANONYMOUS")]
        asked = ["strandline.kafka", "strandline.quorum", ROOT, "asyncio"]
        assert await levels(client, keys=asked) == dict(zip(asked, ("DEBUG", "WARN", "INFO", "INFO"), strict=True))
        assert not (await alter(client, ("strandline.kafka", DELETE, None), (OUR, DELETE, ""))).error_code
        assert await levels(client) == before

    run(tmp_path, main)


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (("strandline.kafak", SET, "DEBUG"), ErrorCode.INVALID_CONFIG, r"no logger 'strandline.kafak'; there are asyn"),
        (("strandline.kafka", SET, "LOUD"), ErrorCode.INVALID_CONFIG, r"no level 'LOUD'; there are TRACE, DEBUG, INFO"),
        (("strandline.kafka", SET, None), ErrorCode.INVALID_CONFIG, r"no level None"),
        (("strandline.kafka", APPEND, "DEBUG"), ErrorCode.INVALID_REQUEST, r"nothing can be appended"),
        ((ROOT, DELETE, None), ErrorCode.INVALID_REQUEST, r"the level of root cannot be deleted: set another"),
    ],
)
def test_what_is_no_level_is_refused_with_all_that_stands_beside_it(
    tmp_path: Path, change: tuple[str, int, str | None], code: ErrorCode, says: str
) -> None:
    async def main(node: KafkaNode, client: KafkaClient) -> None:
        outcome = await alter(client, ("strandline.log", SET, "DEBUG"), change)
        assert outcome.error_code == code
        assert re.search(says, outcome.error_message)
        assert (await levels(client))["strandline.log"] == "INFO"

    run(tmp_path, main)


def test_loggers_are_those_of_the_broker_that_is_asked(tmp_path: Path) -> None:
    """Another's number, none, and the same twice; AlterConfigs, which names all that shall be set, knows no loggers."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        for name in ("2", ""):
            outcome = await alter(client, ("strandline.log", SET, "DEBUG"), name=name)
            assert outcome.error_code == ErrorCode.INVALID_REQUEST
            assert "this is broker 1" in outcome.error_message
        outcome = await alter(client, ("strandline.log", SET, "DEBUG"), times=2)
        assert outcome.error_code == ErrorCode.INVALID_REQUEST
        configs = [{"name": "strandline.log", "value": "DEBUG"}]
        resource = {"resource_type": BROKER_LOGGER, "resource_name": "1", "configs": configs}
        answer = await client.ask("alter_configs", 2, resources=[resource], validate_only=False)
        assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST
        assert "IncrementalAlterConfigs" in answer.responses[0].error_message
        assert (await levels(client))["strandline.log"] == "INFO"

    run(tmp_path, main)


def test_the_audit_tells_who_changed_a_level(tmp_path: Path) -> None:
    """Set, refused, deleted; a dry run has no line."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        lines = watch(node)
        await alter(client, ("strandline.log", SET, "DEBUG"), dry_run=True)
        await alter(client, ("strandline.log", SET, "DEBUG"))
        await alter(client, ("strandline.log", SET, "LOUD"))
        await alter(client, ("strandline.log", DELETE, None))
        assert [(what, result) for _, what, result in lines] == [
            ("broker-logger 1: strandline.log=DEBUG", "NONE"),
            ("broker-logger 1: strandline.log=LOUD", "INVALID_CONFIG"),
            ("broker-logger 1: strandline.log=None", "NONE"),
        ]

    run(tmp_path, main)


class NoAlterations(AllowAll):
    """Judges that everything may be done, save altering configs of the cluster."""

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        return [action != (Operation.ALTER_CONFIGS, CLUSTER) for action in actions]


def test_who_may_not_alter_configs_sets_no_level(tmp_path: Path) -> None:
    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.authorizer.chosen = NoAlterations()
        outcome = await alter(client, ("strandline.log", SET, "DEBUG"))
        assert outcome.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert (await levels(client))["strandline.log"] == "INFO"

    run(tmp_path, main)


def test_a_deleted_level_is_that_of_the_start() -> None:
    """What the file says is the floor to which a delete goes back, of the root and of what is quiet from the start."""
    seen: dict[str, int] = {}
    tree = LogLevels({ROOT: "ERROR", "grpc": "FATAL"})
    tree.applied_by(seen.__setitem__)
    before = dict(seen)
    assert before["strandline.log"] == LEVELS["ERROR"]
    for name in ("grpc", OUR, ROOT):
        tree.set(name, "TRACE")
        assert seen[name] == LEVELS["TRACE"]
        tree.unset(name)
        assert seen == before


def test_every_logger_of_ours_is_listed() -> None:
    """What a module logs by can be named, and what can be named is there."""
    source = Path(strandline.__file__).parent
    rooms = ("cluster", "controller", "log", "replica", "proto")
    used = {
        name
        for room in rooms
        for path in (source / room).rglob("*.py")
        for name in re.findall(r'get_logger\("([^"]+)"\)', path.read_text())
    }
    assert used == {name for name in LOGGERS if name.startswith(OUR + ".")}
