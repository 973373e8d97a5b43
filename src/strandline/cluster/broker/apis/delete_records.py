"""DeleteRecords (21)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.service.deletions import Deleted, Deletion
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api


def _wanted(call: Call) -> list[Deletion]:
    return [
        Deletion(topic.name, partition.partition_index, partition.offset)
        for topic in call.request.topics
        for partition in topic.partitions
    ]


def _respond(outcomes: list[Deleted]) -> Any:
    topics: dict[str, list[Any]] = {}
    for outcome in outcomes:
        result = part(
            partition_index=outcome.partition,
            low_watermark=outcome.low_watermark,
            error_code=outcome.error,
        )
        topics.setdefault(outcome.topic, []).append(result)
    return part(
        throttle_time=0,
        topics=tuple(part(name=name, partitions=tuple(results)) for name, results in topics.items()),
    )


async def _answer(call: Call) -> Any:
    timeout_ms = max(call.request.timeout, 0.0)
    return _respond(await call.service.delete_records(call.context, _wanted(call), timeout_ms))


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond([Deleted(one.topic, one.partition, error) for one in _wanted(call)])


API = message_api(
    Api.DELETE_RECORDS,
    first=0,
    last=2,
    refuse=_refuse,
    answer_later=_answer,
)
