"""IncrementalAlterConfigs (44), which changes single configs of a resource, and AlterConfigs (33), which replaces all
of them: configs not named get their defaults. The first superseded the second in Kafka 2.3; some clients still use the
second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.each_item import deny, each_item, named_twice
from strandline.cluster.broker.handlers.broker_loggers import BROKER_LOGGER, BrokerLoggers
from strandline.cluster.broker.request import Action, Authorizer, topic
from strandline.controller import operations
from strandline.controller.api import (
    AlterConfigsRequest,
    ConfigAlteration,
    ConfigOperation,
    ResourceAlteration,
    ResourceOutcome,
)
from strandline.controller.channel import ControllerChannel
from strandline.controller.metadata.image import MetadataImage, ResourceType
from strandline.controller.metadata.settings import settings_without_effect
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api
from strandline.proto.secrets import shown
from strandline.proto.steps import Mapped, each

log = structlog.get_logger("strandline.broker")

_KINDS = {
    ResourceType.TOPIC: "topic",
    ResourceType.BROKER: "broker",
    BROKER_LOGGER: "broker-logger",
    ResourceType.CLIENT_METRICS: "client-metrics",
}
_GIVES_VALUE = frozenset({ConfigOperation.SET, ConfigOperation.APPEND})


class Outcome(NamedTuple):
    """Result of the alteration of one resource, with the resource as the request names it."""

    error: ErrorCode
    message: str
    resource_type: int
    resource_name: str


Wanted = ResourceAlteration | tuple[ErrorCode, str] | str
"""The alteration of one resource, or its result if it is decided already, or why it is invalid."""


class AlterConfigsHandler:
    """Forwards changes of configs to the active controller; those of one resource all succeed, or none does."""

    def __init__(
        self,
        *,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        controller: ControllerChannel,
        loggers: BrokerLoggers,
        timeout_ms: float,
    ) -> None:
        self._loggers = loggers
        self._image = image
        self._authorizer = authorizer
        self._controller = controller
        self._timeout_ms = timeout_ms

    async def alter_incrementally(self, call: Call) -> Any:
        """Answer IncrementalAlterConfigs: one outcome per resource, in order."""
        resources, stepped = call.request.resources, call.connection.stepped
        refusals = await stepped(named_twice(_resource, resources))

        def change(one: Any) -> Wanted:
            alone = next(in_order) is None
            return self._alter_loggers(call, one) if one.resource_type == BROKER_LOGGER and alone else _alteration(one)

        in_order = iter(refusals)
        return _respond(await self._outcomes(call, await stepped(each(change, resources))))

    async def alter_altogether(self, call: Call) -> Any:
        """Answer AlterConfigs: one outcome per resource, in order."""
        wanted = await call.connection.stepped(each(self._replacement, call.request.resources))
        return _respond(await self._outcomes(call, wanted))

    def _alter_loggers(self, call: Call, resource: Any) -> tuple[ErrorCode, str]:
        return self._loggers.alter(call.context, resource, dry_run=call.request.validate_only)

    async def _outcomes(self, call: Call, wanted: Sequence[Wanted]) -> list[Outcome]:
        """Carry out the alterations in `wanted`; returns one outcome per resource of the request, in order. A string in
        `wanted` becomes INVALID_REQUEST with that message."""
        asked = [one for one in wanted if isinstance(one, ResourceAlteration)]
        answered = iter(await self._alter(call, asked, dry_run=call.request.validate_only))

        def outcome_of(resource_and_wanted: tuple[Any, Wanted]) -> Outcome:
            resource, one = resource_and_wanted
            if isinstance(one, str):
                error, message = ErrorCode.INVALID_REQUEST, one
            elif isinstance(one, ResourceAlteration):
                outcome = next(answered)
                error, message = outcome.error, outcome.message
            else:
                error, message = one
            return Outcome(error, message, resource.resource_type, resource.resource_name)

        pairs = zip(call.request.resources, wanted, strict=True)
        return await call.connection.stepped(each(outcome_of, pairs))

    async def _alter(
        self, call: Call, resources: Sequence[ResourceAlteration], *, dry_run: bool
    ) -> list[ResourceOutcome]:
        """Alter topics, brokers and client metrics by the controller; returns one outcome per resource, in order."""

        def refuse(item: ResourceAlteration, error: ErrorCode, message: str) -> ResourceOutcome:
            return ResourceOutcome(item.resource_type, item.resource_name, error, message)

        async def ask(items: tuple[ResourceAlteration, ...]) -> Sequence[ResourceOutcome]:
            request = AlterConfigsRequest(items, dry_run)
            timeout_ms = self._timeout_ms
            return (await self._controller.ask(operations.INCREMENTAL_ALTER_CONFIGS, request, timeout_ms)).resources

        stepped = call.connection.stepped
        refusals = await stepped(named_twice(_resource, resources))
        await stepped(deny(self._authorizer, call.context, refusals, Mapped(_alter_action, resources)))
        altered = await each_item(resources, refusals, refuse, ask, connection=call.connection)

        def note(item_and_outcome: tuple[ResourceAlteration, ResourceOutcome]) -> None:
            item, outcome = item_and_outcome
            if outcome.error is ErrorCode.NONE and not dry_run:
                values = {one.name: one.value for one in item.alterations if one.operation in _GIVES_VALUE}
                log_without_effect(item.resource_type, item.resource_name, values)

        await stepped(each(note, zip(resources, altered, strict=True)))
        return altered

    def _replacement(self, resource: Any) -> ResourceAlteration | str:
        """Return the alteration that replaces the resource's current configs, or a sentence why it is invalid."""
        if resource.resource_type == BROKER_LOGGER:
            return "levels of loggers are changed one by one: by IncrementalAlterConfigs"
        try:
            kind = ResourceType(resource.resource_type)
        except ValueError:
            return f"resources of type {resource.resource_type} have no configs here"
        now = self._image().config((kind, resource.resource_name))
        named = {config.name for config in resource.configs}
        changes = [ConfigAlteration(config.name, ConfigOperation.SET, config.value) for config in resource.configs]
        changes += [ConfigAlteration(name, ConfigOperation.DELETE, None) for name in now if name not in named]
        return ResourceAlteration(kind, resource.resource_name, tuple(changes))


def _alteration(resource: Any) -> ResourceAlteration | str:
    """Return the alteration, or a sentence why it is invalid."""
    if resource.resource_type == BROKER_LOGGER:
        return "stands more than once in the request"
    try:
        kind = ResourceType(resource.resource_type)
    except ValueError:
        return f"resources of type {resource.resource_type} have no configs here"
    try:
        changes = tuple(
            ConfigAlteration(config.name, ConfigOperation(config.config_operation), config.value)
            for config in resource.configs
        )
    except ValueError:
        return "an operation is 0 (set), 1 (delete), 2 (append) or 3 (subtract)"
    return ResourceAlteration(kind, resource.resource_name, changes)


def _alter_action(item: ResourceAlteration) -> Action:
    if item.resource_type is ResourceType.TOPIC:
        return Operation.ALTER_CONFIGS, topic(item.resource_name)
    return Operation.ALTER_CONFIGS, CLUSTER


def _resource(one: Any) -> tuple[int, str]:
    return one.resource_type, one.resource_name


def _respond(outcomes: list[Outcome]) -> Any:
    return part(responses=Mapped(_response, outcomes))


def _response(outcome: Outcome) -> Any:
    return part(
        error_code=outcome.error,
        error_message=outcome.message or None,
        resource_type=outcome.resource_type,
        resource_name=outcome.resource_name,
    )


def log_without_effect(kind: ResourceType, name: str, values: Mapping[str, str | None]) -> None:
    """Log each of the settings that is accepted for compatibility with Kafka but has no effect, with the reason."""
    given = {setting: value for setting, value in values.items() if value is not None}
    for setting, reason in settings_without_effect(given, topic=kind is ResourceType.TOPIC).items():
        where = kind.name.lower()
        log.warning(
            "a setting without effect was set", **{where: name}, setting=setting, value=given[setting], why=reason
        )


def _configs_altered(request: Any, answer: Any) -> Iterator[Change]:
    for one, outcome in zip(request.resources, answer.responses, strict=True):
        kind = _KINDS.get(one.resource_type, f"type {one.resource_type}")
        # rule A20/secrets-in-the-audit
        changes = ", ".join(f"{config.name}={shown(config.name, config.value)}" for config in one.configs)
        yield f"{kind} {one.resource_name or '(all)'}: {changes}", outcome.error_code


ROWS = (
    by_schema(
        Api.ALTER_CONFIGS, (0, 2), AlterConfigsHandler, AlterConfigsHandler.alter_altogether, changes=_configs_altered
    ),
    by_schema(
        Api.INCREMENTAL_ALTER_CONFIGS,
        (0, 1),
        AlterConfigsHandler,
        AlterConfigsHandler.alter_incrementally,
        changes=_configs_altered,
    ),
)
