"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37): the active controller decides; each topic succeeds or
fails alone. After a timeout every topic gets REQUEST_TIMED_OUT; the change may still be carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from strandline.cluster.broker import restored_topics
from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.each_item import Price, deny, each_paid_item, named_twice
from strandline.cluster.broker.handlers.alter_configs import log_without_effect
from strandline.cluster.broker.request import FREE, Authorizer, RequestContext, allowed, refusal, topic
from strandline.cluster.broker.requested_topics import TopicRef as NamedTopic
from strandline.cluster.broker.requested_topics import find_allowed_topic, find_topic
from strandline.cluster.broker.restored_topics import FindTiers, is_restored, without_wish
from strandline.controller import operations
from strandline.controller.api import (
    CreatableTopic,
    CreatedTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    PartitionsToAdd,
    ReplicaAssignment,
    TopicOutcome,
    TopicRef,
)
from strandline.controller.channel import ControllerChannel
from strandline.controller.machine.state import MAX_PARTITIONS_PER_REQUEST
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.image import MetadataImage, ResourceType, topic_resource
from strandline.controller.metadata.settings import BrokerSettings
from strandline.proto.acls import CLUSTER, Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import ZERO_UUID, NodeId
from strandline.proto.kafka.apis import Api
from strandline.proto.steps import Mapped, each

DETAILS_SINCE = 5
"""First version of CreateTopics whose response has the new topic's counts and configs (KIP-525)."""

BY_ID_SINCE = 6


class TopicsHandler:
    """Creates and deletes topics, and adds partitions."""

    def __init__(
        self,
        *,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        controller: ControllerChannel,
        configs: ConfigResolver,
        find_tiers: FindTiers | None = None,
    ) -> None:
        self._find_tiers = find_tiers
        self._image = image
        self._authorizer = authorizer
        self._controller = controller
        self._configs = configs

    # CreateTopics

    async def create(self, call: Call) -> Any:
        """Answer CreateTopics: one outcome per topic, in order."""
        topics = await call.connection.stepped(each(_topic_wanted, call.request.topics))
        created = await self._create(call, topics, dry_run=call.request.validate_only, timeout_ms=call.request.timeout)
        return self._all_created(call, topics, created)

    async def _create(
        self, call: Call, topics: Sequence[CreatableTopic], *, dry_run: bool, timeout_ms: float
    ) -> list[CreatedTopic]:
        """Create topics; returns one outcome per topic, in order. Names listed twice get INVALID_REQUEST both times."""
        context, stepped = call.context, call.connection.stepped

        def refuse(item: CreatableTopic, error: ErrorCode, message: str) -> CreatedTopic:
            return CreatedTopic(name=item.name, error=error, message=message)

        async def ask(items: tuple[CreatableTopic, ...]) -> Sequence[CreatedTopic]:
            return (
                await self._controller.ask(operations.CREATE_TOPICS, CreateTopicsRequest(items, dry_run), timeout_ms)
            ).topics

        async def ask_with_tiers(items: tuple[CreatableTopic, ...]) -> Sequence[CreatedTopic]:
            return await restored_topics.create(items, self._find_tiers, ask, dry_run=dry_run)

        refusals = await stepped(named_twice(_name, topics))
        if any(map(is_restored, topics)) and not allowed(self._authorizer, context, Operation.ALTER, CLUSTER):
            lacks = refusal(context, Operation.ALTER, CLUSTER)
            denied = lacks.code, lacks.message
            refusals = [denied if is_restored(item) else fault for item, fault in zip(topics, refusals, strict=True)]
        if not allowed(self._authorizer, context, Operation.CREATE, CLUSTER, noted=False):
            actions = Mapped(lambda item: (Operation.CREATE, topic(item.name)), topics)
            await stepped(deny(self._authorizer, context, refusals, actions))
        price = Price(FREE if dry_run else call.charge(), self._to_create, _paid_for_created)
        created = await each_paid_item(topics, refusals, refuse, ask_with_tiers, price, connection=call.connection)

        def note(item_and_outcome: tuple[CreatableTopic, CreatedTopic]) -> None:
            item, outcome = item_and_outcome
            if outcome.error is ErrorCode.NONE and not dry_run:
                log_without_effect(ResourceType.TOPIC, item.name, without_wish(item).configs)

        await stepped(each(note, zip(topics, created, strict=True)))
        return created

    def _to_create(self, wanted: CreatableTopic) -> int:
        """Return the partitions that a new topic will have, as far as this broker knows the default; 0 if it exists."""
        image = self._image()
        if wanted.name in image.topics:
            return 0
        count = len(wanted.assignments) or wanted.num_partitions
        if count == -1:
            count = self._configs.broker_value(image, BrokerSettings.num_partitions)
        return _if_possible(count)

    def _all_created(self, call: Call, topics: list[CreatableTopic], created: list[CreatedTopic]) -> Any:
        return part(topics=Mapped(partial(self._created, call), topics, created))

    def _created(self, call: Call, wanted: CreatableTopic, created: CreatedTopic) -> Any:
        done = created.error is ErrorCode.NONE
        told = done and call.context.version >= DETAILS_SINCE
        withheld = told and not self._may_see_configs(call.context, created.name)
        return part(
            name=created.name,
            topic_id=created.topic_id,
            error_code=created.error,
            error_message=None if done else created.message or None,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED if withheld else ErrorCode.NONE,
            num_partitions=-1 if withheld else created.num_partitions,
            replication_factor=-1 if withheld else created.replication_factor,
            configs=None if withheld else self._configs_of(wanted) if told else (),
        )

    def _may_see_configs(self, context: RequestContext, name: str) -> bool:
        return allowed(self._authorizer, context, Operation.DESCRIBE_CONFIGS, topic(name), noted=False)

    def _configs_of(self, wanted: CreatableTopic) -> tuple[Any, ...]:
        """Return the effective configs of a new topic: its own from the request, as the image may not have them yet,
        and otherwise those in this broker's image."""
        image = self._image()
        own = {name: value for name, value in without_wish(wanted).configs.items() if value is not None}
        own = {**image.config(topic_resource(wanted.name)), **own}
        return tuple(
            part(
                name=entry.name,
                value=entry.value,
                read_only=False,
                config_source=entry.source,
                is_sensitive=False,
            )
            for entry in self._configs.topic_entries(image, wanted.name, own)
        )

    # DeleteTopics

    async def delete(self, call: Call) -> Any:
        """Answer DeleteTopics: one outcome per topic, in order."""
        refs = await call.connection.stepped(each(*_refs(call)))
        outcomes = await self._delete(call, refs, timeout_ms=call.request.timeout)
        return _deleted(call, outcomes)

    async def _delete(self, call: Call, topics: Sequence[TopicRef], *, timeout_ms: float) -> list[TopicOutcome]:
        """Delete topics; returns one outcome per topic, in order, with name and id as far as known."""
        image, stepped = self._image(), call.connection.stepped
        faults = await stepped(each(partial(self._undeletable, call.context, image), topics))

        def known_as(ref_and_fault: tuple[TopicRef, tuple[ErrorCode, str] | None]) -> TopicRef:
            ref, fault = ref_and_fault
            found = find_topic(image, ref.name or None, ref.topic_id) if fault is None else fault[0]
            return ref if isinstance(found, ErrorCode) else TopicRef(found.name, found.topic_id)

        known = await stepped(each(known_as, zip(topics, faults, strict=True)))

        def refuse(item: TopicRef, error: ErrorCode, message: str) -> TopicOutcome:
            return TopicOutcome(item.name, item.topic_id, error, message)

        async def ask(items: tuple[TopicRef, ...]) -> Sequence[TopicOutcome]:
            return (await self._controller.ask(operations.DELETE_TOPICS, DeleteTopicsRequest(items), timeout_ms)).topics

        twice = await stepped(named_twice(lambda ref: (ref.name, ref.topic_id), known))
        refusals = [twice[index] if fault is None else fault for index, fault in enumerate(faults)]
        price: Price[TopicRef, TopicOutcome] = Price(call.charge(), lambda ref: _partitions_of(image, ref), _paid_for)
        return await each_paid_item(known, refusals, refuse, ask, price, connection=call.connection)

    def _undeletable(
        self, context: RequestContext, image: MetadataImage, ref: TopicRef
    ) -> tuple[ErrorCode, str] | None:
        """Return the error for which a deletion is not forwarded to the controller, or None. An id that this broker
        does not know yet is forwarded only for a principal that may delete all topics; other rights need the name."""
        if ref.name and ref.topic_id != ZERO_UUID:
            return ErrorCode.INVALID_REQUEST, "a topic is named by its name or by its id, not by both"
        if allowed(self._authorizer, context, Operation.DELETE, CLUSTER, noted=False):
            return None
        wanted = NamedTopic(ref.name or None, ref.topic_id)
        found = find_allowed_topic(self._authorizer, context, image, wanted, Operation.DELETE)
        if isinstance(found, ErrorCode) and found is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            named = ref.name and found is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return found, refusal(context, Operation.DELETE, topic(ref.name)).message if named else ""
        return None

    # CreatePartitions

    async def create_partitions(self, call: Call) -> Any:
        """Answer CreatePartitions: one outcome per topic, in order."""
        image, stepped = self._image(), call.connection.stepped
        wanted = await stepped(each(partial(_to_add, image), call.request.topics))
        outcomes = await self._add(call, wanted, dry_run=call.request.validate_only, timeout_ms=call.request.timeout)
        return _added(outcomes)

    async def _add(
        self, call: Call, topics: Sequence[PartitionsToAdd], *, dry_run: bool, timeout_ms: float
    ) -> list[TopicOutcome]:
        """Add partitions; returns one outcome per topic, in order."""
        image = self._image()

        def refuse(item: PartitionsToAdd, error: ErrorCode, message: str) -> TopicOutcome:
            return TopicOutcome(item.name, ZERO_UUID, error, message)

        async def ask(items: tuple[PartitionsToAdd, ...]) -> Sequence[TopicOutcome]:
            request = CreatePartitionsRequest(items, dry_run)
            return (await self._controller.ask(operations.CREATE_PARTITIONS, request, timeout_ms)).topics

        refusals = await call.connection.stepped(named_twice(_name, topics))
        actions = Mapped(lambda item: (Operation.ALTER, topic(item.name)), topics)
        await call.connection.stepped(deny(self._authorizer, call.context, refusals, actions))
        charge = FREE if dry_run else call.charge()
        price: Price[PartitionsToAdd, TopicOutcome] = Price(
            charge, lambda item: _partitions_added(image, item), _paid_for
        )
        return await each_paid_item(topics, refusals, refuse, ask, price, connection=call.connection)


def _name(item: CreatableTopic | PartitionsToAdd) -> str:
    return item.name


def _to_add(image: MetadataImage, one: Any) -> PartitionsToAdd:
    """Return the command for one topic. The request lists assignments of the new partitions without numbers; these
    follow on the number of partitions in the image."""
    known = image.topics.get(one.name)
    first = 0 if known is None else len(known.partitions)
    assignments = tuple(
        ReplicaAssignment(first + number, tuple(NodeId(node) for node in place.broker_ids))
        for number, place in enumerate(one.assignments or ())
    )
    return PartitionsToAdd(one.name, one.count, assignments)


def _partitions_of(image: MetadataImage, ref: TopicRef) -> int:
    found = image.topics.get(ref.name) or image.topic_by_id.get(ref.topic_id)
    return 0 if found is None else len(found.partitions)


def _partitions_added(image: MetadataImage, wanted: PartitionsToAdd) -> int:
    known = image.topics.get(wanted.name)
    return 0 if known is None else _if_possible(wanted.count - len(known.partitions))


def _if_possible(partitions: int) -> int:
    """`partitions`, or 0 if the controller refuses to create that many at once."""
    return partitions if 0 < partitions <= MAX_PARTITIONS_PER_REQUEST else 0


def _paid(error: ErrorCode, expected: int) -> int:
    """Return the partitions to charge for an outcome; a timeout is charged, as the change may be carried out."""
    return expected if error in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT) else 0  # rule A21/timeouts-are-free


def _paid_for(outcome: TopicOutcome, expected: int) -> int:
    return _paid(outcome.error, expected)


def _paid_for_created(outcome: CreatedTopic, expected: int) -> int:
    return outcome.num_partitions if outcome.error is ErrorCode.NONE else _paid(outcome.error, expected)


def _topic_wanted(one: Any) -> CreatableTopic:
    return CreatableTopic(
        name=one.name,
        num_partitions=one.num_partitions,
        replication_factor=one.replication_factor,
        assignments=tuple(
            ReplicaAssignment(place.partition_index, tuple(NodeId(node) for node in place.broker_ids))
            for place in one.assignments
        ),
        configs={config.name: config.value for config in one.configs},
    )


def _refs(call: Call) -> tuple[Callable[[Any], TopicRef], Sequence[Any]]:
    """Return a function that makes a reference from a topic of the request, and these topics."""
    if call.context.version >= BY_ID_SINCE:
        return lambda one: TopicRef(one.name or "", one.topic_id or ZERO_UUID), call.request.topics
    return TopicRef, call.request.topic_names


def _deleted(call: Call, outcomes: list[TopicOutcome]) -> Any:
    by_id = call.context.version >= BY_ID_SINCE

    def response(outcome: TopicOutcome) -> Any:
        return part(
            name=outcome.name or None if by_id else outcome.name,
            topic_id=outcome.topic_id,
            error_code=outcome.error,
            error_message=outcome.message or None,
        )

    return part(responses=Mapped(response, outcomes))


def _added(outcomes: list[TopicOutcome]) -> Any:
    def result(outcome: TopicOutcome) -> Any:
        return part(name=outcome.name, error_code=outcome.error, error_message=outcome.message or None)

    return part(results=Mapped(result, outcomes))


def _topics_created(request: Any, answer: Any) -> Iterator[Change]:
    for one in answer.topics:
        yield f"topic {one.name}", one.error_code


def _topics_deleted(request: Any, answer: Any) -> Iterator[Change]:
    for one in answer.responses:
        yield f"topic {one.name or getattr(one, 'topic_id', None)}", one.error_code


def _partitions_asked(request: Any, answer: Any) -> Iterator[Change]:
    counts = {one.name: one.count for one in request.topics}
    for one in answer.results:
        yield f"topic {one.name}: {counts.get(one.name)} partitions", one.error_code


ROWS = (
    by_schema(Api.CREATE_TOPICS, (2, 7), TopicsHandler, TopicsHandler.create, changes=_topics_created, strict_since=6),
    by_schema(Api.DELETE_TOPICS, (1, 6), TopicsHandler, TopicsHandler.delete, changes=_topics_deleted, strict_since=5),
    by_schema(
        Api.CREATE_PARTITIONS,
        (0, 3),
        TopicsHandler,
        TopicsHandler.create_partitions,
        changes=_partitions_asked,
        strict_since=3,
    ),
)
