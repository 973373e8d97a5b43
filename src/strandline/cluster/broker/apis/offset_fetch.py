"""OffsetFetch (9): of one group, and from version 8 on of several in one request."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.service.group_admin import GROUPS_AT_A_STRETCH
from strandline.cluster.broker.service.group_offsets import (
    OUTSIDE,
    Asker,
    FetchedOffset,
    FetchedTopic,
    PartitionsOfTopic,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api

WHOLE_ERROR_SINCE = 2
MANY_SINCE = 8
EPOCH_SINCE = 9
TOPIC_ID_SINCE = 10


class _Group(NamedTuple):
    """What is asked of one group; `topics` None: everything."""

    group_id: str
    topics: tuple[PartitionsOfTopic, ...] | None
    asker: Asker = OUTSIDE


def _topics(call: Call, topics: Any) -> tuple[PartitionsOfTopic, ...] | None:
    if topics is None:
        return None
    by_id = call.context.version >= TOPIC_ID_SINCE
    return tuple(
        PartitionsOfTopic(None if by_id else one.name, one.topic_id if by_id else None, one.partition_indexes)
        for one in topics
    )


def _groups(call: Call) -> list[_Group]:
    if call.context.version >= MANY_SINCE:
        knows_epochs = call.context.version >= EPOCH_SINCE
        return [
            _Group(
                group.group_id,
                _topics(call, group.topics),
                Asker(group.member_id, group.member_epoch) if knows_epochs else OUTSIDE,
            )
            for group in call.request.groups
        ]
    return [_Group(call.request.group_id, _topics(call, call.request.topics))]


async def _answer(call: Call) -> Any:
    answers: list[tuple[_Group, list[FetchedTopic], ErrorCode]] = []
    for number, group in enumerate(_groups(call), 1):
        if number % GROUPS_AT_A_STRETCH == 0:
            await asyncio.sleep(0)
        try:
            found = await call.service.fetch_offsets(call.context, group.group_id, group.topics, group.asker)
            answers.append((group, found, ErrorCode.NONE))
        except KafkaError as error:
            answers.append((group, _failed(call, group, error.code), error.code))
    return _respond(call, answers)


def _failed(call: Call, group: _Group, error: ErrorCode) -> list[FetchedTopic]:
    """An error of the whole group: the oldest versions have no other place for it than each partition."""
    if call.context.version >= WHOLE_ERROR_SINCE or group.topics is None:
        return []
    return [
        FetchedTopic(topic.name or "", None, [FetchedOffset(partition, None, error) for partition in topic.partitions])
        for topic in group.topics
    ]


def _respond(call: Call, answers: list[tuple[_Group, list[FetchedTopic], ErrorCode]]) -> Any:
    if call.context.version < MANY_SINCE:
        (_, topics, error) = answers[0]
        made = tuple(_topic(call, topic) for topic in topics)
        return part(throttle_time=0, topics=made, error_code=error)
    groups = tuple(
        part(
            group_id=group.group_id,
            topics=tuple(_topic(call, topic) for topic in topics),
            error_code=error,
        )
        for group, topics, error in answers
    )
    return part(throttle_time=0, groups=groups)


def _topic(call: Call, topic: FetchedTopic) -> Any:
    named = {"topic_id": topic.topic_id} if call.context.version >= TOPIC_ID_SINCE else {"name": topic.name}
    partitions = tuple(_partition(offset) for offset in topic.offsets)
    return part(**named, partitions=partitions)


def _partition(offset: FetchedOffset) -> Any:
    value = offset.value
    return part(
        partition_index=offset.partition,
        committed_offset=-1 if value is None else value.offset,
        committed_leader_epoch=-1 if value is None else value.leader_epoch,
        metadata="" if value is None else value.metadata,
        error_code=offset.error,
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(call, [(group, _failed(call, group, error), error) for group in _groups(call)])


API = message_api(
    Api.OFFSET_FETCH,
    first=1,
    last=10,
    refuse=_refuse,
    answer_later=_answer,
)
