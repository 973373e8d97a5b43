"""OffsetForLeaderEpoch (23): a consumer finds out whether its log and the leader's have parted (KIP-320)."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.service.offsets import EpochAnswer, EpochQuery
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api


def _queries(call: Call) -> list[EpochQuery]:
    return [
        EpochQuery(topic.topic, partition.partition, partition.current_leader_epoch, partition.leader_epoch)
        for topic in call.request.topics
        for partition in topic.partitions
    ]


def _respond(answers: list[EpochAnswer]) -> Any:
    topics = tuple(
        part(
            topic=name,
            partitions=tuple(
                part(
                    error_code=answer.error,
                    partition=answer.query.partition,
                    leader_epoch=answer.leader_epoch,
                    end_offset=answer.end_offset,
                )
                for answer in group
            ),
        )
        for name, group in groupby(answers, lambda answer: answer.query.topic)
    )
    return part(throttle_time=0, topics=topics)


def _answer(call: Call) -> Any:
    return _respond(call.service.offsets_for_leader_epochs(call.context, _queries(call)))


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond([EpochAnswer(query, error) for query in _queries(call)])


API = message_api(
    Api.OFFSET_FOR_LEADER_EPOCH,
    first=2,
    last=4,
    refuse=_refuse,
    answer=_answer,
)
