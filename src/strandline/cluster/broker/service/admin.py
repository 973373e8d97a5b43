"""Changes of topics and configs. Every one goes to the active controller; each item succeeds or fails alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import structlog

from strandline.cluster.broker.service.authorizer import CLUSTER, Action, Operation, topic
from strandline.cluster.broker.service.base import Base
from strandline.cluster.broker.service.context import RequestContext
from strandline.cluster.broker.service.topics import find_topic
from strandline.controller.api import (
    AlterConfigsRequest,
    ConfigOperation,
    CreatableTopic,
    CreatedTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    PartitionsToAdd,
    ResourceAlteration,
    ResourceOutcome,
    TopicOutcome,
    TopicRef,
)
from strandline.controller.metadata.image import ResourceType
from strandline.controller.metadata.topic_configs import settings_without_effect
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import ZERO_UUID

log = structlog.get_logger("strandline.service")

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Admin(Base):
    """The operations that change topics and configs.

    A timeout answers REQUEST_TIMED_OUT for every item: the change may still be carried out.
    """

    async def create_topics(
        self, context: RequestContext, topics: Sequence[CreatableTopic], *, dry_run: bool, timeout_ms: float
    ) -> list[CreatedTopic]:
        """One outcome a topic, in order; a name that stands twice is INVALID_REQUEST both times."""

        def refuse(item: CreatableTopic, error: ErrorCode, message: str) -> CreatedTopic:
            return CreatedTopic(name=item.name, error=error, message=message)

        async def ask(items: tuple[CreatableTopic, ...]) -> Sequence[CreatedTopic]:
            return (await self.controller.create_topics(CreateTopicsRequest(items, dry_run), timeout_ms)).topics

        refusals = self._twice([item.name for item in topics])
        if not self.authorizer.authorize(context, ((Operation.CREATE, CLUSTER),))[0]:
            self._deny(context, refusals, [(Operation.CREATE, topic(item.name)) for item in topics])
        created = await self._each(topics, refusals, refuse, ask)
        for item, outcome in zip(topics, created, strict=True):
            if outcome.error is ErrorCode.NONE and not dry_run:
                _log_without_effect(ResourceType.TOPIC, item.name, item.configs)
        return created

    async def delete_topics(
        self, context: RequestContext, topics: Sequence[TopicRef], *, timeout_ms: float
    ) -> list[TopicOutcome]:
        """One outcome a topic, in order, with name and id as far as they are known."""
        image = self.image()
        known: list[TopicRef] = []
        for ref in topics:
            found = find_topic(image, ref.name or None, ref.topic_id)
            known.append(ref if isinstance(found, ErrorCode) else TopicRef(found.name, found.topic_id))

        def refuse(item: TopicRef, error: ErrorCode, message: str) -> TopicOutcome:
            return TopicOutcome(item.name, item.topic_id, error, message)

        async def ask(items: tuple[TopicRef, ...]) -> Sequence[TopicOutcome]:
            return (await self.controller.delete_topics(DeleteTopicsRequest(items), timeout_ms)).topics

        refusals = self._twice([(ref.name, ref.topic_id) for ref in known])
        for index, ref in enumerate(topics):
            if ref.name and ref.topic_id != ZERO_UUID:
                refusals[index] = (ErrorCode.INVALID_REQUEST, "a topic is named by its name or by its id, not by both")
        self._deny(context, refusals, [(Operation.DELETE, topic(ref.name)) for ref in known])
        return await self._each(known, refusals, refuse, ask)

    async def create_partitions(
        self, context: RequestContext, topics: Sequence[PartitionsToAdd], *, dry_run: bool, timeout_ms: float
    ) -> list[TopicOutcome]:
        """One outcome a topic, in order."""

        def refuse(item: PartitionsToAdd, error: ErrorCode, message: str) -> TopicOutcome:
            return TopicOutcome(item.name, ZERO_UUID, error, message)

        async def ask(items: tuple[PartitionsToAdd, ...]) -> Sequence[TopicOutcome]:
            request = CreatePartitionsRequest(items, dry_run)
            return (await self.controller.create_partitions(request, timeout_ms)).topics

        refusals = self._twice([item.name for item in topics])
        self._deny(context, refusals, [(Operation.ALTER, topic(item.name)) for item in topics])
        return await self._each(topics, refusals, refuse, ask)

    async def incremental_alter_configs(
        self, context: RequestContext, resources: Sequence[ResourceAlteration], *, dry_run: bool
    ) -> list[ResourceOutcome]:
        """One outcome a resource, in order; the changes of one resource all succeed or none does."""

        def refuse(item: ResourceAlteration, error: ErrorCode, message: str) -> ResourceOutcome:
            return ResourceOutcome(item.resource_type, item.resource_name, error, message)

        async def ask(items: tuple[ResourceAlteration, ...]) -> Sequence[ResourceOutcome]:
            request = AlterConfigsRequest(items, dry_run)
            timeout_ms = self.config.request_timeout_ms
            return (await self.controller.incremental_alter_configs(request, timeout_ms)).resources

        refusals = self._twice([(item.resource_type, item.resource_name) for item in resources])
        self._deny(context, refusals, [_alter_action(item) for item in resources])
        altered = await self._each(resources, refusals, refuse, ask)
        for item, outcome in zip(resources, altered, strict=True):
            if outcome.error is ErrorCode.NONE and not dry_run:
                values = {step.name: step.value for step in item.alterations if step.operation in _GIVES_VALUE}
                _log_without_effect(item.resource_type, item.resource_name, values)
        return altered

    def _twice(self, keys: Sequence[object]) -> list[tuple[ErrorCode, str] | None]:
        """A refusal for each item whose key stands more than once."""
        seen: dict[object, int] = {}
        for key in keys:
            seen[key] = seen.get(key, 0) + 1
        fault = (ErrorCode.INVALID_REQUEST, "stands more than once in the request")
        return [fault if seen[key] > 1 else None for key in keys]

    def _deny(
        self, context: RequestContext, refusals: list[tuple[ErrorCode, str] | None], actions: Sequence[Action]
    ) -> None:
        for index, answer in enumerate(self.authorizer.authorize(context, actions)):
            if not answer:
                cluster = actions[index][1] == CLUSTER
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if cluster else ErrorCode.TOPIC_AUTHORIZATION_FAILED
                refusals[index] = (code, "")

    async def _each(
        self,
        items: Sequence[Item],
        refusals: Sequence[tuple[ErrorCode, str] | None],
        refuse: Callable[[Item, ErrorCode, str], Outcome],
        ask: Callable[[tuple[Item, ...]], Awaitable[Sequence[Outcome]]],
    ) -> list[Outcome]:
        """Ask the controller about the items that nothing speaks against; one outcome an item, in order."""
        asked = tuple(item for item, refusal in zip(items, refusals, strict=True) if refusal is None)
        answers: list[Outcome] = []
        if asked:
            try:
                answers = list(await ask(asked))
            except KafkaError as error:
                answers = [refuse(item, error.code, error.message) for item in asked]
        following = iter(answers)
        return [
            next(following) if refusal is None else refuse(item, *refusal)
            for item, refusal in zip(items, refusals, strict=True)
        ]


_GIVES_VALUE = frozenset({ConfigOperation.SET, ConfigOperation.APPEND})


def _log_without_effect(kind: ResourceType, name: str, values: Mapping[str, str | None]) -> None:
    """A setting that does nothing yet is taken, for the sake of what is written for Kafka, and named in the log."""
    given = {setting: value for setting, value in values.items() if value is not None}
    for setting, reason in settings_without_effect(given, topic=kind is ResourceType.TOPIC).items():
        where = kind.name.lower()
        log.warning(
            "a setting without effect was set", **{where: name}, setting=setting, value=given[setting], why=reason
        )


def _alter_action(item: ResourceAlteration) -> Action:
    if item.resource_type is ResourceType.TOPIC:
        return Operation.ALTER_CONFIGS, topic(item.resource_name)
    return Operation.ALTER_CONFIGS, CLUSTER
