"""ListOffsets (2)."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.service.offsets import OffsetAnswer, OffsetQuery
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api


def _queries(call: Call) -> list[OffsetQuery]:
    return [
        OffsetQuery(
            topic.name,
            partition.partition_index,
            partition.timestamp,
            getattr(partition, "current_leader_epoch", -1),  # since version 4
        )
        for topic in call.request.topics
        for partition in topic.partitions
    ]


def _respond(answers: list[OffsetAnswer]) -> Any:
    topics = tuple(
        part(
            name=name,
            partitions=tuple(
                part(
                    partition_index=answer.query.partition,
                    error_code=answer.error,
                    timestamp=answer.timestamp_ms,
                    offset=answer.offset,
                    leader_epoch=answer.leader_epoch,
                )
                for answer in group
            ),
        )
        for name, group in groupby(answers, lambda answer: answer.query.topic)
    )
    return part(throttle_time=0, topics=topics)


def _answer(call: Call) -> Any:
    return _respond(call.service.list_offsets(call.context, _queries(call)))


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond([OffsetAnswer(query, error) for query in _queries(call)])


API = message_api(
    Api.LIST_OFFSETS,
    first=1,
    last=11,
    refuse=_refuse,
    answer=_answer,
)
