"""CreateTopics (19)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.controller.api import CreatableTopic, CreatedTopic, ReplicaAssignment
from strandline.controller.metadata.image import topic_resource
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NodeId
from strandline.proto.kafka.apis import Api

DETAILS_SINCE = 5
"""Since then the answer tells the counts and configs that the topic has got (KIP-525)."""


def _wanted(call: Call) -> list[CreatableTopic]:
    return [
        CreatableTopic(
            name=topic.name,
            num_partitions=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignments=tuple(
                ReplicaAssignment(one.partition_index, tuple(NodeId(node) for node in one.broker_ids))
                for one in topic.assignments
            ),
            configs={config.name: config.value for config in topic.configs},
        )
        for topic in call.request.topics
    ]


def _configs(call: Call, topic: CreatableTopic) -> tuple[Any, ...]:
    """What the topic goes by: its own configs, for the image may not have them yet, else this broker's view."""
    service = call.service
    image = service.image()
    own = {name: value for name, value in topic.configs.items() if value is not None}
    own = {**image.config(topic_resource(topic.name)), **own}
    return tuple(
        part(
            name=entry.name,
            value=entry.value,
            read_only=False,
            config_source=entry.source,
            is_sensitive=False,
        )
        for entry in service.configs.topic_entries(image, topic.name, own)
    )


def _result(call: Call, topic: CreatableTopic, created: CreatedTopic) -> Any:
    done = created.error is ErrorCode.NONE
    return part(
        name=created.name,
        topic_id=created.topic_id,
        error_code=created.error,
        error_message=None if done else created.message or None,
        num_partitions=created.num_partitions,
        replication_factor=created.replication_factor,
        configs=_configs(call, topic) if done and call.context.version >= DETAILS_SINCE else (),
    )


def _respond(call: Call, topics: list[CreatableTopic], created: list[CreatedTopic]) -> Any:
    results = tuple(_result(call, *pair) for pair in zip(topics, created, strict=True))
    return part(throttle_time=0, topics=results)


async def _answer(call: Call) -> Any:
    topics = _wanted(call)
    timeout_ms = call.request.timeout
    created = await call.service.create_topics(
        call.context, topics, dry_run=call.request.validate_only, timeout_ms=timeout_ms
    )
    return _respond(call, topics, created)


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    topics = _wanted(call)
    return _respond(call, topics, [CreatedTopic(topic.name, error, message) for topic in topics])


API = message_api(
    Api.CREATE_TOPICS,
    first=2,
    last=7,
    refuse=_refuse,
    answer_later=_answer,
)
