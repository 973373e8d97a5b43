"""OffsetFetch (9): the committed offsets of one group, and from version 8 on of several groups in one request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from strandline.cluster.broker.api import Call, by_schema, part
from strandline.cluster.broker.request import Authorizer, RequestContext
from strandline.cluster.broker.requested_topics import OffsetAccess, may_see
from strandline.cluster.groups.commands import UNSTABLE, FetchedOffsets, FetchOffsets, Unstable
from strandline.cluster.groups.group_coordinator import GroupCoordinator
from strandline.controller.metadata.image import MetadataImage
from strandline.proto.acls import Operation
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicId
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.group_records import OffsetValue
from strandline.proto.steps import Counted, Mapped, each

WHOLE_ERROR_SINCE = 2
STABLE_SINCE = 7
MANY_SINCE = 8
EPOCH_SINCE = 9
TOPIC_ID_SINCE = 10


class PartitionsOfTopic(NamedTuple):
    """Requested partitions of one topic, named by name or by id."""

    name: str | None
    topic_id: TopicId | None
    partitions: tuple[int, ...]


class Member(NamedTuple):
    """Member of the consumer protocol that sends the request (OffsetFetch 9 and later); None and -1 if not given."""

    member_id: str | None = None
    epoch: int = -1


NO_MEMBER = Member()


class FetchedOffset(NamedTuple):
    """Committed offset of one partition; `value` None: nothing is committed, or there is an error."""

    partition: int
    value: OffsetValue | None
    error: ErrorCode = ErrorCode.NONE

    @classmethod
    def found(cls, partition: int, value: OffsetValue | Unstable | None) -> FetchedOffset:
        """Make it from the coordinator's answer."""
        return cls(partition, None, ErrorCode.UNSTABLE_OFFSET_COMMIT) if value is UNSTABLE else cls(partition, value)


class FetchedTopic(NamedTuple):
    name: str
    topic_id: TopicId | None
    offsets: Counted[FetchedOffset]

    @classmethod
    def of(
        cls, values: tuple[str, list[tuple[int, OffsetValue | Unstable | None]]], topic_id: TopicId | None
    ) -> FetchedTopic:
        """Make it from the coordinator's answer."""
        name, offsets = values
        return cls(name, topic_id, Mapped(lambda pair: FetchedOffset.found(*pair), offsets))


class _Group(NamedTuple):
    """Request for the offsets of one group; `topics` None: all of them. `stable`: see `OffsetFetchHandler._fetch`."""

    group_id: str
    topics: tuple[PartitionsOfTopic, ...] | None
    member: Member = NO_MEMBER
    stable: bool = False


_Answer = tuple[_Group, list[FetchedTopic], ErrorCode]


class OffsetFetchHandler:
    """Answers OffsetFetch with committed offsets of the groups that this broker coordinates."""

    def __init__(self, *, groups: GroupCoordinator, image: Callable[[], MetadataImage], authorizer: Authorizer) -> None:
        self._groups = groups
        self._access = OffsetAccess(image, authorizer)
        self._image = image
        self._authorizer = authorizer

    async def fetch(self, call: Call) -> Any:
        """Answer OffsetFetch: one answer per group, each with its own error."""

        async def answer(one: _Group) -> _Answer:
            try:
                return one, await self._fetch(call, one), ErrorCode.NONE
            except KafkaError as error:
                return one, _failed(call, one, error.code), error.code

        return _respond(call, await call.connection.each(answer, _groups(call)))

    async def _fetch(self, call: Call, group: _Group) -> list[FetchedTopic]:
        """Return the committed offsets, in the order of the request; without topics those of all topics that the
        principal may DESCRIBE.

        Unknown groups and topics have nothing committed. Unknown topic ids get UNKNOWN_TOPIC_ID; offsets that an open
        transaction may replace get UNSTABLE_OFFSET_COMMIT if the request asks for stable offsets.

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH if the group has no such member.
        """
        context, topics = call.context, group.topics
        self._access.check_group(context, Operation.DESCRIBE, group.group_id)
        if topics is None:
            return await self._fetch_all(context, group)
        asked: list[tuple[str, tuple[int, ...]]] = []

        def judge(wanted: PartitionsOfTopic) -> FetchedTopic | None:
            """Return the answer for a topic that needs no question to the group; None if the group must be asked."""
            found, fault = self._access.find_topic(context, wanted.name, wanted.topic_id, Operation.DESCRIBE)
            name = wanted.name if found is None else found.name
            if name is None or fault is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                refused = [FetchedOffset(partition, None, fault) for partition in wanted.partitions]
                return FetchedTopic(name or "", wanted.topic_id, refused)
            asked.append((name, wanted.partitions))
            return None

        answers = await call.connection.stepped(each(judge, topics))
        values = iter(await self._ask(context, group, tuple(asked)))
        return [
            FetchedTopic.of(next(values), wanted.topic_id) if answer is None else answer
            for answer, wanted in zip(answers, topics, strict=True)
        ]

    async def _ask(
        self, context: RequestContext, group: _Group, asked: tuple[tuple[str, tuple[int, ...]], ...] | None
    ) -> FetchedOffsets:
        # rule C7/stable-is-not-asked-for
        command = FetchOffsets(group.group_id, asked, *group.member, stable=group.stable)
        found: FetchedOffsets = await self._groups.ask(group.group_id, command, asked_ms=context.received_ms)
        return found

    async def _fetch_all(self, context: RequestContext, group: _Group) -> list[FetchedTopic]:
        values = await self._ask(context, group, None)
        image = self._image()
        return [
            FetchedTopic.of((name, offsets), image.topics[name].topic_id)
            for name, offsets in values
            if name in image.topics and may_see(self._authorizer, context, name)
        ]


def _groups(call: Call) -> list[_Group]:
    stable = call.context.version >= STABLE_SINCE and call.request.require_stable
    if call.context.version >= MANY_SINCE:
        knows_epochs = call.context.version >= EPOCH_SINCE
        return [
            _Group(
                group.group_id,
                _topics(call, group.topics),
                Member(group.member_id, group.member_epoch) if knows_epochs else NO_MEMBER,
                stable,
            )
            for group in call.request.groups
        ]
    return [_Group(call.request.group_id, _topics(call, call.request.topics), stable=stable)]


def _topics(call: Call, topics: Any) -> tuple[PartitionsOfTopic, ...] | None:
    if topics is None:
        return None
    by_id = call.context.version >= TOPIC_ID_SINCE
    return tuple(
        PartitionsOfTopic(None if by_id else one.name, one.topic_id if by_id else None, one.partition_indexes)
        for one in topics
    )


def _failed(call: Call, group: _Group, error: ErrorCode) -> list[FetchedTopic]:
    """Return the topics of an answer with a group's error: the oldest versions have that error in each partition."""
    if call.context.version >= WHOLE_ERROR_SINCE or group.topics is None:
        return []
    return [
        FetchedTopic(one.name or "", None, [FetchedOffset(partition, None, error) for partition in one.partitions])
        for one in group.topics
    ]


def _respond(call: Call, answers: list[_Answer]) -> Any:
    def told(answer: _Answer) -> Any:
        group, topics, error = answer
        return part(group_id=group.group_id, topics=Mapped(partial(_topic, call), topics), error_code=error)

    return part(groups=Mapped(told, answers)) if call.context.version >= MANY_SINCE else told(answers[0])


def _topic(call: Call, topic: FetchedTopic) -> Any:
    named = {"topic_id": topic.topic_id} if call.context.version >= TOPIC_ID_SINCE else {"name": topic.name}
    return part(**named, partitions=Mapped(_partition, topic.offsets))


def _partition(offset: FetchedOffset) -> Any:
    value = offset.value
    return part(
        partition_index=offset.partition,
        committed_offset=-1 if value is None else value.offset,
        committed_leader_epoch=-1 if value is None else value.leader_epoch,
        metadata="" if value is None else value.metadata,
        error_code=offset.error,
    )


ROWS = (by_schema(Api.OFFSET_FETCH, (1, 10), OffsetFetchHandler, OffsetFetchHandler.fetch),)
