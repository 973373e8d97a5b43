"""DescribeQuorum (55): leader, voters and observers of the metadata log."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.controller.quorum.api import QuorumDescription, ReplicaDescription
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api

METADATA_TOPIC = "__cluster_metadata"
METADATA_PARTITION = 0
LISTENER = "INTERNAL"
"""The name under which a controller's endpoint is shown: nodes speak gRPC there, not Kafka's wire."""


def _replica(replica: ReplicaDescription) -> Any:
    return part(
        replica_id=replica.node_id,
        replica_directory_id=replica.directory_id,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_fetch_timestamp_ms,
        last_caught_up_timestamp=replica.last_caught_up_timestamp_ms,
    )


def _partition(index: int, quorum: QuorumDescription | None, error: ErrorCode, message: str) -> Any:
    return part(
        partition_index=index,
        error_code=error,
        error_message=message or None,
        leader_id=-1 if quorum is None or quorum.leader_id is None else quorum.leader_id,
        leader_epoch=-1 if quorum is None else quorum.epoch,
        high_watermark=-1 if quorum is None else quorum.high_watermark,
        current_voters=() if quorum is None else tuple(_replica(one) for one in quorum.voters),
        observers=() if quorum is None else tuple(_replica(one) for one in quorum.observers),
    )


def _nodes(call: Call, quorum: QuorumDescription) -> tuple[Any, ...]:
    nodes = []
    for voter in quorum.voters:
        endpoint = call.service.quorum.endpoint_of(voter.node_id)
        if endpoint is not None:
            listener = part(name=LISTENER, host=endpoint.host, port=endpoint.port)
            nodes.append((voter.node_id, (listener,)))
    return tuple(part(node_id=node_id, listeners=listeners) for node_id, listeners in nodes)


def _topics(call: Call, quorum: QuorumDescription | None, error: ErrorCode, message: str) -> tuple[Any, ...]:
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"only {METADATA_TOPIC}-{METADATA_PARTITION} has a quorum")
    topics = []
    for topic in call.request.topics:
        partitions = []
        for partition in topic.partitions:
            known = topic.topic_name == METADATA_TOPIC and partition.partition_index == METADATA_PARTITION
            fault = (error, message) if known else unknown
            partitions.append(_partition(partition.partition_index, quorum if known else None, *fault))
        topics.append(part(topic_name=topic.topic_name, partitions=tuple(partitions)))
    return tuple(topics)


async def _answer(call: Call) -> Any:
    quorum = await call.service.describe_quorum(call.context)
    return part(
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=_topics(call, quorum, ErrorCode.NONE, ""),
        nodes=_nodes(call, quorum),
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    whole = error if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else ErrorCode.NONE
    return part(
        error_code=whole,
        error_message=message or None,
        topics=_topics(call, None, error, message),
        nodes=(),
    )


API = message_api(
    Api.DESCRIBE_QUORUM,
    first=0,
    last=2,
    refuse=_refuse,
    answer_later=_answer,
)
