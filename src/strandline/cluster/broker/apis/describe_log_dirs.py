"""DescribeLogDirs (35): what one broker stores. Each broker answers for itself."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.service.inspection import LogDirDescription
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api


def _respond(error: ErrorCode, found: LogDirDescription | None) -> Any:
    results: tuple[Any, ...] = ()
    if found is not None:
        topics: dict[str, list[Any]] = {}
        for replica in found.replicas:
            partition = part(
                partition_index=replica.partition,
                partition_size=replica.size_bytes,
                offset_lag=replica.lag,
                is_future_key=False,
            )
            topics.setdefault(replica.topic, []).append(partition)
        result = part(
            error_code=ErrorCode.NONE,
            log_dir=found.path,
            topics=tuple(part(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()),
            total_bytes=found.total_bytes,
            usable_bytes=found.usable_bytes,
        )
        results = (result,)
    return part(throttle_time=0, error_code=error, results=results)


def _answer(call: Call) -> Any:
    topics = call.request.topics
    wanted = None if topics is None else {topic.topic: topic.partitions for topic in topics}
    return _respond(ErrorCode.NONE, call.service.describe_log_dir(call.context, wanted))


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return _respond(error, None)


API = message_api(
    Api.DESCRIBE_LOG_DIRS,
    first=1,
    last=5,
    refuse=_refuse,
    answer=_answer,
)
