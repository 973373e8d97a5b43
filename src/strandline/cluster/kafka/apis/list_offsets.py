"""ListOffsets (2)."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from strandline.cluster.kafka.api import Call, message_api
from strandline.cluster.service.offsets import OffsetAnswer, OffsetQuery
from strandline.proto.error_codes import ErrorCode


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


def _respond(call: Call, answers: list[OffsetAnswer]) -> Any:
    topics = tuple(
        call.make(
            "ListOffsetsTopicResponse",
            name=name,
            partitions=tuple(
                call.make(
                    "ListOffsetsPartitionResponse",
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
    return call.make("ListOffsetsResponse", throttle_time=0, topics=topics)


def _answer(call: Call) -> Any:
    return _respond(call, call.service.list_offsets(call.context, _queries(call)))


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(call, [OffsetAnswer(query, error) for query in _queries(call)])


API = message_api(
    key=2,
    name="ListOffsets",
    schema="list_offsets",
    first=1,
    last=11,
    flexible_since=6,
    refuse=_refuse,
    answer=_answer,
)
