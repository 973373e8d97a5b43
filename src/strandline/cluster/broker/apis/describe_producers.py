"""DescribeProducers (61): whom a partition's leader remembers for the check against duplicates."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.service.inspection import ProducersAnswer
from strandline.log.producer_state import ProducerEntry
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api


def _wanted(call: Call) -> list[tuple[str, int]]:
    asked = [(topic.name, number) for topic in call.request.topics for number in topic.partition_indexes]
    return list(dict.fromkeys(asked))


def _producer(entry: ProducerEntry) -> Any:
    last = entry.batches[-1] if entry.batches else None
    return part(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=-1 if last is None else last.last_sequence,
        last_timestamp=-1 if last is None else last.timestamp_ms,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.transaction_start,
    )


def _respond(answers: list[ProducersAnswer]) -> Any:
    topics: dict[str, list[Any]] = {}
    for answer in answers:
        partition = part(
            partition_index=answer.partition,
            error_code=answer.error,
            error_message=answer.message or None,
            active_producers=tuple(_producer(entry) for entry in answer.producers),
        )
        topics.setdefault(answer.topic, []).append(partition)
    return part(
        throttle_time=0,
        topics=tuple(part(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()),
    )


def _answer(call: Call) -> Any:
    return _respond(call.service.describe_producers(call.context, _wanted(call)))


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond([ProducersAnswer(name, number, error, message) for name, number in _wanted(call)])


API = message_api(
    Api.DESCRIBE_PRODUCERS,
    first=0,
    last=0,
    refuse=_refuse,
    answer=_answer,
)
